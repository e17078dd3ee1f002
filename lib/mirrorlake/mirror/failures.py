"""What to make of a failure: try again, or tell people what Spark said in one line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from mirrorlake.errors import MirrorlakeError
from mirrorlake.names import file_number

_TRIES = 5
_CONFLICT = re.compile(r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception")
_FILE = re.compile(r"(\d{20}\.\w+)")
_LONGEST = 500


def commit_with_retries(commit: Callable[[], None]) -> None:
    """Runs a commit again when another writer of the table, an OPTIMIZE perhaps, was quicker.

    That is safe: a commit whose txnVersion the log has already is skipped by Delta.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            commit()
            return
        except Exception as error:
            if attempt == _TRIES or not _CONFLICT.search(spark_message(error)):
                raise
            time.sleep(0.2 * 2**attempt)


def spark_message(error: BaseException) -> str:
    """What a JVM exception says, with the error class, without its stack."""
    # PySpark looks Delta's error classes up in Spark's own list and fails over it.
    origin = getattr(error, "_origin", None)
    if origin is None:
        origin = getattr(error, "java_exception", None)
    if origin is not None:
        texts = []
        while origin is not None and len(texts) < 5:
            texts.append(str(origin.getMessage() or origin.getClass().getSimpleName()))
            origin = origin.getCause()
        return " ← ".join(dict.fromkeys(texts))
    return str(error)


def explain(error: BaseException) -> dict[str, Any]:
    """Any exception as a report's error: message, file, row, column."""
    if isinstance(error, MirrorlakeError):
        return error.as_dict()
    text = spark_message(error)
    named = _FILE.search(text)
    file = named[1] if named and file_number(named[1]) is not None else None
    message = " ".join(text.split())[:_LONGEST] or type(error).__name__
    return {"message": message, "file": file, "row": None, "column": None}
