"""Parse Debezium events, convert Kafka Connect types, and turn events into rows to publish.

An event is `{"schema": …, "payload": {before, after, source, op}}`, or the payload alone. A line
of a file, or of a journal, is an event, or `{"key": …, "value": event}`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from mirrorlake.errors import DataFileError, InvalidNameError, MirrorlakeError, SchemaError
from mirrorlake.landing.metadata import MARKER, Marker, keys_are_given, read_metadata
from mirrorlake.landing.metadata import arrow_type as declared_type
from mirrorlake.names import TableName, split_names
from mirrorlake.storage.files import Storage
from mirrorlake_sources.source import Batch, Position

READ = {"r": 4, "c": 4, "u": 1, "d": 2}
TRUNCATE = "t"
_HINT = "publish unchanged Debezium events: remove ExtractNewRecordState."
_UNAVAILABLE = "__debezium_unavailable_value"
# The same text in a binary column, and in an array of texts.
_UNAVAILABLE_FORMS = (
    _UNAVAILABLE,
    "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    [_UNAVAILABLE],
)
_US = 1_000_000
_DAY = 86_400 * _US
_TIMESTAMP = pa.timestamp("us")
_PLAIN: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "array": pa.string(),
    "map": pa.string(),
    "struct": pa.string(),
}
# By Connect's name: the type, multiplier and divisor to get microseconds (days for a date).
_TIMES: dict[str, tuple[pa.DataType, int, int]] = {
    "io.debezium.time.Date": (pa.date32(), 1, 1),
    "org.apache.kafka.connect.data.Date": (pa.date32(), 1, 1),
    "io.debezium.time.Timestamp": (_TIMESTAMP, 1000, 1),
    "org.apache.kafka.connect.data.Timestamp": (_TIMESTAMP, 1000, 1),
    "io.debezium.time.MicroTimestamp": (_TIMESTAMP, 1, 1),
    "io.debezium.time.NanoTimestamp": (_TIMESTAMP, 1, 1000),
    "io.debezium.time.Time": (pa.time64("us"), 1000, 1),
    "org.apache.kafka.connect.data.Time": (pa.time64("us"), 1000, 1),
    "io.debezium.time.MicroTime": (pa.time64("us"), 1, 1),
    "io.debezium.time.NanoTime": (pa.time64("us"), 1, 1000),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE = "io.debezium.data.VariableScaleDecimal"
_ZONED = "io.debezium.time.ZonedTimestamp"
_BITS = "io.debezium.data.Bits"


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        table: the table.
        marker: the row's marker; None for a TRUNCATE.
        row: the row after the change; for a delete at least the key columns.
        types: Kafka Connect's field documents by column name; None if the event has no schema.
        keys: the key columns; None if the event has no key.
    """

    table: TableName
    marker: int | None
    row: dict[str, Any]
    types: dict[str, dict[str, Any]] | None
    keys: tuple[str, ...] | None


@dataclass(frozen=True)
class PrimaryKeys:
    """A schema change; it has no row but may name primary keys."""

    keys: dict[TableName, tuple[str, ...]]


def read_event(line: Any, *, file: str, row: int) -> Event | PrimaryKeys | None:
    """Return the event of a line; None for tombstones, messages and heartbeats.

    Args:
        line: the JSON value.
        file: the file's name, for errors.
        row: the number of the line, counted from 1, for errors.

    Raises:
        DataFileError: the line is not a Debezium event, or lacks a value that cannot be recovered.
    """
    try:
        return _read(line, file, row)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise DataFileError(
            f"The line is not a Debezium event: {error!r}.", file=file, row=row, hint=_HINT
        ) from error


def _read(line: Any, file: str, row: int) -> Event | PrimaryKeys | None:
    key: Any = None
    if isinstance(line, dict) and "value" in line and "key" in line:
        key, line = line["key"], line["value"]
    if line is None:
        return None
    if not isinstance(line, dict):
        raise DataFileError("The line is not a Debezium event.", file=file, row=row, hint=_HINT)
    schema = line.get("schema") if "payload" in line else None
    payload = line.get("payload", line)
    if payload is None:
        return None
    operation = payload.get("op") if isinstance(payload, dict) else None
    if operation is None and isinstance(payload, dict) and {"ddl", "databaseName"} & set(payload):
        return PrimaryKeys(_keys_of(payload))  # the columns come from the schemas of the rows
    if operation == "m" or (operation is None and "ts_ms" in payload and "before" not in payload):
        return None
    if operation not in READ and operation != TRUNCATE:
        raise DataFileError(
            f"The event has the unknown operation {operation!r}.",
            file=file,
            row=row,
            hint=_HINT,
        )
    origin = payload.get("source") or {}
    table = _table(origin, file, row)
    keys = None if key is None else tuple(_payload(key))
    if operation == TRUNCATE:
        return Event(table, None, {}, None, keys)
    before, after = payload.get("before") or {}, payload.get("after")
    if operation == "d":
        found = {**before, **_payload(key)} if key is not None else before
    else:
        found = after or {}
    if not found:
        raise DataFileError(
            f"The event of {table} has neither a row nor a key.",
            file=file,
            row=row,
            hint='provide keys, as {"key": …, "value": …}, or set REPLICA IDENTITY FULL.',
        )
    filled = {
        name: _available(value, before.get(name), name, operation == "d", file, row)
        for name, value in found.items()
    }
    return Event(table, READ[operation], filled, _types(schema), keys)


