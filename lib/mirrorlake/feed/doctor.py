"""Enable a change feed, and diagnose which versions of it can be read.

Only the log is read and, on request, the existence of files is checked. Each rule has a test that
reads what the diagnosis calls readable, and fails to read what it does not.

Columns are identified by their physical name if the table maps columns, else by their name. A range
stays readable if columns were added, or became nullable.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from mirrorlake.delta.actions import Places
from mirrorlake.delta.commits import State, Timeline, read_states
from mirrorlake.delta.log_files import commit_path, log_file, read_actions
from mirrorlake.delta.snapshot import FEED, FILE_RETENTION, Snapshot, physical_name, read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_interval
from mirrorlake.history.write import check_reserved, reserved_columns
from mirrorlake.landing.types import widened
from mirrorlake.names import quote
from mirrorlake.results import Finding, Findings, TextTable, counted
from mirrorlake.spark.jvm import ENFORCED
from mirrorlake.storage.files import map_concurrently

Field = dict[str, Any]
DEFAULT_CONF = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"


def enable_feed(table: TableHandle, *, rename_reserved: bool = False) -> int:
    """Enable the change feed of a table; do nothing if it is on.

    Args:
        table: the table.
        rename_reserved: rename columns whose names are reserved, for example `_change_type` to
            `change_type`. This requires column mapping, which some readers do not support.

    Returns:
        The first version whose changes are recorded.

    Raises:
        FeedError: a column has a name that is reserved for the change feed.
    """
    snapshot, alter = table.snapshot(), f"ALTER TABLE {table.sql_name}"
    reserved = reserved_columns(snapshot.schema)
    if not rename_reserved:
        check_reserved(str(table.name), reserved)
    if reserved:
        table.spark.sql(f"{alter} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
        taken = {name.lower() for name in snapshot.schema}
        for name in reserved:
            new = name.lstrip("_")
            while new.lower() in taken:
                new += "_"
            taken.add(new.lower())
            table.spark.sql(f"{alter} RENAME COLUMN {quote(name)} TO {quote(new)}")
    elif snapshot.properties.get(FEED) == "true":
        return snapshot.version
    table.spark.sql(f"{alter} SET TBLPROPERTIES ({FEED} = 'true')")
    return table.snapshot().version


@dataclass(frozen=True)
class Break:
    """A schema change that makes older versions of the feed unreadable.

    Attributes:
        column: the column's name.
        text: the change, in words.
        widens: whether the new type can store all values of the old one; None if no type changes.
    """

    column: str
    text: str
    widens: bool | None = None


def find_breaks(old: list[Field], new: list[Field], *, prefix: str = "") -> list[Break]:
    """Return the reasons why rows of an older schema can't be read with a newer one.

    Args:
        old: the older columns, in Spark's JSON form.
        new: the newer columns.
        prefix: the struct's path, for nested columns.
    """
    by_name = {physical_name(field).lower(): field for field in new}
    breaks: list[Break] = []
    for field in old:
        name = prefix + field["name"]
        later = by_name.get(physical_name(field).lower())
        if later is None:
            breaks.append(Break(name, f"drops column {name}"))
            continue
        if later["name"] != field["name"]:
            breaks.append(Break(name, f"renames column {name} to {prefix}{later['name']}"))
        if field["nullable"] and not later["nullable"]:
            breaks.append(Break(name, f"makes column {name} NOT NULL"))
        breaks += _type_breaks(name, field["type"], later["type"])
    return breaks


def _type_breaks(name: str, old: Any, new: Any) -> list[Break]:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return find_breaks(old["fields"], new["fields"], prefix=f"{name}.")
        parts = ("elementType",) if old["type"] == "array" else ("keyType", "valueType")
        return [b for part in parts for b in _type_breaks(f"{name}.{part}", old[part], new[part])]
    if old == new:
        return []
    was, now = (kind["type"] if isinstance(kind, dict) else kind for kind in (old, new))
    widens = isinstance(old, str) and isinstance(new, str) and widened(old, new) == new
    return [Break(name, f"changes column {name} from {was} to {now}", widens)]


UNSAFE_CONF = (
    "spark.databricks.delta.changeDataFeed.unsafeBatchReadOnIncompatibleSchemaChanges.enabled"
)


@dataclass(frozen=True, kw_only=True)
class FeedFinding(Finding):
    """A fact to consider before a feed or row ids are read.

    Attributes:
        file: the file that shows it, relative to the table.
        versions: the first and the last version that it concerns.
        blocks: whether it prevents reading the range.
    """

    versions: tuple[int, int]
    blocks: bool = True


@dataclass(frozen=True)
class Diagnosis(Findings):
    """The state of a change feed in a range of versions.

    Attributes:
        table: the table's name.
        start: the range's first version.
        end: the range's last version.
        findings: the findings, ordered by version.
        readable: the longest parts of the range that can be read, in ascending order.
    """

    table: str
    start: int
    end: int
    findings: tuple[FeedFinding, ...]
    readable: tuple[tuple[int, int], ...]

    @property
    def blocking(self) -> tuple[FeedFinding, ...]:
        """The findings that prevent reading the whole range."""
        return tuple(finding for finding in self.findings if finding.blocks)

    def shown(self) -> TextTable:
        """Return one row per finding."""
        rows = tuple((f.rule, span_text(f.versions), f.message, f.fix) for f in self.findings)
        return TextTable(("rule", "versions", "what", "fix"), rows)

    def __repr__(self) -> str:
        return (
            f"{self.table}, versions {self.start} to {self.end}:"
            f" {counted(len(self.findings), 'finding')}, {len(self.blocking)} blocking"
        )


def span_text(span: tuple[int, int], noun: str = "") -> str:
    """Return `3` or `3 to 7`; with a noun, `version 3` or `versions 3 to 7`."""
    if span[0] == span[1]:
        return f"{noun} {span[0]}".strip()
    return f"{noun}s {span[0]} to {span[1]}" if noun else f"{span[0]} to {span[1]}"


def examine(
    table: TableHandle, timeline: Timeline, start: int, end: int, *, files: bool
) -> Diagnosis:
    """Diagnose a range of versions.

    Args:
        table: the table.
        timeline: the table's versions.
        start: the first version, not after `end`.
        end: the last version, not after the newest.
        files: also check whether the files exist, with one request per file.
    """
    name = str(table.name)
    findings: list[FeedFinding] = []
    if start < timeline.first:
        lost = (start, min(end, timeline.first - 1))
        findings.append(_finding("log-lost", name, lost, file=None, first=timeline.first))
    begin = max(start, timeline.first)
    if begin > end:
        return Diagnosis(name, start, end, tuple(findings), ())
    # A range is read with the columns of its end if columns are mapped, else with the newest.
    path = table.name.table_path
    states = list(read_states(table.storage, path, begin, end, files=files))
    (latest,) = read_states(table.storage, path, timeline.latest, timeline.latest)
    spans = [
        *_feed_off(name, states),
        *(_missing_files(table, states) if files else ()),
    ]
    breaks = list(_breaks_between(name, states)) if latest.is_mapped else []
    if not latest.is_mapped:
        spans += _unlike_latest(name, states, latest)
    spans += _narrowed(table, states, latest)
    reserved = [
        _finding("reserved-column", name, (end, end), column=column)
        for column in reserved_columns(states[-1].schema)
    ]
    old = _retention(name, timeline, states, latest)
    findings += [*spans, *breaks, *reserved, *old, *_notes(name, states)]
    bad = {v for found in spans for v in range(found.versions[0], found.versions[1] + 1)}
    good = (version for version in range(begin, end + 1) if version not in bad)
    readable = tuple(_runs(good, [found.versions[0] for found in breaks]))
    findings.sort(key=lambda finding: (finding.versions, not finding.blocks))
    parts = [span for span in readable if span != (start, end)]
    findings += [_finding("readable", name, span, file=None, blocks=False) for span in parts]
    return Diagnosis(name, start, end, tuple(findings), readable)


def _runs(versions: Iterable[int], starts: Collection[int] = ()) -> list[tuple[int, int]]:
    """Group consecutive versions; each version in `starts` begins a new group."""
    runs: list[tuple[int, int]] = []
    for version in versions:
        if runs and runs[-1][1] == version - 1 and version not in starts:
            runs[-1] = (runs[-1][0], version)
        else:
            runs.append((version, version))
    return runs


def _feed_off(name: str, states: list[State]) -> Iterator[FeedFinding]:
    for span in _runs(state.version for state in states if not state.has_feed):
        after = f"start at version {span[1] + 1}"
        still = "enable it with table.changes.enable(), or read with across_gaps=True."
        yield _finding("feed-off", name, span, fix=after if span[1] < states[-1].version else still)


def _retention(
    name: str, timeline: Timeline, states: list[State], latest: State
) -> Iterator[FeedFinding]:
    """Find versions that only sessions with Delta's retention check, its default, refuse."""
    kept = latest.retention(FILE_RETENTION)
    oldest = time.time_ns() // 1_000_000 - parse_interval(kept) // timedelta(milliseconds=1)
    old = [s.version for s in states if timeline.time(s.version) < oldest]
    for span in _runs(version for version in old if version != timeline.latest):
        verb, them = ("are", "them") if span[1] > span[0] else ("is", "it")
        yield _finding("retention", name, span, blocks=False, verb=verb, them=them, kept=kept)


