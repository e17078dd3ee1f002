"""One table's part of a cycle: list, check, plan, commit, move; killed anywhere, it can run again.

The cycle starts after the last number in the table's own log, never from what was moved.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from pyspark.sql import SparkSession

from mirrorlake.delta.policies import has_policy
from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError, SchemaError, SequenceError
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.identity import Identity, ensure_identity
from mirrorlake.landing.metadata import BY_TIME, TableMetadata, check_keys_kept, read_metadata
from mirrorlake.landing.zone import Folder
from mirrorlake.mirror.apply import (
    Work,
    apply_work,
    create_table,
    new_properties,
    set_properties,
)
from mirrorlake.mirror.cleanup import move_applied, move_leftovers
from mirrorlake.mirror.commit_metadata import committed_version, last_note, state_of_note
from mirrorlake.mirror.compact import compact
from mirrorlake.mirror.failures import commit_with_retries
from mirrorlake.mirror.numbering import number_files
from mirrorlake.mirror.operator_settings import OperatorSettings
from mirrorlake.mirror.options import SKIP_FILE, MirrorOptions
from mirrorlake.mirror.plan import (
    Plan,
    check_files,
    cut_batch,
    find_plan,
    make_plan,
    plan_of,
    renew_plan,
    staging,
)
from mirrorlake.mirror.properties import (
    KEYS_PROPERTY,
    is_stale_incarnation,
    reenable_feed,
    retention_properties,
)
from mirrorlake.mirror.quarantine import put_into_quarantine
from mirrorlake.mirror.schema import Target, plan_schema
from mirrorlake.mirror.state import INITIALIZED, REPLICATING, TableState, failed, file_signature
from mirrorlake.mirror.steps import Step, StepListener
from mirrorlake.mirror.trash import drop_table, take_back, was_elsewhere
from mirrorlake.names import IDENTITY, METADATA
from mirrorlake.storage import Entry, Listing, Storage

Facts = tuple[FileFacts, ...]


@dataclass(frozen=True)
class TableContext:
    """How a table stands: whose files, what the folder declares, the Delta table as it is.

    Attributes:
        last: the last number that the table's own log shows as applied.
    """

    identity: Identity
    metadata: TableMetadata
    snapshot: Snapshot | None
    last: int

    @property
    def recreated(self) -> bool:
        """Whether the table there belongs to an earlier life of the folder."""
        return is_stale_incarnation(self.snapshot, self.identity)

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a batch has to fit; none for a table that is to be replaced."""
        if self.snapshot is None or self.recreated:
            return {}
        return {name: str(kind) for name, kind in self.snapshot.schema.items()}


