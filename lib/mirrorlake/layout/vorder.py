"""Write one Parquet file in V-Order: choose the order of its rows that makes it smallest.

No order is best for all data, and the fewest runs are not the fewest bytes. Each candidate is
tried on a sample, encoded as the file would be, and the smallest wins. The candidates are: the rows
as they are; lexicographic order by increasing cardinality (Lemire & Kaser, arXiv 0909.1346); and a
sort key to which the column that saves most bytes is added repeatedly. A sample is sparser than
its file, so candidates of similar size are compared again on a larger sample.

The file keeps its physical schema, field ids, footer keys and rows; only INT96 timestamps become
the standard's microseconds. It remains plain Parquet. Its footer names this project and the sort
key, and never contains Microsoft's keys, because this is not Microsoft's order.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mirrorlake.delta.actions import without_deleted
from mirrorlake.delta.snapshot import MICROSOFT_TAG, OPEN_TAG, physical_names
from mirrorlake.errors import UsageError
from mirrorlake.layout.footers import MICROSOFT_ENABLED, MICROSOFT_LEVEL, OPEN_KEY, Storages
from mirrorlake.layout.thrift import Ints
from mirrorlake.names import TableName
from mirrorlake.spark.executors import map_in_arrow, parallelism
from mirrorlake.spark.jvm import Add
from mirrorlake.storage.files import Storage

SORTED_TAG = "mirrorlake.partition.sorted"
"""The tag of a partitioned file whose rows are sorted; its value is the column's name."""
ROW_GROUP_ROWS = 4_000_000
_PAGE_BYTES = 64 * 2**20
_PAGE_ROWS = 2**24
_LEVEL, SCORING_LEVEL = 3, 1
_DROPPED = (MICROSOFT_ENABLED, MICROSOFT_LEVEL, OPEN_KEY, "ARROW:schema")
_LEGACY = ("org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96")
# Parts of pyarrow's annotations without meaning, and Spark's legacy type of timestamps.
_FLAGS = re.compile(r", is_from_converted_type=\w+, force_set_converted_type=\w+")
_INT96 = re.compile(r"\bint96 (field_id=\S+ .+);")
_MOMENT = r"int64 \1 (Timestamp(isAdjustedToUTC=true, timeUnit=microseconds));"
_SMALL_DECIMAL = re.compile(r"Decimal\(precision=(\d|1[0-8]),")
_NUMBER = "\x00{}"
_NUMBER_TEXT = re.compile(r'"\\u0000([^"]*)"')
Score = Callable[[pa.Table], int]
NATURAL = "as it is"
LEXICOGRAPHIC = "lexicographic"
GROWN = "sort key"
_SAMPLE_ROWS = 65_536
_FINAL_ROWS = 1_048_576
_BLOCK_ROWS = 512
_CLOSE = 1.1
_FINALISTS = 3
_WIDTH = 6
_DEPTH = 6
_WORTH = 0.998
_CODE_BITS = 62


class Unsuitable(Exception):  # noqa: N818 - an answer, not an error
    """The reason why a file is not rewritten."""


@dataclass(frozen=True)
class Task:
    """The instructions for one file.

    Attributes:
        add: its `add` in the log.
        row_id: the hidden column of row ids; empty without row tracking.
        commit_version: the hidden column of commit versions.
        prefix: columns, by the files' names, with which the order must start.
        write: write the new file, not only determine its size.
        row_group_rows: the most rows of a row group; 0 for 4 million. If given, a file is replaced
            even if it does not get smaller.
    """

    add: dict[str, Any]
    row_id: str = ""
    commit_version: str = ""
    prefix: tuple[str, ...] = ()
    write: bool = False
    row_group_rows: int = 0


