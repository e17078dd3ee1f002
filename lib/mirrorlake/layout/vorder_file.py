"""One Parquet file, its rows in a better order: read, ordered, encoded, and compared with the old.

The file stays what it was: the same physical schema, field ids and footer keys, the same rows; only
INT96 moments become the standard's microseconds. It is plain Parquet. Its footer names this project
and the sort key, and never carries Microsoft's keys, for this is not their order.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.delta.vectors import without_deleted
from mirrorlake.layout import ordering
from mirrorlake.layout.footer_facts import MICROSOFT_ENABLED, MICROSOFT_LEVEL, OPEN_KEY
from mirrorlake.layout.footers import Storages

ROW_GROUP_ROWS = 4_000_000
_PAGE_BYTES = 64 * 2**20
_PAGE_ROWS = 2**24
_LEVEL, _SCORING_LEVEL = 3, 1
_DROPPED = (MICROSOFT_ENABLED, MICROSOFT_LEVEL, OPEN_KEY, "ARROW:schema")
_LEGACY = ("org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96")


# What pyarrow says of annotations besides their meaning, and how Spark writes moments of old.
_FLAGS = re.compile(r", is_from_converted_type=\w+, force_set_converted_type=\w+")
_INT96 = re.compile(r"\bint96 (field_id=\S+ .+);")
_MOMENT = r"int64 \1 (Timestamp(isAdjustedToUTC=true, timeUnit=microseconds));"


_SMALL_DECIMAL = re.compile(r"Decimal\(precision=(\d|1[0-8]),")
_NUMBER = "\x00{}"
_NUMBER_TEXT = re.compile(r'"\\u0000([^"]*)"')


class Unsuitable(Exception):  # noqa: N818 - it is an answer, not a fault
    """A file that is left as it is, and why."""


@dataclass(frozen=True)
class Task:
    """What is to be done with one file.

    Attributes:
        add: the log's `add`.
        row_id: the hidden column of row ids, or empty if rows are not tracked.
        commit_version: the hidden column of commit versions.
        prefix: columns, by the files' names, that the order must start with.
        write: put the new file there, not only tell how small it would be.
    """

    add: dict[str, Any]
    row_id: str = ""
    commit_version: str = ""
    prefix: tuple[str, ...] = ()
    write: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        path: the old file, as the log has it.
        size: its bytes.
        new_size: the bytes of the file in its place; the old ones if it stays.
        rows: the rows that were ordered.
        order: what won.
        columns: what it sorts by.
        new_path: the new file, as the log has it; empty if there is none.
        stats: the new file's statistics.
        reason: why the file stays; empty if it does not.
        tried: the sample's bytes by order, the smallest first.
    """

    path: str
    size: int
    new_size: int
    rows: int = 0
    order: str = ""
    columns: tuple[str, ...] = ()
    new_path: str = ""
    stats: str | None = None
    reason: str = ""
    tried: tuple[tuple[str, int], ...] = ()


def order_file(stores: Storages, task: Task) -> Outcome:
    """Orders one file; it is replaced only by a smaller one."""
    add = task.add
    stays = Outcome(add["path"], add["size"], add["size"])
    try:
        rows, keys, shape = read_rows(stores, task)
        hidden = [name for name in (task.row_id, task.commit_version) if name]
        prefix = [name for name in task.prefix if name in rows.column_names]
        put = partial(encode, row_id=task.row_id, integers=_stores_integers(shape))
        order, tried = ordering.choose_order(
            rows,
            lambda some: len(put(some, {}, level=_SCORING_LEVEL)),
            prefix=prefix,
            fixed=hidden,
        )
        keys[OPEN_KEY] = json.dumps({"order": order.kind, "columns": order.columns})
        moved = rows.take(ordering.sort_permutation(rows, order.columns))
        data = put(moved, keys, level=_LEVEL)
        _check_shape(data, shape, hidden)
    except Unsuitable as reason:
        return replace(stays, reason=str(reason))
    except (pa.ArrowException, NotImplementedError) as error:
        return replace(stays, reason=f"pyarrow can't: {error}")
    told = replace(
        stays,
        rows=rows.num_rows,
        order=order.kind,
        columns=order.columns,
        tried=tuple((one.order.kind, one.size) for one in tried),
    )
    if len(data) >= add["size"]:
        return replace(told, reason=f"no smaller in any order: {len(data):,} bytes")
    new_path = _new_path(add["path"])
    if task.write:
        storage, place = stores.place(unquote(new_path))
        with storage.open_writer(place) as sink:
            sink.write(data)
    stats = new_stats(add, rows)
    return replace(told, new_size=len(data), new_path=new_path, stats=stats)


