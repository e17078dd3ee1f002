"""Finding tables by name: exactly, or by the only match that differs in case."""

from __future__ import annotations

import pytest

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
