"""Deleting rows of a table of one's own: counted first, deleted when asked."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlake.errors import QueryError
from mirrorlake.history.write import check_own
from mirrorlake.names import TableName
from mirrorlake.spark.messages import spark_message
from mirrorlake.table import Table


@dataclass(frozen=True)
class Deletion:
    """What a deletion took, or would take.

    Attributes:
        rows: how many rows.
        version: the table's newest version afterwards.
        applied: whether it is done.
    """

    table: TableName
    rows: int
    version: int
    applied: bool

    def __repr__(self) -> str:
        return f"{self.table}: {'deleted' if self.applied else 'would delete'} {self.rows} rows"


def delete_rows(table: Table, where: str, *, apply: bool) -> Deletion:
    """Deletes the rows of a predicate; arguments and errors are those of `LakeTable.delete`."""
    check_own(table.storage, table.name)
    try:
        rows = table.rows().where(where).count()
        if apply:
            (done,) = table.spark.sql(f"DELETE FROM {table.sql_name} WHERE {where}").collect()
            rows = done[0]
    except Exception as error:
        raise QueryError(spark_message(error)) from error
    return Deletion(table.name, rows, table.snapshot().version, apply)
