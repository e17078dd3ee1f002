"""Brings a view's table up to date incrementally: one commit, by the rule of the view's shape.

Each rule says which rows of the table go and which come; `replace_rows` commits them.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from mirrorlake.delta.exchange import FILE, ROW
from mirrorlake.rows.views.commit import (
    COMES,
    RowReplacement,
    Scratch,
    Target,
    replace_rows,
    write_rows,
)
from mirrorlake.rows.views.delta import Delta
from mirrorlake.rows.views.plan import CHECK, HASH, ID, Plan, listed, named, same
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.rows.views.shape import Method
from mirrorlake.rows.views.sources import SIGN
from mirrorlake.rows.views.view_sql import (
    arguments_of,
    grouped,
    has_rows,
    hashes,
    selected_groups,
    shown_of,
    state_columns,
    state_of,
    with_ids,
)
from mirrorlake.spark.sql import quote

_COPY, _COUNT, _FOUND, _AFFECTED = (
    quote(f"{HIDDEN}{name}") for name in ("copy", "times", "found", "affected")
)
_FILE, _ROW, _SIGN = quote(FILE), quote(ROW), quote(SIGN)
_PLACE = [FILE, ROW]
_HASHED = " AND ".join(f"t.{quote(name)} = g.{quote(name)}" for name in (HASH, CHECK))


def apply_delta(delta: Delta, kept: Scratch, target: Target) -> None:
    """Puts what changed into the view's table, in one commit."""
    method = delta.plan.shape.method
    if method is Method.ROWS:
        _change_rows(delta, kept, target)
    elif method is Method.SUMS:
        _change_sums(delta, kept, target)
    else:
        _change_groups(delta, kept, target)


