"""Classifies a view's query: which functions it calls, and by which rule it can be refreshed.

Nothing here needs Spark except the types of a few expressions, which the caller adds later.

Each table has a role in the query's joins, which says how its changes become changes of the query:

- linear: the query over a change is the change of the query. True for the tables of inner joins,
  and for the side of an outer join whose rows are all kept.
- nullable: the other side of an outer join, and the right side of a semi or anti join. Only rows
  whose key is the key of a changed row can differ: the old result is subtracted, the new one added.
- both: the sides of a FULL JOIN, in the same way, for the keys of both sides' changes together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import yaml
from sqlglot import exp

from mirrorlake.query.statement import AsWritten, NamedTable
from mirrorlake.spark.sql import quote
from mirrorlake.views.definition import (
    HIDDEN,
    Query,
    Reason,
    alike,
    as_sql,
    find_stars,
    parse_query,
    reason,
)

KEY, AGGREGATE = f"{HIDDEN}key_", f"{HIDDEN}aggregate_"
_CALLS: tuple[type[exp.Func], ...] = (
    exp.Anonymous,
    *AsWritten.Parser.NO_PAREN_FUNCTIONS.values(),
)
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup, exp.Window)


def _read_functions() -> dict[str, frozenset[str]]:
    """Return the names of Spark's functions by how a refresh treats them."""
    text = Path(__file__).with_name("functions.yaml").read_text(encoding="utf-8")
    return {kind: frozenset(names) for kind, names in yaml.safe_load(text).items()}


_FUNCTIONS = _read_functions()
SUMS, EXTREMES = _FUNCTIONS["sums"], _FUNCTIONS["extremes"]
ORDER_DEPENDENT = _FUNCTIONS["order_dependent"]
_AGGREGATES = SUMS | EXTREMES | _FUNCTIONS["any_order"] | ORDER_DEPENDENT
_NONDETERMINISTIC = _FUNCTIONS["nondeterministic"]


@dataclass(frozen=True)
class Call:
    """One call of a function.

    Attributes:
        name: the function, in small letters.
        node: the call with what belongs to it: FILTER, OVER.
        arguments: what it is called with.
        distinct: whether it takes each value once.
        where: FILTER's condition.
        partition: what a window is partitioned by; None if it is not over a window.
        known: whether it may be one of Spark's own by its form.
    """

    name: str
    node: exp.Expr
    arguments: tuple[exp.Expr, ...] = ()
    distinct: bool = False
    where: exp.Expr | None = None
    partition: tuple[exp.Expr, ...] | None = None
    known: bool = True

    @property
    def is_aggregate(self) -> bool:
        """Whether it makes one value of many rows: also regressions, sketches and bitmaps."""
        if self.partition is not None:
            return False
        known = exp.FUNCTION_BY_NAME.get(self.name.upper())
        if known is not None and issubclass(known, exp.AggFunc):
            return True
        return self.name in _AGGREGATES or self.name.startswith("regr_") or "_agg" in self.name

    @property
    def is_nondeterministic(self) -> bool:
        """Whether it depends on the time, the session, the files, or on chance."""
        if self.name in ("unix_timestamp", "to_unix_timestamp"):
            return not self.arguments
        return self.name in _NONDETERMINISTIC or self.name.startswith(("current_", "input_file_"))


def find_calls(*parts: exp.Expr) -> list[Call]:
    """All calls in parts of a query, those inside of others too."""
    return [_call(node) for part in parts for node in part.dfs() if isinstance(node, _CALLS)]


def _call(function: exp.Func) -> Call:
    node: exp.Expr = function
    where, partition = None, None
    while isinstance(node.parent, _WRAPPERS) and node.parent.this is node:
        node = node.parent
        if isinstance(node, exp.Filter):
            where = node.expression.this
        elif isinstance(node, exp.Window):
            partition = tuple(node.args.get("partition_by") or ())
    if not isinstance(function, exp.Anonymous):
        return Call(function.sql_name().lower(), node)
    arguments = function.expressions
    distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
    return Call(
        function.name.lower(),
        node,
        tuple(arguments[0].expressions if distinct else arguments),
        distinct,
        where,
        partition,
        known=not (isinstance(function.parent, exp.Dot) and function.parent.expression is function),
    )


