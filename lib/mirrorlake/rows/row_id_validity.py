"""How far row ids can be trusted: what a table's history says about them, read from its log.

Two things can go wrong with an id: a row may have got another one (it was overwritten, or rewritten
while tracking was off), and one number may have named two rows (the feature was dropped and came
again). A commit version can go backward: RESTORE brings the old ones back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mirrorlake.delta.commits import State, read_states, read_versions
from mirrorlake.delta.log_files import log_file
from mirrorlake.delta.snapshot import ROW_ID_COLUMN
from mirrorlake.delta.table import Table
from mirrorlake.feed.findings import FeedFinding
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
    findings = [*_switched(name, states)]
    for state in states:
        if state.properties.get(ROW_ID_COLUMN) and (found := _told(name, state)):
            findings.append(found)
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


def _switched(name: str, states: list[State]) -> list[FeedFinding]:
    """Where tracking came, went, and came again."""
    findings = []
    for before, after in pairwise(states):
        was, is_now = is_tracked(before.properties), is_tracked(after.properties)
        version = after.version
        if was and not is_now:
            end = next(
                (s.version for s in states if s.version > version and is_tracked(s.properties)),
                None,
            )
            last = states[-1].version if end is None else end
            again = "." if end is None else f", and on again in version {end}."
            findings.append(
                _finding(
                    "disabled",
                    name,
                    (version, last),
                    f"Row tracking was switched off in version {version}{again} Rows that were"
                    " rewritten meanwhile lost their ids.",
                    "Don't compare ids of before with those of after: match by key.",
                )
            )
        elif is_now and not was and not before.properties.get(ROW_ID_COLUMN):
            findings.append(
                _finding(
                    "enabled",
                    name,
                    (version, version),
                    f"Row tracking was switched on in version {version}: older versions have no"
                    " ids, and the rows of then have the backfill's commit version.",
                    "Compare older versions by key.",
                )
            )
        if before.properties.get(ROW_ID_COLUMN) and not after.properties.get(ROW_ID_COLUMN):
            findings.append(
                _finding(
                    "dropped",
                    name,
                    (version, version),
                    f"The feature was dropped in version {version}: numbers started anew, and name"
                    " other rows than before.",
                    "Don't use ids that were read before it.",
                )
            )
    return findings


def _told(name: str, state: State) -> FeedFinding | None:
    """What one commit did to the ids."""
    version, commit = state.version, state.commit
    span = (version, version)
    mode = str(commit.parameters.get("mode", "")).lower()
    if commit.operation == "RESTORE":
        back = commit.parameters.get("version")
        return _finding(
            "restore",
            name,
            span,
            f"Version {version} is a RESTORE to {'a time' if back is None else f'version {back}'}:"
            " rows have the ids of then, and their commit versions go backward.",
            f"Don't look for changes by row_commit_version > n across version {version}.",
            blocks=False,
        )
    if commit.operation == "CLONE":
        return _finding(
            "clone",
            name,
            span,
            f"Version {version} is a clone: it numbers its rows itself, other than its source.",
            "Don't compare its ids with those of the source.",
        )
    replaced = commit.operation.startswith(("REPLACE", "CREATE OR REPLACE"))
    if (mode == "overwrite" or replaced) and version > 0:
        part = _predicate(commit.parameters)
        return _finding(
            "overwrite",
            name,
            span,
            f"Version {version} overwrites {part or 'all rows'}: they have new ids, also those that"
            " stay the same.",
            f"Match by key across version {version}.",
        )
    return None


def _predicate(parameters: dict[str, Any]) -> str:
    text = str(parameters.get("predicate") or "")
    return "" if text in ("", "[]") else f"the rows where {text}"


def _finding(
    rule: str, name: str, span: tuple[int, int], message: str, fix: str, *, blocks: bool = True
) -> FeedFinding:
    return FeedFinding(
        rule=rule,
        table=name,
        message=message,
        fix=fix,
        versions=span,
        file=log_file(span[0]),
        blocks=blocks,
    )
