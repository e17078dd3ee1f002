"""Kafka Connect's types, with Debezium's and Connect's own names for them, as Arrow columns."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from mirrorlake.errors import SchemaError

_US = 1_000_000
_DAY = 86_400 * _US
_MOMENT = pa.timestamp("us")
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
# What a number is of, in microseconds, or for a day in days.
_TIMES: dict[str, tuple[pa.DataType, int, int]] = {
    "io.debezium.time.Date": (pa.date32(), 1, 1),
    "org.apache.kafka.connect.data.Date": (pa.date32(), 1, 1),
    "io.debezium.time.Timestamp": (_MOMENT, 1000, 1),
    "org.apache.kafka.connect.data.Timestamp": (_MOMENT, 1000, 1),
    "io.debezium.time.MicroTimestamp": (_MOMENT, 1, 1),
    "io.debezium.time.NanoTimestamp": (_MOMENT, 1, 1000),
    "io.debezium.time.Time": (pa.time64("us"), 1000, 1),
    "org.apache.kafka.connect.data.Time": (pa.time64("us"), 1000, 1),
    "io.debezium.time.MicroTime": (pa.time64("us"), 1, 1),
    "io.debezium.time.NanoTime": (pa.time64("us"), 1, 1000),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE = "io.debezium.data.VariableScaleDecimal"
_ZONED = "io.debezium.time.ZonedTimestamp"
_BITS = "io.debezium.data.Bits"


def arrow_type(field: dict[str, Any]) -> pa.DataType:
    """The type of a column by its field in the event's schema."""
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
        raise SchemaError(f"Column {field.get('field')!r} is of the unknown type {kind!r}.")
    return _PLAIN[kind]


def column(values: list[Any], field: dict[str, Any]) -> pa.Array:
    """A column's values as the event's JSON has them, in its type.

    Raises:
        SchemaError: a value is not of the type.
    """
    wanted = arrow_type(field)
    convert = _converter(field, wanted)
    try:
        return pa.array([None if value is None else convert(value) for value in values], wanted)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError) as error:
        raise SchemaError(
            f"A value of {field['field']!r} is no {field.get('name') or field['type']}: {error}.",
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
        return float  # "NaN" and the infinities are texts in JSON
    if kind == "string":
        return _text
    return lambda value: value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _decimal(value: Any, scale: int) -> Decimal:
    """Connect's decimal: a big-endian number in base64; or, as another mode has it, a text."""
    if isinstance(value, (int, float)):
        return Decimal(str(value))
    raw = base64.b64decode(value, validate=True)
    # Not by arithmetic, which would round to 28 digits.
    return Decimal(f"{int.from_bytes(raw, 'big', signed=True)}e{-scale}")
