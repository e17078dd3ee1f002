"""Compute the tables of an analysis with Spark: files, row groups, column chunks, columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.delta.files import total
from mirrorlake.delta.snapshot import (
    FABRIC_VORDER,
    MICROSOFT_TAG,
    OPEN_TAG,
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    Snapshot,
    physical_name,
)
from mirrorlake.delta.table import TableHandle
from mirrorlake.layout.footers import Storages
from mirrorlake.layout.guardrails import GuardrailReport, after_optimize, check_guardrails, measure
from mirrorlake.names import TableName, quote
from mirrorlake.spark.executors import map_in_arrow, parallelism
from mirrorlake.storage.files import Storage

_MIB = 2**20
_SIZES = (1, 8, 32, 128, 512, 1024)
_GROUP_ROWS = (100_000, 500_000, 1_000_000, 2_000_000, 6_000_000)
_UNCOUNTABLE = ("variant", "void")
_RUNS = pa.schema([("physical_path", pa.string()), ("runs", pa.int64())])


class Planned(Mapping[str, DataFrame]):
    """DataFrames by name, each created when it is first used.

    Planning all tables of an analysis takes Spark longer than computing one of them.

    Args:
        makers: the functions that create the DataFrames.
    """

    def __init__(self, makers: Mapping[str, Callable[[], DataFrame]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def made(self) -> Iterator[DataFrame]:
        """Return the DataFrames that were created."""
        return iter(self._made.values())


@dataclass(frozen=True)
class Measured:
    """The measured facts about one version of a table.

    Attributes:
        table: the table.
        snapshot: the version: its number, schema, properties and protocol.
        summary: the fields of the summary.
        tables: Summary, Parquet Files, Row Groups, Column Chunks, Columns, File Sizes, Row Group
            Sizes, Partitions, Stale Files, Change History; each is planned on first use.
        facts: one row per file, with its footer.
        kept: intermediate DataFrames from which the tables are computed.
    """

    table: TableHandle
    snapshot: Snapshot = field(repr=False)
    summary: Mapping[str, Any]
    tables: Planned
    facts: DataFrame = field(repr=False)
    kept: Planned = field(repr=False)

    def guardrails(self, sku: str | None = None) -> GuardrailReport:
        """Compare the table alone, as a whole model, with the guardrails of a SKU.

        Args:
            sku: the SKU, such as F64; by default the smallest that fits, else the largest.

        Returns:
            One entry per guardrail.

        Raises:
            UsageError: the SKU does not exist.

        Example:
            >>> lake.table("sales").analyze().guardrails("F64")  # doctest: +SKIP
            F64: within all guardrails
        """
        now = measure([self.summary])
        return check_guardrails(now, after_optimize(self.facts, now), sku)

    @property
    def name(self) -> TableName:
        """The table's name."""
        return self.table.name

    @property
    def version(self) -> int:
        """The version of the table."""
        return self.snapshot.version

    @property
    def sql_name(self) -> str:
        """The table's name in SQL."""
        return self.table.sql_name

    @property
    def hidden_columns(self) -> dict[str, str]:
        """Descriptions of row tracking's hidden columns, by their generated names."""
        known = self.snapshot.properties
        texts = {ROW_ID_COLUMN: "(row ids)", ROW_VERSION_COLUMN: "(commit versions of rows)"}
        return {known[name]: text for name, text in texts.items() if name in known}

    def rows(self) -> DataFrame:
        """Return the rows of the analysed version."""
        return self.table.rows(self.version)

    def release(self) -> None:
        """Release the cached DataFrames; a table is computed again if it is used later."""
        for frame in (self.facts, *self.kept.made(), *self.tables.made()):
            frame.unpersist()


def parquet_files(facts: DataFrame, properties: dict[str, str]) -> DataFrame:
    """Return one row per file: rows with and without deleted ones, and each V-Order signal."""
    everything = Window.partitionBy()
    signals = _vorder_signals(properties)
    found = facts.select(
        F.col("path").alias("Parquet File"),
        _rows().alias("Row Count"),
        F.col("footer.row_groups").alias("Row Groups"),
        F.col("footer.created_by").alias("Created By"),
        F.sum(_rows()).over(everything).alias("Total Table Rows"),
        F.sum("footer.row_groups").over(everything).alias("Total Table Row Groups"),
        F.col("size").alias("File Size"),
        _physical_rows().alias("Rows In File"),
        F.col("deleted").alias("Deleted Rows"),
        F.col("partition").alias("Partition"),
        F.col("footer.codec").alias("Codec"),
        *[column.alias(name) for name, column in signals.items()],
        F.col("footer.problem").alias("Problem"),
    )  # fmt: skip
    return found.orderBy("Parquet File")


