"""Reduce the tables of a join to the rows that can match the changes of one table.

Spark would join the tables in the order of the query, and shuffle the large ones. Instead, each
large table is read once, in a semi-join with the changes or with a table that is already reduced.
In very large tables, DuckDB searches the keys of few rows. The rows that remain are kept, and their
join is small. A condition of the query on one table is applied before the semi-join. If a table has
far fewer matches than its partner has rows, the partner is reduced again, so that the next tables
have fewer rows too.

If both versions of a table are needed, the rows of the old one are computed from those of the new
one and the changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta import key_search
from mirrorlake.names import HIDDEN, quote
from mirrorlake.spark.jvm import MOST_BROADCAST
from mirrorlake.views.apply import Workspace
from mirrorlake.views.plan import SIGN, TABLE, can_be_grouped, listed, net_rows
from mirrorlake.views.shape import Link, Member, Role, row_conditions, row_links
from mirrorlake.views.view_sql import Delta

_log = logging.getLogger(__name__)
LARGE_BYTES = 10 * 2**20  # Spark broadcasts smaller tables
_CHANGES = ""  # an alias for the changed rows; no alias of a table is empty
_KEYS = f"{HIDDEN}keys"
_FAN_OUT = 2  # how many rows of a table match a row of its partner, as a guess
_SELECTIVE = 4  # reduce a table again if its partner has so many times fewer rows


def reduce_tables(
    work: Workspace, delta: Delta, changed: Member, relations: Mapping[int, str]
) -> Mapping[int, str] | None:
    """Return relations in which the large tables have only rows that can match the changes.

    Args:
        work: the kept rows of the refresh.
        delta: the changes, and the plan of the view.
        changed: the table that has changed.
        relations: the SQL of each table, by its offset in the query. That of the changed table is
            its changes if its role is linear, otherwise one of its two versions.

    Returns:
        The relations; None if no row of the join can match the changes.
    """
    large = {
        one.table.alias.lower()
        for one in delta.plan.shape.members
        if delta.plan.sources[one.table.start].bytes > LARGE_BYTES
        and (one.table.start != changed.table.start or one.role is not Role.LINEAR)
    }
    if not large:
        return relations
    reduction = _Reduction(work, delta, changed, relations, large)
    reduced = reduction.reduced
    reduction.filter_changes()
    while reduction.large and max(reduced.values()) <= MOST_BROADCAST and not reduction.is_empty:
        found = reduction.next_pair()
        if found is None:
            break
        alias, partner = found
        reduction.reduce(alias, partner)
        if reduced[alias] * _SELECTIVE < reduced[partner] and reduction.pairs(partner, alias):
            reduction.reduce(partner, alias)
    if reduction.is_empty:
        return None
    return {m.table.start: reduction.rows[alias] for alias, m in reduction.members.items()}


class _Reduction:
    """The tables of a join while they are reduced, by alias.

    Attributes:
        members: the tables.
        large: the large tables that are not reduced yet.
        rows: the SQL of the rows of each table.
        reduced: the number of rows of each reduced table.
    """

    def __init__(
        self,
        work: Workspace,
        delta: Delta,
        changed: Member,
        relations: Mapping[int, str],
        large: set[str],
    ) -> None:
        self._work, self._delta, plan = work, delta, delta.plan
        members = {member.table.alias.lower(): member for member in plan.shape.members}
        sources = {alias: plan.sources[one.table.start] for alias, one in members.items()}
        columns = {alias: source.columns for alias, source in sources.items()}
        self._sources, self.members = sources, members
        self._links = row_links(plan.query, plan.shape.members, columns)
        self._conditions = row_conditions(plan.query, plan.shape.members, columns, TABLE)
        alias = changed.table.alias.lower()
        self._first = alias if changed.role is Role.LINEAR else _CHANGES
        if self._first == _CHANGES:
            for one in changed.links:
                if not one.null_safe:
                    own = self._links.setdefault(one.alias.lower(), [])
                    own.append(Link(one.column, _CHANGES, one.own))
        view, count = delta.changes[sources[alias].name]
        self.rows = {name: relations[one.table.start] for name, one in members.items()}
        self.rows[self._first] = view
        self.reduced = {self._first: count}
        self.large = large

    @property
    def is_empty(self) -> bool:
        """Whether no row remains of a table that each row of the join contains."""
        return any(
            not count and (alias == _CHANGES or self.members[alias].role is Role.LINEAR)
            for alias, count in self.reduced.items()
        )

    def filter_changes(self) -> None:
        """Keep only the changed rows that fulfil the query's condition on their table."""
        condition = self._conditions.get(self._first)
        if condition:
            query = f"SELECT * FROM {self.rows[self._first]} AS {quote(TABLE)} WHERE {condition}"
            self.rows[self._first], self.reduced[self._first] = self._work.kept(query)

    def next_pair(self) -> tuple[str, str] | None:
        """Return the table to reduce next and its partner; None if no table has a partner."""
        partners = {}
        for alias in self.members.keys() - self.reduced.keys():
            known = {one.alias.lower() for one in self._links.get(alias, ())} & self.reduced.keys()
            if known:
                partners[alias] = min(sorted(known), key=self.reduced.__getitem__)
        if not partners:
            return None

        def order(alias: str) -> tuple[int, str]:
            # A small table is read for its condition, or else only to reach further tables.
            if alias in self.large:
                return 1, alias
            return (0 if alias in self._conditions else 2), alias

        alias = min(partners, key=order)
        return alias, partners[alias]

    def pairs(self, alias: str, partner: str) -> list[Link]:
        """Return the equalities that each row of a table fulfils with a row of another table."""
        return [one for one in self._links.get(alias, ()) if one.alias.lower() == partner]

    def reduce(self, alias: str, partner: str) -> None:
        """Keep only the rows of a table that have equal values in another, reduced table."""
        keys = self._work.broadcast(self.rows[partner], self.reduced[partner])
        links = self.pairs(alias, partner)
        equal = [f"{_KEYS}.{quote(one.column)} = {TABLE}.{quote(one.own)}" for one in links]
        matches = f"EXISTS (SELECT 1 FROM {keys} AS {_KEYS} WHERE {' AND '.join(equal)})"
        where = " AND ".join(filter(None, [self._conditions.get(alias), matches]))
        source = self._sources[alias]
        columns = list(self._delta.plan.used(source))

        def matching(columns: Sequence[str], rows: str) -> str:
            return f"SELECT {listed(columns)} FROM {rows} AS {quote(TABLE)} WHERE {where}"

        signed = [*columns, SIGN]
        query = matching(signed if alias == self._first else columns, self.rows[alias])
        newest, old, searched = matching(columns, source.at(source.new)), None, None
        queries, session = self._work.queries, self._work.session
        if alias not in self.reduced and query not in queries:
            # If the rows are not the newest ones, they are those before the changes.
            if query != newest and newest in queries:
                new, changes = queries[newest][0], self._delta.changes[source.name][0]
                if can_be_grouped(session.table(new)):
                    old = _old_rows(session, columns, new, matching(signed, changes))
            searched = self._search(alias, partner, columns) if old is None else None
        # No broadcast hint for the result: with hints, Spark keeps the order of the query.
        likely = _FAN_OUT * self.reduced[partner] * source.weight
        rows = session.sql(matching(columns, searched)) if searched else old
        try:
            found = self._work.kept(query, rows, likely)
        except Exception as error:
            why = key_search.failure(error) if searched else None
            if why is None:
                raise
            _log.warning("%s: DuckDB failed, so Spark reads the table: %s", source.name, why)
            self._work.with_duckdb = False
            found = self._work.kept(query, None, likely)
        self.rows[alias], self.reduced[alias] = found
        self.large.discard(alias)

    def _search(self, alias: str, partner: str, columns: Sequence[str]) -> str | None:
        """Search the keys of a table's partner with DuckDB.

        Returns:
            A temporary view of the rows that match in one key column, with these columns. None if
            Spark must read the table.
        """
        source, session, keys = self._sources[alias], self._work.session, self.rows[partner]
        versions = {source.at(version): version for version in source.searches}
        version = versions.get(self.rows[alias])
        is_large = source.rows >= key_search.MANY_ROWS
        is_few = self.reduced[partner] <= key_search.MOST_KEYS
        if version is None or not (is_large and is_few and self._work.with_duckdb):
            return None
        search = source.searches[version].select(columns)
        schemas = search.schema, session.table(keys).schema
        fields, known = ({field.name.lower(): field for field in schema} for schema in schemas)
        wanted: dict[str, set[Any]] = {}
        for link in self.pairs(alias, partner):
            own, other = fields[link.own.lower()], known[link.column.lower()]
            if own.dataType == other.dataType and search.is_possible(session, own.name):
                rows = session.table(keys).select(quote(other.name)).collect()
                wanted[own.name] = {row[0] for row in rows}
        if not wanted:
            return None
        key = max(wanted, key=lambda name: len(wanted[name]))  # the most selective column
        return self._work.view(search.run(session, key, list(wanted[key])))


def _old_rows(session: SparkSession, columns: Sequence[str], new: str, signed: str) -> DataFrame:
    """Return a table's rows before its changes.

    Args:
        session: the session of the refresh.
        columns: the columns.
        new: the temporary view of the rows after the changes.
        signed: a query of the changed rows, with their signs.
    """
    sign, names = quote(SIGN), listed(columns)
    both = f"SELECT {names}, 1 AS {sign} FROM {new} UNION ALL SELECT {names}, -{sign}"
    net = net_rows(session.sql(f"{both} FROM ({signed})"))
    return net.where(F.col(SIGN) > 0).drop(SIGN)
