"""Moves applied files out of the way; the last one stays so that a publisher can go on counting.

Applied files lie in `_ProcessedFiles` first, where a slow publisher can still find its own, then in
`_FilesReadyToDelete`, and go for good when they were applied long enough ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeVar

from mirrorlake.errors import SequenceError
from mirrorlake.landing.check import SMALL, file_hash
from mirrorlake.landing.metadata import Identity
from mirrorlake.landing.zone import Folder
from mirrorlake.mirror.plan import Plan, is_as_planned, plan_of
from mirrorlake.names import PROCESSED, READY_TO_DELETE, TableName, file_number
from mirrorlake.storage import Entry, Storage

_IN_PROCESSED = 1 / 7  # of the time that applied files are kept: a day of a week
_MOVERS = 16
_One = TypeVar("_One")
_Done = TypeVar("_Done")


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
    moved = processed_name(plan.numbers[entry.name], entry.name)
    return storage.exists(f"{identity.table.folder}/{PROCESSED}/{moved}")


def _move_all(
    storage: Storage, identity: Identity, files: Iterable[tuple[int, Entry]]
) -> SequenceError | None:
    """Moves applied files, in a store many at a time; each number is the file's own.

    Returns:
        What is wrong with the first one that can't be moved; the others are.
    """

    def move(file: tuple[int, Entry]) -> str | SequenceError | None:
        try:
            return _move(storage, identity, *file)
        except SequenceError as error:
            return error

    done = _side_by_side(storage, move, files)
    storage.delete_files(path for path in done if isinstance(path, str))
    return next((error for error in done if isinstance(error, SequenceError)), None)


def _side_by_side(
    storage: Storage, do: Callable[[_One], _Done], items: Iterable[_One]
) -> list[_Done]:
    """What comes of each: one after the other on a disk, where a move is no more than a name."""
    if storage.local is not None:
        return [do(item) for item in items]
    with ThreadPoolExecutor(_MOVERS) as pool:
        return list(pool.map(do, items))


def _move(storage: Storage, identity: Identity, number: int, entry: Entry) -> str | None:
    """Moves a file, or copies it and returns the path that is left to be deleted."""
    folder = identity.table.folder
    source = f"{folder}/{entry.name}"
    target = f"{folder}/{PROCESSED}/{processed_name(number, entry.name)}"
    is_copied = storage.is_s3 and entry.size <= SMALL
    try:
        moved = (storage.copy_small if is_copied else storage.rename)(source, target)
    except FileNotFoundError:
        return None  # another mirror moved it, or the folder is being deleted
    if moved:
        storage.touch(target)  # from now on it tells when the file was applied
        return source if is_copied else None
    if not storage.exists(target) or file_hash(storage, source) != file_hash(storage, target):
        raise _reused(entry)
    return source  # a rename that was cut short between its two halves


def processed_name(number: int, name: str) -> str:
    """What an applied file is called; its number comes first where its own name has none."""
    return name if file_number(name) == number else f"{number:020d}-{name}"


def sweep(storage: Storage, table: TableName, *, last: int, now: datetime, keep: timedelta) -> None:
    """Moves applied files on, and deletes those that were applied longer ago than `keep`.

    Files that nobody applied, whatever their age, stay.
    """

    def old(folder: str, age: timedelta) -> list[str]:
        entries = storage.list(f"{table.folder}/{folder}").files
        return [e.name for e in entries if _is_applied(e, last) and now - e.modified >= age]

    def move_on(name: str) -> None:
        source = f"{table.folder}/{PROCESSED}/{name}"
        with suppress(FileNotFoundError):  # another mirror sweeps, too
            if not storage.rename(source, f"{table.folder}/{READY_TO_DELETE}/{name}"):
                storage.delete(source)

    _side_by_side(storage, move_on, old(PROCESSED, keep * _IN_PROCESSED))
    done = old(READY_TO_DELETE, keep)
    storage.delete_files(f"{table.folder}/{READY_TO_DELETE}/{name}" for name in done)


def processed_number(name: str) -> int | None:
    """The number that an applied file's name begins with; None if it is no such name."""
    return file_number(name[:20])


def _is_applied(entry: Entry, last: int) -> bool:
    number = processed_number(entry.name)
    return number is not None and number <= last


def _reused(entry: Entry) -> SequenceError:
    return SequenceError(
        "The file's number was applied before; it is not applied again.",
        file=entry.name,
        hint="publish its rows under the next free number, then delete this file.",
    )
