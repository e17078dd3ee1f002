"""The metadata of a table's folder: `_metadata.json` and `_mirrorlake.json`.

The publisher writes `_metadata.json`: the table's keys, and how its files are to be read, including
the format of delimited text. Field names are read without regard to case. Keys can be added as long
as there are no files, and never change afterwards.

The mirror writes `_mirrorlake.json`, the folder's identity, when it first finds the folder. If the
file is missing, the folder is new, or it was deleted and created again. The incarnation
distinguishes the two folders even if their files have the same numbers.
"""

from __future__ import annotations

import codecs
import json
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import pyarrow as pa

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import FormatError, InvalidNameError, MetadataError, in_file
from mirrorlake.landing.types import column_type
from mirrorlake.names import IDENTITY, METADATA, PROCESSED, READY_TO_DELETE, TableName
from mirrorlake.storage.files import Storage, to_json
from mirrorlake.storage.kept import read_kept

# In the order of `TextFormat`'s fields; the first value is the default.
_CHOICES = {
    "RowSeparator": ("\r\n", "\n", "\r"),
    "ColumnSeparator": (",", ";", "|", "\t"),
    "QuoteCharacter": ('"', "'", ""),
    "EscapeCharacter": ("\\", "/", '"', ""),
}
PROPERTIES = ("FirstRowAsHeader", *_CHOICES, "NullValue", "Encoding")
# The extensions of text files, besides the table's own `fileExtension`.
_EXTENSIONS = frozenset({"csv", "tsv", "psv", "txt"})
_CODE_PAGE = re.compile(r"^(ibm0*|windows-)(?=\d{3})")
_TYPES = {
    "double": pa.float64(),
    "single": pa.float32(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "datetime": pa.timestamp("us", "UTC"),
    "idate": pa.date32(),
    "itime": pa.time64("us"),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "bytearray": pa.binary(),
}


@dataclass(frozen=True)
class TextFormat:
    """The format of one table's delimited text.

    Attributes:
        extensions: the file extensions of text files, without those of compression.
        declared: whether the folder declares that its files are text.
        row_separator: the end of a row.
        separator: the separator of columns.
        quote: the quote character; empty for none.
        escape: the character that makes a following quote part of the value; a quote may always be
            doubled.
        null: the unquoted text that means NULL.
        encoding: the encoding, as Python names it.
    """

    extensions: frozenset[str] = _EXTENSIONS
    declared: bool = False
    row_separator: str = "\r\n"
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    null: str = ""
    encoding: str = "utf-8-sig"


def arrow_type(kind: str, *, column: str | None = None) -> pa.DataType:
    """Return the Arrow type of a `DataType` in a `SchemaDefinition`.

    Raises:
        MetadataError: the type does not exist.
    """
    try:
        return _TYPES[kind.lower()]
    except KeyError:
        raise MetadataError(
            f"The data type {kind!r} does not exist.",
            column=column,
            hint="choose one of Boolean, ByteArray, DateTime, Double, IDate, Int16, Int32, Int64, "
            "ITime, Single, String.",
        ) from None


def parse_text_format(
    properties: dict[str, Any], extension: str | None, *, declared: bool
) -> TextFormat:
    """Return the text format that `FileFormatTypeProperties` and `fileExtension` declare.

    Args:
        properties: the properties by lower-case name.
        extension: the file extension, with or without a dot.
        declared: whether `fileFormat` declares text.

    Raises:
        MetadataError: a property does not have one of its documented values.
    """
    if properties.get("firstrowasheader", True) is not True:
        raise MetadataError(
            "FirstRowAsHeader must be true.",
            hint="write the column names into the first row of each text file.",
        )
    chosen: list[str] = []
    for name, allowed in _CHOICES.items():
        value = properties.get(name.lower())
        if value is not None and value not in allowed:
            raise MetadataError(
                f"{name} is {value!r}.", hint=f"choose one of {', '.join(map(repr, allowed))}."
            )
        chosen.append(allowed[0] if value is None else value)
    null = properties.get("nullvalue")
    if not isinstance(null, (str, type(None))):
        raise MetadataError(f"NullValue is {null!r}, not a string.")
    own = (extension or "").lower().lstrip(".")
    endings = _EXTENSIONS | ({own} - {"", "parquet"})
    encoding = _encoding(properties.get("encoding"))
    row, column, quote, escape = chosen
    return TextFormat(endings, declared, row, column, quote, escape, null or "", encoding)


def _encoding(name: Any) -> str:
    try:
        # Some names differ from Python's: IBM00858, UTF-8 without BOM.
        python = _CODE_PAGE.sub("cp", "utf-8" if name is None else name.lower())
        found = codecs.lookup(python.removesuffix(" without bom"))
        "".encode(found.name)  # fails for codecs of bytes, such as base64
    except (LookupError, AttributeError, ValueError):
        raise MetadataError(
            f"The encoding {name!r} does not exist.", hint="leave it out for UTF-8."
        ) from None
    return "utf-8-sig" if found.name == "utf-8" else found.name  # skips a byte order mark


FORMAT = 1
_APP = "mirrorlake/"
MARKER = "__rowMarker__"
# mirrorlake's extension of the format: the columns that an update keeps as they are in the table.
UNCHANGED = "__unchanged__"


class Marker(IntEnum):
    """The values of the marker column; 3 is not used."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    UPSERT = 4


MARKER_HINT = "use 0 (insert), 1 (update), 2 (delete) or 4 (upsert), as whole numbers."
SEQUENTIAL = "SequentialFileName"
BY_TIME = "LastUpdateTimeFileDetection"
_STRATEGIES = {name.lower(): name for name in (SEQUENTIAL, BY_TIME)}
_FORMATS = {"parquet": False, "csv": True, "delimitedtext": True}


@dataclass(frozen=True)
class TableMetadata:
    """The content of `_metadata.json`; without the file, the defaults.

    Attributes:
        keys: the key columns; empty if the table has none.
        upsert_by_default: whether rows without a marker are upserts instead of inserts.
        strategy: `SEQUENTIAL`, or `BY_TIME`: then files have any names and are applied in the order
            of their modification times.
        columns: the declared columns with their types as the format names them. A table with
            declared columns exists before its first file.
        text: the format of delimited text.
    """

    keys: tuple[str, ...] = ()
    upsert_by_default: bool = False
    strategy: str = SEQUENTIAL
    columns: dict[str, str] = field(default_factory=dict)
    text: TextFormat = field(default_factory=TextFormat)

    @property
    def default_marker(self) -> Marker:
        """The operation of rows without a marker."""
        return Marker.UPSERT if self.upsert_by_default else Marker.INSERT

    @property
    def table_columns(self) -> dict[str, str]:
        """The declared columns with their types in the table."""
        return {name: column_type(arrow_type(kind)).table for name, kind in self.columns.items()}

    @classmethod
    def parse(cls, data: bytes) -> TableMetadata:
        """Read the document.

        Raises:
            MetadataError: the document is not a JSON object, or a field is invalid.
        """
        with in_file(METADATA):
            try:
                document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
            except (ValueError, RecursionError) as error:
                raise MetadataError(
                    f"{METADATA} is not valid JSON: {error}.",
                    hint='write it again, for example as {"keyColumns": ["id"]}.',
                ) from error
            fields = _fields(document, METADATA)
            keys = _names(fields.get("keycolumns"), "keyColumns")
            upsert = _flag(fields, "isUpsertDefaultRowMarker")
            if _flag(fields, "isPartitionEnabled"):
                raise MetadataError(
                    "isPartitionEnabled is true, but files in partition folders are not mirrored.",
                    hint="publish all files into the table's own folder, and remove the field.",
                )
            return cls(
                keys,
                upsert,
                _word(fields.get("filedetectionstrategy"), "fileDetectionStrategy", _STRATEGIES)
                or SEQUENTIAL,
                _columns(fields.get("schemadefinition")),
                _text(fields),
            )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse one that contains the same field twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {max(names, key=names.count)!r} occurs twice")
    return found


def _fields(document: Any, what: str) -> dict[str, Any]:
    """Return the fields of a JSON object by their lower-case names."""
    if not isinstance(document, dict):
        raise MetadataError(f"{what} is not a JSON object.")
    fields = {name.lower(): value for name, value in document.items()}
    if len(fields) != len(document):
        lower = [name.lower() for name in document]
        raise MetadataError(f"{what} has the field {max(lower, key=lower.count)!r} twice.")
    return fields


def _flag(fields: dict[str, Any], name: str) -> bool:
    """Return the value of a Boolean field; the default is false."""
    value = fields.get(name.lower(), False)
    if not isinstance(value, bool):
        raise MetadataError(f"{name} is {value!r}, not true or false.")
    return value


def _names(value: Any, what: str) -> tuple[str, ...]:
    """Return a list of distinct column names; without a list, no names."""
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(k, str) and k for k in names):
        raise MetadataError(f"{what} is {names!r}, not a list of column names.")
    if len({name.lower() for name in names}) != len(names):
        raise MetadataError(f"{what} names a column twice: {names!r}.")
    return tuple(names)


def _word(value: Any, what: str, words: dict[str, Any]) -> Any:
    """Return the meaning of a word from a fixed set, or None without a word."""
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in words:
        raise MetadataError(
            f"{what} is {value!r}.", hint=f"choose one of {', '.join(sorted(words))}."
        )
    return words[value.lower()]


def _columns(value: Any) -> dict[str, str]:
    """Return the types of a `SchemaDefinition` by column name, in order."""
    if value is None:
        return {}
    listed = _fields(value, "SchemaDefinition").get("columns")
    if not isinstance(listed, list):
        raise MetadataError(f"SchemaDefinition.Columns is {listed!r}, not a list.")
    found = [_fields(column, "a column of SchemaDefinition") for column in listed]
    names = _names([column.get("name") for column in found], "SchemaDefinition.Columns")
    columns = {}
    for name, column in zip(names, found, strict=True):
        if not isinstance(column.get("isnullable"), (bool, type(None))):
            raise MetadataError(
                f"IsNullable of {name!r} is {column['isnullable']!r}, not true or false."
            )
        kind = column.get("datatype")
        if not isinstance(kind, str):
            raise MetadataError(f"DataType of {name!r} is {kind!r}, not a string.")
        arrow_type(kind, column=name)
        columns[name] = kind
    return columns


def _text(fields: dict[str, Any]) -> TextFormat:
    is_text = _word(fields.get("fileformat"), "fileFormat", _FORMATS)
    extension = fields.get("fileextension")
    if not isinstance(extension, (str, type(None))):
        raise MetadataError(f"fileExtension is {extension!r}, not a string.")
    properties = fields.get("fileformattypeproperties")
    found = {} if properties is None else _fields(properties, "FileFormatTypeProperties")
    if "firstrowasheader" in fields:  # some publishers write it outside of the properties
        found.setdefault("firstrowasheader", fields["firstrowasheader"])
    return parse_text_format(found, extension, declared=bool(is_text))


def read_metadata(storage: Storage, table: TableName) -> TableMetadata:
    """Return the declarations of a table's folder; without `_metadata.json`, the defaults."""
    try:
        return TableMetadata.parse(storage.read(f"{table.folder}/{METADATA}"))
    except FileNotFoundError:
        return TableMetadata()


def check_keys_kept(table: TableName, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Check that keys were neither changed nor removed.

    Raises:
        MetadataError: the keys differ.
    """
    if old and [k.lower() for k in old] != [k.lower() for k in new]:
        raise MetadataError(
            f"The keys of {table} are {list(old)} and can't become {list(new)}.",
            file=METADATA,
            hint="restore keyColumns, or delete the table's folder and publish it again.",
        )


def declare_keys(
    storage: Storage, table: TableName, keys: tuple[str, ...], *, dry_run: bool = False
) -> TableMetadata:
    """Write the keys into `_metadata.json`, and keep its other fields.

    Keys can be replaced as long as `keys_are_given` is false.

    Args:
        storage: the lake's files.
        table: the table.
        keys: the key columns; without keys the file is not changed.
        dry_run: write nothing, and return the result.

    Raises:
        MetadataError: the table has other keys, or the keys are invalid.
    """
    path = f"{table.folder}/{METADATA}"
    fresh = to_json({"keyColumns": list(keys)})
    TableMetadata.parse(fresh)
    if keys and not dry_run and storage.create(path, fresh):
        return TableMetadata(keys)
    found = read_metadata(storage, table)
    if not keys or [k.lower() for k in found.keys] == [k.lower() for k in keys]:
        return found
    if keys_are_given(storage, table):
        check_keys_kept(table, found.keys, keys)
    if dry_run:
        return replace(found, keys=keys)
    document = json.loads(storage.read(path).decode("utf-8-sig"))
    kept = {name: value for name, value in document.items() if name.lower() != "keycolumns"}
    storage.write(path, to_json({"keyColumns": list(keys)} | kept))
    return read_metadata(storage, table)


@dataclass(frozen=True)
class Identity:
    """The incarnation of a table's folder.

    Attributes:
        table: the table.
        incarnation: the unique id of this incarnation.
        origin: the folder's first name, if the folder was renamed since.
    """

    table: TableName
    incarnation: str
    origin: TableName | None = None

    @property
    def app_id(self) -> str:
        """The id in the table's own log for the number of the last applied file."""
        return f"{_APP}{self.origin or self.table}/{self.incarnation}"

    @property
    def plans(self) -> str:
        """The folder of this incarnation's plans, relative to the root; a rename keeps it."""
        return f"{(self.origin or self.table).state_path}/{self.incarnation}"


def incarnations(snapshot: Snapshot | None) -> frozenset[str]:
    """Return the incarnations of its folder that a version of a table has, or had, rows of."""
    apps = snapshot.txns if snapshot else {}
    return frozenset(app.rpartition("/")[2] for app in apps if app.startswith(_APP))


def logged_identity(snapshot: Snapshot | None, table: TableName, incarnation: str) -> Identity:
    """Return the identity of an incarnation. The log contains the first name of its folder."""
    for app in snapshot.txns if snapshot else ():
        name, _, found = app.removeprefix(_APP).rpartition("/")
        if app.startswith(_APP) and found == incarnation:
            origin = TableName.parse(name)
            return Identity(table, incarnation, None if origin == table else origin)
    return Identity(table, incarnation)


def read_identity(storage: Storage, table: TableName) -> Identity | None:
    """Return the identity of a table's folder, or None if the mirror has not seen the folder yet.

    Raises:
        MetadataError: the file is invalid.
        FormatError: the file has a newer format.
    """
    try:
        document = read_kept(storage, f"{table.folder}/{IDENTITY}", FORMAT)
        if document is None:
            return None
        named = document.get("table")
        origin = None if named is None else TableName.parse(named)
        return Identity(table, str(document["incarnation"]), None if origin == table else origin)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidNameError) as error:
        raise MetadataError(
            f"{IDENTITY} is invalid.",
            file=IDENTITY,
            hint="delete it with the folder's files, and publish the table again.",
        ) from error


def is_in_folder(storage: Storage, table: TableName, identity: Identity) -> bool:
    """Return whether a table's folder has this incarnation; raise errors as `read_identity`."""
    found = read_identity(storage, table)
    return found is not None and found.incarnation == identity.incarnation


def last_applied(storage: Storage, table: TableName) -> int:
    """Return the last applied number from the table's own log; 0 if no file was applied."""
    identity = read_identity(storage, table)
    snapshot = read_own_snapshot(storage, identity) if identity else None
    return snapshot.txns.get(identity.app_id, 0) if snapshot and identity else 0


def has_files(storage: Storage, table: TableName) -> bool:
    """Return whether data files of the table were published, including applied ones."""
    if any(not entry.name.startswith(("_", ".")) for entry in storage.list(table.folder).files):
        return True
    moved = (storage.list(f"{table.folder}/{f}").files for f in (PROCESSED, READY_TO_DELETE))
    return any(moved) or last_applied(storage, table) > 0


def keys_are_given(storage: Storage, table: TableName) -> bool:
    """Return whether the declared keys can no longer change.

    They can't once the table has a data file, or once the mirror has created the table from its
    declaration.
    """
    if has_files(storage, table):
        return True
    identity = read_identity(storage, table)
    snapshot = read_snapshot(storage, table.table_path) if identity else None
    # A property of a table that the mirror creates without a file contains the incarnation.
    return bool(identity and snapshot and identity.incarnation in snapshot.properties.values())


def read_own_snapshot(storage: Storage, identity: Identity) -> Snapshot | None:
    """Return the table of a folder under its name, or else under its first name.

    After a rename the table keeps its old path until the next cycle. A copied folder has no table.
    """
    found = read_snapshot(storage, identity.table.table_path)
    if found is not None or identity.origin is None:
        return found
    with suppress(MetadataError, FormatError):
        if is_in_folder(storage, identity.origin, identity):
            return None
    return read_snapshot(storage, identity.origin.table_path)


def ensure_identity(storage: Storage, table: TableName) -> Identity:
    """Return the folder's identity; create it if it is missing."""
    found = read_identity(storage, table)
    if found is None:
        write_identity(storage, Identity(table, uuid.uuid4().hex))
        found = read_identity(storage, table)
    if found is None:  # the folder was deleted since the listing
        raise MetadataError(f"The folder of {table} was deleted.", file=IDENTITY)
    return found


def renew_identity(storage: Storage, table: TableName, incarnation: str | None = None) -> Identity:
    """Start a new incarnation: a copied folder contains the identity of the original."""
    identity = Identity(table, incarnation or uuid.uuid4().hex)
    storage.write_json(f"{table.folder}/{IDENTITY}", _document(identity))
    return identity


def _document(identity: Identity) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "table": str(identity.origin or identity.table),
        "incarnation": identity.incarnation,
    }


def write_identity(storage: Storage, identity: Identity, *, make_folder: bool = False) -> None:
    """Write an identity into a folder that has none; nothing happens if the folder is gone."""
    storage.create(
        f"{identity.table.folder}/{IDENTITY}", to_json(_document(identity)), make_folder=make_folder
    )
