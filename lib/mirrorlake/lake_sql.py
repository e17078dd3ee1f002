"""A query over a lake: its names become this lake's tables, feeds, versions or frames."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.errors import UsageError
from mirrorlake.feed.sql import resolve_feeds
from mirrorlake.history.sql import run_query
from mirrorlake.history.versions import check_when, is_enforced
from mirrorlake.names import TableName
from mirrorlake.rows.views.definition import hiding_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.lake import Lake
    from mirrorlake.lake_table import LakeTable


def query_lake(lake: Lake, query: str, *, frame: str | None = None) -> DataFrame:
    """Runs a query; names, errors and `frame` are those of `Lake.sql`."""

    def opened(name: TableName) -> LakeTable | None:
        found = lake.find(name)
        return None if found is None else lake.table(found)

    def path(name: TableName) -> str | None:
        found = lake.find(name)
        return None if found is None else lake.storage.path(found.table_path)

    def framed(name: TableName) -> str | None:
        return lake.frames.table_path(frame or "", name)

    def check(name: TableName, when: int | datetime) -> None:
        if frame is not None:
            raise UsageError(f"A frame has {name} at one version only: {when} can't be asked.")
        found = lake.find(name) or name
        check_when(lake.storage, found, when, enforced=is_enforced(lake.spark))

    def columns(name: TableName) -> list[str] | None:
        return hiding_columns(lake.storage, lake.find(name))

    plain = resolve_feeds(query, opened)
    return run_query(lake.spark, plain, path if frame is None else framed, check, columns)
