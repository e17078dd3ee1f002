"""The class behind `Table.row_tracking`, and the history of one row through all versions.

A row is followed by its id, so its history continues when its key changes or it is restored. The
cost grows with the row's changes and not with the table: of all files that commits added or
removed, only those that may contain the row are read. They are selected by the statistics of the
key columns and by the ranges of row ids; within a file, the statistics of the ids skip row groups.

`read_row_history` lists these files in a small Delta log. `report_row`, which describes the history
in words, keeps this log in a temporary folder of this machine, so that it also works on a read-only
lake. If Spark's workers are other machines, the log is stored in the lake and deleted at the end.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.actions import (
    DataFile,
    FileChange,
    FileHistory,
    file_changes,
    last_removal,
    live_files,
)
from mirrorlake.delta.commits import CommitLog, read_versions
from mirrorlake.delta.snapshot import Snapshot, physical_name
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.changes import COLUMNS, as_texts, describe_changes, short
from mirrorlake.feed.doctor import FeedFinding
from mirrorlake.feed.ranges import End, Outside, in_order, key_columns
from mirrorlake.history.diff import RESERVED, is_tracked
from mirrorlake.mirror.options import declared_keys
from mirrorlake.names import ROW_FILES, quote, spelled
from mirrorlake.results import Result, TextTable, counted, optional_figure
from mirrorlake.rows.changes import (
    ID_NAMES,
    ROW,
    ROW_ID,
    as_changes,
    files_of,
    read_file_rows,
    read_row_changes,
    read_with_ids,
    unreadable_changes,
)
from mirrorlake.rows.tracking import FeatureChange, Tracking, change_tracking, read_tracking
from mirrorlake.spark.jvm import has_gateway
from mirrorlake.spark.sql import query_errors
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


Key = Mapping[str, Any]
_MOST = 1000  # ids of one key; a column with more is not a key
_MOST_EVENTS = 100
_NO_EVENTS = TextTable(COLUMNS, ())
_MOST_ROWS = 200  # ids by row and version


@dataclass(frozen=True)
class RowIds(Result):
    """The ids of a table's rows, version by version.

    Attributes:
        table: the table's name.
        versions: the versions with their operations, ascending.
        rows: by row, for each version, the row's id and the version that changed it last; empty
            if the version does not have the row.
    """

    table: str
    versions: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]

    def shown(self) -> TextTable:
        """Return one row per row of the table, with a column per version."""
        columns = ("row", *(" ".join(version.split()) for version in self.versions))
        return TextTable(columns, tuple((name, *ids) for name, ids in self.rows.items()))

    @optional_figure
    def plot(self) -> Chart:
        """Draw the ids as a grid: one line per row, one column per version."""
        from mirrorlake.show.plots import plot_matrix

        title = f"Rows of {self.table}: id · version that changed it last"
        return plot_matrix(list(self.versions), self.rows, title=title, x_label="version")

    def __repr__(self) -> str:
        return f"{self.table}: {len(self.rows)} rows in {len(self.versions)} versions"


def read_row_ids(table: TableHandle, label: str, *, first: int = 1) -> RowIds:
    """Read the ids of a table's rows; see `RowTracking.by_version` for arguments and errors."""
    newest = table.snapshot().version
    log = CommitLog(table.storage, table.name.table_path)
    parts = [
        read_with_ids(table, version=version).select(
            F.lit(version).alias("at"), F.col(quote(label)).cast("string").alias("row"), *ID_NAMES
        )
        for version in range(first, newest + 1)
    ]
    ordered = reduce(lambda a, b: a.unionAll(b), parts).orderBy("at", "_row_id").limit(_MOST_ROWS)
    texts: dict[str, list[str]] = {}
    for row in ordered.collect():
        line = texts.setdefault(row["row"], [""] * len(parts))
        line[row["at"] - first] = f"{row[ID_NAMES[0]]} · v{row[ID_NAMES[1]]}"
    versions = tuple(
        f"{commit.version}\n{commit.operation.lower()}"
        for commit in reversed(log.read(newest, len(parts)).commits)
    )
    return RowIds(str(table.name), versions, {name: tuple(ids) for name, ids in texts.items()})


