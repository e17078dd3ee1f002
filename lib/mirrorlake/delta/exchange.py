"""Replace rows of a table in one commit: old rows are marked or removed, new files add new rows.

The caller chooses the rows. `mark_rows` marks old rows in deletion vectors, so that no existing
file is rewritten. For tables without deletion vectors, `remove_touched` removes the files with old
rows, and the caller adds the other rows of these files again.

`RowUpdate` replaces rows by their new states. It does what MERGE does, including the change feed
and the row ids, for rows that the caller has already found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.key_search import KeySearch
from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import (
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    Snapshot,
    physical_names,
    read_snapshot,
)
from mirrorlake.names import quote
from mirrorlake.spark.jvm import (
    DeletedRows,
    DeltaTransaction,
    RowActions,
    can_exchange,
    transaction,
)
from mirrorlake.spark.sql import literal
from mirrorlake.storage.files import Storage

FILE, ROW = "__mirrorlake_file", "__mirrorlake_row"
"""The columns that `placed_rows` adds: a row's file and its position in the file."""
ACTION = "__mirrorlake_action"
"""The column with the action on a key's rows: one of the following."""
DELETE = "delete"  # remove the key's rows
REPLACE = "replace"  # replace the key's rows; insert this row if none exists
REPLACE_ONLY = "replace_only"  # replace the key's rows; do nothing if none exists
APPEND = "append"  # insert this row in any case
_ROWS_A_FILE = 50_000  # minimum; several files are written in parallel
_COPIED_ROWS = 500_000  # a file with more is rewritten in parts
# A row's place in its task, which is the same in each scan of the same files.
_PLACE = f"(monotonically_increasing_id() & {2**33 - 1})"
_ADD = ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector")
_MOST_SCANNED = 1_000  # files: each one takes a call of the JVM
_PADDED = "__CHAR_VARCHAR_TYPE_STRING"  # in the schema: Spark pads values as it reads them
_READ_BY = ("id", "schemaString", "partitionColumns", "configuration")  # how files are read
_IDS = ("baseRowId", "defaultRowCommitVersion", "clusteringProvider")
# Otherwise each row is copied into Delta's struct of all hidden columns, with its paths.
INLINED = {"spark.sql.optimizer.collapseProjectAlwaysInline": "true"}
"""A setting of sessions that rewrite rows of a Delta table."""
UPDATE_SETTINGS = {
    # By default a small file counts as 4 MiB, which puts two large files into one task.
    "spark.sql.files.openCostInBytes": str(128 * 2**10),
    # Cached rows are read once or twice, within seconds.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Rows of the table and of its feed go to different folders. One writer would sort them.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    **INLINED,
}
"""The settings of the session in which a `RowUpdate` is committed."""
_SHUFFLES, FEW_SHUFFLES = "spark.sql.shuffle.partitions", 8
# The supported writer features: others may require values or actions that are not written here.
_FEATURES = frozenset(
    (
        "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection", "clustering",
        "columnMapping", "deletionVectors", "domainMetadata", "inCommitTimestamp", "invariants",
        "rowTracking", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck",
        "variantType",
    )
)  # fmt: skip
_COMPUTED = ("delta.generationExpression", "delta.identity.start")  # before writer features
_CHANGE_TYPE = "_change_type"
_KIND, _NEW = "__mirrorlake_kind", "__mirrorlake_new_"
_BEFORE, _AFTER, _DELETED, _INSERTED = "update_preimage", "update_postimage", "delete", "insert"
_TABLE = ""  # the kind of rows that are written to the table, not to its feed


def count_rows(files: Sequence[Action]) -> int:
    """Return the rows of live files without deleted ones; a file without statistics counts as 0."""
    return sum(max(int(add["records"]), 0) for add in files)


