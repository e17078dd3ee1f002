"""Parquet footers of many files at once, read by the executors: the end of each file and no more.

One range request a file (two for a large footer), several at a time in every task. What is read
here is what a footer proves; what the log says about a file travels along untouched.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.layout.log_files import parallelism
from mirrorlake.layout.sort_keys import sort_key
from mirrorlake.layout.thrift import encoding_stats
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MICROSOFT_ENABLED = "com.microsoft.parquet.vorder.enabled"
MICROSOFT_LEVEL = "com.microsoft.parquet.vorder.level"
OPEN_KEY = "org.mirrorlake.vorder"
"""This project's own footer key; its value is the sort key that was chosen, as JSON."""

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
_MAGIC = b"PAR1"
_URI = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


def read_footers(files: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """Adds a column `footer` to the files' rows.

    Args:
        files: has the columns `path`, as the log has it but decoded, and `size`, in bytes.
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
            for batch in batches:
                for start in range(0, batch.num_rows, 256):
                    rows = batch.slice(start, 256).to_pylist()
                    footers = pool.map(lambda row: _try_footer(stores, row), rows)
                    for row, found in zip(rows, footers, strict=True):
                        row["footer"] = found
                    yield pa.RecordBatch.from_pylist(rows, out)

    return files.repartition(parallelism(spark)).mapInArrow(read, schema)


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


def _try_footer(stores: Storages, row: dict[str, Any]) -> dict[str, Any]:
    """A footer's facts, or what is wrong with the file: one bad file must not hide the others."""
    try:
        storage, path = stores.place(row["path"])
        facts = footer_facts(read_tail(storage, path, row["size"]))
    except FileNotFoundError:
        return {"problem": "missing"}
    except (ValueError, OSError, pa.ArrowException) as error:
        return {"problem": f"unreadable: {error}"}
    if row.get("stats"):
        _fill_bounds(facts["groups"][:1], json.loads(row["stats"]))
    return facts


def _fill_bounds(groups: list[dict[str, Any]], stats: dict[str, Any]) -> None:
    """Takes the log's bounds where the footer has none, as for INT96 moments.

    They are texts that sort as the moments do, and they hold for the file, not for a row group.
    """
    for chunk in (chunk for group in groups for chunk in group["chunks"] if chunk["low"] is None):
        for side, name in (("low", "minValues"), ("high", "maxValues")):
            value: Any = stats.get(name)
            for part in chunk["name"].split("."):
                value = value.get(part) if isinstance(value, dict) else None
            chunk[side] = value.encode() if isinstance(value, str) else None


def footer_facts(tail: bytes) -> dict[str, Any]:
    """What `FOOTER` names, from a footer's bytes."""
    metadata = pq.read_metadata(pa.BufferReader(tail))
    keys = metadata.metadata or {}
    groups = [_group(metadata.row_group(i), i) for i in range(metadata.num_row_groups)]
    _prove_overflow(groups, tail)
    return {
        "rows": metadata.num_rows,
        "created_by": metadata.created_by,
        "row_groups": metadata.num_row_groups,
        "vorder": _text(keys.get(MICROSOFT_ENABLED.encode())),
        "vorder_level": _text(keys.get(MICROSOFT_LEVEL.encode())),
        "open_vorder": _text(keys.get(OPEN_KEY.encode())),
        "groups": groups,
    }


def _group(group: Any, index: int) -> dict[str, Any]:
    chunks = [_chunk(group.column(i), i) for i in range(group.num_columns)]
    return {
        "id": index,
        "rows": group.num_rows,
        "compressed": sum(chunk["compressed"] for chunk in chunks),
        "uncompressed": sum(chunk["uncompressed"] for chunk in chunks),
        "chunks": chunks,
    }


def _chunk(chunk: Any, index: int) -> dict[str, Any]:
    statistics = chunk.statistics
    low, high = _bounds(statistics)
    has_dict = chunk.has_dictionary_page
    return {
        "id": index,
        "name": chunk.path_in_schema,
        "physical": chunk.physical_type,
        "logical": str(statistics.logical_type) if statistics is not None else None,
        "codec": chunk.compression,
        "compressed": chunk.total_compressed_size,
        "uncompressed": chunk.total_uncompressed_size,
        "has_dict": has_dict,
        "dict_offset": chunk.dictionary_page_offset if has_dict else None,
        "dict_bytes": chunk.data_page_offset - chunk.dictionary_page_offset if has_dict else None,
        "value_count": chunk.num_values,
        "nulls": statistics.null_count if statistics is not None else None,
        "encodings": ", ".join(sorted(chunk.encodings)),
        "overflow": None,
        "minimum": None if low is None else str(low),
        "maximum": None if high is None else str(high),
        "low": sort_key(low),
        "high": sort_key(high),
    }


def _bounds(statistics: Any) -> tuple[Any, Any]:
    if statistics is None or not statistics.has_min_max:
        return None, None
    try:
        return statistics.min, statistics.max
    except (ValueError, OverflowError, pa.ArrowException):
        return None, None  # a moment that Python has no word for


def _prove_overflow(groups: list[dict[str, Any]], tail: bytes) -> None:
    """Sets `overflow` where there is a dictionary: whether pages were written plain all the same.

    Without a plain encoding there was no fallback; with one the encoding statistics decide, for a
    dictionary's own page may be plain too.
    """
    with_dict = [chunk for group in groups for chunk in group["chunks"] if chunk["has_dict"]]
    for chunk in with_dict:
        chunk["overflow"] = False
    if not any("PLAIN" in chunk["encodings"].split(", ") for chunk in with_dict):
        return
    for group, pages in zip(groups, encoding_stats(tail), strict=True):
        for chunk, counted in zip(group["chunks"], pages, strict=True):
            if chunk["has_dict"]:
                chunk["overflow"] = None if counted is None else counted[1] > 0


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