def read_rows(stores: Storages, task: Task) -> tuple[pa.Table, dict[str, str], list[str]]:
    """Return a file's live rows with their ids, its footer's keys, and its physical schema."""
    storage, place = stores.place(unquote(task.add["path"]))
    with storage.open(place) as source:
        kinds = (pa.string(), pa.binary(), pa.large_string())
        texts = [f.name for f in pq.ParquetFile(source).schema_arrow if f.type in kinds]
        source.seek(0)
        # Texts remain dictionary-encoded, so that moving rows moves only numbers.
        file = pq.ParquetFile(source, read_dictionary=texts, coerce_int96_timestamp_unit="us")
        found = file.metadata.metadata or {}
        keys = {key.decode(): value.decode() for key, value in found.items()}
        if old := [key for key in _LEGACY if key in keys]:
            raise Unsuitable(f"its timestamps use the old calendar ({', '.join(old)})")
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
    row_group_rows: int = 0,
) -> pa.Buffer:
    """Encode rows as a Parquet file with ZSTD, and dictionaries and pages as large as a row group.

    Args:
        rows: all rows of the file.
        keys: the footer's keys and values.
        level: ZSTD's level.
        row_id: a column of distinct ids, for which a dictionary is useless.
        integers: store small decimals as integers, as Spark does; else as bytes of fixed length.
        row_group_rows: the most rows of a row group; 0 for 4 million.
    """
    sink = pa.BufferOutputStream()
    ids = {row_id: "DELTA_BINARY_PACKED"} if row_id else {}
    leaves = [path for path in _leaf_paths(rows.schema) if path not in ids]
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
        column_encoding=ids or None,
    ) as writer:
        writer.write_table(rows, row_group_size=row_group_rows or ROW_GROUP_ROWS)
        if keys:
            writer.add_key_value_metadata(keys)
    return sink.getvalue()


def new_stats(add: dict[str, Any], rows: pa.Table) -> str | None:
    """Return a file's statistics for the log; the same rows have the same statistics.

    If the file had a deletion vector, rows and NULLs are counted again. The bounds are still valid
    but may be too wide.
    """
    old: str | None = add.get("stats")
    if not add.get("deletionVector") or not old:
        return old
    # Numbers keep their text: a decimal of 38 digits does not fit into a float.
    stats = json.loads(old, parse_float=_NUMBER.format, parse_constant=_NUMBER.format)
    stats["numRecords"] = rows.num_rows
    stats["tightBounds"] = False
    if "nullCount" in stats:
        fields = {name: rows.column(name).combine_chunks() for name in rows.column_names}
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
        else:  # a column that is newer than the file is NULL in all its rows
            counts[name] = count if values is None else values.null_count
    return counts


def _with_ids(rows: pa.Table, task: Task) -> pa.Table:
    """Add row ids and commit versions as hidden columns, so that moved rows keep theirs."""
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


def _target_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the file's Arrow schema, with INT96 as timestamps in UTC."""
    leaves = (file.schema.column(i).physical_type for i in range(len(file.schema)))
    return pa.schema([_target_field(f, leaves) for f in file.schema_arrow])


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
        raise Unsuitable(f"column {f.name} has the unsupported type {kind}")
    elif next(leaves) == "INT96":
        kind = pa.timestamp("us", "UTC")
    return f.with_type(kind)


def _leaf_paths(schema: pa.Schema) -> list[str]:
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink)
    found = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [found.column(i).path for i in range(len(found))]


def physical_shape(schema: pq.ParquetSchema) -> list[str]:
    """Return a file's physical schema, line by line: names, types, repetition, field ids.

    INT96 timestamps are returned as the microseconds that they become.
    """
    lines = str(schema).split("{", 1)[1].rpartition("}")[0].strip().splitlines()
    return [_INT96.sub(_MOMENT, _FLAGS.sub("", line)).strip() for line in lines]


def stores_integers(shape: list[str]) -> bool:
    """Return whether a file of this physical schema stores small decimals as integers."""
    return not any("fixed_len" in line and _SMALL_DECIMAL.search(line) for line in shape)


def check_shape(data: pa.Buffer, wanted: list[str], hidden: list[str]) -> None:
    """Check that the new file's schema differs from the old one only by hidden columns."""
    found = physical_shape(pq.ParquetFile(pa.BufferReader(data)).schema)
    if found[: len(wanted)] != wanted or len(found) > len(wanted) + len(hidden):
        raise Unsuitable("its physical schema would change")


@dataclass(frozen=True)
class Order:
    """One order of rows.

    Attributes:
        kind: `as it is`, `lexicographic` or `sort key`.
        columns: the columns to sort by, in this order; the sort is stable.
        size: the bytes of the sample in this order.
    """

    kind: str
    columns: tuple[str, ...]
    size: int


def choose_order(
    rows: pa.Table, score: Score, *, prefix: Sequence[str] = (), fixed: Sequence[str] = ()
) -> tuple[Order, tuple[Order, ...]]:
    """Choose the order in which to write a file.

    Args:
        rows: all rows of a file.
        score: returns the bytes of rows, encoded as the file will be.
        prefix: columns with which every order must start.
        fixed: columns that are never sorted by.

    Returns:
        The order, and all orders that were tried on the sample, the smallest first.
    """
    tried = _try_orders(take_sample(rows, _SAMPLE_ROWS), score, prefix, fixed)
    close = [one for one in tried if one.size <= tried[0].size * _CLOSE][:_FINALISTS]
    if len(close) == 1 or rows.num_rows <= _SAMPLE_ROWS:
        return close[0], tried
    larger = take_sample(rows, _FINAL_ROWS)
    sizes = [score(larger.take(sort_permutation(larger, one.columns))) for one in close]
    return close[sizes.index(min(sizes))], tried


