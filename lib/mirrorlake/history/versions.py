"""Find the versions of a table that can be read, and refuse all others with the reason.

Two things limit how far back a table can be read: old commits are removed from the log
(`delta.logRetentionDuration`), and VACUUM has deleted files. Delta's check that refuses versions
older than `delta.deletedFileRetentionDuration` is off in the sessions of this library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import SupportsIndex

from mirrorlake.delta.actions import SLACK, missing_files, removals, removed_since, written_at
from mirrorlake.delta.commits import CommitLog, find_newest
from mirrorlake.delta.snapshot import (
    FILE_RETENTION,
    LOG_RETENTION,
    Snapshot,
    missing_table,
    open_snapshot,
)
from mirrorlake.delta.timestamps import from_milliseconds, parse_interval
from mirrorlake.errors import UsageError, VersionError
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.jvm import ENFORCED
from mirrorlake.storage.files import Storage

TRIES = 20  # reads until two in a row agree


@dataclass(frozen=True)
class Limit:
    """A reason why older versions can't be read.

    Attributes:
        what: `log retention`, `vacuumed files` or `plain Spark session`.
        version: the oldest version that this limit allows.
        why: the reason in words, with the setting or the file.
    """

    what: str
    version: int
    why: str


@dataclass(frozen=True)
class ReadableRange(Result):
    """The versions of a table that can be read.

    Attributes:
        table: the table's name.
        earliest, newest: the first and the last version that can be read. All versions between them
            can be read too.
        since, until: when these two versions were committed, in UTC.
        limits: why older versions can't be read; the strictest limit comes first. Empty if version
            0 can be read.
        plain_session: the limit of sessions with Delta's default, in which its retention check is
            on; None if they can read the whole range.
    """

    table: TableName
    earliest: int
    newest: int
    since: datetime
    until: datetime
    limits: tuple[Limit, ...] = ()
    plain_session: Limit | None = None

    @property
    def range(self) -> str:
        """The range and the timestamps of its ends, in words."""
        since, until = (
            at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            for at in (self.since, self.until)
        )
        return f"versions {self.earliest} to {self.newest}, committed from {since} to {until}"

    def shown(self) -> TextTable:
        """Return the range and its limits, without timestamps."""
        rows = [("readable", f"versions {self.earliest} to {self.newest}")]
        rows += [
            (limit.what, f"from version {limit.version}: {limit.why}")
            for limit in (*self.limits, self.plain_session)
            if limit
        ]
        return TextTable(("what", "how far"), tuple(rows))

    def __repr__(self) -> str:
        notes = (*self.limits[:1], self.plain_session)
        why = "".join(f"; {limit.what}: {limit.why}" for limit in notes if limit)
        return f"{self.table}: versions {self.earliest} to {self.newest}{why}"


def find_readable_range(storage: Storage, table: TableName) -> ReadableRange:
    """Return the versions of a table that can be read, from its log alone.

    The cost grows with the files that were removed since the first of these versions, and hardly
    with the length of the log.

    Args:
        storage: the lake's storage.
        table: the table's name.

    Raises:
        TableNotFoundError: the table does not exist.
        VersionError: the log was cleaned up while it was read.
    """
    log, snapshot = CommitLog(storage, table.table_path), open_snapshot(storage, table)
    first, newest, limits = _log_limit(log, snapshot)
    if vacuumed := _vacuum_limit(log, first, newest):
        limits.append(vacuumed)
        first = max(first, vacuumed.version)
    limits.sort(key=lambda limit: -limit.version)
    since, until = log.timestamp(first), log.timestamp(newest)
    if since is None or until is None:
        raise VersionError(
            f"The log of {table} was cleaned up while it was read.", hint="try again."
        )
    plain = _plain_limit(log, snapshot, first)
    return ReadableRange(table, first, newest, since, until, tuple(limits), plain)


def _log_limit(log: CommitLog, snapshot: Snapshot) -> tuple[int, int, list[Limit]]:
    """Return the range that the log allows. Files may be missing in it."""
    newest = snapshot.version
    limits = []
    interval = snapshot.checkpoint_interval
    first = log.first_readable(newest, interval)
    if first > 0:
        kept = snapshot.retention(LOG_RETENTION)
        why = f"older commits are no longer in the log ({LOG_RETENTION}: {kept})"
        limits.append(Limit("log retention", first, why))
    return first, newest, limits


def _plain_limit(log: CommitLog, snapshot: Snapshot, first: int) -> Limit | None:
    """Return the limit that Delta's retention check sets, among the readable versions."""
    kept = snapshot.retention(FILE_RETENTION)
    horizon = datetime.now(timezone.utc) - parse_interval(kept)
    oldest = log.raw_timestamp(first)
    if oldest is None or oldest >= horizon:
        return None
    version = log.first_since(horizon, first, snapshot.version)
    why = f"Delta refuses older versions ({FILE_RETENTION}: {kept}) unless {ENFORCED} is false"
    return Limit("plain Spark session", version, why)


