"""Applied files once more: a range of them again, or all of them from the beginning.

Both go the ordinary way, through the landing zone: a replayed file is published again under the
next number, a reseeded folder gets a new incarnation and replaces its table in one commit.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.errors import SequenceError, UsageError
from mirrorlake.landing.check import is_text
from mirrorlake.landing.metadata import (
    MARKER,
    Marker,
    TableMetadata,
    last_applied,
    read_metadata,
    renew_identity,
)
from mirrorlake.landing.publisher import Publisher
from mirrorlake.landing.text import read_text
from mirrorlake.landing.zone import every_file
from mirrorlake.mirror.cleanup import processed_number
from mirrorlake.mirror.operator_settings import paused, read_settings
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Outcome
from mirrorlake.storage import Storage


def replay(
    storage: Storage,
    table: TableName,
    first: int,
    last: int | None = None,
    *,
    as_is: bool = False,
    footer: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Publishes applied files again, in their order, after everything that is published.

    Args:
        storage: the lake's files.
        table: which table.
        first: the first file's number.
        last: the last file's; by default the last applied one.
        as_is: whether inserts stay inserts. Otherwise they become upserts, since the rows may be
            in the table already.
        footer: what the footers of the new files carry besides.
        dry_run: only say which files would be published again.

    Returns:
        With the new files' names; after a dry run with those of the applied files.

    Raises:
        SequenceError: a file of the range was not applied, or is no longer kept.
        UsageError: inserts into a table without keys would be doubled, and `as_is` is not set.
    """
    metadata = read_metadata(storage, table)
    if not metadata.keys and not as_is:
        raise UsageError(
            f"{table} has no keys: its rows would be there twice.",
            hint="replay them as they are with --as-is, or reseed the table.",
        )
    applied = last_applied(storage, table)
    kept = _kept_files(storage, table)
    numbers = range(first, max(first, applied if last is None else last) + 1)
    _check_kept(numbers, kept, applied)
    if dry_run:
        return _replayed(table, numbers, [kept[n].rpartition("/")[2] for n in numbers], False)
    publisher = Publisher(storage, table, footer=footer)
    done: list[str] = []
    for number in numbers:
        with ExitStack() as opened:
            batches = _read(storage, kept[number], metadata, opened)
            published = publisher.write(batches if as_is else _upserts(batches))
        if published.file is not None:
            done.append(published.file)
    return _replayed(table, numbers, done, True)


def _replayed(table: TableName, numbers: range, files: list[str], applied: bool) -> Outcome:
    effect = f"the files {numbers[0]} to {numbers[-1]} are published again"
    return Outcome("replay", str(table), effect, applied, tuple(files))


def _read(
    storage: Storage, path: str, metadata: TableMetadata, opened: ExitStack
) -> pa.RecordBatchReader:
    def open_file() -> IO[bytes]:
        return opened.enter_context(storage.open(path))

    name = path.rpartition("/")[2]
    if is_text(name, metadata.text):
        return read_text(open_file, metadata, name=name)
    parquet = opened.enter_context(pq.ParquetFile(open_file()))
    return pa.RecordBatchReader.from_batches(parquet.schema_arrow, parquet.iter_batches())


def _upserts(batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The same rows, those to be inserted as upserts."""
    found = next((name for name in batches.schema.names if name.lower() == MARKER.lower()), None)
    fields = [field for field in batches.schema if field.name != found]
    schema = pa.schema([*fields, pa.field(MARKER, pa.int32())])
    upsert = pa.scalar(int(Marker.UPSERT), pa.int32())

    def change() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if found is None:
                markers: Any = pa.repeat(upsert, batch.num_rows)
            else:
                markers = batch.column(found).cast(pa.int32())
                is_insert = pc.fill_null(pc.equal(markers, int(Marker.INSERT)), True)
                markers = pc.if_else(is_insert, upsert, markers)
            columns = [batch.column(field.name) for field in fields]
            yield pa.RecordBatch.from_arrays([*columns, markers], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, change())


def reseed(
    storage: Storage,
    table: TableName,
    files: Iterable[Path] = (),
    *,
    footer: Mapping[str, str] | None = None,
    apply: bool = False,
) -> Outcome:
    """Lets the next cycle replace the table in one commit; its history stays.

    The table is paused meanwhile, so that a killed reseed harms nothing: run it again.

    Args:
        storage: the lake's files.
        table: which table.
        files: a new initial load; by default the applied files, as far as all are kept.
        footer: what the footers of the new load carry besides.
        apply: do it; by default the files are only checked, and nothing changes.

    Raises:
        SequenceError: an applied file is no longer kept.
        MirrorlakeError: a file of the new load is not sound; nothing has changed then.
    """
    loads = list(files)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Storage(folder)
        keys = read_metadata(storage, table).keys
        checked = Publisher(scratch, table, keys=keys, footer=footer)
        names = [name for load in loads if (name := checked.write(load).file) is not None]
        kept = {} if loads else _all_kept(storage, table)
        source = f"{len(names)} new files" if loads else f"its {len(kept)} kept files"
        effect = f"the next cycle replaces it from {source}, in one commit"
        done = Outcome("reseed", str(table), effect, apply)
        if not apply:
            return done
        with paused(storage, table):
            if loads:
                _set_aside(storage, table)
            else:
                _take_back(storage, table)
            renew_identity(storage, table)
            for name in names:
                _copy(scratch, storage, f"{table.folder}/{name}")
    return done


def _all_kept(storage: Storage, table: TableName) -> dict[int, str]:
    """The kept files by number, all applied ones among them, but those that were passed over."""
    applied = last_applied(storage, table)
    kept = _kept_files(storage, table)
    skipped = read_settings(storage, table).skip
    _check_kept([n for n in range(1, applied + 1) if n not in skipped], kept, applied)
    return kept


def _take_back(storage: Storage, table: TableName) -> None:
    """Puts all applied files back into the folder, in their order."""
    # Listed again: until the pause a mirror may have applied and moved some.
    for _number, path in sorted(_all_kept(storage, table).items()):
        name = path.rpartition("/")[2]
        if path != f"{table.folder}/{name}":
            storage.rename(path, f"{table.folder}/{name}")
        storage.touch(f"{table.folder}/{name}")  # files without numbers go by their time


def _set_aside(storage: Storage, table: TableName) -> None:
    """Moves all data files away, applied or not: the new load takes their place."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = f"{STATE}/reseeded/{table.place}/{stamp}"
    for path, entry in every_file(storage, table):
        if not entry.name.startswith(("_", ".")):
            storage.rename(path, aside + path.removeprefix(table.folder))


def _copy(source: Storage, target: Storage, path: str) -> None:
    staged = f"{path.rpartition('/')[0]}/_{path.rpartition('/')[2]}"
    with source.open(path) as reader, target.open_writer(staged) as writer:
        shutil.copyfileobj(reader, writer)
    target.rename(staged, path)


def _kept_files(storage: Storage, table: TableName) -> dict[int, str]:
    """The paths of the data files that are still there, by number."""
    files = every_file(storage, table)
    numbers = ((processed_number(entry.name), path) for path, entry in files)
    return {number: path for number, path in numbers if number is not None}


def _check_kept(numbers: Iterable[int], kept: dict[int, str], applied: int) -> None:
    for number in numbers:
        if not 1 <= number <= applied:
            raise SequenceError(
                f"Number {number} was not applied; {applied} is the last one.",
                hint="choose a range of applied files.",
            )
        if number not in kept:
            raise SequenceError(
                f"File {number} is no longer kept.",
                hint="reseed from a new initial load: reseed ROOT TABLE FILE…",
            )
