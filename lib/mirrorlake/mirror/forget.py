"""Find and delete all data of one key: in the table, its history, change feed, log and files.

The search covers the Delta table, dropped copies of it, the quarantine, and published files,
whether they are applied or set aside. It reads all files on disk, not only those in the newest
snapshot: a file that the log has removed, or rows that a deletion vector hides, still hold data. A
pending file with the key is an error, because the next cycle would write the rows again.

Key values are never part of a statement that the Delta log records: a MERGE with a temporary view
deletes the rows. The log is truncated up to a new checkpoint, because the statistics in older
entries contain values of deleted files.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.actions import named_files
from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.delta.files import release_files
from mirrorlake.delta.log_files import cut_before_checkpoint
from mirrorlake.delta.snapshot import physical_names, read_snapshot
from mirrorlake.delta.table import committing
from mirrorlake.errors import (
    MirrorlakeError,
    SchemaError,
    SequenceError,
    TableNotFoundError,
    TracesLeftError,
    UsageError,
)
from mirrorlake.landing.check import inspect_file, is_text
from mirrorlake.landing.metadata import Identity, TableMetadata, read_identity, read_metadata
from mirrorlake.landing.text import open_decompressed
from mirrorlake.landing.types import ColumnType, column_type, published_schema
from mirrorlake.mirror.apply import commit_with_retries
from mirrorlake.mirror.batch import published_reader
from mirrorlake.mirror.ledger import QUARANTINE
from mirrorlake.mirror.next_batch import Plan, is_as_planned, plan_of, rewrite_plan, staging
from mirrorlake.mirror.options import declared_keys, paused
from mirrorlake.mirror.state import only_mirror
from mirrorlake.mirror.trash import dropped_tables
from mirrorlake.names import (
    IDENTITY,
    METADATA,
    PROCESSED,
    READY_TO_DELETE,
    STATE,
    TableName,
    file_number,
    quote,
)
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, escape_glob, literal, temporary_view
from mirrorlake.storage.files import Storage

UNKNOWN = -1  # rows of a file that can't be read but has the key's texts in it
_BY_TEXT = ("binary", "boolean")  # Spark casts these to few types; their text goes to all
_Condition = tuple[str, str]  # what is read of a file, and the SQL that is true of a row looked for
_PATIENCE = 60  # seconds to wait for a running mirror
_INTERVAL = "delta.checkpointInterval"
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
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


@dataclass(frozen=True)
class KeyPart:
    """One key column's value, as text, with the column's type in the table."""

    column: str
    kind: str
    text: str

    @property
    def sql(self) -> str:
        """The value as SQL of the column's type."""
        return f"CAST({literal(self.text)} AS {self.kind})"


Key = tuple[KeyPart, ...]


def key_columns(storage: Storage, table: TableName) -> dict[str, str]:
    """A table's key columns with their types, of the table or of a dropped copy of it.

    Raises:
        TableNotFoundError: there is neither.
        UsageError: the table has no keys.
    """
    for path in delta_paths(storage, table):
        snapshot = read_snapshot(storage, path, dropped=True)
        if snapshot is None:
            continue
        keys = declared_keys(snapshot.properties)
        by_lower = {name.lower(): (name, kind) for name, kind in snapshot.schema.items()}
        if not keys:
            raise UsageError(
                f"{table} has no keys, so one person's rows can't be found.",
                hint="delete its rows with SQL, then VACUUM it.",
            )
        return dict(by_lower[key.lower()] for key in keys)
    raise TableNotFoundError(f"There is no table {table} in the lake.", hint="run `mirror` first.")


def delta_paths(storage: Storage, table: TableName) -> list[str]:
    """Where a table and the dropped copies of it lie, relative to the lake's root."""
    copies = [d.path for d in dropped_tables(storage) if d.table == table]
    return list(dict.fromkeys([table.table_path, *copies]))


def read_key(
    spark: SparkSession, storage: Storage, table: TableName, keys: Mapping[str, Any]
) -> Key:
    """The key looked for, each value in its column's type.

    Raises:
        UsageError: other columns than the keys are given, or a value is not of its type.
    """
    columns = key_columns(storage, table)
    given = {name.lower(): value for name, value in keys.items()}
    if given.keys() != {name.lower() for name in columns} or len(given) != len(keys):
        raise UsageError(
            f"The key of {table} is {', '.join(map(repr, columns))}.",
            hint="give each of these columns once, and no other.",
        )
    key = tuple(KeyPart(name, kind, str(given[name.lower()])) for name, kind in columns.items())
    tried = [f"TRY_CAST({literal(part.text)} AS {part.kind}) IS NULL" for part in key]
    row = new_session(spark).sql(f"SELECT {', '.join(tried)}").first()
    for part, is_null in zip(key, row or (), strict=True):
        if is_null or given[part.column.lower()] is None:
            raise UsageError(f"The value given for {part.column!r} is not of type {part.kind}.")
    return key


