"""Publishing whole files, as a schedule does: several in order, each once, with one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake.landing.check import file_hash
from mirrorlake.landing.publisher import Published
from mirrorlake.results import Result, TextTable
from mirrorlake.storage import Storage, storage_errors

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.names import TableName


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
        keys = [key.strip() for key in keys.split(",") if key.strip()]
    with storage_errors(lake.storage.root):
        publisher = lake.publisher(table, keys=list(keys), dry_run=dry_run)
        batches = [publisher.publish(file, marker, token=_token(file)) for file in files]
    names = tuple(file.name for file in files)
    return PublishedFiles(str(publisher.table), names, tuple(batches), dry_run)


def _token(file: Path) -> str:
    return f"{file.name} {file_hash(Storage(file.parent), file.name)}"
