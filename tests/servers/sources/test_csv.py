"""Folders of CSV files: incomplete lines, and folders with many files."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from helpers.landed import landed_files, landed_rows
from mirrorlake import Lake
from mirrorlake.errors import SourceError
from mirrorlake_sources import CsvDrops, SourceReport, folders, run_source


class Drops:
    """A folder of the CSV files of one table, and a lake."""

    def __init__(self, base: Path) -> None:
        self.root, self.folder = base / "lake", base / "drops"
        (self.folder / "orders").mkdir(parents=True)
        self.keys: dict[str, list[str]] = {}

    def write(self, text: str, name: str = "a.csv") -> None:
        (self.folder / "orders" / name).write_text(text)

    def run(self) -> SourceReport:
        return run_source(Lake(self.root).storage, CsvDrops(self.folder, keys=self.keys))

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


def test_later_files_of_a_stopped_table_wait(drops: Drops) -> None:
    drops.keys = {"orders": ["id"]}
    for text in ("id,n\n1,x,y\n", "id,n\n1,old", 'id,n\n1,"a\nb"\n', "id,n\n,x\n", "nr,n\n1,x\n"):
        drops.write(text)
        drops.write("id,n\n1,new\n", "b.csv")
        report = drops.run()
        assert "orders/a.csv" in str([table.error for table in report.tables])
        assert drops.ids() == []
    drops.write("id,n\n1,old\n")
    report = drops.run()
    assert not report.failed
    assert len(report.tables) == 1
    assert [row["n"] for row in landed_rows(drops.root, "orders")] == ["new"]


def test_a_stopped_table_continues_when_its_file_is_corrected_or_removed(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    drops.write("id\n1,2\n")
    drops.write("id\n2\n", "b.csv")
    stop, scans = threading.Event(), list[tuple[bool, list[str]]]()

    def act(report: SourceReport) -> None:
        has_folder = (drops.root / "Files/LandingZone/orders").exists()
        scans.append((report.failed, drops.ids() if has_folder else []))
        if scans[-1] == (True, []) and len(scans) > 3:
            drops.write("id\n1\n")
        if scans[-1] == (False, ["1", "2"]):
            drops.write("id\n3,4\n", "c.csv")
            drops.write("id\n5\n", "d.csv")
        if scans[-1] == (True, ["1", "2"]):
            (drops.folder / "orders" / "c.csv").unlink()
        if scans[-1] == (False, ["1", "2", "5"]) or len(scans) > 200:
            stop.set()

    monkeypatch.setattr("mirrorlake_sources.engine._REPORT_SECONDS", 0.0)
    source = CsvDrops(drops.folder, pause=0.01)
    report = run_source(Lake(drops.root).storage, source, once=False, stop=stop, on_report=act)
    assert drops.ids() == ["1", "2", "5"]
    assert [table.table for table in report.tables] == ["orders"]


def test_later_files_wait_while_the_file_of_a_stopped_table_is_written_again(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    drops.write("id\n1,2\n")
    drops.write("id\n2\n", "b.csv")
    stop, scans = threading.Event(), iter(range(100))

    def act(_report: SourceReport) -> None:
        scan = next(scans)
        if scan == 5:
            drops.write("")
        elif scan == 10:
            drops.write("id\n1\n")
        elif scan == 20:
            stop.set()

    monkeypatch.setattr("mirrorlake_sources.engine._REPORT_SECONDS", 0.0)
    source = CsvDrops(drops.folder, pause=0.01)
    run_source(Lake(drops.root).storage, source, once=False, stop=stop, on_report=act)
    assert drops.ids() == ["1", "2"]


def test_a_large_file_of_a_stopped_table_ends_after_its_first_part(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorlake_sources.folders._ROWS", 1)
    drops.write("id,_metadata\n1,2\n3,4\n")
    (table,) = drops.run().tables
    assert "reserved" in str(table.error)


def test_a_byte_order_mark_is_not_part_of_a_name(drops: Drops) -> None:
    drops.write("\ufeffid\n1\n")
    drops.run()
    assert drops.ids() == ["1"]


def test_a_file_with_another_separator_stops_only_its_table(drops: Drops) -> None:
    drops.write("id;n\n1;2\n")
    (drops.folder / "utf16").mkdir()
    (drops.folder / "utf16" / "a.csv").write_text("id\n1\n", encoding="utf-16")
    (drops.folder / "well").mkdir()
    (drops.folder / "well" / "A.CSV").write_text("id\n1\n")
    errors = {table.table: str(table.error) for table in drops.run().tables}
    assert "commas must separate" in errors["orders"]
    assert "UTF-8" in errors["utf16"]
    assert [row["id"] for row in landed_rows(drops.root, "well")] == ["1"]


def test_a_value_of_another_type_is_named_with_its_row(drops: Drops) -> None:
    rows = "".join(f"{n},{'twelve' if n == 17 else n}\n" for n in range(1, 20))
    drops.write(f"id,amount\n{rows}")
    source = CsvDrops(drops.folder, types={"orders": {"amount": "double"}})
    report = run_source(Lake(drops.root).storage, source)
    (table,) = report.tables
    assert "'twelve' is not of type double." in str(table.error)
    assert "[file orders/a.csv, row 17, column amount]" in str(table.error)


def test_other_keys_are_refused_with_a_way_out(drops: Drops) -> None:
    drops.write("id\n1\n")
    drops.run()
    drops.keys = {"orders": ["id"]}
    drops.write("id\n1\n2\n")
    (table,) = drops.run().tables
    assert "delete the table's folder" in str(table.error)
    shutil.rmtree(drops.root / "Files/LandingZone/orders")
    assert not drops.run().failed
    assert drops.ids() == ["1", "2"]


def test_a_table_of_another_publisher_is_refused_without_a_loss(drops: Drops) -> None:
    Lake(drops.root).publisher("orders").insert([{"id": "5"}])
    drops.write("id\n1\n")
    (table,) = drops.run().tables
    assert "rename the folder 'orders' of the CSV files" in str(table.error)
    assert "delete" not in str(table.error)
    (drops.folder / "orders").rename(drops.folder / "new_orders")
    assert not drops.run().failed
    assert landed_rows(drops.root, "new_orders") == [{"id": "1"}]
    assert drops.ids() == ["5"]
    moved = drops.folder.rename(drops.folder.with_name("moved"))
    (table,) = run_source(Lake(drops.root).storage, CsvDrops(moved)).tables
    assert "use that source, or rename the folder" in str(table.error)


def test_old_content_of_a_replaced_file_is_recognised_in_a_later_file(drops: Drops) -> None:
    drops.write("id\n1\n")
    drops.run()
    drops.write("id\n1\n", "b.csv")
    drops.write("id\n2\n")
    drops.run()
    assert drops.ids() == ["1", "2"]
    drops.write("id\n1\n", "b.csv")
    drops.run()
    assert drops.ids() == ["1", "2"]


def test_a_scan_compares_only_files_that_changed(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        drops.write(f"id\n{number:0{number + 1}}\n", f"{number}.csv")
    drops.run()
    monkeypatch.setattr("mirrorlake_sources.folders.published_parts", pytest.fail)
    assert not drops.run().failed


def test_keys_of_a_misspelt_table_are_a_warning(
    drops: Drops, caplog: pytest.LogCaptureFixture
) -> None:
    drops.keys = {"order": ["id"]}
    drops.write("id\n1\n")
    drops.run()
    (warning,) = caplog.messages
    assert "orders is published without keys. keys (--keys) contains 'order'" in warning
    assert warning.endswith("Hint: use the names of the folders: orders.")


def test_a_misspelt_column_is_a_warning_with_the_file(
    drops: Drops, caplog: pytest.LogCaptureFixture
) -> None:
    drops.keys = {"orders": ["id"]}
    drops.write("id,amount\n1,2\n")
    drops.run()
    assert not caplog.messages
    drops.write("id,amuont\n2,3\n", "b.csv")
    drops.write("id,amuont\n3,3\n", "c.csv")
    drops.run()
    (warning,) = caplog.messages
    assert warning.startswith("The rows add the column 'amuont' to orders. Column 'amount' is miss")
    assert "NULL in the rows of orders/b.csv and 1 more file for orders." in warning
    caplog.clear()
    drops.write("id,amount,amuont,more\n4,3,2,1\n", "d.csv")
    drops.run()
    assert not caplog.messages


def test_types_of_a_column_or_table_that_does_not_exist_are_a_warning(
    drops: Drops, caplog: pytest.LogCaptureFixture
) -> None:
    def run(types: dict[str, dict[str, str]]) -> None:
        assert not run_source(Lake(drops.root).storage, CsvDrops(drops.folder, types=types)).failed

    drops.write("id,amount\n1,2\n")
    run({"orders": {"Amount": "long"}})
    assert not caplog.messages
    assert landed_rows(drops.root, "orders") == [{"id": "1", "amount": 2}]
    drops.write("id,amount\n1,2\n3,4\n")
    run({"orders": {"amount": "long", "total": "long"}})
    (warning,) = caplog.messages
    assert "types of orders contains 'total', but orders/a.csv has no such column" in warning
    caplog.clear()
    (drops.folder / "lines").mkdir()
    (drops.folder / "lines" / "a.csv").write_text("n\n1\n")
    run({"orders": {"amount": "long"}, "line": {"n": "long"}})
    (warning,) = caplog.messages
    assert "lines is published as text. types contains 'line'" in warning


def test_the_folder_is_scanned_once(drops: Drops, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the report after each file."""
    scans = []
    files_of = folders.files_of
    monkeypatch.setattr(folders, "files_of", lambda *given: scans.append(0) or files_of(*given))
    for number in range(20):
        drops.write(f"id\n{number}\n", f"{number:02d}.csv")
    report = drops.run()
    assert report.facts == {"files": 20}
    assert len(scans) < 5


