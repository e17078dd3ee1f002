"""Classify a view's query: which functions it calls, and by which rule it can be refreshed.

Nothing here needs Spark except the types of a few expressions, which the caller adds later.

Each table has a role in the query's joins. The role determines how to compute the changes of the
query from the changes of the table:

- linear: the query over a change is the change of the query. True for the tables of inner joins,
  and for the side of an outer join whose rows are all kept.
- nullable: the other side of an outer join, and the right side of a semi or anti join. Only rows
  whose key is the key of a changed row can differ: the old result is subtracted, the new one added.
- both: the sides of a FULL JOIN, in the same way, for the keys of both sides' changes together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import yaml
from sqlglot import exp

from mirrorlake.landing.types import decimal_digits
from mirrorlake.names import HIDDEN, quote
from mirrorlake.query.statement import AsWritten, NamedTable
from mirrorlake.views.definition import (
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
    """A call of a function in a query.

    Attributes:
        name: the name of the function in lower case.
        node: the node of the call, including FILTER and OVER.
        arguments: the arguments.
        distinct: whether the call has DISTINCT.
        where: the condition of FILTER.
        partition: the expressions of PARTITION BY; None if the call has no window.
        known: whether the call has the form of a call of Spark's own functions.
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
        """Whether the function is an aggregate, including regressions, sketches and bitmaps."""
        if self.partition is not None:
            return False
        known = exp.FUNCTION_BY_NAME.get(self.name.upper())
        if known is not None and issubclass(known, exp.AggFunc):
            return True
        return self.name in _AGGREGATES or self.name.startswith("regr_") or "_agg" in self.name

    @property
    def is_nondeterministic(self) -> bool:
        """Whether the result depends on the time, the session, the files, or chance."""
        if self.name in ("unix_timestamp", "to_unix_timestamp"):
            return not self.arguments
        return self.name in _NONDETERMINISTIC or self.name.startswith(("current_", "input_file_"))


def find_calls(*parts: exp.Expr) -> list[Call]:
    """Return all calls in parts of a query, including nested calls."""
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
    """Rewrite a selected expression over the state's columns: the keys and the aggregates' values.

    Args:
        item: the expression.
        keys: the expressions of GROUP BY.
        aggregates: the aggregates so far, by `alike`; new ones are added.

    Returns:
        The expression as SQL; None if it uses other columns.
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
    """Return the number of the key that a part of an expression equals, or None."""
    spellings = [alike(key) for key in keys]
    if alike(node) in spellings:
        return spellings.index(alike(node))
    # `f.origin` and `origin` are the same column if only one key has this name.
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
_ASKING = ("SEMI", "ANTI")  # joins that return no column of their right side


class Role(str, Enum):
    """The role of a table in the joins of a query."""

    LINEAR = "linear"
    NULLABLE = "nullable"
    BOTH = "both"


@dataclass(frozen=True)
class Link:
    """An equality in the condition of a join.

    Attributes:
        own: the column of the table.
        alias: the alias of the other table.
        column: the column of the other table.
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
        table: the place where the query names it.
        role: its role in the joins.
        links: the equalities by which the rows of other tables are found that a changed row
            affects; empty for a linear table.
    """

    table: NamedTable
    role: Role = Role.LINEAR
    links: tuple[Link, ...] = ()


def read_joins(query: Query, columns: Columns) -> tuple[Member, ...] | Reason:
    """Return the tables of a plain SELECT in order, or the reason why no rule covers its joins.

    Args:
        query: the query.
        columns: the columns of each table, by its alias in lower case.
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
        asks = kind in _ASKING
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
    """Return the equalities between a joined table's columns and those of the tables before it."""
    links = []
    for name in join.args.get("using") or ():
        before = [one for one in around if _has(columns, one.alias, name.name)]
        if not before:
            return ()
        links.append(Link(name.name, before[0].alias, name.name))
    equal = _equalities(join.args.get("on"), [*around, own], columns)
    return (*links, *(link for owner, link in equal if owner == own))


def _equalities(
    condition: exp.Expr | None, tables: Sequence[NamedTable], columns: Columns
) -> Iterator[tuple[NamedTable, Link]]:
    """Yield the equalities of two tables' columns in a condition, once for each of the tables."""
    for part in _conjuncts(condition):
        if not isinstance(part, (exp.EQ, exp.NullSafeEQ)):
            continue
        null_safe = isinstance(part, exp.NullSafeEQ)
        for mine, other in ((part.left, part.right), (part.right, part.left)):
            owner, partner = (_owner(side, tables, columns) for side in (mine, other))
            if owner is not None and partner is not None and owner != partner:
                yield owner, Link(mine.name, partner.alias, other.name, null_safe)


