"""What a cycle would apply, said and not done: from the listings, the plans and the files' checks.

Nothing is written, neither identity nor plan nor state, and Spark is not needed. Text files are
checked as Parquet in a temporary folder. Files that are late by time are found by the cycle only.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import InvalidNameError, MirrorlakeError, TableNotFoundError
from mirrorlake.landing.check import FileFacts, inspect_file, is_text
from mirrorlake.landing.identity import Identity, read_identity
from mirrorlake.landing.metadata import TableMetadata, check_keys_kept, read_metadata
from mirrorlake.landing.zone import find_tables
from mirrorlake.mirror.operator_settings import read_settings
from mirrorlake.mirror.options import SKIP_FILE, SKIP_ROW, MirrorOptions
from mirrorlake.mirror.plan import cut_batch, find_plan, number_files
from mirrorlake.mirror.properties import KEYS_PROPERTY, is_stale_incarnation, plan_schema
from mirrorlake.mirror.state import STOPPED, TableStatus, load_states
from mirrorlake.mirror.status import status_report
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.storage import Storage


@dataclass(frozen=True)
class TablePreview:
    """What a cycle would do with one table.

    Attributes:
        status: how the table stands; its error is the one that the cycle would end with.
        files: the files that would be applied, in order.
        rows: the rows in them.
    """

    status: TableStatus
    files: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class Preview(Result):
    """What a cycle would do: an entry per table, ordered by name.

    Attributes:
        dropped: the tables that it would drop, because their folders are gone.
    """

    tables: tuple[TablePreview, ...]
    dropped: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[TablePreview, ...]:
        """The tables that would have an error."""
        return tuple(table for table in self.tables if table.status.error)

    def as_dict(self) -> dict[str, Any]:
        """The document that `mirror --dry-run --json` prints."""
        return {
            "tables": [
                {**asdict(one.status), "files": list(one.files), "rows_to_apply": one.rows}
                for one in self.tables
            ],
            "dropped": list(self.dropped),
        }

    def shown(self) -> TextTable:
        """One row a table."""
        rows = tuple(
            (
                one.status.full_name,
                len(one.files),
                f"{one.files[0]} …" if len(one.files) > 1 else "".join(one.files),
                one.rows,
                one.status.waiting_for,
                one.status.error and one.status.error["file"],
            )
            for one in self.tables
        )
        return TextTable(("table", "files", "first file", "rows", "waiting for", "bad file"), rows)

    def __repr__(self) -> str:
        files = sum(len(one.files) for one in self.tables)
        dropped = f", {', '.join(self.dropped)} dropped" if self.dropped else ""
        return f"{files} files of {len(self.tables)} tables would be applied{dropped}: a dry run"


def preview_cycle(
    storage: Storage, only: TableName | None = None, options: MirrorOptions | None = None
) -> Preview:
    """What the next cycle would apply.

    Args:
        storage: the lake's files.
        only: a single table; by default all of the zone.
        options: bounds of the cycle.

    Raises:
        TableNotFoundError: the single table has no folder in the zone.
    """
    lines = status_report(storage).tables
    if only is not None:
        lines = tuple(
            line for line in lines if (line.schema, line.name) == (only.schema, only.name)
        )
        if not lines:
            raise TableNotFoundError(
                f"There is no folder for {only} in the landing zone.", hint="publish it first."
            )
    return Preview(
        tuple(_preview(storage, line, options or MirrorOptions()) for line in lines),
        () if only else _dropped(storage),
    )


def _dropped(storage: Storage) -> tuple[str, ...]:
    """The kept states' tables whose folders are gone, under whatever name."""
    present = [table for table in find_tables(storage) if isinstance(table, TableName)]
    folders = {table.folder for table in present}
    gone = [s for folder, s in (load_states(storage) or {}).items() if folder not in folders]
    identities = [read_identity(storage, table) for table in present] if gone else []
    renamed = {identity.incarnation for identity in identities if identity}
    return tuple(
        str(state.table)
        for state in gone
        if state.incarnation not in renamed and read_snapshot(storage, state.table.table_path)
    )


def _preview(storage: Storage, status: TableStatus, options: MirrorOptions) -> TablePreview:
    if status.state == STOPPED:
        return TablePreview(status)
    try:
        table = TableName(status.schema, status.name)
    except InvalidNameError:  # of the folder, which is in the status already
        return TablePreview(status)
    try:
        facts, error = _next_batch(storage, table, options)
    except MirrorlakeError as problem:
        facts, error = [], problem
    status = replace(status, error=None if error is None else error.as_dict())
    rows = sum(file.row_count for file in facts)
    return TablePreview(status, tuple(file.name for file in facts), rows)


def _next_batch(
    storage: Storage, table: TableName, options: MirrorOptions
) -> tuple[list[FileFacts], MirrorlakeError | None]:
    """The sound files that come next, and what is wrong with the one after them."""
    metadata = read_metadata(storage, table)
    identity = read_identity(storage, table) or Identity(table, "none yet")
    snapshot = read_snapshot(storage, table.table_path)
    recreated = is_stale_incarnation(snapshot, identity)
    columns: dict[str, str] = {}
    if snapshot is not None:
        if KEYS_PROPERTY not in snapshot.properties:
            raise InvalidNameError(
                f"There is a table {table} already that no mirror made.",
                hint="rename one of the two, or move that table away.",
            )
        if not recreated:
            old = tuple(json.loads(snapshot.properties[KEYS_PROPERTY]))
            check_keys_kept(table, old, metadata.keys)
            columns = {name: str(kind) for name, kind in snapshot.schema.items()}
    last = snapshot.txns.get(identity.app_id, 0) if snapshot else 0
    skip = read_settings(storage, table).skip
    listing = storage.list(table.folder)
    ready, _ = number_files(storage, identity, metadata, listing, last).pending(last, skip)
    plan = find_plan(storage, identity, last + 1)
    names = [file.name for file in plan.files] if plan else []
    rest = ready[len(names) :]
    names += (
        [entry.name for entry in rest]
        if recreated
        else cut_batch(rest, options.batch_files, options.batch_bytes)
    )
    facts: list[FileFacts] = []
    for number, name in enumerate(names, last + 1):
        if number in skip:
            continue
        try:
            found = _inspect(storage, f"{table.folder}/{name}", metadata, options)
            plan_schema(
                columns, [*facts, found], declared=metadata.table_columns, widen=options.widen
            )
        except MirrorlakeError as error:
            if options.on_error == SKIP_FILE:
                continue
            return facts, error
        facts.append(found)
    return facts, None


def _inspect(
    storage: Storage, path: str, metadata: TableMetadata, options: MirrorOptions
) -> FileFacts:
    """One file's check; text becomes Parquet outside the lake."""
    skip_rows = options.on_error == SKIP_ROW
    name = path.rpartition("/")[2]
    if not is_text(name, metadata.text):
        return inspect_file(storage, path, metadata, skip_rows=skip_rows)
    with TemporaryDirectory() as folder:
        with storage.open(path) as source, (Path(folder) / name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
        return inspect_file(Storage(folder), name, metadata, skip_rows=skip_rows)
