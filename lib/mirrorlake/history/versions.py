"""Find the versions of a table that can be read, and refuse the others with the reason.

Three things limit how far back a table can be read: old commits are removed from the log
(`delta.logRetentionDuration`), Delta refuses versions older than
`delta.deletedFileRetentionDuration`, and VACUUM has deleted files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from mirrorlake.delta.actions import file_actions, missing_files, recent_removals, removed_since
from mirrorlake.delta.commits import CommitLog, find_newest, read_commit_info
from mirrorlake.delta.snapshot import Snapshot, open_snapshot
from mirrorlake.delta.timestamps import from_milliseconds, parse_interval
from mirrorlake.errors import TableNotFoundError, VersionError
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorlake.delta.table import TableHandle
    from mirrorlake.show.chart import Chart

ENFORCED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
LOG_RETENTION = "delta.logRetentionDuration"
_DEFAULTS = {FILE_RETENTION: "interval 7 days", LOG_RETENTION: "interval 30 days"}
_SLACK = 3_600_000  # milliseconds between the clocks of two writers
TRIES = 20


@dataclass(frozen=True)
class Limit:
    """One thing that bounds the past.

    Attributes:
        what: `log retention`, `retention check` or `vacuumed files`.
        version: the first version that it leaves.
        why: in words, with the setting or the file.
    """

    what: str
    version: int
    why: str


@dataclass(frozen=True)
class ReadableRange(Result):
    """The versions of a table that can be read.

    Attributes:
        earliest, newest: version numbers; all from one to the other can be read.
        since, until: when these two were made, UTC.
        limits: what bounds the past, the narrowest first; none if version 0 can be read.
    """

    table: TableName
    earliest: int
    newest: int
    since: datetime
    until: datetime
    limits: tuple[Limit, ...] = ()

    @property
    def range(self) -> str:
        """The range in words."""
        moments = [m.isoformat(timespec="milliseconds") for m in (self.since, self.until)]
        return (
            f"versions {self.earliest} to {self.newest}, made from {moments[0]} to {moments[1]}"
        ).replace("+00:00", "Z")

    def shown(self) -> TextTable:
        """The range and its limits, without moments, which change from run to run."""
        rows = [("readable", f"versions {self.earliest} to {self.newest}")]
        rows += [
            (limit.what, f"from version {limit.version}: {limit.why}") for limit in self.limits
        ]
        return TextTable(("what", "how far"), tuple(rows))

    def __repr__(self) -> str:
        why = f"; {self.limits[0].what}: {self.limits[0].why}" if self.limits else ""
        return f"{self.table}: versions {self.earliest} to {self.newest}{why}"


def retention(snapshot: Snapshot, name: str) -> timedelta:
    """One of the table's two retentions, or Delta's default for it."""
    return parse_interval(_setting(snapshot, name))


def _setting(snapshot: Snapshot, name: str) -> str:
    return snapshot.properties.get(name, _DEFAULTS[name])


def find_readable_range(
    storage: Storage, table: TableName, *, enforced: bool = True
) -> ReadableRange:
    """What can be read of a table, from its log alone; the cost does not grow with the log.

    Args:
        storage: the lake's files.
        table: which table.
        enforced: whether Spark's retention check is on, as it is by default.

    Raises:
        TableNotFoundError: there is none of that name.
    """
    log = CommitLog(storage, table.table_path)
    first, newest, limits = _bounds(log, open_snapshot(storage, table), enforced=enforced)
    if vacuumed := _vacuumed(log, first, newest):
        limits.append(vacuumed)
        first = max(first, vacuumed.version)
    limits.sort(key=lambda limit: -limit.version)
    since, until = log.timestamp(first), log.timestamp(newest)
    if since is None or until is None:
        raise VersionError(f"The log of {table} is being cut off.", hint="ask again.")
    return ReadableRange(table, first, newest, since, until, tuple(limits))


def _bounds(log: CommitLog, snapshot: Snapshot, *, enforced: bool) -> tuple[int, int, list[Limit]]:
    """The range that the log and the retention check leave, whether or not its files are there."""
    newest = snapshot.version
    limits = []
    interval = int(snapshot.properties.get("delta.checkpointInterval", "10"))
    first = log.first_readable(newest, interval)
    if first > 0:
        why = f"older commits are cut off ({LOG_RETENTION}: {_setting(snapshot, LOG_RETENTION)})"
        limits.append(Limit("log retention", first, why))
    if enforced:
        horizon = datetime.now(timezone.utc) - retention(snapshot, FILE_RETENTION)
        oldest = log.raw_timestamp(first)
        if oldest is not None and oldest < horizon:
            first = log.first_since(horizon, first, newest)
            kept = _setting(snapshot, FILE_RETENTION)
            why = f"Delta refuses older ones ({FILE_RETENTION}: {kept})"
            limits.append(Limit("retention check", first, why))
    return first, newest, limits


def _vacuumed(log: CommitLog, first: int, newest: int) -> Limit | None:
    """The limit that deleted files set, among the versions that the other limits leave."""
    if first == newest:
        return None
    removals = recent_removals(log.storage, log.table_path, newest)
    # What was removed before the first version concerns none of these. A removal is dated when its
    # commit begins, by the clock that writes the commit's own moment; the file's need not be alike.
    info = read_commit_info(log.storage, log.table_path, first) if first > 0 else {}
    since = int(info.get("timestamp", 0)) - _SLACK
    removals = [removed for removed in removals if removed.at >= since]
    gone = set(missing_files(log.storage, log.table_path, removals))
    if not gone:
        return None
    latest = max((r for r in removals if gone & set(r.files)), key=lambda r: r.at)
    lost = gone & set(latest.files)
    moment = from_milliseconds(latest.at)
    # Only versions before a file's removal need it; look from there for the commit that did it.
    start = max(first + 1, log.first_since(moment, first, newest))
    earlier = range(start - 1, first, -1)  # where a removal is dated by a clock that was ahead
    for version in (*range(start, newest + 1), *earlier):
        before = removed_since(log.storage, log.table_path, version - 1, version)
        if any(lost & set(r.files) for r in before):
            return Limit("vacuumed files", version, f"{min(lost)} was deleted")
    return None


def is_enforced(spark: SparkSession) -> bool:
    """Whether this session refuses versions older than the table's retention of files."""
    return str(spark.conf.get(ENFORCED, "true")).lower() != "false"


