"""The mirror's own transaction: a batch's cost is its changes, not the files that they touch.

The keys' rows are found once, with their places. Those that go are marked in deletion vectors,
those that come are written as new files, and one commit has both with the change feed of MERGE:
before and after of every update. Updated rows keep their ids. What it can't do is left to MERGE.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.exchange import (
    LARGE_ROWS,
    count_rows,
    exchange_rows,
    mark_rows,
    placed_rows,
)
from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import (
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    VECTORS,
    Snapshot,
    has_policy,
    physical_names,
    read_snapshot,
)
from mirrorlake.errors import OtherDeltaError
from mirrorlake.landing.metadata import Marker
from mirrorlake.mirror.batch import (
    ACTION,
    APPEND,
    DELETE,
    KEPT,
    REPLACE,
    Bounds,
    key_conditions,
    refused,
)
from mirrorlake.mirror.next_batch import Batch, Target
from mirrorlake.spark.jvm import (
    MOST_BROADCAST,
    DeltaTransaction,
    can_exchange,
    rows_among,
    transaction,
)
from mirrorlake.spark.sql import literal, quote

_REWRITE_SHARE = 0.25  # of the rows in the touched files
_REWRITE_BYTES = 16 * 2**20  # below it a commit costs more than the bytes do
_FEW_ROWS, _FEW_SHUFFLES = 150_000, 8
_SHUFFLES = "spark.sql.shuffle.partitions"
_SETTINGS = {
    # A table's rows and its feed's lie in folders of their own: else they are sorted by them.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # What is kept is read once or twice, within seconds.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # By default a small file counts as one of 4 MiB, and two large ones end up in one task.
    "spark.sql.files.openCostInBytes": str(128 * 2**10),
}
_BROADCAST_BYTES = 64 * 2**20
# Of a writer: any other may ask for values, or actions, that are not written here.
_FEATURES = frozenset(
    (
        "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection", "clustering",
        "columnMapping", "deletionVectors", "domainMetadata", "inCommitTimestamp", "invariants",
        "rowTracking", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck",
        "variantType",
    )
)  # fmt: skip
_CHANGE_TYPE = "_change_type"
_KIND, _NEW, _HIT = "__mirrorlake_kind", "__mirrorlake_new_", "__mirrorlake_hit_"
_BEFORE, _AFTER, _DELETED, _INSERTED = "update_preimage", "update_postimage", "delete", "insert"
_TABLE = ""  # the kind of a row that goes into the table itself
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_STEPS = 16  # of a table's keys, about
Limits = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The smallest, and the largest values of columns, as a file's statistics tell them."""


@dataclass(frozen=True)
class Changes:
    """A batch's collapsed changes.

    Attributes:
        rows: as `compact_changes` gives them.
        keys: the key columns in the table's spelling.
        unchanged: the columns that some update leaves as they are.
        bounds: of the keys, as far as they are known.
    """

    rows: DataFrame
    keys: tuple[str, ...]
    unchanged: tuple[str, ...]
    bounds: Bounds


def exchange_batch(session: SparkSession, changes: Changes, batch: Batch) -> bool:
    """Commits a batch by deletion vectors, if the table has them and it is the cheaper way.

    Returns:
        Whether the batch is committed, now or by an earlier try; if not, it is MERGE's.

    Raises:
        ConflictError: another writer changed rows meanwhile.
    """
    try:
        return _exchange(session, changes, batch)
    except OtherDeltaError:
        return False  # nothing is committed without the methods that commit


def _exchange(session: SparkSession, changes: Changes, batch: Batch) -> bool:
    at = batch.at
    has_vectors = VECTORS in batch.properties or bool(at.snapshot and at.snapshot.has_vectors)
    if not has_vectors or batch.target.evolved or not can_exchange(session):
        return False
    confs, note = _settings(session, batch), json.dumps(batch.note)
    with transaction(session, at.path, note=note, confs=confs, own=False) as txn:
        folder = at.identity.table.table_path
        snapshot = read_snapshot(at.storage, folder, txn.version)
        if snapshot is None or not _is_fit(snapshot, batch):
            return False
        if txn.has_seen(at.identity.app_id, batch.last):
            return True
        names = physical_names(snapshot.metadata)
        live = at.files.of(txn.version)
        limits, bounds = [file_limits(add) for add in live], changes.bounds
        told = zip(live, limits, strict=True)
        files = [add for add, known in told if may_match(known, bounds, names)]
        if is_rewrite_cheaper(files, batch.row_count):
            return False
        with _Exchange(txn, snapshot, changes, batch) as exchange:
            exchange.commit(files, wide_bounds(bounds, limits, names, batch.target))
    return True


def file_limits(add: Action) -> Limits:
    """What the statistics in a file's `add` tell; nothing where there are none."""
    stats = json.loads(add.get("stats") or "{}")
    return stats.get("minValues") or {}, stats.get("maxValues") or {}


