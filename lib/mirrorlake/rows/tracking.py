"""Switches row tracking on and off, and says how far row ids can be trusted.

With it every row has a stable id and the version that last changed it. Enabling it later gives ids
to all rows by their files' places in the log: no data file is rewritten, but every file is listed
once more. Source: the Delta transaction log protocol, "Row Tracking".

Two things can go wrong with an id: a row may have got another one (it was overwritten, or rewritten
while tracking was off), and one number may have named two rows (the feature was dropped and came
again). A commit version can go backward: RESTORE brings the old ones back.
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
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import query_errors

FEATURE = "rowTracking"
_FILES_CONF = "spark.databricks.delta.backfill.maxNumFiles"
_FILES_A_COMMIT = "100000"  # Delta's default, which keeps an entry of the log below 100 MB
_NEWER_WRITERS = (
    "Writers that don't know row tracking are refused from then on; dropping the feature lets them"
    " in again. Readers are not concerned."
)
_OTHER_IDS = (
    "Rows were tracked before: those that were rewritten in between get other ids than they had,"
    " and it is unknown which."
)
_NOT_KEPT = (
    "Ids are no longer kept when rows are rewritten: enabled again, they can't be compared with"
    " those of today."
)
_STILL_ASKED = (
    "The protocol still asks writers for row tracking; only dropping the feature ends that."
)
_ALL_LOST = (
    "All ids are lost. Enabled again, numbers start at 0: the same number then names another row."
)


@dataclass(frozen=True)
class Tracking(Result):
    """How a table's rows are tracked, and how far back their ids mean what they mean today.

    Attributes:
        version: the table's newest version.
        enabled: whether rows have ids that can be read.
        supported: whether the protocol asks writers for the feature, enabled or not.
        numbered_from: the first version of the present numbering; before it a row had no id, or
            the same number named another row. None if the table was never tracked.
        trusted_from: the version since which rows have kept their ids, or None.
        findings: what to know about the ids, by version.
        readable_from: the first version whose rows fit today's columns.
        first: the oldest version that the log holds.
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
        """The document that `rows … show --json` begins with."""
        findings = [finding.as_dict() for finding in self.findings]
        shown = ("table", "version", "enabled", "supported", "numbered_from", "trusted_from")
        return {name: getattr(self, name) for name in shown} | {"findings": findings}

    def shown(self) -> TextTable:
        """The same facts, one a row."""
        rows = [
            ("row tracking", "on" if self.enabled else "off"),
            ("required of writers", "yes" if self.supported else "no"),
        ]
        if self.numbered_from is not None:
            rows.append(("numbered since", f"version {self.numbered_from}"))
            rows.append(("ids kept since", f"version {self.trusted_from}"))
        rows += [(finding.rule, f"{finding.message} {finding.fix}") for finding in self.findings]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        since = f", ids kept since version {self.trusted_from}" if self.enabled else ""
        noun = "warning" if len(self.findings) == 1 else "warnings"
        state = "tracked" if self.enabled else "not tracked"
        return f"{self.table}: rows {state}{since}, {len(self.findings)} {noun}"


@dataclass(frozen=True)
class FeatureChange(Result):
    """What enabling, disabling or dropping commits, or has committed.

    Attributes:
        verb: `enable`, `disable` or `drop`.
        before: the newest version before.
        commits: what is committed, in order, in Delta's words.
        files: data files that are listed again, with ids or without.
        rows: rows in those files, as far as the log knows.
        size: bytes of those files; none of them is read or written.
        warnings: what to know before.
        applied: whether it is done.
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
        """The same facts, one a row."""
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
        noun = "commit" if len(self.commits) == 1 else "commits"
        return f"{done}{self.verb} row tracking of {self.table}: {len(self.commits)} {noun}"


def is_supported(snapshot: Snapshot) -> bool:
    """Whether a version's protocol asks its writers for row tracking."""
    return FEATURE in snapshot.writer_features


def check_tracked(table: TableHandle, snapshot: Snapshot) -> None:
    """Refuses a table whose rows have no ids at a version.

    Raises:
        UsageError: with the way to get some.
    """
    if is_tracked(snapshot.properties):
        return
    gone = " any more" if is_supported(snapshot) else ""
    raise UsageError(
        f"The rows of {table.name} are not tracked{gone} in version {snapshot.version}.",
        hint=f"`rows enable ROOT {table.name}`; `rows show ROOT {table.name}` tells which versions"
        " have ids.",
    )


