"""Plans a view's next refresh: what it would do, why, and its expected cost; costs are kept here.

The full refresh that filled the view was measured; so is every later refresh. Incremental ones
are recorded by the bytes of their changes, the last one of each size: the cost of the next one is
interpolated between them, and extrapolated beyond them. A rule of thumb is the lower bound there,
and decides alone with fewer than two sizes: what any commit costs, and a share of the full
refresh's seconds by the rule of the view's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from mirrorlake.history.versions import ENFORCED
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import Definition, Reason, SourceStatus, ViewState, reason
from mirrorlake.views.plan import Changes, Plan, Source, look_at_changes, make_plan
from mirrorlake.views.shape import RULES, Method, Role, is_steady
from mirrorlake.views.view_sql import whole_contents

FORMAT = 2
COMMIT_SECONDS = 1.5  # a commit of nothing, on a small machine, until the lake knows better
_ALIKE = 2  # times the bytes of changes: of refreshes less apart the last one counts
_MOST = 8  # sizes that are remembered
# Of a full refresh's seconds: what is spent however little changed, and for each share that did.
_THUMB = {
    Method.ROWS: (0.3, 7.0),
    Method.SUMS: (0.1, 6.0),
    Method.EXTREMES: (0.1, 6.0),
    Method.GROUPS: (0.8, 6.0),
    Method.PARTITIONS: (0.8, 6.0),
}


@dataclass(frozen=True)
class Cost:
    """What a refresh took.

    Attributes:
        seconds: of the clock.
        bytes: what it had to read: the sources' files, or their changes.
    """

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """What the two ways are expected to take.

    Attributes:
        full: seconds of a full refresh; None if none was ever measured.
        incremental: seconds of an incremental one; None likewise, or if there is no rule.
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
        """Seconds by kind of refresh, as `--json` has them."""
        return {kind: None if s is None else round(s, 3) for kind, s in vars(self).items()}


Costs = dict[str, tuple[Cost, ...]]


def estimate(method: Method, changed: int, costs: Costs, least: float = COMMIT_SECONDS) -> Estimate:
    """What a refresh would take.

    Args:
        method: the view's rule.
        changed: bytes of changes to read.
        costs: what was measured, `full` and `incremental`, the last one first.
        least: seconds of the quickest incremental refresh, used if this view had none.
    """
    measured = costs.get("incremental", ())
    full = next(iter(costs.get("full", ())), None)
    if full is None or method is Method.FULL:
        return Estimate(full.seconds if full else None)
    base, slope = _THUMB[method]
    by_byte = slope * full.seconds / max(full.bytes, 1)
    if measured:
        quickest = min(cost.seconds for cost in measured)
        seconds = max(_between(measured, changed, by_byte), min(quickest, least))
    else:
        seconds = least + base * full.seconds + by_byte * changed
    return Estimate(full.seconds, seconds)


def _between(measured: Sequence[Cost], changed: int, by_byte: float) -> float:
    """Seconds for a size, from those of other sizes."""
    sizes = _rising(measured)
    less = [cost for cost in sizes if cost.bytes <= changed]
    more = [cost for cost in sizes if cost.bytes > changed]
    if not less:
        return more[0].seconds - by_byte * (more[0].bytes - changed)
    last = less[-1]
    if ends := more[:1] or less[-2:-1]:
        slope = (ends[0].seconds - last.seconds) / (ends[0].bytes - last.bytes)
        # Beyond the last size not flatter than the thumb: few changes are spared shuffles.
        by_byte = slope if more else max(slope, by_byte)
    return last.seconds + by_byte * (changed - last.bytes)


def _rising(measured: Sequence[Cost]) -> list[Cost]:
    """Costs by size, none above those of more: what took longer for less was cold, or disturbed."""
    found: list[Cost] = []
    for cost in sorted(measured, key=lambda cost: cost.bytes, reverse=True):
        least = min(cost.seconds, found[-1].seconds) if found else cost.seconds
        found.append(Cost(least, cost.bytes))
    return found[::-1]


