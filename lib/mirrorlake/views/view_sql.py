"""Generate the SQL for a view's table, and for its changes from the changes of the sources.

The table has the view's columns, and the hidden columns that its rule needs:

- rows: a hash that finds equal rows, a second hash against collisions, and an id for each row, so
  that one of two equal rows can be deleted.
- sums: the keys, the number of rows of a group, and the sum and the count of each aggregate.
- extremes: the same, and the values of `min` and `max`.
- groups and partitions: the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from mirrorlake.delta.table import column_types
from mirrorlake.landing.types import decimal_digits
from mirrorlake.names import HIDDEN, TableName, quote
from mirrorlake.views.plan import SIGN, TABLE, Plan, Source, listed, named
from mirrorlake.views.shape import AGGREGATE, Aggregate, Member, Method, Role

ROWS, _COUNT, _SUM = f"{HIDDEN}rows", f"{HIDDEN}count_", f"{HIDDEN}sum_"
_EXTREME, _DELETED = f"{HIDDEN}extreme_", f"{HIDDEN}went_"
_ARGUMENT = f"{HIDDEN}argument_"
HASH, CHECK, ID = f"{HIDDEN}hash", f"{HIDDEN}check", f"{HIDDEN}id"
_REFRESHES = 2**14  # the number of refreshes that a row's id can distinguish


def whole_contents(plan: Plan, number: int) -> str:
    """Return the query for all rows of the view's table, as a full refresh writes them.

    Args:
        plan: the plan of the view.
        number: the number of the refresh.
    """
    relations = plan.newest()
    method = plan.shape.method
    if method is Method.FULL:
        return plan.whole()
    if method is Method.ROWS:
        selected = "\nUNION ALL\n".join(
            f"SELECT {row_items(plan, part)} {part.inner(part.newest())}"
            for part in plan.branches or (plan,)
        )
        return with_ids(f"SELECT *, {hashes(plan.names)} FROM ({selected})", number)
    if method.keeps_state:
        arguments = f"SELECT {arguments_of(plan)} {plan.inner(relations)}"
        return shown_of(plan, state_of(plan, arguments))
    return selected_groups(plan, relations)


def stored_columns(session: SparkSession, plan: Plan) -> dict[str, str]:
    """Return the types of the columns of the view's table in Spark, by name."""
    return column_types(session.sql(whole_contents(plan, 0)).schema)


def row_items(plan: Plan, part: Plan) -> str:
    """Return the selected expressions of a part of a UNION ALL, or of the only part of a query."""
    items: Sequence[str] = part.shape.items
    if plan.branches:
        pairs = zip(items, plan.columns.values(), strict=True)
        items = [f"CAST({item} AS {kind})" for item, kind in pairs]
    return named(items, plan.names)


def selected_groups(plan: Plan, relations: dict[int, str], condition: str = "") -> str:
    """Return the query, with hidden keys, restricted to source rows that satisfy a condition."""
    items = named(plan.shape.selected, plan.names)
    keys = "".join(f", {key} AS {quote(column)}" for column, key in plan.hidden_keys)
    text = f"SELECT {items}{keys} {plan.inner(relations, condition)}"
    if plan.shape.method is Method.GROUPS:
        text += f"\nGROUP BY {', '.join(plan.shape.keys)}"
        if having := plan.query.condition("having"):
            text += f"\nHAVING {having}"
    return text


def hashes(names: Sequence[str]) -> str:
    """Return the two hashes of a row. They include `isnull`, because Spark's hashes skip NULLs."""
    values = ", ".join(f"{quote(name)}, isnull({quote(name)})" for name in names)
    return f"xxhash64({values}) AS {quote(HASH)}, hash({values}) AS {quote(CHECK)}"


def with_ids(rows: str, number: int) -> str:
    """Return rows with ids that differ from all ids of other refreshes."""
    own = "monotonically_increasing_id()"
    task, row = f"shiftright({own}, 33)", f"({own} & 8589934591L)"
    start = (number % _REFRESHES) << 48
    return f"SELECT *, {start}L + {task} * 1073741824L + {row} AS {quote(ID)} FROM ({rows})"


