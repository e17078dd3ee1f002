"""Folders of CSV files: incomplete lines, and folders with many files."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.landed import landed_rows
from mirrorlake import Lake
from mirrorlake.errors import SourceError
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


def test_files_that_exist_are_not_forgotten(drops: Drops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorlake_sources.folders._MOST_ABSENT", 2)
    monkeypatch.setattr("mirrorlake_sources.folders._MOST_FILES", 5)
    for number in range(4):
        drops.write(f"id\n{number}\n", f"{number}.csv")
    drops.run()
    (drops.folder / "orders" / "0.csv").rename(drops.folder / "orders" / "00.csv")
    (drops.folder / "orders" / "1.csv").unlink()
    drops.write("id\n4\n", "4.csv")
    drops.write("id\n5\n", "5.csv")
    for _ in range(2):
        assert not drops.run().failed
        assert drops.ids() == ["0", "1", "2", "3", "4", "5"]
    drops.write("id\n6\n", "6.csv")
    with pytest.raises(SourceError, match="move the oldest files"):
        drops.run()
    (drops.folder / "orders" / "2.csv").unlink()
    drops.run()
    assert drops.ids() == ["0", "1", "2", "3", "4", "5", "6"]
