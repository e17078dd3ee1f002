"""A query over a lake: its names become this lake's tables, feeds, versions or frames.

Tables are read by path, so two lakes in one session never meet.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from mirrorlake.catalog import Catalog
from mirrorlake.errors import MirrorlakeError, QueryError, UsageError
from mirrorlake.feed.sql import resolve_feeds
from mirrorlake.history.frames import Frames
from mirrorlake.history.sql import Relation, When, apply_edits, parse_statement, resolve_tables
from mirrorlake.history.versions import check_when, is_enforced
from mirrorlake.names import TableName
from mirrorlake.rows.views.definition import hiding_columns
from mirrorlake.spark.messages import spark_message
from mirrorlake.storage import Storage
from mirrorlake.table import Table


def query_lake(
    spark: SparkSession, storage: Storage, query: str, *, frame: str | None = None
) -> DataFrame:
    """Runs a query; names, errors and `frame` are those of `Lake.sql`."""
    catalog = Catalog(storage)

    def open_table(name: TableName) -> Table | None:
        found = catalog.find(name)
        return None if found is None else Table(spark, storage, found)

    def find(name: TableName) -> Relation | None:
        found = catalog.find(name)
        if frame is not None:
            path = Frames(storage, lambda: spark).table_path(frame, name)
            return Relation(path, hiding_columns(storage, found), partial(_refuse, name))
        if found is None:
            return None
        path = storage.path(found.table_path)
        return Relation(
            path, hiding_columns(storage, found), partial(_check, spark, storage, found)
        )

    try:
        statement = parse_statement(query)
        feeds = resolve_feeds(statement, open_table)
        tables = resolve_tables(statement, find, partial(_evaluate, spark))
        return spark.sql(apply_edits(statement.text, [*feeds, *tables]))
    except MirrorlakeError:
        raise
    except Exception as error:
        raise QueryError(spark_message(error)) from error


def _refuse(name: TableName, when: When) -> None:
    raise UsageError(f"A frame has {name} at one version only: {when} can't be asked.")


def _check(spark: SparkSession, storage: Storage, name: TableName, when: When) -> None:
    check_when(storage, name, when, enforced=is_enforced(spark))


def _evaluate(spark: SparkSession, expression: str) -> datetime | None:
    row = spark.sql(f"SELECT unix_micros(CAST({expression} AS TIMESTAMP))").first()
    if row is None or row[0] is None:
        return None
    return datetime.fromtimestamp(row[0] / 1e6, timezone.utc)
