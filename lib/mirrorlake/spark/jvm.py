"""The module that talks to a session's JVM: whatever SQL and DataFrames do not offer.

That is Delta's optimistic transactions, its cache of logs, its change feed as a scan of files, and
Hadoop's file systems. A session of Spark Connect has no JVM: `has_gateway` returns False for it,
and `transaction` raises an error.

A `DeltaTransaction` reads some files, writes others, and commits both as a change of layout; or it
appends new files; or it deletes single rows by deletion vectors while it adds others. A file is an
`add` action of the log, as a dict.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mirrorlake.errors import ConflictError, OtherDeltaError, UsageError, first_line
from mirrorlake.spark.sql import literal, quote, spark_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

Add = dict[str, Any]
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Delta asks for it where columns are mapped by id; its SQL sets it by itself.
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_PATIENCE = 10  # seconds
_log = logging.getLogger(__name__)
_PACKAGE = "org.apache.spark.sql.delta"
_READER = "commands.cdc.CDCReader"
# How Py4J says that a class or a method is not there, or takes other arguments.
_MISSING = re.compile(
    r"'JavaPackage' object is not callable|(Method|Constructor) .* does not exist"
    r"|does not exist in the JVM",
    re.DOTALL,
)
_FALSE_HITS = 0.01
MOST_BROADCAST = 500_000
"""As many rows are sent to every task of a join, rather than the other side be shuffled."""
# Of a key: where values are equal, so are their hashes.
_HASHED = frozenset(("tinyint", "smallint", "int", "bigint", "string", "date", "boolean"))
_KNOWN_LOGS = Path(__file__).with_name("KnownLogs.java")
# What every session needs for the same results everywhere.
SESSION_CONFS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
}


def prepare(spark: SparkSession) -> SparkSession:
    """Sets what mirrorlake needs on somebody else's session."""
    # PySpark logs every refused query as a page of JSON; the exception says it all.
    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    for name, value in SESSION_CONFS.items():
        spark.conf.set(name, value)
    know_logs(spark)
    return spark


def session_class(jvm: Any) -> Any:
    """Spark's class of sessions with a JVM; before 4.0 there is no other, and its name is plain."""
    found = jvm.org.apache.spark.sql.classic.SparkSession
    return jvm.org.apache.spark.sql.SparkSession if is_missing(found) else found


def has_gateway(spark: SparkSession) -> bool:
    """Whether a session has a JVM to talk to; Spark Connect's have not."""
    return hasattr(spark, "_jsparkSession")


def is_missing(found: Any) -> bool:
    """Whether Py4J took a name for a package, since there is no such class."""
    return type(found).__name__ == "JavaPackage"


def end_session(jvm: Any) -> None:
    """Stops what a process that is gone has left in a JVM, and forgets the logs that Delta read."""
    sessions = session_class(jvm)
    if (left := sessions.getDefaultSession()).isDefined():
        left.get().stop()
    sessions.clearDefaultSession()
    forget_logs(jvm)


def forget_logs(jvm: Any) -> None:
    """Lets go of what Delta read of tables' logs, which it keeps for an hour after the last use."""
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def refuse_other_delta(error: Exception) -> None:
    """Says so if an error means that a session's Delta lacks what is asked of it; else returns.

    Raises:
        OtherDeltaError: a class or method is not there, or takes other arguments.
    """
    if _MISSING.search(str(error)):
        raise OtherDeltaError(
            "This Spark's Delta is not the one whose transactions mirrorlake knows, so files can't"
            f" be rewritten: {first_line(error)}",
            hint="use PySpark 4.1 with Delta 4.4 for it; all that is SQL works here.",
        ) from error


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
    if not method_takes(spark._jvm, f"{_READER}$", "changesToBatchDF", 8):
        return feed  # another Delta: slower, and the same rows
    schema = plan.relation().snapshotForBatchSchema()
    none = spark._jvm.scala.Option.empty()
    rows = delta_module(spark._jvm, _READER).changesToBatchDF(
        schema.deltaLog(), start, end, spark._jsparkSession, none, spark._jvm.scala.Some(schema),
        False, none,
    )  # fmt: skip
    return _frame(rows, spark).select(*map(quote, feed.columns))


def rows_among(
    rows: DataFrame, partners: DataFrame, keys: Mapping[str, str], count: int
) -> DataFrame:
    """Rows without most of those that have no partner, by a cheap test before a join.

    Spark makes it where the rows are read, before their ids and places are made.

    Args:
        rows: the rows to test.
        partners: what they are joined with. They are read now.
        keys: the columns that are equal, those of `rows` to those of `partners`.
        count: about how many partners there are.

    Returns:
        The rows behind a Bloom filter; all of them if this Spark makes none, if equal keys may
        have different hashes, or if it doesn't pay.
    """
    from pyspark.sql import Column
    from pyspark.sql import functions as F

    wanted = [rows.schema[name].dataType.simpleString() for name in keys]
    given = [partners.schema[name].dataType.simpleString() for name in keys.values()]
    if (
        not keys
        or wanted != given
        or not _HASHED.issuperset(wanted)
        or not 1 < count <= MOST_BROADCAST
    ):
        return rows
    session: Any = rows.sparkSession
    jvm = session._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    made, test = jvm.org.apache.spark.sql.classic.ExpressionUtils, catalyst.BloomFilterMightContain
    if is_missing(made) or is_missing(test):
        return rows
    frame: Any = partners.select(F.xxhash64(*map(quote, keys.values())).alias("key"))
    bloom = frame._jdf.stat().bloomFilter("key", count, _FALSE_HITS)
    written = jvm.java.io.ByteArrayOutputStream()
    bloom.writeTo(written)
    parts: list[Any] = [F.lit(bytes(written.toByteArray())), F.xxhash64(*map(quote, keys))]
    return rows.where(Column(made.column(test(*[made.expression(part._jc) for part in parts]))))