def over_state(
    item: exp.Expr, keys: Sequence[exp.Expr], aggregates: dict[exp.Expr, Call]
) -> str | None:
    """A selected expression over the columns that are kept: the keys, and the aggregates' values.

    Args:
        item: as written.
        keys: what the query groups by.
        aggregates: the calls so far, by `alike`; new ones are added.

    Returns:
        None if it has columns besides these.
    """
    item = item.copy()
    calls = {id(call.node): call for call in find_calls(item) if call.is_aggregate}

    def kept(node: exp.Expr) -> exp.Expr:
        if call := calls.get(id(node)):
            aggregates.setdefault(alike(node), call)
            return exp.column(f"{AGGREGATE}{list(aggregates).index(alike(node))}")
        number = _key_number(node, keys)
        return node if number is None else exp.column(f"{KEY}{number}")

    state = item.transform(kept, copy=False)
    columns = state.find_all(exp.Column, exp.Star)
    return as_sql(state) if all(one.name.startswith(HIDDEN) for one in columns) else None


def _key_number(node: exp.Expr, keys: Sequence[exp.Expr]) -> int | None:
    """Which key a part of an expression is."""
    spellings = [alike(key) for key in keys]
    if alike(node) in spellings:
        return spellings.index(alike(node))
    # `f.origin` and `origin` are one column where only one key ends so.
    if not isinstance(node, exp.Column):
        return None
    ends = [
        (number, key)
        for number, key in enumerate(keys)
        if isinstance(key, exp.Column) and key.name.lower() == node.name.lower()
    ]
    if len(ends) != 1 or (node.table and ends[0][1].table):
        return None
    return ends[0][0]


Columns = Mapping[str, Sequence[str]]


class Role(str, Enum):
    """The role of a table in the joins."""

    LINEAR = "linear"
    NULLABLE = "nullable"
    BOTH = "both"


@dataclass(frozen=True)
class Link:
    """One equality of a join's condition.

    Attributes:
        own: the table's column.
        alias: the table of the other side.
        column: its column.
        null_safe: whether NULL equals NULL.
    """

    own: str
    alias: str
    column: str
    null_safe: bool = False


@dataclass(frozen=True)
class Member:
    """A table of the query.

    Attributes:
        links: the equalities that tell which other rows its rows concern; none if it is linear.
    """

    table: NamedTable
    role: Role = Role.LINEAR
    links: tuple[Link, ...] = ()


def read_joins(query: Query, columns: Columns) -> tuple[Member, ...] | Reason:
    """The tables of a plain SELECT, in their order.

    Args:
        query: the query.
        columns: by a table's alias, in small letters.
    """
    tree = query.tree
    by_node = {id(found.node): found for found in query.tables}
    first = by_node.get(id(tree.args["from_"].this))
    if first is None:
        return reason("SUBQUERY")
    members = [Member(first)]
    for join in tree.args.get("joins") or ():
        found = by_node.get(id(join.this))
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        asks = kind in ("SEMI", "ANTI")
        if found is None or join.method or not (asks or kind in ("", "INNER", "CROSS", "OUTER")):
            return reason("JOIN_KIND", join.sql("spark"))
        side = "LEFT" if asks else side
        if not side:
            members.append(Member(found))
            continue
        links = _links(join, [m.table for m in members], found, columns)
        if not links:
            return reason("OUTER_JOIN", join.sql("spark"))
        if side == "LEFT":
            members.append(Member(found, Role.NULLABLE, links))
            continue
        right = side == "RIGHT"
        if len(members) > 1 or not (right or len(tree.args["joins"]) == 1):
            return reason("OUTER_JOIN", join.sql("spark"))
        turned = tuple(Link(one.column, found.alias, one.own, one.null_safe) for one in links)
        left = Member(members[0].table, Role.NULLABLE if right else Role.BOTH, turned)
        members = [left, Member(found) if right else Member(found, Role.BOTH, links)]
    if len(members) != len(query.tables):
        return reason("SUBQUERY")
    return tuple(members)


def _links(
    join: exp.Join, around: list[NamedTable], own: NamedTable, columns: Columns
) -> tuple[Link, ...]:
    """The equalities between a joined table's columns and columns of the tables before it."""
    links = []
    for name in join.args.get("using") or ():
        before = [one for one in around if _has(columns, one.alias, name.name)]
        if not before:
            return ()
        links.append(Link(name.name, before[0].alias, name.name))
    condition = join.args.get("on")
    parts = condition.flatten() if isinstance(condition, exp.And) else [condition or exp.true()]
    for part in (one.unnest() for one in parts):
        if not isinstance(part, (exp.EQ, exp.NullSafeEQ)):
            continue
        null_safe = isinstance(part, exp.NullSafeEQ)
        for mine, other in ((part.left, part.right), (part.right, part.left)):
            owner, partner = (_owner(side, [*around, own], columns) for side in (mine, other))
            if owner == own and partner is not None and partner != own:
                links.append(Link(mine.name, partner.alias, other.name, null_safe))
    return tuple(links)


