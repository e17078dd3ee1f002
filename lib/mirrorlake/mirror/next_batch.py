"""Decide which files come next, and record them in a plan before they are applied.

The next batch is the longest run of valid files after the last applied number, without a gap and
within the bounds of the cycle. If an earlier cycle left a plan, the cycle completes it first,
unchanged. `preview_batch` makes the same decision and writes nothing.

A plan is created only if none exists for its table, incarnation and first number. Every mirror that
finds a plan applies exactly its files. Without the plan, a larger batch after a crash would apply
its first files twice, because Delta's `txnVersion` skips only equal or lower numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from itertools import count
from typing import Any

from mirrorlake.delta.actions import LiveFiles
from mirrorlake.delta.snapshot import Snapshot
from mirrorlake.errors import (
    InvalidNameError,
    MetadataError,
    MirrorlakeError,
    SchemaError,
    SequenceError,
)
from mirrorlake.landing.check import SMALL, FileFacts, file_hash, inspect_file, skipped_file
from mirrorlake.landing.metadata import (
    BY_TIME,
    Identity,
    Marker,
    TableMetadata,
    check_keys_kept,
    last_applied,
    read_identity,
    read_metadata,
)
from mirrorlake.landing.types import fits, widened
from mirrorlake.landing.zone import Folder, by_number, by_time
from mirrorlake.mirror.options import (
    SKIP_FILE,
    SKIP_ROW,
    STOP,
    MirrorOptions,
    OperatorSettings,
    declared_keys,
    is_mirrored,
    is_stale_incarnation,
)
from mirrorlake.mirror.state import TableState, file_signature
from mirrorlake.names import (
    METADATA,
    PROCESSED,
    READY_TO_DELETE,
    STATE,
    TableName,
    file_name,
    file_number,
)
from mirrorlake.storage.files import Entry, Listing, Storage, to_json
from mirrorlake.storage.kept import read_kept

PLAN_FORMAT = 3
PLAIN_PLAN_FORMAT = 2  # of plans that earlier versions can read, too
Skips = dict[int | str, str]
"""The files to skip by number, or by name if the folder is ordered by time, with the reason."""
_NEAR = 1000  # the usual largest number of files in one plan
_READERS = 8


@dataclass(frozen=True)
class Target:
    """The columns of a table after a batch.

    Attributes:
        columns: Delta types by column name, existing columns first.
        added: names of columns that the table does not have yet.
        widened: names of columns that get a wider type.
    """

    columns: dict[str, str]
    added: tuple[str, ...]
    widened: tuple[str, ...] = ()

    @property
    def evolved(self) -> bool:
        """True if the batch changes the table's schema."""
        return bool(self.added or self.widened)


def check_keys_known(keys: tuple[str, ...], target: Target) -> tuple[str, ...]:
    """Return the key columns as the table spells them.

    Raises:
        MetadataError: The table does not have a key column.
    """
    spelled = {name.lower(): name for name in target.columns}
    for key in keys:
        if key.lower() not in spelled:
            raise MetadataError(
                f"The table has no key column {key!r}.",
                file=METADATA,
                column=key,
                hint="correct keyColumns, or publish files with this column.",
            )
    return tuple(spelled[key.lower()] for key in keys)


