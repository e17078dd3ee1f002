"""What kind of query a view's is, and so by which rule it can be refreshed.

Nothing here needs Spark but the types of a few expressions, which whoever asks hands in later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from mirrorlake.rows.views.calls import KEY, Call, find_calls, over_state, partition_of
from mirrorlake.rows.views.clauses import Piece, Query, Select, parse_query
from mirrorlake.rows.views.functions import (
    AGGREGATES,
    NONDETERMINISTIC,
    ORDER_DEPENDENT,
    SUMS,
)
from mirrorlake.rows.views.joins import Columns, Member, read_joins
from mirrorlake.rows.views.reasons import Reason, reason
from mirrorlake.spark.sql import quote

_PLAIN = {"hint", "distinct", "expressions", "from_", "joins", "where", "group", "having"}
_PLAIN |= {"order", "sort", "cluster", "distribute", "kind", "operation_modifiers"}
_PLAIN_TABLE = {"this", "db", "alias", "version"}
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_SPECIAL_MOMENTS = {"now", "today", "tomorrow", "yesterday"}


class Method(str, Enum):
    """How a view is brought up to date."""

    ROWS = "rows"
    SUMS = "sums"
    GROUPS = "groups"
    PARTITIONS = "partitions"
    FULL = "full"


RULES = {
    Method.ROWS: "rows that went are deleted, rows that came are inserted",
    Method.SUMS: "what came is added to its group, what went is taken away",
    Method.GROUPS: "groups with a changed row are computed anew",
    Method.PARTITIONS: "partitions with a changed row are computed anew",
    Method.FULL: "everything is computed anew",
}


@dataclass(frozen=True)
class Aggregate:
    """One aggregate that is kept by adding.

    Attributes:
        function: `count`, `sum` or `avg`.
        argument: what it takes, as SQL; rows where that is NULL don't count.
    """

    function: str
    argument: str


@dataclass(frozen=True)
class Shape:
    """A query as the rules see it.

    Attributes:
        method: the rule.
        reason: why none fits, if so.
        members: the tables of its joins.
        select: its clauses.
        keys: what groups or partitions it, as SQL.
        items: what it selects, over keys and aggregates where the method is `sums`.
        aggregates: what is kept, where the method is `sums`.
    """

    method: Method
    reason: Reason | None = None
    members: tuple[Member, ...] = ()
    select: Select | None = None
    keys: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
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
    select = query.select
    if select is None:
        return full("SYNTAX")
    pieces = [*select.items, select.source, *select.group]
    pieces += [piece for piece in (select.where, select.having) if piece is not None]
    calls = [call for piece in pieces for call in find_calls(piece)]
    if found := _distrusted(query, pieces, calls, known):
        return Shape(Method.FULL, found)
    members = read_joins(query, columns)
    if isinstance(members, Reason):
        return Shape(Method.FULL, members)
    shape = Shape(Method.ROWS, members=members, select=select)
    items = [call for item in select.items for call in find_calls(item)]
    windows = [call for call in items if call.is_window]
    grouped = bool(query.tree.args.get("group")) or select.having is not None
    grouped = grouped or any(call.is_aggregate for call in items)
    if query.tree.args.get("distinct"):
        if windows or grouped:
            return full("DISTINCT_OF_GROUPS")
        return _distinct(shape, select)
    if windows:
        return full("AGGREGATE_OF_WINDOW") if grouped else _windows(shape, select, windows)
    if grouped:
        return _groups(shape, query, select, columns)
    expanded = _expanded(select, members, columns)
    if expanded is None:
        return full("STAR")
    return replace(shape, items=expanded)


def is_steady(sql: str) -> bool:
    """Whether a query's answer changes only when its tables do."""
    query = parse_query(sql)
    calls = find_calls(Piece(query.text, tuple(sqlglot.tokenize(query.text, read="spark"))))
    return not any(_is_clock(call) for call in calls)


def _is_clock(call: Call) -> bool:
    """Whether a function gives other values each time it is asked."""
    empty = call.name in ("unix_timestamp", "to_unix_timestamp") and not call.arguments
    return call.name in NONDETERMINISTIC or empty


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
    for one in query.references:
        if one.pinned:
            return reason("TIME_TRAVEL", str(one.name))
        if odd := [k for k, value in one.node.args.items() if value and k not in _PLAIN_TABLE]:
            return reason("LATERAL_VIEW" if "pivots" in odd else "SYNTAX", odd[0])
    return None


def _distrusted(
    query: Query, pieces: list[Piece], calls: list[Call], known: Collection[str]
) -> Reason | None:
    """A function that no rule may rely on."""
    for call in calls:
        if _is_clock(call):
            return reason("NONDETERMINISTIC", call.name)
        if call.name in ORDER_DEPENDENT and not call.is_window:
            return reason("ORDER_DEPENDENT", call.name)
    tokens = [token for piece in pieces for token in piece.tokens]
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        opens = after is not None and after.text == "("
        if token.token_type in _NAMES and opens and token.text.lower() not in known:
            return reason("UNKNOWN_FUNCTION", token.text)
        if token.token_type == TokenType.STRING and token.text.lower() in _SPECIAL_MOMENTS:
            return reason("NONDETERMINISTIC", token.text)
    if any(not call.known for call in calls):
        return reason("UNKNOWN_FUNCTION", next(c.name for c in calls if not c.known))
    return None


