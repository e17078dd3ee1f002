"""Apply changes to a view's table: find the rows to delete and insert, and commit them.

The module has one function for each rule (`Method`); `replace_rows` deletes and inserts the rows. A
refresh is exactly one commit. Its appId is the view's id, and its txnVersion is the number of the
refresh. If two refreshes start from the same state, Delta skips the second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.exchange import (
    FILE,
    ROW,
    count_rows,
    exchange_rows,
    few_files,
    know_files,
    mark_rows,
    placed_rows,
)
from mirrorlake.delta.table import committing
from mirrorlake.errors import ConflictError
from mirrorlake.names import HIDDEN, quote
from mirrorlake.spark.jvm import (
    MOST_BROADCAST,
    DeltaTransaction,
    RowActions,
    can_exchange,
    few_rows,
    rows_among,
    transaction,
)
from mirrorlake.spark.sql import delta_name, is_conflict, setting, spark_message, temporary_view
from mirrorlake.storage.files import Storage
from mirrorlake.views.plan import SIGN, Plan, listed, named, net_rows, same
from mirrorlake.views.shape import Method
from mirrorlake.views.view_sql import (
    CHECK,
    HASH,
    ID,
    Delta,
    arguments_of,
    extremes_of,
    grouped,
    has_rows,
    hashes,
    is_changed,
    row_items,
    selected_groups,
    shown_of,
    state_columns,
    state_of,
    with_ids,
)

COMES = f"{HIDDEN}comes"  # whether a row is inserted
_FILTERED_ROWS = 200_000  # of a view: with fewer, a Bloom filter costs more than it saves
_KEPT_ROWS = 20_000  # the most rows that the driver keeps
_READ_ROWS = 20_000  # of a view: reading so many rows is cheaper than to search for some of them


@dataclass(frozen=True)
class Target:
    """The table that a refresh writes to, and its commit.

    Attributes:
        storage: the lake's files.
        folder: the folder of the view's table within the lake.
        app_id: the application id of the view.
        number: the number of the refresh.
        note: the `userMetadata` of the commit.
    """

    storage: Storage
    folder: str
    app_id: str
    number: int
    note: str

    @property
    def path(self) -> str:
        """The full path of the table's folder."""
        return self.storage.path(self.folder)


@dataclass
class Workspace:
    """The cached rows and temporary views of a refresh, which are dropped at its end.

    Attributes:
        session: the session of the refresh.
        views: a stack of calls that drop the temporary views.
        frames: a stack of calls that release the cached rows.
        table_rows: the number of rows of the view's table; 0 if unknown.
        few: the views of rows that the driver keeps.
        queries: the view and the number of rows of each query in `kept`.
        hinted: the view with a broadcast hint of each view.
        with_duckdb: whether DuckDB may search keys; false after it failed.
    """

    session: SparkSession
    views: ExitStack
    frames: ExitStack
    table_rows: int = 0
    few: set[str] = field(default_factory=set)
    queries: dict[str, tuple[str, int]] = field(default_factory=dict)
    hinted: dict[str, str] = field(default_factory=dict)
    with_duckdb: bool = True

    def view(self, rows: DataFrame) -> str:
        """Return the name of a new temporary view that contains the rows."""
        return self.views.enter_context(temporary_view(rows))

    def cache(self, rows: DataFrame) -> str:
        """Cache rows at their first use, and return the name of a temporary view of them."""
        cached = rows.persist()
        self.frames.callback(cached.unpersist)
        return self.view(cached)

    def keep(self, rows: DataFrame, likely: int = 0) -> tuple[str, int]:
        """Compute rows once, and return a temporary view of them and their number.

        Args:
            rows: the rows. The driver keeps them if they are few; otherwise they are cached.
            likely: their approximate number; 0 if unknown. Wide rows count several times.
        """
        tries = likely <= _KEPT_ROWS and can_exchange(self.session)
        if tries and (few := few_rows(rows, _KEPT_ROWS)):
            view = self.view(few[0])
            self.few.add(view)
            return view, few[1]
        view = self.cache(rows)
        return view, self.count(view)[0]

    def count(self, view: str, *aggregates: str) -> list[int]:
        """Return the number of cached rows, and the values of further aggregates.

        Afterwards, Spark knows the size of the rows and uses it to plan joins.
        """
        also = "".join(f", {aggregate}" for aggregate in aggregates)
        (row,) = self.session.sql(f"SELECT count(*){also} FROM {view}").collect()
        return [int(value or 0) for value in row]

    def filter_by_keys(self, table: str, view: str, keys: Mapping[str, str], count: int) -> str:
        """Filter the rows of a large table by the keys of a view; see `rows_among`."""
        if self.table_rows < _FILTERED_ROWS:
            return table
        rows = self.session.table
        return self.view(rows_among(rows(table), rows(view), keys, count))

    def kept(self, query: str, rows: DataFrame | None = None, likely: int = 0) -> tuple[str, int]:
        """Compute a query only once, and return a view of its rows and their number.

        Args:
            query: the query.
            rows: the same rows, if there is another way to compute them.
            likely: as for `keep`.
        """
        if query not in self.queries:
            self.queries[query] = self.keep(rows or self.session.sql(query), likely)
        return self.queries[query]

    def broadcast(self, view: str, count: int) -> str:
        """Return the view with a broadcast hint, unless it has too many rows."""
        if count > MOST_BROADCAST or view in self.few:
            return view
        if view not in self.hinted:
            self.hinted[view] = self.view(self.session.table(view).hint("broadcast"))
        return self.hinted[view]


