"""Enable and disable row tracking, and determine which versions have comparable row ids.

With row tracking, every row has a stable id and the version that last changed it. If it is enabled
later, all rows get ids by the position of their files in the log: no data file is rewritten, but
every file is added to the log again. Source: the Delta transaction log protocol, "Row Tracking".

Ids can be misleading in two ways. A row may have a new id, because it was overwritten, or rewritten
while tracking was off. One number may identify two rows, because the feature was dropped and
enabled again. A commit version can decrease: RESTORE brings back old ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.commits import State, read_states, read_versions
from mirrorlake.delta.log_files import log_file
from mirrorlake.delta.snapshot import ROW_ID_COLUMN, ROW_TRACKING, Snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.feed.doctor import FeedFinding, find_breaks
from mirrorlake.history.diff import is_tracked
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.sql import query_errors

FEATURE = "rowTracking"
_FILES_CONF = "spark.databricks.delta.backfill.maxNumFiles"
_FILES_PER_COMMIT = "100000"  # Delta's default, which keeps a log entry below 100 MB
_NEWER_WRITERS = (
    "From then on, writers that don't support row tracking can't write to the table until the"
    " feature is dropped. Readers are not affected."
)
_OTHER_IDS = (
    "Rows were tracked before. Rows that were rewritten in between get other ids, and it is unknown"
    " which rows these are."
)
_NOT_KEPT = (
    "Rows lose their ids when they are rewritten. If row tracking is enabled again, ids can't be"
    " compared with the present ones."
)
_STILL_ASKED = "The protocol still requires row tracking of writers until the feature is dropped."
_ALL_LOST = (
    "All ids are lost. If row tracking is enabled again, ids start at 0, and the same number then"
    " identifies another row."
)


@dataclass(frozen=True)
class Tracking(Result):
    """The row tracking of a table, and the versions with ids that are comparable to present ones.

    Attributes:
        table: the table's name.
        version: the table's newest version.
        enabled: whether rows have ids that can be read.
        supported: whether the protocol requires the feature of writers, enabled or not.
        numbered_from: the first version of the present numbering; before it, a row had no id, or
            the same number identified another row. None if the table was never tracked.
        trusted_from: the version since which rows have kept their ids, or None.
        findings: facts about the ids, ordered by version.
        readable_from: the first version whose rows fit the present columns.
        first: the oldest version that the log contains.
    """

    table: str
    version: int
    enabled: bool
    supported: bool
    numbered_from: int | None
    trusted_from: int | None
    findings: tuple[FeedFinding, ...]
    readable_from: int
    first: int

    def as_dict(self) -> dict[str, Any]:
        """Return the first part of the document that `rows … show --json` prints."""
        findings = [finding.as_dict() for finding in self.findings]
        shown = ("table", "version", "enabled", "supported", "numbered_from", "trusted_from")
        return {name: getattr(self, name) for name in shown} | {"findings": findings}

    def shown(self) -> TextTable:
        """Return the attributes and findings, one per row."""
        rows = [
            ("row tracking", "on" if self.enabled else "off"),
            ("required of writers", "yes" if self.supported else "no"),
        ]
        if self.numbered_from is not None:
            rows.append(("numbered since", f"version {self.numbered_from}"))
            if self.enabled:
                rows.append(("ids kept since", f"version {self.trusted_from}"))
        rows += [(finding.rule, f"{finding.message} {finding.fix}") for finding in self.findings]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        since = f", ids kept since version {self.trusted_from}" if self.enabled else ""
        state = "tracked" if self.enabled else "not tracked"
        return f"{self.table}: rows {state}{since}, {counted(len(self.findings), 'warning')}"


@dataclass(frozen=True)
class FeatureChange(Result):
    """The effect of enabling, disabling or dropping row tracking.

    Attributes:
        table: the table's name.
        verb: `enable`, `disable` or `drop`.
        before: the newest version before the change.
        commits: the operations of the commits, in order.
        files: the number of data files that are added to the log again, with or without ids.
        rows: the number of rows in these files, as far as the log contains it.
        size: the bytes of these files; none of them is read or written.
        warnings: consequences to consider before the change.
        applied: whether the change was made.
    """

    table: str
    verb: str
    before: int
    commits: tuple[str, ...] = ()
    files: int = 0
    rows: int = 0
    size: int = 0
    warnings: tuple[str, ...] = ()
    applied: bool = False

    def shown(self) -> TextTable:
        """Return the attributes, one per row."""
        listed = [f"version {self.before + n}: {what}" for n, what in enumerate(self.commits, 1)]
        rows = [
            ("files listed again", f"{self.files:,}, none of them rewritten"),
            ("rows in them", f"{self.rows:,}"),
            *(("commit", text) for text in listed),
            *(("warning", warning) for warning in self.warnings),
            ("done", "yes" if self.applied else "no: a dry run"),
        ]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        done = "" if self.applied else "would "
        commits = counted(len(self.commits), "commit")
        return f"{done}{self.verb} row tracking of {self.table}: {commits}"


def is_supported(snapshot: Snapshot) -> bool:
    """Return whether a version's protocol requires row tracking of writers."""
    return FEATURE in snapshot.writer_features


