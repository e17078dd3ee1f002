"""Reduce the tables of a join to the rows that can match the changes of one table.

Spark would join the tables in the order of the query, and shuffle the large ones. Instead, each
large table is read once, in a semi-join with the changes or with a table that is already reduced.
The rows that remain are cached, and their join is small. If both versions of a table are needed,
the rows of the old one are computed from those of the new one and the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirrorlake.names import HIDDEN, TableName, quote
from mirrorlake.spark.jvm import MOST_BROADCAST
from mirrorlake.views.apply import Workspace
from mirrorlake.views.plan import SIGN, Plan, listed
from mirrorlake.views.shape import Link, Member, Role, row_links

LARGE_BYTES = 10 * 2**20  # Spark broadcasts smaller tables
_CHANGES = ""  # an alias for the changed rows; no alias of a table is empty
_ROWS, _KEYS = quote(f"{HIDDEN}table"), quote(f"{HIDDEN}keys")


def reduce_tables(
    work: Workspace,
    changes: Mapping[TableName, tuple[str, int]],
    plan: Plan,
    changed: Member,
    view: str,
    relations: Mapping[int, str],
) -> dict[int, str]:
    """Return relations in which the large tables have only rows that can match the changes.

    Args:
        work: the cached rows of the refresh.
        changes: the temporary view of the changed rows with their signs, and their number, by
            source.
        plan: the plan of the view.
        changed: the table that has changed.
        view: the temporary view of its changed rows.
        relations: the SQL of each table, by its offset in the query. That of the changed
            table is `view` if its role is linear, otherwise one of its two versions.
    """
    members = {member.table.alias.lower(): member for member in plan.shape.members}
    sources = {alias: plan.sources[one.table.start] for alias, one in members.items()}
    columns = {alias: source.columns for alias, source in sources.items()}
    links = row_links(plan.query, plan.shape.members, columns)
    first = changed.table.alias.lower() if changed.role is Role.LINEAR else _CHANGES
    if first == _CHANGES:
        for one in changed.links:
            if not one.null_safe:
                own = links.setdefault(one.alias.lower(), [])
                own.append(Link(one.column, _CHANGES, one.own))
    rows = {alias: relations[one.table.start] for alias, one in members.items()} | {first: view}
    reduced = {first: changes[plan.sources[changed.table.start].name][1]}
    large = {alias for alias, one in sources.items() if one.bytes > LARGE_BYTES} - {first}
    while large and max(reduced.values()) <= MOST_BROADCAST:
        others = (alias for alias in members if alias not in reduced)
        partners = {
            alias: partner
            for alias in others
            if (partner := _smallest_partner(links.get(alias, ()), reduced)) is not None
        }
        if not partners:
            break
        # Prefer a large table; read a small one only to reach further tables.
        alias = min(partners, key=lambda name: name not in large)
        partner = partners[alias]
        pairs = [one for one in links[alias] if one.alias.lower() == partner]
        keys = work.broadcast(rows[partner], reduced[partner])
        source = sources[alias]
        used = plan.used(source)
        query = _matching(used, rows[alias], keys, pairs)
        newest = _matching(used, source.at(source.new), keys, pairs)
        # If the rows are not the newest ones, they are those before the changes.
        if query != newest and newest in work.queries:
            new, _ = work.queries[newest]
            if _can_be_grouped(work, new):
                signed = _matching([*used, SIGN], changes[source.name][0], keys, pairs)
                query = _old_rows(used, new, signed)
        # No broadcast hint for the result: with hints, Spark keeps the order of the query.
        rows[alias], reduced[alias] = work.cached(query)
        large.discard(alias)
    return {one.table.start: rows[alias] for alias, one in members.items()}


def _smallest_partner(links: Sequence[Link], reduced: Mapping[str, int]) -> str | None:
    """Return the linked table that has the fewest rows of those that are reduced."""
    known = {one.alias.lower() for one in links} & reduced.keys()
    return min(sorted(known), key=reduced.__getitem__, default=None)


def _can_be_grouped(work: Workspace, view: str) -> bool:
    """Check whether no column of a view contains a map or a variant."""
    kinds = (kind for _, kind in work.session.table(view).dtypes)
    return not any("map" in kind or "variant" in kind for kind in kinds)


def _old_rows(columns: Sequence[str], new: str, signed: str) -> str:
    """Return the query of a table's rows before its changes.

    Args:
        columns: the columns.
        new: the temporary view of the rows after the changes.
        signed: a query of the changed rows, with their signs.
    """
    sign, names = quote(SIGN), listed(columns)
    both = f"SELECT {names}, 1 AS {sign} FROM {new} UNION ALL SELECT {names}, -{sign}"
    net = f"SELECT {names}, sum({sign}) AS {sign} FROM ({both} FROM ({signed})) GROUP BY {names}"
    copies = f"SELECT {names}, explode(sequence(1, {sign})) FROM ({net}) WHERE {sign} > 0"
    return f"SELECT {names} FROM ({copies})"


def _matching(columns: Sequence[str], rows: str, keys: str, links: Sequence[Link]) -> str:
    """Return the query of the rows that have equal values in another table."""
    pairs = (f"{_KEYS}.{quote(one.column)} = {_ROWS}.{quote(one.own)}" for one in links)
    return (
        f"SELECT {listed(columns)} FROM {rows} AS {_ROWS}"
        f" WHERE EXISTS (SELECT 1 FROM {keys} AS {_KEYS} WHERE {' AND '.join(pairs)})"
    )
