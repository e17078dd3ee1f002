"""Show, save and serialize the rows of a Spark DataFrame."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import NumericType

from mirrorlake.errors import UsageError
from mirrorlake.names import split_names
from mirrorlake.results import TextTable, optional_figure
from mirrorlake.spark.older import to_arrow
from mirrorlake.spark.sql import query_errors
from mirrorlake.storage.paths import URI, lake_path

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


class ShownRows(TextTable):
    """The first rows of a DataFrame."""

    @optional_figure
    def plot(self, *, title: str = "") -> Chart | None:
        """Draw the rows: the first column names them, each further column of numbers is drawn.

        One column of numbers becomes bars; several become points, which lines join unless the rows
        have texts as names. A first column of numbers makes lines, too. NULL leaves a gap. At most
        40 rows are drawn; the title says so.

        Args:
            title: the chart's title; by default the names of the columns.

        Returns:
            None, after a warning, for a single row, without a column of numbers besides the first,
            or if two rows have the same name.
        """
        from mirrorlake.show.plots import plot_rows

        return plot_rows(self, title=title)


@query_errors()
def show_rows(
    df: DataFrame, *, order_by: str | Sequence[str | Column] = (), limit: int = 10
) -> ShownRows:
    """Return the first rows of a Spark DataFrame as a table; no other rows are fetched.

    Args:
        df: any DataFrame; timestamps are shown in the session's time zone.
        order_by: columns, or their names with or without ` DESC`: a list, or one text such as
            `"day DESC, id"`. By default, the order of the DataFrame.
        limit: most rows to show.

    Raises:
        UsageError: the limit is less than 0.
        QueryError: the query failed.

    Example:
        >>> show_rows(lake.sql("SELECT * FROM stock"), order_by=["id DESC"])  # doctest: +SKIP
    """
    if limit < 0:
        raise UsageError(f"{limit} rows can't be shown.", hint="set limit to 0 or more.")
    wanted = split_names(order_by) if isinstance(order_by, str) else order_by
    order = [
        sf.desc(by.removesuffix(" DESC")) if isinstance(by, str) and by.endswith(" DESC") else by
        for by in wanted
    ]
    first = (df.orderBy(*order) if order else df).limit(limit + 1)
    names = first.columns
    # By position: columns may have the same name. Python would convert timestamps to its time zone.
    first = first.toDF(*[f"c{number}" for number in range(len(names))])
    shown = [
        sf.col(name).cast("string")
        if "timestamp" in kind and kind != "timestamp_ntz"
        else sf.col(name)
        for name, kind in first.dtypes
    ]
    rows = tuple(tuple(row) for row in first.select(*shown).collect())
    kinds = [field.dataType for field in first.schema]
    numeric = frozenset(i for i, kind in enumerate(kinds) if isinstance(kind, NumericType))
    return ShownRows(tuple(names), rows[:limit], more=len(rows) > limit, numeric=numeric)


@query_errors()
def save_rows(df: DataFrame, path: str) -> int:
    """Write the rows of a DataFrame to one Parquet file, and return their number.

    All rows are held in the memory of this process.

    Args:
        df: any DataFrame without duplicate column names.
        path: the file, which must not exist. A relative path starts from `MIRRORLAKE_HOME`, or
            from the project.

    Raises:
        UsageError: the path is a URI, the file exists, its folder can't be written to, or columns
            have the same name.
        QueryError: the query failed.

    Example:
        >>> save_rows(lake.sql("SELECT * FROM stock"), "stock.parquet")  # doctest: +SKIP
        3
    """
    if URI.match(path):
        raise UsageError(
            f"{path} is a URI, and rows are saved to local files only.",
            hint="pass a path, and copy the file.",
        )
    repeated = [name for name, times in Counter(df.columns).items() if times > 1]
    if repeated:
        raise UsageError(
            f"The rows have several columns named {repeated[0]}.",
            hint="give each column its own name with AS.",
        )
    target = Path(lake_path(path))
    if target.exists():
        raise UsageError(f"{target} already exists.", hint="name another file, or delete it.")
    rows = to_arrow(df)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, target)
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror}.") from error
    return int(rows.num_rows)


def rows_document(frame: DataFrame) -> dict[str, Any]:
    """Return all rows as `{"columns": [names], "rows": [{column: value}]}`."""
    table = to_arrow(frame)
    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]
    return {"columns": table.column_names, "rows": rows}


def plain(value: Any) -> Any:
    """Return a value as a type of JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc) if value.tzinfo else value
        return moment.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