@dataclass(frozen=True)
class RowHistory(Result):
    """The history of one row.

    Attributes:
        table: the table's name.
        ids: the row's id, or all ids that a key has had.
        start: the first version; rows that existed then are `existing`.
        end: the last version.
        files: the number of data files that may contain the row, of `files_seen`.
        files_seen: the number of data files in these versions.
        events: the changes with the columns of `read_row_changes`, ordered by version.
        findings: facts about the ids in these versions.
    """

    table: str
    ids: tuple[int, ...]
    start: int
    end: int
    files: int
    files_seen: int
    events: DataFrame
    findings: tuple[FeedFinding, ...]

    def shown(self) -> TextTable:
        """Return the ids, versions and files; the events are a DataFrame."""
        rows = [
            ("row ids", ", ".join(map(str, self.ids)) or "none"),
            ("versions", f"{self.start} to {self.end}"),
            ("files that may contain the row", f"{self.files} of {self.files_seen}"),
        ]
        rows += [(finding.rule, f"{finding.message} {finding.fix}") for finding in self.findings]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        ids = ", ".join(map(str, self.ids)) or "none"
        return f"{self.table}: row id {ids}, versions {self.start} to {self.end}"


def read_row_history(
    table: TableHandle,
    *,
    key: Any = None,
    row_id: int | None = None,
    start: int | None = None,
    lists: Storage | None = None,
) -> RowHistory:
    """Return all changes of one row.

    Args:
        table: the table.
        key: the row's key: a value if the table declares one key column, else values by column. All
            rows that ever had this key are included, also in versions in which they had another.
        row_id: the row's id, instead of a key.
        start: the first version; by default the oldest that its files, columns and ids allow.
        lists: where to store the lists of the files that are read; by default in the lake.

    Raises:
        FeedError: a file of the versions since `start` is missing.
        UsageError: neither or both of key and id are given, or the rows have no ids.
    """
    if (key is None) == (row_id is None):
        given = "Neither a key nor a row id is" if key is None else "A key and a row id are both"
        raise UsageError(f"{given} given.", hint="give either a key or a row id.")
    tracking = read_tracking(table)
    snapshot = table.snapshot()
    if tracking.numbered_from is None:
        raise UsageError(
            f"The rows of {table.name} never had ids.",
            hint="enable row tracking with table.row_tracking.enable().",
        )
    oldest = max(tracking.numbered_from, tracking.readable_from, tracking.first)
    if start is not None and not oldest <= start <= snapshot.version:
        raise UsageError(
            f"The history of a row in {table.name} can't start at version {start}.",
            hint=f"rows have their present ids in versions {oldest} to {snapshot.version}.",
        )
    wanted = {} if key is None else _key_values(table, key)
    first = oldest if start is None else start
    seen = _file_changes(table, first, snapshot.version)
    ids = None if row_id is None else [row_id]
    while True:
        if ids is not None:
            uses = [u for u in seen if u.file.carries or any(map(u.file.holds, ids))]
        else:
            uses = [u for u in seen if may_contain(u.file, snapshot, wanted)]
        if lost := unreadable_changes(table, uses):
            files = [use.file for use in lost]
            path, newest = table.name.table_path, snapshot.version
            later = last_removal(table.storage, path, files, first + 1, newest)
            if later is None:
                raise FeedError(
                    f"A file of the newest version of {table.name} is missing.",
                    hint="restore the file from a backup.",
                )
            first = later  # files removed in that version are not needed after it
            seen = _file_changes(table, first, snapshot.version)
        elif ids is None:
            rows = read_file_rows(table, snapshot, files_of(uses), lists=lists)
            ids = _ids_of(table, rows, wanted)
        else:
            break
    if start is not None and first > start:
        raise FeedError(
            f"The history of the row in {table.name} can't start at version {start}, because a"
            " VACUUM deleted files that it needs.",
            hint=f"start at version {first}.",
        )
    rows = read_file_rows(table, snapshot, files_of(uses), ids or [-1], lists=lists)
    timeline = read_versions(table.storage, table.name.table_path)
    events = _in_order(as_changes(rows, uses, timeline), first)
    findings = tuple(f for f in tracking.findings if f.versions[1] >= first)
    count, total = len(files_of(uses)), len(files_of(seen))
    return RowHistory(
        str(table.name), tuple(ids), first, snapshot.version, count, total, events, findings
    )


