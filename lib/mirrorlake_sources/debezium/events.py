"""One parser of Debezium's events: what happened to which row of which table.

An event is `{"schema": …, "payload": {before, after, source, op}}`, or the payload alone. A line of
a file, or of a journal, is an event, or `{"key": …, "value": event}`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mirrorlake.errors import DataFileError, InvalidNameError
from mirrorlake.names import TableName

READ = {"r": 4, "c": 4, "u": 1, "d": 2}
TRUNCATE = "t"
_HINT = "events must be Debezium's own: take ExtractNewRecordState out."
_UNAVAILABLE = "__debezium_unavailable_value"
# The same words where a column is binary, and where it is an array of texts.
_UNAVAILABLE_FORMS = (
    _UNAVAILABLE,
    "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    [_UNAVAILABLE],
)


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        marker: the row's marker; None for a TRUNCATE.
        row: the row after the change; of a delete, its key's columns at least.
        types: what its schema says of each column: Connect's field documents by name.
        keys: the key's columns, where the event has a key.
        informs: the source's own position, as it says it.
    """

    table: TableName
    marker: int | None
    row: dict[str, Any]
    types: dict[str, dict[str, Any]] | None
    keys: tuple[str, ...] | None
    informs: dict[str, Any]


@dataclass(frozen=True)
class KeysOf:
    """A schema change: no row of it lands, but it may name the tables' primary keys."""

    keys: dict[TableName, tuple[str, ...]]


def read_event(line: Any, *, file: str, row: int) -> Event | KeysOf | None:
    """What a line says; None for what is no change: tombstones, messages, heartbeats.

    Args:
        line: the JSON value.
        file: where it is from, for errors.
        row: the line's number there, counted from 1.

    Raises:
        DataFileError: it is no event of Debezium's, or leaves out a value that nobody has.
    """
    try:
        return _read(line, file, row)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise DataFileError(
            f"The line is no event: {error!r}.", file=file, row=row, hint=_HINT
        ) from error


def _read(line: Any, file: str, row: int) -> Event | KeysOf | None:
    key: Any = None
    if isinstance(line, dict) and "value" in line and "key" in line:
        key, line = line["key"], line["value"]
    if line is None:
        return None
    if not isinstance(line, dict):
        raise DataFileError("The line is no event.", file=file, row=row)
    schema = line.get("schema") if "payload" in line else None
    payload = line.get("payload", line)
    if payload is None:
        return None
    operation = payload.get("op") if isinstance(payload, dict) else None
    if operation is None and isinstance(payload, dict) and {"ddl", "databaseName"} & set(payload):
        return KeysOf(_keys_of(payload))  # the columns follow from the rows' own schemas
    if operation == "m" or (operation is None and "ts_ms" in payload and "before" not in payload):
        return None
    if operation not in READ and operation != TRUNCATE:
        raise DataFileError(
            f"The line has the operation {operation!r}.",
            file=file,
            row=row,
            hint=_HINT,
        )
    origin = payload.get("source") or {}
    table = _table(origin, file, row)
    informs = {name: origin[name] for name in ("lsn", "pos", "scn", "gtid") if origin.get(name)}
    keys = None if key is None else tuple(_payload(key))
    if operation == TRUNCATE:
        return Event(table, None, {}, None, keys, informs)
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
            hint='hand over keys, as {"key": …, "value": …}, or REPLICA IDENTITY FULL.',
        )
    filled = {
        name: _available(value, before.get(name), name, operation == "d", file, row)
        for name, value in found.items()
    }
    return Event(table, READ[operation], filled, _types(schema), keys, informs)


def _available(value: Any, old: Any, column: str, gone: bool, file: str, row: int) -> Any:
    """A value; in place of one that Debezium did not have, what the row had before."""
    if not _is_unavailable(value):
        return value
    if gone:
        return None  # a delete needs its key only
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
        raise DataFileError("The event names no table.", file=file, row=row)
    return _landed(origin.get("schema"), name)


def _landed(schema: Any, name: str) -> TableName:
    """A table's name in the lake: tables of `public` have no schema there."""
    known = schema if isinstance(schema, str) and schema not in ("", "public") else None
    return TableName(known, name)


def _keys_of(payload: dict[str, Any]) -> dict[TableName, tuple[str, ...]]:
    """The primary keys that a schema change tells, by table."""
    found = {}
    for change in payload.get("tableChanges") or ():
        keys = (change.get("table") or {}).get("primaryKeyColumnNames")
        names = [part.strip('"') for part in str(change.get("id", "")).split(".")]
        schema = payload.get("schemaName") or (names[-2] if len(names) > 2 else None)
        with suppress(InvalidNameError):  # its rows say so, if there are any
            if keys:
                found[_landed(schema, names[-1])] = tuple(map(str, keys))
    return found


def _types(schema: Any) -> dict[str, dict[str, Any]] | None:
    """The columns' types: the fields of `after`, or of `before`."""
    if not isinstance(schema, dict):
        return None
    for field in schema.get("fields") or ():
        if field.get("field") in ("after", "before") and field.get("fields"):
            return {one["field"]: one for one in field["fields"]}
    return None