def check_tracked(table: TableHandle, snapshot: Snapshot) -> None:
    """Refuse a version whose rows have no ids.

    Raises:
        UsageError: with the way to enable row tracking.
    """
    if is_tracked(snapshot.properties):
        return
    longer = "no longer" if is_supported(snapshot) else "not"
    raise UsageError(
        f"The rows of {table.name} are {longer} tracked in version {snapshot.version}.",
        hint="enable row tracking with table.row_tracking.enable(); table.row_tracking.status()"
        " returns the versions with ids.",
    )


def change_tracking(table: TableHandle, verb: str, *, dry_run: bool) -> FeatureChange:
    """Enable or disable row tracking, or drop the feature from the protocol.

    Disabling keeps the feature and the protocol. Dropping also drops `domainMetadata`, which came
    with the feature, unless clustering needs it.

    Args:
        table: the table.
        verb: `enable`, `disable` or `drop`.
        dry_run: only return the commits.

    Raises:
        QueryError: Delta refused the change.
    """
    snapshot = table.snapshot()
    nothing = FeatureChange(str(table.name), verb, snapshot.version, applied=not dry_run)
    enabled, supported = is_tracked(snapshot.properties), is_supported(snapshot)
    if {"enable": enabled, "disable": not enabled, "drop": not supported}[verb]:
        return nothing
    files: list[dict[str, Any]] = []
    if verb == "enable":
        files, backfills = _relisted_files(table, snapshot, "BACKFILL")
        commits = [*["UPGRADE PROTOCOL"] * (not supported), *backfills, "SET TBLPROPERTIES"]
        clauses, warnings = [f"SET TBLPROPERTIES ('{ROW_TRACKING}' = 'true')"], []
        if not supported:
            warnings = [_NEWER_WRITERS]
        elif read_tracking(table).numbered_from is not None:
            warnings = [_OTHER_IDS]
    elif verb == "disable":
        commits, warnings = ["SET TBLPROPERTIES"], [_NOT_KEPT, _STILL_ASKED]
        clauses = [f"SET TBLPROPERTIES ('{ROW_TRACKING}' = 'false')"]
    else:
        files, backfills = _relisted_files(table, snapshot, "UNBACKFILL")
        features = snapshot.writer_features
        alone = "clustering" not in features and "domainMetadata" in features
        clauses = [f"DROP FEATURE {name}" for name in (FEATURE, *["domainMetadata"] * alone)]
        commits = ["SET TBLPROPERTIES", *backfills, *["DROP FEATURE"] * len(clauses)]
        warnings = [_ALL_LOST]
    if not dry_run:
        with query_errors():
            for clause in clauses:
                table.spark.sql(f"ALTER TABLE {table.sql_name} {clause}")
    return replace(
        nothing,
        commits=tuple(commits),
        files=len(files),
        rows=sum(add["records"] for add in files),
        size=sum(add["size"] for add in files),
        warnings=tuple(warnings),
    )


