"""What the mirror knows of each table, kept between cycles, and how it is reported.

`Files/_mirrorlake/state.json` is a cache: all of it can be read again from the zone and the tables'
logs. For many tables it is several documents, see `state_documents`. `Files/Monitoring/` has the
same facts in the words of Fabric's monitoring files.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mirrorlake.errors import InvalidNameError
from mirrorlake.landing.metadata import SEQUENTIAL
from mirrorlake.mirror.shards import ALL, Shard
from mirrorlake.mirror.state_documents import FORMAT as FORMAT
from mirrorlake.mirror.state_documents import StateDocuments
from mirrorlake.names import MONITORING, TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.storage import Entry, Storage

_REPLICATOR = f"{MONITORING}/replicator.json"
_NEVER = "0001-01-01T00:00:00"  # how the format's readers know "not yet"

INITIALIZED = "Initialized"
REPLICATING = "Replicating"
FAILED = "Failed"
RUNNING = "Running"
STOPPED = "Stopped"


@dataclass(frozen=True)
class TableState:
    """One table as it was after the last cycle that looked at it.

    Attributes:
        seen: when the folder's identity file was written; tells a recreated folder.
        declared: when its metadata file was written.
        strategy: how its files are ordered.
        tail: the last applied file, if it has no number: name, size, time.
        rows: operations applied so far, all markers counted.
        bytes: sizes of the files applied so far.
        synced: when the last commit was made, ISO-8601 UTC.
        latency: seconds from the last applied file's publication to its commit.
        compacted: the version after which small files were put together last.
        swept: when applied files were looked through last, ISO-8601 UTC.
        error: message, file, row, column; or None when well.
    """

    schema: str | None
    name: str
    state: str = INITIALIZED
    incarnation: str | None = None
    seen: str | None = None
    declared: str | None = None
    strategy: str = SEQUENTIAL
    tail: str | None = None
    last_file: int = 0
    version: int | None = None
    rows: int = 0
    bytes: int = 0
    synced: str | None = None
    latency: float | None = None
    compacted: int = 0
    swept: str | None = None
    error: dict[str, Any] | None = None

    @property
    def table(self) -> TableName:
        """Which table this is."""
        return TableName(self.schema, self.name)


def file_signature(entry: Entry) -> str:
    """A file without a number of its own, as it is recognised in a later listing."""
    return f"{entry.name} {entry.size} {entry.state}"


@dataclass(frozen=True)
class TableStatus:
    """One table's entry of a report.

    Attributes:
        rows: operations applied so far.
        last_file: the number of the last applied file, 0 if none.
        backlog_files: files published and not yet applied.
        backlog_bytes: their sizes.
        waiting_for: the number of the missing file that blocks later ones, or None.
        waiting_since: when the first file behind it came, ISO-8601 UTC.
        lag_seconds: age of the oldest file not yet applied; 0 if there is none.
    """

    name: str
    schema: str | None
    state: str
    rows: int
    last_file: int
    backlog_files: int
    backlog_bytes: int
    waiting_for: int | None
    waiting_since: str | None
    lag_seconds: float
    error: dict[str, Any] | None

    @property
    def table(self) -> TableName | None:
        """Which table this is; None for a folder whose name no table can have."""
        try:
            return TableName(self.schema, self.name)
        except InvalidNameError:
            return None

    @property
    def full_name(self) -> str:
        """The table's name with its schema, for people."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class Report(Result):
    """What a cycle did, or how things stand: one entry per table, ordered by name.

    Attributes:
        dropped: the tables that this cycle dropped because their folders are gone.
    """

    tables: tuple[TableStatus, ...] = field(default=())
    dropped: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[TableStatus, ...]:
        """The tables with an error."""
        return tuple(table for table in self.tables if table.error)

    @property
    def fed(self) -> set[TableName]:
        """The tables that publishers feed."""
        return {table for line in self.tables if (table := line.table) is not None}

    @property
    def progress(self) -> tuple[Any, ...]:
        """What differs between two reports when something was done, or is there to be done."""
        lines = ((t.schema, t.name, t.last_file, t.backlog_files) for t in self.tables)
        return (self.dropped, *lines)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {"tables": [asdict(table) for table in self.tables]}

    def shown(self) -> TextTable:
        """One row per table, without what changes from run to run."""
        columns = ("table", "state", "rows", "last_file", "backlog_files", "error")
        rows = tuple(
            (
                table.full_name,
                table.state,
                table.rows,
                table.last_file,
                table.backlog_files,
                table.error and table.error["message"],
            )
            for table in self.tables
        )
        # A column of nothing but "no error" tells nothing.
        keep = len(columns) if self.failed else len(columns) - 1
        return TextTable(columns[:keep], tuple(row[:keep] for row in rows))

    def __repr__(self) -> str:
        rows = sum(table.rows for table in self.tables)
        text = f"{len(self.tables)} tables, {rows:,} rows applied so far"
        return f"{text}, {len(self.failed)} failed" if self.failed else text


