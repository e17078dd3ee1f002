"""Test a row's history in words, and reports of all views; reading changes no file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.notebooks import lake_state
from mirrorlake import Lake
from mirrorlake.errors import QueryError, UsageError
from mirrorlake.rows import row_history


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with a table of four versions; each test uses a copy."""
    lake = Lake(tmp_path_factory.mktemp("made") / "lake")
    stock = lake.create_table("stock", {"id": "bigint", "n": "int"}, keys=["id"], row_tracking=True)
    for statement in (
        "INSERT INTO {t} VALUES (1, 10), (2, 20)",
        "UPDATE {t} SET n = 11 WHERE id = 1",
        "UPDATE {t} SET id = 3 WHERE id = 1",
    ):
        lake.spark.sql(statement.format(t=stock.sql_name))
    return Path(lake.storage.root)


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    return Lake(shutil.copytree(made, tmp_path / "lake"))


@pytest.mark.long  # test_rows_changes.py has histories across keys
def test_a_row_is_followed_through_a_change_of_its_key(lake: Lake, tmp_path: Path) -> None:
    rows = lake.table("stock").row_tracking
    before = lake_state(tmp_path)
    found = rows.report("3")
    assert found.row == "id 3"
    assert [(row[0], row[2], row[3]) for row in found.events.rows] == [
        (1, "insert", "id 1: n 10"),
        (2, "update", "id 1: n 10 → 11"),
        (3, "update", "id 3: id 1 → 3"),
    ]
    assert rows.report().ids == found.ids
    assert rows.report('{"n": 20}').events.rows[0][3] == "id 2: n 20"
    gone = rows.report("99")
    assert (gone.events.rows, gone.ids) == ((), ())
    assert gone.notes == ("No version in which rows have ids contains such a row.",)
    with pytest.raises(UsageError, match="no column nothing"):
        rows.report('{"nothing": 1}')
    assert lake_state(tmp_path) == before


def test_a_long_history_is_cut(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_history, "_MOST_EVENTS", 2)
    events = lake.table("stock").row_tracking.report("3").events
    assert ([row[0] for row in events.rows], events.more) == ([1, 2], True)


def test_a_table_without_ids_says_what_enabling_commits(lake: Lake, tmp_path: Path) -> None:
    plain = lake.create_table("plain", {"id": "bigint"}, row_tracking=False)
    before = lake_state(tmp_path)
    found = plain.row_tracking.report()
    assert found.change is not None
    assert not found.change.applied
    assert found.notes == ("The rows have no ids, so no history can be shown.",)
    assert lake_state(tmp_path) == before
    assert plain.row_tracking.report(enable=True).tracking.enabled
    assert plain.row_tracking.report().notes == ("The table is empty.",)


def test_all_views_in_the_order_of_their_sources(lake: Lake) -> None:
    assert lake.views.refresh_all().runs == ()
    lake.views.create("b", "SELECT id, n FROM stock WHERE n > 5")
    lake.views.create("a", "SELECT count(*) AS rows FROM b")
    lake.spark.sql(f"INSERT INTO {lake.table('stock').sql_name} VALUES (7, 70)")
    planned = lake.views.refresh_all(dry_run=True)
    assert [run.status.view for run in planned.runs] == ["b", "a"]
    assert planned.rows_read() == {}
    done = lake.views.refresh_all(how="incremental", check=True)
    done.check()
    assert [run.status.state for run in done.runs] == ["behind", "behind"]
    # A view of single rows has no feed, so a view that reads it reads all rows.
    assert [run.rows_read for run in done.runs] == [1, 3]
    assert [run.rows_full for run in done.runs] == [3, 3]
    assert lake.views.read("a").first() == (3,)


def test_a_view_that_fails_stops_no_other(lake: Lake) -> None:
    lake.create_table("other", {"x": "bigint"})
    lake.views.create("bad", "SELECT x FROM other")
    lake.views.create("good", "SELECT id FROM stock")
    lake.spark.sql(f"INSERT INTO {lake.table('stock').sql_name} VALUES (7, 70)")
    lake.storage.delete_folder("Tables/other")
    done = lake.views.refresh_all()
    assert [bool(run.error) for run in done.runs] == [True, False]
    assert lake.views.read("good").count() == 3
    with pytest.raises(QueryError, match="bad"):
        done.check()
