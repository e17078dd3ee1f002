"""Names and places in a lake: tables, schemas, folders, numbered files.

Names from outside are data. What is checked here may become one folder's name and nothing more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from mirrorlake.errors import InvalidNameError

ZONE = "Files/LandingZone"
TABLES = "Tables"
STATE = "Files/_mirrorlake"
MONITORING = "Files/Monitoring"
PROCESSED = "_ProcessedFiles"
READY_TO_DELETE = "_FilesReadyToDelete"
METADATA = "_metadata.json"
PARTNER_EVENTS = "_partnerEvents.json"
IDENTITY = "_mirrorlake.json"
SCHEMA_SUFFIX = ".schema"

# A second ending is a compression's; `….parquet.tmp` is still being written by somebody.
_NUMBERED = re.compile(
    r"(\d{20})(\.[A-Za-z0-9]+(\.(gz|gzip|zst|zstd|snappy))?)?\Z", re.ASCII | re.IGNORECASE
)
_FORBIDDEN = re.compile(r"[/\\:]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and halves of characters
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True, order=True)
class TableName:
    """A table's name, with its schema where there is one.

    Raises:
        InvalidNameError: a part could leave its folder, is hidden, or can't be a folder's name.
    """

    schema: str | None
    name: str

    def __post_init__(self) -> None:
        for part in (self.schema, self.name):
            if part is not None:
                check_part(part)
        if self.schema is None and self.name.lower().endswith(SCHEMA_SUFFIX):
            raise InvalidNameError(
                f"Table name {self.name!r} ends like a schema's folder.",
                hint=f"a table's name must not end with {SCHEMA_SUFFIX}.",
            )

    def __str__(self) -> str:
        parts = [self.name] if self.schema is None else [self.schema, self.name]
        return ".".join(quote(part) if "." in part or "`" in part else part for part in parts)

    @property
    def place(self) -> str:
        """A relative path of this table alone; `.schema` keeps a table and a schema apart."""
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
        """Where the engine keeps this table's plans, relative to the lake's root."""
        return f"{STATE}/plans/{self.place}"

    @property
    def partitioning_path(self) -> str:
        """Where this table's partitioning policies and receipts lie, relative to the root."""
        return f"{STATE}/partitioning/{self.place}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Reads `table`, `schema.table`, or either with parts in backticks."""
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
                    f"{text!r} is not a table name.", hint="put odd parts into backticks."
                )
            position += 1
        if len(parts) > 2:
            raise InvalidNameError(
                f"{text!r} has {len(parts)} parts.", hint="write table or schema.table."
            )
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])


def quote(name: str) -> str:
    """Return an SQL identifier in backticks; no character of the name can end them."""
    return f"`{name.replace('`', '``')}`"


def place_of(schema: str | None, name: str) -> str:
    """`TableName.place`, also of a name that can't become a table."""
    return name if schema is None else f"{schema}{SCHEMA_SUFFIX}/{name}"


def fingerprint(text: str, letters: int = 16) -> str:
    """A short text that stands for a long one in a file's name."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:letters]


def as_table(name: str | TableName) -> TableName:
    """A table's name, parsed where it is text."""
    return name if isinstance(name, TableName) else TableName.parse(name)


def check_part(part: str) -> None:
    """Refuses what can't be the name of one visible folder.

    Raises:
        InvalidNameError: with what is wrong about it.
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
        raise InvalidNameError(f"The name {part!r} {problem}.", hint="rename the folder.")


def file_name(number: int, extension: str = ".parquet") -> str:
    """The name of the numbered data file: 20 digits, counted from 1."""
    return f"{number:020d}{extension}"


def file_number(name: str) -> int | None:
    """The number in a data file's name, or None if the name is not one of a data file."""
    match = _NUMBERED.match(name)
    return int(match[1]) if match else None


def split_names(text: str) -> list[str]:
    """Names that a parameter holds with commas between them.

    Example:
        >>> split_names("id, day")
        ['id', 'day']
    """
    return [name.strip() for name in text.split(",") if name.strip()]