def read_costs(storage: Storage, name: TableName) -> Costs:
    """What the last refreshes of each kind took, newest first.

    Empty if none was measured, or if they are of another format: it is a cache.
    """
    return _costs_of(storage.read_json(_path(name)))


def least_seconds(storage: Storage) -> float:
    """The fewest seconds that an incremental refresh of some of the lake's views took."""
    some = storage.files_below(f"{STATE}/views")[:_MOST]
    measured = [_costs_of(storage.read_json(path)).get("incremental", ()) for path in some]
    return min((cost.seconds for costs in measured for cost in costs), default=COMMIT_SECONDS)


def _costs_of(kept: Any) -> Costs:
    """The costs of a document."""
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        return {}
    return {
        kind: tuple(Cost(**cost) for cost in kept[kind])
        for kind in ("full", "incremental")
        if kind in kept
    }


def save_cost(storage: Storage, name: TableName, kind: str, cost: Cost) -> None:
    """Remembers what a refresh took; losing it only makes the next guess worse.

    Costs of a newer format stay as they are: without them the rule of thumb decides.
    """
    kept = storage.read_json(_path(name))
    if isinstance(kept, dict) and kept.get("format", 1) > FORMAT:
        return
    costs = _costs_of(kept)
    others = [one for one in costs.get(kind, ()) if not _alike(one, cost)]
    costs[kind] = (cost, *others[: _MOST - 1]) if kind == "incremental" else (cost,)
    document: dict[str, Any] = {"format": FORMAT}
    document |= {kind: [asdict(one) for one in some] for kind, some in costs.items()}
    storage.write_json(_path(name), document)


def _alike(one: Cost, other: Cost) -> bool:
    low, high = sorted((one.bytes, other.bytes))
    return high < _ALIKE * max(low, 1)


def forget_costs(storage: Storage, name: TableName) -> None:
    """Removes what is remembered of a view that is dropped."""
    storage.delete(_path(name))


def _path(name: TableName) -> str:
    return f"{STATE}/views/{name.place}.json"


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
        session: the refresh's own.
        state: what the view shows.
        plan: its query, its sources at the versions to read.
        changes: what changed, by source; empty where that can't be read.
        changed_bytes: how much there is to read of what changed.
        reason: why the refresh must be full; None if it need not be.
        costs: what the last refreshes cost.
        estimate: what the two ways are expected to take.
    """

    session: SparkSession
    state: ViewState
    plan: Plan
    changes: tuple[Changes, ...]
    changed_bytes: int
    reason: Reason | None
    costs: Costs
    estimate: Estimate


def refresh_session(spark: SparkSession) -> SparkSession:
    """A session of its own, which may read a version that is the newest, however old it is."""
    session = new_session(spark)
    session.conf.set(ENFORCED, "false")
    return session


def plan_refresh(
    spark: SparkSession,
    storage: Storage,
    definition: Definition,
    state: ViewState,
    sources: Sequence[Source],
) -> RefreshPlan:
    """What a refresh would have to do, from logs and the query alone.

    Args:
        spark: the user's session, whose settings say how far back may be read.
        storage: the lake's files.
        definition: the view.
        state: what it shows.
        sources: its sources, pinned.
    """
    session = refresh_session(spark)
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
    return RefreshPlan(session, state, plan, tuple(changes), size, why, costs, guess)


def _columns_changed(session: SparkSession, storage: Storage, plan: Plan) -> Reason | None:
    path = storage.path(plan.definition.name.table_path)
    there = dict(session.sql(f"SELECT * FROM {delta_name(path)}").dtypes)
    wanted = session.sql(whole_contents(plan, 0)).dtypes
    odd = [name for name, kind in wanted if there.get(name) != kind]
    return reason("COLUMNS_CHANGED", odd[0]) if odd else None


@dataclass(frozen=True)
class SourceState(SourceStatus):
    """How a source stands, and how its changes are read.

    Attributes:
        changed_bytes: how much changed since, as far as the log knows; None where it can't be read.
        by: `feed` or `row ids`: where its changes are read from.
        rule: how its changes become the query's.
    """

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