def may_match(limits: Limits, bounds: Bounds, names: Mapping[str, str]) -> bool:
    """Whether a file of the table may have rows within the bounds, by its statistics.

    Args:
        limits: of the file.
        bounds: see `batch.key_bounds`.
        names: what the files call each column.
    """
    least_of, most_of = limits
    for key, (low, high) in bounds.items():
        least, most = least_of.get(names[key]), most_of.get(names[key])
        if least is None or most is None:
            continue
        # The log has days as ISO texts; of long texts bounds that are wide enough.
        first, last = (str(end) if isinstance(end, dt.date) else end for end in (low, high))
        if type(least) is type(most) is type(first) and (most < first or least > last):
            return False
    return True


def wide_bounds(
    bounds: Bounds, limits: Sequence[Limits], names: Mapping[str, str], target: Target
) -> Bounds:
    """Bounds that are the same for many batches: whole numbers lie at multiples of a large one.

    Spark compiles a query's code for each number in a filter; of these there are few.

    Args:
        bounds: see `batch.key_bounds`.
        limits: of the table's files.
        names: what the files call each column.
        target: the table's columns.
    """
    found = dict(bounds)
    whole = {key: bits for key in bounds if (bits := _BITS.get(target.columns[key]))}
    for key, bits in whole.items():
        low, high = bounds[key]
        told = (known.get(names[key]) for pair in limits for known in pair)
        ends = [end for end in told if isinstance(end, int)]
        if not ends:
            continue
        step = 1 << ((max(ends) - min(ends)) // _STEPS).bit_length()
        if high - low < step:
            continue  # few rows are read, and fewer by bounds of their own
        most = (1 << (bits - 1)) - 1
        found[key] = max(low - low % step, ~most), min(high - high % step + step - 1, most)
    return found


def is_rewrite_cheaper(files: Sequence[Action], changed: int) -> bool:
    """Whether touched files are better written anew than marked, and read with marks from then on.

    Args:
        files: those that may have the rows, as `live_files` gives them.
        changed: how many rows change.
    """
    touched = sum(int(add["size"]) for add in files)
    return touched >= _REWRITE_BYTES and changed > _REWRITE_SHARE * count_rows(files)


def _settings(session: SparkSession, batch: Batch) -> dict[str, str]:
    """What the commit's session works with; few changes need no plan that adapts to their size."""
    if not _is_small(batch):
        return _SETTINGS
    shuffles = min(_FEW_SHUFFLES, int(session.conf.get(_SHUFFLES) or _FEW_SHUFFLES))
    return _SETTINGS | {_SHUFFLES: str(shuffles), "spark.sql.adaptive.enabled": "false"}


def _is_small(batch: Batch, rows: int = _FEW_ROWS) -> bool:
    """Whether the changes are sent to every task, rather than the table be shuffled."""
    size = sum(file.size for file in batch.facts)
    return batch.row_count <= rows and size <= _BROADCAST_BYTES


def _is_fit(snapshot: Snapshot, batch: Batch) -> bool:
    if not snapshot.has_vectors:
        return False
    if snapshot.properties.get("delta.appendOnly", "false").lower() == "true":
        return False
    # Delta's writer of changed rows fails over a backtick, and MERGE says so.
    if any("`" in name for name in snapshot.schema):
        return False
    known = set(snapshot.writer_features) <= _FEATURES
    return known and not has_policy(batch.at.storage, batch.at.identity.table)


class _Exchange:
    """One try: what is kept in memory meanwhile."""

    def __init__(
        self, txn: DeltaTransaction, snapshot: Snapshot, changes: Changes, batch: Batch
    ) -> None:
        self._txn = txn
        self._batch = batch
        self._columns = tuple(snapshot.schema)
        self._keys = changes.keys
        self._unchanged = {name.lower() for name in changes.unchanged}
        self._has_feed = snapshot.has_feed
        self._ids = [
            snapshot.properties[name]
            for name in (ROW_ID_COLUMN, ROW_VERSION_COLUMN)
            if txn.tracks_rows
        ]
        self._new = {name: f"{_NEW}{place}" for place, name in enumerate(self._columns)}
        columns = [F.col(quote(name)).alias(new) for name, new in self._new.items()]
        kept = [KEPT] if changes.unchanged else []
        self._changes = changes.rows.select(*columns, ACTION, *kept).persist()
        self._frames = [self._changes]

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_error: object) -> None:
        for frame in self._frames:
            frame.unpersist()

    def commit(self, files: Sequence[Action], bounds: Bounds) -> None:
        """Finds the rows in files, and exchanges them; outside of the bounds no key can match."""
        table = placed_rows(self._txn, files, keep_ids=True)
        self._txn.read_all()
        found = self._find(table, bounds, is_large=count_rows(files) >= LARGE_ROWS)
        self._frames.append(found)
        marked = mark_rows(self._txn, found)
        gone = updated = marked.rows
        if gone and self._batch.rows.get(Marker.DELETE):
            updated = found.where(F.col(ACTION) != DELETE).count()
        parts = [self._changed(found)] if updated or (gone and self._has_feed) else []
        if self._inserts:
            parts.append(self._inserted(found, fed=gone > 0))
        exchange_rows(
            self._txn,
            marked,
            reduce(DataFrame.unionByName, parts) if parts else None,
            expected=self._batch.row_count,
            updated=updated,
            app_id=self._batch.at.identity.app_id,
            number=self._batch.last,
        )

    @property
    def _inserts(self) -> bool:
        """Whether a change can bring a row that was not there."""
        return any(count for marker, count in self._batch.rows.items() if marker != Marker.DELETE)

    def _find(self, table: DataFrame, bounds: Bounds, *, is_large: bool) -> DataFrame:
        """The table's rows that change, each with its change."""
        for condition in key_conditions(bounds, self._batch.target, None):
            table = table.where(condition)
        changes = self._changes.where(F.col(ACTION) != APPEND)
        if is_large:
            new = {key: self._new[key] for key in self._keys}
            table = rows_among(table, changes, new, self._batch.row_count)
        on = [F.col(quote(key)) == F.col(self._new[key]) for key in self._keys]
        return table.join(self._small(changes), reduce(Column.__and__, on)).persist()

    def _small(self, rows: DataFrame) -> DataFrame:
        """One side of a join: few changes are sent to every task of the other."""
        return F.broadcast(rows) if _is_small(self._batch, MOST_BROADCAST) else rows

    def _changed(self, found: DataFrame) -> DataFrame:
        """Updated rows as they become; and with the feed, both kinds before and after."""
        before, after = [_BEFORE, _AFTER] if self._has_feed else [], [_TABLE]
        deleted = [_DELETED] if self._has_feed else []
        kinds = f"IF({ACTION} = '{DELETE}', {_texts(deleted)}, {_texts([*before, *after])})"
        is_old = f"{_KIND} IN ('{_BEFORE}', '{_DELETED}')"

        def value(name: str) -> str:
            stays = is_old
            if name.lower() in self._unchanged:
                stays += f" OR coalesce(array_contains({KEPT}, {literal(name)}), false)"
            return f"IF({stays}, {quote(name)}, {self._new[name]})"

        values = {name: value(name) for name in self._columns}
        ids = {name: f"IF({_KIND} = '{_TABLE}', {quote(name)}, NULL)" for name in self._ids[:1]}
        return self._written(found, kinds, values, ids, found)

    def _inserted(self, found: DataFrame, *, fed: bool) -> DataFrame:
        """New rows: without a key of the table's, or whatever it has."""
        hits = {self._new[key]: f"{_HIT}{place}" for place, key in enumerate(self._keys)}
        there = found.selectExpr(*[f"{new} AS {hit}" for new, hit in hits.items()])
        same = [f"{new} = {hit}" for new, hit in hits.items()]
        wanted = self._changes.where(f"{ACTION} IN ('{REPLACE}', '{APPEND}')")
        on = F.expr(" AND ".join([f"{ACTION} = '{REPLACE}'", *same]))
        rows = wanted.join(self._small(there), on, "left_anti")
        kinds = _texts([_TABLE, _INSERTED] if fed and self._has_feed else [_TABLE])
        values = {
            name: refused(name, new, KEPT) if name.lower() in self._unchanged else new
            for name, new in self._new.items()
        }
        return self._written(rows, kinds, values, {}, found)

    def _written(
        self,
        rows: DataFrame,
        kinds: str,
        values: Mapping[str, str],
        ids: Mapping[str, str],
        found: DataFrame,
    ) -> DataFrame:
        """Rows as a transaction writes them. What it is made of is SQL: it is parsed at once.

        Args:
            rows: what to write, each as often as it has kinds.
            kinds: an array of them.
            values: of the table's columns.
            ids: of the columns that carry row ids, those that a row keeps; the others are new.
            found: has these columns: Delta knows them by what they say of themselves.
        """
        made = [F.expr(f"{value} AS {quote(name)}") for name, value in values.items()]
        for name in self._ids:
            number = F.expr(ids.get(name, "CAST(NULL AS BIGINT)"))
            made.append(number.alias(name, metadata=found.schema[name].metadata))
        change_type = F.expr(f"IF({_KIND} <> '{_TABLE}', {_KIND}, NULL) AS {_CHANGE_TYPE}")
        return rows.selectExpr("*", f"explode({kinds}) AS {_KIND}").select(*made, change_type)


def _texts(kinds: Sequence[str]) -> str:
    """An array of kinds, as SQL."""
    return f"CAST(array({', '.join(map(literal, kinds))}) AS ARRAY<STRING>)"
