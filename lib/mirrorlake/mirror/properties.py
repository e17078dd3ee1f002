"""What a mirrored table is made with: its properties, what a cycle knows of it, its next batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
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
from mirrorlake.landing.check import FileFacts, inspect_file, skipped_file
from mirrorlake.landing.metadata import Identity, Marker, TableMetadata, check_keys_kept
from mirrorlake.landing.types import fits, widened
from mirrorlake.landing.zone import Folder
from mirrorlake.mirror.options import SKIP_FILE, SKIP_ROW, MirrorOptions
from mirrorlake.mirror.plan import Plan, last_file_fault, number_files, staging
from mirrorlake.mirror.state import TableState, file_signature
from mirrorlake.names import METADATA, file_name
from mirrorlake.storage.files import Listing, Storage

KEYS_PROPERTY = "mirrorlake.keys"
INCARNATION_PROPERTY = "mirrorlake.incarnation"
VIEW_PROPERTY = "mirrorlake.view"
_READERS = 8


def is_stale_incarnation(snapshot: Snapshot | None, identity: Identity) -> bool:
    """Whether a table was filled from, or made for, an earlier incarnation of its folder."""
    if snapshot is None or identity.app_id in snapshot.txns:
        return False
    made_for = snapshot.properties.get(INCARNATION_PROPERTY)
    return bool(snapshot.txns) or made_for != identity.incarnation


def keys_property(metadata: TableMetadata) -> dict[str, str]:
    """The keys as a JSON list."""
    return {KEYS_PROPERTY: json.dumps(list(metadata.keys), ensure_ascii=False)}


def declared_keys(properties: dict[str, str]) -> tuple[str, ...]:
    """The key columns that a table's properties declare."""
    return tuple(json.loads(properties.get(KEYS_PROPERTY, "[]")))


@dataclass(frozen=True)
class Target:
    """The columns of a table after a batch.

    Attributes:
        columns: name to type, the table's own first; types as Delta names them.
        added: the names among them that the table does not have yet.
        widened: those that the table has with a narrower type.
    """

    columns: dict[str, str]
    added: tuple[str, ...]
    widened: tuple[str, ...] = ()

    @property
    def evolved(self) -> bool:
        """Whether the table's schema changes with the batch."""
        return bool(self.added or self.widened)


def check_keys_known(keys: tuple[str, ...], target: Target) -> tuple[str, ...]:
    """The keys in the table's spelling.

    Raises:
        MetadataError: a key is no column of the table.
    """
    spelled = {name.lower(): name for name in target.columns}
    for key in keys:
        if key.lower() not in spelled:
            raise MetadataError(
                f"The table does not have the key column {key!r}.", file=METADATA, column=key
            )
    return tuple(spelled[key.lower()] for key in keys)


@dataclass(frozen=True)
class TableContext:
    """What a step of the cycle works on; each step returns the next one instead of changing it.

    Attributes:
        storage: the lake's files.
        identity: whose files they are.
        metadata: what the folder declares.
        snapshot: the Delta table as it is, or None.
        last: the last number that the table's own log shows as applied.
        folder: the folder's files by number.
        state: what will be kept of the table.
        files: of the Delta table, as this cycle reads them.
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
        """The Delta table, full path."""
        return self.storage.path(self.identity.table.table_path)

    @property
    def recreated(self) -> bool:
        """Whether the table there belongs to an earlier incarnation of the folder."""
        return is_stale_incarnation(self.snapshot, self.identity)

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a batch has to fit; none for a table that is to be replaced."""
        if self.snapshot is None or self.recreated:
            return {}
        return {name: str(kind) for name, kind in self.snapshot.schema.items()}

    @property
    def tail(self) -> str | None:
        """The signature of the last applied file, if it is in the folder."""
        applied = self.folder.numbered.get(self.last)
        return file_signature(applied) if applied else None

    def last_file_fault(self) -> SequenceError | None:
        """Return why the folder does not go on after its last applied file, if that is so."""
        known = self.state.tail
        return last_file_fault(self.storage, self.identity, self.folder, self.last, known)


