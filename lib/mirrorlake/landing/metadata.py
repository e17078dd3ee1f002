"""What a table's folder says of itself: `_metadata.json` and `_mirrorlake.json`.

The publisher declares in the first the table's keys and how its files are to be read. Field names
are read without regard to case. Keys may be added later, and never change once there are files.

The mirror puts the second there when it first sees the folder: its identity. Missing means the
folder is new, or was deleted and made again; the incarnation tells the two folders apart even when
their file numbers are the same.
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

# In the order of `TextFormat`; the first value of each is its default.
_CHOICES = {
    "RowSeparator": ("\r\n", "\n", "\r"),
    "ColumnSeparator": (",", ";", "|", "\t"),
    "QuoteCharacter": ('"', "'", ""),
    "EscapeCharacter": ("\\", "/", '"', ""),
}
PROPERTIES = ("FirstRowAsHeader", *_CHOICES, "NullValue", "Encoding")
# Endings that text files have; a table's own `fileExtension` is one more.
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
    """One table's delimited text.

    Attributes:
        extensions: the file endings that mean text, without a compression's.
        declared: whether the folder says that its files are text.
        escape: before a quote it makes the quote part of the value; a quote is doubled then.
        null: the text that stands for NULL where it is not quoted.
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
    """The Arrow type for a `DataType` of a `SchemaDefinition`.

    Raises:
        MetadataError: there is no such type.
    """
    try:
        return _TYPES[kind.lower()]
    except KeyError:
        raise MetadataError(
            f"There is no data type {kind!r}.",
            column=column,
            hint="choose one of Boolean, ByteArray, DateTime, Double, IDate, Int16, Int32, Int64, "
            "ITime, Single, String.",
        ) from None


def parse_text_format(
    properties: dict[str, Any], extension: str | None, *, declared: bool
) -> TextFormat:
    """The format that `FileFormatTypeProperties` and `fileExtension` describe.

    Args:
        properties: the properties by lower-case name.
        extension: with or without a dot.
        declared: whether `fileFormat` says text.

    Raises:
        MetadataError: a property is not one of its documented values.
    """
    if properties.get("firstrowasheader", True) is not True:
        raise MetadataError(
            "FirstRowAsHeader must be true.",
            hint="write the column names into the first row of every text file.",
        )
    chosen: list[str] = []
    for name, allowed in _CHOICES.items():
        value = properties.get(name.lower())
        if value is not None and value not in allowed:
            raise MetadataError(f"{name} is {value!r}.", hint=f"it may be one of {allowed}.")
        chosen.append(allowed[0] if value is None else value)
    null = properties.get("nullvalue")
    if not isinstance(null, (str, type(None))):
        raise MetadataError(f"NullValue is {null!r}, not a text.")
    own = (extension or "").lower().lstrip(".")
    endings = _EXTENSIONS | ({own} - {"", "parquet"})
    encoding = _encoding(properties.get("encoding"))
    row, column, quote, escape = chosen
    return TextFormat(endings, declared, row, column, quote, escape, null or "", encoding)


def _encoding(name: Any) -> str:
    try:
        # The format's names for encodings are not always Python's: IBM00858, UTF-8 without BOM.
        python = _CODE_PAGE.sub("cp", "utf-8" if name is None else name.lower())
        found = codecs.lookup(python.removesuffix(" without bom"))
        "".encode(found.name)  # base64 and its like are codecs too, but of bytes
    except (LookupError, AttributeError, ValueError):
        raise MetadataError(
            f"There is no encoding {name!r}.", hint="UTF-8 is the default."
        ) from None
    return "utf-8-sig" if found.name == "utf-8" else found.name  # a byte order mark is no data


FORMAT = 1
_APP = "mirrorlake/"
MARKER = "__rowMarker__"
# Ours, not the format's: in an update, the columns that keep the value they have in the table.
UNCHANGED = "__unchanged__"


