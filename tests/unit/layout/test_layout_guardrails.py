"""Guardrails by SKU: limits, consequences, and the smallest SKU that fits."""

from __future__ import annotations

import pytest

from helpers.project import PROJECT
from mirrorlake.errors import UsageError
from mirrorlake.layout import guardrails

# The public table, as its readers know it: SKUs, files, row groups, million rows, GB, GB of memory.
PUBLISHED = """
F2 F4 F8|1000|1000|300|10|3
F16|1000|1000|300|20|5
F32|1000|1000|300|40|10
F64 FT1 P1|5000|5000|1500|-|25
F128 P2|5000|5000|3000|-|50
F256 P3|5000|5000|6000|-|100
F512 P4|10000|10000|12000|-|200
F1024 F2048 P5|10000|10000|24000|-|400
"""


def measured(files: int = 1, groups: int = 1, rows: int = 1, gb: float = 0.1) -> dict[str, float]:
    return {"files": files, "row_groups": groups, "rows": rows, "model_gb": gb}


NOTHING = measured(0, 0, 0, 0)


@pytest.mark.promise("DL-16")
def test_every_sku_has_the_published_limits() -> None:
    wanted = {}
    for line in PUBLISHED.strip().splitlines():
        names, files, groups, millions, disk, memory = line.split("|")
        for name in names.split():
            wanted[name] = (
                int(files),
                int(groups),
                int(millions) * 10**6,
                None if disk == "-" else int(disk),
                int(memory),
            )
    found = {
        sku.name: (sku.files, sku.row_groups, sku.rows, sku.model_gb, sku.memory_gb)
        for sku in guardrails.skus().values()
    }
    assert found == wanted


def test_the_page_has_the_limits_of_every_sku() -> None:
    groups: dict[tuple[float | None, ...], list[str]] = {}
    for sku in guardrails.skus().values():
        limits = (sku.files, sku.row_groups, sku.rows, sku.model_gb)
        groups.setdefault(limits, []).append(sku.name)
    lines = [
        " | ".join([", ".join(names), *(f"{one:,}" if one else "no limit" for one in limits)])
        for limits, names in groups.items()
    ]
    page = (PROJECT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    table = page.partition("## Guardrails")[2].splitlines()
    assert [line for line in table if line.startswith("|")][2:] == [f"| {x} |" for x in lines]


@pytest.mark.parametrize(
    ("now", "smallest"),
    [
        (measured(1000, 1000, 300_000_000, 10), "F2"),
        (measured(gb=10.1), "F16"),
        (measured(gb=41), "F64"),
        (measured(files=1001), "F64"),
        (measured(groups=5001), "F512"),
        (measured(rows=3_000_000_001), "F256"),
        (measured(files=10_001), None),
    ],
)
def test_the_smallest_sku_that_fits(now: dict[str, float], smallest: str | None) -> None:
    report = guardrails.check_guardrails(now, now)
    assert report.smallest == smallest
    assert report.sku == (smallest or "P5")
    assert bool(report.exceeded) == (smallest is None)


@pytest.mark.promise("DL-16")
def test_consequences_of_exceeded_guardrails() -> None:
    now = measured(files=2000, gb=11)
    report = guardrails.check_guardrails(now, measured(files=3, gb=9), "f2")
    says = {limit.guardrail: limit.consequence for limit in report.exceeded}
    assert set(says) == {"Parquet Files", "Model GB On Disk"}
    assert says["Parquet Files"].startswith("each query on the table falls back")
    assert says["Model GB On Disk"].startswith("every query of the model falls back")
    assert (report.smallest, report.smallest_after_optimize) == ("F64", "F2")
    assert [limit.headroom for limit in report.limits][:2] == [-100.0, 99.9]
    assert repr(report) == "F2: exceeds Parquet Files, Model GB On Disk"
    assert "falls back" in report._repr_html_()


def test_a_model_is_as_large_as_its_tables_together() -> None:
    tables = [
        {"Parquet Files": 3, "Row Groups": 4, "Row Count": 50, "File Size": 6 * 10**9},
        {"Parquet Files": 30, "Row Groups": 1, "Row Count": 5, "File Size": 5 * 10**9},
    ]
    assert guardrails.measure(tables) == {
        "files": 30,
        "row_groups": 4,
        "rows": 50,
        "model_gb": 11.0,
    }
    assert guardrails.measure([]) == {"files": 0, "row_groups": 0, "rows": 0, "model_gb": 0.0}


@pytest.mark.parametrize(
    ("now", "share"), [(measured(files=6), 0.0012), (measured(files=20_000), 4.0), (NOTHING, 0.0)]
)
def test_the_gauge_shows_a_tiny_table_and_one_beyond_its_limits(
    now: dict[str, float], share: float
) -> None:
    axes = guardrails.check_guardrails(now, NOTHING, "F64").plot().axes[0]
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    assert low < 0.01 < 1 < high
    dots = axes.lines[0].get_xdata()
    assert dots[0] == pytest.approx(share or low)
    assert all(low <= dot < high for dot in dots)
    assert axes.texts[0].get_text() == f"{100 * share:.2g} %".replace("4e+02", "400")


def test_an_unknown_sku() -> None:
    with pytest.raises(UsageError, match="F3"):
        guardrails.find_sku("F3")
