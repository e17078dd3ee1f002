"""Refresh views: incrementally from the sources' changes, or in full, with a reason.

A check compares a view with the result of its query afterwards. If a view reads other views,
`refresh_all` refreshes those first. If one view fails, it continues with the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.commits import read_commit_info
from mirrorlake.delta.exchange import count_rows, few_tasks, version_rows
from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import VECTORS, open_snapshot, read_snapshot
from mirrorlake.errors import ConflictError, QueryError, UsageError
from mirrorlake.history.write import create_table
from mirrorlake.names import TableName, quote
from mirrorlake.notices import noop
from mirrorlake.results import Result, TextTable, counted, optional_figure
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, spark_message
from mirrorlake.storage.files import Storage
from mirrorlake.views.apply import (
    Target,
    Workspace,
    apply_delta,
    overwrite_rows,
    workspace,
    write_rows,
)
from mirrorlake.views.definition import (
    Definition,
    Reason,
    ViewStatus,
    commit_metadata,
    note_of,
    read_view_state,
    reason,
    view_status,
)
from mirrorlake.views.explain import (
    FULL,
    INCREMENTAL,
    NOTHING,
    Cost,
    Estimate,
    RefreshPlan,
    explain_stages,
    is_due,
    plan_refresh,
    save_cost,
)
from mirrorlake.views.plan import (
    Changes,
    Plan,
    Source,
    listed,
    look_at_old,
    make_plan,
    pin_sources,
    read_changes,
)
from mirrorlake.views.reduction import reduce_tables
from mirrorlake.views.shape import Method, Role
from mirrorlake.views.view_sql import Delta, stored_columns, whole_contents

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


_AT_ONCE = 4  # sources whose changes are read at the same time
_STAGES_AT_ONCE = 2
HOW = ("auto", "incremental", "full")
_FEW_ROWS, _FEW_BYTES = 100_000, 8 * 2**20  # the changes for which Spark plans only once


class ViewStep(Enum):
    """The step of a refresh that has just finished."""

    CREATED = "created"
    PINNED = "pinned"
    DECIDED = "decided"
    READ = "read"
    COMMITTED = "committed"
    MEASURED = "measured"


ViewListener = Callable[[ViewStep], None]


@dataclass(frozen=True)
class Refresh(Result):
    """The result of a refresh.

    Attributes:
        view: the name of the view.
        mode: `incremental`, `full`, or `nothing` if no source has a new version.
        reason: why the refresh was full; None otherwise.
        version: the version of the view's table after the refresh.
        sources: for each source, the version of the refresh before (or None) and the version that
            this refresh read.
        changed: the number of inserted and deleted rows of the sources; None if they were not
            counted. With stages, the sum over all stages, which also read the rows of each other.
        rows: the number of inserted, updated and deleted rows of the view's table.
        seconds: the duration of the refresh.
        estimate: the expected durations, if both an incremental and a full refresh were possible.
        differences: the number of missing and extra rows that a check found; None without a check.
        applied: False after a dry run. A dry run counts no rows.
        stages: the refreshes of the stages that were due; empty if the view has no stages.
    """

    view: str
    mode: str
    reason: Reason | None
    version: int
    sources: dict[str, tuple[int | None, int]]
    changed: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    estimate: Estimate | None = None
    differences: int | None = None
    applied: bool = True
    stages: tuple[Refresh, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `view refresh --json` prints."""
        return {
            "view": self.view,
            "mode": self.mode,
            "reason": vars(self.reason) if self.reason else None,
            "version": self.version,
            "sources": {n: {"from": a, "to": b} for n, (a, b) in self.sources.items()},
            "changed": self.changed,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "expected": (self.estimate or Estimate()).as_dict(),
            "differences": self.differences,
            **({} if self.applied else {"applied": False}),
            **({"stages": [one.as_dict() for one in self.stages]} if self.stages else {}),
        }

    def shown(self) -> TextTable:
        """Return the result as a table, without the duration."""
        moved = ", ".join(
            f"{name} {b}" if a in (None, b) else f"{name} {a} → {b}"
            for name, (a, b) in self.sources.items()
        )
        facts = [("view", self.view), ("refresh", self.mode), ("sources at versions", moved)]
        if self.reason is not None:
            facts.append(("why", repr(self.reason)))
        if self.changed is not None:
            whose = "source and stage" if self.stages else "source"
            facts.append((f"{whose} rows inserted or deleted", f"{self.changed:,}"))
        facts += [(f"rows {what}", f"{count:,}") for what, count in self.rows.items()]
        facts += [(f"stage {one.view}", repr(one).partition(": ")[2]) for one in self.stages]
        if self.differences is not None:
            facts.append(("differences from the query", f"{self.differences:,}"))
        if not self.applied:
            facts.append(("done", "no, this was a dry run"))
        return TextTable(("what", "value"), tuple(facts))

    def __repr__(self) -> str:
        why = f", {self.reason.code}" if self.reason else ""
        rows = ", ".join(f"{count:,} {what}" for what, count in self.rows.items())
        done = "" if self.applied else "; dry run, nothing was changed"
        return f"{self.view}: {self.mode}{why}{f'; rows: {rows}' if rows else ''}{done}"


