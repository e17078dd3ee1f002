"""Files that lie in a table's folder and that a version does not name: VACUUM's, or older ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from mirrorlake.storage import Listing, Storage

_AT_ONCE = 16
_FILES = pa.schema(
    [("path", pa.string()), ("Size", pa.int64()), ("Modified", pa.timestamp("us", "UTC"))]
)
_DDL = "path string, Size long, Modified timestamp"


def stale_files(facts: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """Parquet files in the table's folder that the version does not name.

    An executor lists them, several folders at a time. Hidden folders are left out, for what lies in
    them is not the table's rows.

    Args:
        facts: the version's files, with their `path`.
        storage: the lake's files.
        table_path: the table's folder.
    """
    root = storage.root

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = Storage(root)
        for _ in batches:
            for rows in _parquet_files(files, table_path):
                yield pa.RecordBatch.from_pylist(rows, _FILES)

    files = facts.sparkSession.range(0, 1, 1, 1).mapInArrow(look, _DDL)
    left = files.join(facts.select("path"), "path", "left_anti")
    return left.withColumnRenamed("path", "Parquet File").orderBy("Parquet File")


def _parquet_files(storage: Storage, table_path: str) -> Iterator[list[dict[str, Any]]]:
    """A folder's files at a time, by their paths within the table."""

    def listed(folder: str) -> tuple[str, Listing]:
        return folder, storage.list(f"{table_path}/{folder}".rstrip("/"))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        folders = [""]
        while folders:
            below: list[str] = []
            for folder, listing in pool.map(listed, folders):
                start = f"{folder}/" if folder else ""
                below += [start + name for name in listing.folders if not _is_hidden(name)]
                yield [
                    {"path": start + file.name, "Size": file.size, "Modified": file.modified}
                    for file in listing.files
                    if file.name.endswith(".parquet") and not _is_hidden(file.name)
                ]
            folders = below


def _is_hidden(name: str) -> bool:
    """As Spark has it: a partition column may start with an underscore."""
    return name.startswith((".", "_")) and "=" not in name