@contextmanager
def workspace(session: SparkSession) -> Iterator[Workspace]:
    """Yield the cached rows and temporary views of a refresh, and drop them afterwards."""
    session.conf.set("spark.sql.limit.initialNumPartitions", 1_000_000)  # one job for few_rows
    # The views are dropped last, because Connect looks them up in the plans of cached rows.
    with ExitStack() as views, ExitStack() as frames:
        yield Workspace(session, views, frames)


def write_rows(rows: DataFrame, target: Target, mode: str, **options: str) -> None:
    """Append rows to the view's table, or overwrite the table with them.

    Args:
        rows: the rows, with the hidden columns.
        target: the table and the commit.
        mode: `append` or `overwrite`.
        options: further options of Delta.
    """
    with _commit(rows.sparkSession, target):
        rows.write.format("delta").options(**options).mode(mode).save(target.path)


def overwrite_rows(rows: DataFrame, target: Target) -> None:
    """Replace all rows of the view's table.

    Use Delta's own overwrite, which reads the log in several jobs, only if its transactions are not
    available, or if the table has more than 1,000 files.
    """
    session = rows.sparkSession
    if can_exchange(session):
        with conflicts(), transaction(session, target.path, note=target.note, own=False) as txn:
            if know_files(txn, live_files(target.storage, target.folder, txn.version)):
                if not txn.has_seen(target.app_id, target.number):
                    written = txn.write_new(rows)
                    txn.commit_overwrite(written, once=(target.app_id, target.number))
                return
    write_rows(rows, target, "overwrite")


def replace_rows(
    work: Workspace,
    find: Callable[[str], str],
    target: Target,
    columns: list[str],
    on: str,
    row: str = "0L",
) -> None:
    """Delete single rows of the view's table and insert others, in one commit.

    A MERGE reads the table three times: to find the files, to find the rows in them, and to compute
    their new values. Delta also reads the whole log for it. Therefore this function uses a MERGE
    only if Delta's own transactions are not available (for example, under Spark Connect), or if the
    table has no deletion vectors.

    Args:
        work: the cached rows and temporary views of the refresh.
        find: a function that returns the temporary view of the rows to delete and to insert. In a
            row to delete, `FILE` and `ROW` name its place in the table. In a row to insert, `COMES`
            is true. A row with both is an update. The function's argument is the name of a
            temporary view of the table's rows, with `FILE` and `ROW`.
        target: the table and the commit.
        columns: the columns of the table to write.
        on: the condition of a MERGE for a row `t` of the table and a row `s` of the replacement.
        row: the expression for `ROW` in a MERGE. A MERGE does not use `FILE`.
    """
    session, comes = work.session, quote(COMES)
    if can_exchange(session):
        with conflicts(), transaction(session, target.path, note=target.note, own=False) as txn:
            if txn.has_vectors:
                if not txn.has_seen(target.app_id, target.number):
                    _exchange(work, find, target, columns, txn)
                return
    table = f"SELECT *, '' AS {quote(FILE)}, {row} AS {quote(ROW)} FROM {delta_name(target.path)}"
    view = find(work.view(session.sql(table)))
    sets = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in columns)
    matched = f"WHEN MATCHED AND NOT s.{comes} THEN DELETE WHEN MATCHED THEN UPDATE SET {sets}"
    with _commit(session, target):
        session.sql(
            f"MERGE INTO {delta_name(target.path)} t USING {view} s ON {on} {matched}"
            f" WHEN NOT MATCHED AND s.{comes} THEN INSERT ({listed(columns)})"
            f" VALUES ({listed(columns, 's.')})"
        )


