"""Compare tables with the guardrails of Direct Lake, by SKU.

The figures are data, in `guardrails.yaml` with their source and date. If the model is too large,
every query falls back to DirectQuery. If a table has too many files, row groups or rows, the
queries on that table do. Memory is not a guardrail: beyond it, columns are paged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from mirrorlake.errors import UsageError
from mirrorlake.results import Result, TextTable, optional_figure, size_text

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
    """The limits of one capacity; None means no limit.

    Attributes:
        name: the name, such as F64.
        files: Parquet files per table.
        row_groups: row groups per table.
        rows: rows per table.
        model_gb: GB on disk of all tables of a model.
        memory_gb: GB of memory before columns are paged; not a guardrail.
    """

    name: str
    files: int
    row_groups: int
    rows: int
    model_gb: float | None
    memory_gb: float


@dataclass(frozen=True)
class Limit:
    """One guardrail compared with a table.

    Attributes:
        guardrail: the guardrail's name.
        value: the table's value.
        limit: the SKU's limit; None without a limit.
        after_optimize: the approximate value after OPTIMIZE.
        consequence: the effect of exceeding the limit; empty within it.
    """

    guardrail: str
    value: float
    limit: float | None
    after_optimize: float
    consequence: str

    @property
    def used(self) -> float:
        """The share of the limit that is used; above 1 it is exceeded, 0 without a limit."""
        return self.value / self.limit if self.limit else 0.0

    @property
    def headroom(self) -> float | None:
        """The share of the limit that is left, in percent; negative if it is exceeded."""
        return None if self.limit is None else 100.0 * (1 - self.used)


@dataclass(frozen=True)
class GuardrailReport(Result):
    """A table compared with one SKU.

    Attributes:
        sku: the SKU.
        limits: one entry per guardrail.
        smallest: the smallest F SKU that fits, or None.
        smallest_after_optimize: the smallest F SKU that fits after OPTIMIZE, or None.
    """

    sku: str
    limits: tuple[Limit, ...]
    smallest: str | None
    smallest_after_optimize: str | None

    @property
    def exceeded(self) -> tuple[Limit, ...]:
        """The guardrails that are exceeded."""
        return tuple(limit for limit in self.limits if limit.consequence)

    def __repr__(self) -> str:
        broken = ", ".join(limit.guardrail for limit in self.exceeded)
        return f"{self.sku}: {f'exceeds {broken}' if broken else 'within all guardrails'}"

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
        columns = (
            f"guardrail of {self.sku}",
            "now",
            "limit",
            "used",
            "after OPTIMIZE",
            "consequence",
        )
        return TextTable(columns, rows)

    @optional_figure
    def plot(self) -> Chart:
        """Draw how much of each guardrail is used, now and after OPTIMIZE."""
        from mirrorlake.show.plots import plot_gauge

        parts = {
            _used(one): (one.used, one.after_optimize / one.limit)
            for one in self.limits
            if one.limit
        }
        return plot_gauge(parts, title=f"Guardrails of {self.sku}: share used")

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
    """Return all SKUs by name, the smallest first."""
    text = files("mirrorlake.layout").joinpath("guardrails.yaml").read_text(encoding="utf-8")
    found: dict[str, Sku] = {}
    for entry in yaml.safe_load(text)["classes"]:
        limits = {key: value for key, value in entry.items() if key != "skus"}
        found |= {name: Sku(name, **limits) for name in entry["skus"]}
    return found


def find_sku(name: str) -> Sku:
    """Return a SKU by its name, in any case.

    Raises:
        UsageError: the SKU does not exist.
    """
    if (sku := skus().get(name.upper())) is None:
        raise UsageError(f"There is no SKU {name!r}.", hint=f"choose one of {', '.join(skus())}.")
    return sku


def check_guardrails(
    now: Mapping[str, float], after: Mapping[str, float], sku: str | None = None
) -> GuardrailReport:
    """Compare measures with a SKU's guardrails.

    Args:
        now: `files`, `row_groups`, `rows`, and `model_gb`, the GB of all tables of the model.
        after: the same measures after OPTIMIZE.
        sku: the Fabric capacity size, such as `F64`; by default the smallest one whose limits
            `now` does not exceed; if there is none, the largest one.
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
    """Return the measures of a model: the largest value of any table, and the size of all.

    Args:
        summaries: the summaries of the tables' analyses.
    """
    keys = {"files": "Parquet Files", "row_groups": "Row Groups", "rows": "Row Count"}
    most = {key: max((s[name] for s in summaries), default=0) for key, name in keys.items()}
    return most | {"model_gb": sum(s["File Size"] for s in summaries) / _GB}


def after_optimize(facts: DataFrame, now: Mapping[str, float]) -> dict[str, float]:
    """Estimate the measures after OPTIMIZE.

    OPTIMIZE merges the small files of each partition to files of 1 GiB. Row groups are estimated
    from parquet-mr's 128 MiB before compression. Rows and bytes do not change.
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
    # OPTIMIZE never increases a measure.
    return dict(now) | {key: min(value, now[key]) for key, value in found.items()}


def _smallest(measured: Mapping[str, float]) -> str | None:
    for name, sku in skus().items():
        limits = ((measured[key], getattr(sku, key)) for key in _TITLES)
        if all(limit is None or value <= limit for value, limit in limits):
            return name
    return None


def _consequence(key: str) -> str:
    whose = "every query of the model" if key == "model_gb" else "each query on the table"
    return f"{whose} falls back to DirectQuery, or fails if fallback is disabled"