def _file_changes(table: TableHandle, first: int, newest: int) -> list[FileChange]:
    """Return the files that versions added and removed, including those of the first version."""
    storage, path = table.storage, table.name.table_path
    history = FileHistory()
    files = map(history.data_file, live_files(storage, path, first) if first > 0 else ())
    there = [FileChange(first, 1, file) for file in files if file is not None]
    return [*there, *file_changes(storage, path, first + (first > 0), newest, history)]


def _key_values(table: TableHandle, key: Any) -> Key:
    if isinstance(key, Mapping):
        names = key_columns(table, list(map(str, key)))
        return dict(zip(names, key.values(), strict=True))
    names = key_columns(table, None)
    if len(names) != 1:
        raise UsageError(
            f"One value is given, but the key columns of {table.name} are {', '.join(names)}.",
            hint="give a value for each key column.",
        )
    return {names[0]: key}


def may_contain(file: DataFile, snapshot: Snapshot, key: Key) -> bool:
    """Return whether a file may contain rows with a key, by the statistics in the log."""
    fields = {f["name"]: f for f in snapshot.fields}
    low, high = (file.stats.get(name) or {} for name in ("minValues", "maxValues"))
    for column, value in key.items():
        field = fields[column]
        name = physical_name(field)
        typed = _comparable(field["type"], value)
        if typed is None or name not in low or name not in high:
            continue
        if not low[name] <= typed <= high[name]:
            return False
    return True


def _comparable(kind: Any, value: Any) -> Any:
    """Return a value in the type of the statistics, or None if it can't be compared."""
    is_date = isinstance(value, date) and not isinstance(value, datetime)
    if isinstance(value, bool) or not (is_date or isinstance(value, (int, str))):
        return None  # NULL has no statistics, and Spark writes other values differently
    try:
        if kind in ("byte", "short", "integer", "long"):
            return int(value)
        if kind == "date" and not is_date:
            value = date.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return str(value) if kind in ("string", "date") else None


def _ids_of(table: TableHandle, rows: DataFrame, key: Key) -> list[int]:
    """Return the ids of all rows in these files that ever had a key."""
    names = [f"{ROW}.{quote(column)}" for column in key]
    fields = dict(zip(key, rows.select(*names).schema, strict=True))

    def typed(*columns: str) -> list[Column]:
        """Return the values in their columns' types, after one job that fails for a wrong value."""
        values = [F.lit(key[column]).cast(fields[column].dataType) for column in columns]
        rows.sparkSession.range(0, 1, 1, 1).select(*values).collect()
        return values

    try:
        values = typed(*key)
    except Exception:
        for column, value in key.items():
            try:
                typed(column)
            except Exception as error:
                kind = fields[column].dataType.simpleString()
                raise UsageError(
                    f"{value!r} is not a value of {column}, which has the type {kind}.",
                    hint="give a value of this type.",
                ) from error
        raise
    for name, value in zip(names, values, strict=True):
        rows = rows.where(F.col(name).eqNullSafe(value))
    found = [row[0] for row in rows.select(ROW_ID).distinct().limit(_MOST + 1).collect()]
    if len(found) > _MOST:
        raise UsageError(
            f"More than {_MOST:,} rows of {table.name} had this key.",
            hint="give a value for each key column.",
        )
    return sorted(found)


