"""Run one operation on a table: rewrite mixed files, prove that no row changed, write a receipt.

`partition` rewrites the oldest files that are not partitioned, within the policy's limits. `merge`
combines small files of one partition, and never files of different partitions. Both make one
commit, which changes no data. If another writer has changed one of the files meanwhile, the
operation starts again from the newest version.

The receipt is written before the commit, and the commit's metadata names it. After a crash, the
next process finds out from the table's log whether the operation was committed. If not, no version
contains its files, and the process deletes them. On an object store, the operation may only be
slow, and may still try to commit. Therefore the process first makes an empty commit. Delta then
rejects the operation's commit as a conflict.

Replaced files stay for the table's retention period, for readers of older versions. Then `vacuum`
deletes them, except those that frames and change data feeds need.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from mirrorlake.delta.actions import Places
from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.delta.snapshot import FILE_RETENTION, physical_names
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_interval
from mirrorlake.errors import BusyError, ConflictError, RewriteError
from mirrorlake.history.vacuum import vacuum_table
from mirrorlake.layout.vorder import SORTED_TAG
from mirrorlake.names import TableName, quote
from mirrorlake.notices import noop
from mirrorlake.partitioning.groups import (
    ARRIVED,
    CREATED,
    PROVIDER,
    STORED,
    Groups,
    KeyColumns,
    add_task_numbers,
    arrival,
    find_groups,
    groups_of_tags,
    is_left,
    partition_tags,
    partitioned_bins,
    pending_files,
    physical_row_count,
    row_count,
    small_files,
)
from mirrorlake.partitioning.policy import Policy, Setting, to_micros
from mirrorlake.partitioning.statistics import file_name, newest_files
from mirrorlake.partitioning.store import read_setting
from mirrorlake.results import counted
from mirrorlake.spark.jvm import Add, DeltaTransaction, RowActions, transaction
from mirrorlake.spark.older import spread
from mirrorlake.spark.rewrite import (
    BACKGROUND_CONFS,
    Bounds,
    Written,
    as_pair,
    compare_sides,
    hash_sums,
    logged_rows,
    rewrite_files,
    uncommitted,
    whole_hash,
)
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.lease import Lease, is_held, only_one

_FORMAT = 1
PARTITION, MERGE = "partition", "merge"
ABANDONED = -1
_KEEP = timedelta(days=30)
_TRIES = 5
_THREADS = 16
MOST_FILES = 1_000
_PATIENCE = 1.0  # seconds to wait for the lock
_TASK, _HASH = "__mirrorlake_task", "__mirrorlake_hash"


@dataclass(frozen=True)
class Dropped:
    """The files that `drop_older_than` dropped, or would drop.

    Attributes:
        table: the table's name.
        files, rows, size: the numbers of files, of their rows, and of their stored bytes.
        version: the version that the commit added; None for a dry run, or if no file was old
            enough.
    """

    table: str
    files: int
    rows: int
    size: int
    version: int | None

    def __repr__(self) -> str:
        verb = "would drop" if self.version is None else "dropped"
        files, rows = counted(self.files, "file"), counted(self.rows, "row")
        return f"{self.table}: {verb} {files} with {rows}"


@dataclass(frozen=True)
class Receipt:
    """The record of one operation.

    Attributes:
        id: the operation's id, which the commit's note contains.
        kind: `partition` writes homogeneous files, `merge` combines files of one partition.
        at: when the operation began, as ISO 8601 in UTC.
        table_id: the table's id. A table that is created in its place has another id.
        fingerprint: the policy's fingerprint, as in the files' tags.
        read_version: the version that was read.
        rows: the number of rows read, which is also the number written.
        checksum: a checksum of all rows with their ids. It does not depend on the order of the
            rows, so it is the same for the rows read and the rows written.
        files_in, files_out: the paths of the files read and written, as in the log.
        bytes_in, bytes_out: the sizes of these files.
        partitions: the number of partitions in the new files.
        outlier_rows: the number of rows in files of outliers.
        seconds: the time from choosing files to writing the receipt.
        version: the version that the commit added; None while it is unknown, -1 if nothing was
            committed.
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
            f"version {self.version}: {counted(len(self.files_in), 'file')} of"
            f" {self.bytes_in:,} bytes became {len(self.files_out):,} of {self.bytes_out:,},"
            f" {counted(self.rows, 'row')} in {counted(self.partitions, 'partition')}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the receipt with the number of files instead of their names."""
        found = asdict(self)
        return found | {"files_in": len(self.files_in), "files_out": len(self.files_out)}