def check_how(how: str) -> None:
    """Raise an error if `how` is not a way to refresh a view."""
    if how not in HOW:
        raise UsageError(
            f"There is no refresh mode {how!r}.", hint=f"choose one of {', '.join(HOW)}."
        )


def refresh_view(
    spark: SparkSession,
    storage: Storage,
    definition: Definition,
    *,
    how: str = "auto",
    dry_run: bool = False,
    on_step: ViewListener = noop,
) -> Refresh:
    """Refresh a view; see `Views.refresh`."""
    check_how(how)
    began = time.perf_counter()
    state = read_view_state(storage, definition)
    sources = pin_sources(storage, definition, state.sources)
    if how != FULL and not is_due(definition, state, sources):
        name, at = str(definition.name), versions_of(sources)
        nothing = Refresh(name, NOTHING, None, state.version, at, applied=not dry_run)
        if dry_run:
            return nothing
        return replace(nothing, changed=0, seconds=time.perf_counter() - began)
    if not definition.stages:
        found = plan_refresh(spark, storage, definition, state, sources)
        return _refresh(storage, found, how=how, dry_run=dry_run, on_step=on_step)
    if dry_run:
        planned = explain_stages(spark, storage, definition, state, sources)
        mode, why = (FULL, reason("ASKED")) if how == FULL else (planned.mode, planned.reason)
        at = versions_of(sources)
        return Refresh(str(definition.name), mode, why, state.version, at, applied=False)
    done = _refresh_stages(
        spark, storage, definition, sources, number=state.number, how=how, on_step=on_step
    )
    return replace(done, sources=versions_of(sources), seconds=time.perf_counter() - began)


def _refresh_stages(
    spark: SparkSession,
    storage: Storage,
    definition: Definition,
    pinned: Sequence[Source],
    *,
    number: int,
    how: str,
    on_step: ViewListener,
) -> Refresh:
    """Refresh the stages of a view, each after those that it reads.

    All stages read the sources at the same versions. If the call is interrupted, some stages have
    newer rows than the view. The next call continues from there, because each stage has recorded
    the versions of its own sources.

    Args:
        spark: the user's session.
        storage: the lake's files.
        definition: the view.
        pinned: the sources of the view at the versions to read.
        number: the number of the view's last refresh when these versions were chosen.
        how: as for `Views.refresh`.
        on_step: a function that is called after each finished step of each stage.
    """
    at = {source.name: source.new for source in pinned}
    running: dict[TableName, Future[Refresh | None]] = {}

    def run(stage: Definition, needed: Collection[Future[Refresh | None]]) -> Refresh | None:
        for one in needed:
            one.result()
        is_last = stage.name == definition.name
        # The view may have been dropped in the meantime.
        vectors = open_snapshot(storage, definition.name).properties.get(VECTORS) == "true"
        if read_snapshot(storage, stage.name.table_path) is None:
            _create_stage(spark, storage, stage, at, vectors=vectors)
        state = read_view_state(storage, stage)
        if is_last and state.number != number:
            raise ConflictError(
                f"Another refresh has changed {definition.name}.", hint="refresh the view again."
            )
        sources = pin_sources(storage, stage, state.sources, at)
        at[stage.name] = state.version
        # The last stage records the versions of all sources, even if its own ones are the same.
        if not is_last and how != FULL and not is_due(stage, state, sources):
            return None
        found = plan_refresh(spark, storage, stage, state, sources)
        noted = tuple(pinned) if is_last else ()
        done = _refresh(storage, found, how=how, on_step=on_step, noted=noted)
        state = read_view_state(storage, stage)
        read = {str(source.name): (source.id, source.new) for source in sources}
        if not is_last and (state.reason or state.sources != read):
            raise ConflictError(
                f"Another refresh of {definition.name} has changed its stage {stage.name}.",
                hint="refresh the view again.",
            )
        at[stage.name] = state.version
        return done

    with ThreadPoolExecutor(_STAGES_AT_ONCE) as pool:
        for stage in definition.chain:
            is_last = stage.name == definition.name
            needed = [one for name, one in running.items() if is_last or name in stage.sources]
            running[stage.name] = pool.submit(run, stage, needed)
    runs = [done for one in running.values() if (done := one.result()) is not None]
    last, counts = runs[-1], [run.changed for run in runs]
    is_full = all(run.mode == FULL for run in runs)
    return replace(
        last,
        mode=FULL if is_full else INCREMENTAL,
        reason=last.reason if is_full else None,
        changed=None if None in counts else sum(count or 0 for count in counts),
        estimate=None,
        stages=tuple(runs),
    )


