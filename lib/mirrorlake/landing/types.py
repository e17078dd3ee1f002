"""What a published column's type becomes in the table.

Types are named as Delta's schema names them (`long`, `timestamp_ntz`, `decimal(10,2)`, …), which
Spark's DDL understands too. Simple types map one to one; nested ones become JSON text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from mirrorlake.errors import SchemaError
from mirrorlake.spark.sql import quote

_SIMPLE = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.date64(): "date",
}
_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True)
class ColumnType:
    """How one column is read and what it becomes.

    Attributes:
        read: the type Spark's Parquet reader is asked for.
        table: the type in the Delta table; `void` where only NULLs were seen yet.
        convert: SQL from the read value `{}` to the table's, where the two differ.
    """

    read: str
    table: str
    convert: str = "{}"


def column_type(arrow: pa.DataType) -> ColumnType:
    """The column type for an Arrow type.

    Raises:
        SchemaError: there is no faithful type for it.
    """
    if pt.is_dictionary(arrow):
        return column_type(arrow.value_type)
    if pt.is_nested(arrow):
        return ColumnType(_nested(arrow), "string", "to_json({})")
    simple = _scalar(arrow)
    if pt.is_timestamp(arrow) and arrow.unit == "ns":
        micros = "timestamp_micros(({0} - pmod({0}, 1000)) div 1000)"
        return ColumnType("long", simple, f"CAST({micros} AS {simple})")
    return ColumnType(simple, simple)


def _scalar(arrow: pa.DataType) -> str:
    if pt.is_dictionary(arrow):
        return _scalar(arrow.value_type)
    if arrow in _SIMPLE:
        return _SIMPLE[arrow]
    if pt.is_string(arrow) or pt.is_large_string(arrow) or pt.is_string_view(arrow):
        return "string"
    if isinstance(arrow, pa.JsonType):
        return "string"
    if pt.is_binary(arrow) or pt.is_large_binary(arrow) or pt.is_binary_view(arrow):
        return "binary"
    if pt.is_fixed_size_binary(arrow):
        return "binary"
    if pt.is_decimal(arrow) and 0 <= arrow.scale <= arrow.precision <= 38:
        return f"decimal({arrow.precision},{arrow.scale})"
    if pt.is_timestamp(arrow):
        return "timestamp_ntz" if arrow.tz is None else "timestamp"
    if pt.is_null(arrow):
        return "void"
    if pt.is_duration(arrow):
        return "long"
    raise _unsupported(arrow)


def _unsupported(arrow: pa.DataType) -> SchemaError:
    return SchemaError(
        f"Type {arrow} has no counterpart in the table.",
        hint="publish it as text, a whole number, or a decimal of at most 38 digits.",
    )


def _nested(arrow: pa.DataType) -> str:
    empty = pt.is_struct(arrow) and not arrow.num_fields
    if empty or pt.is_union(arrow) or pt.is_run_end_encoded(arrow):
        raise _unsupported(arrow)
    if pt.is_struct(arrow):
        fields = ",".join(f"{quote(f.name)}:{_nested(f.type)}" for f in arrow)
        return f"struct<{fields}>"
    if pt.is_map(arrow):
        return f"map<{_nested(arrow.key_type)},{_nested(arrow.item_type)}>"
    if pt.is_nested(arrow):
        return f"array<{_nested(arrow.value_type)}>"
    if pt.is_timestamp(arrow) and arrow.unit == "ns":
        return "long"
    return _scalar(arrow)


def widens(table: str, found: str) -> str | None:
    """The type that a table's column would need to hold what it has and what a file brings."""
    return found if fits(table, found) else None


def fits(found: str, table: str) -> bool:
    """Whether every value of a published type can be stored in the table's without loss."""
    if found in (table, "void") or table in _WIDER.get(found, ()):
        return True
    narrow, wide = _DECIMAL.fullmatch(found), _DECIMAL.fullmatch(table)
    if narrow is None or wide is None:
        return False
    digits, scale = int(narrow[1]), int(narrow[2])
    return int(wide[2]) >= scale and int(wide[1]) - int(wide[2]) >= digits - scale
