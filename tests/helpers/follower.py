"""A streaming consumer of a table's change feed, with the table's state by its changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake import Lake


class Follower:
    """A consumer of the change feed of a table with the key `id`, from version 0 on.

    Args:
        lake: the lake.
        table: the table's name.
        column: the column whose values are kept.
        checkpoint: the folder of the stream's checkpoint.
    """

    def __init__(self, lake: Lake, table: str, column: str, checkpoint: Path) -> None:
        self.seen: dict[int, Any] = {}
        self.rows = 0
        self._column = column
        stream = lake.spark.readStream.option("readChangeFeed", "true").option("startingVersion", 0)
        self._query = (
            stream.format("delta")
            .load(lake.table(table).path)
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def _take(self, batch: DataFrame, _number: int) -> None:
        rows: list[Any] = batch.collect()
        self.rows += len(rows)
        # A key can be deleted and inserted in one version: apply the delete first.
        rows.sort(key=lambda row: (row["_commit_version"], row["_change_type"] != "delete"))
        for row in rows:
            if row["_change_type"] == "delete":
                self.seen.pop(row["id"], None)
            elif row["_change_type"] in ("insert", "update_postimage"):
                self.seen[row["id"]] = row[self._column]

    def finish(self) -> None:
        """Process all available changes, and stop the stream."""
        self._query.processAllAvailable()
        self._query.stop()
