"""One table's part of a cycle: list, check, plan, commit, move; killed anywhere, it can run again.

The cycle starts after the last number in the table's own log, never from what was moved.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from mirrorlake.delta.exchange import has_too_many_deleted
from mirrorlake.delta.snapshot import VECTORS, Snapshot, read_snapshot
from mirrorlake.errors import MirrorlakeError, SetupError
from mirrorlake.landing.check import FileFacts, inspect_file
from mirrorlake.landing.metadata import (
    Identity,
    TableMetadata,
    ensure_identity,
    read_metadata,
)
from mirrorlake.mirror.applied_files import move_applied, move_leftovers
from mirrorlake.mirror.apply import compact, write_batch
from mirrorlake.mirror.ledger import committed_version, last_note, put_into_quarantine, with_note
from mirrorlake.mirror.next_batch import (
    Batch,
    ChosenFiles,
    TableContext,
    check_batch,
    complete_plan,
    following_files,
    load_context,
    plan_schema,
    planned_files,
)
from mirrorlake.mirror.options import MirrorOptions, OperatorSettings, Step, StepListener
from mirrorlake.mirror.plan import Plan, find_plan, make_plan, staging
from mirrorlake.mirror.properties import (
    has_partitioning_policy,
    is_stale_incarnation,
    read_defaults,
    retention,
)
from mirrorlake.mirror.state import INITIALIZED, REPLICATING, TableState, failed, file_signature
from mirrorlake.mirror.trash import drop_table, take_back, was_elsewhere
from mirrorlake.names import IDENTITY, METADATA, TableName
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.session import cluster_cores
from mirrorlake.storage.files import Listing, Storage

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableCycle:
    """Brings one table up to date with its folder.

    Args:
        storage: the lake's files.
        spark: called when a session is needed.
        options: bounds of the batch.
        on_step: is called after every finished step.
        listing: what lies in the folder.
        state: what was known of the table.
        settings: what an operator asked for.
    """

    _storage: Storage
    _spark: Callable[[], SparkSession]
    _options: MirrorOptions
    _on_step: StepListener
    _listing: Listing
    _state: TableState
    _settings: OperatorSettings

    @property
    def _table(self) -> TableName:
        return self._state.table

    @property
    def _skip(self) -> dict[int, str]:
        return dict.fromkeys(self._settings.skip, "Skipped on demand.")

    def run(self) -> TableState:
        """Does what is to be done.

        Returns:
            The table's state after it; what is wrong with a file is in it as its error.
        """
        self._done(Step.LISTED)
        metadata = read_metadata(self._storage, self._table)
        identity = ensure_identity(self._storage, self._table)
        self._done(Step.IDENTIFIED)
        snapshot = self._restore_or_drop(identity)
        at = load_context(self._storage, identity, metadata, snapshot, self._listing, self._state)
        fault = at.last_file_fault()
        at = replace(at, state=self._recall_state(at))
        if fault is not None:
            return failed(replace(at.state, tail=None), fault)
        reused = move_leftovers(self._storage, identity, at.folder, at.last)
        batch = Batch(at)
        for next_batch in (self._resume_batch, self._new_batch):
            batch = next_batch(at)
            at = self._commit(batch)
            if batch.error is not None:
                break
        problem = batch.error or reused
        return at.state if problem is None else failed(at.state, problem)

    def _done(self, step: Step) -> None:
        self._on_step(self._table, step)

    def _restore_or_drop(self, identity: Identity) -> Snapshot | None:
        """Takes a dropped table back where its folder is; drops the one in its place."""
        snapshot = read_snapshot(self._storage, self._table.table_path)
        if is_stale_incarnation(snapshot, identity) and was_elsewhere(self._storage, identity):
            drop_table(self._storage, self._table, None)
            snapshot = None
        if snapshot is None and take_back(self._storage, identity):
            snapshot = read_snapshot(self._storage, self._table.table_path)
        return snapshot

    def _recall_state(self, at: TableContext) -> TableState:
        """The kept state in line with the table's log, which is always right."""
        known, incarnation = at.state, at.identity.incarnation
        if known.incarnation != incarnation or known.last_file != at.last:
            note = {}
            if at.last:
                note = last_note(self._storage, self._table, at.snapshot, incarnation)
            known = with_note(TableState(self._table.schema, self._table.name), note)
            known = replace(known, incarnation=incarnation, last_file=at.last)
        listing = self._storage.list(self._table.folder)
        return replace(
            known,
            state=REPLICATING if at.last else INITIALIZED,
            error=None,
            seen=listing.state_of(IDENTITY),
            declared=listing.state_of(METADATA),
            strategy=at.metadata.strategy,
            tail=at.tail,
        )

    def _resume_batch(self, at: TableContext) -> Batch:
        """The batch of a plan that an earlier cycle did not finish; an empty one without it."""
        plan = find_plan(self._storage, at.identity, at.last + 1)
        return Batch(at) if plan is None else self._planned_batch(at, plan)

    def _planned_batch(self, at: TableContext, plan: Plan) -> Batch:
        """Return the batch of a plan that was found; all of it or nothing."""
        return complete_plan(plan, self._check(at, planned_files(plan, self._skip)))

    def _new_batch(self, at: TableContext) -> Batch:
        """The files after the last applied one, planned."""
        if at.state.last_file != at.last:  # the unfinished plan has just been committed
            listing = self._storage.list(self._table.folder)
            snapshot = self._restore_or_drop(at.identity)
            at = load_context(self._storage, at.identity, at.metadata, snapshot, listing, at.state)
            fault = at.last_file_fault()
            at = replace(at, state=replace(at.state, tail=None if fault else at.tail))
            if fault is not None:
                return Batch(at, error=fault)
        chosen = following_files(at, self._options, self._skip)
        if not chosen.names and at.last == 0:
            return self._declare_or_drop(at)
        if chosen.error is not None:
            return Batch(at, error=chosen.error)
        batch = self._check(at, chosen)
        if not batch.facts:
            return batch
        plan = make_plan(self._storage, at.identity, at.last + 1, batch.facts, chosen.on_error)
        self._done(Step.PLANNED)
        if [file.name for file in plan.files] != [file.name for file in batch.facts]:
            # Another mirror has just planned this batch: its plan counts.
            return self._planned_batch(at, plan)
        return replace(batch, plan=plan)

    def _declare_or_drop(self, at: TableContext) -> Batch:
        """A folder without files: an empty table if columns are declared, else none."""
        if at.recreated and not at.metadata.columns:
            drop_table(self._storage, self._table, None)
        if not at.metadata.columns or (at.snapshot is not None and not at.recreated):
            return Batch(at)
        try:
            return Batch(at, target=plan_schema(at, (), widen=self._options.widen))
        except MirrorlakeError as error:
            return Batch(at, error=error)

    def _check(self, at: TableContext, chosen: ChosenFiles) -> Batch:
        options = replace(self._options, on_error=chosen.on_error)
        sizes = {entry.name: entry.size for entry in at.folder.numbered.values()}
        wanted = {name: sizes.get(name, 0) for name in chosen.names}
        inspect = choose_inspection(self._spark, wanted, options.driver_bytes)
        batch = check_batch(at, chosen.names, options, chosen.skip, inspect=inspect)
        if chosen.names:
            self._done(Step.CHECKED)
        return batch

    def _commit(self, batch: Batch) -> TableContext:
        """Commits a checked batch and moves its files; what is known of the table then."""
        at, plan = batch.at, batch.plan
        note: dict[str, Any] = {"incarnation": at.identity.incarnation}
        if plan is None:
            if batch.target.columns:  # a declared table without files
                self._write(batch, note)
            return at
        note |= {
            "first": plan.first,
            "last": plan.last,
            "rows": {marker.name.lower(): count for marker, count in batch.rows.items()},
            "total_rows": at.state.rows + batch.row_count,
            "total_bytes": at.state.bytes + sum(file.size for file in batch.facts),
            "synced": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        }
        if any(file.skipped or file.rejects for file in batch.facts):
            put_into_quarantine(self._spark(), batch, at=plan.planned)
            self._done(Step.QUARANTINED)
        self._write(batch, note)
        before = at.snapshot.version if at.snapshot else -1
        version = committed_version(self._storage, self._table, before, note)
        published = at.folder.listing.file(plan.files[-1].name)
        age = datetime.now(timezone.utc) - published.modified if published else None
        state = replace(
            with_note(at.state, note | {"version": version}),
            tail=file_signature(published) if published else None,
            latency=age.total_seconds() if age else None,
        )
        move_applied(self._storage, at.identity, at.folder, plan)
        self._storage.delete_folder(staging(at.identity))
        self._done(Step.MOVED)
        compacted = self._compact(at, version or 0, state.compacted)
        return replace(at, state=replace(state, compacted=compacted))

    def _write(self, batch: Batch, note: dict[str, Any]) -> None:
        """Writes a batch with what its commit says, and what the table is to have."""
        vectors = self._options.deletion_vectors
        if batch.at.snapshot is None:
            vectors = vectors or read_defaults(self._storage).deletion_vectors
        properties = retention(self._options) | ({VECTORS: "true"} if vectors else {})
        noted = replace(batch, note=note, properties=properties)
        write_batch(self._spark, noted, self._done)

    def _compact(self, at: TableContext, version: int, before: int) -> int:
        """Now and then compacts the small files of many commits; the version that it did so at.

        So that reading stays quick, a table is also compacted once too many rows are deleted.
        """
        every = self._options.compact_after
        due = bool(every and version - before >= every)
        vectors = self._options.deletion_vectors or bool(at.snapshot and at.snapshot.has_vectors)
        if not due and vectors:
            due = has_too_many_deleted(at.files.of(version))
        # Partitioned files are merged by their own process, and only with their like.
        if (
            due
            and not has_partitioning_policy(self._storage, self._table)
            and compact(self._spark(), at.path)
        ):
            self._done(Step.COMPACTED)
            return version
        return before


