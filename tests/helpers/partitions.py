"""Partitioned tables in tests: live files from the log, checked by plain Python."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICRO = timedelta(microseconds=1)


@dataclass(frozen=True)
class LiveFile:
    """One file of the newest version, deleted rows included."""

    path: str
    size: int
    tags: dict[str, str]
    rows: pa.Table
    modified: int

    @property
    def is_done(self) -> bool:
        return self.tag("policy") is not None

    def tag(self, name: str) -> str | None:
        """Return the value of a partitioning tag, or None if the file lacks it."""
        return self.tags.get(f"mirrorlake.partition.{name}")


def live_files(folder: str | Path) -> list[LiveFile]:
    """Return the newest version's files by replaying all commits."""
    there: dict[str, dict[str, Any]] = {}
    for commit in sorted(Path(folder, "_delta_log").glob("*.json")):
        removed, added = [], {}
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "remove" in action:
                removed.append(action["remove"]["path"])
            if "add" in action:
                added[action["add"]["path"]] = action["add"]
        there = {path: add for path, add in there.items() if path not in removed} | added
    return [
        LiveFile(
            path,
            add["size"],
            add.get("tags") or {},
            _in_micros(pq.read_table(Path(folder, unquote(path)), partitioning=None)),
            add["modificationTime"],
        )
        for path, add in there.items()
    ]


def _in_micros(rows: pa.Table) -> pa.Table:
    """Convert Spark's timestamps, nanoseconds without a zone, to microseconds in UTC."""
    fields = [
        pa.field(f.name, pa.timestamp("us", "UTC")) if pa.types.is_timestamp(f.type) else f
        for f in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def bucket(value: str | None, policy: Any) -> int:
    """Return the bucket by its definition: XXH64 of the UTF-8 bytes, modulo the count."""
    assert policy.hash is not None
    hashed = xxhash.xxh64_intdigest((value or "").encode(), policy.hash.seed)
    return hashed % policy.hash.max_partition_count


def bin_start(moment: datetime | None, policy: Any) -> int:
    """Return the bin by its definition: the last `reference + n * size` that is not later."""
    key = policy.range
    assert key is not None
    if moment is None:
        return key.reference
    micros = (moment - EPOCH) // MICRO
    return key.reference + (micros - key.reference) // key.range_size * key.range_size


def check_homogeneous(files: list[LiveFile], policy: Any) -> int:
    """Assert that each tagged file contains the partition in its tags only; return their number."""
    done = [file for file in files if file.is_done]
    for file in done:
        rows = file.rows.to_pylist()
        assert rows
        if policy.hash is not None:
            keys = [row[policy.hash.column] for row in rows]
            ordered = sorted(keys, key=lambda k: (k is not None, (k or "").encode()))
            assert keys == ordered, "sorted by the hash key"
            if policy.range is None and "at" in file.rows.column_names:
                moments = [row["at"] for row in rows]
                places = [
                    (key is not None, (key or "").encode(), at is not None, at or EPOCH)
                    for key, at in zip(keys, moments, strict=True)
                ]
                assert places == sorted(places), "rows of one key are in the order of time"
        if file.tag("outlier") == "far":
            assert file.tag("bucket") is None
            continue
        if policy.hash is not None:
            assert {bucket(key, policy) for key in keys} == {int(file.tag("bucket") or -1)}
        if policy.range is not None:
            bins = {bin_start(row[policy.range.column], policy) for row in rows}
            assert bins == {int(file.tag("bin") or -1)}
        if file.tag("outlier") == "value":
            assert {json.dumps(key) for key in keys} == {file.tag("value")}
    return len(done)
