"""What a view's table holds, and what its sources' changes come to, as SQL.

The table has the view's columns, and the hidden ones that its rule needs:

- rows: a hash that finds equal rows, a second one that rules out chance, and a number of its own
  for each row, so that of two equal rows one can go.
- sums: the keys, how many rows a group has, and of each aggregate the sum and the count.
- extremes: likewise, and of `min` and `max` the value.
- groups and partitions: the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirrorlake.names import TableName
from mirrorlake.spark.sql import quote
from mirrorlake.views.definition import HIDDEN
from mirrorlake.views.plan import SIGN, Plan, Source, listed, named
from mirrorlake.views.shape import AGGREGATE, Aggregate, Member, Method, Role

ROWS, _COUNT, _SUM = f"{HIDDEN}rows", f"{HIDDEN}count_", f"{HIDDEN}sum_"
_EXTREME, _WENT = f"{HIDDEN}extreme_", f"{HIDDEN}went_"
_ARGUMENT = f"{HIDDEN}argument_"
HASH, CHECK, ID = f"{HIDDEN}hash", f"{HIDDEN}check", f"{HIDDEN}id"
_REFRESHES = 2**14  # numbers of refreshes that a row's id can tell apart


def whole_contents(plan: Plan, number: int) -> str:
    """All that the view's table holds after a full refresh.

    Args:
        plan: the view's.
        number: the refresh's.
    """
    relations = plan.newest()
    method = plan.shape.method
    if method is Method.FULL:
        return plan.whole()
    if method is Method.ROWS:
        selected = f"SELECT {named(plan.shape.items, plan.names)} {plan.inner(relations)}"
        return with_ids(f"SELECT *, {hashes(plan.names)} FROM ({selected})", number)
    if method.keeps_state:
        arguments = f"SELECT {arguments_of(plan)} {plan.inner(relations)}"
        return shown_of(plan, state_of(plan, arguments))
    return selected_groups(plan, relations)


def selected_groups(plan: Plan, relations: dict[int, str], condition: str = "") -> str:
    """The query's groups or windows with their hidden keys, of rows that fulfil a condition."""
    items = named(plan.shape.selected, plan.names)
    keys = "".join(f", {key} AS {quote(column)}" for column, key in plan.hidden_keys)
    text = f"SELECT {items}{keys} {plan.inner(relations, condition)}"
    if plan.shape.method is Method.GROUPS:
        text += f"\nGROUP BY {', '.join(plan.shape.keys)}"
        if having := plan.query.condition("having"):
            text += f"\nHAVING {having}"
    return text


def hashes(names: Sequence[str]) -> str:
    """The columns that find equal rows; Spark's hashes skip NULLs, so `isnull` goes in too."""
    values = ", ".join(f"{quote(name)}, isnull({quote(name)})" for name in names)
    return f"xxhash64({values}) AS {quote(HASH)}, hash({values}) AS {quote(CHECK)}"


def with_ids(rows: str, number: int) -> str:
    """Rows with a number of their own, which no other refresh gives."""
    own = "monotonically_increasing_id()"
    task, row = f"shiftright({own}, 33)", f"({own} & 8589934591L)"
    start = (number % _REFRESHES) << 48
    return f"SELECT *, {start}L + {task} * 1073741824L + {row} AS {quote(ID)} FROM ({rows})"


def arguments_of(plan: Plan) -> str:
    """Keys and arguments of a row, before it is summed up."""
    aggregates = plan.shape.aggregates
    names = [*plan.keys, *(f"{_ARGUMENT}{one.number}" for one in aggregates)]
    expressions = [*plan.shape.keys, *(one.argument for one in aggregates)]
    return named(expressions, names) or "1"


