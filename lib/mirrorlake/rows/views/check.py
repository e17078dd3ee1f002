"""Compares a view with its query, both ways by EXCEPT ALL, at the versions that it shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from mirrorlake.rows.views.plan import Plan, listed
from mirrorlake.spark.sql import delta_name, quote

TOLERANCE = 1e-9  # floating-point sums differ by the order of their terms
_FLOATS = ("float", "double")


@dataclass(frozen=True)
class Check:
    """What a comparison found.

    Attributes:
        view: its name.
        missing: rows of the query that the view lacks.
        extra: rows of the view that the query lacks.
    """

    view: str
    missing: int
    extra: int

    @property
    def differences(self) -> int:
        """All rows that differ."""
        return self.missing + self.extra

    def __repr__(self) -> str:
        if not self.differences:
            return f"{self.view} is what its query gives"
        return f"{self.view} lacks {self.missing} rows of its query and has {self.extra} others"


def check_view(session: SparkSession, plan: Plan, path: str) -> Check:
    """Compares a view with its query.

    Args:
        session: where to run it.
        plan: the view's, with its sources at the versions that the view shows.
        path: the view's table, in full.
    """
    view = f"SELECT {listed(plan.names)} FROM {delta_name(path)}"
    whole = f"SELECT * FROM ({plan.whole()}\n)"
    found = Check(
        str(plan.definition.name),
        _count(session, f"{whole} EXCEPT ALL {view}"),
        _count(session, f"{view} EXCEPT ALL {whole}"),
    )
    floats = [name for name, kind in plan.columns.items() if kind in _FLOATS]
    if not found.differences or not floats:
        return found
    missing, extra = f"({whole} EXCEPT ALL {view})", f"({view} EXCEPT ALL {whole})"
    alike = " AND ".join(_alike(name, name in floats) for name in plan.names)
    unmatched = "SELECT * FROM {} a LEFT ANTI JOIN {} b ON " + alike
    return replace(
        found,
        missing=_count(session, unmatched.format(missing, extra)),
        extra=_count(session, unmatched.format(extra, missing)),
    )


def _count(session: SparkSession, query: str) -> int:
    (row,) = session.sql(f"SELECT count(*) FROM ({query})").collect()
    return int(row[0])


def _alike(name: str, is_float: bool) -> str:
    a, b = f"a.{quote(name)}", f"b.{quote(name)}"
    if not is_float:
        return f"{a} <=> {b}"
    close = f"abs({a} - {b}) <= {TOLERANCE} * greatest(abs({a}), abs({b}), 1e-300)"
    return f"({a} <=> {b} OR coalesce({close}, false))"