def _exchange(
    work: Workspace,
    find: Callable[[str], str],
    target: Target,
    columns: list[str],
    txn: DeltaTransaction,
) -> None:
    """Replace rows in a transaction of Delta's own: deletion vectors delete the rows."""
    files = live_files(target.storage, target.folder, txn.version)
    work.table_rows = count_rows(files)
    found = find(work.view(placed_rows(txn, files)))
    rows, comes = work.session.table(found), F.coalesce(F.col(quote(COMES)), F.lit(False))
    placed, once = F.col(quote(ROW)).isNotNull(), (target.app_id, target.number)
    old, new = rows.where(placed), rows.where(comes).select(*map(quote, columns))
    few = partial(few_rows, most=_KEPT_ROWS)  # needs no job for rows that the driver keeps
    if found in work.few and (kept := few(old)) and (added := few(new)):
        (old, deleted), (new, inserted) = kept, added

        def mark() -> RowActions:  # runs while the new rows are written
            return mark_rows(txn, old, comes).store() if deleted else RowActions()

    else:
        # Collecting the places also caches the rows.
        marked = mark_rows(txn, rows.where(comes | placed), comes)
        mark, inserted = marked.store, marked.updated + marked.unplaced
    exchange_rows(txn, mark, few_files(new, inserted) if inserted else None, once=once)


@contextmanager
def _commit(session: SparkSession, target: Target) -> Iterator[None]:
    """Add the refresh's appId, txnVersion and note to the commit that the block makes."""
    with conflicts(), committing(session, target.note, target.app_id, target.number):
        yield


@contextmanager
def conflicts() -> Iterator[None]:
    """Raise `ConflictError` if another writer committed a conflicting change."""
    try:
        yield
    except Exception as error:
        if not is_conflict(error):
            raise
        raise ConflictError(
            f"Another writer changed the view during the refresh: {spark_message(error)}",
            hint="refresh the view again.",
        ) from error


_COPY, _COUNT, _FOUND, _AFFECTED, _LOST = (
    quote(f"{HIDDEN}{name}") for name in ("copy", "times", "found", "affected", "lost")
)
_FILE, _ROW, _SIGN = quote(FILE), quote(ROW), quote(SIGN)
_PLACE = [FILE, ROW]
_HASHED = " AND ".join(f"t.{quote(name)} = g.{quote(name)}" for name in (HASH, CHECK))


def apply_delta(delta: Delta, work: Workspace, target: Target) -> None:
    """Apply the changes to the view's table, in one commit."""
    method = delta.plan.shape.method
    if method is Method.ROWS:
        _change_rows(delta, work, target)
    elif method.keeps_state:
        _change_state(delta, work, target)
    else:
        _change_groups(delta, work, target)


def _change_rows(delta: Delta, work: Workspace, target: Target) -> None:
    """Delete and insert as many copies of each row as the query lost and gained (rule `rows`)."""
    names, session = delta.plan.names, work.session
    changed = "\nUNION ALL\n".join(
        part.rows(row_items(delta.plan, part.plan)) for part in delta.parts
    )
    net = (
        f"SELECT *, {hashes(names)} FROM (SELECT {listed(names)}, sum({_SIGN}) AS {_COUNT}"
        f" FROM ({changed}) GROUP BY {listed(names)}) WHERE {_COUNT} <> 0"
    )
    view, count = work.keep(session.sql(net))
    deleted = work.count(view, f"count_if({_COUNT} < 0)")[1] if count else 0
    columns = [*names, HASH, CHECK]
    added = (
        f"SELECT {listed(columns)} FROM"
        f" (SELECT *, explode(sequence(1, {_COUNT})) FROM {view} WHERE {_COUNT} > 0)"
    )
    rows = session.sql(with_ids(added, target.number))
    if count and not deleted:
        write_rows(rows, target, "append")
        return
    hashed = f"SELECT {_COUNT}, {listed([HASH, CHECK])} FROM {view} WHERE {_COUNT} < 0"
    lost = work.broadcast(work.view(session.sql(hashed)), deleted)

    def find(table: str) -> str:
        likely = work.filter_by_keys(table, lost, {HASH: HASH, CHECK: CHECK}, deleted)
        copies = f"PARTITION BY {listed([HASH, CHECK], 'g.')} ORDER BY t.{_ROW}"
        found = (
            f"SELECT {listed(_PLACE, 't.')}, g.{_COUNT}, row_number() OVER ({copies}) AS {_COPY}"
            f" FROM {likely} t JOIN {lost} g ON {_HASHED}"
        )
        places = f"SELECT {listed(_PLACE)} FROM ({found}) WHERE {_COPY} <= -{_COUNT}"
        return work.keep(_both(session.sql(places), rows), count)[0]

    own = quote(ID)
    replace_rows(work, find, target, [*columns, ID], f"t.{own} = s.{_ROW}", own)