def parse_key(texts: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Reads `column=value` texts; either part may have equals signs of its own.

    Raises:
        UsageError: a text does not begin with one of the columns, or one is given twice.
    """
    found: dict[str, str] = {}
    names = sorted(columns, key=len, reverse=True)
    for text in texts:
        name = next((n for n in names if text.lower().startswith(f"{n.lower()}=")), None)
        if name is None or name in found:
            raise UsageError(
                f"The key is {', '.join(map(repr, names))}.", hint="write COLUMN=VALUE, each once."
            )
        found[name] = text[len(name) + 1 :]
    return found


@dataclass(frozen=True)
class DeltaTraces:
    """What of one Delta table holds the rows looked for.

    Attributes:
        path: the table, relative to the lake's root.
        current: rows by file, of the files that the newest version has.
        history: the same of the other versions' files.
        feed: the same of the change feed's files.
        log: the files of its log that tell values of files which hold the rows, or are gone.
        versions: the versions that the log has, rising.
    """

    path: str
    current: dict[str, int]
    history: dict[str, int]
    feed: dict[str, int]
    log: tuple[str, ...]
    versions: tuple[int, ...]

    @property
    def has_rows(self) -> bool:
        """Whether the rows are, or were, in the table itself."""
        return bool(self.current or self.history)

    @property
    def found(self) -> bool:
        """Whether anything has to be done about this table."""
        return bool(self.has_rows or self.feed or self.log)


class Tracer:
    """Looks for the rows of one key.

    Args:
        spark: the running session.
        storage: the lake's files.
        table: whose rows.
        key: the key looked for.
        scratch: a folder of its own, relative to the lake's root, that the caller deletes.
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
        """Looks through all files of a Delta table; None if there is no table.

        Args:
            path: the table, one of `delta_paths` or the quarantine.
        """
        if read_snapshot(self.storage, path, dropped=True) is None:
            return None
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
        # By name: under column mapping the feed's files lie in folders with random names.
        feed = {file: n for file, n in rows.items() if _name(file).startswith("cdc-")}
        others = {file: n for file, n in rows.items() if file not in feed}
        current = {file: n for file, n in others.items() if _name(file) in live}
        sound = {_name(file) for file in data if file not in rows}
        telling = [
            file
            for file in below
            if file.startswith(log)
            and any(_name(told) not in sound for told in named_files(self.storage, file))
        ]
        return DeltaTraces(
            path,
            current,
            {file: n for file, n in others.items() if file not in current},
            feed,
            tuple(telling),
            tuple(versions(self.storage, path)),
        )

    def _names_in_files(self, path: str) -> list[str]:
        """What a Delta table's files call the key's columns."""
        snapshot = read_snapshot(self.storage, path)
        known = physical_names(snapshot.metadata) if snapshot else {}
        physical = {name.lower(): inside for name, inside in known.items()}
        return [physical.get(part.column.lower(), part.column) for part in self.key]

    def quarantine_condition(self) -> str:
        """SQL that is true of a row of the quarantine that has the key."""
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
        """How many rows each published file has; `UNKNOWN` where only its bytes tell."""
        metadata = read_metadata(self.storage, self.table)
        names = [part.column for part in self.key]
        found: dict[str, int] = {}
        originals: dict[str, str] = {}
        conditions: dict[str, _Condition | None] = {}
        for file in files:
            copy, rejected = self._readable(file, metadata)
            try:
                condition = None if copy is None else self._typed(copy, names)
            except (pa.ArrowException, OSError, SchemaError):
                copy = None
            if copy is None:
                if self._in_bytes(file):
                    found[file] = UNKNOWN
                continue
            if rejected:
                found[file] = rejected
            originals[copy], conditions[copy] = file, condition
        for copy, rows in self._count(conditions).items():
            file = originals[copy]
            found[file] = found.get(file, 0) + rows
        return found

    def positions(self, file: str) -> list[int]:
        """Where the key's rows are in a Parquet file of the zone, counted from 0."""
        condition = self._typed(file, [part.column for part in self.key])
        if condition is None:
            return []
        frame = self._read([file], condition).select(F.col("_metadata.row_index"))
        return sorted(row[0] for row in frame.collect())

    def _readable(self, file: str, metadata: TableMetadata) -> tuple[str | None, int]:
        """A Parquet file that Spark can read in place of `file`; how many rejected rows match."""
        name = file.rpartition("/")[2]
        try:
            text = is_text(name.lstrip("_."), metadata.text)
        except MirrorlakeError:
            return None, 0
        if not text and not name.startswith(("_", ".")):
            return file, 0
        copy = f"{self._scratch}/{uuid.uuid4().hex}.parquet"
        if not text:  # Spark passes over files whose names hide them
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

    def _in_bytes(self, file: str) -> bool:
        """Whether a file that can't be read has all of the key's texts in it."""
        name = file.rpartition("/")[2]
        try:
            with self.storage.open(file) as source:
                data = open_decompressed(source, name).read()
        except (MirrorlakeError, OSError, EOFError):
            data = self.storage.read(file)
        return all(part.text.encode() in data for part in self.key)

    def _typed(self, file: str, names: list[str]) -> _Condition | None:
        """How to find the key in one Parquet file; None if it has not all key columns."""
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
        """Rows by file, one scan for all files that are read alike."""
        alike: dict[_Condition, list[str]] = {}
        for file, condition in conditions.items():
            if condition is not None:
                alike.setdefault(condition, []).append(file)
        found: dict[str, int] = {}
        for condition, files in alike.items():
            path = F.col("_metadata.file_path").alias("path")
            rows = self._read(files, condition).groupBy(path).count().collect()
            for uri, count in rows:
                # As a URI: other schemes for the same store, and odd characters escaped.
                plain = unquote(uri)
                found[max((f for f in files if plain.endswith(f"/{f}")), key=len)] = count
        return found


def _value(name: str, kind: ColumnType, part: KeyPart) -> str:
    """A file's key column in the table's type; NULL where a value does not fit it."""
    value = kind.convert.format(quote(name))
    if kind.table == part.kind:
        return value
    if kind.table in _BY_TEXT or part.kind in _BY_TEXT:
        value = f"CAST({value} AS STRING)"
    return f"TRY_CAST({value} AS {part.kind})"


def _name(path: str) -> str:
    return unquote(path.rpartition("/")[2])
