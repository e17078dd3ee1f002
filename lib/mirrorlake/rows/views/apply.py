"""Brings a view's table up to date by what changed: one commit, by the rule of the view's shape."""

from __future__ import annotations

from functools import partial

from mirrorlake.rows.views.calls import HIDDEN
from mirrorlake.rows.views.commit import Scratch, Target, append, exchange, merge
from mirrorlake.rows.views.contents import (
    arguments_of,
    count_column,
    hashes,
    keys_of,
    selected_groups,
    shown_of,
    state_columns,
    summand,
    with_ids,
)
from mirrorlake.rows.views.delta import Delta
from mirrorlake.rows.views.plan import ARGUMENT, CHECK, HASH, ID, ROWS, SUM, listed, named, same
from mirrorlake.rows.views.shape import Method
from mirrorlake.rows.views.sources import SIGN
from mirrorlake.spark.sql import delta_name, quote

_GONE, _COPY, _COUNT, _OLD, _PAIR = (
    quote(f"{HIDDEN}{name}") for name in ("gone", "copy", "times", "old", "pair")
)
_AFFECTED = quote(f"{HIDDEN}affected")
_HASHED = " AND ".join(f"t.{quote(name)} = g.{quote(name)}" for name in (HASH, CHECK))


def apply_delta(delta: Delta, kept: Scratch, target: Target) -> None:
    """Puts what changed into the view's table, in one commit."""
    method = delta.plan.shape.method
    if method is Method.ROWS:
        _change_rows(delta, kept, target)
    elif method is Method.SUMS:
        _merge_sums(delta, kept, target)
    elif method is Method.GROUPS:
        _merge_groups(delta, kept, target)
    else:
        _merge_partitions(delta, kept, target)


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
    if not exchange(session, partial(_places, gone), rows, fresh, target):
        _merge_rows(gone, came, columns, kept, target)


def _places(gone: str, table: str) -> str:
    """As many places in the table of each row as copies of it go."""
    copies = f"PARTITION BY {listed([HASH, CHECK], 'g.')} ORDER BY t._metadata.row_index"
    found = (
        f"SELECT t._metadata.file_path, t._metadata.row_index, g.{_COUNT},"
        f" row_number() OVER ({copies}) AS {_COPY} FROM {table} t JOIN {gone} g ON {_HASHED}"
    )
    return f"SELECT file_path, row_index FROM ({found}) WHERE {_COPY} <= -{_COUNT}"


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
    updated = f"WHEN MATCHED AND s.{_GONE} THEN DELETE {_update(columns)}"
    merge(
        session,
        f"SELECT * FROM {kept.broadcast(paired, count)}",
        f"t.{quote(ID)} = s.{_OLD}",
        f"{updated} {_insert([*columns, ID]) if fresh else ''}",
        target,
    )


def _merge_sums(delta: Delta, kept: Scratch, target: Target) -> None:
    """Groups are added up anew from what the table keeps of them and what changed."""
    plan, session = delta.plan, kept.session
    keys, columns = keys_of(plan), state_columns(plan)
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
    group = f" GROUP BY {listed(keys)}" if keys else ""
    moved = " OR ".join(f"{quote(column)} <> 0" for column in columns)
    changed = (
        f"SELECT * FROM (SELECT {', '.join([*map(quote, keys), *sums])}"
        f" FROM ({delta.rows(arguments_of(plan))}){group}) WHERE {moved}"
    )
    view = kept.keep(session.sql(changed))
    table = delta_name(target.path)
    kinds = dict(session.sql(f"SELECT * FROM {table}").dtypes)
    own = [f"t.{quote(c)} AS {quote(k)}" for c, k in zip(plan.key_columns, keys, strict=True)]
    same_keys = " AND ".join(
        f"t.{quote(column)} <=> d.{quote(key)}"
        for column, key in zip(plan.key_columns, keys, strict=True)
    )
    there = (
        f"SELECT {', '.join([*own, listed(columns, 't.')])} FROM {table} t"
        f" WHERE EXISTS (SELECT 1 FROM {view} d WHERE {same_keys or 'true'})"
    )
    totals = [f"CAST(sum({quote(c)}) AS {kinds[c]}) AS {quote(c)}" for c in columns]
    state = (
        f"SELECT {', '.join([*map(quote, keys), *totals])} FROM"
        f" ({there} UNION ALL SELECT {listed([*keys, *columns])} FROM {view}){group}"
    )
    written = [*plan.names, *(column for column, _ in plan.hidden_keys), *columns]
    empty = f"s.{quote(ROWS)} = 0"
    deleted = f"WHEN MATCHED AND {empty} THEN DELETE " if keys else ""
    merge(
        session,
        shown_of(plan, state)
        if keys
        else f"SELECT * FROM ({shown_of(plan, state)}) WHERE EXISTS (SELECT 1 FROM {view})",
        same(plan.key_columns, "t", "s"),
        f"{deleted}{_update(written)} {_insert(written, f'NOT {empty}')}",
        target,
    )


