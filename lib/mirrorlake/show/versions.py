"""Which file belongs to which version: what a table's log tells, as a picture."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import functions as F

from mirrorlake.delta.actions import file_actions
from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.table import Table
from mirrorlake.rows.changes import ID_NAMES, read_with_ids
from mirrorlake.show.plots import Chart, plot_matrix, plot_presence
from mirrorlake.spark.sql import quote

WHOLE, MASKED = "all its rows", "some rows deleted"


def file_presence(table: Table, *, first: int = 0) -> dict[tuple[str, int], str]:
    """The files of each version, numbered in the order in which they came.

    Args:
        table: which table; all commits since `first` are read.
        first: the version to begin with.

    Returns:
        `all its rows` or `some rows deleted`, by the file's number (`file 1`) and the version.
    """
    path = table.name.table_path
    numbers: dict[str, str] = {}
    live: dict[str, str] = {}
    found: dict[tuple[str, int], str] = {}
    for version in range(first, table.snapshot().version + 1):
        for _, kind, action in file_actions(table.storage, path, version, version):
            name = numbers.setdefault(action["path"], f"file {len(numbers) + 1}")
            live.pop(name, None)
            if kind == "add":
                live[name] = MASKED if action.get("deletionVector") else WHOLE
        found |= {(name, version): kind for name, kind in live.items()}
    return found


def plot_files(table: Table, *, first: int = 0) -> Chart:
    """A picture of which Parquet file belongs to which version; see `file_presence`."""
    found = file_presence(table, first=first)
    files = sorted({name for name, _ in found}, key=lambda name: int(name.split()[1]))
    versions = [str(v) for v in range(first, table.snapshot().version + 1)]
    return plot_presence(
        files,
        versions,
        {(name, str(version)): kind for (name, version), kind in found.items()},
        title=f"The Parquet files of {table.name}, version by version",
        label="version",
    )


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
