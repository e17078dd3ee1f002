"""Names that a person typed: the lake, its tables, and what an error says instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from mirrorlake import choose_tables, find_table, open_lake
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.names import TableName


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("stock", "orders", "sales/orders"):
        write_deltalake(tmp_path / "lake" / "Tables" / name, rows_of({"id": [1]}))
    return tmp_path / "lake"


@pytest.mark.parametrize("kind", ["absent", "empty", "other files", "no name"])
def test_what_is_no_lake_is_refused_and_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if kind != "absent":
        folder.mkdir()
    if kind == "other files":
        (folder / "Files").mkdir()
        (folder / "Files" / "letter.txt").write_text("hello")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"is not a lake|is empty"):
        open_lake("" if kind == "no name" else str(folder))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_lake_may_be_absent(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "new"), new=True)
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
    assert open_lake(str(tmp_path / "new")).storage.root == lake.storage.root


def test_relative_roots_start_from_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(root.parent))
    assert open_lake("lake").storage.root == str(root)


def test_tables_are_chosen_in_the_lakes_spelling(root: Path) -> None:
    lake = open_lake(str(root))
    assert choose_tables(lake) == lake.tables()
    assert choose_tables(lake, " STOCK, sales.orders ,") == [
        TableName.parse("stock"),
        TableName.parse("sales.orders"),
    ]


def test_an_unknown_table_is_an_error_with_the_nearest_name(root: Path) -> None:
    with pytest.raises(TableNotFoundError, match="There is no table stokc") as refused:
        find_table(open_lake(str(root)), "stokc")
    assert "did you mean stock?" in str(refused.value)
    assert "sales.orders" in str(refused.value)
