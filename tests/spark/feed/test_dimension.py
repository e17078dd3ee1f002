"""Test how a dimension follows its table: what it refuses, and how it continues."""

from __future__ import annotations

import pytest

from mirrorlake import Lake
from mirrorlake.errors import FeedError, UsageError


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
