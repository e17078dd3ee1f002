"""Talks to the JVM, as `jvm` does for all else: Delta's transactions, which SQL can't name.

What it offers is small: a transaction that reads some files, writes others, and commits both as a
change of layout, or new ones as an append; and one that takes single rows out of files by deletion
vectors while it adds others. Files are the log's own `add` actions, as dicts. Under Spark Connect
there is no gateway, and the error says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from pyspark.sql import Column, DataFrame, Observation, SparkSession

from mirrorlake.errors import ConflictError, UsageError
from mirrorlake.spark.jvm import (
    delta_module,
    has_gateway,
    items_of,
    method_takes,
    observed,
    operation,
    refuse_other_delta,
    session_class,
)
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import literal, spark_message

Add = dict[str, Any]
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Delta asks for it where columns are mapped by id; its SQL sets it by itself.
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_PATIENCE = 10  # seconds


@contextmanager
def transaction(
    spark: SparkSession,
    path: str,
    *,
    note: str = "",
    confs: dict[str, str] | None = None,
    own: bool = True,
) -> Iterator[DeltaTransaction]:
    """A transaction in a session of its own.

    Args:
        spark: a session of this process, not of a Connect server.
        path: the table's folder, full.
        note: the commit's userMetadata.
        confs: settings of the session, such as Parquet's for what is written.
        own: False works in the session given, whose temporary views it needs.

    Raises:
        UsageError: the session has no JVM to talk to, or its Delta is another one.
    """
    if not has_gateway(spark):
        raise UsageError(
            "Spark Connect has no way to Delta's own transactions, so files can't be rewritten.",
            hint="run this in a classic session: without SPARK_REMOTE.",
        )
    session: Any = new_session(spark) if own else spark
    session.conf.set(_BY_ID, "true")
    settings = (confs or {}) | ({_USER_METADATA: note} if note else {})
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        sessions = session_class(session._jvm)
        before = sessions.getActiveSession()
        try:
            yield DeltaTransaction(session, path)
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()
    except Exception as error:
        refuse_other_delta(error)
        raise
    finally:
        for name in settings:
            session.conf.unset(name)


_EXCHANGES = {  # what `mark_deleted` and `commit_exchange` ask of Delta
    "OptimisticTransaction": {"readWholeTable": 0, "trackFilesRead": 1, "registerSQLMetrics": 2},
    "commands.DeletionVectorBitmapGenerator$": {"buildRowIndexSetsForFilesMatchingCondition": 8},
    "commands.DMLWithDeletionVectorsHelper$": {"findFilesWithMatchingRows": 3},
    "RowTracking$": {"preserveRowTrackingColumns": 2},
    "actions.AddFile": {"removeRows": 3},
}


def can_exchange(spark: SparkSession) -> bool:
    """Whether rows can be taken out and added in one transaction: another Delta may differ."""
    if not has_gateway(spark):
        return False
    jvm: Any = cast("Any", spark)._jvm
    wanted = ((kind, name, n) for kind, names in _EXCHANGES.items() for name, n in names.items())
    return all(method_takes(jvm, kind, name, count) for kind, name, count in wanted)


class RowActions(NamedTuple):
    """What takes out or adds single rows: the log's actions, as the JVM's objects; how many rows.

    Those of the change feed's own files do not count.
    """

    actions: tuple[Any, ...] = ()
    rows: int = 0


class DeltaTransaction:
    """One optimistic transaction on one table, as `transaction` opens it."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self.session: Any = session
        jvm: Any = self.session._jvm
        self._jvm = jvm
        self._delta = jvm.org.apache.spark.sql.delta
        self._none = jvm.scala.Option.empty()
        self._log = self._delta.DeltaLog.forTable(self.session._jsparkSession, path)
        self._txn = self._log.startTransaction(self._none, self._none)
        self._snapshot = self._txn.snapshot()
        self._tracking = delta_module(self._jvm, "RowTracking")
        self._taken: dict[str, Any] = {}

    @property
    def version(self) -> int:
        """The version that the transaction reads."""
        return int(self._snapshot.version())

    @property
    def tracks_rows(self) -> bool:
        """Whether rows have ids that must survive."""
        return bool(self._tracking.isEnabled(self._snapshot.protocol(), self._snapshot.metadata()))

    @property
    def has_vectors(self) -> bool:
        """Whether single rows may be taken out of files."""
        vectors = self.metadata()["configuration"].get("delta.enableDeletionVectors", "false")
        return str(vectors).lower() == "true"

    def metadata(self) -> dict[str, Any]:
        """The log's `metaData`."""
        return cast("dict[str, Any]", json.loads(self._snapshot.metadata().json())["metaData"])

    def files(self) -> DataFrame:
        """The files of the version, one row an `add`, under the log's field names."""
        return DataFrame(self._snapshot.allFiles().toDF(), self.session)

    def take(self, paths: Sequence[str]) -> list[Add]:
        """Reads files: if another writer removes one before the commit, the commit fails.

        Args:
            paths: as the log has them.
        """
        if not paths:
            return []
        wanted = f"path IN ({', '.join(map(literal, paths))})"
        found = list(self._snapshot.allFiles().where(wanted).collect())
        self._taken |= {file.path(): file for file in found}
        self._txn.trackFilesRead(self._seq(found))
        return [_body(file) for file in found]

    def know(self, adds: Sequence[Add]) -> None:
        """Takes the files of the version as given, which spares Delta the reading of its log.

        Args:
            adds: all files of the version that the transaction reads, as its log has them.
        """
        self._taken = {add["path"]: self._action(add) for add in adds}

    def rows(self, adds: Sequence[Add], *, keep_ids: bool = False) -> DataFrame:
        """The rows of files that were taken, or were written and are not committed yet.

        Args:
            adds: the files; what their deletion vectors took is left out.
            keep_ids: add the hidden columns that carry row ids and commit versions, so that rows
                written from here keep theirs.
        """
        self._activate()  # a frame keeps the settings of the session that is active now
        files = self._seq([self._taken.get(add["path"]) or self._action(add) for add in adds])
        frame = self._log.createDataFrame(self._snapshot, files, False, self._none)
        if keep_ids and self.tracks_rows:
            frame = self._tracking.preserveRowTrackingColumns(frame, self._snapshot)
        return DataFrame(frame, self.session)

    def watched(
        self, rows: DataFrame, sums: Sequence[Column]
    ) -> tuple[DataFrame, Callable[[], list[int | None] | None]]:
        """Sums up rows on their way through the job that takes them, without a job of its own.

        Args:
            rows: the rows.
            sums: aggregates, whole numbers.

        Returns:
            The rows to go on with, and what tells the sums after the job: None if Spark does not
            tell them in time. A task that Spark runs twice counts twice, so only sums that are
            what they should be prove anything.
        """
        observation: Any = Observation()
        names = [f"sum_{place}" for place in range(len(sums))]
        named = [one.alias(name) for one, name in zip(sums, names, strict=True)]
        watched = rows.observe(observation, *named)
        return watched, lambda: observed(observation, names, _PATIENCE)

    def write(self, rows: DataFrame, *, checked: bool) -> list[Add]:
        """Writes rows as files of the table, with statistics; they are not committed yet.

        Args:
            rows: in the table's schema, with the hidden columns where `rows` gave them.
            checked: the rows are the table's own; otherwise its constraints are checked now.
        """
        self._activate()
        skip_checks = (self._none, True, self._seq([])) if checked else ()
        written = self._txn.writeFiles(cast("Any", rows)._jdf, *skip_checks)
        return [_body(action) for action in items_of(written)]

    def write_new(self, rows: DataFrame) -> RowActions:
        """Writes rows for `commit_exchange`; the table's constraints are checked.

        Args:
            rows: as `write` takes them. Those that have a value in a column `_change_type` go into
                files of the change feed, where the table has one, and not into the table.
        """
        self._activate()
        actions = tuple(items_of(self._txn.writeFiles(cast("Any", rows)._jdf)))
        stats = (json.loads(_body(action).get("stats") or "{}") for action in actions)
        return RowActions(actions, sum(int(known.get("numRecords", 0)) for known in stats))

    def read_all(self) -> None:
        """Any rows that another writer changes before the commit are a conflict."""
        self._txn.readWholeTable()

    def commit_layout(self, adds: Sequence[Add], removes: Sequence[Add]) -> int:
        """Replaces files by others with the same rows: streams and feeds hear nothing of it.

        Returns:
            The version committed.

        Raises:
            ConflictError: another writer removed one of the files that were taken.
        """
        nothing = self._seq([])
        # Never with a `txn` action: it forces serializable isolation, and every append conflicts.
        what = operation(self._jvm, "Optimize", nothing, nothing, False, self._none, False)
        none = self._jvm.PythonUtils.toScalaMap({})
        tags = self._tracking.addPreservedRowTrackingTagIfNotSet(self._snapshot, none)
        return self._commit(self._changes(adds, removes, data=False), what, tags)

    def commit_rows(self, adds: Sequence[Add], removes: Sequence[Add], *, mode: str) -> int:
        """Adds new rows, and removes the files that were taken: an append or an overwrite.

        Returns:
            The version committed.

        Raises:
            ConflictError: another writer touched what was read.
        """
        save = self._jvm.org.apache.spark.sql.SaveMode.valueOf(mode)
        changes = self._changes(adds, removes, data=True)
        return self._commit(changes, operation(self._jvm, "Write", save))

    def has_seen(self, app_id: str, number: int) -> bool:
        """Whether an application's transaction of this number, or a later one, was committed."""
        # It is remembered as read: another writer's commit of it is a conflict.
        return int(self._txn.txnVersion(app_id)) >= number

    def mark_deleted(self, places: DataFrame) -> RowActions:
        """Takes single rows out of their files: deletion vectors are written, none is committed.

        Args:
            places: of each row `file_path` and `row_index`, as the hidden column `_metadata` has
                them in the files that the transaction knows.
        """
        self._activate()
        files = list(self._taken.values())
        listed, frame = self._seq(files), cast("Any", places)
        column = self._jvm.org.apache.spark.sql.functions.col
        vectors = delta_module(self._jvm, "commands.DeletionVectorBitmapGenerator")
        helper = delta_module(self._jvm, "commands.DMLWithDeletionVectorsHelper")
        found = vectors.buildRowIndexSetsForFilesMatchingCondition(
            self.session._jsparkSession,
            self._txn,
            any(file.deletionVector() is not None for file in files),
            frame._jdf,
            listed,
            self._jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral(),
            self._jvm.scala.Some(column("file_path")),
            self._jvm.scala.Some(column("row_index")),
        )
        by_name = helper.generateCandidateFileMap(self._log.dataPath(), listed)
        actions, now = [], int(time.time() * 1000)
        touched = items_of(helper.findFilesWithMatchingRows(self._txn, by_name, found))
        for one in touched:
            file = one.fileLogEntry()
            if one.isFullyReplaced():
                actions.append(file.removeWithTimestamp(now, True))
                continue
            # Statistics stay, as bounds that may now be too wide.
            pair = file.removeRows(one.newDeletionVector(), True, True)
            actions += [pair._1(), pair._2()]
        self._txn.trackFilesRead(self._seq([one.fileLogEntry() for one in touched]))
        return RowActions(tuple(actions), sum(int(one.numberOfModifiedRows()) for one in touched))

    def commit_exchange(
        self,
        marked: RowActions,
        written: RowActions,
        *,
        updated: int,
        app_id: str,
        number: int,
    ) -> int:
        """Takes rows out and adds others, once for each number of an application.

        Args:
            marked: the rows that go.
            written: the rows that come.
            updated: how many of both are one row before and after, as the commit tells it.
            app_id: the application.
            number: the transaction's.

        Returns:
            The version committed.

        Raises:
            ConflictError: another writer touched what was read, or has committed this number.
        """
        added, nothing = written.rows, self._seq([])
        counts = {"Inserted": added - updated, "Updated": updated, "Deleted": marked.rows - updated}
        named = {f"numTargetRows{what}": count for what, count in counts.items()}
        context = self.session._jsparkSession.sparkContext()
        make = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        named["operationNumSourceRows"] = added + marked.rows
        metrics = {name: make(context, name) for name in named}
        for name, count in named.items():
            metrics[name].set(count)
        scala_metrics = self._jvm.PythonUtils.toScalaMap(metrics)
        self._txn.registerSQLMetrics(self.session._jsparkSession, scala_metrics)
        merge = self._delta.DeltaOperations.Merge(*[self._none] * 4, nothing, nothing, nothing)
        once = self._delta.actions.SetTransaction(app_id, number, self._none)
        return self._commit([once, *marked.actions, *written.actions], merge)

    def _changes(self, adds: Sequence[Add], removes: Sequence[Add], *, data: bool) -> list[Any]:
        """The log's actions; `data` says whether rows change, or only where they lie."""
        now = int(time.time() * 1000)
        gone = [self._taken[add["path"]].removeWithTimestamp(now, data) for add in removes]
        return [self._action(add | {"dataChange": data}) for add in adds] + gone

    def _commit(self, actions: list[Any], what: Any, *tags: Any) -> int:
        self._activate()
        try:
            return int(self._txn.commit(self._seq(actions), what, *tags))
        except Exception as error:
            text = spark_message(error)
            if "DELTA_CONCURRENT" not in text and "Concurrent" not in type(error).__name__:
                raise
            raise ConflictError(f"Another writer was quicker: {text}", hint="try again.") from error

    def _activate(self) -> None:
        """Delta reads settings, and a commit's note, from the thread's active session."""
        session_class(self._jvm).setActiveSession(self.session._jsparkSession)

    def _action(self, add: Add) -> Any:
        return delta_module(self._jvm, "actions.Action").fromJson(json.dumps({"add": add}))

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))


def _body(action: Any) -> Add:
    (body,) = json.loads(action.json()).values()
    return cast("Add", body)
