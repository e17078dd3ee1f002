"""The lake and the tables that a parameter names: what tool notebooks and commands begin with.

A name that names nothing is an error that says what there is instead. The files that a parameter
names are here, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from glob import glob
from pathlib import Path

from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.landing.zone import published_tables
from mirrorlake.mirror.trash import dropped_tables
from mirrorlake.names import TABLES, ZONE, TableName, as_table
from mirrorlake.paths import lake_path, may_be_lake
from mirrorlake.storage import storage_errors

_PUBLISHABLE = (".parquet", ".csv", ".csv.gz")


def open_lake(root: str, *, new: bool = False) -> Lake:
    """The lake that a notebook's parameter `root` names.

    Args:
        root: a path or URI; a relative path starts from `MIRRORLAKE_HOME`, or the project.
        new: whether the lake may be one that nobody has written to yet.

    Raises:
        UsageError: there is no lake.

    Example:
        >>> open_lake("lakes/sample")  # doctest: +SKIP
        Lake('/home/me/lakes/sample')
    """
    if not isinstance(root, str) or not root.strip():
        raise UsageError("The parameter root is empty.", hint="give a lake's folder or URI.")
    path = lake_path(root)
    if new:
        with storage_errors(path):
            return Lake(path)
    if may_be_lake(path):  # a Lake would make the folder
        lake = Lake(path)
        if any(lake.storage.list(folder).folders for folder in (ZONE, TABLES)):
            return lake
    raise UsageError(
        f"{path} is not a lake: it has neither {ZONE} nor {TABLES}.",
        hint="check the parameter root; `./mirrorlake sample lakes/sample` makes a sample.",
    )


def choose_tables(lake: Lake, names: str = "") -> list[TableName]:
    """The Delta tables that a notebook's parameter names, in the lake's own spelling.

    Args:
        lake: the lake.
        names: names separated by commas; empty for all tables.

    Raises:
        TableNotFoundError: one of them is not there; the hint has the nearest names.

    Example:
        >>> choose_tables(open_lake("lakes/sample"), "stock, sales.orders")  # doctest: +SKIP
    """
    if not names.strip():
        return lake.tables()
    return [find_table(lake, name) for name in names.split(",") if name.strip()]


def find_table(lake: Lake, wanted: str) -> TableName:
    """A table of the lake by the name a person typed, in the lake's own spelling.

    Raises:
        TableNotFoundError: there is none of that name; the hint has the nearest ones.
        InvalidNameError: no table can have that name.
    """
    if (found := lake.find(as_table(wanted.strip()))) is not None:
        return found
    raise _no_table(lake, wanted, lake.tables())


def _no_table(lake: Lake, wanted: str, tables: Iterable[TableName]) -> TableNotFoundError:
    known = [str(name) for name in tables]
    near = difflib.get_close_matches(wanted.strip(), known, n=3, cutoff=0.5)
    listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    hint += f"The lake has {listed}." if known else "The lake has no tables: run `mirror` first."
    return TableNotFoundError(
        f"There is no table {wanted.strip()} in {lake.storage.root}.", hint=hint
    )


def find_published(lake: Lake, wanted: str) -> TableName:
    """A table by the name a person typed, if only its folder is there, or it was dropped.

    What the mirror's operators name need not be a Delta table: one that was published and not yet
    mirrored has a folder in the landing zone, and a dropped one is kept for a week.

    Raises:
        TableNotFoundError: as `find_table`.
        InvalidNameError: as `find_table`.
    """
    name = as_table(wanted.strip())
    known = {*published_tables(lake.storage), *(one.table for one in dropped_tables(lake.storage))}
    if name in known:
        return name
    if (found := lake.find(name)) is not None:
        return found
    raise _no_table(lake, wanted, sorted(known | set(lake.tables()), key=str))


def find_sources(source: str) -> list[Path]:
    """The files that a notebook's parameter `source` names, in the order of their names.

    Args:
        source: a file, a folder (its Parquet and CSV files, not those below), or a glob such as
            `exports/*.csv`; a relative path starts from `MIRRORLAKE_HOME`, or the project.

    Raises:
        UsageError: there are none.

    Example:
        >>> find_sources("lakes/sample/Files/incoming")  # doctest: +SKIP
        [PosixPath('/home/me/lakes/sample/Files/incoming/stock.csv')]
    """
    if not isinstance(source, str) or not source.strip():
        raise UsageError("The parameter source is empty.", hint="give a file, a folder or a glob.")
    path = Path(lake_path(source))
    if path.is_file():
        return [path]
    found = list(path.iterdir()) if path.is_dir() else [Path(name) for name in glob(str(path))]
    files = sorted(
        file
        for file in found
        if file.is_file()
        and file.name.lower().endswith(_PUBLISHABLE)
        and not file.name.startswith(("_", "."))
    )
    if not files:
        raise UsageError(
            f"There is no file to publish at {path}.",
            hint=f"a folder's or glob's files have to end with {', '.join(_PUBLISHABLE)}.",
        )
    return files
