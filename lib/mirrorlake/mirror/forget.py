"""Forgets a person: finds a key's rows in all that a table left behind, removes them, checks.

The table and its history, feed and log; dropped copies; the quarantine; published files, applied or
set aside. A file that is not applied yet stands in the way: it would bring the rows back.

Values never get into a statement that the log writes down: rows are deleted by a MERGE with a
view of them. The log is cut back to a checkpoint, since its statistics hold values of files that
are long gone.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.delta.files import release_files
from mirrorlake.delta.log_files import cut_before_checkpoint
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import committing
from mirrorlake.errors import MirrorlakeError, SequenceError, TracesLeftError
from mirrorlake.landing.metadata import Identity, read_identity
from mirrorlake.mirror.apply import commit_with_retries
from mirrorlake.mirror.key_search import UNKNOWN, DeltaTraces, Tracer, delta_paths, read_key
from mirrorlake.mirror.ledger import QUARANTINE
from mirrorlake.mirror.options import paused
from mirrorlake.mirror.plan import Plan, is_as_planned, plan_of, rewrite_plan, staging
from mirrorlake.mirror.shards import only_mirror
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
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, literal, quote, temporary_view
from mirrorlake.storage.files import Storage

_PATIENCE = 60  # seconds to wait for a running mirror
_INTERVAL = "delta.checkpointInterval"
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


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
        lost = ""
        if self.unreadable is not None:
            lost = f", versions {self.unreadable[0]} to {self.unreadable[1]} unreadable"
        return f"{self.table}: {files} files in {len(self.traces)} places, {done}{lost}"

    def document(self) -> dict[str, Any]:
        """Columns and rows, as `--json` prints them, and what it means for the table."""
        lost = None if self.unreadable is None else list(self.unreadable)
        facts = {"table": self.table, "applied": self.applied, "unreadable": lost}
        return facts | self.shown().document()

    def shown(self) -> TextTable:
        """What was found, place by place."""
        return TextTable.of(self.traces, tuple(Trace.__dataclass_fields__))


_REWRITTEN = "rewritten without the rows; text is deleted"
_KEPT, _ASIDE, _STAGED = "applied files", "files set aside", "staged files"
_IN_PLACE, _PENDING = "applied files in place", "pending files"
# What becomes of the files of each place in the zone; publishers count on the last one in place.
_ACTIONS = {
    _KEPT: _REWRITTEN,
    _IN_PLACE: "rewritten without them; text emptied",
    _ASIDE: _REWRITTEN,
    _STAGED: "deleted",
    _PENDING: "in the way: mirror or delete them first",
}


@dataclass(frozen=True)
class _Found:
    """All traces, as they are to be dealt with.

    Attributes:
        deltas: the Delta tables that hold something: `table`, `dropped copies`, `quarantine`.
        files: rows by file, of each place in the zone.
    """

    deltas: dict[str, list[DeltaTraces]]
    files: dict[str, dict[str, int]]


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
            return _report(table, _search(tracer), applied=False)
        with only_mirror(storage, _PATIENCE):
            return _apply(tracer)
    finally:
        storage.delete_folder(scratch)


def _apply(tracer: Tracer) -> Forgotten:
    table = tracer.table
    found = _search(tracer)
    if pending := found.files[_PENDING]:
        raise SequenceError(
            f"{len(pending)} files that are not applied yet hold the person.",
            file=min(pending).rpartition("/")[2],
            hint="mirror the table, or delete these files; then forget.",
        )
    # Where there is no lock: a mirror must not take a file that is being replaced for a new one.
    with paused(tracer.storage, table):
        _remove(tracer, found)
    left = _report(table, _search(tracer), applied=False).traces
    if left:
        places = ", ".join(f"{trace.where} ({trace.files} files)" for trace in left)
        raise TracesLeftError(f"The person is still in {places}.", hint="forget once more.")
    return _report(table, found, applied=True)


def _search(tracer: Tracer) -> _Found:
    storage, table = tracer.storage, tracer.table
    own, *copies = map(tracer.in_table, delta_paths(storage, table))
    quarantine = tracer.in_table(QUARANTINE)
    deltas = {
        "table": [own] if own and own.found else [],
        "dropped copies": [copy for copy in copies if copy and copy.found],
        # Its log tells of other tables' rows, too.
        "quarantine": [quarantine] if quarantine and quarantine.has_rows else [],
    }
    identity = read_identity(storage, table)
    folders = {
        _KEPT: [f"{table.folder}/{PROCESSED}", f"{table.folder}/{READY_TO_DELETE}"],
        _ASIDE: _set_aside(storage, table),
        _STAGED: [staging(identity)] if identity else [],
        _PENDING: [table.folder],
    }
    own_files = {f"{table.folder}/{name}" for name in (METADATA, IDENTITY)}
    files = {
        place: tracer.in_zone(
            file
            for folder in inside
            for entry in storage.list(folder).files
            if (file := f"{folder}/{entry.name}") not in own_files
        )
        for place, inside in folders.items()
    }
    files[_IN_PLACE] = {
        file: rows
        for file, rows in files[_PENDING].items()
        if identity is not None and _plan_with(tracer, identity, file) is not None
    }
    for file in files[_IN_PLACE]:
        del files[_PENDING][file]
    return _Found(deltas, files)


def _set_aside(storage: Storage, table: TableName) -> list[str]:
    base = f"{STATE}/reseeded/{table.place}"
    return [
        f"{base}/{stamp}{inner}"
        for stamp in storage.list(base).folders
        for inner in ("", f"/{PROCESSED}", f"/{READY_TO_DELETE}")
    ]


def _plan_with(tracer: Tracer, identity: Identity, file: str) -> Plan | None:
    """The plan by which a file in the folder was applied; None if it is not applied."""
    storage, name = tracer.storage, file.rpartition("/")[2]
    snapshot = read_snapshot(storage, identity.table.table_path)
    last = snapshot.txns.get(identity.app_id, 0) if snapshot else 0
    plan = plan_of(storage, identity, min(last, file_number(name) or last)) if last else None
    planned = plan.file(name) if plan else None
    if planned is None:
        return None
    entry = storage.stat(file)
    if entry is not None and is_as_planned(storage, identity, plan, entry):
        return plan
    # A forgetting may have been killed between the plan's renewal and the file's.
    return plan if planned.sha256 == sha256(_without(tracer, file)).hexdigest() else None


def _report(table: TableName, found: _Found, *, applied: bool) -> Forgotten:
    traces = []
    for name, parts in found.deltas.items():
        of = "" if name == "table" else f" of {name}"
        traces += [
            _trace(name, (p.current for p in parts), "rows deleted in one commit"),
            _trace(f"history{of}", (p.history for p in parts), "files deleted by VACUUM"),
            _trace(f"change feed{of}", (p.feed for p in parts), "files deleted by VACUUM"),
        ]
        if logs := sum(len(part.log) for part in parts):
            traces.append(Trace(f"log{of}", logs, None, "cut back to a checkpoint of now"))
    traces += [_trace(place, [found.files[place]], action) for place, action in _ACTIONS.items()]
    seen = [own.versions for own in found.deltas["table"] if own.versions]
    lost = (seen[0][0], seen[0][-1]) if seen else None
    return Forgotten(str(table), tuple(t for t in traces if t.files), applied, lost)


def _trace(where: str, parts: Iterable[dict[str, int]], action: str) -> Trace:
    rows = [count for part in parts for count in part.values()]
    return Trace(where, len(rows), None if UNKNOWN in rows else sum(rows), action)


def _remove(tracer: Tracer, found: _Found) -> None:
    storage = tracer.storage
    for file in [*found.files[_KEPT], *found.files[_ASIDE]]:
        if data := _without(tracer, file):
            storage.write(file, data)
        else:
            storage.delete(file)
    for file in found.files[_STAGED]:
        storage.delete(file)
    identity = read_identity(storage, tracer.table)
    for file in found.files[_IN_PLACE]:
        if identity is not None:
            _renew(tracer, identity, file)
    condition = " AND ".join(f"{quote(part.column)} <=> {part.sql}" for part in tracer.key)
    columns = [part.column for part in tracer.key]
    for traces in [*found.deltas["table"], *found.deltas["dropped copies"]]:
        _erase_rows(tracer, traces, columns, condition)
    for traces in found.deltas["quarantine"]:
        columns = ["schema", "table", "content"]
        _erase_rows(tracer, traces, columns, tracer.quarantine_condition())


def _renew(tracer: Tracer, identity: Identity, file: str) -> None:
    """Replaces an applied file that has to stay, and renews its plan: it is not applied again."""
    plan = _plan_with(tracer, identity, file)
    if plan is None:
        return
    data = _without(tracer, file)
    name, digest = file.rpartition("/")[2], sha256(data).hexdigest()
    files = tuple(
        replace(planned, size=len(data), sha256=digest, etag=None)
        if planned.name == name
        else planned
        for planned in plan.files
    )
    rewrite_plan(tracer.storage, identity, replace(plan, files=files))
    tracer.storage.write(file, data)


def _without(tracer: Tracer, file: str) -> bytes:
    """A Parquet file without the person's rows; nothing of text, or of what can't be read.

    An empty file is refused by replay and reseed; one that silently lacks other people's rows
    would not be.
    """
    try:
        gone = tracer.positions(file)
        with tracer.storage.open(file) as source, pq.ParquetFile(source) as parquet:
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


def _erase_rows(tracer: Tracer, traces: DeltaTraces, columns: list[str], condition: str) -> None:
    """Deletes rows in one commit, then whatever file still has them, and the log up to then.

    Every version before is unreadable afterwards. Nothing else may write to the table meanwhile:
    VACUUM takes the files of a write that isn't committed yet for old ones.

    Args:
        tracer: says which lake.
        traces: what was found of the table.
        columns: columns that tell the rows from all others.
        condition: SQL that is true of the rows.
    """
    session, storage = new_session(tracer.spark), tracer.storage
    # On this session alone: VACUUM must not spare the newest past.
    session.conf.set(_RETENTION_CHECK, "false")
    target = delta_name(storage.path(traces.path))
    if traces.current:
        commit_with_retries(lambda: _delete(session, target, columns, condition))
    snapshot = read_snapshot(storage, traces.path, dropped=True)
    if snapshot and "deletionVectors" in snapshot.writer_features:
        # A deletion vector hides rows that its file still has.
        if "clustering" in snapshot.writer_features:
            path = storage.path(traces.path)
            release_files(session, path, lambda files: files.where("deletionVector IS NOT NULL"))
        session.sql(f"REORG TABLE {target} APPLY (PURGE)").collect()
    # The log first: after a kill in between the files are found, and all of it is done again.
    _cut_log(session, storage, traces.path)
    session.sql(f"VACUUM {target} RETAIN 0 HOURS").collect()


def _delete(session: SparkSession, target: str, columns: list[str], condition: str) -> None:
    names = [quote(name) for name in columns]
    rows = session.sql(f"SELECT DISTINCT {', '.join(names)} FROM {target} WHERE {condition}")
    on = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
    with temporary_view(rows) as view:
        session.sql(f"MERGE INTO {target} t USING {view} s ON {on} WHEN MATCHED THEN DELETE")


def _cut_log(session: SparkSession, storage: Storage, path: str) -> None:
    """Lets the log begin with a checkpoint of now; the mirror's last note goes along."""
    target = delta_name(storage.path(path))
    snapshot = read_snapshot(storage, path, dropped=True)
    before = snapshot.properties.get(_INTERVAL) if snapshot else None
    with committing(session, _last_note(storage, path)):
        session.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(_INTERVAL)} = '1')")
    cut_before_checkpoint(storage, path)
    if before in (None, "1"):  # only a forgetting that was killed leaves a 1 behind
        change = f"UNSET TBLPROPERTIES ({literal(_INTERVAL)})"
    else:
        change = f"SET TBLPROPERTIES ({literal(_INTERVAL)} = {literal(before)})"
    session.sql(f"ALTER TABLE {target} {change}")


def _last_note(storage: Storage, path: str) -> str:
    """What the mirror's last commit says of itself, so that state and ledger can be rebuilt."""
    for version in reversed(versions(storage, path)):
        text = read_commit_info(storage, path, version).get("userMetadata") or ""
        if '"incarnation"' in text:
            return str(text)
    return ""
