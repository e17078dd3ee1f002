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

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.delta.files import hadoop_path, live_files, read_actions, total
from mirrorlake.delta.log_files import find_segment
from mirrorlake.delta.snapshot import (
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    Snapshot,
    physical_names,
    read_snapshot,
)
from mirrorlake.delta.table import TableHandle
from mirrorlake.history.vacuum import list_files
from mirrorlake.layout import measures
from mirrorlake.layout.footers import read_chunks, read_footers
from mirrorlake.layout.guardrails import (
    GuardrailReport,
    after_optimize,
    check_guardrails,
    measure,
)
from mirrorlake.layout.leaves import leaves
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import quote
from mirrorlake.storage.files import Storage

DIAGNOSTICS = "diagnostics"


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
        table: which table.
        snapshot: the version: its number, schema, properties and protocol.
        summary: the summary's fields.
        tables: Summary, Parquet Files, Row Groups, Column Chunks, Columns, File Sizes, Row Group
            Sizes, Partitions, Stale Files, Change History; each is planned when it is asked for.
    """

    table: TableHandle
    snapshot: Snapshot = field(repr=False)
    summary: Mapping[str, Any]
    tables: Planned
    facts: DataFrame = field(repr=False)
    kept: Planned = field(repr=False)

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
            writer.save(self.table.storage.path(target.table_path))
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
    def name(self) -> TableName:
        """The table's name."""
        return self.table.name

    @property
    def version(self) -> int:
        """Which version of the table."""
        return self.snapshot.version

    @property
    def sql_name(self) -> str:
        """The table's name in SQL."""
        return self.table.sql_name

    @property
    def hidden_columns(self) -> dict[str, str]:
        """What the hidden columns of row tracking are: their names are numbers to nobody's use."""
        known = self.snapshot.properties
        told = {ROW_ID_COLUMN: "(row ids)", ROW_VERSION_COLUMN: "(commit versions of rows)"}
        return {known[name]: text for name, text in told.items() if name in known}

    def rows(self) -> DataFrame:
        """The rows of the version that was analysed."""
        return self.table.rows(self.version)

    def release(self) -> None:
        """Frees what Spark keeps of the footers; the tables are read anew if asked for again."""
        for frame in (self.facts, *self.kept.made(), *self.tables.made()):
            frame.unpersist()


def analyze_table(
    table: TableHandle, *, version: int | None = None, scan: bool = True, exact: bool = False
) -> Analysis:
    """Analyses one version of a table from its log and its files' footers.

    Arguments and errors are those of `Table.analyze`.
    """
    storage, path = table.storage, table.name.table_path
    segment = find_segment(storage, path, version)
    snapshot = read_snapshot(storage, path, segment.version)
    assert snapshot is not None, path  # the segment is of it
    physical, known = physical_names(snapshot.metadata), leaves(snapshot.metadata)
    files = live_files(read_actions(table.spark, storage, segment))
    facts = read_footers(_name_partitions(files, physical), storage, path).persist()
    kept = Planned({"chunks": lambda: read_chunks(facts, storage, path).persist()})
    properties = snapshot.properties
    tables = Planned({
        "Summary": lambda: measures.summary(
            facts, tables["Stale Files"], segment.version, properties),
        "Parquet Files": lambda: measures.parquet_files(facts, properties),
        "Row Groups": lambda: measures.row_groups(facts),
        "Column Chunks": lambda: measures.column_chunks(kept["chunks"], known),
        # Small, and asked for several times: the scan must not run again for each.
        "Columns": lambda: measures.columns(
            facts, kept["chunks"], known, measures.scan_columns(
                table, segment.version, facts, known if scan else [], exact=exact
            )
        ).persist(),
        "File Sizes": lambda: measures.file_sizes(facts),
        "Row Group Sizes": lambda: measures.row_group_sizes(facts),
        "Partitions": lambda: measures.partitions(facts),
        "Stale Files": lambda: stale_files(table, facts),
        "Change History": lambda: change_history(table, segment.version),
    })  # fmt: skip
    row = tables["Summary"].first()
    assert row is not None  # an aggregate without groups always has a row
    return Analysis(table, snapshot, row.asDict(), tables, facts, kept)


def _name_partitions(files: DataFrame, physical: dict[str, str]) -> DataFrame:
    """Partition values under the table's names; under column mapping the log has the files'."""
    names = {inside: name for name, inside in physical.items() if name != inside}
    if not names:
        return files
    known = F.create_map(*[F.lit(text) for pair in names.items() for text in pair])
    values = F.from_json("partition", "map<string, string>")
    named = F.transform_keys(values, lambda key, _: F.coalesce(F.try_element_at(known, key), key))
    return files.withColumn("partition", F.to_json(named))


def stale_files(table: TableHandle, facts: DataFrame) -> DataFrame:
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


