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
from mirrorlake.mirror.options import KEYS_PROPERTY
from mirrorlake.mirror.state import INITIALIZED, REPLICATING, TableState
from mirrorlake.names import STATE, TableName, file_number
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUARANTINE = f"{STATE}/quarantine"
_COLUMNS = (
    "`schema` string, `table` string, `file` string, `number` long, `row` long, `column` string,"
    " `reason` string, `content` string, `incarnation` string, `at` timestamp"
)
_BACK = 50  # versions to look through for the mirror's own last commit


def read_note(storage: Storage, table: TableName, version: int) -> dict[str, Any]:
    """The note of one version; empty if another writer made it, or the log no longer has it."""
    info = read_commit_info(storage, table.table_path, version)
    note = parse_note(info.get("userMetadata"))
    if "incarnation" not in note:
        return {}
    stamp = from_milliseconds(info.get("timestamp", 0))
    return {**note, "version": version, "committed": stamp.isoformat(timespec="milliseconds")}


def last_note(
    storage: Storage, table: TableName, snapshot: Snapshot | None, incarnation: str | None = None
) -> dict[str, Any]:
    """The newest note in the last versions, of one incarnation or of any; else empty."""
    newest = snapshot.version if snapshot else -1
    for version in range(newest, max(-1, newest - _BACK), -1):
        note = read_note(storage, table, version)
        if note and incarnation in (None, note["incarnation"]):
            return note
    return {}


def committed_version(
    storage: Storage, table: TableName, before: int, note: dict[str, Any]
) -> int | None:
    """The version that a commit with this note has just made; only what is new is looked at.

    Args:
        storage: the lake's files.
        table: which table.
        before: the version before the commit; -1 for none.
        note: what the commit carried.
    """
    ours = (note["incarnation"], note["last"])
    for version in count(before + 1):
        found = read_note(storage, table, version)
        if (found.get("incarnation"), found.get("last")) == ours:
            return version
        if not found and not read_commit_info(storage, table.table_path, version):
            break  # the log's end, or a commit that says nothing of itself
    newest = read_snapshot(storage, table.table_path)
    return last_note(storage, table, newest, note["incarnation"]).get("version")


def with_note(state: TableState, note: dict[str, Any]) -> TableState:
    """A table's state by its newest note; an empty one says that nothing was applied."""
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
    """The table as it is, if a mirror made it."""
    snapshot = read_snapshot(storage, table.table_path)
    return snapshot if snapshot and KEYS_PROPERTY in snapshot.properties else None


def rebuild_states(storage: Storage, tables: list[TableName]) -> dict[str, TableState]:
    """States from the tables' own logs, where the kept ones are lost."""
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
        sha256: of its bytes; empty where it never came, and where its plan has the store's tag.
        rows: rows by operation.
        rejected: rows that were left out.
        skipped: why nothing of the file was applied; None if it was.
        version: the Delta version that holds it; None if it is only planned, or if the table's
            log no longer reaches back to it.
        published: when it was published, ISO-8601 UTC; None if it never came.
        applied: when it was applied, ISO-8601 UTC; None as for `version`.
        lag_seconds: from the one to the other.
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
    """A table's files in the order of their numbers."""

    table: str
    entries: tuple[LedgerEntry, ...]

    def __repr__(self) -> str:
        return f"{self.table}: {len(self.entries)} files planned or applied"

    def document(self) -> dict[str, Any]:
        """Columns and rows, as `--json` prints them."""
        return TextTable.of(self.entries, tuple(LedgerEntry.__dataclass_fields__)).document()

    def shown(self) -> TextTable:
        """One row for each file."""
        columns = ("number", "file", "rows", "rejected", "skipped", "version", "lag_seconds")
        rows = tuple(
            (
                entry.number,
                entry.file,
                ", ".join(f"{n} {operation}" for operation, n in entry.rows.items()),
                entry.rejected,
                entry.skipped,
                entry.version,
                entry.lag_seconds,
            )
            for entry in self.entries
        )
        return TextTable(columns, rows)


def read_ledger(storage: Storage, table: TableName, *, last: int | None = None) -> Ledger:
    """The ledger of the folder's incarnation; reads its plans and the commits in the log.

    Args:
        storage: the lake's files.
        table: which table.
        last: only the newest plans, so many of them; what is read of the log goes back as far.
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


def put_into_quarantine(spark: SparkSession, batch: Batch, *, at: str) -> None:
    """Appends a batch's bad rows and files, once: the commit carries the batch's last number.

    Args:
        spark: the running session.
        batch: the files, those without anything bad included.
        at: when the batch was planned, ISO-8601; the same at every try.
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
            fault = {"row": error.row, "column": error.column, "reason": error.message}
            yield known | fault | {"content": None}
        for reject in file.rejects:
            yield known | asdict(reject)


def count_quarantined(storage: Storage) -> dict[str, int]:
    """How many rows and files were passed over, by a table's full name; starts no Spark."""
    snapshot, places = read_snapshot(storage, QUARANTINE), Places(storage, QUARANTINE)
    found: Counter[str] = Counter()
    for file in live_files(storage, QUARANTINE, snapshot.version) if snapshot else ():
        where, path = places.place(unquote(file["path"]))
        with where.open(path) as source:
            rows = pq.ParquetFile(source).read(columns=["schema", "table"])
        # Somebody may delete what is dealt with.
        rows = without_deleted(rows, places.place, file.get("deletionVector"))
        counted = rows.group_by(["schema", "table"]).aggregate([([], "count_all")])
        for row in counted.to_pylist():  # a row a table
            found[".".join(filter(None, (row["schema"], row["table"])))] += row["count_all"]
    return dict(found)


def read_quarantine(spark: SparkSession, storage: Storage, table: TableName | None) -> DataFrame:
    """The quarantine's rows, of one table or of all; none if nothing was ever passed over."""
    if read_snapshot(storage, QUARANTINE) is None:
        return spark.createDataFrame([], _COLUMNS)
    rows = spark.sql(f"SELECT * FROM {delta_name(storage.path(QUARANTINE))}")
    if table is not None:
        of_schema = rows["schema"].isNull() if not table.schema else rows["schema"] == table.schema
        rows = rows.where(of_schema & (rows["table"] == table.name))
    return rows.orderBy("schema", "table", "number", "row")
