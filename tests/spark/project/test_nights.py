"""Nights of a lake: mirror, maintain, refresh all views, archive and update a dimension."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from helpers.examples import under_long
from helpers.feed_model import RESERVED
from mirrorlake import Lake, MaintenancePolicy, Publisher

VIEWS = {
    "by_shelf": "SELECT shelf, count(*) AS items, sum(n) AS pieces FROM stock GROUP BY shelf",
    "extremes": "SELECT shelf, min(n) AS least, max(n) AS most FROM stock GROUP BY shelf",
    "full_shelves": "SELECT shelf FROM by_shelf WHERE pieces > 50",
}
POLICY = MaintenancePolicy(tables="stock", min_files=2, vacuum=False, apply=True)
ITEMS = [("bolt", "a", 40), ("nut", "a", 25), ("screw", "b", 60)]


def rows(*items: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [dict(zip(("item", "shelf", "n"), item, strict=True)) for item in items]


def nothing(publisher: Publisher) -> None:
    """A night without a file."""


def no_such_item(publisher: Publisher) -> None:
    publisher.delete([{"item": "hook"}])


def more_and_less(publisher: Publisher) -> None:
    publisher.upsert(rows(("washer", "b", 5), ("bolt", "a", 30)))
    publisher.delete([{"item": "nut"}])


def another(publisher: Publisher) -> None:
    publisher.upsert(rows(("nut", "c", 70)))


@pytest.mark.parametrize(
    "nights",
    [
        [more_and_less],
        *under_long(
            [no_such_item, more_and_less],
            [no_such_item, nothing, more_and_less, no_such_item, another, nothing],
            [nothing] * 6,
            [more_and_less, another, no_such_item] * 2,
        ),
    ],
    ids=["one", "two", "some changes", "no changes", "changes"],
)
def test_nights(
    lake: Lake, nights: list[Callable[[Publisher], None]], pytestconfig: pytest.Config
) -> None:
    publisher = lake.publisher("stock", keys=["item"])
    publisher.write(rows(*ITEMS))
    lake.mirror()
    for name, query in VIEWS.items():
        if name != "extremes" or pytestconfig.getoption("--long"):
            lake.views.create(name, query)
    stock = lake.table("stock")
    for publish in nights:
        before = stock.version
        publish(publisher)
        assert not lake.mirror().failed
        assert not lake.maintain(POLICY).failed
        stock.optimize.vorder()
        runs = lake.views.refresh_all(how="incremental")
        runs.check()
        modes = {run.refresh.mode for run in runs.runs if run.refresh}
        assert modes <= {"incremental", "nothing"}
        assert lake.archive("stock", "stock_history").lag.versions == 0
        lake.update_dimension("stock", "dim_stock", stored_as=2)
        if publish is nothing and stock.version == before:
            assert modes == {"nothing"}
    # Everything is up to date, so another run finds nothing.
    again = lake.views.refresh_all(check=True)
    again.check()
    assert {run.refresh.mode for run in again.runs if run.refresh} == {"nothing"}
    done = lake.archive("stock", "stock_history")
    assert repr(done) == f"stock → stock_history: nothing new, archived up to {stock.version}"
    assert lake.update_dimension("stock", "dim_stock", stored_as=2).is_empty
    columns = ["item", "shelf", "n"]
    feed, kept = stock.changes.read(0), lake.table("stock_history").read()
    assert bag(kept.select(*columns, *RESERVED)) == bag(feed.select(*columns, *RESERVED))
    periods = lake.table("dim_stock").read().where("__END_AT IS NULL")
    assert bag(periods.select(columns)) == bag(stock.read().select(columns))


def bag(found: Any) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, found.collect()))
