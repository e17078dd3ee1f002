"""Reads rows together with what tracking knows of each: its id, and the version that changed it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import UsageError
from mirrorlake.history.versions import check_version, is_enforced
from mirrorlake.rows.tracking import check_tracked
from mirrorlake.table import Table

ID_NAMES = ("_row_id", "_row_commit_version")


def read_with_ids(
    table: Table, *, version: int | None = None, names: Sequence[str] = ID_NAMES
) -> DataFrame:
    """The rows of a version, each with its id and the version that inserted or updated it last.

    Args:
        table: the table.
        version: which; by default the newest.
        names: what the two columns are called, if the table has such columns itself.

    Raises:
        UsageError: the version's rows have no ids, or a column has one of the names.
        VersionError: that version can't be read.
    """
    if version is not None:
        check_version(table.storage, table.name, version, enforced=is_enforced(table.spark))
    snapshot = read_snapshot(table.storage, table.name.table_path, version) or table.snapshot()
    check_tracked(table, snapshot)
    taken = {name.lower() for name in snapshot.schema}
    if clash := [name for name in names if name.lower() in taken]:
        raise UsageError(
            f"The table {table.name} has a column {clash[0]} itself.",
            hint="give other names: names=('id_of_row', 'version_of_row').",
            column=clash[0],
        )
    reader = table.spark.read.format("delta")
    rows = (reader if version is None else reader.option("versionAsOf", version)).load(table.path)
    hidden = rows.metadataColumn("_metadata")
    return rows.withColumns(
        {
            names[0]: hidden.getField("row_id"),
            names[1]: hidden.getField("row_commit_version"),
        }
    )
