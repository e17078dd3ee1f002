"""TPC-H: tables, queries, changes and answers, which DuckDB generates in an environment of its own.

The project contains neither data nor queries of TPC-H. DuckDB generates them with its extension.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import sqlglot

from helpers.environments import make_environment
from mirrorlake import Lake
from mirrorlake.query.statement import DIALECT

PACKAGES = ("duckdb==1.5.5", "duckdb-extension-tpch==1.5.5")
PROGRAM = Path(__file__).with_name("tpch_program.py")
KEYS = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "customer": ["c_custkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
_BATCH = 1_000_000


@dataclass(frozen=True)
class Tpch:
    """The files that DuckDB generated.

    Attributes:
        folder: contains the tables, and for each cycle its changes and answers.
        queries: the queries in Spark's dialect, by number.
    """

    folder: Path
    queries: dict[int, str]

    def fill(self, lake: Lake) -> None:
        """Publish all tables, and mirror them."""
        for table in KEYS:
            self._publish(lake, table, self.folder / f"{table}.parquet")
        _mirror(lake)

    def change(self, lake: Lake, cycle: int) -> None:
        """Publish the changes of a cycle, and mirror them. The first cycle is 1."""
        for path in sorted((self.folder / f"changes_{cycle}").iterdir()):
            self._publish(lake, path.stem, path)
        _mirror(lake)

    def answers(self, cycle: int) -> dict[int, list[tuple[object, ...]]]:
        """Return the rows of each query after a cycle, computed by DuckDB; 0 is the start."""
        folder, found = self.folder / f"answers_{cycle}", {}
        for number in self.queries:
            columns = pq.read_table(folder / f"{number}.parquet").to_pydict().values()
            found[number] = list(zip(*columns, strict=True))
        return found

    def _publish(self, lake: Lake, table: str, path: Path) -> None:
        publisher = lake.publisher(table, keys=KEYS[table])
        for batch in pq.ParquetFile(path).iter_batches(_BATCH):
            publisher.write(batch)


def _mirror(lake: Lake) -> None:
    report = lake.mirror(deletion_vectors=True)
    assert not report.failed, report.tables


def make_tpch(folder: Path, scale: float, cycles: int, *, nth: int, answers: bool) -> Tpch:
    """Generate the tables, and changes for several cycles.

    Each cycle deletes, inserts and updates orders with their lines, a third each, and updates rows
    of partsupp. DuckDB's own tables have the same changes when it computes the answers.

    Args:
        folder: a new folder for the files.
        scale: the scale factor.
        cycles: the number of cycles.
        nth: in each cycle, one of `nth` orders, and one of `nth` rows of partsupp, changes.
        answers: whether to compute all queries, too: first and after each cycle.
    """
    python = make_environment("tpch", *PACKAGES)
    folder.mkdir()
    given = {"scale": scale, "cycles": cycles, "nth": nth, "answers": answers, "keys": KEYS}
    subprocess.run([str(python), str(PROGRAM), str(folder), json.dumps(given)], check=True)
    queries = json.loads((folder / "queries.json").read_text())
    spark = {
        int(number): sqlglot.transpile(sql, read="duckdb", write=DIALECT)[0]
        for number, sql in queries.items()
    }
    return Tpch(folder, spark)
