"""Find the files of a Delta log that a version needs, and parse and write their actions.

A version needs the newest complete checkpoint up to it, possibly in parts or with sidecars, and the
commits after it.

On an object store, a table is dropped in place: a drop writes one document and moves no file. A
store can't rename a folder. A move would copy every file and could be interrupted between any two.
The document hides the table in one atomic step, and deleting the document restores it, in one step
as well. A disk has such documents only in the copy of a store's lake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from mirrorlake.errors import InvalidNameError, TableNotFoundError, UsageError
from mirrorlake.names import SCHEMA_SUFFIX, STATE, TABLES, TableName
from mirrorlake.storage.files import Entry, Storage
from mirrorlake.storage.kept import read_kept

Action = dict[str, Any]
_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
# version.checkpoint.parquet, version.checkpoint.part.parts.parquet, version.checkpoint.uuid.parquet
# or .json. On local disks Spark also writes `.….parquet.crc` files.
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.(?P<uuid>[0-9A-Fa-f-]{36}))?\.(parquet|json)",
    re.ASCII,
)
_KIND = re.compile(rb'\s*\{\s*"(\w+)"')
_BATCH = 65_536  # rows; most are NULL, and smaller batches cost more than their content
_PIECE = 4096  # rows that are Python objects at the same time
FORMAT = 1
_NOTES = f"{STATE}/dropped_in_place"
_ENDING = ".json"


@dataclass(frozen=True)
class Segment:
    """The part of a log from which a version can be reconstructed.

    Attributes:
        version: the version.
        base: the version of the checkpoint from which it starts, or -1.
        checkpoint: the checkpoint's files with its sidecars, relative to the lake's root.
        commits: the files of the commits after it, relative to the lake's root, ascending.
    """

    version: int
    base: int
    checkpoint: tuple[str, ...]
    commits: tuple[str, ...]


def log_file(version: int) -> str:
    """Return the path of one commit, relative to the table's folder."""
    return f"_delta_log/{version:020d}.json"


def commit_path(table_path: str, version: int) -> str:
    """Return the path of one commit, relative to the lake's root."""
    return f"{table_path}/{log_file(version)}"


def parse_actions(lines: Iterable[bytes], kinds: Collection[str]) -> Iterator[tuple[str, Action]]:
    """Yield the actions of some kinds, each with its kind; other lines are not parsed."""
    for line in lines:
        match = _KIND.match(line)
        if match and (kind := match[1].decode()) in kinds:
            yield kind, json.loads(line)[kind]


def encode_actions(actions: Iterable[dict[str, Action]]) -> bytes:
    """Return the content of a commit with these actions, each by its kind."""
    lines = (json.dumps(a, separators=(",", ":"), ensure_ascii=False) for a in actions)
    return "".join(f"{line}\n" for line in lines).encode()


def read_actions(
    storage: Storage, path: str, kinds: Collection[str]
) -> Iterator[tuple[str, Action]]:
    """Yield the actions of some kinds in a commit, a checkpoint or a sidecar, each with its kind.

    Args:
        storage: the lake's files.
        path: the file.
        kinds: kinds such as `add`; `add.path` reads only that field of a Parquet file's `add`.
    """
    if path.endswith(".json"):
        names = [kind.partition(".")[0] for kind in kinds]
        yield from parse_actions(storage.read(path).splitlines(), names)
        return
    with storage.open(path) as source, pq.ParquetFile(source) as file:
        known = file.schema_arrow.names
        columns = [kind for kind in kinds if kind.partition(".")[0] in known]
        for batch in file.iter_batches(_BATCH, columns=columns) if columns else ():
            for kind in batch.schema.names:
                found = batch.column(kind).drop_null()
                for start in range(0, len(found), _PIECE):
                    piece = found.slice(start, _PIECE).to_pylist(maps_as_pydicts="strict")
                    yield from ((kind, action) for action in piece)


@dataclass(frozen=True)
class LogListing:
    """The content of a log's folder.

    Attributes:
        commits: the commits' files by version, ascending.
        checkpoints: the paths of the complete checkpoints by version.
    """

    commits: dict[int, Entry]
    checkpoints: dict[int, tuple[str, ...]]


def list_log(storage: Storage, table_path: str) -> LogListing:
    """List a table's log; both parts of the result are empty without a table."""
    files = storage.list(f"{table_path}/_delta_log").files
    commits = {int(m[1]): entry for entry in files if (m := _COMMIT.fullmatch(entry.name))}
    names = [entry.name for entry in files]
    return LogListing(commits, _complete_checkpoints(f"{table_path}/_delta_log", names))


def has_log(storage: Storage, table_path: str) -> bool:
    """Check whether a table's folder that contains `_delta_log` is a table.

    On a local disk it always is. On an object store the log's folder may be only the marker of a
    folder that Hadoop writes.
    """
    if storage.local is not None:
        return True
    log = list_log(storage, table_path)
    return bool(log.commits or log.checkpoints)


