"""Groups and partitions that a changed row is or was in: they are computed again."""

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
from mirrorlake.rows.views.plan import Plan, listed, named, same
from mirrorlake.rows.views.query import HIDDEN
from mirrorlake.rows.views.view_sql import selected_groups
from mirrorlake.spark.sql import quote

_AFFECTED, _GONE, _FOUND = (quote(f"{HIDDEN}{name}") for name in ("affected", "gone", "found"))
_FILE, _ROW = quote(FILE), quote(ROW)


def change_groups(delta: Delta, kept: Scratch, target: Target) -> None:
    """Computes groups again; some come, some go, and some are what they were."""
    plan = delta.plan
    view, count = _affected(delta, kept)
    query = selected_groups(plan, plan.newest(), _is_affected(plan, view))

    def find(table: str) -> RowReplacement:
        return _swap(plan, kept, _there(plan, kept, view, count, table), query)

    if not replace_rows(kept, find, target):
        _merge_groups(plan, kept, view, query, target)


def change_partitions(delta: Delta, kept: Scratch, target: Target) -> None:
    """Replaces partitions."""
    plan = delta.plan
    view, count = _affected(delta, kept)
    query = selected_groups(plan, plan.newest(), _is_affected(plan, view))

    def find(table: str) -> RowReplacement:
        there = kept.keep(kept.session.sql(_there(plan, kept, view, count, table)))
        again = kept.keep(kept.session.sql(query))
        (gone,), (come,) = kept.measure(there), kept.measure(again)
        places, rows = listed([FILE, ROW]), listed(plan.written)
        return RowReplacement(
            f"SELECT {places} FROM {there}", f"SELECT {rows} FROM {again}", gone, come
        )

    if not replace_rows(kept, find, target):
        _merge_partitions(plan, kept, view, query, target)


def _there(plan: Plan, kept: Scratch, view: str, count: int, table: str) -> str:
    """The rows that the table has of affected groups."""
    on = plan.same_keys("t", "k")
    return f"SELECT t.* FROM {table} t JOIN {kept.broadcast(view, count)} k ON {on}"


def _swap(plan: Plan, kept: Scratch, there: str, query: str) -> RowReplacement:
    """Groups that are not what they were."""
    written, rest = plan.written, _rest(plan)
    differs = f"NOT ({same(rest, 't', 'n')})" if rest else "false"
    pairs = (
        f"SELECT {listed([FILE, ROW], 't.')}, n.{_FOUND}, {listed(written, 'n.')}"
        f" FROM (SELECT *, true AS {_FOUND} FROM ({query})) n FULL JOIN ({there}) t"
        f" ON {same(plan.key_columns, 't', 'n')}"
        f" WHERE t.{_ROW} IS NULL OR n.{_FOUND} IS NULL OR {differs}"
    )
    view = kept.keep(kept.session.sql(pairs))
    both = f"count_if({_ROW} IS NOT NULL AND {_FOUND})"
    _, gone, come, updated = kept.measure(view, f"count({_ROW})", f"count({_FOUND})", both)
    return RowReplacement(
        f"SELECT {_FILE}, {_ROW} FROM {view} WHERE {_ROW} IS NOT NULL",
        f"SELECT {listed(written)} FROM {view} WHERE {_FOUND}",
        gone,
        come,
        updated,
    )


def _merge_groups(plan: Plan, kept: Scratch, view: str, query: str, target: Target) -> None:
    """The same by SQL alone."""
    written, rest = plan.written, _rest(plan)
    pairs = zip(plan.key_columns, plan.keys, strict=True)
    keys = ", ".join(f"k.{quote(key)} AS {quote(column)}" for column, key in pairs)
    values = f", {listed(rest, 'n.')}" if rest else ""
    source = (
        f"SELECT {keys}{values}, n.{_GONE} IS NULL AS {_GONE} FROM {view} k LEFT JOIN"
        f" (SELECT *, false AS {_GONE} FROM ({query})) n ON {plan.same_keys('n', 'k')}"
    )
    differs = f"NOT ({same(rest, 't', 's')})"
    merge(
        kept.session,
        source,
        same(plan.key_columns, "t", "s"),
        f"WHEN MATCHED AND s.{_GONE} THEN DELETE"
        f" {update_clause(written, differs) if rest else ''}"
        f" {insert_clause(written, f'NOT s.{_GONE}')}",
        target,
    )


def _merge_partitions(plan: Plan, kept: Scratch, view: str, query: str, target: Target) -> None:
    """The same by SQL alone."""
    written = plan.written
    by_column = dict(zip(plan.key_columns, plan.keys, strict=True))
    keys = ", ".join(
        f"{quote(by_column[c])} AS {quote(c)}" if c in by_column else f"NULL AS {quote(c)}"
        for c in written
    )
    source = (
        f"SELECT {listed(written)}, false AS {_GONE} FROM ({query})"
        f" UNION ALL SELECT {keys}, true AS {_GONE} FROM {view}"
    )
    merge(
        kept.session,
        source,
        f"s.{_GONE} AND {same(plan.key_columns, 't', 's')}",
        f"WHEN MATCHED THEN DELETE {insert_clause(written, f'NOT s.{_GONE}')}",
        target,
    )


def _rest(plan: Plan) -> list[str]:
    return [column for column in plan.written if column not in plan.key_columns]


def _affected(delta: Delta, kept: Scratch) -> tuple[str, int]:
    """The keys of all rows that came or went, and how many."""
    keys = named(delta.plan.shape.keys, delta.plan.keys)
    found = f"SELECT DISTINCT {listed(delta.plan.keys)} FROM ({delta.rows(keys)})"
    view = kept.keep(kept.session.sql(found))
    (count,) = kept.measure(view)
    return view, count


def _is_affected(plan: Plan, view: str) -> str:
    pairs = " AND ".join(
        f"{_AFFECTED}.{quote(name)} <=> ({key})"
        for name, key in zip(plan.keys, plan.shape.keys, strict=True)
    )
    return f"EXISTS (SELECT 1 FROM {view} AS {_AFFECTED} WHERE {pairs})"