@dataclass(frozen=True)
class TableContext:
    """The input of a step of the cycle; each step returns a new context instead of changing it.

    Attributes:
        storage: the lake's files.
        identity: the identity of the table's folder.
        metadata: the declared metadata of the folder.
        snapshot: the current snapshot of the Delta table; None if it does not exist.
        last: the number of the last applied file according to the Delta log.
        folder: the folder's files by number.
        state: the state to save for the table.
        files: the live data files of the Delta table.
    """

    storage: Storage
    identity: Identity
    metadata: TableMetadata
    snapshot: Snapshot | None
    last: int
    folder: Folder
    state: TableState
    files: LiveFiles

    @property
    def path(self) -> str:
        """The full path of the Delta table."""
        return self.storage.path(self.identity.table.table_path)

    @property
    def recreated(self) -> bool:
        """True if the existing table belongs to an earlier incarnation of the folder."""
        return is_stale_incarnation(self.snapshot, self.identity)

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a batch must fit; empty if the batch replaces the table."""
        if self.snapshot is None or self.recreated:
            return {}
        return {name: str(kind) for name, kind in self.snapshot.schema.items()}

    @property
    def tail(self) -> str | None:
        """The signature of the last applied file; None if it is not in the folder."""
        applied = self.folder.numbered.get(self.last)
        return file_signature(applied) if applied else None

    def last_file_error(self) -> SequenceError | None:
        """Return the error if the folder may have been refilled, or `None`."""
        known = self.state.tail
        return last_file_error(self.storage, self.identity, self.folder, self.last, known)


def plan_schema(at: TableContext, files: Iterable[FileFacts], *, widen: bool) -> Target:
    """Return the table's columns after the files: the union of existing, declared and new columns.

    A column with only NULLs has no type yet. It is added as soon as a file has a value in it.

    Args:
        at: the state of the table before the files.
        files: the files to apply, in order.
        widen: whether a column of the table may get a wider type that holds all old and new
            values. If false, this is an error like any other change of type.

    Raises:
        SchemaError: A column of a file does not fit the type in the table or in an earlier file,
            or no column has a type.
    """
    table = at.columns
    columns = dict(table)
    spelling = {name.lower(): name for name in columns}
    for column, wanted in at.metadata.table_columns.items():
        known = columns.setdefault(spelling.setdefault(column.lower(), column), wanted)
        if not (fits(wanted, known) or fits(known, wanted)):
            raise SchemaError(
                f"Column {column!r} is declared as {wanted}, but the table has {known}.",
                file=METADATA,
                column=column,
                hint="restore the declared type, or delete the folder and publish it again.",
            )
    wide: dict[str, str] = {}
    last: FileFacts | None = None
    for file in files:
        if file.skipped is not None:
            continue
        last = file
        for column, kind in file.columns.items():
            if kind.table == "void":
                continue
            name = spelling.setdefault(column.lower(), column)
            known = columns.setdefault(name, kind.table)
            if fits(kind.table, known):
                continue
            if name not in table and fits(known, kind.table):
                columns[name] = kind.table  # a new column: the wider type of two files wins
                continue
            wider = widened(known, kind.table)
            if widen and wider is not None:
                columns[name] = wider
                if name in table and wider != table[name]:
                    wide[name] = wider
                continue
            raise SchemaError(
                f"Column {name!r} is {kind.table}, but the table has {known}.",
                file=file.name,
                column=name,
                hint="delete the table's folder and publish it again with the new type"
                + ("." if wider is None else ", or mirror with widen=True (--widen)."),
            )
    if last is not None and not columns:
        raise SchemaError(
            "All columns contain only NULLs, so no column has a type.",
            file=last.name,
            hint="publish a row with values, or declare the columns' types.",
        )
    added = tuple(name for name in columns if name not in table)
    return Target(columns, added, tuple(wide))


@dataclass(frozen=True)
class Batch:
    """The checked files of one commit.

    Attributes:
        at: the state of the table before the commit.
        facts: the valid files; empty for a table that is only declared.
        target: the table's columns after the commit; without columns there is nothing to commit.
        plan: the plan of these files; None for a table that is only declared.
        error: the error of the file after them.
        note: the content of the commit's `userMetadata`.
        properties: table properties to set, from options and defaults.
    """

    at: TableContext
    facts: tuple[FileFacts, ...] = ()
    target: Target = Target({}, ())
    plan: Plan | None = None
    error: MirrorlakeError | None = None
    note: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The number of the last file; 0 for a table that is only declared."""
        return self.plan.last if self.plan else 0

    @property
    def rows(self) -> Counter[Marker]:
        """The number of rows per operation, over all files."""
        return sum((file.rows for file in self.facts), Counter())

    @property
    def row_count(self) -> int:
        """The number of rows in all files."""
        return sum(file.row_count for file in self.facts)