def row_groups(facts: DataFrame) -> DataFrame:
    """Return one row per row group."""
    everything = Window.partitionBy()
    groups = facts.select("path", F.explode("footer.groups").alias("g"))
    all_rows = F.sum("g.rows").over(everything)
    return groups.select(
        F.col("path").alias("Parquet File"),
        (F.col("g.id") + 1).alias("Row Group ID"),
        F.col("g.rows").alias("Row Count"),
        F.col("g.compressed").alias("Compressed Size"),
        F.col("g.uncompressed").alias("Uncompressed Size"),
        F.try_divide("g.compressed", "g.uncompressed").alias("Compression Ratio"),
        all_rows.alias("Total Table Rows"),
        (F.try_divide("g.rows", all_rows) * 100).alias("Ratio Of Total Table Rows"),
        F.count("*").over(everything).alias("Total Table Row Groups"),
        F.try_divide("g.compressed", "g.rows").alias("BytesPerRow"),
    ).orderBy("Parquet File", "Row Group ID")


def column_chunks(chunks: DataFrame, known: list[Leaf]) -> DataFrame:
    """Return one row per column chunk."""
    named = _named(chunks, known)
    bounds = "coalesce(concat('min ', c.minimum, ', max ', c.maximum, ', '), '')"
    statistics = F.expr(f"concat({bounds}, 'nulls ', c.nulls)")  # NULL where none are counted
    return named.select(
        F.col("path").alias("Parquet File"),
        F.col("c.id").alias("Column ID"),
        F.col("name").alias("Column Name"),
        F.col("c.physical").alias("Column Type"),
        F.col("c.compressed").alias("Compressed Size"),
        F.col("c.uncompressed").alias("Uncompressed Size"),
        F.col("c.has_dict").alias("Has Dict"),
        F.col("c.dict_offset").alias("Dict Offset"),
        F.col("c.value_count").alias("Value Count"),
        F.col("c.encodings").alias("Encodings"),
        statistics.alias("Statistics"),
        F.coalesce("kind", "c.logical", "c.physical").alias("Primitive Type"),
        (F.col("group") + 1).alias("Row Group ID"),
        F.col("c.codec").alias("Codec"),
        F.col("c.dict_bytes").alias("DictPageCompressedSize"),
        F.col("c.overflow").alias("DictionaryOverflow"),
        F.try_divide("c.compressed", "rows").alias("BytesPerRow"),
    ).orderBy("Parquet File", "Row Group ID", "Column ID")


