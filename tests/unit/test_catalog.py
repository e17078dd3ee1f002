"""Finding tables by name: exactly, or by the only match that differs in case."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from mirrorlake import Lake
from mirrorlake.errors import InvalidNameError
from mirrorlake.names import TableName
from mirrorlake.query import catalog
from mirrorlake.storage.files import Storage


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Orders", "Orders"),
        ("orders", "Orders"),
        ("sales.Items", "sales.Items"),
        ("SALES.items", "sales.Items"),
        ("`sales.Items`", None),
        ("stock", None),  # ambiguous: Stock and STOCK
        ("STOCK", "STOCK"),
        ("sales", None),
        ("folder", None),
        ("Orders.inner", None),
        ("nowhere.Items", None),
    ],
)
def test_names(any_storage: Storage, asked: str, found: str | None) -> None:
    for table in ("Orders", "sales/Items", "Stock", "STOCK", "Orders/inner"):
        any_storage.write(f"Tables/{table}/_delta_log/{0:020d}.json", b"")
    any_storage.write("Tables/folder/file.txt", b"")
    wanted = None if found is None else TableName.parse(found)
    assert catalog.Catalog(any_storage).find(TableName.parse(asked)) == wanted


def test_no_new_table_hides_the_tables_of_a_schema(tmp_path: Path) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    for name in ("orders", "sales/orders"):
        rows = rows_of({"id": [1]})
        write_deltalake(tmp_path / "Tables" / name, rows, configuration=feed)
    lake = Lake(tmp_path)
    for create in (
        lambda: lake.create_table("sales", {"id": "bigint"}),
        lambda: lake.archive("orders", "sales"),
        lambda: lake.archive("orders", "sales", dry_run=True),
        lambda: lake.table("orders").dimension("sales", keys=["id"]),
        lambda: lake.update_dimension("orders", "sales", keys=["id"]),
    ):
        with pytest.raises(InvalidNameError, match="sales can't be both a table and a schema"):
            create()
