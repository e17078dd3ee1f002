"""Move, keep and delete applied files, and apply them again (replay, reseed).

An applied file moves to `_ProcessedFiles`, where a slow publisher still finds it, then to
`_FilesReadyToDelete`, and is deleted at the end of its retention. The last applied file stays in
the folder, so that publishers can continue its numbering.

Replayed and reseeded files pass through the landing zone like any others. A replayed file is
published again under the next number. A reseeded folder starts a new incarnation, which replaces
the table in one commit.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.errors import SequenceError, UsageError
from mirrorlake.landing.check import SMALL, file_hash, is_text
from mirrorlake.landing.metadata import (
    MARKER,
    Identity,
    Marker,
    TableMetadata,
    last_applied,
    read_identity,
    read_metadata,
    renew_identity,
)
from mirrorlake.landing.publisher import Publisher
from mirrorlake.landing.text import read_text
from mirrorlake.landing.zone import Folder, every_file
from mirrorlake.mirror.next_batch import Plan, is_as_planned, is_foreign, plan_of
from mirrorlake.mirror.options import paused, read_settings, side_by_side
from mirrorlake.names import PROCESSED, READY_TO_DELETE, STATE, TableName, file_number
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Entry, Storage

_IN_PROCESSED = 1 / 7  # of the time that applied files are kept: a day of a week


def move_applied(storage: Storage, identity: Identity, folder: Folder, plan: Plan) -> None:
    """Moves what a commit has just applied, and the file that an earlier commit left as the last.

    Raises:
        SequenceError: a number was used twice.
    """
    # By the plan's names: where files have no numbers of their own, the folder may count another
    # way, and would send away what nobody applied. What was replaced meanwhile stays, too.
    listed = {entry.name: entry for entry in folder.listing.files}
    here = {entry.name: entry for entry in storage.list(identity.table.folder).files}
    numbers = {name: number for name, number in plan.numbers.items() if number < plan.last}
    if before := folder.numbered.get(plan.first - 1):
        numbers[before.name] = plan.first - 1
    ordered = sorted(numbers.items(), key=lambda item: item[1])
    same = [(n, e) for name, n in ordered if (e := here.get(name)) and e == listed.get(name)]
    if (reused := _move_all(storage, identity, same)) is not None:
        raise reused


def move_leftovers(
    storage: Storage, identity: Identity, folder: Folder, last: int
) -> SequenceError | None:
    """Moves applied files that a killed mirror left behind.

    Returns:
        What is wrong with the first file whose number was applied before, with another content. It
        is never applied, and stays where it is; the others are moved all the same.
    """
    plan: Plan | None = None
    reused: SequenceError | None = None
    own: list[tuple[int, Entry]] = []
    for number, entry in sorted(folder.numbered.items()):
        if number >= last:
            break
        if plan is None or not plan.first <= number <= plan.last:
            plan = plan_of(storage, identity, number)
        at = (storage, identity, plan, entry)
        if is_as_planned(*at) or _is_moved(*at):
            own.append((number, entry))
        else:
            reused = reused or _reused(entry)
    return reused or _move_all(storage, identity, own)


def _is_moved(storage: Storage, identity: Identity, plan: Plan | None, entry: Entry) -> bool:
    """Whether a file that a plan knows by its tag has a copy among the applied ones, to compare.

    The same content has another tag where it was uploaded once more.
    """
    planned = plan.file(entry.name) if plan else None
    if plan is None or planned is None or planned.etag is None or planned.size != entry.size:
        return False
    moved = _processed_name(plan.numbers[entry.name], entry.name)
    return storage.exists(f"{identity.table.folder}/{PROCESSED}/{moved}")


def _move_all(
    storage: Storage, identity: Identity, files: Iterable[tuple[int, Entry]]
) -> SequenceError | None:
    """Moves applied files, in a store many at a time; each number is the file's own.

    Returns:
        What is wrong with the first one that can't be moved; the others are.
    """
    done = side_by_side(storage, lambda file: _move(storage, identity, *file), files)
    storage.delete_files(path for path in done if isinstance(path, str))
    return next((error for error in done if isinstance(error, SequenceError)), None)


def _move(
    storage: Storage, identity: Identity, number: int, entry: Entry
) -> str | SequenceError | None:
    """Moves a file, or copies it and returns the path that is left to be deleted.

    Where it can't be moved, returns why.
    """
    folder = identity.table.folder
    source = f"{folder}/{entry.name}"
    target = f"{folder}/{PROCESSED}/{_processed_name(number, entry.name)}"
    is_copied = storage.is_s3 and entry.size <= SMALL
    try:
        moved = (storage.copy_small if is_copied else storage.rename)(source, target)
    except FileNotFoundError:
        return None  # another mirror moved it, or the folder is being deleted
    if moved:
        storage.touch(target)  # from now on it tells when the file was applied
        return source if is_copied else None
    if not storage.exists(target) or file_hash(storage, source) != file_hash(storage, target):
        return _reused(entry)
    return source  # a rename that was cut short between its two halves


def _processed_name(number: int, name: str) -> str:
    """What an applied file is called; its number comes first where its own name has none."""
    return name if file_number(name) == number else f"{number:020d}-{name}"


def sweep(storage: Storage, table: TableName, *, last: int, now: datetime, keep: timedelta) -> None:
    """Moves applied files on, and deletes those that were applied longer ago than `keep`.

    Files that nobody applied, whatever their age, stay.
    """

    def old(folder: str, age: timedelta) -> list[str]:
        entries = storage.list(f"{table.folder}/{folder}").files
        numbered = ((entry, _processed_number(entry.name)) for entry in entries)
        return [
            entry.name
            for entry, number in numbered
            if number is not None and number <= last and now - entry.modified >= age
        ]

    def move_on(name: str) -> None:
        source = f"{table.folder}/{PROCESSED}/{name}"
        with suppress(FileNotFoundError):  # another mirror sweeps, too
            if not storage.rename(source, f"{table.folder}/{READY_TO_DELETE}/{name}"):
                storage.delete(source)

    side_by_side(storage, move_on, old(PROCESSED, keep * _IN_PROCESSED))
    done = old(READY_TO_DELETE, keep)
    storage.delete_files(f"{table.folder}/{READY_TO_DELETE}/{name}" for name in done)


def _processed_number(name: str) -> int | None:
    """The number that an applied file's name begins with; None if it is no such name."""
    return file_number(name[:20])


