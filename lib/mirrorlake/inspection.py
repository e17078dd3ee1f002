"""Inspect a table without Spark: facts, data files and versions, read from its Delta log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

from mirrorlake.delta.actions import Places, file_actions, live_files
from mirrorlake.delta.commits import Commit as Commit
from mirrorlake.delta.commits import CommitLog, History
from mirrorlake.delta.log_files import Action
from mirrorlake.delta.snapshot import OPEN_TAG, open_snapshot
from mirrorlake.errors import VersionError
from mirrorlake.history.versions import ReadableRange, find_readable_range
from mirrorlake.layout.guardrails import GuardrailReport, check_guardrails
from mirrorlake.mirror.options import declared_keys
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable, optional_figure
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

_GB = 10**9


@dataclass(frozen=True)
class TableFile:
    """A data file of a version, as the log describes it.

    Attributes:
        path: the path that the log records, URL-decoded.
        size: bytes.
        rows: rows without the deleted ones.
        deleted: rows that a deletion vector marks as deleted.
        partition: the partition's values as text; empty if the table is not partitioned.
        ordered: whether the rows are in V-Order.
    """

    path: str
    size: int
    rows: int
    deleted: int
    partition: str
    ordered: bool


@dataclass(frozen=True)
class VersionFiles:
    """A version's commit, and the data files that it added and removed.

    Attributes:
        commit: the commit.
        added: path and size in bytes of each added file.
        removed: path and size in bytes of each removed file.
    """

    commit: Commit
    added: tuple[tuple[str, int], ...]
    removed: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class FilesByVersion(Result):
    """The data files of each version of a table.

    Attributes:
        table: the table's name.
        versions: the versions, ascending.
        names: the files, numbered in the order in which they were added.
        files: by file and version, whether all rows of the file are live or some are deleted.
    """

    table: str
    versions: tuple[int, ...]
    names: tuple[str, ...]
    files: dict[tuple[str, int], str]

    def shown(self) -> TextTable:
        """Return one row per file, with a column per version."""
        rows = tuple(
            (name, *(self.files.get((name, version), "") for version in self.versions))
            for name in self.names
        )
        return TextTable(("file", *map(str, self.versions)), rows)

    @optional_figure
    def plot(self) -> Chart:
        """Draw which file belongs to which version."""
        from mirrorlake.show.plots import plot_presence

        return plot_presence(
            self.names,
            [str(version) for version in self.versions],
            {(name, str(version)): kind for (name, version), kind in self.files.items()},
            title=f"The Parquet files of {self.table}, version by version",
            label="version",
        )

    def __repr__(self) -> str:
        return f"{self.table}: {len(self.names)} files in {len(self.versions)} versions"


class Inspection:
    """One version of a table, read from its log without Spark.

    Args:
        storage: the lake's files.
        name: the table.

    Raises:
        TableNotFoundError: the table does not exist.
    """

    def __init__(self, storage: Storage, name: TableName) -> None:
        self.name = name
        self._storage = storage
        self._snapshot = open_snapshot(storage, name)
        self._log = CommitLog(storage, name.table_path)

    def __repr__(self) -> str:
        return f"Inspection({str(self.name)!r}, version {self.version})"

    @property
    def version(self) -> int:
        """The version's number."""
        return self._snapshot.version

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns as Spark's JSON describes them: name, type, nullable, metadata."""
        return self._snapshot.fields

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns that the publisher declared; empty if it declared none."""
        return declared_keys(self._snapshot.properties)

    @property
    def partition_columns(self) -> list[str]:
        """The columns that the table is partitioned by."""
        return self._snapshot.partition_columns

    @property
    def properties(self) -> dict[str, str]:
        """The table properties."""
        return self._snapshot.properties

    @property
    def has_feed(self) -> bool:
        """Whether the change feed is on."""
        return self._snapshot.has_feed

    @property
    def protocol(self) -> str:
        """The protocol versions and table features that readers and writers must support."""
        found = self._snapshot.protocol
        text = f"reader {found.get('minReaderVersion')}, writer {found.get('minWriterVersion')}"
        features = {*self._snapshot.reader_features, *self._snapshot.writer_features}
        return f"{text}: {', '.join(sorted(features))}" if features else text

    @cached_property
    def files(self) -> tuple[TableFile, ...]:
        """The data files, the largest first."""
        table_id = str(self._snapshot.metadata.get("id"))
        return _read_files(self._storage, self.name, table_id, self.version)

    @cached_property
    def earliest(self) -> int:
        """The oldest version whose commit the log still contains."""
        return self._log.earliest(self.version)

    def history(self, limit: int = 20, *, newest: int | None = None) -> History:
        """Return versions and their commits, newest first.

        Args:
            limit: the most versions to return; only their commits are read.
            newest: the version to start from; by default this one.
        """
        return self._log.read(self.version if newest is None else newest, limit)

    def changed_files(self, version: int) -> VersionFiles:
        """Return a version's commit with the files that it added and removed.

        Raises:
            VersionError: the log no longer contains the version.
        """
        commits = self._log.read(version, 1).commits
        if not commits:
            raise VersionError(
                f"The log of {self.name} does not contain version {version}.",
                hint=f"choose one of the versions {self.earliest} to {self.version}.",
            )
        found: dict[str, list[tuple[str, int]]] = {"add": [], "remove": []}
        for _, kind, action in file_actions(self._storage, self.name.table_path, version, version):
            found[kind].append((unquote(action["path"]), int(action.get("size") or 0)))
        return VersionFiles(commits[0], tuple(found["add"]), tuple(found["remove"]))

    def readable_range(self) -> ReadableRange:
        """Return the range of versions that can be read, and why older ones can't."""
        return find_readable_range(self._storage, self.name)

    def guardrails(self, sku: str, *, row_groups: int | None = None) -> GuardrailReport:
        """Compare the table, as the only one of a model, with a capacity's guardrails.

        Args:
            sku: the capacity, F2 to F2048.
            row_groups: the table's row groups, which only the files' footers record; by default
                one for each file.

        Raises:
            UsageError: there is no such SKU.
        """
        now = {
            "files": float(len(self.files)),
            "row_groups": float(len(self.files) if row_groups is None else row_groups),
            "rows": float(sum(file.rows for file in self.files)),
            "model_gb": sum(file.size for file in self.files) / _GB,
        }
        return check_guardrails(now, now, sku)

    def open(self, file: TableFile) -> IO[bytes]:
        """Open a data file for reading, also one that a shallow clone refers to."""
        storage, path = Places(self._storage, self.name.table_path).place(file.path)
        return storage.open(path)


