"""Talk to the JVM of a session: Delta transactions, deletion vectors, cached logs, Hadoop files.

It provides what SQL and DataFrames do not offer, such as the change feed as a scan of files. A
session of Spark Connect has no JVM: `has_gateway` returns False for it, and `transaction` raises an
error.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, reduce
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mirrorlake.errors import ConflictError, OtherDeltaError, UsageError, first_line
from mirrorlake.names import quote
from mirrorlake.spark.sql import is_conflict, literal, setting, spark_message
from mirrorlake.storage.object_stores import scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, Row, SparkSession

Add = dict[str, Any]
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# Delta requires this setting if columns are mapped by id. Its SQL commands set it themselves.
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_PATIENCE = 10  # seconds
_VECTORS_A_FILE, _VECTOR_FILES_AT_ONCE = 64, 8  # writing one to an object store takes milliseconds
_log = logging.getLogger(__name__)
_PACKAGE = "org.apache.spark.sql.delta"
_READER = "commands.cdc.CDCReader"
# Py4J's errors for a class or method that does not exist, or that takes other arguments.
_MISSING = re.compile(
    r"'JavaPackage' object is not callable|(Method|Constructor) .* does not exist"
    r"|does not exist in the JVM",
    re.DOTALL,
)
_FALSE_HITS = 0.01
MOST_BROADCAST = 500_000
"""The most rows that a join broadcasts to every task, so that the other side is not shuffled."""
_KEPT_BYTES = 2 * 2**20
_LOCAL_RELATION = "org.apache.spark.sql.catalyst.plans.logical.LocalRelation"
# Types of a key for which equal values have equal hashes.
_HASHED = frozenset(("tinyint", "smallint", "int", "bigint", "string", "date", "boolean"))
ENFORCED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""The setting by which Delta refuses old versions of a table even if all their files exist."""
# Every session needs these settings, so that results are the same everywhere.
SESSION_CONFS = {
    ENFORCED: "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
}

# On a local disk, Delta's commits write their checksum with it. Spark's default starts eight
# processes for each file.
_LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_FUNCTIONS = "org.apache.spark.sql.functions"
_KEPT_CLASSES = (
    "PythonUtils.toSeq",
    "functions",
    "scala.Option",
    "scala.Some",
    "org.apache.spark.sql.classic.Dataset",
    "org.apache.spark.sql.classic.ExpressionUtils",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.delta.DeltaLog",
    "org.apache.spark.sql.delta.actions",
    "org.apache.spark.sql.delta.commands.DeletionVectorData",
    "org.apache.spark.sql.execution",
)


def prepare(spark: SparkSession) -> SparkSession:
    """Set what mirrorlake needs on a session, and return the session."""
    # PySpark logs every failed query as a page of JSON; the exception has the same facts.
    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    for name, value in SESSION_CONFS.items():
        spark.conf.set(name, value)
    know_logs(spark)
    if has_gateway(spark):
        _keep_classes(spark._jvm)
    return spark


def _keep_classes(jvm: Any) -> None:
    """Look up often used classes once.

    For each use of a name, Py4J asks the JVM whether it is a class or a package. The JVM then
    searches all jars, which takes a twentieth of the time of a small commit.
    """
    for name in _KEPT_CLASSES:
        here = jvm
        for part in name.split("."):
            found = getattr(here, part)
            if part not in vars(here):
                setattr(here, part, found)
            here = found
    # PySpark looks its functions up under this name.
    setattr(jvm, _FUNCTIONS, getattr(jvm, _FUNCTIONS))


def session_class(jvm: Any) -> Any:
    """Return Spark's class of classic sessions. Before Spark 4.0 it is in another package."""
    found = jvm.org.apache.spark.sql.classic.SparkSession
    return jvm.org.apache.spark.sql.SparkSession if is_missing(found) else found


def has_gateway(spark: SparkSession) -> bool:
    """Check whether a session has a JVM. A session of Spark Connect has none."""
    return hasattr(spark, "_jsparkSession")


def is_missing(found: Any) -> bool:
    """Check whether a class does not exist, so that Py4J took its name for a package."""
    return type(found).__name__ == "JavaPackage"


def end_session(jvm: Any) -> None:
    """Stop the session that an ended process left in a JVM, and clear Delta's cache of logs."""
    sessions = session_class(jvm)
    if (left := sessions.getDefaultSession()).isDefined():
        left.get().stop()
    sessions.clearDefaultSession()
    forget_logs(jvm)