def write_receipt(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Write a receipt, replacing an earlier state of it."""
    storage.write_json(_path(table, receipt.id), {"format": _FORMAT, **asdict(receipt)})


def read_receipts(storage: Storage, table: TableName) -> tuple[Receipt, ...]:
    """Return the receipts of the last 30 days; the oldest comes first.

    Raises:
        FormatError: a receipt has a newer format.
    """
    names = [entry.name for entry in storage.list(_folder(table)).files]
    documents = (read_kept(storage, f"{_folder(table)}/{name}", _FORMAT) for name in names)
    return tuple(map(_receipt, filter(None, documents)))


def recover(
    storage: Storage, table: TableName, fence_off: Callable[[Receipt], None] = noop
) -> None:
    """Recover interrupted operations: record their commits, or delete their files.

    Afterwards, each receipt contains the version of its commit, or -1 if the operation was never
    committed. The caller must hold the table's lease.

    Args:
        storage: the lake's files.
        table: the table's name.
        fence_off: a function that is called on an object store before anything is deleted; see
            `fence_off`.
    """
    for receipt in read_receipts(storage, table):
        age = datetime.now(timezone.utc) - datetime.fromisoformat(receipt.at)
        if receipt.version is None:
            if storage.local is None:
                fence_off(receipt)
            _settle(storage, table, receipt)
        elif age > _KEEP:
            storage.delete(_path(table, receipt.id))


def check_fence(txn: DeltaTransaction, storage: Storage, operation: str, table: TableName) -> None:
    """Make a transaction fail if another process fences off its operation; see `recover`.

    Args:
        txn: the operation's transaction.
        storage: the lake's files; on a local disk a lock excludes other processes.
        operation: the operation's id.
        table: the table's name, for the message.

    Raises:
        BusyError: another process has already fenced off the operation and deleted its files.
    """
    if storage.local is None and txn.has_seen(operation, 1):
        raise BusyError(
            f"Another process has taken over the partitioning of {table}.",
            hint="no action is needed: the other process continues the work.",
        )


def fence_off(table: TableHandle, receipt: Receipt) -> None:
    """Make sure that an operation that has not committed yet can never commit.

    Raises:
        BusyError: in each of five attempts, another writer committed first.
    """
    note = json.dumps({"mirrorlake": "partitioning", "fenced": receipt.id})
    for _ in range(_TRIES):
        with transaction(table.spark, table.path, note=note) as txn:
            if txn.has_seen(receipt.id, 1):
                return
            with suppress(ConflictError):
                none = RowActions()
                txn.commit_exchange(none, none, once=(receipt.id, 1))
                return
    raise BusyError(
        f"Other writers of {table.name} committed first {_TRIES} times in a row.", hint="try again."
    )


def delete_files(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Delete the files of an operation that was never committed."""
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
    # If the log has a gap, the commit may have been in it.
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
    """Vacuum a table if the retention period of files that operations replaced has passed.

    Returns:
        When the next vacuum is due, in microseconds since 1970; None if none is due.

    Raises:
        FormatError: the receipts, or the note of the last vacuum, have a newer format.
    """
    path, now = f"{table.name.partitioning_path}/cleaned.json", datetime.now(timezone.utc)
    last = (read_kept(table.storage, path, _FORMAT) or {}).get("at", "")
    keep = parse_interval(table.snapshot().retention(FILE_RETENTION)) + timedelta(minutes=1)
    # The end of the retention of each operation's replaced files, unless already vacuumed.
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
    """Read new files back, in one job, and check that each contains one group.

    Args:
        txn: the transaction that wrote them.
        adds: the files.
        keys: the policy's columns.
        groups: the operation's groups.
        derived: the column that operations fill. The check ignores it.

    Returns:
        For each file name: `rows`, the number of rows; `low` and `high`, the sums of both halves of
        the rows' hashes; `task`, the number of the group; `least` and `most`, the smallest and
        greatest value of the range key in microseconds since 1970 (NULL counts as the reference).

    Raises:
        RewriteError: a file has rows of two partitions, or no rows.
    """
    if not adds:
        return {}
    rows = txn.rows(uncommitted(adds))
    hashed = whole_hash(rows, row_ids=txn.tracks_rows, without=derived)
    columns = [F.col(quote(column)) for column in keys.policy.columns]
    file, whole = f"{_TASK}_file", f"{_TASK}_hash"
    narrow = rows.select(*columns, F.col("_metadata.file_name").alias(file), hashed.alias(whole))
    placed = add_task_numbers(narrow, keys, groups, _TASK)
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
            f"{mixed[0]} has rows of more than one partition, so nothing was committed.",
            hint="report this with the table's schema.",
        )
    if missing := [add["path"] for add in adds if file_name(add["path"]) not in proofs]:
        raise RewriteError(
            f"{missing[0]} can't be read back, so nothing was committed.", hint="try again."
        )
    return proofs


