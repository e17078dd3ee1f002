"""Deletion vectors: the cost of marking rows and of reading past them, against rewritten files.

The table has 4,000,000 rows in 20 files; random rows are deleted.

- marks: a DELETE on a table with deletion vectors, against the same on one without, in seconds and
  in bytes of new files; 0.01, 1, 5 and 20 % of the rows.
- reads: an aggregate over all columns of a table with 0, 1, 5 and 20 % of its rows marked, against
  the same rows in rewritten files (REORG … PURGE); at 0 % neither has a row to skip.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from helpers.bench import BenchResult, compare, join_results
from helpers.bench_data import COLUMNS, copy_tree, initial_files, timed, write_files
from mirrorlake.spark.session import get_spark

ROWS, FILES = 4_000_000, 20
SHARES = (0, 1, 5, 20)  # percent
MARKED = (0.01, 1, 5, 20)
PROPERTY = "delta.enableDeletionVectors"


def run(pairs: int) -> BenchResult:
    return join_results("vectors", [part(pairs) for part in PARTS.values()])


def marks(pairs: int) -> BenchResult:
    found = []
    with tables() as (marking, rewriting):
        for share in MARKED:
            what = f"delete {share:g} % of the rows by marking, against rewriting"
            sizes: dict[Path, int] = {}
            deletes = [
                partial(deleted, template, share, sizes) for template in (marking, rewriting)
            ]
            found.append(compare("vectors", what, *deletes, pairs))
            ratio = round(sizes[rewriting] / sizes[marking], 1)
            written = {f"{what}: written": sizes[marking]}
            written[f"{what}: written, peer"] = sizes[rewriting]
            found.append(BenchResult("vectors", {}, {f"{what}: bytes": ratio}, sizes=written))
    return join_results("vectors", found)


def deleted(template: Path, share: float, sizes: dict[Path, int]) -> float:
    """Return the seconds of a DELETE in a copy of a table; add its new bytes to `sizes`."""
    with tempfile.TemporaryDirectory(dir=template.parent) as folder:
        path = copy_tree(template, Path(folder) / "table")
        before = {file.name for file in data_files(path)}
        seconds = timed(lambda: delete_rows(path, share))
        new = [file for file in data_files(path) if file.name not in before]
        sizes[template] = sum(file.stat().st_size for file in new)
    return seconds


def reads(pairs: int) -> BenchResult:
    found = []
    with tables() as (template, _):
        for share in SHARES:
            marked = copy_tree(template, template.parent / f"marked-{share}")
            if share:
                delete_rows(marked, share)
            rewritten = copy_tree(marked, template.parent / f"rewritten-{share}")
            get_spark().sql(f"REORG TABLE delta.`{rewritten}` APPLY (PURGE)")
            assert read(marked) == read(rewritten)
            what = f"read with {share} % of the rows marked, against rewritten files"
            found.append(
                compare(
                    "vectors",
                    what,
                    partial(timed, partial(read, marked)),
                    partial(timed, partial(read, rewritten)),
                    5 * pairs,
                )
            )
    return join_results("vectors", found)


PARTS = {"marks": marks, "reads": reads}


@contextmanager
def tables() -> Iterator[tuple[Path, Path]]:
    """Create the same rows in the same files twice: with and without deletion vectors."""
    spark = get_spark("batch")
    with tempfile.TemporaryDirectory() as folder:
        made = []
        source = Path(folder) / "source"
        write_files(initial_files(0, ROWS, FILES), source)
        for name, value in (("marking", "true"), ("rewriting", "false")):
            path = Path(folder) / name
            rows = spark.read.parquet(str(source)).repartition(FILES)
            rows.write.format("delta").option(PROPERTY, value).save(str(path))
            made.append(path)
        yield made[0], made[1]


def delete_rows(table: Path, share: float) -> None:
    """Delete this percentage of the rows, selected by a hash of the id."""
    get_spark().sql(
        f"DELETE FROM delta.`{table}` WHERE pmod(xxhash64(id), 10000) < {round(100 * share)}"
    )


def read(table: Path) -> tuple[object, ...]:
    """Run an aggregate that reads every value of every row."""
    rows = get_spark().read.format("delta").load(str(table))
    (line,) = rows.selectExpr("count(*)", f"bit_xor(xxhash64({', '.join(COLUMNS)}))").collect()
    return tuple(line)


def data_files(table: Path) -> list[Path]:
    """Return Parquet files and deletion vectors."""
    return [path for path in table.iterdir() if path.suffix in (".parquet", ".bin")]