def forget_logs(jvm: Any) -> None:
    """Clear Delta's cache of logs, which keeps an entry for an hour after its last use."""
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def refuse_other_delta(error: Exception) -> None:
    """Raise an error if Delta does not have a class or method that was called; else do nothing.

    Raises:
        OtherDeltaError: a class or method does not exist, or takes other arguments.
    """
    if _MISSING.search(str(error)):
        raise OtherDeltaError(
            "Files can't be rewritten: this version of Delta has other transactions than"
            f" mirrorlake expects: {first_line(error)}",
            hint="use PySpark 4.1 with Delta 4.4 for this operation; operations in SQL work here.",
        ) from error


def feed_scan(feed: DataFrame, start: int, end: int) -> DataFrame:
    """Return the change feed as a scan of its files.

    Delta's source converts every row to an object. The scan reads columns, skips columns that are
    not requested, and pushes filters down to the files. The files are listed now, not when a job
    starts.

    Args:
        feed: the change feed of the same range, as Delta's source reads it.
        start: the first version.
        end: the last version.

    Returns:
        The scan, or `feed` if it cannot be read in this way.
    """
    spark: Any = feed.sparkSession
    frame: Any = feed
    plan = frame._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return feed  # Spark transforms the rows, such as padding a CHAR
    if not method_takes(spark._jvm, f"{_READER}$", "changesToBatchDF", 8):
        return feed  # another version of Delta: slower, with the same rows
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
    """Filter out most rows that have no match in a join, by a Bloom filter.

    Spark evaluates the filter as it reads the rows, before it adds row ids and file positions.

    Args:
        rows: the rows to filter.
        partners: the other side of the join. It is read now.
        keys: the join's columns: the names in `rows`, and the names in `partners` that they equal.
        count: the approximate number of rows of `partners`.

    Returns:
        The filtered rows. These are all rows if this Spark has no Bloom filter, if equal keys may
        have different hashes, or if a filter does not save time.
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


def repeatable(rows: DataFrame) -> DataFrame:
    """Return the same rows; further queries reuse the last shuffle instead of running it again."""
    session: Any = rows.sparkSession
    plan = cast("Any", rows)._jdf.queryExecution()
    partitioning = plan.executedPlan().outputPartitioning()
    return _planned(
        _relation(session, plan.analyzed().output(), plan.toRdd(), partitioning), session
    )


def few_rows(rows: DataFrame, most: int) -> tuple[DataFrame, int] | None:
    """Compute rows, and keep them in the driver if they are few.

    Queries of the result need no job to count it, and Spark knows its size.

    Args:
        rows: the rows.
        most: the greatest number of rows.

    Returns:
        The same rows as a DataFrame, and their number; None if there are more, or if they have more
        than 2 MiB: Spark sends them to the tasks.
    """
    session: Any = rows.sparkSession
    jvm = session._jvm
    query = cast("Any", rows)._jdf.queryExecution()
    gateway = session.sparkContext._gateway
    take = _own_object(jvm, gateway, "TakeRows", query.executedPlan(), most, _KEPT_BYTES)
    found = jvm.org.apache.spark.sql.execution.SQLExecution.withSQLConfPropagated(
        session._jsparkSession, take
    )
    if found is None:
        return None
    data = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(found)
    kind = jvm.java.lang.Class.forName(_LOCAL_RELATION)
    none = jvm.scala.Option.empty()
    kept = _new_object(jvm, gateway, kind, query.analyzed().output(), data, False, none)
    return _planned(kept, session), len(found)


def _relation(session: Any, output: Any, rows: Any, partitioning: Any) -> Any:
    """Return the plan of an RDD of rows."""
    none, nothing = session._jvm.scala.Option.empty(), session._jvm.PythonUtils.toSeq([])
    return session._jvm.org.apache.spark.sql.execution.LogicalRDD(
        output, rows, partitioning, nothing, False, none, session._jsparkSession, none, none
    )


def _planned(plan: Any, session: Any) -> DataFrame:
    """Return the DataFrame of a logical plan."""
    sets = session._jvm.org.apache.spark.sql.classic.Dataset
    return _frame(sets.ofRows(session._jsparkSession, plan), session)


def _frame(rows: Any, session: Any) -> DataFrame:
    """Return a DataFrame of the JVM as one of PySpark."""
    from pyspark.sql import DataFrame

    return DataFrame(rows, session)


@cache
def delta_module(jvm: Any, name: str) -> Any:
    """Return a Scala object of Delta, through the class loader that has Delta's jars."""
    return _class(jvm, f"{name}$").getField("MODULE$").get(None)


