"""Plans: the files of one commit, written down before the first of them is read.

`next_batch` decides which files they are.

A plan is created if absent, per table, incarnation and first number; any mirror that finds one
carries it out as it stands. Without it a larger batch after a crash would apply its first files
twice, since Delta's txnVersion only skips equal or lower numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from mirrorlake.landing.check import SMALL, FileFacts, file_hash
from mirrorlake.landing.metadata import Identity
from mirrorlake.mirror.options import STOP
from mirrorlake.names import STATE, file_name, file_number
from mirrorlake.storage.files import Entry, Storage, to_json
from mirrorlake.storage.kept import read_kept

FORMAT = 3
PLAIN_FORMAT = 2  # what earlier versions read as well
_READERS = 8
_NEAR = 1000  # as many files as one plan mostly has


@dataclass(frozen=True)
class PlannedFile:
    """One file of a plan, as it was when the plan was made.

    Attributes:
        sha256: of its bytes; empty where it never came, or where only `etag` is known.
        published: when it was modified last, ISO-8601 UTC; None if it never came.
        rows: rows by operation.
        rejected: rows left out because they can't be applied.
        skipped: why nothing of it is applied; None if it is.
        etag: the store's tag of a larger file; None for a small or local one.
    """

    name: str
    size: int
    sha256: str
    published: str | None = None
    rows: dict[str, int] = field(default_factory=dict)
    rejected: int = 0
    skipped: str | None = None
    etag: str | None = None


@dataclass(frozen=True)
class Plan:
    """The files of one commit, numbered from `first` on without a gap.

    Attributes:
        planned: when, ISO-8601 UTC.
        on_error: what becomes of bad rows and files: `STOP`, `SKIP_ROW` or `SKIP_FILE`.
    """

    first: int
    files: tuple[PlannedFile, ...]
    planned: str
    on_error: str = STOP

    @property
    def last(self) -> int:
        """The last file's number; the commit carries it as txnVersion."""
        return self.first + len(self.files) - 1

    def file(self, name: str) -> PlannedFile | None:
        """The file of that name, or None."""
        return next((file for file in self.files if file.name == name), None)

    @property
    def numbers(self) -> dict[str, int]:
        """The files' numbers by name."""
        return {file.name: self.first + place for place, file in enumerate(self.files)}

    def document(self) -> dict[str, Any]:
        """The plan as it lies on disk."""
        files = [asdict(file) for file in self.files]
        plain = [file for file in files if file["etag"] is None]
        for file in plain:
            del file["etag"]
        return {
            "format": PLAIN_FORMAT if len(plain) == len(files) else FORMAT,
            "first": self.first,
            "last": self.last,
            "planned": self.planned,
            "on_error": self.on_error,
            "files": files,
        }


def plan_path(identity: Identity, first: int) -> str:
    """Where the plan that starts with a number lies."""
    return f"{identity.plans}/{first:020d}.json"


def find_plan(storage: Storage, identity: Identity, first: int) -> Plan | None:
    """The plan that starts with a number, if there is one."""
    document = read_kept(storage, plan_path(identity, first), FORMAT)
    if document is None:
        return None
    files = tuple(PlannedFile(**file) for file in document["files"])
    return Plan(document["first"], files, document["planned"], document.get("on_error", STOP))


def plan_of(storage: Storage, identity: Identity, number: int) -> Plan | None:
    """The plan that a number belongs to, if there is one.

    Costs a listing of the plans, in a store of those that begin at most a thousand numbers before
    it; a larger one is looked for among all.
    """
    for back in (_NEAR, None):
        start = "" if back is None else file_name(max(0, number - back))
        names = storage.names_from(identity.plans, start)
        firsts = (first for name in names if (first := file_number(name)) is not None)
        first = max((first for first in firsts if first <= number), default=None)
        if first is not None:
            return find_plan(storage, identity, first)
    return None


def make_plan(
    storage: Storage, identity: Identity, first: int, facts: Sequence[FileFacts], on_error: str
) -> Plan:
    """Fixes a batch; if another mirror was quicker, its plan counts.

    Args:
        storage: the lake's files.
        identity: whose files these are.
        first: the first file's number.
        facts: checked files with consecutive numbers, at least one.
        on_error: what became of the bad rows and files among them.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    plan = Plan(first, _fix_all(storage, identity, facts), now, on_error)
    if storage.create(plan_path(identity, plan.first), to_json(plan.document())):
        return plan
    return find_plan(storage, identity, plan.first) or plan


def renew_plan(
    storage: Storage, identity: Identity, plan: Plan, facts: Sequence[FileFacts]
) -> None:
    """Writes down what the plan's files are now, where one was uploaded again since.

    No file of the plan has been applied yet, since the commit takes all or none; so a repaired file
    may take the place of the broken one. First and last number stay: nothing can apply twice.
    """
    files = _fix_all(storage, identity, facts)
    if files != plan.files:
        rewrite_plan(storage, identity, replace(plan, files=files))


def rewrite_plan(storage: Storage, identity: Identity, plan: Plan) -> None:
    """Puts a plan in the place of the one with the same first number."""
    storage.write_json(plan_path(identity, plan.first), plan.document())


def _fix_all(
    storage: Storage, identity: Identity, facts: Sequence[FileFacts]
) -> tuple[PlannedFile, ...]:
    listed = {entry.name: entry for entry in storage.list(identity.table.folder).files}

    def fix(file: FileFacts) -> PlannedFile:
        entry = listed.get(file.name)
        sha256, etag = file.sha256, None
        if entry is None and file.skipped is None:
            raise FileNotFoundError(file.name)  # it was there when it was checked
        if entry is None:
            sha256 = ""
        elif sha256 is None and entry.etag and file.size > SMALL:
            etag = entry.etag
        if sha256 is None and etag is not None and file is not facts[-1]:
            # Reading a large file only for its hash is slow. The last one stays in the folder,
            # where the same bytes get another tag when they are uploaded again.
            sha256 = ""
        elif sha256 is None:
            sha256 = file_hash(storage, f"{identity.table.folder}/{file.name}")
        return PlannedFile(
            file.name,
            file.size,
            sha256,
            None if entry is None else entry.modified.isoformat(),
            {marker.name.lower(): count for marker, count in sorted(file.rows.items()) if count},
            len(file.rejects),
            None if file.skipped is None else str(file.skipped),
            etag,
        )

    with ThreadPoolExecutor(_READERS) as pool:
        return tuple(pool.map(fix, facts))


def staging(identity: Identity) -> str:
    """Where text files lie as Parquet until they are applied, relative to the lake's root."""
    return f"{STATE}/staged/{identity.incarnation}"


def is_as_planned(storage: Storage, identity: Identity, plan: Plan | None, entry: Entry) -> bool:
    """Whether a file in the folder is the very one of a plan, not a new one of the same name."""
    planned = plan.file(entry.name) if plan else None
    if planned is None or planned.size != entry.size:
        return False
    if planned.etag is not None and planned.etag == entry.etag:
        return True
    path = f"{identity.table.folder}/{entry.name}"
    return bool(planned.sha256) and planned.sha256 == file_hash(storage, path)


def is_foreign(storage: Storage, identity: Identity, number: int, entry: Entry) -> bool:
    """Return whether a file in the folder is not the applied one of its number.

    A lost plan proves nothing. Neither does a plan that has only the tag of a large file: a copy of
    the same file has another one.
    """
    plan = plan_of(storage, identity, number)
    if plan is None or is_as_planned(storage, identity, plan, entry):
        return False
    planned = plan.file(entry.name)
    return planned is None or planned.size != entry.size or bool(planned.sha256)
