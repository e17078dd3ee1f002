"""Is what a publisher sends sound? The same check as the publisher's own and the mirror's.

What the mirror would stumble over is refused with file, row and column. What may still become right
is a warning.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import IO

from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError
from mirrorlake.landing.check import FileFacts, convert_text, footer_columns, inspect_file, is_text
from mirrorlake.landing.metadata import (
    TableMetadata,
    check_keys_kept,
    keys_are_given,
    read_metadata,
)
from mirrorlake.landing.publisher import Publisher
from mirrorlake.landing.types import fits, widened
from mirrorlake.names import METADATA, TableName
from mirrorlake.storage.files import Storage

_REMEMBERED = 1000
_NAMELESS = "upload"  # without an ending, which would say how to read it


class Checks:
    """Checks files of one lake; remembers which uploads were found sound.

    Args:
        storage: the lake's files.
        widen: whether a file may have a wider type than its table's column.
    """

    def __init__(self, storage: Storage, *, widen: bool = False) -> None:
        self._storage = storage
        self._widen = widen
        self._sound: OrderedDict[tuple[object, ...], tuple[str, ...]] = OrderedDict()
        self._lock = Lock()

    def check_data(
        self, file: Path | str, table: TableName, name: str, *, etag: str = ""
    ) -> tuple[str, ...]:
        """Checks a data file before it gets its name.

        Args:
            file: a local file, or one of the lake by its path.
            table: whose folder it goes to.
            name: the name it is to get.
            etag: tells a file of the lake from an earlier one at its path.

        Returns:
            Warnings.

        Raises:
            MirrorlakeError: the mirror would refuse it.
        """
        declared = self._storage.stat(f"{table.folder}/{METADATA}")
        # What was sound stays so, as long as nobody declares the table in another way.
        known = (etag, str(table), declared and (declared.modified, declared.size))
        with self._lock:
            if etag and known in self._sound:
                return self._sound[known]
        upload = _Upload(self._storage, file)
        warnings = self._check(upload, table, name, declared=declared is not None)
        with self._lock:
            if etag:
                self._sound[known] = warnings
            while len(self._sound) > _REMEMBERED:
                self._sound.popitem(last=False)
        return warnings

    def _check(
        self, storage: Storage, table: TableName, name: str, *, declared: bool
    ) -> tuple[str, ...]:
        publisher = Publisher(self._storage, table, dry_run=True)
        metadata = read_metadata(self._storage, table)
        warnings = () if declared else (f"{table} has no {METADATA}, so it has no keys.",)
        path = _NAMELESS
        with storage.open(path) as source:
            if not source.read(1):
                raise DataFileError("The file has zero bytes.", file=name)
        with TemporaryDirectory() as folder:
            if is_text(name, metadata.text):
                scratch = Storage(folder)
                convert_text(storage, path, metadata, scratch, "rows.parquet", name)
                storage, path = scratch, "rows.parquet"
            try:
                facts = inspect_file(storage, path, _as_parquet(metadata), name=name)
            except DataFileError as error:
                # Rows that need keys: what declares the keys may still be on its way.
                if declared or "no key columns" not in error.message:
                    raise
                facts = FileFacts(name, 0, footer_columns(storage, path), None)
                warnings = (*warnings, str(error))
        _check_fits(facts, publisher.known_columns, widen=self._widen)
        return warnings

    def check_metadata(self, data: bytes, table: TableName) -> None:
        """Check a `_metadata.json` before it is published.

        Raises:
            MirrorlakeError: it makes no sense, or changes keys of a table that has files.
        """
        found = TableMetadata.parse(data)
        try:
            before = read_metadata(self._storage, table)
        except MirrorlakeError:
            return  # a broken one may be replaced
        if keys_are_given(self._storage, table):
            check_keys_kept(table, before.keys, found.keys)


def _as_parquet(metadata: TableMetadata) -> TableMetadata:
    """The same keys and markers, for rows that are Parquet, whatever their file is called."""
    return TableMetadata(metadata.keys, metadata.upsert_by_default, metadata.strategy)


class _Upload(Storage):
    """One file under a name of ours: what it is called on its way says nothing about it."""

    def __init__(self, lake: Storage, file: Path | str) -> None:
        super().__init__(lake.root)
        self._lake = lake
        self._file = file

    def open(self, path: str) -> IO[bytes]:
        """The file, whatever the path."""
        return (
            open(self._file, "rb") if isinstance(self._file, Path) else self._lake.open(self._file)
        )


def _check_fits(facts: FileFacts, known: dict[str, str], *, widen: bool) -> None:
    for name, column in facts.columns.items():
        table = known.get(name.lower())
        if table is None or fits(column.table, table):
            continue
        wider = widened(table, column.table)
        if wider is None or not widen:
            raise SchemaError(
                f"Column {name!r} is {column.table}, but the table has {table}.",
                file=facts.name,
                column=name,
                hint=f"convert the values to {table}, or delete the table's folder and publish it "
                "again with the new type"
                + ("." if wider is None else ", or start the server with --widen."),
            )
