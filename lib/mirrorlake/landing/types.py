"""What a published column's type becomes in the table, and what a table's column may become.

Types are named as Delta's schema names them (`long`, `timestamp_ntz`, `decimal(10,2)`, …), which
Spark's DDL understands too. Simple types map one to one; nested ones become JSON text. The rows
that decide are in `type_rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import SchemaError, UsageError
from mirrorlake.landing.type_rules import JSON_OPTIONS, REFUSED_HINT, RULES, VOID, Rule, Stored
from mirrorlake.names import quote
from mirrorlake.spark.sql import literal

_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
# Types of another kind that hold a type's values exactly.
_EXACT = {
    "byte": ("float", "double"),
    "short": ("float", "double"),
    "integer": ("double",),
    "date": ("timestamp_ntz",),
}
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
# Delta counts every whole number up to int as ten digits, and a long as twenty.
_DELTA_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
# Values that come without a type get these digits: a decimal then holds every long (Delta counts it
# as twenty digits), its sums keep their digits, and type widening can still add ten.
_ROOM = (20, 8)
WIDEN_HINT = "publish with widen=True (--widen), and mirror with --widen."
ROOMY = f"decimal({sum(_ROOM)},{_ROOM[1]})"
_ARROW = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TYPE_WORDS = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}
# Parquet's annotations that Arrow's types don't show.
_HIDDEN = {"ENUM", "BSON", "GEOMETRY", "GEOGRAPHY", "INTERVAL"}


@dataclass(frozen=True)
class ColumnType:
    """How one column is read and what it becomes.

    Attributes:
        read: the type Spark's Parquet reader is asked for.
        table: the type in the Delta table; `void` where only NULLs were seen yet.
        convert: SQL from the read value `{0}` to the table's, where the two differ.
    """

    read: str
    table: str
    convert: str = "{0}"


def column_type(arrow: pa.DataType) -> ColumnType:
    """The column type for an Arrow type.

    Raises:
        SchemaError: there is no faithful type for it.
    """
    rule, arrow = _rule_of(arrow)
    if rule.nested:
        text = f"to_json({_json_value(arrow, '{0}', 0)}, {JSON_OPTIONS})"
        return ColumnType(_read(arrow), "string", text)
    return ColumnType(_read(arrow), str(rule.table).format(arrow), rule.convert)


def _rule_of(arrow: pa.DataType) -> tuple[Rule, Any]:
    """The row for a type that says what it becomes, and the type it looks at."""
    rule = next(rule for rule in RULES if rule.matches(arrow))
    if rule.unwrap is not None:
        return _rule_of(rule.unwrap(arrow))
    if rule.table is None:
        found = arrow.storage_type if isinstance(arrow, Stored) else arrow
        raise SchemaError(f"Type {found} has no counterpart in the table.", hint=REFUSED_HINT)
    return rule, arrow


def _read(arrow: pa.DataType) -> str:
    """The type Spark's reader is asked for, as DDL."""
    rule, arrow = _rule_of(arrow)
    if not rule.nested:
        return (rule.read or str(rule.table)).format(arrow)
    if pt.is_map(arrow):
        return f"map<{_read(_member(arrow.key_type))},{_read(_member(arrow.item_type))}>"
    if not pt.is_struct(arrow):
        return f"array<{_read(_member(arrow.value_type))}>"
    seen: set[str] = set()
    for field in arrow:
        if field.name.lower() in seen:
            raise SchemaError(
                f"Type {arrow} has {field.name!r} twice (names differ at most by case).",
                hint="rename one of the two.",
            )
        seen.add(field.name.lower())
    return f"struct<{','.join(f'{quote(f.name)}:{_read(_member(f.type))}' for f in arrow)}>"


def _member(arrow: pa.DataType) -> pa.DataType:
    if pt.is_run_end_encoded(arrow):  # only a whole column is decoded by the publisher
        raise SchemaError(
            f"Type {arrow} has no counterpart within another.", hint="publish its values."
        )
    return arrow


