"""The definition of a view, the source versions of its rows, and its status.

The query and its sources are stored as a property of the view's Delta table. So one commit creates
a view, and nothing else is needed to use it. The views of a lake are found by reading the tables'
logs. Columns whose names begin with `__mirrorlake_` contain values that the refresh rules need.
Queries through the lake do not return these columns.

Each refresh is one commit. The note of the commit contains the source versions that the refresh
read. Other commits that change no rows do not matter. After a RESTORE of the view, the note of the
restored version applies. If another writer changed rows of the view, the view's state is unknown,
and the next refresh is a full one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlglot import exp

from mirrorlake.delta.commits import parse_note, read_commit, read_commit_info
from mirrorlake.delta.snapshot import Snapshot, delta_tables, open_snapshot, read_snapshot
from mirrorlake.errors import QueryError, TableNotFoundError, UsageError
from mirrorlake.history.versions import version_at
from mirrorlake.mirror.options import VIEW_PROPERTY
from mirrorlake.names import StageName, TableName, quote, visible_columns
from mirrorlake.query.statement import (
    DIALECT,
    NamedTable,
    When,
    apply_edits,
    named_tables,
    parse_statement,
)
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import check_format


@dataclass(frozen=True)
class Query:
    """A parsed query.

    Attributes:
        text: the query, with shorthands such as `@v2` expanded.
        tree: the syntax tree of sqlglot.
        tables: the places where the query names tables, in the order of the text.
    """

    text: str
    tree: exp.Query
    tables: tuple[NamedTable, ...]

    @property
    def items(self) -> list[exp.Expr]:
        """The selected expressions of a plain SELECT, without aliases."""
        return [item.unalias() for item in self.tree.expressions]

    def condition(self, clause: str) -> str:
        """Return the condition of `where` or `having` as SQL; empty if there is none."""
        found = self.tree.args.get(clause)
        return "" if found is None else as_sql(found.this)

    def replaced(self, relations: dict[int, str]) -> str:
        """Return the query with other relations for the tables at these offsets of the text."""
        edits = []
        for one in self.tables:
            if one.start in relations:
                version = one.node.args.get("version")
                after = version.meta["span"][1] if version and version.meta else one.end
                edits.append((one.start, one.end, relations[one.start]))
                edits.append((after, after, _alias(one)))
        return apply_edits(self.text, edits)

    def source(self, relations: Mapping[int, str]) -> str:
        """Return FROM and the joins of a plain SELECT, with other relations for its tables."""
        parts = [self.tree.args["from_"], *self.tree.args.get("joins", ())]
        texts = {id(one.node): f"{relations[one.start]}{_alias(one)}" for one in self.tables}
        copies = []
        for part in parts:
            alias = f" AS {as_sql(part.this.args['alias'])}" if part.this.alias else ""
            copy = part.copy()
            copy.set("this", exp.Var(this=f"{texts[id(part.this)]}{alias}"))
            copies.append(as_sql(copy))
        return " ".join(copies)


def _alias(table: NamedTable) -> str:
    """Return the alias that a table needs if its name is replaced; empty if it has one."""
    return "" if table.node.alias else f" AS {quote(table.alias)}"


def parse_query(sql: str, view: TableName | None = None) -> Query:
    """Parse a view's query.

    Args:
        sql: the query.
        view: the view whose stages the query may name.

    Raises:
        QueryError: sqlglot cannot parse the query.
        UsageError: the text is not a query, or has several statements.
    """
    statement = parse_statement(sql.strip().rstrip(";").strip())
    if error := statement.error:
        raise QueryError(
            f"The view's query can't be parsed: {str(error).splitlines()[0]}"
        ) from error
    tree = statement.trees[0] if len(statement.trees) == 1 else None
    if not isinstance(tree, exp.Query):
        raise UsageError("The text of a view is not exactly one query.", hint="write one SELECT.")
    tables = [*named_tables(tree), *(_named_stages(tree, view) if view else ())]
    return Query(statement.text, tree, tuple(sorted(tables, key=lambda one: one.start)))


def _named_stages(tree: exp.Expr, view: TableName) -> Iterator[NamedTable]:
    """Yield the places where a query names stages of a view, such as `view/1`."""
    for node in tree.find_all(exp.Table):
        owner, _, number = node.name.rpartition("/")
        if not node.db and owner == str(TableName(view.schema, view.name)) and number.isdecimal():
            name, meta = StageName(view.schema, view.name, int(number)), node.this.meta
            yield NamedTable(name, node, meta["start"], meta["end"] + 1)


def as_sql(node: exp.Expr) -> str:
    """Return a part of a query as SQL."""
    return node.sql(DIALECT, normalize_functions=False, comments=False)


def alike(node: exp.Expr) -> exp.Expr:
    """Return a part of a query with its names in lower case, so that equal parts compare equal."""
    return node.transform(
        lambda part: (
            exp.to_identifier(part.name.lower()) if isinstance(part, exp.Identifier) else part
        )
    )


def find_stars(part: exp.Expr) -> list[exp.Star]:
    """Return each `*` of a part that means columns, which excludes `count(*)`."""
    stars = part.find_all(exp.Star)
    return [star for star in stars if star.parent is None or star.parent.name.lower() != "count"]


GONE_FIX = "undrop the table, or drop the view."
FORMAT = 2  # definitions without stages have format 1


@dataclass(frozen=True)
class Definition:
    """The definition of a view.

    Attributes:
        name: the name of the view's table.
        id: the id of the view, which differs from that of another view of the same name.
        sql: the query of the view.
        sources: the columns that each source table had when the view was created. The view does not
            read other columns.
        stages: the queries of the stages, in the order of their dependencies; the last one is that
            of the view's own table. Empty if the view is refreshed without stages.
    """

    name: TableName
    id: str
    sql: str
    sources: dict[TableName, tuple[str, ...]]
    stages: tuple[str, ...] = ()

    @property
    def chain(self) -> list[Definition]:
        """The definitions of the stages. The last one has the name and the id of the view."""
        found = []
        for number, sql in enumerate(self.stages, 1):
            name, own = StageName(self.name.schema, self.name.name, number), f"{self.id}-{number}"
            tables = parse_query(sql, self.name).tables
            read = {one.name: self.sources.get(one.name, ()) for one in tables}
            found.append(Definition(name, own, sql, read))
        return [*found[:-1], *(replace(one, name=self.name, id=self.id) for one in found[-1:])]

    @property
    def app_id(self) -> str:
        """The application id under which the view's commits are numbered."""
        return f"mirrorlake-view-{self.id}"

    def as_property(self) -> str:
        """Return the definition as the value of the table property."""
        sources = {str(name): list(columns) for name, columns in self.sources.items()}
        document = {"format": 1, "id": self.id, "sql": self.sql, "sources": sources}
        if self.stages:
            document |= {"format": FORMAT, "stages": self.stages}
        return json.dumps(document, ensure_ascii=False)

    def __repr__(self) -> str:
        return f"{self.name}: {' '.join(self.sql.split())}"