def find_checkpoint(
    storage: Storage, table_path: str, version: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """Return a checkpoint's version and the paths of its files without sidecars.

    Without a checkpoint, return -1 and no paths. The cost is one or two requests if the pointer to
    the last checkpoint is sufficient, else a listing.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: the newest version to consider; by default the last checkpoint is returned.
    """
    pointed = _last_checkpoint(storage, table_path)
    if pointed is None and storage.exists(commit_path(table_path, 0)):
        return -1, ()
    if pointed is not None and (version is None or pointed[0] <= version):
        return pointed
    found = list_log(storage, table_path).checkpoints
    known = [at for at in found if version is None or at <= version]
    return (max(known), found[max(known)]) if known else (-1, ())


def checkpoint_files(
    storage: Storage, table_path: str, version: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """Return the result of `find_checkpoint`, with the paths of sidecars."""
    at, paths = find_checkpoint(storage, table_path, version)
    return at, paths + _sidecars(storage, table_path, paths)


def find_segment(
    storage: Storage, table_path: str, version: int | None = None, *, oldest: bool = False
) -> Segment:
    """Return the log's files needed to read one version, by a listing.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the lake's root.
        version: the version; by default the newest.
        oldest: start as early as the log allows, not at the newest checkpoint.

    Raises:
        TableNotFoundError: the folder contains no Delta table.
        UsageError: the log does not contain the version, or no longer.
    """
    log = list_log(storage, table_path)
    commits, checkpoints = log.commits, log.checkpoints
    newest = max([*commits, *checkpoints], default=None)
    if newest is None:
        raise TableNotFoundError(f"{storage.path(table_path)} is not a Delta table.")
    wanted = newest if version is None else version
    starts = [base for base in (-1, *sorted(checkpoints)) if base <= wanted]
    whole = [base for base in starts if all(v in commits for v in range(base + 1, wanted + 1))]
    if not whole or not 0 <= wanted <= newest:
        raise UsageError(
            f"The log of {storage.path(table_path)} does not contain version {wanted}.",
            hint=f"the newest version is {newest}; `history` lists the others.",
        )
    base = whole[0] if oldest else whole[-1]
    paths = checkpoints.get(base, ())
    paths += _sidecars(storage, table_path, paths)
    after = tuple(commit_path(table_path, version) for version in range(base + 1, wanted + 1))
    return Segment(wanted, base, paths, after)


def cut_before_checkpoint(storage: Storage, table_path: str) -> None:
    """Delete the files of a log that are older than its last checkpoint."""
    last = _last_checkpoint(storage, table_path)
    log = f"{table_path}/_delta_log"
    for entry in storage.list(log).files:
        match = re.match(r"\.?(\d{20})\.", entry.name)  # Spark's own checksums start with a dot
        if match and last is not None and int(match[1]) < last[0]:
            storage.delete(f"{log}/{entry.name}")


def _last_checkpoint(storage: Storage, table_path: str) -> tuple[int, tuple[str, ...]] | None:
    """Return the checkpoint named by the pointer to the last one.

    According to the protocol, a corrupt pointer counts as none.
    """
    log = f"{table_path}/_delta_log"
    try:
        last = storage.read_json(f"{log}/_last_checkpoint")
    except ValueError:
        return None
    if not isinstance(last, dict) or not isinstance(last.get("version"), int):
        return None
    stem = f"{last['version']:020d}.checkpoint"
    names = [f"{stem}.parquet"]
    if v2 := last.get("v2Checkpoint"):
        names = [v2["path"]]
    elif parts := last.get("parts"):
        names = [f"{stem}.{i + 1:010d}.{parts:010d}.parquet" for i in range(parts)]
    return last["version"], tuple(f"{log}/{name}" for name in names)


def _complete_checkpoints(log: str, names: list[str]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, sorted(names))):
        version = int(match["version"])
        if match["parts"]:
            parts.setdefault((version, int(match["parts"])), []).append(f"{log}/{match[0]}")
        else:
            found[version] = (f"{log}/{match[0]}",)
    for (version, count), paths in parts.items():
        if len(paths) == count:  # a writer may have been killed between two parts
            found.setdefault(version, tuple(paths))
    return found


def _sidecars(storage: Storage, table_path: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    if len(paths) > 1:  # a checkpoint in parts has no sidecars
        return ()
    found = [a for path in paths for _, a in read_actions(storage, path, ("sidecar",))]
    return tuple(f"{table_path}/_delta_log/_sidecars/{sidecar['path']}" for sidecar in found)


def is_dropped(storage: Storage, table_path: str) -> bool:
    """Check whether a table was dropped in place; on a disk, only in the copy of a store's lake.

    The cost is one request.
    """
    table = _table_at(table_path)
    return table is not None and storage.exists(_note(table))


def note_drop(storage: Storage, table: TableName, document: dict[str, Any]) -> None:
    """Drop a table in place.

    Args:
        storage: the lake's files.
        table: the table.
        document: when the table was dropped, and what filled it.
    """
    storage.write_json(_note(table), {"format": FORMAT, **document})


def take_note_back(storage: Storage, table: TableName) -> None:
    """Undo `note_drop`."""
    storage.delete(_note(table))


def read_drop(storage: Storage, table: TableName) -> dict[str, Any] | None:
    """Return the document of a table that was dropped in place, else None.

    Raises:
        FormatError: the document has a newer format.
    """
    return read_kept(storage, _note(table), FORMAT)


def dropped_in_place(storage: Storage) -> Iterator[TableName]:
    """Yield the tables that were dropped in place, in no order."""
    listing = storage.list(_NOTES)
    for entry in listing.files:
        yield TableName(None, entry.name.removesuffix(_ENDING))
    for folder in listing.folders:
        schema = folder.removesuffix(SCHEMA_SUFFIX)
        for entry in storage.list(f"{_NOTES}/{folder}").files:
            yield TableName(schema, entry.name.removesuffix(_ENDING))


def _note(table: TableName) -> str:
    return f"{_NOTES}/{table.place}{_ENDING}"


def _table_at(path: str) -> TableName | None:
    parts = path.removeprefix(f"{TABLES}/").split("/")
    if not path.startswith(f"{TABLES}/") or len(parts) > 2:
        return None
    try:
        return TableName(parts[0] if len(parts) == 2 else None, parts[-1])
    except InvalidNameError:
        return None