def _in_order(changes: DataFrame, first: int) -> DataFrame:
    """Order changes by version; rows from before the first version are `existing`."""
    kind = F.col(RESERVED[0])
    if first > 0:
        there = (F.col(RESERVED[1]) == first) & (kind == "insert")
        kind = F.when(there, "existing").otherwise(kind)
    named = changes.withColumn(RESERVED[0], kind)
    kinds = ("delete", "existing", "insert", "update_preimage", "update_postimage")
    return in_order(named, [ID_NAMES[0]], kinds)


@dataclass(frozen=True)
class RowReport(Result):
    """The row tracking of a table, and the history of one row in words.

    Attributes:
        tracking: whether rows have ids, since when, and facts about them.
        change: the commits that enable row tracking, planned or done; None if it was enabled.
        row: the row whose history is shown; empty if there is none.
        ids: the row's ids.
        start, end: the first and the last version; None without a row.
        files, files_seen: the number of data files that may contain the row, of all files in these
            versions.
        events: the row's changes, in words.
        notes: what is not shown, and why.
    """

    tracking: Tracking
    change: FeatureChange | None
    row: str = ""
    ids: tuple[int, ...] = ()
    start: int | None = None
    end: int | None = None
    files: int = 0
    files_seen: int = 0
    events: TextTable = _NO_EVENTS
    notes: tuple[str, ...] = ()

    def shown(self) -> TextTable:
        """Return the row, its ids, the versions and files, then the notes."""
        rows: list[tuple[Any, ...]] = []
        if self.row:
            rows = [
                ("row", self.row),
                ("row ids", ", ".join(map(str, self.ids)) or "none"),
                ("versions", f"{self.start} to {self.end}"),
                ("files that may contain the row", f"{self.files} of {self.files_seen}"),
            ]
        rows += [("note", note) for note in self.notes]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        events = (
            f"{counted(len(self.events.rows), 'event')} of {self.row}" if self.row else "no row"
        )
        return f"{self.tracking}; {events}"


@query_errors()
def report_row(table: TableHandle, key: str = "", *, enable: bool = False) -> RowReport:
    """Describe the history of one row.

    Args:
        table: the table.
        key: a value of the only declared key column, or JSON: `{"column": value}`; by default the
            row that changed last.
        enable: enable row tracking if it is off; by default the commits are only reported.

    Raises:
        UsageError: the key is invalid, or names a column that does not exist.

    Example:
        >>> report_row(lake.table("stock"), "bolt").events  # doctest: +SKIP
        version  made (UTC)           change  what
              1  2024-05-01 10:00:00  insert  item bolt: n 40
              3  2024-05-01 10:05:00  update  item bolt: n 40 → 35
    """
    change = None
    if not is_tracked(table.snapshot().properties):
        change = change_tracking(table, "enable", dry_run=not enable)
    report = RowReport(read_tracking(table), change)
    keys = declared_keys(table.snapshot().properties)
    wanted = parse_key(key, keys, str(table.name))
    if report.tracking.numbered_from is None:
        return replace(report, notes=("The rows have no ids, so no history can be shown.",))
    row_id: int | None = None
    row = ", ".join(f"{name} {short(value)}" for name, value in (wanted or {}).items())
    if wanted is None:
        if not report.tracking.enabled:
            note = "Row tracking is off. Give a key to see the history of its older ids."
            return replace(report, notes=(note,))
        last = _last_changed(table, keys)
        if last is None:
            return replace(report, notes=("The table is empty.",))
        row_id, row = last
    with _temporary_storage(table) as lists:
        try:
            found = read_row_history(table, key=wanted, row_id=row_id, lists=lists)
        except FeedError as error:
            return replace(report, notes=(str(error),))
        events = _describe(found.events, keys)
    notes = []
    if not events.rows:
        notes.append("No version in which rows have ids contains such a row.")
    if found.start > 0:
        notes.append(f"The history before version {found.start} is not available.")
    return replace(
        report,
        row=row,
        ids=found.ids,
        start=found.start,
        end=found.end,
        files=found.files,
        files_seen=found.files_seen,
        events=events,
        notes=tuple(notes),
    )


