"""Shown changes of two versions: the changed cells, and the columns of wide rows."""

from __future__ import annotations

from mirrorlake.results import TextTable
from mirrorlake.show.changed_cells import changed_cells, narrow_changes
from mirrorlake_lab.pages import html

PAGE = TextTable(
    ("_change_type", "id", "n", "m"),
    (
        ("insert", 1, 1, 1),
        ("update_preimage", 2, 1, None),
        ("update_postimage", 2, 2, None),
        ("update_preimage", 3, 1, 5),
    ),
)


def test_changed_cells_of_pairs_are_marked() -> None:
    assert changed_cells(PAGE, ("id",)) == changed_cells(PAGE, ("ID",)) == [(1, 2), (2, 2)]
    assert changed_cells(PAGE, ()) == []
    assert 'class="n changed"' in html.table(PAGE, changed=[(1, 2)])


def test_a_wide_page_has_the_keys_and_the_changed_columns() -> None:
    more = tuple(f"c{number}" for number in range(6))
    columns = (*more, *PAGE.columns)
    wide = TextTable(columns, tuple((*range(6), *row) for row in PAGE.rows), more=True)
    found = narrow_changes(wide, ("ID",))
    assert found.columns == ("id", "n", "_change_type")
    assert found.rows[:3] == (
        (1, 1, "insert"),
        (2, 1, "update_preimage"),
        (2, 2, "update_postimage"),
    )
    assert found.more
    assert narrow_changes(wide, ()) == wide
    inserts = TextTable(columns, wide.rows[:1])
    assert narrow_changes(inserts, ("id",)) == inserts
    assert narrow_changes(PAGE, ("id",)) == PAGE