def check_when(
    storage: Storage, table: TableName, when: int | datetime, *, enforced: bool = True
) -> None:
    """Refuses a version or a moment that can't be read; see `check_version`."""
    if isinstance(when, datetime):
        check_moment(storage, table, when, enforced=enforced)
    else:
        check_version(storage, table, when, enforced=enforced)


def check_version(
    storage: Storage, table: TableName, version: int, *, enforced: bool = True
) -> None:
    """Refuses a version that can't be read, with the reason and the range.

    Raises:
        VersionError: it is out of range, or a file of it is gone; the file is named.
    """
    log = CommitLog(storage, table.table_path)
    first, newest, _ = _bounds(log, open_snapshot(storage, table), enforced=enforced)
    if first <= version <= newest and not _vacuumed(log, version, newest):
        return  # only what was removed since was looked at
    readable = find_readable_range(storage, table, enforced=enforced)
    if readable.earliest <= version <= readable.newest:
        return
    bounding = [limit for limit in readable.limits if limit.version > version]
    if version > readable.newest or version < 0 or not bounding:
        raise VersionError(
            f"There is no version {version} of {table}.", hint=f"it has {readable.range}."
        )
    limit = bounding[-1]
    if limit.what == "vacuumed files":
        # Not every older version needs a deleted file.
        removed = removed_since(storage, table.table_path, version, readable.newest)
        gone = missing_files(storage, table.table_path, removed)
        if not gone:
            return
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise VersionError(
            f"Version {version} of {table} was vacuumed: {gone[0]}{more} can't be found.",
            file=gone[0],
            hint=f"readable are {readable.range}.",
        )
    fix = ""
    if limit.what == "retention check":
        fix = f" A longer {FILE_RETENTION} of the table lets it be read, if its files are there."
    raise VersionError(
        f"Version {version} of {table} can't be read any more: {limit.why}.",
        hint=f"readable are {readable.range}.{fix}",
    )