def parse_key(text: str, keys: tuple[str, ...], table: str) -> Mapping[str, Any] | None:
    """Return the values of a key by column, or None for an empty text.

    Args:
        text: a value of the only key column, or a JSON object.
        keys: the columns that the table declares as its keys.
        table: the table's name, for messages.

    Raises:
        UsageError: the text is neither.

    Example:
        >>> parse_key("7", ("id",), "stock")
        {'id': '7'}
    """
    text = str(text).strip()
    if not text:
        return None
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UsageError(
                f"The key {text!r} is not valid JSON: {error}.", hint='write {"column": value}.'
            ) from error
        if not found:
            raise UsageError(f"The key {text!r} has no column.", hint='write {"column": value}.')
        return dict(found)
    if len(keys) != 1:
        named = f"has the keys {', '.join(keys)}" if keys else "declares no keys"
        raise UsageError(
            f"{text!r} does not identify a row: the table {table} {named}.",
            hint='give the key as JSON: {"column": value}.',
        )
    return {keys[0]: text}


def _last_changed(table: TableHandle, keys: tuple[str, ...]) -> tuple[int, str] | None:
    """Return id and key of a row that changed last, or None if the table is empty."""
    names = ("__mirrorlake_id", "__mirrorlake_at")
    rows = read_with_ids(table, names=names)
    keys = spelled(keys, rows.columns)
    there = [F.col(quote(key)) for key in keys]
    ordered = rows.orderBy(F.desc(names[1]), *there, names[0])
    line = as_texts(ordered.select(names[0], *there).limit(1)).first()
    if line is None:
        return None
    named = ", ".join(f"{k} {short(v)}" for k, v in zip(keys, line[1:], strict=False))
    return int(line[0]), named or f"row id {line[0]}"


def _describe(events: DataFrame, keys: tuple[str, ...]) -> TextTable:
    columns = [name for name in events.columns if name not in ID_NAMES]
    shown = as_texts(events.select(*[F.col(quote(name)) for name in columns]))
    rows = shown.limit(_MOST_EVENTS + 1).collect()
    there = spelled(keys, columns)
    lines = describe_changes([dict(zip(columns, row, strict=True)) for row in rows], keys=there)
    return TextTable(lines.columns, lines.rows[:_MOST_EVENTS], more=len(rows) > _MOST_EVENTS)


@contextmanager
def _temporary_storage(table: TableHandle) -> Iterator[Storage]:
    """Yield temporary storage for file lists that Spark can read."""
    spark = table.spark
    if has_gateway(spark) and (spark.conf.get("spark.master", "") or "").startswith("local"):
        with tempfile.TemporaryDirectory(prefix="mirrorlake-") as folder:
            yield Storage(folder)
        return
    day = datetime.now(timezone.utc).date().isoformat()
    folder = f"{ROW_FILES}/{day}/{uuid.uuid4().hex}"  # if interrupted, deleted with the day
    try:
        yield Storage(table.storage.path(folder))
    finally:
        table.storage.delete_folder(folder)