def count_deleted(files: Sequence[Action]) -> int:
    """Return the rows of live files that deletion vectors delete."""
    return sum(int((add.get("deletionVector") or {}).get("cardinality", 0)) for add in files)


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
    # Without a row index, only whole files can be removed, for which any number is sufficient.
    index = "_metadata.row_index" if txn.has_row_index else "0L"
    places = [f"_metadata.file_path AS {quote(FILE)}", f"{index} AS {quote(ROW)}"]
    rows = txn.rows(plain, keep_ids=keep_ids)
    return rows.selectExpr("*", *places)


def version_rows(
    session: SparkSession, storage: Storage, folder: str, version: int, files: Sequence[Action]
) -> tuple[DataFrame, KeySearch] | None:
    """Return the rows of a version, as a scan of its files that is planned without a job.

    In each query, Delta would read the log again with a job of its own.

    Args:
        session: the session of the scan.
        storage: the lake's files.
        folder: the folder of the table within the lake.
        version: the version.
        files: the result of `live_files` for the version.

    Returns:
        The rows, and a search for some of them. None if the version has more than 1,000 files, CHAR
        or VARCHAR columns, or other metadata than the newest version, or if this version of Delta
        has no such scan.
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
        rows = txn.rows([_plain(add) for add in files])
        by_id = snapshot.properties.get("delta.columnMapping.mode") == "id"
        names = {} if by_id else physical_names(snapshot.metadata)
        return rows, KeySearch(storage, folder, files, names, rows.schema)


def copied_rows(txn: DeltaTransaction, files: Sequence[Action]) -> tuple[DataFrame, int]:
    """Return all rows of files, with their row ids, to write them to other files.

    Spark reads a file of usual size in one task. If there are more cores than large files, several
    tasks read the parts of such a file, and each writes a file.

    Args:
        txn: the transaction, with which the files are registered.
        files: the files.

    Returns:
        The rows, and the number of parts of all large files.
    """
    rows = txn.rows(files, keep_ids=True)
    large = [count for add in files if (count := count_rows([add])) > _COPIED_ROWS]
    cores = txn.session.sparkContext.defaultParallelism
    parts = min(-(-max(large) // _COPIED_ROWS), cores // len(large)) if large else 1
    if parts > 1:
        step = -(-max(large) // parts)
        shares = [
            rows.where(f"least({_PLACE} DIV {step}, {parts - 1}) = {n}") for n in range(parts)
        ]
        rows = reduce(DataFrame.union, shares)
    return rows, max(1, parts) * len(large)


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


def few_tasks(session: SparkSession, most: int = FEW_SHUFFLES) -> dict[str, str]:
    """Return settings for few rows, for which adaptive execution costs more than it saves.

    Args:
        session: the session that gets the settings.
        most: the greatest number of shuffle partitions.
    """
    shuffles = min(most, int(session.conf.get(_SHUFFLES) or most))
    return {_SHUFFLES: str(shuffles), "spark.sql.adaptive.enabled": "false"}


def new_names(columns: Iterable[str]) -> dict[str, str]:
    """Return a name for the new value of each column, which differs from all names of columns."""
    return {name: f"{_NEW}{place}" for place, name in enumerate(columns)}


def few_files(rows: DataFrame, expected: int) -> DataFrame:
    """Return rows in fewer partitions if they are few, so that they become few files.

    Args:
        rows: the rows.
        expected: their approximate number.
    """
    return rows.coalesce(max(1, -(-expected // _ROWS_A_FILE)))


def exchange_rows(
    txn: DeltaTransaction,
    mark: Callable[[], RowActions],
    added: DataFrame | None,
    *,
    copied: int = 0,
    once: tuple[str, int] | None = None,
) -> None:
    """Commit deleted and new rows together.

    Args:
        txn: the transaction.
        mark: returns the deleted rows; it is called while Spark plans and writes the new rows.
        added: the new rows, as accepted by `DeltaTransaction.write_new`; None if there are none.
        copied: how many rows of `added` are unchanged rows of removed files.
        once: an application and the number of its transaction, which can be committed only once.

    Raises:
        ConflictError: another writer changed what was read, or has committed this number.
    """
    written = RowActions()
    with ThreadPoolExecutor(1) as pool:
        marked = pool.submit(mark)
        if added is not None:
            written = txn.write_new(added)
            written = written._replace(rows=written.rows - copied)
    deleted = marked.result()
    if once or deleted.actions or written.actions:
        txn.commit_exchange(deleted, written, once=once)


def can_update(snapshot: Snapshot) -> bool:
    """Check whether `RowUpdate` supports a table; if not, use MERGE."""
    if snapshot.properties.get("delta.appendOnly", "false").lower() == "true":
        return False
    # Delta can't write change rows for names with a backtick; MERGE raises the error.
    if any("`" in name for name in snapshot.schema):
        return False
    if any(name in snapshot.metadata["schemaString"] for name in (_PADDED, *_COMPUTED)):
        return False
    return set(snapshot.writer_features) <= _FEATURES


class RowUpdate:
    """An update of a table's rows, in one commit that also has the change feed and the row ids.

    Args:
        txn: the transaction.
        snapshot: the snapshot that the transaction reads; `can_update` accepts it.
        files: the files whose rows may change.
    """

    def __init__(self, txn: DeltaTransaction, snapshot: Snapshot, files: Sequence[Action]) -> None:
        self._txn = txn
        self._files = files
        self.columns = tuple(snapshot.schema)
        self._names = physical_names(snapshot.metadata)
        self._has_feed = snapshot.has_feed
        self._ids = [
            snapshot.properties[name]
            for name in (ROW_ID_COLUMN, ROW_VERSION_COLUMN)
            if txn.tracks_rows
        ]

    def rows(self) -> DataFrame:
        """Return the rows of the files, with their row ids, as `placed_rows` does."""
        return placed_rows(self._txn, self._files, keep_ids=True)

    def key_search(self, storage: Storage, folder: str, key: str) -> KeySearch | None:
        """Return a search for `rows` by their key, or None if Spark must search them.

        Args:
            storage: the lake's files.
            folder: the folder of the table within the lake.
            key: the column of the keys.
        """
        rows = self.rows()  # also registers the files, which `mark_rows` requires
        search = KeySearch(
            storage=storage,
            folder=folder,
            files=self._files,
            names=self._names,
            schema=rows.schema,
            ids=tuple(self._ids),
            place=(FILE, ROW),
        )
        return search if search.is_possible(self._txn.session, key) else None

    def commit(
        self,
        found: DataFrame,
        *,
        value: Callable[[str], str],
        unchanged: Callable[[DataFrame], DataFrame],
        rewrites: bool,
        inserts: bool,
        expected: int,
        once: tuple[str, int] | None = None,
    ) -> None:
        """Commit changes that are joined with the rows that they change.

        Any change of another writer since the transaction began is a conflict.

        Args:
            found: one row for each pair of a change and a row of `rows`: the columns of both.
                Without a row these are NULL. A change has an `ACTION`. The rows are evaluated
                twice.
            value: returns the SQL expression of a column's new value.
            unchanged: returns those rows of the table, of the given ones, that do not change.
            rewrites: whether to rewrite the files with changed rows, instead of marking the rows.
            inserts: whether changes may insert rows.
            expected: the approximate number of changes.
            once: as for `exchange_rows`.

        Raises:
            ConflictError: another writer changed the table, or has committed this number.
        """
        self._txn.read_all()
        marked, copied = DeletedRows(), 0
        parts: list[DataFrame] = []
        is_old, updated = F.col(ROW).isNotNull(), F.col(ACTION) != DELETE
        if self._files and rewrites:
            marked, paths = remove_touched(self._txn, found.where(is_old), updated)
            removed = set(paths)
            touched = [add for add in self._files if add["path"] in removed]
            copied = count_rows(touched) - marked.rows
            parts = [self._copied(touched, unchanged)] if copied else []
        elif self._files:
            marked = mark_rows(self._txn, found.where(is_old), updated)
        if inserts or marked.updated or (marked.rows and self._has_feed):
            written = self._written(found, value, fed=marked.rows > 0)
            parts.append(few_files(written, expected))
        added = reduce(DataFrame.unionByName, parts) if parts else None
        # Coalescing changes the order of tasks. Long ones must start first, so they keep theirs.
        if added is not None and 0 < copied <= _COPIED_ROWS:
            added = few_files(added, expected + copied)
        exchange_rows(self._txn, marked.store, added, copied=copied, once=once)

    def _copied(
        self, files: Sequence[Action], unchanged: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        """Return the unchanged rows of files, with the columns of `_written`."""
        rows, _ = copied_rows(self._txn, files)
        names = [*self.columns, *self._ids]
        no_change = F.lit(None).cast("string").alias(_CHANGE_TYPE)
        return unchanged(rows).select(*map(quote, names), no_change)

    def _written(self, found: DataFrame, value: Callable[[str], str], *, fed: bool) -> DataFrame:
        """Return the rows to write: new rows of the table, and those of its feed.

        The values are SQL texts, because Spark parses them in one step.

        Args:
            found: see `commit`.
            value: returns the SQL expression of a column's new value.
            fed: whether the feed needs inserted rows; a commit that only inserts has none.
        """
        feed = self._has_feed
        deleted = _texts([_DELETED] if feed else [])
        updated = _texts([_BEFORE, _AFTER, _TABLE] if feed else [_TABLE])
        inserted = _texts([_INSERTED, _TABLE] if feed and fed else [_TABLE])
        kinds = (
            f"CASE WHEN {quote(ROW)} IS NOT NULL"
            f" THEN IF({ACTION} = '{DELETE}', {deleted}, {updated})"
            f" WHEN {ACTION} IN ('{REPLACE}', '{APPEND}') THEN {inserted} END"
        )
        is_old = f"{_KIND} IN ('{_BEFORE}', '{_DELETED}')"
        made = [
            F.expr(f"IF({is_old}, {quote(name)}, {value(name)}) AS {quote(name)}")
            for name in self.columns
        ]
        # An updated row keeps its id, and gets the commit's version.
        kept = {name: f"IF({_KIND} = '{_TABLE}', {quote(name)}, NULL)" for name in self._ids[:1]}
        for name in self._ids:
            number = F.expr(kept.get(name, "CAST(NULL AS BIGINT)"))
            # Delta identifies the columns of row ids by their metadata.
            made.append(number.alias(name, metadata=found.schema[name].metadata))
        change_type = F.expr(f"IF({_KIND} <> '{_TABLE}', {_KIND}, NULL) AS {_CHANGE_TYPE}")
        return found.selectExpr("*", f"explode({kinds}) AS {_KIND}").select(*made, change_type)


def update_any(txn: DeltaTransaction, path: str) -> RowUpdate | None:
    """Return an update of all files of the table at a path, or None if only MERGE can update it."""
    parent, _, folder = path.rstrip("/").rpartition("/")
    storage = Storage(parent)
    snapshot = read_snapshot(storage, folder, txn.version)
    if snapshot is None or not can_update(snapshot):
        return None
    files = live_files(storage, folder, txn.version)
    if any("numRecords" not in (add.get("stats") or "") for add in files):
        return None
    return RowUpdate(txn, snapshot, files)


def _texts(kinds: Sequence[str]) -> str:
    """Return an array of texts as SQL."""
    return f"CAST(array({', '.join(map(literal, kinds))}) AS ARRAY<STRING>)"


def _plain(add: Action) -> Action:
    """Return an `add` as commits contain it, even if it was read from a checkpoint."""
    found = {name: add[name] for name in (*_ADD, *_IDS) if add.get(name) is not None}
    return found | {"tags": dict(add.get("tags") or {}), "dataChange": True}