class Step(Enum):
    """The step that an operation has just completed; for progress displays and tests."""

    RECOVERED = "settled"
    CHOSEN = "chosen"
    COUNTED = "counted"
    WRITTEN = "written"
    PROVED = "proved"
    RECORDED = "recorded"
    COMMITTED = "committed"
    DONE = "done"


StepListener = Callable[[TableName, Step], None]


@dataclass(frozen=True)
class PlannedOperation:
    """An operation that a dry run found.

    Attributes:
        kind: `partition` or `merge`.
        files, rows, size: the numbers of files, rows and stored bytes that it would read. The
            policy limits their uncompressed bytes.
    """

    kind: str
    files: int
    rows: int
    size: int

    def __repr__(self) -> str:
        files, rows = counted(self.files, "file"), counted(self.rows, "row")
        return f"would {self.kind} {files} of {self.size:,} bytes with {rows}"


def table_lock(storage: Storage, name: TableName) -> AbstractContextManager[Lease]:
    """Return a lock on a table that only one process can hold; it raises like `only_one`."""
    return only_one(storage, _lock_path(name), _PATIENCE, f"partitioning of {name}")


def is_at_work(storage: Storage, name: TableName) -> bool:
    """Return whether a process is partitioning the table now."""
    return is_held(storage, _lock_path(name))


def _lock_path(name: TableName) -> str:
    return f"{name.partitioning_path}/lock"


def run_operation(
    table: TableHandle, *, kind: str = PARTITION, on_step: StepListener = noop
) -> Receipt | None:
    """Run one operation on a table.

    Args:
        table: the table; its session must be a classic one.
        kind: `partition` or `merge`.
        on_step: a function that is called after each step.

    Returns:
        The receipt of the commit, or None without a policy or without files to process.

    Raises:
        BusyError: another process is partitioning this table.
        ConflictError: in each attempt, another writer committed first.
        RewriteError: the new files do not contain the same rows as the old ones, so nothing was
            committed.
        UsageError: the policy no longer fits the table, or the session has no JVM gateway.
    """
    storage, name = table.storage, table.name
    with table_lock(storage, name) as lease:
        recover(storage, name, partial(fence_off, table))
        on_step(name, Step.RECOVERED)
        setting = read_setting(storage, name)
        if setting is None:
            return None
        job = _Job(table, setting, kind, on_step, lease)
        commit = rewrite_files(
            table.spark,
            table.path,
            lambda files: _candidates(files, setting, kind),
            job.write,
            note=json.dumps({"mirrorlake": "partitioning", "operation": job.id}),
            bounds=_bounds(table, setting.policy, kind),
            confs=BACKGROUND_CONFS,
        )
        if commit is None or job.receipt is None:
            return None
        on_step(name, Step.COMMITTED)
        done = replace(job.receipt, version=commit.version)
        write_receipt(storage, name, done)
        on_step(name, Step.DONE)
        return done


