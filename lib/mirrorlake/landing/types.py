"""Map published types to types of the table, and decide which changes of a type are safe.

Types have the names of Delta's schema (`long`, `timestamp_ntz`, `decimal(10,2)`, …), which Spark's
DDL understands as well. Simple types map one to one; nested types become JSON text. The mapping
itself is the table in `type_rules.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from mirrorlake.errors import SchemaError, UsageError
from mirrorlake.landing.type_rules import JSON_OPTIONS, REFUSED_HINT, RULES, VOID, Stored, TypeRule
from mirrorlake.names import quote
from mirrorlake.results import counted
from mirrorlake.spark.sql import literal

_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
# Types of another kind that represent all values of a type exactly.
_EXACT = {
    "byte": ("float", "double"),
    "short": ("float", "double"),
    "integer": ("double",),
    "date": ("timestamp_ntz",),
}
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
# Delta counts ten digits for whole numbers up to int, and twenty for a long.
_DELTA_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
# The digits before and after the point of decimals for values without a type. Such a decimal holds
# every long, which Delta counts as twenty digits; type widening can still add ten.
_ROOM = (20, 8)
WIDEN_HINT = "publish and mirror with widen=True (--widen)."
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
# How values are written as text; whole numbers and decimals are in `_form`.
_FORMS = {
    "boolean": "true or false",
    "float": "a number without units and separators, such as 1234.5",
    "double": "a number without units and separators, such as 1234.5",
    "date": "a date such as 2026-01-31",
    "string": "text in UTF-8",
    "binary": "bytes",
    "timestamp": "a time such as 2026-01-31T10:00:00Z",
    "timestamp_ntz": "a time without a zone, such as 2026-01-31 10:00:00",
}
_TYPE_WORDS = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}
# Annotations of Parquet that Arrow's types do not show.
_HIDDEN = {"ENUM", "BSON", "GEOMETRY", "GEOGRAPHY", "INTERVAL"}


@dataclass(frozen=True)
class ColumnType:
    """The type of one column: as it is read, and in the table.

    Attributes:
        read: the type for Spark's Parquet reader.
        table: the type in the Delta table; `void` if all values so far are NULL.
        convert: the SQL expression from the read value `{0}` to the table's type.
    """

    read: str
    table: str
    convert: str = "{0}"


def column_type(arrow: pa.DataType) -> ColumnType:
    """Return the column type for an Arrow type.

    Raises:
        SchemaError: the table has no type that represents it without loss.
    """
    rule, arrow = _rule_of(arrow)
    if rule.nested:
        text = f"to_json({_json_value(arrow, '{0}', 0)}, {JSON_OPTIONS})"
        return ColumnType(_read(arrow), "string", text)
    return ColumnType(_read(arrow), str(rule.table).format(arrow), rule.convert)


def _rule_of(arrow: pa.DataType) -> tuple[TypeRule, Any]:
    """Return the rule for a type, and the type that the rule refers to."""
    rule = next(rule for rule in RULES if rule.matches(arrow))
    if rule.unwrap is not None:
        return _rule_of(rule.unwrap(arrow))
    if rule.table is None:
        found = arrow.storage_type if isinstance(arrow, Stored) else arrow
        raise SchemaError(f"The type {found} has no counterpart in the table.", hint=REFUSED_HINT)
    return rule, arrow


def _read(arrow: pa.DataType) -> str:
    """Return the type for Spark's Parquet reader, as DDL."""
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
                f"The type {arrow} has {field.name!r} twice (names differ at most by case).",
                hint="rename one of the two fields.",
            )
        seen.add(field.name.lower())
    return f"struct<{','.join(f'{quote(f.name)}:{_read(_member(f.type))}' for f in arrow)}>"


def _member(arrow: pa.DataType) -> pa.DataType:
    if pt.is_run_end_encoded(arrow):  # the publisher decodes whole columns only
        raise SchemaError(
            f"The type {arrow} has no counterpart within another type.",
            hint="publish its decoded values.",
        )
    return arrow


def _json_value(arrow: pa.DataType, value: str, depth: int) -> str:
    """Return SQL for a value as `to_json` needs it; the value itself if no conversion is needed.

    Args:
        arrow: the type of the value.
        value: SQL for the value as read.
        depth: the number of enclosing lambdas, which need distinct parameter names.
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
    """Return SQL for a map's key as text, since `to_json` misprints dates and groups as keys."""
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
    """Escape SQL that goes through `format` once more."""
    return sql.replace("{", "{{").replace("}", "}}")


def published_schema(parquet: pq.ParquetFile) -> pa.Schema:
    """Return a file's Arrow schema, with `Stored` for what only its Parquet schema contains.

    Raises:
        pa.ArrowException: Arrow can't read a type.
    """
    schema = parquet.schema
    leaves = iter([schema.column(index) for index in range(len(schema))])
    return pa.schema([f.with_type(_as_stored(f.type, leaves)) for f in parquet.schema_arrow])


