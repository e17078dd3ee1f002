"""The change feed as a stream: the snapshot first, or from a version or moment on.

Delta ignores an end version in streams, and its `excludeRegex` leaves out change files too, so that
updates and deletes are lost. Here an end is kept, and change files can't be excluded.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.commits import read_versions
from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.feed.changes import End, refusal, resolve_span
from mirrorlake.feed.doctor import examine

_ALLOWED = ("allowSourceColumnRename", "allowSourceColumnDrop", "allowSourceColumnTypeChange")


def stream_changes(
    table: Table,
    start: End | None = None,
    end: End | None = None,
    *,
    max_files: int | None = None,
    max_bytes: str | None = None,
    exclude_regex: str | None = None,
    schema_tracking: str | None = None,
) -> DataFrame:
    """The changes as a streaming DataFrame.

    Args:
        table: the table.
        start: the first version or moment; up to one after the latest. By default the latest
            version's rows come first, as inserts, and then what changes.
        end: the last version or moment: later changes are left out. For `availableNow` triggers;
            go on from the version after it with a new checkpoint, not with the same one.
        max_files: most files a micro-batch. Changed rows of a version stay in one micro-batch;
            a version that only inserts may be split between files. `Cursor.for_each` has the same
            limits and splits no version at all.
        max_bytes: about how many bytes a micro-batch, `1g` for example.
        exclude_regex: data files to leave out, by their path within the table. Change files are
            never left out.
        schema_tracking: a folder inside the checkpoint's, which lets a stream go on after columns
            were renamed, dropped or widened; it stops there once, and has to be started again.

    Raises:
        FeedError: the feed can't be read from there; with what to do.
        UsageError: the ends make no sense.
    """
    reader = table.spark.readStream.format("delta").option("readChangeFeed", "true")
    options = {
        "maxFilesPerTrigger": max_files,
        "maxBytesPerTrigger": max_bytes,
        "excludeRegex": exclude_regex and keep_change_files(exclude_regex),
        "schemaTrackingLocation": schema_tracking,
    }
    if schema_tracking is not None:  # else Delta stops at every start after such a change
        options |= dict.fromkeys(_ALLOWED, "always")
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, value)
    if start is None:
        if end is not None:
            raise UsageError(
                "A stream with an end needs a start.",
                hint="start at version 0, or read the snapshot as a batch: table.read().",
            )
        return reader.load(table.path)
    timeline = read_versions(table.storage, table.name.table_path)
    latest = timeline.latest
    # One after the latest is what a consumer that has read everything goes on from.
    from_now = str(start) == str(latest + 1)
    span = resolve_span(table.spark, timeline, latest if from_now else start, end, None)
    first = span.start + from_now
    found = examine(table, timeline, span.start, latest, files=False)
    passable = {"schema"} if schema_tracking else set()
    if any(finding.rule not in passable for finding in found.blocking):
        raise refusal(found)
    # Delta refuses to start after the latest version, and to go on from a checkpoint with another
    # start than it was made with: so it starts one before, and that version is pruned.
    before = max(first - 1, timeline.first)
    if before < first and examine(table, timeline, before, before, files=False).blocking:
        before = first
    rows = reader.option("startingVersion", before).load(table.path)
    if before < first:
        rows = rows.where(F.col("_commit_version") >= first)
    return rows if end is None else rows.where(F.col("_commit_version") <= span.end)


def keep_change_files(regex: str) -> str:
    """A regular expression that finds what another finds, but never in a change file's path.

    Change files have a folder of their own, but under column mapping only a name.

    Example:
        >>> import re
        >>> guarded = keep_change_files("parquet")
        >>> paths = ("a.parquet", "_change_data/cdc-0.parquet", "xY/cdc-0.parquet")
        >>> [bool(re.search(guarded, path)) for path in paths]
        [True, False, False]
    """
    return rf"^(?!(?:.*/)?(?:_change_data/|cdc-[^/]*$))(?=.*(?:{regex}))"
