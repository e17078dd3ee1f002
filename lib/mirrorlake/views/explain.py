"""Plan the next refresh of a view: decide whether it is incremental or full, and estimate its cost.

The duration of each refresh is recorded, also of the full refresh that filled the view. For
incremental refreshes, a duration is kept for each size of changes in bytes: the newest one, but at
most 1.2 times the one before. Between two recorded sizes, the expected duration is interpolated.
Beyond the largest size, the line through the two largest ones is continued, but it rises at least
as fast as a rule of thumb says: a share of the full refresh's duration that depends on the view's
rule. With one recorded size, and below the smallest one, the difference to this size follows the
rule of thumb. Without any recorded size, the expected duration is the rule of thumb plus the
duration of the lake's fastest incremental refresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from mirrorlake.delta.commits import find_newest
from mirrorlake.delta.snapshot import open_snapshot
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.jvm import has_gateway
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import (
    Definition,
    Reason,
    SourceStatus,
    ViewState,
    read_view_state,
    reason,
)
from mirrorlake.views.plan import Changes, Plan, Source, look_at_changes, make_plan, pin_sources
from mirrorlake.views.shape import RULES, Method, Role, is_steady
from mirrorlake.views.view_sql import whole_contents

FORMAT = 2
COMMIT_SECONDS = 1.5  # an empty commit on a small machine, until the lake has a measurement
_SAME_SIZE_FACTOR = 2  # sizes that differ by less than this factor count as one
_RECORDED_SIZES = 8  # the number of recorded sizes
_RISE = 1.2  # a slower refresh of the same size raises the recorded duration by at most this factor
_RETRY = 0.9  # so that an incremental refresh is tried again after some full ones
# Shares of a full refresh's seconds: the fixed cost, and the cost relative to the changed share.
_RULE_OF_THUMB = {
    Method.ROWS: (0.3, 7.0),
    Method.SUMS: (0.1, 6.0),
    Method.EXTREMES: (0.1, 6.0),
    Method.GROUPS: (0.8, 6.0),
    Method.PARTITIONS: (0.8, 6.0),
}


@dataclass(frozen=True)
class Cost:
    """The measured cost of a refresh.

    Attributes:
        seconds: the duration in seconds.
        bytes: the size of what it read: the sources' files, or their changes.
    """

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """The expected costs of a full and of an incremental refresh.

    Attributes:
        full: the seconds of a full refresh; None if none was measured.
        incremental: the seconds of an incremental refresh; None if no full refresh was measured, or
            if no rule covers the query.
    """

    full: float | None = None
    incremental: float | None = None

    @property
    def prefers_full(self) -> bool:
        """Whether a full refresh is expected to be cheaper."""
        if self.full is None or self.incremental is None:
            return False
        return self.full < self.incremental

    def as_dict(self) -> dict[str, float | None]:
        """Return the seconds by kind of refresh, as `--json` prints them."""
        return {kind: None if s is None else round(s, 3) for kind, s in vars(self).items()}


Costs = dict[str, tuple[Cost, ...]]


def estimate(method: Method, changed: int, costs: Costs, least: float = COMMIT_SECONDS) -> Estimate:
    """Return the expected costs of a refresh.

    Args:
        method: the rule of the view.
        changed: the size of the changes to read, in bytes.
        costs: the measured costs, `full` and `incremental`, the newest first.
        least: the seconds of the lake's fastest incremental refresh, for a view without one.
    """
    measured = costs.get("incremental", ())
    full = next(iter(costs.get("full", ())), None)
    if full is None or method is Method.FULL:
        return Estimate(full.seconds if full else None)
    base, slope = _RULE_OF_THUMB[method]
    by_byte = slope * full.seconds / max(full.bytes, 1)
    if measured:
        quickest = min(cost.seconds for cost in measured)
        seconds = max(_between(measured, changed, by_byte), min(quickest, least))
    else:
        seconds = least + base * full.seconds + by_byte * changed
    return Estimate(full.seconds, seconds)


def _between(measured: Sequence[Cost], changed: int, by_byte: float) -> float:
    """Return the expected seconds for a size, from the costs of other sizes."""
    sizes = _rising(measured)
    less = [cost for cost in sizes if cost.bytes <= changed]
    more = [cost for cost in sizes if cost.bytes > changed]
    if not less:
        return more[0].seconds - by_byte * (more[0].bytes - changed)
    last = less[-1]
    if ends := more[:1] or less[-2:-1]:
        slope = (ends[0].seconds - last.seconds) / (ends[0].bytes - last.bytes)
        # Beyond the largest size, the slope is at least that of the rule of thumb, because small
        # changes avoid shuffles.
        by_byte = slope if more else max(slope, by_byte)
    return last.seconds + by_byte * (changed - last.bytes)


def _rising(measured: Sequence[Cost]) -> list[Cost]:
    """Return seconds by size. If a smaller size took longer than a larger one, lower it to that."""
    found: list[Cost] = []
    for cost in sorted(measured, key=lambda cost: cost.bytes, reverse=True):
        least = min(cost.seconds, found[-1].seconds) if found else cost.seconds
        found.append(Cost(least, cost.bytes))
    return found[::-1]


def read_costs(storage: Storage, name: TableName) -> Costs:
    """Return the costs of the last refreshes of each kind, newest first.

    The result is empty if no refresh was measured, or if the document (a cache) has another format.
    """
    return _costs_of(storage.read_json(_path(name)))


def least_seconds(storage: Storage) -> float:
    """Return the seconds of the fastest incremental refresh of a sample of the lake's views."""
    some = storage.files_below(f"{STATE}/views")[:_RECORDED_SIZES]
    measured = [_costs_of(storage.read_json(path)).get("incremental", ()) for path in some]
    return min((cost.seconds for costs in measured for cost in costs), default=COMMIT_SECONDS)


