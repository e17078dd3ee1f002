"""Groups of sums and counts: what the table keeps of them and what changed are added up."""

from __future__ import annotations

from mirrorlake.rows.views.commit import (
    FILE,
    ROW,
    RowReplacement,
    Scratch,
    Target,
    insert_clause,
    merge,
    replace_rows,
    update_clause,
)
from mirrorlake.rows.views.delta import Delta
from mirrorlake.rows.views.plan import ARGUMENT, ROWS, SUM, Plan, listed, same
from mirrorlake.rows.views.sources import SIGN
from mirrorlake.rows.views.view_sql import (
    arguments_of,
    count_column,
    shown_of,
    state_columns,
    summand,
)
from mirrorlake.spark.sql import delta_name, quote

_FILE, _ROW = quote(FILE), quote(ROW)


def change_sums(delta: Delta, kept: Scratch, target: Target) -> None:
    """Adds what changed to the groups; one of no rows goes."""
    view = kept.keep(kept.session.sql(_changed(delta)))
    (count,) = kept.measure(view)

    def find(table: str) -> RowReplacement:
        return _swap(delta.plan, kept, view, count, table)

    if not replace_rows(kept, find, target):
        _merge(delta.plan, kept, view, target)


def _changed(delta: Delta) -> str:
    """By how much each group changed."""
    plan = delta.plan
    keys = plan.keys
    sums = [f"sum({quote(SIGN)}) AS {quote(ROWS)}"]
    for number, aggregate in enumerate(plan.shape.aggregates):
        count = count_column(number, aggregate)
        if count != ROWS:
            argument = quote(f"{ARGUMENT}{number}")
            counted = f"CASE WHEN {argument} IS NULL THEN 0 ELSE {quote(SIGN)} END"
            sums.append(f"sum({counted}) AS {quote(count)}")
        if aggregate.function != "count":
            value = summand(plan, number)
            signed = f"CASE WHEN {quote(SIGN)} < 0 THEN -{value} ELSE {value} END"
            sums.append(f"sum({signed}) AS {quote(f'{SUM}{number}')}")
    moved = " OR ".join(f"{quote(column)} <> 0" for column in state_columns(plan))
    return (
        f"SELECT * FROM (SELECT {', '.join([*map(quote, keys), *sums])}"
        f" FROM ({delta.rows(arguments_of(plan))}){_group(keys)}) WHERE {moved}"
    )


def _swap(plan: Plan, kept: Scratch, view: str, count: int, table: str) -> RowReplacement:
    if not count:
        return RowReplacement("", "", 0, 0)
    keys, columns = plan.keys, state_columns(plan)
    there = (
        f"SELECT {listed([FILE, ROW], 't.')}, {_old(plan)} FROM {table} t"
        f" JOIN {kept.broadcast(view, count)} d ON {plan.same_keys('t', 'd')}"
    )
    nowhere = f"NULL AS {_FILE}, NULL AS {_ROW}"
    places = [f"max({_FILE}) AS {_FILE}", f"max({_ROW}) AS {_ROW}"]
    totals = [*places, *_totals(kept, table, columns)]
    state = (
        f"SELECT {', '.join([*map(quote, keys), *totals])} FROM"
        f" (SELECT {nowhere}, {listed([*keys, *columns])} FROM {view} UNION ALL {there})"
        f"{_group(keys)}"
    )
    groups = kept.keep(kept.session.sql(state))
    stays = f"{quote(ROWS)} <> 0" if keys else "true"
    _, gone, come, both = kept.measure(
        groups,
        f"count({_ROW})",
        f"count_if({stays})",
        f"count_if({_ROW} IS NOT NULL AND {stays})",
    )
    return RowReplacement(
        f"SELECT {_FILE}, {_ROW} FROM {groups} WHERE {_ROW} IS NOT NULL",
        shown_of(plan, f"SELECT {listed([*keys, *columns])} FROM {groups} WHERE {stays}"),
        gone,
        come,
        both,
    )


def _merge(plan: Plan, kept: Scratch, view: str, target: Target) -> None:
    """The same by SQL alone."""
    keys, columns = plan.keys, state_columns(plan)
    table = delta_name(target.path)
    there = (
        f"SELECT {_old(plan)} FROM {table} t"
        f" WHERE EXISTS (SELECT 1 FROM {view} d WHERE {plan.same_keys('t', 'd')})"
    )
    totals = _totals(kept, table, columns)
    state = (
        f"SELECT {', '.join([*map(quote, keys), *totals])} FROM"
        f" ({there} UNION ALL SELECT {listed([*keys, *columns])} FROM {view}){_group(keys)}"
    )
    written = [*plan.written, *columns]
    empty = f"s.{quote(ROWS)} = 0"
    deleted = f"WHEN MATCHED AND {empty} THEN DELETE " if keys else ""
    merge(
        kept.session,
        shown_of(plan, state)
        if keys
        else f"SELECT * FROM ({shown_of(plan, state)}) WHERE EXISTS (SELECT 1 FROM {view})",
        same(plan.key_columns, "t", "s"),
        f"{deleted}{update_clause(written)} {insert_clause(written, f'NOT {empty}')}",
        target,
    )


def _old(plan: Plan) -> str:
    """What the table keeps of a group, under the names that a refresh knows its keys by."""
    pairs = zip(plan.key_columns, plan.keys, strict=True)
    keys = [f"t.{quote(column)} AS {quote(key)}" for column, key in pairs]
    return ", ".join([*keys, listed(state_columns(plan), "t.")])


def _totals(kept: Scratch, table: str, columns: list[str]) -> list[str]:
    kinds = dict(kept.session.sql(f"SELECT * FROM {table}").dtypes)
    return [f"CAST(sum({quote(c)}) AS {kinds[c]}) AS {quote(c)}" for c in columns]


def _group(keys: list[str]) -> str:
    return f" GROUP BY {listed(keys)}" if keys else ""
