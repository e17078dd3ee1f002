"""Deterministic rows, changes and copies of lakes for the mirror's bench, made without Spark."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from helpers.markers import MARKER, Marker
from helpers.places import ZONE
from mirrorlake.names import file_name

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("quantity", pa.int32()),
        ("day", pa.date32()),
    ]
)
COLUMNS = SCHEMA.names


def rows(ids: np.ndarray, seed: int, *, more: int = 0) -> pa.Table:
    """Return rows with these ids; their other columns depend on the seed.

    Args:
        ids: the ids.
        seed: the seed.
        more: how many columns of numbers the rows have besides those of `SCHEMA`.
    """
    chance = np.random.default_rng(seed)
    count = len(ids)
    numbers = pa.array(chance.integers(0, 50_000, count)).cast(pa.string())
    columns = [
        pa.array(ids, pa.int64()),
        pc.binary_join_element_wise("customer ", numbers, ""),
        pa.array(np.round(chance.random(count) * 1000, 2)),
        pa.array(chance.integers(1, 100, count).astype(np.int32)),
        pa.array(chance.integers(18_000, 20_000, count).astype(np.int32)).cast(pa.date32()),
    ]
    table = pa.Table.from_arrays(columns, schema=SCHEMA)
    for number in range(more):
        table = table.append_column(f"n{number}", pa.array(chance.integers(0, 10**6, count)))
    return table


def initial_files(first: int, count: int, files: int, *, more: int = 0) -> Iterator[pa.Table]:
    """Yield new rows with consecutive ids, in files of one size; see `rows`."""
    size = count // files
    starts = range(first, first + count, size)
    return (rows(np.arange(start, start + size), start, more=more) for start in starts)


def change_files(first: int, count: int, changes: int, files: int) -> list[pa.Table]:
    """Return changes of `count` rows with ids from `first` on.

    They are updates, upserts, deletes, and new rows. In one file an id occurs once, so that a MERGE
    can use it; ids and deleted rows occur again in later files. Marker 0 is only for new ids.
    """
    size = changes // files
    new, deleted = size * 15 // 100, size * 15 // 100
    tables = []
    for file in range(files):
        chance = np.random.default_rng(1000 + file)
        known = first + chance.choice(count, size - new, replace=False)
        fresh = first + count + file * new + np.arange(new)
        markers = np.where(np.arange(size - new) % 2, Marker.UPDATE, Marker.UPSERT)
        markers[:deleted] = Marker.DELETE
        markers = np.concatenate([markers, np.full(new, Marker.INSERT)]).astype(np.int32)
        order = chance.permutation(size)
        table = rows(np.concatenate([known, fresh])[order], 2000 + file)
        tables.append(table.append_column(pa.field(MARKER, pa.int32()), pa.array(markers[order])))
    return tables


def collapsed(changes: list[pa.Table]) -> pa.Table:
    """Return the last change of each id."""
    frame = pa.concat_tables(changes).to_pandas(date_as_object=True)
    last = frame.drop_duplicates("id", keep="last")
    return pa.Table.from_pandas(last, changes[0].schema, preserve_index=False)


def write_files(tables: Iterable[pa.Table], folder: Path, first: int = 1) -> list[str]:
    """Write numbered Parquet files, as a publisher does, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, table in enumerate(tables, first):
        paths.append(str(folder / file_name(number)))
        pq.write_table(table, paths[-1], compression="zstd", row_group_size=100_000)
    return paths


def zone(root: Path, table: str = "t") -> Path:
    """Create a table's folder in the landing zone, with the key declared, and return it."""
    folder = root / ZONE / table
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_metadata.json").write_bytes(json.dumps({"keyColumns": ["id"]}).encode())
    return folder


def copy_tree(source: Path, target: Path) -> Path:
    """Copy a folder with its times; data files, which never change, become links."""

    def copy(old: str, new: str) -> None:
        if old.endswith(".parquet") and "_delta_log" not in old:
            os.link(old, new)
        else:
            shutil.copy2(old, new)

    shutil.copytree(source, target, copy_function=copy)
    return target


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak_mib() -> float:
    """Return this process's peak memory.

    getrusage is not used: on Linux its figure includes the parent process before the fork.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) / 1024
