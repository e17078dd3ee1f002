"""Benchmark a table of 10,000 versions and one of 100,000 files: history, range, vacuum, frames.

The peers are `DESCRIBE HISTORY … LIMIT` of as many versions, and plain `VACUUM … DRY RUN`. The
commits are written directly as JSON, because Spark would take hours; the files are links to one
small Parquet file. A last commit by Spark writes the checkpoint that both sides read. "By versions"
and "by files" compare with a hundredth of them: 1 means that the size makes no difference.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.bench import BenchResult, compare, join_results, lake_part
from mirrorlake import Lake
from mirrorlake.delta.commits import CommitLog
from mirrorlake.history import versions as versions_module

VERSIONS = 10_000
FILES = 100_000
SMALLER = 100
SHOWN = 20
LINKS = 10_000


def history(lake: Lake, pairs: int) -> BenchResult:
    logs = {}
    for name in _many_versions(lake):
        logs[name] = CommitLog(lake.storage, f"Tables/{name}")

    def newest(name: str) -> None:
        log = logs[name]
        assert len(log.read(log.newest(), SHOWN).commits) == SHOWN

    def described() -> None:
        table = lake.table("many")
        statement = f"DESCRIBE HISTORY {table.sql_name} LIMIT {SHOWN}"
        assert len(table.spark.sql(statement).collect()) == SHOWN

    what = f"history of {VERSIONS:,} versions, {SHOWN} shown"
    found = compare("history", what, _timed(newest, "many"), _timed(described), pairs)
    return _join(found, _flat("history by versions", newest, pairs))


def readable_range(lake: Lake, pairs: int) -> BenchResult:
    _many_versions(lake)
    for name, count in (("few files", FILES // SMALLER), ("many files", FILES)):
        _make(lake, name, versions=1, files=count)

    def found(name: str) -> None:
        readable = versions_module.find_readable_range(lake.storage, lake.table(name).name)
        assert readable.earliest == 0

    def found_by_files(name: str) -> None:
        found(f"{name} files")

    parts = [("range by versions", found), ("range by files", found_by_files)]
    return _join(*(_flat(what, work, pairs) for what, work in parts))


def vacuum(lake: Lake, pairs: int) -> BenchResult:
    name = {"few": FILES // SMALLER, "many": FILES}
    tables = {n: _make(lake, n, versions=2, files=count // 2) for n, count in name.items()}

    def ours(name: str) -> None:
        plan = lake.table(name).vacuum()
        assert sum(share.files for share in plan.kept) >= (FILES if name == "many" else 1)

    def peer() -> None:
        lake.spark.sql(f"VACUUM {tables['many']} DRY RUN").collect()

    what = f"vacuum's plan for {FILES:,} files"
    found = compare("history", what, _timed(ours, "many"), _timed(peer), pairs)
    return _join(found, _flat("vacuum's plan by files", ours, pairs))


def show(lake: Lake, pairs: int) -> BenchResult:
    for name, count in (("few", FILES // SMALLER), ("many", FILES)):
        _make(lake, f"{name} files", versions=1, files=count)
        lake.frames.create(name, [f"{name} files"])
        lake.write(f"{name} files", lake.spark.range(0, 5, 1, 1))

    def shown(name: str) -> None:
        (line,) = lake.frames.show(name)
        assert line.files_added == 1

    return _flat("frame's show by files", shown, pairs)


PARTS = {
    "history": lake_part(history),
    "range": lake_part(readable_range),
    "vacuum": lake_part(vacuum),
    "show": lake_part(show),
}


def run(pairs: int) -> BenchResult:
    return _join(*(part(pairs) for part in PARTS.values()))


def _join(*results: BenchResult) -> BenchResult:
    return join_results("history", results)


def _many_versions(lake: Lake) -> list[str]:
    sizes = {"few": VERSIONS // SMALLER, "many": VERSIONS}
    for name, count in sizes.items():
        _make(lake, name, versions=count, files=1)
    return list(sizes)


def _make(lake: Lake, name: str, *, versions: int, files: int) -> str:
    """Create a table whose versions each add some files; only version 0 is written by Delta."""
    table = lake.write(name, lake.spark.range(0, 10, 1, 1))
    place = Path(table.path)
    (source,) = place.glob("*.parquet")
    size, copied = source.stat().st_size, source
    for version in range(2, versions + 2):
        info = {"timestamp": 1, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
        lines: list[dict[str, Any]] = [{"commitInfo": info}]
        for number in range(files):
            linked = f"{uuid.uuid4().hex}.parquet"
            if number % LINKS == 0:  # the number of links to a file is limited
                shutil.copy(source, place / linked)
                copied = place / linked
            else:
                os.link(copied, place / linked)
            add = {"path": linked, "partitionValues": {}, "size": size, "modificationTime": 1}
            add |= {"dataChange": True, "stats": '{"numRecords":10}'}
            add |= {"baseRowId": 0, "defaultRowCommitVersion": version}
            lines.append({"add": add})
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
        (place / "_delta_log" / f"{version:020d}.json").write_text(text + "\n")
    lake.spark.sql(
        f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')"
    )
    return table.sql_name


def _timed(work: Callable[..., None], *arguments: str) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        work(*arguments)
        return time.perf_counter() - began

    return measure


def _flat(what: str, work: Callable[[str], None], pairs: int) -> BenchResult:
    """Return how many times faster the large table is than the small one; 1 means equal."""
    found = compare("history", what, _timed(work, "many"), _timed(work, "few"), pairs)
    many, few = found.seconds.values()
    return BenchResult("history", {what: many, f"{what}, a hundredth": few}, found.ratios)