def _available(value: Any, old: Any, column: str, gone: bool, file: str, row: int) -> Any:
    """Return the value; if Debezium did not have it, the value of the row before."""
    if not _is_unavailable(value):
        return value
    if gone:
        return None  # a delete needs only its key
    if old is not None and not _is_unavailable(old):
        return old
    raise DataFileError(
        f"The value of {column!r} was not available to Debezium.",
        file=file,
        row=row,
        column=column,
        hint="set REPLICA IDENTITY FULL, or use ReselectColumnsPostProcessor with"
        " reselect.unavailable.values=true.",
    )


def _is_unavailable(value: Any) -> bool:
    return isinstance(value, (str, list)) and value in _UNAVAILABLE_FORMS


def _payload(key: Any) -> dict[str, Any]:
    found = key.get("payload") if isinstance(key, dict) and "payload" in key else key
    return found if isinstance(found, dict) else {}


def _table(origin: dict[str, Any], file: str, row: int) -> TableName:
    name = origin.get("table") or origin.get("collection")
    if not isinstance(name, str):
        raise DataFileError("The event does not name its table.", file=file, row=row)
    return _lake_name(origin.get("schema"), name)


def _lake_name(schema: Any, name: str) -> TableName:
    """Return the table's name in the lake, where tables of `public` have no schema."""
    known = schema if isinstance(schema, str) and schema not in ("", "public") else None
    return TableName(known, name)


def _keys_of(payload: dict[str, Any]) -> dict[TableName, tuple[str, ...]]:
    """Return the primary keys that a schema change names, by table."""
    found = {}
    for change in payload.get("tableChanges") or ():
        keys = (change.get("table") or {}).get("primaryKeyColumnNames")
        names = [part.strip('"') for part in str(change.get("id", "")).split(".")]
        schema = payload.get("schemaName") or (names[-2] if len(names) > 2 else None)
        with suppress(InvalidNameError):  # the events of the table raise it
            if keys:
                found[_lake_name(schema, names[-1])] = tuple(map(str, keys))
    return found


def _types(schema: Any) -> dict[str, dict[str, Any]] | None:
    """Return the types of the columns: the fields of `after`, or of `before`."""
    if not isinstance(schema, dict):
        return None
    for field in schema.get("fields") or ():
        if field.get("field") in ("after", "before") and field.get("fields"):
            return {one["field"]: one for one in field["fields"]}
    return None


def arrow_type(field: dict[str, Any]) -> pa.DataType:
    """Return the Arrow type of a column from its field in the event's schema."""
    name = field.get("name")
    if name in _TIMES:
        return _TIMES[name][0]
    if name == _ZONED:
        return pa.timestamp("us", "UTC")
    if name == _DECIMAL:
        parameters = field.get("parameters") or {}
        precision = int(parameters.get("connect.decimal.precision", 38))
        scale = int(parameters.get("scale", 0))
        fits = precision <= 38 and 0 <= scale <= precision
        return pa.decimal128(precision, scale) if fits else pa.string()
    if name == _VARIABLE:
        return pa.string()
    kind = str(field.get("type"))
    if kind not in _PLAIN:
        raise SchemaError(f"Column {field.get('field')!r} has the unknown type {kind!r}.")
    return _PLAIN[kind]


def column(values: list[Any], field: dict[str, Any]) -> pa.Array:
    """Return the values of a column, as JSON has them, as an array of the column's type.

    Raises:
        SchemaError: a value does not have the type.
    """
    wanted = arrow_type(field)
    convert = _converter(field, wanted)
    try:
        return pa.array([None if value is None else convert(value) for value in values], wanted)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError) as error:
        raise SchemaError(
            f"A value of {field['field']!r} is not a valid"
            f" {field.get('name') or field['type']}: {error}.",
            column=field["field"],
        ) from error


def _converter(field: dict[str, Any], wanted: pa.DataType) -> Callable[[Any], Any]:
    name, kind = field.get("name"), field.get("type")
    if name in _TIMES:
        _, times, by = _TIMES[name]
        return lambda value: _whole(value) * times // by
    if name == _ZONED:
        return lambda text: pa.scalar(text).cast(wanted).value
    if name == _DECIMAL:
        scale = int((field.get("parameters") or {}).get("scale", 0))
        if pa.types.is_decimal(wanted):
            return lambda value: _decimal(value, scale)
        return lambda value: f"{_decimal(value, scale):f}"
    if name == _VARIABLE:
        return lambda value: f"{_decimal(value['value'], int(value['scale'])):f}"
    if kind == "bytes":
        return lambda text: base64.b64decode(text, validate=True)
    if kind in ("array", "map", "struct"):
        return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if kind in ("float", "float32", "double", "float64"):
        return float  # NaN and the infinities are texts in JSON
    if kind == "string":
        return _text
    return lambda value: value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _decimal(value: Any, scale: int) -> Decimal:
    """Return Connect's decimal: a big-endian number in base64, or a number."""
    if isinstance(value, (int, float)):
        return Decimal(str(value))
    raw = base64.b64decode(value, validate=True)
    # Decimal arithmetic would round to 28 digits.
    return Decimal(f"{int.from_bytes(raw, 'big', signed=True)}e{-scale}")


