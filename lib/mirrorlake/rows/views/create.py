"""Makes a view: its query is looked at, its table made with the definition in it, and filled."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pyspark.sql import SparkSession

from mirrorlake.delta_log import read_snapshot
from mirrorlake.errors import UsageError
from mirrorlake.feed.enable import column_types, create_table
from mirrorlake.history.write import check_own
from mirrorlake.mirror.properties import VIEW_PROPERTY
from mirrorlake.names import TableName
from mirrorlake.rows.views.calls import HIDDEN
from mirrorlake.rows.views.clauses import parse_query
from mirrorlake.rows.views.definition import Definition, definition_of, visible_columns
from mirrorlake.rows.views.plan import make_plan
from mirrorlake.rows.views.shape import Method
from mirrorlake.rows.views.sources import pin_sources
from mirrorlake.rows.views.view_sql import whole_contents
from mirrorlake.storage import Storage

Finder = Callable[[TableName], "TableName | None"]
_BY_ROW = (Method.ROWS, Method.PARTITIONS)


def create_view(
    spark: SparkSession,
    storage: Storage,
    name: TableName,
    sql: str,
    find: Finder,
    *,
    dry_run: bool = False,
) -> Definition:
    """Makes a view's table, empty; nothing happens if it is there with the same query.

    Args:
        spark: the refresh's session.
        storage: the lake's files.
        name: the view's.
        sql: one query over the lake's tables.
        find: the lake's own spelling of a table's name, or None.
        dry_run: check everything, make nothing.

    Raises:
        UsageError: the name is taken, or the query reads no table of the lake.
        QueryError: Spark refuses the query.
    """
    there = read_snapshot(storage, name.table_path)
    if found := definition_of(name, there):
        if found.sql == sql:
            return found
        raise UsageError(f"There is a view {name} with another query.", hint="drop it first.")
    if there is not None:
        raise UsageError(f"There is a table {name}.", hint="choose another name.")
    check_own(storage, name)
    definition = Definition(name, uuid.uuid4().hex, sql, _sources(storage, sql, find))
    plan = make_plan(spark, definition, pin_sources(storage, definition, {}))
    columns = column_types(spark.sql(whole_contents(plan, 0)).schema)
    if own := [column for column in plan.names if column.startswith(HIDDEN)]:
        raise UsageError(f"The name {own[0]} is kept for mirrorlake.", column=own[0])
    properties = {VIEW_PROPERTY: definition.as_property()}
    if plan.shape.method is not Method.FULL:  # single rows go, and their files are not written anew
        properties["delta.enableDeletionVectors"] = "true"
    # A feed of single rows would cost a merge as much again: whoever needs it switches it on. And
    # Delta 4.4 can't write an update's change rows where a column's name has a backtick.
    feed = plan.shape.method not in _BY_ROW and not any("`" in column for column in columns)
    if not dry_run:
        path = storage.path(name.table_path)
        create_table(spark, path, columns, feed=feed, properties=properties)
    return definition


def _sources(storage: Storage, sql: str, find: Finder) -> dict[TableName, tuple[str, ...]]:
    """The query's tables, each with the columns that it has now."""
    found: dict[TableName, tuple[str, ...]] = {}
    for reference in parse_query(sql).references:
        table = find(reference.name)
        snapshot = None if table is None else read_snapshot(storage, table.table_path)
        if table is None or snapshot is None:
            raise UsageError(
                f"There is no table {reference.name} in the lake.",
                hint="a view reads tables of its lake only.",
            )
        found[table] = tuple(visible_columns(snapshot))
    if not found:
        raise UsageError("The view's query reads no table.", hint="write FROM and a table.")
    return found