def _missing_files(table: TableHandle, states: list[State]) -> Iterator[FeedFinding]:
    places = Places(table.storage, table.name.table_path)
    paths = list(dict.fromkeys(path for state in states for path in state.commit.files))
    there = dict(zip(paths, map_concurrently(table.storage, places.exists, paths), strict=True))
    for state in states:
        files, span = state.commit.files, (state.version, state.version)
        if missing := [path for path in files if not there[path]]:
            file, of = unquote(missing[0]), counted(len(files), "file")
            lost = len(missing)
            yield _finding("missing-file", str(table.name), span, file=file, lost=lost, files=of)


def _unlike_latest(name: str, states: list[State], latest: State) -> Iterator[FeedFinding]:
    """Find versions that don't fit the newest columns, which are used without column mapping."""
    breaks = {state.version: find_breaks(state.fields, latest.fields) for state in states}
    for a, b in _runs(version for version, found in breaks.items() if found):
        facts = _facts(breaks[b]) | {"verb": "do" if b > a else "does", "next": b + 1}
        yield _finding("schema", name, (a, b), file=log_file(b + 1), **facts)


def _breaks_between(name: str, states: list[State]) -> Iterator[FeedFinding]:
    """Find schema changes within the range, which is read with the columns of its end."""
    for before, after in pairwise(states):
        if breaks := find_breaks(before.fields, after.fields):
            span, facts = (after.version, after.version), _facts(breaks)
            found = _finding("break", name, span, before=after.version - 1, **facts)
            yield replace(found, rule="schema")


