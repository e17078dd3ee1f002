"""Applies changes to a view's table incrementally: which rows go and come, and the commit.

There is one rule for each method of the view's shape; `replace_rows` deletes and inserts the rows.
A refresh is exactly one commit. It carries appId = the view's id and txnVersion = the refresh's
number, so Delta skips the second of two refreshes that started from the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.exchange import (
    FILE,
    LARGE_ROWS,
    ROW,
    count_rows,
    exchange_rows,
    mark_rows,
    placed_rows,
)
from mirrorlake.delta.table import committing
from mirrorlake.errors import ConflictError
from mirrorlake.spark.jvm import (
    MOST_BROADCAST,
    DeltaTransaction,
    RowActions,
    can_exchange,
    rows_among,
    transaction,
)
from mirrorlake.spark.sql import delta_name, quote, spark_message, temporary_view
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import HIDDEN
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
    is_moved,
    selected_groups,
    shown_of,
    state_columns,
    state_of,
    with_ids,
)

COMES = f"{HIDDEN}comes"  # whether a row comes


@dataclass(frozen=True)
class Target:
    """Where a refresh is written to, and as what.

    Attributes:
        storage: the lake's files.
        folder: the view's table, in the lake.
        app_id: the view's.
        number: the refresh's.
        note: what the commit says of itself.
    """

    storage: Storage
    folder: str
    app_id: str
    number: int
    note: str

    @property
    def path(self) -> str:
        """The table's folder, in full."""
        return self.storage.path(self.folder)


@dataclass
class Scratch:
    """What a refresh keeps in memory and as temporary views, until it is done.

    Attributes:
        session: the refresh's.
        views: drops the temporary views at the end.
        frames: lets go of what is in memory.
        is_large: the view's table has rows enough for a test of their keys before a join.
    """

    session: SparkSession
    views: ExitStack
    frames: ExitStack
    is_large: bool = False

    def view(self, rows: DataFrame) -> str:
        """A name for rows in this session's queries."""
        return self.views.enter_context(temporary_view(rows))

    def keep(self, rows: DataFrame, *, few: bool = False) -> str:
        """A name for rows that are asked for several times, and computed once.

        Args:
            rows: they are computed at the first use.
            few: send them to every task rather than shuffle what they are joined with.
        """
        kept = rows.persist()
        self.frames.callback(kept.unpersist)
        return self.view(kept.hint("broadcast") if few else kept)

    def measure(self, view: str, *aggregates: str) -> list[int]:
        """How many kept rows there are, and what further aggregates say of them.

        Spark knows their size from then on, and plans joins with them by it.
        """
        also = "".join(f", {aggregate}" for aggregate in aggregates)
        (row,) = self.session.sql(f"SELECT count(*){also} FROM {view}").collect()
        return [int(value or 0) for value in row]

    def counted(self, view: str, *aggregates: str) -> tuple[RowReplacement, list[int]]:
        """Kept rows that go and come, and what further aggregates say of them."""
        row, comes = quote(ROW), quote(COMES)
        both = f"count_if({row} IS NOT NULL AND {comes})"
        counts = (f"count({row})", f"count_if({comes})", both)
        _, gone, come, updated, *more = self.measure(view, *counts, *aggregates)
        return RowReplacement(view, gone, come, updated), more

    def among(self, table: str, view: str, keys: Mapping[str, str], count: int) -> str:
        """The rows of a large table whose keys may be among those of a view, see `rows_among`."""
        if not self.is_large:
            return table
        rows = self.session.table
        return self.view(rows_among(rows(table), rows(view), keys, count))

    def broadcast(self, view: str, count: int) -> str:
        """The same rows, to be sent to every task rather than shuffled, unless they are many."""
        if count > MOST_BROADCAST:
            return view
        return self.view(self.session.table(view).hint("broadcast"))


@contextmanager
def scratch(session: SparkSession) -> Iterator[Scratch]:
    """A place for what a refresh needs on its way."""
    # The views go last, because Connect looks them up in the plans of what is in memory.
    with ExitStack() as views, ExitStack() as frames:
        yield Scratch(session, views, frames)


def write_rows(rows: DataFrame, target: Target, mode: str, **options: str) -> None:
    """Appends rows to the view's table, or puts them in place of all that it holds.

    Args:
        rows: with the hidden columns.
        target: the table and the commit.
        mode: `append` or `overwrite`.
        options: more of Delta's.
    """
    with _commit(rows.sparkSession, target):
        rows.write.format("delta").options(**options).mode(mode).save(target.path)