def _owner(side: object, references: list[NamedTable], columns: Columns) -> NamedTable | None:
    """The table that a plain column is of; None for anything else."""
    if not isinstance(side, exp.Column) or side.args.get("db"):
        return None
    if side.table:
        alike = [one for one in references if one.alias.lower() == side.table.lower()]
    else:
        alike = [one for one in references if _has(columns, one.alias, side.name)]
    return alike[0] if len(alike) == 1 and _has(columns, alike[0].alias, side.name) else None


def _has(columns: Columns, alias: str, name: str) -> bool:
    return name.lower() in {column.lower() for column in columns[alias.lower()]}


_PLAIN = {"hint", "distinct", "expressions", "from_", "joins", "where", "group", "having"}


_PLAIN |= {"order", "sort", "cluster", "distribute", "kind", "operation_modifiers"}


_PLAIN_TABLE = {"this", "db", "alias", "version"}
_SPECIAL_MOMENTS = {"now", "today", "tomorrow", "yesterday"}
MOST_AVERAGED_DIGITS = 14
_WHOLE = ("tinyint", "smallint", "int", "bigint")
# Of equal values any may be the greatest: not so of floats' zeros, nor of texts with a collation.
_ORDERED = (*_WHOLE, "boolean", "date", "string", "timestamp", "timestamp_ntz")


class Method(str, Enum):
    """How a view is brought up to date."""

    ROWS = "rows"
    SUMS = "sums"
    EXTREMES = "extremes"
    GROUPS = "groups"
    PARTITIONS = "partitions"
    FULL = "full"

    @property
    def keeps_state(self) -> bool:
        """Whether the view's table keeps what the next refresh adds to."""
        return self in (Method.SUMS, Method.EXTREMES)


RULES = {
    Method.ROWS: "deleted rows are removed, inserted rows are added",
    Method.SUMS: "changes are added to the sums and counts of their group",
    Method.EXTREMES: "changes are added, and extremes compared with what came and went; groups that"
    " may have lost one are computed again",
    Method.GROUPS: "groups with a changed row are computed again",
    Method.PARTITIONS: "partitions with a changed row are computed again",
    Method.FULL: "everything is computed again",
}


@dataclass(frozen=True)
class Aggregate:
    """One aggregate that is kept.

    Attributes:
        number: its place among those that are kept.
        function: `count`, `sum`, `avg`, `min` or `max`.
        argument: what it takes, as SQL; rows where that is NULL don't count.
        kind: Spark's type of the argument; empty until it is known.
    """

    number: int
    function: str
    argument: str
    kind: str = ""

    @property
    def is_extreme(self) -> bool:
        """Whether it is one of its values, and not made by adding them."""
        return self.function in EXTREMES


@dataclass(frozen=True)
class Shape:
    """A query as the rules see it.

    Attributes:
        method: the rule.
        reason: why none fits, if so.
        members: the tables of its joins.
        keys: what groups or partitions it, as SQL.
        items: what it selects, over keys and aggregates where the method keeps a state.
        selected: what it selects, as SQL.
        aggregates: what is kept, where the method keeps a state.
    """

    method: Method
    reason: Reason | None = None
    members: tuple[Member, ...] = ()
    keys: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()


def full(code: str, what: str = "") -> Shape:
    """The shape of a query that no rule covers."""
    return Shape(Method.FULL, reason(code, what))


def read_shape(query: Query, columns: Columns, known: Collection[str]) -> Shape:
    """The rule for a query.

    Args:
        query: the query.
        columns: of its tables, by alias in small letters.
        known: Spark's own functions.
    """
    if odd := _oddity(query):
        return Shape(Method.FULL, odd)
    tree, items = query.tree, query.items
    clauses = [*items, tree.args["from_"], *tree.args.get("joins", ())]
    clauses += [tree.args[name] for name in ("where", "group", "having") if tree.args.get(name)]
    if found := _distrusted(clauses, known):
        return Shape(Method.FULL, found)
    if any(find_stars(clause) for clause in clauses if not clause.is_star):
        return full("STAR")
    members = read_joins(query, columns)
    if isinstance(members, Reason):
        return Shape(Method.FULL, members)
    texts = tuple(map(as_sql, items))
    shape = Shape(Method.ROWS, members=members, items=texts, selected=texts)
    calls = find_calls(*items)
    windows = [call for call in calls if call.partition is not None]
    grouped = bool(tree.args.get("group") or tree.args.get("having"))
    grouped = grouped or any(call.is_aggregate for call in calls)
    distinct = bool(tree.args.get("distinct"))
    if distinct and (windows or grouped):
        return full("DISTINCT_OF_GROUPS")
    if windows and grouped:
        return full("AGGREGATE_OF_WINDOW")
    if grouped:
        return _groups(shape, query, columns)
    if (distinct or windows) and any(item.is_star for item in items):
        return full("STAR")
    if distinct:
        numbered = tuple(f"{KEY}{number}" for number in range(len(texts)))
        return replace(shape, method=Method.SUMS, keys=texts, items=numbered)
    if windows:
        return _windows(shape, windows)
    expanded = _expanded(query, members, columns)
    return full("STAR") if expanded is None else replace(shape, items=expanded)