def arguments_of(plan: Plan) -> str:
    """Return the keys and the aggregates' arguments of a row, before aggregation."""
    aggregates = plan.shape.aggregates
    names = [*plan.keys, *(f"{_ARGUMENT}{one.number}" for one in aggregates)]
    expressions = [*plan.shape.keys, *(one.argument for one in aggregates)]
    return named(expressions, names) or "1"


def state_columns(plan: Plan) -> list[str]:
    """Return the hidden columns with the state of a group."""
    found = [ROWS]
    for one in plan.shape.aggregates:
        if one.is_extreme:
            found.append(f"{_EXTREME}{one.number}")
            continue
        if _count_column(one) != ROWS:
            found.append(_count_column(one))
        if one.function != "count":
            found.append(f"{_SUM}{one.number}")
    return found


@dataclass(frozen=True)
class Extreme:
    """The columns of a `min` or `max` in the state, as SQL.

    Attributes:
        function: `min` or `max`.
        column: the column of the extreme. In a group's changes it is the extreme of inserted
            values.
        deleted: the column of the extreme of deleted values. Only the changes of a group have it.
    """

    function: str
    column: str
    deleted: str

    @classmethod
    def of(cls, aggregate: Aggregate) -> Extreme:
        """Return the columns of an aggregate that is an extreme."""
        columns = (quote(f"{name}{aggregate.number}") for name in (_EXTREME, _DELETED))
        return cls(aggregate.function, *columns)

    @property
    def unmatched(self) -> str:
        """The deleted extreme, unless a value at least as extreme was inserted."""
        came = f"{self.column} {'>=' if self.function == 'max' else '<='} {self.deleted}"
        return f"CASE WHEN coalesce({came}, false) THEN NULL ELSE {self.deleted} END"

    @property
    def is_lost(self) -> str:
        """The condition that the group's extreme was deleted, so that the sources must be read."""
        reaches = ">=" if self.function == "max" else "<="
        return f"coalesce({self.deleted} {reaches} {self.column}, {self.deleted} IS NOT NULL)"


def extremes_of(plan: Plan) -> list[Extreme]:
    """Return the columns of the extremes in the state."""
    return [Extreme.of(one) for one in plan.shape.aggregates if one.is_extreme]


def _count_column(aggregate: Aggregate) -> str:
    """Return the column that counts the rows of an aggregate."""
    return ROWS if aggregate.argument == "1" else f"{_COUNT}{aggregate.number}"


def _summand(aggregate: Aggregate) -> str:
    """Return the argument that an aggregate sums, cast to a type that can store the sum."""
    value = quote(f"{_ARGUMENT}{aggregate.number}")
    if aggregate.kind.startswith("decimal"):
        return value
    # Spark computes averages of whole numbers from sums of doubles.
    return f"CAST({value} AS {'DOUBLE' if aggregate.function == 'avg' else 'BIGINT'})"


def state_of(plan: Plan, arguments: str, sign: str = "") -> str:
    """Return the state of groups, from rows of keys and arguments.

    Args:
        plan: the plan of the view.
        arguments: a query of the rows.
        sign: the column that is 1 for inserted and -1 for deleted rows. If it is given, the result
            is the change of each group. The extremes of inserted and of deleted values are then
            separate columns.
    """
    found = [f"{f'sum({sign})' if sign else 'count(*)'} AS {quote(ROWS)}"]
    for aggregate in plan.shape.aggregates:
        column, argument = _count_column(aggregate), quote(f"{_ARGUMENT}{aggregate.number}")
        if aggregate.is_extreme:
            extreme, value = Extreme.of(aggregate), f"{aggregate.function}({argument})"
            came = f" FILTER (WHERE {sign} > 0)" if sign else ""
            found.append(f"{value}{came} AS {extreme.column}")
            if sign:
                found.append(f"{value} FILTER (WHERE {sign} < 0) AS {extreme.deleted}")
            continue
        if column != ROWS:
            signs = f"sum(CASE WHEN {argument} IS NULL THEN 0 ELSE {sign} END)"
            found.append(f"{signs if sign else f'count({argument})'} AS {quote(column)}")
        if aggregate.function != "count":
            value = _summand(aggregate)
            signed = f"CASE WHEN {sign} < 0 THEN -{value} ELSE {value} END" if sign else value
            found.append(f"sum({signed}) AS {quote(f'{_SUM}{aggregate.number}')}")
    return grouped(plan.keys, found, arguments)


