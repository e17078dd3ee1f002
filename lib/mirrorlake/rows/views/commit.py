"""One commit of a refresh: exactly once, with a note of what was read.

It carries appId = the view's id and txnVersion = the refresh's number, so that of two refreshes
that started from the same state the second is skipped by Delta, whatever it holds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.log_files import Action
from mirrorlake.errors import ConflictError
from mirrorlake.rows.views.plan import listed
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.spark.gateway import Marked, has_gateway, transaction
from mirrorlake.spark.sql import delta_name, quote, spark_message
from mirrorlake.storage import Storage

FILE, ROW = f"{HIDDEN}file", f"{HIDDEN}row"  # where a row of the view's table lies
MOST_BROADCAST = 500_000  # rows
_ONE_FILE = 100_000  # rows
_ADD = ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector")
_IDS = ("baseRowId", "defaultRowCommitVersion", "clusteringProvider")


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
            rows: they are computed at the first use.
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
    with conflicts():
        rows.write.format("delta").options(**options, **more).mode(mode).save(target.path)


@dataclass(frozen=True)
class RowReplacement:
    """Rows of the view's table that go, and those that come.

    Attributes:
        places: a query of the `FILE` and `ROW` of those that go.
        rows: a query of those that come, in the table's columns.
        gone: how many go.
        come: how many come.
        updated: how many of both are one row before and after.
    """

    places: str
    rows: str
    gone: int
    come: int
    updated: int = 0


def replace_rows(kept: Scratch, find: Callable[[str], RowReplacement], target: Target) -> bool:
    """Takes single rows out of the view's table and adds others, in one transaction of Delta's own.

    A MERGE scans the table for the files, for the rows in them, and for what the rows become, and
    Delta reads its whole log for it.

    Args:
        kept: the refresh's, with a way to Delta's transactions.
        find: says what goes and comes; it gets a name for the table's rows, with `FILE` and `ROW`.
        target: the table and the commit.

    Returns:
        False, and nothing is done, if the session has no way to Delta's own transactions, or the
        table has no deletion vectors.
    """
    session = kept.session
    if not has_gateway(session):
        return False
    with conflicts(), transaction(session, target.path, note=target.note, own=False) as txn:
        if not txn.has_vectors:
            return False
        if txn.has_seen(target.app_id, target.number):
            return True
        files = [_plain(add) for add in live_files(target.storage, target.folder, txn.version)]
        txn.know(files)
        places = [f"_metadata.file_path AS {quote(FILE)}", f"_metadata.row_index AS {quote(ROW)}"]
        swap = find(kept.view(txn.rows(files).selectExpr("*", *places)))
        gone, adds = Marked(), []
        if swap.gone:
            named = session.sql(swap.places).toDF("file_path", "row_index")
            gone = txn.mark_deleted(named)
        if swap.come:
            rows = session.sql(swap.rows)
            adds = txn.write(rows.coalesce(1) if swap.come <= _ONE_FILE else rows, checked=False)
        txn.commit_exchange(
            gone,
            adds,
            added=swap.come,
            updated=swap.updated,
            app_id=target.app_id,
            number=target.number,
        )
        return True


def _plain(add: Action) -> Action:
    """An `add` as commits have it, though a checkpoint told of it."""
    found = {name: add[name] for name in (*_ADD, *_IDS) if add.get(name) is not None}
    return found | {"tags": dict(add.get("tags") or {}), "dataChange": True}


@contextmanager
def conflicts() -> Iterator[None]:
    """Says in our words that another writer was quicker."""
    try:
        yield
    except Exception as error:
        message = spark_message(error)
        if "DELTA_CONCURRENT" not in message and "Concurrent" not in type(error).__name__:
            raise
        raise ConflictError(
            f"Somebody else wrote to the view meanwhile: {message}", hint="refresh it again."
        ) from error


_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


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
        with conflicts():
            session.sql(
                f"MERGE INTO {delta_name(target.path)} t USING ({source}) s ON {on} {clauses}"
            )
    finally:
        for name in confs:
            session.conf.unset(name)


def update_clause(columns: list[str], condition: str = "") -> str:
    """What a merge does with rows that match."""
    when = f" AND {condition}" if condition else ""
    sets = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in columns)
    return f"WHEN MATCHED{when} THEN UPDATE SET {sets}"


def insert_clause(columns: list[str], condition: str = "") -> str:
    """What a merge does with rows that don't."""
    when = f" AND {condition}" if condition else ""
    return (
        f"WHEN NOT MATCHED{when} THEN INSERT ({listed(columns)}) VALUES ({listed(columns, 's.')})"
    )
