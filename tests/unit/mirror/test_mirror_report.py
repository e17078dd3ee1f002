"""The report of a mirror cycle, and operations by their names; without Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from mirrorlake import Lake
from mirrorlake.errors import CheckError, TableNotFoundError, UsageError
from mirrorlake.mirror import status
from mirrorlake.mirror.ledger import Ledger, LedgerEntry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a lake with a table that was not yet mirrored, and one that no publisher feeds."""
    Lake(tmp_path).publisher("stock", keys=["id"]).upsert([{"id": 1}, {"id": 2}])
    write_deltalake(tmp_path / "Tables" / "other", rows_of({"id": [1]}))
    return tmp_path


def files_of(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


def test_a_dry_run_and_a_status_need_no_spark(root: Path) -> None:
    program = (
        "import sys; from mirrorlake import Lake; lake = Lake(sys.argv[1])\n"
        "print(lake.mirror(dry_run=True), lake.status(), 'pyspark' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("(dry run) 1 table, 0 problems False\n")


def test_a_dry_run_reports_what_would_be_applied(root: Path) -> None:
    before = files_of(root)
    report = Lake(root).mirror(dry_run=True)
    assert (report.files, report.rows, report.failed) == (1, 2, ())
    assert repr(report) == "1 file with 2 rows would be applied (dry run)"
    assert report.shown().rows == (("stock", "Initialized", 1, f"{1:020d}.parquet", 2, 0, ""),)
    (table,) = report.as_dict()["tables"]
    assert (table["files"], table["rows_to_apply"]) == ([f"{1:020d}.parquet"], 2)
    assert table["backlog_files"] == 1
    assert report.plot() is None
    report.check()
    assert repr(Lake(root).waiting("stock")) == repr(report)
    assert "No file was published to other" in Lake(root).waiting("other").note
    assert files_of(root) == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_table_that_no_publisher_feeds_is_left_alone(
    root: Path, tmp_path: Path, dry_run: bool
) -> None:
    report = Lake(root).mirror("other", dry_run=dry_run)
    assert report.shown().rows == (("No publisher feeds other: there is nothing to mirror.",),)
    assert repr(report).startswith("0 files with 0 rows")
    write_deltalake(tmp_path / "new" / "Tables" / "t", rows_of({"id": [1]}))
    assert "Nothing was ever published" in Lake(tmp_path / "new").mirror(dry_run=dry_run).note
    assert not (tmp_path / "new" / "Files").exists()


@pytest.mark.parametrize(
    "settings", [{"on_error": "skip"}, {"batch_files": 0}, {"nothing": 1}], ids=str
)
def test_settings_are_checked_before_anything_is_done(root: Path, settings) -> None:
    before = files_of(root)
    with pytest.raises(UsageError, match="Hint"):
        Lake(root).mirror(**settings)
    assert files_of(root) == before


def test_a_failed_table_is_reported_with_its_fix(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / "Files/LandingZone" / name
        folder.mkdir(parents=True)
        (folder / f"{1:020d}.parquet").touch()
    report = Lake(tmp_path).mirror(dry_run=True)
    assert [one.name for one in report.failed] == ["a", "b"]
    assert repr(report) == "0 files with 0 rows would be applied, 2 tables failed (dry run)"
    assert report.errors.rows[0][:2] == ("a", f"{1:020d}.parquet")
    assert report.shown().rows[0][-1] == report.tables[0].problem
    with pytest.raises(
        CheckError, match=r"a failed: .* \[file .*\] \(1 more table failed.\) Hint: "
    ):
        report.check()


def line(name: str, error: dict[str, object] | None = None) -> status.MirroredTable:
    state = "Failed" if error else "Replicating"
    return status.MirroredTable(
        name, "s", state, 3, 1, 0, 0, None, None, 9.5, error, applied_files=1, applied_rows=2
    )


def test_a_report_leaves_out_what_changes_from_run_to_run() -> None:
    shown = status.MirrorReport((line("a"),)).shown()
    assert shown.columns == ("table", "state", "files", "rows", "waiting", "problem")
    assert shown.rows == (("s.a", "Replicating", 1, 2, 0, ""),)


def test_errors_name_file_and_column_and_a_row_only_where_one_is_known() -> None:
    error = {"message": "No.", "file": "1.parquet", "row": None, "column": "n"}
    shown = status.MirrorReport((line("a"), line("b", error))).errors
    assert shown.columns == ("table", "file", "column", "message")
    assert shown.rows == (("s.b", "1.parquet", "n", "No."),)
    shown = status.MirrorReport((line("b", error), line("c", error | {"row": 7}))).errors
    assert shown.columns == ("table", "file", "row", "column", "message")
    assert [row[2] for row in shown.rows] == [None, 7]
    assert status.MirrorReport((line("a"),)).errors.rows == ()


def test_a_published_table_is_found_before_it_is_mirrored(root: Path) -> None:
    assert Lake(root).operations.find(" stock ").name == "stock"
    assert Lake(root).operations.find("OTHER").name == "other"
    with pytest.raises(TableNotFoundError, match="did you mean stock"):
        Lake(root).operations.find("stokc")


def test_a_table_in_a_folder_without_a_lake_is_refused(tmp_path: Path) -> None:
    """The path may be mistyped: not even the mirror's own folder is created."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TableNotFoundError, match="no folder for the table stock"):
        Lake(tmp_path).mirror("stock")
    assert files_of(tmp_path) == [str(tmp_path / "notes.txt")]
    with pytest.raises(TableNotFoundError, match="no folder for the table stock"):
        Lake(tmp_path).watch(Event(), table="stock")
    assert files_of(tmp_path) == [str(tmp_path / "notes.txt")]


def test_a_watcher_in_a_folder_without_a_lake_waits_for_a_publisher(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    stop, notes = Event(), list[str]()

    def seen(report: status.MirrorReport) -> None:
        notes.append(report.note)
        if len(notes) == 1:
            assert files_of(tmp_path) == [str(tmp_path / "notes.txt")]
            (tmp_path / "Files" / "LandingZone").mkdir(parents=True)
        else:
            stop.set()

    Lake(tmp_path).watch(stop, interval=0.01, on_report=seen)
    assert notes == ["Nothing was ever published into this lake.", ""]


@pytest.mark.parametrize(("verb", "more"), [("pause", ()), ("resume", ()), ("skip", (1,))])
def test_a_setting_needs_a_table(root: Path, verb: str, more: tuple[int, ...]) -> None:
    """A table that is gone can be resumed as long as it has settings."""
    before = files_of(root)
    operations = Lake(root).operations
    with pytest.raises(TableNotFoundError, match="did you mean stock"):
        getattr(operations, verb)("stokc", *more)
    assert files_of(root) == before
    operations.pause("stock")
    shutil.rmtree(root / "Files/LandingZone/stock")
    assert getattr(operations, verb)("stock", *more).table == "stock"


def test_skip_says_that_a_file_does_not_exist_yet(root: Path) -> None:
    operations = Lake(root).operations
    assert operations.skip("stock", 9, apply=True).effect == (
        "file 9, which does not exist yet, is skipped"
    )
    assert operations.skip("stock", 1).effect == "file 1 would be skipped"


@pytest.mark.parametrize("action", ["ledger", "pause", "resume", "skip"])
def test_an_action_is_only_said_without_apply(root: Path, action: str) -> None:
    before = files_of(root)
    done = Lake(root).operations.run("stock", action, first=1)
    assert done.verb == action
    assert files_of(root) == before


def test_apply_acts(root: Path) -> None:
    assert Lake(root).operations.run("stock", "pause", apply=True).applied
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
        Lake(root).operations.run(table, action, apply=True)
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
    assert repr(done) == "t: 1 row of 1 file published, 1 file skipped (published before)"
    again = lake.publish("t", files, marker="upsert")
    assert repr(again) == "t: 2 files skipped (published before)"
    assert [row[-1] for row in done.shown().rows] == ["published before", "published"]
    assert lake.publish("t", str(files[0]), marker="upsert").sources == ("a.csv",)
    assert lake.publish("t", files[0], marker="upsert").count == 0
    published = lake.publish("t", [{"id": 7, "n": 1}], marker="upsert")
    assert (published.count, published.rows, published.sources) == (1, 1, ("the batch",))
    assert lake.publish("u", rows_of({"id": [1, 2]}), keys="id").rows == 2
    for n in (2, 1):  # the second change leads back to the first content
        files[0].write_text(f"id,n\n0,{n}\n")
        assert lake.publish("t", files[:1], keys="id", marker="upsert").count == 1
        assert lake.publish("t", files, keys="id", marker="upsert").count == 0
    alike = [tmp_path / year / "day.csv" for year in ("2024", "2025")]
    for number, file in enumerate(alike):
        file.parent.mkdir()
        file.write_text(f"id,n\n{number},9\n")
    counts = [lake.publish("t", alike, keys="id", marker="upsert").count for _ in range(2)]
    assert counts == [2, 0]
    with pytest.raises(UsageError, match="There is no marker 'merge'"):
        lake.publish("t", files, keys="id", marker="merge")


@pytest.mark.parametrize(("lag", "shown"), [(7.0, "7.00"), (55.48, "55.48"), (0.1004, "0.10")])
def test_a_ledger_shows_each_lag_with_the_same_digits(lag: float, shown: str) -> None:
    """`notebooks/sanitize.cfg` recognizes a lag by its decimal point."""
    entry = LedgerEntry(1, "a", 1, "", {"insert": 1}, 0, None, 1, "", "", lag)
    html = Ledger("t", (entry, replace(entry, lag_seconds=None)))._repr_html_()
    assert f">{shown}</td></tr>" in html
    assert html.count("text-align:right") == 4 * 3  # with the head: also the lag is a number
