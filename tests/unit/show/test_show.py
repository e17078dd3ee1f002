from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from mirrorlake import Lake, results
from mirrorlake.show import chart as charts
from mirrorlake.show import plots
from mirrorlake_lab.pages import html

PNG = b"\x89PNG\r\n"


CHARTS: list[Callable[[], charts.Chart]] = [
    lambda: plots.plot_bars({"b": 2.5, "a": -1}, title="Bars", label="minutes", fmt="{x:.1f}"),
    lambda: plots.plot_stacks(
        ["Jan", "Feb"], {"up": [1, 2], "down": [3, 4]}, title="t", label="rows"
    ),
    lambda: plots.plot_lines([1, 2], {"one": [5, 6]}, title="Lines", label="s", x_label="files"),
    lambda: plots.plot_matrix(
        ["v1", "v2", "v3"], {"a": ["int", "int", "long"], "b": ["", "int", ""]}, title="Matrix"
    ),
    lambda: plots.plot_spans({"b": (1, 3.5), "a": (0, 4)}, title="Spans", label="seconds"),
]


@pytest.mark.parametrize("number", range(len(CHARTS)))
def test_a_chart_is_the_same_picture_every_time(number: int) -> None:
    first, again = CHARTS[number](), CHARTS[number]()
    assert first.to_png().startswith(PNG)
    assert first.to_png() == again.to_png()
    assert repr(first) == repr(again)
    assert "0x" not in repr(first)


def test_charts_stay_out_of_pyplot() -> None:
    import matplotlib.pyplot as plt

    for chart in CHARTS:
        chart()
    assert plt.get_fignums() == []


def test_bars_show_their_values_in_the_given_order() -> None:
    axes = CHARTS[0]().axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    assert axes.yaxis_inverted()
    assert {"2.5", "-1.0"} <= {text.get_text() for text in axes.texts}
    assert axes.get_xlabel() == "minutes"


def test_money_has_separators_and_no_exponent() -> None:
    rows = (("AA", 38620.55), ("DL", 912.5))
    bars = plots.plot_rows(results.TextTable(("carrier", "revenue"), rows))
    assert bars is not None
    assert [text.get_text() for text in bars.axes[0].texts] == ["38,620.55", "912.50"]
    by_number = (("revenue", "n"), ((3.862e15, 1), (9.862e15, 2)))
    lines = plots.plot_rows(results.TextTable(*by_number))
    assert lines is not None
    assert "e" not in "".join(label.get_text() for label in ticks(lines))


def drawn(*rows: tuple[Any, ...], more: bool = False) -> charts.Chart:
    names = ("name", "n", "m")[: len(rows[0])]
    chart = plots.plot_rows(results.TextTable(names, rows, more))
    assert chart is not None
    return chart


def test_null_is_a_gap() -> None:
    bars = drawn(("EUR", 4), ("USD", None), ("GBP", float("inf")), ("CHF", 2))
    assert bars.describe() == "n by name. n. EUR 4, USD no number, GBP no number, CHF 2."
    assert [bar.get_width() for bar in bars.axes[0].patches] == [4, 0, 0, 2]
    points = drawn(("EUR", 4, 1), ("USD", None, 5), ("CHF", 2, 3))
    assert "n from 4 to 2, at most 4, 1 without a number. m from 1 to 3" in points.describe()
    assert math.isnan(points.axes[0].lines[0].get_ydata()[1])
    assert points.to_png().startswith(PNG)


def test_a_null_in_the_first_column_has_a_label() -> None:
    assert drawn(("EUR", 4), (None, 3)).describe() == "n by name. n. EUR 4, NULL 3."
    assert drawn((None, 3), (2013, 4)).describe() == "n by name. n. NULL 3, 2013 4."
    (line, _) = drawn((None, 3, 1), (2013, 4, 2)).axes[0].lines
    assert (line.get_xdata()[0], line.get_linestyle()) == ("NULL", "None")


@pytest.mark.parametrize(("more", "said"), [(False, "298 rows"), (True, "more than 298 rows")])
def test_a_plot_of_the_first_rows_only_says_so(more: bool, said: str) -> None:
    chart = drawn(*((f"row {n}", n) for n in range(298)), more=more)
    assert len(chart.axes[0].patches) == 40
    assert chart.axes[0].get_title(loc="left") == f"n by name (first 40 of {said})"
    assert chart.describe().startswith(f"n by name (first 40 of {said}). ")


