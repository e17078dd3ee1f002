"""Guardrails of Direct Lake by SKU: how near a table is to them, and what happens beyond.

The figures are data, in `guardrails.yaml` with their source and date. Beyond the model's size every
query falls back to DirectQuery; beyond a table's files, row groups or rows the queries that touch
the table do. Memory is no guardrail: over it columns are paged in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from mirrorlake.errors import UsageError
from mirrorlake.results import Result, TextTable, size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.show.chart import Chart

_GB = 10**9
_DISK = "GB On Disk"
_TARGET = 2**30
_BLOCK = 128 * 2**20
_TITLES = {
    "files": "Parquet Files",
    "row_groups": "Row Groups",
    "rows": "Rows",
    "model_gb": "Model GB On Disk",
}


@dataclass(frozen=True)
class Sku:
    """One capacity's limits; None is no limit.

    Attributes:
        name: such as F64.
        files: Parquet files of a table.
        row_groups: row groups of a table.
        rows: rows of a table.
        model_gb: GB on disk of all tables of a model.
        memory_gb: GB of memory before columns are paged; no guardrail.
    """

    name: str
    files: int
    row_groups: int
    rows: int
    model_gb: float | None
    memory_gb: float


@dataclass(frozen=True)
class Limit:
    """One guardrail and how a table stands to it.

    Attributes:
        guardrail: its name.
        value: what the table has.
        limit: what the SKU allows; None is no limit.
        after_optimize: what the table would have after OPTIMIZE, about.
        consequence: what happens beyond; empty when within.
    """

    guardrail: str
    value: float
    limit: float | None
    after_optimize: float
    consequence: str

    @property
    def used(self) -> float:
        """What part of the limit is used; above 1 beyond it, 0 where there is none."""
        return self.value / self.limit if self.limit else 0.0

    @property
    def headroom(self) -> float | None:
        """What part of the limit is left, in percent; negative beyond it."""
        return None if self.limit is None else 100.0 * (1 - self.used)


@dataclass(frozen=True)
class GuardrailReport(Result):
    """A table against one SKU.

    Attributes:
        sku: the SKU.
        limits: one entry a guardrail.
        smallest: the smallest F SKU that fits, or None.
        smallest_after_optimize: the same once OPTIMIZE has run.
    """

    sku: str
    limits: tuple[Limit, ...]
    smallest: str | None
    smallest_after_optimize: str | None

    @property
    def exceeded(self) -> tuple[Limit, ...]:
        """The guardrails that are broken."""
        return tuple(limit for limit in self.limits if limit.consequence)

    def __repr__(self) -> str:
        broken = ", ".join(limit.guardrail for limit in self.exceeded)
        return f"{self.sku}: {f'beyond {broken}' if broken else 'within all guardrails'}"

    def shown(self) -> TextTable:
        """Return one row per guardrail, for people."""

        def text(guardrail: str, value: float | None) -> str:
            if value is None:
                return "none"
            return size_text(value * _GB) if _DISK in guardrail else f"{value:,.0f}"

        rows = tuple(
            (
                one.guardrail.replace(_DISK, "Size On Disk"),
                text(one.guardrail, one.value),
                text(one.guardrail, one.limit),
                f"{100 * one.used:,.3g} %" if one.limit else "",
                text(one.guardrail, one.after_optimize),
                one.consequence or "within",
            )
            for one in self.limits
        )
        columns = (f"guardrail of {self.sku}", "now", "limit", "used", "after OPTIMIZE", "so")
        return TextTable(columns, rows)

    def plot(self) -> Chart:
        """Draw how much of each guardrail is used, now and after OPTIMIZE."""
        from mirrorlake.show.plots import plot_gauge

        parts = {
            _used(one): (one.used, one.after_optimize / one.limit)
            for one in self.limits
            if one.limit
        }
        return plot_gauge(parts, title=f"Guardrails of {self.sku}: part that is used")

    def as_dict(self) -> dict[str, Any]:
        """Return the columns and rows that `--json` prints."""
        columns = ("SKU", "Guardrail", "Value", "Limit", "Headroom Percent", "After OPTIMIZE",
                   "Consequence", "Smallest SKU", "Smallest SKU After OPTIMIZE")  # fmt: skip
        ends = (self.smallest, self.smallest_after_optimize)
        rows = tuple(
            (self.sku, one.guardrail, one.value, one.limit, one.headroom, one.after_optimize,
             one.consequence, *ends)
            for one in self.limits
        )  # fmt: skip
        return TextTable(columns, rows).document()


def _used(one: Limit) -> str:
    value = f"{one.value:,.4g}" if isinstance(one.value, float) else f"{one.value:,}"
    return f"{one.guardrail}\n{value} of {one.limit:,}"


@cache
def skus() -> Mapping[str, Sku]:
    """All SKUs by name, the smallest first."""
    text = files("mirrorlake.layout").joinpath("guardrails.yaml").read_text(encoding="utf-8")
    found: dict[str, Sku] = {}
    for entry in yaml.safe_load(text)["classes"]:
        limits = {key: value for key, value in entry.items() if key != "skus"}
        found |= {name: Sku(name, **limits) for name in entry["skus"]}
    return found


def find_sku(name: str) -> Sku:
    """A SKU by its name, in any case.

    Raises:
        UsageError: there is none of that name.
    """
    if (sku := skus().get(name.upper())) is None:
        raise UsageError(f"There is no SKU {name!r}.", hint=f"one of {', '.join(skus())}.")
    return sku


def check_guardrails(
    now: Mapping[str, float], after: Mapping[str, float], sku: str | None = None
) -> GuardrailReport:
    """How measures stand to a SKU's guardrails.

    Args:
        now: `files`, `row_groups`, `rows`, and `model_gb`: the GB of all tables of the model.
        after: the same as they would be after OPTIMIZE.
        sku: by default the smallest that fits, else the largest.
    """
    smallest = _smallest(now)
    chosen = find_sku(sku) if sku else skus()[smallest or list(skus())[-1]]
    limits = []
    for key, title in _TITLES.items():
        limit = getattr(chosen, key)
        beyond = limit is not None and now[key] > limit
        consequence = _consequence(key) if beyond else ""
        limits.append(Limit(title, now[key], limit, after[key], consequence))
    return GuardrailReport(chosen.name, tuple(limits), smallest, _smallest(after))


def measure(summaries: list[Mapping[str, Any]]) -> dict[str, float]:
    """The measures of a model's tables: the largest of each, and the bytes of all.

    Args:
        summaries: the summaries of their analyses.
    """
    keys = {"files": "Parquet Files", "row_groups": "Row Groups", "rows": "Row Count"}
    most = {key: max((s[name] for s in summaries), default=0) for key, name in keys.items()}
    return most | {"model_gb": sum(s["File Size"] for s in summaries) / _GB}


def after_optimize(facts: DataFrame, now: Mapping[str, float]) -> dict[str, float]:
    """About what OPTIMIZE would leave: within each partition small files become files of 1 GiB.

    Row groups follow from parquet-mr's 128 MiB before compression. Rows and bytes stay.
    """
    from pyspark.sql import functions as F

    raw = F.expr("aggregate(footer.groups.uncompressed, 0L, (a, b) -> a + b)")
    small = F.col("size") < _TARGET
    by_partition = facts.groupBy("partition").agg(
        F.sum(F.when(small, F.col("size")).otherwise(0)).alias("bytes"),
        F.sum(F.when(small, raw).otherwise(0)).alias("raw"),
        F.count_if(small).alias("small"),
        F.count_if(~small).alias("large"),
        F.sum(F.when(~small, F.col("footer.row_groups")).otherwise(0)).alias("large_groups"),
    )
    merged = F.least(F.ceil(F.col("bytes") / _TARGET), F.col("small"))
    groups = F.greatest(F.ceil(F.col("raw") / _BLOCK), merged)
    row = by_partition.agg(
        F.sum(merged + F.col("large")).alias("files"),
        F.sum(groups + F.col("large_groups")).alias("row_groups"),
    ).first()
    found = {} if row is None else {key: float(value or 0) for key, value in row.asDict().items()}
    # One that lists fewer than it would leave is as good as it gets.
    return dict(now) | {key: min(value, now[key]) for key, value in found.items()}


def _smallest(measured: Mapping[str, float]) -> str | None:
    for name, sku in skus().items():
        limits = ((measured[key], getattr(sku, key)) for key in _TITLES)
        if all(limit is None or value <= limit for value, limit in limits):
            return name
    return None


def _consequence(key: str) -> str:
    whose = "every query of the model" if key == "model_gb" else "each query that touches the table"
    return f"{whose} falls back to DirectQuery; where falling back is switched off, it fails"
