"""Forgets a person: finds a key's rows in all that a table left behind, removes them, checks.

The table and its history, feed and log; dropped copies; the quarantine; published files, applied or
set aside. A file that is not applied yet stands in the way: it would bring the rows back.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import MirrorlakeError, SequenceError, TracesLeftError
from mirrorlake.landing.check import file_hash
from mirrorlake.landing.identity import Identity, read_identity
from mirrorlake.mirror.key_search import UNKNOWN, Tracer, delta_paths, read_key
from mirrorlake.mirror.lock import only_mirror
from mirrorlake.mirror.operator_settings import pause, read_settings, resume
from mirrorlake.mirror.plan import Plan, plan_of, plan_path, staging
from mirrorlake.mirror.purge import DeltaTraces, erase_rows, trace_delta
from mirrorlake.mirror.quarantine import QUARANTINE
from mirrorlake.names import (
    IDENTITY,
    METADATA,
    PROCESSED,
    READY_TO_DELETE,
    STATE,
    TableName,
    file_number,
)
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import quote
from mirrorlake.storage import Storage

_PATIENCE = 60  # seconds to wait for a running mirror


@dataclass(frozen=True)
class Trace:
    """What one place holds of the person.

    Attributes:
        where: the place.
        files: how many of its files.
        rows: how many rows these have; None where only their bytes or their log tell.
        action: what becomes of them.
    """

    where: str
    files: int
    rows: int | None
    action: str


@dataclass(frozen=True)
class Forgotten(Result):
    """What was found of a person, and whether it is gone.

    Attributes:
        traces: one for each place that holds something.
        applied: whether all of it was removed, and a second search found nothing.
        unreadable: the first and the last version that can't be read any more, or couldn't be
            after `apply`; None if the table itself needs nothing.
    """

    table: str
    traces: tuple[Trace, ...]
    applied: bool
    unreadable: tuple[int, int] | None

    def __repr__(self) -> str:
        if not self.traces:
            return f"{self.table}: nothing found"
        files = sum(trace.files for trace in self.traces)
        done = "gone, a second search found nothing" if self.applied else "nothing changed yet"
        lost = "" if self.unreadable is None else f", versions {self._versions} unreadable"
        return f"{self.table}: {files} files in {len(self.traces)} places, {done}{lost}"

    @property
    def _versions(self) -> str:
        return "" if self.unreadable is None else f"{self.unreadable[0]} to {self.unreadable[1]}"

    def document(self) -> dict[str, Any]:
        """Columns and rows, as `--json` prints them, and what it means for the table."""
        columns = list(Trace.__dataclass_fields__)
        return {
            "table": self.table,
            "applied": self.applied,
            "unreadable": None if self.unreadable is None else list(self.unreadable),
            "columns": columns,
            "rows": [{name: getattr(t, name) for name in columns} for t in self.traces],
        }

    def shown(self) -> TextTable:
        """What was found, place by place."""
        rows = tuple((t.where, t.files, t.rows, t.action) for t in self.traces)
        return TextTable(("where", "files", "rows", "action"), rows)


@dataclass(frozen=True)
class _Found:
    """All traces, as they are to be dealt with.

    Attributes:
        table: the Delta table, if there is one.
        dropped: the dropped copies of it that hold something.
        kept: rows by file, of applied files out of the way.
        in_place: the same of applied files that lie in the folder; publishers count on the last.
        aside: the same of files that a reseed set aside.
        staged: the same of what a killed mirror left.
        pending: the same of files that are not applied.
    """

    table: DeltaTraces | None
    dropped: tuple[DeltaTraces, ...]
    quarantine: DeltaTraces | None
    kept: dict[str, int]
    in_place: dict[str, int]
    aside: dict[str, int]
    staged: dict[str, int]
    pending: dict[str, int]


def forget(
    spark: SparkSession,
    storage: Storage,
    table: TableName,
    keys: Mapping[str, Any],
    *,
    apply: bool = False,
) -> Forgotten:
    """Says what holds a person's rows; with `apply` removes them and proves it by a second search.

    A forgetting that was killed harms nothing: run it again, then `resume` the table.

    Args:
        spark: the running session.
        storage: the lake's files.
        table: which table.
        keys: a value for each of its key columns.
        apply: whether anything is changed. Only the mirror may write to the table meanwhile.

    Raises:
        UsageError: the table has no keys, or the keys are not these.
        SequenceError: a file that is not applied yet holds the person; nothing has changed then.
        TracesLeftError: the second search found something.
        BusyError: a mirror works on the lake for too long.
    """
    key = read_key(spark, storage, table, keys)
    scratch = f"{STATE}/forgetting/{uuid.uuid4().hex}"
    tracer = Tracer(spark, storage, table, key, scratch)
    try:
        if not apply:
            return _report(table, _search(spark, storage, tracer), applied=False)
        with only_mirror(storage, _PATIENCE):
            return _apply(spark, storage, tracer)
    finally:
        storage.delete_folder(scratch)


def _apply(spark: SparkSession, storage: Storage, tracer: Tracer) -> Forgotten:
    table = tracer.table
    found = _search(spark, storage, tracer)
    if found.pending:
        raise SequenceError(
            f"{len(found.pending)} files that are not applied yet hold the person.",
            file=min(found.pending).rpartition("/")[2],
            hint="mirror the table, or delete these files; then forget.",
        )
    # Where there is no lock: a mirror must not take a file that is being replaced for a new one.
    was_paused = read_settings(storage, table).paused is not None
    pause(storage, table)
    _remove(spark, storage, tracer, found)
    if not was_paused:
        resume(storage, table)
    left = _report(table, _search(spark, storage, tracer), applied=False).traces
    if left:
        places = ", ".join(f"{trace.where} ({trace.files} files)" for trace in left)
        raise TracesLeftError(f"The person is still in {places}.", hint="forget once more.")
    return _report(table, found, applied=True)


def _search(spark: SparkSession, storage: Storage, tracer: Tracer) -> _Found:
    table = tracer.table
    own, *copies = (
        trace_delta(spark, storage, path, partial(tracer.in_delta, path))
        for path in delta_paths(storage, table)
    )
    quarantine = trace_delta(spark, storage, QUARANTINE, tracer.in_quarantine)
    if quarantine is not None and not (quarantine.current or quarantine.history):
        quarantine = None  # its log tells of other tables' rows, too
    identity = read_identity(storage, table)
    kept, aside, staged = (
        tracer.in_zone(file for folder in folders for file in _files(storage, folder))
        for folders in (
            [f"{table.folder}/{PROCESSED}", f"{table.folder}/{READY_TO_DELETE}"],
            _set_aside(storage, table),
            [staging(identity)] if identity else [],
        )
    )
    here = tracer.in_zone(
        file
        for file in _files(storage, table.folder)
        if file.rpartition("/")[2] not in (METADATA, IDENTITY)
    )
    applied = {
        file
        for file in here
        if identity is not None and _plan_with(storage, tracer, identity, file) is not None
    }
    return _Found(
        own,
        tuple(copy for copy in copies if copy is not None and copy.found),
        quarantine,
        kept,
        {file: rows for file, rows in here.items() if file in applied},
        aside,
        staged,
        {file: rows for file, rows in here.items() if file not in applied},
    )


def _files(storage: Storage, folder: str) -> list[str]:
    return [f"{folder}/{entry.name}" for entry in storage.list(folder).files]


def _set_aside(storage: Storage, table: TableName) -> list[str]:
    base = f"{STATE}/reseeded/{table.place}"
    return [
        f"{base}/{stamp}{inner}"
        for stamp in storage.list(base).folders
        for inner in ("", f"/{PROCESSED}", f"/{READY_TO_DELETE}")
    ]


def _plan_with(storage: Storage, tracer: Tracer, identity: Identity, file: str) -> Plan | None:
    """The plan by which a file in the folder was applied; None if it is not applied."""
    name = file.rpartition("/")[2]
    snapshot = read_snapshot(storage, identity.table.table_path)
    last = snapshot.txns.get(identity.app_id, 0) if snapshot else 0
    plan = plan_of(storage, identity, min(last, file_number(name) or last)) if last else None
    planned = next((f for f in plan.files if f.name == name), None) if plan else None
    if planned is None:
        return None
    if planned.sha256 == file_hash(storage, file):
        return plan
    # A forgetting may have been killed between the plan's renewal and the file's.
    return plan if planned.sha256 == sha256(_without(storage, tracer, file)).hexdigest() else None


def _report(table: TableName, found: _Found, *, applied: bool) -> Forgotten:
    traces = []
    deltas = [("table", [found.table]), ("dropped copies", found.dropped)]
    for name, parts in [*deltas, ("quarantine", [found.quarantine])]:
        some = [part for part in parts if part is not None]
        of = "" if name == "table" else f" of {name}"
        traces += [
            _trace(name, (p.current for p in some), "rows deleted in one commit"),
            _trace(f"history{of}", (p.history for p in some), "files deleted by VACUUM"),
            _trace(f"change feed{of}", (p.feed for p in some), "files deleted by VACUUM"),
        ]
        if logs := sum(len(part.log) for part in some):
            traces.append(Trace(f"log{of}", logs, None, "cut back to a checkpoint of now"))
    rewritten = "rewritten without the rows; text is deleted"
    traces += [
        _trace("applied files", [found.kept], rewritten),
        _trace("applied files in place", [found.in_place], "rewritten without them; text emptied"),
        _trace("files set aside", [found.aside], rewritten),
        _trace("staged files", [found.staged], "deleted"),
        _trace("pending files", [found.pending], "in the way: mirror or delete them first"),
    ]
    own = found.table
    lost = (own.versions[0], own.versions[-1]) if own and own.found and own.versions else None
    return Forgotten(str(table), tuple(t for t in traces if t.files), applied, lost)


def _trace(where: str, parts: Iterable[dict[str, int]], action: str) -> Trace:
    rows = [count for part in parts for count in part.values()]
    return Trace(where, len(rows), None if UNKNOWN in rows else sum(rows), action)


def _remove(spark: SparkSession, storage: Storage, tracer: Tracer, found: _Found) -> None:
    for file in [*found.kept, *found.aside]:
        if data := _without(storage, tracer, file):
            storage.write(file, data)
        else:
            storage.delete(file)
    for file in found.staged:
        storage.delete(file)
    identity = read_identity(storage, tracer.table)
    for file in found.in_place:
        if identity is not None:
            _renew(storage, tracer, identity, file)
    condition = " AND ".join(f"{quote(part.column)} <=> {part.sql}" for part in tracer.key)
    columns = [part.column for part in tracer.key]
    for traces in (found.table, *found.dropped):
        if traces is not None and traces.found:
            erase_rows(spark, storage, traces, columns, condition)
    if found.quarantine is not None:
        columns = ["schema", "table", "content"]
        erase_rows(spark, storage, found.quarantine, columns, tracer.quarantine_condition())


def _renew(storage: Storage, tracer: Tracer, identity: Identity, file: str) -> None:
    """Replaces an applied file that has to stay, and renews its plan: it is not applied again."""
    plan = _plan_with(storage, tracer, identity, file)
    if plan is None:
        return
    data = _without(storage, tracer, file)
    name, digest = file.rpartition("/")[2], sha256(data).hexdigest()
    files = tuple(
        replace(planned, size=len(data), sha256=digest) if planned.name == name else planned
        for planned in plan.files
    )
    renewed = replace(plan, files=files)
    storage.write_json(plan_path(identity, plan.first), renewed.document())
    storage.write(file, data)


def _without(storage: Storage, tracer: Tracer, file: str) -> bytes:
    """A Parquet file without the person's rows; nothing of text, or of what can't be read.

    An empty file is refused by replay and reseed; one that silently lacks other people's rows
    would not be.
    """
    try:
        gone = tracer.positions(file)
        with storage.open(file) as source, pq.ParquetFile(source) as parquet:
            sink = io.BytesIO()
            with pq.ParquetWriter(sink, parquet.schema_arrow, compression="zstd") as writer:
                before = 0
                for batch in parquet.iter_batches():
                    here = pa.array(range(before, before + batch.num_rows), pa.int64())
                    before += batch.num_rows
                    is_gone = pc.is_in(here, value_set=pa.array(gone, pa.int64()))
                    writer.write_batch(batch.filter(pc.invert(is_gone)))
            return sink.getvalue()
    except (pa.ArrowException, OSError, MirrorlakeError):
        return b""
