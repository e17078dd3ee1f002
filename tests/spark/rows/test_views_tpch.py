"""The queries of TPC-H as views: after each change, their rows equal the answers of DuckDB."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import pytest

from helpers.tpch import make_tpch
from mirrorlake import Lake

SCALE, CYCLES, NTH = 0.1, 5, 200
NUMBERS = (int, float, Decimal)
Row = tuple[object, ...]


def equal(ours: object, theirs: object) -> bool:
    """Compare two values. DuckDB writes averages, quotients and sums of whole numbers as floats."""
    if isinstance(theirs, float):
        assert isinstance(ours, NUMBERS), ours
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-6)
    return ours == theirs


def ordered(rows: list[Row]) -> list[Row]:
    """Sort rows by their other values before numbers, whose types and rounding differ."""

    def order(row: Row) -> tuple[list[str], list[float]]:
        numbers = [float(one) for one in row if isinstance(one, NUMBERS)]
        return [str(one) for one in row if not isinstance(one, NUMBERS)], numbers

    return sorted(rows, key=order)


@pytest.mark.long
def test_all_queries_follow_the_changes(lake: Lake, tmp_path: Path) -> None:
    tpch = make_tpch(tmp_path / "tpch", SCALE, CYCLES, nth=NTH, answers=True)
    tpch.fill(lake)
    for number, sql in tpch.queries.items():
        lake.views.create(f"q{number}", sql)
    incremental = set()
    for cycle in range(CYCLES + 1):
        if cycle:
            tpch.change(lake, cycle)
        for number, answer in tpch.answers(cycle).items():
            done = lake.views.refresh(f"q{number}", how="incremental")
            incremental |= {number} if done.mode == "incremental" else set()
            found = ordered([tuple(row) for row in lake.views.read(f"q{number}").collect()])
            assert len(found) == len(answer), (number, cycle)
            for ours, theirs in zip(found, ordered(answer), strict=True):
                assert len(ours) == len(theirs), (number, cycle)
                assert all(map(equal, ours, theirs)), (number, cycle, ours, theirs)
    assert incremental == set(tpch.queries)
