"""Test what users of delta-rs or Spark expect: version, schema, detail, rows, delete."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from mirrorlake import Lake
from mirrorlake.errors import QueryError, UsageError
from mirrorlake.spark.sql import setting

ROWS = [{"id": n, "text": f"t{n}"} for n in range(6)]


def test_a_table_is_read_in_the_usual_ways(lake: Lake) -> None:
    table = lake.write("notes", ROWS)
    lake.write("notes", [{"id": 9, "text": "late"}])
    assert (table.version, table.schema.names) == (2, ["id", "text"])
    assert table.detail()["numFiles"] >= 2
    assert sorted(table.to_pandas()["id"]) == [0, 1, 2, 3, 4, 5, 9]
    assert table.to_arrow(version=1).num_rows == len(ROWS)
    assert [row.text for row in table.read(version=2, where="id > 5").collect()] == ["late"]
    tracked = table.read(version=1, row_ids=True, where="id = 3").collect()
    assert [row._row_commit_version for row in tracked] == [1]
    with pytest.raises(UsageError, match="only one of version and timestamp"):
        table.read(version=1, timestamp="2024-01-01")


def test_a_lake_in_a_thread_joins_the_running_session(lake: Lake) -> None:
    name = "spark.sql.shuffle.partitions"

    def found() -> str | None:
        running = SparkSession.active()  # other test processes may have sessions in this JVM
        with setting(running, name, "7"):
            return Lake(lake.storage.root).spark.conf.get(name)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(found).result() == "7"  # the settings of a launch are not set again


def test_rows_of_ones_own_table_are_deleted_when_asked(lake: Lake) -> None:
    table = lake.write("notes", ROWS)
    said = table.delete("id < 2")
    assert (said.rows, said.applied, table.version) == (2, False, 1)
    assert repr(said) == "notes: would delete 2 rows"
    done = table.delete("id < 2", apply=True)
    assert (done.rows, done.version, table.read().count()) == (2, 2, 4)
    with pytest.raises(QueryError, match="nothing"):
        table.delete("nothing = 1")
    lake.publisher("fed", keys=["id"]).write([{"id": 1}])
    lake.mirror()
    with pytest.raises(UsageError, match="publisher"):
        lake.table("fed").delete("id = 1", apply=True)
    assert lake.table("fed").read().count() == 1


@pytest.mark.long  # test_feed_cli.py has dry runs of both
def test_what_follows_a_feed_says_what_is_new_first(lake: Lake) -> None:
    lake.create_table("stock", {"id": "bigint", "n": "bigint"}, keys=["id"])
    lake.sql("INSERT INTO stock VALUES (1, 5)")
    plan = lake.archive("stock", "history.stock", dry_run=True)
    assert (plan.start, plan.end, plan.applied) == (0, 1, False)
    assert not lake.update_dimension("stock", "now", dry_run=True).is_empty
    assert [str(name) for name in lake.tables()] == ["stock"]
    assert lake.archive("stock", "history.stock").end == 1
    assert lake.update_dimension("stock", "now").end == 1
    again = lake.archive("stock", "history.stock", dry_run=True)
    assert (again.start, again.lag.versions) == (2, 0)
    assert lake.update_dimension("stock", "now", dry_run=True).is_empty
