"""The order of a lake's overview, and its texts; the Spark tests cover what it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlake.errors import TableNotFoundError
from mirrorlake.layout import advice, analysis, guardrails
from mirrorlake.mirror.options import KEYS_PROPERTY

NOTHING = {"files": 0.0, "row_groups": 0.0, "rows": 0.0, "model_gb": 0.0}
WELL = analysis.TableFiles("well", 1, 1, 10, 1000, 0.1, "Rows")
SMALL = analysis.TableFiles("small", 60, 60, 10, 1000, 0.2, "Parquet Files", ("small files",))
BROKEN = analysis.TableFiles("broken", 1, 1100, 10, 1000, 1.1, "Row Groups")
LOST = analysis.TableFiles("lost", error="The log is gone.")


def overview(*tables: analysis.TableFiles) -> analysis.FilesOverview:
    return analysis.FilesOverview("F2", tables, guardrails.check_guardrails(NOTHING, NOTHING, "F2"))


def test_errors_come_first_then_broken_guardrails_then_advice() -> None:
    ordered = sorted((WELL, SMALL, BROKEN, LOST), key=lambda one: one.priority, reverse=True)
    assert [one.table for one in ordered] == ["lost", "broken", "small", "well"]


def test_an_overview_lists_what_needs_attention() -> None:
    found = overview(LOST, BROKEN, SMALL)
    assert (found.first, found.broken, found.failed) == ("broken", (BROKEN,), (LOST,))
    assert "broken 110, small 20." in found.plot().describe()
    assert [row[-1] for row in found.shown().rows] == ["The log is gone.", "", "small files"]
    assert repr(found) == "3 tables, 1 beyond a guardrail of F2, 1 can't be read"
    found.check()


@pytest.mark.parametrize(("tables", "why"), [((), "no tables"), ((LOST,), "The log is gone")])
def test_an_overview_without_a_readable_table_is_an_error(
    tables: tuple[analysis.TableFiles, ...], why: str
) -> None:
    with pytest.raises(TableNotFoundError, match=why):
        overview(*tables).check()


def test_a_chart_of_some_tables_or_columns_says_so() -> None:
    tables = [analysis.TableFiles(f"t{number}", used=0.1) for number in range(21)]
    (axes,) = overview(*tables).plot().axes
    assert axes.get_title(loc="left").endswith("used (first 20 of 21 tables)")
    (axes,) = overview(*tables[:20]).plot().axes
    assert axes.get_title(loc="left").endswith("used")
    sizes = {f"c{number}": 100 - number for number in range(16)}
    (axes,) = analysis.ColumnSizes("t", sizes, {}).plot().axes
    assert axes.get_title(loc="left") == "Size of the columns of t (the largest 15 of 16)"


def test_a_key_that_is_declared_in_another_case_is_in_use() -> None:
    """An internal function, because an analysis starts Spark."""
    snapshot = SimpleNamespace(properties={KEYS_PROPERTY: '["ID"]'})
    table: Any = SimpleNamespace(summary={"Row Count": 2}, snapshot=snapshot)
    row: Any = {"Column Name": "id", "Primitive Type": "long", "Cardinality": 2}
    row |= {"Compressed Size": 1, "Size Percent Of Table": 50}
    assert not list(advice._on_one_column(table, row, []))
