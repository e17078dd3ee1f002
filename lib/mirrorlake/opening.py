"""The lake and the tables that a parameter names: what tool notebooks begin with.

A name that names nothing is an error that says what there is instead. The files that a parameter
names are here, too, and are published.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.landing.check import file_hash
from mirrorlake.landing.publisher import Published
from mirrorlake.landing.zone import published_tables
from mirrorlake.mirror.trash import dropped_tables
from mirrorlake.names import TABLES, ZONE, TableName, as_table, split_names
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.files import Storage, storage_errors
from mirrorlake.storage.paths import lake_path, may_be_lake

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


@dataclass(frozen=True)
class PublishedFiles(Result):
    """Files that were published, or only checked.

    Attributes:
        table: the table's name.
        sources: the files' own names.
        batches: how each of them went, in the same order.
        dry_run: whether they were only checked.
    """

    table: str
    sources: tuple[str, ...]
    batches: tuple[Published, ...]
    dry_run: bool = False

    @property
    def count(self) -> int:
        """How many files are new in the landing zone."""
        return sum(batch.file is not None and not batch.repeated for batch in self.batches)

    @property
    def rows(self) -> int:
        """The rows in the new files, or that would be."""
        return sum(batch.rows for batch in self.batches if not batch.repeated)

    def shown(self) -> TextTable:
        """One row a file."""
        rows = tuple(
            (source, batch.rows, batch.file, self._said(batch))
            for source, batch in zip(self.sources, self.batches, strict=True)
        )
        return TextTable(("file", "rows", "in the landing zone", "result"), rows)

    def _said(self, batch: Published) -> str:
        if batch.repeated:
            return "published before"
        if not batch.rows:
            return "no rows"
        return "would be published" if self.dry_run else "published"

    def __repr__(self) -> str:
        verb = "would be published" if self.dry_run else "published"
        return f"{self.table}: {self.rows:,} rows of {len(self.sources)} files {verb}"


def publish_files(
    lake: Lake,
    table: str | TableName,
    files: Sequence[Path],
    *,
    keys: str | Sequence[str] = (),
    marker: str = "",
    dry_run: bool = False,
) -> PublishedFiles:
    r"""Publishes files in their order; one that was published before is passed over.

    A file is known by its name and its content, as long as the landing zone keeps what was applied.
    So a run that broke off can be repeated.

    Args:
        lake: the lake.
        table: which table; it need not be there yet.
        files: Parquet or CSV files, as `find_sources` finds them.
        keys: the key columns; a text has commas between them.
        marker: the change of every row, see `Publisher.publish`.
        dry_run: only check the files.

    Raises:
        MirrorlakeError: a file is not sound; those before it are published.

    Example:
        >>> import tempfile
        >>> from mirrorlake import Lake
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("id,n\n1,5\n")
        >>> publish_files(Lake(folder / "lake"), "stock", [folder / "a.csv"], keys="id")
        stock: 1 rows of 1 files published
    """
    if isinstance(keys, str):
        keys = split_names(keys)
    with storage_errors(lake.storage.root):
        publisher = lake.publisher(table, keys=list(keys), dry_run=dry_run)
        batches = []
        for file in files:
            token = f"{file.name} {file_hash(Storage(file.parent), file.name)}"
            batches.append(publisher.publish(file, marker, token=token))
    sources = tuple(file.name for file in files)
    return PublishedFiles(str(publisher.table), sources, tuple(batches), dry_run)