def _json_value(arrow: pa.DataType, value: str, depth: int) -> str:
    """SQL for a value as `to_json` has to get it; the value itself where nothing is to be done.

    Args:
        arrow: its type.
        value: SQL for the value as read.
        depth: how many lambdas this is in; they need names of their own.
    """
    rule, arrow = _rule_of(arrow)
    if rule.read == "variant":
        return value
    if not rule.nested:
        return rule.convert.format(value)
    if pt.is_struct(arrow):
        members = [(f.name, f.type, f"{value}.{_template(quote(f.name))}") for f in arrow]
        converted = [_json_value(kind, member, depth) for _, kind, member in members]
        if all(new == member for new, (_, _, member) in zip(converted, members, strict=True)):
            return value
        pairs = ", ".join(
            f"{_template(literal(name))}, {new}"
            for (name, _, _), new in zip(members, converted, strict=True)
        )
        return f"IF({value} IS NULL, NULL, named_struct({pairs}))"
    key, item = f"k{depth}", f"v{depth}"
    if not pt.is_map(arrow):
        converted_item = _json_value(arrow.value_type, item, depth + 1)
        return (
            value if converted_item == item else f"transform({value}, {item} -> {converted_item})"
        )
    text = _json_key(arrow.key_type, key, depth + 1)
    if text != key:
        value = f"transform_keys({value}, ({key}, {item}) -> {text})"
    converted_item = _json_value(arrow.item_type, item, depth + 1)
    if converted_item != item:
        value = f"transform_values({value}, ({key}, {item}) -> {converted_item})"
    return value


def _json_key(arrow: pa.DataType, value: str, depth: int) -> str:
    """SQL for a map's key; `to_json` itself prints days as a number, and groups as Java objects."""
    rule, arrow = _rule_of(arrow)
    made = _json_value(arrow, value, depth)
    if rule.nested or rule.read == "variant":
        return f"to_json({made}, {JSON_OPTIONS})"
    if rule.table == "binary":
        return f"base64({made})"
    if rule.table == "date":
        return f"CAST({made} AS STRING)"
    if rule.table in ("timestamp", "timestamp_ntz"):
        zone = "XXX" if rule.table == "timestamp" else ""
        return f"date_format({made}, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS{zone}\")"
    return made


def _template(sql: str) -> str:
    """SQL that will go through `format` once more."""
    return sql.replace("{", "{{").replace("}", "}}")


def published_schema(parquet: pq.ParquetFile) -> pa.Schema:
    """A file's Arrow schema; what only its Parquet schema tells is in it as `Stored`.

    Raises:
        pa.ArrowException: a type that Arrow can't read.
    """
    schema = parquet.schema
    leaves = iter([schema.column(index) for index in range(len(schema))])
    return pa.schema([f.with_type(_as_stored(f.type, leaves)) for f in parquet.schema_arrow])


