"""Report what became of each published file: the ledger, and the quarantine (dead letters).

The ledger is computed from plans and commits and is not stored, so it can't disagree with them. The
quarantine is a Delta table of skipped rows and files with reasons. Only its rows need Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from mirrorlake.delta.actions import Places, live_files, without_deleted
from mirrorlake.delta.commits import parse_note, read_commit_info, versions
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.delta.timestamps import from_milliseconds
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.metadata import Identity, read_identity
from mirrorlake.mirror.next_batch import Batch, find_plan, staging
from mirrorlake.mirror.options import is_mirrored
from mirrorlake.mirror.state import INITIALIZED, REPLICATING, TableState
from mirrorlake.names import STATE, TableName, file_number
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUARANTINE = f"{STATE}/quarantine"
_COLUMNS = (
    "`schema` string, `table` string, `file` string, `number` long, `row` long, `column` string,"
    " `reason` string, `content` string, `incarnation` string, `at` timestamp"
)
_BACK = 50  # versions to search for the mirror's last commit


def read_note(storage: Storage, table: TableName, version: int) -> dict[str, Any]:
    """Return the mirror's commit metadata of a version; empty for other or missing commits."""
    info = read_commit_info(storage, table.table_path, version)
    note = parse_note(info.get("userMetadata"))
    if "incarnation" not in note:
        return {}
    stamp = from_milliseconds(info.get("timestamp", 0))
    return {**note, "version": version, "committed": stamp.isoformat(timespec="milliseconds")}


def last_note(
    storage: Storage, table: TableName, snapshot: Snapshot | None, incarnation: str | None = None
) -> dict[str, Any]:
    """Return the newest commit metadata of an incarnation, or of any; empty without one."""
    newest = snapshot.version if snapshot else -1
    for version in range(newest, max(-1, newest - _BACK), -1):
        note = read_note(storage, table, version)
        if note and incarnation in (None, note["incarnation"]):
            return note
    return {}


def committed_version(
    storage: Storage, table: TableName, before: int, note: dict[str, Any]
) -> int | None:
    """Return the version of a commit that was just made; read only versions after `before`.

    Args:
        storage: the lake's files.
        table: the table's name.
        before: the version before the commit; -1 if the table did not exist.
        note: the metadata of the commit.
    """
    ours = (note["incarnation"], note["last"])
    for version in count(before + 1):
        found = read_note(storage, table, version)
        if (found.get("incarnation"), found.get("last")) == ours:
            return version
        if not found and not read_commit_info(storage, table.table_path, version):
            break  # the end of the log, or a commit without information
    newest = read_snapshot(storage, table.table_path)
    return last_note(storage, table, newest, note["incarnation"]).get("version")


def with_note(state: TableState, note: dict[str, Any]) -> TableState:
    """Return a state updated from the newest commit metadata; empty means nothing was applied."""
    return replace(
        state,
        state=REPLICATING if note.get("last") else INITIALIZED,
        incarnation=note.get("incarnation"),
        last_file=note.get("last", 0),
        version=note.get("version"),
        rows=note.get("total_rows", 0),
        bytes=note.get("total_bytes", 0),
        synced=note.get("synced"),
    )


def read_mirrored(storage: Storage, table: TableName) -> Snapshot | None:
    """Return the snapshot of a table if a mirror created it, else `None`."""
    snapshot = read_snapshot(storage, table.table_path)
    return snapshot if snapshot and is_mirrored(snapshot.properties) else None


def rebuild_states(storage: Storage, tables: list[TableName]) -> dict[str, TableState]:
    """Rebuild the states of tables from their Delta logs."""
    states = {}
    for table in tables:
        if snapshot := read_mirrored(storage, table):
            note = last_note(storage, table, snapshot)
            states[table.folder] = with_note(TableState(table.schema, table.name), note)
    return states


@dataclass(frozen=True)
class LedgerEntry:
    """One file of a table's folder.

    Attributes:
        number: the number of the file.
        file: the name of the file.
        bytes: the size of the file.
        sha256: SHA-256 of its bytes; empty if it never arrived, or if the plan has its ETag only.
        rows: the number of rows per operation.
        rejected: the number of skipped rows.
        skipped: why the whole file was skipped; None if it was applied.
        version: the version that contains it; None if it is only planned, or if the log no longer
            has that version.
        published: when it was published, ISO-8601 UTC; None if it never arrived.
        applied: when it was applied, ISO-8601 UTC; None as for `version`.
        lag_seconds: the time from publication to application, in seconds.
    """

    number: int
    file: str
    bytes: int
    sha256: str
    rows: dict[str, int]
    rejected: int
    skipped: str | None
    version: int | None
    published: str | None
    applied: str | None
    lag_seconds: float | None


