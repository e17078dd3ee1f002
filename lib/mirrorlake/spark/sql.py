"""Names, texts and paths from outside, made safe for SQL, DDL and Spark's readers."""

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
    """A string literal; nothing in it can end the quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def delta_name(path: str) -> str:
    """A Delta table by its path, as a table's name."""
    return f"delta.{quote(path)}"


def escape_glob(path: str) -> str:
    """A path for Spark's readers, which take some characters in it for a pattern."""
    return _GLOB.sub(r"\\\1", path)


_DEPTH = 5


def spark_message(error: BaseException) -> str:
    """The messages of a JVM exception and its causes, without their stacks."""
    # PySpark looks Delta's error classes up in Spark's own list and fails over it: ask the JVM.
    origin = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    texts: list[str] = []
    while origin is not None and len(texts) < _DEPTH:
        texts.append(str(origin.getMessage() or origin.getClass().getSimpleName()))
        origin = origin.getCause()
    text = " ← ".join(dict.fromkeys(texts)) if texts else str(error)
    # The analyser appends its plan after a semicolon; nobody reads that in a message.
    return " ".join(text.split(";\n")[0].split()) or type(error).__name__


@contextmanager
def query_errors() -> Iterator[None]:
    """What Spark refuses comes out as `QueryError`, in its own words; also a decorator."""
    try:
        yield
    except MirrorlakeError:
        raise
    except Exception as error:
        raise QueryError(spark_message(error)) from error


@contextmanager
def temporary_view(rows: DataFrame) -> Iterator[str]:
    """The name of a view of some rows, for one statement of their session."""
    name = f"mirrorlake_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)
