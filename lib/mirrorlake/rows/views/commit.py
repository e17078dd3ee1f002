"""One commit of a refresh: exactly once, with a note of what was read.

It carries appId = the view's id and txnVersion = the refresh's number, so that of two refreshes
that started from the same state the second is skipped by Delta, whatever it holds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirrorlake.errors import ConflictError
from mirrorlake.spark.gateway import has_gateway, transaction
from mirrorlake.spark.messages import spark_message
from mirrorlake.spark.sql import delta_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_BROADCAST = 500_000  # rows
_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class Target:
    """Where a refresh is written to, and as what.

    Attributes:
        path: the view's table, in full.
        app_id: the view's.
        number: the refresh's.
        note: what the commit says of itself.
    """

    path: str
    app_id: str
    number: int
    note: str


@dataclass
class Scratch:
    """What a refresh keeps in memory and as temporary views, until it is done."""

    session: SparkSession
    frames: list[DataFrame] = field(default_factory=list)
    views: list[str] = field(default_factory=list)

    def view(self, rows: DataFrame) -> str:
        """A name for rows in this session's queries."""
        name = f"mirrorlake_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        self.views.append(name)
        return name

    def keep(self, rows: DataFrame, *, few: bool = False) -> str:
        """A name for rows that are asked for several times, and computed once.

        Args:
            rows: they are computed when somebody asks.
            few: send them to every task rather than shuffle what they are joined with.
        """
        kept = rows.persist()
        self.frames.append(kept)
        return self.view(kept.hint("broadcast") if few else kept)

    def measure(self, view: str, *aggregates: str) -> list[int]:
        """How many kept rows there are, and what further aggregates say of them.

        Spark knows their size from then on, and plans joins with them by it.
        """
        also = "".join(f", {aggregate}" for aggregate in aggregates)
        (row,) = self.session.sql(f"SELECT count(*){also} FROM {view}").collect()
        return [int(value or 0) for value in row]

    def broadcast(self, view: str, count: int) -> str:
        """The same rows, to be sent to every task rather than shuffled, unless they are many."""
        if count > MOST_BROADCAST:
            return view
        return self.view(self.session.table(view).hint("broadcast"))


@contextmanager
def scratch(session: SparkSession) -> Iterator[Scratch]:
    """A place for what a refresh needs on its way."""
    found = Scratch(session)
    try:
        yield found
    finally:
        for frame in found.frames:  # first, for a Connect server looks up the views in their plans
            frame.unpersist()
        for name in found.views:
            session.catalog.dropTempView(name)


def overwrite(rows: DataFrame, target: Target, *, evolve: bool) -> None:
    """Puts rows in place of all that the view's table holds."""
    _write(rows, target, "overwrite", {"overwriteSchema": "true"} if evolve else {})


def append(rows: DataFrame, target: Target) -> None:
    """Adds rows to the view's table."""
    _write(rows, target, "append", {})


def _write(rows: DataFrame, target: Target, mode: str, more: dict[str, str]) -> None:
    options = {
        "txnAppId": target.app_id,
        "txnVersion": str(target.number),
        "userMetadata": target.note,
    }
    with _conflicts():
        rows.write.format("delta").options(**options, **more).mode(mode).save(target.path)


def exchange(
    session: SparkSession, places: Callable[[str], str], rows: str, count: int, target: Target
) -> bool:
    """Takes single rows out of the view's table and adds others; the table is scanned once.

    A MERGE scans it for the files, for the rows in them, and for what the rows become.

    Args:
        session: the refresh's own, with a way to Delta's transactions.
        places: makes a query of the rows that go, their `file_path` and `row_index`, of the table.
        rows: a query of those that come.
        count: how many come.
        target: the table and the commit.

    Returns:
        False, and nothing is done, if the session has no way to Delta's own transactions, or the
        table has no deletion vectors.
    """
    if not has_gateway(session):
        return False
    with _conflicts(), transaction(session, target.path, note=target.note, own=False) as txn:
        if not txn.has_vectors:
            return False
        if txn.has_seen(target.app_id, target.number):
            return True
        table = f"{delta_name(target.path)} VERSION AS OF {txn.version}"
        gone = txn.mark_deleted(session.sql(places(table)))
        adds = txn.write(session.sql(rows), checked=False) if count else []
        txn.commit_exchange(gone, adds, added=count, app_id=target.app_id, number=target.number)
        return True


def merge(session: SparkSession, source: str, on: str, clauses: str, target: Target) -> None:
    """Merges rows into the view's table.

    Args:
        session: the refresh's own: with these settings it skips every further write.
        source: a query; `s` in the condition and the clauses, while the table is `t`.
        on: the condition.
        clauses: what happens to rows that match and to those that don't.
        target: the table and the commit.
    """
    confs = {
        _APP_ID: target.app_id,
        _TXN_VERSION: str(target.number),
        _USER_METADATA: target.note,
    }
    for name, value in confs.items():
        session.conf.set(name, value)
    try:
        with _conflicts():
            session.sql(
                f"MERGE INTO {delta_name(target.path)} t USING ({source}) s ON {on} {clauses}"
            )
    finally:
        for name in confs:
            session.conf.unset(name)


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        message = spark_message(error)
        if "DELTA_CONCURRENT" not in message and "Concurrent" not in type(error).__name__:
            raise
        raise ConflictError(
            f"Somebody else wrote to the view meanwhile: {message}", hint="refresh it again."
        ) from error
