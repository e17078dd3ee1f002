"""A whole process with start, first write and three MERGEs; the peer is Delta's helper.

The peer is `configure_spark_with_delta_pip` with default settings. Statements and table properties
are the same; both have warm caches.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from helpers.bench import BenchResult, compare, run_script


def run(pairs: int) -> BenchResult:
    here = Path(__file__)
    return compare(
        "startup",
        "start, write, three merges",
        lambda: run_script(here, "ours")["seconds"],
        lambda: run_script(here, "peer")["seconds"],
        pairs,
    )


def work(who: str) -> None:
    if who == "ours":
        from mirrorlake.spark.session import get_spark

        spark = get_spark("notebook")
    else:
        from delta import configure_spark_with_delta_pip
        from pyspark.sql import SparkSession

        builder = (
            SparkSession.builder.config(
                "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
            )
            .config(
                "spark.sql.catalog.spark_catalog",
                "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            )
            .config("spark.sql.warehouse.dir", tempfile.mkdtemp())
        )
        spark = configure_spark_with_delta_pip(builder).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        table = f"delta.`{folder}/t`"
        spark.range(1000).selectExpr("id", "id AS v").write.format("delta").save(f"{folder}/t")
        for n in range(3):
            spark.range(n * 100, n * 100 + 2000).createOrReplaceTempView("changes")
            spark.sql(
                f"MERGE INTO {table} t USING changes s ON t.id = s.id"
                " WHEN MATCHED THEN UPDATE SET v = -1 WHEN NOT MATCHED THEN INSERT (id, v)"
                " VALUES (s.id, 0)"
            )
        assert spark.sql(f"SELECT count(*) c FROM {table}").first().c == 2200
        spark.stop()


if __name__ == "__main__":
    work(sys.argv[1])