class RowTracking:
    """The row tracking of a table, as `table.row_tracking` returns it.

    Args:
        table: the table.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def __repr__(self) -> str:
        return repr(self.status())

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def status(self) -> Tracking:
        """Return whether rows have ids, since when, and which versions have comparable ids.

        Example:
            >>> lake.table("stock").row_tracking.status()  # doctest: +SKIP
            stock: rows tracked, ids kept since version 0, 0 warnings
        """
        return read_tracking(self._table)

    def enable(self, *, dry_run: bool = False) -> FeatureChange:
        """Give ids to all rows; no data file is rewritten.

        Args:
            dry_run: only report the commits.

        Returns:
            The commits, and the number of files that are added to the log again, with ids.

        Raises:
            QueryError: Delta refused the change.

        Example:
            >>> lake.table("notes").row_tracking.enable(dry_run=True)  # doctest: +SKIP
            would enable row tracking of notes: 3 commits
        """
        return change_tracking(self._table, "enable", dry_run=dry_run)

    def disable(self, *, apply: bool = False) -> FeatureChange:
        """Disable row tracking; a dry run unless `apply`.

        Ids can't be relied on afterwards. The feature stays in the protocol.

        Args:
            apply: disable it; by default the commits are only reported.

        Example:
            >>> lake.table("notes").row_tracking.disable()  # doctest: +SKIP
            would disable row tracking of notes: 1 commit
        """
        return change_tracking(self._table, "disable", dry_run=not apply)

    def drop(self, *, apply: bool = False) -> FeatureChange:
        """Remove the feature and all ids from the table; a dry run unless `apply`.

        Args:
            apply: drop it; by default the commits are only reported.

        Raises:
            QueryError: Delta refused the change, for example because the log still contains commits
                that need the feature.

        Example:
            >>> lake.table("notes").row_tracking.drop()  # doctest: +SKIP
            would drop row tracking of notes: 4 commits
        """
        return change_tracking(self._table, "drop", dry_run=not apply)

    def read(
        self,
        *,
        version: int | None = None,
        names: tuple[str, str] = ("_row_id", "_row_commit_version"),
    ) -> DataFrame:
        """Return the rows, each with its id and the version that last changed it.

        Args:
            version: the table's version; by default the newest.
            names: the names of these two columns.

        Raises:
            UsageError: rows are not tracked in that version, or a column has one of the names.
            VersionError: that version can't be read.

        Example:
            >>> lake.table("stock").row_tracking.read(version=3).show()  # doctest: +SKIP
        """
        return read_with_ids(self._table, version=version, names=names)

    def changes(
        self, start: End, end: End | None = None, *, beyond_latest: Outside | None = None
    ) -> DataFrame:
        """Return the changes of a range of versions, with the ids of the rows.

        Args:
            start: as for `Table.changes.read`.
            end: as for `Table.changes.read`.
            beyond_latest: as for `Table.changes.read`.

        Raises:
            FeedError: the range can't be read.
            UsageError: an end is invalid.

        Example:
            >>> lake.table("stock").row_tracking.changes(1, 4).show()  # doctest: +SKIP
        """
        return read_row_changes(self._table, start, end, beyond_latest=beyond_latest)

    def history(
        self, *, key: Any = None, row_id: int | None = None, start: int | None = None
    ) -> RowHistory:
        """Return all changes of one row.

        Args:
            key: the row's key: a value, or a dict of columns and values.
            row_id: the row's id, instead of a key.
            start: the first version; by default the first that can be read.

        Raises:
            FeedError: a file of the versions since `start` is missing.
            UsageError: neither or both are given, the key has another type, or rows are not
                tracked.

        Example:
            >>> lake.table("stock").row_tracking.history(key={"id": 7})  # doctest: +SKIP
            stock: row id 6, versions 0 to 4
        """
        return read_row_history(self._table, key=key, row_id=row_id, start=start)

    def by_version(self, label: str, *, first: int = 1) -> RowIds:
        """Return the ids and commit versions of a small table's rows in each version.

        Args:
            label: the column that names the rows; its values are unique in each version.
            first: the first version; rows have ids in it and in all later versions.

        Returns:
            One row per row of the table, at most 200, with a column per version, and `.plot()`.

        Raises:
            UsageError: rows are not tracked in one of the versions.

        Example:
            >>> lake.table("stock").row_tracking.by_version("item").plot()  # doctest: +SKIP
        """
        return read_row_ids(self._table, label, first=first)

    def report(self, key: str = "", *, enable: bool = False) -> RowReport:
        """Return the history of one row in words, and facts about its ids.

        Nothing is changed unless `enable` is set.

        Args:
            key: a value of the only declared key column, or JSON `{"column": value}`; by default
                the row that changed last.
            enable: enable row tracking if it is off.

        Raises:
            UsageError: the key is invalid, or names a column that does not exist.

        Example:
            >>> lake.table("stock").row_tracking.report("bolt").events  # doctest: +SKIP
        """
        return report_row(self._table, key, enable=enable)
