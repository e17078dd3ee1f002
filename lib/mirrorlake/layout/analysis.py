"""What one version of a table is made of: files, row groups, column chunks, columns, in numbers.

Field names are those of the public analysers (`delta_analyzer` of semantic-link-labs, Microsoft's
Delta Analyzer notebook), so that their users find them again. Only the summary is on the driver;
every table stays a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.files import hadoop_path, live_files, read_actions
from mirrorlake.delta.log_files import find_segment
from mirrorlake.delta.snapshot import physical_names, read_snapshot
from mirrorlake.delta.table import Table
from mirrorlake.history.vacuum import list_files
from mirrorlake.layout import measures
from mirrorlake.layout.change_history import change_history
from mirrorlake.layout.footers import (
    Leaf,
    Storages,
    leaves,
    parallelism,
    read_chunks,
    read_footers,
)
from mirrorlake.layout.guardrails import (
    GuardrailReport,
    after_optimize,
    check_guardrails,
    measure,
)
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.storage import Storage

DIAGNOSTICS = "diagnostics"
_UNCOUNTABLE = ("variant", "void")
_RUNS = pa.schema([("physical_path", pa.string()), ("runs", pa.int64())])


class Planned(Mapping[str, DataFrame]):
    """DataFrames by name, each made once, when it is first asked for.

    To plan all tables of an analysis takes Spark longer than to fill the one that is looked at.

    Args:
        makers: how each is made.
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
        """Those that were asked for."""
        return iter(self._made.values())


@dataclass(frozen=True)
class Analysis(Result):
    """The tables of an analysis, as DataFrames by name, and the one row of the summary.

    Attributes:
        name: which table.
        version: which version of it.
        summary: the summary's fields.
        tables: Summary, Parquet Files, Row Groups, Column Chunks, Columns, File Sizes, Row Group
            Sizes, Partitions, Stale Files, Change History; each is planned when it is asked for.
        metadata: the log's `metaData` of that version.
        protocol: the log's `protocol` of that version.
    """

    name: TableName
    version: int
    summary: Mapping[str, Any]
    tables: Planned
    metadata: Mapping[str, Any] = field(repr=False)
    protocol: Mapping[str, Any] = field(repr=False)
    facts: DataFrame = field(repr=False)
    kept: Planned = field(repr=False)
    storage: Storage = field(repr=False)

    def __repr__(self) -> str:
        s = self.summary
        return (
            f"{self.name}@v{self.version}: {s['Row Count']:,} rows in {s['Parquet Files']:,} files"
            f" and {s['Row Groups']:,} row groups, {s['File Size']:,} bytes"
        )

    def shown(self) -> TextTable:
        """The summary as a table."""
        return TextTable(("", str(self.name)), tuple(self.summary.items()))

    def save(self, names: Iterable[str] | None = None, *, at: datetime | None = None) -> list[str]:
        """Appends the tables, each to a Delta table in the lake's schema `diagnostics`.

        Each row gets `table_name`, `version` and `taken_at`, so that counts can be followed over
        time. Columns are named in lower case, with `_` for spaces.

        Args:
            names: which tables; by default all.
            at: the moment to write down; by default now.

        Returns:
            The tables' names in the lake.
        """
        saved = []
        for name in self.tables if names is None else names:
            frame = self.tables[name]
            target = TableName(DIAGNOSTICS, name.lower().replace(" ", "_"))
            columns = [F.col(quote(c)).alias(c.lower().replace(" ", "_")) for c in frame.columns]
            marked = frame.select(
                F.lit(str(self.name)).alias("table_name"),
                F.lit(self.version).cast("long").alias("version"),
                (F.current_timestamp() if at is None else F.lit(at)).alias("taken_at"),
                *[c for c, n in zip(columns, frame.columns, strict=True) if n != "Version"],
            )
            writer = marked.write.format("delta").mode("append").option("mergeSchema", "true")
            writer.save(self.storage.path(target.table_path))
            saved.append(str(target))
        return saved

    def guardrails(self, sku: str | None = None) -> GuardrailReport:
        """How the table alone, as a whole model, stands to a SKU's guardrails.

        Raises:
            UsageError: there is no such SKU.
        """
        now = measure([self.summary])
        return check_guardrails(now, after_optimize(self.facts, now), sku)

    def chunks_needed(self, columns: Iterable[str]) -> DataFrame:
        """The column chunks that a query over these columns has to read, and no others."""
        wanted = list(columns)
        top = F.col("Column Name").isin(wanted)
        inner = [F.col("Column Name").startswith(f"{column}.") for column in wanted]
        return self.tables["Column Chunks"].where(reduce(or_, inner, top))

    @property
    def sql_name(self) -> str:
        """The table's name in SQL."""
        return delta_name(self.storage.path(self.name.table_path))

    def rows(self) -> DataFrame:
        """The rows of the version that was analysed."""
        statement = f"SELECT * FROM {self.sql_name} VERSION AS OF {self.version}"
        return self.facts.sparkSession.sql(statement)

    def release(self) -> None:
        """Frees what Spark keeps of the footers; the tables are read anew if asked for again."""
        for frame in (self.facts, *self.kept.made(), *self.tables.made()):
            frame.unpersist()


