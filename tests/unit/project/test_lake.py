"""Open a lake and its tables by name, and publish files by a path or glob."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of
from pyarrow.parquet import write_table

from mirrorlake import Lake
from mirrorlake.errors import DataFileError, InvalidNameError, TableNotFoundError, UsageError
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
    with pytest.raises(UsageError, match=r"is not a lake|is empty") as refused:
        Lake.open("" if kind == "no name" else str(folder))
    assert "mirrorlake publish" not in refused.value.hint  # the hint of the shell
    if kind != "no name":
        assert "run the lessons" in refused.value.hint
        assert "make_sample(root)" in refused.value.hint
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_lake_may_be_absent(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "new"), new=True)
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
    assert Lake.open(str(tmp_path / "new")).storage.root == lake.storage.root


def test_relative_roots_start_from_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(root.parent))
    assert Lake.open("lake").storage.root == str(root)


def test_tables_are_chosen_in_the_lakes_spelling(root: Path) -> None:
    lake = Lake.open(str(root))
    assert lake.tables("") == lake.tables()
    assert lake.tables(" STOCK, sales.orders ,") == [
        TableName.parse("stock"),
        TableName.parse("sales.orders"),
    ]


def test_an_unknown_table_is_an_error_with_the_nearest_name(root: Path) -> None:
    with pytest.raises(TableNotFoundError, match="There is no table stokc") as refused:
        Lake.open(str(root)).table("stokc")
    assert "did you mean stock?" in str(refused.value)
    assert "sales.orders" in str(refused.value)


def test_a_table_is_opened_by_its_name_in_any_case(root: Path) -> None:
    lake = Lake.open(str(root))
    assert str(lake.table(" SALES.Orders ").name) == "sales.orders"
    (root / "Tables" / "STOCK").mkdir()
    write_deltalake(root / "Tables" / "STOCK", rows_of({"id": [1]}))
    assert str(lake.table("STOCK").name) == "STOCK"
    with pytest.raises(TableNotFoundError):  # two names differ only by case
        lake.table("Stock")


def test_a_new_table_that_differs_only_by_case_is_not_published(root: Path) -> None:
    lake = Lake.open(str(root))
    lake.publish("parts", [{"id": 1}], keys="id")
    for name, near in (("Stock", "stock"), ("SALES.orders", "sales.orders"), ("Parts", "parts")):
        for dry_run in (True, False):
            with pytest.raises(InvalidNameError) as caught:
                lake.publish(name, [{"id": 1}], keys="id", dry_run=dry_run)
            assert caught.value.hint == f"did you mean {near}? If not, choose another name."
    assert lake.publish("stock", [{"id": 1}], keys="id").count == 1  # its first batch
    assert lake.publish("parts", [{"id": 2}]).count == 1
    zone = root / "Files" / "LandingZone"
    assert sorted(one.name for one in zone.iterdir() if one.is_dir()) == ["parts", "stock"]


def test_published_folders_that_differ_only_by_case_stay(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for name in ("parts", "Parts"):  # as another program may create them
        (tmp_path / "lake" / "Files" / "LandingZone" / name).mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        for name in ("parts", "Parts"):
            assert lake.publish(name, [{"id": 1}]).count == 1


def test_facts_of_a_table_are_properties(root: Path) -> None:
    table = Lake(root).table("stock")
    assert (table.version, table.schema.names, table.keys) == (0, ["id"], ())
    write_deltalake(root / "Tables" / "stock", rows_of({"id": [2]}), mode="append")
    assert table.version == 1


def test_the_history_is_shown_converted_and_drawn(root: Path) -> None:
    write_deltalake(root / "Tables" / "stock", rows_of({"id": [2]}), mode="append")
    table = Lake(root).table("stock")
    history = table.history()
    assert [commit.version for commit in history.commits] == [1, 0]
    assert (history.more, table.history(1).more) == (False, True)
    frame = history.to_pandas()
    assert frame["version"].tolist() == [1, 0]
    assert frame["inserted"].tolist() == [1, 1]
    assert frame["timestamp"].tolist() == [commit.timestamp for commit in history.commits]
    chart = history.plot()
    assert chart is not None
    assert "Rows changed by each version" in chart.describe()
    table.storage.write(f"{table.name.table_path}/_delta_log/{2:020}.json", b"{}")
    chart = table.history().plot()
    assert chart is not None
    assert "inserted: 1, 1, no number" in chart.describe()
    table = Lake(root).table("orders")
    table.storage.write(f"{table.name.table_path}/_delta_log/{1:020}.json", b"{}")
    assert table.history(1).plot() is None  # its commits have no row counts
    with pytest.raises(UsageError, match="0 versions can't be shown"):
        table.history(0)


def test_published_files_have_the_declared_types(tmp_path: Path) -> None:
    source, lake = tmp_path / "a.csv", Lake(tmp_path / "lake")
    source.write_text("id,price\n1,1.50\n")
    types = {"price": "decimal(5,2)"}
    first = lake.publish("t", str(source), types=types).batches[0]
    assert first.columns == {"id": "long", "price": "decimal(5,2)"}
    source.write_text("id,price\n1,12345.50\n")
    with pytest.raises(DataFileError, match="price"):
        lake.publish("t", str(source))
    wider = lake.publish("t", str(source), widen=True).batches[0]
    assert wider.columns["price"].startswith("decimal(")
    assert wider.columns != first.columns
    assert lake.publish("u", [{"price": "2.5"}], types=types).batches[0].columns == types


def test_files_are_published_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("b.csv", "d.txt", "_e.csv", ".f.csv"):
        (folder / name).write_text("id\n1\n")
    (folder / "c.csv.gz").write_bytes(gzip.compress(b"id\n1\n"))
    write_table(rows_of({"id": [1]}), folder / "a.PARQUET")
    (folder / "g.csv").mkdir()
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "lake"))  # for notebooks only
    monkeypatch.chdir(tmp_path)
    lake = Lake("lake")

    def published(source: str) -> tuple[str, ...]:
        return lake.publish("t", source, dry_run=True).sources

    assert published("files") == ("a.PARQUET", "b.csv", "c.csv.gz")
    assert published(str(folder / "*.csv")) == published("files/*.csv") == ("b.csv",)
    with pytest.raises(DataFileError):  # the file exists, but can't be read
        published(str(folder / "d.txt"))
    for nothing in ("", "nowhere", str(folder / "g.csv"), str(folder / "*.json")):
        with pytest.raises(UsageError, match=r"no file to publish.*check the path|is empty"):
            published(nothing)