def plan_operations(table: TableHandle) -> tuple[PlannedOperation, ...]:
    """Return the operations that the current files need, and write nothing.

    The result does not contain merges of files that these operations would write.

    Raises:
        UsageError: the policy no longer fits the table.
    """
    setting = read_setting(table.storage, table.name)
    if setting is None:
        return ()
    files, policy = newest_files(table), setting.policy
    found: dict[str, list[PlannedOperation]] = {PARTITION: [], MERGE: []}
    for kind, planned in found.items():
        bounds = _bounds(table, policy, kind)
        listed = _candidates(files, setting, kind).select(
            "path", "size", physical_row_count().alias("logged"), row_count().alias("rows")
        )
        taken = Bounds(0, 0, 0)
        for file, size in _with_sizes(listed, bounds):
            more = Bounds(taken.files + 1, taken.rows + file["logged"], taken.size + size)
            fits = more.rows <= bounds.rows and more.size <= bounds.size
            if planned and fits and more.files <= bounds.files:
                taken, last = more, planned.pop()
            else:
                taken, last = Bounds(1, file["logged"], size), PlannedOperation(kind, 0, 0, 0)
            rows, stored = last.rows + file["rows"], last.size + file["size"]
            planned.append(PlannedOperation(kind, taken.files, rows, stored))
    # The last operations wait while they have fewer rows than the policy's minimum.
    waiting, planned = 0, found[PARTITION]
    while planned and (waiting := waiting + planned[-1].rows) < policy.min_rows:
        planned.pop()
    return (*found[PARTITION], *found[MERGE])


def _bounds(table: TableHandle, policy: Policy, kind: str) -> Bounds:
    measure = partial(original_sizes, table) if kind == PARTITION else None
    return Bounds(MOST_FILES, policy.row_limit, policy.size_limit, measure)


def original_sizes(table: TableHandle, paths: Sequence[str]) -> Iterator[int]:
    """Yield the uncompressed bytes of files, from their footers.

    An unreadable file counts as 0: the operation that reads it reports the error.
    """
    places = Places(table.storage, table.name.table_path)

    def size(path: str) -> int:
        own, name = places.place(unquote(path))
        try:
            with own.open(name) as source:
                footer = pq.read_metadata(source)
        except (OSError, ValueError):
            return 0
        return sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))

    if table.storage.local is not None:
        yield from map(size, paths)  # only as many as are needed
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(size, paths)


def _with_sizes(files: DataFrame, bounds: Bounds) -> Iterator[tuple[Row, int]]:
    """Yield files with their sizes that count; the driver does not keep the whole list."""
    rest = files.toLocalIterator()
    while some := list(islice(rest, MOST_FILES)):
        yield from zip(some, bounds.sizes(some), strict=True)


def _candidates(files: DataFrame, setting: Setting, kind: str) -> DataFrame:
    return (small_files if kind == MERGE else pending_files)(files, setting)


def _sort_columns(schema: StructType, policy: Policy) -> tuple[str, ...]:
    """Return the columns to sort a file by: the keys, then the table's first timestamp column.

    If the rows of a key are in the order of time, they compress best, and a filter on the time
    skips pages.
    """
    kinds = (TimestampType, TimestampNTZType)
    times = [field.name for field in schema.fields if isinstance(field.dataType, kinds)]
    return policy.columns if policy.range is not None else (*policy.columns, *times[:1])


