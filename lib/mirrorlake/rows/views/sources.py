"""A view's sources: their newest versions, their rows, and what changed since a version.

All are read at versions that were current at the same time. Changes come from the change feed;
where it was off, from comparing two versions by the rows' stable ids, if the table tracks rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.commits import Timeline, read_commit, read_states, read_versions
from mirrorlake.delta.snapshot import ROW_TRACKING, read_snapshot
from mirrorlake.delta.table import Table
from mirrorlake.errors import BusyError, TableNotFoundError, VersionError
from mirrorlake.feed.changes import ORIGIN, bridge
from mirrorlake.feed.doctor import Diagnosis, examine
from mirrorlake.feed.schema import RESERVED, read_feed
from mirrorlake.history.versions import check_version, is_enforced, versions_at_once
from mirrorlake.names import TableName
from mirrorlake.rows.views.definition import Definition
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.rows.views.reasons import Reason, reason
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.storage import Storage

SIGN = f"{HIDDEN}sign"
_CODES = {
    "feed-off": "FEED_OFF",
    "missing-file": "FEED_VACUUMED",
    "retention": "FEED_RETENTION",
    "log-lost": "LOG_LOST",
    "schema": "SCHEMA_CHANGED",
}


@dataclass(frozen=True)
class Source:
    """One table that a view reads.

    Attributes:
        name: which.
        path: its folder, in full.
        id: Delta's id of the table, which a table made again does not share.
        columns: those that the view sees and that are still there.
        new: the version to read.
        old: the version that the view shows; None if it shows none.
        old_id: the table's id then.
    """

    name: TableName
    path: str
    id: str
    columns: tuple[str, ...]
    new: int
    old: int | None = None
    old_id: str = ""

    @property
    def moved(self) -> bool:
        """Whether there are versions that the view does not show."""
        return self.old is not None and (self.new, self.id) != (self.old, self.old_id)

    def at(self, version: int, condition: str = "") -> str:
        """Its rows at a version, as SQL that can stand for a table."""
        columns = ", ".join(map(quote, self.columns))
        where = f" WHERE {condition}" if condition else ""
        table = f"{delta_name(self.path)} VERSION AS OF {version}"
        return f"(SELECT {columns} FROM {table} AS {quote(f'{HIDDEN}table')}{where})"


@dataclass(frozen=True)
class Changes:
    """What can be read of a source's changes.

    Attributes:
        source: whose.
        found: what the feed's doctor says of the versions.
        timeline: the source's versions.
        by_ids: whether versions are compared by row ids instead of reading the feed.
        bytes: how much there is to read, as far as the log knows.
        files: in how many files; none if nothing but the files' layout changed.
    """

    source: Source
    found: Diagnosis
    timeline: Timeline
    by_ids: bool
    bytes: int
    files: int


def pin_sources(
    storage: Storage, definition: Definition, state: dict[str, tuple[str, int]]
) -> tuple[Source, ...]:
    """The newest versions of a view's sources that were current at the same time.

    Args:
        storage: the lake's files.
        definition: the view.
        state: id and version of each source that the view shows.

    Raises:
        TableNotFoundError: a source is gone.
        BusyError: the sources change too often.
    """
    names = sorted(definition.sources, key=str)
    versions = versions_at_once(storage, names)
    if versions is None:
        raise BusyError(
            f"The sources of {definition.name} changed each time they were looked at.",
            hint="refresh it when less is written.",
        )
    found = []
    for name, version in zip(names, versions, strict=True):
        snapshot = read_snapshot(storage, name.table_path, version)
        if snapshot is None:
            raise TableNotFoundError(f"The table {name} is being removed.")
        there = {column.lower(): column for column in snapshot.schema}
        columns = [there[c.lower()] for c in definition.sources[name] if c.lower() in there]
        old_id, old = state.get(str(name), ("", None))
        found.append(
            Source(
                name,
                storage.path(name.table_path),
                str(snapshot.metadata["id"]),
                tuple(columns),
                version,
                old,
                old_id,
            )
        )
    return tuple(found)


def look_at_changes(spark: SparkSession, storage: Storage, source: Source) -> Changes | Reason:
    """Whether what changed in a source can be read, from its log and a look at its files.

    Args:
        spark: the user's session, whose settings say how far back may be read.
        storage: the lake's files.
        source: a source that moved.
    """
    assert source.old is not None, source
    what = str(source.name)
    if source.id != source.old_id or source.old > source.new:
        return reason("SOURCE_RECREATED", what)
    table = Table(spark, storage, source.name)
    timeline = read_versions(storage, source.name.table_path)
    found = examine(table, timeline, source.old + 1, source.new, files=True)
    by_ids = False
    if found.blocking:
        first = found.blocking[0]
        rules = {finding.rule for finding in found.blocking}
        by_ids = rules == {"feed-off"} and _tracks_rows(table, source)
        if not by_ids:
            return Reason(_CODES.get(first.rule, "SCHEMA_CHANGED"), first.message, first.fix)
        if lost := look_at_old(spark, storage, source):
            return lost
    commits = [
        read_commit(storage, source.name.table_path, version, files=True)
        for version in range(source.old + 1, source.new + 1)
    ]
    size, files = sum(c.size for c in commits), sum(len(c.files) for c in commits)
    return Changes(source, found, timeline, by_ids, size, files)


def look_at_old(spark: SparkSession, storage: Storage, source: Source) -> Reason | None:
    """Why the version that the view shows can't be read; None if it can."""
    assert source.old is not None, source
    try:
        check_version(storage, source.name, source.old, enforced=is_enforced(spark))
    except VersionError as error:
        return Reason("OLD_VERSION_LOST", error.message, error.hint)
    return None


def _tracks_rows(table: Table, source: Source) -> bool:
    """Whether ids were kept from the one version to the other without a break."""
    assert source.old is not None, source
    states = read_states(table.storage, table.name.table_path, source.old, source.new)
    return all(state.properties.get(ROW_TRACKING, "").lower() == "true" for state in states)


def read_changes(
    session: SparkSession, storage: Storage, changes: Changes, columns: tuple[str, ...]
) -> DataFrame:
    """A source's changes: +1 for an inserted row, -1 for a deleted one, without those that cancel.

    Args:
        session: the refresh's own.
        storage: the lake's files.
        changes: which.
        columns: those that the view's query names.

    Raises:
        FeedError: a version that is needed can't be read after all.
    """
    source = changes.source
    assert source.old is not None, source
    if changes.by_ids:
        table = Table(session, storage, source.name)
        rows = bridge(table, changes.timeline, changes.found).drop(ORIGIN)
    else:
        rows = read_feed(session, source.path, source.old + 1, source.new)
    came = F.col(RESERVED[0]).isin("insert", "update_postimage")
    kept = [F.col(quote(name)) for name in columns]
    signed = rows.select(*kept, F.when(came, 1).otherwise(-1).alias(SIGN))
    if any(kind.startswith(("map", "variant")) for _, kind in signed.dtypes):
        return signed  # such values can't be grouped by
    return net_rows(signed)


def net_rows(signed: DataFrame) -> DataFrame:
    """Rows with signs, without those that came and went: each as often as it is left."""
    kept = [F.col(quote(name)) for name in signed.columns if name != SIGN]
    net = signed.groupBy(*kept).agg(F.sum(SIGN).alias(SIGN)).where(F.col(SIGN) != 0)
    times = F.explode(F.array_repeat(F.signum(SIGN).cast("int"), F.abs(SIGN).cast("int")))
    return net.select(*kept, times.alias(SIGN))