@dataclass(frozen=True)
class Ledger(Result):
    """The planned and applied files of a table, by number."""

    table: str
    entries: tuple[LedgerEntry, ...]

    def __repr__(self) -> str:
        return f"{self.table}: {counted(len(self.entries), 'file')} planned or applied"

    def document(self) -> dict[str, Any]:
        """Return the columns and rows that `--json` prints."""
        return TextTable.of(self.entries, tuple(LedgerEntry.__dataclass_fields__)).document()

    def shown(self) -> TextTable:
        """Return one row per file."""
        columns = ("number", "file", "rows", "rejected", "skipped", "version", "lag_seconds")
        rows = tuple(
            (
                entry.number,
                entry.file,
                ", ".join(f"{n} {operation}" for operation, n in entry.rows.items()),
                entry.rejected,
                entry.skipped,
                entry.version,
                None if entry.lag_seconds is None else Decimal(f"{entry.lag_seconds:.2f}"),
            )
            for entry in self.entries
        )
        return TextTable(columns, rows)


def read_ledger(storage: Storage, table: TableName, *, last: int | None = None) -> Ledger:
    """Return the ledger of the folder's incarnation, from its plans and the commits in the log.

    Args:
        storage: the lake's files.
        table: the table's name.
        last: the number of newest plans to read, with the commits since then; by default all.
    """
    identity = read_identity(storage, table)
    if identity is None:
        return Ledger(str(table), ())
    listed = storage.list(identity.plans).files
    firsts = (file_number(entry.name) for entry in (listed if last is None else listed[-last:]))
    found = (find_plan(storage, identity, first) for first in firsts if first is not None)
    plans = [plan for plan in found if plan is not None]
    oldest = plans[0].last if plans else 0
    notes: dict[int, dict[str, Any]] = {}
    for version in reversed(versions(storage, table.table_path)):
        note = read_note(storage, table, version)
        if note.get("incarnation") == identity.incarnation and "last" in note:
            notes.setdefault(note["last"], note)
            if last is not None and note["last"] <= oldest:
                break
    entries: list[LedgerEntry] = []
    for plan in plans:
        note = notes.get(plan.last, {})
        for number, file in enumerate(plan.files, plan.first):
            entries.append(
                LedgerEntry(
                    number,
                    file.name,
                    file.size,
                    file.sha256,
                    file.rows,
                    file.rejected,
                    file.skipped,
                    note.get("version"),
                    file.published,
                    note.get("committed"),
                    _lag(file.published, note.get("committed")),
                )
            )
    return Ledger(str(table), tuple(entries))


def _lag(published: str | None, applied: str | None) -> float | None:
    if published is None or applied is None:
        return None
    seconds = datetime.fromisoformat(applied) - datetime.fromisoformat(published)
    return max(0.0, round(seconds.total_seconds(), 3))


def write_quarantine(spark: SparkSession, batch: Batch, *, at: str) -> None:
    """Append a batch's bad rows and files to the quarantine exactly once.

    The commit carries the last number of the batch as `txnVersion`.

    Args:
        spark: the running session.
        batch: the batch, with valid files, too.
        at: when the batch was planned, ISO-8601; equal in every attempt.
    """
    from mirrorlake.spark.session import new_session

    identity, storage = batch.at.identity, batch.at.storage
    path = f"{staging(identity)}/quarantine.json"
    with storage.open_writer(path) as sink:
        for record in _records(identity, batch.facts, at):
            sink.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    rows = new_session(spark).read.schema(_COLUMNS).json(storage.path(path))
    (
        rows.write.format("delta")
        .options(txnAppId=identity.app_id, txnVersion=str(batch.last))
        .mode("append")
        .save(storage.path(QUARANTINE))
    )


def _records(identity: Identity, files: tuple[FileFacts, ...], at: str) -> Iterator[dict[str, Any]]:
    for file in files:
        known = {
            "schema": identity.table.schema,
            "table": identity.table.name,
            "file": file.name,
            "number": file.number,
            "incarnation": identity.incarnation,
            "at": at,
        }
        if error := file.skipped:
            details = {"row": error.row, "column": error.column, "reason": error.message}
            yield known | details | {"content": None}
        for reject in file.rejects:
            yield known | asdict(reject)


def count_quarantined(storage: Storage) -> dict[str, int]:
    """Count the skipped rows and files by full table name, without Spark."""
    snapshot, places = read_snapshot(storage, QUARANTINE), Places(storage, QUARANTINE)
    found: Counter[str] = Counter()
    for file in live_files(storage, QUARANTINE, snapshot.version) if snapshot else ():
        where, path = places.place(unquote(file["path"]))
        with where.open(path) as source:
            rows = pq.ParquetFile(source).read(columns=["schema", "table"])
        # Rows may be deleted after they were handled.
        rows = without_deleted(rows, places.place, file.get("deletionVector"))
        totals = rows.group_by(["schema", "table"]).aggregate([([], "count_all")])
        for row in totals.to_pylist():  # one row per table
            found[".".join(filter(None, (row["schema"], row["table"])))] += row["count_all"]
    return dict(found)


def read_quarantine(spark: SparkSession, storage: Storage, table: TableName | None) -> DataFrame:
    """Return the quarantine's rows of one table or of all; empty if nothing was ever skipped."""
    if read_snapshot(storage, QUARANTINE) is None:
        return spark.createDataFrame([], _COLUMNS)
    rows = spark.sql(f"SELECT * FROM {delta_name(storage.path(QUARANTINE))}")
    if table is not None:
        of_schema = rows["schema"].isNull() if not table.schema else rows["schema"] == table.schema
        rows = rows.where(of_schema & (rows["table"] == table.name))
    return rows.orderBy("schema", "table", "number", "row")
