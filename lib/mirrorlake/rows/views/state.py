"""Which versions a view's table shows, by its own log, and how far its sources moved on.

Each refresh is one commit, which carries a note with the versions that it read. Commits that change
no rows are passed over; after a RESTORE of the view the note of the version that came back counts;
rows that another writer wrote make the view's state unknown, and the next refresh a full one.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.delta.commits import parse_note, read_commit, read_commit_info
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.rows.views.definition import Definition
from mirrorlake.rows.views.reasons import Reason, reason
from mirrorlake.storage import Storage

NOTE = "mirrorlake.view"


@dataclass(frozen=True)
class ViewState:
    """Where a view stands.

    Attributes:
        version: the newest version of its table.
        number: how many refreshes there were, for the next one's number.
        sources: id and version of each source that its last refresh read; empty if unknown.
        reason: why the view does not show them; None if it does.
    """

    version: int
    number: int
    sources: dict[str, tuple[str, int]]
    reason: Reason | None = None


def commit_metadata(
    definition: Definition, number: int, base: int, how: dict[str, Any], sources: dict[str, Any]
) -> str:
    """What a refresh writes into its commit.

    Args:
        definition: the view.
        number: the refresh's.
        base: the version of the view's table that it works on.
        how: what kind of refresh it is, and why.
        sources: id and version of each source.
    """
    document = {NOTE: definition.id, "refresh": number, "base": base, **how, "sources": sources}
    return json.dumps(document, ensure_ascii=False)


def read_note(storage: Storage, definition: Definition, version: int) -> dict[str, Any] | None:
    """The note of one of the view's versions; None if no refresh made it."""
    info = read_commit_info(storage, definition.name.table_path, version)
    found = parse_note(info.get("userMetadata"))
    return found if found.get(NOTE) == definition.id else None


def read_view_state(storage: Storage, definition: Definition) -> ViewState:
    """Where a view stands, from its table's log: the cost is the commits since its last refresh."""
    path = definition.name.table_path
    snapshot = read_snapshot(storage, path)
    assert snapshot is not None, definition
    number = snapshot.txns.get(definition.app_id, 0)
    changed = reason("VIEW_CHANGED", str(definition.name))
    why: Reason | None = None
    version = snapshot.version
    while version >= 0:
        if note := read_note(storage, definition, version):
            if _changed(storage, path, note["base"] + 1, version - 1):
                why = changed
            sources = {name: (one["id"], one["version"]) for name, one in note["sources"].items()}
            return ViewState(snapshot.version, number, sources, why)
        info = read_commit_info(storage, path, version)
        if not info:
            why = reason("STATE_LOST", str(definition.name))
            break
        if info.get("operation") == "RESTORE":
            back = str((info.get("operationParameters") or {}).get("version"))
            if not back.isdecimal():  # restored to a timestamp
                why = changed
                break
            version = int(back)
            continue
        if _changed(storage, path, version, version):
            why = changed
        version -= 1
    why = why or reason("FIRST", str(definition.name))
    return ViewState(snapshot.version, number, {}, why)


def _changed(storage: Storage, path: str, first: int, last: int) -> bool:
    """Whether a commit of a range changed rows; what the log no longer has counts as changed."""
    for version in range(first, last + 1):
        try:
            if read_commit(storage, path, version, files=True).files:
                return True
        except FileNotFoundError:
            return True
    return False


CURRENT, BEHIND, UNKNOWN = "current", "behind", "unknown"
GONE = "SOURCE_GONE"


@dataclass(frozen=True)
class SourceStatus:
    """One source of a view.

    Attributes:
        table: its name.
        shown: the version that the view shows; None if unknown.
        newest: its newest version; None if the table is gone.
    """

    table: str
    shown: int | None
    newest: int | None


@dataclass(frozen=True)
class ViewStatus:
    """How a view stands.

    Attributes:
        view: its name.
        state: `current`, `behind` its sources, or `unknown` where its next refresh is a full one.
        reason: the code that says why that is, or `SOURCE_GONE`; None otherwise.
        version: the newest version of its table.
        sources: what it shows.
        lag_seconds: age of the oldest commit to a source that it does not show; 0 if there is none,
            None if unknown.
    """

    view: str
    state: str
    reason: str | None
    version: int
    sources: tuple[SourceStatus, ...]
    lag_seconds: float | None

    def as_dict(self) -> dict[str, Any]:
        """The view's entry in what `status --json` prints."""
        return asdict(self)


def view_status(storage: Storage, definition: Definition) -> ViewStatus:
    """How a view stands; the cost is the commits of its table since its last refresh."""
    shows = read_view_state(storage, definition)
    sources, oldest = [], None
    reason = shows.reason.code if shows.reason else None
    now = time.time()
    for name in sorted(definition.sources, key=str):
        table_id, shown = shows.sources.get(str(name), ("", None))
        snapshot = read_snapshot(storage, name.table_path)
        newest = None if snapshot is None else snapshot.version
        sources.append(SourceStatus(str(name), shown, newest))
        if snapshot is None:
            reason = GONE
        elif shown is None:
            continue
        elif str(snapshot.metadata["id"]) != table_id or shown > snapshot.version:
            reason = reason or "SOURCE_RECREATED"
        elif shown < snapshot.version:
            info = read_commit_info(storage, name.table_path, shown + 1)
            committed = info.get("timestamp", now * 1000) / 1000
            oldest = committed if oldest is None else min(oldest, committed)
    lag = 0.0 if oldest is None else round(max(now - oldest, 0.0), 3)
    state = UNKNOWN if reason else CURRENT if oldest is None else BEHIND
    return ViewStatus(
        str(definition.name),
        state,
        reason,
        shows.version,
        tuple(sources),
        None if reason else lag,
    )