@pytest.mark.parametrize(
    "rows", [(), (("a", 1),), (("a", "x"), ("b", "y")), (("a", None), ("b", None)), (("a", 1),) * 2]
)
def test_rows_that_can_not_be_drawn_are_said(
    rows: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert plots.plot_rows(results.TextTable(("name", "n"), rows)) is None
    (said,) = caplog.messages
    assert "at least two rows" in said
    assert "only numbers" in said


@pytest.mark.parametrize(
    ("names", "style"),
    [(("a", "b"), "None"), (("2026-01-01 00:00:00", "2027"), "-"), ((1, 2), "-")],
)
def test_a_line_does_not_join_categories(names: tuple[Any, Any], style: str) -> None:
    chart = drawn((names[0], 1, 2), (names[1], 3, 4))
    assert {line.get_linestyle() for line in chart.axes[0].lines} == {style}


def ticks(chart: charts.Chart) -> list[Any]:
    chart.describe()  # draws the labels
    axis = chart.axes[0].xaxis
    return [axis.get_offset_text(), *axis.get_ticklabels()]


def test_stacks_stand_on_each_other() -> None:
    chart = CHARTS[1]()
    bars = chart.axes[0].patches
    assert [(bar.get_y(), bar.get_height()) for bar in bars] == [(0, 1), (0, 2), (1, 3), (2, 4)]
    assert [text.get_text() for text in chart.legends[0].get_texts()] == ["up", "down"]


def test_one_line_needs_no_legend() -> None:
    chart = CHARTS[2]()
    assert not chart.legends
    assert chart.axes[0].lines[0].get_color() == charts.COLOURS[0]
    assert chart.axes[0].get_ylim()[0] == 0


def test_a_matrix_shows_what_changed_and_leaves_white_what_is_not_there() -> None:
    chart = CHARTS[3]()
    axes = chart.axes[0]
    assert [text.get_text() for text in axes.texts] == ["int", "int", "long", "int"]
    assert [text.get_position() for text in axes.texts] == [(0, 0), (1, 0), (2, 0), (1, 1)]
    changed, same = (patch.get_facecolor() for patch in chart.legends[0].get_patches())
    cells = [patch.get_facecolor() for patch in axes.patches]
    assert cells == [changed, same, changed, changed]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["v1", "v2", "v3"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert axes.yaxis_inverted()


def test_spans_lie_where_they_began_and_say_how_long_they_were() -> None:
    axes = CHARTS[4]().axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(1, 2.5), (0, 4)]
    assert [text.get_text() for text in axes.texts] == ["2.5", "4.0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    assert axes.yaxis_inverted()


def test_text_and_html_have_the_same_facts() -> None:
    shown = results.TextTable(("name", "n", "x"), (("<b>", 1, 0.1 + 0.2), (None, 20, 1e6)))
    assert repr(shown).splitlines() == [
        "name   n        x",
        "<b>    1      0.3",
        "NULL  20  1000000",
    ]
    html = shown._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count("<tr>") == 3
    assert "0.3<" in html


def test_counts_have_separators_and_other_numbers_none() -> None:
    table = results.TextTable(("year", "rows"), ((2013, results.Count(17656)),))
    assert repr(table) == "year    rows\n2013  17,656"
    assert "17,656</td>" in table._repr_html_()
    assert table.document()["rows"] == [{"year": 2013, "rows": 17656}]


def test_large_doubles_are_shown_with_their_digits() -> None:
    for number, shown in (
        (12345678901.0, "12,345,678,901"),
        (9999999999.75, "10,000,000,000"),
        (-(2.0**53), "-9,007,199,254,740,992"),
        (1e300, "1e+300"),
        (1e-7, "1e-07"),
        (float("inf"), "inf"),
    ):
        assert html.text(number) == shown
        assert repr(results.TextTable(("x",), ((number,),))).split() == [
            "x",
            shown.replace(",", ""),
        ]


def test_a_column_of_numbers_stands_right_even_where_no_row_has_one() -> None:
    rows = ((1, None),)
    assert repr(results.TextTable(("id", "a count"), rows)) == "id  a count\n 1  NULL"
    known = results.TextTable(("id", "a count"), rows, numeric=frozenset({1}))
    assert repr(known) == "id  a count\n 1     NULL"
    assert known == results.TextTable(("id", "a count"), rows)


def test_what_is_left_out_is_said() -> None:
    shown = results.TextTable(("n",), ((1,),), more=True)
    assert repr(shown).endswith("… and more rows")
    assert "… and more rows" in shown._repr_html_()


def test_no_rows_still_show_their_columns() -> None:
    assert repr(results.TextTable(("a", "b"), ())) == "a  b"
    assert pickle.loads(pickle.dumps(results.TextTable(("a",), ()))) == results.TextTable(
        ("a",), ()
    )


def test_published_files_show_their_markers(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1}])
    publisher.delete([{"id": 1}, {"id": 2}])
    publisher.write([{"id": 1, "__rowMarker__": 4}, {"id": 2, "__rowMarker__": 2}])
    shown = publisher.files()
    assert [row[1:3] for row in shown.rows] == [
        (1, "none: initial load"),
        (2, "2: delete"),
        (2, "several"),
    ]
    assert shown.rows[0][0] == f"{1:020d}.parquet"
    assert all(row[3].endswith(" KiB") for row in shown.rows)


def test_a_file_with_a_little_of_each_bucket_is_not_drawn_empty() -> None:
    spreads = {"before": ((1,) * 64,), "after": ((64, *(0,) * 63),)}
    before, after = plots.plot_spread(spreads, title="Buckets").axes
    (shares,) = before.images
    assert float(shares.norm(1 / 64)) > 0.1
    (shares,) = after.images
    assert [float(shares.norm(part)) for part in (0, 1)] == [0, 1]