def change_tracking(table: TableHandle, verb: str, *, dry_run: bool) -> FeatureChange:
    """Enables row tracking, disables it, or takes the feature out of the protocol.

    Disabled, the feature and the protocol stay. With the feature goes `domainMetadata`, which came
    with it, unless clustering needs it.

    Args:
        table: the table.
        verb: `enable`, `disable` or `drop`.
        dry_run: only return what it would commit.

    Raises:
        QueryError: Delta refused it.
    """
    snapshot = table.snapshot()
    nothing = FeatureChange(str(table.name), verb, snapshot.version, applied=not dry_run)
    enabled, supported = is_tracked(snapshot.properties), is_supported(snapshot)
    if {"enable": enabled, "disable": not enabled, "drop": not supported}[verb]:
        return nothing
    files: list[dict[str, Any]] = []
    if verb == "enable":
        files, backfills = _listed_again(table, snapshot, "BACKFILL")
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
        files, backfills = _listed_again(table, snapshot, "UNBACKFILL")
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


def _listed_again(
    table: TableHandle, snapshot: Snapshot, verb: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """The files that get ids or lose them, and the commits which do that."""
    gains = verb == "BACKFILL"
    adds = live_files(table.storage, table.name.table_path, snapshot.version)
    files = [add for add in adds if (add.get("baseRowId") is None) == gains]
    most = int(table.spark.conf.get(_FILES_CONF, _FILES_A_COMMIT) or _FILES_A_COMMIT)
    return files, [f"ROW TRACKING {verb}"] * math.ceil(len(files) / most)


def read_tracking(table: TableHandle) -> Tracking:
    """How a table's rows are tracked; needs no Spark job, the cost is the commits in the log."""
    path, snapshot = table.name.table_path, table.snapshot()
    timeline = read_versions(table.storage, path)
    states = list(read_states(table.storage, path, timeline.first, timeline.latest))
    name = str(table.name)
    numbered_states = [state for state in states if state.properties.get(ROW_ID_COLUMN)]
    findings = list(_switched(name, states))
    findings += [found for state in numbered_states if (found := _done(name, state))]
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
    """Where the hidden columns got the names they have now: names and numbers begin together."""
    name, first = states[-1].properties.get(ROW_ID_COLUMN), None
    for state in reversed(states):
        if not name or state.properties.get(ROW_ID_COLUMN) != name:
            break
        first = state.version
    return first


def _readable_from(states: list[State], *, wide: bool) -> int:
    """After the last version with a column of another type, unless types may be widened."""
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


def _switched(name: str, states: list[State]) -> Iterator[FeedFinding]:
    """Where tracking came, went, and came again."""
    on = [state.version for state in states if is_tracked(state.properties)]
    for before, after in pairwise(states):
        was, is_now = is_tracked(before.properties), is_tracked(after.properties)
        version, numbered = after.version, before.properties.get(ROW_ID_COLUMN)
        if was and not is_now:
            end = next((later for later in on if later > version), None)
            again = "." if end is None else f", and on again in version {end}."
            last = states[-1].version if end is None else end
            yield _finding("disabled", name, version, last, again=again)
        elif is_now and not was and not numbered:
            yield _finding("enabled", name, version)
        if numbered and not after.properties.get(ROW_ID_COLUMN):
            yield _finding("dropped", name, version)


def _done(name: str, state: State) -> FeedFinding | None:
    """What one commit did to the ids."""
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


# What to know, and what to do then.
_TEXTS = {
    "disabled": (
        "Row tracking was switched off in version {version}{again} Rows that were rewritten"
        " meanwhile lost their ids.",
        "Don't compare ids of before with those of after: match by key.",
    ),
    "enabled": (
        "Row tracking was switched on in version {version}: older versions have no ids, and the"
        " rows that existed then have the backfill's commit version.",
        "Compare older versions by key.",
    ),
    "dropped": (
        "The feature was dropped in version {version}: numbers started again from 0, and name"
        " other rows than before.",
        "Don't use ids that were read before it.",
    ),
    "restore": (
        "Version {version} is a RESTORE to {then}: rows have the ids that they had then, and their"
        " commit versions go backward.",
        "Don't look for changes by row_commit_version > n across version {version}.",
    ),
    "clone": (
        "Version {version} is a clone: it numbers its rows itself, differently from its source.",
        "Don't compare its ids with those of the source.",
    ),
    "overwrite": (
        "Version {version} overwrites {rows}: they have new ids, also those that stay the same.",
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
