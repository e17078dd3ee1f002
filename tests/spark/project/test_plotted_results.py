"""Results that lessons plot: row ids by version, and buckets of a policy."""

from __future__ import annotations

import pytest

from mirrorlake import Lake
from mirrorlake.errors import UsageError


def test_row_ids_by_version(lake: Lake) -> None:
    stock = lake.write("stock", [{"id": 1, "item": "bolt"}, {"id": 2, "item": "nut"}])
    lake.sql("UPDATE stock SET id = 20 WHERE item = 'nut'")
    lake.sql("DELETE FROM stock WHERE item = 'bolt'")
    found = stock.row_tracking.by_version("item")
    assert repr(found) == "stock: 2 rows in 3 versions"
    assert found.versions == ("1\nwrite", "2\nupdate", "3\ndelete")
    ids = {name: [one.partition(" · ")[2] for one in line] for name, line in found.rows.items()}
    assert ids == {"bolt": ["v1", "v1", ""], "nut": ["v1", "v2", "v2"]}
    assert found.shown().columns == ("row", "1 write", "2 update", "3 delete")
    assert "nut" in found.plot().describe()


def test_the_spread_of_a_policy_that_is_not_set(lake: Lake) -> None:
    table = lake.write("visits", lake.spark.range(0, 500, 1, 2).selectExpr("string(id) AS who"))
    properties = {"MaxPartitionCount": 4}
    key = {"ColumnName": "who", "Kind": "Hash", "Properties": properties}
    found = table.partitioning.spread({"PartitionKeys": [key]})
    assert sum(map(sum, found.counts)) == 500
    assert {len(line) for line in found.counts} == {4}
    assert table.partitioning.policy is None
    with pytest.raises(UsageError, match="no partitioning policy"):
        table.partitioning.spread()