def _narrowed(table: TableHandle, states: list[State], latest: State) -> Iterator[FeedFinding]:
    """Find commits that remove data files whose types don't fit the columns of the feed.

    The rows of these files are changes of the commit, unless it has change files.
    """
    path, version = table.name.table_path, states[0].version
    earlier: Snapshot | None = None
    if version > 0 and states[0].commit.metadata is not None:
        earlier = read_snapshot(table.storage, path, version - 1)
    for before, state in zip([earlier, *states[:-1]], states, strict=True):
        if before is None or state.commit.metadata is None:
            continue
        new = state if latest.is_mapped else latest
        if find_breaks(state.fields, new.fields):
            continue
        breaks = [
            found for found in find_breaks(before.fields, new.fields) if found.widens is False
        ]
        if breaks and _reads_removed(table, state.version):
            span = (state.version, state.version)
            found = _finding("narrowed", str(table.name), span, **_facts(breaks))
            yield replace(found, rule="schema")


def _reads_removed(table: TableHandle, version: int) -> bool:
    """Return whether the changes of a commit are read from data files that it removes."""
    path = commit_path(table.name.table_path, version)
    actions = list(read_actions(table.storage, path, ("remove", "cdc")))
    return all(kind == "remove" for kind, _ in actions) and any(
        action.get("dataChange", True) for _, action in actions
    )


def _facts(breaks: list[Break]) -> dict[str, Any]:
    return {"column": breaks[0].column, "text": " and ".join(found.text for found in breaks)}


