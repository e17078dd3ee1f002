"""Deleting files that nobody needs any more; a dry run unless told otherwise.

By inventory: everything in the table's folder is listed, what is still needed is taken out with the
reason, and Delta is handed the rest. Needed are files of the newest version, files removed or
written within the retention, files of frames that hold, and files the change feed is read from.
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
from mirrorlake.delta.snapshot import Snapshot
from mirrorlake.delta.table import TableHandle
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
from mirrorlake.history.versions import FILE_RETENTION, retention
from mirrorlake.names import TableName
from mirrorlake.results import Count, Result, TextTable, size_text
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.sql import query_errors, temporary_view
from mirrorlake.storage.files import Storage

FEED_PROPERTY = "mirrorlake.feedRetentionHours"
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_NEWEST, _REMOVED, _FRAME, _FEED = range(1, 5)
_WHY = {_NEWEST: "newest version", _REMOVED: "removed within the retention", _FEED: "change feed"}
_YOUNG = "written within the retention"
_LISTED = pa.schema({"path": pa.string(), "length": pa.int64(), "modificationTime": pa.int64()})
_SHOWN = ("_delta_index", "_change_data")
_BATCH = 50_000
_FEW, _TASKS = 8, 64


@dataclass(frozen=True)
class Share:
    """Files with one reason to stay."""

    why: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Vacuum(Result):
    """What vacuum would do, or has done.

    Attributes:
        version: the table's newest version when it was looked at.
        retention_hours: how long files stay after their removal.
        delete_files, delete_bytes: what goes.
        kept: what stays, by reason; each file is counted under the first that holds.
        unreadable: the first and the last version that can't be read afterwards; None if all can
            that can now.
        broken_frames: frames, no longer holding any file, that can't be read afterwards.
        applied: whether it is done.
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
        """One row a reason, and what is lost."""
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
        goes = f"{self.delete_files} files ({self.delete_bytes:,} bytes)"
        return f"{self.table}: {verb} {goes}, {kept} stay"


@query_errors()
def vacuum_table(
    table: TableHandle,
    *,
    retention_hours: float | None = None,
    feed_hours: float | None = None,
    allow_short: bool = False,
    apply: bool = False,
) -> Vacuum:
    """Deletes files that nobody needs; arguments and errors are those of `Table.vacuum`."""
    work = table.for_one_operation()
    snapshot = work.snapshot()
    hours = _check_retention(table.name, snapshot, retention_hours, allow_short=allow_short)
    _check_nesting(table.storage, table.name)
    feed = float(snapshot.properties.get(FEED_PROPERTY, 0)) if feed_hours is None else feed_hours
    job = _Job(work, hours, max(feed, hours), utc_now())
    if not apply:
        return job.summarise(job.files())
    publish_horizon(table.storage, table.name, job.table_id, job.version)
    return job.apply()  # looks for frames only now


def _check_retention(
    table: TableName, snapshot: Snapshot, hours: float | None, *, allow_short: bool
) -> float:
    safe = retention(snapshot, FILE_RETENTION) / timedelta(hours=1)
    if hours is None:
        return safe
    if not math.isfinite(hours) or hours < 0:
        raise RetentionError(f"Files can't be kept for {hours} hours.")
    if hours < safe and not allow_short:
        raise RetentionError(
            f"{hours:g} hours is less than the {safe:g} hours that {table} keeps removed files:"
            " queries and writers under way may need them.",
            hint="keep them longer, or allow a short retention if nothing else runs.",
        )
    return hours


def _check_nesting(storage: Storage, table: TableName) -> None:
    """Refuses a table in whose folder others lie: their files look like forgotten ones."""
    for folder in storage.list(table.table_path).folders:
        if "=" not in folder and folder[0] not in "_.":
            inner = f"{table.table_path}/{folder}"
            if "_delta_log" in storage.list(inner).folders:
                raise RetentionError(
                    f"A table {folder} lies in the folder of {table}.", hint="move it away first."
                )