def _class(jvm: Any, name: str) -> Any:
    """Return one of Delta's classes for reflection."""
    return jvm.java.lang.Class.forName(f"{_PACKAGE}.{name}", True, _loader(jvm))


def _loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


def operation(jvm: Any, name: str, *given: Any) -> Any:
    """Return one of Delta's operations, as a commit records it.

    The number of an operation's parameters differs between versions of Delta.

    Args:
        jvm: the JVM of a classic session.
        name: the name of the operation.
        given: the first parameters. Further parameters are empty, surplus values are ignored.
    """
    count = _class(jvm, f"DeltaOperations${name}").getConstructors()[0].getParameterCount()
    rest = [jvm.scala.Option.empty()] * (count - len(given))
    return getattr(jvm.org.apache.spark.sql.delta.DeltaOperations, name)(*given[:count], *rest)


def observed(observation: Any, names: list[str], patience: float) -> list[Any] | None:
    """Return the values of an observation after its job; None if Spark does not deliver them.

    Args:
        observation: an `Observation` of PySpark in a classic session.
        names: the names of its columns, in order.
        patience: the longest time to wait, in seconds.
    """
    watcher, until = observation._jo, time.monotonic() + patience
    if "getRowOrEmpty" in {method.getName() for method in watcher.getClass().getMethods()}:
        while time.monotonic() < until:
            found = watcher.getRowOrEmpty()  # waits for a tenth of a second
            if found.isDefined():
                return [found.get().get(place) for place in range(len(names))]
        return None
    seen: list[dict[str, Any]] = []  # before 4.1, the only call can block forever
    waiting = Thread(target=lambda: seen.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(patience)
    return [seen[0][name] for name in names] if seen else None


def know_logs(spark: SparkSession) -> None:
    """Make Delta read a version's figures from its checksum instead of from all files.

    This is done once per JVM, for all its sessions. Logs that Delta has already cached are read
    again. Nothing happens on Spark Connect, or if this version of Delta has other classes.

    Args:
        spark: any session.
    """
    if has_gateway(spark):
        _install_known_logs(spark._jvm, spark.sparkContext._gateway)


@cache
def _install_known_logs(jvm: Any, gateway: Any) -> None:
    """Replace Delta's cache with `KnownLogs.java`."""
    try:
        conf = jvm.org.apache.spark.sql.internal.SQLConf.get()
        logs = delta_module(jvm, "DeltaLog").getOrCreateCache(conf)
        if (
            logs.getClass().getName() == "mirrorlake.KnownLogs"
        ):  # installed by another process of this JVM
            return
        _own_object(jvm, gateway, "KnownLogs", logs).install()
    except Exception as error:
        # The replacement only saves time; without it, Delta's own computation is correct.
        _log.debug("Delta's own cache of logs stays in use: %s", first_line(error))


def _known_files(rows: DataFrame) -> DataFrame:
    """Return the rows of a list of files, with the list in `KnownFiles.java`."""
    session: Any = rows.sparkSession
    if not _has_known_files(session._jvm):
        return rows
    plan = cast("Any", rows)._jdf.queryExecution().analyzed()
    listed = plan.collectLeaves().head().relation().location()
    files = _own_object(session._jvm, session.sparkContext._gateway, "KnownFiles", listed)
    utils = delta_module(session._jvm, "DeltaTableUtils")
    return _planned(utils.replaceFileIndex(plan, files), session)


@cache
def _has_known_files(jvm: Any) -> bool:
    """Check whether this version of Delta has the classes that `KnownFiles.java` extends."""
    try:
        _own_class(jvm, "KnownFiles")
    except Exception as error:
        _log.debug("Delta's own lists of files stay in use: %s", first_line(error))
        return False
    return True


def _own_object(jvm: Any, gateway: Any, name: str, *arguments: Any) -> Any:
    """Return a new object of one of this package's classes in Java."""
    return _new_object(jvm, gateway, _own_class(jvm, name), *arguments)


def _new_object(jvm: Any, gateway: Any, kind: Any, *arguments: Any) -> Any:
    """Return a new object of a class. Its constructor may have fewer parameters than given."""
    constructor = kind.getConstructors()[0]
    given = gateway.new_array(jvm.java.lang.Object, constructor.getParameterCount())
    for place in range(len(given)):
        given[place] = arguments[place]
    return constructor.newInstance(given)


@cache
def _own_class(jvm: Any, name: str) -> Any:
    """Compile one of this package's classes with the compiler in Spark."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(_loader(jvm))
    compiler.cook(Path(__file__).with_name(f"{name}.java").read_text(encoding="utf-8"))
    return compiler.getClassLoader().loadClass(f"mirrorlake.{name}")


def keep_together(
    shares: Sequence[DataFrame], rest: DataFrame | None, spark: SparkSession, column: str, task: str
) -> DataFrame:
    """Return rows with one task per share. Spark then does not shuffle them by a column.

    This holds for aggregations by the column and for equi-joins on it. A join shuffles the other
    side, unless its rows are placed in the same way. Spark reads all columns of the shares,
    whatever a query needs.

    Args:
        shares: the rows of each task.
        rest: further rows for the same tasks, one partition per share, in the same order.
        spark: the session of the result.
        column: the column.
        task: the number of the share that contains a value of `column`, as SQL.

    Returns:
        The rows. With another version of Spark, it shuffles them.
    """
    session: Any = spark
    jvm, context = session._jvm, session._jsparkSession.sparkContext()
    sql, rdds, seq = jvm.org.apache.spark.sql, jvm.org.apache.spark.rdd, jvm.PythonUtils.toSeq
    try:
        numbered = cast("Any", shares[0].selectExpr(task))._jdf.queryExecution().analyzed()
        number = sql.catalyst.expressions.DirectShufflePartitionID(
            numbered.projectList().head().children().head()
        )
        rule = sql.catalyst.plans.physical.ShufflePartitionIdPassThrough(number, len(shares))
        plans = [cast("Any", share.coalesce(1))._jdf.queryExecution() for share in shares]
        row = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
        kind = jvm.scala.reflect.ClassTag.apply(row)
        rows = rdds.UnionRDD(context, seq([plan.toRdd() for plan in plans]), kind)
        if rest is not None:
            both = seq([rows, cast("Any", rest)._jdf.queryExecution().toRdd()])
            rows = rdds.SQLPartitioningAwareUnionRDD(context, both, len(shares), kind)
        output = plans[0].analyzed().output()
        names = [name.lower() for name in shares[0].columns]
        key = output.apply(names.index(column.lower()))
        placed = _own_object(jvm, spark.sparkContext._gateway, "Placement", rule, key, key)
        return _planned(_relation(session, output, rows, placed), spark)
    except Exception as error:
        if not _MISSING.search(str(error)):
            raise
        parts = [*shares] if rest is None else [*shares, rest]
        return reduce(type(parts[0]).unionAll, parts)


def items_of(found: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [found.apply(index) for index in range(found.size())]


def method_takes(jvm: Any, name: str, method: str, count: int) -> bool:
    """Check whether one of Delta's classes exists and has a method with `count` parameters."""
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
    """Remove a folder that contains only folders. Files in it, also new ones, are never deleted.

    Hadoop's file systems do it, because only they know the names of folder markers.

    Args:
        spark: the session. On Spark Connect, which has no JVM, nothing happens.
        path: the full path of the folder.
    """
    session: Any = spark
    if not has_gateway(session):
        return
    folder = session._jvm.org.apache.hadoop.fs.Path(path)
    with suppress(Exception):  # the folder does not exist or is not empty: nothing to remove
        _remove(folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), folder)


