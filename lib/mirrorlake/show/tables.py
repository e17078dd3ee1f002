"""Small tables to look at, ordered and limited: rows, a report, a zone's files, what changed."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import NumericType

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.history.diff import (
    CHANGE_TYPE,
    Match,
    changed_columns,
    choose_match,
    count_changes,
    diff_rows,
    is_made_anew,
    readable_snapshots,
)
from mirrorlake.landing.check import inspect_file
from mirrorlake.landing.metadata import Marker, read_metadata
from mirrorlake.landing.zone import list_folder
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.mirror.status import Report
from mirrorlake.names import TableName
from mirrorlake.results import Count, Result, TextTable
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.sql import query_errors, quote
from mirrorlake.storage.paths import lake_path

if TYPE_CHECKING:
    from mirrorlake.history.tools import VersionPair
    from mirrorlake.lake import Lake


@query_errors()
def show_rows(
    df: DataFrame, *, order_by: Sequence[str | Column] = (), limit: int = 10
) -> TextTable:
    """The first rows of a Spark DataFrame; no others are fetched.

    Args:
        df: any DataFrame; its moments are shown in the session's time zone.
        order_by: what makes the order certain: columns, or names with or without ` DESC`; nothing
            for the DataFrame's own order.
        limit: most rows.

    Raises:
        QueryError: Spark failed the query.
    """
    order = [
        sf.desc(by.removesuffix(" DESC")) if isinstance(by, str) and by.endswith(" DESC") else by
        for by in order_by
    ]
    first = (df.orderBy(*order) if order else df).limit(limit + 1)
    names = first.columns
    # By position: a query's columns may share a name. Python would turn moments into its own zone.
    first = first.toDF(*[f"c{number}" for number in range(len(names))])
    shown = [
        sf.col(name).cast("string") if kind == "timestamp" else sf.col(name)
        for name, kind in first.dtypes
    ]
    rows = tuple(tuple(row) for row in first.select(*shown).collect())
    kinds = [field.dataType for field in first.schema]
    numeric = frozenset(i for i, kind in enumerate(kinds) if isinstance(kind, NumericType))
    return TextTable(tuple(names), rows[:limit], more=len(rows) > limit, numeric=numeric)


@query_errors()
def save_rows(df: DataFrame, path: str) -> int:
    """Writes a DataFrame's rows to one Parquet file, and returns how many they are.

    All rows pass through this process's memory.

    Args:
        df: any DataFrame; no two columns share a name.
        path: the file; it must not be there yet. A relative path starts from `MIRRORLAKE_HOME`, or
            the project.

    Raises:
        UsageError: the file is there already, or its folder can't be written to.
        QueryError: Spark failed the query.
    """
    target = Path(lake_path(path))
    if target.exists():
        raise UsageError(f"{target} is there already.", hint="name another file, or remove it.")
    rows = to_arrow(df)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, target)
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror}.") from error
    return int(rows.num_rows)


def show_status(report: Report) -> TextTable:
    """How the tables stand: one row a table, without what changes from run to run."""
    found = report.shown()
    counts = ("rows", "backlog_files")
    rows = tuple(
        tuple(
            Count(value) if name in counts else value
            for name, value in zip(found.columns, row, strict=True)
        )
        for row in found.rows
    )
    return TextTable(found.columns, rows)


def show_errors(report: Report) -> TextTable:
    """What stopped tables, one row each: in which file and column, and how to go on."""
    found = [(table.full_name, table.error) for table in report.tables if table.error]
    # Most errors are of a whole column or file: a row is shown where one is named.
    row = ("row",) if any(error["row"] for _, error in found) else ()
    facts = ("file", *row, "column", "message")
    rows = tuple((table, *(error[fact] for fact in facts)) for table, error in found)
    return TextTable(("table", *facts), rows)


def show_files(lake: Lake, table: str) -> TextTable:
    """The data files that lie in a table's folder of the zone, with their rows by marker.

    Raises:
        DataFileError: one of them can't be read.
    """
    name = TableName.parse(table)
    metadata = read_metadata(lake.storage, name)
    rows = []
    for _, entry in sorted(list_folder(lake.storage, name).numbered.items()):
        facts = inspect_file(lake.storage, f"{name.folder}/{entry.name}", metadata)
        marker = "several" if facts.marker else "none: initial load"
        if facts.marker and len(facts.rows) == 1:
            kind = next(iter(facts.rows))
            marker = f"{int(kind)}: {Marker(kind).name.lower()}"
        rows.append((entry.name, Count(facts.row_count), marker, f"{entry.size / 1024:,.0f} KiB"))
    return TextTable(("file", "rows", "marker", "size"), tuple(rows))


def rows_document(frame: DataFrame) -> dict[str, Any]:
    """`{"columns": [names], "rows": [{column: value}]}`."""
    table = to_arrow(frame)
    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]
    return {"columns": table.column_names, "rows": rows}


def plain(value: Any) -> Any:
    """One value in JSON's own types."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc) if value.tzinfo else value
        return moment.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


