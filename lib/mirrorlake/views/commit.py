"""One commit of a refresh: exactly once, with a note of what was read.

It carries appId = the view's id and txnVersion = the refresh's number, so that of two refreshes
that started from the same state the second is skipped by Delta, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

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
from mirrorlake.spark.gateway import DeltaTransaction, RowActions, can_exchange, transaction
from mirrorlake.spark.jvm import MOST_BROADCAST, rows_among
from mirrorlake.spark.sql import delta_name, quote, spark_message, temporary_view
from mirrorlake.storage.files import Storage
from mirrorlake.views.plan import listed
from mirrorlake.views.query import HIDDEN

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
