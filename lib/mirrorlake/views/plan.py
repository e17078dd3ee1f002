"""Prepare a view's query: the versions of its sources, its rule, its columns and their types.

All sources are read at versions that were the newest ones at the same time. Changes are read from
the change data feed. If the feed was disabled and the table has row tracking, two versions are
compared by row ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp

from mirrorlake.delta.commits import (
    RowsChanged,
    Timeline,
    read_commit,
    read_states,
    read_versions,
)
from mirrorlake.delta.key_search import KeySearch
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import TableHandle, column_types
from mirrorlake.errors import BusyError, QueryError, TableNotFoundError, UsageError, VersionError
from mirrorlake.feed.doctor import Diagnosis, examine
from mirrorlake.feed.ranges import ORIGIN, bridge, read_feed
from mirrorlake.history.diff import RESERVED, is_tracked
from mirrorlake.history.versions import check_version, versions_at_once
from mirrorlake.names import HIDDEN, StageName, TableName, quote, visible_columns
from mirrorlake.spark.sql import delta_name, spark_message
from mirrorlake.storage.files import Storage
from mirrorlake.views.definition import (
    GONE_FIX,
    Definition,
    Query,
    Reason,
    as_sql,
    find_stars,
    parse_query,
    reason,
)
from mirrorlake.views.shape import KEY, Method, Role, Shape, read_shape, settle_types
from mirrorlake.views.stages import read_stages

SIGN = f"{HIDDEN}sign"
TABLE = f"{HIDDEN}table"  # the alias of a source
_CODES = {
    "feed-off": "FEED_OFF",
    "missing-file": "FEED_VACUUMED",
    "log-lost": "LOG_LOST",
    "schema": "SCHEMA_CHANGED",
}


@dataclass(frozen=True)
class Source:
    """A table that a view reads.

    Attributes:
        name: the name of the table.
        path: the full path of its folder.
        id: Delta's id of the table, which changes if the table is created again.
        columns: the columns that the view reads and that still exist.
        new: the version to read.
        old: the version that the last refresh read; None if there is none.
        old_id: the table's id at the version `old`.
        scans: temporary views with the rows of versions, which replace the versions in queries.
        searches: searches for some rows of these versions.
        bytes: the size of the files of the version `new`; 0 if unknown.
        rows: the number of rows of the version `new`; 0 if unknown.
        schema: the schema at the version `new`, as the log has it.
    """

    name: TableName
    path: str
    id: str
    columns: tuple[str, ...]
    new: int
    old: int | None = None
    old_id: str = ""
    scans: Mapping[int, str] = field(default_factory=dict)
    searches: Mapping[int, KeySearch] = field(default_factory=dict)
    bytes: int = 0
    rows: int = 0
    schema: str = ""

    @property
    def moved(self) -> bool:
        """Whether the source has versions that no refresh has read."""
        return self.old is not None and (self.new, self.id) != (self.old, self.old_id)

    @property
    def weight(self) -> int:
        """The size of an average row in the files, in KiB, rounded up."""
        return 1 + self.bytes // (1024 * max(self.rows, 1))

    def at(self, version: int, condition: str = "") -> str:
        """Return the rows at a version as SQL that can replace a table."""
        columns = ", ".join(map(quote, self.columns))
        where = f" WHERE {condition}" if condition else ""
        table = self.scans.get(version) or f"{delta_name(self.path)} VERSION AS OF {version}"
        return f"(SELECT {columns} FROM {table} AS {quote(TABLE)}{where})"


@dataclass(frozen=True)
class Changes:
    """The readable changes of a source.

    Attributes:
        source: the source.
        found: the diagnosis of its change feed.
        timeline: the source's versions.
        by_ids: whether versions are compared by row ids instead of reading the feed.
        bytes: the size of the changes according to the log, in bytes.
        files: the number of files to read for the changes; 0 if commits only moved rows to other
            files.
        rows: the number of changes according to the log; None if a writer did not count them.
    """

    source: Source
    found: Diagnosis
    timeline: Timeline
    by_ids: bool
    bytes: int
    files: int
    rows: int | None


def pin_sources(
    storage: Storage,
    definition: Definition,
    state: dict[str, tuple[str, int]],
    at: Mapping[TableName, int] | None = None,
) -> tuple[Source, ...]:
    """Return a view's sources at versions that were the newest ones at the same time.

    Args:
        storage: the lake's files.
        definition: the view.
        state: the id and version of each source that the last refresh read.
        at: the versions to use instead of the newest ones.

    Raises:
        TableNotFoundError: a source does not exist any more.
        BusyError: a source changed during each attempt.
    """
    names = sorted(definition.sources, key=str)
    try:
        versions = versions_at_once(storage, names) if at is None else [at[name] for name in names]
    except TableNotFoundError as error:
        raise TableNotFoundError(
            f"{error.message.removesuffix('.')}, but the view {definition.name} reads it.",
            hint=GONE_FIX,
        ) from error
    if versions is None:
        raise BusyError(
            f"The sources of {definition.name} changed during each attempt to read their versions.",
            hint="refresh the view when fewer commits are made to its sources.",
        )
    found = []
    for name, version in zip(names, versions, strict=True):
        snapshot = read_snapshot(storage, name.table_path, version)
        if snapshot is None:
            raise TableNotFoundError(
                f"The table {name}, a source of the view {definition.name}, was dropped while its"
                " version was read.",
                hint=GONE_FIX,
            )
        there = {column.lower(): column for column in snapshot.schema}
        # The definition of a stage names no columns: it reads all of them.
        wanted = definition.sources[name] or visible_columns(snapshot.schema)
        columns = [there[c.lower()] for c in wanted if c.lower() in there]
        old_id, old = state.get(str(name), ("", None))
        found.append(
            Source(
                name,
                storage.path(name.table_path),
                str(snapshot.metadata["id"]),
                tuple(columns),
                version,
                old,
                old_id,
                schema=str(snapshot.metadata["schemaString"]),
            )
        )
    return tuple(found)


def look_at_changes(spark: SparkSession, storage: Storage, source: Source) -> Changes | Reason:
    """Return the changes of a source, or the reason why they cannot be read.

    This reads the log, and checks whether the feed's files exist.

    Args:
        spark: the user's session.
        storage: the lake's files.
        source: a source with new versions.
    """
    assert source.old is not None, source
    if source.id != source.old_id or source.old > source.new:
        return reason("SOURCE_RECREATED", str(source.name))
    table = TableHandle(spark, storage, source.name)
    timeline = read_versions(storage, source.name.table_path)
    found = examine(table, timeline, source.old + 1, source.new, files=True)
    by_ids = False
    if found.blocking:
        first = found.blocking[0]
        rules = {finding.rule for finding in found.blocking}
        states = read_states(storage, source.name.table_path, source.old, source.new)
        # Row tracking was enabled at every version between the two, so ids can be compared.
        by_ids = rules == {"feed-off"} and all(is_tracked(state.properties) for state in states)
        if not by_ids:
            return Reason(_CODES.get(first.rule, "SCHEMA_CHANGED"), first.message, first.fix)
        if lost := look_at_old(storage, source):
            return lost
    commits = [
        read_commit(storage, source.name.table_path, version, files=True)
        for version in range(source.old + 1, source.new + 1)
    ]
    size, files = sum(c.size for c in commits), sum(len(c.files) for c in commits)
    counts = [_count_changes(commit.rows) for commit in commits if commit.files]
    rows = None if None in counts else sum(count or 0 for count in counts)
    return Changes(source, found, timeline, by_ids, size, files, rows)


def _count_changes(rows: RowsChanged) -> int | None:
    """Return the number of rows in the feed of a commit; None if its writer did not count them."""
    counts = rows.inserted, rows.updated, rows.updated, rows.deleted
    return None if counts == (None,) * 4 else sum(count or 0 for count in counts)


def look_at_old(storage: Storage, source: Source) -> Reason | None:
    """Return why the version of the last refresh cannot be read; None if it can be read."""
    assert source.old is not None, source
    try:
        check_version(storage, source.name, source.old)
    except VersionError as error:
        return Reason("OLD_VERSION_LOST", error.message, error.hint)
    return None


def read_changes(
    session: SparkSession, storage: Storage, changes: Changes, columns: tuple[str, ...]
) -> DataFrame:
    """Read the changes of a source, with the sign +1 for inserted rows and -1 for deleted rows.

    If an inserted and a deleted row are equal, both are omitted.

    Args:
        session: the session of the refresh.
        storage: the lake's files.
        changes: the changes to read.
        columns: the columns that the view's query names.

    Raises:
        FeedError: a required version can no longer be read.
    """
    source = changes.source
    assert source.old is not None, source
    if changes.by_ids:
        table = TableHandle(session, storage, source.name)
        rows = bridge(table, changes.timeline, changes.found).drop(ORIGIN)
    else:
        rows = read_feed(session, source.path, source.old + 1, source.new)
    came = F.col(RESERVED[0]).isin("insert", "update_postimage")
    kept = [F.col(quote(name)) for name in columns]
    signed = rows.select(*kept, F.when(came, 1).otherwise(-1).alias(SIGN))
    return net_rows(signed) if can_be_grouped(signed) else signed


def can_be_grouped(rows: DataFrame) -> bool:
    """Check whether no column contains a map or a variant."""
    return not any("map" in kind or "variant" in kind for _, kind in rows.dtypes)


def net_rows(signed: DataFrame) -> DataFrame:
    """Return rows with signs, without pairs of an inserted and a deleted row that are equal."""
    kept = [F.col(quote(name)) for name in signed.columns if name != SIGN]
    net = signed.groupBy(*kept).agg(F.sum(SIGN).alias(SIGN)).where(F.col(SIGN) != 0)
    times = F.explode(F.array_repeat(F.signum(SIGN).cast("int"), F.abs(SIGN).cast("int")))
    return net.select(*kept, times.alias(SIGN))


@dataclass(frozen=True)
class Plan:
    """The prepared query of a view.

    Attributes:
        definition: the view.
        query: the parsed query.
        shape: the rule of the query.
        sources: the source tables by the offset at which the query names them.
        columns: the types of the view's columns in Spark, by name.
        branches: the plans of the parts of a UNION ALL, if all of them have the rule `rows`.
    """

    definition: Definition
    query: Query
    shape: Shape
    sources: dict[int, Source]
    columns: dict[str, str]
    branches: tuple[Plan, ...] = ()

    def reading(self, sources: Mapping[TableName, Source]) -> Plan:
        """Return the plan with other objects for its sources, such as ones with scans."""
        return replace(
            self,
            sources={start: sources[source.name] for start, source in self.sources.items()},
            branches=tuple(branch.reading(sources) for branch in self.branches),
        )

    @property
    def names(self) -> list[str]:
        """The names of the view's columns."""
        return list(self.columns)

    @property
    def key_columns(self) -> list[str]:
        """The columns of the keys in the view's table: visible ones, or else hidden ones."""
        items, names = self.shape.items, self.names
        # An expression such as `inline(x)` returns several columns.
        shown = dict(zip(items, names, strict=True)) if len(items) == len(names) else {}
        keys = self.keys if self.shape.method.keeps_state else self.shape.keys
        return [shown.get(key, own) for key, own in zip(keys, self.keys, strict=True)]

    @property
    def hidden_keys(self) -> list[tuple[str, str]]:
        """The columns and expressions of the keys that are not in the view's result."""
        pairs = zip(self.key_columns, self.shape.keys, strict=True)
        return [(column, key) for column, key in pairs if column.startswith(HIDDEN)]

    @property
    def written(self) -> list[str]:
        """The columns of the view's table, without the columns of the state."""
        return [*self.names, *(column for column, _ in self.hidden_keys)]

    @property
    def keys(self) -> list[str]:
        """The names of the keys within a refresh, which cannot be names of a source's columns."""
        return [f"{KEY}{number}" for number in range(len(self.shape.keys))]

    @property
    def key_names(self) -> dict[str, str]:
        """The names of the keys within a refresh, by their columns in the view's table."""
        return dict(zip(self.key_columns, self.keys, strict=True))

    @property
    def tables(self) -> list[Source]:
        """The sources, without duplicates."""
        return list({source.name: source for source in self.sources.values()}.values())

    def needs_old(self, changed: Collection[TableName]) -> list[Source]:
        """Return the sources whose old versions an incremental refresh reads.

        Args:
            changed: the sources with changed rows.
        """
        if self.branches:
            return [source for branch in self.branches for source in branch.needs_old(changed)]
        sources = [self.sources[member.table.start] for member in self.shape.members]
        has_changed = [source.name in changed for source in sources]
        return [
            source
            for index, (member, source) in enumerate(zip(self.shape.members, sources, strict=True))
            if has_changed[index] and (member.role is not Role.LINEAR or any(has_changed[:index]))
        ]

    def newest(self) -> dict[int, str]:
        """Return the SQL that replaces each table with its rows at the version to read."""
        found = {start: source.at(source.new) for start, source in self.sources.items()}
        for one in self.query.tables:
            if one.node.args.get("version"):
                found[one.start] = delta_name(self.sources[one.start].path)
        return found

    def whole(self) -> str:
        """Return the view's query, over the sources at the versions to read."""
        return self.query.replaced(self.newest())

    def inner(self, relations: Mapping[int, str], condition: str = "") -> str:
        """Return `FROM … WHERE …` of a plain SELECT.

        Args:
            relations: the SQL that replaces each table.
            condition: a further condition.
        """
        conditions = [f"({one})" for one in (self.query.condition("where"), condition) if one]
        fulfilled = f"\nWHERE {' AND '.join(conditions)}" if conditions else ""
        return f"{self.query.source(relations)}{fulfilled}"

    def used(self, source: Source) -> tuple[str, ...]:
        """Return the columns of a source that the query may use; all columns if it has a `*`."""
        words = {node.name.lower() for node in self.query.tree.find_all(exp.Identifier)}
        if find_stars(self.query.tree):
            return source.columns
        return tuple(column for column in source.columns if column.lower() in words)