def _costs_of(kept: Any) -> Costs:
    """Return the costs in a document."""
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        return {}
    return {
        kind: tuple(Cost(**cost) for cost in kept[kind])
        for kind in ("full", "incremental")
        if kind in kept
    }


def save_cost(
    storage: Storage, name: TableName, kind: str, cost: Cost, *, chosen: bool = False
) -> None:
    """Record the cost of a refresh. Without the record, only the next estimate is worse.

    The first refreshes of a session are slow, and other programs can slow down any refresh. So a
    slower refresh of the same size raises the recorded duration by at most 20 %.

    A document of a newer format is not changed. The estimates then follow the rule of thumb.

    Args:
        storage: the lake's files.
        name: the name of the view.
        kind: `full` or `incremental`.
        cost: the measured seconds and bytes.
        chosen: whether a full refresh was chosen by its cost. The recorded incremental durations
            are then reduced, because the machine may have been slow when they were measured.
    """
    kept = storage.read_json(_path(name))
    if isinstance(kept, dict) and kept.get("format", 1) > FORMAT:
        return
    costs = _costs_of(kept)
    known, others = costs.get(kind, ()), []
    for one in known:
        if _alike(one, cost):
            cost = replace(cost, seconds=min(cost.seconds, round(_RISE * one.seconds, 3)))
        else:
            others.append(one)
    costs[kind] = (cost, *others[: _RECORDED_SIZES - 1]) if kind == "incremental" else (cost,)
    if chosen and kind == "full":
        known = costs.get("incremental", ())
        costs["incremental"] = tuple(replace(one, seconds=_RETRY * one.seconds) for one in known)
    document: dict[str, Any] = {"format": FORMAT}
    document |= {kind: [asdict(one) for one in some] for kind, some in costs.items()}
    storage.write_json(_path(name), document)


def _alike(one: Cost, other: Cost) -> bool:
    low, high = sorted((one.bytes, other.bytes))
    return high < _SAME_SIZE_FACTOR * max(low, 1)


def forget_costs(storage: Storage, name: TableName) -> None:
    """Delete the costs of a dropped view."""
    storage.delete(_path(name))


def _path(name: TableName) -> str:
    return f"{STATE}/views/{name.place}.json"


FULL, INCREMENTAL, NOTHING = "full", "incremental", "nothing"
_ROLES = {
    Role.LINEAR: "the query over the changed rows is the change of the view",
    Role.NULLABLE: "for the keys of changed rows, the old rows of the view are removed and the new"
    " ones added",
    Role.BOTH: "for the keys of changed rows, both sides are joined as they were before, and as"
    " they are now",
}