def _create_stage(
    spark: SparkSession,
    storage: Storage,
    stage: Definition,
    at: Mapping[TableName, int],
    *,
    vectors: bool,
) -> None:
    """Create the empty table of a stage. Later stages read its change data feed."""
    session = new_session(spark)
    plan = make_plan(session, stage, pin_sources(storage, stage, {}, at))
    has_vectors = vectors and plan.shape.method is not Method.FULL
    properties = {VECTORS: "true"} if has_vectors else {}
    path = storage.path(stage.name.table_path)
    create_table(session, path, stored_columns(session, plan), properties=properties)


def _refresh(
    storage: Storage,
    found: RefreshPlan,
    *,
    how: str,
    dry_run: bool = False,
    on_step: ViewListener = noop,
    noted: Sequence[Source] = (),
) -> Refresh:
    """Refresh a view, or one stage of a view.

    Args:
        storage: the lake's files.
        found: the plan of the refresh.
        how: as for `Views.refresh`.
        dry_run: as for `Views.refresh`.
        on_step: a function that is called after each finished step.
        noted: sources whose versions the commit records besides those of the plan.
    """
    began, session, name = time.perf_counter(), found.session, found.plan.definition.name
    on_step(ViewStep.PINNED)
    why, guess = found.reason, found.estimate
    if how == FULL:
        why = reason("ASKED")
    elif why is None and how == "auto" and guess.prefers_full:
        text = f"expected time: {guess.full:.1f} s in full, {guess.incremental:.1f} s incrementally"
        why = Reason("COST", text, "how='incremental' forces an incremental refresh")
    old = found.needs_old() if why is None else []
    why = why or next(filter(None, (look_at_old(storage, source) for source in old)), None)
    on_step(ViewStep.DECIDED)
    if dry_run:
        return _result(found, why, applied=False)
    changed, target = None, _target(storage, found, why, noted)
    with workspace(session) as work, ThreadPoolExecutor(1) as pool:
        scanned = pool.submit(_scanned, work, storage, found.plan, [one.name for one in old])
        if why is None:
            _plan_once(found)
            changes, changed = _read(work, storage, found)
            plan = scanned.result()
            on_step(ViewStep.READ)
            apply_delta(Delta(plan, changes, partial(reduce_tables, work)), work, target)
        else:
            plan = scanned.result()
            _write_all(session, plan, target)
    on_step(ViewStep.COMMITTED)
    version, rows = _committed(storage, found)
    result = _result(found, why)
    taken = time.perf_counter() - began
    size = sum(source.bytes for source in plan.tables) if why else found.changed_bytes
    chosen = why is not None and why.code == "COST"
    save_cost(storage, name, result.mode, Cost(round(taken, 3), size), chosen=chosen)
    on_step(ViewStep.MEASURED)
    return replace(result, version=version, changed=changed, rows=rows, seconds=taken)


