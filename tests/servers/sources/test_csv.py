"""Folders of CSV files: incomplete lines, and folders with many files."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.landed import landed_rows
from mirrorlake import Lake
from mirrorlake_sources import CsvDrops, SourceReport, run_source


class Drops:
    """A folder of the CSV files of one table, and a lake."""

    def __init__(self, base: Path) -> None:
        self.root, self.folder = base / "lake", base / "drops"
        (self.folder / "orders").mkdir(parents=True)

    def write(self, text: str, name: str = "a.csv") -> None:
        (self.folder / "orders" / name).write_text(text)

    def run(self) -> SourceReport:
        return run_source(Lake(self.root).storage, CsvDrops(self.folder))

    def ids(self) -> list[str]:
        return [row["id"] for row in landed_rows(self.root, "orders")]


@pytest.fixture
def drops(tmp_path: Path) -> Drops:
    return Drops(tmp_path)


def test_a_last_line_without_a_line_break_is_reported(drops: Drops) -> None:
    for text in ("id,n\r1,2\r", "id,n\n1,2\n3,4", "id,n\n1,2\n3,4"):
        drops.write(text)
        report = drops.run()
        assert report.failed
        (table,) = report.tables
        assert "orders/a.csv" in str(table.error)
        assert "end the last line with a line break" in str(table.error)
    assert drops.ids() == ["1"]
    drops.write("id,n\n1,2\n3,4\n")
    for _ in range(2):
        assert not drops.run().failed
        assert drops.ids() == ["1", "3"]
