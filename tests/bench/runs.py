"""The overhead of a run: three notebooks without Spark, with `run` and with papermill alone.

`beyond its notebooks` is the whole process of `mirrorlake run` without the seconds of its steps:
the start of Python, the checks of the plan, the lease, the record, summary and report. The peer is
one process that executes the same notebooks with papermill and keeps nothing else. It does not
build jsonschema's IRI parser either.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers.bench import BenchResult, compare, run_script
from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake.errors import MirrorlakeError

WHAT, BEYOND = "a run of three small notebooks", "beyond its notebooks"
NAMES = ("first", "second", "third")


def run(pairs: int) -> BenchResult:
    beyond: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in NAMES:
            put_notebook(place, name, RECORD)
        steps = ", ".join(f"{{notebook: {name}.ipynb}}" for name in NAMES)
        plan = put_plan(place, f"name: three\nsteps: [{steps}]")

        def ours() -> float:
            seconds, inside = _run(place, plan)
            beyond.append(seconds - inside)
            return seconds

        peer = Path(__file__)
        found = compare(
            "runs", WHAT, ours, lambda: float(run_script(peer, folder)["seconds"]), pairs
        )
    cost = round(statistics.median(beyond[1:]), 3)
    return BenchResult("runs", found.seconds | {BEYOND: cost}, found.ratios)


def _run(place: Path, plan: Path) -> tuple[float, float]:
    """Return the seconds of the whole process, and those of its steps."""
    homes = {f"MIRRORLAKE_{name}": str(place / name.lower()) for name in ("HOME", "STATE")}
    shared = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "mirrorlake.cli", "run", str(plan), "--json"]
    began = time.monotonic()
    done = subprocess.run(
        command, env=os.environ | homes | shared, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise MirrorlakeError(f"the run failed: {done.stderr[-2000:]}")
    return seconds, sum(step["seconds"] for step in json.loads(done.stdout)["steps"])


def peer(folder: str) -> None:
    from mirrorlake_runs.execution import import_papermill

    papermill = import_papermill()
    for name in NAMES:
        papermill.execute_notebook(
            f"{folder}/{name}.ipynb", f"{folder}/{name}.out.ipynb", progress_bar=False
        )


if __name__ == "__main__":
    peer(sys.argv[1])
    print("{}")