def _relisted_files(
    table: TableHandle, snapshot: Snapshot, verb: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the files that get or lose ids, and the commits that do so."""
    gains = verb == "BACKFILL"
    adds = live_files(table.storage, table.name.table_path, snapshot.version)
    files = [add for add in adds if (add.get("baseRowId") is None) == gains]
    most = int(table.spark.conf.get(_FILES_CONF, _FILES_PER_COMMIT) or _FILES_PER_COMMIT)
    return files, [f"ROW TRACKING {verb}"] * math.ceil(len(files) / most)


def read_tracking(table: TableHandle) -> Tracking:
    """Return the row tracking of a table.

    This needs no Spark job; the cost grows with the number of commits in the log.
    """
    path, snapshot = table.name.table_path, table.snapshot()
    timeline = read_versions(table.storage, path)
    states = list(read_states(table.storage, path, timeline.first, timeline.latest))
    name = str(table.name)
    numbered_states = [state for state in states if state.properties.get(ROW_ID_COLUMN)]
    findings = list(_tracking_changes(name, states))
    findings += [found for state in numbered_states if (found := _commit_finding(name, state))]
    findings.sort(key=lambda finding: finding.versions)
    numbered = _numbered_from(states)
    broken = [finding.versions[1] for finding in findings if finding.blocks]
    return Tracking(
        name,
        snapshot.version,
        is_tracked(snapshot.properties),
        is_supported(snapshot),
        numbered,
        None if numbered is None else max([numbered, *broken]),
        tuple(findings),
        _readable_from(states, wide="typeWidening" in snapshot.reader_features),
        timeline.first,
    )


def _numbered_from(states: list[State]) -> int | None:
    """Return the first version in which the hidden columns have their present names."""
    name, first = states[-1].properties.get(ROW_ID_COLUMN), None
    for state in reversed(states):
        if not name or state.properties.get(ROW_ID_COLUMN) != name:
            break
        first = state.version
    return first


def _readable_from(states: list[State], *, wide: bool) -> int:
    """Return the version after the last change of a column's type, unless types can widen."""
    if wide:
        return states[0].version
    latest = states[-1].fields
    fits = states[0].version
    for before, after in pairwise(states):
        if after.commit.metadata is not None and any(
            found.text.startswith("changes") for found in find_breaks(before.fields, latest)
        ):
            fits = after.version
    return fits


def _tracking_changes(name: str, states: list[State]) -> Iterator[FeedFinding]:
    """Find the versions in which tracking was enabled, disabled or dropped."""
    on = [state.version for state in states if is_tracked(state.properties)]
    for before, after in pairwise(states):
        was, is_now = is_tracked(before.properties), is_tracked(after.properties)
        version, numbered = after.version, before.properties.get(ROW_ID_COLUMN)
        if was and not is_now:
            end = next((later for later in on if later > version), None)
            again = _STILL_OFF if end is None else _ON_AGAIN
            last = states[-1].version if end is None else end
            what = again.format(version=version, end=end)
            yield _finding("disabled", name, version, last, what=what)
        elif is_now and not was and not numbered:
            yield _finding("enabled", name, version)
        if numbered and not after.properties.get(ROW_ID_COLUMN):
            yield _finding("dropped", name, version)


def _commit_finding(name: str, state: State) -> FeedFinding | None:
    """Return the finding about a commit that affects ids, if any."""
    version, commit = state.version, state.commit
    facts, operation = commit.parameters, commit.operation
    if operation == "RESTORE":
        back = facts.get("version")
        then = "a time" if back is None else f"version {back}"
        return _finding("restore", name, version, then=then, blocks=False)
    if operation == "CLONE":
        return _finding("clone", name, version)
    overwrites = str(facts.get("mode", "")).lower() == "overwrite"
    overwrites = overwrites or operation.startswith(("REPLACE", "CREATE OR REPLACE"))
    if overwrites and version > 0:
        part = str(facts.get("predicate") or "[]")
        rows = "all rows" if part == "[]" else f"the rows where {part}"
        return _finding("overwrite", name, version, rows=rows)
    return None


_STILL_OFF = (
    ". Rows that are rewritten after version {version} lose their ids, as long as row tracking is"
    " off."
)
_ON_AGAIN = (
    ", and enabled again in version {end}. Rows that were rewritten in between lost their ids."
)
# The message and the fix of each rule.
_TEXTS = {
    "disabled": (
        "Row tracking was disabled in version {version}{what}",
        "Don't compare older ids with newer ones; match rows by key.",
    ),
    "enabled": (
        "Row tracking was enabled in version {version}: older versions have no ids, and the rows"
        " that existed then have the commit version of the backfill.",
        "Compare older versions by key.",
    ),
    "dropped": (
        "The feature was dropped in version {version}: ids started again at 0, and identify other"
        " rows than before.",
        "Don't use ids that were read before this version.",
    ),
    "restore": (
        "Version {version} is a RESTORE to {then}: rows have the ids that they had then, and their"
        " commit versions decrease.",
        "To find changes in a range that includes version {version}, don't filter by"
        " `_row_commit_version > n`: it can miss rows.",
    ),
    "clone": (
        "Version {version} is a clone: its rows were numbered anew, so equal ids in the clone and"
        " in its source do not mean equal rows.",
        "Don't compare its ids with those of the source.",
    ),
    "overwrite": (
        "Version {version} overwrites {rows}: they have new ids, even if they are unchanged.",
        "Match by key across version {version}.",
    ),
}


def _finding(
    rule: str, name: str, first: int, last: int | None = None, *, blocks: bool = True, **facts: str
) -> FeedFinding:
    message, fix = (text.format(version=first, **facts) for text in _TEXTS[rule])
    versions = (first, first if last is None else last)
    file = log_file(first)
    return FeedFinding(
        rule=rule, table=name, message=message, fix=fix, versions=versions, file=file, blocks=blocks
    )
