"""Rewrite a query into stages: queries without subqueries, each of a shape that may have a rule.

A stage is stored in a hidden table, and later stages read it like any other table. The last stage
is the view itself. The rewriting uses only equivalences that hold for NULLs and duplicates. It
returns no stages for any other query, which then keeps its full refresh:

- WITH and subqueries in FROM: plain ones are merged into the query, others become stages.
- EXISTS and IN: semi joins; NOT EXISTS and NOT IN: anti joins. NOT IN also needs a stage that
  counts the NULLs of the subquery.
- Scalar aggregates: a stage with one row, or with one row for each key that the outer query
  compares.
- HAVING with subqueries, DISTINCT and windows over groups: a query over a stage with the groups.
- ROLLUP, CUBE and GROUPING SETS: a UNION ALL over one stage for each set of keys.
- count(DISTINCT) without GROUP BY: an aggregation of a stage with one row for each value.
- UNION, INTERSECT and EXCEPT: the groups of equal rows of a stage with the rows of both sides.
- ORDER BY with LIMIT: the last step over a stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, combinations, count, islice, product
from typing import TypeVar

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from mirrorlake.names import TableName, is_reserved
from mirrorlake.query.statement import DIALECT
from mirrorlake.views.definition import alike, as_sql, parse_query
from mirrorlake.views.shape import ORDER_DEPENDENT, WHOLE, find_calls

_CLAUSES = {"with_", "expressions", "from_", "joins", "where", "group", "having", "distinct"}
_CLAUSES |= {"order", "hint", "operation_modifiers"}
_STRICT = (exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div)  # NULL if an operand is NULL
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_NULL_IF_EMPTY = ("sum", "avg", "mean", "min", "max")
_COUNTS = ("count", "count_if")
_TOTALS = {"sum": "sum", "count": "sum", "count_if": "sum", "min": "min", "max": "max"}  # of parts
_GENERATORS = {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline"}
_GENERATORS |= {"inline_outer", "stack", "json_tuple", "variant_explode", "variant_explode_outer"}
_GROUPINGS = {"grouping", "grouping_id"}  # functions that need ROLLUP, CUBE or GROUPING SETS
_MOST_STAGES = 16  # each one costs a commit
_TABLE = "__table_"  # no table of a lake can have such a name
_Tree = TypeVar("_Tree", bound=exp.Expr)


class _UnsupportedError(Exception):
    """A query, or a part of it, cannot be rewritten into stages."""


@dataclass(frozen=True)
class Stage:
    """A stage of a view.

    Attributes:
        sql: the query, which names earlier stages as `view/1`, `view/2` and so on.
        columns: the names of its columns.
    """

    sql: str
    columns: tuple[str, ...]


def read_stages(
    sql: str,
    view: TableName,
    sources: Mapping[TableName, Mapping[str, str]],
    names: Sequence[str],
) -> list[Stage]:
    """Rewrite a query into stages.

    Args:
        sql: the query.
        view: the name of the view.
        sources: the columns of each table that the query reads, with their types.
        names: the names of the query's columns.

    Returns:
        The stages in the order of their dependencies, or an empty list if the query cannot be
        rewritten.
    """
    # In the tree, all names are in lower case.
    lower = {
        name: {column.lower(): kind for column, kind in columns.items()}
        for name, columns in sources.items()
    }
    try:
        rewriting = _Rewriting(view, lower)
        rewriting.finish(_qualified(sql, lower), names)
    except (SqlglotError, _UnsupportedError):
        return []
    return rewriting.stages


def break_ties(sql: str, names: Sequence[str]) -> str:
    """Return a query that sorts ties before LIMIT by all columns, as its last stage does."""
    tree = parse_query(sql).tree
    if not (tree.args.get("limit") or tree.args.get("offset")):
        return sql
    for name in names:
        tree.order_by(_ordered(exp.column(exp.to_identifier(name, quoted=True))), copy=False)
    return as_sql(tree)


def _ordered(column: exp.Expr) -> exp.Ordered:
    return exp.Ordered(this=column, nulls_first=True)


def _qualified(sql: str, sources: Mapping[TableName, Mapping[str, str]]) -> exp.Query:
    """Return the tree of a query in which each column names its table, and aliases are unique."""
    query = parse_query(sql)
    numbers = {str(name).lower(): number for number, name in enumerate(sources)}
    for one in query.tables:
        if {key for key, value in one.node.args.items() if value} - {"this", "db", "alias"}:
            raise _UnsupportedError("a table with further clauses")
        alias = exp.TableAlias(this=exp.to_identifier(one.alias, quoted=True))
        one.node.set("alias", alias)
        one.node.set("this", exp.to_identifier(f"{_TABLE}{numbers[str(one.name).lower()]}"))
        one.node.set("db", None)
    _check(query.tree, {column for columns in sources.values() for column in columns})
    columns: dict[str, object] = {
        f"{_TABLE}{number}": dict.fromkeys(some, "unknown")
        for number, some in enumerate(sources.values())
    }
    schema = MappingSchema(columns, normalize=False, dialect=DIALECT)
    tree = qualify(query.tree, dialect=DIALECT, schema=schema)
    aliases = (f"q{number}" for number in count(1))
    for select in reversed(list(tree.find_all(exp.Select))):  # inner ones first
        _rename(select, {source.alias: next(aliases) for source in _tables(select)})
    if tree.find(exp.Dot) or any(column.db for column in tree.find_all(exp.Column)):
        raise _UnsupportedError("a field of a nested value")
    return tree


def _check(tree: exp.Expr, columns: set[str]) -> None:
    """Raise an error for a query with parts that the rewriting does not know."""
    unknown = (exp.Lateral, exp.Pivot, exp.Values, exp.TableSample, exp.Unnest, exp.Lambda)
    if tree.find(*unknown):
        raise _UnsupportedError("a table function")
    aliases = [one.alias.lower() for one in tree.find_all(exp.Alias, exp.CTE, exp.Subquery)]
    for select in tree.find_all(exp.Select):
        group, joins = select.args.get("group"), select.args.get("joins") or []
        if {key for key, value in select.args.items() if value} - {*_CLAUSES, "limit", "offset"}:
            raise _UnsupportedError("a clause")
        if group and any(group.args.get(key) for key in ("all", "totals")):
            raise _UnsupportedError("a clause of GROUP BY")
        if select.args.get("distinct") and select.args["distinct"].args.get("on"):
            raise _UnsupportedError("DISTINCT ON")
        sides = {(join.side or "").upper() for join in joins}
        # In the tree, a comma looks like CROSS JOIN, but RIGHT and FULL bind more tightly than it.
        odd = any(join.args.get("using") or join.kind == "CROSS" for join in joins)
        if any(join.method for join in joins) or (odd and sides & {"RIGHT", "FULL"}):
            raise _UnsupportedError("a join")
        # Spark and sqlglot may resolve a name differently if both an alias and a column have it.
        for item in select.expressions:
            name = item.alias.lower()
            if not name or (item.this.name.lower() == name and isinstance(item.this, exp.Column)):
                continue
            if name not in columns and aliases.count(name) == 1:
                continue
            clauses = filter(None, map(select.args.get, ("group", "having", "order")))
            used = (column for clause in clauses for column in clause.find_all(exp.Column))
            for column in used:
                is_own = column.parent_select is select and not column.table
                # ORDER BY of the plain name means the alias in both.
                if (
                    is_own
                    and column.name.lower() == name
                    and not isinstance(column.parent, exp.Ordered)
                ):
                    raise _UnsupportedError("an ambiguous name")
    for call in find_calls(tree):
        if call.is_nondeterministic or call.name in ORDER_DEPENDENT | _GENERATORS | _GROUPINGS:
            raise _UnsupportedError(call.name)


def _sources(select: exp.Select) -> list[exp.Expr]:
    """Return FROM and the joins of a SELECT."""
    return [select.args["from_"], *(select.args.get("joins") or ())]


def _tables(select: exp.Select) -> list[exp.Expr]:
    """Return the tables and subqueries in FROM and the joins of a SELECT."""
    return [part.this for part in _sources(select)] if select.args.get("from_") else []


def _rename(select: exp.Select, aliases: Mapping[str, str]) -> None:
    """Rename the tables of a SELECT."""
    for source in _tables(select):
        source.set("alias", exp.TableAlias(this=_name(aliases[source.alias])))
    for column in select.find_all(exp.Column):
        if column.table in aliases:
            column.set("table", _name(aliases[column.table]))


def _name(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _column(table: str, name: str) -> exp.Column:
    return exp.column(_name(name), table=_name(table))


def _as(item: exp.Expr, name: str) -> exp.Alias:
    return exp.Alias(this=item, alias=_name(name))


def _aliased(table: exp.Table, alias: str) -> exp.Table:
    copy = table.copy()
    copy.set("alias", exp.TableAlias(this=_name(alias)))
    return copy


def _wrapped(value: exp.Expr) -> exp.Expr:
    """Return an expression that can be an operand of any operator."""
    return value if isinstance(value, (exp.Column, exp.Paren)) else exp.Paren(this=value)


def _kind(join: exp.Expr) -> str:
    """Return the kind of a join, with its side if it has one."""
    assert isinstance(join, exp.Join), join
    return (join.side or join.kind or "INNER").upper()


def _keeps_left(select: exp.Select) -> bool:
    """Check whether a query has neither a RIGHT nor a FULL join."""
    return not any(_kind(join) in ("RIGHT", "FULL") for join in select.args.get("joins") or ())


def _used(part: exp.Expr | None) -> set[str]:
    """Return the aliases of the tables whose columns a part uses."""
    return set() if part is None else {column.table for column in part.find_all(exp.Column)}


def _bare(part: exp.Expr) -> exp.Expr:
    """Return a part without its parentheses, so that equal parts compare equal."""
    return alike(part.unnest())


def _conjuncts(clause: exp.Expr | None) -> list[exp.Expr]:
    """Split a clause into the conditions that AND combines."""
    if clause is None:
        return []
    condition = (clause.this if isinstance(clause, (exp.Where, exp.Having)) else clause).unnest()
    if not isinstance(condition, exp.And):
        return [condition]
    return [*_conjuncts(condition.left), *_conjuncts(condition.right)]


def _set_where(select: exp.Select, conditions: Sequence[exp.Expr]) -> None:
    where = exp.Where(this=exp.and_(*conditions)) if conditions else None
    select.set("where", where)


def _aggregates(*parts: exp.Expr) -> list[exp.Expr]:
    """Return the aggregates of parts of a query, without those of its subqueries."""
    calls = [call.node for call in find_calls(*parts) if call.is_aggregate]
    inside = {id(node) for part in parts for node in part.find_all(exp.Query)}
    inside -= {id(part) for part in parts}
    return [node for node in calls if not _has_ancestor(node, inside)]


def _has_ancestor(node: exp.Expr, ids: set[int]) -> bool:
    while node.parent is not None:
        node = node.parent
        if id(node) in ids:
            return True
    return False


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=[one.copy() for one in arguments])


def _union_all(left: exp.Query, right: exp.Query) -> exp.Query:
    return exp.Union(this=left, expression=right, distinct=False)


def _first(query: exp.Query) -> exp.Select:
    """Return the query that names the columns of a set operation."""
    while isinstance(query, (exp.SetOperation, exp.Subquery)):
        query = query.this
    if not isinstance(query, exp.Select):
        raise _UnsupportedError("not a SELECT")
    return query


def _clauses(select: exp.Select) -> list[exp.Expr]:
    """Return the selected expressions and HAVING."""
    return [*select.expressions, *filter(None, [select.args.get("having")])]


def _key_sets(group: exp.Group) -> list[list[exp.Expr]]:
    """Return the sets of keys of a GROUP BY with ROLLUP, CUBE or GROUPING SETS."""

    def keys_of(part: exp.Expr) -> list[exp.Expr]:
        inside = part.expressions if isinstance(part, exp.Tuple) else [part]
        if not all(key.find(exp.Column) for key in inside):
            raise _UnsupportedError("a number in a grouping set")
        return inside

    def sets_of(part: exp.Expr) -> list[list[exp.Expr]]:
        if isinstance(part, exp.GroupingSets):
            return [keys for one in part.expressions for keys in sets_of(one)]
        if not isinstance(part, (exp.Rollup, exp.Cube)):
            return [keys_of(part)]
        units = [keys_of(one) for one in part.expressions]
        sizes = range(len(units), -1, -1)
        rollup = (units[:size] for size in sizes)
        cube = (some for size in sizes for some in combinations(units, size))
        found = rollup if isinstance(part, exp.Rollup) else cube
        return [list(chain(*some)) for some in islice(found, _MOST_STAGES + 1)]

    parts = group.args.get("grouping_sets") or group.expressions
    for one in (*group.args.get("rollup", ()), *group.args.get("cube", ())):  # WITH ROLLUP
        parts = [type(one)(expressions=parts)]
    some_sets = islice(product(*map(sets_of, parts)), _MOST_STAGES + 1)
    found = [list(chain(*some)) for some in some_sets]
    if not any(found):
        raise _UnsupportedError("grouping sets without keys")
    return found


def _over(table: exp.Table, tree: exp.Select, values: Mapping[exp.Expr, exp.Expr]) -> exp.Select:
    """Return a query over a stage with other values for parts of a grouped query."""

    def kept(node: exp.Expr) -> exp.Expr:
        nested = not isinstance(node, exp.Column) and node.find_ancestor(exp.Query)
        value = None if nested or isinstance(node, exp.Alias) else values.get(_bare(node))
        return node if value is None else value.copy()

    outer = exp.Select(
        expressions=[item.transform(kept) for item in tree.expressions],
        from_=exp.From(this=table),
        distinct=tree.args.get("distinct"),
    )
    if having := tree.args.get("having"):
        outer.set("where", exp.Where(this=having.this.transform(kept)))
    if _used(outer) & {source.alias for source in _tables(tree)}:
        raise _UnsupportedError("a column that is not grouped")
    return outer


def _windows(*parts: exp.Expr) -> bool:
    return any(part.find(exp.Window) for part in parts)


def _is_grouped(select: exp.Select) -> bool:
    clauses = select.args.get("group") or select.args.get("having")
    return bool(clauses or _aggregates(*select.expressions))


def _is_plain(query: exp.Query) -> bool:
    """Check whether a query only filters and selects rows, without RIGHT and FULL joins."""
    return (
        isinstance(query, exp.Select)
        and bool(query.args.get("from_"))
        and not query.args.get("distinct")
        and not _is_grouped(query)
        and not _windows(*query.expressions)
        and _keeps_left(query)
    )


def _is_light(query: exp.Query) -> bool:
    """Check whether a query is as cheap to compute as to read from a stage."""
    return _is_plain(query) and not query.args.get("joins")


@dataclass
class _Inner:
    """A query in FROM or WITH, and its stage if it has one."""

    query: exp.Query
    stage: exp.Table | None = None


@dataclass
class _Rewriting:
    """The stages of a view, in the order of their dependencies.

    Attributes:
        view: the name of the view.
        sources: the columns of the tables that the query reads, with their types.
        stages: the stages so far.
    """

    view: TableName
    sources: Mapping[TableName, Mapping[str, str]]
    stages: list[Stage] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _types: dict[str, dict[str, str | None]] = field(default_factory=dict)  # of stages' columns

    def finish(self, tree: exp.Query, names: Sequence[str]) -> None:
        """Rewrite a query, and add its last stage."""
        limit, order = tree.args.get("limit"), tree.args.get("order")
        if limit is not None or tree.args.get("offset"):
            tree = self._limited(tree, order)
        else:
            tree.set("order", None)
            tree = self._flat(tree, {})
        first = _first(tree)
        shown = [one.alias_or_name for one in first.expressions]
        # An alias that only sqlglot has added has no counterpart in Spark.
        if len(shown) != len(names) or any(
            own != name.lower() and not own.startswith("_col_")
            for own, name in zip(shown, names, strict=True)
        ):
            raise _UnsupportedError("other columns")
        items = [item.unalias() for item in first.expressions]
        first.set("expressions", [_as(*pair) for pair in zip(items, names, strict=True)])
        self._add(tree, tuple(names))

    def _limited(self, tree: exp.Query, order: exp.Expr | None) -> exp.Query:
        """Return the last stage of a query with ORDER BY and LIMIT."""
        if order is None:
            raise _UnsupportedError("LIMIT without ORDER BY")
        limit, offset = (tree.args.get(key) for key in ("limit", "offset"))
        for key in ("limit", "offset", "order"):
            tree.set(key, None)
        shown = [item.alias_or_name for item in _first(tree).expressions]
        is_fixed = not isinstance(tree, exp.Select) or tree.args.get("distinct")
        for number, one in enumerate(order.expressions):
            by, hidden = one.this, f"order_{number}"
            columns = list(by.find_all(exp.Column))
            if columns and not any(column.table for column in columns):
                continue  # an expression over the selected columns
            is_constant = not columns and not _aggregates(by)
            is_mixed = not all(column.table for column in columns)
            if is_constant or is_mixed or hidden in shown or is_fixed:
                raise _UnsupportedError("ORDER BY")
            tree.append("expressions", _as(by.copy(), hidden))
            by.replace(exp.column(_name(hidden)))
        inner = self._flat(tree, {})
        if _is_light(inner):
            raise _UnsupportedError("LIMIT of a table")
        last = self._select_all(inner, shown)
        alias = last.args["from_"].this.alias
        for column in order.find_all(exp.Column):
            column.set("table", _name(alias))
        for name in shown:
            order.append("expressions", _ordered(_column(alias, name)))
        for key, value in (("order", order), ("limit", limit), ("offset", offset)):
            last.set(key, value)
        return last

    def _add(self, query: exp.Query, columns: tuple[str, ...]) -> exp.Table:
        """Add a stage, and return a table that reads it."""
        if len(self.stages) == _MOST_STAGES:
            raise _UnsupportedError("too many stages")
        copy = query.copy()
        for node in copy.find_all(exp.Query):
            is_branch = node is copy or isinstance(node.parent, exp.SetOperation)
            if not is_branch or isinstance(node, exp.Subquery):
                raise _UnsupportedError("a subquery")
        if not _used(copy) <= {table.alias for table in copy.find_all(exp.Table)}:
            raise _UnsupportedError("a reference to an outer query")
        for table in copy.find_all(exp.Table):
            if name := self._source(table):
                table.set("this", _name(name.name))
                table.set("db", name.schema and _name(name.schema))
        self.stages.append(Stage(as_sql(copy), columns))
        return exp.Table(this=_name(f"{self.view}/{len(self.stages)}"))

    def _stage(self, query: exp.Query) -> exp.Table:
        """Add an inner stage, and return a table that reads it, without an alias."""
        columns = tuple(item.alias_or_name for item in _first(query).expressions)
        if len(set(columns)) < len(columns) or any(
            not re.fullmatch(r"\w+", name) or is_reserved(name) for name in columns
        ):
            raise _UnsupportedError("a column name")
        stage = self._add(query, columns)
        if isinstance(query, exp.Select):
            self._types[stage.name] = {
                item.alias_or_name: self._type(item.unalias(), query) for item in query.expressions
            }
        return stage

    def _alias(self) -> str:
        return f"s{next(self._numbers)}"

    def _read(self, stage: exp.Table) -> exp.Table:
        """Return a stage with a new alias."""
        return _aliased(stage, self._alias())

    def _select_all(self, query: exp.Query, columns: Sequence[str] = ()) -> exp.Select:
        """Add a stage, and return a query that reads it."""
        table = self._read(self._stage(query))
        names = columns or self.stages[-1].columns
        items = [_as(_column(table.alias, name), name) for name in names]
        return exp.Select(expressions=items, from_=exp.From(this=table))

    def _flat(self, tree: exp.Query, ctes: Mapping[str, _Inner]) -> exp.Query:
        """Return a query without WITH and subqueries, after adding the stages that it needs."""
        known = dict(ctes)
        if clause := tree.args.get("with_"):
            if clause.args.get("recursive"):
                raise _UnsupportedError("WITH RECURSIVE")
            tree.set("with_", None)
            for cte in clause.expressions:
                known[cte.alias] = _Inner(self._flat(cte.this, known))
        if isinstance(tree, exp.Subquery):
            if {key for key, value in tree.args.items() if value} - {"this", "alias"}:
                raise _UnsupportedError("a clause after a subquery")
            return self._flat(tree.this, known)
        if tree.args.get("limit") or tree.args.get("offset"):
            raise _UnsupportedError("LIMIT in a subquery")
        tree.set("order", None)
        if isinstance(tree, exp.SetOperation):
            return self._united(tree, known)
        if not isinstance(tree, exp.Select) or not tree.args.get("from_"):
            raise _UnsupportedError("not a SELECT")
        self._inline(tree, known)
        group, nested = tree.args.get("group"), any(c.find(exp.Query) for c in _clauses(tree))
        over_groups = tree.args.get("distinct") or _windows(*tree.expressions)
        parts = [tree]
        if group and group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
            if over_groups:
                raise _UnsupportedError("DISTINCT or a window over grouping sets")
            parts = self._over_groups(tree, _key_sets(group), known)
        elif (nested or over_groups) and _is_grouped(tree):
            parts = self._over_groups(tree, [group.expressions if group else []], known)
        elif not group and not tree.args.get("having"):
            parts = [self._over_values(tree, known)]
        return reduce(_union_all, [self._joined(part, known) for part in parts])

    def _joined(self, tree: exp.Select, known: Mapping[str, _Inner]) -> exp.Query:
        """Replace the subqueries of the conditions and expressions of a query by joins."""
        conditions, kept = _conjuncts(tree.args.get("where")), []
        tree.set("where", None)
        for condition in conditions:
            kept += self._condition(tree, condition, known)
        for item in list(tree.expressions):
            for query in _outermost(item):
                query.replace(self._scalar(tree, query, known, strict=False))
        _set_where(tree, [*_conjuncts(tree.args.get("where")), *kept])
        return tree

    def _united(self, tree: exp.SetOperation, ctes: Mapping[str, _Inner]) -> exp.Query:
        """Return a set operation over plain queries and stages."""
        if {key for key, value in tree.args.items() if value} - {"this", "expression", "distinct"}:
            raise _UnsupportedError("a clause of a set operation")
        if tree.args.get("distinct") and isinstance(tree, exp.Union):
            first = tree.this
            while isinstance(first, exp.Union):  # the last UNION of a chain removes all duplicates
                first.set("distinct", False)
                first = first.this
        for side in ("this", "expression"):
            part = tree.args[side]
            branch = self._flat(part, ctes)
            # Without its parentheses, the right side would be combined in another order.
            is_chain = side == "this" and isinstance(part, exp.SetOperation)
            is_chain = is_chain and isinstance(branch, exp.SetOperation)
            tree.set(side, branch if is_chain or _is_light(branch) else self._select_all(branch))
        return self._counted(tree) if tree.args.get("distinct") else tree

    def _counted(self, tree: exp.SetOperation) -> exp.Select:
        """Return UNION, INTERSECT or EXCEPT as groups of a stage with the rows of both sides."""
        first = _first(tree)
        names = [item.alias_or_name for item in first.expressions]
        items = [_as(item.unalias(), f"c{n}") for n, item in enumerate(first.expressions)]
        first.set("expressions", items)
        for number, side in enumerate((tree.this, tree.expression)):
            for select in () if isinstance(tree, exp.Union) else side.find_all(exp.Select):
                select.append("expressions", _as(exp.Literal.number(number), "side"))
        table = self._read(self._stage(_union_all(tree.this, tree.expression)))
        columns = [_column(table.alias, f"c{number}") for number in range(len(names))]
        found = exp.Select(
            expressions=[_as(*pair) for pair in zip(columns, names, strict=True)],
            from_=exp.From(this=table),
            group=exp.Group(expressions=[column.copy() for column in columns]),
        )
        least, most = (_call(name, _column(table.alias, "side")) for name in ("min", "max"))
        if isinstance(tree, exp.Intersect):
            found.having(exp.LT(this=least, expression=most), copy=False)
        elif isinstance(tree, exp.Except):
            found.having(exp.EQ(this=most, expression=exp.Literal.number(0)), copy=False)
        return found

    def _inline(self, tree: exp.Select, ctes: Mapping[str, _Inner]) -> None:
        """Merge plain queries in FROM into a query, and replace others by stages."""
        may_merge = _keeps_left(tree)
        parts: list[exp.Expr] = []
        conditions = _conjuncts(tree.args.get("where"))
        values: dict[tuple[str, str], exp.Expr] = {}
        for part in _sources(tree):
            source = part.this
            parts.append(part)
            if isinstance(source, exp.Subquery):
                inner = _Inner(self._flat(source.this, ctes))
            elif not isinstance(source, exp.Table):
                raise _UnsupportedError("FROM")
            elif source.name in ctes:
                inner = ctes[source.name]
            else:
                continue
            alias, query = source.alias, inner.query
            is_inner = isinstance(part, exp.From) or _kind(part) in ("INNER", "CROSS")
            if not (may_merge and is_inner and _can_merge(query, tree)):
                inner.stage = inner.stage or self._stage(query)
                source.replace(_aliased(inner.stage, alias))
                continue
            query = self._fresh(query)
            values |= {(alias, item.alias): item.unalias() for item in query.expressions}
            source.replace(query.args["from_"].this)
            if isinstance(part, exp.Join):
                conditions += _conjuncts(part.args.get("on"))
                part.set("on", None)
                part.set("kind", "CROSS")
            parts += query.args.get("joins") or ()
            conditions += _conjuncts(query.args.get("where"))
        tree.set("from_", parts[0])
        tree.set("joins", parts[1:])
        _set_where(tree, conditions)
        for column in list(tree.find_all(exp.Column)):
            if value := values.get((column.table, column.name)):
                column.replace(_wrapped(value.copy()))

    def _fresh(self, query: _Tree) -> _Tree:
        """Return a copy of a plain query in which the tables have new aliases."""
        copy = query.copy()
        assert isinstance(copy, exp.Select), copy
        _rename(copy, {source.alias: self._alias() for source in _tables(copy)})
        return copy

    def _over_groups(
        self, tree: exp.Select, sets: Sequence[Sequence[exp.Expr]], ctes: Mapping[str, _Inner]
    ) -> list[exp.Select]:
        """Return queries over stages with the groups and aggregates, one for each set of keys."""
        found = _aggregates(*_clauses(tree))
        others = {_bare(key): exp.Null() for key in chain(*sets)}
        outers = []
        for keys in sets:
            rows = [_call("count", exp.Star())] if others and not keys else []
            table, columns = self._groups(tree, keys, [*keys, *found, *rows], ctes)
            outer = _over(table, tree, {**others, **columns})
            for number in rows:  # Spark returns no total of a table without rows
                zero = exp.Literal.number(0)
                outer.where(exp.GT(this=columns[_bare(number)], expression=zero), copy=False)
            outers.append(outer)
        return outers

    def _over_values(self, tree: exp.Select, ctes: Mapping[str, _Inner]) -> exp.Select:
        """Return count(DISTINCT) over a stage with its values, or the query if it has none."""
        calls = [call for call in find_calls(*_aggregates(*tree.expressions)) if call.is_aggregate]
        counted = {_bare(one): one for call in calls if call.distinct for one in call.arguments}
        tables = {source.alias for one in tree.find_all(exp.Select) for source in _tables(one)}
        if len(counted) != 1 or not all(map(_used, counted.values())) or _used(tree) - tables:
            return tree
        (value,) = counted.values()
        distinct = [call for call in calls if call.distinct]
        others = [call for call in calls if not call.distinct]
        if any(call.name != "count" or call.where for call in distinct):
            return tree
        for call in others:
            if call.name not in _TOTALS:
                return tree
            if call.name == "sum" and self._type(call.arguments[0], tree) not in WHOLE:
                return tree  # the sum of sums may have another type
        parts = [value, *(call.node for call in others)]
        table, columns = self._groups(tree, [value], parts, ctes)
        total: exp.Expr = _call("count", columns[_bare(value)])
        totals = {_bare(call.node): total for call in distinct}
        for call in others:
            total = _call(_TOTALS[call.name], columns[_bare(call.node)])
            if call.name in _COUNTS:
                total = _call("coalesce", total, exp.Literal.number(0))
            totals[_bare(call.node)] = total
        return _over(table, tree, totals)

    def _groups(
        self,
        tree: exp.Select,
        keys: Sequence[exp.Expr],
        parts: Sequence[exp.Expr],
        ctes: Mapping[str, _Inner],
    ) -> tuple[exp.Table, dict[exp.Expr, exp.Column]]:
        """Add a stage with parts of a grouped query, and return its table and columns by part."""
        names = {key: f"c{number}" for number, key in enumerate(dict.fromkeys(map(_bare, parts)))}
        items = {names[_bare(part)]: part for part in parts}
        groups = tree.copy()
        groups.set("expressions", [_as(part.copy(), name) for name, part in items.items()])
        groups.set("group", exp.Group(expressions=[key.copy() for key in keys]) if keys else None)
        groups.set("having", None)
        groups.set("distinct", None)
        table = self._read(self._stage(self._flat(groups, ctes)))
        return table, {part: _column(table.alias, name) for part, name in names.items()}

    def _condition(
        self, tree: exp.Select, condition: exp.Expr, ctes: Mapping[str, _Inner]
    ) -> list[exp.Expr]:
        """Replace the subqueries of a condition by joins, and return the remaining conditions."""
        anti = isinstance(condition, exp.Not)
        test = condition.this.unnest() if anti else condition
        if isinstance(test, exp.Exists) and isinstance(test.this, exp.Query):
            self._semi(tree, self._flat(test.this, ctes), None, anti=anti)
            return []
        if isinstance(test, exp.In) and (query := test.args.get("query")):
            compared, inner = test.this, self._flat(query, ctes)
            if compared.find(exp.Query, exp.Tuple):
                raise _UnsupportedError("a subquery in IN")
            if anti:
                return self._not_in(tree, inner, compared)
            self._semi(tree, inner, compared)
            return []
        for query in _outermost(condition):
            between = query.parent
            while isinstance(between, _STRICT):
                between = between.parent
            strict = between is condition and isinstance(condition, _COMPARISONS)
            query.replace(self._scalar(tree, query, ctes, strict=strict))
        return [condition]

    def _semi(
        self, tree: exp.Select, inner: exp.Query, compared: exp.Expr | None, *, anti: bool = False
    ) -> None:
        """Add a semi or anti join of a query with the rows of a subquery."""
        inner = self._as_plain(inner)
        linked = _linked(inner)
        if compared is not None:
            (item,) = inner.expressions if len(inner.expressions) == 1 else (None,)
            if item is None:
                raise _UnsupportedError("IN with several columns")
            value = _wrapped(item.unalias())
            linked.append(exp.EQ(this=_wrapped(compared.copy()), expression=value))
        own = {source.alias for source in _tables(inner)}
        columns = [c for one in linked for c in one.find_all(exp.Column) if c.table in own]
        if not columns:
            raise _UnsupportedError("a subquery without a condition on the outer query")
        if inner.args.get("joins"):
            names = {alike(one): f"c{n}" for n, one in enumerate(dict.fromkeys(columns))}
            items = [_as(one.copy(), names[alike(one)]) for one in dict.fromkeys(columns)]
            inner.set("expressions", items)
            inner.set("distinct", exp.Distinct())
            table = self._read(self._stage(inner))
            for one in columns:
                one.replace(_column(table.alias, names[alike(one)]))
        else:
            table = inner.args["from_"].this
            linked += _conjuncts(inner.args.get("where"))
        kind = "ANTI" if anti else "SEMI"
        join = exp.Join(this=table, side="LEFT", kind=kind, on=exp.and_(*linked))
        tree.append("joins", join)

    def _as_plain(self, inner: exp.Query) -> exp.Select:
        """Return a plain query with the rows of a subquery; the number of duplicates may differ."""
        if isinstance(inner, exp.Select) and inner.args.get("distinct") and not _is_grouped(inner):
            inner.set("distinct", None)
        if _is_plain(inner):
            assert isinstance(inner, exp.Select)
            return inner
        own = {s.alias for one in inner.find_all(exp.Select) for s in _tables(one)}
        if _used(inner) - own:
            raise _UnsupportedError("a reference to the outer query")
        return self._select_all(inner)

    def _not_in(self, tree: exp.Select, inner: exp.Query, compared: exp.Expr) -> list[exp.Expr]:
        """Add the joins of NOT IN, and return its conditions on NULLs."""
        plain = self._as_plain(inner)
        own = {source.alias for source in _tables(plain)}
        if _used(plain) - own or len(plain.expressions) != 1:
            raise _UnsupportedError("NOT IN with a reference to the outer query")
        counts = self._fresh(plain)
        item = counts.expressions[0].unalias()
        rows = exp.Anonymous(this="count", expressions=[exp.Star()])
        values = exp.Anonymous(this="count", expressions=[item])
        is_empty = exp.EQ(this=rows, expression=exp.Literal.number(0))
        has_values = exp.EQ(this=rows.copy(), expression=values)
        counts.set("expressions", [_as(is_empty, "is_empty"), _as(has_values, "has_no_null")])
        table = self._read(self._stage(counts))
        tree.append("joins", exp.Join(this=table, kind="CROSS"))
        self._semi(tree, plain, compared, anti=True)
        is_null = exp.Is(this=_wrapped(compared.copy()), expression=exp.Null())
        known = exp.and_(exp.Not(this=is_null), _column(table.alias, "has_no_null"))
        return [exp.Paren(this=exp.or_(_column(table.alias, "is_empty"), known))]

    def _scalar(
        self, tree: exp.Select, query: exp.Query, ctes: Mapping[str, _Inner], *, strict: bool
    ) -> exp.Expr:
        """Join a query to the value of a scalar subquery, and return this value.

        Args:
            tree: the query.
            query: the subquery, an aggregate of all rows that fulfil its conditions.
            ctes: the queries in WITH.
            strict: whether rows without a value may be omitted.
        """
        if not isinstance(query, exp.Subquery) or isinstance(query.parent, (exp.In, exp.Exists)):
            raise _UnsupportedError("a nested subquery")
        inner = self._flat(query.this, ctes)
        if not isinstance(inner, exp.Select) or len(inner.expressions) != 1:
            raise _UnsupportedError("a scalar subquery")
        item = inner.expressions[0].unalias()
        odd = any(inner.args.get(key) for key in ("group", "having", "distinct"))
        if odd or not _aggregates(item) or _windows(item):
            raise _UnsupportedError("a scalar subquery that may have several rows")
        linked = _linked(inner)
        own = {source.alias for source in _tables(inner)}
        keys: list[exp.Expr] = []
        for condition in linked:
            if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
                raise _UnsupportedError("a condition on the outer query that is no equality")
            left, right = condition.left, condition.right
            mine, other = (left, right) if _used(left) & own else (right, left)
            if not _used(mine) or not _used(mine) <= own or _used(other) & own:
                raise _UnsupportedError("an equality of columns of both queries")
            # With a cast, one value of the outer query could equal several groups.
            if (kind := self._type(mine, inner)) is None or kind != self._type(other, tree):
                raise _UnsupportedError("an equality of different types")
            keys.append(mine)
        is_count = _call_name(item) in _COUNTS
        if linked and not is_count and not _is_null_if_empty(item):
            raise _UnsupportedError("an aggregate of no rows")
        items = [_as(key.copy(), f"k{number}") for number, key in enumerate(keys)]
        inner.set("expressions", [*items, _as(item.copy(), "value")])
        if keys:
            inner.set("group", exp.Group(expressions=[key.copy() for key in keys]))
        table = self._read(self._stage(inner))
        value: exp.Expr = _column(table.alias, "value")
        if not keys:
            tree.append("joins", exp.Join(this=table, kind="CROSS"))
            return value
        for number, key in enumerate(keys):
            key.replace(_column(table.alias, f"k{number}"))
        side = None if strict and not is_count else "LEFT"
        tree.append("joins", exp.Join(this=table, side=side, on=exp.and_(*linked)))
        if is_count:
            zero = exp.Literal.number(0)
            value = exp.Anonymous(this="coalesce", expressions=[value, zero])
        return value

    def _type(self, column: exp.Expr, select: exp.Select) -> str | None:
        """Return the type of a column of a source or stage; None for other expressions."""
        if not isinstance(column, exp.Column):
            return None
        for table in _tables(select):
            if table.alias == column.table:
                name = self._source(table)
                types = self.sources[name] if name else self._types.get(table.name, {})
                return types.get(column.name)
        return None

    def _source(self, table: exp.Expr) -> TableName | None:
        """Return the source that a table of the tree reads; None for a stage."""
        if not table.name.startswith(_TABLE):
            return None
        return list(self.sources)[int(table.name.removeprefix(_TABLE))]


def _outermost(part: exp.Expr) -> list[exp.Query]:
    """Return the subqueries of a part that no other subquery contains."""
    nodes = list(part.walk(prune=lambda node: isinstance(node, exp.Query)))
    return [node for node in nodes if isinstance(node, exp.Query)]


def _linked(inner: exp.Select) -> list[exp.Expr]:
    """Remove the conditions of a subquery that use tables of the outer query, and return them."""
    own = {source.alias for source in _tables(inner)}
    conditions = _conjuncts(inner.args.get("where"))
    linked = [one for one in conditions if not _used(one) <= own]
    _set_where(inner, [one for one in conditions if _used(one) <= own])
    if not _used(inner) <= own:
        raise _UnsupportedError("a reference to the outer query")
    return linked


def _can_merge(query: exp.Query, outer: exp.Select) -> bool:
    """Check whether a plain query can be merged into the query that reads it."""
    # In GROUP BY, Spark would take a number as the ordinal of a column.
    constants = any(not item.find(exp.Column) for item in query.expressions)
    return _is_plain(query) and not (constants and outer.args.get("group"))


def _is_null_if_empty(item: exp.Expr) -> bool:
    """Check whether an expression over aggregates is NULL for an empty table."""
    if isinstance(item, (*_STRICT, exp.Cast)):
        parts = (item.args.get(key) for key in ("this", "expression"))
        return any(_is_null_if_empty(part) for part in parts if isinstance(part, exp.Expr))
    return _call_name(item) in _NULL_IF_EMPTY


def _call_name(item: exp.Expr) -> str:
    call = item.this if isinstance(item, exp.Filter) else item
    return call.name.lower() if isinstance(call, exp.Anonymous) else ""
