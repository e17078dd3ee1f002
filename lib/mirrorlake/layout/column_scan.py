"""What only the rows show: how many values a column has, and in how many runs they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.layout.footers import Leaf, Storages, parallelism
from mirrorlake.spark.sql import quote
from mirrorlake.storage import Storage

_UNCOUNTABLE = ("variant", "void")
_RUNS = pa.schema([("physical_path", pa.string()), ("runs", pa.int64())])


def scan_columns(
    query: Callable[[str], DataFrame],
    facts: DataFrame,
    storage: Storage,
    table_path: str,
    known: list[Leaf],
    *,
    exact: bool,
) -> DataFrame:
    """`physical_path`, `cardinality` and `runs` of every column outside lists and maps.

    Args:
        query: the rows of the version that is analysed, with the given select list.
        facts: the version's files.
        storage: the lake's files.
        table_path: the table's folder.
        known: the schema's leaves.
        exact: count distinct values exactly.
    """
    wanted = [leaf for leaf in known if leaf.parts and leaf.kind not in _UNCOUNTABLE]
    return count_values(query, wanted, exact=exact).join(
        count_runs(facts, storage, table_path, wanted), "physical_path", "left"
    )


def count_values(
    query: Callable[[str], DataFrame], wanted: list[Leaf], *, exact: bool
) -> DataFrame:
    """Distinct values by column, NULL not counted."""
    count = "count(DISTINCT {})" if exact else "approx_count_distinct({})"
    paths = [".".join(map(quote, leaf.parts)) for leaf in wanted]
    counts = ", ".join(f"{count.format(path)} AS c{i}" for i, path in enumerate(paths))
    pairs = [
        F.struct(F.lit(leaf.physical).alias("physical_path"), F.col(f"c{i}").alias("cardinality"))
        for i, leaf in enumerate(wanted)
    ]
    return query(counts).select(F.explode(F.array(*pairs)).alias("p")).select("p.*")


def count_runs(
    facts: DataFrame, storage: Storage, table_path: str, wanted: list[Leaf]
) -> DataFrame:
    """Runs of equal values by column, as they lie in the files, summed over the files."""
    root = storage.root
    depths = {leaf.physical: len(leaf.parts) - 1 for leaf in wanted}

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stores = Storages(root, table_path)
        for batch in batches:
            for path in batch.column("path").to_pylist():
                found = _file_runs(*stores.place(path), depths)
                yield pa.RecordBatch.from_pylist(
                    [{"physical_path": name, "runs": runs} for name, runs in found.items()], _RUNS
                )

    files = facts.where("footer.problem IS NULL").select("path")
    spread = files.repartition(parallelism(facts.sparkSession))
    runs = spread.mapInArrow(count, "physical_path string, runs long")
    return runs.groupBy("physical_path").agg(F.sum("runs").alias("runs"))


def _file_runs(storage: Storage, path: str, depths: dict[str, int]) -> dict[str, int]:
    with storage.open(path) as source, pq.ParquetFile(source) as file:
        there = {file.schema.column(i).path for i in range(len(file.schema.names))}
        wanted = {name: depth for name, depth in depths.items() if name in there}
        return {name: _column_runs(file, name, depth) for name, depth in wanted.items()}


def _column_runs(file: pq.ParquetFile, name: str, depth: int) -> int:
    runs, last = 0, None
    for batch in file.iter_batches(columns=[name]):
        if not batch.num_rows:
            continue
        values = reduce(_inner, range(depth), batch.column(0))
        ends = pc.run_end_encode(values)
        first, runs_here = ends.values[0], len(ends.values)
        # A run goes on over the seam of two batches.
        runs += runs_here - (last is not None and last.equals(first))
        last = ends.values[runs_here - 1]
    return runs


def _inner(values: Any, _depth: int) -> Any:
    """The one field that was asked for of a struct; NULL where the struct is."""
    return pc.struct_field(values, 0)