def plan_schema(at: TableContext, files: Iterable[FileFacts], *, widen: bool) -> Target:
    """The columns after files of the folder: the union of the table's, the declared and the files'.

    A column that has only NULLs so far has no type yet and is left out until it has one.

    Args:
        at: what the files are to be applied to.
        files: what is to be applied, in order.
        widen: whether a column of the table may get a wider type that holds all values, old and
            new; otherwise that is an error like any other change of type.

    Raises:
        SchemaError: a file's column doesn't fit the type that the table or an earlier file gave it;
            or no column has a type at all.
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
                hint="declare it as it was, or delete the table's folder and publish it again.",
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
                columns[name] = kind.table  # not in the table yet: the wider of two files wins
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
                + ("." if wider is None else ", or mirror with --widen."),
            )
    if last is not None and not columns:
        raise SchemaError(
            "All columns have only NULLs so far, so that none has a type.",
            file=last.name,
            hint="publish a row with values, or give the columns types.",
        )
    added = tuple(name for name in columns if name not in table)
    return Target(columns, added, tuple(wide))


@dataclass(frozen=True)
class Batch:
    """The files of one commit, checked.

    Attributes:
        at: what the commit starts from.
        facts: the sound files; none for a table that is only declared.
        target: the table's columns after the commit; none if there is nothing to commit.
        plan: the files as planned; None for a table that is only declared.
        error: what is wrong with the next file.
        note: what the commit's userMetadata says.
        properties: what options and defaults ask of the table from now on.
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
        """The last file's number; 0 where there is only a declared schema."""
        return self.plan.last if self.plan else 0

    @property
    def rows(self) -> Counter[Marker]:
        """Rows by operation, over all files."""
        return sum((file.rows for file in self.facts), Counter())

    @property
    def row_count(self) -> int:
        """All rows of all files."""
        return sum(file.row_count for file in self.facts)


def load_context(
    storage: Storage,
    identity: Identity,
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    listing: Listing,
    state: TableState,
) -> TableContext:
    """What a cycle starts from.

    Raises:
        InvalidNameError: the table there was not made by a mirror.
        MetadataError: its keys are others than those declared now.
        SequenceError: the files' numbers make no sense.
    """
    table = identity.table
    if snapshot is not None and KEYS_PROPERTY not in snapshot.properties:
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
    skip: dict[int, str],
    *,
    stage: bool = True,
    inspect: Callable[..., FileFacts] = inspect_file,
) -> Batch:
    """The longest sound beginning of a batch, and what is wrong with the next file.

    Args:
        at: what the batch is to be applied to.
        names: the files, numbered from the last applied one on.
        options: say what bad files do, and whether columns may be widened.
        skip: numbers of files that are passed over in any case, with the reason.
        stage: whether text is left in the lake as Parquet.
        inspect: what looks into a file, called as `inspect_file` is.
    """
    if not names:
        return Batch(at)

    def check(number: int, name: str) -> FileFacts | MirrorlakeError:
        path = f"{at.identity.table.folder}/{name}"
        if number in skip:
            reason = SequenceError(skip[number], file=name)
            return skipped_file(at.storage, path, number, reason)
        staged = f"{staging(at.identity)}/{file_name(number)}" if stage else None
        skip_rows = options.on_error == SKIP_ROW
        try:
            return inspect(
                at.storage, path, at.metadata, number=number, staged=staged, skip_rows=skip_rows
            )
        except MirrorlakeError as error:
            if options.on_error != SKIP_FILE:
                return error
            return skipped_file(at.storage, path, number, error)
        except FileNotFoundError:
            return SequenceError(
                "The file is gone since the listing.",
                file=name,
                hint="upload it again, or delete the whole folder to drop the table.",
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
            # Only the files before the one that the error names.
            before = [file.name for file in facts]
            facts = facts[: before.index(misfit.file)] if misfit.file in before else ()
            error = misfit
            if not facts:
                return Batch(at, error=error)