def _expanded(
    select: Select, members: tuple[Member, ...], columns: Columns
) -> tuple[str, ...] | None:
    """The selected expressions with every `*` written out; None where that is not plain."""
    found: list[str] = []
    joined_by_name = any(token.text.upper() == "USING" for token in select.source.tokens)
    for item in select.items:
        words = item.words
        if words[-1] != "*" or len(words) not in (1, 3):
            if "*" in words and words[0] == "*":
                return None
            found.append(item.text)
            continue
        wanted = None if len(words) == 1 else words[0]
        if wanted is None and joined_by_name:
            return None
        for member in members:
            alias = member.reference.alias
            if wanted is None or alias.lower() == wanted:
                names = columns[alias.lower()]
                found += [f"{quote(alias)}.{quote(name)}" for name in names]
    return tuple(found)


def _distinct(shape: Shape, select: Select) -> Shape:
    assert shape.members, "a plain SELECT has tables"
    if any("*" in (item.words[0], item.words[-1]) for item in select.items):
        return full("STAR")
    keys = tuple(item.text for item in select.items)
    items = tuple(f"{KEY}{number}" for number in range(len(keys)))
    return replace(shape, method=Method.SUMS, keys=keys, items=items)


def _windows(shape: Shape, select: Select, windows: list[Call]) -> Shape:
    """Partitions by what all windows have in common."""
    if any("*" in (item.words[0], item.words[-1]) for item in select.items):
        return full("STAR")
    partitions = [{piece.words: piece.text for piece in partition_of(call)} for call in windows]
    common = [words for words in partitions[0] if all(words in other for other in partitions)]
    if not common:
        return full("WINDOW_WITHOUT_PARTITION")
    keys = tuple(partitions[0][words] for words in common)
    items = tuple(item.text for item in select.items)
    return replace(shape, method=Method.PARTITIONS, keys=keys, items=items)


def _groups(shape: Shape, query: Query, select: Select, columns: Columns) -> Shape:
    keys = _group_keys(query, select, columns)
    if keys is None:
        return full("SYNTAX", "GROUP BY")
    texts = tuple(key.text for key in keys)
    items = tuple(item.text for item in select.items)
    calls = [call for item in select.items for call in find_calls(item) if call.is_aggregate]
    names = {call.name for call in calls}
    again = replace(
        shape,
        method=Method.GROUPS,
        keys=texts,
        items=items,
    )
    recompute = again if keys else full("GLOBAL_AGGREGATE")
    if select.having is not None or not names <= SUMS:
        return recompute
    aggregates: list[Piece] = []
    over = [over_state(item, keys, aggregates) for item in select.items]
    kept = [_aggregate(piece) for piece in aggregates]
    if None in over or None in kept:
        return recompute
    return replace(
        again,
        method=Method.SUMS,
        items=tuple(text for text in over if text is not None),
        aggregates=tuple(one for one in kept if one is not None),
    )


def _group_keys(query: Query, select: Select, columns: Columns) -> list[Piece] | None:
    """What the query groups by, ordinals and names of selected expressions looked up."""
    names = [expression.alias for expression in query.tree.expressions]
    known = {column.lower() for some in columns.values() for column in some}
    group = query.tree.args.get("group")
    if group is not None and group.args.get("all"):
        return [i for i in select.items if not any(c.is_aggregate for c in find_calls(i))]
    keys: list[Piece] = []
    for piece in select.group:
        token = piece.tokens[0]
        found = piece
        if len(piece.tokens) == 1 and token.token_type == TokenType.NUMBER:
            if not 1 <= int(token.text) <= len(select.items):
                return None
            found = select.items[int(token.text) - 1]
        elif len(piece.tokens) == 1 and token.text.lower() not in known:
            alike = [n for n, name in enumerate(names) if name.lower() == token.text.lower()]
            if len(alike) == 1:
                found = select.items[alike[0]]
        if len(found.tokens) == 1 and found.tokens[0].token_type == TokenType.NUMBER:
            return None  # Spark would take the number for a column's place
        if found.words not in [key.words for key in keys]:
            keys.append(found)
    return keys


def _aggregate(piece: Piece) -> Aggregate | None:
    """An aggregate as a sum or a count of one expression; None if it isn't one."""
    call = find_calls(piece)[0]
    if call.distinct or len(call.arguments) != 1 or call.name not in SUMS & AGGREGATES:
        return None
    argument = call.arguments[0].text
    if call.name == "count_if":
        argument = f"CASE WHEN {argument} THEN 1 END"
    elif call.arguments[0].words == ("*",):
        argument = "1"
    if call.where is not None:
        argument = f"CASE WHEN {call.where.text} THEN {argument} END"
    function = {"count_if": "count", "mean": "avg"}.get(call.name, call.name)
    return Aggregate(function, argument)


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
    if shape.method is not Method.SUMS:
        return shape
    kept = zip(shape.aggregates, arguments, strict=True)
    if all(_is_exact(aggregate, kind) for aggregate, kind in kept):
        return shape
    if not shape.keys or shape.select is None:
        return full("GLOBAL_AGGREGATE", "sums of this type are not kept")
    items = tuple(item.text for item in shape.select.items)
    return replace(shape, method=Method.GROUPS, items=items, aggregates=())


def _is_plain(kind: str) -> bool:
    return not kind.startswith(("array", "map", "struct", "variant", "interval"))


def _is_exact(aggregate: Aggregate, kind: str) -> bool:
    """Whether an aggregate of such values comes out the same however it is summed up."""
    if aggregate.function == "count":
        return True
    if kind in ("tinyint", "smallint", "int", "bigint"):
        return True
    if not kind.startswith("decimal"):
        return False
    precision = int(kind.removeprefix("decimal(").split(",")[0])
    # An average's quotient is rounded once by Spark; with more digits it would be rounded twice.
    return aggregate.function == "sum" or precision <= MOST_AVERAGED_DIGITS


MOST_AVERAGED_DIGITS = 14