def load_context(
    storage: Storage,
    identity: Identity,
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    listing: Listing,
    state: TableState,
) -> TableContext:
    """Return the state of a table at the start of its cycle.

    Raises:
        InvalidNameError: A table of that name exists that no mirror created.
        MetadataError: The declared keys differ from the keys of the table.
        SequenceError: A file number is invalid or used twice.
    """
    table = identity.table
    if snapshot is not None and not is_mirrored(snapshot.properties):
        raise InvalidNameError(
            f"There is already a table {table} that the mirror did not make.",
            hint="rename one of the two, or move that table away.",
        )
    if snapshot is not None and not is_stale_incarnation(snapshot, identity):
        check_keys_kept(table, declared_keys(snapshot.properties), metadata.keys)
    last = snapshot.txns.get(identity.app_id, 0) if snapshot else 0
    folder = number_files(storage, identity, metadata, listing, last)
    files = LiveFiles(storage, table.table_path)
    return TableContext(storage, identity, metadata, snapshot, last, folder, state, files)


def check_batch(
    at: TableContext,
    names: list[str],
    options: MirrorOptions,
    skip: Skips,
    *,
    stage: bool = True,
    inspect: Callable[..., FileFacts] = inspect_file,
) -> Batch:
    """Return the valid files at the beginning of a batch, and the error of the file after them.

    If the batch replaces the table, return all files or only the error.

    Args:
        at: the state of the table before the batch.
        names: the files, numbered from the last applied number + 1.
        options: how bad files are handled, and whether columns may be widened.
        skip: the files to skip.
        stage: whether text files are staged in the lake as Parquet.
        inspect: the function that checks a file; it is called like `inspect_file`.
    """
    if not names:
        return Batch(at)

    def check(number: int, name: str) -> FileFacts | MirrorlakeError:
        path = f"{at.identity.table.folder}/{name}"
        if (why := skip.get(number, skip.get(name))) is not None:
            return skipped_file(at.storage, path, number, SequenceError(why, file=name))
        staged = f"{staging(at.identity)}/{file_name(number)}" if stage else None
        skip_rows = options.on_error == SKIP_ROW
        try:
            return inspect(
                at.storage, path, at.metadata, number=number, staged=staged, skip_rows=skip_rows
            )
        except MirrorlakeError as error:
            if options.on_error != SKIP_FILE:
                error.hint = correction_hint(at.storage, at.metadata, error.hint)
                return error
            return skipped_file(at.storage, path, number, error)
        except FileNotFoundError:
            return SequenceError(
                "The file was deleted after the folder was listed.",
                file=name,
                hint="upload the file again, or delete the whole folder to drop the table.",
            )

    sound: list[FileFacts] = []
    error: MirrorlakeError | None = None
    with ThreadPoolExecutor(_READERS) as pool:
        for result in pool.map(check, count(at.last + 1), names):
            if isinstance(result, MirrorlakeError):
                error = result
                break
            sound.append(result)
    facts = tuple(sound)
    while True:
        if error is not None and at.recreated:
            # A part of the files must not replace the table: readers keep its earlier rows.
            return Batch(at, error=error)
        try:
            target = plan_schema(at, facts, widen=options.widen)
            return Batch(at, facts, target, error=error) if facts else Batch(at, error=error)
        except SchemaError as misfit:
            if options.on_error == SKIP_FILE and misfit.file in names:
                facts = tuple(
                    replace(file, skipped=misfit, rows=Counter())
                    if file.name == misfit.file
                    else file
                    for file in facts
                )
                continue
            # Keep only the files before the one with the error.
            before = [file.name for file in facts]
            if misfit.file in before:
                misfit.hint = correction_hint(at.storage, at.metadata, misfit.hint)
            facts = facts[: before.index(misfit.file)] if misfit.file in before else ()
            error = misfit
            if not facts:
                return Batch(at, error=error)