def state_columns(plan: Plan) -> list[str]:
    """The hidden columns with what is kept of a group."""
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
    """A `min` or `max` that is kept, as SQL.

    Attributes:
        function: which of them.
        column: of what is kept; of what a group changed by, the extreme of what came.
        went: the column with the extreme of what went, which only a refresh has.
    """

    function: str
    column: str
    went: str

    @classmethod
    def of(cls, aggregate: Aggregate) -> Extreme:
        """The columns of an aggregate that is an extreme."""
        columns = (quote(f"{name}{aggregate.number}") for name in (_EXTREME, _WENT))
        return cls(aggregate.function, *columns)

    @property
    def unmatched(self) -> str:
        """What went, unless something at least as extreme came."""
        came = f"{self.column} {'>=' if self.function == 'max' else '<='} {self.went}"
        return f"CASE WHEN coalesce({came}, false) THEN NULL ELSE {self.went} END"

    @property
    def is_lost(self) -> str:
        """Whether the unmatched was the extreme, so that only the sources know the next one."""
        reaches = ">=" if self.function == "max" else "<="
        return f"coalesce({self.went} {reaches} {self.column}, {self.went} IS NOT NULL)"


def extremes_of(plan: Plan) -> list[Extreme]:
    """The kept extremes."""
    return [Extreme.of(one) for one in plan.shape.aggregates if one.is_extreme]


def _count_column(aggregate: Aggregate) -> str:
    """The column that counts the rows of an aggregate."""
    return ROWS if aggregate.argument == "1" else f"{_COUNT}{aggregate.number}"


def _summand(aggregate: Aggregate) -> str:
    """What is added up for an aggregate, of a type that its sum fits."""
    value = quote(f"{_ARGUMENT}{aggregate.number}")
    if aggregate.kind.startswith("decimal"):
        return value
    # Spark's own averages of whole numbers are sums of doubles.
    return f"CAST({value} AS {'DOUBLE' if aggregate.function == 'avg' else 'BIGINT'})"


def state_of(plan: Plan, arguments: str, sign: str = "") -> str:
    """Groups as they are kept, from rows of keys and arguments.

    Args:
        plan: the view's.
        arguments: a query of the rows.
        sign: the column that has 1 where a row came and -1 where one went; then the groups are
            what they changed by: of extremes what came, and what went in a column of its own.
    """
    found = [f"{f'sum({sign})' if sign else 'count(*)'} AS {quote(ROWS)}"]
    for aggregate in plan.shape.aggregates:
        column, argument = _count_column(aggregate), quote(f"{_ARGUMENT}{aggregate.number}")
        if aggregate.is_extreme:
            extreme, value = Extreme.of(aggregate), f"{aggregate.function}({argument})"
            came = f" FILTER (WHERE {sign} > 0)" if sign else ""
            found.append(f"{value}{came} AS {extreme.column}")
            if sign:
                found.append(f"{value} FILTER (WHERE {sign} < 0) AS {extreme.went}")
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
    """Aggregates by group."""
    group = f" GROUP BY {listed(keys)}" if keys else ""
    return f"SELECT {', '.join([*map(quote, keys), *values])} FROM ({rows}){group}"


def shown_of(plan: Plan, state: str, more: str = "") -> str:
    """The view's columns, and the hidden ones, from groups as they are kept.

    Args:
        plan: the view's.
        state: a query of the groups; those without rows have NULLs.
        more: further columns of it.
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
    """The condition that a group has rows; the only group of a query without keys always stays."""
    return f"{quote(ROWS)} <> 0" if plan.keys else "true"


def is_moved(plan: Plan) -> str:
    """The condition that a group is not what it was, of what groups changed by."""
    extremes = {extreme.column: extreme for extreme in extremes_of(plan)}
    columns = map(quote, state_columns(plan))
    moved = [f"{column} <> 0" for column in columns if column not in extremes]
    moved += [f"NOT {one.column} <=> {one.went}" for one in extremes.values()]
    return " OR ".join(moved)


def _value(aggregate: Aggregate) -> str:
    """An aggregate's value, from what is kept."""
    if aggregate.is_extreme:
        return Extreme.of(aggregate).column
    count = quote(_count_column(aggregate))
    if aggregate.function == "count":
        return count
    total = quote(f"{_SUM}{aggregate.number}")
    if aggregate.function == "sum":
        return f"CASE WHEN {count} > 0 THEN {total} END"
    kind = aggregate.kind
    if not kind.startswith("decimal"):
        return f"CASE WHEN {count} > 0 THEN {total} / CAST({count} AS DOUBLE) END"
    precision, scale = map(int, kind[len("decimal(") : -1].split(","))
    quotient = f"{total} / CAST({count} AS DECIMAL(20, 0))"
    average = f"CAST({quotient} AS DECIMAL({precision + 4}, {scale + 4}))"
    return f"CASE WHEN {count} > 0 THEN {average} END"


