"""The operation behind `Table.archive`: append a change feed to a table that keeps it permanently.

A feed lasts only as long as its files. Each run is an `availableNow` stream that appends the new
versions, every change once; the checkpoint and Delta's sink ensure that. The archive's own rows
show the last archived version. So a lost or broken checkpoint loses nothing, and an archive that
was restored to an earlier version is completed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mirrorlake.delta.commits import Timeline, read_versions
from mirrorlake.delta.files import total
from mirrorlake.delta.snapshot import Snapshot, open_snapshot, read_snapshot
from mirrorlake.delta.table import TableHandle, column_types
from mirrorlake.delta.timestamps import timestamp_text
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.changes import ALLOWED, KINDS, changes_by_version
from mirrorlake.feed.cursor import (
    FORMAT,
    Figures,
    FollowReport,
    Lag,
    feed_error,
    is_restored,
    lag_of,
    newest_in,
    table_id,
    target_name,
)
from mirrorlake.feed.doctor import examine
from mirrorlake.feed.ranges import range_error
from mirrorlake.history.diff import COMMIT_VERSION, FEED_COLUMNS, RESERVED
from mirrorlake.history.write import check_own, create_table, extend_table
from mirrorlake.mirror.trash import make_room
from mirrorlake.names import TableName, quote
from mirrorlake.results import TextTable, counted, optional_figure
from mirrorlake.spark.sql import literal, query_errors, spark_message
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.lease import only_one

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


SOURCE_PROPERTY = "mirrorlake.archive.source"
_PATIENCE = 600  # seconds to wait for another run
_MOST_VERSIONS = 20  # shown
_ALL = str(2**31 - 1)  # files per micro-batch, so that no version is split


@dataclass(frozen=True, repr=False, kw_only=True)
class ArchiveReport(FollowReport):
    """The result of a run of an archive.

    Attributes:
        start: the first version that was new.
        end: the last version that is archived now.
        lag: how far the archive is behind after the run, or before it for a dry run.
        recovered: why the run could not continue from its checkpoint; empty if it could.
    """

    start: int
    end: int
    lag: Lag
    recovered: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return {
            "table": self.table,
            "into": self.into,
            "start": self.start,
            "end": self.end,
            "versions_behind": self.lag.versions,
            "recovered": self.recovered,
            "applied": self.applied,
            "why_not": self.why_not,
        }

    @optional_figure
    def plot(self) -> Chart:
        """Plot the rows inserted, updated and deleted by each of the newest archived versions."""
        from mirrorlake.show.plots import plot_stacks

        rows = self.details.rows[::-1]
        return plot_stacks(
            [str(row[0]) for row in rows],
            {kind: [row[2 + number] for row in rows] for number, kind in enumerate(KINDS)},
            title=f"Archived in {self.into}",
            label="rows",
        )


class Archive:
    """A table that keeps another table's change feed permanently.

    Args:
        table: the table whose feed is archived.
        target: the archive's name; the first run creates it.
    """

    def __init__(self, table: TableHandle, target: TableName) -> None:
        self.table = table
        self.target = target
        self._storage = table.storage
        self._path = table.storage.path(target.table_path)
        self._state = f"{table.name.feeds_path}/archive-{target}"

    @property
    def position(self) -> int:
        """The last archived version with changes; -1 if nothing is archived."""
        return newest_in(TableHandle(self.table.spark, self._storage, self.target), COMMIT_VERSION)

    def plan(self, *, start: int | None = None) -> ArchiveReport:
        """Return what `run` would append, without changing anything."""
        source = self.table
        timeline = read_versions(source.storage, source.name.table_path)
        position = (
            self._last_archived(self._load())
            if self._check()
            else self._first_version(timeline, start) - 1
        )
        return self.report(position, timeline.latest, lag=lag_of(timeline, position), applied=False)

    def run(
        self, *, start: int | None = None, on_step: Callable[[str], None] = lambda _: None
    ) -> ArchiveReport:
        """Append the new versions of the feed. Safe to interrupt: the next call completes the work.

        Args:
            start: the first version of a new archive. By default 0 if the feed contains everything
                from there; otherwise the archive starts with the newest version's rows as inserts.
            on_step: called with the name of each finished step.

        Raises:
            FeedError: the feed is off or no longer contains the next version, or the archive
                belongs to another table.
            FormatError: the stored state has a newer format.
            BusyError: on an object store, another process is archiving this table.
        """
        # On a local disk, the checkpoint itself excludes a second stream, by an atomic rename.
        if self._storage.local is not None:
            return self._run(start, on_step)
        what = f"archive of {self.table.name}"
        with only_one(self._storage, f"{self._state}.lock", _PATIENCE, what):
            return self._run(start, on_step)

    def _run(self, start: int | None, on_step: Callable[[str], None]) -> ArchiveReport:
        source, kept = self.table, self._load()
        timeline = read_versions(source.storage, source.name.table_path)
        if self._prepare():
            kept = None
        position = self._last_archived(kept)
        on_step("prepared")
        before = position
        if position < 0:
            position = self._write_first_rows(timeline, start)
            # Without a start, they are the rows of one version, or there are none.
            before = position if start is not None else max(-1, position - 1)
            on_step("begun")
        first = position + 1
        tracked = self._must_track(timeline, first)
        recovered = self._restart_reason(kept, tracked=tracked)
        fresh = kept is None or bool(recovered)
        if kept is None or recovered:
            kept = self._new_checkpoint(position + 1, tracked=tracked)
            on_step("saved")
        try:
            self._stream(kept, position, timeline)
        except Exception as error:
            self._must_track(timeline, first, files=True)  # raises an error if files are missing
            if fresh:
                raise FeedError(
                    f"The archive {self.target} of {source.name} stopped: {spark_message(error)}",
                    hint="run it again, or see table.changes.diagnose() for the reason.",
                ) from error
            # The checkpoint is broken or has an old schema; continue from the archive's rows.
            recovered = f"new checkpoint: {type(error).__name__}"
            position = max(self.position, position)
            kept = self._new_checkpoint(position + 1, tracked=tracked)
            self._stream(kept, position, timeline)
        on_step("streamed")
        done = max(timeline.latest, position)
        version = open_snapshot(self._storage, self.target).version
        self._save(kept | {"target_version": version, "end": done})
        newest = read_versions(source.storage, source.name.table_path)
        return self.report(before, done, lag=lag_of(newest, done), recovered=recovered)

    def report(
        self,
        position: int,
        end: int,
        *,
        lag: Lag,
        recovered: str = "",
        why_not: str = "",
        applied: bool = True,
    ) -> ArchiveReport:
        """Return the report of a run from after the version `position` up to `end`."""
        new = max(0, end - position)
        if new and not applied:
            did = f"would archive {counted(new, 'version')} up to {end}"
        else:
            did = counted(new, "new version") if new else "nothing new"
            did += f", archived up to {end}" + f" ({recovered})" * bool(recovered)
        return ArchiveReport(
            table=str(self.table.name),
            into=str(self.target),
            did="" if why_not else did,
            why_not=why_not,
            applied=applied,
            read_figures=Figures if why_not else lambda: self._read_figures(lag),
            start=position + 1,
            end=end,
            lag=lag,
            recovered=recovered,
        )

    def _read_figures(self, lag: Lag) -> Figures:
        """Return the archive's figures: rows by kind, and its newest versions."""
        facts = {"versions behind": lag.versions}
        if read_snapshot(self._storage, self.target.table_path) is None:
            return Figures(facts)
        with query_errors():
            rows = TableHandle(self.table.spark, self._storage, self.target).rows()
            by_version = changes_by_version(rows)
            sums = [total(name).alias(f"rows {name}") for name in KINDS]
            count = F.count(F.lit(1)).alias("versions archived")
            (line,) = by_version.agg(count, *sums).collect()
            newest = by_version.orderBy(F.desc(COMMIT_VERSION)).limit(_MOST_VERSIONS + 1)
            committed = F.date_format("made (UTC)", "yyyy-MM-dd HH:mm:ss").alias("made (UTC)")
            found = [
                tuple(row) for row in newest.select(COMMIT_VERSION, committed, *KINDS).collect()
            ]
        details = TextTable(
            ("version", "made (UTC)", *KINDS),
            tuple(found[:_MOST_VERSIONS]),
            more=len(found) > _MOST_VERSIONS,
        )
        return Figures(facts | line.asDict(), details)

    def _prepare(self) -> bool:
        """Create the archive if it does not exist, and return whether it was created."""
        source, found = self.table, self._check()
        if found is None:
            make_room(self._storage, self.target)
            self._storage.delete(f"{self._state}.json")  # the state of a dropped archive
            columns = column_types(source.rows().schema) | FEED_COLUMNS
            properties = {SOURCE_PROPERTY: table_id(source)}
            create_table(source.spark, self._path, columns, feed=False, properties=properties)
            return True
        known, wanted = (
            StructType.fromJson(one.schema_document) for one in (found, source.snapshot())
        )
        extend_table(source.spark, self._path, known, wanted)
        return False

    def _check(self) -> Snapshot | None:
        """Check that the feed can be archived here, and return the archive's snapshot, if any.

        Raises:
            FeedError: the archive belongs to another table, or the table's feed is off.
        """
        found, source = read_snapshot(self._storage, self.target.table_path), self.table
        if found is not None and found.properties.get(SOURCE_PROPERTY) != table_id(source):
            raise FeedError(
                f"{self.target} is not an archive of the present table {source.name}.",
                hint="give another name for the archive with into (--into).",
            )
        if error := feed_error(source):
            raise error
        if found is None:
            check_own(self._storage, self.target)
        return found

    def _last_archived(self, kept: dict[str, Any] | None) -> int:
        """Return the last archived version; -1 if nothing is archived.

        Versions without changes have no rows in the archive. So the end of the last run counts as
        well, unless the archive was restored since.
        """
        end = -1 if kept is None or self._is_restored(kept) else int(kept.get("end", -1))
        return max(self.position, end)

    def _write_first_rows(self, timeline: Timeline, start: int | None) -> int:
        """Write the first rows of a new archive, if any, and return the last archived version."""
        source, latest = self.table, timeline.latest
        first = self._first_version(timeline, start)
        if start is not None or first == 0:
            return first - 1
        timestamp = literal(timestamp_text(timeline.time(latest)) + "Z")
        marks = ("'insert'", f"{latest}L", f"TIMESTAMP {timestamp}")
        marked = [f"{value} AS {quote(n)}" for n, value in zip(RESERVED, marks, strict=True)]
        # One commit, so that an interrupted run leaves all of the snapshot or nothing.
        rows = source.rows(latest).selectExpr("*", *marked)
        open_snapshot(self._storage, self.target)  # fails if the archive was dropped meanwhile
        rows.write.format("delta").mode("append").save(self._path)
        return latest

    def _first_version(self, timeline: Timeline, start: int | None) -> int:
        """Return the first version of a new archive; the newest if the feed is incomplete."""
        latest = timeline.latest
        wanted = 0 if start is None else start
        if not 0 <= wanted <= latest + 1:
            raise UsageError(
                f"The archive {self.target} can't begin at version {wanted} of {self.table.name}.",
                hint=f"choose a start from 0 to {latest + 1}, the next version.",
            )
        found = examine(self.table, timeline, min(wanted, latest), latest, files=True)
        if found.blocking and start is not None:
            raise range_error(found)
        return latest if found.blocking else wanted

    def _must_track(self, timeline: Timeline, start: int, *, files: bool = False) -> bool:
        """Return whether columns have changed since a version so that a plain stream stops there.

        Args:
            timeline: the table's versions.
            start: the version.
            files: also check whether the files of the feed exist, with one request per file.

        Raises:
            FeedError: the feed no longer contains the version.
        """
        if start > timeline.latest:
            return False
        found = examine(self.table, timeline, start, timeline.latest, files=files)
        if any(finding.rule != "schema" for finding in found.blocking):
            raise FeedError(
                f"The archive {self.target} can't continue: {range_error(found).message}",
                hint="archive into another table (--into); it begins with the newest rows.",
            )
        return bool(found.blocking)

    def _load(self) -> dict[str, Any] | None:
        return read_kept(self._storage, f"{self._state}.json", FORMAT)

    def _save(self, kept: dict[str, Any]) -> None:
        self._storage.write_json(f"{self._state}.json", {"format": FORMAT} | kept)

    def _new_checkpoint(self, start: int, *, tracked: bool) -> dict[str, Any]:
        """Return the state of a new checkpoint: an unused number, and its first version.

        Args:
            start: the first version.
            tracked: whether the stream tracks the changes of columns; only if it must, because it
                then stops at each of them.
        """
        used = [int(name.rpartition("-")[2]) for name in self._storage.list(self._state).folders]
        last = (self._load() or {}).get("checkpoint", 0)
        kept = {"checkpoint": max([*used, last]) + 1, "start": start}
        kept |= {"tracked": True} if tracked else {}
        self._save(kept)
        return kept

    def _restart_reason(self, kept: dict[str, Any] | None, *, tracked: bool) -> str:
        """Return why the checkpoint can't be used; empty if it can, or if no run has finished."""
        if tracked and kept and "tracked" not in kept:
            return "new checkpoint: the columns have changed"
        if kept is None or "target_version" not in kept:
            return ""
        if not self._storage.list(self._checkpoint(kept)).folders:
            return "new checkpoint: the old one is missing"
        return "new checkpoint: the archive was restored" if self._is_restored(kept) else ""

    def _is_restored(self, kept: dict[str, Any]) -> bool:
        return is_restored(self._storage, self.target, kept)

    def _checkpoint(self, kept: dict[str, Any]) -> str:
        return f"{self._state}/checkpoint-{kept['checkpoint']}"

    def _stream(self, kept: dict[str, Any], position: int, timeline: Timeline) -> None:
        source, latest = self.table, timeline.latest
        if position >= latest:
            return
        open_snapshot(self._storage, self.target)
        checkpoint, tracked = self._storage.path(self._checkpoint(kept)), "tracked" in kept
        reader = (
            source.spark.readStream.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", kept["start"])  # must not change for a checkpoint
            .option("maxFilesPerTrigger", _ALL)
        )
        if tracked:
            tracking = {"schemaTrackingLocation": f"{checkpoint}/schema"}
            reader = reader.options(**tracking, **dict.fromkeys(ALLOWED, "always"))
        # A stream that tracks columns stops at its start and at each change, to be started again.
        for stops in range(latest - position + 1, -1, -1):
            rows = reader.load(source.path).writeStream.format("delta")
            rows = rows.option("checkpointLocation", checkpoint).option("mergeSchema", "true")
            try:
                rows.trigger(availableNow=True).start(self._path).awaitTermination()
                return
            except StreamingQueryException as error:
                if not (tracked and stops and "EVOLUTION" in str(error)):
                    raise


@query_errors()
def archive_table(
    table: TableHandle, into: str = "", *, start: int | None = None, dry_run: bool = False
) -> ArchiveReport:
    """Append the new changes of a table's feed to its archive; see `Table.archive`."""
    target = target_name(table, into, "{}_history")
    archive = Archive(table, target)
    if error := feed_error(table):
        return archive.report(-1, -1, lag=Lag(0, 0.0), why_not=str(error), applied=False)
    return archive.plan(start=start) if dry_run else archive.run(start=start)
