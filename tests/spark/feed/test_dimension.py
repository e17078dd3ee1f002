"""Test how a dimension follows its table: what it refuses, and how it continues."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mirrorlake import Lake, Table
from mirrorlake.errors import FeedError, QueryError, UsageError


def test_update_dimension_checks_its_tables(lake: Lake) -> None:
    lake.create_table("stock", {"id": "bigint", "v": "string"}, keys=["id"])
    lake.create_table("other", {"id": "bigint", "v": "string"}, keys=["id"])
    lake.sql("INSERT INTO stock VALUES (1, 'a')")
    lake.update_dimension("stock", "dim")
    with pytest.raises(UsageError, match="dim exists and is a dimension of the other type"):
        lake.update_dimension("stock", "dim", stored_as=2)
    with pytest.raises(UsageError, match="other exists and is not a dimension"):
        lake.update_dimension("stock", "other")
    assert lake.table("other").version == 0
    lake.create_table("off", {"id": "bigint"}, keys=["id"], feed=False)
    with pytest.raises(FeedError, match="The change feed of off is off"):
        lake.update_dimension("off", "dim_off")


PERIODS = [(1, "a", 1, 2), (1, "c", 2, None), (2, "b", 1, 3)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with one table, whose versions 1 to 3 are an insert, an update and a delete."""
    lake = Lake(tmp_path_factory.mktemp("made"))
    lake.create_table("stock", {"id": "bigint", "v": "string"}, keys=["id"])
    lake.sql("INSERT INTO stock VALUES (1, 'a'), (2, 'b')")
    lake.sql("UPDATE stock SET v = 'c' WHERE id = 1")
    lake.sql("DELETE FROM stock WHERE id = 2")
    return Path(lake.storage.root)


@pytest.fixture
def stock(lake: Lake, made: Path) -> Table:
    """Return the table in a copy of the lake."""
    shutil.copytree(made, lake.storage.root, dirs_exist_ok=True)
    return lake.table("stock")


def rows(lake: Lake, name: str) -> list[Any]:
    return sorted(tuple(row) for row in lake.table(name).read().collect())


def test_a_dropped_dimension_starts_again(lake: Lake, stock: Table) -> None:
    stock.dimension("dim", stored_as=1)
    lake.sql("DROP TABLE dim")
    assert stock.dimension("dim", dry_run=True).start == 0
    assert lake.update_dimension("stock", "dim", dry_run=True).start == 0
    assert lake.update_dimension("stock", "dim").start == 0
    assert rows(lake, "dim") == [(1, "c", 2)]
    assert stock.dimension("dim").did == "nothing new"
    # The deletes of the earlier table do not apply to a new one, whose versions start again.
    for name in ("dim", "stock"):
        lake.sql(f"DROP TABLE {name}")
    stock = lake.create_table("stock", {"id": "bigint", "v": "string"}, keys=["id"])
    lake.sql("INSERT INTO stock VALUES (2, 'd')")
    assert stock.dimension("dim").start == 0
    assert rows(lake, "dim") == [(2, "d", 1)]


def test_a_restored_dimension_is_completed(lake: Lake, stock: Table) -> None:
    stock.dimension("dim", stored_as=2)
    assert rows(lake, "dim") == PERIODS
    lake.sql("INSERT INTO stock VALUES (3, 'e')")
    stock.dimension("dim", stored_as=2)
    before = lake.table("dim").version
    lake.table("dim").restore(before - 1, apply=True)
    assert rows(lake, "dim") == PERIODS
    assert stock.dimension("dim", stored_as=2, dry_run=True).start == 4
    assert stock.dimension("dim", stored_as=2).start == 4
    assert rows(lake, "dim") == [*PERIODS, (3, "e", 4, None)]
    lake.table("dim").restore(0, apply=True)
    assert stock.dimension("dim", stored_as=2, from_snapshot=True).start == 0
    assert rows(lake, "dim") == [(1, "c", 4, None), (3, "e", 4, None)]
    assert stock.dimension("dim", stored_as=2).did == "nothing new"


def test_a_recreated_table_needs_another_dimension(lake: Lake, stock: Table) -> None:
    stock.dimension("dim")
    lake.sql("DROP TABLE stock")
    stock = lake.create_table("stock", {"id": "bigint", "v": "string"}, keys=["id"])
    lake.sql("INSERT INTO stock VALUES (2, 'd')")
    for from_snapshot in (False, True):
        with pytest.raises(FeedError, match="was recreated since dimension dim") as raised:
            stock.dimension("dim", from_snapshot=from_snapshot)
        assert "another name for the dimension with into" in raised.value.hint
    with pytest.raises(FeedError, match="another name for the dimension with into"):
        lake.update_dimension("stock", "dim")
    stock.dimension("again")
    assert rows(lake, "again") == [(2, "d", 1)]


def test_duplicates_in_a_snapshot(lake: Lake) -> None:
    table = lake.create_table("stock", {"id": "bigint", "v": "string"})
    lake.sql("INSERT INTO stock VALUES (1, 'a'), (1, 'b')")
    with pytest.raises(QueryError, match=r"The snapshot has several rows of one key \(id\)") as e:
        table.dimension("dim", keys=["id"], from_snapshot=True)
    assert "Hint: remove the duplicates, or choose keys that identify one row." in str(e.value)
    assert "pass the key columns" not in str(e.value)
    table.dimension("dim", keys=["id", "v"], from_snapshot=True)
    assert len(rows(lake, "dim")) == 2