def _try_orders(
    sample: pa.Table, score: Score, prefix: Sequence[str], fixed: Sequence[str]
) -> tuple[Order, ...]:
    """Return the candidates, the smallest first."""
    # Lists, maps and structs have no order.
    flat = [field.name for field in sample.schema if not pa.types.is_nested(field.type)]
    codes = {name: column_codes(sample.column(name)) for name in flat if name not in fixed}

    def scored(kind: str, columns: Sequence[str]) -> Order:
        moved = sample.take(_permutation(codes, columns, sample.num_rows))
        return Order(kind, tuple(columns), score(moved))

    distinct = {name: int(values.max(initial=0)) + 1 for name, values in codes.items()}
    useful = [
        name
        for name in sorted(codes, key=lambda column: distinct[column])
        if name not in prefix and distinct[name] > 1
    ]
    natural = scored(NATURAL, prefix)
    found = [natural, scored(LEXICOGRAPHIC, [*prefix, *useful])]
    grown = _grow(natural.size, list(prefix), useful, partial(scored, GROWN))
    if grown is not None:
        tail = [name for name in useful if name not in grown.columns]
        found += [scored(GROWN, [*grown.columns, *tail]), grown]
    return tuple(sorted(found, key=lambda one: one.size))


def _grow(
    size: int, key: list[str], columns: list[str], scored: Callable[[list[str]], Order]
) -> Order | None:
    """Add columns to the key, each time the one that makes the sample smallest."""
    best: Order | None = None
    candidates = columns
    for step in range(_DEPTH):
        tried = [scored([*key, name]) for name in candidates if name not in key]
        if not tried:
            break
        tried.sort(key=lambda one: one.size)
        if tried[0].size > size * _WORTH:
            break
        best, size, key = tried[0], tried[0].size, list(tried[0].columns)
        if step == 0:  # a column that is bad as the first is not better as a later one
            candidates = [one.columns[-1] for one in tried[: _WIDTH + 1]]
    return best


def sort_permutation(rows: pa.Table, columns: Sequence[str]) -> Ints:
    """Return the positions of the rows, sorted by some columns; the sort is stable."""
    codes = {name: column_codes(rows.column(name)) for name in columns}
    return _permutation(codes, columns, rows.num_rows)


def column_codes(values: pa.ChunkedArray) -> Ints:
    """Return each value's rank among the column's distinct values; NULL is last."""
    encoded = values.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    words = encoded.dictionary
    rank = np.empty(len(words) + 1, np.int64)
    rank[pc.sort_indices(words).to_numpy()] = np.arange(len(words))
    rank[-1] = len(words)
    indices = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    codes: Ints = rank[indices]
    return codes


def take_sample(rows: pa.Table, count: int) -> pa.Table:
    """Return blocks of neighbouring rows from all parts of the file."""
    if rows.num_rows <= count:
        return rows
    blocks = count // _BLOCK_ROWS
    starts = np.linspace(0, rows.num_rows - _BLOCK_ROWS, blocks).astype(np.int64)
    return rows.take((starts[:, None] + np.arange(_BLOCK_ROWS)).ravel())


def _permutation(codes: dict[str, Ints], columns: Sequence[str], count: int) -> Ints:
    """Return a stable sort by several columns, with as few sorts as their bits allow."""
    order = np.arange(count)
    packed, bits = np.zeros(count, np.int64), 0
    for name in reversed(columns):
        width = max(1, int(codes[name].max(initial=0)).bit_length())
        if bits + width > _CODE_BITS:
            order = order[np.argsort(packed[order], kind="stable")]
            packed, bits = np.zeros(count, np.int64), 0
        packed |= codes[name] << bits
        bits += width
    if bits:
        order = order[np.argsort(packed[order], kind="stable")]
    return order


def order_files(
    spark: SparkSession, storage: Storage, name: TableName, tasks: Sequence[Task]
) -> tuple[FileOutcome, ...]:
    """Order files in a Spark job, one at a time in each task; the largest come first."""
    table_path = name.table_path

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stores = Storages(storage, table_path)
        for batch in batches:
            for task in batch.column("task").to_pylist():
                outcome = order_file(stores, Task(**json.loads(task)))
                yield pa.RecordBatch.from_pydict({"outcome": [json.dumps(asdict(outcome))]})

    rows = [(json.dumps(asdict(task)),) for task in tasks]
    frame = spark.createDataFrame(rows, "task string")
    spread = frame.repartition(min(len(tasks), parallelism(spark)))
    found = map_in_arrow(spread, run, "outcome string").collect()
    outcomes = [_outcome(row["outcome"]) for row in found]
    return tuple(sorted(outcomes, key=lambda one: (-one.size, one.path)))