_CHANGED = quote(f"{HIDDEN}changed")
_SIGNS = (("1", False), ("-1", True))  # rows as they are count +1, as they were -1


@dataclass(frozen=True)
class Delta:
    """What changed in a view's sources, ready to be queried.

    Attributes:
        plan: the view's.
        changes: the temporary view with each changed source's rows and signs.
    """

    plan: Plan
    changes: dict[TableName, str]

    def rows(self, select: str) -> str:
        """What the query's FROM and WHERE gained and lost.

        Args:
            select: expressions with names; the column of signs is added.
        """
        if not self.changes:  # the new versions changed no row
            return self._term(select, "1", self.plan.newest(), "false")
        both = self.plan.shape.members[0].role is Role.BOTH
        return "\nUNION ALL\n".join(self._both(select) if both else self._terms(select))

    def _terms(self, select: str) -> Iterator[str]:
        members = self.plan.shape.members
        for index, member in enumerate(members):
            view = self.changes.get(self._source(member).name)
            if view is None:
                continue
            around = self._at(members[:index]) | self._at(members[index + 1 :], old=True)
            if member.role is Role.LINEAR:
                sign = f"{quote(member.table.alias)}.{quote(SIGN)}"
                yield self._term(select, sign, around | {member.table.start: view})
                continue
            # Rows that may have been joined with a changed one, or are now.
            links = " AND ".join(
                f"{_CHANGED}.{quote(link.own)} {'<=>' if link.null_safe else '='}"
                f" {quote(link.alias)}.{quote(link.column)}"
                for link in member.links
            )
            concerned = f"EXISTS (SELECT 1 FROM {view} AS {_CHANGED} WHERE {links})"
            for sign, old in _SIGNS:
                relations = around | self._at([member], old=old)
                yield self._term(select, sign, relations, concerned)

    def needs_old(self) -> list[Source]:
        """The sources whose rows must be read as they were."""
        members = self.plan.shape.members
        changed = [self._source(m).name in self.changes for m in members]
        return [
            self._source(member)
            for index, member in enumerate(members)
            if changed[index] and (member.role is not Role.LINEAR or any(changed[:index]))
        ]

    def _both(self, select: str) -> Iterator[str]:
        members = self.plan.shape.members
        keys = []
        for member in members:
            if view := self.changes.get(self._source(member).name):
                own = [f"{quote(link.own)} AS k{n}" for n, link in enumerate(member.links)]
                keys.append(f"SELECT {', '.join(own)} FROM {view}")
        concerned = f"({' UNION '.join(keys)}) AS {_CHANGED}"
        for sign, old in _SIGNS:
            relations: dict[int, str] = {}
            for member in members:
                pairs = (
                    f"{_CHANGED}.k{n} <=> {quote(f'{HIDDEN}table')}.{quote(link.own)}"
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
        """What stands for tables as they are now, or as they were where they changed."""
        found = {}
        for member in members:
            source = self._source(member)
            before = source.old if old and source.name in self.changes else None
            version = source.new if before is None else before
            found[member.table.start] = source.at(version, condition)
        return found

    def _term(self, select: str, sign: str, relations: dict[int, str], condition: str = "") -> str:
        inner = self.plan.inner(relations, condition)
        return f"SELECT {select}, {sign} AS {quote(SIGN)} {inner}"
