"""What lies in a table's folder, listed and measured by Spark's workers, a folder a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from mirrorlake.delta.files import hadoop_path
from mirrorlake.delta.table import Table
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.storage import Storage

LISTED = "path string, length bigint, modificationTime bigint"
MEASURED = "row_groups bigint, found boolean"
_LISTED = pa.schema({"path": pa.string(), "length": pa.int64(), "modificationTime": pa.int64()})
_MEASURED = pa.schema({"rows": pa.int64(), "row_groups": pa.int64(), "found": pa.bool_()})
Batches = Iterable["pa.RecordBatch"]
_SHOWN = ("_delta_index", "_change_data")
_BATCH = 50_000
_FEW, _TASKS = 8, 64


def list_files(table: Table) -> DataFrame:
    """All files that VACUUM looks at: data, deletion vectors, change data, what was left behind.

    Args:
        table: the table; the workers of its session see the lake as this process does.

    Returns:
        `path`, as Hadoop prints it, `length`, `modificationTime` in milliseconds.
    """
    keys = tuple(f"{name}=" for name in table.snapshot().partition_columns)
    top = table.storage.list(table.name.table_path).folders
    folders = [("", False)] + [(name, True) for name in top if not is_hidden(name, keys)]
    work = table.spark.createDataFrame(folders, "folder string, deep boolean")
    if len(folders) > _FEW:
        work = work.repartition(min(len(folders), _TASKS))
    storage, table_path = table.storage, table.name.table_path
    base = hadoop_path(storage, table_path)

    def walk(folder: str, deep: bool) -> Iterator[dict[str, Any]]:
        listing = storage.list(f"{table_path}/{folder}".rstrip("/"))
        inside = f"{folder}/" if folder else ""
        for entry in listing.files:
            if not is_hidden(entry.name, keys):
                when = int(entry.modified.timestamp() * 1000)
                values = (f"{base}/{inside}{entry.name}", entry.size, when)
                yield dict(zip(_LISTED.names, values, strict=True))
        for name in listing.folders if deep else ():
            if not is_hidden(name, keys):
                yield from walk(f"{inside}{name}", deep)

    def list_folders(batches: Batches) -> Batches:
        rows = (row for batch in batches for row in batch.to_pylist())
        found = (file for row in rows for file in walk(row["folder"], row["deep"]))
        while some := list(islice(found, _BATCH)):
            yield pa.RecordBatch.from_pylist(some, _LISTED)

    return map_in_arrow(work, list_folders, LISTED)


def measure_files(storage: Storage, files: DataFrame) -> DataFrame:
    """Looks at data files and their deletion vectors, each where it lies.

    Args:
        storage: the lake's files; others are taken on trust.
        files: `path`, `vector`, `rows`, `masked` and more, paths as Hadoop prints them.

    Returns:
        The same columns, `rows` by the footer, then `row_groups` (NULL where no footer was read)
        and `found`: whether the file and its vector are there.
    """
    known = ", ".join(f"{name} {kind}" for name, kind in files.dtypes)
    base = hadoop_path(storage, "") + "/"

    def measure(batches: Batches) -> Batches:
        for batch in batches:
            facts = []
            for file in batch.to_pylist():
                groups, rows, found = None, file["rows"], _is_there(storage, base, file["vector"])
                if file["path"].startswith(base):
                    try:
                        with storage.open(file["path"][len(base) :]) as source:
                            footer = pq.read_metadata(source)
                        groups, rows = footer.num_row_groups, footer.num_rows - file["masked"]
                    except FileNotFoundError:
                        found = False
                facts.append({"rows": rows, "row_groups": groups, "found": found})
            measured = pa.RecordBatch.from_pylist(facts, _MEASURED)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns |= dict(zip(_MEASURED.names, measured.columns, strict=True))
            yield pa.RecordBatch.from_pydict(columns)

    return map_in_arrow(files, measure, f"{known}, {MEASURED}")


def missing_files(storage: Storage, files: DataFrame) -> DataFrame:
    """Which of these files are gone: `path` of each file or vector that is.

    Args:
        storage: the lake's files; others are taken on trust.
        files: `path` and `vector`, as Hadoop prints them.
    """
    base = hadoop_path(storage, "") + "/"

    def missing(batches: Batches) -> Batches:
        for batch in batches:
            names = {name for column in batch.columns for name in column.to_pylist()}
            gone = sorted(name for name in names if not _is_there(storage, base, name))
            yield pa.RecordBatch.from_arrays([pa.array(gone, pa.string())], names=["path"])

    return map_in_arrow(files.select("path", "vector"), missing, "path string")


def is_hidden(name: str, keys: tuple[str, ...] = ()) -> bool:
    """Whether VACUUM passes a file or folder by; `keys` are partition columns with `=`."""
    return name.startswith(("_", ".")) and not name.startswith((*_SHOWN, *keys))


def _is_there(storage: Storage, base: str, path: str | None) -> bool:
    return path is None or not path.startswith(base) or storage.exists(path[len(base) :])
