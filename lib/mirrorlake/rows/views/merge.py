"""A refresh by SQL alone: a MERGE, under Spark Connect and without deletion vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlake.rows.views.commit import Target, conflicts
from mirrorlake.rows.views.plan import listed
from mirrorlake.spark.sql import delta_name, quote
from mirrorlake.spark.stamp import USER_METADATA, marked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"


def merge(session: SparkSession, source: str, on: str, clauses: str, target: Target) -> None:
    """Merges rows into the view's table.

    Args:
        session: the refresh's own: with these settings it skips every further write.
        source: a query; `s` in the condition and the clauses, while the table is `t`.
        on: the condition.
        clauses: what happens to rows that match and to those that don't.
        target: the table and the commit.
    """
    confs = {
        _APP_ID: target.app_id,
        _TXN_VERSION: str(target.number),
        USER_METADATA: marked(target.note),
    }
    for name, value in confs.items():
        session.conf.set(name, value)
    try:
        with conflicts():
            session.sql(
                f"MERGE INTO {delta_name(target.path)} t USING ({source}) s ON {on} {clauses}"
            )
    finally:
        for name in confs:
            session.conf.unset(name)


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