def columns(
    facts: DataFrame, chunks: DataFrame, known: list[Leaf], scanned: DataFrame
) -> DataFrame:
    """Return one row per column: its size, its number of values, and the overlap of the files."""
    everything = Window.partitionBy()
    # Row groups count deleted rows too; only the file's rows are without them.
    rows = facts.agg(total(_rows()).alias("table_rows"))
    grouped = (
        _named(chunks, known)
        .groupBy("physical_path", "name", "c.physical")
        .agg(
            F.sum("c.compressed").alias("compressed"),
            F.sum("c.uncompressed").alias("uncompressed"),
            F.sum("c.nulls").alias("nulls"),
            F.sum("rows").alias("written"),
            F.sum("c.dict_bytes").alias("dict_bytes"),
            F.count_if("c.overflow").alias("overflowed"),
            F.count_if(~F.col("c.has_dict")).alias("plain"),
            F.count("*").alias("chunks"),
            F.first("kind").alias("kind"),
        )
        .crossJoin(rows)
        .join(_overlap(chunks), "physical_path", "left")
    )
    # An estimate must not exceed the rows. `least` alone would replace a NULL by the rows.
    bounded = F.when(F.col("cardinality") >= 0, F.least("cardinality", "table_rows"))
    joined = grouped.join(scanned, "physical_path", "left").withColumn("cardinality", bounded)
    size = F.sum("compressed").over(everything)
    return joined.select(
        F.col("name").alias("Column Name"),
        F.col("physical").alias("Column Type"),
        F.col("compressed").alias("Compressed Size"),
        F.col("uncompressed").alias("Uncompressed Size"),
        F.col("table_rows").alias("Total Table Rows"),
        size.alias("Table Size"),
        F.col("cardinality").alias("Cardinality"),
        (F.try_divide("compressed", size) * 100).alias("Size Percent Of Table"),
        (F.try_divide("cardinality", "table_rows") * 100).alias("Cardinality Of Total Rows"),
        F.coalesce("kind", "physical").alias("Primitive Type"),
        F.col("nulls").alias("Nulls"),
        F.try_divide("compressed", "written").alias("BytesPerRow"),
        F.col("dict_bytes").alias("DictPageCompressedSize"),
        F.col("overflowed").alias("Chunks With DictionaryOverflow"),
        F.col("plain").alias("Chunks Without Dictionary"),
        F.col("chunks").alias("Chunks"),
        F.col("runs").alias("Runs"),
        F.try_divide("written", "runs").alias("Rows Per Run"),
        F.col("overlap").alias("Overlapping Files"),
    ).orderBy(F.desc("Compressed Size"), "Column Name")


def summary(
    facts: DataFrame, stale: DataFrame, version: int, properties: dict[str, str]
) -> DataFrame:
    """Return the single row of the summary; an empty table has one too."""
    signals = _vorder_signals(properties)
    left = stale.agg(F.count("*").alias("Stale Files"), total("Size").alias("Stale Size"))
    compressed = F.expr("aggregate(footer.groups.compressed, 0L, (a, b) -> a + b)")
    totals = facts.agg(
        total(_rows()).alias("Row Count"),
        total("footer.row_groups").alias("Row Groups"),
        F.count("*").alias("Parquet Files"),
        F.max(F.array_max("footer.groups.rows")).alias("Max Rows Per Row Group"),
        F.min(F.array_min("footer.groups.rows")).alias("Min Rows Per Row Group"),
        F.try_divide(F.sum(_physical_rows()), F.sum("footer.row_groups")).alias(
            "Avg Rows Per Row Group"
        ),
        F.bool_and(F.coalesce(signals["VOrder"], F.lit(False))).alias("VOrder Enabled"),
        total(compressed).alias("Total Size"),
        total("size").alias("File Size"),
        total("deleted").alias("Deleted Rows"),
        F.count_if(F.col("vector") != "").alias("Deletion Vectors"),
        F.count_if(signals["VOrder"]).alias("VOrder Files"),
        F.count_if(signals["VOrder Disagrees"]).alias("VOrder Disagreements"),
        F.count_if(signals["Open V-Order"]).alias("Open V-Order Files"),
        F.count_if(F.col("footer.problem").isNotNull()).alias("Unreadable Files"),
        F.count_if(F.col("stats").isNull()).alias("Files Without Statistics"),
    )
    number = F.lit(version).cast("long").alias("Version")
    *known, unreadable, without = totals.columns
    order = [*known, *left.columns, unreadable, without]
    return totals.crossJoin(left).select(number, *order)


def file_sizes(facts: DataFrame) -> DataFrame:
    """Return the number of files by size."""
    bounds = {f"{bound} MiB": bound * _MIB for bound in _SIZES}
    sizes = facts.select(F.col("size").alias("value"), _rows().alias("rows"), "size")
    return _histogram(sizes, bounds, "File Size", "Files")


def row_group_sizes(facts: DataFrame) -> DataFrame:
    """Return the number of row groups by rows."""
    bounds = {f"{bound:,}": bound for bound in _GROUP_ROWS}
    groups = facts.select(F.explode("footer.groups").alias("g")).select(
        F.col("g.rows").alias("value"), F.col("g.rows").alias("rows"),
        F.col("g.compressed").alias("size"),
    )  # fmt: skip
    return _histogram(groups, bounds, "Rows In Row Group", "Row Groups")


