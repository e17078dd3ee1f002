"""What a cycle would apply, said and not done: from the listings, the plans and the files' checks.

Nothing is written, neither identity nor plan nor state, and Spark is not needed. Text files are
checked as Parquet in a temporary folder. Files that are late by time are found by the cycle only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import MirrorlakeError
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.metadata import Identity, read_identity, read_metadata
from mirrorlake.landing.zone import no_folder, published_tables
from mirrorlake.mirror.operator_settings import read_settings
from mirrorlake.mirror.options import MirrorOptions
from mirrorlake.mirror.plan import cut_batch, find_plan
from mirrorlake.mirror.properties import Batch, check_batch, load_context
from mirrorlake.mirror.shards import Shard
from mirrorlake.mirror.state import STOPPED, TableState, TableStatus, load_states
from mirrorlake.mirror.status import status_report
from mirrorlake.names import ZONE, TableName, place_of
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
            raise no_folder(only)
    options = options or MirrorOptions()
    if only is None:
        shard = Shard.parse(options.shard)
        places = ((line, place_of(line.schema, line.name)) for line in lines)
        lines = tuple(line for line, place in places if shard.has(f"{ZONE}/{place}"))
    return Preview(
        tuple(_preview(storage, line, options) for line in lines),
        () if only else _dropped(storage),
    )


def _dropped(storage: Storage) -> tuple[str, ...]:
    """The kept states' tables whose folders are gone, under whatever name."""
    present = published_tables(storage)
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
    table = status.table
    if status.state == STOPPED or table is None:  # the status says what is wrong with its name
        return TablePreview(status)
    facts: tuple[FileFacts, ...] = ()
    try:
        batch = _next_batch(storage, table, options)
        facts, error = tuple(file for file in batch.facts if file.skipped is None), batch.error
    except MirrorlakeError as problem:
        error = problem
    status = replace(status, error=None if error is None else error.as_dict())
    rows = sum(file.row_count for file in facts)
    return TablePreview(status, tuple(file.name for file in facts), rows)


def _next_batch(storage: Storage, table: TableName, options: MirrorOptions) -> Batch:
    """The sound files that come next, and what is wrong with the one after them."""
    metadata = read_metadata(storage, table)
    at = load_context(
        storage,
        read_identity(storage, table) or Identity(table, "none yet"),
        metadata,
        read_snapshot(storage, table.table_path),
        storage.list(table.folder),
        TableState(table.schema, table.name),
    )
    skip = dict.fromkeys(read_settings(storage, table).skip, "")
    ready, _ = at.folder.pending(at.last, skip)
    plan = find_plan(storage, at.identity, at.last + 1)
    names = [file.name for file in plan.files] if plan else []
    rest = ready[len(names) :]
    names += (
        [entry.name for entry in rest]
        if at.recreated
        else cut_batch(rest, options.batch_files, options.batch_bytes)
    )
    return check_batch(at, names, options, skip, stage=False)
