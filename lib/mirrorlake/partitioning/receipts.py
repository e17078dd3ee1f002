"""A receipt for each operation: what was read and written, and the proof that no row changed.

It is written before the commit, and the commit's metadata names it. So the next process knows after
a crash, from the table's own log, whether an operation was committed; if not, the files that it
wrote belong to no version, and are deleted. On an object store the operation may only have been
slow, and go on: a commit of no rows fences it off first, which Delta takes for a conflict.

Replaced files stay for as long as the table keeps removed files, for readers of older versions;
then they go by `vacuum`, which also keeps what frames and feeds need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Row
from pyspark.sql import functions as F

from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import BusyError, ConflictError, RewriteError
from mirrorlake.history.vacuum import vacuum_table
from mirrorlake.history.versions import FILE_RETENTION, retention
from mirrorlake.names import TableName
from mirrorlake.notices import noop
from mirrorlake.partitioning.groups import Groups, KeyColumns, numbered
from mirrorlake.partitioning.policy import to_micros
from mirrorlake.spark.jvm import Add, DeltaTransaction, RowActions, transaction
from mirrorlake.spark.rewrite import hash_sums, uncommitted, whole_hash
from mirrorlake.spark.sql import quote
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept

FORMAT = 1
PARTITION, MERGE = "partition", "merge"
ABANDONED = -1
_KEEP = timedelta(days=30)
_TRIES = 5
_TASK = "__mirrorlake_task"


@dataclass(frozen=True)
class Dropped:
    """What was, or would be, dropped.

    Attributes:
        table: which table.
        files, rows, size: what goes; bytes as stored.
        version: the commit; None for a dry run, or if nothing was old enough.
    """

    table: str
    files: int
    rows: int
    size: int
    version: int | None

    def __repr__(self) -> str:
        verb = "would drop" if self.version is None else "dropped"
        return f"{self.table}: {verb} {self.files} files with {self.rows:,} rows"


@dataclass(frozen=True)
class Receipt:
    """One operation.

    Attributes:
        id: the commit's note holds it.
        kind: `partition` makes homogeneous files, `merge` puts those of one partition together.
        at: when the operation began, ISO-8601 UTC.
        table_id: the table's own id, which a table made in its place does not have.
        fingerprint: the policy's, as in the files' tags.
        read_version: the version that was read.
        rows: rows in, and as many out.
        checksum: of all rows with their ids, in any order; the same for both sides.
        files_in, files_out: paths as the log has them.
        bytes_in, bytes_out: their sizes.
        partitions: how many partitions the new files make.
        outlier_rows: rows that went to files of their own.
        seconds: from the choice of files to the receipt.
        version: the commit; None while nobody knows, -1 if there was none.
    """

    id: str
    kind: str
    at: str
    table_id: str
    fingerprint: str
    read_version: int
    rows: int
    checksum: str
    files_in: tuple[str, ...]
    files_out: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    partitions: int
    outlier_rows: int
    seconds: float
    version: int | None = None

    def __repr__(self) -> str:
        return (
            f"version {self.version}: {len(self.files_in)} files of {self.bytes_in:,} bytes became"
            f" {len(self.files_out)} of {self.bytes_out:,}, {self.rows:,} rows in"
            f" {self.partitions} partitions"
        )

    def as_dict(self) -> dict[str, Any]:
        """The receipt without the files' names."""
        found = asdict(self)
        return found | {"files_in": len(self.files_in), "files_out": len(self.files_out)}


