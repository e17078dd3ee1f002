"""One row's values through all versions, by its id: also if its key changes, or it is restored.

The cost follows the row, not the table: of all files that commits brought and took, only those are
read that may hold the row, by the statistics of the keys, by the numbers of the rows, and within
the files by the statistics of the ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.actions import DataFile, FileChange, FileHistory, file_changes, live_files
from mirrorlake.delta.commits import read_versions
from mirrorlake.delta.snapshot import Snapshot, physical_name
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.changes import in_order, key_columns
from mirrorlake.feed.doctor import FeedFinding
from mirrorlake.feed.schema import RESERVED
from mirrorlake.results import Result, TextTable
from mirrorlake.rows.changes import (
    ID_NAMES,
    ROW,
    ROW_ID,
    as_changes,
    files_of,
    missing_versions,
    read_file_rows,
)
from mirrorlake.rows.tracking import read_tracking
from mirrorlake.spark.sql import quote
from mirrorlake.storage.files import Storage

Key = Mapping[str, Any]
_MOST = 1000  # ids of one key; what has more is not a key


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
