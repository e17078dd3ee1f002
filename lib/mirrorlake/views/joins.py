"""The role of each table in a query's joins, and so how its changes become the query's.

- linear: the query of a change is the change of the query. True for the tables of inner joins,
  and for the side of an outer join whose rows are all kept.
- nullable: the other side of an outer join, and the right side of a semi or anti join. Only rows
  whose key is one of the changed rows' can differ: the old result is subtracted, the new one added.
- both: the sides of a FULL JOIN, likewise, for the keys of both sides' changes together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sqlglot import exp

from mirrorlake.query.statement import NamedTable
from mirrorlake.views.definition import Reason, reason
from mirrorlake.views.query import Query

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
