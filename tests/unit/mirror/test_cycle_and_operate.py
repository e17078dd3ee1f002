"""The mirror's cycle and an operator's actions as notebooks ask for them, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from mirrorlake import Lake
from mirrorlake.errors import CheckError, TableNotFoundError, UsageError
from mirrorlake.mirror.tools import Cycle, CycleLine, operate, run_cycle
from mirrorlake.names import TableName


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One table that is published and not yet mirrored, and one that no publisher feeds."""
    Lake(tmp_path).publisher("stock", keys=["id"]).upsert([{"id": 1}, {"id": 2}])
    write_deltalake(tmp_path / "Tables" / "other", rows_of({"id": [1]}))
    return tmp_path


def files_of(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


def test_a_dry_run_says_what_would_be_applied(root: Path) -> None:
    before = files_of(root)
    cycle = run_cycle(Lake(root), dry_run=True)
    assert (cycle.files, cycle.rows, cycle.failed) == (1, 2, ())
    assert repr(cycle) == "1 files with 2 rows would be applied"
    assert cycle.shown().rows == (("stock", "Initialized", 1, 2, 0, ""),)
    cycle.check()
    assert files_of(root) == before


def test_what_no_publisher_feeds_is_left_alone(root: Path, tmp_path: Path) -> None:
    cycle = run_cycle(Lake(root), "other")
    assert cycle.shown().rows == (("No publisher feeds other: there is nothing to mirror.",),)
    write_deltalake(tmp_path / "new" / "Tables" / "t", rows_of({"id": [1]}))
    assert "Nothing was ever published" in run_cycle(Lake(tmp_path / "new")).note
    assert not (tmp_path / "new" / "Files").exists()


@pytest.mark.parametrize(
    "settings", [{"on_error": "skip"}, {"batch_files": 0}, {"nothing": 1}], ids=str
)
def test_settings_are_checked_before_anything_is_done(root: Path, settings) -> None:
    before = files_of(root)
    with pytest.raises(UsageError, match="Hint"):
        run_cycle(Lake(root), **settings)
    assert files_of(root) == before


def test_a_stopped_table_ends_the_run_with_an_error() -> None:
    error = {"message": "The key is NULL.", "file": "2.parquet", "row": 3, "column": "id"}
    cycle = Cycle((CycleLine("stock", "Failed", 0, 0, 1, None, error),))
    with pytest.raises(CheckError, match=r"stock stopped: The key is NULL. \[file 2.parquet, row"):
        cycle.check()


def test_a_published_table_is_found_before_it_is_mirrored(root: Path) -> None:
    assert Lake(root).operations.find(" stock ") == TableName(None, "stock")
    assert Lake(root).operations.find("OTHER") == TableName(None, "other")
    with pytest.raises(TableNotFoundError, match="did you mean stock"):
        Lake(root).operations.find("stokc")


@pytest.mark.parametrize("action", ["ledger", "pause", "resume", "skip"])
def test_an_action_is_only_said_without_apply(root: Path, action: str) -> None:
    before = files_of(root)
    done = operate(Lake(root), "stock", action, first=1)
    assert done.verb == action
    assert files_of(root) == before


def test_apply_acts(root: Path) -> None:
    assert operate(Lake(root), "stock", "pause", apply=True).applied
    assert Lake(root).status().tables[0].state == "Stopped"


@pytest.mark.parametrize(
    ("table", "action", "message"),
    [
        ("stock", "stop", "There is no action 'stop'"),
        ("stock", "skip", "needs the number of a file"),
        ("stock", "replay", "needs the number of a file"),
        ("other", "pause", "No publisher feeds other"),
    ],
)
def test_what_makes_no_sense_is_refused(root: Path, table: str, action: str, message: str) -> None:
    before = files_of(root)
    with pytest.raises(UsageError, match=message):
        operate(Lake(root), table, action, apply=True)
    assert files_of(root) == before


def test_files_are_published_once_under_their_names(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for number, file in enumerate(files):
        file.write_text(f"id,n\n{number},1\n")
    tried = lake.publish("t", files, keys="id", marker="upsert", dry_run=True)
    assert (tried.count, tried.rows) == (0, 2)
    assert not (tmp_path / "lake" / "Files").exists()
    assert lake.publish("t", files[:1], keys="id", marker="upsert").count == 1
    done = lake.publish("t", files, keys=["id"], marker="upsert")
    assert (done.count, done.rows) == (1, 1)
    assert [row[-1] for row in done.shown().rows] == ["published before", "published"]
    files[0].write_text("id,n\n0,2\n")
    assert lake.publish("t", files[:1], keys="id", marker="upsert").count == 1
    with pytest.raises(UsageError, match="There is no marker 'merge'"):
        lake.publish("t", files, keys="id", marker="merge")