class EventRows:
    """Convert events of any source into rows.

    Args:
        storage: the lake's storage, for the declarations in `_metadata.json`.
        keys: the key columns of tables whose events have no key.
    """

    def __init__(self, storage: Storage, keys: Mapping[str, Sequence[str]] | None = None) -> None:
        self._storage = storage
        self._named = {
            TableName.parse(name): tuple(split_names(names)) for name, names in (keys or {}).items()
        }
        self._learned: dict[TableName, tuple[str, ...]] = {}
        self._keys: dict[TableName, tuple[str, ...]] = {}

    def learn(self, found: PrimaryKeys) -> None:
        """Remember the keys that a schema change names."""
        self._learned |= found.keys

    def key(self, event: Event) -> tuple[str, ...]:
        """Return the key columns of an event's table; empty if the table has no key.

        The first of these that exists counts: the keys named by the user, the event's key, the keys
        of the
        folder's `_metadata.json`, the keys of a schema change.
        """
        table = event.table
        found = self._named.get(table) or event.keys
        if not found:
            found = read_metadata(self._storage, table).keys or self._learned.get(table, ())
        self._keys[table] = found
        return found

    def recall(self, table: TableName) -> tuple[str, ...]:
        """Return the key of a table that was published before.

        Keys named by the user replace it if they may still change.
        """
        found = read_metadata(self._storage, table).keys
        if table in self._named and not keys_are_given(self._storage, table):
            found = self._named[table]
        self._keys[table] = found
        return found

    def rows(self, table: TableName, events: list[Event]) -> pa.RecordBatchReader:
        """Return the rows of events of one table and one schema.

        Raises:
            SchemaError: the events have no schema, or a value or an operation does not fit the
                table.
        """
        types = events[0].types
        if types is None:
            names, arrays = self._declared(table, events)
        else:
            names = list(types)
            arrays = [column([e.row.get(name) for e in events], types[name]) for name in names]
        arrays.append(pa.array(self._markers(table, events), pa.int32()))
        made = pa.RecordBatch.from_arrays(arrays, names=[*names, MARKER])
        return pa.RecordBatchReader.from_batches(made.schema, [made])

    def batch(self, table: TableName, events: list[Event], position: Position) -> Batch:
        """Return the events as a batch; the batch has a problem if the rows are invalid."""
        try:
            return Batch(table, self.rows(table, events), position)
        except MirrorlakeError as error:
            return Batch(table, None, position, problem=error)

    def _markers(self, table: TableName, events: list[Event]) -> list[int | None]:
        """Return the markers: a table without a key accepts only inserts."""
        markers = [event.marker for event in events]
        known = self._keys[table]
        given = {event.keys for event in events if event.keys} if table not in self._named else ()
        if known and any(set(keys) != set(known) for keys in given):
            raise SchemaError(
                f"The key of {table} is {list(known)}, but its events have another key.",
                hint="delete the table's folder and let Debezium take a new snapshot.",
            )
        if known:
            return markers
        if set(markers) - {Marker.UPSERT}:
            raise SchemaError(
                f"The events of {table} change rows but have no key.",
                hint='provide keys, as {"key": …, "value": …}, or name the key columns with keys'
                " or as keyColumns in the folder's _metadata.json.",
            )
        return [int(Marker.INSERT)] * len(markers)

    def _declared(self, table: TableName, events: list[Event]) -> tuple[list[str], list[pa.Array]]:
        """Return the columns of events without a schema, as `_metadata.json` declares them."""
        declared = read_metadata(self._storage, table).columns
        if not declared:
            raise SchemaError(
                f"The events of {table} have no schema.",
                hint="set schemas.enable=true in Debezium's converter, or declare the columns as"
                " SchemaDefinition in the folder's _metadata.json.",
            )
        unknown = {name for event in events for name in event.row} - set(declared)
        if unknown:
            raise SchemaError(
                f"The events of {table} have the undeclared column {min(unknown)!r}.",
                column=min(unknown),
                hint="add it to SchemaDefinition in the folder's _metadata.json.",
            )
        arrays = []
        for name, kind in declared.items():
            values: list[Any] = [event.row.get(name) for event in events]
            wanted = declared_type(kind, column=name)
            try:
                arrays.append(pa.array(values).cast(wanted))
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise SchemaError(
                    f"A value of {name!r} is not a valid {kind}: {error}.", column=name
                ) from error
        return list(declared), arrays
