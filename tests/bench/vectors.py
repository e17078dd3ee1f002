"""What a deletion vector saves when rows are deleted, and costs when the table is read.

One table of 4,000,000 rows in 8 files, twice: with deletion vectors and without. The deleted rows
are spread over all files. Between two deletes the table is restored, which is not measured.

- delete: rows deleted with deletion vectors, against the same without.
- scan: a sum over the table whose rows are marked, against the same after REORG has purged them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.bench import BenchResult, compare, join_results
from mirrorlake import Lake
from mirrorlake.lake_table import LakeTable
from mirrorlake.spark.session import get_spark

ROWS, FILES = 4_000_000, 8
SHARES = {"0.1 %": 1000, "1 %": 100, "10 %": 10, "50 %": 2}  # one row in so many
VECTORS = "delta.enableDeletionVectors"


def run(pairs: int) -> BenchResult:
    return join_results("vectors", [part(pairs) for part in PARTS.values()])


def delete(pairs: int) -> BenchResult:
    with lake_of_two() as (marked, plain):
        parts = []
        for share, step in SHARES.items():
            parts.append(
                compare(
                    "vectors",
                    f"delete {share}, without vectors as peer",
                    lambda step=step: delete_rows(marked, step),  # type: ignore[misc]
                    lambda step=step: delete_rows(plain, step),  # type: ignore[misc]
                    pairs,
                )
            )
        return join_results("vectors", parts)


def scan(pairs: int) -> BenchResult:
    with lake_of_two() as (marked, plain):
        parts = []
        for share, step in SHARES.items():
            first = marked.version(), plain.version()
            delete_rows(marked, step, back=False)
            delete_rows(plain, step, back=False)
            parts.append(
                compare(
                    "vectors",
                    f"scan with {share} deleted, purged as peer",
                    lambda: scan_rows(marked),
                    lambda: scan_rows(plain),
                    pairs,
                )
            )
            for table, version in zip((marked, plain), first, strict=True):
                table.restore(version, apply=True)
        return join_results("vectors", parts)


@contextmanager
def lake_of_two() -> Iterator[tuple[LakeTable, LakeTable]]:
    """The table with deletion vectors, and the one without."""
    get_spark("batch")
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        tables = []
        for name, switch in (("marked", "true"), ("plain", "false")):
            rows = lake.spark.range(0, ROWS, 1, FILES).selectExpr(
                "id", "concat('customer ', id % 977) AS name", "id * 0.37D AS amount"
            )
            tables.append(lake.write(name, rows, properties={VECTORS: switch}))
        yield tables[0], tables[1]


def delete_rows(table: LakeTable, step: int, *, back: bool = True) -> float:
    version = table.version()
    began = time.perf_counter()
    table.spark.sql(f"DELETE FROM {table.sql_name} WHERE id % {step} = 0")
    seconds = time.perf_counter() - began
    if back:
        table.restore(version, apply=True)
    return seconds


def scan_rows(table: LakeTable) -> float:
    began = time.perf_counter()
    rows = table.read().selectExpr("sum(amount)", "count(name)", "max(id)")
    assert rows.collect()[0][0] > 0
    return time.perf_counter() - began


PARTS = {"delete": delete, "scan": scan}