@dataclass(frozen=True)
class _Job:
    table: TableHandle
    hours: float
    feed_hours: float
    now: datetime

    @property
    def cutoff(self) -> int:
        """Milliseconds since 1970; what was removed or written since then stays."""
        return int((self.now - timedelta(hours=self.hours)).timestamp() * 1000)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self.table.snapshot().metadata["id"])

    @property
    def version(self) -> int:
        """The version whose files stay."""
        return self.table.snapshot().version

    def apply(self) -> Vacuum:
        files = self.files().persist()  # what is said is what is done
        try:
            done = self.summarise(files)
            if done.delete_files:
                inventory = files.where("why IS NULL").select(
                    "path",
                    "length",
                    (F.col("length") < 0).alias("isDir"),  # never; Delta wants a nullable column
                    "modificationTime",
                )
                self.table.spark.conf.set(_CHECK, "false")  # checked above, with our own words
                with temporary_view(inventory) as view:
                    self.table.spark.sql(
                        f"VACUUM {self.table.sql_name} USING INVENTORY (SELECT * FROM {view})"
                        f" RETAIN {self.hours:.6f} HOURS"
                    )
        finally:
            files.unpersist()
        return replace(done, applied=True)

    def files(self) -> DataFrame:
        """All files with `why` they stay; NULL for those that go."""
        # One shuffle for both: what is listed, and what is known of it.
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
        """Each file that something is known of, perhaps several times; NULL ranks keep nothing."""
        storage = self.table.storage
        pins, dead = map(self.mine, find_pins(storage, self.now))
        parts = [self.log_reasons()]
        for frame, framed in pins:
            if frame.state == PINNED:  # its list is not written yet; the log of so new a version is
                files = files_of(self.table, framed.version)
                parts.append(_known(files, F.lit(frame.title), F.lit(_FRAME)))
        holding = [frame for frame, _ in pins if frame.state != PINNED]
        ended = [f for f, framed in dead if storage.list(f.files_path(framed.name)).files]
        if holding or ended:
            parts.append(self.frame_files(holding, ended))
        if self.feed_hours > self.hours:
            parts.append(self.feed_reasons())
        return reduce(lambda a, b: a.unionByName(b), parts)

    def mine(self, frames: list[Frame]) -> list[tuple[Frame, FramedTable]]:
        """The frames of this table; one that is just being taken of an earlier one fails anyway."""
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
        return _known(last, why, rank, removed=F.when(~live, removed))

    def frame_files(self, holding: list[Frame], ended: list[Frame]) -> DataFrame:
        """The files of all frames that have a list, whether they hold them or not."""
        frames, table = holding + ended, self.table
        files = read_lists(table.spark, table.storage, frames, table.name)
        holds = F.col("frame").isin([frame.title for frame in holding])
        why, rank = F.when(holds, F.col("frame")), F.when(holds, _FRAME)
        return _known(files, why, rank, frame=F.when(~holds, F.col("frame")))

    def feed_reasons(self) -> DataFrame:
        """Files that changes are read from, which are kept longer than other files."""
        log = CommitLog(self.table.storage, self.table.name.table_path)
        since = self.now - timedelta(hours=self.feed_hours)
        first = log.first_since(since, log.earliest(self.version), self.version)
        both = feed_files(self.table, first, self.version).withColumn(
            "vector", F.lit(None).cast("string")
        )
        return _known(both, F.lit(_WHY[_FEED]), F.lit(_FEED))

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
        """The versions before the last removal of a file that goes."""
        if removed is None:
            return None
        log = CommitLog(self.table.storage, self.table.name.table_path)
        earliest = log.first_readable(self.version)
        when = datetime.fromtimestamp(removed / 1000, self.now.tzinfo)
        last = log.first_since(when, earliest, self.version) - 1
        return (earliest, last) if last >= earliest else None


def _known(
    files: DataFrame,
    why: Column,
    rank: Column,
    *,
    removed: Column | None = None,
    frame: Column | None = None,
) -> DataFrame:
    """Paths with what is known of them, for data files and their deletion vectors alike."""
    return files.select(
        F.explode(F.array_compact(F.array("path", "vector"))).alias("path"),
        why.alias("why"),
        rank.alias("rank"),
        (F.lit(None) if removed is None else removed).cast("bigint").alias("removed"),
        (F.lit(None) if frame is None else frame).cast("string").alias("frame"),
    )


def _order(share: Share) -> tuple[int, str]:
    """Newest version first, then what was removed, frames, feed, and what is young."""
    known = [_WHY[_NEWEST], _WHY[_REMOVED], None, _WHY[_FEED], _YOUNG]
    return (known.index(share.why) if share.why in known else 2, share.why)


def list_files(table: TableHandle) -> DataFrame:
    """All files that VACUUM looks at: data, deletion vectors, change data, what was left behind.

    Args:
        table: the table; the workers of its session see the lake as this process does.

    Returns:
        `path`, as Hadoop prints it, `length`, `modificationTime` in milliseconds.
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
    """Whether VACUUM passes a file or folder by; `keys` are partition columns with `=`."""
    return name.startswith(("_", ".")) and not name.startswith((*_SHOWN, *keys))
