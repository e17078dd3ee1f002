"""Find and delete all data of one key: in the table, its history, change feed, log and files.

The search covers the Delta table, dropped copies of it, the quarantine, and published files,
whether they are applied or set aside. It reads all files on disk, not only those in the newest
snapshot: a file that the log has removed, or rows that a deletion vector hides, still hold data. A
pending file with the key is an error, because the next cycle would write the rows again. A file
that can't be read can't be searched: the report names it, and `apply` fails but keeps it.

Key values are never part of a statement that the Delta log records: a MERGE with a temporary view
deletes the rows. The log is truncated up to a new checkpoint, because the statistics in older
entries contain values of deleted files. Logs of row histories are deleted, and logs of frames lose
such statistics. The report does not list these two places.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.actions import encode, named_files, rewrite_files
from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.delta.log_files import Action, commit_path, cut_before_checkpoint
from mirrorlake.delta.purge import purge_apart
from mirrorlake.delta.snapshot import missing_table, physical_names, read_snapshot
from mirrorlake.delta.table import committing
from mirrorlake.errors import (
    MirrorlakeError,
    SchemaError,
    SequenceError,
    TracesLeftError,
    UsageError,
)
from mirrorlake.landing.check import inspect_file, is_text
from mirrorlake.landing.manifest import MANIFEST
from mirrorlake.landing.metadata import Identity, TableMetadata, read_identity, read_metadata
from mirrorlake.landing.text import open_decompressed
from mirrorlake.landing.types import ColumnType, column_type, published_schema
from mirrorlake.mirror.batch import published_reader
from mirrorlake.mirror.ledger import QUARANTINE
from mirrorlake.mirror.next_batch import Plan, is_as_planned, plan_of, rewrite_plan, staging
from mirrorlake.mirror.options import declared_keys, paused
from mirrorlake.mirror.state import mirror_lease
from mirrorlake.mirror.trash import dropped_tables
from mirrorlake.names import (
    FRAMES,
    IDENTITY,
    METADATA,
    PROCESSED,
    READY_TO_DELETE,
    ROW_FILES,
    STATE,
    TableName,
    file_number,
    quote,
)
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, escape_glob, literal, retry_conflicts, temporary_view
from mirrorlake.storage.files import Storage

UNKNOWN = -1  # the row count of a text file that can't be parsed and contains the key's texts
UNSEARCHABLE = -2  # the row count of a file that can't be read
_BY_TEXT = ("binary", "boolean")  # Spark casts these to few types, but text to all types
_Condition = tuple[str, str]  # the columns to read, and the SQL condition of matching rows
_PARQUET = b"PAR1"  # the first bytes of a Parquet file
_PATIENCE = 60  # seconds to wait for a running mirror
_INTERVAL = "delta.checkpointInterval"
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_REWRITTEN = "rewritten without the rows; text is deleted"
_KEPT, _ASIDE, _STAGED = "applied files", "files set aside", "staged files"
_IN_PLACE, _PENDING = "applied files in place", "pending files"
_UNSEARCHABLE = "can't be searched: repair or delete it"
# The action for the files of each place. Publishers need the last applied file for numbering.
_ACTIONS = {
    _KEPT: _REWRITTEN,
    _IN_PLACE: "rewritten without them; text emptied",
    _ASIDE: _REWRITTEN,
    _STAGED: "deleted",
    _PENDING: "in the way: mirror or delete them first",
}


@dataclass(frozen=True)
class Trace:
    """The data of a key in one place.

    Attributes:
        where: the place, or the path of a file that can't be searched.
        files: the number of files with data of the key, or 1 for a file that can't be searched.
        rows: the number of matching rows; None if it is unknown.
        action: the action for these files.
    """

    where: str
    files: int
    rows: int | None
    action: str


@dataclass(frozen=True)
class Forgotten(Result):
    """The data of a key that was found, and whether it is deleted.

    Attributes:
        table: the table's name.
        traces: one entry for each place with data of the key, and for each file that can't be
            searched.
        applied: whether all data was deleted and a second search found nothing.
        unreadable: the first and the last version that can't be read after `apply`; None if the
            Delta table has no data of the key.
    """

    table: str
    traces: tuple[Trace, ...]
    applied: bool
    unreadable: tuple[int, int] | None

    def __repr__(self) -> str:
        if not self.traces:
            return f"{self.table}: nothing found"
        files = counted(sum(trace.files for trace in self.traces), "file")
        places = counted(len(self.traces), "place")
        done = "deleted, a second search found nothing" if self.applied else "nothing changed yet"
        lost = ""
        if self.unreadable is not None:
            lost = f", versions {self.unreadable[0]} to {self.unreadable[1]} unreadable"
        return f"{self.table}: {files} in {places}, {done}{lost}"

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        lost = None if self.unreadable is None else list(self.unreadable)
        facts = {"table": self.table, "applied": self.applied, "unreadable": lost}
        return facts | self.shown().document()

    def shown(self) -> TextTable:
        """Return one row per place."""
        return TextTable.of(self.traces, tuple(Trace.__dataclass_fields__))


@dataclass(frozen=True)
class _Found:
    """The result of a search.

    Attributes:
        deltas: the Delta tables with data of the key: `table`, `dropped copies`, `quarantine`.
        files: the number of matching rows per file, for each place in the landing zone.
        unsearchable: the files that can't be read.
    """

    deltas: dict[str, list[DeltaTraces]]
    files: dict[str, dict[str, int]]
    unsearchable: list[str]


def forget(
    spark: SparkSession,
    storage: Storage,
    table: TableName,
    keys: Mapping[str, Any],
    *,
    apply: bool = False,
) -> Forgotten:
    """Find all data of a key and, with `apply`, delete it and verify that with a second search.

    An interrupted call is safe: run it again, then resume the table.

    Args:
        spark: the running session.
        storage: the lake's files.
        table: the table's name.
        keys: a value for each key column.
        apply: delete the data. By default, only search. Only the mirror may write to the table
            during the call.

    Raises:
        UsageError: The table has no keys, `keys` names other columns, or a key column is a
            partition column.
        SequenceError: A pending file contains the key. Nothing has changed.
        TracesLeftError: The second search found data, or a file can't be searched.
        BusyError: A mirror of the lake did not finish within 60 seconds.
    """
    key = read_key(spark, storage, table, keys)
    scratch = f"{STATE}/forgetting/{uuid.uuid4().hex}"
    tracer = Tracer(spark, storage, table, key, scratch)
    try:
        if not apply:
            return _report(table, _search(tracer), applied=False)
        with mirror_lease(storage, _PATIENCE):
            return _apply(tracer)
    finally:
        storage.delete_folder(scratch)


def _apply(tracer: Tracer) -> Forgotten:
    table = tracer.table
    found = _search(tracer)
    if pending := found.files[_PENDING]:
        verb = "contains" if len(pending) == 1 else "contain"
        first = min(pending).rpartition("/")[2]
        way = "mirror the table, or delete these files"
        if first == MANIFEST:  # the mirror does not apply it
            way = "let the publisher write its manifest again, or delete it"
        raise SequenceError(
            f"{counted(len(pending), 'pending file')} {verb} the key.",
            file=first,
            hint=f"{way}; then forget the key again.",
        )
    # A mirror without a lease must not apply a replaced file as a new one.
    with paused(tracer.storage, table):
        _remove(tracer, found)
    again = _search(tracer)
    left = _report(table, replace(again, unsearchable=[]), applied=False).traces
    if left:
        places = ", ".join(f"{trace.where} ({counted(trace.files, 'file')})" for trace in left)
        raise TracesLeftError(
            f"{table} still has data of the key in {places}.", hint="forget the key again."
        )
    if again.unsearchable:
        named = ", ".join(again.unsearchable)
        raise TracesLeftError(
            f"{table} has files that can't be searched: {named}. All other data is deleted.",
            hint="repair or delete each of these files; then forget the key again.",
        )
    return _report(table, found, applied=True)


def _search(tracer: Tracer) -> _Found:
    storage, table = tracer.storage, tracer.table
    own, *copies = map(tracer.in_table, delta_paths(storage, table))
    quarantine = tracer.in_table(QUARANTINE)
    deltas = {
        "table": [own] if own and own.found else [],
        "dropped copies": [copy for copy in copies if copy and copy.found],
        # Its log alone is no trace: the log also describes rows of other tables.
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
    unsearchable = []
    for rows in files.values():
        for file in [file for file, count in rows.items() if count == UNSEARCHABLE]:
            del rows[file]
            unsearchable.append(file)
    files[_IN_PLACE] = {
        file: rows
        for file, rows in files[_PENDING].items()
        if identity is not None and _plan_with(tracer, identity, file) is not None
    }
    for file in files[_IN_PLACE]:
        del files[_PENDING][file]
    return _Found(deltas, files, unsearchable)


def _set_aside(storage: Storage, table: TableName) -> list[str]:
    base = f"{STATE}/reseeded/{table.place}"
    return [
        f"{base}/{stamp}{inner}"
        for stamp in storage.list(base).folders
        for inner in ("", f"/{PROCESSED}", f"/{READY_TO_DELETE}")
    ]


def _plan_with(tracer: Tracer, identity: Identity, file: str) -> Plan | None:
    """Return the plan with which a file in the folder was applied, or `None`."""
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
    # An interrupted call may have updated the plan, but not the file.
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
            traces.append(Trace(f"log{of}", logs, None, "truncated up to a new checkpoint"))
    traces += [_trace(place, [found.files[place]], action) for place, action in _ACTIONS.items()]
    traces += [Trace(file, 1, None, _UNSEARCHABLE) for file in found.unsearchable]
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
    delete_row_files(storage, delta_paths(storage, tracer.table))
    identity = read_identity(storage, tracer.table)
    for file in found.files[_IN_PLACE]:
        if identity is not None:
            _replace_in_place(tracer, identity, file)
    condition = " AND ".join(f"{quote(part.column)} <=> {part.sql}" for part in tracer.key)
    columns = [part.column for part in tracer.key]
    for traces in [*found.deltas["table"], *found.deltas["dropped copies"]]:
        _erase_rows(tracer, traces, columns, condition)
    for traces in found.deltas["quarantine"]:
        columns = ["schema", "table", "content"]
        _erase_rows(tracer, traces, columns, tracer.quarantine_condition())
    strip_frames(storage, delta_paths(storage, tracer.table))


def delete_row_files(storage: Storage, paths: Iterable[str]) -> None:
    """Delete the temporary logs that name files of tables, given by their paths in the lake.

    They contain values of partitions; those of earlier versions also contain values of columns.
    """
    named = [f"/{encode(path)}/".encode() for path in paths]
    for file in storage.files_below(ROW_FILES):
        data = storage.read(file)
        if any(path in data for path in named):
            storage.delete(file)


def strip_frames(storage: Storage, paths: Iterable[str]) -> None:
    """Delete the statistics of files that no longer exist from the logs of frames.

    Args:
        storage: the lake's files.
        paths: the paths of the framed tables in the lake.
    """
    files = storage.files_below(FRAMES)
    for path in paths:
        strip = partial(_strip_statistics, path, frozenset(storage.files_below(path)))
        named = f"/{encode(path)}/".encode()
        for file in files:
            table = file.partition("/_delta_log/")[0]
            if file == commit_path(table, 0) and named in storage.read(file):
                rewrite_files(storage, table, strip)


def _strip_statistics(path: str, present: frozenset[str], add: Action) -> None:
    _, found, name = add["path"].partition(f"/{encode(path)}/")
    if found and f"{path}/{unquote(name)}" not in present:
        add.pop("stats", None)


def _replace_in_place(tracer: Tracer, identity: Identity, file: str) -> None:
    """Replace an applied file that must stay, and update its plan, so it is not applied again."""
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
    """Return a Parquet file without the key's rows; empty for text or a damaged file.

    Replay and reseed reject an empty file. They would not notice if rows of other keys were lost.
    """
    try:
        gone = tracer.positions(file)
        with tracer.storage.open(file) as source, pq.ParquetFile(source) as parquet:
            sink = io.BytesIO()
            # A source continues at the position; the token makes publishing idempotent.
            carried = dict(parquet.metadata.metadata or {})
            carried.pop(b"ARROW:schema", None)
            schema = parquet.schema_arrow.remove_metadata()
            with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
                writer.add_key_value_metadata(carried)
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
    """Delete rows in one commit, then all files that contain them, and the older log.

    Earlier versions can't be read afterwards. Nothing else may write to the table during the call,
    because VACUUM deletes the files of uncommitted writes, too.

    Args:
        tracer: the search, which has the lake and the session.
        traces: the data found in the table.
        columns: columns that identify the rows.
        condition: the SQL condition of the rows.
    """
    session, storage = new_session(tracer.spark), tracer.storage
    # Set in this session only: VACUUM must delete the newest removed files, too.
    session.conf.set(_RETENTION_CHECK, "false")
    path = storage.path(traces.path)
    target = delta_name(path)
    if traces.current:
        retry_conflicts(lambda: _delete(session, target, columns, condition))
    snapshot = read_snapshot(storage, traces.path, dropped=True)
    if snapshot and "deletionVectors" in snapshot.writer_features:
        # A deletion vector hides rows that are still in the file. REORG skips some files.
        purge_apart(session, path, lambda files: files.where("deletionVector IS NOT NULL"))
        retry_conflicts(lambda: session.sql(f"REORG TABLE {target} APPLY (PURGE)").collect())
    # The log first: after a kill before VACUUM, the next call finds the files and repeats all.
    _cut_log(session, storage, traces.path)
    session.sql(f"VACUUM {target} RETAIN 0 HOURS").collect()


def _delete(session: SparkSession, target: str, columns: list[str], condition: str) -> None:
    names = [quote(name) for name in columns]
    rows = session.sql(f"SELECT DISTINCT {', '.join(names)} FROM {target} WHERE {condition}")
    on = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
    with temporary_view(rows) as view:
        session.sql(f"MERGE INTO {target} t USING {view} s ON {on} WHEN MATCHED THEN DELETE")


def _cut_log(session: SparkSession, storage: Storage, path: str) -> None:
    """Truncate the log up to a new checkpoint; keep the metadata of the mirror's last commit."""
    target = delta_name(storage.path(path))
    snapshot = read_snapshot(storage, path, dropped=True)
    before = snapshot.properties.get(_INTERVAL) if snapshot else None
    with committing(session, _last_note(storage, path)):
        session.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(_INTERVAL)} = '1')")
    cut_before_checkpoint(storage, path)
    if before in (None, "1"):  # an interrupted call leaves a 1
        change = f"UNSET TBLPROPERTIES ({literal(_INTERVAL)})"
    else:
        change = f"SET TBLPROPERTIES ({literal(_INTERVAL)} = {literal(before)})"
    session.sql(f"ALTER TABLE {target} {change}")


