"""The changes of a range with the ids of their rows, which a change feed leaves out.

They are taken from the files that each commit brought and took away: a row that both have, under
two commit versions, was updated. So they need no feed, follow the changes and not the table, and
say which old row became which new one. Before rows had ids the feed itself is read, without any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mirrorlake.delta.actions import DataFile, FileChange, FileHistory, Places, file_changes
from mirrorlake.delta.commits import Timeline, read_versions
from mirrorlake.delta.snapshot import ROW_ID_COLUMN, Snapshot
from mirrorlake.delta.table import Table
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed.api import Changes
from mirrorlake.feed.changes import End, Outside, resolve_span
from mirrorlake.feed.schema import RESERVED
from mirrorlake.rows.file_rows import FILE, ROW, ROW_ID, ROW_VERSION, read_file_rows
from mirrorlake.rows.row_id_validity import read_row_id_validity
from mirrorlake.rows.tracking import ID_NAMES
from mirrorlake.storage import Storage

_THREADS = 16
_VERSION, _SIDE = "__mirrorlake_version", "__mirrorlake_side"


def read_row_changes(
    table: Table, start: End, end: End | None = None, *, beyond_latest: Outside | None = None
) -> DataFrame:
    """The changes of a range of versions, each with its row's id.

    Args:
        table: the table.
        start: the first version or timestamp, as `Changes.read` takes it.
        end: the last; by default the newest.
        beyond_latest: as `Changes.read` takes it.

    Returns:
        What `Changes.read` returns, then `_row_id` and `_row_commit_version`: NULL in versions
        whose rows had no ids, or other ones than now. Rows that a RESTORE or a rewrite leaves as
        they are do not show.

    Raises:
        FeedError: files of the range are gone, or the feed is needed and can't be read.
        UsageError: the ends make no sense.
    """
    timeline = read_versions(table.storage, table.name.table_path)
    span = resolve_span(table.spark, timeline, start, end, beyond_latest)
    trust = read_row_id_validity(table)
    numbered, readable = trust.numbered_from, trust.readable_from
    first = max(span.start, span.end + 1 if numbered is None else numbered + (numbered > 0))
    parts = []
    if span.start < first or span.is_empty:
        last = min(span.end, first - 1)
        plain = Changes(table).read(span.start, last, beyond_latest="clip")
        parts.append(plain.selectExpr("*", *(f"CAST(NULL AS BIGINT) AS {n}" for n in ID_NAMES)))
    if first <= span.end:
        if first <= readable and readable > trust.first:
            raise FeedError(
                f"A column of {table.name} changed its type in version {readable}: the files that"
                " it took away don't fit it.",
                hint=f"start after version {readable}.",
            )
        snapshot = table.snapshot()
        path = table.name.table_path
        uses = list(file_changes(table.storage, path, first, span.end, FileHistory()))
        if gone := missing_versions(table, uses):
            raise FeedError(
                f"Files that version {max(gone)} of {table.name} removed are gone: a VACUUM has"
                " deleted them.",
                hint=f"start after version {max(gone)}.",
            )
        parts.append(as_changes(table, snapshot, timeline, uses))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)


def missing_versions(table: Table, uses: Iterable[FileChange]) -> list[int]:
    """The versions that can't be read, because a file that they bring or take is gone."""
    wanted = {name: use.version for use in uses for name in use.file.names}
    names = list(wanted)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(Places(table.storage, table.name.table_path).exists, names)
        gone = {name for name, there in zip(names, found, strict=True) if not there}
    return sorted({use.version for use in uses if gone & set(use.file.names)})


def as_changes(
    table: Table,
    snapshot: Snapshot,
    timeline: Timeline,
    uses: Sequence[FileChange],
    *,
    ids: Sequence[int] | None = None,
    lists: Storage | None = None,
) -> DataFrame:
    """What commits did, from the files that they brought and took.

    Args:
        table: the table.
        snapshot: the version whose columns are read.
        timeline: when its versions were made.
        uses: the files.
        ids: only these rows.
        lists: as for `read_file_rows`.
    """
    if ROW_ID_COLUMN not in snapshot.properties:
        raise UsageError(f"The rows of {table.name} never had ids.", hint="enable row tracking.")
    files: dict[tuple[str, str], DataFile] = {use.file.key: use.file for use in uses}
    numbers = {key: number for number, key in enumerate(files)}
    rows = read_file_rows(table, snapshot, list(files.values()), ids, lists=lists)
    places = [
        (numbers[use.file.key], use.version, use.side, timeline.time(use.version)) for use in uses
    ]
    schema = f"{FILE} int, {_VERSION} bigint, {_SIDE} int, at bigint"
    used = F.broadcast(table.spark.createDataFrame(places, schema))
    state = F.struct(F.col(ROW), F.col(ROW_VERSION))
    found = (
        rows.join(used, FILE)
        .groupBy(_VERSION, ROW_ID, "at")
        .agg(
            F.max(F.when(F.col(_SIDE) < 0, 1)).alias("was"),
            F.max(F.when(F.col(_SIDE) > 0, 1)).alias("is"),
            F.min_by(state, _SIDE).alias("old"),
            F.max_by(state, _SIDE).alias("new"),
        )
    )
    both = F.col("was").isNotNull() & F.col("is").isNotNull()
    same = both & F.col(f"old.{ROW_VERSION}").eqNullSafe(F.col(f"new.{ROW_VERSION}"))

    def change(kind: str, side: str) -> Column:
        return F.struct(F.lit(kind).alias(RESERVED[0]), F.col(side).alias("state"))

    changes = (
        F.when(both, F.array(change("update_preimage", "old"), change("update_postimage", "new")))
        .when(F.col("is").isNotNull(), F.array(change("insert", "new")))
        .otherwise(F.array(change("delete", "old")))
    )
    each = found.where(~same).select(_VERSION, ROW_ID, "at", F.explode(changes).alias("change"))
    return each.select(
        f"change.state.{ROW}.*",
        f"change.{RESERVED[0]}",
        F.col(_VERSION).alias(RESERVED[1]),
        F.timestamp_millis("at").alias(RESERVED[2]),
        F.col(ROW_ID).alias(ID_NAMES[0]),
        F.col(f"change.state.{ROW_VERSION}").alias(ID_NAMES[1]),
    )