def make_plan(session: SparkSession, definition: Definition, sources: Sequence[Source]) -> Plan:
    """Analyze a view's query without reading rows.

    Raises:
        QueryError: Spark cannot analyze the query.
        UsageError: two columns of the query have the same name.
    """
    query = parse_query(definition.sql, definition.name)
    known = {str(source.name).lower(): source for source in sources}
    named_at = {one.start: str(one.name).lower() for one in query.tables}
    at = {start: known[name] for start, name in named_at.items() if name in known}
    visible = {one.alias.lower(): at[one.start].columns for one in query.tables if one.start in at}
    shape = read_shape(query, visible, known_functions(session))
    plan = Plan(definition, query, shape, at, {})
    try:
        schema = session.sql(plan.whole()).schema
        kinds = []
        if shape.aggregates:
            select = ", ".join(one.argument for one in shape.aggregates)
            rows = session.sql(f"SELECT {select} {plan.inner(plan.newest())}")
            kinds = [kind for _, kind in rows.dtypes]
    except Exception as error:
        lacks = any(len(s.columns) < len(definition.sources.get(s.name, ())) for s in sources)
        fix = "a column of a source was renamed or dropped: drop the view, and create a new one."
        raise QueryError(
            f"Spark can't analyze the query of {definition.name}: {spark_message(error)}",
            hint=fix if lacks else "",
        ) from error
    if len({name.lower() for name in schema.names}) < len(schema.names):
        raise UsageError(
            f"Two columns of {definition.name} have the same name: {', '.join(schema.names)}.",
            hint="give each column its own name with AS.",
        )
    columns = column_types(schema)
    parts = [replace(definition, sql=as_sql(part)) for part in _parts(query.tree)]
    try:
        branches = tuple(make_plan(session, part, sources) for part in parts)
    except UsageError:  # two columns of a part have the same name
        branches = ()
    if branches and all(part.shape.method is Method.ROWS for part in branches):
        shape, plan = Shape(Method.ROWS), replace(plan, branches=branches)
    shape = settle_types(shape, kinds, list(columns.values()))
    return replace(plan, shape=shape, columns=columns)