def _last_note(storage: Storage, path: str) -> str:
    """Return the metadata of the mirror's last commit, to rebuild state and ledger from it."""
    for version in reversed(versions(storage, path)):
        text = read_commit_info(storage, path, version).get("userMetadata") or ""
        if '"incarnation"' in text:
            return str(text)
    return ""


@dataclass(frozen=True)
class KeyPart:
    """The value of a key column as text, with the column's type in the table."""

    column: str
    kind: str
    text: str

    @property
    def sql(self) -> str:
        """The value as SQL, in the column's type."""
        return f"CAST({literal(self.text)} AS {self.kind})"


Key = tuple[KeyPart, ...]


def key_columns(storage: Storage, table: TableName) -> dict[str, str]:
    """Return the key columns of a table, or of a dropped copy of it, with their types.

    Raises:
        TableNotFoundError: Neither the table nor a dropped copy exists.
        UsageError: The table has no keys.
    """
    for path in delta_paths(storage, table):
        snapshot = read_snapshot(storage, path, dropped=True)
        if snapshot is None:
            continue
        keys = declared_keys(snapshot.properties)
        by_lower = {name.lower(): (name, kind) for name, kind in snapshot.schema.items()}
        if not keys:
            raise UsageError(
                f"{table} has no keys, so rows can't be found by key.",
                hint="delete the rows with SQL, then vacuum the table.",
            )
        return dict(by_lower[key.lower()] for key in keys)
    raise missing_table(table)