def _remove(files: Any, folder: Any) -> None:
    for one in files.listStatus(folder):
        if one.isDirectory():
            _remove(files, one.getPath())
    files.delete(folder, False)  # not recursive: fails if the folder has files


@contextmanager
def transaction(
    spark: SparkSession,
    path: str,
    *,
    note: str = "",
    confs: dict[str, str] | None = None,
    own: bool = True,
) -> Iterator[DeltaTransaction]:
    """Open a transaction of Delta on one table.

    Args:
        spark: a classic session, not one of Spark Connect.
        path: the full path of the table's folder.
        note: the `userMetadata` of the commit.
        confs: settings of the session, such as those of Parquet for the written files.
        own: whether the transaction has a session of its own. False uses the given session, for its
            temporary views.

    Yields:
        The transaction; it is committed by one of its methods.

    Raises:
        UsageError: the session has no JVM, or its version of Delta has other transactions.
    """
    if not has_gateway(spark):
        raise UsageError(
            "Files can't be rewritten: Spark Connect has no access to Delta's own transactions.",
            hint="run this in a classic session, without SPARK_REMOTE.",
        )
    session: Any = prepare(spark.newSession()) if own else spark
    session.conf.set(_BY_ID, "true")
    settings = (confs or {}) | ({_USER_METADATA: note} if note else {})
    if not scheme_of(path) and session.version.startswith("4.1"):
        settings |= _LOCAL_FILES
    try:
        sessions = session_class(session._jvm)
        before = sessions.getActiveSession()
        with ExitStack() as stack:
            for name, value in settings.items():
                stack.enter_context(setting(session, name, value))
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