def _result(found: RefreshPlan, why: Reason | None, *, applied: bool = True) -> Refresh:
    """Return the part of a refresh's result that its plan determines."""
    return Refresh(
        str(found.plan.definition.name),
        FULL if why else INCREMENTAL,
        why,
        found.state.version,
        versions_of(found.plan.tables),
        estimate=found.estimate,
        applied=applied,
    )


def versions_of(sources: Iterable[Source]) -> dict[str, tuple[int | None, int]]:
    """Return for each source the version of the last refresh (or None) and the version to read."""
    return {str(source.name): (source.old, source.new) for source in sources}


def _plan_once(found: RefreshPlan) -> None:
    """Disable Spark's adaptive planning for few changes, because it costs more than it saves.

    This applies only if the changes reduce each large table of a join; see `reduce_tables`. Other
    joins need the sizes that Spark measures while it runs.
    """
    counts = [changes.rows for changes in found.changes if changes.rows is not None]
    # If some rows of a file are deleted, the log has only the size of the whole file.
    counted = len(counts) == len(found.changes)
    if (sum(counts) > _FEW_ROWS) if counted else (found.changed_bytes > _FEW_BYTES):
        return
    session, shape = found.session, found.plan.shape
    members = [one for part in found.plan.branches or (found.plan,) for one in part.shape.members]
    reduced = all(member.role is not Role.BOTH for member in members)
    by_changes = shape.method is Method.ROWS or shape.method.keeps_state or len(shape.members) == 1
    if reduced and by_changes:
        for name, value in few_tasks(session, 1).items():
            session.conf.set(name, value)


def _scanned(work: Workspace, storage: Storage, plan: Plan, old: Collection[TableName]) -> Plan:
    """Return the plan over scans of its sources: the new versions, and the old ones of some."""

    def scan(source: Source) -> Source:
        folder, versions = source.name.table_path, {source.new}
        if source.old is not None and source.name in old:
            versions.add(source.old)
        files = {version: live_files(storage, folder, version) for version in versions}
        scans, searches = {}, {}
        for version, some in files.items():
            if found := version_rows(work.session, storage, folder, version, some):
                scans[version], searches[version] = work.view(found[0]), found[1]
        return replace(_sized(source, files[source.new]), scans=scans, searches=searches)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return plan.reading({source.name: source for source in pool.map(scan, plan.tables)})


def _sized(source: Source, files: Sequence[Action]) -> Source:
    """Return a source with its size, from the files of its newest version."""
    return replace(source, bytes=sum(int(add["size"]) for add in files), rows=count_rows(files))


def _read(
    work: Workspace, storage: Storage, found: RefreshPlan
) -> tuple[dict[TableName, tuple[str, int]], int]:
    """Return the changed rows by source, as views with their numbers of rows, and the sum."""

    def kept(one: Changes) -> tuple[str, int]:
        files = live_files(storage, one.source.name.table_path, one.source.new)
        rows = read_changes(work.session, storage, one, found.plan.used(one.source))
        return work.keep(rows, (one.rows or 1) * _sized(one.source, files).weight)

    readable = [one for one in found.changes if one.files]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = pool.map(kept, readable)
        changes = {one.source.name: done for one, done in zip(readable, results, strict=True)}
    changed = sum(count for _, count in changes.values())
    return {name: one for name, one in changes.items() if one[1]}, changed


def _target(
    storage: Storage, found: RefreshPlan, why: Reason | None, noted: Sequence[Source]
) -> Target:
    state, definition, number = found.state, found.plan.definition, found.state.number + 1
    how = {"mode": FULL if why else INCREMENTAL, "reason": why.code if why else None}
    read = (*noted, *found.plan.tables)
    sources = {str(source.name): {"id": source.id, "version": source.new} for source in read}
    note = commit_metadata(definition, number, state.version, how, sources)
    return Target(storage, definition.name.table_path, definition.app_id, number, note)