def choose_inspection(
    start: Callable[[], SparkSession], sizes: Mapping[str, int], driver_bytes: int
) -> Callable[..., FileFacts]:
    """Who looks into the files of a batch: the driver, or for large ones on a cluster executors.

    A check reads a file's marker column, and makes Parquet of text: for gigabytes that is more than
    one process should do alone. What comes back is small.

    Args:
        start: called where a file is large and the environment names a cluster.
        sizes: the files' bytes, by their names.
        driver_bytes: the largest file that the driver looks into itself.
    """
    if max(sizes.values(), default=0) <= driver_bytes or cluster_cores(start) is None:
        return inspect_file

    def inspect(storage: Storage, path: str, metadata: TableMetadata, **options: Any) -> FileFacts:
        if sizes.get(path.rpartition("/")[2], 0) > driver_bytes:
            try:
                return inspect_on_executor(start(), storage, path, metadata, **options)
            except SetupError as error:
                _log.warning("%s is read by the driver: %s", path, error)
        return inspect_file(storage, path, metadata, **options)

    return inspect


def inspect_on_executor(
    spark: SparkSession, storage: Storage, path: str, metadata: TableMetadata, **options: Any
) -> FileFacts:
    """`inspect_file`, in a task of its own.

    Raises:
        SetupError: the executors can't run it.
        MirrorlakeError: as `inspect_file`.
        FileNotFoundError: the file is gone.
    """

    def run(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: FileFacts | Exception
        try:
            found = inspect_file(storage, path, metadata, **options)
        except (MirrorlakeError, FileNotFoundError) as error:
            found = error
        yield pa.RecordBatch.from_pydict({"found": pa.array([pickle.dumps(found)], pa.binary())})

    (row,) = map_in_arrow(spark.range(0, 1, 1, 1), run, "found binary").collect()
    found = pickle.loads(bytes(row["found"]))  # noqa: S301 - what a function of ours has made
    if isinstance(found, Exception):
        raise found
    return cast("FileFacts", found)
