"""What to make of a failure: try again, or tell people what Spark said in one line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from mirrorlake.errors import MirrorlakeError
from mirrorlake.names import file_number
from mirrorlake.spark.messages import spark_message

_TRIES = 5
CONFLICT = re.compile(
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w*Exception"
)
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
            if attempt == _TRIES or not CONFLICT.search(spark_message(error)):
                raise
            time.sleep(0.2 * 2**attempt)


def explain(error: BaseException) -> dict[str, Any]:
    """Any exception as a report's error: message, file, row, column."""
    if isinstance(error, MirrorlakeError):
        return error.as_dict()
    text = spark_message(error)
    named = _FILE.search(text)
    file = named[1] if named and file_number(named[1]) is not None else None
    return {"message": text[:_LONGEST], "file": file, "row": None, "column": None}
