"""The status of a lake: its parts, its problems, and when `check` raises; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from mirrorlake import Lake, source_status
from mirrorlake.errors import CheckError, DataFileError, UsageError
from mirrorlake.landing.metadata import BY_TIME
from mirrorlake.mirror import lag
from mirrorlake.mirror.ledger import Ledger, LedgerEntry
from mirrorlake.mirror.state import TableState, save_states
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import PROGRAM
from mirrorlake_sources.source import write_report


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a lake's root with a table of two files that wait."""
    stock = Lake(tmp_path).publisher("stock", keys=["id"])
    stock.upsert([{"id": 1}])
    stock.upsert([{"id": 2}])
    return tmp_path


def skip_a_file(root: Path) -> None:
    """Delete the first file of `stock`, so that the second one waits for it."""
    next((root / "Files/LandingZone/stock").glob("*1.parquet")).unlink()


def test_limits_are_problems_only_if_they_are_set(root: Path) -> None:
    before = sorted(root.rglob("*"))
    status = Lake(root).status()
    status.check()
    assert status.problems == ()
    assert status.problems.shown().rows == (("There are no problems.",),)
    assert repr(status) == "1 table, 0 problems"
    row = status.shown().rows[0]
    assert row[:4] == ("stock", "Initialized", 0, 0)
    assert row[4].startswith("2 files, ")
    late = Lake(root).status(max_lag=1e-9, max_backlog=1)
    assert [(p.kind, p.where) for p in late.problems] == [("lag", "stock"), ("backlog", "stock")]
    assert late.problems[1].message == "The backlog of 2 files exceeds the limit of 1 file."
    with pytest.raises(CheckError, match=r"stock: The lag of .* exceeds .* \(1 more problem.\)"):
        late.check()
    assert not Lake(root).status(max_backlog=2).problems
    assert sorted(root.rglob("*")) == before


def test_a_missing_file_is_a_warning(root: Path) -> None:
    skip_a_file(root)
    status = Lake(root).status()
    assert repr(status) == "1 table, 0 problems, 1 warning"
    status.check()
    (line,) = status.tables
    assert (line.level, line.problem) == ("warn", "File 1 is missing; later files wait for it.")
    assert line.fix == f"publish file 1, or skip it ({PROGRAM} skip ROOT stock 1 --apply)."
    (warning,) = status.warnings
    assert (warning.where, warning.message, warning.fix) == ("stock", line.problem, line.fix)
    assert line.backlog.startswith("1 file, ")
    assert line.lag.endswith(" s")


def test_a_paused_table_is_idle_and_no_problem(root: Path) -> None:
    Lake(root).operations.pause("stock")
    status = Lake(root).status()
    (line,) = status.tables
    assert (line.level, line.problem, line.fix) == ("idle", "", "resume the table.")
    assert (line.state, status.tables.shown().rows[0][1]) == ("Stopped", "Paused")
    assert status.tables.shown().rows[0][-2:] == ("The table is paused.", line.fix)


def stop_at(root: Path, file: str, **more: Any) -> None:
    """Write the state of a mirror that stopped at a file of `stock`."""
    error = DataFileError("It is bad.", file=file, hint="correct it.").as_dict()
    state = TableState(None, "stock", "Failed", error=error, **more)
    save_states(Storage(root), {"Files/LandingZone/stock": state})


def test_a_stopped_table_can_skip_its_file(root: Path) -> None:
    stop_at(root, file_name(1))
    lake = Lake(root)
    (line,) = lake.status().tables
    assert line.stopped_at == "1"
    assert line.fix == f"correct it. Or skip the file ({PROGRAM} skip ROOT stock 1 --apply)."
    lake.operations.skip("stock", line.stopped_at, apply=True)
    status = lake.status()
    (line,), (problem,) = status.tables, status.problems
    assert (line.stopped_at, line.skipped) == ("1", ("1",))
    assert problem.fix == line.fix == "run the mirror: its next cycle skips the file."
    assert line.shown_problem.endswith("] The mirror will skip file 1.")
    assert status.notes == ("stock: The mirror will skip file 1.",)
    assert "stopped_at" not in line.as_dict()
    stop_at(root, file_name(1), last_file=1)  # it is applied
    (line,) = lake.status().tables
    assert (line.stopped_at, line.skipped, line.fix) == ("", (), "correct it.")


def test_a_file_that_is_ordered_by_time_is_skipped_by_its_name(root: Path) -> None:
    folder = root / "Files/LandingZone/stock"
    declared = {"keyColumns": ["id"], "fileDetectionStrategy": BY_TIME}
    (folder / "_metadata.json").write_text(json.dumps(declared))
    stop_at(root, file_name(2), last_file=7, strategy=BY_TIME)  # its number has no meaning
    (line,) = Lake(root).status().tables
    assert line.fix.endswith(f"skip ROOT stock {file_name(2)} --apply).")
    Lake(root).operations.skip("stock", line.stopped_at, apply=True)
    (line,) = Lake(root).status().tables
    assert line.skipped == (file_name(2),)
    assert line.fix.startswith("run the mirror")
    (folder / file_name(2)).rename(folder / "b.parquet")  # another file
    (line,) = Lake(root).status().tables
    assert (line.skipped, line.stopped_at) == ((), "")


