"""Quotes names, literals and paths for SQL and Spark's readers, and translates Spark's errors.

A commit that conflicts with another writer's is repeated by `retry_conflicts`.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from mirrorlake.errors import ConflictError, MirrorlakeError, QueryError
from mirrorlake.names import quote as quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


T = TypeVar("T")
_GLOB = re.compile(r"([\\{}\[\]*?])")
_CONFLICT = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception"
)
_TRIES = 5
_NO_COLUMN = re.compile(r"UNRESOLVED_COLUMN[^`]*`([^`]*)`(?!\.)")


def literal(text: str) -> str:
    """Return a string literal; quotes and backslashes in the text are escaped."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def delta_name(path: str) -> str:
    """Return the name of a Delta table by its path, for a statement."""
    return f"delta.{quote(path)}"


def escape_glob(path: str) -> str:
    """Return a path for Spark's readers, with the characters escaped that are glob patterns."""
    return _GLOB.sub(r"\\\1", path)


_DEPTH = 5


def spark_message(error: BaseException) -> str:
    """Return the messages of a JVM exception and its causes, without stack traces."""
    # PySpark fails when it looks up Delta's error classes in Spark's own list, so ask the JVM.
    origin = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    texts: list[str] = []
    while origin is not None and len(texts) < _DEPTH:
        texts.append(str(origin.getMessage() or origin.getClass().getSimpleName()))
        origin = origin.getCause()
    text = " ← ".join(dict.fromkeys(texts)) if texts else str(error)
    # The analyzer appends its plan after a semicolon; it does not belong in a message.
    return " ".join(text.split(";\n")[0].split()) or type(error).__name__


def is_conflict(error: Exception) -> bool:
    """Check whether an error is a conflict with another writer's commit."""
    text = f"{type(error).__name__} {spark_message(error)}"
    return isinstance(error, ConflictError) or bool(_CONFLICT.search(text))


def retry_conflicts(commit: Callable[[], T]) -> T:
    """Run a commit, and repeat it after a conflict with another writer, with growing pauses.

    Args:
        commit: the whole operation, which is safe to repeat if nothing was committed.

    Raises:
        ConflictError: each attempt conflicted.
    """
    attempt = 1
    while True:
        try:
            return commit()
        except Exception as error:
            if not is_conflict(error):
                raise
            if attempt == _TRIES:
                why = error.message if isinstance(error, ConflictError) else spark_message(error)
                raise ConflictError(
                    f"Other writers committed first during each of {_TRIES} attempts: {why}",
                    hint="try again when less is written to the table.",
                ) from error
        time.sleep(0.2 * 2**attempt)
        attempt += 1


@contextmanager
def query_errors() -> Iterator[None]:
    """Raise errors of Spark as `QueryError`, with Spark's message. Also works as a decorator."""
    try:
        yield
    except MirrorlakeError:
        raise
    except Exception as error:
        raise query_error(spark_message(error)) from error


def query_error(message: str) -> QueryError:
    """Return the error for a message of Spark, with a hint for some messages."""
    name = _NO_COLUMN.search(message)
    quoted = literal(name[1]) if name else ""
    hint = f"use an existing column, or put a text into quotes: {quoted}." if name else ""
    if "FILE_NOT_EXIST" in message:
        hint = "a VACUUM may have deleted it; changes.diagnose() lists the readable versions."
    return QueryError(message, hint=hint)


@contextmanager
def setting(session: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of the session within the block."""
    before = session.conf.get(name, None)
    session.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, before)


@contextmanager
def temporary_view(rows: DataFrame) -> Iterator[str]:
    """Yield the name of a temporary view of rows, for statements in their session."""
    name = f"mirrorlake_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)
