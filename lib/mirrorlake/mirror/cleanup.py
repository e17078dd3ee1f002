"""Moves applied files out of the way; the last one stays so that a publisher can go on counting."""

from __future__ import annotations

from mirrorlake.errors import SequenceError
from mirrorlake.landing.check import file_hash
from mirrorlake.landing.identity import Identity
from mirrorlake.landing.zone import Folder
from mirrorlake.mirror.plan import Plan, find_plan
from mirrorlake.names import PROCESSED, file_number
from mirrorlake.storage import Entry, Storage


def move_applied(storage: Storage, identity: Identity, folder: Folder, plan: Plan) -> None:
    """Moves what a commit has just applied, and the file that an earlier commit left as the last.

    Raises:
        SequenceError: a number was used twice.
    """
    for number, entry in sorted(folder.numbered.items()):
        # The predecessor has lain there all the time: nobody can have reused its number.
        if plan.first - 1 <= number < plan.last:
            _move(storage, identity, entry)


def move_leftovers(storage: Storage, identity: Identity, folder: Folder, last: int) -> None:
    """Moves applied files that a killed mirror left behind.

    Raises:
        SequenceError: a file has a number that was applied before, with another content. It is
            never applied, and stays where it is; the others are moved all the same.
    """
    leftovers = [entry for number, entry in sorted(folder.numbered.items()) if number < last]
    if not leftovers:
        return
    plans = storage.list(f"{identity.table.state_path}/{identity.incarnation}").files
    firsts = sorted(n for entry in plans if (n := file_number(entry.name)) is not None)
    reused: SequenceError | None = None
    for entry in leftovers:
        number = file_number(entry.name) or 0
        first = max((f for f in firsts if f <= number), default=None)
        plan = None if first is None else find_plan(storage, identity, first)
        try:
            _check_planned(storage, identity, entry, plan)
            _move(storage, identity, entry)
        except SequenceError as error:
            reused = reused or error
    if reused is not None:
        raise reused


def _check_planned(storage: Storage, identity: Identity, entry: Entry, plan: Plan | None) -> None:
    planned = next((file for file in plan.files if file.name == entry.name), None) if plan else None
    if planned is None or planned.size != entry.size:
        raise _reused(entry)
    if planned.sha256 != file_hash(storage, f"{identity.table.folder}/{entry.name}"):
        raise _reused(entry)


def _move(storage: Storage, identity: Identity, entry: Entry) -> None:
    folder = identity.table.folder
    try:
        moved = storage.rename(f"{folder}/{entry.name}", f"{folder}/{PROCESSED}/{entry.name}")
    except FileNotFoundError:
        return  # another mirror moved it, or the folder is being deleted
    if not moved:
        if storage.exists(f"{folder}/{PROCESSED}/{entry.name}") and file_hash(
            storage, f"{folder}/{entry.name}"
        ) == file_hash(storage, f"{folder}/{PROCESSED}/{entry.name}"):
            # A rename that was cut short between its two halves.
            storage.delete(f"{folder}/{entry.name}")
            return
        raise _reused(entry)


def _reused(entry: Entry) -> SequenceError:
    return SequenceError(
        "The file's number was applied before; it is not applied again.",
        file=entry.name,
        hint="publish its rows under the next free number, then delete this file.",
    )
