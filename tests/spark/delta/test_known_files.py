"""Scans of chosen files, whose list Delta does not process in each query.

The names of the JVM's classes are internal: they show which list a scan uses.
"""

from __future__ import annotations

import pytest

from mirrorlake import Lake
from mirrorlake.spark.jvm import transaction


@pytest.mark.parametrize("partitions", [(), ("p",)], ids=["plain", "partitioned"])
def test_a_scan_has_the_rows_of_its_files(lake: Lake, partitions: tuple[str, ...]) -> None:
    rows = lake.spark.range(100).selectExpr("id", "id % 4 AS p")
    vectors = {"delta.enableDeletionVectors": "true"}
    table = lake.write("t", rows, partition_by=partitions, properties=vectors)
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE id % 10 = 3")
    expected = lake.spark.sql(f"SELECT * FROM {table.sql_name}")
    with transaction(lake.spark, table.path, own=False) as txn:
        scan = txn.rows(txn.take([row["path"] for row in txn.files().collect()]))
        relation = scan._jdf.queryExecution().analyzed().collectLeaves().head().relation()
        assert relation.location().getClass().getName() == "mirrorlake.KnownFiles"
        for condition in ("true", "p = 3", "p = 3 AND id < 50", "p IS NULL", "false", "id = 13"):
            found = scan.where(condition)
            assert found.exceptAll(expected.where(condition)).count() == 0, condition
            assert found.count() == expected.where(condition).count(), condition
