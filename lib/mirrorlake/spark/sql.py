"""Quotes names, literals and paths for SQL and Spark's readers, and translates Spark's errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mirrorlake.errors import MirrorlakeError, QueryError
from mirrorlake.names import quote as quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_GLOB = re.compile(r"([\\{}\[\]*?])")


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


@contextmanager
def query_errors() -> Iterator[None]:
    """Raise errors of Spark as `QueryError`, with Spark's message. Also works as a decorator."""
    try:
        yield
    except MirrorlakeError:
        raise
    except Exception as error:
        raise QueryError(spark_message(error)) from error


@contextmanager
def temporary_view(rows: DataFrame) -> Iterator[str]:
    """Yield the name of a temporary view of rows, for statements in their session."""
    name = f"mirrorlake_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)
