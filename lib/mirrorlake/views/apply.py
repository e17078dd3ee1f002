"""Brings a view's table up to date incrementally: one commit, by the rule of the view's shape.

Each rule says which rows of the table go and which come; `replace_rows` commits them.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from mirrorlake.delta.exchange import FILE, ROW
from mirrorlake.spark.sql import quote
from mirrorlake.views.commit import (
    COMES,
    RowReplacement,
    Scratch,
    Target,
    replace_rows,
    write_rows,
)
from mirrorlake.views.plan import SIGN, Plan, listed, named, net_rows, same
from mirrorlake.views.query import HIDDEN
from mirrorlake.views.shape import Method
from mirrorlake.views.view_sql import (
    CHECK,
    HASH,
    ID,
    Delta,
    arguments_of,
    extremes_of,
    grouped,
    has_rows,
    hashes,
    is_moved,
    selected_groups,
    shown_of,
    state_columns,
    state_of,
    with_ids,
)

_COPY, _COUNT, _FOUND, _AFFECTED, _LOST = (
    quote(f"{HIDDEN}{name}") for name in ("copy", "times", "found", "affected", "lost")
)
_FILE, _ROW, _SIGN = quote(FILE), quote(ROW), quote(SIGN)
_PLACE = [FILE, ROW]
_HASHED = " AND ".join(f"t.{quote(name)} = g.{quote(name)}" for name in (HASH, CHECK))


def apply_delta(delta: Delta, kept: Scratch, target: Target) -> None:
    """Puts what changed into the view's table, in one commit."""
    method = delta.plan.shape.method
    if method is Method.ROWS:
        _change_rows(delta, kept, target)
    elif method.keeps_state:
        _change_state(delta, kept, target)
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
    query = selected_groups(plan, plan.newest(), _concerned(plan, view))
    partitions = plan.shape.method is Method.PARTITIONS

    def find(table: str) -> RowReplacement:
        likely = kept.among(table, view, plan.key_names, count)
        on = same(plan.key_names, "t", "k")
        there = f"FROM {likely} t JOIN {kept.broadcast(view, count)} k ON {on}"
        if partitions:
            places = listed([*_PLACE, *plan.key_columns], "t.")
            rows = _both(session.sql(f"SELECT DISTINCT {places} {there}"), session.sql(query))
        else:
            rows = session.sql(_differing(plan, query, f"SELECT t.* {there}"))
        return kept.counted(kept.keep(rows))[0]

    on = same(plan.key_columns, "t", "s")
    if partitions:
        on = f"NOT s.{quote(COMES)} AND {on}"
    replace_rows(kept, find, target, plan.written, on)


def _concerned(plan: Plan, view: str) -> str:
    """The condition that a row of the sources is in one of a view's groups."""
    pairs = " AND ".join(
        f"{_AFFECTED}.{quote(name)} <=> ({key})"
        for name, key in zip(plan.keys, plan.shape.keys, strict=True)
    )
    return f"EXISTS (SELECT 1 FROM {view} AS {_AFFECTED} WHERE {pairs})"


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


def _change_state(delta: Delta, kept: Scratch, target: Target) -> None:
    """Adds the changes to what is kept of the groups; a group without rows is deleted.

    A group is computed again only if its greatest or least value went, and none as great or as
    small came: what is left of it, only the sources know.
    """
    plan, session = delta.plan, kept.session
    keys, columns, extremes = plan.keys, state_columns(plan), extremes_of(plan)
    # By how much each group changed.
    rows = delta.rows(arguments_of(plan))
    if extremes:
        # Where two tables of a join changed, a row of the one as it is meets a row of the other as
        # it was: it comes and goes, and was never there, so it must not count as an extreme.
        rows = f"SELECT * FROM {kept.view(net_rows(session.sql(rows)))}"
    changes = state_of(plan, rows, _SIGN)
    view = kept.keep(session.sql(f"SELECT * FROM ({changes}) WHERE {is_moved(plan)}"))
    (count,) = kept.measure(view)
    known = [f"t.{quote(column)} AS {quote(key)}" for column, key in plan.key_names.items()]
    functions = {extreme.column: extreme.function for extreme in extremes}
    nothing = [f"NULL AS {extreme.went}" for extreme in extremes]
    unmatched = [f"{extreme.unmatched} AS {extreme.went}" for extreme in extremes]
    stays = has_rows(plan)
    lost = " OR ".join(extreme.is_lost for extreme in extremes) or "false"

    def find(table: str) -> RowReplacement:
        kinds = dict(session.sql(f"SELECT * FROM {table}").dtypes)
        likely = kept.among(table, view, plan.key_names, count)
        on = same(plan.key_names, "t", "d")
        values = [f"max({name}) AS {name}" for name in (_FILE, _ROW)]
        values += [
            f"CAST({functions.get(quote(c), 'sum')}({quote(c)}) AS {kinds[c]}) AS {quote(c)}"
            for c in columns
        ]
        values += [f"max({extreme.went}) AS {extreme.went}" for extreme in extremes]
        there = (
            f"SELECT {', '.join([listed(_PLACE, 't.'), *known, listed(columns, 't.'), *nothing])}"
            f" FROM {likely} t JOIN {kept.broadcast(view, count)} d ON {on}"
        )
        changed = (
            f"SELECT NULL AS {_FILE}, NULL AS {_ROW},"
            f" {', '.join([listed([*keys, *columns]), *unmatched])} FROM {view}"
        )
        # Without keys there is a group even where nothing changed.
        state = f"{grouped(keys, values, f'{changed} UNION ALL {there}')} HAVING count(*) > 0"
        flags = f"{stays} AS {quote(COMES)}, {stays} AND ({lost}) AS {_LOST}"
        groups = kept.keep(session.sql(f"SELECT *, {flags} FROM ({state})"))
        swap, (again,) = kept.counted(groups, f"count_if({_LOST})")
        if again:
            groups = _with_lost(plan, kept, groups, again)
        more = f", {_FILE}, {_ROW}, {quote(COMES)}"
        return replace(swap, view=kept.view(session.sql(shown_of(plan, groups, more))))

    on = same(plan.key_columns, "t", "s")
    replace_rows(kept, find, target, [*plan.written, *columns], on)


def _with_lost(plan: Plan, kept: Scratch, groups: str, count: int) -> str:
    """The groups, those that lost an extreme computed again from the sources."""
    lost = kept.broadcast(kept.view(kept.session.table(groups).where(_LOST)), count)
    rows = plan.inner(plan.newest(), _concerned(plan, lost))
    fresh = state_of(plan, f"SELECT {arguments_of(plan)} {rows}")
    columns, own = state_columns(plan), [*_PLACE, COMES, *plan.keys]
    again = (
        f"SELECT {listed(own, 's.')}, {listed(columns, 'n.')}"
        f" FROM {lost} s JOIN ({fresh}) n ON {same(plan.keys, 's', 'n')}"
    )
    others = f"SELECT {listed([*own, *columns])} FROM {groups} WHERE NOT {_LOST}"
    return kept.keep(kept.session.sql(f"{again} UNION ALL {others}"))