class _Job:
    """One operation on one table. Each attempt writes all new files again."""

    def __init__(
        self, table: TableHandle, setting: Setting, kind: str, on_step: StepListener, lease: Lease
    ) -> None:
        self.id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
        policy = self._policy = setting.policy
        self._table, self._setting, self._kind, self._on_step = table, setting, kind, on_step
        self._lease, self._began = lease, time.monotonic()
        self._at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        snapshot = table.snapshot()
        self._table_id = snapshot.metadata["id"]
        with_zone = policy.range is None or snapshot.schema[policy.range.column] == "timestamp"
        self._keys = KeyColumns(policy, with_zone=with_zone)
        self._sorted = physical_names(snapshot.metadata)[policy.columns[0]]
        features = snapshot.writer_features
        # On clustered tables, plain OPTIMIZE skips files with this field; elsewhere it has no use.
        self._provider = {"clusteringProvider": PROVIDER} if "clustering" in features else {}
        self.receipt: Receipt | None = None

    def write(self, txn: DeltaTransaction, chosen: Sequence[Add]) -> Written:
        """Write files with one partition each, check them, and write the receipt."""
        storage, name = self._table.storage, self._table.name
        self._on_step(name, Step.CHOSEN)
        check_fence(txn, storage, self.id, name)
        if self.receipt is not None:
            # Another writer won, so no version contains the files of the previous attempt.
            delete_files(storage, name, self.receipt)
        column = self._setting.bucket_column
        sources = txn.rows(chosen)
        fingerprint = self._setting.fingerprint
        if self._kind == PARTITION:
            done = partitioned_bins(txn.files(), fingerprint)
            are_left = all(map(is_left, chosen))
            groups = find_groups(sources, self._keys, done, are_left=are_left)
        else:
            groups = groups_of_tags(chosen)
        self._on_step(name, Step.COUNTED)
        hashed = whole_hash(sources, row_ids=txn.tracks_rows, without=column)
        hashed_rows = txn.rows(chosen, keep_ids=True).withColumn(_HASH, hashed)
        rows_in, seen = txn.watched(hashed_rows, hash_sums(F.col(_HASH)))
        placed = rows_in.drop(_HASH)
        if column is not None:
            placed = placed.withColumn(column, self._keys.bucket())
        # One task per group, and its rows in order.
        placed = spread(add_task_numbers(placed, self._keys, groups, _TASK), groups.tasks, _TASK)
        order = map(quote, _sort_columns(sources.schema, self._policy))
        written = txn.write(placed.sortWithinPartitions(*order).drop(_TASK), checked=True)
        self._on_step(name, Step.WRITTEN)
        proofs = prove_files(txn, written, self._keys, groups, derived=column)
        sums = [sum(proof[what] for proof in proofs.values()) for what in ("rows", "low", "high")]
        rows, checksum = as_pair(sums)
        if as_pair(seen()) != (rows, checksum) or logged_rows(chosen) not in (None, rows):
            # Neither is a proof of a difference: Spark sums the rows of a repeated task twice, and
            # statistics of other writers may be wrong. So the old files are read in another job.
            compare_sides(as_pair(sources.agg(*hash_sums(hashed)).first()), (rows, checksum))
        adds = []
        for add in written:
            proof = proofs[file_name(add["path"])]
            found = partition_tags(proof["task"], groups, self._policy, fingerprint)
            least, most = arrival(chosen, found)
            # A new file keeps the age of its source files, for policies that select by age.
            aged = add | {"modificationTime": most // 1000}
            arrived = {ARRIVED: f"{least}/{most}"}
            if groups.is_rest(proof["task"]):  # still unpartitioned
                adds.append(aged | {"tags": arrived})
                continue
            found |= arrived | {SORTED_TAG: self._sorted}
            if column is not None:
                found[STORED] = column
            if self._policy.range is not None and self._policy.range.override_creation_time:
                found[CREATED] = f"{proof['least']}/{proof['most']}"
            adds.append(aged | {"tags": found} | self._provider)
        self._on_step(name, Step.PROVED)
        self.receipt = Receipt(
            id=self.id,
            kind=self._kind,
            at=self._at,
            table_id=self._table_id,
            fingerprint=fingerprint,
            read_version=txn.version,
            rows=rows,
            checksum=checksum,
            files_in=tuple(add["path"] for add in chosen),
            files_out=tuple(add["path"] for add in adds),
            bytes_in=sum(add["size"] for add in chosen),
            bytes_out=sum(add["size"] for add in adds),
            partitions=len({(g.bucket, g.bin) for g in groups.groups}),
            outlier_rows=sum(p["rows"] for p in proofs.values() if groups.is_outlier(p["task"])),
            seconds=round(time.monotonic() - self._began, 3),
        )
        write_receipt(storage, name, self.receipt)
        self._on_step(name, Step.RECORDED)
        self._lease.confirm()
        return Written(chosen, adds, proof=(rows, checksum))
