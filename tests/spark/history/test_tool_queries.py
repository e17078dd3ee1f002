"""Queries of the tools: tables at a timestamp, expectations, differences, saved rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mirrorlake import Lake, save_rows, show_rows
from mirrorlake.errors import QueryError, UsageError, VersionError


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Lake:
    """Return a lake: `stock` in three versions; `items` in two, both older than the third."""
    lake = Lake(tmp_path_factory.mktemp("shop") / "lake", spark=spark)
    for rows in ("1, 'bolt'), (2, 'nut'", "3, 'screw'"):
        frame = spark.sql(f"SELECT * FROM VALUES ({rows}) AS t(id, item)").coalesce(1)
        lake.write("stock" if "bolt" in rows else "items", frame)
    lake.spark.sql(f"DELETE FROM {lake.table('stock').sql_name} WHERE id = 1")
    return lake


def test_every_table_is_read_as_of(shop: Lake, spark: SparkSession) -> None:
    count = "SELECT count(*) AS n FROM stock"
    assert shop.sql(count).first()[0] == 1
    assert shop.sql(count, as_of=1).first()[0] == 2
    assert shop.sql(f"{count}@v2", as_of="1").first()[0] == 1  # an explicit version has priority
    before, now = (c.timestamp for c in reversed(shop.table("stock").history(2).commits))
    assert before
    assert now
    both = f"SELECT ({count}) AS n, (SELECT count(*) FROM items i) AS m"
    assert tuple(shop.sql(both, as_of=now.isoformat()).first()) == (1, 1)
    joined = "SELECT count(*) FROM stock s JOIN stock t USING (id)"
    assert shop.sql(joined, as_of=before).first()[0] == 2
    with pytest.raises(VersionError, match="no version 9"):
        shop.sql(count, as_of=9)
    with pytest.raises(UsageError, match="Both frame and as_of"):
        shop.sql(count, as_of=1, frame="m")


def test_rows_are_shown_drawn_and_saved(shop: Lake, tmp_path: Path) -> None:
    rows = shop.sql("SELECT item, id, id + 1 AS id FROM stock@v1 ORDER BY id", read_only=True)
    shown = show_rows(shop.sql("SELECT item, id AS n, id AS n FROM stock"), limit=5)
    assert shown.columns == ("item", "n", "n")  # column names may occur twice
    assert shown.plot() is None
    pair = show_rows(shop.sql("SELECT item, id FROM stock@v1 ORDER BY item"))
    assert pair.rows == (("bolt", 1), ("nut", 2))
    turned = show_rows(shop.sql("SELECT id, item FROM stock@v1"), order_by="item DESC, id")
    assert turned.rows == ((2, "nut"), (1, "bolt"))
    assert pair.plot() is not None
    target = tmp_path / "new" / "rows.parquet"
    assert save_rows(shop.sql("SELECT * FROM stock@v1"), str(target)) == 2
    assert pq.read_table(target).num_rows == 2
    with pytest.raises(UsageError, match="already exists"):
        save_rows(rows.select("item"), str(target))
    with pytest.raises(QueryError, match="not a query"):
        shop.sql("DELETE FROM stock", read_only=True)
    with pytest.raises(QueryError, match="DIVIDE_BY_ZERO"):
        show_rows(shop.sql("SELECT id / 0 FROM stock"))


def test_timestamps_within_values_are_shown_in_the_zone_of_the_session(shop: Lake) -> None:
    at = "TIMESTAMP '1969-12-31 23:30:00Z'"
    query = f"SELECT {at} AS t, array({at}) AS a, struct({at} AS x, 1 AS n) AS s"
    (row,) = show_rows(shop.sql(query)).rows
    text = "1969-12-31 23:30:00"
    assert row == (text, f"[{text}]", f"{{{text}, 1}}")


def test_expectations(shop: Lake) -> None:
    found = shop.check_expectations(
        {
            "every row has an item": "SELECT * FROM stock WHERE item IS NULL",
            "no nuts": "SELECT * FROM stock WHERE item = 'nut'",
            "few rows": "SELECT id FROM stock@v1 UNION ALL SELECT id FROM items",
            "a column": "SELECT nothing FROM stock",
            "a change": "DELETE FROM stock",
        },
        limit=2,
    )
    assert [one.is_met for one in found.checked] == [True, False, False, False, False]
    assert [one.problem for one in found.checked][:3] == ["", "1 row", "more than 2 rows"]
    assert found.checked[1].found.rows == ((2, "nut"),)
    assert "nothing" in found.checked[3].problem
    assert repr(found) == "1 of 5 expectations are met"
    with pytest.raises(UsageError, match="give a mapping"):
        shop.check_expectations(["SELECT 1"])  # type: ignore[arg-type]


@pytest.mark.long  # every run of the notebook time_travel shows one
def test_the_difference_of_two_versions(shop: Lake) -> None:
    stock = shop.table("stock")
    timeline = stock.history()
    assert [c.rows.deleted for c in timeline.commits][:1] == [1]
    assert timeline.plot() is not None
    found = stock.compare()
    assert found.counts == {"added": 0, "removed": 1, "changed": 0}
    assert found.rows is not None
    assert found.rows.rows == ((1, "bolt", "delete"),)
    assert stock.compare(1, 1).counts is None
    assert stock.version == 2
    assert stock.restore(1).version == 1
    with pytest.raises(VersionError, match="no version 9"):
        stock.restore(9, apply=True)
