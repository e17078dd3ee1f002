"""The files of all tables of a lake at a glance: `lake.analyze()`.

An overview has those first that need care. It reads logs and footers, no rows. A table that can't
be looked at has its error in its line; the others are there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import MirrorlakeError, TableNotFoundError
from mirrorlake.layout.analysis import Analysis, analyze_table
from mirrorlake.layout.guardrails import GuardrailReport, check_guardrails, find_sku, measure
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable, size_text
from mirrorlake.spark.sql import spark_message

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

_AT_ONCE = 4
# What costs most when it is left as it is comes first.
_WEIGHTS = {
    "small files": 3,
    "row-group size": 2,
    "deletion vectors piled up": 2,
    "partitions of high cardinality": 3,
    "V-Order signals disagree": 1,
    "missing statistics": 1,
}
_MOST = 20


@dataclass(frozen=True)
class TableFiles:
    """One table of an overview.

    Attributes:
        table: its name.
        files, row_groups, rows, size: of the newest version; size in bytes.
        used: the part of the SKU's nearest guardrail that is used; above 1 it is broken.
        guardrail: which one that is.
        rules: the advice on its files, by short names.
        error: why it can't be looked at; empty if it can.
    """

    table: str
    files: int = 0
    row_groups: int = 0
    rows: int = 0
    size: int = 0
    used: float = 0.0
    guardrail: str = ""
    rules: tuple[str, ...] = ()
    error: str = ""

    @property
    def care(self) -> tuple[bool, bool, int, float, int]:
        """What the overview is ordered by: errors, broken guardrails, advice, what is used."""
        weight = sum(_WEIGHTS.get(rule, 0) for rule in self.rules)
        return bool(self.error), self.used > 1, weight, self.used, self.size


@dataclass(frozen=True)
class FilesOverview(Result):
    """The tables of a lake, those first that need care.

    Attributes:
        sku: whose guardrails are meant; the smallest one's by default.
        tables: one entry a table.
        model: how all tables together stand, as one model.
    """

    sku: str
    tables: tuple[TableFiles, ...]
    model: GuardrailReport

    @property
    def first(self) -> str:
        """The table that needs most care; empty if there is none that can be looked at."""
        return next((one.table for one in self.tables if not one.error), "")

    @property
    def broken(self) -> tuple[TableFiles, ...]:
        """The tables beyond a guardrail."""
        return tuple(one for one in self.tables if one.used > 1)

    @property
    def failed(self) -> tuple[TableFiles, ...]:
        """The tables that can't be looked at."""
        return tuple(one for one in self.tables if one.error)

    def check(self) -> None:
        """Ends with an error where no table can be looked at.

        Raises:
            TableNotFoundError: there is none, or each has an error of its own.
        """
        if not self.first:
            why = self.tables[0].error if self.tables else "the lake has no tables"
            raise TableNotFoundError(f"No table can be looked at: {why}.", hint="run `mirror`.")

    def plot(self) -> Chart:
        """Draw which part of its nearest guardrail each table uses; the first tables only."""
        from mirrorlake.show.plots import plot_bars

        return plot_bars(
            {one.table: 100 * one.used for one in self.tables[:_MOST] if not one.error},
            title=f"Part of the nearest guardrail of {self.sku} that is used",
            label="percent; 100 is the limit",
            fmt="{x:,.3g}",
        )

    def shown(self) -> TextTable:
        """One row a table."""
        columns = ("table", "files", "row groups", "rows", "size", "nearest guardrail", "used",
                   "what needs care")  # fmt: skip
        rows = tuple(
            (one.table, one.files, one.row_groups, one.rows, size_text(one.size),
             one.guardrail, f"{100 * one.used:,.3g} %", one.error or ", ".join(one.rules))
            for one in self.tables
        )  # fmt: skip
        return TextTable(columns, rows)

    def __repr__(self) -> str:
        return (
            f"{len(self.tables)} tables, {len(self.broken)} beyond a guardrail of {self.sku},"
            f" {len(self.failed)} can't be read"
        )


def survey_files(
    open_table: Callable[[TableName], TableHandle], names: Iterable[TableName], sku: str
) -> FilesOverview:
    """Look at the files of tables; `Lake.analyze` has the errors.

    Args:
        open_table: how to come to a table by its name.
        names: which tables.
        sku: the capacity whose guardrails count.
    """
    chosen = find_sku(sku).name
    look = partial(_survey_one, open_table, sku=chosen)
    wanted = list(names)
    found = [look(name) for name in wanted[:1]]  # it starts Spark where nothing else has
    # A small table is a row of short jobs: several at once keep the workers busy.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found += pool.map(look, wanted[1:])
    found.sort(key=lambda one: one.table)
    found.sort(key=lambda one: one.care, reverse=True)
    sums = {
        "files": float(max((one.files for one in found), default=0)),
        "row_groups": float(max((one.row_groups for one in found), default=0)),
        "rows": float(max((one.rows for one in found), default=0)),
        "model_gb": sum(one.size for one in found) / 10**9,
    }
    return FilesOverview(chosen, tuple(found), check_guardrails(sums, sums, chosen))


def _survey_one(
    open_table: Callable[[TableName], TableHandle], name: TableName, sku: str
) -> TableFiles:
    """One table's line; its trouble must not hide the others."""
    try:
        analysis = analyze_table(open_table(name), scan=False)
        try:
            return _look_at(analysis, sku)
        finally:
            analysis.release()
    except Exception as error:
        text = error.message if isinstance(error, MirrorlakeError) else spark_message(error)
        return TableFiles(str(name), error=text)


def _look_at(analysis: Analysis, sku: str) -> TableFiles:
    s = analysis.summary
    now = measure([s])
    nearest = max(check_guardrails(now, now, sku).limits, key=lambda one: one.used)
    rules = dict.fromkeys(finding.rule for finding in analysis.advice(columns=False).findings)
    if s["Unreadable Files"]:
        rules = {"unreadable files": None} | rules
    return TableFiles(
        str(analysis.name),
        s["Parquet Files"],
        s["Row Groups"],
        s["Row Count"],
        s["File Size"],
        nearest.used,
        nearest.guardrail,
        tuple(rules),
    )
