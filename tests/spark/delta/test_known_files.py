"""Scans of chosen files, whose list Delta does not process in each query.

The names of the JVM's classes are internal: they show which list a scan uses.
"""

from __future__ import annotations

import pytest

from mirrorlake import Lake
from mirrorlake.delta.actions import live_files
from mirrorlake.delta.exchange import version_rows


@pytest.mark.parametrize("partitions", [(), ("p",)], ids=["plain", "partitioned"])
def test_a_scan_has_the_rows_of_its_version(lake: Lake, partitions: tuple[str, ...]) -> None:
    rows = lake.spark.range(100).selectExpr("id", "id % 4 AS p")
    vectors = {"delta.enableDeletionVectors": "true"}
    table = lake.write("t", rows, partition_by=partitions, properties=vectors)
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE id % 10 = 3")
    for version in (table.version - 1, table.version):
        folder = "Tables/t"
        files = live_files(lake.storage, folder, version)
        scan = version_rows(lake.spark, lake.storage, folder, version, files)
        assert scan is not None
        relation = scan._jdf.queryExecution().analyzed().collectLeaves().head().relation()
        assert relation.location().getClass().getName() == "mirrorlake.KnownFiles"
        expected = lake.spark.sql(f"SELECT * FROM {table.sql_name} VERSION AS OF {version}")
        for condition in ("true", "p = 3", "p = 3 AND id < 50", "p IS NULL", "false", "id = 13"):
            found = scan.where(condition).exceptAll(expected.where(condition))
            assert found.count() == 0, condition
            assert scan.where(condition).count() == expected.where(condition).count(), condition
