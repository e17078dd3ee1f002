"""The JVM behind a classic session, for what is no transaction.

Delta's objects and its cache of logs, Hadoop's files.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import OtherDeltaError, first_line
from mirrorlake.spark.sql import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

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
    from pyspark.sql import DataFrame

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
    return DataFrame(rows, spark).select(*map(quote, feed.columns))


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
