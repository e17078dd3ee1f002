"""The rows that a query's FROM and WHERE gained and lost, as SQL with a sign.

The tables change one after the other: those before a table in the query are taken as they are now,
those behind it as they were. So a changed row of two tables at once is counted exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirrorlake.names import TableName
from mirrorlake.rows.views.joins import Member, Role
from mirrorlake.rows.views.plan import Plan
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.rows.views.sources import SIGN, Source
from mirrorlake.spark.sql import quote

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
    changes: dict[TableName, str] = field(default_factory=dict)

    def rows(self, select: str) -> str:
        """What the query's FROM and WHERE gained and lost.

        Args:
            select: expressions with names; the column of signs is added.
        """
        members = self.plan.shape.members
        if members[0].role is Role.BOTH:
            return self._both(select)
        terms = []
        for index, member in enumerate(members):
            view = self.changes.get(self._source(member).name)
            if view is None:
                continue
            around = self._at(members[:index]) | self._at(members[index + 1 :], old=True)
            if member.role is Role.LINEAR:
                sign = f"{quote(member.table.alias)}.{quote(SIGN)}"
                terms.append(self._term(select, sign, around | {member.table.start: view}))
                continue
            # Rows that may have been joined with a changed one, or are now.
            links = " AND ".join(
                f"{_CHANGED}.{quote(link.own)} {'<=>' if link.null_safe else '='} {link.other}"
                for link in member.links
            )
            concerned = f"EXISTS (SELECT 1 FROM {view} AS {_CHANGED} WHERE {links})"
            for sign, old in _SIGNS:
                relations = around | self._at([member], old=old)
                terms.append(self._term(select, sign, relations, concerned))
        return "\nUNION ALL\n".join(terms)

    def needs_old(self) -> list[Source]:
        """The sources whose rows must be read as they were."""
        members = self.plan.shape.members
        changed = [self._source(m).name in self.changes for m in members]
        return [
            self._source(member)
            for index, member in enumerate(members)
            if changed[index] and (member.role is not Role.LINEAR or any(changed[:index]))
        ]

    def _both(self, select: str) -> str:
        members = self.plan.shape.members
        keys = []
        for member in members:
            if view := self.changes.get(self._source(member).name):
                own = [f"{quote(link.own)} AS k{n}" for n, link in enumerate(member.links)]
                keys.append(f"SELECT {', '.join(own)} FROM {view}")
        concerned = f"({' UNION '.join(keys)}) AS {_CHANGED}"
        terms = []
        for sign, old in _SIGNS:
            relations: dict[int, str] = {}
            for member in members:
                pairs = (
                    f"{_CHANGED}.k{n} <=> {quote(f'{HIDDEN}table')}.{quote(link.own)}"
                    for n, link in enumerate(member.links)
                )
                exists = f"EXISTS (SELECT 1 FROM {concerned} WHERE {' AND '.join(pairs)})"
                relations |= self._at([member], old=old, condition=exists)
            terms.append(self._term(select, sign, relations))
        return "\nUNION ALL\n".join(terms)

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