def partitions(facts: DataFrame) -> DataFrame:
    """Return one row per partition, compared with the median; `{}` without partitions."""
    grouped = facts.groupBy(F.col("partition").alias("Partition")).agg(
        F.count("*").alias("Files"), total(_rows()).alias("Rows"), total("size").alias("Size")
    )
    median = F.median("Size").over(Window.partitionBy())
    return grouped.withColumn("Times Median", F.try_divide("Size", median)).orderBy(
        F.desc("Size"), "Partition"
    )


def _physical_rows() -> Column:
    return F.coalesce("footer.rows", "rows")


def _rows() -> Column:
    """Return a file's rows without deleted ones; from the log if the file is missing."""
    return _physical_rows() - F.col("deleted")


def _vorder_signals(properties: dict[str, str]) -> dict[str, Column]:
    """Return the V-Order signals of footer, tag and property, and whether they contradict.

    The footer is the most reliable. A footer without the key means no; a missing tag or property
    means nothing.
    """
    wanted = next((properties[name] for name in FABRIC_VORDER if name in properties), None)
    footer = F.lower(F.coalesce("footer.vorder", F.lit("false"))) == "true"
    footer = F.when(F.col("footer.problem").isNull(), footer)
    tag = F.lower(F.get_json_object("tags", f"$.{MICROSOFT_TAG}")) == "true"
    asked = F.lit(None if wanted is None else wanted.lower() == "true").cast("boolean")
    answers = F.array_distinct(F.array_compact(F.array(footer, tag, asked)))
    return {
        "VOrder": footer,
        "vorder_level": F.col("footer.vorder_level"),
        "VOrder Tag": tag,
        "VOrder Property": asked,
        "VOrder Disagrees": F.size(answers) > 1,
        "Open V-Order": F.when(
            F.col("footer.problem").isNull(), F.col("footer.open_vorder").isNotNull()
        ),
        "Open V-Order Tag": F.get_json_object("tags", f"$['{OPEN_TAG}']").isNotNull(),
    }


def _named(chunks: DataFrame, known: list[Leaf]) -> DataFrame:
    """Add `name` and `kind`; a column that the schema lacks keeps its name in the files."""
    rows = [(leaf.physical, leaf.name, leaf.kind) for leaf in known]
    names = chunks.sparkSession.createDataFrame(
        rows, "physical_path string, known string, kind string"
    )
    placed = chunks.withColumn("physical_path", F.col("c.name"))
    joined = placed.join(F.broadcast(names), "physical_path", "left")
    return joined.withColumn("name", F.coalesce("known", "physical_path"))


def _overlap(chunks: DataFrame) -> DataFrame:
    """Return, for each column, the average number of other files whose range overlaps a file's.

    A file's range does not overlap those that end before it starts, nor those that start after it
    ends. One pass over all ends in order counts both.
    """
    ranges = (
        chunks.groupBy(F.col("c.name").alias("physical_path"), "path")
        .agg(F.min("c.low").alias("low"), F.max("c.high").alias("high"))
        .where("low IS NOT NULL AND high IS NOT NULL")
    )
    ends = ranges.selectExpr("physical_path", "stack(2, low, 0, high, 1) AS (at, is_end)")
    order = Window.partitionBy("physical_path").orderBy("at", "is_end")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counted = ends.withColumns(
        {
            "ended": F.sum("is_end").over(so_far),
            "started": F.sum(1 - F.col("is_end")).over(so_far),
        }
    )
    met = F.sum(F.when(F.col("is_end") == 1, F.col("started")).otherwise(-F.col("ended")))
    files = F.sum("is_end")
    return counted.groupBy("physical_path").agg(((met - files) / files).alias("overlap"))


def _histogram(values: DataFrame, bounds: dict[str, int], title: str, count: str) -> DataFrame:
    """Count `value` per bin with the sums of `rows` and `size`; empty bins are included."""
    above = (F.when(F.col("value") >= bound, 1).otherwise(0) for bound in bounds.values())
    bin_of, names = sum(above, F.lit(0)), list(bounds)
    middle = [f"{low} to {high}" for low, high in pairwise(names)]
    labels = [f"under {names[0]}", *middle, f"{names[-1]} and more"]
    bins = values.sparkSession.createDataFrame(list(enumerate(labels)), "bin int, label string")
    found = (
        values.withColumn("bin", bin_of)
        .groupBy("bin")
        .agg(F.count("*").alias("count"), F.sum("rows").alias("rows"), F.sum("size").alias("size"))
    )
    return bins.join(found, "bin", "left").orderBy("bin").select(
        F.col("label").alias(title),
        F.coalesce("count", F.lit(0)).alias(count),
        F.coalesce("rows", F.lit(0)).alias("Rows"),
        F.coalesce("size", F.lit(0)).alias("Size"),
    )  # fmt: skip


