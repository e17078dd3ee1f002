"""How a view stands, from the logs alone: what it shows, and how far its sources moved on."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.delta.commits import read_commit_info
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.rows.views.definition import Definition
from mirrorlake.rows.views.state import read_view_state
from mirrorlake.storage import Storage

CURRENT, BEHIND, UNKNOWN = "current", "behind", "unknown"
GONE = "SOURCE_GONE"


@dataclass(frozen=True)
class SourceStatus:
    """One source of a view.

    Attributes:
        table: its name.
        shown: the version that the view shows; None if nobody knows.
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
            None if nobody knows.
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
    standing = read_view_state(storage, definition)
    sources, oldest = [], None
    reason = standing.reason.code if standing.reason else None
    now = time.time()
    for name in sorted(definition.sources, key=str):
        table_id, shown = standing.sources.get(str(name), ("", None))
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
            moment = info.get("timestamp", now * 1000) / 1000
            oldest = moment if oldest is None else min(oldest, moment)
    lag = 0.0 if oldest is None else round(max(now - oldest, 0.0), 3)
    state = UNKNOWN if reason else CURRENT if oldest is None else BEHIND
    return ViewStatus(
        str(definition.name),
        state,
        reason,
        standing.version,
        tuple(sources),
        None if reason else lag,
    )