def _merge_groups(delta: Delta, kept: Scratch, target: Target) -> None:
    """Groups that a changed row is or was in are computed anew; some come, some go."""
    plan = delta.plan
    view = _affected(delta, kept)
    written = [*plan.names, *(column for column, _ in plan.hidden_keys)]
    rest = [column for column in written if column not in plan.key_columns]
    anew = selected_groups(plan, plan.newest(), _is_affected(plan.shape.keys, view))
    pairs = list(zip(plan.key_columns, keys_of(plan), strict=True))
    keys = ", ".join(f"k.{quote(key)} AS {quote(column)}" for column, key in pairs)
    on = " AND ".join(f"k.{quote(key)} <=> n.{quote(column)}" for column, key in pairs)
    values = f", {listed(rest, 'n.')}" if rest else ""
    source = (
        f"SELECT {keys}{values}, n.{_GONE} IS NULL AS {_GONE} FROM {view} k LEFT JOIN"
        f" (SELECT *, false AS {_GONE} FROM ({anew})) n ON {on}"
    )
    differs = f"NOT ({same(rest, 't', 's')})"
    merge(
        kept.session,
        source,
        same(plan.key_columns, "t", "s"),
        f"WHEN MATCHED AND s.{_GONE} THEN DELETE {_update(written, differs) if rest else ''}"
        f" {_insert(written, f'NOT s.{_GONE}')}",
        target,
    )


def _merge_partitions(delta: Delta, kept: Scratch, target: Target) -> None:
    """Partitions that a changed row is or was in are replaced."""
    plan = delta.plan
    view = _affected(delta, kept)
    written = [*plan.names, *(column for column, _ in plan.hidden_keys)]
    anew = selected_groups(plan, plan.newest(), _is_affected(plan.shape.keys, view))
    by_column = dict(zip(plan.key_columns, keys_of(plan), strict=True))
    keys = ", ".join(
        f"{quote(by_column[c])} AS {quote(c)}" if c in by_column else f"NULL AS {quote(c)}"
        for c in written
    )
    source = (
        f"SELECT {listed(written)}, false AS {_GONE} FROM ({anew})"
        f" UNION ALL SELECT {keys}, true AS {_GONE} FROM {view}"
    )
    merge(
        kept.session,
        source,
        f"s.{_GONE} AND {same(plan.key_columns, 't', 's')}",
        f"WHEN MATCHED THEN DELETE {_insert(written, f'NOT s.{_GONE}')}",
        target,
    )


def _affected(delta: Delta, kept: Scratch) -> str:
    """The keys of all rows that came or went."""
    keys = named(delta.plan.shape.keys, keys_of(delta.plan))
    found = f"SELECT DISTINCT {listed(keys_of(delta.plan))} FROM ({delta.rows(keys)})"
    view = kept.keep(kept.session.sql(found))
    kept.measure(view)
    return view


def _is_affected(keys: tuple[str, ...], view: str) -> str:
    pairs = " AND ".join(
        f"{_AFFECTED}.{quote(name)} <=> ({key})"
        for name, key in zip((f"{HIDDEN}key_{n}" for n in range(len(keys))), keys, strict=True)
    )
    return f"EXISTS (SELECT 1 FROM {view} AS {_AFFECTED} WHERE {pairs})"


def _update(columns: list[str], condition: str = "") -> str:
    when = f" AND {condition}" if condition else ""
    sets = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in columns)
    return f"WHEN MATCHED{when} THEN UPDATE SET {sets}"


def _insert(columns: list[str], condition: str = "") -> str:
    when = f" AND {condition}" if condition else ""
    return (
        f"WHEN NOT MATCHED{when} THEN INSERT ({listed(columns)}) VALUES ({listed(columns, 's.')})"
    )