def correction_hint(storage: Storage, metadata: TableMetadata, hint: str) -> str:
    """Return the hint of an invalid file, with how a corrected file keeps its place in the order.

    Args:
        storage: the lake's files.
        metadata: declares whether files are ordered by number or by time.
        hint: the hint without this addition.
    """
    if metadata.strategy != BY_TIME:
        return hint
    how = "If you correct the file, keep its modification time (touch -r): it decides the order."
    if storage.local is None:
        how = "A corrected file has a later time: upload later files again, too, in their order."
    return f"{hint} {how}".lstrip()


def late_file_error(
    storage: Storage, identity: Identity, last: int, entry: Entry
) -> SequenceError | None:
    """Return the error of a file that is older than the last applied file, or `None`."""
    latest = _latest(storage, identity, last)
    if latest is None or entry.modified >= datetime.fromisoformat(latest):
        return None
    return SequenceError(
        f"The file is older than the last applied file, which was published at {latest}.",
        file=entry.name,
        hint="upload the file again if its changes are new, or mirror with late_files=True"
        " (--late-files).",
    )


def _latest(storage: Storage, identity: Identity, last: int) -> str | None:
    """Return when the last file that was not skipped was published; None if it is unknown."""
    while last and (plan := plan_of(storage, identity, last)) is not None:
        files = [file for file in plan.files if file.skipped is None]
        if files:
            return files[-1].published
        last = plan.first - 1
    return None


def cut_batch(entries: list[Entry], max_files: int, max_bytes: int) -> list[str]:
    """Return the names of the first files within both bounds, at least one file."""
    names: list[str] = []
    total = 0
    for entry in entries:
        total += entry.size
        if names and (len(names) >= max_files or total > max_bytes):
            break
        names.append(entry.name)
    return names


def number_files(
    storage: Storage, identity: Identity, metadata: TableMetadata, listing: Listing, last: int
) -> Folder:
    """Return the data files of a folder by number, in the order in which they are applied.

    Args:
        storage: the lake's files.
        identity: the identity of the folder.
        metadata: declares whether files are ordered by number or by time.
        listing: the listing of the folder.
        last: the last applied number.

    Raises:
        SequenceError: A number in a file name is invalid or used twice.
    """
    if metadata.strategy != BY_TIME:
        return by_number(identity.table, listing)
    plan = plan_of(storage, identity, last) if last else None
    applied: dict[str, int] = {}
    if plan is not None and plan.first > 1:
        # If a mirror was killed after a commit, the last file of the previous one is not moved yet.
        before = plan_of(storage, identity, plan.first - 1)
        old = before.files[-1] if before else None
        entry = listing.file(old.name) if old else None
        if entry and old and (entry.size, entry.modified.isoformat()) == (old.size, old.published):
            applied[old.name] = plan.first - 1
    for name, number in plan.numbers.items() if plan else ():
        entry = listing.file(name)
        if entry is not None and is_as_planned(storage, identity, plan, entry):
            applied[name] = number
    return by_time(identity.table, listing, applied, last)


def waiting_by_time(storage: Storage, table: TableName) -> dict[int, Entry] | None:
    """Return the waiting files by number, if the folder is ordered by time; else None."""
    try:
        metadata = read_metadata(storage, table)
    except MetadataError:
        return None
    if metadata.strategy != BY_TIME:
        return None
    # Before the first cycle there is no identity, and no file is applied.
    identity = read_identity(storage, table) or Identity(table, "")
    last = last_applied(storage, table)
    folder = number_files(storage, identity, metadata, storage.list(table.folder), last)
    return {number: entry for number, entry in folder.numbered.items() if number > last}