def is_steady(sql: str) -> bool:
    """Whether a query's answer changes only when its tables do."""
    return not any(call.is_nondeterministic for call in find_calls(parse_query(sql).tree))


def _oddity(query: Query) -> Reason | None:
    """What keeps a query from being one plain SELECT over tables."""
    tree = query.tree
    if isinstance(tree, exp.SetOperation) or tree.find(exp.SetOperation):
        return reason("SET_OPERATION")
    nested = [node for node in tree.find_all(exp.Select) if node is not tree]
    if nested or tree.args.get("with_") or tree.find(exp.Subquery):
        return reason("SUBQUERY")
    for name, value in tree.args.items():
        if not value or name in _PLAIN:
            continue
        if name in ("limit", "offset"):
            return reason("LIMIT")
        return reason("LATERAL_VIEW" if name in ("laterals", "pivots") else "SYNTAX", name)
    group = tree.args.get("group")
    if group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
        return reason("GROUPING_SETS")
    if tree.args.get("from_") is None:
        return reason("SYNTAX", "no FROM")
    distinct = tree.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        return reason("SYNTAX", "DISTINCT ON")
    for one in query.tables:
        if one.node.args.get("version"):
            return reason("TIME_TRAVEL", str(one.name))
        if odd := [k for k, value in one.node.args.items() if value and k not in _PLAIN_TABLE]:
            return reason("LATERAL_VIEW" if "pivots" in odd else "SYNTAX", odd[0])
    return None


def _distrusted(clauses: Sequence[exp.Expr], known: Collection[str]) -> Reason | None:
    """A function that no rule may rely on."""
    calls = find_calls(*clauses)
    for call in calls:
        if call.is_nondeterministic:
            return reason("NONDETERMINISTIC", call.name)
        if call.name in ORDER_DEPENDENT and call.partition is None:
            return reason("ORDER_DEPENDENT", call.name)
    for call in calls:
        if call.name not in known or not call.known:
            return reason("UNKNOWN_FUNCTION", call.name)
    for text in (one for clause in clauses for one in clause.find_all(exp.Literal)):
        if text.is_string and text.name.lower() in _SPECIAL_MOMENTS:
            return reason("NONDETERMINISTIC", text.name)
    return None


def _expanded(
    query: Query, members: tuple[Member, ...], columns: Columns
) -> tuple[str, ...] | None:
    """The selected expressions with every `*` written out; None where that is not plain."""
    found: list[str] = []
    joined_by_name = any(join.args.get("using") for join in query.tree.args.get("joins", ()))
    for item in query.items:
        if not item.is_star:
            found.append(as_sql(item))
            continue
        star = item.this if isinstance(item, exp.Column) else item
        wanted = item.table if isinstance(item, exp.Column) else ""
        if any(star.args.values()) or (joined_by_name and not wanted):
            return None
        for member in members:
            alias, join = member.table.alias, member.table.node.parent
            if isinstance(join, exp.Join) and join.kind in ("SEMI", "ANTI"):
                continue  # it has no columns in the result
            if not wanted or alias.lower() == wanted.lower():
                names = columns[alias.lower()]
                found += [f"{quote(alias)}.{quote(name)}" for name in names]
    return tuple(found)


def _windows(shape: Shape, windows: list[Call]) -> Shape:
    """Partitions by what all windows have in common."""
    first, *others = [{alike(key): as_sql(key) for key in w.partition or ()} for w in windows]
    common = tuple(text for key, text in first.items() if all(key in other for other in others))
    if not common:
        return full("WINDOW_WITHOUT_PARTITION")
    return replace(shape, method=Method.PARTITIONS, keys=common)