def read_rows(stores: Storages, task: Task) -> tuple[pa.Table, dict[str, str], list[str]]:
    """A file's rows with their ids and without the deleted, its footer's keys, its shape."""
    storage, place = stores.place(unquote(task.add["path"]))
    with storage.open(place) as source:
        texts = _text_columns(pq.ParquetFile(source).schema_arrow)
        source.seek(0)
        # Texts stay as words and numbers: moving rows moves the numbers only.
        file = pq.ParquetFile(source, read_dictionary=texts, coerce_int96_timestamp_unit="us")
        found = file.metadata.metadata or {}
        keys = {key.decode(): value.decode() for key, value in found.items()}
        if old := [key for key in _LEGACY if key in keys]:
            raise Unsuitable(f"its moments follow the old calendar ({', '.join(old)})")
        schema = _target_schema(file)
        rows = file.read().cast(schema)
        shape = physical_shape(file.schema)
    if task.row_id:
        rows = _with_ids(rows, task)
    rows = without_deleted(rows, stores.place, task.add.get("deletionVector"))
    rows = rows.unify_dictionaries().combine_chunks()
    return rows, {k: value for k, value in keys.items() if k not in _DROPPED}, shape


def encode(
    rows: pa.Table,
    keys: dict[str, str],
    *,
    level: int = _LEVEL,
    row_id: str = "",
    integers: bool = True,
) -> pa.Buffer:
    """Rows as a Parquet file: dictionaries and pages as large as a row group, ZSTD.

    Args:
        rows: all rows of the file.
        keys: the footer's keys and values.
        level: of ZSTD.
        row_id: a column of ids, all distinct: no dictionary could help there.
        integers: small decimals as integers, as Spark has them; else as bytes of fixed length.
    """
    sink = pa.BufferOutputStream()
    ids = {row_id: "DELTA_BINARY_PACKED"} if row_id else {}
    leaves = [path for path in _leaf_paths(rows.schema) if path not in ids]
    settings: dict[str, Any] = {"column_encoding": ids} if ids else {}
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression="zstd",
        compression_level=level,
        use_dictionary=leaves,
        dictionary_pagesize_limit=_PAGE_BYTES,
        data_page_size=_PAGE_BYTES,
        max_rows_per_page=_PAGE_ROWS,
        store_schema=False,
        store_decimal_as_integer=integers,
        **settings,
    ) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        if keys:
            writer.add_key_value_metadata(keys)
    return sink.getvalue()


def new_stats(add: dict[str, Any], rows: pa.Table) -> str | None:
    """A file's statistics for the log: the same rows have the same ones.

    Behind a deletion vector the bounds still hold, though they may be wider than need be; rows and
    NULLs are counted again.
    """
    old: str | None = add.get("stats")
    if not add.get("deletionVector") or not old:
        return old
    # Numbers stay as they are written: a decimal of 38 digits is no float.
    stats = json.loads(old, parse_float=_NUMBER.format, parse_constant=_NUMBER.format)
    stats["numRecords"] = rows.num_rows
    stats["tightBounds"] = False
    if "nullCount" in stats:
        columns = [rows.column(name).combine_chunks() for name in rows.column_names]
        fields = dict(zip(rows.column_names, columns, strict=True))
        stats["nullCount"] = _null_counts(stats["nullCount"], fields, rows.num_rows)
    return _NUMBER_TEXT.sub(r"\1", json.dumps(stats))