def _write_all(session: SparkSession, plan: Plan, target: Target) -> None:
    rows = session.sql(whole_contents(plan, target.number))
    there = session.sql(f"SELECT * FROM {delta_name(target.path)}").dtypes
    if sorted(rows.dtypes) != sorted(there):
        write_rows(rows, target, "overwrite", overwriteSchema="true")
    else:
        overwrite_rows(rows.select(*(quote(name) for name, _ in there)), target)


def _committed(storage: Storage, found: RefreshPlan) -> tuple[int, dict[str, int]]:
    """Return the committed version, and the numbers of rows in the commit's metrics.

    Raises:
        ConflictError: another refresh committed first, so Delta skipped this commit.
    """
    definition = found.plan.definition
    path = definition.name.table_path
    snapshot = read_snapshot(storage, path)
    newest = -1 if snapshot is None else snapshot.version
    for version in range(newest, found.state.version, -1):
        info = read_commit_info(storage, path, version)
        note = note_of(definition, info)
        if note is not None and note["refresh"] == found.state.number + 1:
            metrics = info.get("operationMetrics") or {}
            if "numTargetRowsInserted" not in metrics:
                return version, {"inserted": int(metrics.get("numOutputRows", 0))}
            kinds = ("inserted", "updated", "deleted")
            return version, {k: int(metrics.get(f"numTargetRows{k.title()}", 0)) for k in kinds}
    raise ConflictError(
        f"The view {definition.name} was restored or created again during the refresh.",
        hint="refresh the view again.",
    )


TOLERANCE = 1e-9  # sums of floats depend on the order of their terms
_FLOATS = ("float", "double")


@dataclass(frozen=True)
class Check:
    """The result of comparing a view with its query.

    Attributes:
        view: the name of the view.
        missing: the number of rows of the query that are missing in the view.
        extra: the number of rows of the view that the query does not return.
    """

    view: str
    missing: int
    extra: int

    @property
    def differences(self) -> int:
        """The number of rows that differ."""
        return self.missing + self.extra

    def __repr__(self) -> str:
        if not self.differences:
            return f"{self.view} equals the result of its query"
        return (
            f"{self.view} differs from the result of its query:"
            f" {self.missing:,} missing and {self.extra:,} extra rows"
        )


def check_view(session: SparkSession, plan: Plan, path: str) -> Check:
    """Compare a view with its query.

    Args:
        session: the session that runs the queries.
        plan: the plan of the view, with its sources at the versions of the last refresh.
        path: the full path of the view's table.
    """
    view = f"SELECT {listed(plan.names)} FROM {delta_name(path)}"
    with workspace(session) as work:
        # Spark 4.1 cannot plan EXCEPT ALL of some queries with subqueries unless they are cached.
        whole = f"SELECT * FROM {work.cache(session.sql(plan.whole()))}"
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


@dataclass(frozen=True)
class ViewRun:
    """The refresh of one view by `refresh_all`.

    Attributes:
        status: the status of the view before the refresh.
        refresh: the result of the refresh; None if it failed.
        rows_full: the number of rows that a full refresh reads, computed from the logs of the
            sources; None if a log does not contain it.
        error: the message of a failed refresh; otherwise empty.
    """

    status: ViewStatus
    refresh: Refresh | None
    rows_full: int | None
    error: str = ""

    @property
    def rows_read(self) -> int | None:
        """The number of source rows that the refresh read; None if they were not counted."""
        if self.refresh is None or not self.refresh.applied:
            return None
        return self.rows_full if self.refresh.mode == "full" else self.refresh.changed

    @property
    def sources(self) -> str:
        """The sources, each with the version of the refresh before and the newest version."""
        return ", ".join(
            f"{one.table} {'?' if one.shown is None else one.shown} → {one.newest}"
            if one.shown != one.newest
            else f"{one.table} {one.newest}"
            for one in self.status.sources
        )


