"""A table with all its verbs, one line each; the packages behind them do the work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from mirrorlake.errors import UsageError
from mirrorlake.spark.sql import literal
from mirrorlake.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrorlake.layout.analysis import Analysis
    from mirrorlake.layout.vorder import VOrderReport


class LakeTable(Table):
    """One Delta table of a lake, as `Lake.table` hands it out."""

    def as_of(
        self, *, version: int | None = None, timestamp: str | datetime | None = None
    ) -> DataFrame:
        """The rows as they were.

        Args:
            version: the table's version, from 0.
            timestamp: a moment, as text that Spark can cast, or a datetime.

        Raises:
            UsageError: neither or both are given.
        """
        if (version is None) == (timestamp is None):
            raise UsageError("Give either a version or a timestamp.")
        if version is not None:
            return self.spark.sql(f"SELECT * FROM {self.sql_name} VERSION AS OF {int(version)}")
        moment = timestamp.isoformat() if isinstance(timestamp, datetime) else str(timestamp)
        at = literal(moment)
        return self.spark.sql(f"SELECT * FROM {self.sql_name} TIMESTAMP AS OF {at}")

    def history(self) -> DataFrame:
        """One row a version, newest first, as `DESCRIBE HISTORY` has them."""
        return self.spark.sql(f"DESCRIBE HISTORY {self.sql_name}")

    def analyze(
        self, *, version: int | None = None, scan: bool = True, exact: bool = False
    ) -> Analysis:
        """What a version's files are like; see `layout.analysis.analyze_table`."""
        from mirrorlake.layout.analysis import analyze_table

        return analyze_table(
            self.spark, self.storage, self.name, version=version, scan=scan, exact=exact
        )

    def vorder(
        self, *, apply: bool = False, sort_by: Sequence[str] = (), again: bool = False
    ) -> VOrderReport:
        """Orders the rows within files; a dry run unless told. See `layout.vorder.vorder_table`."""
        from mirrorlake.layout.vorder import vorder_table

        return vorder_table(
            self.spark, self.storage, self.name, apply=apply, sort_by=sort_by, again=again
        )