def _frame(rows: Any, session: Any) -> DataFrame:
    """Return a DataFrame of the JVM as one of PySpark."""
    from pyspark.sql import DataFrame

    return DataFrame(rows, session)


@cache
def delta_module(jvm: Any, name: str) -> Any:
    """A Scala object, by the class loader that knows Delta wherever its jars came from."""
    return _class(jvm, f"{name}$").getField("MODULE$").get(None)


def _class(jvm: Any, name: str) -> Any:
    """One of Delta's classes, as Java's reflection has it."""
    return jvm.java.lang.Class.forName(f"{_PACKAGE}.{name}", True, _loader(jvm))


def _loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


def operation(jvm: Any, name: str, *given: Any) -> Any:
    """One of Delta's operations, as a commit tells it; how much one tells differs by version.

    Args:
        jvm: a classic session's.
        name: of the operation.
        given: what it is made of, in its order; what it has besides is left out.
    """
    count = _class(jvm, f"DeltaOperations${name}").getConstructors()[0].getParameterCount()
    rest = [jvm.scala.Option.empty()] * (count - len(given))
    return getattr(jvm.org.apache.spark.sql.delta.DeltaOperations, name)(*given[:count], *rest)


def observed(observation: Any, names: list[str], patience: float) -> list[Any] | None:
    """What an observation saw in the job that is done; None if Spark does not tell it in time.

    Args:
        observation: PySpark's, of a classic session.
        names: its columns, in their order.
        patience: seconds.
    """
    watcher, until = observation._jo, time.monotonic() + patience
    if "getRowOrEmpty" in {method.getName() for method in watcher.getClass().getMethods()}:
        while time.monotonic() < until:
            found = watcher.getRowOrEmpty()  # it waits for a tenth of a second
            if found.isDefined():
                return [found.get().get(place) for place in range(len(names))]
        return None
    seen: list[dict[str, Any]] = []  # before 4.1 only a call that may wait for ever tells it
    waiting = Thread(target=lambda: seen.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(patience)
    return [seen[0][name] for name in names] if seen else None


def know_logs(spark: SparkSession) -> None:
    """Has Delta take from a version's checksum what it computes from all files for each statement.

    Once a JVM, for all its sessions; what Delta has read before is read again. Nothing happens on
    Spark Connect, and where this Delta is made otherwise.

    Args:
        spark: any session.
    """
    if has_gateway(spark):
        _install_known_logs(spark._jvm, spark.sparkContext._gateway)


@cache
def _install_known_logs(jvm: Any, gateway: Any) -> None:
    """Compiles `KnownLogs.java` by the compiler in Spark, and puts it into its place."""
    try:
        conf = jvm.org.apache.spark.sql.internal.SQLConf.get()
        logs = delta_module(jvm, "DeltaLog").getOrCreateCache(conf)
        if logs.getClass().getName() == "mirrorlake.KnownLogs":  # by another process of this JVM
            return
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(_loader(jvm))
        compiler.cook(_KNOWN_LOGS.read_text(encoding="utf-8"))
        given = gateway.new_array(jvm.java.lang.Object, 1)
        given[0] = logs
        known = compiler.getClassLoader().loadClass("mirrorlake.KnownLogs")
        known.getConstructors()[0].newInstance(given).install()
    except Exception as error:
        # It only saves time: whatever this Delta lacks, its own way is right.
        _log.debug("Delta's logs stay as they are: %s", first_line(error))


def items_of(found: Any) -> list[Any]:
    """What a Scala sequence holds."""
    return [found.apply(index) for index in range(found.size())]


def method_takes(jvm: Any, name: str, method: str, count: int) -> bool:
    """Whether one of Delta's classes is there, and has a method of so many parameters."""
    return (method, count) in _methods(jvm, name)


@cache
def _methods(jvm: Any, name: str) -> frozenset[tuple[str, int]]:
    try:
        found = _class(jvm, name)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        return frozenset()
    return frozenset(
        (method.getName(), method.getParameterCount()) for method in found.getMethods()
    )


def remove_empty_folders(spark: SparkSession, path: str) -> None:
    """Removes a folder that holds folders alone. A file in it, or one that comes, is safe.

    By Hadoop's own file systems: only they can name the markers of folders.

    Args:
        spark: the session; without a JVM, on Spark Connect, nothing happens.
        path: the folder, in full.
    """
    session: Any = spark
    if not has_gateway(session):
        return
    folder = session._jvm.org.apache.hadoop.fs.Path(path)
    with suppress(Exception):  # it is not there, or not empty: nothing is to be removed
        _remove(folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), folder)


def _remove(files: Any, folder: Any) -> None:
    for one in files.listStatus(folder):
        if one.isDirectory():
            _remove(files, one.getPath())
    files.delete(folder, False)  # never what is in it


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
    session: Any = prepare(spark.newSession()) if own else spark
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
        return _frame(self._snapshot.allFiles().toDF(), self.session)

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
        return _frame(frame, self.session)

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
        from pyspark.sql import Observation

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
