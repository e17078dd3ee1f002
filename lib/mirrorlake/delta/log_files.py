"""The files of a Delta log: their names, which of them a version needs, and the actions in each.

A version needs the newest whole checkpoint up to it, maybe in parts or with sidecars, and the
commits after it.

On an object store a dropped table stays where it lies: a drop is one document, not a move. A store
has no folder to rename: a move copies every file, and can be cut short between any two. The
document hides a table from all that asks for it by its place, in one atomic step; without the
document it is back, in one step as well.
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
# or .json; Spark leaves `.….parquet.crc` files beside them on local disks.
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.(?P<uuid>[0-9A-Fa-f-]{36}))?\.(parquet|json)",
    re.ASCII,
)
_KIND = re.compile(rb'\s*\{\s*"(\w+)"')
_BATCH = 65_536  # smaller ones cost more than what is in them, where most are NULL
_PIECE = 4096  # as Python's objects at a time
FORMAT = 1
_NOTES = f"{STATE}/dropped_in_place"
_ENDING = ".json"


@dataclass(frozen=True)
class Segment:
    """The part of a log that says what a version holds.

    Attributes:
        version: the version it leads to.
        base: the checkpoint's version it starts from, or -1.
        checkpoint: the checkpoint's files, relative to the lake's root; sidecars are among them.
        commits: the commits after it, likewise, ascending.
    """

    version: int
    base: int
    checkpoint: tuple[str, ...]
    commits: tuple[str, ...]


def log_file(version: int) -> str:
    """The path of one commit, relative to the table's folder."""
    return f"_delta_log/{version:020d}.json"


def commit_path(table_path: str, version: int) -> str:
    """The path of one commit, relative to the lake's root."""
    return f"{table_path}/{log_file(version)}"


def parse_actions(lines: Iterable[bytes], kinds: Collection[str]) -> Iterator[tuple[str, Action]]:
    """The actions of some kinds, each with its kind; the other lines are not parsed."""
    for line in lines:
        match = _KIND.match(line)
        if match and (kind := match[1].decode()) in kinds:
            yield kind, json.loads(line)[kind]


def encode_actions(actions: Iterable[dict[str, Action]]) -> bytes:
    """A commit of actions, each by its kind."""
    lines = (json.dumps(a, separators=(",", ":"), ensure_ascii=False) for a in actions)
    return "".join(f"{line}\n" for line in lines).encode()


def read_actions(
    storage: Storage, path: str, kinds: Collection[str]
) -> Iterator[tuple[str, Action]]:
    """The actions of some kinds in a commit, a checkpoint or a sidecar, each with its kind.

    Args:
        storage: the lake's files.
        path: the file.
        kinds: `add` for example; `add.path` reads nothing else of a Parquet file's `add`.
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
    """What a log's folder holds.

    Attributes:
        commits: their files, by version, ascending.
        checkpoints: the paths of the whole ones, by version.
    """

    commits: dict[int, Entry]
    checkpoints: dict[int, tuple[str, ...]]


def list_log(storage: Storage, table_path: str) -> LogListing:
    """Lists a table's log; both parts are empty if there is no table."""
    files = storage.list(f"{table_path}/_delta_log").files
    commits = {int(m[1]): entry for entry in files if (m := _COMMIT.fullmatch(entry.name))}
    names = [entry.name for entry in files]
    return LogListing(commits, _complete_checkpoints(f"{table_path}/_delta_log", names))


def has_log(storage: Storage, table_path: str) -> bool:
    """Whether a table's folder with a log in it is a table; on a local disk it always is.

    In a store the log's folder may be no more than the marker that Hadoop leaves of a folder.
    """
    if storage.local is not None:
        return True
    log = list_log(storage, table_path)
    return bool(log.commits or log.checkpoints)