def sort_prefix(metadata: dict[str, Any], sort_by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to sort by first, by the files' names; case does not matter.

    Raises:
        UsageError: a name is not a column, or is a partition column.
    """
    partitions = metadata.get("partitionColumns") or []
    names = {name: own for name, own in physical_names(metadata).items() if name not in partitions}
    known = {name.lower(): own for name, own in names.items()}
    for column in sort_by:
        if column.lower() not in known:
            is_partition = column.lower() in map(str.lower, partitions)
            why = "it is a partition column" if is_partition else "the table has no such column"
            raise UsageError(
                f"Rows can't be sorted by {column!r}, because {why}.",
                hint=f"choose one of {', '.join(names)}.",
            )
    return tuple(known[column.lower()] for column in sort_by)


def ordered_add(old: Add, one: FileOutcome) -> Add:
    """Return the `add` of an ordered file, with this project's tag and never Microsoft's."""
    kept = {key: old[key] for key in ("partitionValues", "clusteringProvider") if key in old}
    tags = {k: v for k, v in (old.get("tags") or {}).items() if k != MICROSOFT_TAG}
    tags[OPEN_TAG] = json.dumps({"order": one.order, "columns": one.columns})
    # Retention depends on the rows' age, which ordering them does not change.
    add = kept | {"path": one.new_path, "size": one.new_size, "tags": tags}
    add["modificationTime"] = old["modificationTime"]
    return add if one.stats is None else add | {"stats": one.stats}


def _outcome(text: str) -> FileOutcome:
    found = json.loads(text)
    found["columns"] = tuple(found["columns"])
    found["tried"] = tuple(map(tuple, found["tried"]))
    return FileOutcome(**found)


@dataclass(frozen=True)
class FileOutcome:
    """The outcome for one file.

    Attributes:
        path: the old file, as in the log.
        size: its bytes.
        new_size: the bytes of the new file, or of the old one if it is not replaced.
        rows: the number of rows.
        order: the chosen order.
        columns: the columns it sorts by.
        new_path: the new file, as in the log; empty without one.
        stats: the new file's statistics.
        reason: why the file is not replaced; empty if it is.
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


def order_file(stores: Storages, task: Task) -> FileOutcome:
    """Order one file; it is replaced only by a smaller one, or for its row groups."""
    add = task.add
    stays = FileOutcome(add["path"], add["size"], add["size"])
    try:
        rows, keys, shape = read_rows(stores, task)
        hidden = [name for name in (task.row_id, task.commit_version) if name]
        prefix = [name for name in task.prefix if name in rows.column_names]
        put = partial(
            encode,
            row_id=task.row_id,
            integers=stores_integers(shape),
            row_group_rows=task.row_group_rows,
        )
        order, tried = choose_order(
            rows,
            lambda some: len(put(some, {}, level=SCORING_LEVEL)),
            prefix=prefix,
            fixed=hidden,
        )
        keys[OPEN_KEY] = json.dumps({"order": order.kind, "columns": order.columns})
        moved = rows.take(sort_permutation(rows, order.columns))
        data = put(moved, keys)
        check_shape(data, shape, hidden)
    except Unsuitable as reason:
        return replace(stays, reason=str(reason))
    except (pa.ArrowException, NotImplementedError) as error:
        return replace(stays, reason=f"pyarrow can't write it: {error}")
    outcome = replace(
        stays,
        rows=rows.num_rows,
        order=order.kind,
        columns=order.columns,
        tried=tuple((one.kind, one.size) for one in tried),
    )
    if len(data) >= add["size"] and not task.row_group_rows:
        return replace(outcome, reason=f"no smaller in any order: {len(data):,} bytes")
    new_path = _new_path(add["path"])
    if task.write:
        storage, place = stores.place(unquote(new_path))
        with storage.open_writer(place) as sink:
            sink.write(data)
    stats = new_stats(add, rows)
    return replace(outcome, new_size=len(data), new_path=new_path, stats=stats)


def _new_path(path: str) -> str:
    """Return a path in the old file's folder.

    A clone's file is written to the clone's own folder.
    """
    folder = "" if ":" in path or path.startswith("/") else path.rpartition("/")[0]
    name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    return f"{folder}/{name}" if folder else name
