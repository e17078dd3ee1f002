"""A receipt for each operation: what was read and written, and the proof that no row changed.

It is put down before the commit, and the commit's note names it. So whoever comes after a crash
knows from the table's own log whether an operation was committed; if not, the files that it has
written are nobody's, and are deleted.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.names import TableName
from mirrorlake.storage import Storage

FORMAT = 1
PARTITION, MERGE = "partition", "merge"
ABANDONED = -1
_NOTE = "partitioning"
_KEEP_SECONDS = 30 * 86_400
# Where no lock says so, an operation is taken for dead after this time only.
_PATIENCE_SECONDS = 86_400


@dataclass(frozen=True)
class Receipt:
    """One operation.

    Attributes:
        id: the commit's note holds it.
        kind: `partition` makes homogeneous files, `merge` puts those of one partition together.
        at: when the operation began, ISO-8601 UTC.
        table_id: the table's own id, which one made in its place has not.
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


def new_id() -> str:
    """An id that sorts by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"


def commit_metadata(operation: str) -> str:
    """What a commit's userMetadata says of its operation."""
    return json.dumps({"mirrorlake": _NOTE, "operation": operation})


def write_receipt(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Puts a receipt down, in place of an earlier state of it."""
    storage.write_json(_path(table, receipt.id), {"format": FORMAT, **asdict(receipt)})


def read_receipts(storage: Storage, table: TableName) -> tuple[Receipt, ...]:
    """The operations of the last 30 days, the oldest first."""
    names = [entry.name for entry in storage.list(_folder(table)).files]
    documents = (storage.read_json(f"{_folder(table)}/{name}") for name in names)
    return tuple(map(_receipt, filter(None, documents)))


def recover(storage: Storage, table: TableName, *, locked: bool) -> tuple[Receipt, ...]:
    """Finds out what became of operations that were cut off, and cleans up after them.

    Args:
        storage: the lake's files.
        table: which table.
        locked: whether no other process can be at work on it.

    Returns:
        The receipts that changed; version -1 says that the operation never was.
    """
    open_ones, old = [], []
    for receipt in read_receipts(storage, table):
        age = time.time() - datetime.fromisoformat(receipt.at).timestamp()
        if receipt.version is not None and age > _KEEP_SECONDS:
            old.append(receipt)
        elif receipt.version is None:
            open_ones.append((receipt, locked or age > _PATIENCE_SECONDS))
    for receipt in old:
        storage.delete(_path(table, receipt.id))
    settled = (_settle(storage, table, receipt, is_over) for receipt, is_over in open_ones)
    return tuple(receipt for receipt in settled if receipt is not None)


def delete_files(storage: Storage, table: TableName, receipt: Receipt) -> None:
    """Deletes what an operation wrote that was never committed."""
    for path in receipt.files_out:
        storage.delete(f"{table.table_path}/{unquote(path)}")


def _settle(storage: Storage, table: TableName, receipt: Receipt, is_over: bool) -> Receipt | None:
    known = versions(storage, table.table_path)
    after = [version for version in known if version > receipt.read_version]
    found = _find(storage, table, receipt.id, after)
    if found is None:
        # With a gap in the log its commit may have been there.
        whole = after == list(
            range(receipt.read_version + 1, receipt.read_version + 1 + len(after))
        )
        if not is_over or not whole:
            return None
        delete_files(storage, table, receipt)
    done = replace(receipt, version=ABANDONED if found is None else found)
    write_receipt(storage, table, done)
    return done


def _find(
    storage: Storage, table: TableName, operation: str, candidates: Iterable[int]
) -> int | None:
    for version in candidates:
        note = read_commit_info(storage, table.table_path, version).get("userMetadata") or ""
        if operation in note:
            return version
    return None


def _folder(table: TableName) -> str:
    return f"{table.partitioning_path}/receipts"


def _path(table: TableName, operation: str) -> str:
    return f"{_folder(table)}/{operation}.json"


def _receipt(document: dict[str, Any]) -> Receipt:
    found = {key: value for key, value in document.items() if key != "format"}
    for name in ("files_in", "files_out"):
        found[name] = tuple(found[name])
    return Receipt(**found)
