"""What the next refresh of a view would do and why, what it would cost, what the last ones cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from mirrorlake.history.versions import ENFORCED
from mirrorlake.results import Result, TextTable
from mirrorlake.rows.views.cost_model import (
    COMMIT_SECONDS,
    Cost,
    Costs,
    Estimate,
    estimate,
    least_seconds,
    read_costs,
)
from mirrorlake.rows.views.definition import Definition
from mirrorlake.rows.views.joins import Role
from mirrorlake.rows.views.plan import Plan, listed, make_plan
from mirrorlake.rows.views.reasons import Reason, reason
from mirrorlake.rows.views.shape import RULES, Method, is_steady
from mirrorlake.rows.views.sources import Changes, Source, look_at_changes
from mirrorlake.rows.views.state import ViewState
from mirrorlake.rows.views.view_sql import whole_contents
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.storage import Storage

FULL, INCREMENTAL, NOTHING = "full", "incremental", "nothing"
_ROLES = {
    Role.LINEAR: "the query over the changed rows is the change of the view",
    Role.NULLABLE: "rows whose key a changed row has or had are removed as they were, and"
    " added as they are",
    Role.BOTH: "both sides of the keys that changed rows have or had are joined, as they were and"
    " as they are",
}


@dataclass(frozen=True)
class RefreshPlan:
    """All that is known before a refresh reads a row.

    Attributes:
        state: what the view shows.
        plan: its query, its sources at the versions to read.
        changes: what changed, by source; empty where that can't be read.
        reason: why the refresh must be full; None if it need not be.
        costs: what the last refreshes cost.
        estimate: what the two ways are expected to take.
    """

    state: ViewState
    plan: Plan
    changes: tuple[Changes, ...]
    reason: Reason | None
    costs: Costs
    estimate: Estimate

    @property
    def changed_bytes(self) -> int:
        """How much there is to read of what changed."""
        return sum(one.bytes for one in self.changes)


def refresh_session(spark: SparkSession) -> SparkSession:
    """A session of its own, which may read a version that is the newest, however old it is."""
    session = new_session(spark)
    session.conf.set(ENFORCED, "false")
    return session


def plan_refresh(
    spark: SparkSession,
    session: SparkSession,
    storage: Storage,
    definition: Definition,
    state: ViewState,
    sources: Sequence[Source],
) -> RefreshPlan:
    """What a refresh would have to do, from logs and the query alone.

    Args:
        spark: the user's session, whose settings say how far back may be read.
        session: the refresh's own.
        storage: the lake's files.
        definition: the view.
        state: what it shows.
        sources: its sources, pinned.
    """
    plan = make_plan(session, definition, sources)
    why = state.reason or plan.shape.reason or _columns_changed(session, storage, plan)
    changes: list[Changes] = []
    for source in plan.tables:
        if why is None and source.moved:
            found = look_at_changes(spark, storage, source)
            if isinstance(found, Reason):
                why = found
            else:
                changes.append(found)
    size = sum(one.bytes for one in changes)
    costs = read_costs(storage, definition.name)
    least = COMMIT_SECONDS if "incremental" in costs else least_seconds(storage)
    guess = estimate(plan.shape.method, size, costs, least)
    return RefreshPlan(state, plan, tuple(changes), why, costs, guess)


def _columns_changed(session: SparkSession, storage: Storage, plan: Plan) -> Reason | None:
    path = storage.path(plan.definition.name.table_path)
    there = dict(session.sql(f"SELECT * FROM {delta_name(path)}").dtypes)
    wanted = session.sql(whole_contents(plan, 0)).dtypes
    odd = [name for name, kind in wanted if there.get(name) != kind]
    return reason("COLUMNS_CHANGED", odd[0]) if odd else None


@dataclass(frozen=True)
class SourceState:
    """How a source stands.

    Attributes:
        table: its name.
        shown: the version that the view shows; None if it shows none.
        newest: its newest version.
        changed_bytes: how much changed since, as far as the log knows; None where it can't be read.
        by: `feed` or `row ids`: where its changes are read from.
        rule: how its changes become the query's.
    """

    table: str
    shown: int | None
    newest: int
    changed_bytes: int | None
    by: str | None
    rule: str


@dataclass(frozen=True)
class Explanation(Result):
    """What the next refresh would do.

    Attributes:
        view: its name.
        sql: its query.
        method: the rule of its shape: `rows`, `sums`, `groups`, `partitions`, or `full` for none.
        mode: `incremental`, `full` or `nothing`.
        reason: why it is full, whenever there is something to do; None otherwise.
        sources: the tables.
        expected: seconds by kind of refresh, where they can be guessed.
        last: what the last refresh of each kind cost.
    """

    view: str
    sql: str
    method: str
    mode: str
    reason: Reason | None
    sources: tuple[SourceState, ...]
    expected: dict[str, float | None]
    last: dict[str, Cost]

    def as_dict(self) -> dict[str, Any]:
        """The document that `view explain --json` prints."""
        return {
            "view": self.view,
            "sql": self.sql,
            "method": self.method,
            "rule": RULES[Method(self.method)],
            "mode": self.mode,
            "reason": vars(self.reason) if self.reason else None,
            "sources": [vars(source) for source in self.sources],
            "expected_seconds": self.expected,
            "last_seconds": {kind: cost.seconds for kind, cost in self.last.items()},
        }

    def shown(self) -> TextTable:
        """The plan, one step a row, without seconds, which change from run to run."""
        rows = [("shape", self.method), ("rule", RULES[Method(self.method)])]
        for source in self.sources:
            at = "" if source.shown is None else f"shows version {source.shown}, "
            by = f", by {source.by}" if source.by else ""
            rows.append((source.table, f"{at}newest {source.newest}{by}"))
            if source.rule:
                rows.append((source.table, source.rule))
        rows.append(("next refresh", self.mode))
        if self.reason is not None:
            rows.append(("why", repr(self.reason)))
        return TextTable(("what", "how"), tuple(rows))

    def with_seconds(self) -> TextTable:
        """The same, with what is expected and what the last refreshes took."""
        rows = [
            (f"expected, {kind}", "unknown" if seconds is None else f"{seconds:.1f} s")
            for kind, seconds in self.expected.items()
        ]
        rows += [(f"last, {kind}", f"{cost.seconds:.1f} s") for kind, cost in self.last.items()]
        shown = self.shown()
        return TextTable(shown.columns, (*shown.rows, *rows))

    def __repr__(self) -> str:
        why = f", {self.reason.code}" if self.reason else ""
        return f"{self.view}: by {self.method}; the next refresh: {self.mode}{why}"


def is_due(definition: Definition, state: ViewState, sources: Sequence[Source]) -> bool:
    """Whether a view may show something else than its query would give now."""
    moved = any(source.moved for source in sources) or not is_steady(definition.sql)
    return moved or state.reason is not None


def explain(found: RefreshPlan) -> Explanation:
    """What is known before a refresh, put into words."""
    plan, why = found.plan, found.reason
    if why is None and found.estimate.prefers_full:
        why = reason("COST")
    mode = FULL if why else INCREMENTAL
    if not is_due(plan.definition, found.state, plan.tables):
        mode, why = NOTHING, plan.shape.reason
    known = {one.source.name: one for one in found.changes}
    roles = {plan.sources[m.table.start].name: m.role for m in plan.shape.members}
    states = []
    for source in plan.tables:
        change = known.get(source.name)
        by = None if change is None else ("row ids" if change.by_ids else "feed")
        size = change.bytes if change is not None else (None if source.moved else 0)
        rule = _ROLES[roles[source.name]] if source.name in roles else ""
        states.append(SourceState(str(source.name), source.old, source.new, size, by, rule))
    return Explanation(
        str(plan.definition.name),
        plan.definition.sql,
        plan.shape.method.value,
        mode,
        why,
        tuple(states),
        found.estimate.as_dict(),
        {kind: some[0] for kind, some in found.costs.items()},
    )


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
    missing, extra = f"({whole} EXCEPT ALL {view})", f"({view} EXCEPT ALL {whole})"
    counts = [session.sql(f"SELECT * FROM {rows}").count() for rows in (missing, extra)]
    if any(counts) and any(kind in _FLOATS for kind in plan.columns.values()):
        alike = " AND ".join(_alike(name, kind) for name, kind in plan.columns.items())
        counts = [
            session.sql(f"SELECT * FROM {some} a LEFT ANTI JOIN {others} b ON {alike}").count()
            for some, others in ((missing, extra), (extra, missing))
        ]
    return Check(str(plan.definition.name), *counts)


def _alike(name: str, kind: str) -> str:
    a, b = f"a.{quote(name)}", f"b.{quote(name)}"
    if kind not in _FLOATS:
        return f"{a} <=> {b}"
    close = f"abs({a} - {b}) <= {TOLERANCE} * greatest(abs({a}), abs({b}), 1e-300)"
    return f"({a} <=> {b} OR coalesce({close}, false))"
