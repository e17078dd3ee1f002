"""Files behind a path or a URI: list, read, create if absent, rename without overwrite, delete.

Everything that must be atomic goes through obstore, which has the two operations that
`pyarrow.fs` lacks: create-if-absent and rename-without-overwrite, on local disks and object stores.
Paths are relative to the root, with `/` between the segments.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from mirrorlake.errors import MirrorlakeError, SetupError, first_line
from mirrorlake.storage.object_stores import (
    CLOUDS,
    Seen,
    Writer,
    create_object,
    head_object,
    one_uri,
    open_store,
    open_tail,
    probe_conditions,
    read_object,
    remove_markers,
    rename_object,
    replace_object,
    scheme_of,
    store_variables,
)
from mirrorlake.storage.paths import URI

PAGE = 1000  # what one request of a listing tells of at most
AT_ONCE = 16  # listings side by side


@dataclass(frozen=True)
class Entry:
    """One file of a listing.

    Attributes:
        name: without its folder.
        size: in bytes.
        modified: when it was written; a store tells seconds.
        etag: what a store calls this content of it; None on local disks.
    """

    name: str
    size: int
    modified: datetime
    etag: str | None = None

    @property
    def state(self) -> str:
        """What changes with the file: its time, and in a store, whose times are coarse, its tag."""
        when = self.modified.isoformat()
        return when if self.etag is None else f"{when} {self.etag}"


@dataclass(frozen=True)
class Listing:
    """What lies directly in one folder, both parts ordered by name."""

    folders: tuple[str, ...]
    files: tuple[Entry, ...]

    def file(self, name: str) -> Entry | None:
        """The file of that name, or None."""
        return next((entry for entry in self.files if entry.name == name), None)

    def state_of(self, name: str) -> str | None:
        """What changes with the file of that name, see `Entry.state`; None if there is none."""
        entry = self.file(name)
        return None if entry is None else entry.state


def list_local(folder: str) -> Listing:
    """What lies directly in a folder of a local disk; both parts empty if there is none."""
    # obstore refuses a whole listing for one name with a control character in it.
    folders: list[str] = []
    files: list[Entry] = []
    try:
        with os.scandir(folder) as found:
            for item in found:
                try:
                    if item.is_dir():
                        folders.append(item.name)
                    else:
                        stat = item.stat()
                        when = datetime.fromtimestamp(stat.st_mtime, timezone.utc)
                        files.append(Entry(item.name, stat.st_size, when))
                except FileNotFoundError:
                    continue  # deleted between the listing and the look at it
    except (FileNotFoundError, NotADirectoryError):
        return Listing((), ())
    return Listing(tuple(sorted(folders)), tuple(sorted(files, key=lambda entry: entry.name)))


def split_pages(
    pages: Iterable[Sequence[tuple[str, Entry]]], wanted: Collection[str]
) -> dict[str, Listing]:
    """The listings of many folders from one of all that lies below the folder above them.

    It goes on while a request tells of as many folders as are listed side by side otherwise.

    Args:
        pages: paths with their entries, by requests, in the order of a store: that of the names.
        wanted: the folders' paths.

    Returns:
        By path the listings of the folders that were told of whole. A folder with an empty file is
        none of them, for that may be a marker of a folder.
    """
    files: dict[str, list[Entry]] = defaultdict(list)
    folders: dict[str, set[str]] = defaultdict(set)
    unclear: set[str] = set()
    path = ""
    for requests, page in enumerate(pages):
        for path, entry in page:
            parent, _, _ = path.rpartition("/")
            if parent in wanted:
                files[parent].append(entry)
                if not entry.size:
                    unclear.add(parent)
            above, _, name = parent.rpartition("/")
            while above:
                if above in wanted:
                    folders[above].add(name)
                above, _, name = above.rpartition("/")
        if len(files) < AT_ONCE * requests:
            unclear |= {one for one in files if path.startswith(f"{one}/")}
            break
    return {
        one: Listing(tuple(sorted(folders[one])), tuple(found))
        for one, found in files.items()
        if one not in unclear
    }


_COPIES = 16
_CHUNK = 2**20
_CHECKED: set[str] = set()  # the roots whose stores are known to keep conditions


@contextlib.contextmanager
def storage_errors(root: str) -> Iterator[None]:
    """What a disk or store refuses comes out as an error with a hint; also a decorator's body.

    Args:
        root: the lake, for the message.

    Raises:
        SetupError: the disk is read-only or full, or access is refused.
    """
    try:
        yield
    except MirrorlakeError:
        raise
    except (OSError, BaseError) as error:
        raise SetupError(
            f"{root} can't be read or written: {first_line(error)}.",
            hint="look whether its disk is read-only or full, and who may write there.",
        ) from error


class Storage:
    """The files of one lake.

    Args:
        root: a local path, or a URI that obstore understands (`s3://`, `az://`, `gs://`, `file://`).

    A store's keys are the process's variables. A storage that is sent to another process, such as
    an executor of Spark, takes them along.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        if text.lower().startswith("file://"):
            text = unquote(urlsplit(text).path)
        self.local: Path | None = None if URI.match(text) else Path(text).expanduser().absolute()
        self.root = one_uri(text) if self.local is None else str(self.local)
        self._store: Any = (
            LocalStore(self.local, mkdir=True) if self.local is not None else open_store(self.root)
        )
        self._in_cloud = self.local is None and scheme_of(self.root) in CLOUDS

    def __repr__(self) -> str:
        return f"Storage({self.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.root, store_variables(self.root))

    def path(self, relative: str) -> str:
        """The full path or URI, as Spark reads it."""
        return f"{self.root}/{relative}" if relative else self.root

    def list(self, folder: str) -> Listing:
        """The files and folders directly in a folder; both empty if there is no such folder."""
        if self.local is not None:
            return list_local(self.path(folder))
        found = obstore.list_with_delimiter(self._store, folder)
        below = f"{folder}/" if folder else ""
        folders = sorted(p.rstrip("/").rpartition("/")[2] for p in found["common_prefixes"])
        files = [
            self._entry(meta)
            for meta in found["objects"]
            if meta["path"].startswith(below)  # else it is Hadoop's marker of the folder itself
        ]
        return Listing(tuple(folders), tuple(sorted(files, key=lambda entry: entry.name)))

    def list_many(self, folder: str, wanted: Collection[str]) -> dict[str, Listing]:
        """What `list` says of folders below one, as far as one listing of all is worth while.

        Ask `list` for each of those that are not in the answer; on a local disk, and where they are
        few, that is all.

        Args:
            folder: the one above.
            wanted: the paths of the folders, relative to the root.
        """
        if self.local is not None or len(wanted) <= AT_ONCE:
            return {}
        pages = obstore.list(self._store, f"{folder}/", chunk_size=PAGE)
        return split_pages(
            ([(meta["path"], self._entry(meta)) for meta in page] for page in pages), wanted
        )

    def names_from(self, folder: str, start: str) -> tuple[str, ...]:
        """The names of the files directly in a folder that come after `start`, in order.

        In a store what comes before is not looked at, and files of folders inside are.
        """
        if self.local is not None:
            return tuple(entry.name for entry in self.list(folder).files if entry.name > start)
        below = f"{folder}/"
        pages = obstore.list(self._store, below, offset=f"{below}{start}" if start else None)
        paths = (str(meta["path"]).removeprefix(below) for page in pages for meta in page)
        return tuple(sorted(path for path in paths if "/" not in path))

    def exists(self, path: str) -> bool:
        """Whether there is a file at that path."""
        if self.local is not None:
            return os.path.isfile(self.path(path))
        return self.stat(path) is not None

    def stat(self, path: str) -> Entry | None:
        """Name, size and time of one file, or None if there is none."""
        meta = head_object(self._store, path)
        return None if meta is None else self._entry(meta)

    def _entry(self, meta: Any) -> Entry:
        etag = None if self.local is not None else meta["e_tag"]
        return Entry(meta["path"].rpartition("/")[2], meta["size"], meta["last_modified"], etag)

    def read(self, path: str) -> bytes:
        """The whole file.

        Raises:
            FileNotFoundError: there is none.
        """
        return bytes(obstore.get(self._store, path).bytes())

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, or to the file's end, in one request.

        Raises:
            FileNotFoundError: there is none.
        """
        if self.local is not None:
            with open(self.local / path, "rb") as source:
                source.seek(start)
                return source.read(end - start)
        return bytes(obstore.get_range(self._store, path, start=start, end=end))

    def read_json(self, path: str) -> Any | None:
        """The JSON document in a file of our own, or None if there is no file."""
        try:
            return json.loads(self.read(path))
        except FileNotFoundError:
            return None

    def open(self, path: str) -> IO[bytes]:
        """A seekable reader that fetches ranges as they are asked for."""
        if self.local is not None:
            return open(self.local / path, "rb")
        return open_tail(self._store, path)

    def chunks(self, path: str) -> Iterator[bytes]:
        """The whole file in pieces, by one request.

        Raises:
            FileNotFoundError: there is none.
        """
        if self.local is None:
            yield from (bytes(part) for part in obstore.get(self._store, path).stream())
            return
        with open(self.local / path, "rb") as source:
            while part := source.read(_CHUNK):
                yield part

    def open_writer(self, path: str) -> IO[bytes]:
        """A writer for a new file; on local disks the folder is made."""
        if self.local is not None:
            target = self.local / path
            target.parent.mkdir(parents=True, exist_ok=True)
            return open(target, "wb")
        return cast("IO[bytes]", Writer(obstore.open_writer(self._store, path)))

    def write(self, path: str, data: bytes) -> None:
        """Puts a file there in one atomic step, in place of what was there."""
        obstore.put(self._store, path, data)

    def write_json(self, path: str, document: Any) -> None:
        """Puts a JSON document there in one atomic step."""
        self.write(path, to_json(document))

    def create(self, path: str, data: bytes, *, make_folder: bool = True) -> bool:
        """Puts a file there if there is none; False if there already was one.

        Without `make_folder` nothing happens if its folder is gone, where there are folders.
        """
        if not make_folder and self.local is not None:
            return _create_in_folder(self.local / path, data)
        if self._in_cloud:
            return create_object(self._store, path, data)
        try:
            obstore.put(self._store, path, data, mode="create")
            return True
        except AlreadyExistsError:
            return False

    def look_at(self, path: str) -> tuple[bytes, Seen] | None:
        """A file of a store, and what tells it from what may be written in its place; None if none.

        See `replace`.
        """
        return read_object(self._store, path)

    def replace(self, path: str, data: bytes, seen: Seen | None) -> Seen | None:
        """Puts a file of a store there if it still is the one that was seen, or if there is none.

        Its content must be its writer's alone: after a lost answer a file with that content is
        taken for this call's own.

        Args:
            path: the file.
            data: its content.
            seen: what was there; None if there was nothing.

        Returns:
            What is seen now; None if another file was there.
        """
        return replace_object(self._store, path, data, seen)

    def check_conditions(self) -> None:
        """Refuses a store that lets writers overwrite each other; asks once in a process.

        Raises:
            SetupError: the store ignores conditions.
        """
        if self._in_cloud and self.root not in _CHECKED:
            probe_conditions(self._store, self._unrepeated, "Files/_mirrorlake/probe", self.root)
            _CHECKED.add(self.root)

    @cached_property
    def _unrepeated(self) -> Any:
        return open_store(self.root, retried=False)

    def rename(self, source: str, target: str) -> bool:
        """Renames a file without ever overwriting; False if the target was there.

        Raises:
            FileNotFoundError: there is no such source.
        """
        if self._in_cloud:
            return rename_object(self._store, self._unrepeated, source, target)
        try:
            obstore.rename(self._store, source, target, overwrite=False)
            return True
        except AlreadyExistsError:
            return False

    def copy_small(self, source: str, target: str) -> bool:
        """Copies a file that fits into memory to where there is none; False if there is one.

        On S3 that is two requests, where a rename without overwriting has four.

        Raises:
            FileNotFoundError: there is no such source.
        """
        return self.create(target, self.read(source))

    @property
    def is_s3(self) -> bool:
        """Whether the files lie on S3 or what speaks like it."""
        return self._in_cloud and scheme_of(self.root) == "s3"

    def touch(self, path: str) -> None:
        """Makes now the time of a file's modification; a rename on object stores has done so."""
        if self.local is not None:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.local / path)

    def move_folder(self, source: str, target: str) -> bool:
        """Moves a folder to where there is none: one step on local disks, file by file elsewhere.

        Returns:
            False if the target was there, or the source was not.
        """
        if self.local is not None:
            if (self.local / target).exists() or not (self.local / source).exists():
                return False
            (self.local / target).parent.mkdir(parents=True, exist_ok=True)
            (self.local / source).rename(self.local / target)
            return True
        files = self.files_below(source)
        copies = {target + path[len(source) :]: path for path in files}
        # What an earlier move left when it was cut short is no other's, and is copied again.
        if not files or not copies.keys() >= set(self.files_below(target)):
            return False
        with ThreadPoolExecutor(_COPIES) as pool:
            for _, some in groupby(sorted(copies, key=_stage), key=_stage):
                list(pool.map(lambda path: obstore.copy(self._store, copies[path], path), some))
        self.delete_folder(source)
        return True

    def delete_folder(self, folder: str) -> None:
        """Removes a folder with all that is in it; nothing happens if there is none."""
        if self.local is not None:
            shutil.rmtree(self.local / folder, ignore_errors=True)
            return
        files, markers = self._objects_below(folder)
        for path in sorted(files, key=_stage, reverse=True):
            self.delete(path)
        if markers and folder:
            remove_markers(self.path(folder))

    def files_below(self, folder: str) -> tuple[str, ...]:
        """The paths of all files in a folder and its folders, relative to the root."""
        return self._objects_below(folder)[0]

    def _objects_below(self, folder: str) -> tuple[tuple[str, ...], bool]:
        """The paths of all files in a folder, and whether there are markers of folders."""
        pages = obstore.list(self._store, f"{folder}/" if folder else None)
        found = sorted((meta["path"], meta["size"]) for page in pages for meta in page)
        # A marker is listed as an empty file without its last `/`: a file that is not there.
        files = tuple(
            path
            for path, size in found
            if size or self.local is not None or (path != folder and self.exists(path))
        )
        return files, len(files) < len(found)

    def delete_files(self, paths: Iterable[str]) -> None:
        """Removes files, in a store many by one request; passes over those that are not there."""
        some = list(paths)
        if self.local is None and some:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, some)
                return
        for path in some:
            self.delete(path)

    def delete(self, path: str) -> None:
        """Removes a file; nothing happens if there is none."""
        with contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)


def _reopened(root: str, variables: dict[str, str]) -> Storage:
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    return Storage(root)


def to_json(document: Any) -> bytes:
    """A JSON document as it lies on disk: indented, keys in the given order."""
    # A folder's name need not be UTF-8; what isn't becomes a JSON escape and reads back the same.
    return json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace")


def _stage(path: str) -> int:
    """In which order a table's files are put there; they go in the other one.

    A table is visible by its log: from its first version on, or from a checkpoint on.
    """
    _, is_log, name = path.rpartition("/_delta_log/")
    starts = name == f"{0:020d}.json" or "checkpoint" in name
    return 0 if not is_log else 2 if starts else 1


def _create_in_folder(target: Path, data: bytes) -> bool:
    """Creates a file on a disk, in a folder that is not made; False if either is not to be had."""
    staged = target.with_name(f"_{uuid.uuid4().hex}")
    try:
        staged.write_bytes(data)
        os.link(staged, target)  # unlike a rename it never replaces what is there
        return True
    except (FileExistsError, FileNotFoundError):
        return False
    finally:
        staged.unlink(missing_ok=True)
