"""A mark on every commit that this process makes, while it makes a sample.

A commit's `userMetadata` is the one place where a writer can put a word of its own. Sessions carry
the mark as their default; commits that have a note of their own get it as one more key of the note.
Without a mark nothing changes.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
KEY = "sample"
_marks: list[str] = []  # at most one: a process makes one sample at a time


def mark_commits(mark: str) -> None:
    """From now on this process's commits carry a mark, in every session that is prepared."""
    _marks[:] = [mark]


def end_marks() -> None:
    """Ends `mark_commits`, in the running session too."""
    _marks.clear()
    if "pyspark.sql" not in sys.modules:
        return  # no session can be running
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        running.conf.unset(USER_METADATA)


def mark_session(spark: SparkSession) -> None:
    """Lets a session's commits carry the mark, if there is one."""
    if _marks:
        spark.conf.set(USER_METADATA, marked("{}"))


def marked(note: str) -> str:
    """A commit's note, a JSON object, with the mark in it if there is one."""
    if not _marks or not note:
        return note
    return json.dumps({**json.loads(note), KEY: _marks[0]}, ensure_ascii=False)


def mark_of(note: Any) -> str | None:
    """The mark in a commit's note; None if there is none, or the note is somebody else's."""
    try:
        found = json.loads(note or "null")
    except (TypeError, ValueError):
        return None
    mark = found.get(KEY) if isinstance(found, dict) else None
    return mark if isinstance(mark, str) else None
