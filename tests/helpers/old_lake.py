"""The lakes of earlier versions in `tests/data`: unpack, copy, and read them as plain values.

The module uses only the public library, so that later code reads in the same way.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from functools import reduce
from pathlib import Path
from typing import Any

from mirrorlake import Lake, MirrorOptions

DATA = Path(__file__).parents[1] / "data"
NAME = "lake_0_1"
YEARS = 3650
MTIME = "mtime"
# Applied files and dropped tables are deleted after a week, and the lake is older.
KEEP = {"keep_processed_days": 10 * YEARS, "keep_dropped_days": 10 * YEARS}
OPTIONS = MirrorOptions(**KEEP)
RETENTION = "delta.deletedFileRetentionDuration"

Row = list[Any]


def expected(name: str = NAME) -> Any:
    """Return the values that the code that created the lake has read."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def unpack(target: Path, name: str = NAME) -> Path:
    """Unpack the lake below `target` and return its root.

    Modification times are restored to the nanosecond, because plans and states contain them.
    """
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        archive.extractall(target, filter="data")
        for member in archive.getmembers():
            seconds, _, fraction = str(member.pax_headers[MTIME]).partition(".")
            moment = int(seconds) * 10**9 + int(fraction.ljust(9, "0"))
            os.utime(target / member.name, ns=(moment, moment))
    return target / "lake"


def copy_lake(root: Path, target: Path) -> Lake:
    """Copy the lake to another place with its times, to write to it."""
    return Lake(shutil.copytree(root, target))


def plain(value: Any) -> Any:
    """Return a value as JSON would return it."""
    return json.loads(json.dumps(value, default=str, ensure_ascii=False))


def in_order(rows: list[Row]) -> list[Row]:
    """Return plain rows in the order in which the expected ones are stored."""
    return sorted(rows, key=lambda row: json.dumps(row, ensure_ascii=False))


def rows_of(frame: Any, *columns: str) -> list[Row]:
    """Return a data frame's rows as plain values in a fixed order."""
    chosen = frame.select(*[f"`{name}`" for name in columns]) if columns else frame
    return in_order([plain(list(row)) for row in chosen.collect()])


def table_rows(lake: Lake, table: str, *columns: str) -> list[Row]:
    """Return the newest rows of one table."""
    return rows_of(lake.table(table).read(), *columns)


def read_status(lake: Lake) -> dict[str, Any]:
    """Return the status of each table without values that depend on the time."""
    names = ("state", "rows", "last_file", "backlog_files", "waiting_for")
    found = {}
    for line in lake.status().tables:
        message = None if line.error is None else line.error["message"]
        found[line.full_name] = {name: getattr(line, name) for name in names} | {"error": message}
    return found


def read_ledger(lake: Lake, table: str) -> list[Row]:
    """Return a table's ledger: number, file, rows, rejected, skipped, version, and both times."""
    return [
        [e.number, e.file, e.rows, e.rejected, e.skipped, e.version, e.published, e.applied]
        for e in lake.operations.ledger(table).entries
    ]


def read_frames(lake: Lake) -> dict[str, Any]:
    """Return the frames' records, without the lake's path."""
    found = {}
    for frame in lake.frames.list():
        known = plain(frame.as_dict())
        known.pop("place")
        found[frame.model] = known
    return found


def read_views(lake: Lake) -> dict[str, Any]:
    """Return the state of the views."""
    names = ("state", "reason", "version", "sources")
    return {
        one.view: {name: plain(one.as_dict())[name] for name in names}
        for one in lake.views.status()
    }


def without_spark(lake: Lake) -> dict[str, Any]:
    """Return everything that can be read of a lake without Spark."""
    status = read_status(lake)
    return plain(
        {
            "status": status,
            "ledger": {name: read_ledger(lake, name) for name in status},
            "frames": read_frames(lake),
            "views": read_views(lake),
            "tables": [str(name) for name in lake.tables()],
            "lint": sorted([f.rule, f.table, f.file] for f in lake.lint().findings),
        }
    )


def read_versions(lake: Lake, table: str) -> dict[str, list[Row]]:
    """Return the rows of every readable version, or of the newest one only."""
    found = lake.table(table)
    newest = found.snapshot()
    first = found.readable_range().earliest if RETENTION in newest.properties else newest.version
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for version in range(first, newest.version + 1):
        frame = found.read(version=version)
        alike.setdefault(tuple(frame.dtypes), []).append(frame.selectExpr(f"{version} AS v", "*"))
    rows: dict[str, list[Row]] = {str(v): [] for v in range(first, newest.version + 1)}
    for frames in alike.values():  # with the same columns: one query for all versions is quicker
        for version, *row in rows_of(reduce(type(frames[0]).union, frames)):
            rows[str(version)].append(row)
    return {version: in_order(some) for version, some in rows.items()}


def read_partitioning(lake: Lake, table: str) -> dict[str, Any]:
    """Return a table's policies and operations, without seconds."""
    found = lake.table(table).partitioning
    receipts = [
        [r.kind, r.version, r.rows, r.checksum, len(r.files_in), len(r.files_out)]
        for r in found.receipts()
    ]
    return {"policies": [list(row) for row in found.history().rows], "receipts": receipts}


def with_spark(lake: Lake) -> dict[str, Any]:
    """Return all rows of a lake, and its records about them."""
    frames = lake.frames.list()
    return plain(
        {
            "versions": {str(name): read_versions(lake, str(name)) for name in lake.tables()},
            "quarantine": rows_of(lake.operations.quarantine()),
            "framed": {
                frame.model: {t.table: rows_of(lake.frames.read(frame.model, t.table))
                              for t in frame.tables}
                for frame in frames if frame.state == "complete"
            },
            "partitioning": {
                name: read_partitioning(lake, name) for name in ("measures", "readings", "raw")
            },
        }
    )  # fmt: skip
