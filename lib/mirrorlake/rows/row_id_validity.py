"""How far row ids can be trusted: what a table's history says about them, read from its log.

Two things can go wrong with an id: a row may have got another one (it was overwritten, or rewritten
while tracking was off), and one number may have named two rows (the feature was dropped and came
again). A commit version can go backward: RESTORE brings the old ones back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mirrorlake.delta.commits import State, read_states, read_versions
from mirrorlake.delta.log_files import log_file
from mirrorlake.delta.snapshot import ROW_ID_COLUMN
from mirrorlake.delta.table import Table
from mirrorlake.feed.doctor import FeedFinding
from mirrorlake.feed.schema import find_breaks
from mirrorlake.history.diff import is_tracked


@dataclass(frozen=True)
class RowIdValidity:
    """How far back a table's row ids mean what they mean today.

    Attributes:
        numbered_from: the first version of the present numbering, or None if there is none.
        trusted_from: the version since which rows kept their ids.
        readable_from: the first version whose rows fit today's columns.
        first: the oldest version that the log holds.
        findings: what to know, by version.
    """

    numbered_from: int | None
    trusted_from: int | None
    readable_from: int
    first: int
    findings: tuple[FeedFinding, ...]


def read_row_id_validity(table: Table) -> RowIdValidity:
    """Reads a table's history for what concerns its row ids; the cost is the commits in the log."""
    path = table.name.table_path
    timeline = read_versions(table.storage, path)
    states = list(read_states(table.storage, path, timeline.first, timeline.latest))
    name = str(table.name)
    numbered_states = [state for state in states if state.properties.get(ROW_ID_COLUMN)]
    findings = list(_switched(name, states))
    findings += [found for state in numbered_states if (found := _done(name, state))]
    numbered = _numbered_from(states)
    readable = _readable_from(states, wide="typeWidening" in table.snapshot().reader_features)
    trusted = numbered
    for finding in findings:
        if trusted is not None and finding.blocks:
            trusted = max(trusted, finding.versions[1])
    findings.sort(key=lambda finding: finding.versions)
    return RowIdValidity(numbered, trusted, readable, timeline.first, tuple(findings))


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
