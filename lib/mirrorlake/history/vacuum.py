"""Delete files that are no longer needed; a dry run unless `apply` is set.

The vacuum lists all files in the table's folder, and finds out for each file whether and why it is
needed. Delta deletes the other files (`VACUUM … USING INVENTORY`). These files are kept: files of
the newest version and of valid frames, files that were removed or written within the retention
period, and files of the change data feed as long as it must be readable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.files import feed_files, files_of, hadoop_path, latest_actions, total
from mirrorlake.delta.snapshot import FILE_RETENTION, Snapshot, stages_of
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_interval
from mirrorlake.errors import RetentionError
from mirrorlake.history.frame_records import (
    PINNED,
    Frame,
    FramedTable,
    find_pins,
    publish_horizon,
    read_lists,
    utc_now,
)
from mirrorlake.names import TableName
from mirrorlake.results import Count, Result, TextTable, counted, size_text
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.sql import query_errors, temporary_view
from mirrorlake.storage.files import Storage

FEED_PROPERTY = "mirrorlake.feedRetentionHours"
RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_NEWEST, _REMOVED, _FRAME, _FEED = range(1, 5)
_WHY = {_NEWEST: "newest version", _REMOVED: "removed within the retention", _FEED: "change feed"}
_YOUNG = "written within the retention"
_LISTED = pa.schema({"path": pa.string(), "length": pa.int64(), "modificationTime": pa.int64()})
_SHOWN = ("_delta_index", "_change_data")
_BATCH = 50_000
_FEW, _TASKS = 8, 64


@dataclass(frozen=True)
class Share:
    """The files that are kept for one reason."""

    why: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Vacuum(Result):
    """The result of a vacuum, or of its dry run.

    Attributes:
        table: the table's name.
        version: the table's newest version when the files were listed.
        retention_hours: how long files are kept after their removal.
        delete_files, delete_bytes: the files to delete, including those of a view's stages.
        kept: the files to keep, by reason. A file with several reasons counts only under the first
            one.
        unreadable: the first and the last version that can be read now, but not after the vacuum;
            None if there is none.
        broken_frames: expired or released frames that can no longer be read after the vacuum.
        applied: whether the files were deleted.
    """

    table: TableName
    version: int
    retention_hours: float
    delete_files: int
    delete_bytes: int
    kept: tuple[Share, ...]
    unreadable: tuple[int, int] | None
    broken_frames: tuple[str, ...]
    applied: bool = False

    def shown(self) -> TextTable:
        """Return one row per reason, and what can no longer be read."""
        verb = "deleted" if self.applied else "would be deleted"
        rows: list[tuple[Any, ...]] = [
            (verb, Count(self.delete_files), size_text(self.delete_bytes))
        ]
        rows += [
            (f"kept: {share.why}", Count(share.files), size_text(share.bytes))
            for share in self.kept
        ]
        if self.unreadable:
            first, last = self.unreadable
            rows.append((f"no longer readable: versions {first} to {last}", "", ""))
        rows += [(f"no longer readable: {frame}", "", "") for frame in self.broken_frames]
        return TextTable(("what", "files", "size"), tuple(rows))

    def __repr__(self) -> str:
        verb = "deleted" if self.applied else "would delete"
        kept = sum(share.files for share in self.kept)
        goes = f"{counted(self.delete_files, 'file')} ({self.delete_bytes:,} bytes)"
        return f"{self.table}: {verb} {goes}, {kept:,} kept"


@query_errors()
def vacuum_table(
    table: TableHandle,
    *,
    retention_hours: float | None = None,
    feed_hours: float | None = None,
    allow_short: bool = False,
    apply: bool = False,
) -> Vacuum:
    """Delete files that are no longer needed; see `Table.vacuum`."""
    work = table.for_one_operation()
    snapshot = work.snapshot()
    hours = _check_retention(table.name, snapshot, retention_hours, allow_short=allow_short)
    _check_nesting(table.storage, table.name)
    feed = float(snapshot.properties.get(FEED_PROPERTY, 0)) if feed_hours is None else feed_hours
    job = _Job(work, hours, max(feed, hours), utc_now())
    if apply:
        publish_horizon(table.storage, table.name, job.table_id, job.version)
        done = job.apply()  # must look for frames after the horizon is published
    else:
        done = job.summarise(job.files())
    for stage in stages_of(table.storage, table.name):
        inner = vacuum_table(
            TableHandle(table.spark, table.storage, stage),
            retention_hours=retention_hours,
            feed_hours=feed_hours,
            allow_short=allow_short,
            apply=apply,
        )
        done = replace(
            done,
            delete_files=done.delete_files + inner.delete_files,
            delete_bytes=done.delete_bytes + inner.delete_bytes,
        )
    return done


def _check_retention(
    table: TableName, snapshot: Snapshot, hours: float | None, *, allow_short: bool
) -> float:
    safe = parse_interval(snapshot.retention(FILE_RETENTION)) / timedelta(hours=1)
    if hours is None:
        return safe
    if not math.isfinite(hours) or hours < 0:
        raise RetentionError(
            f"A retention of {hours:g} h is not possible.", hint="give a number of 0 or more."
        )
    if hours < safe and not allow_short:
        raise RetentionError(
            f"A retention of {hours:g} h is shorter than the {safe:g} h for which {table} keeps"
            " removed files. Running queries and writers may need them.",
            hint="give a longer retention, or set allow_short=True (--allow-short) if nothing else"
            f" runs; in SQL, set {RETENTION_CHECK} = false.",
        )
    return hours


def _check_nesting(storage: Storage, table: TableName) -> None:
    """Refuse a table whose folder contains other tables, because their files would look unused."""
    for folder in storage.list(table.table_path).folders:
        if "=" not in folder and folder[0] not in "_.":
            inner = f"{table.table_path}/{folder}"
            if "_delta_log" in storage.list(inner).folders:
                raise RetentionError(
                    f"The folder of {table} contains another table, {folder}.",
                    hint="move the inner table first.",
                )


@dataclass(frozen=True)
class _Job:
    table: TableHandle
    hours: float
    feed_hours: float
    now: datetime

    @property
    def cutoff(self) -> int:
        """The start of the retention period, in milliseconds since 1970."""
        return int((self.now - timedelta(hours=self.hours)).timestamp() * 1000)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self.table.snapshot().metadata["id"])

    @property
    def version(self) -> int:
        """The version whose files are kept."""
        return self.table.snapshot().version

    def apply(self) -> Vacuum:
        files = self.files().persist()  # report and delete the same files
        try:
            done = self.summarise(files)
            if done.delete_files:
                inventory = files.where("why IS NULL").select(
                    "path",
                    "length",
                    (F.col("length") < 0).alias("isDir"),  # always false; Delta needs it nullable
                    "modificationTime",
                )
                self.table.spark.conf.set(RETENTION_CHECK, "false")  # see _check_retention
                with temporary_view(inventory) as view:
                    self.table.spark.sql(
                        f"VACUUM {self.table.sql_name} USING INVENTORY (SELECT * FROM {view})"
                        f" RETAIN {self.hours:.6f} HOURS"
                    )
        finally:
            files.unpersist()
        return replace(done, applied=True)

    def files(self) -> DataFrame:
        """Return all files, with the reason `why` each is kept; NULL for files to delete."""
        # A union instead of a join, so that one shuffle is enough.
        both = list_files(self.table).unionByName(self.reasons(), allowMissingColumns=True)
        young = F.when(F.max("modificationTime") >= self.cutoff, _YOUNG)
        return (
            both.groupBy("path")
            .agg(
                F.max("length").alias("length"),
                F.max("modificationTime").alias("modificationTime"),
                F.coalesce(F.min_by("why", "rank"), young).alias("why"),
                F.max("removed").alias("removed"),
                F.collect_set("frame").alias("frames"),
            )
            .where("length IS NOT NULL")
        )

    def reasons(self) -> DataFrame:
        """Return files with facts, perhaps several times; facts without a rank keep no file."""
        storage = self.table.storage
        pins, dead = map(self.own_frames, find_pins(storage, self.now))
        parts = [self.log_reasons()]
        for frame, framed in pins:
            if frame.state == PINNED:  # its list is not written yet, so read the table's log
                files = files_of(self.table, framed.version)
                parts.append(_with_reason(files, F.lit(frame.title), F.lit(_FRAME)))
        valid = [frame for frame, _ in pins if frame.state != PINNED]
        ended = [f for f, framed in dead if storage.list(f.files_path(framed.name)).files]
        if valid or ended:
            parts.append(self.frame_files(valid, ended))
        if self.feed_hours > self.hours:
            parts.append(self.feed_reasons())
        return reduce(lambda a, b: a.unionByName(b), parts)

    def own_frames(self, frames: list[Frame]) -> list[tuple[Frame, FramedTable]]:
        """Return the frames of this table; pinned frames only if they are of the present table."""
        found = [(frame, frame.table(self.table.name)) for frame in frames]
        return [
            (frame, framed)
            for frame, framed in found
            if framed and (frame.state != PINNED or framed.table_id == self.table_id)
        ]

    def log_reasons(self) -> DataFrame:
        last = latest_actions(self.table, self.version)
        live, removed = F.col("live"), F.col("removed")
        is_young = removed >= self.cutoff
        why = F.when(live, _WHY[_NEWEST]).when(is_young, _WHY[_REMOVED])
        rank = F.when(live, _NEWEST).when(is_young, _REMOVED)
        return _with_reason(last, why, rank, removed=F.when(~live, removed))

    def frame_files(self, valid: list[Frame], ended: list[Frame]) -> DataFrame:
        """Return the files of all frames with a list, including expired and released frames."""
        frames, table = valid + ended, self.table
        files = read_lists(table.spark, table.storage, frames, table.name)
        keeps = F.col("frame").isin([frame.title for frame in valid])
        why, rank = F.when(keeps, F.col("frame")), F.when(keeps, _FRAME)
        return _with_reason(files, why, rank, frame=F.when(~keeps, F.col("frame")))

    def feed_reasons(self) -> DataFrame:
        """Return the files of the change data feed. They may be kept longer than other files."""
        log = CommitLog(self.table.storage, self.table.name.table_path)
        since = self.now - timedelta(hours=self.feed_hours)
        first = log.first_since(since, log.earliest(self.version), self.version)
        both = feed_files(self.table, first, self.version).withColumn(
            "vector", F.lit(None).cast("string")
        )
        return _with_reason(both, F.lit(_WHY[_FEED]), F.lit(_FEED))

    def summarise(self, files: DataFrame) -> Vacuum:
        rows = (
            files.groupBy("why")
            .agg(
                F.count("*").alias("files"),
                total("length").alias("bytes"),
                F.max(F.when(F.col("why").isNull(), F.col("removed"))).alias("removed"),
                F.array_sort(
                    F.array_distinct(
                        F.flatten(F.collect_list(F.when(F.col("why").isNull(), F.col("frames"))))
                    )
                ).alias("frames"),
            )
            .collect()
        )
        goes = next((row for row in rows if row.why is None), None)
        kept = sorted((Share(r.why, r.files, r.bytes) for r in rows if r.why), key=_order)
        return Vacuum(
            table=self.table.name,
            version=self.version,
            retention_hours=self.hours,
            delete_files=goes.files if goes else 0,
            delete_bytes=goes.bytes if goes else 0,
            kept=tuple(kept),
            unreadable=self.unreadable(goes.removed if goes else None),
            broken_frames=tuple(goes.frames or ()) if goes else (),
        )

    def unreadable(self, removed: int | None) -> tuple[int, int] | None:
        """Return the versions that contain a deleted file, and all versions before them."""
        if removed is None:
            return None
        log = CommitLog(self.table.storage, self.table.name.table_path)
        earliest = log.first_readable(self.version)
        when = datetime.fromtimestamp(removed / 1000, self.now.tzinfo)
        last = log.first_since(when, earliest, self.version) - 1
        return (earliest, last) if last >= earliest else None


def _with_reason(
    files: DataFrame,
    why: Column,
    rank: Column,
    *,
    removed: Column | None = None,
    frame: Column | None = None,
) -> DataFrame:
    """Return the paths of data files and their deletion vectors, with the facts about them."""
    return files.select(
        F.explode(F.array_compact(F.array("path", "vector"))).alias("path"),
        why.alias("why"),
        rank.alias("rank"),
        (F.lit(None) if removed is None else removed).cast("bigint").alias("removed"),
        (F.lit(None) if frame is None else frame).cast("string").alias("frame"),
    )


def _order(share: Share) -> tuple[int, str]:
    """Return the sort key: newest version, removed files, frames, change feed, new files."""
    known = [_WHY[_NEWEST], _WHY[_REMOVED], None, _WHY[_FEED], _YOUNG]
    return (known.index(share.why) if share.why in known else 2, share.why)


def list_files(table: TableHandle) -> DataFrame:
    """Return all files that VACUUM considers: data, deletion vectors, change data, unused files.

    Args:
        table: the table; the executors of its session must be able to read the lake.

    Returns:
        `path` in Hadoop's form, `length` in bytes, `modificationTime` in milliseconds since 1970.
    """
    keys = tuple(f"{name}=" for name in table.snapshot().partition_columns)
    top = table.storage.list(table.name.table_path).folders
    folders = [("", False)] + [(name, True) for name in top if not _is_hidden(name, keys)]
    work = table.spark.createDataFrame(folders, "folder string, deep boolean")
    if len(folders) > _FEW:
        work = work.repartition(min(len(folders), _TASKS))
    storage, table_path = table.storage, table.name.table_path
    base = hadoop_path(storage, table_path)

    def walk(folder: str, deep: bool) -> Iterator[dict[str, Any]]:
        listing = storage.list(f"{table_path}/{folder}".rstrip("/"))
        inside = f"{folder}/" if folder else ""
        for entry in listing.files:
            if not _is_hidden(entry.name, keys):
                when = int(entry.modified.timestamp() * 1000)
                values = (f"{base}/{inside}{entry.name}", entry.size, when)
                yield dict(zip(_LISTED.names, values, strict=True))
        for name in listing.folders if deep else ():
            if not _is_hidden(name, keys):
                yield from walk(f"{inside}{name}", deep)

    def list_folders(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        found = (file for row in rows for file in walk(row["folder"], row["deep"]))
        while some := list(islice(found, _BATCH)):
            yield pa.RecordBatch.from_pylist(some, _LISTED)

    return map_in_arrow(work, list_folders, "path string, length bigint, modificationTime bigint")


def _is_hidden(name: str, keys: tuple[str, ...]) -> bool:
    """Return whether VACUUM ignores a file or folder; `keys` are partition columns with `=`."""
    return name.startswith(("_", ".")) and not name.startswith((*_SHOWN, *keys))
