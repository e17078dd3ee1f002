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
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.errors import MirrorlakeError, SequenceError, UsageError
from mirrorlake.landing.check import SMALL, file_hash, inspect_file, is_text
from mirrorlake.landing.metadata import (
    BY_TIME,
    MARKER,
    Identity,
    Marker,
    TableMetadata,
    is_in_folder,
    last_applied,
    read_identity,
    read_metadata,
    renew_identity,
)
from mirrorlake.landing.publisher import Publisher
from mirrorlake.landing.text import read_text
from mirrorlake.landing.zone import Folder, every_file
from mirrorlake.mirror.next_batch import (
    Plan,
    PlannedFile,
    differs_from_applied,
    find_plan,
    is_as_planned,
    number_files,
    plan_of,
    rewrite_plan,
)
from mirrorlake.mirror.options import (
    SKIP_ROW,
    STOP,
    MirrorOptions,
    paused,
    read_settings,
    write_settings,
)
from mirrorlake.mirror.state import mirror_lease
from mirrorlake.names import PROCESSED, READY_TO_DELETE, STATE, TableName, file_number
from mirrorlake.results import Outcome, counted
from mirrorlake.storage.files import Entry, Storage, map_concurrently

_IN_PROCESSED = 1 / 7  # the share of the retention in `_ProcessedFiles`: a day of a week


def move_applied(storage: Storage, identity: Identity, folder: Folder, plan: Plan) -> None:
    """Move the files of a commit, and the file that the commit before left as its last one.

    Raises:
        SequenceError: A number was used twice.
    """
    if not is_in_folder(storage, identity.table, identity):
        return  # reseeded or recreated: the files will be applied again, or are new
    # By the names in the plan: the folder may number files without numbers in another way, and
    # files that were not applied must stay, as must files that were replaced after the listing.
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
    """Move applied files that a killed mirror has left in the folder.

    Returns:
        The error of the first file whose number was applied before with other content, or `None`.
        Such a file is never applied and is not moved; the others are moved.
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
    """Return whether a file that is planned by its ETag has a moved copy to compare it with.

    The same content has another ETag if it is uploaded again.
    """
    planned = plan.file(entry.name) if plan else None
    if plan is None or planned is None or planned.etag is None or planned.size != entry.size:
        return False
    moved = _processed_name(plan.numbers[entry.name], entry.name)
    return storage.exists(f"{identity.table.folder}/{PROCESSED}/{moved}")


def _move_all(
    storage: Storage, identity: Identity, files: Iterable[tuple[int, Entry]]
) -> SequenceError | None:
    """Move applied files, given with their numbers; concurrently in an object store.

    Returns:
        The error of the first file that can't be moved, or `None`. The others are moved.
    """
    done = map_concurrently(storage, lambda file: _move(storage, identity, *file), files)
    copied = [path for path in done if isinstance(path, str)]
    if copied and is_in_folder(storage, identity.table, identity):  # it can have been suspended
        storage.delete_files(copied)
    return next((error for error in done if isinstance(error, SequenceError)), None)


def _move(
    storage: Storage, identity: Identity, number: int, entry: Entry
) -> str | SequenceError | None:
    """Move a file, or copy it and return the path of the original, which is to be deleted.

    If it can't be moved, return the error.
    """
    folder = identity.table.folder
    source = f"{folder}/{entry.name}"
    target = f"{folder}/{PROCESSED}/{_processed_name(number, entry.name)}"
    is_copied = storage.local is None
    try:
        if is_copied:
            moved = storage.copy(source, target, is_small=entry.size <= SMALL)
        else:
            moved = storage.rename(source, target)
    except FileNotFoundError:
        return None  # another mirror moved it, or the folder was deleted
    if moved:
        storage.touch(target)  # its modification time is now when it was applied
        return source if is_copied else None
    if not storage.exists(target) or file_hash(storage, source) != file_hash(storage, target):
        return _reused(entry)
    return source  # a rename that was interrupted between its copy and its deletion


def _processed_name(number: int, name: str) -> str:
    """Return the name of an applied file: its own name, with its number first if it has none."""
    return name if _processed_number(name) == number else f"{number:020d}-{name}"


def sweep(storage: Storage, table: TableName, *, last: int, now: datetime, keep: timedelta) -> None:
    """Move applied files to `_FilesReadyToDelete`, and delete them at the end of their retention.

    Files that were not applied stay, whatever their age.

    Args:
        storage: the lake's files.
        table: the table's name.
        last: the last applied number.
        now: the current time.
        keep: the retention of applied files.
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
        with suppress(FileNotFoundError):  # another mirror has moved it
            if not storage.rename(source, f"{table.folder}/{READY_TO_DELETE}/{name}"):
                storage.delete(source)

    map_concurrently(storage, move_on, old(PROCESSED, keep * _IN_PROCESSED))
    done = old(READY_TO_DELETE, keep)
    storage.delete_files(f"{table.folder}/{READY_TO_DELETE}/{name}" for name in done)


