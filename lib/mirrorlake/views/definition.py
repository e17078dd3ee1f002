"""What a view is, which versions it shows, and why its next refresh is full, all read from logs.

Its query and its sources are kept as a property of the Delta table behind it. So a view is made by
one commit, survives the loss of everything but its table, and is found by a look into the tables'
logs. Columns whose names begin with `__mirrorlake_` carry what the rules need; queries through the
lake don't see them.

Each refresh is one commit, which carries a note with the versions that it read. Commits that change
no rows are passed over; after a RESTORE of the view the note of the version that came back counts;
rows that another writer wrote make the view's state unknown, and the next refresh a full one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.delta.commits import parse_note, read_commit, read_commit_info
from mirrorlake.delta.snapshot import Snapshot, delta_tables, read_snapshot
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.mirror.properties import VIEW_PROPERTY
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import check_format
from mirrorlake.views.query import HIDDEN

FORMAT = 1


@dataclass(frozen=True)
class Definition:
    """A view.

    Attributes:
        name: its table.
        id: distinguishes it from another view of the same name.
        sql: its query.
        sources: the columns that each table had when the view was made; it sees no others.
    """

    name: TableName
    id: str
    sql: str
    sources: dict[TableName, tuple[str, ...]]

    @property
    def app_id(self) -> str:
        """What its commits are numbered under."""
        return f"mirrorlake-view-{self.id}"

    def as_property(self) -> str:
        """The table property's text."""
        sources = {str(name): list(columns) for name, columns in self.sources.items()}
        document = {"format": FORMAT, "id": self.id, "sql": self.sql, "sources": sources}
        return json.dumps(document, ensure_ascii=False)

    def __repr__(self) -> str:
        return f"{self.name}: {' '.join(self.sql.split())}"


def definition_of(name: TableName, snapshot: Snapshot | None) -> Definition | None:
    """The view that a table belongs to, or None.

    Raises:
        FormatError: it is of a newer format.
    """
    text = snapshot.properties.get(VIEW_PROPERTY) if snapshot else None
    if text is None:
        return None
    kept = check_format(json.loads(text), f"The view {name}", FORMAT)
    sources = {TableName.parse(table): tuple(cols) for table, cols in kept["sources"].items()}
    return Definition(name, kept["id"], kept["sql"], sources)


def read_definition(storage: Storage, name: TableName) -> Definition:
    """The view of a name.

    Raises:
        TableNotFoundError: there is no table of that name.
        UsageError: it is a table, not a view.
    """
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        raise TableNotFoundError(f"There is no view {name} in the lake.", hint="create it first.")
    found = definition_of(name, snapshot)
    if found is None:
        raise UsageError(f"{name} is a table, not a view.", hint="create a view of another name.")
    return found


def list_definitions(
    storage: Storage, tables: Iterable[TableName] | None = None
) -> list[Definition]:
    """The views of a lake, ordered by name.

    Args:
        storage: the lake's files.
        tables: look among these only.
    """
    names = delta_tables(storage) if tables is None else tables
    found = (definition_of(name, read_snapshot(storage, name.table_path)) for name in names)
    return [definition for definition in found if definition is not None]


def hiding_columns(storage: Storage, name: TableName | None) -> list[str] | None:
    """The columns that a query sees of a view that hides some; None for any other table."""
    snapshot = None if name is None else read_snapshot(storage, name.table_path)
    if snapshot is None or VIEW_PROPERTY not in snapshot.properties:
        return None
    seen = visible_columns(snapshot)
    return None if len(seen) == len(snapshot.schema) else seen


def visible_columns(snapshot: Snapshot) -> list[str]:
    """A table's columns without those that a view hides."""
    return [name for name in snapshot.schema if not name.startswith(HIDDEN)]


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


def note_of(definition: Definition, info: dict[str, Any]) -> dict[str, Any] | None:
    """What a refresh wrote into one of the view's commits; None if no refresh made it."""
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
        info = read_commit_info(storage, path, version)
        if note := note_of(definition, info):
            if _changed(storage, path, note["base"] + 1, version - 1):
                why = changed
            sources = {name: (one["id"], one["version"]) for name, one in note["sources"].items()}
            return ViewState(snapshot.version, number, sources, why)
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

    @property
    def shown_sources(self) -> str:
        """The version that it shows of each source and the newest, as `orders 3 of 5`."""
        return ", ".join(f"{s.table} {_at(s.shown)} of {_at(s.newest)}" for s in self.sources)

    def as_dict(self) -> dict[str, Any]:
        """Return the view's entry in what `status --json` prints."""
        return asdict(self)


