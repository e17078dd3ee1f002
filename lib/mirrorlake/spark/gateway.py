"""Talks to the JVM, as only `hadoop` does besides: Delta's transactions, which SQL can't name.

What it offers is small: the change feed as a scan of its files; a transaction that reads some
files, writes others, and commits both as a change of layout, or new ones as an append; and one that
takes single rows out of files by deletion vectors while it adds others. Files are the log's own
`add` actions, as dicts. Under Spark Connect there is no gateway, and the error says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from pyspark.sql import Column, DataFrame, Observation, SparkSession

from mirrorlake.errors import ConflictError, UsageError
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import literal, quote, spark_message

Add = dict[str, Any]
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Delta asks for it where columns are mapped by id; its SQL sets it by itself.
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_PACKAGE = "org.apache.spark.sql.delta"
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
        UsageError: the session has no JVM to talk to.
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
    sessions = session._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    try:
        yield DeltaTransaction(session, path)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
        for name in settings:
            session.conf.unset(name)


def has_gateway(spark: SparkSession) -> bool:
    """Whether a session has a JVM to talk to; Spark Connect's have not."""
    return hasattr(spark, "_jsparkSession")


def end_session(jvm: Any) -> None:
    """Stops what a process that is gone has left in a JVM, and forgets the logs that Delta read."""
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    if (left := sessions.getDefaultSession()).isDefined():
        left.get().stop()
    sessions.clearDefaultSession()
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def feed_scan(feed: DataFrame, start: int, end: int) -> DataFrame:
    """The change feed as a scan of its files.

    Delta's source hands Spark a row of objects at a time; the scan inside it reads columns, and
    filters and columns that are not asked for are left in the files. Which files those are is found
    now, not when a job starts.

    Args:
        feed: what Delta's source gave for the same range.
        start: the first version.
        end: the last version.
    """
    spark: Any = feed.sparkSession
    frame: Any = feed
    plan = frame._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return feed  # Spark does something to the rows, such as padding a CHAR
    schema = plan.relation().snapshotForBatchSchema()
    none = spark._jvm.scala.Option.empty()
    rows = _module(spark, "commands.cdc.CDCReader").changesToBatchDF(
        schema.deltaLog(), start, end, spark._jsparkSession, none, spark._jvm.scala.Some(schema),
        False, none,
    )  # fmt: skip
    return DataFrame(rows, spark).select(*map(quote, feed.columns))