def scan_columns(
    table: TableHandle, version: int, facts: DataFrame, known: list[Leaf], *, exact: bool
) -> DataFrame:
    """Compute from the rows what footers lack: distinct values without NULL, and runs.

    Args:
        table: the table.
        version: its version.
        facts: facts about the version's files.
        known: the leaves of the schema; those within lists and maps are left out.
        exact: count the values exactly, instead of estimating them.
    """
    wanted = [leaf for leaf in known if leaf.parts and leaf.kind not in _UNCOUNTABLE]
    if not wanted:
        empty = "physical_path string, cardinality long, runs long"
        return facts.sparkSession.createDataFrame([], empty)

    def count(leaf: Leaf) -> Column:
        column = F.col(".".join(map(quote, leaf.parts)))
        return F.count_distinct(column) if exact else F.approx_count_distinct(column)

    counts = table.rows(version).agg(*[count(leaf).alias(leaf.physical) for leaf in wanted])
    by_column = counts.unpivot([], None, "physical_path", "cardinality")
    runs = _count_runs(facts, table.storage, table.name.table_path, wanted)
    return by_column.join(runs, "physical_path", "left")


def _count_runs(
    facts: DataFrame, storage: Storage, table_path: str, wanted: list[Leaf]
) -> DataFrame:
    """Count runs of equal values by column, in the files' order, summed over the files."""
    depths = {leaf.physical: len(leaf.parts) - 1 for leaf in wanted}

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stores = Storages(storage, table_path)
        for batch in batches:
            for path in batch.column("path").to_pylist():
                found = _file_runs(*stores.place(path), depths)
                yield pa.RecordBatch.from_pylist(
                    [{"physical_path": name, "runs": runs} for name, runs in found.items()], _RUNS
                )

    files = facts.where("footer.problem IS NULL").select("path")
    spread = files.repartition(parallelism(facts.sparkSession))
    runs = map_in_arrow(spread, count, "physical_path string, runs long")
    return runs.groupBy("physical_path").agg(F.sum("runs").alias("runs"))


def _file_runs(storage: Storage, path: str, depths: dict[str, int]) -> dict[str, int]:
    with storage.open(path) as source, pq.ParquetFile(source) as file:
        there = {file.schema.column(i).path for i in range(len(file.schema))}
        wanted = {name: depth for name, depth in depths.items() if name in there}
        return {name: _column_runs(file, name, depth) for name, depth in wanted.items()}


def _column_runs(file: pq.ParquetFile, name: str, depth: int) -> int:
    runs, last = 0, None
    for batch in file.iter_batches(columns=[name]):
        if not batch.num_rows:
            continue
        # A nested field is read through its structs, and is NULL where a struct is NULL.
        column = batch.column(0)
        values = pc.struct_field(column, [0] * depth) if depth else column
        if pa.types.is_string_view(
            values.type
        ):  # delta-rs writes views, which have no run-end encoding
            values = values.cast(pa.string())
        elif pa.types.is_binary_view(values.type):
            values = values.cast(pa.binary())
        ends = pc.run_end_encode(values)
        first, runs_here = ends.values[0], len(ends.values)
        # A run may continue in the next batch.
        runs += runs_here - (last is not None and last.equals(first))
        last = ends.values[runs_here - 1]
    return runs


@dataclass(frozen=True)
class Leaf:
    """One leaf of a schema.

    Attributes:
        physical: its path in the Parquet schema, joined by dots.
        name: its path by the names of the table.
        kind: Spark's type.
        parts: the names of the structs that contain it, and its own; empty within lists and maps.
    """

    physical: str
    name: str
    kind: str
    parts: tuple[str, ...]


def leaves(metadata: dict[str, Any]) -> list[Leaf]:
    """Return the leaves of a Delta table's schema, in its order.

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