def last_file_error(
    storage: Storage, identity: Identity, folder: Folder, last: int, known: str | None
) -> SequenceError | None:
    """Return the error if a folder may have been refilled, or `None`.

    The last applied file stays in its folder. If its content differs, or if it is missing and files
    with lower numbers have other content, the folder may have been refilled. Applying further files
    could then lose rows.

    Args:
        storage: the lake's files.
        identity: the identity of the folder.
        folder: its files by number.
        last: the last applied number.
        known: the signature of the last applied file at the last comparison. The file is read only
            if its signature differs.
    """
    entry = folder.numbered.get(last)
    if entry is not None:
        if file_signature(entry) == known or not differs_from_applied(
            storage, identity, last, entry
        ):
            return None
        text = "The last applied file was replaced by other content, which was not applied."
        return _refilled(text, entry, last)
    for number, lower in sorted(folder.numbered.items()):
        if number > last:
            break
        if not is_as_planned(storage, identity, plan_of(storage, identity, number), lower):
            text = f"File {number} differs from the applied one, and file {last} is missing."
            return _refilled(text, lower, last)
    return None


def _refilled(text: str, entry: Entry, last: int) -> SequenceError:
    return SequenceError(
        text,
        file=entry.name,
        hint=(
            f"to continue, delete the files up to number {last} and publish their new rows under "
            f"the numbers from {last + 1} on; to rebuild the table, reseed it with these files, "
            "or delete the whole folder and publish it again."
        ),
    )


def is_refilled(storage: Storage, identity: Identity, metadata: TableMetadata, last: int) -> bool:
    """Return whether a folder has new files from number 1 on, and none of its applied files.

    Args:
        storage: the lake's files.
        identity: the identity of the folder.
        metadata: the declared metadata; files ordered by time are never applied twice.
        last: the last applied number.
    """
    folder = identity.table.folder
    numbers = [(file_number(entry.name), entry) for entry in storage.list(folder).files]
    again = [(n, entry) for n, entry in numbers if n is not None and 1 <= n <= last]
    if metadata.strategy == BY_TIME or 1 not in dict(again):
        return False
    moved = (storage.list(f"{folder}/{name}").files for name in (PROCESSED, READY_TO_DELETE))
    return not any(moved) and all(
        differs_from_applied(storage, identity, *found) for found in again
    )


@dataclass(frozen=True)
class ChosenFiles:
    """The files of the next batch before they are checked.

    Attributes:
        names: the files, numbered from the last applied number + 1.
        on_error: how bad rows and files are handled: `STOP`, `SKIP_ROW` or `SKIP_FILE`.
        skip: the files to skip.
        error: the reason why no file can be applied.
    """

    names: list[str]
    on_error: str
    skip: Skips
    error: MirrorlakeError | None = None


def planned_files(plan: Plan, skip: Skips) -> ChosenFiles:
    """Return the files of a plan, with the error handling that it was created with.

    Args:
        plan: the plan of an earlier cycle or of another mirror.
        skip: the files that an operator skips.
    """
    numbered = enumerate(plan.files, plan.first)
    skipped: Skips = {number: file.skipped for number, file in numbered if file.skipped is not None}
    return ChosenFiles([file.name for file in plan.files], plan.on_error, skip | skipped)


def operator_skips(at: TableContext, settings: OperatorSettings) -> Skips:
    """Return the files that an operator skips."""
    files = settings.skips(at.storage, at.identity, at.folder.behind(at.last))
    return dict.fromkeys(files, "An operator skipped the file.")


