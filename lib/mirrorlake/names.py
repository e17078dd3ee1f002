"""Names and paths in a lake: tables, schemas, folders, numbered files.

Names come from outside and are untrusted: a checked name is the name of one folder, and can't
refer to any other path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from mirrorlake.errors import InvalidNameError

ZONE = "Files/LandingZone"
TABLES = "Tables"
STATE = "Files/_mirrorlake"
FRAMES = f"{STATE}/frames"
ROW_FILES = f"{STATE}/row-files"  # temporary logs for reading rows by their ids: a folder per day
MONITORING = "Files/Monitoring"
PROCESSED = "_ProcessedFiles"
READY_TO_DELETE = "_FilesReadyToDelete"
METADATA = "_metadata.json"
PARTNER_EVENTS = "_partnerEvents.json"
IDENTITY = "_mirrorlake.json"
SCHEMA_SUFFIX = ".schema"
HIDDEN = "__mirrorlake_"
"""The prefix of columns that the library adds."""
CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")  # of a change feed

# The second extension is a compression; `….parquet.tmp` is a file that is still being written.
_NUMBERED = re.compile(
    r"(\d{20})(\.[A-Za-z0-9]+(\.(gz|gzip|zst|zstd|snappy))?)?\Z", re.ASCII | re.IGNORECASE
)
_FORBIDDEN = re.compile(r"[/\\:]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and lone surrogates
# Windows has devices of these names, with any extension, and drops dots and blanks at the end.
_NO_WINDOWS = re.compile(
    r"[<>\"|?*]|[. ]\Z|\A(CON|PRN|AUX|NUL|COM[1-9]|LPT[1-9]) *(\.|\Z)", re.IGNORECASE
)
_UNSAFE_COLUMN = re.compile(r"[ ,;{}()\n\t=]+")  # Delta must map names with these
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True, order=True)
class TableName:
    """A table's name, with its schema if it has one.

    Raises:
        InvalidNameError: a part is not a valid name of a folder, is hidden, or could refer to
            another folder.
    """

    schema: str | None
    name: str

    def __post_init__(self) -> None:
        for part in (self.schema, self.name):
            if part is not None:
                check_part(part)
        if self.schema is None and self.name.lower().endswith(SCHEMA_SUFFIX):
            raise InvalidNameError(
                f"The table name {self.name!r} ends with {SCHEMA_SUFFIX}, like a schema's folder.",
                hint="choose another name.",
            )

    def __str__(self) -> str:
        parts = [self.name] if self.schema is None else [self.schema, self.name]
        return ".".join(quote(part) if "." in part or "`" in part else part for part in parts)

    @property
    def place(self) -> str:
        """A relative path that only this table has; `.schema` marks the folder of a schema."""
        return place_of(self.schema, self.name)

    @property
    def folder(self) -> str:
        """The table's folder in the landing zone, relative to the lake's root."""
        return f"{ZONE}/{self.place}"

    @property
    def table_path(self) -> str:
        """The Delta table's folder, relative to the lake's root."""
        inner = "" if self.schema is None else f"{self.schema}/"
        return f"{TABLES}/{inner}{self.name}"

    @property
    def state_path(self) -> str:
        """The folder of this table's plans, relative to the lake's root."""
        return f"{STATE}/plans/{self.place}"

    @property
    def partitioning_path(self) -> str:
        """The folder of this table's partitioning policies and receipts, relative to the root."""
        return f"{STATE}/partitioning/{self.place}"

    @property
    def feeds_path(self) -> str:
        """The folder of the positions of this table's consumers, relative to the lake's root."""
        return f"{STATE}/feeds/{self.place}"

    @property
    def horizons_path(self) -> str:
        """The folder of the lowest versions that new frames may have, relative to the root."""
        return f"{STATE}/horizons/{self.place}"

    @property
    def fits_windows(self) -> bool:
        """Whether Windows can store folders with the table's name and its schema's."""
        return not any(_NO_WINDOWS.search(part) for part in (self.schema, self.name) if part)

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse `table` or `schema.table`; the parts may be in backticks."""
        parts: list[str] = []
        position = 0
        while True:
            match = _PART.match(text, position)
            if match is None:
                raise InvalidNameError(
                    f"{text!r} is not a table name.", hint="write table or schema.table."
                )
            parts.append(match[2] if match[1] is None else match[1].replace("``", "`"))
            position = match.end()
            if position == len(text):
                break
            if text[position] != ".":
                raise InvalidNameError(
                    f"{text!r} is not a table name.",
                    hint="put parts with special characters into backticks.",
                )
            position += 1
        if len(parts) > 2:
            raise InvalidNameError(
                f"{text!r} has {len(parts)} parts.", hint="write table or schema.table."
            )
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])


@dataclass(frozen=True, order=True)
class StageName(TableName):
    """The name of a stage of a view: a hidden table that only refreshes of the view use.

    A table of the lake cannot have such a name, because it contains a slash.

    Attributes:
        number: the number of the stage.
    """

    number: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}/{self.number}"

    @property
    def place(self) -> str:
        """A relative path that only this table has."""
        return f"{super().place}.stages/{self.number}"

    @property
    def table_path(self) -> str:
        """The Delta table's folder, relative to the lake's root."""
        return f"{STATE}/stages/{self.place}"


def stages_folder(view: TableName) -> str:
    """Return the folder of a view's stages, relative to the lake's root."""
    return StageName(view.schema, view.name).table_path.rpartition("/")[0]


def safe_column(name: str) -> str:
    """Return a column name without the characters that need Delta's column mapping.

    Example:
        >>> safe_column("unit price (EUR)")
        'unit_price_EUR'
    """
    if not _UNSAFE_COLUMN.search(name):
        return name
    return "_".join(filter(None, _UNSAFE_COLUMN.split(name))) or "_"


def quote(name: str) -> str:
    """Return an SQL identifier in backticks; no character of the name can end them."""
    return f"`{name.replace('`', '``')}`"


def place_of(schema: str | None, name: str) -> str:
    """Return `TableName.place`, also for a name that no table can have."""
    return name if schema is None else f"{schema}{SCHEMA_SUFFIX}/{name}"


def fingerprint(text: str, letters: int = 16) -> str:
    """Return a short hash of a text, for use in the name of a file."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:letters]