def _conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """Return the parts of a condition that AND connects."""
    parts = condition.flatten() if isinstance(condition, exp.And) else filter(None, [condition])
    return [part.unnest() for part in parts]


def _is_inner(join: exp.Join) -> bool:
    """Check whether each row of a join fulfils its condition."""
    return not join.side and (join.kind or "").upper() not in _ASKING


def row_conditions(
    query: Query, members: Sequence[Member], columns: Columns, name: str
) -> dict[str, str]:
    """Return by alias the condition that each row of a linear table fulfils in the rows of a join.

    These are the parts of WHERE, and of the conditions of inner joins, that use one table.

    Args:
        query: a plain SELECT.
        members: its tables.
        columns: the columns of each table, by its alias in lower case.
        name: the alias of the table in the result.
    """
    where, joins = query.tree.args.get("where"), query.tree.args.get("joins") or ()
    parts = _conjuncts(where and where.this)
    for join in joins:
        if _is_inner(join):
            parts += _conjuncts(join.args.get("on"))
    tables = [member.table for member in members]
    linear = {member.table.alias.lower() for member in members if member.role is Role.LINEAR}
    found: dict[str, list[str]] = {}
    for part in parts:
        owners = {_owner(column, tables, columns) for column in part.find_all(exp.Column)}
        owner = owners.pop() if len(owners) == 1 else None
        alias = owner.alias.lower() if owner else ""
        if alias in linear and not part.find(exp.Query, exp.Lambda):
            own = part.copy()
            for column in own.find_all(exp.Column):
                column.set("table", exp.to_identifier(name, quoted=True))
            found.setdefault(alias, []).append(f"({as_sql(own)})")
    return {alias: " AND ".join(some) for alias, some in found.items()}


def row_links(query: Query, members: Sequence[Member], columns: Columns) -> dict[str, list[Link]]:
    """Return by alias the equalities that each row of a table fulfils in the rows of a join.

    The right side of an outer, semi or anti join has only those of its own condition. The result is
    empty for RIGHT and FULL joins.

    Args:
        query: a plain SELECT.
        members: its tables.
        columns: the columns of each table, by its alias in lower case.
    """
    joins = query.tree.args.get("joins") or ()
    if any((join.side or "").upper() in ("RIGHT", "FULL") for join in joins):
        return {}
    tables = [member.table for member in members]
    where = query.tree.args.get("where")
    equal = list(_equalities(where and where.this, tables, columns))
    for number, join in enumerate(joins, 1):
        own = tables[number]
        equal += [(own, link) for link in _links(join, tables[:number], own, columns)]
        if _is_inner(join):
            both = _equalities(join.args.get("on"), tables[: number + 1], columns)
            equal += [(owner, link) for owner, link in both if owner != own]
    found: dict[str, list[Link]] = {}
    for owner, link in equal:
        if not link.null_safe:
            found.setdefault(owner.alias.lower(), []).append(link)
    return found


def _owner(side: object, references: Sequence[NamedTable], columns: Columns) -> NamedTable | None:
    """Return the table of a plain column; None for any other expression."""
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
# Decimals whose averages can be computed from sums with at most 38 digits.
_AVERAGED_PRECISION, _AVERAGED_SCALE = 22, 14
WHOLE = ("tinyint", "smallint", "int", "bigint")
# Types whose equal values are identical, unlike the zeros of floats, and strings with a collation.
_ORDERED = (*WHOLE, "boolean", "date", "string", "timestamp", "timestamp_ntz")


class Method(str, Enum):
    """The rule by which a view is refreshed."""

    ROWS = "rows"
    SUMS = "sums"
    EXTREMES = "extremes"
    GROUPS = "groups"
    PARTITIONS = "partitions"
    FULL = "full"

    @property
    def keeps_state(self) -> bool:
        """Whether the view's table has a state to which the next refresh adds changes."""
        return self in (Method.SUMS, Method.EXTREMES)


RULES = {
    Method.ROWS: "deleted rows are removed, inserted rows are added",
    Method.SUMS: "changes are added to the sums and counts of their group",
    Method.EXTREMES: "changes are added, and extremes compared with inserted and deleted values;"
    " groups that may have lost their extreme are computed again",
    Method.GROUPS: "groups with a changed row are computed again",
    Method.PARTITIONS: "partitions with a changed row are computed again",
    Method.FULL: "everything is computed again",
}


