"""Which file belongs to which version: what a table's log tells, as a picture."""

from __future__ import annotations

from mirrorlake.delta.actions import file_actions
from mirrorlake.show.plots import Chart, plot_presence
from mirrorlake.table import Table

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
