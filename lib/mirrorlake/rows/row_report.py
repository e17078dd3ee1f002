"""One row's history in words, and how far it can be told; nothing of it stays in the lake.

`read_row_history` lists the files that it reads in a small log. Here that log lies in a folder of
this machine while it is needed, so that a lake on a read-only disk can be looked at too; where
Spark's workers are other machines it lies in the lake, and is removed at the end.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.report import COLUMNS, as_texts, short, tell_changes
from mirrorlake.history.diff import is_tracked
from mirrorlake.mirror.properties import declared_keys
from mirrorlake.results import Result, TextTable
from mirrorlake.rows.changes import ID_NAMES, ROW_FILES, read_with_ids
from mirrorlake.rows.row_history import read_row_history
from mirrorlake.rows.tracking import FeatureChange, Tracking, change_tracking, read_tracking
from mirrorlake.spark.jvm import has_gateway
from mirrorlake.spark.sql import query_errors, quote
from mirrorlake.storage.files import Storage

_MOST = 100
_NO_EVENTS = TextTable(COLUMNS, ())


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
    rows = shown.limit(_MOST + 1).collect()
    there = [key for key in keys if key in columns]
    told = tell_changes([dict(zip(columns, row, strict=True)) for row in rows], keys=there)
    return TextTable(told.columns, told.rows[:_MOST], more=len(rows) > _MOST)


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