def find_checkpoint(
    storage: Storage, table_path: str, version: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """A checkpoint's version and its files' paths without sidecars; -1 and none if there is none.

    Costs one or two requests where the pointer to the last checkpoint will do, else a listing.

    Args:
        storage: the lake's files.
        table_path: the table's folder.
        version: the newest version that counts; by default the last checkpoint is taken.
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
    """The same as `find_checkpoint`, with sidecars."""
    at, paths = find_checkpoint(storage, table_path, version)
    return at, paths + _sidecars(storage, table_path, paths)


def find_segment(
    storage: Storage, table_path: str, version: int | None = None, *, oldest: bool = False
) -> Segment:
    """The log's files to read for one version, by a listing.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the root.
        version: by default the newest.
        oldest: start as early as the log still allows, not at the newest checkpoint.

    Raises:
        TableNotFoundError: there is no Delta table.
        UsageError: that version is not there, or no longer there.
    """
    log = list_log(storage, table_path)
    commits, checkpoints = log.commits, log.checkpoints
    newest = max([*commits, *checkpoints], default=None)
    if newest is None:
        raise TableNotFoundError(f"There is no Delta table at {storage.path(table_path)}.")
    wanted = newest if version is None else version
    starts = [base for base in (-1, *sorted(checkpoints)) if base <= wanted]
    whole = [base for base in starts if all(v in commits for v in range(base + 1, wanted + 1))]
    if not whole or not 0 <= wanted <= newest:
        raise UsageError(
            f"Version {wanted} can't be read: the log goes to {newest}.",
            hint="`history` shows the versions that are there.",
        )
    base = whole[0] if oldest else whole[-1]
    paths = checkpoints.get(base, ())
    paths += _sidecars(storage, table_path, paths)
    after = tuple(commit_path(table_path, version) for version in range(base + 1, wanted + 1))
    return Segment(wanted, base, paths, after)


def cut_before_checkpoint(storage: Storage, table_path: str) -> None:
    """Lets a log begin with its last checkpoint: what is older goes."""
    last = _last_checkpoint(storage, table_path)
    log = f"{table_path}/_delta_log"
    for entry in storage.list(log).files:
        match = re.match(r"\.?(\d{20})\.", entry.name)  # Spark's own checksums start with a dot
        if match and last is not None and int(match[1]) < last[0]:
            storage.delete(f"{log}/{entry.name}")


def _last_checkpoint(storage: Storage, table_path: str) -> tuple[int, tuple[str, ...]] | None:
    """What the pointer names; a broken one is as good as none, says the protocol."""
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
        if len(paths) == count:  # a writer may have died between two parts
            found.setdefault(version, tuple(paths))
    return found


def _sidecars(storage: Storage, table_path: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    if len(paths) > 1:  # one in parts has none
        return ()
    found = [a for path in paths for _, a in read_actions(storage, path, ("sidecar",))]
    return tuple(f"{table_path}/_delta_log/_sidecars/{sidecar['path']}" for sidecar in found)


def is_dropped(storage: Storage, table_path: str) -> bool:
    """Whether a table's place holds a dropped one; never on a local disk. Costs one request."""
    if storage.local is not None:
        return False
    table = _table_at(table_path)
    return table is not None and storage.exists(_note(table))


def note_drop(storage: Storage, table: TableName, document: dict[str, Any]) -> None:
    """Drops a table where it lies; `document` says when, and what filled it."""
    storage.write_json(_note(table), {"format": FORMAT, **document})


def take_note_back(storage: Storage, table: TableName) -> None:
    """Undoes `note_drop`."""
    storage.delete(_note(table))


def read_drop(storage: Storage, table: TableName) -> dict[str, Any] | None:
    """The document of a table that is dropped where it lies, else None.

    Raises:
        FormatError: it is of a newer format.
    """
    return read_kept(storage, _note(table), FORMAT)


def dropped_in_place(storage: Storage) -> Iterator[TableName]:
    """The tables that are dropped where they lie, in no particular order; none on a local disk."""
    if storage.local is not None:
        return
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