@dataclass(frozen=True)
class ViewRuns(Result):
    """The refreshes of a lake's views, in the order in which they ran.

    Attributes:
        runs: one entry per view.
    """

    runs: tuple[ViewRun, ...]

    @property
    def failed(self) -> tuple[ViewRun, ...]:
        """The failed refreshes."""
        return tuple(run for run in self.runs if run.error)

    @property
    def differences(self) -> int:
        """The number of missing and extra rows that checks found."""
        return sum(run.refresh.differences or 0 for run in self.runs if run.refresh)

    def rows_read(self) -> dict[str, float]:
        """Return how many source rows each refresh read, and how many a full refresh reads."""
        found: dict[str, float] = {}
        for run in self.runs:
            if run.rows_read is not None and run.rows_full is not None:
                found[f"{run.status.view}: read"] = run.rows_read
                found[f"{run.status.view}: a full refresh reads"] = run.rows_full
        return found

    @optional_figure
    def plot(self) -> Chart:
        """Draw how many source rows each refresh read, and how many a full refresh reads."""
        from mirrorlake.show.plots import plot_bars

        return plot_bars(self.rows_read(), title="Source rows read", label="rows")

    def stale(self) -> TextTable:
        """Return a table of the views' status before the refreshes, with one row per view."""
        rows = []
        for run in self.runs:
            status = run.status
            age = "" if status.lag_seconds is None else f"{status.lag_seconds:,.1f} s"
            rows.append((status.view, status.state, run.sources, age, status.reason))
        columns = ("view", "state", "sources: shown → newest", "behind", "reason")
        return TextTable(columns, tuple(rows))

    def shown(self) -> TextTable:
        """Return a table of the refreshes, with one row per view."""
        columns = ("view", "refresh", "why", "rows read", "rows in sources", "rows changed",
                   "took", "differences")  # fmt: skip
        return TextTable(columns, tuple(map(_line, self.runs)))

    def check(self) -> None:
        """Raise an error if a refresh failed, or if a view differs from its query.

        Raises:
            QueryError: a refresh failed (the error contains its message), or a check found
                differences.
        """
        if self.failed:
            first = self.failed[0]
            raise QueryError(
                f"{counted(len(self.failed), 'view')} failed to refresh. {first.status.view}:"
                f" {first.error}"
            )
        if self.differences:
            raise QueryError(
                f"The views differ from their queries by {counted(self.differences, 'row')}.",
                hint="refresh them in full: how='full'.",
            )

    def __repr__(self) -> str:
        if not self.runs:
            return "the lake has no views"
        return f"{counted(len(self.runs), 'view')}, {len(self.failed)} failed"


def refresh_all(
    storage: Storage, views: Sequence[Definition], refresh: Callable[[TableName], Refresh]
) -> ViewRuns:
    """Refresh views, sources before the views that read them; continue after a failed refresh."""
    runs = []
    for definition in in_order_of_sources(views):
        status, full = view_status(storage, definition), source_rows(storage, definition)
        try:
            done = refresh(definition.name)
        except Exception as error:
            runs.append(ViewRun(status, None, full, spark_message(error)))
        else:
            runs.append(ViewRun(status, done, full))
    return ViewRuns(tuple(runs))


def in_order_of_sources(views: Sequence[Definition]) -> list[Definition]:
    """Return views ordered by name, but a view that another one reads always before that one."""
    left = {view.name: view for view in sorted(views, key=lambda view: str(view.name))}
    ordered: list[Definition] = []
    while left:
        free = [v for v in left.values() if not any(s in left for s in v.sources if s != v.name)]
        for view in free or list(left.values()):
            ordered.append(left.pop(view.name))
    return ordered


def source_rows(storage: Storage, definition: Definition) -> int | None:
    """Return the number of rows of a view's sources; None if a file has no statistics."""
    total = 0
    for name in definition.sources:
        snapshot = read_snapshot(storage, name.table_path)
        if snapshot is None:
            return None
        files = live_files(storage, name.table_path, snapshot.version)
        if not all("numRecords" in (add.get("stats") or "") for add in files):
            return None
        total += sum(int(add["records"]) for add in files)
    return total


def _line(run: ViewRun) -> tuple[Any, ...]:
    name, done = run.status.view, run.refresh
    if done is None:
        return (name, "failed", run.error, None, run.rows_full, None, None, None)
    why = "" if done.reason is None else done.reason.why
    took = f"{done.seconds:.1f} s" if done.applied else "a dry run"
    written = ", ".join(f"{count:,} {kind}" for kind, count in done.rows.items() if count)
    return (name, done.mode, why, run.rows_read, run.rows_full, written, took, done.differences)