def following_files(at: TableContext, options: MirrorOptions, skip: Skips) -> ChosenFiles:
    """Return the files after the last applied one, without a gap and within the cycle's bounds.

    Args:
        at: the state of the table before the batch.
        options: the bounds of the cycle, and how it handles late and bad files.
        skip: the files that an operator skips; their numbers do not count as gaps.
    """
    ready, _ = at.folder.pending(at.last, skip)
    chosen = ChosenFiles(_cut(at, ready, options), options.on_error, dict(skip))
    if at.metadata.strategy != BY_TIME or options.late_files:
        return chosen
    for number, entry in enumerate(ready[: len(chosen.names)], at.last + 1):
        if number in skip or entry.name in skip:
            continue
        late = late_file_error(at.storage, at.identity, at.last, entry)
        if late is None:
            break  # later files have later times
        if options.on_error != SKIP_FILE:
            return replace(chosen, error=late)
        chosen.skip[number] = late.message
    return chosen


def _cut(at: TableContext, ready: list[Entry], options: MirrorOptions) -> list[str]:
    """Return the files of one commit; a commit that replaces the table takes all files."""
    if at.recreated:
        return [entry.name for entry in ready]
    return cut_batch(ready, options.batch_files, options.batch_bytes)


def complete_plan(plan: Plan, batch: Batch) -> Batch:
    """Return the batch of a plan if all its files are valid, else only the error.

    If a file was uploaded again after it was planned, the plan is rewritten.
    """
    if batch.error is not None:
        return Batch(batch.at, error=batch.error)
    renew_plan(batch.at.storage, batch.at.identity, plan, batch.facts)
    return replace(batch, plan=plan)


def preview_batch(at: TableContext, options: MirrorOptions, skip: Skips) -> Batch:
    """Return the batch that the next cycle would apply, starting with an unfinished plan.

    Write nothing. Late files are not detected.
    """
    if (last_error := at.last_file_error()) is not None:
        return Batch(at, error=last_error)
    ready, _ = at.folder.pending(at.last, skip)
    plan = find_plan(at.storage, at.identity, at.last + 1)
    chosen = planned_files(plan, skip) if plan else ChosenFiles([], options.on_error, skip)
    options = replace(options, on_error=chosen.on_error)
    names = [*chosen.names]
    names += _cut(at, [entry for entry in ready if entry.name not in names], options)
    return check_batch(at, names, options, chosen.skip, stage=False)


