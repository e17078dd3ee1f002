"""A refresh by SQL alone: a MERGE, under Spark Connect and without deletion vectors."""

from __future__ import annotations

from pyspark.sql import SparkSession

from mirrorlake.delta.create import committing
from mirrorlake.rows.views.commit import Target, conflicts
from mirrorlake.rows.views.plan import listed
from mirrorlake.spark.sql import delta_name, quote


def merge(session: SparkSession, source: str, on: str, clauses: str, target: Target) -> None:
    """Merges rows into the view's table.

    Args:
        session: the refresh's own: with these settings it skips every further write.
        source: a query; `s` in the condition and the clauses, while the table is `t`.
        on: the condition.
        clauses: what happens to rows that match and to those that don't.
        target: the table and the commit.
    """
    with conflicts(), committing(session, target.note, target.app_id, target.number):
        session.sql(f"MERGE INTO {delta_name(target.path)} t USING ({source}) s ON {on} {clauses}")


def update_clause(columns: list[str], condition: str = "") -> str:
    """What a merge does with rows that match."""
    when = f" AND {condition}" if condition else ""
    sets = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in columns)
    return f"WHEN MATCHED{when} THEN UPDATE SET {sets}"


def insert_clause(columns: list[str], condition: str = "") -> str:
    """What a merge does with rows that don't."""
    when = f" AND {condition}" if condition else ""
    return (
        f"WHEN NOT MATCHED{when} THEN INSERT ({listed(columns)}) VALUES ({listed(columns, 's.')})"
    )