_EXCHANGES = {  # the methods of Delta that marking, removing and committing rows call
    "OptimisticTransaction": {"readWholeTable": 0, "trackFilesRead": 1, "registerSQLMetrics": 2},
    "commands.DeletionVectorWriter$": {"createMapperToStoreDeletionVectors": 4},
    "commands.DMLWithDeletionVectorsHelper$": {"findFilesWithMatchingRows": 3, "getTouchedFile": 3},
    "RowTracking$": {"preserveRowTrackingColumns": 2},
    "actions.AddFile": {"removeRows": 3},
}


def can_exchange(spark: SparkSession) -> bool:
    """Check whether this version of Delta can delete and add single rows in one transaction."""
    if not has_gateway(spark):
        return False
    jvm: Any = cast("Any", spark)._jvm
    if is_missing(jvm.org.apache.spark.sql.classic.ExpressionUtils):  # before Spark 4.0
        return False
    wanted = ((kind, name, n) for kind, names in _EXCHANGES.items() for name, n in names.items())
    return all(method_takes(jvm, kind, name, count) for kind, name, count in wanted)


class RowActions(NamedTuple):
    """Actions of the log that delete or add single rows.

    Attributes:
        actions: the actions, as objects of the JVM.
        rows: the number of rows, without those in files of the change feed.
        updated: how many deleted rows have a new state among the added rows.
    """

    actions: tuple[Any, ...] = ()
    rows: int = 0
    updated: int = 0


class DeletedRows(NamedTuple):
    """Rows to delete, whose deletion vectors are not written yet.

    Attributes:
        store: writes the vectors, without a Spark job, and returns the actions.
        rows: the number of rows.
        updated: as in `RowActions`.
        unplaced: the number of given rows without a place, which are not deleted.
    """

    store: Callable[[], RowActions] = RowActions
    rows: int = 0
    updated: int = 0
    unplaced: int = 0


