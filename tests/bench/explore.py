"""The explorer at 1,000 versions and 100,000 files, and the monitor at 60 tables, without Spark.

The peer reads the bare log: one listing, and every commit as JSON. The first view may take five
times as long, and a step of the version slider three times: ratios of 0.2 and 0.33. The monitor's
peer reads the logs of the same 60 tables.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from helpers.bench import BenchResult, compare, join_results
from helpers.old_lake import unpack
from mirrorlake import Lake
from mirrorlake_lab import explore
from mirrorlake_lab import monitor as monitor_page

VERSIONS = 1_000
TABLES = 60
FILES = 100_000
_FAR = 97  # versions per step, so that the versions around it are never cached


def explorer(pairs: int) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        log = _many_versions(Path(folder))
        explore(Lake(folder))  # imports are not measured
        first = compare(
            "explore",
            f"first view at {VERSIONS:,} versions",
            _timed(lambda: explore(Lake(folder))),
            _timed(lambda: _read_bare([log])),
            pairs,
        )
        shown = explore(Lake(folder))
        tab = shown.open("Versions")

        def step() -> None:
            wanted = tab.slider.value - _FAR
            tab.slider.value = wanted if wanted >= 0 else VERSIONS - 1

        what = f"version step at {VERSIONS:,} versions"
        stepped = compare("explore", what, _timed(step), _timed(lambda: _read_bare([log])), pairs)
    return join_results("explore", [first, stepped])


def monitor(pairs: int) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        root = unpack(Path(folder))
        for number in range(TABLES):
            for part in ("Files/LandingZone", "Tables"):
                shutil.copytree(root / part / "inventory", root / part / f"t{number}")
        logs = [root / "Tables" / f"t{number}" / "_delta_log" for number in range(TABLES)]
        lake = Lake(root)
        return compare(
            "explore",
            f"monitor page of {TABLES} tables and the lake's own",
            _timed(lambda: monitor_page(lake).to_html()),
            _timed(lambda: _read_bare(logs)),
            pairs,
        )


def files(pairs: int) -> BenchResult:
    with tempfile.TemporaryDirectory() as folder:
        log = _many_files(Path(folder))
        explore(Lake(folder))
        what = f"first view at {FILES:,} files"
        peer = _timed(lambda: _read_bare([log]))
        return compare("explore", what, _timed(lambda: explore(Lake(folder))), peer, pairs)


PARTS = {"explorer": explorer, "files": files, "monitor": monitor}


def run(pairs: int) -> BenchResult:
    return join_results("explore", [part(pairs) for part in PARTS.values()])


def _many_versions(root: Path) -> Path:
    place = root / "Tables" / "many"
    write_deltalake(place, pa.table({"id": [1]}))
    log = place / "_delta_log"
    for version in range(1, VERSIONS):
        info = {"timestamp": version, "operation": "WRITE", "operationParameters": {}}
        info["operationMetrics"] = {"numOutputRows": "1"}
        add = {"path": f"{version}.parquet", "partitionValues": {}, "size": 1}
        add |= {"modificationTime": 1, "dataChange": True, "stats": '{"numRecords":1}'}
        lines = [json.dumps({"commitInfo": info}), json.dumps({"add": add})]
        (log / f"{version:020d}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return log


def _many_files(root: Path) -> Path:
    place = root / "Tables" / "many"
    write_deltalake(place, pa.table({"id": [1]}))
    adds = []
    for number in range(FILES):
        add = {"path": f"{number}.parquet", "partitionValues": {}, "size": number}
        add |= {"modificationTime": 1, "dataChange": True, "stats": '{"numRecords":1}'}
        adds.append(json.dumps({"add": add}))
    log = place / "_delta_log"
    info = json.dumps({"commitInfo": {"timestamp": 1, "operation": "WRITE"}})
    (log / f"{1:020d}.json").write_text("\n".join([info, *adds]) + "\n", encoding="utf-8")
    return log


def _read_bare(logs: list[Path]) -> None:
    for log in logs:
        for path in sorted(log.glob("*.json")):
            for line in path.read_text(encoding="utf-8").splitlines():
                json.loads(line)


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return measure
