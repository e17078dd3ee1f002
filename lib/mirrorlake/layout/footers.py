"""Parquet footers of many files at once, read by the executors: the end of each file and no more.

One range request a file (two for a large footer), several at a time in every task. What is read
here is what a footer proves; what the log says about a file travels along untouched.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from mirrorlake.delta.actions import URI, Places
from mirrorlake.delta.snapshot import physical_name
from mirrorlake.layout.footer_facts import chunk_facts, footer_facts
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.storage import Storage

_TAIL = 64 * 1024
_AT_ONCE = 16
_READ = 256
_ROWS = 10_000
_MOST_BYTES = 16 * 2**20
_MAGIC = b"PAR1"


def parallelism(spark: SparkSession) -> int:
    """How many tasks a job over files has: a Connect session can't ask for the cores."""
    return 2 * int(spark.conf.get("spark.sql.shuffle.partitions") or 2)


def read_footers(files: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """Adds a column `footer` to the files' rows: what it says of the file and its row groups.

    Args:
        files: has the columns `path`, as the log has it but decoded, and `size`, in bytes.
        storage: the lake's files.
        table_path: the table's folder, which the paths are relative to.
    """
    footer = StructField("footer", from_arrow_type(footer_facts([]).type))
    schema = StructType([*files.schema.fields, footer])
    out = to_arrow_schema(schema)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, tails in _in_parts(batches, Storages(storage, table_path)):
            found = footer_facts(tails).cast(out.field("footer").type)
            yield pa.RecordBatch.from_arrays([*part.columns, found], schema=out)

    return map_in_arrow(files.repartition(parallelism(files.sparkSession)), read, schema)


def read_chunks(files: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """One row a column chunk: `path`, `group` and its `rows`, and `c` with what the footer says.

    Args:
        files: as for `read_footers`, with `stats` as the log has them; each footer is read anew,
            for most analyses never ask, and to keep all chunks of large tables would cost more.
        storage: the lake's files.
        table_path: the table's folder.
    """
    out = chunk_facts([], []).schema.set(0, pa.field("path", pa.string()))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, tails in _in_parts(batches, Storages(storage, table_path)):
            found = chunk_facts(tails, part.column("stats").to_pylist())
            paths = part.column("path").take(found["file"].combine_chunks())
            yield from found.set_column(0, "path", paths).cast(out).to_batches(_ROWS)

    wanted = files.select("path", "size", "stats")
    spread = wanted.repartition(parallelism(files.sparkSession))
    return map_in_arrow(spread, read, from_arrow_schema(out))


def _in_parts(
    batches: Iterable[pa.RecordBatch], stores: Storages
) -> Iterator[tuple[pa.RecordBatch, list[bytes | str]]]:
    """Files with their footers, as many at a time as may be in memory together."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for batch in batches:
            paths, sizes = (batch.column(name).to_pylist() for name in ("path", "size"))
            at_once = map if stores.all_local(paths) else pool.map
            tails: list[bytes | str] = []
            done = 0
            for start in range(0, batch.num_rows, _READ):
                end = start + _READ
                tails += at_once(stores.try_tail, paths[start:end], sizes[start:end])
                if sum(map(len, tails)) > _MOST_BYTES or end >= batch.num_rows:
                    yield batch.slice(done, len(tails)), tails
                    done, tails = done + len(tails), []


class Storages(Places):
    """Where a table's files lie: mostly in its own folder, a clone's in another's.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to its root.
    """

    def all_local(self, paths: Sequence[str]) -> bool:
        """Whether files lie on local disks, where threads cost more than they save."""
        return self._own.local is not None and not any(
            match[0].lower() != "file:/" for match in map(URI.match, paths) if match
        )

    def try_tail(self, path: str, size: int) -> bytes | str:
        """A file's footer, or what is wrong with the file: one must not hide the others."""
        try:
            return read_tail(*self.place(path), size)
        except FileNotFoundError:
            return "missing"
        except (ValueError, OSError) as error:
            return f"unreadable: {error}"


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


@dataclass(frozen=True)
class Leaf:
    """One leaf of a schema.

    Attributes:
        physical: the path in the Parquet schema, joined by dots.
        name: the same with the names of the table.
        kind: Spark's type.
        parts: the way to it through structs, by the table's names; empty within lists and maps.
    """

    physical: str
    name: str
    kind: str
    parts: tuple[str, ...]


def leaves(metadata: dict[str, Any]) -> list[Leaf]:
    """The leaves of a Delta table's schema, in its order.

    Args:
        metadata: the log's `metaData`.
    """
    schema = json.loads(metadata["schemaString"])
    return list(_walk(schema, [], [], nested=False))


def _walk(kind: Any, physical: list[str], names: list[str], *, nested: bool) -> Iterator[Leaf]:
    if isinstance(kind, str):
        parts = () if nested else tuple(names)
        yield Leaf(".".join(physical), ".".join(names), kind, parts)
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            inside = physical_name(field)
            yield from _walk(
                field["type"], [*physical, inside], [*names, field["name"]], nested=nested
            )
    elif kind["type"] == "array":
        steps = ["list", "element"]
        yield from _walk(kind["elementType"], physical + steps, names + steps, nested=True)
    elif kind["type"] == "map":
        for side in ("key", "value"):
            steps = ["key_value", side]
            yield from _walk(kind[f"{side}Type"], physical + steps, names + steps, nested=True)