def _change_rows(delta: Delta, kept: Scratch, target: Target) -> None:
    """Of each deleted row as many copies go, of each inserted one as many come."""
    names, session = delta.plan.names, kept.session
    changed = delta.rows(named(delta.plan.shape.items, names))
    net = (
        f"SELECT *, {hashes(names)} FROM (SELECT {listed(names)}, sum({_SIGN}) AS {_COUNT}"
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
    rows = session.sql(with_ids(came, target.number))
    if count and not went:
        write_rows(rows, target, "append")
        return
    hashed = f"SELECT {_COUNT}, {listed([HASH, CHECK])} FROM {view} WHERE {_COUNT} < 0"
    gone = kept.broadcast(kept.view(session.sql(hashed)), went)

    def find(table: str) -> RowReplacement:
        likely = kept.among(table, gone, {HASH: HASH, CHECK: CHECK}, went)
        copies = f"PARTITION BY {listed([HASH, CHECK], 'g.')} ORDER BY t.{_ROW}"
        found = (
            f"SELECT {listed(_PLACE, 't.')}, g.{_COUNT}, row_number() OVER ({copies}) AS {_COPY}"
            f" FROM {likely} t JOIN {gone} g ON {_HASHED}"
        )
        places = f"SELECT {listed(_PLACE)} FROM ({found}) WHERE {_COPY} <= -{_COUNT}"
        return RowReplacement(kept.view(_both(session.sql(places), rows)), went, fresh)

    own = quote(ID)
    replace_rows(kept, find, target, [*columns, ID], f"t.{own} = s.{_ROW}", own)


def _both(gone: DataFrame, come: DataFrame) -> DataFrame:
    """Rows that go and rows that come."""
    flagged = come.selectExpr("*", f"true AS {quote(COMES)}")
    return gone.selectExpr("*", f"false AS {quote(COMES)}").unionByName(
        flagged, allowMissingColumns=True
    )


def _change_groups(delta: Delta, kept: Scratch, target: Target) -> None:
    """Computes groups or partitions again that a changed row is or was in."""
    plan, session = delta.plan, kept.session
    changed = delta.rows(named(plan.shape.keys, plan.keys))
    view = kept.keep(session.sql(f"SELECT DISTINCT {listed(plan.keys)} FROM ({changed})"))
    (count,) = kept.measure(view)
    pairs = " AND ".join(
        f"{_AFFECTED}.{quote(name)} <=> ({key})"
        for name, key in zip(plan.keys, plan.shape.keys, strict=True)
    )
    affected = f"EXISTS (SELECT 1 FROM {view} AS {_AFFECTED} WHERE {pairs})"
    query = selected_groups(plan, plan.newest(), affected)
    partitions = plan.shape.method is Method.PARTITIONS

    def find(table: str) -> RowReplacement:
        on = plan.same_keys("t", "k")
        keys = dict(zip(plan.key_columns, plan.keys, strict=True))
        likely = kept.among(table, view, keys, count)
        there = f"FROM {likely} t JOIN {kept.broadcast(view, count)} k ON {on}"
        if not partitions:
            return kept.replacement(session.sql(_differing(plan, query, f"SELECT t.* {there}")))
        places = listed([*_PLACE, *plan.key_columns], "t.")
        return kept.replacement(
            _both(session.sql(f"SELECT DISTINCT {places} {there}"), session.sql(query))
        )

    on = same(plan.key_columns, "t", "s")
    if partitions:
        on = f"NOT s.{quote(COMES)} AND {on}"
    replace_rows(kept, find, target, plan.written, on)


def _differing(plan: Plan, query: str, there: str) -> str:
    """Groups that are not what they were."""
    keys = plan.key_columns
    rest = [column for column in plan.written if column not in keys]
    differs = f"NOT ({same(rest, 't', 'n')})" if rest else "false"
    either = ", ".join(f"coalesce(n.{quote(c)}, t.{quote(c)}) AS {quote(c)}" for c in keys)
    columns = ", ".join(filter(None, [listed(_PLACE, "t."), either, listed(rest, "n.")]))
    return (
        f"SELECT {columns}, n.{_FOUND} IS NOT NULL AS {quote(COMES)}"
        f" FROM (SELECT *, true AS {_FOUND} FROM ({query})) n FULL JOIN ({there}) t"
        f" ON {same(keys, 't', 'n')}"
        f" WHERE t.{_ROW} IS NULL OR n.{_FOUND} IS NULL OR {differs}"
    )


def _change_sums(delta: Delta, kept: Scratch, target: Target) -> None:
    """Adds the changes to the groups; a group without rows is deleted."""
    plan, session = delta.plan, kept.session
    keys, columns = plan.keys, state_columns(plan)
    # By how much each group changed.
    changes = state_of(plan, delta.rows(arguments_of(plan)), _SIGN)
    moved = " OR ".join(f"{quote(column)} <> 0" for column in columns)
    view = kept.keep(session.sql(f"SELECT * FROM ({changes}) WHERE {moved}"))
    (count,) = kept.measure(view)
    pairs = zip(plan.key_columns, keys, strict=True)
    known = [f"t.{quote(column)} AS {quote(key)}" for column, key in pairs]

    def find(table: str) -> RowReplacement:
        kinds = dict(session.sql(f"SELECT * FROM {table}").dtypes)
        likely = kept.among(table, view, dict(zip(plan.key_columns, keys, strict=True)), count)
        places = [f"max({name}) AS {name}" for name in (_FILE, _ROW)]
        totals = [f"CAST(sum({quote(c)}) AS {kinds[c]}) AS {quote(c)}" for c in columns]
        there = (
            f"SELECT {', '.join([listed(_PLACE, 't.'), *known, listed(columns, 't.')])}"
            f" FROM {likely} t JOIN {kept.broadcast(view, count)} d ON {plan.same_keys('t', 'd')}"
        )
        changed = f"SELECT NULL AS {_FILE}, NULL AS {_ROW}, {listed([*keys, *columns])} FROM {view}"
        # Without keys there is a group even where nothing changed.
        state = (
            f"{grouped(keys, [*places, *totals], f'{changed} UNION ALL {there}')}"
            " HAVING count(*) > 0"
        )
        more = f", {_FILE}, {_ROW}, {has_rows(plan)} AS {quote(COMES)}"
        return kept.replacement(session.sql(shown_of(plan, state, more)))

    on = same(plan.key_columns, "t", "s")
    replace_rows(kept, find, target, [*plan.written, *columns], on)
