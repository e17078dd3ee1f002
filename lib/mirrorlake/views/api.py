"""The views of one lake: created, refreshed, explained, checked, listed, dropped."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import column_types
from mirrorlake.errors import UsageError
from mirrorlake.feed.schema import create_table
from mirrorlake.history.write import check_own
from mirrorlake.mirror.properties import VIEW_PROPERTY
from mirrorlake.names import STATE, TableName, as_table
from mirrorlake.notices import noop
from mirrorlake.query.catalog import Catalog
from mirrorlake.results import Outcome
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import (
    Definition,
    ViewStatus,
    definition_of,
    hiding_columns,
    list_definitions,
    read_definition,
    read_view_state,
    reason,
    view_status,
    visible_columns,
)
from mirrorlake.views.explain import (
    FULL,
    Explanation,
    explain,
    forget_costs,
    plan_refresh,
    refresh_session,
)
from mirrorlake.views.plan import listed, make_plan, pin_sources
from mirrorlake.views.query import HIDDEN, parse_query
from mirrorlake.views.refresh import (
    Check,
    Refresh,
    ViewListener,
    ViewStep,
    check_how,
    check_view,
    refresh_view,
    versions_of,
)
from mirrorlake.views.refresh_all import ViewRuns, refresh_all
from mirrorlake.views.shape import Method
from mirrorlake.views.view_sql import whole_contents


class Views:
    """The views of a lake, as `lake.views` hands them out.

    Args:
        storage: the lake's files.
        spark: called when, and only when, a session is needed.
    """

    def __init__(self, storage: Storage, spark: Callable[[], SparkSession]) -> None:
        self._storage = storage
        self._spark = spark

    def create(
        self,
        name: str | TableName,
        sql: str,
        *,
        dry_run: bool = False,
        on_step: ViewListener = noop,
    ) -> Refresh:
        """Makes a view and fills it; if it is killed on the way, the next call completes it.

        Args:
            name: a table's name that is free.
            sql: one query over the lake's tables.
            dry_run: check the query, make nothing.
            on_step: called after every finished step.

        Raises:
            UsageError: the name is taken, or the query reads no table of the lake.
            QueryError: Spark refuses the query.
        """
        view = as_table(name)
        made = self._make(view, sql.strip(), dry_run=dry_run)
        if dry_run:
            at, why = versions_of(pin_sources(self._storage, made, {})), reason("FIRST", str(view))
            return Refresh(str(view), FULL, why, -1, at, applied=False)
        on_step(ViewStep.CREATED)
        return self.refresh(view, on_step=on_step)

    def refresh(
        self,
        name: str | TableName,
        *,
        how: str = "auto",
        check: bool = False,
        dry_run: bool = False,
        on_step: ViewListener = noop,
    ) -> Refresh:
        """Brings a view up to date with its sources.

        Args:
            name: the view.
            how: `auto` lets the expected costs decide; `incremental` refreshes incrementally
                wherever there is a rule for it, `full` computes everything again.
            check: compare the view with its query afterwards.
            dry_run: only return what the refresh would do; `explain` has more.
            on_step: called after every finished step.

        Raises:
            TableNotFoundError: there is no such view, or a source is gone.
            UsageError: it is a table, not a view.
            QueryError: the query no longer fits its sources.
            ConflictError: another writer wrote to the view meanwhile.
        """
        definition = self.get(name)
        done = refresh_view(
            self._spark(), self._storage, definition, how=how, dry_run=dry_run, on_step=on_step
        )
        if check and not dry_run:
            done = replace(done, differences=self.check(definition.name).differences)
        return done

    def refresh_all(
        self,
        names: Sequence[str] = (),
        *,
        how: str = "auto",
        check: bool = False,
        dry_run: bool = False,
    ) -> ViewRuns:
        """Refreshes views, those first that others read; one that fails stops no other.

        Args:
            names: which; by default all.
            how: as for `refresh`.
            check: as for `refresh`.
            dry_run: as for `refresh`.

        Returns:
            How each stood before, what was done, and its error where it failed.

        Raises:
            TableNotFoundError: there is no such view.
            UsageError: it is a table, or there is no such way to refresh.

        Example:
            >>> lake.views.refresh_all().check()  # doctest: +SKIP
        """
        check_how(how)
        chosen = [self.get(name) for name in names] or self.list()
        refresh = partial(self.refresh, how=how, check=check, dry_run=dry_run)
        return refresh_all(self._storage, chosen, refresh)

    def explain(self, name: str | TableName) -> Explanation:
        """What the next refresh would do, and why; reads logs only. See `refresh` for errors."""
        definition, spark = self.get(name), self._spark()
        state = read_view_state(self._storage, definition)
        sources = pin_sources(self._storage, definition, state.sources)
        return explain(plan_refresh(spark, self._storage, definition, state, sources))

    def check(self, name: str | TableName) -> Check:
        """Compares a view with its query at the versions that it shows, by EXCEPT ALL both ways.

        Raises:
            UsageError: it shows none.
            QueryError: they can't be read any more.
        """
        definition = self.get(name)
        state = read_view_state(self._storage, definition)
        if not state.sources:
            raise UsageError(f"{definition.name} can't be checked: {state.reason}.")
        session = refresh_session(self._spark())
        sources = pin_sources(self._storage, definition, state.sources)
        shown = [replace(s, new=s.new if s.old is None else s.old) for s in sources]
        plan = make_plan(session, definition, shown)
        return check_view(session, plan, self._storage.path(definition.name.table_path))

    def read(self, name: str | TableName) -> DataFrame:
        """The view's rows as its last refresh left them."""
        view = self.get(name).name
        names = hiding_columns(self._storage, view)
        path = delta_name(self._storage.path(view.table_path))
        return self._spark().sql(f"SELECT {'*' if names is None else listed(names)} FROM {path}")

    def get(self, name: str | TableName) -> Definition:
        """A view's definition.

        Raises:
            TableNotFoundError: there is no table of that name.
            UsageError: it is a table, not a view.
        """
        wanted = as_table(name)
        return read_definition(self._storage, Catalog(self._storage).find(wanted) or wanted)

    def list(self, tables: Iterable[TableName] | None = None) -> list[Definition]:
        """Return the views, ordered by name; needs no Spark.

        Args:
            tables: look among these tables only; by default among all.
        """
        return list_definitions(self._storage, tables)

    def status(self, tables: Iterable[TableName] | None = None) -> builtins.list[ViewStatus]:
        """How the views stand, ordered by name; reads logs only, needs no Spark.

        Args:
            tables: look among these only.
        """
        return [view_status(self._storage, one) for one in list_definitions(self._storage, tables)]

    def drop(self, name: str | TableName, *, apply: bool = False) -> Outcome:
        """Removes a view with its table; its sources stay as they are.

        Args:
            name: the view.
            apply: do it; by default it is only said.

        Raises:
            UsageError: another view reads it.
        """
        definition = self.get(name)
        for other in self.list():
            if definition.name in other.sources:
                raise UsageError(
                    f"The view {other.name} reads {definition.name}.",
                    hint=f"drop {other.name} first.",
                )
        effect = "the view goes, with its table and its history"
        done = Outcome("drop", str(definition.name), effect, applied=apply)
        if not apply:
            return done
        if self._storage.local is None:
            self._storage.delete_folder(definition.name.table_path)  # its log goes first
        else:
            grave = f"{STATE}/views/dropped-{uuid.uuid4().hex}"
            # Moved first: a view that is killed while it is deleted is gone all the same.
            self._storage.move_folder(definition.name.table_path, grave)
            self._storage.delete_folder(grave)
        forget_costs(self._storage, definition.name)
        return done

    def _make(self, name: TableName, sql: str, *, dry_run: bool) -> Definition:
        """Makes a view's table, empty; nothing happens if it is there with the same query."""
        session = refresh_session(self._spark())
        there = read_snapshot(self._storage, name.table_path)
        if found := definition_of(name, there):
            if found.sql == sql:
                return found
            raise UsageError(f"There is a view {name} with another query.", hint="drop it first.")
        if there is not None:
            raise UsageError(f"There is a table {name}.", hint="choose another name.")
        check_own(self._storage, name)
        definition = Definition(name, uuid.uuid4().hex, sql, _sources(self._storage, sql))
        plan = make_plan(session, definition, pin_sources(self._storage, definition, {}))
        columns = column_types(session.sql(whole_contents(plan, 0)).schema)
        if own := [column for column in plan.names if column.startswith(HIDDEN)]:
            raise UsageError(f"The name {own[0]} is kept for mirrorlake.", column=own[0])
        properties = {VIEW_PROPERTY: definition.as_property()}
        if plan.shape.method is not Method.FULL:
            # Single rows go, and their files are not rewritten.
            properties["delta.enableDeletionVectors"] = "true"
        # A feed of single rows would cost a merge as much again, so it is off until a user wants
        # it. Delta 4.4 can't write an update's change rows where a column's name has a backtick.
        by_row = plan.shape.method in (Method.ROWS, Method.PARTITIONS)
        feed = not by_row and not any("`" in column for column in columns)
        if not dry_run:
            path = self._storage.path(name.table_path)
            create_table(session, path, columns, feed=feed, properties=properties)
        return definition


def _sources(storage: Storage, sql: str) -> dict[TableName, tuple[str, ...]]:
    """The query's tables, each with the columns that it has now."""
    found: dict[TableName, tuple[str, ...]] = {}
    catalog = Catalog(storage)
    for named in parse_query(sql).tables:
        table = catalog.find(named.name)
        snapshot = None if table is None else read_snapshot(storage, table.table_path)
        if table is None or snapshot is None:
            raise UsageError(
                f"There is no table {named.name} in the lake.",
                hint="a view reads tables of its lake only.",
            )
        found[table] = tuple(visible_columns(snapshot))
    if not found:
        raise UsageError("The view's query reads no table.", hint="write FROM and a table.")
    return found
