"""The table of types: each Parquet and Arrow type with its type in the mirrored table, or refused.

`types.py` applies these rules. `docs/types.md` shows them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

VOID = "void"  # all values so far are NULL
REFUSED_HINT = "publish it as text, a whole number, or a decimal with at most 38 digits."


class Stored(pa.ExtensionType):  # type: ignore[misc]
    """A Parquet leaf whose annotation or storage Arrow's type does not contain.

    Args:
        what: INT96, or the annotation in Parquet's terms.
        storage: Arrow's type for the leaf.
    """

    def __init__(self, what: str, storage: pa.DataType) -> None:
        self.what = what
        super().__init__(storage, f"parquet.{what}")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.what.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Stored:
        return cls(serialized.decode(), storage)


@dataclass(frozen=True)
class TypeRule:
    """One row of the table of types.

    Attributes:
        parquet: the type in Parquet; empty if no file can contain it.
        arrow: the type in Arrow; empty if Arrow has no such type.
        matches: returns whether a type belongs to this row; the first match applies.
        table: the type in the table, a template over the Arrow type; None if it is refused.
        read: the type for Spark's reader, if it differs.
        convert: the SQL expression from the read value `{0}` to the table's type.
        nested: whether the type becomes JSON text, member by member.
        unwrap: returns the type that decides instead.
        note: remarks for users.
    """

    parquet: str
    arrow: str
    matches: Callable[[Any], bool]
    table: str | None = None
    read: str = ""
    convert: str = "{0}"
    nested: bool = False
    unwrap: Callable[[Any], pa.DataType] | None = None
    note: str = ""


def _is(*wanted: pa.DataType) -> Callable[[Any], bool]:
    return lambda arrow: arrow in wanted


def _named(extension: str) -> Callable[[Any], bool]:
    return lambda arrow: getattr(arrow, "extension_name", None) == extension


def _timestamp(unit: str, *, zone: bool) -> Callable[[Any], bool]:
    units = ("ns",) if unit == "ns" else ("s", "ms", "us")
    return lambda arrow: (
        pt.is_timestamp(arrow) and arrow.unit in units and (arrow.tz is not None) == zone
    )


def is_variant(arrow: Any) -> bool:
    """Return whether a group has the layout of a variant: metadata, value, perhaps shredded."""
    if not pt.is_struct(arrow):
        return False
    members = {field.name: field for field in arrow}
    binary = all(
        name in members and pt.is_binary(members[name].type) for name in ("metadata", "value")
    )
    return binary and not members["metadata"].nullable and members.keys() <= _VARIANT


_VARIANT = {"metadata", "value", "typed_value"}
# By default to_json truncates timestamps to milliseconds and leaves out NULL members.
JSON_OPTIONS = (
    "map('ignoreNullFields', 'false', "
    "'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\", "
    "'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")"
)
_FLOORED = "(({0} - pmod({0}, 1000)) div 1000)"  # rounds nanoseconds down, also before 1970
# h is the sixteen bits as a number: the sign, five bits of exponent, ten bits of fraction.
_HALF = (
    "element_at(transform(array(CAST("
    "conv(concat(substring(hex({0}), 3, 2), substring(hex({0}), 1, 2)), 16, 10) AS INT)), h -> CASE"
    " WHEN (h & 31744) = 31744 THEN"
    " IF((h & 1023) = 0, IF(h < 32768, float('inf'), float('-inf')), float('nan'))"
    " ELSE CAST(IF(h < 32768, 1D, -1D) * IF((h & 31744) = 0, (h & 1023) * pow(2D, -24D),"
    " (1024 + (h & 1023)) * pow(2D, ((h & 31744) div 1024) - 25)) AS FLOAT) END), 1)"
)
_UUID = (
    "regexp_replace(lower(hex({0})), '^(........)(....)(....)(....)(............)$',"
    " '$1-$2-$3-$4-$5')"
)


def _seconds(value: str, per_second: int) -> str:
    """Return SQL for the seconds of a number as text, without trailing zeros in the fraction."""
    digits = len(str(per_second)) - 1
    fraction = f"lpad(CAST({value} % {per_second} AS STRING), {digits}, '0')"
    # Spark prints a TIME in this form, too.
    return f"IF({value} % {per_second} = 0, '', concat('.', rtrim('0', {fraction})))"


def _clock(per_second: int) -> str:
    seconds = f"CAST({{0}} div {per_second} AS BIGINT)"
    parts = (f"{seconds} div 3600", f"{seconds} div 60 % 60", f"{seconds} % 60")
    padded = ", ':', ".join(f"lpad(CAST({part} AS STRING), 2, '0')" for part in parts)
    return f"concat({padded}, {_seconds('{0}', per_second)})"


def _little_endian(first: int) -> str:
    """Return SQL for the number in four bytes of a binary from the byte `first`, little-endian."""
    turned = ", ".join(f"substring(hex({{0}}), {2 * (first + n) + 1}, 2)" for n in (3, 2, 1, 0))
    return f"CAST(conv(concat({turned}), 16, 10) AS BIGINT)"


_MONTHS, _DAYS, _MILLIS = (_little_endian(first) for first in (0, 4, 8))
_REST = f"{_MILLIS} div 1000, {_seconds(_MILLIS, 1000)}"
_INTERVAL = f"concat('P', {_MONTHS}, 'M', {_DAYS}, 'DT', {_REST}, 'S')"
_DECIMAL = "decimal({0.precision},{0.scale})"
_TIME_NOTE = "`HH:mm:ss`, with a fraction if it is not zero; the texts sort like the times"
_JSON_NOTE = "[JSON text](#json-text)"


def _decimal_fits(arrow: Any) -> bool:
    return bool(pt.is_decimal(arrow) and 0 <= arrow.scale <= arrow.precision <= 38)


def _bytes_decimal(arrow: Any) -> bool:
    return _named("parquet.BYTE_ARRAY DECIMAL")(arrow) and _decimal_fits(arrow.storage_type)


RULES = (
    TypeRule("BOOLEAN", "bool", pt.is_boolean, "boolean"),
    TypeRule("INT32, INT(8)", "int8", pt.is_int8, "byte"),
    TypeRule("INT32, INT(16)", "int16", pt.is_int16, "short"),
    TypeRule("INT32, plain or INT(32)", "int32", pt.is_int32, "integer"),
    TypeRule("INT64, plain or INT(64)", "int64", pt.is_int64, "long"),
    TypeRule("INT32, UINT(8)", "uint8", pt.is_uint8, "short"),
    TypeRule("INT32, UINT(16)", "uint16", pt.is_uint16, "integer"),
    TypeRule("INT32, UINT(32)", "uint32", pt.is_uint32, "long"),
    TypeRule("INT64, UINT(64)", "uint64", pt.is_uint64, "decimal(20,0)"),
    TypeRule("FIXED(2), FLOAT16", "float16", pt.is_float16, "float", "binary", _HALF),
    TypeRule("FLOAT", "float32", pt.is_float32, "float"),
    TypeRule("DOUBLE", "float64", pt.is_float64, "double"),
    TypeRule(
        "INT32, INT64 or FIXED, DECIMAL",
        "decimal32, decimal64, decimal128, decimal256",
        _decimal_fits,
        _DECIMAL,
        note="at most 38 digits",
    ),
    TypeRule(
        "BYTE_ARRAY, DECIMAL",
        "",
        _bytes_decimal,
        "decimal({0.storage_type.precision},{0.storage_type.scale})",
        # Spark's vectorised reader accepts bytes only for decimals with more than 18 digits.
        "decimal(38,{0.storage_type.scale})",
        note="at most 38 digits",
    ),
    TypeRule(
        "DECIMAL of more than 38 digits, or a scale below 0 or above the precision",
        "decimal256",
        lambda arrow: pt.is_decimal(arrow) or _named("parquet.BYTE_ARRAY DECIMAL")(arrow),
        note="Spark does not support such a decimal",
    ),
    TypeRule(
        "INT32, DATE", "date32, date64", pt.is_date, "date", note="proleptic Gregorian calendar"
    ),
    *(
        TypeRule(parquet, arrow, matches, "string", read, _clock(ticks), note=_TIME_NOTE)
        for parquet, arrow, matches, read, ticks in (
            ("INT32, TIME(MILLIS)", "time32", pt.is_time32, "integer", 1_000),
            ("INT64, TIME(MICROS)", "time64[us]", _is(pa.time64("us")), "long", 1_000_000),
            ("INT64, TIME(NANOS)", "time64[ns]", _is(pa.time64("ns")), "long", 1_000_000_000),
        )
    ),
    TypeRule(
        "INT64, TIMESTAMP(MILLIS or MICROS, UTC)",
        "timestamp[s, ms or us] with a zone",
        _timestamp("us", zone=True),
        "timestamp",
        note="the name of the zone is not stored",
    ),
    TypeRule(
        "INT64, TIMESTAMP(MILLIS or MICROS, local)",
        "timestamp[s, ms or us]",
        _timestamp("us", zone=False),
        "timestamp_ntz",
    ),
    TypeRule(
        "INT64, TIMESTAMP(NANOS, UTC)",
        "timestamp[ns] with a zone",
        _timestamp("ns", zone=True),
        "timestamp",
        "long",
        f"timestamp_micros({_FLOORED})",
        note="truncated to microseconds",
    ),
    TypeRule(
        "INT64, TIMESTAMP(NANOS, local)",
        "timestamp[ns]",
        _timestamp("ns", zone=False),
        "timestamp_ntz",
        "long",
        f"CAST(timestamp_micros({_FLOORED}) AS timestamp_ntz)",
        note="truncated to microseconds",
    ),
    TypeRule(
        "INT96",
        "",
        _named("parquet.INT96"),
        "timestamp",
        note="an old type for timestamps; read as UTC, truncated to microseconds",
    ),
    *(
        TypeRule("INT64, plain", str(arrow), _is(arrow), "long", convert=convert, note=note)
        for arrow, convert, note in (
            (
                pa.duration("s"),
                "({0} * 1000000)",
                "a number of microseconds",
            ),
            (pa.duration("ms"), "({0} * 1000)", "a number of microseconds"),
            (pa.duration("us"), "{0}", "a number of microseconds"),
            (pa.duration("ns"), _FLOORED, "truncated to microseconds"),
        )
    ),
    TypeRule(
        "FIXED(12), INTERVAL",
        "",
        _named("parquet.INTERVAL"),
        "string",
        "binary",
        _INTERVAL,
        note="ISO 8601 with months, days and seconds: `P14M3DT4.005S`",
    ),
    TypeRule("", "month_day_nano_interval", pt.is_interval, note="Arrow can't write it to Parquet"),
    TypeRule(
        "BYTE_ARRAY, STRING",
        "string, large_string, string_view",
        lambda arrow: pt.is_string(arrow) or pt.is_large_string(arrow) or pt.is_string_view(arrow),
        "string",
    ),
    TypeRule("BYTE_ARRAY, ENUM", "", _named("parquet.ENUM"), "string"),
    TypeRule(
        "BYTE_ARRAY, JSON", "arrow.json", _named("arrow.json"), "string", note="unchanged text"
    ),
    TypeRule("BYTE_ARRAY, BSON", "", _named("parquet.BSON"), "binary"),
    TypeRule(
        "BYTE_ARRAY, GEOMETRY", "", _named("parquet.GEOMETRY"), "binary", note="unchanged WKB"
    ),
    TypeRule(
        "BYTE_ARRAY, GEOGRAPHY", "", _named("parquet.GEOGRAPHY"), "binary", note="unchanged WKB"
    ),
    TypeRule(
        "FIXED(16), UUID",
        "arrow.uuid",
        _named("arrow.uuid"),
        "string",
        "binary",
        _UUID,
        note="36 characters in lower case",
    ),
    TypeRule(
        "BYTE_ARRAY, plain",
        "binary, large_binary, binary_view",
        lambda arrow: pt.is_binary(arrow) or pt.is_large_binary(arrow) or pt.is_binary_view(arrow),
        "binary",
    ),
    TypeRule("FIXED, plain", "fixed_size_binary", pt.is_fixed_size_binary, "binary"),
    TypeRule(
        "UNKNOWN, of any storage",
        "null",
        pt.is_null,
        VOID,
        note="the column is added with the first file that gives it a type",
    ),
    TypeRule(
        "group, VARIANT",
        "struct of a variant's layout",
        is_variant,
        "string",
        "variant",
        f"to_json({{0}}, {JSON_OPTIONS})",
        note="JSON text, also for shredded variants",
    ),
    TypeRule(
        "group without members",
        "struct<>",
        lambda arrow: pt.is_struct(arrow) and not arrow.num_fields,
        note="Parquet can't store it",
    ),
    TypeRule("group", "struct", pt.is_struct, "string", nested=True, note=_JSON_NOTE),
    TypeRule("MAP", "map", pt.is_map, "string", nested=True, note=_JSON_NOTE),
    TypeRule(
        "LIST, or a repeated field",
        "list, large_list, fixed_size_list, list_view, large_list_view",
        lambda arrow: (
            pt.is_list(arrow)
            or pt.is_large_list(arrow)
            or pt.is_fixed_size_list(arrow)
            or pt.is_list_view(arrow)
            or pt.is_large_list_view(arrow)
        ),
        "string",
        nested=True,
        note=_JSON_NOTE,
    ),
    TypeRule(
        "as its values",
        "dictionary",
        pt.is_dictionary,
        unwrap=lambda arrow: arrow.value_type,
        note="as its values",
    ),
    TypeRule(
        "",
        "run_end_encoded",
        pt.is_run_end_encoded,
        unwrap=lambda arrow: arrow.value_type,
        note="as its values; the publisher expands the runs",
    ),
    TypeRule("", "dense_union, sparse_union", pt.is_union, note="Arrow can't write it to Parquet"),
    TypeRule(
        "INT32, INT(8)",
        "arrow.bool8",
        _named("arrow.bool8"),
        "boolean",
        "byte",
        "({0} <> 0)",
    ),
    TypeRule(
        "as its storage",
        "any other extension type, as geoarrow.wkb or arrow.fixed_shape_tensor",
        lambda arrow: isinstance(arrow, pa.BaseExtensionType),
        unwrap=lambda arrow: arrow.storage_type,
        note="as its storage",
    ),
    TypeRule("anything else", "anything else", lambda _: True, note="nothing of the kind is known"),
)
