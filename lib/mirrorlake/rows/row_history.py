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

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.actions import DataFile, FileChange, FileHistory, file_changes, live_files
from mirrorlake.delta.commits import CommitLog, read_versions
from mirrorlake.delta.snapshot import Snapshot, physical_name
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.changes import COLUMNS, as_texts, short, tell_changes
from mirrorlake.feed.doctor import FeedFinding
from mirrorlake.feed.ranges import End, Outside, in_order, key_columns
from mirrorlake.history.diff import RESERVED, is_tracked
from mirrorlake.mirror.options import declared_keys
from mirrorlake.names import quote
from mirrorlake.results import Result, TextTable
from mirrorlake.rows.changes import (
    ID_NAMES,
    ROW,
    ROW_FILES,
    ROW_ID,
    as_changes,
    files_of,
    missing_versions,
    read_file_rows,
    read_row_changes,
    read_with_ids,
)
from mirrorlake.rows.tracking import FeatureChange, Tracking, change_tracking, read_tracking
from mirrorlake.spark.jvm import has_gateway
from mirrorlake.spark.sql import query_errors
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


Key = Mapping[str, Any]
_MOST = 1000  # ids of one key; what has more is not a key
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
    """What became of a row.

    Attributes:
        ids: the row's id, or all that a key has had.
        start: the first version that was looked at; rows of then are `existing`.
        end: the last one.
        files: how many data files could hold the row, of `files_seen` in these versions.
        events: the changes as `read_row_changes` has them, by version.
        findings: what to know about the ids in these versions.
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
        """What was looked at; the events are a DataFrame."""
        rows = [
            ("row ids", ", ".join(map(str, self.ids)) or "none"),
            ("versions", f"{self.start} to {self.end}"),
            ("files that may hold the row", f"{self.files} of {self.files_seen}"),
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
    """Everything that happened to one row.

    Args:
        table: the table.
        key: the row's key: a value where the table declares one key column, else values by column.
            All rows that ever had it are included, also in versions in which they had another.
        row_id: the row's id, instead of a key.
        start: the first version; by default the oldest whose files, columns and ids allow it.
        lists: where the lists of the files that are read lie; by default in the lake.

    Raises:
        FeedError: a file of the versions from `start` on is gone.
        UsageError: neither or both of key and id are given, or rows have no ids.
    """
    if (key is None) == (row_id is None):
        raise UsageError("Give either a key or a row id.")
    tracking = read_tracking(table)
    snapshot = table.snapshot()
    if tracking.numbered_from is None:
        raise UsageError(
            f"The rows of {table.name} never had ids.", hint=f"`rows enable ROOT {table.name}`."
        )
    oldest = max(tracking.numbered_from, tracking.readable_from, tracking.first)
    if start is not None and not oldest <= start <= snapshot.version:
        raise UsageError(
            f"{start} can't be the first version.",
            hint=f"from {oldest} on rows have the present ids; the newest is {snapshot.version}.",
        )
    wanted = {} if key is None else _key(table, key)
    first = oldest if start is None else start
    seen = _uses(table, first, snapshot.version)
    ids = None if row_id is None else [row_id]
    while True:
        if ids is not None:
            uses = [u for u in seen if u.file.carries or any(map(u.file.holds, ids))]
        else:
            uses = [u for u in seen if may_hold(u.file, snapshot, wanted)]
        if gone := missing_versions(table, uses):
            if start is not None or gone[-1] == first:
                raise FeedError(
                    f"A file of version {gone[-1]} of {table.name} is gone: a VACUUM has deleted"
                    " it.",
                    hint=f"start at version {gone[-1]}.",
                )
            first = gone[-1]  # what was taken then is not needed from then on
            seen = _uses(table, first, snapshot.version)
        elif ids is None:
            rows = read_file_rows(table, snapshot, files_of(uses), lists=lists)
            ids = _ids_of(table, rows, wanted)
        else:
            break
    rows = read_file_rows(table, snapshot, files_of(uses), ids or [-1], lists=lists)
    timeline = read_versions(table.storage, table.name.table_path)
    events = _in_order(as_changes(rows, uses, timeline), first)
    told = tuple(f for f in tracking.findings if f.versions[1] >= first)
    files, total = len(files_of(uses)), len(files_of(seen))
    return RowHistory(
        str(table.name), tuple(ids), first, snapshot.version, files, total, events, told
    )


def _uses(table: TableHandle, first: int, newest: int) -> list[FileChange]:
    """The files that versions brought and took, those that the first one has included."""
    storage, path = table.storage, table.name.table_path
    history = FileHistory()
    files = map(history.data_file, live_files(storage, path, first) if first > 0 else ())
    there = [FileChange(first, 1, file) for file in files if file is not None]
    return [*there, *file_changes(storage, path, first + (first > 0), newest, history)]


def _key(table: TableHandle, key: Any) -> Key:
    if isinstance(key, Mapping):
        names = key_columns(table, list(map(str, key)))
        return dict(zip(names, key.values(), strict=True))
    names = key_columns(table, None)
    if len(names) != 1:
        raise UsageError(
            f"The keys of {table.name} are {', '.join(names)}.", hint="give a value for each."
        )
    return {names[0]: key}


def may_hold(file: DataFile, snapshot: Snapshot, key: Key) -> bool:
    """Whether a file may have rows of a key, by what the log says of its values."""
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
    """A value as statistics have it; None if it can't be compared with them."""
    try:
        if kind in ("byte", "short", "integer", "long"):
            return int(value)
        if kind in ("string", "date"):
            return value.isoformat() if isinstance(value, date) else str(value)
    except ValueError:
        return None
    return None