def _null_counts(known: dict[str, Any], fields: dict[str, pa.Array], count: int) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for name, below in known.items():
        values = fields.get(name)
        if isinstance(below, dict):
            inner = {} if values is None else dict(zip(
                (f.name for f in values.type), values.flatten(), strict=True
            ))  # fmt: skip
            counts[name] = _null_counts(below, inner, count)
        else:  # a column younger than the file is NULL in all its rows
            counts[name] = count if values is None else values.null_count
    return counts


def _with_ids(rows: pa.Table, task: Task) -> pa.Table:
    """Row ids and commit versions as hidden columns: moved rows keep what they had."""
    first, version = task.add.get("baseRowId"), task.add.get("defaultRowCommitVersion")
    if first is None or version is None:
        raise Unsuitable("its rows have no ids yet: row tracking was enabled later")
    positions = pa.array(np.arange(first, first + rows.num_rows))
    versions = pa.array(np.full(rows.num_rows, version))
    for name, default in ((task.row_id, positions), (task.commit_version, versions)):
        if name in rows.column_names:
            index = rows.column_names.index(name)
            kept = pc.coalesce(rows.column(index), pa.chunked_array([default]))
            rows = rows.set_column(index, pa.field(name, pa.int64()), kept)
        else:
            rows = rows.append_column(pa.field(name, pa.int64()), default)
    return rows


def _text_columns(schema: pa.Schema) -> list[str]:
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string)
    return [f.name for f in schema if any(is_kind(f.type) for is_kind in kinds)]


def _target_schema(file: pq.ParquetFile) -> pa.Schema:
    """The file's Arrow schema, with INT96 moments as what they are: moments in UTC."""
    physical = [file.schema.column(i).physical_type for i in range(len(file.schema.names))]
    leaves = iter(physical)
    schema = file.schema_arrow
    return pa.schema([_target_field(f, leaves) for f in schema])


def _target_field(f: pa.Field, leaves: Iterator[str]) -> pa.Field:
    kind = f.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_target_field(inner, leaves) for inner in kind])
    elif pa.types.is_map(kind):
        key = _target_field(kind.key_field, leaves)
        kind = pa.map_(key, _target_field(kind.item_field, leaves))
    elif pa.types.is_list(kind):
        kind = pa.list_(_target_field(kind.value_field, leaves))
    elif pa.types.is_nested(kind):
        raise Unsuitable(f"column {f.name} is of a kind that is not handled: {kind}")
    elif next(leaves) == "INT96":
        kind = pa.timestamp("us", "UTC")
    return f.with_type(kind)


def _leaf_paths(schema: pa.Schema) -> list[str]:
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink)
    found = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [found.column(i).path for i in range(len(found))]


def physical_shape(schema: pq.ParquetSchema) -> list[str]:
    """A file's physical schema, line by line: names, types, repetition, field ids.

    INT96 moments read as the microseconds that they become.
    """
    lines = str(schema).split("{", 1)[1].rpartition("}")[0].strip().splitlines()
    return [_INT96.sub(_MOMENT, _FLAGS.sub("", line)).strip() for line in lines]


def _stores_integers(shape: list[str]) -> bool:
    return not any("fixed_len" in line and _SMALL_DECIMAL.search(line) for line in shape)


def _check_shape(data: pa.Buffer, wanted: list[str], hidden: list[str]) -> None:
    """Reads the new file's schema back: only the hidden columns may be new in it."""
    found = physical_shape(pq.ParquetFile(pa.BufferReader(data)).schema)
    if found[: len(wanted)] != wanted or len(found) > len(wanted) + len(hidden):
        raise Unsuitable("its physical schema would change")


def _new_path(path: str) -> str:
    """A name beside the old file; a clone's file comes into the clone's own folder."""
    folder = "" if ":" in path or path.startswith("/") else path.rpartition("/")[0]
    name = quote(f"part-00000-{uuid.uuid4()}-c000.zstd.parquet")
    return f"{folder}/{name}" if folder else name
