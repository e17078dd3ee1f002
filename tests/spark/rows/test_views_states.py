"""Each reason for a full refresh in the state of a view or a source.

Each test causes the reason, checks the full refresh, and that the next refresh is incremental
again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mirrorlake import Lake
from mirrorlake.names import TableName
from mirrorlake.views import explain

SUMS = "SELECT g, count(*) AS n, sum(x) AS total FROM t GROUP BY g"
JOIN = "SELECT t.id, t.x, s.x AS y FROM t JOIN s ON t.g = s.g"
RETENTION = "delta.deletedFileRetentionDuration"


def source(lake: Lake, name: str = "t", **more: Any) -> str:
    kinds = {"id": "INT", "g": "STRING", "x": "INT"}
    table = lake.create_table(name, kinds, **more)
    lake.spark.sql(f"INSERT INTO {table.sql_name} VALUES (1, 'a', 1), (2, 'a', 2), (3, 'b', 3)")
    return table.sql_name


def set_property(lake: Lake, table: str, name: str, value: str) -> None:
    lake.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({name} = '{value}')")


def forget_commits(lake: Lake, name: str, *versions: int) -> None:
    """Delete commits before a checkpoint, like Delta's cleanup of the log."""
    log = Path(lake.table(name).path) / "_delta_log"
    assert list(log.glob("*.checkpoint*.parquet"))
    for version in versions:
        (log / f"{version:020d}.json").unlink()


def follow(lake: Lake, view: str = "v") -> tuple[str, str]:
    explained = lake.views.explain(view)
    done = lake.views.refresh(view, how="incremental", check=True)
    assert done.differences == 0, done
    code = done.reason.code if done.reason else ""
    if code not in ("", "OLD_VERSION_LOST"):  # this reason is found only after the changes are read
        assert explained.reason is not None
        assert (explained.mode, explained.reason.code) == ("full", code)
    return done.mode, code


def follow_one_more(lake: Lake, table: str) -> tuple[str, str]:
    lake.spark.sql(f"UPDATE {table} SET x = x + 10 WHERE id = 1")
    return follow(lake)


def test_a_source_of_other_rows_and_other_types(lake: Lake) -> None:
    t = source(lake)
    lake.views.create("v", "SELECT id, x + 1 AS y FROM t")
    shutil.rmtree(lake.table("t").path)
    source(lake)
    lake.spark.sql(f"DELETE FROM {t} WHERE id = 3")
    assert follow(lake) == ("full", "SOURCE_RECREATED")
    set_property(lake, t, "delta.enableTypeWidening", "true")
    lake.spark.sql(f"ALTER TABLE {t} ALTER COLUMN x TYPE BIGINT")
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', {2**40})")
    assert follow(lake) == ("full", "COLUMNS_CHANGED")
    assert lake.sql("SELECT * FROM v").dtypes == [("id", "int"), ("y", "bigint")]
    assert follow_one_more(lake, t) == ("incremental", "")
    found = lake.sql("SELECT * FROM v ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(1, 12), (2, 3), (4, 2**40 + 1)]


def test_what_costs_more_is_not_done(lake: Lake) -> None:
    t = source(lake)
    lake.views.create("v", SUMS)
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4)")
    explain.save_cost(lake.storage, TableName(None, "v"), "full", explain.Cost(5.0, 10**9))
    explain.save_cost(lake.storage, TableName(None, "v"), "incremental", explain.Cost(50.0, 1))
    explained = lake.views.explain("v")
    done = lake.views.refresh("v", check=True)
    assert (done.mode, done.differences) == ("full", 0)
    assert done.reason is not None
    assert explained.reason is not None
    assert (done.reason.code, explained.reason.code) == ("COST", "COST")
    assert "5.0 s in full, 50.0 s incrementally" in done.reason.why
    explain.save_cost(lake.storage, TableName(None, "v"), "full", explain.Cost(500.0, 10**9))
    lake.spark.sql(f"INSERT INTO {t} VALUES (5, 'b', 5)")
    assert (lake.views.explain("v").mode, lake.views.refresh("v").mode) == ("incremental",) * 2


@pytest.mark.long
def test_a_feed_that_was_enabled_late(lake: Lake) -> None:
    t = source(lake, feed=False, row_tracking=False)
    lake.views.create("v", SUMS)
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4)")
    lake.table("t").changes.enable()
    lake.spark.sql(f"INSERT INTO {t} VALUES (5, 'b', 5)")
    assert follow(lake) == ("full", "FEED_OFF")
    assert follow_one_more(lake, t) == ("incremental", "")


@pytest.mark.long
def test_a_log_that_was_cut_off(lake: Lake) -> None:
    t = source(lake)
    lake.views.create("v", SUMS)
    set_property(lake, t, "delta.checkpointInterval", "1")  # 2
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4)")  # 3
    forget_commits(lake, "t", 0, 1, 2)
    assert follow(lake) == ("full", "LOG_LOST")
    assert follow_one_more(lake, t) == ("incremental", "")
    v = lake.table("v").sql_name
    newest = lake.table("v").snapshot().version
    set_property(lake, v, "delta.checkpointInterval", "1")
    set_property(lake, v, "n", "1")
    forget_commits(lake, "v", *range(newest + 2))
    assert follow(lake) == ("full", "STATE_LOST")  # though no source has changed
    assert follow_one_more(lake, t) == ("incremental", "")


@pytest.mark.long
def test_changes_that_may_not_be_read_any_more(lake: Lake) -> None:
    t = source(lake)
    lake.views.create("v", SUMS)
    lake.spark.sql(f"INSERT INTO {t} VALUES (4, 'b', 4)")
    set_property(lake, t, RETENTION, "interval 1 millisecond")
    assert follow(lake) == ("full", "FEED_RETENTION")
    set_property(lake, t, RETENTION, "interval 1 week")
    assert follow_one_more(lake, t) == ("incremental", "")


@pytest.mark.long
def test_an_old_version_that_is_gone(lake: Lake) -> None:
    """If two sources changed, the old version of one of them is read."""
    t, s = source(lake), source(lake, "s")
    lake.views.create("v", JOIN)
    old = lake.table("s").read().inputFiles()
    lake.spark.sql(f"UPDATE {t} SET x = x + 1 WHERE g = 'a'")
    lake.spark.sql(f"UPDATE {s} SET x = x + 1")
    for file in old:
        Path(file.removeprefix("file:")).unlink()
    assert follow(lake) == ("full", "OLD_VERSION_LOST")
    lake.spark.sql(f"DELETE FROM {s} WHERE id = 2")
    assert follow_one_more(lake, t) == ("incremental", "")
