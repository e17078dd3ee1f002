"""Small statements on a mirrored table, and the share of Delta's commit, against plain Delta.

The peer has the same session without `KnownLogs.java`: Delta computes the content of a version's
checksum from all files. A commit lasts from the last written data file until the statement returns.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

from helpers.bench import BenchResult, run_script

STATEMENTS = {
    "INSERT": "INSERT INTO {table} VALUES ({n}0000, 'new')",
    "MERGE": "MERGE INTO {table} t USING (SELECT {n} AS n, 'other' AS v) s ON t.n = s.n"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "DELETE": "DELETE FROM {table} WHERE n = {n}",
}
WARM, COUNTED = 6, 15


def run(pairs: int) -> BenchResult:
    here = Path(__file__)
    measured = [(run_script(here, "ours"), run_script(here, "peer")) for _ in range(pairs)]
    names = [name for name in measured[0][0] if name != "seconds"]
    seconds, ratios = {}, {}
    for name in names:
        mine, theirs = ([both[side][name] for both in measured] for side in (0, 1))
        seconds[name] = round(statistics.median(mine), 3)
        seconds[f"{name}, peer"] = round(statistics.median(theirs), 3)
        ratios[name] = round(
            statistics.median(other / own for own, other in zip(mine, theirs, strict=True)), 2
        )
    return BenchResult("commit", seconds, ratios)


def work() -> dict[str, float]:
    """Return the median seconds of each statement and of its commit."""
    from mirrorlake import Lake

    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        lake.publisher("t", keys=["n"]).insert([{"n": n, "v": "old"} for n in range(2_000)])
        lake.mirror()
        path = Path(folder) / "Tables" / "t"
        times = defaultdict(list)
        for number in range(WARM + COUNTED):
            for name, statement in STATEMENTS.items():
                began = time.time()
                lake.spark.sql(statement.format(table=f"delta.`{path}`", n=number))
                ended = time.time()
                rows = [
                    file for file in path.rglob("*.parquet") if file.parent.name != "_delta_log"
                ]
                written = max(file.stat().st_mtime for file in rows)
                times[name].append(ended - began)
                times[f"commit of {name}"].append(ended - written)
        lake.spark.stop()
    return {name: statistics.median(found[WARM:]) for name, found in times.items()}


if __name__ == "__main__":
    if sys.argv[1] == "ours":
        found = work()
    else:
        with patch("mirrorlake.spark.jvm.know_logs", lambda _spark: None):
            found = work()
    print(json.dumps(found))
