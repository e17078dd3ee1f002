"""The rows that a query's FROM and WHERE gained and lost, as SQL with a sign.

The tables change one after the other: those before a table in the query are taken as they are now,
those behind it as they were. So a changed row of two tables at once is counted exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mirrorlake.names import TableName
from mirrorlake.rows.views.joins import Member, Role
from mirrorlake.rows.views.plan import Plan
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.rows.views.sources import SIGN, Source
from mirrorlake.spark.sql import quote

_CHANGED = quote(f"{HIDDEN}changed")


@dataclass(frozen=True)
class Delta:
    """What changed in a view's sources, at hand.

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
        terms = []
        members = self.plan.shape.members
        if members[0].role is Role.BOTH:
            return self._both(select)
        for index, member in enumerate(members):
            view = self.changes.get(self._source(member).name)
            if view is None:
                continue
            before = {self._at(m): self._now(m) for m in members[:index]}
            behind = {self._at(m): self._then(m) for m in members[index + 1 :]}
            around = before | behind
            if member.role is Role.LINEAR:
                sign = f"{quote(member.table.alias)}.{quote(SIGN)}"
                inner = self.plan.inner(around | {self._at(member): view})
                terms.append(f"SELECT {select}, {sign} AS {quote(SIGN)} {inner}")
                continue
            for sign, rows in (("1", self._now(member)), ("-1", self._then(member))):
                relations = around | {self._at(member): rows}
                inner = self.plan.inner(relations, self._concerned(member, view))
                terms.append(f"SELECT {select}, {sign} AS {quote(SIGN)} {inner}")
        return "\nUNION ALL\n".join(terms)

    def needs_old(self) -> list[Source]:
        """The sources whose rows must be read as they were."""
        members = self.plan.shape.members
        changed = [self._source(m).name in self.changes for m in members]
        found = [
            self._source(member)
            for index, member in enumerate(members)
            if changed[index] and (member.role is not Role.LINEAR or any(changed[:index]))
        ]
        if members[0].role is Role.BOTH and any(changed):
            found = [self._source(m) for m in members if self._source(m).moved]
        return found

    def _both(self, select: str) -> str:
        members = self.plan.shape.members
        keys = []
        for member in members:
            if view := self.changes.get(self._source(member).name):
                own = [f"{quote(link.own)} AS k{n}" for n, link in enumerate(member.links)]
                keys.append(f"SELECT {', '.join(own)} FROM {view}")
        concerned = " UNION ".join(keys)
        terms = []
        for sign, old in (("1", False), ("-1", True)):
            relations = {}
            for member in members:
                pairs = (
                    f"{_CHANGED}.k{n} <=> {quote(f'{HIDDEN}table')}.{quote(link.own)}"
                    for n, link in enumerate(member.links)
                )
                rows = f"({concerned}) AS {_CHANGED}"
                exists = f"EXISTS (SELECT 1 FROM {rows} WHERE {' AND '.join(pairs)})"
                source = self._source(member)
                relations[self._at(member)] = source.at(_version(source, old), exists)
            terms.append(f"SELECT {select}, {sign} AS {quote(SIGN)} {self.plan.inner(relations)}")
        return "\nUNION ALL\n".join(terms)

    def _concerned(self, member: Member, view: str) -> str:
        """The condition that a row may have been joined with a changed one, or is now."""
        links = " AND ".join(
            f"{_CHANGED}.{quote(link.own)} {'<=>' if link.null_safe else '='} {link.other}"
            for link in member.links
        )
        return f"EXISTS (SELECT 1 FROM {view} AS {_CHANGED} WHERE {links})"

    def _source(self, member: Member) -> Source:
        return self.plan.sources[member.table.start]

    @staticmethod
    def _at(member: Member) -> int:
        return member.table.start

    def _now(self, member: Member) -> str:
        source = self._source(member)
        return source.at(source.new)

    def _then(self, member: Member) -> str:
        source = self._source(member)
        # What did not change is the same; the newest version needs no travel.
        return source.at(_version(source, source.name in self.changes))


def _version(source: Source, old: bool) -> int:
    return source.new if source.old is None or not old else source.old
