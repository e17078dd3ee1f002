"""`lake.views`: create, refresh, explain, check, read, list and drop views."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.snapshot import VECTORS, open_snapshot, read_snapshot
from mirrorlake.errors import UsageError
from mirrorlake.history.write import check_own, create_table
from mirrorlake.mirror.options import VIEW_PROPERTY
from mirrorlake.mirror.trash import make_room
from mirrorlake.names import (
    HIDDEN,
    STATE,
    TableName,
    split_names,
    stages_folder,
    visible_columns,
)
from mirrorlake.notices import noop
from mirrorlake.query.catalog import Catalog
from mirrorlake.results import Outcome
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import (
    Definition,
    ViewStatus,
    definition_of,
    hiding_columns,
    list_definitions,
    parse_query,
    read_definition,
    read_view_state,
    reason,
    view_status,
)
from mirrorlake.views.explain import (
    FULL,
    Explanation,
    explain_view,
    forget_costs,
)
from mirrorlake.views.plan import find_stages, listed, make_plan, pin_sources
from mirrorlake.views.refresh import (
    Check,
    Refresh,
    ViewListener,
    ViewRuns,
    ViewStep,
    check_how,
    check_view,
    refresh_all,
    refresh_view,
    versions_of,
)
from mirrorlake.views.shape import Method
from mirrorlake.views.stages import break_ties
from mirrorlake.views.view_sql import stored_columns


class Views:
    """The views of a lake, returned by `lake.views`.

    Args:
        storage: the lake's files.
        spark: a function that returns the Spark session. It is called only if an operation needs
            Spark.
    """

    def __init__(self, storage: Storage, spark: Callable[[], SparkSession]) -> None:
        self._storage = storage
        self._spark = spark

    def create(
        self,
        name: str | TableName,
        sql: str,
        *,
        deletion_vectors: bool = True,
        dry_run: bool = False,
        on_step: ViewListener = noop,
    ) -> Refresh:
        """Create a view: a table with the result of a query. Fill it.

        Safe to interrupt: the next call completes the work.

        Args:
            name: the name of the view. No table of the lake may have it.
            sql: one query that reads tables of the lake (the view's sources).
            deletion_vectors: whether the table of a new view has deletion vectors. Without them,
                more readers can open the table, and a refresh rewrites the files that it changes.
            dry_run: check the query without creating the view. The default is False.
            on_step: a function that is called after each finished step.

        Returns:
            The result of the first refresh.

        Raises:
            UsageError: the name is in use, or the query reads no table of the lake.
            QueryError: Spark cannot analyze the query.

        Example:
            >>> query = "SELECT shop, sum(n) AS n FROM sales GROUP BY shop"
            >>> lake.views.create("totals", query)  # doctest: +SKIP
        """
        view = Catalog(self._storage).existing_or_new(name)
        made = self._make(view, sql.strip(), vectors=deletion_vectors, dry_run=dry_run)
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
        """Refresh a view: bring its rows up to date with the newest versions of its sources.

        Args:
            name: the name of the view.
            how: `incremental` computes the new rows from the sources' changes, if there is a rule
                for the query. `full` runs the whole query. `auto` (the default) selects the one
                with the shorter expected duration.
            check: afterwards, compare the view with the result of its query. The default is False.
            dry_run: only return what the refresh would do. `explain` returns more details.
            on_step: a function that is called after each finished step.

        Returns:
            What the refresh did, and why.

        Raises:
            TableNotFoundError: the view does not exist, or one of its sources does not exist any
                more.
            UsageError: a table that is no view has this name.
            QueryError: the query cannot be run any more, because its sources have changed (for
                example, a column is missing).
            ConflictError: another writer changed the view during the refresh.

        Example:
            >>> lake.views.refresh("totals", check=True)  # doctest: +SKIP
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
        names: str | Sequence[str] = (),
        *,
        how: str = "auto",
        check: bool = False,
        dry_run: bool = False,
    ) -> ViewRuns:
        """Refresh several views. If one fails, the others are still refreshed.

        If a view reads other views, those are refreshed first.

        Args:
            names: the names of the views: a list, or one text such as `"totals, delays"`. By
                default, all views.
            how: as for `refresh`.
            check: as for `refresh`.
            dry_run: as for `refresh`.

        Returns:
            For each view, its status before the refresh, and the result or the error of the
            refresh.

        Raises:
            TableNotFoundError: the view does not exist.
            UsageError: a table that is no view has one of the names, or `how` is unknown.

        Example:
            >>> lake.views.refresh_all().check()  # doctest: +SKIP
        """
        check_how(how)
        chosen = [self.get(name) for name in split_names(names)] or self.list()
        refresh = partial(self.refresh, how=how, check=check, dry_run=dry_run)
        return refresh_all(self._storage, chosen, refresh)

    def explain(self, name: str | TableName) -> Explanation:
        """Explain what the next refresh would do, and why. Read only logs, no rows.

        Args:
            name: the name of the view.

        Returns:
            The view's rule, the mode of the next refresh with its reason, and the expected
            durations.

        Raises:
            TableNotFoundError: the view does not exist, or one of its sources does not exist any
                more.
            UsageError: a table that is no view has this name.
            QueryError: the query cannot be run any more, because its sources have changed (for
                example, a column is missing).

        Example:
            >>> lake.views.explain("totals").mode  # doctest: +SKIP
            'incremental'
        """
        return explain_view(self._spark(), self._storage, self.get(name))

    def check(self, name: str | TableName) -> Check:
        """Compare a view with its query. The query reads the source versions of the last refresh.

        Args:
            name: the name of the view.

        Returns:
            How many rows of the query's result are missing in the view, and how many rows of the
            view are not in the query's result.

        Raises:
            TableNotFoundError: the view does not exist.
            UsageError: it is not known which source versions the last refresh read.
            QueryError: these versions cannot be read any more.

        Example:
            >>> lake.views.check("totals").differences  # doctest: +SKIP
            0
        """
        definition = self.get(name)
        state = read_view_state(self._storage, definition)
        if not state.sources:
            raise UsageError(
                f"The view {definition.name} can't be checked: {state.reason}.",
                hint="refresh the view first.",
            )
        session = new_session(self._spark())
        if definition.stages:
            snapshot = open_snapshot(self._storage, definition.name)
            sql = break_ties(definition.sql, visible_columns(snapshot.schema))
            definition = replace(definition, sql=sql)
        sources = pin_sources(self._storage, definition, state.sources)
        shown = [replace(s, new=s.new if s.old is None else s.old) for s in sources]
        plan = make_plan(session, definition, shown)
        return check_view(session, plan, self._storage.path(definition.name.table_path))

    def read(self, name: str | TableName) -> DataFrame:
        """Return the rows of a view, as the last refresh left them.

        Args:
            name: the name of the view.

        Raises:
            TableNotFoundError: the view does not exist.
            UsageError: a table that is no view has this name.

        Example:
            >>> lake.views.read("totals").show()  # doctest: +SKIP
        """
        view = self.get(name).name
        names = hiding_columns(self._storage, view)
        path = delta_name(self._storage.path(view.table_path))
        return self._spark().sql(f"SELECT {'*' if names is None else listed(names)} FROM {path}")

    def get(self, name: str | TableName) -> Definition:
        """Return the definition of a view.

        Args:
            name: the name of the view.

        Raises:
            TableNotFoundError: the view does not exist.
            UsageError: a table that is no view has this name.
        """
        return read_definition(self._storage, Catalog(self._storage).existing_or_new(name))

    def list(self, tables: Iterable[TableName] | None = None) -> list[Definition]:
        """Return the views, ordered by name; needs no Spark.

        Args:
            tables: return only views among these tables; by default, all views.
        """
        return list_definitions(self._storage, tables)

    def status(self, tables: Iterable[TableName] | None = None) -> builtins.list[ViewStatus]:
        """Return the status of the views, ordered by name. Read only logs, without Spark.

        Args:
            tables: return only the status of views among these tables; by default, of all views.
        """
        return [view_status(self._storage, one) for one in list_definitions(self._storage, tables)]

    def drop(self, name: str | TableName, *, apply: bool = False) -> Outcome:
        """Drop a view and its table. The view's sources do not change.

        Args:
            name: the name of the view.
            apply: drop the view. By default, the method only reports what it would do.

        Raises:
            TableNotFoundError: the view does not exist.
            UsageError: a table that is no view has this name, or another view reads this view.
        """
        definition = self.get(name)
        for other in self.list():
            if definition.name in other.sources:
                raise UsageError(
                    f"The view {other.name} reads {definition.name}.",
                    hint=f"drop {other.name} first.",
                )
        effect = "the view is dropped, with its table and its history"
        done = Outcome("drop", str(definition.name), effect, applied=apply)
        if not apply:
            return done
        # Stages are deleted first: a refresh after an interrupted drop creates them again.
        self._storage.delete_folder(stages_folder(definition.name))
        if self._storage.local is None:
            self._storage.delete_folder(definition.name.table_path)  # its log goes first
        else:
            grave = f"{STATE}/views/dropped-{uuid.uuid4().hex}"
            # The folder is moved first, so that an interrupted drop leaves no partial view.
            self._storage.move_folder(definition.name.table_path, grave)
            self._storage.delete_folder(grave)
        self._storage.delete_folder(stages_folder(definition.name))  # of a refresh in the meantime
        for one in (definition, *definition.chain[:-1]):
            forget_costs(self._storage, one.name)
        return done

    def _make(self, name: TableName, sql: str, *, vectors: bool, dry_run: bool) -> Definition:
        """Create the empty table of a view, unless it exists with the same query."""
        session = new_session(self._spark())
        there = read_snapshot(self._storage, name.table_path)
        if found := definition_of(name, there):
            if found.sql == sql:
                return found
            raise UsageError(
                f"There is already a view {name} with another query.",
                hint=f"drop it first: views.drop({str(name)!r}, apply=True)"
                f" (view drop {name} --apply).",
            )
        if there is not None:
            raise UsageError(f"There is already a table {name}.", hint="choose another name.")
        check_own(self._storage, name)
        definition = Definition(name, uuid.uuid4().hex, sql, _sources(self._storage, sql))
        plan = make_plan(session, definition, pin_sources(self._storage, definition, {}))
        stages, method = find_stages(session, plan)
        definition, columns = replace(definition, stages=stages), stored_columns(session, plan)
        if own := [column for column in plan.names if column.startswith(HIDDEN)]:
            raise UsageError(
                f"The column name {own[0]} is reserved for mirrorlake.",
                hint="give the column another name with AS.",
                column=own[0],
            )
        properties = {VIEW_PROPERTY: definition.as_property()}
        if vectors and (stages or method is not Method.FULL):
            # A refresh deletes single rows without rewriting their files.
            properties[VECTORS] = "true"
        # If a refresh must use MERGE, a change feed of single rows doubles its cost. So the feed is
        # off unless a user enables it. Delta 4.4 cannot write the change rows of an update if a
        # column's name has a backtick.
        by_row = method in (Method.ROWS, Method.PARTITIONS)
        feed = not by_row and not any("`" in column for column in columns)
        if not dry_run:
            make_room(self._storage, name)
            # A refresh during a drop of a view of this name may have left stages.
            self._storage.delete_folder(stages_folder(name))
            path = self._storage.path(name.table_path)
            create_table(session, path, columns, feed=feed, properties=properties)
        return definition


def _sources(storage: Storage, sql: str) -> dict[TableName, tuple[str, ...]]:
    """Return the tables of a query, each with its current columns."""
    found: dict[TableName, tuple[str, ...]] = {}
    catalog = Catalog(storage)
    for named in parse_query(sql).tables:
        table = catalog.find(named.name)
        snapshot = None if table is None else read_snapshot(storage, table.table_path)
        if table is None or snapshot is None:
            raise UsageError(
                f"There is no table {named.name} in the lake, so a view can't read it.",
                hint="mirror or write the table first.",
            )
        found[table] = tuple(visible_columns(snapshot.schema))
    if not found:
        raise UsageError(
            "The view's query reads no table of the lake.",
            hint="write FROM and the name of a table.",
        )
    return found
