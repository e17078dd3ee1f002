"""Replace rows of a table in one commit: old rows are marked or removed, new files add new rows.

The caller chooses the rows. `mark_rows` marks old rows in deletion vectors, so that no existing
file is rewritten. For tables without deletion vectors, `remove_touched` removes the files with old
rows, and the caller adds the other rows of these files again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import Column, DataFrame, SparkSession

from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.names import quote
from mirrorlake.spark.jvm import (
    DeletedRows,
    DeltaTransaction,
    RowActions,
    can_exchange,
    transaction,
)
from mirrorlake.storage.files import Storage

FILE, ROW = "__mirrorlake_file", "__mirrorlake_row"
"""The columns that `placed_rows` adds: a row's file and its position in the file."""
MOST_DELETED = 0.2
"""The accepted share of deleted rows in a table's files."""
FEW_DELETED = 10_000
"""The number of deleted rows that is always accepted."""
_ROWS_A_FILE = 50_000  # minimum; several files are written in parallel
_ADD = ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector")
_MOST_SCANNED = 1_000  # files: each one takes a call of the JVM
_PADDED = "__CHAR_VARCHAR_TYPE_STRING"  # in the schema: Spark pads values as it reads them
_READ_BY = ("id", "schemaString", "partitionColumns", "configuration")  # how files are read
_IDS = ("baseRowId", "defaultRowCommitVersion", "clusteringProvider")


def count_rows(files: Sequence[Action]) -> int:
    """Return the rows of live files without deleted ones; a file without statistics counts as 0."""
    return sum(max(int(add["records"]), 0) for add in files)


def has_too_many_deleted(files: Sequence[Action]) -> bool:
    """Return whether live files should be rewritten without their deleted rows.

    The limit is 20 % of all rows; up to 10,000 deleted rows are always accepted.
    """
    deleted = sum(int((add.get("deletionVector") or {}).get("cardinality", 0)) for add in files)
    return deleted > max(FEW_DELETED, MOST_DELETED * (deleted + count_rows(files)))


def placed_rows(
    txn: DeltaTransaction, files: Sequence[Action], *, keep_ids: bool = False
) -> DataFrame:
    """Return the rows of files with their positions, in the columns `FILE` and `ROW`.

    The files are registered with the transaction.

    Args:
        txn: the transaction.
        files: the result of `live_files` for the transaction's version; only rows of these files
            can be deleted.
        keep_ids: as for `DeltaTransaction.rows`.
    """
    plain = [_plain(add) for add in files]
    txn.know(plain)
    places = [f"_metadata.file_path AS {quote(FILE)}", f"_metadata.row_index AS {quote(ROW)}"]
    return txn.rows(plain, keep_ids=keep_ids).selectExpr("*", *places)


def version_rows(
    session: SparkSession, storage: Storage, folder: str, version: int, files: Sequence[Action]
) -> DataFrame | None:
    """Return the rows of a version, as a scan of its files that is planned without a job.

    In each query, Delta would read the log again with a job of its own.

    Args:
        session: the session of the scan.
        storage: the lake's files.
        folder: the folder of the table within the lake.
        version: the version.
        files: the result of `live_files` for the version.

    Returns:
        The rows; None if the version has more than 1,000 files, CHAR or VARCHAR columns, or other
        metadata than the newest version, or if this version of Delta has no such scan.
    """
    snapshot = read_snapshot(storage, folder, version)
    if snapshot is None or len(files) > _MOST_SCANNED or not can_exchange(session):
        return None
    if _PADDED in snapshot.metadata["schemaString"]:
        return None
    with transaction(session, storage.path(folder), own=False) as txn:
        newest = txn.metadata()
        if any(newest[key] != snapshot.metadata[key] for key in _READ_BY):
            return None
        return txn.rows([_plain(add) for add in files])


def mark_rows(txn: DeltaTransaction, deleted_rows: DataFrame, updated: Column) -> DeletedRows:
    """Mark rows as deleted, by deletion vectors that `exchange_rows` writes and commits.

    Args:
        txn: the transaction, with which the rows' files are registered.
        deleted_rows: the positions of the rows: `FILE` and `ROW`; may be empty.
        updated: whether a row has a new state, so that `DeletedRows.updated` counts it.
    """
    return txn.mark_deleted(_places(deleted_rows, updated))


def remove_touched(
    txn: DeltaTransaction, deleted_rows: DataFrame, updated: Column
) -> tuple[DeletedRows, list[str]]:
    """Remove the files that contain rows to delete; the arguments are those of `mark_rows`.

    Returns:
        The rows, and the paths of the files, whose other rows `exchange_rows` must add again.
    """
    return txn.remove_touched(_places(deleted_rows, updated))


def _places(deleted_rows: DataFrame, updated: Column) -> DataFrame:
    """Return the positions of rows in the form that a transaction takes."""
    places = deleted_rows.select(quote(FILE), quote(ROW), updated.cast("int"))
    return places.toDF("file_path", "row_index", "updated")


def know_files(txn: DeltaTransaction, files: Sequence[Action]) -> bool:
    """Register all files of the transaction's version; return False if they are too many."""
    if len(files) > _MOST_SCANNED:
        return False
    txn.know([_plain(add) for add in files])
    return True


def exchange_rows(
    txn: DeltaTransaction,
    mark: Callable[[], RowActions],
    added: DataFrame | None,
    *,
    expected: int,
    copied: int = 0,
    app_id: str,
    number: int,
) -> None:
    """Commit deleted and new rows together, once for each number of an application.

    Args:
        txn: the transaction.
        mark: returns the deleted rows; it is called while Spark plans and writes the new rows.
        added: the new rows, as accepted by `DeltaTransaction.write_new`; None if there are none.
        expected: the approximate number of new rows; few rows become one file.
        copied: how many rows of `added` are unchanged rows of removed files.
        app_id: the application.
        number: the transaction's number.

    Raises:
        ConflictError: another writer changed what was read, or has committed this number.
    """
    written = RowActions()
    with ThreadPoolExecutor(1) as pool:
        marked = pool.submit(mark)
        if added is not None:
            tasks = max(1, -(-(expected + copied) // _ROWS_A_FILE))
            written = txn.write_new(added.coalesce(tasks))
            written = written._replace(rows=written.rows - copied)
    txn.commit_exchange(marked.result(), written, app_id=app_id, number=number)


def _plain(add: Action) -> Action:
    """Return an `add` as commits contain it, even if it was read from a checkpoint."""
    found = {name: add[name] for name in (*_ADD, *_IDS) if add.get(name) is not None}
    return found | {"tags": dict(add.get("tags") or {}), "dataChange": True}