def definition_of(name: TableName, snapshot: Snapshot | None) -> Definition | None:
    """Return the view that a table belongs to, or None.

    Raises:
        FormatError: the definition has a newer format.
    """
    text = snapshot.properties.get(VIEW_PROPERTY) if snapshot else None
    if text is None:
        return None
    kept = check_format(json.loads(text), f"The view {name}", FORMAT)
    sources = {TableName.parse(table): tuple(cols) for table, cols in kept["sources"].items()}
    return Definition(name, kept["id"], kept["sql"], sources, tuple(kept.get("stages", ())))


def read_definition(storage: Storage, name: TableName) -> Definition:
    """Return the definition of the view with this name.

    Raises:
        TableNotFoundError: there is no table of that name.
        UsageError: the name is that of a table, not of a view.
    """
    snapshot = read_snapshot(storage, name.table_path)
    found = definition_of(name, snapshot)
    if found is None:
        known = ", ".join(str(view.name) for view in list_definitions(storage))
        choice = f"choose one of the lake's views: {known}." if known else "create a view first."
        if snapshot is not None:
            raise UsageError(f"{name} is a table, not a view.", hint=choice)
        raise TableNotFoundError(f"There is no view {name} in the lake.", hint=choice)
    return found


def list_definitions(
    storage: Storage, tables: Iterable[TableName] | None = None
) -> list[Definition]:
    """Return the views of a lake, ordered by name.

    Args:
        storage: the lake's files.
        tables: return only views among these tables; by default, all views.
    """
    names = delta_tables(storage) if tables is None else tables
    found = (definition_of(name, read_snapshot(storage, name.table_path)) for name in names)
    return [definition for definition in found if definition is not None]