def _as_stored(arrow: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> pa.DataType:
    """Return a type with the annotations of the Parquet leaves below it, in their order."""
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
    annotations = {leaf.logical_type.type, leaf.converted_type}  # old files have only the latter
    if hidden := annotations & _HIDDEN:
        return Stored(hidden.pop(), arrow)
    if "DECIMAL" in annotations and leaf.physical_type == "BYTE_ARRAY":
        return Stored("BYTE_ARRAY DECIMAL", arrow)
    if "UUID" in annotations:
        return pa.uuid()  # older versions of Arrow ignore the annotation
    return arrow


def fits(found: str, table: str) -> bool:
    """Return whether the table's type can store all values of a published type without loss."""
    if found in (table, VOID) or table in _WIDER.get(found, ()):
        return True
    narrow, wide = decimal_digits(found), decimal_digits(table)
    if narrow is None or wide is None:
        return False
    return wide[1] >= narrow[1] and wide[0] - wide[1] >= narrow[0] - narrow[1]


def widened(table: str, found: str) -> str | None:
    """Return the type that a table's column needs to store values of a published type as well.

    Only changes of Delta's type widening (`delta.enableTypeWidening`) are considered, and only
    without loss: the published values and those in the table are cast to the result.

    Returns:
        The type; the table's own if it can store the values already; None if no safe change exists.
    """
    # The types that Delta's protocol widens to, except decimals, nearest first; never to float.
    others = (kind for kind in _EXACT.get(table, ()) if kind != "float")
    for candidate in (table, *_WIDER.get(table, ()), *others):
        if fits(found, candidate) or candidate in _EXACT.get(found, ()):
            return candidate
    own, other = decimal_digits(table), decimal_digits(found)
    if own is None and other is None:
        return None
    digits, scale = own or (_DELTA_DIGITS.get(table, _MOST_DIGITS + 1), 0)
    more, finer = other or (_DIGITS.get(found, _MOST_DIGITS + 1), 0)
    scale, whole = max(scale, finer), max(digits - scale, more - finer)
    return f"decimal({whole + scale},{scale})" if whole + scale <= _MOST_DIGITS else None


def roomy_decimal(whole: int, scale: int) -> str | None:
    """Return the decimal for values without a declared type; None above 38 digits.

    Args:
        whole: the largest number of digits before the decimal point.
        scale: the largest number of digits after it.
    """
    if whole + scale > _MOST_DIGITS:
        return None
    scale = max(scale, min(_ROOM[1], _MOST_DIGITS - whole))
    return f"decimal({min(_MOST_DIGITS, max(_ROOM[0], whole) + scale)},{scale})"


def parse_type(text: str, *, column: str) -> str:
    """Return the table type for a type that a caller declares, such as `long` or `decimal(18,2)`.

    Args:
        text: the type, as Delta or Spark's DDL names it.
        column: the declared column, for errors.

    Raises:
        UsageError: the type does not exist.
    """
    kind = "".join(text.lower().split())
    kind = _TYPE_WORDS.get(kind, kind)
    digits = decimal_digits(kind)
    if kind in _ARROW or (digits and digits[1] <= digits[0] and 1 <= digits[0] <= _MOST_DIGITS):
        return kind
    raise UsageError(
        f"The type {text!r} of column {column!r} does not exist.",
        column=column,
        hint=f"choose one of {', '.join(_ARROW)}, or decimal(p,s) with at most 38 digits.",
    )


def united(table: str | None, found: str) -> str:
    """Return the type of a table's column after a published type was added to it."""
    return found if table is None else widened(table, found) or table


def arrow_of(table_type: str) -> pa.DataType:
    """Return the Arrow type of a table's column type."""
    digits = decimal_digits(table_type)
    return pa.decimal128(*digits) if digits else _ARROW[table_type]


def misfit_hint(column: str, found: str, table: str) -> str:
    """Return a hint how to publish values that do not fit the table's type.

    Args:
        column: the column's name.
        found: the type of the values, as Delta names it.
        table: the type of the table's column.
    """
    numbers = all(
        k in _DIGITS or k in ("float", "double") or decimal_digits(k) for k in (found, table)
    )
    correct = f"correct or round the values to fit {table}" if numbers else ""
    if widened(table, found) not in (None, table):
        return f"{correct}, or {WIDEN_HINT}" if correct else WIDEN_HINT
    local = (found, table) == ("timestamp_ntz", "timestamp")  # the declaration reads it as UTC
    if local or ("string" in (found, table) and "binary" not in (found, table)):
        return f"convert the values with {types_argument(column, table)}."
    if numbers and widened(table, ROOMY) not in (None, table):
        return (
            f"{correct}, or publish with {types_argument(column, ROOMY)} and widen=True (--widen),"
            " and mirror with widen=True (--widen)."
        )
    if numbers:
        return f"{correct}."
    return (
        f"convert the values to {table}, or delete the table's folder and publish it again "
        "with the new type."
    )


def values_hint(kinds: Iterable[str]) -> str:
    """Return a hint how to write values of some types as text."""
    forms = [f"a value of type {kind} as {_form(kind)}" for kind in dict.fromkeys(kinds)]
    return f"correct the values: write {'; '.join(forms)}."


def _form(kind: str) -> str:
    """Return how a value of a type is written as text."""
    if kind in _FORMS:
        return _FORMS[kind]
    precision, scale = decimal_digits(kind) or (0, 0)
    if scale:
        return (
            f"a number rounded to {counted(scale, 'digit')} after the point, with at most"
            f" {precision - scale} before it, such as {0.5:.{scale}f}"
        )
    most = 10**precision if precision else 2 ** (_ARROW[kind].bit_width - 1)
    return f"a whole number without a decimal point, at most {most - 1}, such as 12"


def types_argument(column: str, kind: str) -> str:
    """Return the argument that declares a column's type, in Python and in a shell, for hints."""
    return f"types={{{column!r}: {kind!r}}} (--types {shlex.quote(f'{column}={kind}')})"


def type_name(arrow: pa.DataType) -> str:
    """Return a type's name for messages: the table's type; of a nested type, Arrow's name."""
    return str(arrow) if pt.is_nested(arrow) else column_type(arrow).table


def decimal_digits(kind: str) -> tuple[int, int] | None:
    """Return the precision and the scale of a decimal type; None for any other type."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None