@dataclass(frozen=True)
class Difference(Result):
    """What changed between two versions.

    Attributes:
        pair: the versions.
        by: how rows were matched, in words.
        counts: rows `added`, `removed` and `changed`.
        columns: names of columns that came, with `+`, or went, with `-`.
        rows: the first of the changes, ordered by the columns that rows are matched by.
    """

    pair: VersionPair
    by: str = ""
    counts: dict[str, int] | None = None
    columns: tuple[str, ...] = ()
    rows: TextTable | None = None

    def shown(self) -> TextTable:
        """The counts, one row; or why there are none."""
        if self.counts is None:
            return TextTable(("note",), ((self.pair.note,),))
        columns = ("from", "to", *self.counts, "columns", "rows matched")
        found: tuple[Any, ...] = tuple(self.counts.values())
        names = " ".join(self.columns)
        return TextTable(columns, ((self.pair.before, self.pair.after, *found, names, self.by),))

    def __repr__(self) -> str:
        if self.counts is None:
            return self.pair.note
        return f"{self.pair!r}: " + ", ".join(f"{n:,} {what}" for what, n in self.counts.items())


def find_difference(
    table: TableHandle, pair: VersionPair, *, keys: Sequence[str] = (), limit: int = 10
) -> Difference:
    """What changed between two versions: counted, and the first rows.

    Args:
        table: which table.
        pair: the versions.
        keys: the columns to match rows by; by default the table's own keys, and if it has none as
            `diff_versions` chooses.
        limit: most rows to show.

    Raises:
        VersionError: one of the versions can't be read, or no longer.
        QueryError: Spark failed.
    """
    if pair.note:
        return Difference(pair)
    old, new = readable_snapshots(table, pair.before, pair.after)
    settings = [snapshot.properties if snapshot else {} for snapshot in (old, new)]
    schemas = [snapshot.schema if snapshot else {} for snapshot in (old, new)]
    match, by = choose_match(*settings, made_anew=is_made_anew(old, new))
    declared = declared_keys(settings[1])
    if keys or (declared and all(key in schema for key in declared for schema in schemas)):
        match, by = Match.KEY, tuple(keys) or declared
    rows = diff_rows(table.rows(pair.before), table.rows(pair.after), match, by).cache()
    try:
        counts = count_changes(rows)
        shown = show_rows(rows, order_by=_order(rows, by), limit=limit)
    finally:
        rows.unpersist()
    matched = f"by {', '.join(by) or match.value.replace('-', ' ')}"
    return Difference(pair, matched, counts, tuple(changed_columns(old, new)), shown)


def _order(rows: DataFrame, keys: Sequence[str]) -> list[str]:
    """Columns that order the rows as far as that goes; Spark can't order by maps and variants."""
    kinds = dict(rows.dtypes)
    spelled = {name.lower(): name for name in kinds}
    first = list(dict.fromkeys(spelled[k.lower()] for k in keys if k.lower() in spelled))
    sortable = [
        name
        for name, kind in kinds.items()
        if name != CHANGE_TYPE and "map<" not in kind and "variant" not in kind
    ]
    names = [*first, *(name for name in sortable if name not in first)][: len(first) + 8]
    if not first:
        return [*map(quote, names), quote(CHANGE_TYPE)]
    # A row as it was stands before the row as it is.
    rest = map(quote, names[len(first) :])
    return [*map(quote, first), f"{quote(CHANGE_TYPE)} DESC", *rest]