def _at(version: int | None) -> str:
    return "?" if version is None else str(version)


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
            reason = "SOURCE_GONE"
        elif shown is None:
            continue
        elif str(snapshot.metadata["id"]) != table_id or shown > snapshot.version:
            reason = reason or "SOURCE_RECREATED"
        elif shown < snapshot.version:
            info = read_commit_info(storage, name.table_path, shown + 1)
            committed = info.get("timestamp", now * 1000) / 1000
            oldest = committed if oldest is None else min(oldest, committed)
    lag = 0.0 if oldest is None else round(max(now - oldest, 0.0), 3)
    state = "unknown" if reason else "current" if oldest is None else "behind"
    return ViewStatus(
        str(definition.name),
        state,
        reason,
        shows.version,
        tuple(sources),
        None if reason else lag,
    )


# What a query can be that no rule covers; `docs/views.md` lists all codes.
QUERY_REASONS = {
    "AGGREGATE_OF_WINDOW": "a window over groups has no rule",
    "DISTINCT_OF_GROUPS": "DISTINCT over groups or windows has no rule",
    "GLOBAL_AGGREGATE": "without GROUP BY only sums and counts can be kept up to date",
    "GROUPING_SETS": "ROLLUP, CUBE and GROUPING SETS have no rule",
    "JOIN_KIND": "NATURAL, LATERAL and other special joins have no rule",
    "LATERAL_VIEW": "LATERAL VIEW, PIVOT and table functions have no rule",
    "LIMIT": "LIMIT keeps rows that depend on all others",
    "NESTED_COLUMN": "rows with nested values can't be distinguished by their hash",
    "NONDETERMINISTIC": "a function returns other values at each call",
    "ORDER_DEPENDENT": "an aggregate depends on the order in which rows are read",
    "OUTER_JOIN": "an outer join has a rule only on equal columns, and FULL only with two tables",
    "SET_OPERATION": "UNION, INTERSECT and EXCEPT have no rule",
    "STAR": "this `*` can't be expanded into columns",
    "SUBQUERY": "subqueries and WITH have no rule",
    "SYNTAX": "a clause of the query has no rule",
    "TIME_TRAVEL": "a table at a fixed version has no changes",
    "UNKNOWN_FUNCTION": "a function is not one of Spark's own, so what it does is unknown",
    "WINDOW_WITHOUT_PARTITION": "windows that share no PARTITION BY depend on all rows",
}
# What can happen to a view or its sources.
STATE_REASONS = {
    "ASKED": "a full refresh was asked for",
    "COST": "a full refresh is expected to be cheaper",
    "FIRST": "the view was never filled",
    "STATE_LOST": "the log no longer says which versions the view shows",
    "VIEW_CHANGED": "another writer changed the view's table",
    "SOURCE_RECREATED": "a source was created again",
    "FEED_OFF": "a source had no change feed, and no row ids to find its changes by",
    "FEED_VACUUMED": "files of a source's change feed are gone",
    "FEED_RETENTION": "a source's changes are older than Delta's retention allows",
    "LOG_LOST": "a source's log no longer reaches back to the version that the view shows",
    "SCHEMA_CHANGED": "a source's columns changed, and its feed can't be read across that",
    "OLD_VERSION_LOST": "the version of a source that the view shows can't be read any more",
    "COLUMNS_CHANGED": "the view's own columns have other types now",
}


@dataclass(frozen=True)
class Reason:
    """Why a refresh is full.

    Attributes:
        code: one of the above.
        why: what exactly it is here.
        fix: what would let the next refresh be incremental; may be empty.
    """

    code: str
    why: str
    fix: str = ""

    def __repr__(self) -> str:
        text = f"{self.code}: {self.why}"
        return f"{text} ({self.fix})" if self.fix else text


def reason(code: str, what: str = "") -> Reason:
    """A reason by its code, with what it is about."""
    why = QUERY_REASONS.get(code) or STATE_REASONS[code]
    return Reason(code, f"{what}: {why}" if what else why)
