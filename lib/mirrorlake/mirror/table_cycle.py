"""One table's part of a cycle: list, check, plan, commit, move; killed anywhere, it can run again.

The cycle starts after the last number in the table's own log, never from what was moved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

from mirrorlake.delta_log import Snapshot, read_commit_info, read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError, SchemaError, SequenceError
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.identity import Identity, ensure_identity
from mirrorlake.landing.metadata import TableMetadata, check_keys_kept, read_metadata
from mirrorlake.landing.zone import Folder, list_folder
from mirrorlake.mirror.apply import (
    KEYS_PROPERTY,
    Work,
    apply_work,
    create_table,
    is_of_another_life,
    new_properties,
    set_properties,
)
from mirrorlake.mirror.cleanup import move_applied, move_leftovers
from mirrorlake.mirror.failures import commit_with_retries
from mirrorlake.mirror.plan import (
    Checked,
    Plan,
    check_files,
    cut_batch,
    find_plan,
    make_plan,
    verify_plan,
)
from mirrorlake.mirror.schema import plan_schema
from mirrorlake.mirror.state import INITIALIZED, REPLICATING, TableState, failed
from mirrorlake.mirror.steps import Step, StepListener
from mirrorlake.names import IDENTITY
from mirrorlake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTES_BACK = 50  # versions to look through for our own last commit, when the cache is gone


@dataclass(frozen=True)
class MirrorOptions:
    """Bounds of one cycle.

    Attributes:
        batch_files: most files in one commit.
        batch_bytes: most bytes of files in one commit, but at least one file.
        tables_at_once: how many tables are worked on side by side. A small commit waits now and
            then, so that one more than there are cores keeps all of them busy.
    """

    batch_files: int = 1000
    batch_bytes: int = 4 * 2**30
    tables_at_once: int = min(8, (os.cpu_count() or 1) + 1)


class TableCycle:
    """Brings one table up to date with its folder.

    Args:
        storage: the lake's files.
        spark: called when a session is needed.
        options: bounds of the batch.
        on_step: hears of every finished step.
        folder: the folder as listed.
        state: what was known of the table.
    """

    def __init__(
        self,
        storage: Storage,
        spark: Callable[[], SparkSession],
        options: MirrorOptions,
        on_step: StepListener,
        folder: Folder,
        state: TableState,
    ) -> None:
        self._storage = storage
        self._spark = spark
        self._options = options
        self._on_step = on_step
        self._folder = folder
        self._table = folder.table
        self._state = state

    def run(self) -> TableState:
        """Does what is to be done.

        Returns:
            The table's state after it; what is wrong with a file is in it as its error.
        """
        self._done(Step.LISTED)
        metadata = read_metadata(self._storage, self._table)
        identity = ensure_identity(self._storage, self._table)
        self._done(Step.IDENTIFIED)
        snapshot, last = self._read_table(identity, metadata)
        self._recall(identity, snapshot, last)
        late = self._tidy(identity, last)
        error: MirrorlakeError | None = None
        plan = find_plan(self._storage, identity, last + 1)
        if plan is not None:
            error = self._carry_out(identity, metadata, snapshot, plan)
            snapshot, last = self._read_table(identity, metadata)
            self._folder = list_folder(self._storage, self._table)
        if error is None:
            error = self._run_batch(identity, metadata, snapshot, last)
        problem = error or late
        return self._state if problem is None else failed(self._state, problem.as_dict())

    def _done(self, step: Step) -> None:
        self._on_step(self._table, step)

    def _read_table(
        self, identity: Identity, metadata: TableMetadata
    ) -> tuple[Snapshot | None, int]:
        """The Delta table as it is, and the last number its own log shows as applied."""
        snapshot = read_snapshot(self._storage, self._table.table_path)
        if snapshot is None:
            return None, 0
        if KEYS_PROPERTY not in snapshot.properties:
            raise InvalidNameError(
                f"There is a table {self._table} already that no mirror made.",
                hint="rename one of the two, or move that table away.",
            )
        if not is_of_another_life(snapshot, identity):
            old = tuple(json.loads(snapshot.properties[KEYS_PROPERTY]))
            check_keys_kept(self._table, old, metadata.keys)
        return snapshot, snapshot.txns.get(identity.app_id, 0)

    def _recall(self, identity: Identity, snapshot: Snapshot | None, last: int) -> None:
        """Brings the kept state in line with the table's log, which is always right."""
        known = self._state
        if known.incarnation != identity.incarnation or known.last_file != last:
            note = self._last_note(identity, snapshot) if last else {}
            known = TableState(
                self._table.schema,
                self._table.name,
                state=REPLICATING if last else INITIALIZED,
                incarnation=identity.incarnation,
                last_file=last,
                version=note.get("version"),
                rows=note.get("total_rows", 0),
                bytes=note.get("total_bytes", 0),
                synced=note.get("synced"),
            )
        identity_file = self._storage.list(self._table.folder).file(IDENTITY)
        self._state = replace(
            known,
            state=REPLICATING if last else INITIALIZED,
            error=None,
            seen=identity_file.modified.isoformat() if identity_file else None,
        )

    def _last_note(self, identity: Identity, snapshot: Snapshot | None) -> dict[str, Any]:
        newest = snapshot.version if snapshot else -1
        for version in range(newest, max(-1, newest - _NOTES_BACK), -1):
            note = _note(read_commit_info(self._storage, self._table.table_path, version))
            if note.get("incarnation") == identity.incarnation:
                return {**note, "version": version}
        return {}

    def _version_of(self, identity: Identity, before: Snapshot | None, last: int) -> int | None:
        """The version that a commit has just made, looked for in what is new in the log."""
        for version in count(before.version + 1 if before else 0):
            info = read_commit_info(self._storage, self._table.table_path, version)
            note = _note(info)
            if (note.get("incarnation"), note.get("last")) == (identity.incarnation, last):
                return version
            if not info:  # somebody else's commit that says nothing of itself
                break
        newest = read_snapshot(self._storage, self._table.table_path)
        found: int | None = self._last_note(identity, newest).get("version")
        return found

    def _tidy(self, identity: Identity, last: int) -> SequenceError | None:
        try:
            move_leftovers(self._storage, identity, self._folder, last)
        except SequenceError as error:
            return error
        return None

    def _carry_out(
        self,
        identity: Identity,
        metadata: TableMetadata,
        snapshot: Snapshot | None,
        plan: Plan,
    ) -> MirrorlakeError | None:
        """Applies a plan that was found, as it stands; all of it or nothing."""
        try:
            plan = verify_plan(self._storage, identity, plan)
        except SequenceError as gone:
            return gone
        names = [file.name for file in plan.files]
        facts, error = self._check(names, identity, metadata, snapshot)
        if error is None:
            self._commit(identity, metadata, snapshot, plan, facts)
        return error

    def _run_batch(
        self,
        identity: Identity,
        metadata: TableMetadata,
        snapshot: Snapshot | None,
        last: int,
    ) -> MirrorlakeError | None:
        """Plans and commits the files after number `last`, up to the first that isn't sound."""
        ready, _ = self._folder.pending(last)
        names = cut_batch(ready, self._options.batch_files, self._options.batch_bytes)
        facts, error = self._check(names, identity, metadata, snapshot)
        if facts:
            sound = [file.name for file in facts]
            plan = make_plan(self._storage, identity, sound)
            self._done(Step.PLANNED)
            if [file.name for file in plan.files] != sound:
                # Another mirror planned this batch a moment ago: its plan counts.
                return self._carry_out(identity, metadata, snapshot, plan)
            self._commit(identity, metadata, snapshot, plan, facts)
        return error

    def _check(
        self,
        names: list[str],
        identity: Identity,
        metadata: TableMetadata,
        snapshot: Snapshot | None,
    ) -> tuple[tuple[FileFacts, ...], MirrorlakeError | None]:
        """The longest sound beginning of a batch, and what is wrong with the next file."""
        if not names:
            return (), None
        checked = check_files(self._storage, self._table.folder, names, metadata)
        try:
            plan_schema(_columns(snapshot, identity), checked.facts)
        except SchemaError as misfit:
            checked = Checked(_before(checked.facts, misfit), misfit)
        self._done(Step.CHECKED)
        return checked.facts, checked.error

    def _commit(
        self,
        identity: Identity,
        metadata: TableMetadata,
        snapshot: Snapshot | None,
        plan: Plan,
        facts: tuple[FileFacts, ...],
    ) -> None:
        work = Work(
            identity=identity,
            folder=self._storage.path(self._table.folder),
            path=self._storage.path(self._table.table_path),
            files=facts,
            target=plan_schema(_columns(snapshot, identity), facts),
            metadata=metadata,
            snapshot=snapshot,
            note={},
            storage=self._storage,
        )
        rows = sum(file.row_count for file in facts)
        size = sum(file.size for file in facts)
        now = datetime.now(timezone.utc)
        work = replace(
            work,
            note={
                "incarnation": identity.incarnation,
                "first": plan.first,
                "last": plan.last,
                "rows": {marker.name.lower(): count for marker, count in work.rows.items()},
                "total_rows": self._state.rows + rows,
                "total_bytes": self._state.bytes + size,
                "synced": now.isoformat(timespec="milliseconds"),
            },
        )
        spark = self._spark()
        if snapshot is None:
            create_table(spark, work)
            self._done(Step.CREATED)
        elif missing := new_properties(work):
            set_properties(spark, work, missing)
        commit_with_retries(lambda: apply_work(spark, work))
        self._done(Step.COMMITTED)
        published = self._folder.numbered.get(plan.last)
        latency = (now - published.modified).total_seconds() if published else None
        self._state = replace(
            self._state,
            state=REPLICATING,
            last_file=plan.last,
            version=self._version_of(identity, snapshot, plan.last),
            rows=self._state.rows + rows,
            bytes=self._state.bytes + size,
            synced=now.isoformat(timespec="milliseconds"),
            latency=latency,
        )
        move_applied(self._storage, identity, self._folder, plan)
        self._done(Step.MOVED)


def _note(info: dict[str, Any]) -> dict[str, Any]:
    """What a mirror wrote into a commit; empty for commits of others."""
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _before(facts: tuple[FileFacts, ...], misfit: SchemaError) -> tuple[FileFacts, ...]:
    """The files before the one that a schema error names."""
    return facts[: [file.name for file in facts].index(str(misfit.file))]


def _columns(snapshot: Snapshot | None, identity: Identity) -> dict[str, str]:
    """The columns that a batch has to fit; none for a table that is to be replaced."""
    if snapshot is None or is_of_another_life(snapshot, identity):
        return {}
    return {name: str(kind) for name, kind in snapshot.schema.items()}