def test_rows_of_small_files_are_published_together(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        drops.write(f"id\n{number}\n", f"{number}.csv")
    drops.write("id,n\n5,x\n", "5.csv")
    drops.write("id,n\n6,x\n7,y\n", "6.csv")
    assert not drops.run().failed
    assert drops.ids() == [str(number) for number in range(8)]
    assert len(landed_files(drops.root, "orders")) == 2
    monkeypatch.setattr("mirrorlake_sources.folders._MOST_TOGETHER", 2)
    monkeypatch.setattr("mirrorlake_sources.folders._ROWS", 3)
    for number, rows in ((7, "8\n9\n"), (8, "10\n11\n12\n13\n"), (9, "14\n"), (10, "15\n")):
        drops.write(f"id\n{rows}", f"{number:02d}.csv")
    for _ in range(2):
        assert not drops.run().failed
        assert sorted(map(int, drops.ids())) == list(range(16))
        assert len(landed_files(drops.root, "orders")) == 2 + 4


def test_a_run_that_ends_between_two_published_files_is_continued(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorlake_sources.folders._MOST_TOGETHER", 2)
    for number in range(7):
        drops.write(f"id\n{number}\n", f"{number}.csv")
    storage = Lake(drops.root).storage

    def end(report: SourceReport) -> None:
        if report.tables and report.tables[0].rows:
            raise KeyboardInterrupt

    for rows in (2, 4, 6):
        with pytest.raises(KeyboardInterrupt):
            run_source(storage, CsvDrops(drops.folder), on_report=end)
        assert len(drops.ids()) == rows
    drops.run()
    assert drops.ids() == [str(number) for number in range(7)]


def test_files_that_were_read_together_with_a_refused_one_are_read_again(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    drops.write("id,_metadata\n1,x\n")
    drops.write("id,_metadata\n2,x\n", "b.csv")
    drops.write("id\n3\n", "c.csv")
    stop, scans = threading.Event(), iter(range(200))

    def act(report: SourceReport) -> None:
        errors = [table.error for table in report.tables if table.error]
        if next(scans) == 100 or (not errors and landed_ids() == ["1", "2", "3"]):
            stop.set()
        elif errors and not landed_ids():
            drops.write("id\n1\n")
        elif errors:
            drops.write("id\n2\n", "b.csv")

    def landed_ids() -> list[str]:
        return drops.ids() if (drops.root / "Files/LandingZone/orders").exists() else []

    monkeypatch.setattr("mirrorlake_sources.engine._REPORT_SECONDS", 0.0)
    source = CsvDrops(drops.folder, pause=0.01)
    run_source(Lake(drops.root).storage, source, once=False, stop=stop, on_report=act)
    assert drops.ids() == ["1", "2", "3"]


@pytest.mark.parametrize("seed", range(8))
def test_each_row_of_files_that_grow_and_are_copied_is_published_once(
    drops: Drops, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chosen = random.Random(seed)
    monkeypatch.setattr("mirrorlake_sources.folders._MOST_TOGETHER", chosen.choice((2, 1000)))
    monkeypatch.setattr("mirrorlake_sources.folders._HEAD", chosen.choice((1, 8, 4096)))
    folder, ids = drops.folder / "orders", 0
    for turn in range(12):
        acts = ("write", "grow", "copy", ("rename", "shorten")[turn % 2])
        for _ in range(chosen.randint(1, 6)):
            there = sorted(folder.iterdir())
            new = folder / f"{chosen.randint(0, 10**6):06d}.csv"
            act = chosen.choice(acts) if there else "write"
            old = chosen.choice(there) if there else new
            if act == "write":
                new.write_text(f"id\n{ids}\n")
                ids += 1
            elif act == "grow":
                rows = [str(ids + more) for more in range(chosen.randint(1, 4))]
                # Two files that grow from the same content are not copies of each other.
                if sum(one.read_text().startswith(old.read_text()) for one in there) == 1:
                    old.write_text(old.read_text() + "\n".join(rows) + "\n")
                    ids += len(rows)
            elif act == "copy":
                shutil.copy(old, new)
            elif act == "rename":
                old.rename(new)
            else:  # an earlier copy
                new.write_text("\n".join(old.read_text().split("\n")[:2]) + "\n")
        assert not drops.run().failed
        found = map(int, drops.ids())
        assert sorted(found) == list(range(ids))


def test_a_new_file_is_compared_only_with_files_that_begin_alike(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    begins = folders._begins  # an internal name: the cost of a file must not depend on the others
    monkeypatch.setattr(folders, "_begins", lambda *files: compared.append(0) or begins(*files))
    for number in range(30, 0, -1):
        drops.write(f"id\n{'9' * number}0\n", f"{30 - number:02d}.csv")
    drops.run()
    assert len(drops.ids()) == 30
    assert not compared
    for name, rows in (("grown", "x\ny\n"), ("earlier", "x\n")):
        drops.write(f"id\n{rows}", f"{name}.csv")
        drops.run()
    assert len(drops.ids()) == 32
