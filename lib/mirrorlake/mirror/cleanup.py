"""Moves applied files out of the way; the last one stays so that a publisher can go on counting.

Applied files lie in `_ProcessedFiles` first, where a slow publisher can still find its own, then in
`_FilesReadyToDelete`, and go for good when they were applied long enough ago.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from mirrorlake.errors import SequenceError
from mirrorlake.landing.check import file_hash
from mirrorlake.landing.identity import Identity
from mirrorlake.landing.zone import Folder
from mirrorlake.mirror.plan import Plan, is_as_planned, plan_of
from mirrorlake.names import PROCESSED, READY_TO_DELETE, TableName, file_number
from mirrorlake.storage import Entry, Storage

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
    for name, number in sorted(numbers.items(), key=lambda item: item[1]):
        if name in here and here[name] == listed.get(name):
            _move(storage, identity, number, here[name])


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
    for number, entry in sorted(folder.numbered.items()):
        if number >= last:
            break
        if plan is None or not plan.first <= number <= plan.last:
            plan = plan_of(storage, identity, number)
        try:
            if not is_as_planned(storage, identity, plan, entry):
                raise _reused(entry)
            _move(storage, identity, number, entry)
        except SequenceError as error:
            reused = reused or error
    return reused


def _move(storage: Storage, identity: Identity, number: int, entry: Entry) -> None:
    folder = identity.table.folder
    source = f"{folder}/{entry.name}"
    target = f"{folder}/{PROCESSED}/{processed_name(number, entry.name)}"
    try:
        moved = storage.rename(source, target)
    except FileNotFoundError:
        return  # another mirror moved it, or the folder is being deleted
    if moved:
        storage.touch(target)  # from now on it tells when the file was applied
        return
    if not storage.exists(target) or file_hash(storage, source) != file_hash(storage, target):
        raise _reused(entry)
    storage.delete(source)  # a rename that was cut short between its two halves


def processed_name(number: int, name: str) -> str:
    """What an applied file is called; its number comes first where its own name has none."""
    return name if file_number(name) == number else f"{number:020d}-{name}"


def sweep(storage: Storage, table: TableName, *, last: int, now: datetime, keep: timedelta) -> None:
    """Moves applied files on, and deletes those that were applied longer ago than `keep`.

    Files that nobody applied, whatever their age, stay.
    """
    for entry in storage.list(f"{table.folder}/{PROCESSED}").files:
        if _is_applied(entry, last) and now - entry.modified >= keep * _IN_PROCESSED:
            source = f"{table.folder}/{PROCESSED}/{entry.name}"
            with suppress(FileNotFoundError):  # another mirror sweeps, too
                if not storage.rename(source, f"{table.folder}/{READY_TO_DELETE}/{entry.name}"):
                    storage.delete(source)
    for entry in storage.list(f"{table.folder}/{READY_TO_DELETE}").files:
        if _is_applied(entry, last) and now - entry.modified >= keep:
            storage.delete(f"{table.folder}/{READY_TO_DELETE}/{entry.name}")


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
