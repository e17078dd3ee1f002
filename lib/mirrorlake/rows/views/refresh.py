"""Refreshes a view: by what changed since the versions that it shows, or in full, with a reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from pyspark.sql import SparkSession

from mirrorlake.delta.commits import read_commit_info
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import ConflictError, UsageError
from mirrorlake.mirror.options import noop
from mirrorlake.results import Result, TextTable
from mirrorlake.rows.views.apply import apply_delta
from mirrorlake.rows.views.commit import Scratch, Target, overwrite, scratch
from mirrorlake.rows.views.cost_model import Cost, Estimate, save_cost
from mirrorlake.rows.views.definition import Definition
from mirrorlake.rows.views.delta import Delta
from mirrorlake.rows.views.explain import (
    FULL,
    INCREMENTAL,
    NOTHING,
    RefreshPlan,
    plan_refresh,
    refresh_session,
)
from mirrorlake.rows.views.joins import Role
from mirrorlake.rows.views.plan import Plan
from mirrorlake.rows.views.reasons import Reason, reason
from mirrorlake.rows.views.shape import Method, is_steady
from mirrorlake.rows.views.sources import look_at_old, pin_sources, read_changes
from mirrorlake.rows.views.state import commit_metadata, read_note, read_view_state
from mirrorlake.rows.views.view_sql import whole_contents
from mirrorlake.spark.sql import delta_name
from mirrorlake.storage import Storage

_ADAPTIVE, _PARTITIONS = "spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions"
_FEW_PARTITIONS = 8
HOW = ("auto", "incremental", "full")
MOST_BROADCAST_BYTES = 8 * 2**20  # of changes, as the log counts them: half a million narrow rows


class ViewStep(Enum):
    """What has just been done."""

    CREATED = "created"
    PINNED = "pinned"
    DECIDED = "decided"
    READ = "read"
    COMMITTED = "committed"
    MEASURED = "measured"


ViewListener = Callable[[ViewStep], None]


@dataclass(frozen=True)
class Refresh(Result):
    """What a refresh did.

    Attributes:
        view: its name.
        mode: `incremental`, `full`, or `nothing` where no source has a new version.
        reason: why it was full; None otherwise.
        version: the version of the view's table that it made, or that was there already.
        sources: by table, the version that the view showed before (or None) and the one it shows.
        changed: how many source rows came or went; None where they were not counted.
        rows: rows of the view's table inserted, updated and deleted.
        seconds: how long it took.
        estimate: what was expected, where there was a choice.
        differences: rows that a check found missing or too many; None if none was asked for.
        applied: whether it is done; False after a dry run, which counts no rows.
    """

    view: str
    mode: str
    reason: Reason | None
    version: int
    sources: dict[str, tuple[int | None, int]]
    changed: int | None
    rows: dict[str, int]
    seconds: float
    estimate: Estimate | None = None
    differences: int | None = None
    applied: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The document that `view refresh --json` prints."""
        guess = self.estimate
        return {
            "view": self.view,
            "mode": self.mode,
            "reason": None if self.reason is None else self.reason.as_dict(),
            "version": self.version,
            "sources": {n: {"from": a, "to": b} for n, (a, b) in self.sources.items()},
            "changed": self.changed,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "expected": {
                "full": None if guess is None or guess.full is None else round(guess.full, 3),
                "incremental": None
                if guess is None or guess.incremental is None
                else round(guess.incremental, 3),
            },
            "differences": self.differences,
            **({} if self.applied else {"applied": False}),
        }

    def shown(self) -> TextTable:
        """The same facts, one a row, without seconds, which change from run to run."""
        moved = ", ".join(
            f"{name} {b}" if a in (None, b) else f"{name} {a} → {b}"
            for name, (a, b) in self.sources.items()
        )
        facts = [("view", self.view), ("refresh", self.mode), ("sources at versions", moved)]
        if self.reason is not None:
            facts.append(("why", repr(self.reason)))
        if self.changed is not None:
            facts.append(("source rows that came or went", f"{self.changed:,}"))
        facts += [(f"rows {what}", f"{count:,}") for what, count in self.rows.items()]
        if self.differences is not None:
            facts.append(("differences from the query", f"{self.differences:,}"))
        if not self.applied:
            facts.append(("done", "no: a dry run"))
        return TextTable(("what", "value"), tuple(facts))

    def __repr__(self) -> str:
        why = f", {self.reason.code}" if self.reason else ""
        rows = ", ".join(f"{count:,} {what}" for what, count in self.rows.items())
        done = "" if self.applied else "; not done: a dry run"
        return f"{self.view}: {self.mode}{why}{f'; rows: {rows}' if rows else ''}{done}"


