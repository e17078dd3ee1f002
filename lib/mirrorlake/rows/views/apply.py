"""Brings a view's table up to date by what changed: one commit, by the rule of the view's shape.

Here is the rule of single rows; those of groups are in modules of their own. Each puts what goes
and what comes into one transaction of Delta's own. Under Spark Connect, which has no way there, and
for tables without deletion vectors it is a MERGE.
"""

from __future__ import annotations

from mirrorlake.rows.views.apply_groups import change_groups, change_partitions
from mirrorlake.rows.views.apply_sums import change_sums
from mirrorlake.rows.views.commit import (
    FILE,
    ROW,
    RowReplacement,
    Scratch,
    Target,
    append,
    insert_clause,
    merge,
    replace_rows,
    update_clause,
)
from mirrorlake.rows.views.delta import Delta
from mirrorlake.rows.views.plan import CHECK, HASH, ID, listed, named
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.rows.views.shape import Method
from mirrorlake.rows.views.sources import SIGN
from mirrorlake.rows.views.view_sql import hashes, with_ids
from mirrorlake.spark.sql import delta_name, quote

_GONE, _COPY, _COUNT, _OLD, _PAIR = (
    quote(f"{HIDDEN}{name}") for name in ("gone", "copy", "times", "old", "pair")
)
_HASHED = " AND ".join(f"t.{quote(name)} = g.{quote(name)}" for name in (HASH, CHECK))


def apply_delta(delta: Delta, kept: Scratch, target: Target) -> None:
    """Puts what changed into the view's table, in one commit."""
    method = delta.plan.shape.method
    if method is Method.ROWS:
        _change_rows(delta, kept, target)
    elif method is Method.SUMS:
        change_sums(delta, kept, target)
    elif method is Method.GROUPS:
        change_groups(delta, kept, target)
    else:
        change_partitions(delta, kept, target)


def _change_rows(delta: Delta, kept: Scratch, target: Target) -> None:
    """Of each row that went as many copies go, of each that came as many come."""
    names, session = delta.plan.names, kept.session
    changed = delta.rows(named(delta.plan.shape.items, names))
    net = (
        f"SELECT *, {hashes(names)} FROM (SELECT {listed(names)}, sum({quote(SIGN)}) AS {_COUNT}"
        f" FROM ({changed}) GROUP BY {listed(names)}) WHERE {_COUNT} <> 0"
    )
    view = kept.keep(session.sql(net))
    count, went, fresh = kept.measure(
        view, f"count_if({_COUNT} < 0)", f"sum(greatest({_COUNT}, 0))"
    )
    columns = [*names, HASH, CHECK]
    came = (
        f"SELECT {listed(columns)} FROM"
        f" (SELECT *, explode(sequence(1, {_COUNT})) FROM {view} WHERE {_COUNT} > 0)"
    )
    if count and not went:
        append(session.sql(with_ids(came, target.number)), target)
        return
    hashed = f"SELECT {_COUNT}, {listed([HASH, CHECK])} FROM {view} WHERE {_COUNT} < 0"
    gone = kept.broadcast(kept.view(session.sql(hashed)), went)
    rows = with_ids(came, target.number)

    def find(table: str) -> RowReplacement:
        return RowReplacement(_places(gone, table), rows, went, fresh)

    if not replace_rows(kept, find, target):
        _merge_rows(gone, came, columns, kept, target)


def _places(gone: str, table: str) -> str:
    """As many places in the table of each row as copies of it go."""
    copies = f"PARTITION BY {listed([HASH, CHECK], 'g.')} ORDER BY t.{quote(ROW)}"
    found = (
        f"SELECT {listed([FILE, ROW], 't.')}, g.{_COUNT},"
        f" row_number() OVER ({copies}) AS {_COPY} FROM {table} t JOIN {gone} g ON {_HASHED}"
    )
    return f"SELECT {listed([FILE, ROW])} FROM ({found}) WHERE {_COPY} <= -{_COUNT}"


def _merge_rows(gone: str, came: str, columns: list[str], kept: Scratch, target: Target) -> None:
    """The same by SQL alone: for Spark Connect, and for tables without deletion vectors.

    A row that went makes room for one that came, as long as there are both: then every row of the
    merge matches, and the table need not be shuffled.
    """
    session = kept.session
    copies = f"PARTITION BY {listed([HASH, CHECK], 'g.')} ORDER BY t.{quote(ID)}"
    went = (
        f"SELECT g.*, t.{quote(ID)} AS {_OLD}, row_number() OVER ({copies}) AS {_COPY}"
        f" FROM {delta_name(target.path)} t JOIN {gone} g ON {_HASHED}"
    )
    # In the columns' order, so that a row is mostly updated to what became of it.
    order = f"row_number() OVER (ORDER BY {listed(columns)}) AS {_PAIR}"
    number = f"row_number() OVER (ORDER BY {_OLD}) AS {_PAIR}"
    went = f"SELECT {_OLD}, {number} FROM ({went}) WHERE {_COPY} <= -{_COUNT}"
    pairs = (
        f"SELECT c.*, w.{_OLD}, c.{_PAIR} IS NULL AS {_GONE}"
        f" FROM (SELECT *, {order} FROM ({came})) c FULL JOIN ({went}) w ON c.{_PAIR} = w.{_PAIR}"
    )
    paired = kept.keep(session.sql(with_ids(pairs, target.number)))
    count, fresh = kept.measure(paired, f"count_if({_OLD} IS NULL)")
    updated = f"WHEN MATCHED AND s.{_GONE} THEN DELETE {update_clause(columns)}"
    merge(
        session,
        f"SELECT * FROM {kept.broadcast(paired, count)}",
        f"t.{quote(ID)} = s.{_OLD}",
        f"{updated} {insert_clause([*columns, ID]) if fresh else ''}",
        target,
    )