def _reused(entry: Entry) -> SequenceError:
    return SequenceError(
        "The file's number was applied before; it is not applied again.",
        file=entry.name,
        hint="publish its rows under the next free number, then delete this file.",
    )


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
            f"{table} has no keys, so replaying its files would duplicate their rows.",
            hint="replay with as_is=True to keep inserts as inserts, or reseed the table.",
        )
    applied = last_applied(storage, table)
    numbers = range(first, max(first, applied if last is None else last) + 1)
    kept = _kept_files(storage, table, numbers, applied)
    done: list[str] = []
    if dry_run:
        done = [kept[number].rpartition("/")[2] for number in numbers]
    else:
        publisher = Publisher(storage, table, footer=footer)
        for number in numbers:
            with ExitStack() as opened:
                batches = _read(storage, kept[number], metadata, opened)
                published = publisher.load(batches) if as_is else publisher.write(_upserts(batches))
            if published.file is not None:
                done.append(published.file)
    effect = f"the files {first} to {numbers[-1]} are published again"
    return Outcome("replay", str(table), effect, not dry_run, tuple(done))


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
    skipped = read_settings(storage, table).skip
    numbers = [number for number in range(1, applied + 1) if number not in skipped]
    return _kept_files(storage, table, numbers, applied)


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


def _kept_files(
    storage: Storage, table: TableName, numbers: Iterable[int], applied: int
) -> dict[int, str]:
    """The paths of the data files that are still there, by number; some have to be."""
    kept: dict[int, tuple[str, Entry]] = {}
    for path, entry in every_file(storage, table):
        if (number := _processed_number(entry.name)) is not None:
            kept[number] = path, entry
    identity = read_identity(storage, table)
    for number in numbers:
        if not 1 <= number <= applied:
            raise SequenceError(
                f"Number {number} was not applied; {applied} is the last one.",
                hint="choose a range of applied files.",
            )
        if number not in kept:
            raise SequenceError(
                f"File {number} is no longer kept.",
                hint="reseed the table with the files of a new initial load.",
            )
        path, entry = kept[number]
        in_folder = path == f"{table.folder}/{entry.name}"  # only applied content is moved away
        if identity and in_folder and is_foreign(storage, identity, number, entry):
            raise SequenceError(
                f"File {number} is not the one that was applied.",
                file=entry.name,
                hint="leave it out, or reseed the table with the files of a new initial load.",
            )
    return {number: path for number, (path, _) in kept.items()}
