"""Plot a table over its versions: its data files, and the ids of its rows."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import functions as F

from mirrorlake.delta.actions import file_actions
from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.table import TableHandle
from mirrorlake.rows.changes import ID_NAMES, read_with_ids
from mirrorlake.show.chart import Chart
from mirrorlake.show.plots import plot_matrix, plot_presence
from mirrorlake.spark.sql import quote

_MOST_ROWS = 200


def plot_files(table: TableHandle, *, first: int = 0) -> Chart:
    """Draw which data files each version has, and whether some of their rows are deleted.

    Args:
        table: the table; all commits since `first` are read.
        first: the first version to draw.
    """
    numbers: dict[str, str] = {}  # the files in the order in which they were added
    live: dict[str, str] = {}
    found: dict[tuple[str, str], str] = {}
    newest = table.snapshot().version
    for version in range(first, newest + 1):
        for _, kind, action in file_actions(table.storage, table.name.table_path, version, version):
            name = numbers.setdefault(action["path"], f"file {len(numbers) + 1}")
            live.pop(name, None)
            if kind == "add":
                live[name] = "some rows deleted" if action.get("deletionVector") else "all its rows"
        found |= {(name, str(version)): kind for name, kind in live.items()}
    seen = {name for name, _ in found}
    return plot_presence(
        [name for name in numbers.values() if name in seen],
        [str(version) for version in range(first, newest + 1)],
        found,
        title=f"The Parquet files of {table.name}, version by version",
        label="version",
    )


def plot_row_ids(table: TableHandle, *, name: str, first: int = 1) -> Chart:
    """Draw the row ids of a small table, with one line per row and one column per version.

    Args:
        table: the table; all versions from the first one on have row ids.
        name: the column that names the rows, unique in each version.
        first: the first version to draw.
    """
    newest = table.snapshot().version
    log = CommitLog(table.storage, table.name.table_path)
    parts = [
        read_with_ids(table, version=version).select(
            F.lit(version).alias("at"), F.col(quote(name)).cast("string").alias("row"), *ID_NAMES
        )
        for version in range(first, newest + 1)
    ]
    ordered = reduce(lambda a, b: a.unionAll(b), parts).orderBy("at", "_row_id").limit(_MOST_ROWS)
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