def _groups(shape: Shape, query: Query, columns: Columns) -> Shape:
    keys = _group_keys(query, columns)
    if keys is None:
        return full("SYNTAX", "GROUP BY")
    again = replace(shape, method=Method.GROUPS, keys=tuple(map(as_sql, keys)))
    recompute = again if keys else full("GLOBAL_AGGREGATE")
    if query.condition("having"):
        return recompute
    aggregates: dict[exp.Expr, Call] = {}
    items = [text for item in query.items if (text := over_state(item, keys, aggregates))]
    kept = [one for n, call in enumerate(aggregates.values()) if (one := _aggregate(n, call))]
    if len(items) < len(query.items) or len(kept) < len(aggregates):
        return recompute
    extremes = any(one.is_extreme for one in kept)
    if extremes and not keys:
        return recompute
    return replace(
        again,
        method=Method.EXTREMES if extremes else Method.SUMS,
        items=tuple(items),
        aggregates=tuple(kept),
    )


def _group_keys(query: Query, columns: Columns) -> list[exp.Expr] | None:
    """What the query groups by, ordinals and names of selected expressions looked up."""
    items = query.items
    group = query.tree.args.get("group") or exp.Group()
    if group.args.get("all"):
        return [i for i in items if not any(call.is_aggregate for call in find_calls(i))]
    names = [expression.alias.lower() for expression in query.tree.expressions]
    known = {column.lower() for some in columns.values() for column in some}
    keys: dict[exp.Expr, exp.Expr] = {}
    for key in group.expressions:
        found, name = key, key.name.lower()
        if isinstance(key, exp.Literal) and key.is_int:
            if not 1 <= int(key.name) <= len(items):
                return None
            found = items[int(key.name) - 1]
        elif isinstance(key, exp.Column) and not key.table and name not in known:
            found = items[names.index(name)] if names.count(name) == 1 else key
        if found.is_number:
            return None  # Spark would take the number for a column's place
        keys.setdefault(alike(found), found)
    return list(keys.values())


def _aggregate(number: int, call: Call) -> Aggregate | None:
    """An aggregate as a sum, count or extreme of one expression; None if it isn't one."""
    if call.distinct or len(call.arguments) != 1 or call.name not in SUMS | EXTREMES:
        return None
    argument = as_sql(call.arguments[0])
    if call.name == "count_if":
        argument = f"CASE WHEN {argument} THEN 1 END"
    elif argument == "*":
        argument = "1"
    if call.where is not None:
        argument = f"CASE WHEN {as_sql(call.where)} THEN {argument} END"
    function = {"count_if": "count", "mean": "avg"}.get(call.name, call.name)
    return Aggregate(number, function, argument)


def settle_types(shape: Shape, arguments: list[str], outputs: list[str]) -> Shape:
    """The rule once types are known: floats are not summed up, hashes need plain values.

    Args:
        shape: as read from the query.
        arguments: Spark's types of the aggregates' arguments.
        outputs: Spark's types of the view's columns.
    """
    if shape.method is Method.ROWS:
        nested = [kind for kind in outputs if not _is_plain(kind)]
        return full("NESTED_COLUMN", nested[0]) if nested else shape
    if not shape.method.keeps_state:
        return shape
    typed = zip(shape.aggregates, arguments, strict=True)
    kept = tuple(replace(aggregate, kind=kind) for aggregate, kind in typed)
    # What came and what went are compared by value.
    plain = shape.method is Method.SUMS or all(map(_is_plain, arguments))
    if plain and all(map(_is_exact, kept)):
        return replace(shape, aggregates=kept)
    if not shape.keys:
        return full("GLOBAL_AGGREGATE", "sums of this type are not kept")
    return replace(shape, method=Method.GROUPS, items=shape.selected, aggregates=())


def _is_plain(kind: str) -> bool:
    return not kind.startswith(("array", "map", "struct", "variant", "interval"))


def _is_exact(aggregate: Aggregate) -> bool:
    """Whether an aggregate of such values comes out the same however it is put together."""
    kind = aggregate.kind
    if aggregate.function == "count":
        return True
    if aggregate.is_extreme:
        return kind in _ORDERED or kind.startswith("decimal")
    if kind in _WHOLE:
        return True
    if not kind.startswith("decimal"):
        return False
    precision = int(kind.removeprefix("decimal(").split(",")[0])
    # An average's quotient is rounded once by Spark; with more digits it would be rounded twice.
    return aggregate.function == "sum" or precision <= MOST_AVERAGED_DIGITS