def _notes(name: str, states: list[State]) -> Iterator[FeedFinding]:
    """Find commits that don't prevent reading, but whose raw changes may surprise readers."""
    life: tuple[str, str | None] | None = None
    for state in states:
        span, commit = (state.version, state.version), state.commit
        mode = str(commit.parameters.get("mode", "")).lower()
        if commit.operation == "RESTORE":
            then = commit.parameters.get("version") or "a time"
            yield _finding("restore", name, span, blocks=False, then=then)
        elif commit.operation == "CLONE":
            yield _finding("clone", name, span, blocks=False)
        elif mode == "overwrite" or commit.operation.startswith(("REPLACE", "CREATE OR REPLACE")):
            yield _finding("overwrite", name, span, blocks=False)
        table_id, folder = life or (state.metadata["id"], None)
        life = (state.metadata["id"], state.incarnation or folder)
        if life[0] != table_id or (folder is not None and life[1] != folder):
            yield _finding("recreated", name, span, blocks=False)


# The message and the fix of each rule.
_TEXTS = {
    "log-lost": (
        "The log no longer contains {versions}.",
        "start at version {first}; delta.logRetentionDuration sets how long versions are kept.",
    ),
    "feed-off": (
        "The change feed was not enabled in {versions}; changes are recorded only while it is"
        " enabled.",
        "{fix}",
    ),
    "retention": (
        f"{{Versions}} {{verb}} older than {FILE_RETENTION} ({{kept}}): a plain Spark session"
        " refuses to read {them}.",
        f"SET {ENFORCED} = false in a plain session; a longer {FILE_RETENTION} also keeps the files"
        " from VACUUM.",
    ),
    "missing-file": (
        "{Versions}: a VACUUM deleted {lost} of {files} from which its changes are read.",
        "start after {versions}, or read with across_gaps=True.",
    ),
    "schema": (
        "After version {end} the table {text}. A feed is read with the newest columns, which"
        " {versions} {verb} not fit.",
        f"start at version {{next}}, or SET {UNSAFE_CONF} = true if the old values fit the new"
        " columns, or read with across_gaps=True.",
    ),
    "break": (
        "{Versions} {text}. No range that crosses it can be read.",
        "read up to version {before}, then from {versions}; or read with across_gaps=True.",
    ),
    "narrowed": (
        "{Versions} {text}. Its changes contain rows of the files before, which cannot be read with"
        " the new type.",
        "start after {versions}, or read with across_gaps=True if the old values fit the new type.",
    ),
    "reserved-column": (
        "The name of the column {column} is reserved for the change feed.",
        "rename it, or call table.changes.enable(rename_reserved=True).",
    ),
    "restore": (
        "{Versions} is a RESTORE to {then}: rows that it does not change may appear as deleted"
        " and inserted.",
        "use changes.net(), which omits rows that are equal before and after.",
    ),
    "clone": (
        "{Versions} is a clone: its feed starts with all rows as inserts, and earlier changes are"
        " in the source's feed.",
        "read the source's feed for earlier changes.",
    ),
    "overwrite": (
        "{Versions} overwrites rows: unchanged rows appear as deleted and inserted.",
        "use changes.net(), which omits rows that are equal before and after.",
    ),
    "recreated": (
        "{Versions} recreates the table: from then on it is another table of the same name.",
        "read the versions before it separately.",
    ),
    "readable": ("{Versions} can be read.", "read from {start} to {end}."),
}


def _finding(
    rule: str,
    name: str,
    span: tuple[int, int],
    *,
    file: str | None = "",
    column: str | None = None,
    blocks: bool = True,
    **facts: object,
) -> FeedFinding:
    """Return a finding with its rule's text; by default its file is the first version's commit."""
    facts |= {"start": span[0], "end": span[1], "column": column}
    facts |= {noun + "s": span_text(span, noun) for noun in ("version", "Version")}
    message, fix = (text.format(**facts) for text in _TEXTS[rule])
    return FeedFinding(
        rule=rule,
        table=name,
        file=log_file(span[0]) if file == "" else file,
        column=column,
        message=message,
        fix=fix,
        versions=span,
        blocks=blocks,
    )