class TableCycle:
    """Brings one table up to date with its folder.

    Args:
        storage: the lake's files.
        spark: called when a session is needed.
        options: bounds of the batch.
        on_step: hears of every finished step.
        listing: what lies in the folder.
        state: what was known of the table.
        settings: what an operator asked for.
    """

    def __init__(
        self,
        storage: Storage,
        spark: Callable[[], SparkSession],
        options: MirrorOptions,
        on_step: StepListener,
        listing: Listing,
        state: TableState,
        settings: OperatorSettings,
    ) -> None:
        self._storage = storage
        self._spark = spark
        self._options = options
        self._on_step = on_step
        self._table = state.table
        self._folder = Folder(self._table, {}, listing)
        self._state = state
        self._skip = dict.fromkeys(settings.skip, "Skipped on demand.")

    def run(self) -> TableState:
        """Does what is to be done.

        Returns:
            The table's state after it; what is wrong with a file is in it as its error.
        """
        self._done(Step.LISTED)
        metadata = read_metadata(self._storage, self._table)
        identity = ensure_identity(self._storage, self._table)
        self._done(Step.IDENTIFIED)
        at = self._load_context(identity, metadata)
        self._recall(at)
        self._number(at, self._folder.listing)
        late = self._tidy(at)
        error: MirrorlakeError | None = None
        plan = find_plan(self._storage, identity, at.last + 1)
        if plan is not None:
            error = self._carry_out(at, plan)
            at = self._load_context(identity, metadata)
            self._number(at, self._storage.list(self._table.folder))
        if error is None:
            error = self._run_batch(at)
        problem = error or late
        return self._state if problem is None else failed(self._state, problem.as_dict())

    def _done(self, step: Step) -> None:
        self._on_step(self._table, step)

    def _load_context(self, identity: Identity, metadata: TableMetadata) -> TableContext:
        """The Delta table as it is; a dropped one is back where its folder is."""
        snapshot = read_snapshot(self._storage, self._table.table_path)
        if is_stale_incarnation(snapshot, identity) and was_elsewhere(self._storage, identity):
            drop_table(self._storage, self._table, None)
            snapshot = None
        if snapshot is None and take_back(self._storage, identity):
            snapshot = read_snapshot(self._storage, self._table.table_path)
        if snapshot is None:
            return TableContext(identity, metadata, None, 0)
        if KEYS_PROPERTY not in snapshot.properties:
            raise InvalidNameError(
                f"There is a table {self._table} already that no mirror made.",
                hint="rename one of the two, or move that table away.",
            )
        if not is_stale_incarnation(snapshot, identity):
            old = tuple(json.loads(snapshot.properties[KEYS_PROPERTY]))
            check_keys_kept(self._table, old, metadata.keys)
        return TableContext(identity, metadata, snapshot, snapshot.txns.get(identity.app_id, 0))

    def _number(self, at: TableContext, listing: Listing) -> None:
        """Numbers the files; the last applied one is known again in a listing from now on."""
        self._folder = number_files(self._storage, at.identity, at.metadata, listing, at.last)
        tail = self._folder.numbered.get(at.last) if at.metadata.strategy == BY_TIME else None
        self._state = replace(self._state, tail=file_signature(tail) if tail else None)

    def _recall(self, at: TableContext) -> None:
        """Brings the kept state in line with the table's log, which is always right."""
        known = self._state
        incarnation = at.identity.incarnation
        if known.incarnation != incarnation or known.last_file != at.last:
            note = {}
            if at.last:
                note = last_note(self._storage, self._table, at.snapshot, incarnation)
            known = state_of_note(self._table, note)
            known = replace(known, incarnation=incarnation, last_file=at.last)
        listing = self._storage.list(self._table.folder)
        self._state = replace(
            known,
            state=REPLICATING if at.last else INITIALIZED,
            error=None,
            seen=listing.moment(IDENTITY),
            declared=listing.moment(METADATA),
            strategy=at.metadata.strategy,
        )

    def _tidy(self, at: TableContext) -> SequenceError | None:
        try:
            move_leftovers(self._storage, at.identity, self._folder, at.last)
        except SequenceError as error:
            return error
        return None

    def _carry_out(self, at: TableContext, plan: Plan) -> MirrorlakeError | None:
        """Applies a plan that was found, as it stands; all of it or nothing."""
        skip = {
            plan.numbers[file.name]: file.skipped for file in plan.files if file.skipped is not None
        }
        names = [file.name for file in plan.files]
        facts, error = self._check(at, plan.first, names, plan.on_error, self._skip | skip)
        if error is None:
            renew_plan(self._storage, at.identity, plan, facts)
            self._commit(at, plan, facts)
        return error

    def _run_batch(self, at: TableContext) -> MirrorlakeError | None:
        """Plans and commits the files after the last one, up to the first that isn't sound."""
        ready, _ = self._folder.pending(at.last, self._skip)
        if not ready and at.last == 0:
            return self._begin(at)
        names = [entry.name for entry in ready]
        if not at.recreated:  # a table that is to be replaced is replaced in one commit
            names = cut_batch(ready, self._options.batch_files, self._options.batch_bytes)
        skip, on_error = dict(self._skip), self._options.on_error
        if late := self._late(at, ready):
            if on_error != SKIP_FILE:
                return late
            skip[at.last + 1] = late.message
        facts, error = self._check(at, at.last + 1, names, on_error, skip)
        if facts:
            plan = make_plan(self._storage, at.identity, at.last + 1, facts, on_error)
            self._done(Step.PLANNED)
            if [file.name for file in plan.files] != [file.name for file in facts]:
                # Another mirror planned this batch a moment ago: its plan counts.
                return self._carry_out(at, plan)
            self._commit(at, plan, facts)
        return error

    def _late(self, at: TableContext, ready: list[Entry]) -> SequenceError | None:
        """What is wrong with a file without a number that is older than the last applied one."""
        if at.metadata.strategy != BY_TIME or self._options.late_files or not (at.last and ready):
            return None
        plan = plan_of(self._storage, at.identity, at.last)
        latest = plan.files[-1].published if plan else None
        if latest is None or ready[0].modified >= datetime.fromisoformat(latest):
            return None
        return SequenceError(
            f"The file is older than the last applied one, which is of {latest}.",
            file=ready[0].name,
            hint="upload it again if its changes are new, or allow late files.",
        )

    def _begin(self, at: TableContext) -> MirrorlakeError | None:
        """A folder without files yet: a table where one is declared, none of an earlier life."""
        if not at.metadata.columns:
            if at.recreated:
                drop_table(self._storage, self._table, None)
            return None
        if at.snapshot is not None and not at.recreated:
            return None
        try:
            work = self._work(at, ())
        except MirrorlakeError as error:
            return error
        self._prepare(work)
        if at.recreated:
            self._apply(work)
        return None

    def _check(
        self, at: TableContext, first: int, names: list[str], on_error: str, skip: dict[int, str]
    ) -> tuple[Facts, MirrorlakeError | None]:
        """The longest sound beginning of a batch, and what is wrong with the next file."""
        if not names:
            return (), None
        checked = check_files(
            self._storage, at.identity, first, names, at.metadata, on_error=on_error, skip=skip
        )
        facts, error = checked.facts, checked.error
        while True:
            try:
                self._target(at, facts)
                break
            except SchemaError as misfit:
                if on_error == SKIP_FILE and misfit.file in names:
                    facts = tuple(
                        replace(file, skipped=misfit, rows=Counter())
                        if file.name == misfit.file
                        else file
                        for file in facts
                    )
                else:
                    facts, error = _before(facts, misfit), misfit
                    break
        self._done(Step.CHECKED)
        return facts, error

    def _target(self, at: TableContext, facts: Facts) -> Target:
        declared = at.metadata.table_columns
        return plan_schema(at.columns, facts, declared=declared, widen=self._options.widen)

    def _work(self, at: TableContext, facts: Facts) -> Work:
        return Work(
            identity=at.identity,
            storage=self._storage,
            path=self._storage.path(self._table.table_path),
            files=facts,
            target=self._target(at, facts),
            metadata=at.metadata,
            snapshot=at.snapshot,
            note={"incarnation": at.identity.incarnation},
            retention=retention_properties(
                self._options.log_retention_days, self._options.feed_retention_days
            ),
        )

    def _prepare(self, work: Work) -> None:
        """Version 0 of a new table; what an existing one lacks before the data's commit."""
        if work.snapshot is None:
            create_table(self._spark(), work)
            self._done(Step.CREATED)
            return
        if missing := new_properties(work):
            set_properties(self._spark(), work, missing)

    def _apply(self, work: Work) -> None:
        commit_with_retries(lambda: apply_work(self._spark(), work))
        self._done(Step.COMMITTED)
        if work.recreated:
            found = read_snapshot(self._storage, self._table.table_path)
            if found and (woken := reenable_feed(found.properties)):
                set_properties(self._spark(), work, woken)

    def _commit(self, at: TableContext, plan: Plan, facts: Facts) -> None:
        work = self._work(at, facts)
        now = datetime.now(timezone.utc)
        state = replace(
            self._state,
            state=REPLICATING,
            last_file=plan.last,
            rows=self._state.rows + sum(file.row_count for file in facts),
            bytes=self._state.bytes + sum(file.size for file in facts),
            synced=now.isoformat(timespec="milliseconds"),
        )
        work.note.update(
            first=plan.first,
            last=plan.last,
            rows={marker.name.lower(): count for marker, count in work.rows.items()},
            total_rows=state.rows,
            total_bytes=state.bytes,
            synced=state.synced,
        )
        if any(file.skipped or file.rejects for file in facts):
            put_into_quarantine(self._spark(), self._storage, at.identity, facts, at=plan.planned)
            self._done(Step.QUARANTINED)
        self._prepare(work)
        self._apply(work)
        before = at.snapshot.version if at.snapshot else -1
        version = committed_version(self._storage, self._table, before, work.note)
        published = self._folder.listing.file(plan.files[-1].name)
        self._state = replace(
            state,
            version=version,
            tail=file_signature(published)
            if published and at.metadata.strategy == BY_TIME
            else None,
            latency=_age(published) if published else None,
        )
        move_applied(self._storage, at.identity, self._folder, plan)
        self._storage.delete_folder(staging(at.identity))
        self._done(Step.MOVED)
        self._compact(work)

    def _compact(self, work: Work) -> None:
        """Now and then, puts together the small files that many small commits leave."""
        every, version = self._options.compact_after, self._state.version or 0
        due = every and version - self._state.compacted >= every
        # Partitioned files are merged by their own process, and only with their like.
        if due and not has_policy(self._storage, self._table) and compact(self._spark(), work.path):
            self._state = replace(self._state, compacted=version)
            self._done(Step.COMPACTED)


def _age(published: Entry) -> float:
    """Seconds since a file was published."""
    return (datetime.now(timezone.utc) - published.modified).total_seconds()


def _before(facts: Facts, misfit: SchemaError) -> Facts:
    """The files before the one that a schema error names."""
    names = [file.name for file in facts]
    return facts[: names.index(misfit.file)] if misfit.file in names else ()
