"""A table of 10,000 versions and one of 100,000 files: history, range, vacuum's plan, frames.

The peers are `DESCRIBE HISTORY … LIMIT` of as many versions, and plain `VACUUM … DRY RUN`. The
commits are written as JSON directly, for Spark would take hours; the files are links to one small
Parquet file; a last commit by Spark itself leaves the checkpoint that either side reads. "flat"
compares with a hundredth of the versions or files: 1 is as quick as there.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirrorlake import Lake
from mirrorlake.history.commits import CommitLog
from mirrorlake.history.versions import find_reach
from mirrorlake.runs.bench import BenchResult, compare

VERSIONS = 10_000
FILES = 100_000
SMALLER = 100
SHOWN = 20
LINKS = 10_000


def run(pairs: int) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        seconds: dict[str, float] = {}
        ratios: dict[str, float] = {}
        for result in (_history(lake, pairs), _vacuum(lake, pairs), _show(lake, pairs)):
            seconds |= result.seconds
            ratios |= result.ratios
        return BenchResult("history", seconds, ratios)


def _history(lake: Lake, pairs: int) -> BenchResult:
    logs = {}
    for name, count in (("few", VERSIONS // SMALLER), ("many", VERSIONS)):
        _make(lake, name, versions=count, files=1)
        logs[name] = CommitLog(lake.storage, f"Tables/{name}")

    def newest(name: str) -> None:
        log = logs[name]
        assert len(log.read(log.newest(), SHOWN).commits) == SHOWN

    def reach(name: str) -> None:
        assert find_reach(lake.storage, lake.table(name).name).earliest == 0

    def described() -> None:
        table = lake.table("many")
        assert len(table.history(limit=SHOWN).collect()) == SHOWN

    what = f"history of {VERSIONS:,} versions, {SHOWN} shown"
    found = compare("history", what, _timed(newest, "many"), _timed(described), pairs)
    flat = {
        "history, flat": _flat(newest, pairs),
        "range, flat": _flat(reach, pairs),
    }
    seconds = {"range": round(_timed(reach, "many")(), 3)}
    return BenchResult("history", found.seconds | seconds, found.ratios | flat)


def _vacuum(lake: Lake, pairs: int) -> BenchResult:
    table = _make(lake, "files", versions=2, files=FILES // 2)

    def ours() -> None:
        plan = lake.table("files").vacuum()
        assert sum(share.files for share in plan.kept) >= FILES

    def peer() -> None:
        lake.spark.sql(f"VACUUM {table} DRY RUN").collect()

    what = f"vacuum's plan for {FILES:,} files"
    return compare("history", what, _timed(ours), _timed(peer), pairs)


def _show(lake: Lake, pairs: int) -> BenchResult:
    for name, count in (("few", FILES // SMALLER), ("many", FILES)):
        _make(lake, f"{name} files", versions=1, files=count)
        lake.frames.create(name, [f"{name} files"])
        lake.write(f"{name} files", lake.spark.range(0, 5, 1, 1))

    def show(name: str) -> None:
        (line,) = lake.frames.show(name)
        assert line.files_added == 1

    return BenchResult(
        "history",
        {f"a frame of {FILES:,} files, shown": round(_timed(show, "many")(), 3)},
        {"frame's show, flat": _flat(show, pairs)},
    )


def _make(lake: Lake, name: str, *, versions: int, files: int) -> str:
    """A table whose versions each add some files; made by Delta, filled by hand."""
    table = lake.write(name, lake.spark.range(0, 10, 1, 1))
    place = Path(table.path)
    (source,) = place.glob("*.parquet")
    size, copied = source.stat().st_size, source
    for version in range(2, versions + 2):
        info = {"timestamp": 1, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
        lines: list[dict[str, Any]] = [{"commitInfo": info}]
        for number in range(files):
            linked = f"{uuid.uuid4().hex}.parquet"
            if number % LINKS == 0:  # a file can't have any number of links
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


def _flat(work: Callable[[str], None], pairs: int) -> float:
    """How many times quicker the large one is than the small one: 1 is the same."""
    small, large = _timed(work, "few"), _timed(work, "many")
    small(), large()
    return round(statistics.median(small() / large() for _ in range(pairs)), 2)