class Marker(IntEnum):
    """The values of the marker column; 3 is not one of them."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    UPSERT = 4


MARKER_HINT = "markers are 0 insert, 1 update, 2 delete, 4 upsert, as whole numbers."
SEQUENTIAL = "SequentialFileName"
BY_TIME = "LastUpdateTimeFileDetection"
_STRATEGIES = {name.lower(): name for name in (SEQUENTIAL, BY_TIME)}
_FORMATS = {"parquet": False, "csv": True, "delimitedtext": True}


@dataclass(frozen=True)
class TableMetadata:
    """What `_metadata.json` says; `keys` is empty where there is none.

    Attributes:
        keys: the key columns, empty where there are none.
        upsert_by_default: rows without a marker are upserts, not inserts.
        strategy: `SEQUENTIAL` or `BY_TIME`; by time files have any name and apply in the order of
            their modification.
        columns: the declared columns with their types as the format names them; a table with
            declared columns exists before its first file.
        text: how delimited text is written.
    """

    keys: tuple[str, ...] = ()
    upsert_by_default: bool = False
    strategy: str = SEQUENTIAL
    columns: dict[str, str] = field(default_factory=dict)
    text: TextFormat = field(default_factory=TextFormat)

    @property
    def default_marker(self) -> Marker:
        """What a row without a marker asks for."""
        return Marker.UPSERT if self.upsert_by_default else Marker.INSERT

    @property
    def table_columns(self) -> dict[str, str]:
        """The declared columns with their types in the table."""
        return {name: column_type(arrow_type(kind)).table for name, kind in self.columns.items()}

    @classmethod
    def parse(cls, data: bytes) -> TableMetadata:
        """Reads the document.

        Raises:
            MetadataError: not JSON, not an object, or a field that makes no sense.
        """
        with in_file(METADATA):
            try:
                document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
            except (ValueError, RecursionError) as error:
                raise MetadataError(
                    f"{METADATA} is not valid JSON: {error}.",
                    hint='write it again, as {"keyColumns": ["id"]}.',
                ) from error
            fields = _fields(document, METADATA)
            keys = _names(fields.get("keycolumns"), "keyColumns")
            upsert = _flag(fields, "isUpsertDefaultRowMarker")
            if _flag(fields, "isPartitionEnabled"):
                raise MetadataError(
                    "isPartitionEnabled is true, but files in partition folders are not applied.",
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
    """A JSON object; two fields of one name contradict each other, so neither is taken."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {max(names, key=names.count)!r} occurs twice")
    return found


def _fields(document: Any, what: str) -> dict[str, Any]:
    """The fields of a JSON object by their lower-case names."""
    if not isinstance(document, dict):
        raise MetadataError(f"{what} is not a JSON object.")
    fields = {name.lower(): value for name, value in document.items()}
    if len(fields) != len(document):
        lower = [name.lower() for name in document]
        raise MetadataError(f"{what} has the field {max(lower, key=lower.count)!r} twice.")
    return fields


def _flag(fields: dict[str, Any], name: str) -> bool:
    """Return the value of a field that is true or false; false if it is left out."""
    value = fields.get(name.lower(), False)
    if not isinstance(value, bool):
        raise MetadataError(f"{name} is {value!r}, not true or false.")
    return value


def _names(value: Any, what: str) -> tuple[str, ...]:
    """A list of column names, each once; none if there is no list."""
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(k, str) and k for k in names):
        raise MetadataError(f"{what} is {names!r}, not a list of column names.")
    if len({name.lower() for name in names}) != len(names):
        raise MetadataError(f"{what} names a column twice: {names!r}.")
    return tuple(names)


def _word(value: Any, what: str, words: dict[str, Any]) -> Any:
    """What a word of a fixed set stands for; None if it is left out."""
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in words:
        raise MetadataError(f"{what} is {value!r}.", hint=f"it may be one of {sorted(words)}.")
    return words[value.lower()]


def _columns(value: Any) -> dict[str, str]:
    """`SchemaDefinition` as name to type, in its order."""
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
            raise MetadataError(f"DataType of {name!r} is {kind!r}, not a text.")
        arrow_type(kind, column=name)
        columns[name] = kind
    return columns


def _text(fields: dict[str, Any]) -> TextFormat:
    is_text = _word(fields.get("fileformat"), "fileFormat", _FORMATS)
    extension = fields.get("fileextension")
    if not isinstance(extension, (str, type(None))):
        raise MetadataError(f"fileExtension is {extension!r}, not a text.")
    properties = fields.get("fileformattypeproperties")
    found = {} if properties is None else _fields(properties, "FileFormatTypeProperties")
    if "firstrowasheader" in fields:  # seen beside the properties instead of among them
        found.setdefault("firstrowasheader", fields["firstrowasheader"])
    return parse_text_format(found, extension, declared=bool(is_text))


def read_metadata(storage: Storage, table: TableName) -> TableMetadata:
    """What the table's folder declares; nothing declared if there is no file."""
    try:
        return TableMetadata.parse(storage.read(f"{table.folder}/{METADATA}"))
    except FileNotFoundError:
        return TableMetadata()