def _both(deleted: DataFrame, inserted: DataFrame) -> DataFrame:
    """Return deleted and inserted rows as the rows of a replacement."""
    flagged = inserted.selectExpr("*", f"true AS {quote(COMES)}")
    return deleted.selectExpr("*", f"false AS {quote(COMES)}").unionByName(
        flagged, allowMissingColumns=True
    )


def _change_groups(delta: Delta, work: Workspace, target: Target) -> None:
    """Compute again each group or partition that contains, or contained, a changed row."""
    plan, session = delta.plan, work.session
    changed = delta.rows(named(plan.shape.keys, plan.keys))
    view, count = work.keep(session.sql(f"SELECT DISTINCT {listed(plan.keys)} FROM ({changed})"))
    query = selected_groups(plan, plan.newest(), _concerned(plan, view))
    partitions = plan.shape.method is Method.PARTITIONS

    def find(table: str) -> str:
        likely = work.filter_by_keys(table, view, plan.key_names, count)
        on = same(plan.key_names, "t", "k")
        existing = f"FROM {likely} t JOIN {work.broadcast(view, count)} k ON {on}"
        if partitions:
            places = listed([*_PLACE, *plan.key_columns], "t.")
            rows = _both(session.sql(f"SELECT DISTINCT {places} {existing}"), session.sql(query))
        else:
            rows = session.sql(_differing(plan, query, f"SELECT t.* {existing}"))
        return work.keep(rows, count)[0]

    on = same(plan.key_columns, "t", "s")
    if partitions:
        on = f"NOT s.{quote(COMES)} AND {on}"
    replace_rows(work, find, target, plan.written, on)


def _concerned(plan: Plan, view: str) -> str:
    """Return the condition for rows of the sources that belong to one of the groups of `view`."""
    pairs = " AND ".join(
        f"{_AFFECTED}.{quote(name)} <=> ({key})"
        for name, key in zip(plan.keys, plan.shape.keys, strict=True)
    )
    return f"EXISTS (SELECT 1 FROM {view} AS {_AFFECTED} WHERE {pairs})"


def _differing(plan: Plan, query: str, existing: str) -> str:
    """Return a query of the groups that differ from those in the view's table."""
    keys = plan.key_columns
    rest = [column for column in plan.written if column not in keys]
    differs = f"NOT ({same(rest, 't', 'n')})" if rest else "false"
    either = ", ".join(f"coalesce(n.{quote(c)}, t.{quote(c)}) AS {quote(c)}" for c in keys)
    columns = ", ".join(filter(None, [listed(_PLACE, "t."), either, listed(rest, "n.")]))
    return (
        f"SELECT {columns}, n.{_FOUND} IS NOT NULL AS {quote(COMES)}"
        f" FROM (SELECT *, true AS {_FOUND} FROM ({query})) n FULL JOIN ({existing}) t"
        f" ON {same(keys, 't', 'n')}"
        f" WHERE t.{_ROW} IS NULL OR n.{_FOUND} IS NULL OR {differs}"
    )


