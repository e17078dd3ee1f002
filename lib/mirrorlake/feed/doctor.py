"""What stands in the way of reading a range of the feed, and how to get past it.

Only the log is read, and, where asked for, whether the files are there. Each rule has a test that
reads what the doctor says can be read, and fails to read what it says cannot.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from datetime import timedelta
from itertools import pairwise
from urllib.parse import unquote

from mirrorlake.delta.actions import Places
from mirrorlake.delta.commits import State, Timeline, read_states
from mirrorlake.delta.log_files import log_file
from mirrorlake.delta.table import Table
from mirrorlake.delta.timestamps import parse_interval
from mirrorlake.feed.findings import Diagnosis, FeedFinding, commit_finding, span_text
from mirrorlake.feed.schema import Break, find_breaks, reserved_columns
from mirrorlake.history.versions import ENFORCED, FILE_RETENTION, is_enforced

UNSAFE_CONF = (
    "spark.databricks.delta.changeDataFeed.unsafeBatchReadOnIncompatibleSchemaChanges.enabled"
)


def examine(table: Table, timeline: Timeline, start: int, end: int, *, files: bool) -> Diagnosis:
    """Looks at a range.

    Args:
        table: the table.
        timeline: its versions.
        start: the first version, not after `end`.
        end: the last version, not after the latest.
        files: look also whether the files are there; as many requests as there are files.
    """
    name = str(table.name)
    findings: list[FeedFinding] = []
    if start < timeline.first:
        last = min(end, timeline.first - 1)
        lost = commit_finding(
            "log-lost",
            name,
            (start, last),
            f"The log no longer holds {span_text((start, last), 'version')}.",
            f"start at version {timeline.first}; delta.logRetentionDuration says how long"
            " versions are kept.",
            file=None,
        )
        findings.append(lost)
    begin = max(start, timeline.first)
    if begin > end:
        return Diagnosis(name, start, end, tuple(findings), ())
    # Which columns a range is read with: its end's if columns are mapped, else the latest's.
    path = table.name.table_path
    states = list(read_states(table.storage, path, begin, end, files=files))
    (latest,) = read_states(table.storage, path, timeline.latest, timeline.latest)
    spans = [
        *_feed_off(name, states),
        *_retention(table, timeline, states, latest),
        *(_missing_files(table, states) if files else ()),
    ]
    breaks = _breaks_between(name, states) if latest.is_mapped else []
    if not latest.is_mapped:
        spans += _unlike_latest(name, states, latest)
    findings += [*spans, *breaks, *_reserved(name, states[-1]), *_notes(name, states)]
    bad = {
        version for found in spans for version in range(found.versions[0], found.versions[1] + 1)
    }
    good = (version for version in range(begin, end + 1) if version not in bad)
    readable = tuple(_runs(good, [found.versions[0] for found in breaks]))
    findings.sort(key=lambda finding: (finding.versions, not finding.blocks))
    findings += [_advice(name, span) for span in readable if span != (start, end)]
    return Diagnosis(name, start, end, tuple(findings), readable)


def _runs(versions: Iterable[int], starts: Collection[int] = ()) -> list[tuple[int, int]]:
    """Versions without a hole between them; some of them start a run of their own."""
    runs: list[tuple[int, int]] = []
    for version in versions:
        if runs and runs[-1][1] == version - 1 and version not in starts:
            runs[-1] = (runs[-1][0], version)
        else:
            runs.append((version, version))
    return runs


def _feed_off(name: str, states: list[State]) -> list[FeedFinding]:
    return [
        commit_finding(
            "feed-off",
            name,
            (a, b),
            f"The change feed was not enabled in {span_text((a, b), 'version')};"
            " changes are recorded only from enabling on.",
            f"start at version {b + 1}"
            if b < states[-1].version
            else "enable it: table.changes.enable(); or bridge the gap: --across-gaps.",
        )
        for a, b in _runs(state.version for state in states if not state.has_feed)
    ]


def _retention(
    table: Table, timeline: Timeline, states: list[State], latest: State
) -> list[FeedFinding]:
    if not is_enforced(table.spark):
        return []
    kept = latest.properties.get(FILE_RETENTION, "interval 1 week")
    oldest = time.time_ns() // 1_000_000 - parse_interval(kept) // timedelta(milliseconds=1)
    old = [s.version for s in states if timeline.time(s.version) < oldest]
    return [
        commit_finding(
            "retention",
            str(table.name),
            (a, b),
            f"{span_text((a, b), 'Version')} {'are' if b > a else 'is'} older than"
            f" {FILE_RETENTION} ({kept}); Delta refuses to read them even where the files"
            " are still there.",
            f"SET {ENFORCED} = false for this read, and set a longer {FILE_RETENTION}"
            " so that no VACUUM takes the files.",
        )
        for a, b in _runs(version for version in old if version != timeline.latest)
    ]


def _missing_files(table: Table, states: list[State]) -> list[FeedFinding]:
    findings, places = [], Places(table.storage, table.name.table_path)
    for state in states:
        version, files = state.version, state.commit.files
        if missing := [path for path in files if not places.exists(path)]:
            found = commit_finding(
                "missing-file",
                str(table.name),
                (version, version),
                f"Version {version} is read from {len(files)} files,"
                f" of which {len(missing)} are gone: a VACUUM has removed them.",
                f"start after version {version}, or bridge it: --across-gaps.",
                file=unquote(missing[0]),
            )
            findings.append(found)
    return findings


def _unlike_latest(name: str, states: list[State], latest: State) -> list[FeedFinding]:
    """Without column mapping every version is read with the latest columns."""
    breaks = {state.version: find_breaks(state.fields, latest.fields) for state in states}
    return [
        commit_finding(
            "schema",
            name,
            (a, b),
            f"After version {b} the table {_said(breaks[b])}. A feed is read with the latest"
            f" columns, which {span_text((a, b), 'version')} {'do' if b > a else 'does'} not fit.",
            f"start at version {b + 1}, or SET {UNSAFE_CONF} = true if the old values fit the"
            " new columns, or bridge them: --across-gaps.",
            file=log_file(b + 1),
            column=breaks[b][0].column,
        )
        for a, b in _runs(version for version, found in breaks.items() if found)
    ]


def _breaks_between(name: str, states: list[State]) -> list[FeedFinding]:
    """With column mapping a range is read with its end's columns."""
    pairs = ((find_breaks(old.fields, new.fields), new.version) for old, new in pairwise(states))
    return [
        commit_finding(
            "schema",
            name,
            (version, version),
            f"Version {version} {_said(breaks)}. No range can be read across it.",
            f"read up to version {version - 1}, then from version {version} on; or"
            " bridge it: --across-gaps.",
            column=breaks[0].column,
        )
        for breaks, version in pairs
        if breaks
    ]