def _ids_of(table: TableHandle, rows: DataFrame, key: Key) -> list[int]:
    """The ids of all rows that ever had a key, of the rows of files."""
    for column, value in key.items():
        name = f"{ROW}.{quote(column)}"
        kind = rows.select(name).schema[0].dataType
        rows = rows.where(F.col(name).eqNullSafe(F.lit(value).cast(kind)))
    found = [row[0] for row in rows.select(ROW_ID).distinct().limit(_MOST + 1).collect()]
    if len(found) > _MOST:
        raise UsageError(
            f"More than {_MOST:,} rows of {table.name} had this key.", hint="give a whole key."
        )
    return sorted(found)


def _in_order(changes: DataFrame, first: int) -> DataFrame:
    """By version; rows that were there before the first version are `existing`."""
    kind = F.col(RESERVED[0])
    if first > 0:
        there = (F.col(RESERVED[1]) == first) & (kind == "insert")
        kind = F.when(there, "existing").otherwise(kind)
    named = changes.withColumn(RESERVED[0], kind)
    kinds = ("delete", "existing", "insert", "update_preimage", "update_postimage")
    return in_order(named, [ID_NAMES[0]], kinds)


@dataclass(frozen=True)
class RowReport(Result):
    """What a table's row ids tell.

    Attributes:
        tracking: whether rows have ids, since when, and what to know about them.
        change: what switching row tracking on commits, or has committed; None where it is on.
        row: the row that was followed; empty for none.
        ids: its row ids.
        start, end: the versions that were looked at; None without a row.
        files, files_seen: how many data files could hold the row, of all in these versions.
        events: its changes, in words.
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
        """What was looked at."""
        rows: list[tuple[Any, ...]] = []
        if self.row:
            rows = [
                ("row", self.row),
                ("row ids", ", ".join(map(str, self.ids)) or "none"),
                ("versions", f"{self.start} to {self.end}"),
                ("files that may hold the row", f"{self.files} of {self.files_seen}"),
            ]
        rows += [("note", note) for note in self.notes]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        events = f"{len(self.events.rows)} events of {self.row}" if self.row else "no row followed"
        return f"{self.tracking}; {events}"


@query_errors()
def report_row(table: TableHandle, key: str = "", *, enable: bool = False) -> RowReport:
    """Tells what became of one row.

    Args:
        table: the table.
        key: a value of the one declared key column, or JSON: `{"column": value}`; by default the
            row that changed last.
        enable: switch row tracking on, where it is off; by default it is only said what that
            commits.

    Raises:
        UsageError: the key is none, or names a column that is not there.

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
        return replace(report, notes=("The rows have no ids, so no row can be followed.",))
    row_id: int | None = None
    row = ", ".join(f"{name} {short(value)}" for name, value in (wanted or {}).items())
    if wanted is None:
        if not report.tracking.enabled:
            note = "Row tracking is off: name a key to see what its older ids tell."
            return replace(report, notes=(note,))
        last = _last_changed(table, keys)
        if last is None:
            return replace(report, notes=("The table is empty.",))
        row_id, row = last
    with _scratch(table) as lists:
        try:
            found = read_row_history(table, key=wanted, row_id=row_id, lists=lists)
        except FeedError as error:
            return replace(report, notes=(f"{error.message} {error.hint}".strip(),))
        events = _told(found.events, keys)
    notes = []
    if not events.rows:
        notes.append("No version in which rows have ids has such a row.")
    if found.start > 0:
        notes.append(f"What was before version {found.start} can't be told.")
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
    """The values of a key by column; None where nothing is asked for.

    Args:
        text: a value of the one key column, or a JSON object.
        keys: the columns that the table declares as its keys.
        table: its name, for messages.

    Raises:
        UsageError: it is neither.

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
                f"The key {text!r} is no JSON: {error}.", hint='write {"column": value}.'
            ) from error
        return dict(found)
    if len(keys) != 1:
        named = f"has the keys {', '.join(keys)}" if keys else "declares no keys"
        raise UsageError(
            f"The table {table} {named}.", hint='give the key as JSON: {"column": value}.'
        )
    return {keys[0]: text}


def _last_changed(table: TableHandle, keys: tuple[str, ...]) -> tuple[int, str] | None:
    """Id and name of a row that the newest change touched; None of an empty table."""
    names = ("__mirrorlake_id", "__mirrorlake_at")
    rows = read_with_ids(table, names=names)
    there = [F.col(quote(key)) for key in keys if key in rows.columns]
    ordered = rows.orderBy(F.desc(names[1]), *there, names[0])
    line = as_texts(ordered.select(names[0], *there).limit(1)).first()
    if line is None:
        return None
    named = ", ".join(f"{k} {short(v)}" for k, v in zip(keys, line[1:], strict=False))
    return int(line[0]), named or f"row id {line[0]}"


def _told(events: DataFrame, keys: tuple[str, ...]) -> TextTable:
    columns = [name for name in events.columns if name not in ID_NAMES]
    shown = as_texts(events.select(*[F.col(quote(name)) for name in columns]))
    rows = shown.limit(_MOST_EVENTS + 1).collect()
    there = [key for key in keys if key in columns]
    told = tell_changes([dict(zip(columns, row, strict=True)) for row in rows], keys=there)
    return TextTable(told.columns, told.rows[:_MOST_EVENTS], more=len(rows) > _MOST_EVENTS)


@contextmanager
def _scratch(table: TableHandle) -> Iterator[Storage]:
    """A place for lists of files that Spark sees, and that is gone afterwards."""
    spark = table.spark
    if has_gateway(spark) and (spark.conf.get("spark.master", "") or "").startswith("local"):
        with tempfile.TemporaryDirectory(prefix="mirrorlake-") as folder:
            yield Storage(folder)
        return
    day = datetime.now(timezone.utc).date().isoformat()
    folder = f"{ROW_FILES}/{day}/{uuid.uuid4().hex}"  # killed, it goes with the day
    try:
        yield Storage(table.storage.path(folder))
    finally:
        table.storage.delete_folder(folder)


class RowTracking:
    """Stable row ids: whether there are any, and what they tell.

    Args:
        table: whose rows.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def __repr__(self) -> str:
        return repr(self.status())

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def status(self) -> Tracking:
        """Whether rows have ids, since when, and how far they can be trusted.

        Example:
            >>> lake.table("stock").row_tracking.status()  # doctest: +SKIP
            stock: rows tracked, ids kept since version 0, 0 warnings
        """
        return read_tracking(self._table)

    def enable(self, *, dry_run: bool = False) -> FeatureChange:
        """Gives all rows ids; no data file is rewritten.

        Args:
            dry_run: only say what it would commit.

        Returns:
            The commits, and the files that are listed once more with ids.

        Raises:
            QueryError: Delta refused it.

        Example:
            >>> lake.table("notes").row_tracking.enable(dry_run=True)  # doctest: +SKIP
        """
        return change_tracking(self._table, "enable", dry_run=dry_run)

    def disable(self, *, apply: bool = False) -> FeatureChange:
        """Hides the ids: they can't be relied on afterwards. The feature stays in the protocol.

        Args:
            apply: do it; by default it is only said.

        Example:
            >>> lake.table("notes").row_tracking.disable()  # doctest: +SKIP
        """
        return change_tracking(self._table, "disable", dry_run=not apply)

    def drop(self, *, apply: bool = False) -> FeatureChange:
        """Takes the feature, and all ids, out of the table.

        Args:
            apply: do it; by default it is only said.

        Raises:
            QueryError: Delta refused it, as while the log still holds commits that need it.

        Example:
            >>> lake.table("notes").row_tracking.drop()  # doctest: +SKIP
        """
        return change_tracking(self._table, "drop", dry_run=not apply)

    def read(
        self,
        *,
        version: int | None = None,
        names: tuple[str, str] = ("_row_id", "_row_commit_version"),
    ) -> DataFrame:
        """The rows, each with its id and the version that last changed it.

        Args:
            version: the table's version; by default the newest.
            names: what the two columns are called.

        Raises:
            UsageError: rows are not tracked at that version, or a column has such a name.

        Example:
            >>> lake.table("stock").row_tracking.read(version=3).show()  # doctest: +SKIP
        """
        return read_with_ids(self._table, version=version, names=names)

    def changes(
        self, start: End, end: End | None = None, *, beyond_latest: Outside | None = None
    ) -> DataFrame:
        """The change feed of a range, with the ids of its rows.

        Args:
            start: as for `Table.changes.read`.
            end: as for `Table.changes.read`.
            beyond_latest: as for `Table.changes.read`.

        Raises:
            FeedError: the range can't be read.
            UsageError: rows are not tracked.

        Example:
            >>> lake.table("stock").row_tracking.changes(1, 4).show()  # doctest: +SKIP
        """
        return read_row_changes(self._table, start, end, beyond_latest=beyond_latest)

    def history(
        self, *, key: Any = None, row_id: int | None = None, start: int | None = None
    ) -> RowHistory:
        """Everything that happened to one row.

        Args:
            key: the row's key: a value, or a dict of column and value.
            row_id: the row's id, instead of a key.
            start: the first version to look at; by default the first that can be read.

        Raises:
            UsageError: neither or both are given, or rows are not tracked.

        Example:
            >>> lake.table("stock").row_tracking.history(key={"id": 7})  # doctest: +SKIP
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
        """One row's history in words, and how far it can be told; the lake stays as it is.

        Args:
            key: a value of the one declared key column, or JSON `{"column": value}`; by default
                the row that changed last.
            enable: switch row tracking on, where it is off.

        Raises:
            UsageError: the key is none, or names a column that is not there.

        Example:
            >>> lake.table("stock").row_tracking.report("bolt").events  # doctest: +SKIP
        """
        return report_row(self._table, key, enable=enable)