def _processed_number(name: str) -> int | None:
    """Return the number at the beginning of an applied file's name, or `None`."""
    return file_number(name[:20])


def _reused(entry: Entry) -> SequenceError:
    return SequenceError(
        "The file's number was applied before, so this file is not applied.",
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
    """Publish applied files again; see `Operations.replay`.

    Args:
        storage: the lake's files.
        table: the table's name.
        first: the number of the first file.
        last: the number of the last file; by default the last applied file.
        as_is: whether inserts stay inserts. If false, they become upserts, because their rows may
            already be in the table.
        footer: additional metadata for the footers of the new files.
        dry_run: preview the files and change nothing.

    Returns:
        The names of the new files; after a dry run, those of the applied files.

    Raises:
        SequenceError: A file of the range was not applied, or is no longer kept.
        MirrorlakeError: A file of the range was applied without its invalid rows. Nothing has
            changed.
        UsageError: The range ends before it starts. Or the table has no keys, so inserts would be
            duplicated, and `as_is` is not set.
    """
    if last is not None and last < first:
        raise UsageError(
            f"The range starts at file {first}, after its end {last}.", hint="swap the two ends."
        )
    metadata = read_metadata(storage, table)
    if not metadata.keys and not as_is:
        raise UsageError(
            f"{table} has no keys, so replaying its files would duplicate their rows.",
            hint="replay with as_is=True (--as-is) to keep inserts as inserts, or reseed it.",
        )
    applied = last_applied(storage, table)
    numbers = range(first, max(first, applied if last is None else last) + 1)
    kept = _kept_files(storage, table, numbers, applied)
    for number, _, error in _invalid_files(storage, table, {n: kept[n] for n in numbers}):
        error.hint = (
            f"file {number} was applied without its invalid rows, or skipped. Leave it out of first"
            " and last (--from, --to), and publish its valid rows in a new file."
        )
        raise error
    done: list[str] = []
    if dry_run:
        done = [kept[number].rpartition("/")[2] for number in numbers]
    else:
        publisher = Publisher(storage, table, footer=footer)
        for number in numbers:
            with ExitStack() as opened:
                batches = _read(storage, kept[number], metadata, opened)
                try:
                    rows = batches if as_is else _upserts(batches)
                    published = publisher.load(rows) if as_is else publisher.write(rows)
                except MirrorlakeError as error:
                    error.file = kept[number].rpartition("/")[2]
                    raise
            if published.file is not None:
                done.append(published.file)
    named, verb = f"files {first} to {numbers[-1]}", "are"
    if len(numbers) == 1:
        named, verb = f"file {first}", "is"
    effect = f"{named} {'would be' if dry_run else verb} published again"
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
    """Return the same rows with upserts in place of inserts."""
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
    """Replace the table with the next cycle, in one commit; see `Operations.reseed`.

    The call waits for a running cycle of the mirror, which could move the files. The table is
    paused during the call, so an interrupted call is safe: run it again.

    Args:
        storage: the lake's files.
        table: the table's name.
        files: the files of a new initial load; they also replace files that are not applied yet.
            By default, the applied files are used, which must all be kept.
        footer: additional metadata for the footers of the new load.
        apply: reseed the table. By default, only check the files.

    Raises:
        SequenceError: An applied file is no longer kept, or another file has its name.
        MirrorlakeError: A file of the new load is invalid. Nothing has changed.
        BusyError: A mirror did not finish its cycle within 600 seconds.
    """
    loads = list(files)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Storage(folder)
        keys = read_metadata(storage, table).keys
        checked = Publisher(scratch, table, keys=keys, footer=footer)
        names = [name for load in loads if (name := checked.write(load).file) is not None]
        kept = {} if loads else _all_kept(storage, table)
        skipped = _skipped_numbers(storage, table)
        kept = {number: path for number, path in kept.items() if number not in skipped}
        source = counted(len(names), "new file") if loads else counted(len(kept), "kept file")
        verb = "replaces" if apply else "would replace"
        effect = f"the next cycle {verb} it with the rows of {source}, in one commit"
        effect += _needed_options(storage, table, kept)
        if loads and (waiting := _count_waiting(storage, table)):
            verb = "would be" if not apply else "is" if waiting == 1 else "are"
            effect += f"; {counted(waiting, 'waiting file')} {verb} set aside"
        done = Outcome("reseed", str(table), effect, apply)
        if not apply:
            return done
        incarnation = uuid.uuid4().hex
        with mirror_lease(storage, MirrorOptions.patience), paused(storage, table):
            if loads:
                _set_aside(storage, table)
            else:
                _move_back_all(storage, table, incarnation)
            settings, identity = read_settings(storage, table), read_identity(storage, table)
            skip = frozenset() if loads else _skipped_numbers(storage, table)
            files_to_skip = frozenset() if loads else settings.skipped_files(identity)
            settings = replace(settings, skip=skip, files=files_to_skip, incarnation=None)
            # Without an incarnation, so that an interrupted call can be repeated.
            write_settings(storage, table, settings)
            renew_identity(storage, table, incarnation)
            if skip or files_to_skip:  # kept files keep their numbers, waiting ones their names
                write_settings(storage, table, replace(settings, incarnation=incarnation))
            if not loads:
                # A mirror whose lease has expired may have moved files until now.
                _move_back_all(storage, table, incarnation)
            for name in names:
                _copy(scratch, storage, f"{table.folder}/{name}")
    return done


def _count_waiting(storage: Storage, table: TableName) -> int:
    """Count the published files that are not applied yet."""
    metadata, last = read_metadata(storage, table), last_applied(storage, table)
    listing = storage.list(table.folder)
    if metadata.strategy == BY_TIME:
        identity = read_identity(storage, table) or Identity(table, "none yet")
        return len(number_files(storage, identity, metadata, listing, last).behind(last))
    # Not by `number_files`: a reseed also repairs a folder in which two files have one number.
    return sum((file_number(entry.name) or 0) > last for entry in listing.files)


def _needed_options(storage: Storage, table: TableName, kept: Mapping[int, str]) -> str:
    """Return sentences about kept files that were applied only in part; empty if all are valid."""
    rows: list[str] = []
    files: list[str] = []
    for number, planned, _ in _invalid_files(storage, table, kept):
        (rows if planned.skipped is None else files).append(f"file {number}")
    needed = ""
    if rows:
        needed += f". Rows of {', '.join(rows)} were skipped: mirror with on_error='skip-row'"
        needed += " (--on-error skip-row)"
    if files:
        needed += f". Skip {', '.join(files)} again, or mirror with on_error='skip-file'"
        needed += " (--on-error skip-file)"
    if _is_timed(storage, table) and needed:  # by its plan, see `_move_back_all`
        return f". The mirror skips the same rows and files again ({', '.join(rows + files)})"
    return needed and f"{needed}. Until then, the table stops and keeps its rows"


def _invalid_files(
    storage: Storage, table: TableName, kept: Mapping[int, str]
) -> Iterator[tuple[int, PlannedFile, MirrorlakeError]]:
    """Yield kept files that were applied without some of their rows, or skipped, with the reason.

    A file that is valid now is not included.
    """
    metadata, applied = read_metadata(storage, table), _last_kept(storage, table)
    for at, planned in _planned_files(storage, table, [n for n in kept if n <= applied]):
        if at in kept and (planned.rejected or planned.skipped is not None):
            try:
                inspect_file(storage, kept[at], metadata, number=at)
            except MirrorlakeError as error:
                yield at, planned, error


def _planned_files(
    storage: Storage, table: TableName, numbers: Iterable[int]
) -> Iterator[tuple[int, PlannedFile]]:
    """Yield the files of the plans that contain some of the numbers, in order."""
    identity, done = read_identity(storage, table), 0
    for number in sorted(numbers):
        plan = plan_of(storage, identity, number) if identity and number > done else None
        for at, planned in enumerate(plan.files, plan.first) if plan else ():
            done = at
            yield at, planned


def _is_timed(storage: Storage, table: TableName) -> bool:
    return read_metadata(storage, table).strategy == BY_TIME


def _last_kept(storage: Storage, table: TableName) -> int:
    """Return the last applied number, or the last one that a reseed by time has planned."""
    applied, identity = last_applied(storage, table), read_identity(storage, table)
    if applied or identity is None or not _is_timed(storage, table):
        return applied
    plan = find_plan(storage, identity, 1)
    return plan.last if plan else 0


def _skipped_numbers(storage: Storage, table: TableName) -> frozenset[int]:
    """Return the numbers of the files that an operator skipped, also of those skipped by name."""
    settings, identity = read_settings(storage, table), read_identity(storage, table)
    numbers = settings.skipped(identity)
    files = {(one.name, one.size, one.published) for one in settings.skipped_files(identity)}
    if not files:
        return numbers
    applied = _planned_files(storage, table, range(1, _last_kept(storage, table) + 1))
    return numbers | {
        number
        for number, one in applied
        if one.skipped is not None and (one.name, one.size, one.published) in files
    }


def _all_kept(storage: Storage, table: TableName) -> dict[int, str]:
    """Return the kept files by number; all applied files that were not skipped must be kept.

    Raises:
        SequenceError: Such a file is not kept, or another file in the folder has its name.
    """
    applied = _last_kept(storage, table)
    skipped = _skipped_numbers(storage, table)
    numbers = [number for number in range(1, applied + 1) if number not in skipped]
    kept, listing = _kept_files(storage, table, numbers, applied), storage.list(table.folder)
    for number in numbers:
        path, name = kept[number], kept[number].rpartition("/")[2]
        target = f"{table.folder}/{name}"
        if path == target or listing.file(name) is None:
            continue
        with suppress(FileNotFoundError):  # a mirror whose lease has expired can still move files
            if file_hash(storage, path) != file_hash(storage, target):
                raise SequenceError(
                    f"Another file in the folder has the name of the applied file {number}.",
                    file=name,
                    hint="publish its rows in a file with a new name, then delete this file.",
                )
    return kept


def _move_back_all(storage: Storage, table: TableName, incarnation: str) -> None:
    """Move all applied files back into the folder, for its next incarnation.

    Files that are ordered by time keep their order by a plan of the incarnation: a store can't set
    their times, and later files must stay later.
    """
    # List again: a mirror may have applied and moved files before the pause.
    kept, is_timed = _all_kept(storage, table), _is_timed(storage, table)
    back: dict[int, str] = {}
    for number, path in sorted(kept.items()):
        back[number] = f"{table.folder}/{path.rpartition('/')[2]}"
        if path != back[number]:
            storage.rename(path, back[number])
        if not is_timed:
            storage.touch(back[number])
    numbers = range(1, _last_kept(storage, table) + 1)
    if not is_timed or not numbers:
        return
    known, listing = dict(_planned_files(storage, table, numbers)), storage.list(table.folder)
    bad = {number: planned for number, planned, _ in _invalid_files(storage, table, back)}
    files: list[PlannedFile] = []
    for number in numbers:
        planned = known.get(number) or PlannedFile("", 0, "")
        path = back.get(number) or _processed_name(number, planned.name)
        name, skipped = path.rpartition("/")[2], planned.skipped if number in bad else None
        if (entry := listing.file(name)) is not None:  # `forget` may have rewritten the file
            etag = entry.etag if entry.size > SMALL else None
            digest = "" if etag else file_hash(storage, path)
            planned = replace(planned, size=entry.size, sha256=digest, etag=etag)
        files.append(replace(planned, name=name, skipped=skipped))
    on_error = SKIP_ROW if any(planned.skipped is None for planned in bad.values()) else STOP
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    rewrite_plan(storage, Identity(table, incarnation), Plan(1, tuple(files), now, on_error))


def _set_aside(storage: Storage, table: TableName) -> None:
    """Move all data files away, applied or not; the new load replaces them."""
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
    storage: Storage, table: TableName, numbers: Collection[int], applied: int
) -> dict[int, str]:
    """Return the paths of the kept data files by number, and check that `numbers` are kept."""
    outside = next((number for number in numbers if not 1 <= number <= applied), None)
    if outside is not None:
        raise SequenceError(
            f"Number {outside} was not applied; the last applied number is {applied}.",
            hint="choose a range of applied files.",
        )
    identity, is_timed = read_identity(storage, table), _is_timed(storage, table)
    first = min(numbers, default=1)
    here = _applied_here(storage, table, range(first, applied + 1)) if is_timed else {}
    kept: dict[int, tuple[str, Entry]] = {}
    for path, entry in every_file(storage, table):
        in_folder = path == f"{table.folder}/{entry.name}"
        number = _processed_number(entry.name)
        if is_timed and in_folder:  # names of published files have no meaning
            number = here.get(entry.name)
        if number is not None:
            kept[number] = path, entry
    for number in numbers:
        if number not in kept:
            raise SequenceError(
                f"File {number} is no longer kept.",
                hint="reseed the table with the files of a new initial load.",
            )
        path, entry = kept[number]
        # Moved files are always applied ones, and those by time were compared with their plans.
        is_open = not is_timed and path == f"{table.folder}/{entry.name}"
        if identity and is_open and differs_from_applied(storage, identity, number, entry):
            raise SequenceError(
                f"The content of file {number} is not the content that was applied.",
                file=entry.name,
                hint="leave it out, or reseed the table with the files of a new initial load.",
            )
    return {number: path for number, (path, _) in kept.items()}


def _applied_here(storage: Storage, table: TableName, numbers: Iterable[int]) -> dict[str, int]:
    """Return the applied files in a folder that is ordered by time, with their numbers.

    These are the last applied file, files of a killed mirror, and files that an interrupted reseed
    has moved back. The latter keep the names that they got when they were moved.
    """
    identity, listing = Identity(table, ""), storage.list(table.folder)
    found: dict[str, int] = {}
    for number, planned in _planned_files(storage, table, numbers):
        moved, entry = _processed_name(number, planned.name), listing.file(planned.name)
        if moved != planned.name and listing.file(moved) is not None:
            found[moved] = number
        elif entry and is_as_planned(storage, identity, Plan(number, (planned,), ""), entry):
            found[entry.name] = number
    return found
