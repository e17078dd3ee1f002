"""A view's query prepared: its sources at their versions, its rule, its columns and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession
from sqlglot import exp

from mirrorlake.delta.table import column_types
from mirrorlake.errors import QueryError, UsageError
from mirrorlake.rows.views.definition import Definition
from mirrorlake.rows.views.query import HIDDEN, KEY, Query, as_sql, find_stars, parse_query
from mirrorlake.rows.views.shape import Shape, read_shape, settle_types
from mirrorlake.rows.views.sources import Source
from mirrorlake.spark.sql import delta_name, quote, spark_message

ROWS, COUNT, SUM = f"{HIDDEN}rows", f"{HIDDEN}count_", f"{HIDDEN}sum_"
EXTREME, WENT = f"{HIDDEN}extreme_", f"{HIDDEN}went_"
ARGUMENT = f"{HIDDEN}argument_"
HASH, CHECK, ID = f"{HIDDEN}hash", f"{HIDDEN}check", f"{HIDDEN}id"


@dataclass(frozen=True)
class Plan:
    """A view's query, prepared.

    Attributes:
        definition: the view.
        query: its query, cut up.
        shape: its rule.
        sources: its tables, by where the query names them.
        columns: the view's columns: Spark's type by name.
        arguments: Spark's types of what is summed up.
        key_columns: under which names the table keeps what groups or partitions it.
    """

    definition: Definition
    query: Query
    shape: Shape
    sources: dict[int, Source]
    columns: dict[str, str]
    arguments: tuple[str, ...] = ()
    key_columns: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The view's columns."""
        return list(self.columns)

    @property
    def hidden_keys(self) -> list[tuple[str, str]]:
        """The keys that the view does not show: their columns and expressions."""
        pairs = zip(self.key_columns, self.shape.keys, strict=True)
        return [(column, key) for column, key in pairs if column.startswith(HIDDEN)]

    @property
    def written(self) -> list[str]:
        """The columns of a group in the view's table, those of its state left out."""
        return [*self.names, *(column for column, _ in self.hidden_keys)]

    @property
    def keys(self) -> list[str]:
        """The names of the keys inside of a refresh, whatever the table calls them."""
        return [f"{KEY}{number}" for number in range(len(self.shape.keys))]

    def same_keys(self, table: str, group: str) -> str:
        """A condition: a row of the view's table is of the same group as one of a refresh."""
        pairs = zip(self.key_columns, self.keys, strict=True)
        same = (f"{table}.{quote(column)} <=> {group}.{quote(key)}" for column, key in pairs)
        return " AND ".join(same) or "true"

    @property
    def tables(self) -> list[Source]:
        """The sources, each once."""
        return list({source.name: source for source in self.sources.values()}.values())

    def newest(self) -> dict[int, str]:
        """What stands for each table when it is read as it is now."""
        found = {start: source.at(source.new) for start, source in self.sources.items()}
        for one in self.query.tables:
            if one.node.args.get("version"):
                found[one.start] = delta_name(self.sources[one.start].path)
        return found

    def whole(self) -> str:
        """The query as it was written, over the sources as they are now."""
        return self.query.replaced(self.newest())

    def inner(self, relations: dict[int, str], condition: str = "") -> str:
        """`FROM … WHERE …` of a plain SELECT.

        Args:
            relations: what stands for the tables.
            condition: what must hold besides.
        """
        conditions = [condition] if condition else []
        if (where := self.query.condition("where")) is not None:
            conditions.insert(0, f"({as_sql(where)})")
        fulfilled = f"\nWHERE {' AND '.join(conditions)}" if conditions else ""
        return f"{self.query.source(relations)}{fulfilled}"

    def used(self, source: Source) -> tuple[str, ...]:
        """The columns of a source that the query may mean; all of them where it has a `*`."""
        words = {node.name.lower() for node in self.query.tree.find_all(exp.Identifier)}
        if find_stars(self.query.tree):
            return source.columns
        return tuple(column for column in source.columns if column.lower() in words)


def make_plan(session: SparkSession, definition: Definition, sources: Sequence[Source]) -> Plan:
    """Analyses a view's query; no row is read.

    Raises:
        QueryError: Spark refuses the query.
        UsageError: it has no sources in the lake, or two columns of one name.
    """
    query = parse_query(definition.sql)
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
        raise QueryError(
            f"Spark refuses the query of {definition.name}: {spark_message(error)}"
        ) from error
    if len({name.lower() for name in schema.names}) < len(schema.names):
        raise UsageError(
            f"Two columns of {definition.name} have one name: {', '.join(schema.names)}.",
            hint="give each a name of its own: AS.",
        )
    columns = column_types(schema)
    shape = settle_types(shape, kinds, list(columns.values()))
    keys = _key_columns(shape, list(columns))
    return replace(plan, shape=shape, columns=columns, arguments=tuple(kinds), key_columns=keys)


def _key_columns(shape: Shape, names: list[str]) -> tuple[str, ...]:
    """A key's own column where the view shows it as it is, else a hidden one."""
    hidden = [f"{KEY}{n}" for n in range(len(shape.keys))]
    # An item such as `inline(x)` is several columns.
    shown = dict(zip(shape.items, names, strict=True)) if len(shape.items) == len(names) else {}
    keys = hidden if shape.method.keeps_state else shape.keys
    return tuple(shown.get(key, own) for key, own in zip(keys, hidden, strict=True))


def named(expressions: Sequence[str], names: Sequence[str]) -> str:
    """A list of expressions with names, for a SELECT."""
    pairs = zip(expressions, names, strict=True)
    return ", ".join(f"{expression} AS {quote(name)}" for expression, name in pairs)


def listed(names: Sequence[str], prefix: str = "") -> str:
    """A list of columns."""
    return ", ".join(f"{prefix}{quote(name)}" for name in names)


def same(names: Sequence[str], left: str, right: str) -> str:
    """A condition: columns are equal on both sides, NULL to NULL."""
    return " AND ".join(f"{left}.{quote(n)} <=> {right}.{quote(n)}" for n in names) or "true"


_functions: dict[str, frozenset[str]] = {}


def known_functions(session: SparkSession) -> frozenset[str]:
    """Spark's own functions, listed once for each version of Spark."""
    if session.version not in _functions:
        rows = session.sql("SHOW SYSTEM FUNCTIONS").collect()
        _functions[session.version] = frozenset(row[0].lower() for row in rows)
    return _functions[session.version]
