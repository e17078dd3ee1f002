"""Compare a standalone cluster of two workers with one core each and `local[2]` on the same work.

Both run the same program with the same settings; only the master differs. The cluster's processes
run on this machine as well. Its workers' Python is another environment, which is created once.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from helpers import cluster_program
from helpers.bench import BenchResult, run_script
from helpers.cluster import Cluster, executor_python

PROGRAM = Path(cluster_program.__file__)


def run(pairs: int) -> BenchResult:
    python = str(executor_python())
    cluster = Cluster()
    try:
        of_cluster, of_local = [], []
        for _ in range(pairs):
            of_cluster.append(_work(cluster.url, python))
            of_local.append(_work("local[2]", python))
    finally:
        cluster.close()
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for what in of_cluster[0]:
        here, there = ([one[what] for one in some] for some in (of_cluster, of_local))
        seconds[what] = round(statistics.median(here), 2)
        seconds[f"{what}, local[2]"] = round(statistics.median(there), 2)
        parts = (local / own for own, local in zip(here, there, strict=True))
        ratios[what] = round(statistics.median(parts), 2)
    return BenchResult("cluster", seconds, ratios)


def _work(master: str, python: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        own = {"SPARK_MASTER": master, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        found = run_script(PROGRAM, "timed", f"{folder}/lake", env=os.environ | own)
    return {what: float(found[what]) for what in found["measured"]}
