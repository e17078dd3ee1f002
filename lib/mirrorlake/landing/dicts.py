"""Rows as dicts become Arrow batches: the types come from the first rows, the rest must fit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from numpy import datetime64

from mirrorlake.errors import SchemaError, UsageError
from mirrorlake.landing.casts import convert_rows, keep_or_refuse

BATCH_ROWS = 50_000


def read_dicts(
    rows: Iterator[dict[str, Any]], first_chunk: int = BATCH_ROWS
) -> pa.RecordBatchReader:
    """A reader over dicts that looks at `first_chunk` of them to find the schema.

    Raises:
        SchemaError: values of one column that don't agree on a type; also while reading.
        UsageError: an element that is not a dict; also while reading.
    """
    head = list(islice(rows, first_chunk))
    _check_dicts(head, 0)
    names = list(dict.fromkeys(name for row in head for name in row))
    if not names:
        raise SchemaError("The rows have no columns.", hint="each row is a dict with its columns.")
    for name in names:
        if not isinstance(name, str):
            raise SchemaError(f"The column name {name!r} is not a text.", column=repr(name))
    schema = pa.schema([(name, _infer(head, name)) for name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        before, chunk = 0, head
        while chunk:
            yield _dict_batch(chunk, schema, before)
            before += len(chunk)
            chunk = list(islice(rows, BATCH_ROWS))
            _check_dicts(chunk, before)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _check_dicts(rows: list[Any], before: int) -> None:
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UsageError(
                f"There is a {type(row).__name__} among the dicts.", row=before + index + 1
            )


def _infer(rows: list[dict[str, Any]], name: str) -> pa.DataType:
    values = [row.get(name) for row in rows]
    says = f"The values of {name!r} don't agree on a type"
    return convert_rows(values, _infer_array, says=says, before=0, column=name).type


def _dict_batch(chunk: list[dict[str, Any]], schema: pa.Schema, before: int) -> pa.RecordBatch:
    known = set(schema.names)
    for index, row in enumerate(chunk):
        if extra := row.keys() - known:
            raise SchemaError(
                f"Column {min(map(str, extra))!r} appears for the first time after {before} rows.",
                row=before + index + 1,
                column=min(map(str, extra)),
                hint="give every column in the first rows, or hand over Arrow batches.",
            )
    arrays = []
    for column in schema:
        values = [row.get(column.name) for row in chunk]
        arrays.append(
            convert_rows(
                values,
                partial(_convert, wanted=column.type),
                says=f"The value of {column.name!r} is not of type {column.type}",
                before=before,
                column=column.name,
            )
        )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _convert(values: list[Any], wanted: pa.DataType) -> pa.Array:
    # `pa.array(values, wanted)` would cut 1.5 to 1, drop a struct's new fields, and take numbers
    # for moments; so each chunk's own type is found first.
    return keep_or_refuse(_infer_array(values), wanted)


def _infer_array(values: list[Any]) -> pa.Array:
    array = pa.array(values)
    # Where it finds the type itself, Arrow still mixes what only looks alike.
    seen = {type(value) for value in values} - {type(None)}
    if pt.is_date(array.type) and any(issubclass(kind, datetime) for kind in seen):
        raise pa.ArrowInvalid("days and moments are mixed")
    if pt.is_timestamp(array.type):
        if not all(issubclass(kind, (datetime, datetime64)) for kind in seen):
            raise pa.ArrowInvalid("moments and other values are mixed")
        if len({v.tzinfo is None for v in values if isinstance(v, datetime)}) > 1:
            raise pa.ArrowInvalid("moments with and without a time zone are mixed")
    if pt.is_binary(array.type) and any(issubclass(kind, str) for kind in seen):
        raise pa.ArrowInvalid("texts and bytes are mixed")
    return array