@dataclass(frozen=True)
class RowReplacement:
    """Rows of the view's table that are deleted, and rows that are inserted.

    Attributes:
        view: the temporary view of both: `FILE` and `ROW` where one goes, `COMES`, and the table's
            columns. Where one goes and one comes, it is updated.
        gone: 0 if none goes.
        come: how many come.
        updated: how many of both are one row before and after.
    """

    view: str
    gone: int
    come: int
    updated: int = 0


def replace_rows(
    kept: Scratch,
    find: Callable[[str], RowReplacement],
    target: Target,
    columns: list[str],
    on: str,
    row: str = "0L",
) -> None:
    """Takes single rows out of the view's table and adds others, in one commit.

    A MERGE scans the table for the files, for the rows in them, and for what the rows become, and
    Delta reads its whole log for it. So it is used only where there is no way to Delta's own
    transactions, as under Spark Connect, and for tables without deletion vectors.

    Args:
        kept: the refresh's.
        find: says what goes and comes; it gets a name for the table's rows, with `FILE` and `ROW`.
        target: the table and the commit.
        columns: the table's, as they are written.
        on: which row `t` of the table a MERGE takes out or updates for a row `s` of the view.
        row: what a MERGE has as `ROW`; it has no `FILE`.
    """
    session, comes = kept.session, quote(COMES)
    if can_exchange(session):
        with conflicts(), transaction(session, target.path, note=target.note, own=False) as txn:
            if txn.has_vectors:
                if not txn.has_seen(target.app_id, target.number):
                    _exchange(kept, find, target, columns, txn)
                return
    table = f"SELECT *, '' AS {quote(FILE)}, {row} AS {quote(ROW)} FROM {delta_name(target.path)}"
    swap = find(kept.view(session.sql(table)))
    matched = "WHEN MATCHED THEN DELETE"
    if swap.updated:
        sets = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in columns)
        matched = f"WHEN MATCHED AND NOT s.{comes} THEN DELETE WHEN MATCHED THEN UPDATE SET {sets}"
    with _commit(session, target):
        session.sql(
            f"MERGE INTO {delta_name(target.path)} t USING {swap.view} s ON {on} {matched}"
            f" WHEN NOT MATCHED AND s.{comes} THEN INSERT ({listed(columns)})"
            f" VALUES ({listed(columns, 's.')})"
        )


def _exchange(
    kept: Scratch,
    find: Callable[[str], RowReplacement],
    target: Target,
    columns: list[str],
    txn: DeltaTransaction,
) -> None:
    """The same in a transaction of Delta's own: rows go by deletion vectors."""
    files = live_files(target.storage, target.folder, txn.version)
    kept.is_large = count_rows(files) >= LARGE_ROWS
    swap = find(kept.view(placed_rows(txn, files)))
    rows = kept.session.table(swap.view)
    gone = rows.where(f"{quote(ROW)} IS NOT NULL")
    exchange_rows(
        txn,
        mark_rows(txn, gone) if swap.gone else RowActions(),
        rows.where(quote(COMES)).select(*map(quote, columns)) if swap.come else None,
        expected=swap.come,
        updated=swap.updated,
        app_id=target.app_id,
        number=target.number,
    )


@contextmanager
def _commit(session: SparkSession, target: Target) -> Iterator[None]:
    """What SQL and Spark's writers commit in the block is the refresh's commit."""
    with conflicts(), committing(session, target.note, target.app_id, target.number):
        yield


@contextmanager
def conflicts() -> Iterator[None]:
    """Raises `ConflictError` if another writer was quicker."""
    try:
        yield
    except Exception as error:
        message = spark_message(error)
        if "DELTA_CONCURRENT" not in message and "Concurrent" not in type(error).__name__:
            raise
        raise ConflictError(
            f"Another writer changed the view meanwhile: {message}", hint="refresh it again."
        ) from error


_COPY, _COUNT, _FOUND, _AFFECTED, _LOST = (
    quote(f"{HIDDEN}{name}") for name in ("copy", "times", "found", "affected", "lost")
)
_FILE, _ROW, _SIGN = quote(FILE), quote(ROW), quote(SIGN)
_PLACE = [FILE, ROW]
_HASHED = " AND ".join(f"t.{quote(name)} = g.{quote(name)}" for name in (HASH, CHECK))


def apply_delta(delta: Delta, kept: Scratch, target: Target) -> None:
    """Puts what changed into the view's table, in one commit."""
    method = delta.plan.shape.method
    if method is Method.ROWS:
        _change_rows(delta, kept, target)
    elif method.keeps_state:
        _change_state(delta, kept, target)
    else:
        _change_groups(delta, kept, target)


