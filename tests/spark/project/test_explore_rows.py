"""The explorer where it needs Spark: rows by page, the difference of versions, changes, advice."""

from __future__ import annotations

from typing import Any

from mirrorlake import Lake
from mirrorlake_lab import explore


def visible(widget: Any) -> bool:
    return widget.layout.display != "none"


def test_rows_changes_and_advice(lake: Lake) -> None:
    stock = lake.publisher("stock", keys=["id"])
    stock.write([{"id": n, "item": f"<b>{n}", "n": n} for n in range(1, 46)])
    lake.mirror()
    stock.update([{"id": 7, "item": "<b>7", "n": 70}])
    stock.delete([{"id": 9}])
    lake.mirror()
    explorer = explore(lake, "stock")
    rows = explorer.open("Rows")
    rows.order.value, rows.where.value = "n", "n > 2"
    rows.read()
    assert rows.message.value == ""
    assert "&lt;b&gt;3" in rows._rows.shown.value
    assert "filter n &gt; 2: 42 rows</caption>" in rows._rows.shown.value
    rows._rows.turn(1)
    rows._rows.turn(1)
    assert rows._rows.shown.value.count("<tr>") == 3  # the head, and 41 to 42 of 42
    assert rows._rows._next.disabled
    rows.compare()
    page = rows._changes.shown.value
    assert page.count(" changed") == 3  # two cells and the caption
    assert ": 1 removed, 1 changed</caption>" in page
    assert ">70</td>" in page
    assert page.count("<tr>") == 4
    rows.where.value = "item = bolt"
    rows.guard(rows.read)
    assert "put a text into quotes: &#x27;bolt&#x27;" in rows.message.value
    assert not visible(rows._rows.widget)
    assert visible(rows._changes.widget)
    parts = rows.widget.children
    assert parts.index(rows.message) < parts.index(rows._rows.widget)
    feed = explorer.open("Feed")
    feed.read()
    assert "2" in feed._versions.shown.value
    assert "n 7 → 70" in feed._life.shown.value
    feed.where.value = "nothing = 1"
    feed.guard(feed.read)
    assert "nothing" in feed.message.value
    assert not visible(feed._life.widget)
    files = explorer.open("Files")
    files.advise()
    assert "Advice" in files._advice.value