@dataclass(frozen=True)
class RefreshPlan:
    """The plan of a refresh, before it reads any row.

    Attributes:
        session: the session of the refresh.
        state: the state of the view.
        plan: the query, and the sources at the versions to read.
        changes: the changes of each source; empty if they cannot be read.
        changed_bytes: the size of the changes to read, in bytes.
        reason: why the refresh must be full; None if it can be incremental.
        costs: the costs of the last refreshes.
        estimate: the expected costs.
    """

    session: SparkSession
    state: ViewState
    plan: Plan
    changes: tuple[Changes, ...]
    changed_bytes: int
    reason: Reason | None
    costs: Costs
    estimate: Estimate

    def needs_old(self) -> list[Source]:
        """Return the sources whose old versions an incremental refresh reads."""
        return self.plan.needs_old([one.source.name for one in self.changes if one.files])


def plan_refresh(
    spark: SparkSession,
    storage: Storage,
    definition: Definition,
    state: ViewState,
    sources: Sequence[Source],
) -> RefreshPlan:
    """Return the plan of a refresh, without reading table data.

    Args:
        spark: the user's session.
        storage: the lake's files.
        definition: the view.
        state: the state of the view.
        sources: the view's sources, each at the version that this refresh reads.
    """
    session = new_session(spark)
    plan, refused = _analyze(session, storage, definition, sources)
    why = state.reason or refused
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
    return RefreshPlan(session, state, plan, tuple(changes), size, why, costs, guess)


_MOST_PLANS = 1_000
_plans: dict[tuple[object, ...], tuple[Plan, Reason | None]] = {}


def _analyze(
    session: SparkSession, storage: Storage, definition: Definition, sources: Sequence[Source]
) -> tuple[Plan, Reason | None]:
    """Return the plan of a view, and the reason why it has no rule or its columns have changed.

    Spark analyzes a query again only if a schema has changed.
    """

    def analyze() -> tuple[Plan, Reason | None]:
        plan = make_plan(session, definition, sources)
        return plan, plan.shape.reason or _columns_changed(session, storage, plan)

    if not has_gateway(session):  # the sessions of Connect can have different settings
        return analyze()
    schema = open_snapshot(storage, definition.name).metadata["schemaString"]
    read = tuple((source.name, source.columns, source.schema) for source in sources)
    application = session.sparkContext.applicationId
    key = (application, storage.root, str(vars(definition)), schema, read)
    if key not in _plans:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[key] = analyze()
    plan, why = _plans[key]
    return plan.reading({source.name: source for source in sources}), why


def _columns_changed(session: SparkSession, storage: Storage, plan: Plan) -> Reason | None:
    path = storage.path(plan.definition.name.table_path)
    there = dict(session.sql(f"SELECT * FROM {delta_name(path)}").dtypes)
    wanted = session.sql(whole_contents(plan, 0)).dtypes
    odd = [name for name, kind in wanted if there.get(name) != kind]
    return reason("COLUMNS_CHANGED", odd[0]) if odd else None


@dataclass(frozen=True)
class SourceState(SourceStatus):
    """The status of a source, and how its changes are read.

    Attributes:
        changed_bytes: the size of the changes according to the log, in bytes; None if they cannot
            be read.
        by: where the changes are read from, `feed` or `row ids`; None if they are not read.
        rule: how changes of the source become changes of the query.
    """

    changed_bytes: int | None
    by: str | None
    rule: str