def as_table(name: str | TableName) -> TableName:
    """Return a table's name; text is parsed."""
    return name if isinstance(name, TableName) else TableName.parse(name)


def check_part(part: str) -> None:
    """Check whether a part of a name is valid as the name of one visible folder.

    Raises:
        InvalidNameError: it is not; with the reason.
    """
    problem = ""
    if not part or part.isspace():
        problem = "is empty"
    elif part in (".", ".."):
        problem = "would leave its folder"
    elif part.startswith(("_", ".")):
        problem = f"starts with {part[0]!r}, which hides a folder"
    elif _FORBIDDEN.search(part):
        problem = "has one of / \\ : in it"
    elif _CONTROL.search(part):
        problem = "has a control character in it"
    elif len(part.encode()) > 200:
        problem = "is longer than 200 bytes"
    if problem:
        raise InvalidNameError(f"The name {part!r} {problem}.", hint="choose another name.")


def is_reserved(column: str) -> bool:
    """Return whether Spark, a change feed or the library itself uses a column of that name."""
    lower = column.lower()
    return lower in ("_metadata", *CHANGE_COLUMNS) or lower.startswith(HIDDEN)


def file_name(number: int, extension: str = ".parquet") -> str:
    """Return the name of a data file: its number, from 1 on, in 20 digits."""
    return f"{number:020d}{extension}"


def file_number(name: str) -> int | None:
    """Return the number in a data file's name; None if it is not the name of a data file."""
    match = _NUMBERED.match(name)
    return int(match[1]) if match else None


def spelled(names: Iterable[str], columns: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names that are columns, as the columns are spelled.

    Example:
        >>> spelled(("Day", "ID", "gone"), ["id", "n", "day"])
        ('day', 'id')
    """
    known = {column.lower(): column for column in columns}
    return tuple(known[name.lower()] for name in names if name.lower() in known)


def visible_columns(columns: Iterable[str]) -> list[str]:
    """Return columns without those that a view hides.

    Example:
        >>> visible_columns(["id", "__mirrorlake_rows"])
        ['id']
    """
    return [column for column in columns if not column.startswith(HIDDEN)]


def sortable_columns(kinds: Iterable[tuple[str, str]]) -> list[str]:
    """Return the columns that Spark can order by: not maps and variants.

    Args:
        kinds: the names and Spark types of the columns.

    Example:
        >>> sortable_columns([("id", "int"), ("tags", "map<string,int>")])
        ['id']
    """
    return [name for name, kind in kinds if "map<" not in kind and "variant" not in kind]


def split_names(names: str | Iterable[str]) -> list[str]:
    """Return names as a list; a text separates them by commas.

    Example:
        >>> split_names("id, day"), split_names(("id", "day"))
        (['id', 'day'], ['id', 'day'])
    """
    if not isinstance(names, str):
        return list(names)
    return [name.strip() for name in names.split(",") if name.strip()]
