"""What a monitor finds, and when it ends a run with an error; no Spark where it is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from mirrorlake import Lake, monitor_lake, plot_backlog, plot_lag, recent_ledgers
from mirrorlake.errors import CheckError, UsageError
from mirrorlake.source_status import SourceReport, SourceTable
from mirrorlake_sources.source import write_report


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table with two files that wait."""
    stock = Lake(tmp_path).publisher("stock", keys=["id"])
    stock.upsert([{"id": 1}])
    stock.upsert([{"id": 2}])
    return tmp_path


def test_limits_end_a_run_only_where_they_are_set(root: Path) -> None:
    before = sorted(root.rglob("*"))
    found = monitor_lake(Lake(root))
    found.check()
    assert found.shown().rows == (("Nothing is beyond a limit.",),)
    assert found.tables.rows[0][4] == 2
    late = monitor_lake(Lake(root), max_lag=1e-9, max_backlog=1)
    assert [(p.what, p.where) for p in late.problems] == [("lag", "stock"), ("backlog", "stock")]
    with pytest.raises(CheckError, match=r"lag of stock: .* \(2 problems in all\)"):
        late.check()
    assert not monitor_lake(Lake(root), max_backlog=2).problems
    assert sorted(root.rglob("*")) == before


def test_a_lake_without_publishers(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "Tables" / "t", rows_of({"id": [1]}))
    lake = Lake(tmp_path)
    found = monitor_lake(lake, max_lag=1, max_backlog=1)
    assert found.tables.rows == (("No publisher feeds a table of this lake.",),)
    assert found.view_states.rows == (("The lake has no views.",),)
    ledgers = recent_ledgers(lake)
    assert ledgers == ()
    assert plot_lag(ledgers) is None
    assert plot_backlog(ledgers) is None
    assert not (tmp_path / "Files").exists()


def test_limits_are_checked(root: Path) -> None:
    with pytest.raises(UsageError, match="less than 0"):
        monitor_lake(Lake(root), max_lag=-1)


def test_sources_are_listed_and_a_stopped_one_is_a_problem(root: Path) -> None:
    lake = Lake(root)
    assert monitor_lake(lake).source_states.rows == (("No source feeds this lake.",),)
    report = SourceReport("postgres:1/shop/mirrorlake", facts={"wal_status": "reserved"})
    report.tables.append(SourceTable("stock", "Running", rows=2, files=2))
    write_report(lake.storage, report)
    found = monitor_lake(lake)
    assert not found.problems
    (line,) = found.source_states.rows
    assert (line[0], line[1], line[3], line[4]) == (
        report.source,
        "Running",
        1,
        "wal_status reserved",
    )
    report.tables[0].error = "It was altered."
    write_report(lake.storage, report)
    found = monitor_lake(lake)
    assert [(p.what, p.where) for p in found.problems] == [("source", "stock")]
    assert found.source_states.rows[0][5] == "stock: It was altered."
    with pytest.raises(CheckError, match="stock is stopped: It was altered"):
        report.check()