def _as_stored(arrow: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> pa.DataType:
    """A type, looking at the Parquet leaves below it, which come in the same order."""
    if isinstance(arrow, pa.BaseExtensionType) and pt.is_nested(arrow.storage_type):
        return _as_stored(arrow.storage_type, leaves)
    if pt.is_struct(arrow):
        return pa.struct([f.with_type(_as_stored(f.type, leaves)) for f in arrow])
    if pt.is_map(arrow):
        key = _as_stored(arrow.key_type, leaves)
        return pa.map_(key, _as_stored(arrow.item_type, leaves))
    if pt.is_dictionary(arrow):
        return _as_stored(arrow.value_type, leaves)
    if pt.is_nested(arrow):
        return pa.list_(arrow.value_field.with_type(_as_stored(arrow.value_type, leaves)))
    leaf = next(leaves)
    if pt.is_null(arrow):
        return arrow
    if leaf.physical_type == "INT96":
        return Stored("INT96", arrow)
    annotations = {leaf.logical_type.type, leaf.converted_type}  # an old file has the latter only
    if hidden := annotations & _HIDDEN:
        return Stored(hidden.pop(), arrow)
    if "DECIMAL" in annotations and leaf.physical_type == "BYTE_ARRAY":
        return Stored("BYTE_ARRAY DECIMAL", arrow)
    if "UUID" in annotations:
        return pa.uuid()  # older Arrow leaves the annotation out
    return arrow


def fits(found: str, table: str) -> bool:
    """Whether every value of a published type can be stored in the table's without loss."""
    if found in (table, VOID) or table in _WIDER.get(found, ()):
        return True
    narrow, wide = _decimal(found), _decimal(table)
    if narrow is None or wide is None:
        return False
    return wide[1] >= narrow[1] and wide[0] - wide[1] >= narrow[0] - narrow[1]


def widened(table: str, found: str) -> str | None:
    """What a table's column has to become so that it holds a published type too.

    Only what Delta's type widening does (`delta.enableTypeWidening`), and never with a loss: the
    published values are cast to the answer, and so are those in the table.

    Returns:
        The type; the table's own where that holds the published values already; None where no
        safe change leads there.
    """
    # What Delta widens to, nearest first, decimals aside: never to float. By its protocol, tried.
    others = (kind for kind in _EXACT.get(table, ()) if kind != "float")
    for candidate in (table, *_WIDER.get(table, ()), *others):
        if fits(found, candidate) or candidate in _EXACT.get(found, ()):
            return candidate
    own, other = _decimal(table), _decimal(found)
    if own is None and other is None:
        return None
    digits, scale = own or (_DELTA_DIGITS.get(table, _MOST_DIGITS + 1), 0)
    more, finer = other or (_DIGITS.get(found, _MOST_DIGITS + 1), 0)
    scale, whole = max(scale, finer), max(digits - scale, more - finer)
    return f"decimal({whole + scale},{scale})" if whole + scale <= _MOST_DIGITS else None


def roomy_decimal(whole: int, scale: int) -> str | None:
    """Return the decimal for values without a declared type; None above 38 digits.

    Args:
        whole: the most digits before the point of any value.
        scale: the most digits behind it.
    """
    if whole + scale > _MOST_DIGITS:
        return None
    scale = max(scale, min(_ROOM[1], _MOST_DIGITS - whole))
    return f"decimal({min(_MOST_DIGITS, max(_ROOM[0], whole) + scale)},{scale})"


def parse_type(text: str, *, column: str) -> str:
    """Return the table type that a caller declares, such as `long` or `decimal(18,2)`.

    Args:
        text: the type as Delta or Spark's DDL names it.
        column: the declared column, for errors.

    Raises:
        UsageError: no column can have this type.
    """
    kind = "".join(text.lower().split())
    kind = _TYPE_WORDS.get(kind, kind)
    digits = _decimal(kind)
    if kind in _ARROW or (digits and digits[1] <= digits[0] and 1 <= digits[0] <= _MOST_DIGITS):
        return kind
    raise UsageError(
        f"Column {column!r} can't have the type {text!r}.",
        column=column,
        hint=f"choose one of {', '.join(_ARROW)}, decimal(p,s) with at most 38 digits.",
    )


def united(table: str | None, found: str) -> str:
    """Return the type of a table's column once a published type was added to it."""
    return found if table is None else widened(table, found) or table


def arrow_of(table_type: str) -> pa.DataType:
    """Return the Arrow type for a column type of the table."""
    digits = _decimal(table_type)
    return pa.decimal128(*digits) if digits else _ARROW[table_type]


def way_out(column: str, found: str, table: str) -> str:
    """Return a hint with the call that publishes values which the table's type refuses.

    Args:
        column: the column's name.
        found: the values' type, as Delta names it.
        table: the table's type.
    """
    if widened(table, found) not in (None, table):
        return WIDEN_HINT
    if "string" in (found, table) and "binary" not in (found, table):
        return (
            f"convert the values with types={{{column!r}: {table!r}}} (--types {column}={table})."
        )
    number = found in _DIGITS or found in ("float", "double") or _decimal(found)
    if number and widened(table, ROOMY) not in (None, table):
        return (
            f"publish with types={{{column!r}: {ROOMY!r}}} and widen=True "
            f"(--types '{column}={ROOMY}' --widen), and mirror with --widen."
        )
    return (
        f"convert the values to {table}, or delete the table's folder and publish it again "
        "with the new type."
    )


def _decimal(kind: str) -> tuple[int, int] | None:
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None