def grouped(keys: Sequence[str], values: Sequence[str], rows: str) -> str:
    """Return a query of aggregates by group."""
    group = f" GROUP BY {listed(keys)}" if keys else ""
    return f"SELECT {', '.join([*map(quote, keys), *values])} FROM ({rows}){group}"


def shown_of(plan: Plan, state: str, more: str = "") -> str:
    """Return the visible and hidden columns of a view, from the state of its groups.

    Args:
        plan: the plan of the view.
        state: a query of the groups' states. A group without rows has NULLs.
        more: further columns of this query.
    """
    stays = has_rows(plan)
    values = [
        f"{_value(aggregate)} AS {quote(f'{AGGREGATE}{aggregate.number}')}"
        for aggregate in plan.shape.aggregates
    ]
    inner = f"SELECT {', '.join(['*', *values])} FROM ({state})"
    items = [
        f"CAST({item if item in plan.keys else f'CASE WHEN {stays} THEN {item} END'} AS {kind})"
        for item, kind in zip(plan.shape.items, plan.columns.values(), strict=True)
    ]
    shown = named(items, plan.names)
    hidden = listed([*(column for column, _ in plan.hidden_keys), *state_columns(plan)])
    return f"SELECT {shown}, {hidden}{more} FROM ({inner})"


def has_rows(plan: Plan) -> str:
    """Return the condition that a group has rows. Without keys, there is always one group."""
    return f"{quote(ROWS)} <> 0" if plan.keys else "true"


def is_changed(plan: Plan) -> str:
    """Return the condition, on the change of a group, that the group has changed."""
    extremes = {extreme.column: extreme for extreme in extremes_of(plan)}
    columns = map(quote, state_columns(plan))
    moved = [f"{column} <> 0" for column in columns if column not in extremes]
    moved += [f"NOT {one.column} <=> {one.deleted}" for one in extremes.values()]
    return " OR ".join(moved)


def _value(aggregate: Aggregate) -> str:
    """Return the value of an aggregate, from the columns of the state."""
    if aggregate.is_extreme:
        return Extreme.of(aggregate).column
    count = quote(_count_column(aggregate))
    if aggregate.function == "count":
        return count
    total = quote(f"{_SUM}{aggregate.number}")
    if aggregate.function == "sum":
        return f"CASE WHEN {count} > 0 THEN {total} END"
    digits = decimal_digits(aggregate.kind)
    if digits is None:
        return f"CASE WHEN {count} > 0 THEN {total} / CAST({count} AS DOUBLE) END"
    return f"CASE WHEN {count} > 0 THEN {_decimal_average(total, count, *digits)} END"


def _decimal_average(total: str, count: str, precision: int, scale: int) -> str:
    """Return an average of decimals, rounded once, as `avg` does; `/` would round it twice."""
    unit = f"0.{'1'.zfill(scale + 4)}BD"
    step, size = f"(CAST({count} AS DECIMAL(19, 0)) * {unit})", f"abs({total})"
    rest = f"({size} % {step})"
    average = f"({size} - {rest}) / {count} + IF(2 * {rest} >= {step}, {unit}, 0)"
    kept = f"DECIMAL({precision + 4}, {scale + 4})"
    return f"CAST(IF({total} < 0, -({average}), {average}) AS {kept})"


_CHANGED = quote(f"{HIDDEN}changed")
_SIGNS = (("1", False), ("-1", True))  # new rows count +1, old rows -1
_AT_ONCE = 4  # changed tables whose terms are prepared at the same time