def _change_rows(delta: Delta, kept: Scratch, target: Target) -> None:
    """Of each deleted row as many copies go, of each inserted one as many come."""
    names, session = delta.plan.names, kept.session
    changed = delta.rows(named(delta.plan.shape.items, names))
    net = (
        f"SELECT *, {hashes(names)} FROM (SELECT {listed(names)}, sum({_SIGN}) AS {_COUNT}"
        f" FROM ({changed}) GROUP BY {listed(names)}) WHERE {_COUNT} <> 0"
    )
    view = kept.keep(session.sql(net))
    count, went, fresh = kept.measure(
        view, f"count_if({_COUNT} < 0)", f"sum(greatest({_COUNT}, 0))"
    )
    columns = [*names, HASH, CHECK]
    came = (
        f"SELECT {listed(columns)} FROM"
        f" (SELECT *, explode(sequence(1, {_COUNT})) FROM {view} WHERE {_COUNT} > 0)"
    )
    rows = session.sql(with_ids(came, target.number))
    if count and not went:
        write_rows(rows, target, "append")
        return
    hashed = f"SELECT {_COUNT}, {listed([HASH, CHECK])} FROM {view} WHERE {_COUNT} < 0"
    gone = kept.broadcast(kept.view(session.sql(hashed)), went)

    def find(table: str) -> RowReplacement:
        likely = kept.among(table, gone, {HASH: HASH, CHECK: CHECK}, went)
        copies = f"PARTITION BY {listed([HASH, CHECK], 'g.')} ORDER BY t.{_ROW}"
        found = (
            f"SELECT {listed(_PLACE, 't.')}, g.{_COUNT}, row_number() OVER ({copies}) AS {_COPY}"
            f" FROM {likely} t JOIN {gone} g ON {_HASHED}"
        )
        places = f"SELECT {listed(_PLACE)} FROM ({found}) WHERE {_COPY} <= -{_COUNT}"
        return RowReplacement(kept.view(_both(session.sql(places), rows)), went, fresh)

    own = quote(ID)
    replace_rows(kept, find, target, [*columns, ID], f"t.{own} = s.{_ROW}", own)


def _both(gone: DataFrame, come: DataFrame) -> DataFrame:
    """Rows that go and rows that come."""
    flagged = come.selectExpr("*", f"true AS {quote(COMES)}")
    return gone.selectExpr("*", f"false AS {quote(COMES)}").unionByName(
        flagged, allowMissingColumns=True
    )


def _change_groups(delta: Delta, kept: Scratch, target: Target) -> None:
    """Computes groups or partitions again that a changed row is or was in."""
    plan, session = delta.plan, kept.session
    changed = delta.rows(named(plan.shape.keys, plan.keys))
    view = kept.keep(session.sql(f"SELECT DISTINCT {listed(plan.keys)} FROM ({changed})"))
    (count,) = kept.measure(view)
    query = selected_groups(plan, plan.newest(), _concerned(plan, view))
    partitions = plan.shape.method is Method.PARTITIONS

    def find(table: str) -> RowReplacement:
        likely = kept.among(table, view, plan.key_names, count)
        on = same(plan.key_names, "t", "k")
        there = f"FROM {likely} t JOIN {kept.broadcast(view, count)} k ON {on}"
        if partitions:
            places = listed([*_PLACE, *plan.key_columns], "t.")
            rows = _both(session.sql(f"SELECT DISTINCT {places} {there}"), session.sql(query))
        else:
            rows = session.sql(_differing(plan, query, f"SELECT t.* {there}"))
        return kept.counted(kept.keep(rows))[0]

    on = same(plan.key_columns, "t", "s")
    if partitions:
        on = f"NOT s.{quote(COMES)} AND {on}"
    replace_rows(kept, find, target, plan.written, on)


def _concerned(plan: Plan, view: str) -> str:
    """The condition that a row of the sources is in one of a view's groups."""
    pairs = " AND ".join(
        f"{_AFFECTED}.{quote(name)} <=> ({key})"
        for name, key in zip(plan.keys, plan.shape.keys, strict=True)
    )
    return f"EXISTS (SELECT 1 FROM {view} AS {_AFFECTED} WHERE {pairs})"