def state_documents(storage: Storage, shard: Shard = ALL) -> StateDocuments:
    """The documents with the tables' states, for a mirror that goes on.

    Args:
        storage: the lake's files.
        shard: the mirror's own.
    """
    return StateDocuments(storage, shard, _is_sound)


def _is_sound(state: dict[str, Any]) -> bool:
    TableState(**state)
    return True


def load_states(
    storage: Storage, shard: Shard = ALL, documents: StateDocuments | None = None
) -> dict[str, TableState] | None:
    """The kept states by the table's folder; None if there are none, or only of an older format.

    Args:
        storage: the lake's files.
        shard: the mirror's own; without documents of all its tables there are no states.
        documents: those of a mirror that goes on, for all its tables.

    Raises:
        FormatError: they are of a newer format.
    """
    kept = documents or state_documents(storage, shard)
    states = kept.load(some=documents is None and shard == ALL)
    return None if states is None else {f: TableState(**state) for f, state in states.items()}


def is_told_running(storage: Storage) -> bool:
    """Whether the monitoring files are there, and say that the mirror is running."""
    try:
        return bool(storage.read_json(_REPLICATOR) == _replicator(RUNNING))
    except ValueError:
        return False


def save_states(
    storage: Storage,
    states: dict[str, TableState],
    *,
    replicator: str = RUNNING,
    shard: Shard = ALL,
    documents: StateDocuments | None = None,
) -> None:
    """Writes cache and monitoring files.

    Args:
        storage: the lake's files.
        states: of all tables, by their folders.
        replicator: the state of the whole mirror.
        shard: the mirror's own; the other tables' states stay where they are.
        documents: those of a mirror that goes on: only what has changed is written.
    """
    kept = documents or state_documents(storage, shard)
    kept.save({folder: asdict(state) for folder, state in states.items()})
    if shard != ALL:
        states = load_states(storage, shard) or states  # the others may have gone on
    tell_states(storage, states, replicator)


def tell_states(storage: Storage, states: dict[str, TableState], replicator: str) -> None:
    """Writes the monitoring files, and no more; see `save_states`."""
    entries = [_monitoring(state) for _, state in sorted(states.items())]
    storage.write_json(f"{MONITORING}/tables.json", {"tables": entries})
    storage.write_json(_REPLICATOR, _replicator(replicator))


def _replicator(status: str) -> dict[str, str]:
    return {"status": status, "errorCode": "", "errorMessage": ""}


def _monitoring(state: TableState) -> dict[str, Any]:
    """A table's entry of `tables.json`, whose field names differ from those of the REST API.

    Clients compare the schema's name with `""` where there is none.
    """
    error = state.error or {}
    place = [f"{key} {error[key]}" for key in ("file", "row", "column") if error.get(key)]
    where = f" [{', '.join(place)}]" if place else ""
    return {
        "id": _id(state.incarnation),
        "status": state.state,
        "errorCode": "TableFailed" if error else "",
        "errorMessage": f"{error['message']}{where}" if error else "",
        "normalizedTableName": f"{state.schema}.{state.name}" if state.schema else state.name,
        "sourceTableName": state.name,
        "sourceSchemaName": state.schema or "",
        "sourceObjectType": "Table",
        "metrics": {
            "processedRowCount": state.rows,
            "processedByte": state.bytes,
            "lastSourceCommitTimeUtc": _NEVER,
            "lastSyncTimeUtc": state.synced or _NEVER,
        },
    }


def _id(incarnation: str | None) -> str:
    try:
        return str(uuid.UUID(incarnation or ""))
    except ValueError:
        return str(uuid.UUID(int=0))  # the mirror has not seen the folder yet


def failed(state: TableState, error: dict[str, Any]) -> TableState:
    """The same table, stopped by an error."""
    return replace(state, state=FAILED, error=error)
