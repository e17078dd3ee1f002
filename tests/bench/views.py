"""Views: an incremental refresh against a full one, over 5,000,000 rows.

The tables are the lines of orders with their change feed, as many deliveries (one per line), and
1,000 carriers. 0.1, 1 and 10 % of the lines are updated, at random. After each change the view is
refreshed incrementally. The peer writes the same query over an equal Delta table, without the data
that a view keeps in addition. Then the view is refreshed completely. The gate's figure compares the
method that it chose with the better one of the view's two: 1 is the better one, and 0.8 takes 1.25
times as long.

- aggregate: sums, counts and averages by product (rule `sums`).
- extremes: the most expensive line of each order (rule `extremes`).
- join: every line with its delivery and carrier (rule `rows`).
- joined aggregate: sums by region and day over the same join (rule `sums`).

Each view and share is a part, which takes less than 5 minutes for one pair on two cores.
`python tests/bench/views.py --rows 1000000 --part "join, 0.1 %"` uses fewer rows.

The part `tpch` runs only if it is named. It creates the 22 queries of TPC-H as views, and refreshes
them after 0.1 % of the orders, with their lines, and of partsupp have changed through the mirror.
The peer writes the same query over an equal Delta table. `--part tpch --scale 0.01` uses less data.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path

from helpers.bench import BenchResult, join_results
from helpers.bench_data import timed
from helpers.tpch import make_tpch
from mirrorlake import Lake
from mirrorlake.spark.session import get_spark

ROWS = 5_000_000
CARRIERS, PRODUCTS, FILES = 1_000, 1_000, 20
WARM_UP = 3  # cycles of TPC-H that are not measured
SHARES = {"0.1 %": 1000, "1 %": 100, "10 %": 10}
JOIN = "FROM lines l JOIN deliveries d ON l.id = d.line JOIN carriers c ON d.carrier = c.carrier"
VIEWS = {
    "aggregate": "SELECT product, count(*) AS lines, sum(amount) AS amount,"
    " avg(quantity) AS quantity FROM lines GROUP BY product",
    "extremes": "SELECT order_id, max(amount) AS most, count(*) AS lines FROM lines"
    " GROUP BY order_id",
    "join": f"SELECT l.id, l.product, l.amount, d.day, c.name, c.region {JOIN}",
    "joined aggregate": "SELECT region, day, sum(amount) AS amount, count(*) AS lines"
    f" {JOIN} GROUP BY region, day",
}


def run(pairs: int) -> BenchResult:
    return join_results("views", (run_part(pairs, ROWS, name, tuple(SHARES)) for name in VIEWS))


def run_part(pairs: int, rows: int, query: str, shares: tuple[str, ...]) -> BenchResult:
    get_spark("batch")
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        fill(lake, rows, joined="deliveries" in VIEWS[query])
        name = query.replace(" ", "_")
        lake.views.create(name, VIEWS[query])
        change(lake, 5000)  # each method once, as warm-up
        lake.views.refresh(name, how="incremental")
        recompute(lake, name, VIEWS[query])
        lake.views.refresh(name, how="full")
        change(lake, 2000)
        lake.views.refresh(name, how="incremental")
        seconds: dict[str, list[float]] = defaultdict(list)
        ratios: dict[str, list[float]] = defaultdict(list)
        for _ in range(pairs):
            for share in shares:
                change(lake, SHARES[share])
                measure(lake, query, f"{query}, {share}", seconds, ratios)
        assert lake.views.check(name).differences == 0
    return BenchResult(
        "views",
        {what: round(statistics.median(found), 3) for what, found in seconds.items()},
        {what: round(statistics.median(found), 2) for what, found in ratios.items()},
    )


def run_tpch(pairs: int, scale: float = 1) -> BenchResult:
    """Measure the creation and the refreshes of the 22 queries; print each on stderr."""
    get_spark("batch")
    seconds: dict[str, list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    incremental = set()

    def add(what: str, note: str, ours: float, peer: float) -> None:
        seconds[what].append(ours)
        seconds[f"{what}, recomputed"].append(peer)
        ratios[what].append(peer / ours)
        line = f"{what}: {ours:.2f} s ({note}), recomputed {peer:.2f} s, ratio {peer / ours:.2f}"
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(f"{folder}/lake")
        cycles = pairs + WARM_UP
        tpch = make_tpch(Path(folder, "tpch"), scale, cycles, nth=1000, answers=False)
        tpch.fill(lake)
        views = {f"q{number}": sql for number, sql in tpch.queries.items()}
        for name, sql in views.items():
            lake.views.create(name, sql)  # as warm-up
            lake.views.drop(name, apply=True)
            taken = timed(partial(lake.views.create, name, sql))
            explained = lake.views.explain(name)
            rules = [one.method for one in explained.stages or (explained,)]
            add(f"{name}, creation", ", ".join(rules), taken, recompute(lake, name, sql))
        for cycle in range(1, cycles + 1):
            tpch.change(lake, cycle)
            for name, sql in views.items():
                began = time.perf_counter()
                how = "auto" if cycle > WARM_UP else "incremental"
                done = lake.views.refresh(name, how=how)
                taken = time.perf_counter() - began
                runs = ", ".join(f"{one.mode} {one.seconds:.2f}" for one in done.stages or (done,))
                if cycle > WARM_UP:
                    add(name, runs, taken, recompute(lake, name, sql))
                    incremental |= {name} if done.mode == "incremental" else set()
    medians = {what: round(statistics.median(found), 2) for what, found in ratios.items()}
    created = [ratio for what, ratio in medians.items() if what not in views]
    refreshed = [medians[name] for name in views]
    return BenchResult(
        "views",
        {what: round(statistics.median(found), 3) for what, found in seconds.items()},
        {
            **medians,
            "creation, median": round(statistics.median(created), 2),
            "refresh, median": round(statistics.median(refreshed), 2),
            "refresh, lowest": min(refreshed),
            "queries that were refreshed incrementally": len(incremental),
        },
    )


BY_PART = {f"{name}, {share}": (name, (share,)) for name in VIEWS for share in SHARES}
PARTS = {
    part: partial(run_part, rows=ROWS, query=name, shares=shares)
    for part, (name, shares) in BY_PART.items()
} | {"tpch": run_tpch}


def measure(
    lake: Lake,
    query: str,
    what: str,
    seconds: dict[str, list[float]],
    ratios: dict[str, list[float]],
) -> None:
    """Measure all methods once, and the choice of the gate."""
    name = query.replace(" ", "_")
    choice = lake.views.explain(name).mode
    taken = {}
    for how in ("incremental", "full"):
        began = time.perf_counter()
        done = lake.views.refresh(name, how=how)
        taken[how] = time.perf_counter() - began
        assert done.mode == how, done
        if how == "incremental":
            peer = recompute(lake, name, VIEWS[query])
    seconds[what].append(taken["incremental"])
    seconds[f"{what}, recomputed"].append(peer)
    seconds[f"{what}, full refresh"].append(taken["full"])
    ratios[what].append(peer / taken["incremental"])
    ratios[f"{what}, gate"].append(min(taken.values()) / taken[choice])


def recompute(lake: Lake, name: str, query: str) -> float:
    """Return the seconds of the query without a view."""
    table = lake.table(name)
    feed = table.snapshot().properties["delta.enableChangeDataFeed"]
    began = time.perf_counter()
    rows = lake.sql(query)
    rows = rows.toDF(*(re.sub(r"[ ,;{}()\n\t=]", "_", name) for name in rows.columns))
    writer = rows.write.format("delta").option("delta.enableChangeDataFeed", feed)
    writer.mode("overwrite").save(f"{table.path}_recomputed")
    return time.perf_counter() - began


def fill(lake: Lake, rows: int, *, joined: bool) -> None:
    """Create the tables; the updates of the lines do not rewrite their files."""
    spark = lake.spark
    lines = spark.range(0, rows, 1, FILES).selectExpr(
        "id",
        "id DIV 4 AS order_id",
        f"CAST(pmod(xxhash64(id, 2), {PRODUCTS}) AS INT) AS product",
        "CAST(pmod(xxhash64(id, 3), 100) AS INT) AS quantity",
        "CAST(pmod(xxhash64(id, 4), 100000) / 100 AS DECIMAL(12, 2)) AS amount",
    )
    lake.write("lines", lines, properties={"delta.enableDeletionVectors": "true"})
    if not joined:
        return
    # In another order, so that the files of the two tables do not match.
    deliveries = spark.range(0, rows, 1, FILES).selectExpr(
        f"(id * 7919) % {rows} AS line",
        f"CAST(pmod(xxhash64(id, 1), {CARRIERS}) AS INT) AS carrier",
        "date_add(DATE'2024-01-01', CAST(pmod(xxhash64(id, 2), 365) AS INT)) AS day",
    )
    lake.write("deliveries", deliveries)
    carriers = spark.range(CARRIERS).selectExpr(
        "CAST(id AS INT) AS carrier",
        "concat('carrier ', id) AS name",
        "concat('region ', id % 20) AS region",
    )
    lake.write("carriers", carriers)


def change(lake: Lake, nth: int) -> None:
    """Update every nth line, at random."""
    lake.spark.sql(
        f"UPDATE {lake.table('lines').sql_name} SET amount = amount + 1, quantity = quantity + 1"
        f" WHERE pmod(xxhash64(id, {nth}), {nth}) = 0"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--part", choices=PARTS, default="join, 0.1 %")
    given = parser.parse_args()
    if given.part == "tpch":
        found = run_tpch(given.pairs, given.scale)
    else:
        found = run_part(given.pairs, given.rows, *BY_PART[given.part])
    print(json.dumps(asdict(found), indent=2))


if __name__ == "__main__":
    main()