def delta_paths(storage: Storage, table: TableName) -> list[str]:
    """Return the paths of a table and of its dropped copies, relative to the lake's root."""
    copies = [d.path for d in dropped_tables(storage) if d.table == table]
    return list(dict.fromkeys([table.table_path, *copies]))


def read_key(
    spark: SparkSession, storage: Storage, table: TableName, keys: Mapping[str, Any]
) -> Key:
    """Return the key to search for, with each value checked against its column's type.

    Raises:
        UsageError: `keys` does not name exactly the key columns, or a value is not of its type.
    """
    columns = key_columns(storage, table)
    given = {name.lower(): value for name, value in keys.items()}
    if given.keys() != {name.lower() for name in columns} or len(given) != len(keys):
        raise UsageError(
            f"The columns {', '.join(map(repr, keys))} are not the key of {table}.",
            hint=f"give a value for each of {', '.join(map(repr, columns))}, and no other column.",
        )
    key = tuple(KeyPart(name, kind, str(given[name.lower()])) for name, kind in columns.items())
    tried = [f"TRY_CAST({literal(part.text)} AS {part.kind}) IS NULL" for part in key]
    row = new_session(spark).sql(f"SELECT {', '.join(tried)}").first()
    for part, is_null in zip(key, row or (), strict=True):
        if is_null or given[part.column.lower()] is None:
            raise UsageError(f"The value given for {part.column!r} is not of type {part.kind}.")
    return key