class Marked(NamedTuple):
    """Rows that deletion vectors take out: the log's actions, as the JVM's objects; how many."""

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
        self._tracking = _module(self.session, "RowTracking")
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
        listed = ", ".join(map(literal, paths))
        found = list(self._snapshot.allFiles().where(f"path IN ({listed})").collect())
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
        watched = rows.observe(observation, *sums)

        def tell() -> list[int | None] | None:
            deadline = time.monotonic() + _PATIENCE
            while time.monotonic() < deadline:
                found = observation._jo.getRowOrEmpty()  # it waits for a tenth of a second
                if found.isDefined():
                    return [found.get().get(at) for at in range(len(sums))]
            return None

        return watched, tell

    def write(self, rows: DataFrame, *, checked: bool) -> list[Add]:
        """Writes rows as files of the table, with statistics; they are not committed yet.

        Args:
            rows: in the table's schema, with the hidden columns where `rows` gave them.
            checked: the rows are the table's own; otherwise its constraints are checked now.
        """
        frame: Any = rows
        self._activate()
        if checked:
            written = self._txn.writeFiles(frame._jdf, self._none, True, self._seq([]))
        else:
            written = self._txn.writeFiles(frame._jdf)
        return [_body(action) for action in _items(written)]

    def commit_layout(self, adds: Sequence[Add], removes: Sequence[Add]) -> int:
        """Replaces files by others with the same rows: streams and feeds hear nothing of it.

        Returns:
            The version committed.

        Raises:
            ConflictError: another writer removed one of the files that were taken.
        """
        nothing = self._seq([])
        # Never with a `txn` action: it forces serializable isolation, and every append conflicts.
        operation = self._delta.DeltaOperations.Optimize(nothing, nothing, False, self._none, False)
        no_tags = self._jvm.PythonUtils.toScalaMap({})
        tags = self._tracking.addPreservedRowTrackingTagIfNotSet(self._snapshot, no_tags)
        return self._commit(self._changes(adds, removes, data=False), operation, tags)

    def commit_rows(self, adds: Sequence[Add], removes: Sequence[Add], *, mode: str) -> int:
        """Adds new rows, and removes the files that were taken: an append or an overwrite.

        Returns:
            The version committed.

        Raises:
            ConflictError: another writer touched what was read.
        """
        save = self._jvm.org.apache.spark.sql.SaveMode.valueOf(mode)
        operation = self._delta.DeltaOperations.Write(save, *[self._none] * 8)
        return self._commit(self._changes(adds, removes, data=True), operation)

    def has_seen(self, app_id: str, number: int) -> bool:
        """Whether an application's transaction of this number, or a later one, was committed."""
        checksum = self._snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else self._none
        if known.isEmpty():  # this computes the whole state of the table
            return int(self._txn.txnVersion(app_id)) >= number
        self._txn.readTxn().addOne(app_id)  # another writer's commit of it is a conflict
        seen = [one for one in _items(known.get()) if one.appId() == app_id]
        return any(int(one.version()) >= number for one in seen)

    def mark_deleted(self, places: DataFrame) -> Marked:
        """Takes single rows out of their files: deletion vectors are written, none is committed.

        Args:
            places: of each row `file_path` and `row_index`, as the hidden column `_metadata` has
                them in the files that the transaction knows.
        """
        self._activate()
        files = list(self._taken.values())
        listed, frame = self._seq(files), cast("Any", places)
        column = self._jvm.org.apache.spark.sql.functions.col
        vectors = _module(self.session, "commands.DeletionVectorBitmapGenerator")
        helper = _module(self.session, "commands.DMLWithDeletionVectorsHelper")
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
        touched = _items(helper.findFilesWithMatchingRows(self._txn, by_name, found))
        for one in touched:
            file = one.fileLogEntry()
            if one.isFullyReplaced():
                actions.append(file.removeWithTimestamp(now, True))
                continue
            # Statistics stay, as bounds that may now be too wide.
            pair = file.removeRows(one.newDeletionVector(), True, True)
            actions += [pair._1(), pair._2()]
        self._txn.trackFilesRead(self._seq([one.fileLogEntry() for one in touched]))
        return Marked(tuple(actions), sum(int(one.numberOfModifiedRows()) for one in touched))

    def commit_exchange(
        self,
        marked: Marked,
        adds: Sequence[Add],
        *,
        added: int,
        updated: int,
        app_id: str,
        number: int,
    ) -> int:
        """Takes rows out and adds others, once for each number of an application.

        Args:
            marked: the rows that go.
            adds: files with the rows that come.
            added: how many those are.
            updated: how many of both are one row before and after, as the commit tells it.
            app_id: the application.
            number: the transaction's.

        Returns:
            The version committed.

        Raises:
            ConflictError: another writer touched what was read, or has committed this number.
        """
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
        nothing = self._seq([])
        merge = self._delta.DeltaOperations.Merge(*[self._none] * 4, nothing, nothing, nothing)
        once = self._delta.actions.SetTransaction(app_id, number, self._none)
        come = self._changes(adds, (), data=True)
        return self._commit([once, *marked.actions, *come], merge)

    def _changes(self, adds: Sequence[Add], removes: Sequence[Add], *, data: bool) -> list[Any]:
        """The log's actions; `data` says whether rows change, or only where they lie."""
        now = int(time.time() * 1000)
        gone = [self._taken[add["path"]].removeWithTimestamp(now, data) for add in removes]
        return [self._action(add | {"dataChange": data}) for add in adds] + gone

    def _commit(self, actions: list[Any], operation: Any, *tags: Any) -> int:
        self._activate()
        try:
            return int(self._txn.commit(self._seq(actions), operation, *tags))
        except Exception as error:
            text = spark_message(error)
            if "DELTA_CONCURRENT" not in text and "Concurrent" not in type(error).__name__:
                raise
            raise ConflictError(f"Another writer was quicker: {text}", hint="try again.") from error

    def _activate(self) -> None:
        """Delta reads settings, and a commit's note, from the thread's active session."""
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(self.session._jsparkSession)

    def _action(self, add: Add) -> Any:
        return _module(self.session, "actions.Action").fromJson(json.dumps({"add": add}))

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))


def _module(session: Any, name: str) -> Any:
    """A Scala object, by the class loader that knows Delta wherever its jars came from."""
    loader = session._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = session._jvm.java.lang.Class.forName(f"{_PACKAGE}.{name}$", True, loader)
    return found.getField("MODULE$").get(None)


def _items(found: Any) -> list[Any]:
    """What a Scala sequence holds."""
    return [found.apply(index) for index in range(found.size())]


def _body(action: Any) -> Add:
    (body,) = json.loads(action.json()).values()
    return cast("Add", body)