def test_a_pending_skip_is_shown_without_a_problem(root: Path) -> None:
    Lake(root).operations.skip("stock", 9, apply=True)
    status = Lake(root).status()
    assert not status.problems
    assert status.tables.shown().rows[0][-2:] == ("The mirror will skip file 9.", "")
    assert status.notes == ("stock: The mirror will skip file 9.",)


def test_a_preview_names_the_file_to_skip(root: Path) -> None:
    (root / "Files/LandingZone/stock" / file_name(2)).write_bytes(b"corrupt")
    (line,) = Lake(root).mirror(dry_run=True).tables
    assert line.fix.endswith("skip ROOT stock 2 --apply).")
    (root / "Files/LandingZone/stock/_metadata.json").write_text("{")
    (line,) = Lake(root).mirror(dry_run=True).tables
    assert line.error is not None
    assert line.stopped_at == ""


def test_an_error_is_a_problem_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "Files" / "LandingZone" / "bad:name").mkdir(parents=True)
    status = Lake(tmp_path).status()
    (line,), (problem,) = status.tables, status.problems
    assert (line.level, problem.kind, problem.where) == ("bad", "error", "bad:name")
    assert "Hint" not in line.problem
    assert line.fix == "rename the folder."
    assert line.error is not None
    assert line.error["message"] == f"{line.problem} Hint: {line.fix}"
    assert str(problem) == f"bad:name: {line.problem} Fix: rename the folder."
    with pytest.raises(CheckError, match=r"bad:name: .* Hint: rename the folder"):
        status.check()


def test_the_document_and_the_text_have_the_same_tables(root: Path) -> None:
    status = Lake(root).status()
    assert [one["name"] for one in status.as_dict()["tables"]] == ["stock"]
    assert set(status.as_dict()) == {"tables", "views", "sources"}
    html = status._repr_html_()
    assert all(f">{cell}</t" in html for cell in ("stock", "Initialized", "last file"))


def test_a_lake_without_publishers(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "Tables" / "t", rows_of({"id": [1]}))
    status = Lake(tmp_path).status(max_lag=1, max_backlog=1)
    assert status.tables == ()
    assert status.shown().rows == (("No publisher feeds a table of this lake.",),)
    assert status.views.shown().rows == (("The lake has no views.",),)
    assert status.quarantine == {}
    assert status.plot() is None
    assert status.plot("backlog") is None
    assert not (tmp_path / "Files").exists()


def test_a_folder_without_a_lake_does_not_meet_a_limit(tmp_path: Path) -> None:
    """The disk of the lake may not be mounted. Without a limit, a new lake is no problem."""
    assert not Lake(tmp_path).status().problems
    (problem,) = Lake(tmp_path).status(max_lag=3600).table_problems
    assert (problem.where, "not a lake" in problem.message) == (str(tmp_path), True)
    with pytest.raises(CheckError, match="mount the disk"):
        Lake(tmp_path).status(max_backlog=1).check()


def test_limits_and_plots_are_checked(root: Path) -> None:
    with pytest.raises(UsageError, match="less than 0"):
        Lake(root).status(max_lag=-1)
    with pytest.raises(UsageError, match="no plot 'rows'"):
        Lake(root).status().plot("rows")  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "note"), [(6, "."), (8, " (2 of 8 tables not shown).")])
def test_a_plot_says_how_many_tables_it_does_not_show(
    storage: Storage, count: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ledger(_: Storage, table: TableName, **options: Any) -> Ledger:
        made = ["2026-03-01T10:00:00+00:00", "2026-03-01T10:00:05+00:00"]
        return Ledger(str(table), (LedgerEntry(1, "f", 1, "", {}, 0, None, 1, *made, 5.0),))

    monkeypatch.setattr(lag, "read_ledger", ledger)
    names = [TableName(None, f"t{n}") for n in range(count)]
    for what, title in (("lag", "publication to commit"), ("backlog", "files that wait")):
        chart = lag.plot_replication(storage, names, what)  # type: ignore[arg-type]
        assert chart is not None
        assert f"{title}{note}" in chart.describe()


def test_sources_are_listed_and_a_stopped_one_is_a_problem(root: Path) -> None:
    lake = Lake(root)
    assert lake.status().sources.shown().rows == (("No source feeds this lake.",),)
    report = source_status.SourceReport(
        "postgres:1/shop/mirrorlake", facts={"wal_status": "reserved"}
    )
    report.tables.append(source_status.SourceTable("stock", "Running", rows=2, files=2))
    write_report(lake.storage, report)
    assert report.shown().columns[-1] == "details"
    assert [row[-1] for row in report.shown().rows] == ["wal_status reserved", None]
    assert "2 rows and changes of 1 table" in repr(report)
    status = lake.status()
    assert not status.problems
    (line,) = status.sources.shown().rows
    assert (line[0], line[1], line[3], line[4]) == (
        report.source,
        "Running",
        1,
        "wal_status reserved",
    )
    report.tables[0].error = "It was altered."
    report.tables[0].rows = 1
    write_report(lake.storage, report)
    assert [row[-2:] for row in report.shown().rows] == [
        ("wal_status reserved", None),
        (None, "It was altered."),
    ]
    assert "1 row or change of 1 table" in repr(report)
    status = lake.status()
    assert [(p.kind, p.where) for p in status.problems] == [("source", "stock")]
    assert status.sources.shown().rows[0][5] == "stock: It was altered."
    with pytest.raises(CheckError, match="stock: It was altered"):
        status.check()
    with pytest.raises(CheckError, match="stock is stopped: It was altered"):
        report.check()