def analyze_table(
    table: Table, *, version: int | None = None, scan: bool = True, exact: bool = False
) -> Analysis:
    """Analyses one version of a table from its log and its files' footers.

    Arguments and errors are those of `LakeTable.analyze`.
    """
    spark, storage, name = table.spark, table.storage, table.name
    path = name.table_path
    segment = find_segment(storage, path, version)
    snapshot = read_snapshot(storage, path, segment.version)
    assert snapshot is not None, path  # the segment is of it
    metadata, protocol = snapshot.metadata, snapshot.protocol
    files = live_files(read_actions(spark, storage, segment))
    facts = read_footers(_name_partitions(files, physical_names(metadata)), storage, path).persist()
    known = leaves(metadata)

    def scanned() -> DataFrame:
        # What only the rows show of every column outside lists and maps.
        wanted = [leaf for leaf in known if leaf.parts and leaf.kind not in _UNCOUNTABLE]
        if not (scan and wanted):
            return spark.createDataFrame([], "physical_path string, cardinality long, runs long")
        rows = f"{table.sql_name} VERSION AS OF {segment.version}"
        counts = spark.sql(f"SELECT {_counts(wanted, exact=exact)} FROM {rows}")
        runs = _count_runs(facts, storage, path, wanted)
        return _by_column(counts, wanted).join(runs, "physical_path", "left")

    kept = Planned({"chunks": lambda: read_chunks(facts, storage, path).persist()})
    properties = dict(metadata.get("configuration") or {})
    tables = Planned({
        "Summary": lambda: measures.summary(
            facts, tables["Stale Files"], segment.version, properties),
        "Parquet Files": lambda: measures.parquet_files(facts, properties),
        "Row Groups": lambda: measures.row_groups(facts),
        "Column Chunks": lambda: measures.column_chunks(kept["chunks"], known),
        # Small, and asked for several times: the scan must not run again for each.
        "Columns": lambda: measures.columns(facts, kept["chunks"], known, scanned()).persist(),
        "File Sizes": lambda: measures.file_sizes(facts),
        "Row Group Sizes": lambda: measures.row_group_sizes(facts),
        "Partitions": lambda: measures.partitions(facts),
        "Stale Files": lambda: stale_files(table, facts),
        "Change History": lambda: change_history(table, segment.version),
    })  # fmt: skip
    row = tables["Summary"].first()
    assert row is not None  # an aggregate without groups always has a row
    return Analysis(
        name, segment.version, row.asDict(), tables, metadata, protocol, facts, kept, storage
    )


def _name_partitions(files: DataFrame, physical: dict[str, str]) -> DataFrame:
    """Partition values under the table's names; under column mapping the log has the files'."""
    names = {inside: name for name, inside in physical.items() if name != inside}
    if not names:
        return files
    known = F.create_map(*[F.lit(text) for pair in names.items() for text in pair])
    values = F.from_json("partition", "map<string, string>")
    named = F.transform_keys(values, lambda key, _: F.coalesce(F.try_element_at(known, key), key))
    return files.withColumn("partition", F.to_json(named))


def stale_files(table: Table, facts: DataFrame) -> DataFrame:
    """Parquet files in the table's folder that the version does not name.

    Hidden folders are left out, since what lies in them is not the table's rows.

    Args:
        table: the table.
        facts: the version's files, with their `path`.
    """
    inside = F.lit(len(hadoop_path(table.storage, table.name.table_path)) + 2)
    listed = list_files(table).select(
        F.substr("path", inside).alias("path"),
        F.col("length").alias("Size"),
        F.timestamp_millis("modificationTime").alias("Modified"),
    )
    shown = listed.where("path LIKE '%.parquet' AND NOT path RLIKE '^_(change_data|delta_index)/'")
    left = shown.join(facts.select("path"), "path", "left_anti")
    return left.withColumnRenamed("path", "Parquet File").orderBy("Parquet File")


def _counts(wanted: list[Leaf], *, exact: bool) -> str:
    """Distinct values of each column as SQL, NULL not counted."""
    count = "count(DISTINCT {})" if exact else "approx_count_distinct({})"
    paths = [".".join(map(quote, leaf.parts)) for leaf in wanted]
    return ", ".join(f"{count.format(path)} AS c{i}" for i, path in enumerate(paths))


def _by_column(counts: DataFrame, wanted: list[Leaf]) -> DataFrame:
    """One row a column of the counts' one row: `physical_path` and `cardinality`."""
    pairs = [
        F.struct(F.lit(leaf.physical).alias("physical_path"), F.col(f"c{i}").alias("cardinality"))
        for i, leaf in enumerate(wanted)
    ]
    return counts.select(F.explode(F.array(*pairs)).alias("p")).select("p.*")


def _count_runs(
    facts: DataFrame, storage: Storage, table_path: str, wanted: list[Leaf]
) -> DataFrame:
    """Runs of equal values by column, as they lie in the files, summed over the files."""
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
        there = {file.schema.column(i).path for i in range(len(file.schema.names))}
        wanted = {name: depth for name, depth in depths.items() if name in there}
        return {name: _column_runs(file, name, depth) for name, depth in wanted.items()}


def _column_runs(file: pq.ParquetFile, name: str, depth: int) -> int:
    runs, last = 0, None
    for batch in file.iter_batches(columns=[name]):
        if not batch.num_rows:
            continue
        # The one field that was asked for of a struct; NULL where the struct is.
        column = batch.column(0)
        values = pc.struct_field(column, [0] * depth) if depth else column
        if pa.types.is_string_view(values.type):  # as delta-rs's files name it; it has no runs
            values = values.cast(pa.string())
        elif pa.types.is_binary_view(values.type):
            values = values.cast(pa.binary())
        ends = pc.run_end_encode(values)
        first, runs_here = ends.values[0], len(ends.values)
        # A run goes on over the seam of two batches.
        runs += runs_here - (last is not None and last.equals(first))
        last = ends.values[runs_here - 1]
    return runs