def hiding_columns(
    storage: Storage, name: TableName | None, when: When | None = None
) -> list[str] | None:
    """Return the visible columns of a view that has hidden columns; None for any other table.

    Args:
        storage: the lake's files.
        name: the table's name.
        when: a readable version or timestamp, whose columns are returned; by default the newest.
    """
    snapshot = None if name is None else read_snapshot(storage, name.table_path)
    if snapshot is None or VIEW_PROPERTY not in snapshot.properties:
        return None
    if name is not None and when is not None:
        version = version_at(storage, name, when) if isinstance(when, datetime) else when
        snapshot = read_snapshot(storage, name.table_path, version) or snapshot
    return columns_of_view(snapshot)


def columns_of_view(snapshot: Snapshot | None) -> list[str] | None:
    """Return the visible columns, as `hiding_columns`, of the snapshot of a table or frame."""
    if snapshot is None or VIEW_PROPERTY not in snapshot.properties:
        return None
    seen = visible_columns(snapshot.schema)
    return None if len(seen) == len(snapshot.schema) else seen


NOTE = "mirrorlake.view"


@dataclass(frozen=True)
class ViewState:
    """The state of a view.

    Attributes:
        version: the newest version of the view's table.
        number: the number of the last refresh.
        sources: the id and version of each source that the last refresh read; empty if unknown.
        reason: why the view's rows do not belong to these versions; None if they do.
    """

    version: int
    number: int
    sources: dict[str, tuple[str, int]]
    reason: Reason | None = None


def commit_metadata(
    definition: Definition, number: int, base: int, how: dict[str, Any], sources: dict[str, Any]
) -> str:
    """Return the `userMetadata` of a refresh's commit.

    Args:
        definition: the view.
        number: the number of the refresh.
        base: the version of the view's table that the refresh started from.
        how: the mode of the refresh and its reason.
        sources: the id and version of each source.
    """
    document = {NOTE: definition.id, "refresh": number, "base": base, **how, "sources": sources}
    return json.dumps(document, ensure_ascii=False)


def note_of(definition: Definition, info: dict[str, Any]) -> dict[str, Any] | None:
    """Return the note of a refresh from a commit of the view; None for other commits."""
    found = parse_note(info.get("userMetadata"))
    return found if found.get(NOTE) == definition.id else None


def read_view_state(storage: Storage, definition: Definition) -> ViewState:
    """Return the state of a view, from the commits of its table since the last refresh.

    Raises:
        TableNotFoundError: the view was dropped.
    """
    path = definition.name.table_path
    snapshot = open_snapshot(storage, definition.name)
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
    """Check whether a commit of a range changed rows. A missing commit counts as one that did."""
    for version in range(first, last + 1):
        try:
            if read_commit(storage, path, version, files=True).files:
                return True
        except FileNotFoundError:
            return True
    return False


@dataclass(frozen=True)
class SourceStatus:
    """The status of one source of a view.

    Attributes:
        table: the name of the source.
        shown: the version that the last refresh read; None if unknown.
        newest: the newest version; None if the table does not exist any more.
    """

    table: str
    shown: int | None
    newest: int | None


@dataclass(frozen=True)
class ViewStatus:
    """The status of a view.

    Attributes:
        view: the name of the view.
        state: `current`, `behind` its sources or theirs, or `unknown` if the next refresh is a full
            one.
        reason: the code of the reason for a full refresh, or `SOURCE_GONE` if a source was removed;
            None otherwise.
        version: the newest version of the view's table.
        sources: the status of each source.
        lag_seconds: the age in seconds of the oldest commit of a source that no refresh has read,
            also of the sources of a view that it reads; 0 if there is none, None if unknown.
    """

    view: str
    state: str
    reason: str | None
    version: int
    sources: tuple[SourceStatus, ...]
    lag_seconds: float | None

    @property
    def shown_sources(self) -> str:
        """The read and the newest version of each source, such as `orders 3 of 5`."""
        return ", ".join(f"{s.table} {_at(s.shown)} of {_at(s.newest)}" for s in self.sources)

    def as_dict(self) -> dict[str, Any]:
        """Return the view's entry in the document of `status --json`."""
        return asdict(self)