@dataclass(frozen=True)
class PlannedFile:
    """One file of a plan, as it was when the plan was created.

    Attributes:
        sha256: SHA-256 of its bytes; empty if it never arrived, or if only `etag` is known.
        published: the time of its last modification, ISO-8601 UTC; None if it never arrived.
        rows: the number of rows per operation.
        rejected: the number of rows that are not applied because they are invalid.
        skipped: why the whole file is skipped; None if it is applied.
        etag: the ETag of a larger file in an object store; None for a small or local file.
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
        planned: the time of planning, ISO-8601 UTC.
        on_error: how bad rows and files are handled: `STOP`, `SKIP_ROW` or `SKIP_FILE`.
    """

    first: int
    files: tuple[PlannedFile, ...]
    planned: str
    on_error: str = STOP

    @property
    def last(self) -> int:
        """The number of the last file; it is the `txnVersion` of the commit."""
        return self.first + len(self.files) - 1

    def file(self, name: str) -> PlannedFile | None:
        """Return the file of that name, or `None`."""
        return next((file for file in self.files if file.name == name), None)

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the files by name."""
        return {file.name: self.first + place for place, file in enumerate(self.files)}

    def document(self) -> dict[str, Any]:
        """Return the plan as the JSON document that is stored."""
        files = [asdict(file) for file in self.files]
        plain = [file for file in files if file["etag"] is None]
        for file in plain:
            del file["etag"]
        return {
            "format": PLAIN_PLAN_FORMAT if len(plain) == len(files) else PLAN_FORMAT,
            "first": self.first,
            "last": self.last,
            "planned": self.planned,
            "on_error": self.on_error,
            "files": files,
        }


def plan_path(identity: Identity, first: int) -> str:
    """Return the path of the plan that starts with a number."""
    return f"{identity.plans}/{first:020d}.json"


def find_plan(storage: Storage, identity: Identity, first: int) -> Plan | None:
    """Return the plan that starts with a number, or `None`."""
    document = read_kept(storage, plan_path(identity, first), PLAN_FORMAT)
    if document is None:
        return None
    files = tuple(PlannedFile(**file) for file in document["files"])
    return Plan(document["first"], files, document["planned"], document.get("on_error", STOP))


def plan_of(storage: Storage, identity: Identity, number: int) -> Plan | None:
    """Return the plan that contains a number, or `None`.

    This costs one listing of the plans. An object store lists only plans that start at most 1,000
    numbers before it, and all plans if none of these is found.
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
    """Create the plan of a batch; if another mirror has already created one, return that one.

    Args:
        storage: the lake's files.
        identity: the identity of the table's folder.
        first: the number of the first file.
        facts: checked files with consecutive numbers, at least one.
        on_error: how their bad rows and files are handled.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    plan = Plan(first, _describe_files(storage, identity, facts), now, on_error)
    if storage.create(plan_path(identity, plan.first), to_json(plan.document())):
        return plan
    return find_plan(storage, identity, plan.first) or plan


def renew_plan(
    storage: Storage, identity: Identity, plan: Plan, facts: Sequence[FileFacts]
) -> None:
    """Update a plan with the current content of its files if one was uploaded again.

    The commit applies all files of the plan or none, so none has been applied yet, and a repaired
    file can replace a broken one. The first and the last number do not change, so no file can be
    applied twice.
    """
    files = _describe_files(storage, identity, facts)
    if files != plan.files:
        rewrite_plan(storage, identity, replace(plan, files=files))


def rewrite_plan(storage: Storage, identity: Identity, plan: Plan) -> None:
    """Replace the plan with the same first number."""
    storage.write_json(plan_path(identity, plan.first), plan.document())


def _describe_files(
    storage: Storage, identity: Identity, facts: Sequence[FileFacts]
) -> tuple[PlannedFile, ...]:
    listed = {entry.name: entry for entry in storage.list(identity.table.folder).files}

    def describe(file: FileFacts) -> PlannedFile:
        entry = listed.get(file.name)
        sha256, etag = file.sha256, None
        if entry is None and file.skipped is None:
            raise FileNotFoundError(file.name)  # it was deleted after the check
        if entry is None:
            sha256 = ""
        elif sha256 is None and entry.etag and file.size > SMALL:
            etag = entry.etag
        if sha256 is None and etag is not None and file is not facts[-1]:
            # Reading a large file only for its hash is slow. The last file needs one: it stays in
            # the folder, and the same bytes get another ETag when they are uploaded again.
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
        return tuple(pool.map(describe, facts))


def staging(identity: Identity) -> str:
    """Return the folder for staged Parquet copies of text files, relative to the lake's root."""
    return f"{STATE}/staged/{identity.incarnation}"


def is_as_planned(storage: Storage, identity: Identity, plan: Plan | None, entry: Entry) -> bool:
    """Return whether a file is the planned one, not a new file with the same name."""
    planned = plan.file(entry.name) if plan else None
    if planned is None or planned.size != entry.size:
        return False
    if planned.etag is not None and planned.etag == entry.etag:
        return True
    path = f"{identity.table.folder}/{entry.name}"
    return bool(planned.sha256) and planned.sha256 == file_hash(storage, path)


def differs_from_applied(storage: Storage, identity: Identity, number: int, entry: Entry) -> bool:
    """Return whether a file in the folder is proven to differ from the applied file of its number.

    Without a plan there is no proof. A plan that has only the ETag of a large file is no proof
    either: a copy of the same file has another ETag.
    """
    plan = plan_of(storage, identity, number)
    if plan is None or is_as_planned(storage, identity, plan, entry):
        return False
    planned = plan.file(entry.name)
    return planned is None or planned.size != entry.size or bool(planned.sha256)
