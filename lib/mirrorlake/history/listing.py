"""What lies in a table's folder, listed and measured by Spark's workers, a folder a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.files import hadoop_path
from mirrorlake.delta.snapshot import Snapshot
from mirrorlake.storage import Storage

LISTED = "path string, length bigint, modificationTime bigint"
MEASURED = "row_groups bigint, found boolean"
_SHOWN = ("_delta_index", "_change_data")
_BATCH = 50_000
_FEW, _TASKS = 8, 64


def list_files(
    spark: SparkSession, storage: Storage, table_path: str, snapshot: Snapshot
) -> DataFrame:
    """All files that VACUUM looks at: data, deletion vectors, change data, what was left behind.

    Args:
        spark: the session; its workers see the lake as this process does.
        storage: the lake's files.
        table_path: the table's folder.
        snapshot: the table, for its partition columns.

    Returns:
        `path`, as Hadoop prints it, `length`, `modificationTime` in milliseconds.
    """
    keys = tuple(f"{name}=" for name in snapshot.metadata.get("partitionColumns") or ())
    top = [name for name in storage.list(table_path).folders if not is_hidden(name, keys)]
    folders = [("", False)] + [(name, True) for name in top]
    work = spark.createDataFrame(folders, "folder string, deep boolean")
    if len(folders) > _FEW:
        work = work.repartition(min(len(folders), _TASKS))
    base = hadoop_path(storage, table_path)
    job = partial(_list, root=storage.root, table_path=table_path, base=base, keys=keys)
    return work.mapInArrow(_as_map(job), LISTED)


def measure_files(spark: SparkSession, storage: Storage, files: DataFrame) -> DataFrame:
    """Looks at data files and their deletion vectors, each where it lies.

    Args:
        spark: the session.
        storage: the lake's files; others are taken on trust.
        files: `path`, `vector`, `rows`, `masked` and more, paths as Hadoop prints them.

    Returns:
        The same columns, `rows` by the footer, then `row_groups` (NULL where no footer was read)
        and `found`: whether the file and its vector are there.
    """
    schema = f"{_ddl(files)}, {MEASURED}"
    job = partial(_measure, root=storage.root, base=hadoop_path(storage, "") + "/")
    return files.mapInArrow(_as_map(job), schema)


def missing_files(spark: SparkSession, storage: Storage, files: DataFrame) -> DataFrame:
    """Which of these files are gone: `path` of each file or vector that is.

    Args:
        spark: the session.
        storage: the lake's files; others are taken on trust.
        files: `path` and `vector`, as Hadoop prints them.
    """
    job = partial(_missing, root=storage.root, base=hadoop_path(storage, "") + "/")
    return files.select("path", "vector").mapInArrow(_as_map(job), "path string")


def is_hidden(name: str, keys: tuple[str, ...] = ()) -> bool:
    """Whether VACUUM passes a file or folder by; `keys` are partition columns with `=`."""
    return name.startswith(("_", ".")) and not name.startswith((*_SHOWN, *keys))


Batches = Iterable["pa.RecordBatch"]


def _as_map(job: Callable[[Batches], Iterator[pa.RecordBatch]]) -> Callable[[Batches], Batches]:
    # mapInArrow asks how many arguments a function has, and takes no partial.
    return lambda batches: job(batches)


def _list(
    batches: Batches, *, root: str, table_path: str, base: str, keys: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    storage = Storage(root)
    rows: list[tuple[str, int, int]] = []
    for batch in batches:
        for row in batch.to_pylist():
            todo = [row["folder"]]
            while todo:
                folder = todo.pop()
                listing = storage.list(f"{table_path}/{folder}" if folder else table_path)
                inside = f"{folder}/" if folder else ""
                for entry in listing.files:
                    if not is_hidden(entry.name, keys):
                        when = int(entry.modified.timestamp() * 1000)
                        rows.append((f"{base}/{inside}{entry.name}", entry.size, when))
                if row["deep"]:
                    inner = [name for name in listing.folders if not is_hidden(name, keys)]
                    todo += [f"{inside}{name}" for name in inner]
                if len(rows) >= _BATCH:
                    yield _batch(rows)
                    rows = []
    yield _batch(rows)


def _measure(batches: Batches, *, root: str, base: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    storage = Storage(root)
    for batch in batches:
        groups: list[int | None] = []
        rows: list[int | None] = []
        found: list[bool] = []
        for file in batch.to_pylist():
            number, records, there = None, file["rows"], _is_there(storage, base, file["vector"])
            if file["path"].startswith(base):
                try:
                    with storage.open(file["path"][len(base) :]) as source:
                        footer = pq.read_metadata(source)
                    number, records = footer.num_row_groups, footer.num_rows - file["masked"]
                except FileNotFoundError:
                    there = False
            groups.append(number)
            rows.append(records)
            found.append(there)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {
            "rows": pa.array(rows, pa.int64()),
            "row_groups": pa.array(groups, pa.int64()),
            "found": pa.array(found, pa.bool_()),
        }
        yield pa.RecordBatch.from_pydict(columns)


def _missing(batches: Batches, *, root: str, base: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    storage = Storage(root)
    for batch in batches:
        names = {name for column in batch.columns for name in column.to_pylist()}
        gone = sorted(name for name in names if not _is_there(storage, base, name))
        yield pa.RecordBatch.from_arrays([pa.array(gone, pa.string())], names=["path"])


def _is_there(storage: Storage, base: str, path: str | None) -> bool:
    return path is None or not path.startswith(base) or storage.exists(path[len(base) :])


def _ddl(frame: DataFrame) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)


def _batch(rows: list[tuple[str, int, int]]) -> pa.RecordBatch:
    import pyarrow as pa

    names = ["path", "length", "modificationTime"]
    kinds = [pa.string(), pa.int64(), pa.int64()]
    values = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(value, kind) for value, kind in zip(values, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)