def check_moment(
    storage: Storage, table: TableName, moment: datetime, *, enforced: bool = True
) -> None:
    """Refuses a moment before or after what can be read.

    Raises:
        VersionError: with the range.
    """
    readable = find_readable_range(storage, table, enforced=enforced)
    if moment > readable.until:
        raise VersionError(
            f"{moment.isoformat()} is after the newest version of {table}.",
            hint=f"it has {readable.range}.",
        )
    if moment >= readable.since:
        return
    log = CommitLog(storage, table.table_path)
    first = log.first_readable(readable.newest)
    made = log.raw_timestamp(first)
    if made is not None and moment < made:
        raise VersionError(
            f"{moment.isoformat()} is before the first version of {table} that its log holds.",
            hint=f"readable are {readable.range}.",
        )
    after = log.first_since(moment + timedelta(milliseconds=1), first, readable.newest)
    check_version(storage, table, after - 1, enforced=enforced)


def version_at(
    storage: Storage, table: TableName, moment: datetime, *, enforced: bool = True
) -> int:
    """The version that was the newest at a moment; also where the table has not changed since.

    Raises:
        VersionError: the moment is before what can be read; with the range.
    """
    log = CommitLog(storage, table.table_path)
    newest = open_snapshot(storage, table).version
    made = log.timestamp(newest)
    if made is not None and made <= moment:
        return newest
    check_moment(storage, table, moment, enforced=enforced)
    first = log.first_readable(newest)
    return log.first_since(moment + timedelta(milliseconds=1), first, newest) - 1


def newest_versions(storage: Storage, tables: Sequence[TableName]) -> list[int]:
    """The newest version of each table, looked at one after the other.

    Raises:
        TableNotFoundError: one of the tables is not there.
    """
    found = [find_newest(storage, table.table_path) for table in tables]
    for table, version in zip(tables, found, strict=True):
        if version is None:
            raise TableNotFoundError(f"There is no table {table} in the lake.")
    return [version for version in found if version is not None]


def versions_at_once(storage: Storage, tables: Sequence[TableName]) -> list[int] | None:
    """The newest versions, read twice, so that there was a moment when all of them held.

    Returns:
        None if the tables changed each time they were looked at.

    Raises:
        TableNotFoundError: one of the tables is not there.
    """
    before = newest_versions(storage, tables)
    if len(tables) == 1:
        return before
    for _ in range(TRIES):
        after = newest_versions(storage, tables)
        if after == before:
            return after
        before = after
    return None


def plot_files(table: TableHandle, *, first: int = 0) -> Chart:
    """A picture of which Parquet file belongs to which version, and whether rows of it are deleted.

    Args:
        table: which table; all commits since `first` are read.
        first: the version to begin with.
    """
    from mirrorlake.show.plots import plot_presence

    numbers: dict[str, str] = {}  # the files in the order in which they came
    live: dict[str, str] = {}
    found: dict[tuple[str, str], str] = {}
    newest = table.snapshot().version
    for version in range(first, newest + 1):
        for _, kind, action in file_actions(table.storage, table.name.table_path, version, version):
            name = numbers.setdefault(action["path"], f"file {len(numbers) + 1}")
            live.pop(name, None)
            if kind == "add":
                live[name] = "some rows deleted" if action.get("deletionVector") else "all its rows"
        found |= {(name, str(version)): kind for name, kind in live.items()}
    seen = {name for name, _ in found}
    return plot_presence(
        [name for name in numbers.values() if name in seen],
        [str(version) for version in range(first, newest + 1)],
        found,
        title=f"The Parquet files of {table.name}, version by version",
        label="version",
    )
