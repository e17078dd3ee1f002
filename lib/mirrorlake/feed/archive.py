"""Keeps a feed for good: an `availableNow` stream into a Delta table, to be run on a schedule.

The feed itself lasts only as long as its files. Each run appends what is new, whole versions, every
change once: the checkpoint and Delta's sink see to that. The archive itself says how far it has
come, so a lost or broken checkpoint costs nothing, and an archive that was restored to an earlier
version is filled up again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from mirrorlake.delta.commits import Timeline, read_commit_info, read_versions
from mirrorlake.delta.files import total
from mirrorlake.delta.snapshot import open_snapshot, read_snapshot
from mirrorlake.delta.table import TableHandle, column_types
from mirrorlake.delta.timestamps import timestamp_text
from mirrorlake.errors import FeedError
from mirrorlake.feed.changes import KINDS, changes_by_version
from mirrorlake.feed.cursor import (
    FORMAT,
    Figures,
    FollowReport,
    Lag,
    consumer_folder,
    feed_error,
    lag_of,
    table_id,
    target_name,
)
from mirrorlake.feed.doctor import examine
from mirrorlake.feed.ranges import readable_span, refusal
from mirrorlake.history.diff import COMMIT_VERSION, FEED_COLUMNS, RESERVED
from mirrorlake.history.write import create_table
from mirrorlake.names import TableName, quote
from mirrorlake.results import TextTable
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.sql import literal, query_errors, spark_message
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.lease import only_one

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

SOURCE_PROPERTY = "mirrorlake.archive.source"
_PATIENCE = 600  # seconds to wait for another run
_MOST_VERSIONS = 20  # to show
_ALL = str(2**31 - 1)  # files a micro-batch: all, so that no version is ever split


@dataclass(frozen=True, repr=False, kw_only=True)
class ArchiveReport(FollowReport):
    """What a run of an archive did.

    Attributes:
        start: the first version that was new.
        end: the last version that is archived now.
        lag: how far the archive is behind after the run, or before it if it was a dry run.
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
    """A table's permanent history.

    Args:
        table: whose feed.
        target: the archive's name; it is made by the first run.
    """

    def __init__(self, table: TableHandle, target: TableName) -> None:
        self.table = table
        self.target = target
        self._storage = table.storage
        self._path = table.storage.path(target.table_path)
        self._state = f"{consumer_folder(table.name)}/archive-{target}"

    @property
    def position(self) -> int:
        """The last archived version that changed something; -1 if there is none."""
        archived = TableHandle(self.table.spark, self._storage, self.target)
        rows = archived.rows().selectExpr(f"max({COMMIT_VERSION}) AS v")
        (row,) = to_arrow(rows).to_pylist()
        return -1 if row["v"] is None else int(row["v"])

    def plan(self, *, start: int | None = None) -> ArchiveReport:
        """What `run` would append; changes nothing."""
        source = self.table
        timeline = read_versions(source.storage, source.name.table_path)
        exists = self._check()
        place = self._place(self._load()) if exists else self._first(timeline, start) - 1
        return self.report(place, timeline.latest, lag=lag_of(timeline, place), applied=False)

    def run(
        self, *, start: int | None = None, on_step: Callable[[str], None] = lambda _: None
    ) -> ArchiveReport:
        """Appends what is new; safe to be killed at any moment and run again.

        Args:
            start: the first version of a new archive. By default 0 if the feed holds everything
                from there, else the newest version's rows as inserts, and then what changes.
            on_step: hears of every finished step.

        Raises:
            FeedError: the feed no longer holds what follows, or the archive is another table's.
            FormatError: what is kept of its runs is of a newer format.
            BusyError: on an object store, another process archives this table for too long.
        """
        # On a disk the checkpoint itself keeps a second stream away: it is renamed into its place.
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
        place = self._place(kept)
        on_step("prepared")
        if place < 0:
            place = self._begin(timeline, start)
            on_step("begun")
        first = place + 1
        recovered = self._why_not_go_on(kept)
        fresh = kept is None or bool(recovered)
        if kept is None or recovered:
            kept = self._new_checkpoint(place + 1)
            on_step("saved")
        try:
            self._stream(kept, place, timeline)
        except Exception as error:
            if fresh:
                raise FeedError(
                    f"The archive {self.target} of {source.name} stopped: {spark_message(error)}",
                    hint="run it again; `doctor` tells what stands in the way.",
                ) from error
            # The checkpoint is broken or its schema outdated; the archive knows its place.
            recovered = f"new checkpoint: {type(error).__name__}"
            place = max(self.position, place)
            kept = self._new_checkpoint(place + 1)
            self._stream(kept, place, timeline)
        on_step("streamed")
        done = max(timeline.latest, place)
        version = open_snapshot(self._storage, self.target).version
        self._save(kept | {"target_version": version, "end": done})
        newest = read_versions(source.storage, source.name.table_path)
        return self.report(first - 1, done, lag=lag_of(newest, done), recovered=recovered)

    def report(
        self,
        place: int,
        end: int,
        *,
        lag: Lag,
        recovered: str = "",
        why_not: str = "",
        applied: bool = True,
    ) -> ArchiveReport:
        """Return the report of a run that started after the version `place` and came to `end`."""
        new = max(0, end - place)
        noun = "version" if new == 1 else "versions"
        if applied:
            did = f"{new} new {noun}, archived up to {end}" + f" ({recovered})" * bool(recovered)
        else:
            did = f"would archive {new} {noun} up to {end}"
        return ArchiveReport(
            table=str(self.table.name),
            into=str(self.target),
            did="" if why_not else did,
            why_not=why_not,
            applied=applied,
            look=Figures if why_not else lambda: self._look(lag),
            start=place + 1,
            end=end,
            lag=lag,
            recovered=recovered,
        )

    def _look(self, lag: Lag) -> Figures:
        """Return what the archive contains: rows by kind, and its newest versions."""
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
            made = F.date_format("made (UTC)", "yyyy-MM-dd HH:mm:ss").alias("made (UTC)")
            found = [tuple(row) for row in newest.select(COMMIT_VERSION, made, *KINDS).collect()]
        details = TextTable(
            ("version", "made (UTC)", *KINDS),
            tuple(found[:_MOST_VERSIONS]),
            more=len(found) > _MOST_VERSIONS,
        )
        return Figures(facts | line.asDict(), details)

    def _prepare(self) -> bool:
        """Create the archive if it does not exist, and return whether it was created."""
        source = self.table
        if not self._check():
            self._storage.delete(f"{self._state}.json")  # of an archive that was dropped
            columns = column_types(source.rows().schema) | FEED_COLUMNS
            properties = {SOURCE_PROPERTY: table_id(source)}
            create_table(source.spark, self._path, columns, feed=False, properties=properties)
            return True
        return False

    def _check(self) -> bool:
        """Check that the feed can be archived here, and return whether the archive exists.

        Raises:
            FeedError: the archive is another table's, or the table's feed is off.
        """
        found, source = read_snapshot(self._storage, self.target.table_path), self.table
        if found is not None and found.properties.get(SOURCE_PROPERTY) != table_id(source):
            raise FeedError(
                f"{self.target} is no archive of {source.name} as it is now.",
                hint="choose another name for the archive.",
            )
        if error := feed_error(source):
            raise error
        return found is not None

    def _place(self, kept: dict[str, Any] | None) -> int:
        """Return the last archived version; -1 if there is none.

        Versions without changes leave no rows. So the end of the last run counts as well, unless
        the archive was restored since.
        """
        end = -1 if kept is None or self._is_restored(kept) else int(kept.get("end", -1))
        return max(self.position, end)

    def _begin(self, timeline: Timeline, start: int | None) -> int:
        """Where a new archive begins; the version before it."""
        source, latest = self.table, timeline.latest
        first = self._first(timeline, start)
        if start is not None or first == 0:
            return first - 1
        moment = literal(timestamp_text(timeline.time(latest)) + "Z")
        marks = ("'insert'", f"{latest}L", f"TIMESTAMP {moment}")
        marked = [f"{value} AS {quote(n)}" for n, value in zip(RESERVED, marks, strict=True)]
        # One commit, so that a kill leaves all of the snapshot or nothing.
        rows = source.rows(latest).selectExpr("*", *marked)
        open_snapshot(self._storage, self.target)  # if dropped meanwhile, it is not made again
        rows.write.format("delta").mode("append").save(self._path)
        return latest

    def _first(self, timeline: Timeline, start: int | None) -> int:
        """The first version of a new archive; the newest where the feed does not hold all."""
        latest = timeline.latest
        wanted = 0 if start is None else start
        found = examine(self.table, timeline, min(wanted, latest), latest, files=False)
        if found.blocking and start is not None:
            raise refusal(found)
        return latest if found.blocking else wanted

    def _load(self) -> dict[str, Any] | None:
        return read_kept(self._storage, f"{self._state}.json", FORMAT)

    def _save(self, kept: dict[str, Any]) -> None:
        self._storage.write_json(f"{self._state}.json", {"format": FORMAT} | kept)

    def _new_checkpoint(self, start: int) -> dict[str, Any]:
        """A number that no run has used, and from where its stream starts."""
        used = [int(name.rpartition("-")[2]) for name in self._storage.list(self._state).folders]
        last = (self._load() or {}).get("checkpoint", 0)
        kept = {"checkpoint": max([*used, last]) + 1, "start": start}
        self._save(kept)
        return kept

    def _why_not_go_on(self, kept: dict[str, Any] | None) -> str:
        """Why the checkpoint is not to be used; empty if it is, or if no run has ended yet."""
        if kept is None or "target_version" not in kept:
            return ""
        if not self._storage.list(self._checkpoint(kept)).folders:
            return "new checkpoint: the old one is gone"
        return "new checkpoint: the archive was restored" if self._is_restored(kept) else ""

    def _is_restored(self, kept: dict[str, Any]) -> bool:
        """Return whether the archive was restored since its last run ended."""
        newest = open_snapshot(self._storage, self.target).version
        since = range(kept.get("target_version", newest) + 1, newest + 1)
        path = self.target.table_path
        infos = (read_commit_info(self._storage, path, version) for version in since)
        return any(info.get("operation") == "RESTORE" for info in infos)

    def _checkpoint(self, kept: dict[str, Any]) -> str:
        return f"{self._state}/checkpoint-{kept['checkpoint']}"

    def _stream(self, kept: dict[str, Any], place: int, timeline: Timeline) -> None:
        source, latest = self.table, timeline.latest
        if place >= latest:
            return
        open_snapshot(self._storage, self.target)
        readable_span(source, timeline, place + 1, latest, "error")  # refuses what is gone
        query = (
            source.spark.readStream.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", kept["start"])  # a checkpoint wants the same each time
            .option("maxFilesPerTrigger", _ALL)
            .load(source.path)
            .writeStream.format("delta")
            .option("checkpointLocation", self._storage.path(self._checkpoint(kept)))
            .option("mergeSchema", "true")
            .trigger(availableNow=True)
            .start(self._path)
        )
        query.awaitTermination()


@query_errors()
def archive_table(
    table: TableHandle, into: str = "", *, start: int | None = None, dry_run: bool = False
) -> ArchiveReport:
    """Append what is new in a table's feed to its archive; see `Table.archive`."""
    target = target_name(table, into, "{}_history")
    archive = Archive(table, target)
    if error := feed_error(table):
        return archive.report(-1, -1, lag=Lag(0, 0.0), why_not=str(error), applied=False)
    return archive.plan(start=start) if dry_run else archive.run(start=start)