def write_receipt(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Writes a receipt, in place of an earlier state of it."""
    storage.write_json(_path(table, receipt.id), {"format": FORMAT, **asdict(receipt)})


def read_receipts(storage: Storage, table: TableName) -> tuple[Receipt, ...]:
    """The operations of the last 30 days, the oldest first.

    Raises:
        FormatError: a receipt is of a newer format.
    """
    names = [entry.name for entry in storage.list(_folder(table)).files]
    documents = (read_kept(storage, f"{_folder(table)}/{name}", FORMAT) for name in names)
    return tuple(map(_receipt, filter(None, documents)))


def recover(
    storage: Storage, table: TableName, fence_off: Callable[[Receipt], None] = noop
) -> None:
    """Finds out what became of operations that were cut off, and cleans up after them.

    A receipt's version is then the commit, or -1 if the operation was never committed. The caller
    holds the table's lease.

    Args:
        storage: the lake's files.
        table: which table.
        fence_off: called on an object store, before anything is deleted; see `fence_off`.
    """
    for receipt in read_receipts(storage, table):
        age = datetime.now(timezone.utc) - datetime.fromisoformat(receipt.at)
        if receipt.version is None:
            if storage.local is None:
                fence_off(receipt)
            _settle(storage, table, receipt)
        elif age > _KEEP:
            storage.delete(_path(table, receipt.id))


def heed_fence(txn: DeltaTransaction, storage: Storage, operation: str, table: TableName) -> None:
    """Lets a transaction fail if its operation is fenced off before it commits; see `recover`.

    Args:
        txn: the operation's transaction.
        storage: the lake's files; on a local disk a lock says who is at work.
        operation: its id.
        table: which table, for the message.

    Raises:
        BusyError: it is fenced off already: another process has cleaned up after it.
    """
    if storage.local is None and txn.has_seen(operation, 1):
        raise BusyError(
            f"Another process has taken over the partitioning of {table}.",
            hint="nothing is lost: it goes on from there.",
        )


def fence_off(table: TableHandle, receipt: Receipt) -> None:
    """Makes sure that an operation which has not committed by now never will.

    Raises:
        BusyError: other writers of the table were quicker each time.
    """
    note = json.dumps({"mirrorlake": "partitioning", "fenced": receipt.id})
    for _ in range(_TRIES):
        with transaction(table.spark, table.path, note=note) as txn:
            if txn.has_seen(receipt.id, 1):
                return
            with suppress(ConflictError):
                none = RowActions()
                txn.commit_exchange(none, none, updated=0, app_id=receipt.id, number=1)
                return
    raise BusyError(
        f"Other writers of {table.name} were quicker {_TRIES} times.", hint="try again."
    )


def delete_files(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Deletes what an operation wrote that was never committed."""
    for path in receipt.files_out:
        storage.delete(f"{table.table_path}/{unquote(path)}")


def _settle(storage: Storage, table: TableName, receipt: Receipt) -> None:
    start = receipt.read_version + 1
    after = [version for version in versions(storage, table.table_path) if version >= start]
    for version in after:
        note = read_commit_info(storage, table.table_path, version).get("userMetadata") or ""
        if receipt.id in note and "fenced" not in note:
            write_receipt(storage, table, replace(receipt, version=version))
            return
    # With a gap in the log its commit may have been there.
    if after == list(range(start, start + len(after))):
        delete_files(storage, table, receipt)
        write_receipt(storage, table, replace(receipt, version=ABANDONED))


def _folder(table: TableName) -> str:
    return f"{table.partitioning_path}/receipts"


def _path(table: TableName, operation: str) -> str:
    return f"{_folder(table)}/{operation}.json"


def _receipt(document: dict[str, Any]) -> Receipt:
    found = {key: value for key, value in document.items() if key != "format"}
    for name in ("files_in", "files_out"):
        found[name] = tuple(found[name])
    return Receipt(**found)


def clean_up(table: TableHandle) -> int | None:
    """Vacuums a table if files that operations replaced are out of its retention.

    Returns:
        When it is to be done next, microseconds since 1970; None for never.

    Raises:
        FormatError: the receipts, or the note of the last time, are of a newer format.
    """
    path, now = f"{table.name.partitioning_path}/cleaned.json", datetime.now(timezone.utc)
    last = (read_kept(table.storage, path, FORMAT) or {}).get("at", "")
    keep = retention(table.snapshot(), FILE_RETENTION) + timedelta(minutes=1)
    # The operations whose replaced files no vacuum has removed yet, and when each falls due.
    due = {
        one.at: datetime.fromisoformat(one.at) + keep
        for one in read_receipts(table.storage, table.name)
        if (one.version or ABANDONED) >= 0 and one.at > last
    }
    over = [at for at, when in due.items() if when < now]
    if over:
        vacuum_table(table, apply=True)
        table.storage.write_json(path, {"at": max(over)})
    return min((to_micros(when) for when in due.values() if when >= now), default=None)


def prove_files(
    txn: DeltaTransaction,
    adds: Sequence[Add],
    keys: KeyColumns,
    groups: Groups,
    *,
    derived: str | None = None,
) -> dict[str, Row]:
    """Reads new files back, in one job.

    Args:
        txn: the transaction that wrote them.
        adds: the files.
        keys: the policy's.
        groups: of the operation.
        derived: the column that operations fill, which the proof leaves out.

    Returns:
        By the file's name what it holds: `rows`, `low` and `high` as the sums of both halves of
        their hashes, `task` as the number of their group, and `least` and `most` of the range key
        with NULL as the reference, in microseconds since 1970.

    Raises:
        RewriteError: a file has rows of two partitions, or none at all.
    """
    if not adds:
        return {}
    rows = txn.rows(uncommitted(adds))
    hashed = whole_hash(rows, row_ids=txn.tracks_rows, without=derived)
    columns = [F.col(quote(column)) for column in keys.policy.columns]
    file, whole = f"{_TASK}_file", f"{_TASK}_hash"
    narrow = rows.select(*columns, F.col("_metadata.file_name").alias(file), hashed.alias(whole))
    placed = numbered(narrow, keys, groups, _TASK)
    timestamp = keys.timestamp()
    found = placed.groupBy(file).agg(
        *hash_sums(F.col(whole)),
        F.min(_TASK).alias("task"),
        F.max(_TASK).alias("last_task"),
        F.min(timestamp).alias("least"),
        F.max(timestamp).alias("most"),
    )
    proofs = {unquote(line[file]): line for line in found.collect()}
    if mixed := [name for name, line in proofs.items() if line["task"] != line["last_task"]]:
        raise RewriteError(
            f"{mixed[0]} has rows of more than one partition.",
            hint="nothing was committed; please report the table's schema.",
        )
    if missing := [add["path"] for add in adds if file_name(add["path"]) not in proofs]:
        raise RewriteError(f"{missing[0]} can't be read back.", hint="nothing was committed.")
    return proofs


def logged_rows(adds: Sequence[Add]) -> int | None:
    """The rows of files as the log counts them; None if it does not of each."""
    counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in adds]
    masked = sum((add.get("deletionVector") or {}).get("cardinality", 0) for add in adds)
    return None if None in counts else sum(counts) - masked


def file_name(path: str) -> str:
    """A file's own name, without the folders of Delta's partitions."""
    return unquote(path).rpartition("/")[2]