def change_history(table: TableHandle, version: int) -> DataFrame:
    """What each commit cost, one row a commit, oldest first, as far back as the log still goes.

    A semantic model that has loaded a table keeps what a change preserves and loads the rest again:
    the part of the bytes that a change leaves alone is its incremental effect.
    Where the oldest commits are gone the counts start with the files of a checkpoint. Row groups
    are NULL from where a file is involved that VACUUM has taken: nobody can count them any more.

    Args:
        table: the table.
        version: the last version to show.
    """
    spark, storage, table_path = table.spark, table.storage, table.name.table_path
    segment = find_segment(storage, table_path, version, oldest=True)
    actions = read_actions(spark, storage, segment)
    changes = _changes(_with_groups(actions, storage, table_path))
    # A commit may change no file, and a checkpoint's files belong to no commit that is still there.
    told = changes.join(_commits(actions), "version", "full_outer").withColumns(
        {name: F.when(F.col("vectors").isNull(), 0).otherwise(F.col(name))
         for name in changes.columns if name != "version"}
    )  # fmt: skip
    in_order = Window.orderBy("version")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = {f"{what}_after": F.sum(f"{what}_delta").over(so_far)
               for what in ("files", "size", "rows")}  # fmt: skip
    unknown = F.sum(F.when(F.col("groups_delta").isNull(), 1).otherwise(0)).over(so_far)
    running["groups_after"] = F.when(unknown == 0, F.sum("groups_delta").over(so_far))
    before = F.coalesce(F.lag("groups_after").over(in_order), F.lit(0))
    told = told.withColumns(running).withColumn("groups_before", before)
    told = told.where(F.col("version") > segment.base)
    kept = F.try_divide(F.col("size_after") - F.col("size_added"), "size_after") * 100
    effect = F.when(F.col("size_removed") == 0, F.lit(100.0)).otherwise(kept)
    return told.select(
        F.col("version").alias("Change Number"),
        F.col("operation").alias("Change Type"),
        F.col("predicate").alias("Predicate"),
        F.col("at").alias("Modification Time"),
        effect.alias("Incremental Effect"),
        *_group("Files", "files"),
        (F.col("files_after") - F.col("files_added")).alias("Files Preserved"),
        F.col("files_after").alias("Files After Change"),
        *_group("Size", "size"),
        F.col("size_after").alias("Size After Change"),
        *_group("Row Groups", "groups"),
        (F.col("groups_before") - F.col("groups_removed")).alias("Row Groups Preserved"),
        F.col("groups_after").alias("Row Groups After Change"),
        *_group("Rows", "rows"),
        F.col("rows_delta").alias("Rows Delta"),
        F.col("rows_after").alias("Rows After Change"),
        F.col("vectors").alias("Deletion Vectors Changed"),
        F.col("tags").alias("Tags"),
    ).orderBy("Change Number")


def _group(title: str, what: str) -> list[Column]:
    return [
        F.col(f"{what}_{kind.lower()}").alias(f"{title} {kind}") for kind in ("Added", "Removed")
    ]


def _with_groups(actions: DataFrame, storage: Storage, table_path: str) -> DataFrame:
    """The files' actions with rows, bytes and row groups, read from the footers still there."""
    files = actions.where(F.col("kind").isin("add", "remove"))
    # A remove need not say how large the file was; the add that brought it does.
    known = files.groupBy("path").agg(
        F.max("size").alias("size"), F.max("rows").alias("known_rows")
    )
    footers = read_footers(known, storage, table_path).select(
        "path",
        F.coalesce("size", F.lit(0)).alias("bytes"),
        F.coalesce("footer.rows", "known_rows").alias("physical_rows"),
        F.col("footer.row_groups").alias("groups"),
    )
    return files.join(footers, "path", "left")


def _changes(files: DataFrame) -> DataFrame:
    """One row a version: what was added, removed, or only got another deletion vector."""
    live = F.col("physical_rows") - F.col("deleted")
    added, removed = F.col("kind") == "add", F.col("kind") == "remove"
    by_file = files.groupBy("version", "path").agg(
        F.bool_or(added).alias("added"),
        F.bool_or(removed).alias("removed"),
        F.first("bytes").alias("bytes"),
        F.first("groups").alias("groups"),
        total(F.when(added, live)).alias("rows_in"),
        total(F.when(removed, live)).alias("rows_out"),
    )
    comes, goes = F.expr("added AND NOT removed"), F.expr("removed AND NOT added")
    stays = F.expr("added AND removed")
    more = F.col("rows_in") - F.col("rows_out")  # of a file that stays only what has changed
    counted = by_file.groupBy("version").agg(
        F.count_if(comes).alias("files_added"),
        F.count_if(goes).alias("files_removed"),
        F.count_if(stays).alias("vectors"),
        F.sum(F.when(comes, F.col("bytes")).otherwise(0)).alias("size_added"),
        F.sum(F.when(goes, F.col("bytes")).otherwise(0)).alias("size_removed"),
        _sum_if_known(comes).alias("groups_added"),
        _sum_if_known(goes).alias("groups_removed"),
        F.sum(F.greatest(more, F.lit(0))).alias("rows_added"),
        F.sum(F.greatest(-more, F.lit(0))).alias("rows_removed"),
    )
    return counted.withColumns(
        {
            f"{what}_delta": F.col(f"{what}_added") - F.col(f"{what}_removed")
            for what in ("files", "size", "groups", "rows")
        }
    )


def _sum_if_known(which: Column) -> Column:
    """Row groups of some files; NULL if any of them can't be read any more."""
    unknown = F.count_if(which & F.col("groups").isNull())
    return F.when(unknown == 0, F.sum(F.when(which, F.col("groups")).otherwise(0)))


def _commits(actions: DataFrame) -> DataFrame:
    body = F.col("body")
    return actions.where("kind = 'commitInfo'").select(
        "version",
        F.get_json_object(body, "$.operation").alias("operation"),
        F.get_json_object(body, "$.operationParameters.predicate").alias("predicate"),
        F.timestamp_millis(F.get_json_object(body, "$.timestamp").cast("long")).alias("at"),
        F.get_json_object(body, "$.tags").alias("tags"),
    )