@lru_cache(maxsize=2)  # a large table has many files, and several views show the same ones
def _read_files(
    storage: Storage, table: TableName, _table_id: str, version: int
) -> tuple[TableFile, ...]:
    """Return the data files of a version, the largest first.

    A table that was dropped and created again has another id.
    """
    found = [
        TableFile(
            unquote(action["path"]),
            int(action.get("size") or 0),
            int(action["records"]),
            int((action.get("deletionVector") or {}).get("cardinality", 0)),
            _values_text(action),
            OPEN_TAG in (action.get("tags") or {}),
        )
        for action in live_files(storage, table.table_path, version)
    ]
    return tuple(sorted(found, key=lambda file: (-file.size, file.path)))


def _values_text(action: dict[str, Any]) -> str:
    values = dict(action.get("partitionValues") or {})
    return ", ".join(f"{name}={value}" for name, value in values.items())


def files_by_version(
    storage: Storage, name: TableName, newest: int, first: int = 0
) -> FilesByVersion:
    """Return the data files of each version of a range.

    Args:
        storage: the lake's files.
        name: the table.
        newest: the last version.
        first: the first version.

    Raises:
        VersionError: the first version does not exist.
    """
    if not 0 <= first <= newest:
        raise VersionError(
            f"There is no version {first} of {name}.",
            hint=f"give a first version from 0 to {newest}.",
        )
    numbers: dict[str, str] = {}  # by path, in the order in which the files were added
    live: dict[str, str] = {}
    found: dict[tuple[str, int], str] = {}

    def follow(kind: str, action: Action) -> None:
        file = numbers.setdefault(action["path"], f"file {len(numbers) + 1}")
        live.pop(file, None)
        if kind == "add":
            live[file] = "some rows deleted" if action.get("deletionVector") else "all its rows"

    for action in live_files(storage, name.table_path, first - 1) if first else ():
        follow("add", action)
    for version in range(first, newest + 1):
        for _, kind, action in file_actions(storage, name.table_path, version, version):
            follow(kind, action)
        found |= {(file, version): kind for file, kind in live.items()}
    seen = {file for file, _ in found}
    names = tuple(file for file in numbers.values() if file in seen)
    return FilesByVersion(str(name), tuple(range(first, newest + 1)), names, found)