def _at(version: int | None) -> str:
    return "?" if version is None else str(version)


def view_status(storage: Storage, definition: Definition) -> ViewStatus:
    """Return the status of a view; read the commits of the view's table since the last refresh."""
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
        else:
            view = definition_of(name, snapshot)
            lag_of_view = None if view is None else view_status(storage, view).lag_seconds
            if lag_of_view:  # the source is a view that is behind
                oldest = min(oldest or now, now - lag_of_view)
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


# Why no rule covers a query. `docs/views.md` lists these codes, those below, and `SOURCE_GONE`.
QUERY_REASONS = {
    "AGGREGATE_OF_WINDOW": "a window over groups has no rule",
    "DISTINCT_OF_GROUPS": "DISTINCT over groups or windows has no rule",
    "GLOBAL_AGGREGATE": "without GROUP BY only sums and counts can be kept up to date",
    "GROUPING_SETS": "this ROLLUP, CUBE or GROUPING SETS cannot be rewritten into stages",
    "JOIN_KIND": "NATURAL, LATERAL and other special joins have no rule",
    "LATERAL_VIEW": "LATERAL VIEW, PIVOT and table functions have no rule",
    "LIMIT": "LIMIT keeps rows that depend on all others",
    "NESTED_COLUMN": "rows with nested values can't be distinguished by their hash",
    "NONDETERMINISTIC": "a function can return another value at each call",
    "ORDER_DEPENDENT": "an aggregate depends on the order in which rows are read",
    "OUTER_JOIN": (
        "an outer join has a rule only if its condition compares columns with `=`;"
        " RIGHT must be the first join, FULL the only one"
    ),
    "SET_OPERATION": "this set operation cannot be rewritten into stages that have a rule",
    "STAR": "this `*` can't be expanded into columns",
    "SUBQUERY": "these subqueries or this WITH cannot be rewritten into stages",
    "SYNTAX": "a clause of the query has no rule",
    "TIME_TRAVEL": "a table at a fixed version has no changes",
    "UNKNOWN_FUNCTION": "a function is not one of Spark's own, so its effect is unknown",
    "WINDOW_WITHOUT_PARTITION": "windows without a common PARTITION BY column depend on all rows",
}
# Why the state of a view or of its sources requires a full refresh.
STATE_REASONS = {
    "ASKED": "a full refresh was asked for",
    "COST": "a full refresh is expected to be cheaper",
    "FIRST": "the view was never filled",
    "STATE_LOST": "the log of the view's own table no longer contains the recorded source versions",
    "VIEW_CHANGED": "another writer changed the view's table",
    "SOURCE_RECREATED": "a source was dropped and created again",
    "FEED_OFF": "a source had no change feed for some versions, and no row ids to compare instead",
    "FEED_VACUUMED": "VACUUM deleted files of a source's change feed",
    "LOG_LOST": "the log of a source no longer contains all commits since the recorded version",
    "SCHEMA_CHANGED": (
        "a column of a source was dropped, renamed or changed, so its feed can't be read"
    ),
    "OLD_VERSION_LOST": "the recorded version of a source can no longer be read",
    "COLUMNS_CHANGED": "the query's columns have other types than those of the view's table",
}


@dataclass(frozen=True)
class Reason:
    """The reason for a full refresh.

    Attributes:
        code: one of the codes of `QUERY_REASONS` and `STATE_REASONS`.
        why: the reason in words, with the object that it concerns.
        fix: how the next refresh can be incremental; may be empty.
    """

    code: str
    why: str
    fix: str = ""

    def __repr__(self) -> str:
        text = f"{self.code}: {self.why}"
        return f"{text} ({self.fix})" if self.fix else text


def reason(code: str, what: str = "") -> Reason:
    """Return a reason by its code, with the object that it concerns."""
    why = QUERY_REASONS.get(code) or STATE_REASONS[code]
    return Reason(code, f"{what}: {why}" if what else why)
