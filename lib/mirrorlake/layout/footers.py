"""Parquet footers of many files at once, read by the executors: the end of each file and no more.

One range request a file (two for a large footer), several at a time in every task. What is read
here is what a footer proves; what the log says about a file travels along untouched.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa

from mirrorlake.layout.footer_facts import footer_facts
from mirrorlake.layout.log_files import parallelism
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK = (
    "struct<id: int, name: string, physical: string, logical: string, codec: string,"
    " compressed: bigint, uncompressed: bigint, has_dict: boolean, dict_offset: bigint,"
    " dict_bytes: bigint, value_count: bigint, nulls: bigint, encodings: string,"
    " overflow: boolean, minimum: string, maximum: string, low: binary, high: binary>"
)
GROUP = (
    "struct<id: int, rows: bigint, compressed: bigint, uncompressed: bigint,"
    f" chunks: array<{CHUNK}>>"
)
FOOTER = (
    "struct<rows: bigint, created_by: string, row_groups: int, vorder: string,"
    f" vorder_level: string, open_vorder: string, problem: string, groups: array<{GROUP}>>"
)
_TAIL = 64 * 1024
_AT_ONCE = 16
_READ = 256
_MOST_BYTES = 16 * 2**20
_MAGIC = b"PAR1"
_URI = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


def read_footers(files: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """Adds a column `footer` to the files' rows.

    Args:
        files: has the columns `path`, as the log has it but decoded, `size`, in bytes, and `stats`,
            as the log has them.
        storage: the lake's files.
        table_path: the table's folder, which the paths are relative to.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType, _parse_datatype_string

    spark = files.sparkSession
    footer = StructField("footer", _parse_datatype_string(FOOTER))
    schema = StructType([*files.schema.fields, footer])
    out = to_arrow_schema(schema)
    root = storage.root

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stores = Storages(root, table_path)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            at_once = map if stores.local else pool.map
            for batch in batches:
                for part, tails in _in_parts(batch, stores, at_once):
                    found = footer_facts(tails, part.column("stats").to_pylist())
                    columns = [*part.columns, found.cast(out.field("footer").type)]
                    yield pa.RecordBatch.from_arrays(columns, schema=out)

    return files.repartition(parallelism(spark)).mapInArrow(read, schema)


def _in_parts(
    batch: pa.RecordBatch, stores: Storages, at_once: Callable[..., Iterable[bytes | str]]
) -> Iterator[tuple[pa.RecordBatch, list[bytes | str]]]:
    """A batch's files with their footers, as many at a time as may be in memory together."""
    paths, sizes = (batch.column(name).to_pylist() for name in ("path", "size"))
    tails: list[bytes | str] = []
    done = 0
    for start in range(0, batch.num_rows, _READ):
        tails += at_once(
            stores.try_tail, paths[start : start + _READ], sizes[start : start + _READ]
        )
        if sum(map(len, tails)) > _MOST_BYTES or start + _READ >= batch.num_rows:
            yield batch.slice(done, len(tails)), tails
            done, tails = done + len(tails), []


class Storages:
    """Where a table's files lie: mostly in its own folder, a clone's in another's.

    Args:
        root: the lake's root.
        table_path: the table's folder, relative to it.
    """

    def __init__(self, root: str, table_path: str) -> None:
        self._own = Storage(root)
        self._table_path = table_path
        self._others: dict[str, Storage] = {}

    @property
    def local(self) -> bool:
        """Whether the table's folder is on a local disk, where threads cost more than they save."""
        return self._own.local is not None

    def try_tail(self, path: str, size: int) -> bytes | str:
        """A file's footer, or what is wrong with the file: one must not hide the others."""
        try:
            return read_tail(*self.place(path), size)
        except FileNotFoundError:
            return "missing"
        except (ValueError, OSError) as error:
            return f"unreadable: {error}"

    def place(self, path: str) -> tuple[Storage, str]:
        """The storage that has a file, and the file's path in it."""
        if not _URI.match(path) and not path.startswith("/"):
            return self._own, f"{self._table_path}/{path}"
        if path.lower().startswith("file:"):
            path = "/" + path[5:].lstrip("/")
        if path.startswith("/"):
            folder, name = "/", path[1:]
        else:
            parts = urlsplit(path)
            folder, name = f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")
        if folder not in self._others:
            self._others[folder] = Storage(folder)
        return self._others[folder], name


def read_tail(storage: Storage, path: str, size: int) -> bytes:
    """A Parquet file's serialised footer with the 8 bytes behind it.

    Raises:
        ValueError: the file does not end as a Parquet file does.
    """
    tail = storage.read_range(path, max(0, size - _TAIL), size)
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("it does not end as a Parquet file does")
    length = struct.unpack("<I", tail[-8:-4])[0] + 8
    if length > size:
        raise ValueError("its footer is longer than the file")
    if length > len(tail):
        tail = storage.read_range(path, size - length, size)
    return tail[-length:]