def refresh_view(
    spark: SparkSession,
    storage: Storage,
    definition: Definition,
    *,
    how: str = "auto",
    on_step: ViewListener = noop,
) -> Refresh:
    """Brings a view up to date; see `Views.refresh`."""
    if how not in HOW:
        raise UsageError(f"There is no refresh {how!r}.", hint=f"choose one of {HOW}.")
    began = time.perf_counter()
    state = read_view_state(storage, definition)
    sources = pin_sources(storage, definition, state.sources)
    moved = any(source.moved for source in sources) or not is_steady(definition.sql)
    if not moved and state.reason is None and how != FULL:
        at = {str(source.name): (source.old, source.new) for source in sources}
        taken = time.perf_counter() - began
        return Refresh(str(definition.name), NOTHING, None, state.version, at, 0, {}, taken)
    session = refresh_session(spark)
    found = plan_refresh(spark, session, storage, definition, state, sources)
    on_step(ViewStep.PINNED)
    why = found.reason
    if how == FULL:
        why = reason("ASKED")
    elif why is None and how == "auto" and found.estimate.prefers_full:
        why = _cost(found.estimate)
    on_step(ViewStep.DECIDED)
    changed: int | None = None
    with scratch(session) as kept:
        delta = None
        if why is None:
            _plan_once(session, found)
            delta, why = _read(spark, kept, storage, found)
            on_step(ViewStep.READ)
        target = _target(storage, definition, found, why)
        if delta is not None and why is None:
            apply_delta(delta, kept, target)
            changed = sum(kept.measure(view)[0] for view in delta.changes.values())
        else:
            whole = session if delta is None else refresh_session(spark)
            _write_all(whole, storage, found.plan, target)
    on_step(ViewStep.COMMITTED)
    done = _outcome(storage, definition, found, why)
    taken = time.perf_counter() - began
    kind = FULL if why else INCREMENTAL
    size = _source_bytes(session, found.plan) if why else found.changed_bytes
    save_cost(storage, definition.name, kind, Cost(round(taken, 3), size))
    on_step(ViewStep.MEASURED)
    return replace(done, mode=kind, changed=changed, seconds=taken, estimate=found.estimate)


def _cost(guess: Estimate) -> Reason:
    why = f"full {guess.full:.1f} s, incremental {guess.incremental:.1f} s are expected"
    return Reason("COST", why, "how='incremental' refreshes by what changed all the same")


def _plan_once(session: SparkSession, found: RefreshPlan) -> None:
    """Lets Spark plan few changes once: planning after each shuffle costs more than it saves.

    Only where each big table is met by changes that are broadcast: other joins need the sizes that
    show on the way.
    """
    shape = found.plan.shape
    linear = all(member.role is Role.LINEAR for member in shape.members)
    by_changes = shape.method in (Method.ROWS, Method.SUMS) or len(shape.members) == 1
    if linear and by_changes and found.changed_bytes <= MOST_BROADCAST_BYTES:
        session.conf.set(_ADAPTIVE, "false")
        partitions = min(int(session.conf.get(_PARTITIONS) or 1), _FEW_PARTITIONS)
        session.conf.set(_PARTITIONS, str(partitions))


def _read(
    spark: SparkSession, kept: Scratch, storage: Storage, found: RefreshPlan
) -> tuple[Delta, Reason | None]:
    """What changed, at hand; why it is of no use, if so."""
    views = {}
    for one in found.changes:
        if one.files:
            rows = read_changes(kept.session, storage, one, found.plan.used(one.source))
            views[one.source.name] = kept.keep(rows, few=one.bytes <= MOST_BROADCAST_BYTES)
    delta = Delta(found.plan, views)
    for source in delta.needs_old():
        if lost := look_at_old(spark, storage, source):
            return delta, lost
    return delta, None


def _target(
    storage: Storage, definition: Definition, found: RefreshPlan, why: Reason | None
) -> Target:
    state, number = found.state, found.state.number + 1
    how = {"mode": FULL if why else INCREMENTAL, "reason": why.code if why else None}
    sources = {str(s.name): {"id": s.id, "version": s.new} for s in found.plan.tables}
    note = commit_metadata(definition, number, state.version, how, sources)
    return Target(storage, definition.name.table_path, definition.app_id, number, note)


def _write_all(session: SparkSession, storage: Storage, plan: Plan, target: Target) -> None:
    rows = session.sql(whole_contents(plan, target.number))
    there = session.sql(f"SELECT * FROM {delta_name(target.path)}").dtypes
    overwrite(rows, target, evolve=sorted(rows.dtypes) != sorted(there))


def _source_bytes(session: SparkSession, plan: Plan) -> int:
    size = 0
    for source in plan.tables:
        detail = session.sql(f"DESCRIBE DETAIL {delta_name(source.path)}").select("sizeInBytes")
        size += int(detail.toArrow().column(0)[0].as_py() or 0)
    return size


def _outcome(
    storage: Storage, definition: Definition, found: RefreshPlan, why: Reason | None
) -> Refresh:
    """What the commit says that it did.

    Raises:
        ConflictError: another refresh was quicker, and this one's commit was skipped.
    """
    path = definition.name.table_path
    snapshot = read_snapshot(storage, path)
    newest = -1 if snapshot is None else snapshot.version
    number = found.state.number + 1
    for version in range(newest, found.state.version, -1):
        note = read_note(storage, definition, version)
        if note is None or note["refresh"] != number:
            continue
        metrics = read_commit_info(storage, path, version).get("operationMetrics") or {}
        return Refresh(
            str(definition.name),
            FULL,
            why,
            version,
            {str(s.name): (s.old, s.new) for s in found.plan.tables},
            None,
            _counts(metrics),
            0.0,
        )
    raise ConflictError(
        f"The view {definition.name} was restored or made anew meanwhile.", hint="refresh it again."
    )


def _counts(metrics: dict[str, Any]) -> dict[str, int]:
    names = {
        "inserted": ("numTargetRowsInserted", "numOutputRows"),
        "updated": ("numTargetRowsUpdated",),
        "deleted": ("numTargetRowsDeleted",),
    }
    merged = "numTargetRowsInserted" in metrics
    return {
        what: int(metrics.get(keys[0] if merged else keys[-1], 0))
        for what, keys in names.items()
        if merged or what == "inserted"
    }