def _vacuum_limit(log: CommitLog, first: int, newest: int) -> Limit | None:
    """Return the limit that results from deleted files, within the versions of the other limits."""
    if first == newest:
        return None
    # Files removed before the first version belong to none of these versions. A removal has the
    # time at which its commit began, by the writer's clock; the log file's time may differ.
    since = written_at(log.storage, log.table_path, first) - SLACK if first > 0 else 0
    for batch in removals(log.storage, log.table_path, first, newest):
        removed = [one for one in batch if one.at >= since]
        if missing := set(missing_files(log.storage, log.table_path, removed)):
            break
    else:
        return None
    latest = max((r for r in removed if missing & set(r.files)), key=lambda r: r.at)
    lost = missing & set(latest.files)
    removed_at = from_milliseconds(latest.at)
    # Only versions before a file's removal need the file. Search there for the removing commit.
    start = max(first + 1, log.first_since(removed_at, first, newest))
    earlier = range(start - 1, first, -1)  # the writer's clock may have been ahead
    for version in (*range(start, newest + 1), *earlier):
        before = removed_since(log.storage, log.table_path, version - 1, version)
        if any(lost & set(r.files) for r in before):
            return Limit("vacuumed files", version, f"{min(lost)} was deleted")
    return None


def check_when(storage: Storage, table: TableName, when: int | datetime) -> int | datetime:
    """Refuse a version or a timestamp that can't be read; see `check_version`.

    Returns:
        What to read: for a timestamp after the newest commit, which Delta refuses, the newest
        version; otherwise `when`.
    """
    if not isinstance(when, datetime):
        check_version(storage, table, when)
        return when
    newest = _newest_by(storage, table, when)
    if newest is not None:
        return newest
    check_timestamp(storage, table, when)
    return when


def check_integer(version: object) -> None:
    """Refuse a version that is not an integer, such as a text.

    Raises:
        UsageError: the version is not an integer.
    """
    if not isinstance(version, SupportsIndex) or isinstance(version, bool):
        raise UsageError(
            f"{version!r} is not a version.",
            hint="give an integer, such as 2; history() lists the versions and their times.",
        )


def check_version(storage: Storage, table: TableName, version: int) -> None:
    """Refuse a version that can't be read, with the reason and the readable range.

    Raises:
        UsageError: the version is not an integer.
        VersionError: the version is out of range, or one of its files is missing; the error names
            the file.
    """
    check_integer(version)
    log = CommitLog(storage, table.table_path)
    first, newest, _ = _log_limit(log, open_snapshot(storage, table))
    if first <= version <= newest and not _vacuum_limit(log, version, newest):
        return
    readable = find_readable_range(storage, table)
    if readable.earliest <= version <= readable.newest:
        return
    bounding = [limit for limit in readable.limits if limit.version > version]
    if version > readable.newest or version < 0 or not bounding:
        raise VersionError(
            f"There is no version {version} of {table}.", hint=f"it has {readable.range}."
        )
    limit = bounding[-1]
    if limit.what == "vacuumed files":
        # An older version does not necessarily need a deleted file.
        removed = removed_since(storage, table.table_path, version, readable.newest)
        missing = missing_files(storage, table.table_path, removed)
        if not missing:
            return
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise VersionError(
            f"Version {version} of {table} was vacuumed: {missing[0]}{more} can't be found.",
            file=missing[0],
            hint=_range_hint(readable),
        )
    raise VersionError(
        f"Version {version} of {table} can no longer be read: {limit.why}.",
        hint=_range_hint(readable),
    )


def _range_hint(readable: ReadableRange) -> str:
    return f"the readable range is {readable.range}."


def check_timestamp(storage: Storage, table: TableName, timestamp: datetime) -> None:
    """Refuse a timestamp before the versions that can be read.

    Raises:
        VersionError: the timestamp is before the range that can be read. The error contains the
            range.
    """
    readable = find_readable_range(storage, table)
    if timestamp >= readable.since:
        return
    log = CommitLog(storage, table.table_path)
    first = log.first_readable(readable.newest)
    committed = log.raw_timestamp(first)
    if committed is not None and timestamp < committed:
        raise VersionError(
            f"{timestamp.isoformat()} is before the first version in the log of {table}.",
            hint=_range_hint(readable),
        )
    after = log.first_since(timestamp + timedelta(milliseconds=1), first, readable.newest)
    check_version(storage, table, after - 1)


def version_at(storage: Storage, table: TableName, timestamp: datetime) -> int:
    """Return the version that was the newest at a timestamp.

    For a timestamp after the newest commit, this is the newest version.

    Raises:
        VersionError: the timestamp is before the readable range; the error contains the range.
    """
    newest = _newest_by(storage, table, timestamp)
    if newest is not None:
        return newest
    check_timestamp(storage, table, timestamp)
    log, last = CommitLog(storage, table.table_path), open_snapshot(storage, table).version
    first = log.first_readable(last)
    return log.first_since(timestamp + timedelta(milliseconds=1), first, last) - 1


def _newest_by(storage: Storage, table: TableName, timestamp: datetime) -> int | None:
    """Return the newest version if it was committed at or before a timestamp, else None."""
    newest = open_snapshot(storage, table).version
    committed = CommitLog(storage, table.table_path).timestamp(newest)
    return newest if committed is not None and committed <= timestamp else None


def newest_versions(storage: Storage, tables: Sequence[TableName]) -> list[int]:
    """Return the newest version of each table, read one after the other.

    Raises:
        TableNotFoundError: one of the tables does not exist.
    """
    found = [find_newest(storage, table.table_path) for table in tables]
    for table, version in zip(tables, found, strict=True):
        if version is None:
            raise missing_table(table)
    return [version for version in found if version is not None]


def versions_at_once(storage: Storage, tables: Sequence[TableName]) -> list[int] | None:
    """Return versions of all tables that were the newest ones at the same time; read them twice.

    Returns:
        The versions, or None if a table changed between the two reads of each attempt.

    Raises:
        TableNotFoundError: one of the tables does not exist.
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
