"""The notebooks of a plan with one JVM each, against `one_spark` with a common JVM.

A ratio above 1 means that sharing is quicker; the start of the JVM is included.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from helpers.bench import BenchResult, compare, run_script
from helpers.project import PARAMETERS


def run(pairs: int) -> BenchResult:
    here = Path(__file__)
    return compare(
        "notebooks",
        "a plan of three, sharing Spark",
        lambda: run_script(here, "shared")["took"],
        lambda: run_script(here, "own")["took"],
        pairs,
    )


def tour(shared: bool) -> float:
    from mirrorlake_runs import load_plan, run_plan

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MIRRORLAKE_HOME"] = folder
        plan = load_plan(PARAMETERS / "plans" / "tour.yaml")
        few = replace(plan, steps=plan.steps[:3], edges=plan.edges[:3], one_spark=shared)
        began = time.monotonic()
        summary = run_plan(few, Path(folder) / "out")
        assert summary.failed is None, summary.failed
        return time.monotonic() - began


if __name__ == "__main__":
    print(f'{{"took": {tour(sys.argv[1] == "shared"):.3f}}}')
