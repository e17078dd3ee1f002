"""One simulated lake: replaced storage, clock and Spark, the published batches, and invariants.

The library's code runs unchanged. Only `write_batch`, which starts Spark, is replaced by a model
that writes the same commits: a conditional put of the next log entry, unless the log has the
transaction already. Its data files contain the applied rows as JSON.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import io
import json
import logging
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import obstore
import pyarrow.parquet as pq
from starlette.concurrency import run_in_threadpool

from helpers.markers import Marker
from helpers.places import TABLES, ZONE
from mirrorlake.delta import snapshot
from mirrorlake.delta.log_files import is_dropped
from mirrorlake.delta.snapshot import delta_tables, read_snapshot
from mirrorlake.landing import zone
from mirrorlake.landing.metadata import last_applied
from mirrorlake.mirror import apply, engine
from mirrorlake.mirror.ledger import read_ledger
from mirrorlake.mirror.next_batch import Batch, check_keys_known
from mirrorlake.mirror.options import INCARNATION_PROPERTY, Step, keys_property, resume
from mirrorlake.mirror.state import FAILED, TableState, load_states
from mirrorlake.mirror.status import listed_folder, status_of
from mirrorlake.names import TableName, file_number
from mirrorlake.storage.files import Listing, Storage
from simulation import scheduler as sim
from simulation.scheduler import Scheduler, Violation, World
from simulation.store import Bucket, Objects, SimulatedObstore, Stored

ROOT = "s3://lake"
TTL = 30.0


class _Current:
    objects: Objects


def _open_store(uri: str, *, retried: bool = True) -> Bucket:
    _, _, inner = uri.removeprefix("s3://").partition("/")
    return Bucket(_Current.objects, retried, f"{inner}/" if inner else "")


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=World.scheduler.ids.getrandbits(128), version=4)


REPLACED: list[tuple[object, object]] = [
    (dt.datetime, sim.SimulatedDatetime),
    (time, sim.SimulatedTime),
    (threading, sim.Threading),
    (threading.Lock, sim.Lock),
    (threading.Event, sim.Event),
    (asyncio, sim.Asyncio),
    (run_in_threadpool, sim.run_in_threadpool),
    (concurrent.futures.ThreadPoolExecutor, sim.Pool),
    (concurrent.futures.wait, sim.wait),
    (obstore, SimulatedObstore),
]


@contextmanager
def replaced() -> Iterator[None]:
    """Replace clock, threads, store and Spark in all loaded modules of the library."""
    undo: list[tuple[object, str, object]] = []

    def put(owner: object, name: str, new: object) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    modules = [m for n, m in sys.modules.items() if n.split(".")[0].startswith("mirrorlake")]
    for module in modules:
        for name, value in list(vars(module).items()):
            for old, new in REPLACED:
                if value is old:
                    put(module, name, new)
    put(sys.modules["mirrorlake.storage.files"], "open_store", _open_store)
    put(engine, "write_batch", write_batch)
    put(engine, "write_quarantine", write_quarantine)
    put(uuid, "uuid4", _uuid4)
    put(os, "getpid", lambda: 1)  # errors contain it
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for owner, name, old in reversed(undo):
            setattr(owner, name, old)


def _lines(*actions: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(action)}\n" for action in actions).encode()


def _commit(storage: Storage, path: str, version: int, actions: list[dict[str, Any]]) -> bool:
    stamp = int(sim.SimulatedDatetime.now().timestamp() * 1000)
    info = {"timestamp": stamp, "operation": "WRITE"}
    for action in actions:
        if "note" in action:
            info["userMetadata"] = json.dumps(action["note"])
    rest = [action for action in actions if "note" not in action]
    body = _lines({"commitInfo": info}, *rest)
    return storage.create(f"{path}/_delta_log/{version:020d}.json", body)


def _metadata(columns: dict[str, str], properties: dict[str, str]) -> dict[str, Any]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": properties,
    }


def write_batch(_spark: Callable[[], object], batch: Batch, done: Callable[[Step], None]) -> None:
    """Commit a batch as `mirrorlake.mirror.apply.write_batch` does with Spark."""
    at = batch.at
    storage, path, app = at.storage, at.identity.table.table_path, at.identity.app_id
    columns = batch.target.columns

    def newest() -> snapshot.Snapshot | None:
        return read_snapshot(storage, path, dropped=True)

    if at.snapshot is None:
        check_keys_known(at.metadata.keys, batch.target)
        made_for = {INCARNATION_PROPERTY: at.identity.incarnation}
        wanted = batch.properties | made_for | keys_property(at.metadata)
        while newest() is None:
            actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
            _commit(storage, path, 0, [*actions, {"metaData": _metadata(columns, wanted)}])
        done(Step.CREATED)
    else:
        wanted = apply._new_properties(at.snapshot, batch)  # the decision of the replaced function
        while wanted and (found := newest()):
            metadata = {**found.metadata, "configuration": found.properties | wanted}
            if _commit(storage, path, found.version + 1, [{"metaData": metadata}]):
                break
    if batch.plan is None and not at.recreated:
        return
    while True:
        found = newest()
        if found is None:
            raise RuntimeError(f"[DELTA_TABLE_NOT_FOUND] {path}")
        if batch.plan and found.txns.get(app, 0) >= batch.last:
            break
        rows = _rows(storage, batch)
        part = f"part-{uuid.uuid4().hex}.json"
        storage.write(f"{path}/{part}", json.dumps(rows).encode())
        live = live_parts(storage, path, found.version) if at.recreated else []
        actions = [{"note": batch.note}, {"txn": {"appId": app, "version": batch.last}}]
        if at.recreated or batch.target.evolved:
            metadata = _metadata(columns, found.properties)
            actions.append({"metaData": metadata | {"id": found.metadata["id"]}})
        actions += [{"remove": {"path": name, "dataChange": True}} for name in live]
        actions += [{"add": {"path": part, "size": 1, "dataChange": True}}]
        if _commit(storage, path, found.version + 1, actions):
            break
    done(Step.COMMITTED)


def write_quarantine(_spark: object, _batch: Batch, *, at: str) -> None:
    """Write nothing: the quarantine is a Delta table that Spark appends to."""


def _rows(storage: Storage, batch: Batch) -> list[dict[str, Any]]:
    """Return the changes of a batch in their order."""
    found = []
    for file in batch.facts:
        if file.skipped is not None:
            continue
        table = pq.read_table(io.BytesIO(storage.read(file.source)), use_threads=False)
        default = int(batch.at.metadata.default_marker)
        for row in table.to_pylist():
            marker = row.pop(file.marker) if file.marker else default
            found.append({"marker": marker, "file": file.name, "number": file.number, **row})
    return found


def live_parts(storage: Storage, path: str, version: int) -> list[str]:
    """Return the data files of a version."""
    live: dict[str, None] = {}
    for number in range(version + 1):
        for line in storage.read(f"{path}/_delta_log/{number:020d}.json").splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = None
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
    return list(live)


@dataclass
class Published:
    """A batch that was given to a publisher.

    Attributes:
        number: its place among the batches of its writer.
        acknowledged: whether the publisher returned.
        excused: whether an operator removed it, or may have.
    """

    table: str
    writer: str
    number: int
    rows: list[dict[str, Any]]
    acknowledged: bool = False
    excused: bool = False
    file: str | None = None


def _waiting(storage: Storage, state: TableState) -> set[str]:
    """Return the files of a folder that wait for a missing one, which the status names."""
    folder = listed_folder(storage.list(state.folder), state)
    if folder is None or status_of(state, folder).waiting_for is None:
        return set()
    return {entry.name for entry in folder.behind(state.last_file)}


@dataclass
class SimulatedLake:
    """A lake, the batches that were given to its publishers, and its invariants.

    Attributes:
        taken: the tables whose folders an operator deleted or renamed.
        cycles: the number of mirrors that run a cycle.
        taken_in_cycle: the tables whose folders were renamed during a cycle.
    """

    scheduler: Scheduler
    objects: Objects = field(default_factory=Objects)
    batches: dict[str, Published] = field(default_factory=dict)
    leases: dict[str, tuple[str, float]] = field(default_factory=dict)
    replayed: set[str] = field(default_factory=set)
    skipped: set[tuple[str, int]] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    cycles: int = 0
    taken_in_cycle: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        World.scheduler = self.scheduler
        _Current.objects = self.objects
        self.objects.watch = self.watch

    @property
    def storage(self) -> Storage:
        """A client of the lake."""
        return Storage(ROOT)

    @contextmanager
    def aside(self) -> Iterator[Storage]:
        """Read the lake for a check, without a switch to another task."""
        current, self.scheduler.current = self.scheduler.current, None
        try:
            yield self.storage
        finally:
            self.scheduler.current = current

    def watch(self, path: str, before: Stored | None, after: Stored | None) -> None:
        """Check the invariants that a change of an object can violate."""
        if path.endswith(".lock"):
            self._check_lease(path, before, after)
        elif path.startswith("Files/Monitoring/") and after is not None:
            document = json.loads(after.data)
            if not document.keys() & {"tables", "status"}:
                raise Violation(f"{path} has the wrong content")
        elif path.startswith(f"{TABLES}/") and "/_delta_log/" in path and after is not None:
            with self.aside() as storage:
                self.check_rows(storage, path.partition("/_delta_log/")[0])
        elif path.startswith(f"{TABLES}/") and after is None:
            folder, _, name = path.rpartition("/")
            with self.aside() as storage:
                found = read_snapshot(storage, folder, dropped=True)
                if found and name in live_parts(storage, folder, found.version):
                    raise Violation(f"{path} was deleted, but version {found.version} has it")

        elif path.startswith(f"{ZONE}/") and after is None and before is not None:
            self._check_file(path, before)

    def _check_file(self, path: str, before: Stored) -> None:
        """Check that no mirror deletes a file that is not applied yet."""
        folder, _, name = path.removeprefix(f"{ZONE}/").rpartition("/")
        number = file_number(name)
        by_mirror = self.scheduler.process.name.startswith(("mirror", "last"))
        if not by_mirror or number is None or "/" in folder:
            return
        with self.aside() as storage:
            copies = [one for one in self.objects.files.values() if one.data == before.data]
            if not copies and number > last_applied(storage, TableName.parse(folder)):
                raise Violation(f"{path} was deleted before it was applied")

    def _check_lease(self, path: str, before: Stored | None, after: Stored | None) -> None:
        holder = json.loads(before.data)["id"] if before else None
        if after is not None and before is not None and json.loads(after.data)["id"] != holder:
            age = (after.modified - before.modified).total_seconds()
            if age < TTL:
                raise Violation(f"{path} was taken {age} s after its last renewal")

    def resume(self) -> None:
        """Resume all tables, so that the last mirror applies everything."""
        with self.aside() as storage:
            former = [TableName.parse(name) for name in self.renamed]  # its pause moves with it
            for table in [*zone.published_tables(storage), *former]:
                resume(storage, table)

    def excuse(self, table: str) -> None:
        """Forget what an operator deletes: its batches may be in the table, but need not be."""
        for batch in self.batches.values():
            if batch.table == table:
                batch.excused = True

    def check_rows(self, storage: Storage, path: str) -> list[dict[str, Any]]:
        """Check that each batch is in a table once and completely; return the table's changes."""
        found = read_snapshot(storage, path, dropped=True)
        changes: list[dict[str, Any]] = []
        if found is None:
            return changes
        for part in live_parts(storage, path, found.version):
            changes += json.loads(storage.read(f"{path}/{part}"))
        times: Counter[str] = Counter()
        files: dict[tuple[str, int], list[str]] = {}
        for change in changes:
            times[change["id"]] += change["marker"] == Marker.INSERT
            batch = change["id"].partition("/")[0]
            files.setdefault((batch, change["number"]), []).append(change["id"])
        if twice := [one for one, count in times.items() if count > 1]:
            raise Violation(f"{path} has rows twice: {twice}")
        last: dict[str, int] = {}
        for (name, _), ids in files.items():
            batch = self.batches[name]
            if ids != [row["id"] for row in batch.rows]:
                raise Violation(f"{path} has a part of a batch: {ids}")
            if path not in self.replayed and batch.number < last.get(batch.writer, 0):
                raise Violation(f"{path} has batches of {batch.writer} in another order")
            last[batch.writer] = batch.number
        return changes

    def check_end(self) -> None:
        """Check the invariants of a lake after all processes have ended."""
        with self.aside() as storage:
            states = load_states(storage) or {}
            tables = sorted({name for b in self.batches.values() for name in self.family(b.table)})
            stopped = {one.name for one in states.values() if self._is_stopped_by_operator(one)}
            rows = {
                table: self._check_table(
                    storage, TableName.parse(table), is_stopped=table in stopped
                )
                for table in tables
            }
            document = storage.read_json("Files/Monitoring/tables.json")
            waiting = {(s.name, file) for s in states.values() for file in _waiting(storage, s)}
            folders = {str(table) for table in zone.published_tables(storage)}
        for name, batch in self.batches.items():
            ids = {row["id"] for row in batch.rows}
            found = [table for table in self.family(batch.table) if ids <= rows[table]]
            # Publishers must be stopped before their folder is renamed. Otherwise, a retry can
            # publish to both folders, and a cycle can read the new file of the same name.
            in_both = batch.table in self.renamed and folders.issuperset(self.family(batch.table))
            if len(found) > 1 and not in_both:
                raise Violation(f"the batch {name} is in {' and '.join(found)}")
            excused = batch.excused or bool(self.skipped and self._is_skipped(batch))
            # A folder that was deleted or renamed during publication can begin with another number
            # than 1. Its files wait, and the status names the missing one.
            if batch.table in self.taken:
                excused |= any((one, batch.file) in waiting for one in self.family(batch.table))
            excused |= not stopped.isdisjoint(self.family(batch.table))
            excused |= in_both and batch.table in self.taken_in_cycle
            if batch.acknowledged and not excused and not found:
                raise Violation(f"the acknowledged batch {name} is missing in {batch.table}")
        for state in states.values():
            if state.state == FAILED and state.name not in stopped:
                raise Violation(f"{state.table} is stopped: {state.error}")
        with self.aside() as storage:
            for table in delta_tables(storage):
                if storage.list(table.folder) == Listing((), ()):
                    raise Violation(f"{table} has no folder, but is not dropped")
        known = sorted(one["normalizedTableName"] for one in document["tables"])
        if known != sorted(state.name for state in states.values()):
            raise Violation(f"the monitoring files have {known}, the states {sorted(states)}")

    def family(self, table: str) -> list[str]:
        """Return the former and the current name of a table's folder."""
        return [table, *filter(None, [self.renamed.get(table)])]

    def _is_stopped_by_operator(self, state: TableState) -> bool:
        """Return whether a table is stopped, with an error that an operator's action explains."""
        error = state.error or {}
        message, number = error.get("message", ""), file_number(error.get("file") or "")
        if state.state != FAILED:
            return False
        skipped = {number for table, number in self.skipped if state.name in self.family(table)}
        if skipped and "no key column" in message:
            return True  # the only file is skipped, so no file has the columns yet
        # A publisher used a number that was skipped before the file existed.
        if number in skipped and "was replaced by other content" in message:
            return True
        # A folder was renamed, or deleted file by file, while it was published again.
        taken = any(state.name in self.family(table) for table in self.taken)
        named = ("was deleted after the folder was listed", "and can't become []")
        return taken and any(text in message for text in named)

    def _is_skipped(self, batch: Published) -> bool:
        """Return whether an operator skipped the file of a batch, or may have."""
        number = file_number(batch.file or "")
        return number is None or any((t, number) in self.skipped for t in self.family(batch.table))

    def _check_table(self, storage: Storage, table: TableName, *, is_stopped: bool) -> set[str]:
        """Check a table and its ledger; return the ids of its rows."""
        changes = self.check_rows(storage, table.table_path)
        if is_dropped(storage, table.table_path):
            return set()
        files = Counter((change["number"], change["file"]) for change in changes)
        ledger = {
            (entry.number, entry.file): sum(entry.rows.values())
            for entry in read_ledger(storage, table).entries
            if entry.version is not None and entry.skipped is None
        }
        mixed = any(str(table) == self.renamed.get(name) for name in self.taken_in_cycle)
        # A renamed folder was published meanwhile, or a table was stopped before its reseed.
        if dict(files) != ledger and not (mixed or is_stopped):
            raise Violation(f"{table} has {dict(files)}, but its ledger {ledger}")
        return {change["id"] for change in changes}
