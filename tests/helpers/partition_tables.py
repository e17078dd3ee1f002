"""Small tables for the tests of partitioning, written by hand, and policies for them."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from helpers.delta_by_hand import HandMade
from helpers.partitions import LiveFile, live_files
from helpers.tables import bag
from mirrorlake import Lake

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
START = datetime(2024, 3, 1, tzinfo=timezone.utc)
LONG_AGO = "2000-01-01"
PAST = {"EffectiveDateTime": LONG_AGO}
HOUR_MS = 3_600_000


def hashed(count: int = 4, **properties: Any) -> dict[str, Any]:
    return {
        "ColumnName": "k",
        "Kind": "Hash",
        "Properties": {"MaxPartitionCount": count} | properties,
    }


def ranged(size: str = "1d", **properties: Any) -> dict[str, Any]:
    return {
        "ColumnName": "at",
        "Kind": "UniformRange",
        "Properties": {"RangeSize": size} | properties,
    }


def some_rows(start: int, count: int, *, days: int = 2, keys: int = 40) -> pa.Table:
    """Return rows in no order of key or timestamp, with a NULL key and a NULL timestamp."""
    ids = range(start, start + count)
    texts = [None if n % 41 == 0 else "" if n % 43 == 0 else f"k{n * 7919 % keys}é" for n in ids]
    moments = [
        None if n % 37 == 0 else START + timedelta(minutes=n * 7919 % (days * 1440)) for n in ids
    ]
    return pa.Table.from_arrays([pa.array(ids), pa.array(texts), pa.array(moments)], schema=SCHEMA)


def hand_made(lake: Lake, files: list[pa.Table], *, ages_hours: list[float] | None = None) -> Path:
    """Write a table `t` of some files, each with its age in hours, and return its folder."""
    folder = Path(lake.storage.path("Tables/t"))
    table = HandMade(folder)
    table.create(SCHEMA)
    now = time.time_ns() // 10**6
    names = [
        table.file(
            f"f{n}.parquet",
            rows,
            created=now - int((ages_hours[n] if ages_hours else 0) * HOUR_MS),
        )
        for n, rows in enumerate(files)
    ]
    table.commit("WRITE", add=names)
    return folder


def small_table(lake: Lake, name: str, files: list[int]) -> None:
    """Write a table of files with so many rows each."""
    table = HandMade(Path(lake.storage.path(f"Tables/{name}")))
    table.create(SCHEMA)
    table.commit(
        "WRITE", add=[table.file(f"f{n}", some_rows(0, rows)) for n, rows in enumerate(files)]
    )


def everything(lake: Lake) -> Counter[tuple[Any, ...]]:
    return bag(lake, "t", ["id", "k", "at"])


def done(folder: Path) -> list[LiveFile]:
    return [file for file in live_files(folder) if file.is_done]


def rows_of(files: list[LiveFile]) -> int:
    return sum(file.rows.num_rows for file in files)