def _change_state(delta: Delta, work: Workspace, target: Target) -> None:
    """Add the changes to the state of the groups, and delete groups without rows.

    An extreme is the minimum or maximum of a group. If it was deleted, and no value at least as
    extreme was inserted, the group is computed again from the sources, because the state does not
    contain the next extreme.
    """
    plan, session = delta.plan, work.session
    keys, columns, extremes = plan.keys, state_columns(plan), extremes_of(plan)
    # The change of each group.
    rows = delta.rows(arguments_of(plan))
    if extremes:
        # If two tables of a join changed, a new row of one is joined with an old row of the other.
        # This row is both inserted and deleted, and never existed, so it must not be an extreme.
        rows = f"SELECT * FROM {work.view(net_rows(session.sql(rows)))}"
    changes = session.sql(f"SELECT * FROM ({state_of(plan, rows, _SIGN)}) WHERE {is_changed(plan)}")
    known = [f"t.{quote(column)} AS {quote(key)}" for column, key in plan.key_names.items()]
    functions = {extreme.column: extreme.function for extreme in extremes}
    nothing = [f"NULL AS {extreme.deleted}" for extreme in extremes]
    unmatched = [f"{extreme.unmatched} AS {extreme.deleted}" for extreme in extremes]
    stays = has_rows(plan)
    lost = " OR ".join(extreme.is_lost for extreme in extremes) or "false"

    def find(table: str) -> str:
        kinds = dict(session.sql(f"SELECT * FROM {table}").dtypes)
        if 0 < work.table_rows <= _READ_ROWS:
            view, count, joined = work.view(changes), 0, f"{table} t"
        else:
            view, count = work.keep(changes)
            likely = work.filter_by_keys(table, view, plan.key_names, count)
            on = same(plan.key_names, "t", "d")
            joined = f"{likely} t JOIN {work.broadcast(view, count)} d ON {on}"
        values = [f"max({name}) AS {name}" for name in (_FILE, _ROW)]
        values += [
            f"CAST({functions.get(quote(c), 'sum')}({quote(c)}) AS {kinds[c]}) AS {quote(c)}"
            for c in columns
        ]
        values += [f"max({extreme.deleted}) AS {extreme.deleted}" for extreme in extremes]
        existing = (
            f"SELECT {', '.join([listed(_PLACE, 't.'), *known, listed(columns, 't.'), *nothing])},"
            f" false AS {_AFFECTED} FROM {joined}"
        )
        changed = (
            f"SELECT NULL AS {_FILE}, NULL AS {_ROW},"
            f" {', '.join([listed([*keys, *columns]), *unmatched, f'true AS {_AFFECTED}'])}"
            f" FROM {view}"
        )
        # Without keys, an aggregation returns a group even if nothing changed.
        both = f"{changed} UNION ALL {existing}"
        state = f"{grouped(keys, values, both)} HAVING bool_or({_AFFECTED})"
        flags = f"{stays} AS {quote(COMES)}, {stays} AND ({lost}) AS {_LOST}"
        groups, _ = work.keep(session.sql(f"SELECT *, {flags} FROM ({state})"), count)
        if extremes and (again := work.count(groups, f"count_if({_LOST})")[1]):
            groups = _with_lost(plan, work, groups, again)
        more = f", {_FILE}, {_ROW}, {quote(COMES)}"
        shown = session.sql(shown_of(plan, groups, more))
        return work.keep(shown)[0] if groups in work.few else work.view(shown)

    on = same(plan.key_columns, "t", "s")
    replace_rows(work, find, target, [*plan.written, *columns], on)


def _with_lost(plan: Plan, work: Workspace, groups: str, count: int) -> str:
    """Return the groups; compute those that lost an extreme again from the sources."""
    lost = work.broadcast(work.view(work.session.table(groups).where(_LOST)), count)
    rows = plan.inner(plan.newest(), _concerned(plan, lost))
    fresh = state_of(plan, f"SELECT {arguments_of(plan)} {rows}")
    columns, own = state_columns(plan), [*_PLACE, COMES, *plan.keys]
    again = (
        f"SELECT {listed(own, 's.')}, {listed(columns, 'n.')}"
        f" FROM {lost} s JOIN ({fresh}) n ON {same(plan.keys, 's', 'n')}"
    )
    others = f"SELECT {listed([*own, *columns])} FROM {groups} WHERE NOT {_LOST}"
    with setting(work.session, "spark.sql.adaptive.enabled", "true"):  # it reads whole sources
        return work.keep(work.session.sql(f"{again} UNION ALL {others}"))[0]
