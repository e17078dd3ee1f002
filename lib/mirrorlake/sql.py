"""Implement `Lake.sql`: find the tables, frames and change feeds of a statement, check versions.

Tables are read by path, so two lakes in one session never conflict. In `table_changes('t', 0, 10)`
the range is checked as in `Table.changes`, and the call is replaced with Delta's function that
reads by path. Names that are no table of the lake are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from mirrorlake.delta.commits import read_versions
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import InvalidNameError, UsageError
from mirrorlake.feed.ranges import readable_span
from mirrorlake.history.diff import FEED_COLUMNS
from mirrorlake.history.frames import Frames
from mirrorlake.history.versions import check_when, version_at
from mirrorlake.names import TableName
from mirrorlake.query.catalog import Catalog
from mirrorlake.query.statement import (
    DIALECT,
    Edit,
    Relation,
    Statement,
    When,
    apply_edits,
    check_reads_only,
    parse_statement,
    resolve_tables,
)
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.sql import literal, query_errors
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import hiding_columns


@query_errors()
def query_lake(
    spark: SparkSession,
    storage: Storage,
    query: str,
    *,
    frame: str | None = None,
    as_of: int | str | datetime | None = None,
    read_only: bool = False,
) -> DataFrame:
    """Run a query; arguments and errors are those of `Lake.sql`."""
    catalog = Catalog(storage)
    when = _when(as_of)
    if frame is not None and when is not None:
        raise UsageError(
            "Both frame and as_of are given, but a frame has its own versions.",
            hint="give only one of them.",
        )

    def open_table(name: TableName) -> TableHandle | None:
        found = catalog.find(name)
        return None if found is None else TableHandle(spark, storage, found)

    def find(name: TableName) -> Relation | None:
        found, check, version = catalog.find(name), partial(_refuse, name), None
        if frame is not None:
            path = Frames(storage, lambda: spark).table_path(frame, name)
        elif found is None:
            return None
        else:
            path = storage.path(found.table_path)
            check = partial(check_when, storage, found)
            version = _version(found, when)
        return Relation(path, hiding_columns(storage, found), check, version)

    def _version(table: TableName, when: When | None) -> int | None:
        if isinstance(when, datetime):
            return version_at(storage, table, when)
        if when is not None:
            check_when(storage, table, when)
        return when

    statement = parse_statement(query)
    if read_only:
        check_reads_only(statement)
    feeds = _resolve_feeds(statement, open_table)
    tables = resolve_tables(statement, find, partial(_evaluate, spark))
    return spark.sql(apply_edits(statement.text, [*feeds, *tables]))


def _when(as_of: int | str | datetime | None) -> When | None:
    """Return the version or timestamp of `as_of`, if there is one; digits alone are a version."""
    if isinstance(as_of, str):
        text = as_of.strip().removeprefix("v")
        if not text:
            return None
        return int(text) if text.isdecimal() else parse_utc_timestamp(text)
    return as_of


def _refuse(name: TableName, when: When) -> None:
    raise UsageError(
        f"A frame has one version of {name}, so {when} cannot be read in it.",
        hint="remove the version from the query, or query without a frame.",
    )


def _evaluate(spark: SparkSession, expression: str) -> datetime | None:
    row = spark.sql(f"SELECT unix_micros(CAST({expression} AS TIMESTAMP))").first()
    if row is None or row[0] is None:
        return None
    return datetime.fromtimestamp(row[0] / 1e6, timezone.utc)


def _resolve_feeds(
    statement: Statement, open_table: Callable[[TableName], TableHandle | None]
) -> Iterator[Edit]:
    """Yield the edits that make each `table_changes` of a table of the lake read by path.

    Args:
        statement: the query.
        open_table: returns the lake's table of a name, or None.

    Raises:
        FeedError: the change feed does not have the requested range.
        UsageError: the arguments are invalid.
    """
    for call in (call for tree in statement.trees for call in tree.find_all(exp.Anonymous)):
        name, *ends = call.expressions or [None]
        if call.name.lower() != "table_changes" or not (name and name.is_string):
            continue
        with suppress(InvalidNameError):
            if table := open_table(TableName.parse(name.name)):
                texts = [end.sql(DIALECT, normalize_functions=False) for end in ends]
                yield *call.meta["span"], _relation(table, texts)


def _relation(table: TableHandle, ends: list[str]) -> str:
    if not 1 <= len(ends) <= 2:
        raise UsageError(
            f"table_changes('{table.name}') has {len(ends)} arguments after the table's name;"
            " it takes a start and optionally an end.",
            hint="write table_changes('name', start[, end]).",
        )
    start, end = (_value(table, text) for text in (ends * 2)[:2])
    timeline = read_versions(table.storage, table.name.table_path)
    span = readable_span(table, timeline, start, end if len(ends) == 2 else None)
    if span.is_empty:
        nulls = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in FEED_COLUMNS.items()]
        return f"(SELECT *, {', '.join(nulls)} FROM {table.sql_name} WHERE false)"
    return f"table_changes_by_path({literal(table.path)}, {span.start}, {span.end})"


def _value(table: TableHandle, text: str) -> str:
    """Return a start or end as text: a number, or a timestamp in the session's time zone."""
    (row,) = to_arrow(table.spark.sql(f"SELECT CAST(({text}) AS STRING)")).to_pylist()
    return str(next(iter(row.values())))
