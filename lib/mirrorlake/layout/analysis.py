"""Analyse the files of a table version (`Table.analyze`) and of all tables (`Lake.analyze`).

Names of fields are those of the public analysers (`delta_analyzer` of semantic-link-labs and
Microsoft's Delta Analyzer notebook), so that their users recognise them. Only the summary is on the
driver; every table stays a DataFrame.

The overview of a lake lists the tables that need attention first. It reads logs and footers, no
rows. If a table can't be read, its line contains the error, and the other tables are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mirrorlake.delta.files import hadoop_path, live_files, read_actions, total
from mirrorlake.delta.log_files import find_segment
from mirrorlake.delta.snapshot import physical_names, read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import MirrorlakeError, TableNotFoundError, UsageError
from mirrorlake.history.vacuum import list_files
from mirrorlake.history.write import claim_name
from mirrorlake.layout import measures
from mirrorlake.layout.advice import MANY_ROWS, Advice, advise
from mirrorlake.layout.footers import read_chunks, read_footers
from mirrorlake.layout.guardrails import GuardrailReport, check_guardrails, find_sku, measure
from mirrorlake.layout.measures import Measured, Planned, leaves
from mirrorlake.names import TableName, quote, split_names
from mirrorlake.results import Result, TextTable, counted, optional_figure, size_text
from mirrorlake.spark.sql import spark_message
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


DIAGNOSTICS = "diagnostics"
_MOST = 20
_DRAWN = 15
_AT_ONCE = 4
# The higher the cost of ignoring a rule, the higher its weight.
_WEIGHTS = {
    "small files": 3,
    "row-group size": 2,
    "deletion vectors piled up": 2,
    "partitions of high cardinality": 3,
    "V-Order signals disagree": 1,
    "missing statistics": 1,
}
_MOST_BARS = 20


@dataclass(frozen=True)
class ColumnSizes(Result):
    """The compressed bytes of a table's columns, the largest first.

    Attributes:
        table: the table's name.
        sizes: bytes by column.
        before: bytes by column in an earlier version; empty without one.
    """

    table: str
    sizes: Mapping[str, int]
    before: Mapping[str, int]

    def shown(self) -> TextTable:
        """Return the first 20 columns, one per row, compared with the earlier version if any."""
        listed = self.before or self.sizes
        more, some = len(listed) > _MOST, list(listed.items())[:_MOST]
        if not self.before:
            total = max(1, sum(self.sizes.values()))
            rows = tuple((name, size_text(n), f"{100 * n / total:.0f} %") for name, n in some)
            return TextTable(("column", "size", "of the table"), rows, more)
        now = self.sizes
        lines = tuple(
            (name, size_text(n), size_text(now.get(name, 0)),
             f"{100 * (1 - now.get(name, 0) / max(1, n)):.0f} %")
            for name, n in some
        )  # fmt: skip
        return TextTable(("column", "before", "after", "less"), lines, more)

    @optional_figure
    def plot(self) -> Chart:
        """Draw the bytes of the largest columns."""
        from mirrorlake.show.plots import plot_bars

        count = len(self.sizes)
        some = f" (the largest {_DRAWN} of {count:,})" if count > _DRAWN else ""
        return plot_bars(
            {column: size / 1024 for column, size in list(self.sizes.items())[:_DRAWN]},
            title=f"Size of the columns of {self.table}{some}",
            label="KiB in the files",
            fmt="{x:,.1f}",
        )

    def __repr__(self) -> str:
        columns = counted(len(self.sizes), "column")
        return f"{self.table}: {columns} of {size_text(sum(self.sizes.values()))}"


@dataclass(frozen=True)
class Analysis(Measured, Result):
    """The files of one version of a table: numbers, advice, and tables as DataFrames by name.

    The other attributes are those of `Measured`.

    Example:
        >>> lake.table("sales").analyze().advice()  # doctest: +SKIP
        sales: 2 findings (small files, no V-Order)
    """

    def __repr__(self) -> str:
        s = self.summary
        return (
            f"{self.name}@v{self.version}: {counted(s['Row Count'], 'row')} in"
            f" {counted(s['Parquet Files'], 'file')} and {counted(s['Row Groups'], 'row group')},"
            f" {s['File Size']:,} bytes"
        )

    def shown(self) -> TextTable:
        """Return the summary as a table."""
        return TextTable(("", str(self.name)), tuple(self.summary.items()))

    def figures(self) -> TextTable:
        """Return the most important figures, one per row."""
        s = self.summary
        least, most = (s[f"{which} Rows Per Row Group"] or 0 for which in ("Min", "Max"))
        rows = (
            ("version", str(self.version)),
            ("rows", f"{s['Row Count']:,}"),
            ("deleted rows", f"{s['Deleted Rows']:,} in {counted(s['Deletion Vectors'], 'file')}"),
            ("files", f"{s['Parquet Files']:,}"),
            ("size", size_text(s["File Size"])),
            ("row groups", f"{s['Row Groups']:,}"),
            ("rows per row group", f"{least:,} to {most:,}"),
            ("files in V-Order", f"{s['VOrder Files'] + s['Open V-Order Files']:,}"),
            ("stale files", f"{s['Stale Files']:,} of {size_text(s['Stale Size'] or 0)}"),
            ("files without statistics", f"{s['Files Without Statistics']:,}"),
            ("unreadable files", f"{s['Unreadable Files']:,}"),
        )
        return TextTable((str(self.name), ""), rows)

    def columns(self, most: int = _MOST) -> TextTable:
        """Return the largest columns, one per row.

        Args:
            most: the maximum number of columns; 20 by default.

        Returns:
            Types, sizes and counts; an analysis without a scan lacks the numbers of values.
        """
        wanted = ["Column Name", "Primitive Type", "Compressed Size", "Size Percent Of Table",
                  "Cardinality", "Nulls", "Chunks Without Dictionary", "Chunks"]  # fmt: skip
        hidden = self.hidden_columns
        found = self.tables["Columns"].select(*wanted).collect()  # one row per column
        found.sort(key=lambda row: (-(row[2] or 0), row[0]))
        rows = tuple(
            (hidden.get(row[0], row[0]), row[1], size_text(row[2] or 0), f"{row[3] or 0:.0f} %",
             row[4], row[5], f"{row[6]:,} of {row[7]:,}")
            for row in found[:most]
        )  # fmt: skip
        names = ("column", "type", "size", "of the table", "values", "nulls",
                 "chunks without dictionary")  # fmt: skip
        return TextTable(names, rows, more=len(found) > most)

    def column_sizes(self, before: Analysis | None = None) -> ColumnSizes:
        """Return the compressed bytes of each column.

        Args:
            before: an analysis of an earlier version, to compare with.
        """
        old = {} if before is None else before.column_sizes().sizes
        columns = self.tables["Columns"].select("Column Name", "Compressed Size")
        hidden = self.hidden_columns
        found = [(hidden.get(row[0], row[0]), int(row[1] or 0)) for row in columns.collect()]
        sizes = dict(sorted(found, key=lambda one: (-one[1], one[0])))
        return ColumnSizes(str(self.name), sizes, old)

    def advice(
        self,
        *,
        used: str | Iterable[str] | None = None,
        many_rows: int = MANY_ROWS,
        columns: bool = True,
    ) -> Advice:
        """Recommend improvements of the table; without a scan few of them are about columns.

        Args:
            used: the columns that models and reports use, as a list or separated by commas. The
                other columns are recommended for removal. By default, it is unknown which are used.
            many_rows: from this number of rows on, ways to have fewer rows are recommended;
                100,000,000 by default.
            columns: also examine the columns.

        Returns:
            One finding per recommendation.

        Raises:
            UsageError: one of the used columns does not exist.
        """
        return advise(self, used=used, many_rows=many_rows, columns=columns)

    def save(
        self, names: str | Iterable[str] | None = None, *, at: datetime | None = None
    ) -> list[str]:
        """Append the tables to Delta tables in the lake's schema `diagnostics`, one for each.

        Each row gets `table_name`, `version` and `taken_at`, so that figures can be compared over
        time. Columns are named in lower case, with `_` for spaces.

        Args:
            names: the tables to append; by default all.
            at: the timestamp to store; by default the current time.

        Returns:
            The names of the Delta tables.

        Raises:
            UsageError: a table does not exist.
            InvalidNameError: the lake has a table `diagnostics`.
        """
        known, saved = list(self.tables), []
        wanted = known if names is None else split_names(names)
        if unknown := [name for name in wanted if name not in known]:
            raise UsageError(
                f"The analysis has no table {unknown[0]!r}.",
                hint=f"choose from {', '.join(known)}.",
            )
        for name in wanted:
            frame = self.tables[name]
            target = TableName(DIAGNOSTICS, name.lower().replace(" ", "_"))
            claim_name(self.table.storage, target)
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

    def chunks_needed(self, columns: str | Iterable[str]) -> DataFrame:
        """Return the column chunks that a query on these columns must read."""
        wanted = split_names(columns)
        top = F.col("Column Name").isin(wanted)
        inner = [F.col("Column Name").startswith(f"{column}.") for column in wanted]
        return self.tables["Column Chunks"].where(reduce(or_, inner, top))


def analyze_table(
    table: TableHandle, *, version: int | None = None, scan: bool = True, exact: bool = False
) -> Analysis:
    """Analyse one version of a table from its log and its files' footers.

    Arguments and errors are those of `Table.analyze`.
    """
    storage, path = table.storage, table.name.table_path
    segment = find_segment(storage, path, version)
    snapshot = read_snapshot(storage, path, segment.version)
    assert snapshot is not None, path  # the segment exists
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
        # Small, and used several times: the scan must run only once.
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
    """Replace the names of partition columns by the table's.

    Under column mapping the log contains the names in the files.
    """
    names = {inside: name for name, inside in physical.items() if name != inside}
    if not names:
        return files
    known = F.create_map(*[F.lit(text) for pair in names.items() for text in pair])
    values = F.from_json("partition", "map<string, string>")
    named = F.transform_keys(values, lambda key, _: F.coalesce(F.try_element_at(known, key), key))
    return files.withColumn("partition", F.to_json(named))


def stale_files(table: TableHandle, facts: DataFrame) -> DataFrame:
    """Return the Parquet files in the table's folder that the version does not name.

    Hidden folders are left out, because they contain no rows of the table.

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
    """Return the cost of each commit, oldest first, as far back as the log goes.

    A semantic model keeps the data that a change preserves and loads the rest again. The share of
    the bytes that a change preserves is its incremental effect. If the oldest commits are missing,
    the counts start with the files of a checkpoint. Row groups are NULL from the first commit on
    that involves a vacuumed file, because they can't be counted any more.

    Args:
        table: the table.
        version: the last version to include.

    Returns:
        One row per commit.
    """
    spark, storage, table_path = table.spark, table.storage, table.name.table_path
    segment = find_segment(storage, table_path, version, oldest=True)
    actions = read_actions(spark, storage, segment)
    changes = _changes(_with_groups(actions, storage, table_path))
    # A commit may change no file, and a checkpoint's files belong to no commit of the log.
    costs = changes.join(_commits(actions), "version", "full_outer").withColumns(
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
    costs = costs.withColumns(running).withColumn("groups_before", before)
    costs = costs.where(F.col("version") > segment.base)
    kept = F.try_divide(F.col("size_after") - F.col("size_added"), "size_after") * 100
    effect = F.when(F.col("size_removed") == 0, F.lit(100.0)).otherwise(kept)
    return costs.select(
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
    """Return the files' actions with rows, bytes and row groups from the existing footers."""
    files = actions.where(F.col("kind").isin("add", "remove"))
    # A remove may lack the file's size; the add of the same file has it.
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
    """Return one row per version: what was added, removed, or got another deletion vector."""
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
    more = F.col("rows_in") - F.col("rows_out")  # the changed rows of a file that remains
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
    """Return the row groups of some files; NULL if one of them can't be read any more."""
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


@dataclass(frozen=True)
class TableFiles:
    """One table of an overview.

    Attributes:
        table: the table's name.
        files, row_groups, rows, size: the newest version; size in bytes.
        used: the used share of the nearest guardrail; above 1 it is exceeded.
        guardrail: the nearest guardrail.
        rules: the rules of the advice on its files.
        error: why the table can't be read; empty if it can.
    """

    table: str
    files: int = 0
    row_groups: int = 0
    rows: int = 0
    size: int = 0
    used: float = 0.0
    guardrail: str = ""
    rules: tuple[str, ...] = ()
    error: str = ""

    @property
    def priority(self) -> tuple[bool, bool, int, float, int]:
        """The sort key of the overview: errors, exceeded guardrails, advice, share used, size."""
        weight = sum(_WEIGHTS.get(rule, 0) for rule in self.rules)
        return bool(self.error), self.used > 1, weight, self.used, self.size


@dataclass(frozen=True)
class FilesOverview(Result):
    """The tables of a lake, those that need attention first.

    Attributes:
        sku: the SKU whose guardrails apply.
        tables: one entry per table.
        model: all tables together, as one model, compared with the guardrails.
    """

    sku: str
    tables: tuple[TableFiles, ...]
    model: GuardrailReport

    @property
    def first(self) -> str:
        """The first readable table; empty if no table can be read."""
        return next((one.table for one in self.tables if not one.error), "")

    @property
    def broken(self) -> tuple[TableFiles, ...]:
        """The tables that exceed a guardrail."""
        return tuple(one for one in self.tables if one.used > 1)

    @property
    def failed(self) -> tuple[TableFiles, ...]:
        """The tables that can't be read."""
        return tuple(one for one in self.tables if one.error)

    def check(self) -> None:
        """Raise an error if no table can be read.

        Raises:
            TableNotFoundError: the lake has no tables, or each has an error of its own.
        """
        if not self.tables:
            raise TableNotFoundError("The lake has no tables.", hint="run `mirror` first.")
        if not self.first:
            one = self.tables[0]
            raise TableNotFoundError(f"No table can be analyzed. {one.table}: {one.error}")

    @optional_figure
    def plot(self) -> Chart:
        """Draw the share of its nearest guardrail that each of the first 20 tables uses."""
        from mirrorlake.show.plots import plot_bars

        readable = [one for one in self.tables if not one.error]
        some = (
            f" (first {_MOST_BARS} of {len(readable):,} tables)"
            if len(readable) > _MOST_BARS
            else ""
        )
        return plot_bars(
            {one.table: 100 * one.used for one in readable[:_MOST_BARS]},
            title=f"Share of the nearest guardrail of {self.sku} used{some}",
            label="percent; 100 is the limit",
            fmt="{x:,.3g}",
        )

    def shown(self) -> TextTable:
        """Return one row per table."""
        columns = ("table", "files", "row groups", "rows", "size", "nearest guardrail", "used",
                   "needs attention")  # fmt: skip
        rows = tuple(
            (one.table, one.files, one.row_groups, one.rows, size_text(one.size),
             one.guardrail, f"{100 * one.used:,.3g} %", one.error or ", ".join(one.rules))
            for one in self.tables
        )  # fmt: skip
        return TextTable(columns, rows)

    def __repr__(self) -> str:
        return (
            f"{counted(len(self.tables), 'table')}, {len(self.broken)} beyond a guardrail of"
            f" {self.sku}, {len(self.failed)} can't be read"
        )


def survey_files(
    open_table: Callable[[TableName], TableHandle], names: Iterable[TableName], sku: str
) -> FilesOverview:
    """Analyse the files of several tables; errors are those of `Lake.analyze`.

    Args:
        open_table: returns a table by its name.
        names: the tables.
        sku: the capacity whose guardrails apply.
    """
    chosen = find_sku(sku).name
    look = partial(_survey_one, open_table, sku=chosen)
    wanted = list(names)
    found = [look(name) for name in wanted[:1]]  # starts the session if necessary
    # A small table is a series of short jobs; several tables at once keep all cores busy.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found += pool.map(look, wanted[1:])
    found.sort(key=lambda one: one.table)
    found.sort(key=lambda one: one.priority, reverse=True)
    sums = {
        "files": float(max((one.files for one in found), default=0)),
        "row_groups": float(max((one.row_groups for one in found), default=0)),
        "rows": float(max((one.rows for one in found), default=0)),
        "model_gb": sum(one.size for one in found) / 10**9,
    }
    return FilesOverview(chosen, tuple(found), check_guardrails(sums, sums, chosen))


def _survey_one(
    open_table: Callable[[TableName], TableHandle], name: TableName, sku: str
) -> TableFiles:
    """Analyse one table; its error must not hide the other tables."""
    try:
        analysis = analyze_table(open_table(name), scan=False)
        try:
            return _summarize(analysis, sku)
        finally:
            analysis.release()
    except Exception as error:
        text = error.message if isinstance(error, MirrorlakeError) else spark_message(error)
        return TableFiles(str(name), error=text)


def _summarize(analysis: Analysis, sku: str) -> TableFiles:
    s = analysis.summary
    now = measure([s])
    nearest = max(check_guardrails(now, now, sku).limits, key=lambda one: one.used)
    rules = dict.fromkeys(finding.rule for finding in analysis.advice(columns=False).findings)
    if s["Unreadable Files"]:
        rules = {"unreadable files": None} | rules
    return TableFiles(
        str(analysis.name),
        s["Parquet Files"],
        s["Row Groups"],
        s["Row Count"],
        s["File Size"],
        nearest.used,
        nearest.guardrail,
        tuple(rules),
    )
