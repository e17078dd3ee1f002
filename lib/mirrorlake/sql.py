"""Implement `Lake.sql`: find the tables, frames and change feeds of a statement, check versions.

CREATE TABLE makes a Delta table in the lake, DROP TABLE drops one recoverably, and VACUUM keeps the
files that frames and the change feed need.

Tables are read by path, so two lakes in one session never conflict. In `table_changes('t', 0, 10)`
the range is checked as in `Table.changes`, and the call is replaced with Delta's function that
reads by path. Names that are no table of the lake are left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import NoReturn

from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from mirrorlake.delta.commits import read_versions
from mirrorlake.delta.snapshot import delta_tables, open_snapshot, read_snapshot, stages_of
from mirrorlake.delta.table import TableHandle, remove_empty_log
from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import InvalidNameError, QueryError, UsageError
from mirrorlake.feed.ranges import readable_span
from mirrorlake.history.diff import FEED_COLUMNS
from mirrorlake.history.frames import framed_log
from mirrorlake.history.maintenance import check_mixes_no_partitions, compact_files, purge_files
from mirrorlake.history.vacuum import RETENTION_CHECK, vacuum_table
from mirrorlake.history.versions import check_when, version_at
from mirrorlake.history.write import check_own
from mirrorlake.mirror.options import VIEW_PROPERTY
from mirrorlake.mirror.trash import drop_table, make_room
from mirrorlake.names import TableName
from mirrorlake.query.catalog import Catalog, forget_name, keep_registered, no_table
from mirrorlake.query.statement import (
    DIALECT,
    Command,
    Edit,
    Relation,
    Statement,
    When,
    apply_edits,
    check_reads_only,
    locate_in_query,
    named_tables,
    parse_statement,
    resolve_tables,
)
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.sql import literal, query_error, query_errors, spark_message
from mirrorlake.storage.files import Listing, Storage
from mirrorlake.views.definition import columns_of_view, hiding_columns

_COMPACTING: dict[str, Callable[[TableHandle], object]] = {
    "OPTIMIZE": compact_files,
    "REORG TABLE": purge_files,
}
_NOT_FOUND = re.compile(r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (.+?) cannot be found")
_CREATE_VIEW = re.compile(r"\s*CREATE\s+(OR\s+REPLACE\s+)?(MATERIALIZED\s+)?VIEW\b", re.IGNORECASE)
_SHOW = re.compile(r"\s*SHOW\s+(TABLES|VIEWS)\b", re.IGNORECASE)


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
            hint="give only one of frame and as_of.",
        )

    def open_table(name: TableName) -> TableHandle | None:
        found = catalog.find(name)
        return None if found is None else TableHandle(spark, storage, found)

    def find(name: TableName) -> Relation | None:
        if frame is not None:
            place = framed_log(storage, lambda: spark, frame, name)
            return Relation(
                storage.path(place),
                lambda _: columns_of_view(read_snapshot(storage, place)),
                partial(_refuse, name),
            )
        found = catalog.find(name)
        if found is None:
            if when is not None and spark.catalog.tableExists(str(name)):
                raise UsageError(
                    f"{name} is no table of the lake, so it can't be read as of {when}.",
                    hint="give the version of each table in the query of the view.",
                )
            return None
        return Relation(
            storage.path(found.table_path),
            partial(hiding_columns, storage, found),
            partial(check_when, storage, found),
            _version(found, when),
        )

    def _version(table: TableName, when: When | None) -> int | None:
        if isinstance(when, datetime):
            return version_at(storage, table, when)
        if when is not None:
            check_when(storage, table, when)
        return when

    statement = parse_statement(query)
    if read_only:
        check_reads_only(statement)
    _check_not_renamed(statement, storage, catalog)
    _check_is_for_lakes(statement)
    command, target = statement.command, None
    if frame is not None and command is None:
        _check_unchanged(statement)
    placed: list[Edit] = []
    if command is not None:
        target = catalog.find(command.name)
        if command.words.startswith("CREATE"):
            target = _check_create(storage, command, target)
    if command is not None and target is not None:
        if frame is not None or when is not None:
            raise UsageError(
                f"{command.words} {target} is not a query, so it has no frame and no version.",
                hint="leave out frame and as_of.",
            )
        if command.words.startswith("DROP"):
            return _drop(spark, storage, target, command)
        if command.words == "VACUUM":
            return _vacuum(TableHandle(spark, storage, target), command)
        if command.words in _COMPACTING:
            check_mixes_no_partitions(storage, target, command.words)
        placed = command.place(storage.path(target.table_path))
    feeds = _resolve_feeds(statement, open_table)
    tables = resolve_tables(statement, find, partial(_evaluate, spark))
    edits = [*placed, *feeds, *tables]
    try:
        done = spark.sql(apply_edits(statement.text, edits))
    except Exception as error:
        message = spark_message(error)
        if missing := _NOT_FOUND.search(message):
            raise _not_found(storage, catalog, missing[1], query) from error
        raise query_error(locate_in_query(message, query, statement, edits)) from error
    if command is not None and target is not None and command.words in _COMPACTING:
        for stage in stages_of(storage, target):
            _COMPACTING[command.words](TableHandle(spark, storage, stage))
    if command is not None and target is not None and command.words.startswith("CREATE"):
        keep_registered(storage, lambda: spark, [target], ())
    return done


def _check_create(storage: Storage, command: Command, found: TableName | None) -> TableName | None:
    """Return the table of the lake that a CREATE TABLE makes; None if Spark makes another one.

    Args:
        storage: the lake's files.
        command: the command.
        found: the lake's table of this name, if there is one.

    Raises:
        UsageError: the name is taken.
        InvalidNameError: the name is a schema's, or the schema's name is a table's.
    """
    if found is not None and read_snapshot(storage, found.table_path) is None:
        found = None  # a process was killed while it wrote version 0
    if found is not None and command.words.endswith("EXISTS"):
        return found
    table = found or command.name
    check_own(storage, table)
    if found is not None and "REPLACE" not in command.words:
        raise UsageError(
            f"There is a table {found}.",
            hint="choose another name, or write CREATE OR REPLACE TABLE.",
        )
    if command.is_elsewhere:
        return None
    make_room(storage, table)
    if storage.local is not None:
        remove_empty_log(storage.path(table.table_path))
    return table


def _drop(spark: SparkSession, storage: Storage, table: TableName, command: Command) -> DataFrame:
    snapshot = open_snapshot(storage, table)
    if command.clauses:
        raise UsageError(
            f"DROP TABLE {table} {' '.join(command.clauses)}: a dropped table is kept for 7 days.",
            hint=f"write DROP TABLE {table}.",
        )
    if _is_fed(storage, table):
        raise UsageError(
            f"A publisher feeds {table}, so the mirror would create it again.",
            hint=f"delete its folder in the landing zone, {table.folder}; the next cycle of the"
            " mirror drops the table.",
        )
    if VIEW_PROPERTY in snapshot.properties:
        raise UsageError(
            f"{table} is a view.", hint=f"drop it with lake.views.drop({str(table)!r}, apply=True)."
        )
    drop_table(storage, table, None)
    forget_name(spark, storage, table)
    return spark.range(0).select()


_RETAIN = re.compile(
    r"(?:FULL ?)?(?:RETAIN (?P<hours>\d+(?:\.\d+)?) HOURS ?)?(?P<preview>DRY RUN)?"
)


def _vacuum(table: TableHandle, command: Command) -> DataFrame:
    """Run a VACUUM as `Table.vacuum` does, and return its report."""
    options = _RETAIN.fullmatch(" ".join(command.clauses))
    if options is None:
        raise UsageError(
            f"VACUUM {table.name} {' '.join(command.clauses)} is not supported.",
            hint="write VACUUM name [RETAIN number HOURS] [DRY RUN].",
        )
    done = vacuum_table(
        table,
        retention_hours=float(options["hours"]) if options["hours"] else None,
        allow_short=table.spark.conf.get(RETENTION_CHECK, "true") == "false",
        apply=not options["preview"],
    ).shown()
    rows = [(what, None if files == "" else int(files), size) for what, files, size in done.rows]
    return table.spark.createDataFrame(rows, "what string, files bigint, size string")


def _when(as_of: int | str | datetime | None) -> When | None:
    """Return the version or timestamp of `as_of`, if there is one.

    Up to 16 digits are a version; 17 digits are a timestamp, as in `name@…`.
    """
    if isinstance(as_of, str):
        text = as_of.strip()
        if re.fullmatch(r"[vV]?\d{1,16}", text, re.ASCII):
            return int(text.lstrip("vV"))
        return parse_utc_timestamp(text) if text else None
    return parse_utc_timestamp(as_of) if isinstance(as_of, datetime) else as_of


def _refuse(name: TableName, when: When) -> NoReturn:
    raise UsageError(
        f"A frame has one version of {name}, so {when} can't be read in it.",
        hint="remove the version from the query, or query without a frame.",
    )


def _not_found(storage: Storage, catalog: Catalog, wanted: str, query: str) -> QueryError:
    """Return the error for a name that Spark does not find.

    The table may exist, because the parser does not find the tables of every statement.
    """
    with suppress(InvalidNameError):
        if table := catalog.find(TableName.parse(wanted)):
            handle = f"lake.table({str(table)!r})"
            hint = f"use lake.spark.sql(…), with {handle}.sql_name as the table's name."
            if query.split(maxsplit=1)[0].upper() == "RESTORE":
                hint = f"use {handle}.restore(version, apply=True)."
            return QueryError(f"lake.sql can't run this statement on {table}.", hint=hint)
    refusal = no_table(wanted.replace("`", ""), delta_tables(storage))
    return QueryError(refusal.message, hint=refusal.hint)


def _check_unchanged(statement: Statement) -> None:
    """Refuse a statement that could change the tables of a frame."""
    try:
        check_reads_only(statement)
    except QueryError as error:
        raise UsageError(
            "A frame can't be changed.",
            hint="leave out frame; with it, begin the statement with SELECT or WITH.",
        ) from error


def _check_not_renamed(statement: Statement, storage: Storage, catalog: Catalog) -> None:
    """Refuse to rename a table of the lake, or a column of a table that the mirror writes.

    Delta can't rename a table that is read by path. The mirror would add a renamed column again.
    """
    for tree in statement.trees:
        if not (isinstance(tree, exp.Alter) and tree.find(exp.AlterRename, exp.RenameColumn)):
            continue
        old = (one.name for one in named_tables(tree) if one.node is tree.this)
        table = next(filter(None, map(catalog.find, old)), None)
        if table is None:
            continue
        if tree.find(exp.AlterRename):
            raise UsageError(
                f"lake.sql can't rename {table}.",
                hint="rename the folder of a published table in the landing zone; copy another"
                " table with CREATE TABLE … AS SELECT.",
            )
        if _is_fed(storage, table):
            raise UsageError(
                f"A publisher feeds {table}, so the mirror would add the renamed column again.",
                hint="rename the column at the publisher, or give the readers a view that selects"
                " it under the new name.",
            )


def _is_fed(storage: Storage, table: TableName) -> bool:
    """Check whether the table has a folder in the landing zone."""
    return storage.list(table.folder) != Listing((), ())


def _check_is_for_lakes(statement: Statement) -> None:
    """Refuse statements about Spark's own catalog, which does not list the tables of the lake."""
    if _CREATE_VIEW.match(statement.text):
        raise UsageError(
            "lake.sql can't create a view in the lake.",
            hint='use lake.views.create(name, "SELECT …"), or CREATE TEMPORARY VIEW for a session.',
        )
    if _SHOW.match(statement.text):
        raise UsageError(
            "lake.sql can't list the tables of the lake.",
            hint="use lake.tables() and lake.views.list().",
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
