"""Benchmark the history of one row: on a table ten times as large, and against the change feed.

Two tables have the same row size, 20 files and 200 files. 12 updates of single rows follow, 3 of
which concern the row. One run compares, in turns, the row's history on the small table and on the
large one (1 means no growth), and on the large one with the plain way: the feed of all versions,
filtered by the key.
"""

from __future__ import annotations

import tempfile
import time

from helpers.bench import BenchResult, compare, join_results
from mirrorlake import Lake, Table
from mirrorlake.spark.session import get_spark

FILES, ROWS_A_FILE = 20, 25_000
UPDATES, OWN = 12, 3
KEY = 123


def run(pairs: int) -> BenchResult:
    get_spark("batch")
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        small, large = make(lake, "small", FILES), make(lake, "large", 10 * FILES)
        parts = [
            compare(
                "rows",
                "biography, a table a tenth the size as peer",
                lambda: row_history(large),
                lambda: row_history(small),
                pairs,
            ),
            compare(
                "rows",
                "biography, the filtered feed as peer",
                lambda: row_history(large),
                lambda: filtered_feed(large),
                pairs,
            ),
        ]
        return join_results("rows", parts)


def make(lake: Lake, name: str, files: int) -> Table:
    """Create a table ordered by its keys, and commits that each change one row of a file."""
    rows = lake.spark.range(0, files * ROWS_A_FILE, 1, files).selectExpr(
        "id", "concat('customer ', id % 977) AS name", "id * 0.37D AS amount"
    )
    properties = {"delta.enableDeletionVectors": "true"}
    table = lake.write(name, rows, properties=properties)
    step = files * ROWS_A_FILE // UPDATES
    for number in range(UPDATES):
        key = KEY if number % (UPDATES // OWN) == 0 else number * step + 7
        lake.spark.sql(f"UPDATE {table.sql_name} SET amount = {number} WHERE id = {key}")
    return table


def row_history(table: Table) -> float:
    began = time.perf_counter()
    story = table.row_tracking.history(key={"id": KEY})
    assert story.events.count() == 1 + 2 * (1 + (UPDATES - 1) // (UPDATES // OWN))
    return time.perf_counter() - began


def filtered_feed(table: Table) -> float:
    began = time.perf_counter()
    changes = table.changes.read(0).where(f"id = {KEY}")
    assert changes.count() == 1 + 2 * (1 + (UPDATES - 1) // (UPDATES // OWN))
    return time.perf_counter() - began