@dataclass(frozen=True)
class Explanation(Result):
    """The explanation of a view's next refresh.

    Attributes:
        view: the name of the view.
        sql: the query of the view.
        method: the rule: `rows`, `sums`, `extremes`, `groups`, `partitions`, or `full` for none.
        mode: what the refresh would be: `incremental`, `full` or `nothing`.
        reason: why a refresh is full; None if it can be incremental.
        sources: the status of each source.
        expected: the expected seconds by kind of refresh; None if unknown. With stages, the sums
            over all stages.
        last: the cost of the last refresh of each kind. With stages, the sums over all stages.
        stages: the explanation of each stage, if the view has stages. The last one is that of the
            view's own table.
    """

    view: str
    sql: str
    method: str
    mode: str
    reason: Reason | None
    sources: tuple[SourceState, ...]
    expected: dict[str, float | None]
    last: dict[str, Cost]
    stages: tuple[Explanation, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `view explain --json` prints."""
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
            **({"stages": [one.as_dict() for one in self.stages]} if self.stages else {}),
        }

    def shown(self) -> TextTable:
        """Return the explanation as a table, without durations."""
        rows = [("shape", self.method), ("rule", RULES[Method(self.method)])]
        if self.stages:
            rows = [("shape", counted(len(self.stages), "stage"))]
        for one in self.stages:
            why = f" ({one.reason.code})" if one.reason and one.method == FULL else ""
            rows += [(f"stage {one.view}", f"{one.method}{why}"), ("", one.sql)]
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
        """Return the same table, with the expected durations and those of the last refreshes."""
        shown, rows = self.shown(), []
        for one in (*self.stages, self):
            of = "" if one is self else f"stage {one.view}: "
            rows += [
                (f"{of}expected, {kind}", "unknown" if seconds is None else f"{seconds:.1f} s")
                for kind, seconds in one.expected.items()
            ]
            last = one.last.items()
            rows += [(f"{of}last, {kind}", f"{cost.seconds:.1f} s") for kind, cost in last]
        return TextTable(shown.columns, (*shown.rows, *rows))

    def __repr__(self) -> str:
        why = f" ({self.reason.code})" if self.reason else ""
        following = "nothing to do" if self.mode == NOTHING else self.mode
        if self.stages:
            rules = ", ".join(one.method for one in self.stages)
            return f"{self.view}: stages {rules}; next refresh: {following}{why}"
        if self.method == Method.FULL.value:
            return f"{self.view}: no rule{why}; next refresh: {following}"
        return f"{self.view}: rule '{self.method}'; next refresh: {following}{why}"


def is_due(definition: Definition, state: ViewState, sources: Sequence[Source]) -> bool:
    """Check whether the result of a view's query may have changed since its last refresh."""
    moved = any(source.moved for source in sources) or not is_steady(definition.sql)
    return moved or state.reason is not None


def explain_view(spark: SparkSession, storage: Storage, definition: Definition) -> Explanation:
    """Return the explanation of a view's next refresh; see `Views.explain`."""
    state = read_view_state(storage, definition)
    sources = pin_sources(storage, definition, state.sources)
    return explain_stages(spark, storage, definition, state, sources)


def explain_stages(
    spark: SparkSession,
    storage: Storage,
    definition: Definition,
    state: ViewState,
    sources: Sequence[Source],
) -> Explanation:
    """Return the explanation of the refresh of a view and its stages.

    Args:
        spark: the user's session.
        storage: the lake's files.
        definition: the view.
        state: the state of the view.
        sources: the view's sources, each at the version that the refresh reads.
    """
    at = {source.name: source.new for source in sources}
    chain = definition.chain
    for one in chain[:-1]:
        if (newest := find_newest(storage, one.name.table_path)) is not None:
            at[one.name] = newest
    if not chain or len(at) < len(sources) + len(chain) - 1:
        # A stage is missing: the first refresh or a drop of the view was interrupted.
        return explain(plan_refresh(spark, storage, definition, state, sources))
    stages: list[Explanation] = []
    for one in chain:
        own = read_view_state(storage, one)
        pinned = pin_sources(storage, one, own.sources, at)
        stages.append(explain(plan_refresh(spark, storage, one, own, pinned)))
    last = stages[-1]
    read = {s.table: s for one in stages[::-1] for s in one.sources}
    known = [(s, read[str(s.name)]) for s in sources if str(s.name) in read]
    both = (FULL, INCREMENTAL)
    expected = {kind: [one.expected[kind] for one in stages] for kind in both}
    costs = {kind: [one.last[kind] for one in stages if kind in one.last] for kind in both}
    mode, why = INCREMENTAL, None
    if state.reason or all(one.reason for one in stages):
        mode, why = FULL, state.reason or last.reason
    if not is_due(definition, state, sources):
        mode = NOTHING
    return replace(
        last,
        sql=definition.sql,
        mode=mode,
        reason=why,
        sources=tuple(replace(one, shown=s.old, newest=s.new) for s, one in known),
        expected={
            kind: None if None in some else sum(s for s in some if s is not None)
            for kind, some in expected.items()
        },
        last={
            kind: Cost(sum(cost.seconds for cost in some), sum(cost.bytes for cost in some))
            for kind, some in costs.items()
            if len(some) == len(stages)
        },
        stages=tuple(stages),
    )


def explain(found: RefreshPlan) -> Explanation:
    """Return the explanation of a planned refresh."""
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