def _said(breaks: list[Break]) -> str:
    return " and ".join(found.text for found in breaks)


def _reserved(name: str, state: State) -> list[FeedFinding]:
    return [
        commit_finding(
            "reserved-column",
            name,
            (state.version, state.version),
            f"The column {column} is named like one of the feed's own.",
            "rename it: table.changes.enable(rename_reserved=True).",
            column=column,
        )
        for column in reserved_columns(state.schema)
    ]


_AS_NET = "read it with --net: what is the same before and after is gone."


def _notes(name: str, states: list[State]) -> list[FeedFinding]:
    """What does not stand in the way, but surprises people who read raw feeds."""
    findings = []

    def note(rule: str, version: int, message: str, fix: str) -> None:
        span = (version, version)
        findings.append(commit_finding(rule, name, span, message, fix, blocks=False))

    life: tuple[str, str | None] | None = None
    for state in states:
        version, commit = state.version, state.commit
        mode = str(commit.parameters.get("mode", "")).lower()
        if commit.operation == "RESTORE":
            note(
                "restore",
                version,
                f"Version {version} is a RESTORE to {commit.parameters.get('version') or 'a time'}:"
                " rows that it leaves as they were may show up as deleted and inserted.",
                _AS_NET,
            )
        elif commit.operation == "CLONE":
            note(
                "clone",
                version,
                f"Version {version} is a clone: its feed starts with all rows as inserts, and what"
                " happened in the source is in the source's feed.",
                "read the source's own feed for what was before.",
            )
        elif mode == "overwrite" or commit.operation.startswith(("REPLACE", "CREATE OR REPLACE")):
            note(
                "overwrite",
                version,
                f"Version {version} overwrites rows: those that stay the same show up as deleted"
                " and inserted.",
                _AS_NET,
            )
        table_id, folder = life or (state.metadata["id"], None)
        life = (state.metadata["id"], state.incarnation or folder)
        if life[0] != table_id or (folder is not None and life[1] != folder):
            note(
                "recreated",
                version,
                f"With version {version} the table is another one of the same name.",
                "read up to it and from it on separately.",
            )
    return findings


def _advice(name: str, span: tuple[int, int]) -> FeedFinding:
    message = f"{span_text(span, 'Version')} can be read."
    fix = f"--from {span[0]} --to {span[1]}"
    return commit_finding("readable", name, span, message, fix, file=None, blocks=False)