def _parts(tree: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a UNION ALL of plain queries; empty for any other query."""
    if not isinstance(tree, exp.Union) or not isinstance(tree.expression, exp.Select):
        return []
    if {key for key, value in tree.args.items() if value} - {"this", "expression"}:
        return []
    first = [tree.this] if isinstance(tree.this, exp.Select) else _parts(tree.this)
    return [*first, tree.expression] if first else []


_REWRITTEN = frozenset(
    (
        "DISTINCT_OF_GROUPS", "AGGREGATE_OF_WINDOW", "LIMIT", "SET_OPERATION", "SUBQUERY",
        "GLOBAL_AGGREGATE", "GROUPING_SETS",
    )
)  # fmt: skip
_DISTRUSTED = ("NONDETERMINISTIC", "ORDER_DEPENDENT", "UNKNOWN_FUNCTION")


def find_stages(session: SparkSession, plan: Plan) -> tuple[tuple[str, ...], Method]:
    """Return the queries of a view's stages, and the rule of the last one.

    If the query has a rule, or if no stage would have one, there are no stages, and the rule is
    that of the query. Spark must derive the same columns from the stages as from the query.
    """
    view, why, unstaged = plan.definition, plan.shape.reason, ((), plan.shape.method)
    if why is None or why.code not in _REWRITTEN:
        return unstaged
    relations = {source.name: source.at(source.new) for source in plan.tables}
    sources = {
        name: column_types(session.sql(f"SELECT * FROM {rows}").schema)
        for name, rows in relations.items()
    }
    found = read_stages(view.sql, view.name, sources, plan.names)
    columns: dict[TableName, Sequence[str]] = {s.name: s.columns for s in plan.tables}
    known, methods, text = known_functions(session), [], ""
    for number, stage in enumerate(found, 1):
        query = parse_query(stage.sql, view.name)
        named_at = {one.alias.lower(): columns[one.name] for one in query.tables}
        shape = read_shape(query, named_at, known)
        if shape.reason and shape.reason.code in _DISTRUSTED:
            return unstaged
        methods.append(Method.ROWS if _parts(query.tree) else shape.method)
        text = query.replaced({one.start: relations[one.name] for one in query.tables})
        name = StageName(view.name.schema, view.name.name, number)
        relations[name], columns[name] = f"({text})", stage.columns
    if all(method is Method.FULL for method in methods):
        return unstaged
    try:
        is_equal = column_types(session.sql(text).schema) == plan.columns
    except Exception:  # the query keeps its full refresh
        is_equal = False
    return (tuple(stage.sql for stage in found), methods[-1]) if is_equal else unstaged


def named(expressions: Sequence[str], names: Sequence[str]) -> str:
    """Return expressions with names, for a SELECT."""
    pairs = zip(expressions, names, strict=True)
    return ", ".join(f"{expression} AS {quote(name)}" for expression, name in pairs)


def listed(names: Sequence[str], prefix: str = "") -> str:
    """Return a list of quoted columns."""
    return ", ".join(f"{prefix}{quote(name)}" for name in names)


def same(names: Sequence[str] | Mapping[str, str], left: str, right: str) -> str:
    """Return the condition that columns are equal on both sides, where NULL equals NULL.

    Args:
        names: the columns; a mapping if the right side has other names.
        left: the alias of the left side.
        right: the alias of the right side.
    """
    equal = {name: name for name in names}
    others: Mapping[str, str] = names if isinstance(names, Mapping) else equal
    pairs = [f"{left}.{quote(one)} <=> {right}.{quote(other)}" for one, other in others.items()]
    return " AND ".join(pairs) or "true"


_functions: dict[str, frozenset[str]] = {}


def known_functions(session: SparkSession) -> frozenset[str]:
    """Return the names of Spark's functions, which are listed once for each version of Spark."""
    if session.version not in _functions:
        rows = session.sql("SHOW SYSTEM FUNCTIONS").collect()
        _functions[session.version] = frozenset(row[0].lower() for row in rows)
    return _functions[session.version]