@dataclass(frozen=True)
class Aggregate:
    """An aggregate in the state of a view.

    Attributes:
        number: its number within the state.
        function: `count`, `sum`, `avg`, `min` or `max`.
        argument: the argument as SQL. Rows with a NULL argument are ignored.
        kind: the type of the argument in Spark; empty until it is known.
    """

    number: int
    function: str
    argument: str
    kind: str = ""

    @property
    def is_extreme(self) -> bool:
        """Whether the aggregate is `min` or `max`, and not a sum."""
        return self.function in EXTREMES


@dataclass(frozen=True)
class Shape:
    """The shape of a query, which decides how it is refreshed.

    Attributes:
        method: the rule.
        reason: why no rule covers the query; None if one does.
        members: the tables of the joins.
        keys: the expressions of GROUP BY or PARTITION BY, as SQL.
        items: the selected expressions, over the columns of the state if the method keeps one.
        selected: the selected expressions as SQL.
        aggregates: the aggregates of the state, if the method keeps one.
    """

    method: Method
    reason: Reason | None = None
    members: tuple[Member, ...] = ()
    keys: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()


def full(code: str, what: str = "") -> Shape:
    """Return the shape of a query that no rule covers."""
    return Shape(Method.FULL, reason(code, what))


def read_shape(query: Query, columns: Columns, known: Collection[str]) -> Shape:
    """Return the shape of a query, before the types of its expressions are known.

    Args:
        query: the query.
        columns: the columns of each table, by its alias in lower case.
        known: the names of Spark's own functions.
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
    """Check whether a query returns the same result until one of its tables changes."""
    return not any(call.is_nondeterministic for call in find_calls(parse_query(sql).tree))


def _oddity(query: Query) -> Reason | None:
    """Return the reason why a query is not one plain SELECT over tables, or None."""
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
    """Return the reason for a function that no rule can rely on, or None."""
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
    """Return the selected expressions with every `*` expanded; None if that is not possible."""
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
            if isinstance(join, exp.Join) and join.kind in _ASKING:
                continue  # the table has no columns in the result
            if not wanted or alias.lower() == wanted.lower():
                names = columns[alias.lower()]
                found += [f"{quote(alias)}.{quote(name)}" for name in names]
    return tuple(found)


def _windows(shape: Shape, windows: list[Call]) -> Shape:
    """Return the shape of a query with windows. Its keys are the keys that all windows have."""
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
    """Return the expressions of GROUP BY, with ordinals and aliases resolved; None if invalid."""
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
            return None  # Spark would take the number as the ordinal of a column
        keys.setdefault(alike(found), found)
    return list(keys.values())


def _aggregate(number: int, call: Call) -> Aggregate | None:
    """Return a call as an aggregate of the state; None if the state does not support it."""
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
    """Return the final shape. It depends on the types of the expressions.

    Sums of floats are not kept in the state, because their result depends on the order. Hashes of
    rows support only values that are not nested.

    Args:
        shape: the shape that was read from the query.
        arguments: the types of the aggregates' arguments in Spark.
        outputs: the types of the view's columns in Spark.
    """
    if shape.method is Method.ROWS:
        nested = [kind for kind in outputs if not _is_plain(kind)]
        return full("NESTED_COLUMN", nested[0]) if nested else shape
    if not shape.method.keeps_state:
        return shape
    typed = zip(shape.aggregates, arguments, strict=True)
    kept = tuple(replace(aggregate, kind=kind) for aggregate, kind in typed)
    # Inserted and deleted values are compared.
    plain = shape.method is Method.SUMS or all(map(_is_plain, arguments))
    if plain and all(map(_is_exact, kept)):
        return replace(shape, aggregates=kept)
    if not shape.keys:
        return full("GLOBAL_AGGREGATE", "sums of this type are not kept")
    return replace(shape, method=Method.GROUPS, items=shape.selected, aggregates=())


def _is_plain(kind: str) -> bool:
    return not kind.startswith(("array", "map", "struct", "variant", "interval"))


def _is_exact(aggregate: Aggregate) -> bool:
    """Check whether the result of an aggregate does not depend on the order of the changes."""
    kind = aggregate.kind
    if aggregate.function == "count":
        return True
    if aggregate.is_extreme:
        return kind in _ORDERED or kind.startswith("decimal")
    if kind in WHOLE:
        return True
    if (digits := decimal_digits(kind)) is None:
        return False
    precision, scale = digits
    is_averaged = precision <= _AVERAGED_PRECISION and scale <= _AVERAGED_SCALE
    return aggregate.function == "sum" or is_averaged
