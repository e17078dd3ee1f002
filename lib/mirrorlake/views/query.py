"""A view's query as a tree: its tables, its calls of Spark's functions, and parts of it as SQL.

A full refresh runs the text as its author wrote it, with tables replaced. Incremental
refreshes put parts of the tree together in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from mirrorlake.errors import QueryError, UsageError
from mirrorlake.query.statement import (
    DIALECT,
    AsWritten,
    NamedTable,
    apply_edits,
    named_tables,
    parse_statement,
)
from mirrorlake.spark.sql import quote

HIDDEN = "__mirrorlake_"
KEY, AGGREGATE = f"{HIDDEN}key_", f"{HIDDEN}aggregate_"
_CALLS: tuple[type[exp.Func], ...] = (
    exp.Anonymous,
    *AsWritten.Parser.NO_PAREN_FUNCTIONS.values(),
)
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup, exp.Window)


@dataclass(frozen=True)
class Query:
    """A parsed query.

    Attributes:
        text: as written, shorthands written out.
        tree: sqlglot's.
        tables: where it names tables, in the text's order.
    """

    text: str
    tree: exp.Query
    tables: tuple[NamedTable, ...]

    @property
    def items(self) -> list[exp.Expr]:
        """What a plain SELECT selects, without names."""
        return [item.unalias() for item in self.tree.expressions]

    def condition(self, clause: str) -> str:
        """What `where` or `having` demands, as SQL; empty for nothing."""
        found = self.tree.args.get(clause)
        return "" if found is None else as_sql(found.this)

    def replaced(self, relations: dict[int, str]) -> str:
        """The query with other relations for the tables that begin at these places of the text."""
        edits = [
            (one.start, one.end, _aliased(one, relations[one.start]))
            for one in self.tables
            if one.start in relations
        ]
        return apply_edits(self.text, edits)

    def source(self, relations: dict[int, str]) -> str:
        """A plain SELECT's FROM and joins, with other relations for its tables."""
        parts = [self.tree.args["from_"], *self.tree.args.get("joins", ())]
        texts = {id(one.node): _aliased(one, relations[one.start]) for one in self.tables}
        copies = []
        for part in parts:
            alias = f" AS {as_sql(part.this.args['alias'])}" if part.this.alias else ""
            copy = part.copy()
            copy.set("this", exp.Var(this=f"{texts[id(part.this)]}{alias}"))
            copies.append(as_sql(copy))
        return " ".join(copies)


def _aliased(table: NamedTable, relation: str) -> str:
    return relation if table.node.alias else f"{relation} AS {quote(table.alias)}"


def parse_query(sql: str) -> Query:
    """Parses a view's query.

    Raises:
        QueryError: sqlglot can't parse it.
        UsageError: it is not a query, or several statements.
    """
    statement = parse_statement(sql.strip().rstrip(";").strip())
    if error := statement.error:
        raise QueryError(
            f"The view's query can't be understood: {str(error).splitlines()[0]}"
        ) from error
    tree = statement.trees[0] if len(statement.trees) == 1 else None
    if not isinstance(tree, exp.Query):
        raise UsageError("A view is made of one query.", hint="write one SELECT.")
    tables = sorted(named_tables(tree), key=lambda one: one.start)
    return Query(statement.text, tree, tuple(tables))


def as_sql(node: exp.Expr) -> str:
    """A part of a query as SQL."""
    return node.sql(DIALECT, normalize_functions=False, comments=False)


def alike(node: exp.Expr) -> exp.Expr:
    """The part with its names in small letters: two that mean the same are equal this way."""
    return node.transform(
        lambda part: (
            exp.to_identifier(part.name.lower()) if isinstance(part, exp.Identifier) else part
        )
    )


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


def find_stars(part: exp.Expr) -> list[exp.Star]:
    """Where a part has a `*` that stands for columns; that of `count(*)` does not."""
    stars = part.find_all(exp.Star)
    return [star for star in stars if star.parent is None or star.parent.name.lower() != "count"]


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


# Source of the lists: Spark's built-in functions, `SHOW SYSTEM FUNCTIONS` of 4.1. Whatever sqlglot
# takes for an aggregate besides is one, too.
# Kept by adding inserted rows and subtracting deleted ones.
SUMS = frozenset({"avg", "count", "count_if", "mean", "sum"})
# Kept by looking at what came and went; only a group that lost its extreme is computed again.
EXTREMES = frozenset({"max", "min"})
# The same whatever order rows are read in: a group that changed is computed again.
_ANY_ORDER = frozenset(
    {
        "any",
        "approx_count_distinct",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "corr",
        "covar_pop",
        "covar_samp",
        "every",
        "kurtosis",
        "median",
        "percentile",
        "percentile_cont",
        "percentile_disc",
        "skewness",
        "some",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "try_avg",
        "try_sum",
        "var_pop",
        "var_samp",
        "variance",
    }
)
ORDER_DEPENDENT = frozenset(
    {
        "any_value",
        "approx_percentile",
        "array_agg",
        "bitmap_construct_agg",
        "collect_list",
        "collect_set",
        "count_min_sketch",
        "first",
        "first_value",
        "histogram_numeric",
        "hll_sketch_agg",
        "hll_union_agg",
        "last",
        "last_value",
        "listagg",
        "max_by",
        "min_by",
        "mode",
        "percentile_approx",
        "string_agg",
    }
)
_AGGREGATES = SUMS | EXTREMES | _ANY_ORDER | ORDER_DEPENDENT
_NONDETERMINISTIC = frozenset(
    {
        "curdate",
        "java_method",
        "localtimestamp",
        "monotonically_increasing_id",
        "now",
        "rand",
        "randn",
        "random",
        "randstr",
        "reflect",
        "session_user",
        "shuffle",
        "spark_partition_id",
        "try_reflect",
        "uniform",
        "user",
        "uuid",
        "version",
    }
)
