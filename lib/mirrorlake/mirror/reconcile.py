"""Compare tables with their sources: row counts and checksums from the publishers' manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.landing.manifest import KeyRange, Manifest, as_checksum, digest_batch, read_manifest
from mirrorlake.mirror.ledger import read_ledger
from mirrorlake.names import TableName, quote
from mirrorlake.results import Finding, Findings, counted
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage

_SUMS = "place int, rows long, total decimal(38,0)"


@dataclass(frozen=True)
class Reconciliation(Findings):
    """The result of comparing tables with their sources.

    Attributes:
        findings: the differences between sources and tables, with the rules `rows-differ`,
            `values-differ`, `not-applied-yet`, `no-manifest` and `no-such-version`.
        compared: the number of compared rows of all tables.
    """

    findings: tuple[Finding, ...]
    compared: int
    fields = ("table", "rule", "message")

    def __repr__(self) -> str:
        differences = counted(len(self.findings), "difference")
        return f"{counted(self.compared, 'row')} compared, {differences}"


def reconcile(spark: SparkSession, storage: Storage, tables: list[TableName]) -> Reconciliation:
    """Compare tables with the manifests of their publishers; see `Lake.reconcile`."""
    findings: list[Finding] = []
    compared = 0
    for table in tables:
        manifest = read_manifest(storage, table)
        if manifest is None:
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
    return Reconciliation(tuple(findings), compared)


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
    columns, key = list(manifest.columns), manifest.key

    def digest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        # A sum of digests can exceed 64 bits.
        kinds = (pa.int32(), pa.int64(), pa.decimal128(38, 0))
        for batch in batches:
            found = zip(*digest_batch(batch, columns, key, starts), strict=True)
            arrays = [pa.array(values, kind) for values, kind in zip(found, kinds, strict=False)]
            if arrays:
                yield pa.RecordBatch.from_arrays(arrays, ["place", "rows", "total"])

    sums = map_in_arrow(rows, digest, _SUMS).groupBy("place").agg(F.sum("rows"), F.sum("total"))
    by_place = {row[0]: (row[1], int(row[2])) for row in sums.collect()}
    ours = []
    for place, theirs in enumerate(manifest.ranges):
        count, total = by_place.get(place, (0, 0))
        ours.append(KeyRange(theirs.start, count, as_checksum(total)))
    return ours


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