def _differing(plan: Plan, query: str, there: str) -> str:
    """Groups that are not what they were."""
    keys = plan.key_columns
    rest = [column for column in plan.written if column not in keys]
    differs = f"NOT ({same(rest, 't', 'n')})" if rest else "false"
    either = ", ".join(f"coalesce(n.{quote(c)}, t.{quote(c)}) AS {quote(c)}" for c in keys)
    columns = ", ".join(filter(None, [listed(_PLACE, "t."), either, listed(rest, "n.")]))
    return (
        f"SELECT {columns}, n.{_FOUND} IS NOT NULL AS {quote(COMES)}"
        f" FROM (SELECT *, true AS {_FOUND} FROM ({query})) n FULL JOIN ({there}) t"
        f" ON {same(keys, 't', 'n')}"
        f" WHERE t.{_ROW} IS NULL OR n.{_FOUND} IS NULL OR {differs}"
    )


def _change_state(delta: Delta, kept: Scratch, target: Target) -> None:
    """Adds the changes to what is kept of the groups; a group without rows is deleted.

    A group is computed again only if its greatest or least value went, and none as great or as
    small came: what is left of it, only the sources know.
    """
    plan, session = delta.plan, kept.session
    keys, columns, extremes = plan.keys, state_columns(plan), extremes_of(plan)
    # By how much each group changed.
    rows = delta.rows(arguments_of(plan))
    if extremes:
        # Where two tables of a join changed, a row of the one as it is meets a row of the other as
        # it was: it comes and goes, and was never there, so it must not count as an extreme.
        rows = f"SELECT * FROM {kept.view(net_rows(session.sql(rows)))}"
    changes = state_of(plan, rows, _SIGN)
    view = kept.keep(session.sql(f"SELECT * FROM ({changes}) WHERE {is_moved(plan)}"))
    (count,) = kept.measure(view)
    known = [f"t.{quote(column)} AS {quote(key)}" for column, key in plan.key_names.items()]
    functions = {extreme.column: extreme.function for extreme in extremes}
    nothing = [f"NULL AS {extreme.went}" for extreme in extremes]
    unmatched = [f"{extreme.unmatched} AS {extreme.went}" for extreme in extremes]
    stays = has_rows(plan)
    lost = " OR ".join(extreme.is_lost for extreme in extremes) or "false"

    def find(table: str) -> RowReplacement:
        kinds = dict(session.sql(f"SELECT * FROM {table}").dtypes)
        likely = kept.among(table, view, plan.key_names, count)
        on = same(plan.key_names, "t", "d")
        values = [f"max({name}) AS {name}" for name in (_FILE, _ROW)]
        values += [
            f"CAST({functions.get(quote(c), 'sum')}({quote(c)}) AS {kinds[c]}) AS {quote(c)}"
            for c in columns
        ]
        values += [f"max({extreme.went}) AS {extreme.went}" for extreme in extremes]
        there = (
            f"SELECT {', '.join([listed(_PLACE, 't.'), *known, listed(columns, 't.'), *nothing])}"
            f" FROM {likely} t JOIN {kept.broadcast(view, count)} d ON {on}"
        )
        changed = (
            f"SELECT NULL AS {_FILE}, NULL AS {_ROW},"
            f" {', '.join([listed([*keys, *columns]), *unmatched])} FROM {view}"
        )
        # Without keys there is a group even where nothing changed.
        state = f"{grouped(keys, values, f'{changed} UNION ALL {there}')} HAVING count(*) > 0"
        flags = f"{stays} AS {quote(COMES)}, {stays} AND ({lost}) AS {_LOST}"
        groups = kept.keep(session.sql(f"SELECT *, {flags} FROM ({state})"))
        swap, (again,) = kept.counted(groups, f"count_if({_LOST})")
        if again:
            groups = _with_lost(plan, kept, groups, again)
        more = f", {_FILE}, {_ROW}, {quote(COMES)}"
        return replace(swap, view=kept.view(session.sql(shown_of(plan, groups, more))))

    on = same(plan.key_columns, "t", "s")
    replace_rows(kept, find, target, [*plan.written, *columns], on)


def _with_lost(plan: Plan, kept: Scratch, groups: str, count: int) -> str:
    """The groups, those that lost an extreme computed again from the sources."""
    lost = kept.broadcast(kept.view(kept.session.table(groups).where(_LOST)), count)
    rows = plan.inner(plan.newest(), _concerned(plan, lost))
    fresh = state_of(plan, f"SELECT {arguments_of(plan)} {rows}")
    columns, own = state_columns(plan), [*_PLACE, COMES, *plan.keys]
    again = (
        f"SELECT {listed(own, 's.')}, {listed(columns, 'n.')}"
        f" FROM {lost} s JOIN ({fresh}) n ON {same(plan.keys, 's', 'n')}"
    )
    others = f"SELECT {listed([*own, *columns])} FROM {groups} WHERE NOT {_LOST}"
    return kept.keep(kept.session.sql(f"{again} UNION ALL {others}"))
