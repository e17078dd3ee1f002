"""Compare tables with their sources: row counts and checksums by range of keys.

`reconcile` compares a table with the manifest that a publisher computed. `PublishedRows` are the
rows to compare with a source that computes its checksums itself, as of one point: a position in the
log of the source. No version of the table ends exactly at this point, because one commit applies
several files. Therefore the rows are those of an earlier version, with the changes of the published
files after this version. The last file may end after the point. Its changes are in the order of the
source, so the point is after one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.errors import SequenceError
from mirrorlake.landing.check import inspect_file
from mirrorlake.landing.digests import (
    LONGEST,
    NO_ROWS,
    Compared,
    Digest,
    Sums,
    add_sums,
    canonical_texts,
    digest_texts,
    digest_values,
    identify_rows,
    sum_batch,
)
from mirrorlake.landing.manifest import KeyRange, Manifest, read_manifest
from mirrorlake.landing.metadata import Identity, Marker, read_identity, read_metadata
from mirrorlake.landing.zone import every_file, no_folder, published_tables
from mirrorlake.mirror.batch import FILE_ROWS, KEPT, MARKER, POSITION, read_batch
from mirrorlake.mirror.ledger import read_ledger
from mirrorlake.mirror.next_batch import Batch, load_context, plan_schema
from mirrorlake.mirror.state import TableState
from mirrorlake.names import TableName, file_number, quote
from mirrorlake.results import Finding, Findings, counted
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, setting
from mirrorlake.storage.files import Storage

_SUMS = "place int, rows long, total decimal(38,0)"
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BASE = -1  # the position of the rows of the version, before those of all files
_ATTEMPTS = 5
_STATE = ("rows", "total")
_DIGESTED = ["key", "place", "digest", "position", "marker"]
_Step = tuple[int, int, int, int]
"""The position of a change, and what it adds: range, number of rows, sum of digests."""


@dataclass(frozen=True)
class Reconciliation(Findings):
    """The result of comparing tables with their sources.

    Attributes:
        findings: the differences between sources and tables, with the rules `rows-differ`,
            `values-differ`, `not-applied-yet`, `no-manifest` and `no-such-version`.
        compared: the number of compared rows of all tables.
        without_manifest: the published tables that were skipped, because they have no manifest.
    """

    findings: tuple[Finding, ...]
    compared: int
    without_manifest: tuple[str, ...] = ()
    fields = ("table", "rule", "message")

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        return super().as_dict() | {"without_manifest": list(self.without_manifest)}

    def __repr__(self) -> str:
        differences = counted(len(self.findings), "difference")
        skipped = len(self.without_manifest)
        more = f", {counted(skipped, 'table')} without a manifest" if skipped else ""
        return f"{counted(self.compared, 'row')} compared, {differences}{more}"


def reconcile(spark: SparkSession, storage: Storage, tables: list[TableName]) -> Reconciliation:
    """Compare tables with the manifests of their publishers; see `Lake.reconcile`."""
    findings: list[Finding] = []
    compared = 0
    published = published_tables(storage) if len(tables) > 1 else []
    skipped: list[str] = []
    for table in tables:
        manifest = read_manifest(storage, table)
        if manifest is None:
            if table in published:
                skipped.append(str(table))
            if len(tables) == 1:
                text = "The publisher has published no manifest."
                findings.append(
                    _found("no-manifest", table, text, "publish one with `manifest(rows)`.")
                )
            continue
        version = _version(storage, table, manifest.after)
        if isinstance(version, Finding):
            findings.append(version)
            continue
        ours = _digest(spark, storage, table, manifest, version)
        compared += sum(found.rows for found in ours)
        findings += _compare(table, manifest, ours)
    return Reconciliation(tuple(findings), compared, tuple(skipped))


def _found(
    rule: str, table: TableName, message: str, fix: str, column: str | None = None
) -> Finding:
    return Finding(rule=rule, table=str(table), column=column, message=message, fix=fix)


def _version(storage: Storage, table: TableName, after: int) -> int | Finding:
    """Return the version with the files up to a number and no later ones, or a finding."""
    applied = [e for e in read_ledger(storage, table).entries if e.version is not None]
    last = max((e.number for e in applied), default=0)
    if last < after:
        text = f"The manifest was made after file {after}, but the last applied file is {last}."
        return _found("not-applied-yet", table, text, "mirror the table, then compare again.")
    here = next((e.version for e in applied if e.number == after), None)
    beyond = any(e.number > after and e.version == here for e in applied)
    if here is None or beyond:
        text = f"No version of the table ends with file {after}."
        return _found("no-such-version", table, text, "publish a manifest of the current rows.")
    return here


def _digest(
    spark: SparkSession, storage: Storage, table: TableName, manifest: Manifest, version: int
) -> list[KeyRange]:
    snapshot = read_snapshot(storage, table.table_path)
    names = {name.lower(): name for name in (snapshot.schema if snapshot else {})}
    known = [column for column in manifest.columns if column.lower() in names]
    wanted = dict.fromkeys([*known, *([manifest.key] if manifest.key else [])])
    selected = ", ".join(f"{quote(names[c.lower()])} AS {quote(c)}" for c in wanted) or "1"
    path = delta_name(storage.path(table.table_path))
    rows = spark.sql(f"SELECT {selected} FROM {path} VERSION AS OF {version}")
    starts = [found.start for found in manifest.ranges if found.start is not None]
    sums = _sum_ranges(rows, manifest.columns, manifest.key, starts, digest_texts)
    ranges = enumerate(manifest.ranges)
    return [KeyRange.of(theirs.start, sums.get(place, NO_ROWS)) for place, theirs in ranges]


def _sum_ranges(
    rows: DataFrame,
    columns: Sequence[str],
    key: str | None,
    starts: Sequence[Any],
    digest: Digest,
) -> dict[int, Sums]:
    """Return the number of rows and the sum of their digests for each range that occurs."""

    def digested(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        # The sum of a batch is less than 2 to the power of 64, without a sign.
        kinds = (pa.int32(), pa.int64(), pa.decimal128(38, 0))
        for batch in batches:
            found = zip(*sum_batch(batch, columns, key, starts, digest), strict=True)
            arrays = [pa.array(values, kind) for values, kind in zip(found, kinds, strict=False)]
            if arrays:
                yield pa.RecordBatch.from_arrays(arrays, ["place", "rows", "total"])

    sums = map_in_arrow(rows, digested, _SUMS).groupBy("place").agg(F.sum("rows"), F.sum("total"))
    return {place: add_sums(NO_ROWS, (rows, int(total))) for place, rows, total in sums.collect()}


def _compare(table: TableName, manifest: Manifest, ours: list[KeyRange]) -> Iterator[Finding]:
    ends = [*(found.start for found in manifest.ranges[1:]), None]
    for theirs, mine, end in zip(manifest.ranges, ours, ends, strict=True):
        place = f"keys from {theirs.start or 'the first'} to {end or 'the last'}"
        if theirs.rows != mine.rows:
            text = f"{place}: the source has {theirs.rows:,} rows, the table has {mine.rows:,}."
            fix = "check ledger and quarantine; replay the missing files, or reseed the table."
            yield _found("rows-differ", table, text, fix, column=manifest.key)
        elif theirs.checksum != mine.checksum:
            text = f"{place}: both have {mine.rows:,} rows, but the values differ."
            fix = "publish these rows again as upserts, or reseed the table."
            yield _found("values-differ", table, text, fix, column=manifest.key)


class PublishedRows:
    """The rows of a table as of a point of its source.

    Call `sums` first: it finds the point within the last file.

    Args:
        spark: the session.
        storage: the lake's files.
        table: the table.
        compared: the columns and ranges.
        version: a version of the table without changes after the point; None if the table does not
            exist.
        is_after: returns whether a file with this footer ends after the point; None if the footer
            has no position, as in a replayed file.

    Raises:
        SequenceError: a published file after the version is missing.
        MirrorlakeError: a published file can't be applied.
        FileNotFoundError: the mirror moved files during each of five attempts.
    """

    def __init__(
        self,
        spark: SparkSession,
        storage: Storage,
        table: TableName,
        compared: Compared,
        *,
        version: int | None,
        is_after: Callable[[Mapping[bytes, bytes]], bool | None],
    ) -> None:
        self._compared = compared
        spark = new_session(spark)  # for the settings of `sums`
        snapshot = None if version is None else read_snapshot(storage, table.table_path, version)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                batch, self._border = _files_until(storage, table, snapshot, is_after)
                changes = self._read(spark, batch)
                break
            except FileNotFoundError:  # the mirror has moved an applied file
                if attempt == _ATTEMPTS:
                    raise
        self._position = self._border - 1  # of the last change before the point
        self._version = self._unchanged = None
        self._changes = changes
        if snapshot is None or batch.at.recreated:
            return
        made = f"CAST({_BASE} AS LONG) AS {POSITION}, {int(Marker.UPSERT)} AS {MARKER}"
        path = f"{delta_name(batch.at.path)} VERSION AS OF {snapshot.version}"
        rows = self._select(spark.sql(f"SELECT *, {made} FROM {path}"), batch.target.columns)
        self._version = self._unchanged = rows
        if changes is not None and compared.keys:
            keys = list(compared.keys)
            changed = changes.select(*map(quote, keys)).distinct()
            before = rows.join(changed, keys, "left_semi")
            self._unchanged = rows.join(changed, keys, "left_anti")
            self._changes = before.unionByName(changes, allowMissingColumns=True)

    def _read(self, spark: SparkSession, batch: Batch) -> DataFrame | None:
        """Return the changes in files; a checkpoint keeps them if the mirror moves the files."""
        if not batch.facts:
            return None
        try:
            found = read_batch(spark, batch, ordered=True)
            return self._select(found, batch.target.columns).localCheckpoint()
        except Exception as error:
            if all(batch.at.storage.exists(file.source) for file in batch.facts):
                raise
            raise FileNotFoundError(f"Files of {batch.at.identity.table} are gone.") from error

    def _select(self, rows: DataFrame, target: Mapping[str, str]) -> DataFrame:
        """Return the compared columns in the form in which both sides digest them."""
        found = {name.lower(): quote(name) for name in rows.columns}
        kinds = {name.lower(): kind for name, kind in target.items()}
        selected = [name for name in (MARKER, POSITION, KEPT) if name in rows.columns]
        for name in self._compared.columns:
            kind = kinds.get(name.lower(), "string")
            value = found.get(name.lower(), f"CAST(NULL AS {kind})")
            value = f"unix_date({value})" if kind == "date" else value
            selected.append(f"{value} AS {quote(name)}")
        return rows.selectExpr(*selected)

    def _shortened(self, rows: DataFrame) -> DataFrame:
        """Return the compared columns with the texts that are hashed, so that batches are small."""
        selected = []
        for name in self._compared.columns:
            value, kind = quote(name), rows.schema[name].dataType
            if name == self._compared.by or not isinstance(kind, (StringType, BinaryType)):
                selected.append(value)
                continue
            is_binary = isinstance(kind, BinaryType)
            text = f"lower(hex({value}))" if is_binary else value
            longest = LONGEST // 2 if is_binary else LONGEST
            short = f"IF(octet_length({value}) > {longest}, md5({text}), {text})"
            selected.append(f"{short} AS {quote(name)}")
        return rows.selectExpr(*selected)

    def sums(self, theirs: Callable[[], Mapping[int, Sums]]) -> dict[int, Sums]:
        """Return rows and checksum of each range, and find the point: there, most ranges are equal.

        Args:
            theirs: returns rows and checksum of each range in the source; called at the end.
        """
        compared, ours, steps = self._compared, dict[int, Sums](), list[_Step]()
        if self._version is not None:
            rows, key, starts = self._shortened(self._version), compared.by, compared.starts
            # Spark computes the size of a batch after each row, which takes most of the time.
            with setting(rows.sparkSession, _BATCH_BYTES, str(2**31 - 1)):
                ours = _sum_ranges(rows, compared.columns, key, starts, digest_values)
        states = self._states()
        if states is not None:
            if compared.keys:
                order = Window.partitionBy("place", "key").orderBy("position")
                before = {n: F.coalesce(F.lag(n).over(order), F.lit(0)) for n in _STATE}
                states = states.withColumns({n: F.col(n) - before[n] for n in _STATE})
            step = F.greatest(F.col("position"), F.lit(self._border - 1)).alias("step")
            changes = states.where(F.col("position") > _BASE).groupBy(step, "place")
            found = changes.agg(F.sum("rows"), F.sum("total")).orderBy("step").collect()
            steps = [(row[0], row[1], row[2], int(row[3])) for row in found]
        self._position, ours = _fit(ours, theirs(), steps, self._border)
        return ours

    def keys_in(self, places: Collection[int]) -> dict[tuple[int, str], Sums]:
        """Return rows and checksum of each key in some ranges; call `sums` before."""
        frames = []
        if self._unchanged is not None:
            found = self._digest(self._unchanged).groupBy("place", "key")
            frames.append(found.agg(F.count("*").alias("rows"), _total(F.col("digest"), F.lit(1))))
        states = self._states()
        if states is not None:
            of_key = states.where(F.col("position") <= self._position).groupBy("place", "key")
            keyed = bool(self._compared.keys)
            latest = {n: F.max_by(n, "position") if keyed else F.sum(n) for n in _STATE}
            frames.append(of_key.agg(*[found.alias(n) for n, found in latest.items()]))
        sums: dict[tuple[int, str], Sums] = {}
        for frame in frames:  # without key columns, both frames can have the same digest
            for place, key, rows, total in frame.where(F.col("place").isin(*places)).collect():
                known = sums.get((place, key), NO_ROWS)
                sums[place, key] = add_sums(known, (rows, int(total)))
        return {key: found for key, found in sums.items() if found != NO_ROWS}

    def texts(self, keys: Collection[str]) -> dict[str, list[str | None]]:
        """Return the canonical texts of the compared columns in one row of each key."""
        compared, wanted = self._compared, frozenset(keys)

        def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in batches:
                names = identify_rows(batch, compared)[0]
                rows = [place for place, name in enumerate(names) if name in wanted]
                few = batch.take(pa.array(rows, pa.int64()))
                texts = [canonical_texts(few.column(n)).to_pylist() for n in compared.columns]
                arrays = [pa.array([names[row] for row in rows], pa.string())]
                arrays += [few.column(POSITION), few.column(MARKER)]
                joined = list(map(list, zip(*texts, strict=True)))
                arrays.append(pa.array(joined, pa.list_(pa.string())))
                yield pa.RecordBatch.from_arrays(arrays, ["key", "position", "marker", "texts"])

        schema = "key string, position long, marker int, texts array<string>"
        frames = [frame for frame in (self._unchanged, self._filled()) if frame is not None]
        found = [map_in_arrow(frame, find, schema).collect() for frame in frames]
        until = [row for rows in found for row in rows if row.position <= self._position]
        latest = {row.key: row for row in sorted(until, key=lambda row: row.position)}
        return {key: row.texts for key, row in latest.items() if row.marker != Marker.DELETE}

    def _filled(self) -> DataFrame | None:
        """Return the changes with the values that updates leave unchanged."""
        changes, keys = self._changes, self._compared.keys
        if changes is None or KEPT not in changes.columns:
            return changes
        before = Window.partitionBy(*map(quote, keys)).orderBy(POSITION)
        before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        kept = F.coalesce(F.col(KEPT), F.array().cast("array<string>"))
        values = {}
        for name in (name for name in self._compared.columns if name not in keys):
            written = F.when(~F.array_contains(kept, name), F.struct(F.col(quote(name)).alias("v")))
            values[name] = F.last(written, ignorenulls=True).over(before)["v"]
        return changes.withColumns(values).drop(KEPT)

    def _states(self) -> DataFrame | None:
        """Return rows and checksum of each changed key, before and after each of its changes."""
        changes = self._filled()
        if changes is None:
            return None
        rows, copies = self._digest(changes), F.lit(1)
        if self._compared.keys:
            whole = Window.partitionBy("place", "key")
            until = whole.orderBy("position").rowsBetween(
                Window.unboundedPreceding, Window.currentRow
            )
            is_delete = F.col("marker") == int(Marker.DELETE)
            is_old = F.col("position") == _BASE
            # An update replaces all copies of a row; a delete removes them.
            before = F.count(F.when(is_old, 1)).over(whole)
            deleted = F.max(is_delete).over(until)
            copies = F.when(is_delete, 0).when(is_old | deleted, 1)
            copies = copies.otherwise(F.greatest(before, F.lit(1)))
        rows = rows.withColumn("rows", copies.cast("long"))
        total = _total(F.col("digest"), F.col("rows"))
        return rows.groupBy("place", "key", "position").agg(F.sum("rows").alias("rows"), total)

    def _digest(self, rows: DataFrame) -> DataFrame:
        """Return key, range and digest of each row, and which change it is."""
        compared = self._compared

        def digested(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            kinds = (pa.string(), pa.int32(), pa.int64())
            for batch in batches:
                found = zip(identify_rows(batch, compared), kinds, strict=True)
                arrays = [pa.array(values, kind) for values, kind in found]
                arrays += [batch.column(POSITION), batch.column(MARKER)]
                yield pa.RecordBatch.from_arrays(arrays, _DIGESTED)

        schema = "key string, place int, digest long, position long, marker int"
        return map_in_arrow(rows, digested, schema)


def _files_until(
    storage: Storage,
    table: TableName,
    snapshot: Snapshot | None,
    is_after: Callable[[Mapping[bytes, bytes]], bool | None],
) -> tuple[Batch, int]:
    """Return the files between a version and a point, and the first position of the last file.

    If the last file ends before the point, the position is after this file.
    """
    identity = read_identity(storage, table) or Identity(table, "")
    state = TableState(table.schema, table.name)
    listing = storage.list(table.folder)
    at = load_context(storage, identity, read_metadata(storage, table), snapshot, listing, state)
    paths = {
        number: path
        for path, entry in every_file(storage, table)
        if (number := file_number(entry.name)) is not None
    }
    if not paths:
        raise no_folder(storage, table)
    last = whole = max(paths)
    for number in sorted(paths, reverse=True):
        with storage.open(paths[number]) as source:
            after = is_after(pq.read_metadata(source).metadata or {})
        if after:
            last, whole = number, number - 1
        elif after is not None:
            break
    missing = [number for number in range(at.last + 1, last + 1) if number not in paths]
    if missing:
        raise SequenceError(
            f"File {missing[0]} of {table} is neither applied nor kept.",
            hint="mirror the table; if it stops, its error names the fix.",
        )
    numbers = range(at.last + 1, last + 1)
    facts = tuple(inspect_file(storage, paths[n], at.metadata, number=n) for n in numbers)
    target = plan_schema(at, facts, widen=True)
    return Batch(at, facts, target), max(0, whole - at.last) * FILE_ROWS


def _fit(
    ours: Mapping[int, Sums], theirs: Mapping[int, Sums], steps: Sequence[_Step], border: int
) -> tuple[int, dict[int, Sums]]:
    """Return the position after which most ranges are equal, and the sums there.

    Args:
        ours: the sums of the version's ranges.
        theirs: the sums of the source's ranges.
        steps: the changes of sums in order: position, range, rows and checksum.
        border: the first position that may be after the point; earlier steps are always applied.
    """
    now = dict(ours)

    def is_equal(place: int) -> bool:
        return now.get(place, NO_ROWS) == theirs.get(place, NO_ROWS)

    equal = sum(map(is_equal, {*ours, *theirs, *(place for _, place, _, _ in steps)}))
    best, most = border - 1, equal
    for position, place, *added in steps:
        equal -= is_equal(place)
        now[place] = add_sums(now.get(place, NO_ROWS), added)
        equal += is_equal(place)
        if position < border or equal >= most:
            best, most = position, equal
    found = dict(ours)
    for position, place, *added in steps:
        if position <= best:
            found[place] = add_sums(found.get(place, NO_ROWS), added)
    return best, found


def _total(digest: Column, copies: Column) -> Column:
    return F.sum(digest.cast("decimal(20,0)") * copies).cast("decimal(38,0)").alias("total")
