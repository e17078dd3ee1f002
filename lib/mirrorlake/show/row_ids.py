"""Which id a row has in which version, and which version changed it last, as a picture."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import functions as F

from mirrorlake.delta.commits import CommitLog
from mirrorlake.rows.ids import ID_NAMES, read_with_ids
from mirrorlake.show.plots import Chart, plot_matrix
from mirrorlake.spark.sql import quote
from mirrorlake.table import Table

_MOST = 200


def plot_row_ids(table: Table, *, name: str, first: int = 1) -> Chart:
    """A picture of a small table's ids: a line a row, a column a version.

    Args:
        table: which table; all versions from the first on have ids.
        name: the column that names the rows, unique in each version.
        first: the version to begin with.
    """
    newest = table.snapshot().version
    log = CommitLog(table.storage, table.name.table_path)
    parts = [
        read_with_ids(table, version=version).select(
            F.lit(version).alias("at"), F.col(quote(name)).cast("string").alias("row"), *ID_NAMES
        )
        for version in range(first, newest + 1)
    ]
    ordered = reduce(lambda a, b: a.unionAll(b), parts).orderBy("at", "_row_id").limit(_MOST)
    texts: dict[str, list[str]] = {}
    for row in ordered.collect():
        line = texts.setdefault(row["row"], [""] * len(parts))
        line[row["at"] - first] = f"{row[ID_NAMES[0]]} · v{row[ID_NAMES[1]]}"
    labels = [
        f"{commit.version}\n{commit.operation.lower()}"
        for commit in reversed(log.read(newest, len(parts)).commits)
    ]
    title = f"Rows of {table.name}: id · version that changed it last"
    return plot_matrix(labels, texts, title=title, x_label="version")