@dataclass(frozen=True)
class Delta:
    """The changes of a view's sources, ready to be queried.

    Attributes:
        plan: the plan of the view.
        changes: the temporary view with the changed rows and signs, and their number, by source.
        reduce: a function that replaces relations by their rows that can match the changes of a
            table; see `reduce_tables`.
    """

    plan: Plan
    changes: Mapping[TableName, tuple[str, int]]
    reduce: Callable[[Delta, Member, Mapping[int, str]], Mapping[int, str] | None]

    @property
    def parts(self) -> list[Delta]:
        """The changes by part of a UNION ALL, or those of the only part of a query."""
        parts = self.plan.branches or (self.plan,)
        read = [{source.name for source in part.tables} for part in parts]
        return [
            replace(self, plan=part, changes={n: v for n, v in self.changes.items() if n in names})
            for part, names in zip(parts, read, strict=True)
        ]

    def rows(self, select: str) -> str:
        """Return the rows that the query's FROM and WHERE gained and lost.

        Args:
            select: expressions with names; the column of signs is added.
        """
        both = self.plan.shape.members[0].role is Role.BOTH
        terms = list(self._both(select) if both and self.changes else self._terms(select))
        if not terms:  # no row of the query has changed
            terms = [self._term(select, "1", self.plan.newest(), "false")]
        return "\nUNION ALL\n".join(terms)

    def _terms(self, select: str) -> Iterator[str]:
        """Yield a term, or a new and an old term, for each changed table."""
        members = self.plan.shape.members
        changed = [n for n, one in enumerate(members) if self._source(one).name in self.changes]
        # The threads wait for Spark, which plans and runs their queries concurrently.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for terms in pool.map(partial(self._terms_of, select), changed):
                yield from terms

    def _terms_of(self, select: str, index: int) -> list[str]:
        members = self.plan.shape.members
        member = members[index]
        view, _ = self.changes[self._source(member).name]
        around = self._at(members[:index]) | self._at(members[index + 1 :], old=True)
        if member.role is Role.LINEAR:
            sign = f"{quote(member.table.alias)}.{quote(SIGN)}"
            relations = self.reduce(self, member, around | {member.table.start: view})
            return [] if relations is None else [self._term(select, sign, relations)]
        # Rows that a changed row joins, or may have joined before.
        links = " AND ".join(
            f"{_CHANGED}.{quote(link.own)} {'<=>' if link.null_safe else '='}"
            f" {quote(link.alias)}.{quote(link.column)}"
            for link in member.links
        )
        concerned = f"EXISTS (SELECT 1 FROM {view} AS {_CHANGED} WHERE {links})"
        terms = []
        for sign, old in _SIGNS:
            relations = self.reduce(self, member, around | self._at([member], old=old))
            if relations is not None:
                terms.append(self._term(select, sign, relations, concerned))
        return terms

    def _both(self, select: str) -> Iterator[str]:
        members = self.plan.shape.members
        keys = []
        for member in members:
            if found := self.changes.get(self._source(member).name):
                own = [f"{quote(link.own)} AS k{n}" for n, link in enumerate(member.links)]
                keys.append(f"SELECT {', '.join(own)} FROM {found[0]}")
        concerned = f"({' UNION '.join(keys)}) AS {_CHANGED}"
        for sign, old in _SIGNS:
            relations: dict[int, str] = {}
            for member in members:
                pairs = (
                    f"{_CHANGED}.k{n} <=> {quote(TABLE)}.{quote(link.own)}"
                    for n, link in enumerate(member.links)
                )
                exists = f"EXISTS (SELECT 1 FROM {concerned} WHERE {' AND '.join(pairs)})"
                relations |= self._at([member], old=old, condition=exists)
            yield self._term(select, sign, relations)

    def _source(self, member: Member) -> Source:
        return self.plan.sources[member.table.start]

    def _at(
        self, members: Sequence[Member], *, old: bool = False, condition: str = ""
    ) -> dict[int, str]:
        """Return the SQL of tables at their new versions, or changed tables at their old ones."""
        found = {}
        for member in members:
            source = self._source(member)
            before = source.old if old and source.name in self.changes else None
            version = source.new if before is None else before
            found[member.table.start] = source.at(version, condition)
        return found

    def _term(
        self, select: str, sign: str, relations: Mapping[int, str], condition: str = ""
    ) -> str:
        inner = self.plan.inner(relations, condition)
        return f"SELECT {select}, {sign} AS {quote(SIGN)} {inner}"
