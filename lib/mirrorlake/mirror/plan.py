"""Plans: which files one commit applies, fixed before the first of them is read.

A plan is created if absent, per table, incarnation and first number; whoever finds one carries it
out as it stands. Without it a larger batch after a crash would apply its first files twice, for
Delta's txnVersion only skips equal or lower numbers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import count
from typing import Any

from mirrorlake.errors import MirrorlakeError, SequenceError
from mirrorlake.landing.check import FileFacts, file_hash, inspect_file
from mirrorlake.landing.identity import Identity
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.names import STATE, file_name, file_number
from mirrorlake.storage import Entry, Storage, to_json

FORMAT = 1
_READERS = 8


@dataclass(frozen=True)
class PlannedFile:
    """One file of a plan, as it was when the plan was made."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Plan:
    """The files of one commit, numbered from `first` on without a gap."""

    first: int
    files: tuple[PlannedFile, ...]
    planned: str

    @property
    def last(self) -> int:
        """The last file's number; the commit carries it as txnVersion."""
        return self.first + len(self.files) - 1

    @property
    def numbers(self) -> dict[str, int]:
        """The files' numbers by name."""
        return {file.name: self.first + place for place, file in enumerate(self.files)}

    def document(self) -> dict[str, Any]:
        """The plan as it lies on disk."""
        return {
            "format": FORMAT,
            "first": self.first,
            "last": self.last,
            "planned": self.planned,
            "files": [asdict(file) for file in self.files],
        }


@dataclass(frozen=True)
class Checked:
    """A batch's sound files, and the error of the first one that isn't."""

    facts: tuple[FileFacts, ...]
    error: MirrorlakeError | None


def plan_path(identity: Identity, first: int) -> str:
    """Where the plan that starts with a number lies."""
    return f"{identity.plans}/{first:020d}.json"


def find_plan(storage: Storage, identity: Identity, first: int) -> Plan | None:
    """The plan that starts with a number, if somebody made one."""
    document = storage.read_json(plan_path(identity, first))
    if document is None:
        return None
    files = tuple(PlannedFile(**file) for file in document["files"])
    return Plan(document["first"], files, document["planned"])


def plan_of(storage: Storage, identity: Identity, number: int) -> Plan | None:
    """The plan that a number belongs to, if there is one; costs a listing of the plans."""
    listed = storage.list(identity.plans).files
    firsts = (first for entry in listed if (first := file_number(entry.name)) is not None)
    first = max((first for first in firsts if first <= number), default=None)
    return None if first is None else find_plan(storage, identity, first)


def make_plan(storage: Storage, identity: Identity, first: int, names: list[str]) -> Plan:
    """Fixes a batch; if another mirror was quicker, its plan counts.

    Args:
        storage: the lake's files.
        identity: whose files these are.
        first: the first file's number.
        names: checked files with consecutive numbers, at least one.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        files = tuple(pool.map(lambda name: _fix(storage, identity, name), names))
    plan = Plan(first, files, datetime.now(timezone.utc).isoformat(timespec="milliseconds"))
    if storage.create(plan_path(identity, plan.first), to_json(plan.document())):
        return plan
    return find_plan(storage, identity, plan.first) or plan


def verify_plan(storage: Storage, identity: Identity, plan: Plan) -> Plan:
    """The plan, with the hashes of today where a file was uploaded again since.

    No file of the plan has been applied yet, for the commit takes all or none; so a repaired file
    may take the place of the broken one. First and last number stay: nothing can apply twice.

    Raises:
        SequenceError: a file of the plan is gone.
    """
    names = [file.name for file in plan.files]
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            files = tuple(pool.map(lambda name: _fix(storage, identity, name), names))
    except FileNotFoundError as error:
        present = {entry.name for entry in storage.list(identity.table.folder).files}
        gone = next((name for name in names if name not in present), names[0])
        raise SequenceError(
            "The file was planned, and is gone before it was applied.",
            file=gone,
            hint="upload it again under the same name.",
        ) from error
    if files == plan.files:
        return plan
    renewed = Plan(plan.first, files, plan.planned)
    storage.write_json(plan_path(identity, plan.first), renewed.document())
    return renewed


def _fix(storage: Storage, identity: Identity, name: str) -> PlannedFile:
    path = f"{identity.table.folder}/{name}"
    with storage.open(path) as source:
        size = source.seek(0, 2)
    return PlannedFile(name, size, file_hash(storage, path))


def check_files(
    storage: Storage, identity: Identity, first: int, names: list[str], metadata: TableMetadata
) -> Checked:
    """Checks files in order, several at a time, up to the first that isn't sound."""

    def check(number: int, name: str) -> FileFacts | MirrorlakeError:
        path = f"{identity.table.folder}/{name}"
        staged = f"{staging(identity)}/{file_name(number)}"
        try:
            return inspect_file(storage, path, metadata, number=number, staged=staged)
        except MirrorlakeError as error:
            return error
        except FileNotFoundError:
            return SequenceError(
                "The file is gone since the listing.",
                file=name,
                hint="upload it again, or delete the whole folder to drop the table.",
            )

    sound: list[FileFacts] = []
    with ThreadPoolExecutor(_READERS) as pool:
        for result in pool.map(check, count(first), names):
            if isinstance(result, MirrorlakeError):
                return Checked(tuple(sound), result)
            sound.append(result)
    return Checked(tuple(sound), None)


def staging(identity: Identity) -> str:
    """Where text files lie as Parquet until they are applied, relative to the lake's root."""
    return f"{STATE}/staged/{identity.incarnation}"


def cut_batch(entries: list[Entry], max_files: int, max_bytes: int) -> list[str]:
    """The names of the first files that together stay within both bounds, at least one."""
    names: list[str] = []
    total = 0
    for entry in entries:
        total += entry.size
        if names and (len(names) >= max_files or total > max_bytes):
            break
        names.append(entry.name)
    return names
