"""Exchanges rows of a table in one commit: some go by deletion vectors, others come in new files.

What goes and what comes is the caller's business. The cost is the reading of the files that may
have the rows, and the writing of the new ones; no file is written again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from mirrorlake.delta.log_files import Action
from mirrorlake.spark.jvm import DeltaTransaction, RowActions
from mirrorlake.spark.sql import quote

FILE, ROW = "__mirrorlake_file", "__mirrorlake_row"
"""Where a row lies: the columns that `placed_rows` adds."""
MOST_DELETED = 0.2
"""Of all rows of a table's files, as many may be deleted rows."""
FEW_DELETED = 10_000
"""As many may be deleted rows in any case."""
LARGE_ROWS = 200_000
"""Of so many rows some are worth a test of all, before their places are made."""
_ROWS_A_FILE = 50_000  # at least: more files are written side by side
_ADD = ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector")
_IDS = ("baseRowId", "defaultRowCommitVersion", "clusteringProvider")


def count_rows(files: Sequence[Action]) -> int:
    """The rows of live files without deleted ones; files without statistics count as empty."""
    return sum(max(int(add["records"]), 0) for add in files)


def has_too_many_deleted(files: Sequence[Action]) -> bool:
    """Whether live files are to be written again without their deleted rows; few don't matter."""
    deleted = sum(int((add.get("deletionVector") or {}).get("cardinality", 0)) for add in files)
    return deleted > max(FEW_DELETED, MOST_DELETED * (deleted + count_rows(files)))


def placed_rows(
    txn: DeltaTransaction, files: Sequence[Action], *, keep_ids: bool = False
) -> DataFrame:
    """The rows of files with their places, `FILE` and `ROW`; the transaction knows the files then.

    Args:
        txn: the transaction.
        files: as `live_files` gives them, of its version; only from these can rows be taken.
        keep_ids: as for `DeltaTransaction.rows`.
    """
    plain = [_plain(add) for add in files]
    txn.know(plain)
    places = [f"_metadata.file_path AS {quote(FILE)}", f"_metadata.row_index AS {quote(ROW)}"]
    return txn.rows(plain, keep_ids=keep_ids).selectExpr("*", *places)


def mark_rows(txn: DeltaTransaction, gone: DataFrame) -> RowActions:
    """Takes rows out of their files, by deletion vectors that `exchange_rows` commits.

    Args:
        txn: the transaction, which knows the files with the rows.
        gone: the places of the rows: `FILE` and `ROW`; there may be none.
    """
    return txn.mark_deleted(gone.select(quote(FILE), quote(ROW)).toDF("file_path", "row_index"))


def exchange_rows(
    txn: DeltaTransaction,
    marked: RowActions,
    come: DataFrame | None,
    *,
    expected: int,
    updated: int,
    app_id: str,
    number: int,
) -> None:
    """Commits that rows go and others come, once for each number of an application.

    Args:
        txn: the transaction.
        marked: the rows that go, as `mark_rows` gave them.
        come: the rows that come, as `DeltaTransaction.write_new` takes them; None if none comes.
        expected: about how many rows are written: few become one file.
        updated: how many rows are one row before and after.
        app_id: the application.
        number: the transaction's.

    Raises:
        ConflictError: another writer touched what was read, or has committed this number.
    """
    written = RowActions()
    if come is not None:
        written = txn.write_new(come.coalesce(max(1, -(-expected // _ROWS_A_FILE))))
    txn.commit_exchange(marked, written, updated=updated, app_id=app_id, number=number)


def _plain(add: Action) -> Action:
    """An `add` as commits have it, also if it was read from a checkpoint."""
    found = {name: add[name] for name in (*_ADD, *_IDS) if add.get(name) is not None}
    return found | {"tags": dict(add.get("tags") or {}), "dataChange": True}