def parse_key(texts: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Parse `column=value` texts; both the column and the value may contain equals signs.

    Raises:
        UsageError: A text does not start with one of the columns, or a column is given twice.
    """
    found: dict[str, str] = {}
    names = sorted(columns, key=len, reverse=True)
    for text in texts:
        name = next((n for n in names if text.lower().startswith(f"{n.lower()}=")), None)
        if name is None or name in found:
            raise UsageError(
                f"{text.partition('=')[0]!r} is not a key column, or is given twice.",
                hint=f"write COLUMN=VALUE once for each of {', '.join(map(repr, names))}.",
            )
        found[name] = text[len(name) + 1 :]
    return found


@dataclass(frozen=True)
class DeltaTraces:
    """The matching rows of one Delta table.

    Attributes:
        path: the table, relative to the lake's root.
        current: the number of rows per file, for files of the newest version.
        history: the number of rows per file, for files of other versions only.
        feed: the number of rows per file, for files of the change feed.
        log: files of the log with statistics of files that contain the rows, or are deleted.
        versions: the versions in the log, in ascending order.
    """

    path: str
    current: dict[str, int]
    history: dict[str, int]
    feed: dict[str, int]
    log: tuple[str, ...]
    versions: tuple[int, ...]

    @property
    def has_rows(self) -> bool:
        """True if the rows are or were in the table itself."""
        return bool(self.current or self.history)

    @property
    def found(self) -> bool:
        """True if any file of the table or its log must be changed."""
        return bool(self.has_rows or self.feed or self.log)


class Tracer:
    """A search for the rows of one key.

    Args:
        spark: the running session.
        storage: the lake's files.
        table: the table's name.
        key: the key to search for.
        scratch: a temporary folder, relative to the lake's root; the caller deletes it.
    """

    def __init__(
        self, spark: SparkSession, storage: Storage, table: TableName, key: Key, scratch: str
    ) -> None:
        self.key = key
        self.table = table
        self.spark = new_session(spark)
        self.storage = storage
        self._scratch = scratch

    def in_table(self, path: str) -> DeltaTraces | None:
        """Search all files of a Delta table.

        Args:
            path: the path of the table: one of `delta_paths`, or the quarantine.

        Returns:
            The matching rows; `None` if the table does not exist.

        Raises:
            UsageError: A key column is a partition column of the table.
        """
        snapshot = read_snapshot(self.storage, path, dropped=True)
        if snapshot is None:
            return None
        partitions = {name.lower() for name in snapshot.metadata.get("partitionColumns") or ()}
        if parts := [part.column for part in self.key if part.column.lower() in partitions]:
            raise UsageError(
                f"{self.table} is partitioned by its key column {parts[0]!r}, so its data files do"
                " not contain this column, and rows can't be found by key.",
                hint="delete the rows with SQL, then vacuum the table.",
            )
        log = f"{path}/_delta_log/"
        below = self.storage.files_below(path)
        data = [
            file
            for file in below
            if file.endswith(".parquet") and not file.startswith(log) and "/." not in file
        ]
        frame = self.spark.sql(f"SELECT * FROM {delta_name(self.storage.path(path))}")
        live = {_name(uri) for uri in frame.inputFiles()}
        if path == QUARANTINE:
            read = "`schema` string, `table` string, content string"
            rows = self._count(dict.fromkeys(data, (read, self.quarantine_condition())))
        else:
            names = self._names_in_files(path)
            rows = self._count({file: self._typed(file, names) for file in data})
        # By name: with column mapping, files of the feed are in folders with random names.
        feed = {file: n for file, n in rows.items() if _name(file).startswith("cdc-")}
        others = {file: n for file, n in rows.items() if file not in feed}
        current = {file: n for file, n in others.items() if _name(file) in live}
        unmatched = {_name(file) for file in data if file not in rows}
        logs = [
            file
            for file in below
            if file.startswith(log)
            and any(_name(named) not in unmatched for named in named_files(self.storage, file))
        ]
        return DeltaTraces(
            path,
            current,
            {file: n for file, n in others.items() if file not in current},
            feed,
            tuple(logs),
            tuple(versions(self.storage, path)),
        )

    def _names_in_files(self, path: str) -> list[str]:
        """Return the physical names of the key columns in a Delta table."""
        snapshot = read_snapshot(self.storage, path)
        known = physical_names(snapshot.metadata) if snapshot else {}
        physical = {name.lower(): inside for name, inside in known.items()}
        return [physical.get(part.column.lower(), part.column) for part in self.key]

    def quarantine_condition(self) -> str:
        """Return the SQL condition of the quarantine's rows with the key."""
        schema = "NULL" if self.table.schema is None else literal(self.table.schema)
        parts = [f"`schema` <=> {schema}", f"`table` = {literal(self.table.name)}"]
        parts += [
            "exists(map_entries(from_json(content, 'map<string,string>')), e ->"
            f" lower(e.key) = lower({literal(part.column)})"
            f" AND (e.value = {literal(part.text)}"
            f" OR TRY_CAST(e.value AS {part.kind}) <=> {part.sql}))"
            for part in self.key
        ]
        return " AND ".join(parts)

    def in_zone(self, files: Iterable[str]) -> dict[str, int]:
        """Count the matching rows per published file.

        The count is `UNKNOWN` if only the text matches, and `UNSEARCHABLE` if the file can't be
        read.
        """
        metadata = read_metadata(self.storage, self.table)
        names = [part.column for part in self.key]
        found: dict[str, int] = {}
        originals: dict[str, str] = {}
        conditions: dict[str, _Condition | None] = {}
        for file in files:
            if file.endswith(f"/{MANIFEST}"):
                if self._in_manifest(file):
                    found[file] = UNKNOWN
                continue
            copy, rejected = self._readable(file, metadata)
            try:
                condition = None if copy is None else self._typed(copy, names)
            except (pa.ArrowException, OSError, SchemaError):
                copy = None
            if copy is None:
                if count := self._unparsed(file):
                    found[file] = count
                continue
            if rejected:
                found[file] = rejected
            originals[copy], conditions[copy] = file, condition
        try:
            counts = self._count(conditions)
        except Exception:
            damaged = [c for c in conditions if conditions[c] and self._is_damaged(c, names)]
            if not damaged:
                raise
            found |= {originals[copy]: UNSEARCHABLE for copy in damaged}
            counts = self._count({c: conditions[c] for c in conditions if c not in damaged})
        for copy, rows in counts.items():
            file = originals[copy]
            found[file] = found.get(file, 0) + rows
        return found

    def positions(self, file: str) -> list[int]:
        """Return the positions of the key's rows in a published Parquet file, counted from 0."""
        condition = self._typed(file, [part.column for part in self.key])
        if condition is None:
            return []
        frame = self._read([file], condition).select(F.col("_metadata.row_index"))
        return sorted(row[0] for row in frame.collect())

    def _readable(self, file: str, metadata: TableMetadata) -> tuple[str | None, int]:
        """Return a Parquet file that Spark can read, and the number of matching rejected rows."""
        name = file.rpartition("/")[2]
        try:
            text = is_text(name.lstrip("_."), metadata.text)
        except MirrorlakeError:
            return None, 0
        if not text and not name.startswith(("_", ".")):
            return file, 0
        copy = f"{self._scratch}/{uuid.uuid4().hex}.parquet"
        if not text:  # Spark ignores files with hidden names, so copy it
            self.storage.write(copy, self.storage.read(file))
            return copy, 0
        try:
            facts = inspect_file(self.storage, file, metadata, staged=copy, skip_rows=True)
        except MirrorlakeError:
            return None, 0
        return copy, sum(self._in_content(reject.content) for reject in facts.rejects)

    def _in_content(self, content: str) -> bool:
        row = json.loads(content)
        if not isinstance(row, dict):
            return all(part.text in content for part in self.key)
        values = {name.lower(): str(value) for name, value in row.items()}
        return all(values.get(part.column.lower()) == part.text for part in self.key)

    def _in_manifest(self, file: str) -> bool:
        """Return whether a range of a manifest begins with the key.

        Its bytes are searched only if it can't be read: a checksum may contain the text of a key.
        """
        try:
            found = json.loads(self.storage.read(file))
            column, starts = str(found["key"]).lower(), [r["start"] for r in found["ranges"]]
        except (KeyError, TypeError, ValueError):
            return self._unparsed(file) == UNKNOWN
        return any(p.text in starts for p in self.key if p.column.lower() == column)

    def _is_damaged(self, file: str, names: list[str]) -> bool:
        """Return whether a page of a key column can't be read; the footer is valid."""
        wanted = {name.lower() for name in names}
        try:
            with self.storage.open(file) as source, pq.ParquetFile(source) as parquet:
                columns = [n for n in parquet.schema_arrow.names if n.lower() in wanted]
                for _ in parquet.iter_batches(columns=columns):
                    pass
        except (pa.ArrowException, OSError):
            return True
        return False

    def _unparsed(self, file: str) -> int:
        """Return the count for a file that can't be parsed: 0, `UNKNOWN` or `UNSEARCHABLE`.

        Parquet stores numbers in binary and compresses text, so only text is searched by its bytes.
        """
        name = file.rpartition("/")[2]
        with self.storage.open(file) as source:
            start = source.read(len(_PARQUET))
            if not start:
                return 0
            if start == _PARQUET or name.lower().endswith(".parquet"):
                return UNSEARCHABLE
            source.seek(0)
            try:
                data = open_decompressed(source, name).read()
            except (pa.ArrowException, MirrorlakeError, OSError, EOFError):
                return UNSEARCHABLE
        return UNKNOWN if all(part.text.encode() in data for part in self.key) else 0

    def _typed(self, file: str, names: list[str]) -> _Condition | None:
        """Return how to find the key in a Parquet file; `None` if a key column is missing."""
        with self.storage.open(file) as source, pq.ParquetFile(source) as parquet:
            schema = published_schema(parquet)
        by_lower = {field.name.lower(): field for field in schema}
        read, parts = [], []
        for name, part in zip(names, self.key, strict=True):
            field = by_lower.get(name.lower())
            if field is None or pa.types.is_null(field.type):
                return None
            kind = column_type(field.type)
            read.append(f"{quote(field.name)} {kind.read}")
            parts.append(f"{_value(field.name, kind, part)} <=> {part.sql}")
        return ", ".join(read), " AND ".join(parts)

    def _read(self, files: list[str], condition: _Condition) -> DataFrame:
        read, matches = condition
        paths = [escape_glob(self.storage.path(file)) for file in files]
        return published_reader(self.spark, read).parquet(*paths).where(matches)

    def _count(self, conditions: Mapping[str, _Condition | None]) -> dict[str, int]:
        """Count matching rows per file, with one scan for all files with the same columns."""
        alike: dict[_Condition, list[str]] = {}
        for file, condition in conditions.items():
            if condition is not None:
                alike.setdefault(condition, []).append(file)
        found: dict[str, int] = {}
        for condition, files in alike.items():
            path = F.col("_metadata.file_path").alias("path")
            rows = self._read(files, condition).groupBy(path).count().collect()
            for uri, count in rows:
                # Paths are URIs, with another scheme and escaped characters.
                plain = unquote(uri)
                found[max((f for f in files if plain.endswith(f"/{f}")), key=len)] = count
        return found


def _value(name: str, kind: ColumnType, part: KeyPart) -> str:
    """Return SQL for a key column in the table's type; NULL if a value does not fit."""
    value = kind.convert.format(quote(name))
    if kind.table == part.kind:
        return value
    if kind.table in _BY_TEXT or part.kind in _BY_TEXT:
        value = f"CAST({value} AS STRING)"
    return f"TRY_CAST({value} AS {part.kind})"


def _name(path: str) -> str:
    return unquote(path.rpartition("/")[2])