def check_keys_kept(table: TableName, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Keys once given can't be changed, nor taken away.

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

    Other keys are replaced as long as they are not given, see `keys_are_given`.

    Args:
        storage: the lake's files.
        table: whose keys.
        keys: none leaves the file as it is.
        dry_run: write nothing, and return what the file would declare.

    Raises:
        MetadataError: the table has other keys, or these make no sense.
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
    """Which incarnation of which folder this is."""

    table: TableName
    incarnation: str
    origin: TableName | None = None  # the folder's first name, where it was renamed since

    @property
    def app_id(self) -> str:
        """The id under which the table's own log keeps the last applied number."""
        return f"{_APP}{self.origin or self.table}/{self.incarnation}"

    @property
    def plans(self) -> str:
        """Where this incarnation's plans lie, relative to the lake's root; a rename moves none."""
        return f"{(self.origin or self.table).state_path}/{self.incarnation}"


def incarnations(snapshot: Snapshot | None) -> frozenset[str]:
    """The incarnations of its folder that a version of a table has rows from, or had."""
    apps = snapshot.txns if snapshot else {}
    return frozenset(app.rpartition("/")[2] for app in apps if app.startswith(_APP))


def read_identity(storage: Storage, table: TableName) -> Identity | None:
    """The identity in a table's folder, or None if the mirror has not seen this folder yet.

    Raises:
        MetadataError: the file is there but makes no sense.
        FormatError: it is of a newer format.
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
            f"{IDENTITY} is broken.",
            file=IDENTITY,
            hint="delete it together with the folder's files and publish the table again.",
        ) from error


def is_in_folder(storage: Storage, table: TableName, identity: Identity) -> bool:
    """Whether a table's folder is of this very incarnation; raises as `read_identity`."""
    found = read_identity(storage, table)
    return found is not None and found.incarnation == identity.incarnation


def last_applied(storage: Storage, table: TableName) -> int:
    """The last applied number by the table's own log; 0 if the mirror has applied none."""
    identity = read_identity(storage, table)
    snapshot = read_own_snapshot(storage, identity) if identity else None
    return snapshot.txns.get(identity.app_id, 0) if snapshot and identity else 0


def has_files(storage: Storage, table: TableName) -> bool:
    """Return whether data files of the table were published, applied ones included."""
    if any(not entry.name.startswith(("_", ".")) for entry in storage.list(table.folder).files):
        return True
    moved = (storage.list(f"{table.folder}/{f}").files for f in (PROCESSED, READY_TO_DELETE))
    return any(moved) or last_applied(storage, table) > 0


def keys_are_given(storage: Storage, table: TableName) -> bool:
    """Return whether the declared keys can no longer change.

    This is so once the table has a data file, or the mirror has made the table of its declaration.
    """
    if has_files(storage, table):
        return True
    identity = read_identity(storage, table)
    snapshot = read_snapshot(storage, table.table_path) if identity else None
    # The mirror notes the incarnation in a property of a table that it makes without a file.
    return bool(identity and snapshot and identity.incarnation in snapshot.properties.values())


def read_own_snapshot(storage: Storage, identity: Identity) -> Snapshot | None:
    """Return the table of a folder's name, or else of its first name.

    Until the next cycle the table of a renamed folder is where it was. A copied folder has no
    table yet.
    """
    found = read_snapshot(storage, identity.table.table_path)
    if found is not None or identity.origin is None:
        return found
    with suppress(MetadataError, FormatError):
        if is_in_folder(storage, identity.origin, identity):
            return None
    return read_snapshot(storage, identity.origin.table_path)


def ensure_identity(storage: Storage, table: TableName) -> Identity:
    """The folder's identity, made now if it has none."""
    found = read_identity(storage, table)
    if found is None:
        write_identity(storage, Identity(table, uuid.uuid4().hex))
        found = read_identity(storage, table)
    if found is None:  # the folder was deleted right after the listing
        raise MetadataError(f"The folder of {table} is gone.", file=IDENTITY)
    return found


def renew_identity(storage: Storage, table: TableName) -> None:
    """Starts a new incarnation: a copied folder has brought along the other's identity."""
    identity = Identity(table, uuid.uuid4().hex)
    storage.write_json(f"{table.folder}/{IDENTITY}", _document(identity))


def _document(identity: Identity) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "table": str(identity.origin or identity.table),
        "incarnation": identity.incarnation,
    }


def write_identity(storage: Storage, identity: Identity, *, make_folder: bool = False) -> None:
    """Puts an identity into a folder that has none; nothing happens if the folder is gone."""
    storage.create(
        f"{identity.table.folder}/{IDENTITY}", to_json(_document(identity)), make_folder=make_folder
    )
