"""Publish a file, a folder or a glob: each file becomes one file of the landing zone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from mirrorlake.errors import UsageError
from mirrorlake.landing.check import file_hash
from mirrorlake.landing.publisher import Published, Publisher
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.files import Storage
from mirrorlake.storage.paths import lake_path

_PUBLISHABLE = (".parquet", ".csv", ".csv.gz")


def find_sources(source: str) -> list[Path]:
    """Return the files that `source` names, in the order of their names.

    Args:
        source: a file, a folder (its Parquet and CSV files, without subfolders), or a glob such as
            `exports/*.csv`; a relative path starts from `MIRRORLAKE_HOME`, or from the project.

    Raises:
        UsageError: there are no such files.

    Example:
        >>> find_sources("lakes/sample/Files/incoming")  # doctest: +SKIP
        [PosixPath('/home/me/lakes/sample/Files/incoming/stock.csv')]
    """
    if not isinstance(source, str) or not source.strip():
        raise UsageError("The source is empty.", hint="give a file, a folder or a glob.")
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
        sources: the names of the source files.
        batches: the results, in the same order.
        dry_run: whether the files were only checked.
    """

    table: str
    sources: tuple[str, ...]
    batches: tuple[Published, ...]
    dry_run: bool = False

    @property
    def count(self) -> int:
        """The number of new files in the landing zone."""
        return sum(batch.file is not None and not batch.repeated for batch in self.batches)

    @property
    def rows(self) -> int:
        """The number of rows in the new files, or that they would have."""
        return sum(batch.rows for batch in self.batches if not batch.repeated)

    def shown(self) -> TextTable:
        """Return one row per file."""
        rows = tuple(
            (source, batch.rows, batch.file, self._outcome(batch))
            for source, batch in zip(self.sources, self.batches, strict=True)
        )
        return TextTable(("file", "rows", "in the landing zone", "result"), rows)

    def _outcome(self, batch: Published) -> str:
        if batch.repeated:
            return "published before"
        if not batch.rows:
            return "no rows"
        return "would be published" if self.dry_run else "published"

    def __repr__(self) -> str:
        rows, files = self.rows, len(self.sources)
        verb = "would be published" if self.dry_run else "published"
        return (
            f"{self.table}: {rows:,} row{'s' * (rows != 1)} of"
            f" {files} file{'s' * (files != 1)} {verb}"
        )


def publish_files(
    publisher: Publisher, files: Sequence[Path], marker: str, *, dry_run: bool
) -> PublishedFiles:
    """Publish files in order; arguments and errors are those of `Lake.publish`."""
    batches = []
    for file in files:
        token = f"{file.name} {file_hash(Storage(file.parent), file.name)}"
        batches.append(publisher.publish(file, marker, token=token))
    sources = tuple(file.name for file in files)
    return PublishedFiles(str(publisher.table), sources, tuple(batches), dry_run)