class DeltaTransaction:
    """An optimistic transaction on one table, which `transaction` opens."""

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
        """Whether the table tracks rows, so that row ids must be preserved."""
        return bool(self._tracking.isEnabled(self._snapshot.protocol(), self._snapshot.metadata()))

    @property
    def has_vectors(self) -> bool:
        """Whether the table has deletion vectors, so that single rows can be deleted."""
        vectors = self.metadata()["configuration"].get("delta.enableDeletionVectors", "false")
        return str(vectors).lower() == "true"

    @property
    def has_row_index(self) -> bool:
        """Whether Delta returns the position of a row in its file."""
        return self.has_vectors or self.tracks_rows

    def metadata(self) -> dict[str, Any]:
        """Return the `metaData` action of the log."""
        return cast("dict[str, Any]", json.loads(self._snapshot.metadata().json())["metaData"])

    def files(self) -> DataFrame:
        """Return the files of the version: one row per `add` action, with the log's field names."""
        return _frame(self._snapshot.allFiles().toDF(), self.session)

    def take(self, paths: Sequence[str]) -> list[Add]:
        """Read files for a rewrite. If another writer removes one of them, the commit fails.

        Delta reads its log only for files that `know` did not set.

        Args:
            paths: the paths as the log has them.
        """
        if unknown := [path for path in paths if path not in self._taken]:
            wanted = f"path IN ({', '.join(map(literal, unknown))})"
            found = self._snapshot.allFiles().where(wanted).collect()
            self._taken |= {file.path(): file for file in found}
        taken = [self._taken[path] for path in paths if path in self._taken]
        self._txn.trackFilesRead(self._seq(taken))
        return [_body(file) for file in taken]

    def know(self, adds: Sequence[Add]) -> None:
        """Set the files of the version, so that Delta does not have to read its log.

        Args:
            adds: all files of the version that the transaction reads, as its log has them.
        """
        self._taken = {add["path"]: self._action(add) for add in adds}

    def rows(self, adds: Sequence[Add], *, keep_ids: bool = False) -> DataFrame:
        """Return the rows of files of the version, or of files that are written but not committed.

        Args:
            adds: the files.
            keep_ids: add the hidden columns with row ids and commit versions, so that rewritten
                rows keep theirs.
        """
        self._activate()  # a DataFrame keeps the settings of the session that is active now
        files = [self._taken.get(add["path"]) or self._action(add) for add in adds]
        frame = self._log.createDataFrame(self._snapshot, self._seq(files), False, self._none)
        if keep_ids and self.tracks_rows:
            frame = self._tracking.preserveRowTrackingColumns(frame, self._snapshot)
        return _known_files(_frame(frame, self.session))

    def watched(
        self, rows: DataFrame, sums: Sequence[Column]
    ) -> tuple[DataFrame, Callable[[], list[int | None] | None]]:
        """Compute sums of rows within the job that processes them, without another job.

        Args:
            rows: the rows.
            sums: aggregates that are whole numbers.

        Returns:
            The rows to process, and a function that returns the sums after the job, or None if
            Spark does not deliver them in time. A task that Spark runs twice counts twice, so only
            sums that match the expectation prove anything.
        """
        from pyspark.sql import Observation

        observation: Any = Observation()
        names = [f"sum_{place}" for place in range(len(sums))]
        named = [one.alias(name) for one, name in zip(sums, names, strict=True)]
        watched = rows.observe(observation, *named)
        return watched, lambda: observed(observation, names, _PATIENCE)

    def write(self, rows: DataFrame, *, checked: bool) -> list[Add]:
        """Write rows as files of the table, with statistics. They are not committed yet.

        Args:
            rows: rows in the table's schema, with the hidden columns if `rows` added them.
            checked: whether the rows come from the table itself. If not, its constraints are
                checked.
        """
        self._activate()
        skip_checks = (self._none, True, self._seq([])) if checked else ()
        written = self._txn.writeFiles(cast("Any", rows)._jdf, *skip_checks)
        return [_body(action) for action in items_of(written)]

    def write_new(self, rows: DataFrame) -> RowActions:
        """Write rows for `commit_exchange` or `commit_overwrite`; check the table's constraints.

        Args:
            rows: rows as `write` takes them. Rows with a value in a column `_change_type` are
                written to files of the change feed, if the table has one, and not to the table.
        """
        self._activate()
        actions = tuple(items_of(self._txn.writeFiles(cast("Any", rows)._jdf)))
        stats = (json.loads(_body(action).get("stats") or "{}") for action in actions)
        return RowActions(actions, sum(int(known.get("numRecords", 0)) for known in stats))

    def read_all(self) -> None:
        """Make every change of another writer before the commit a conflict."""
        self._txn.readWholeTable()

    def commit_layout(self, adds: Sequence[Add], removes: Sequence[Add]) -> int:
        """Replace files with others that have the same rows; streams and change feeds skip it.

        Returns:
            The committed version.

        Raises:
            ConflictError: another writer removed one of the replaced files.
        """
        nothing = self._seq([])
        # A `txn` action would force serializable isolation, so that every append conflicts.
        what = operation(self._jvm, "Optimize", nothing, nothing, False, self._none, False)
        none = self._jvm.PythonUtils.toScalaMap({})
        tags = self._tracking.addPreservedRowTrackingTagIfNotSet(self._snapshot, none)
        return self._commit(self._changes(adds, removes, data=False), what, tags)

    def commit_rows(self, adds: Sequence[Add], removes: Sequence[Add], *, mode: str) -> int:
        """Add files with new rows, and remove files: an append or an overwrite.

        Returns:
            The committed version.

        Raises:
            ConflictError: another writer changed files that the transaction read.
        """
        save = self._jvm.org.apache.spark.sql.SaveMode.valueOf(mode)
        changes = self._changes(adds, removes, data=True)
        return self._commit(changes, operation(self._jvm, "Write", save))

    def has_seen(self, app_id: str, number: int) -> bool:
        """Check whether an application has committed a transaction with this or a higher number."""
        self._activate()  # Delta may read a checkpoint, for which it needs the thread's session
        # Delta records this as a read, so a concurrent commit of the number is a conflict.
        return int(self._txn.txnVersion(app_id)) >= number

    def mark_deleted(self, places: DataFrame) -> DeletedRows:
        """Find the positions of rows to delete, in one job.

        Args:
            places: the `file_path` and `row_index` of each row, as the hidden column `_metadata`
                has them, and `updated`: 1 for a row with a new state, otherwise 0. The files must
                be known to the transaction. Rows without a place are counted.
        """
        from pyspark.sql import functions as F

        self._activate()
        positions = self._positions("row_index").alias("places")
        figures = F.sum("updated").alias("updated"), F.count("*").alias("rows")
        grouped = places.groupBy("file_path").agg(positions, *figures).collect()
        found = [row for row in grouped if row["file_path"] is not None]
        unplaced = sum(row["rows"] for row in grouped if row["file_path"] is None)
        _, by_name = self._read_touched(found)
        rows = sum(int(row["places"]["cardinality"]) for row in found)
        updated = sum(row["updated"] for row in found)

        def store() -> RowActions:
            return RowActions(self._store_marks(found, by_name), rows, updated)

        return DeletedRows(store, rows, updated, unplaced)

    def _store_marks(self, found: Sequence[Row], by_name: Any) -> tuple[Any, ...]:
        """Write deletion vectors, merged with those of earlier commits; return the actions."""
        helper = delta_module(self._jvm, "commands.DMLWithDeletionVectorsHelper")
        parts = [found[n : n + _VECTORS_A_FILE] for n in range(0, len(found), _VECTORS_A_FILE)]
        with ThreadPoolExecutor(_VECTOR_FILES_AT_ONCE) as pool:
            stored = list(pool.map(lambda part: self._store_vectors(part, by_name), parts))
        vectors = self._seq([one for part in stored for one in part])
        actions, now = [], int(time.time() * 1000)
        touched = items_of(helper.findFilesWithMatchingRows(self._txn, by_name, vectors))
        for one in touched:
            file = one.fileLogEntry()
            if one.isFullyReplaced():
                actions.append(file.removeWithTimestamp(now, True))
                continue
            # Statistics are kept; their bounds may now be too wide.
            pair = file.removeRows(one.newDeletionVector(), True, True)
            actions += [pair._1(), pair._2()]
        return tuple(actions)

    def remove_touched(self, places: DataFrame) -> tuple[DeletedRows, list[str]]:
        """Remove the files that contain some rows; `commit_exchange` commits the removal.

        Args:
            places: the rows, as for `mark_deleted`. The other rows of these files must be added
                again.

        Returns:
            The actions, and the paths of the files as the log has them.
        """
        from pyspark.sql import functions as F

        self._activate()
        figures = F.count("*").alias("rows"), F.sum("updated").alias("updated")
        found = places.groupBy("file_path").agg(*figures).collect()
        files, _ = self._read_touched(found)
        now = int(time.time() * 1000)
        rows, updated = (sum(row[name] for row in found) for name in ("rows", "updated"))
        removes = tuple(file.removeWithTimestamp(now, True) for file in files)
        actions = RowActions(removes, rows, updated)
        return DeletedRows(lambda: actions, rows, updated), [file.path() for file in files]

    def _read_touched(self, found: Sequence[Row]) -> tuple[list[Any], Any]:
        """Record the registered files with some rows as read; return them, and Delta's map of all.

        Args:
            found: rows with the `file_path` of each such file.
        """
        helper = delta_module(self._jvm, "commands.DMLWithDeletionVectorsHelper")
        place, listed = self._log.dataPath(), self._seq(list(self._taken.values()))
        by_name = helper.generateCandidateFileMap(place, listed)
        files = [helper.getTouchedFile(place, row["file_path"], by_name) for row in found]
        self._txn.trackFilesRead(self._seq(files))
        return files, by_name

    def _positions(self, column: str) -> Column:
        """Return the aggregate of a column of positions: a bitmap and its number of rows."""
        from pyspark.sql import Column
        from pyspark.sql import functions as F

        made: Any = self._jvm.org.apache.spark.sql.classic.ExpressionUtils
        place: Any = F.col(column)
        portable = delta_module(self._jvm, "deletionvectors.RoaringBitmapArrayFormat").Portable()
        kinds = self._jvm.org.apache.spark.sql.catalyst.expressions.aggregation
        bitmap = kinds.BitmapAggregator(made.expression(place._jc), portable)
        return Column(made.column(bitmap.toAggregateExpression()))

    def _store_vectors(self, found: Sequence[Row], by_name: Any) -> list[Any]:
        """Write one file with the new deletion vectors of data files, including the old positions.

        Args:
            found: the aggregated positions of each file.
            by_name: Delta's map of the files that the transaction knows.
        """
        place, some = self._log.dataPath(), self._jvm.scala.Some
        writer = delta_module(self._jvm, "commands.DeletionVectorWriter")
        helper = delta_module(self._jvm, "commands.DMLWithDeletionVectorsHelper")
        prefix = delta_module(self._jvm, "util.Utils").getRandomPrefixLength(self._txn.metadata())
        store = writer.createMapperToStoreDeletionVectors(
            self.session._jsparkSession, self._log.newDeltaHadoopConf(), place, prefix
        )
        data = []
        for path, places, *_ in found:
            vector = helper.getTouchedFile(place, path, by_name).deletionVector()
            known = self._none if vector is None else some(vector.serializeToBase64())
            bitmap = bytes(places["bitmap"])
            made = self._delta.commands.DeletionVectorData(
                path, known, bitmap, places["cardinality"]
            )
            data.append(made)
        return items_of(store.apply(self._seq(data).iterator()).toSeq())

    def commit_exchange(
        self, marked: RowActions, written: RowActions, *, once: tuple[str, int] | None
    ) -> int:
        """Commit deleted and added rows.

        Args:
            marked: the deleted rows; those that are updated count as updated in the metrics.
            written: the added rows.
            once: an application and the number of its transaction, which can be committed only
                once.

        Returns:
            The committed version.

        Raises:
            ConflictError: another writer changed rows that the transaction read, or committed this
                number.
        """
        added, updated, nothing = written.rows, marked.updated, self._seq([])
        counts = {"Inserted": added - updated, "Updated": updated, "Deleted": marked.rows - updated}
        named = {f"numTargetRows{what}": count for what, count in counts.items()}
        self._record(named | {"operationNumSourceRows": added + marked.rows})
        merge = self._delta.DeltaOperations.Merge(*[self._none] * 4, nothing, nothing, nothing)
        first = [self._delta.actions.SetTransaction(*once, self._none)] if once else []
        return self._commit([*first, *marked.actions, *written.actions], merge)

    def commit_overwrite(self, written: RowActions, *, once: tuple[str, int]) -> int:
        """Commit rows in place of all rows, once for the number of an application's transaction.

        Register all files of the version with `know` first. The result and the errors are those of
        `commit_exchange`.
        """
        self.read_all()
        now = int(time.time() * 1000)
        gone = [file.removeWithTimestamp(now, True) for file in self._taken.values()]
        self._record({"numFiles": len(written.actions), "numOutputRows": written.rows})
        save = self._jvm.org.apache.spark.sql.SaveMode.valueOf("Overwrite")
        first = self._delta.actions.SetTransaction(*once, self._none)
        return self._commit([first, *gone, *written.actions], operation(self._jvm, "Write", save))

    def _record(self, figures: dict[str, int]) -> None:
        """Set the metrics of the commit."""
        context = self.session._jsparkSession.sparkContext()
        make = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        metrics = {name: make(context, name) for name in figures}
        for name, count in figures.items():
            metrics[name].set(count)
        scala_metrics = self._jvm.PythonUtils.toScalaMap(metrics)
        self._txn.registerSQLMetrics(self.session._jsparkSession, scala_metrics)

    def _changes(self, adds: Sequence[Add], removes: Sequence[Add], *, data: bool) -> list[Any]:
        """Return the actions of the log. With `data` rows change, otherwise only the layout."""
        now = int(time.time() * 1000)
        gone = [self._taken[add["path"]].removeWithTimestamp(now, data) for add in removes]
        return [self._action(add | {"dataChange": data}) for add in adds] + gone

    def _commit(self, actions: list[Any], what: Any, *tags: Any) -> int:
        self._activate()
        try:
            return int(self._txn.commit(self._seq(actions), what, *tags))
        except Exception as error:
            if not is_conflict(error):
                raise
            raise ConflictError(
                f"Another writer committed a conflicting change: {spark_message(error)}",
                hint="try again.",
            ) from error

    def _activate(self) -> None:
        """Set the active session of the thread. Delta reads settings and the note from it."""
        session_class(self._jvm).setActiveSession(self.session._jsparkSession)

    def _action(self, add: Add) -> Any:
        return delta_module(self._jvm, "actions.Action").fromJson(json.dumps({"add": add}))

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(list(items))


def _body(action: Any) -> Add:
    (body,) = json.loads(action.json()).values()
    return cast("Add", body)
