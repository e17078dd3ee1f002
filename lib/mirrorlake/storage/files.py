"""The files of a lake on a local disk or an object store: list, read, create, rename, delete.

Atomic operations go through obstore. It has create-if-absent and rename-without-overwrite for local
disks and object stores, which `pyarrow.fs` lacks. Paths are relative to the root, separated by `/`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from mirrorlake.errors import MirrorlakeError, SetupError, first_line
from mirrorlake.notices import noop
from mirrorlake.storage.object_stores import (
    CLOUDS,
    Seen,
    Writer,
    copy_object,
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
from mirrorlake.storage.paths import ON_WINDOWS, URI

PAGE = 1000  # the most entries per request of a listing
AT_ONCE = 16  # the number of concurrent requests
_One = TypeVar("_One")
_Done = TypeVar("_Done")


@dataclass(frozen=True)
class Entry:
    """One file of a listing.

    Attributes:
        name: the name, without the folder.
        size: the size in bytes.
        modified: the time of the last write; stores report whole seconds.
        etag: the store's tag of the content; None on local disks.
    """

    name: str
    size: int
    modified: datetime
    etag: str | None = None

    @property
    def state(self) -> str:
        """A token that changes whenever the file changes: its time, and in a store also its tag."""
        when = self.modified.isoformat()
        return when if self.etag is None else f"{when} {self.etag}"


@dataclass(frozen=True)
class Listing:
    """The direct content of a folder; folders and files are ordered by name."""

    folders: tuple[str, ...]
    files: tuple[Entry, ...]

    def file(self, name: str) -> Entry | None:
        """Return the file with that name, or None."""
        return next((entry for entry in self.files if entry.name == name), None)

    def state_of(self, name: str) -> str | None:
        """Return the file's token (see `Entry.state`), or None if the file does not exist."""
        entry = self.file(name)
        return None if entry is None else entry.state


def list_local(folder: str) -> Listing:
    """Return the direct content of a local folder; it is empty if the folder does not exist."""
    # obstore fails for the whole folder if one name contains a control character.
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
                    continue  # deleted since the listing
    except (FileNotFoundError, NotADirectoryError):
        return Listing((), ())
    return Listing(tuple(sorted(folders)), tuple(sorted(files, key=lambda entry: entry.name)))


def split_pages(
    pages: Iterable[Sequence[tuple[str, Entry]]], wanted: Collection[str]
) -> dict[str, Listing]:
    """Return the listings of several folders from one recursive listing of their parent.

    Reading stops when the pages so far contain fewer than 16 folders per request: then concurrent
    listings of single folders are cheaper.

    Args:
        pages: the paths with their entries, page by page, in the store's order: by name.
        wanted: the paths of the folders.

    Returns:
        The complete listings by folder. A folder with an empty file is left out, because the file
        may be a folder marker.
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
_CHECKED: set[str] = set()  # the roots whose stores have passed `check_conditions`


STORAGE_HINT = (
    "check the permissions, and whether the disk is read-only or full; for an object store, check"
    " its address and credentials."
)


@contextlib.contextmanager
def storage_errors(root: str) -> Iterator[None]:
    """Convert errors of a disk or store into errors with a hint; also usable as a decorator.

    Args:
        root: the lake's root, for the message.

    Raises:
        SetupError: a file can't be read or written.
    """
    try:
        yield
    except MirrorlakeError:
        raise
    except (OSError, BaseError) as error:
        raise SetupError(
            f"{root} can't be read or written: {first_line(error)}.", hint=STORAGE_HINT
        ) from error


class Storage:
    """The files of one lake.

    Credentials of a store come from the process's environment. A storage that is pickled, for
    example for a Spark executor, carries these variables along.

    Args:
        root: a local path, or a URI that obstore supports (`s3://`, `az://`, `gs://`, `file://`).
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        if text.lower().startswith("file://"):
            text = url2pathname(urlsplit(text).path)  # drops the slash before a drive
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
        """Return the full path or URI of a file, as Spark reads it."""
        return f"{self.root}/{relative}" if relative else self.root

    def list(self, folder: str) -> Listing:
        """Return the files and folders directly in a folder; none if it does not exist."""
        if self.local is not None:
            return list_local(self.path(folder))
        found = obstore.list_with_delimiter(self._store, folder)
        below = f"{folder}/" if folder else ""
        folders = sorted(p.rstrip("/").rpartition("/")[2] for p in found["common_prefixes"])
        files = [
            self._entry(meta)
            for meta in found["objects"]
            if meta["path"].startswith(below)  # Hadoop's marker of the folder itself does not
        ]
        return Listing(tuple(folders), tuple(sorted(files, key=lambda entry: entry.name)))

    def list_many(self, folder: str, wanted: Collection[str]) -> dict[str, Listing]:
        """List several subfolders at once when one recursive listing is cheaper.

        Call `list` for the folders that the result lacks. On a local disk, and for few folders, the
        result is empty.

        Args:
            folder: the parent folder.
            wanted: the paths of the folders, relative to the root.
        """
        if self.local is not None or len(wanted) <= AT_ONCE:
            return {}
        pages = obstore.list(self._store, f"{folder}/", chunk_size=PAGE)
        return split_pages(
            ([(meta["path"], self._entry(meta)) for meta in page] for page in pages), wanted
        )

    def names_from(self, folder: str, start: str) -> tuple[str, ...]:
        """Return the sorted names of the files directly in a folder that are greater than `start`.

        A store skips the names before `start`, but reads those of files in subfolders.
        """
        if self.local is not None:
            return tuple(entry.name for entry in self.list(folder).files if entry.name > start)
        below = f"{folder}/"
        pages = obstore.list(self._store, below, offset=f"{below}{start}" if start else None)
        paths = (str(meta["path"]).removeprefix(below) for page in pages for meta in page)
        return tuple(sorted(path for path in paths if "/" not in path))

    def exists(self, path: str) -> bool:
        """Return whether a file exists at that path."""
        if self.local is not None:
            return os.path.isfile(self.path(path))
        return self.stat(path) is not None

    def stat(self, path: str) -> Entry | None:
        """Return the file's entry without reading the file, or None if it does not exist."""
        meta = head_object(self._store, path)
        return None if meta is None else self._entry(meta)

    def _entry(self, meta: Any) -> Entry:
        etag = None if self.local is not None else meta["e_tag"]
        return Entry(meta["path"].rpartition("/")[2], meta["size"], meta["last_modified"], etag)

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        return bytes(obstore.get(self._store, path).bytes())

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end` or the end of the file, with one request.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        if self.local is not None:
            with open(self.local / path, "rb") as source:
                source.seek(start)
                return source.read(end - start)
        return bytes(obstore.get_range(self._store, path, start=start, end=end))

    def read_json(self, path: str) -> Any | None:
        """Return the JSON document in a file, or None if the file does not exist."""
        try:
            return json.loads(self.read(path))
        except FileNotFoundError:
            return None

    def open(self, path: str) -> IO[bytes]:
        """Return a seekable reader that fetches byte ranges on demand."""
        if self.local is not None:
            return open(self.local / path, "rb")
        return open_tail(self._store, path)

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks, read with one request.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        if self.local is None:
            yield from (bytes(part) for part in obstore.get(self._store, path).stream())
            return
        with open(self.local / path, "rb") as source:
            while part := source.read(_CHUNK):
                yield part

    def open_writer(self, path: str) -> IO[bytes]:
        """Return a writer of a new file; on a local disk the folder is created."""
        if self.local is not None:
            target = self.local / path
            target.parent.mkdir(parents=True, exist_ok=True)
            return open(target, "wb")
        return cast("IO[bytes]", Writer(obstore.open_writer(self._store, path)))

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically, replacing an existing one."""
        obstore.put(self._store, path, data)

    def write_json(self, path: str, document: Any) -> None:
        """Write a JSON document atomically, replacing an existing one."""
        self.write(path, to_json(document))

    def create(self, path: str, data: bytes, *, make_folder: bool = True) -> bool:
        """Create a file only if none exists; return False if one exists.

        Without `make_folder` nothing happens if the folder does not exist on a local disk.
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
        except BaseError:
            if self.local is None:
                raise
            return _create_in_folder(self.local / path, data)

    def look_at(self, path: str) -> tuple[bytes, Seen] | None:
        """Return a stored file's content and its identity for `replace`, or None without a file."""
        return read_object(self._store, path)

    def replace(self, path: str, data: bytes, seen: Seen | None) -> Seen | None:
        """Write a store's file only if its content is still `seen` (compare-and-swap).

        The content must be unique to this writer: if the answer of the store is lost, a file with
            this
        content counts as the result of this call.

        Args:
            path: the path of the file.
            data: the new content.
            seen: the identity of the content to replace; None if the file must not exist yet.

        Returns:
            The identity of the new content; None if another writer's file was found.
        """
        return replace_object(self._store, path, data, seen)

    def check_conditions(self) -> None:
        """Check once per process that the store does not let writers overwrite each other's files.

        Raises:
            SetupError: the store ignores conditional requests.
        """
        if self._in_cloud and self.root not in _CHECKED:
            probe_conditions(self._store, self._unrepeated, "Files/_mirrorlake/probe", self.root)
            _CHECKED.add(self.root)

    @cached_property
    def _unrepeated(self) -> Any:
        return open_store(self.root, retried=False)

    def rename(self, source: str, target: str) -> bool:
        """Rename a file without overwriting; return False if the target exists.

        Raises:
            FileNotFoundError: the source does not exist.
        """
        if self._in_cloud:
            return rename_object(self._store, self._unrepeated, source, target)
        try:
            obstore.rename(self._store, source, target, overwrite=False)
            return True
        except AlreadyExistsError:
            return False
        except BaseError:
            if self.local is None:
                raise
            return _rename_without_links(self.local / source, self.local / target)

    def copy(self, source: str, target: str, *, is_small: bool) -> bool:
        """Copy an object without overwriting; return False if the target exists.

        Args:
            source: the path of the object.
            target: the path of the copy.
            is_small: whether the object fits into memory. On S3, it is then read and created, which
                takes two requests instead of three.

        Raises:
            FileNotFoundError: the source does not exist.
        """
        if self._in_cloud and not (is_small and scheme_of(self.root) == "s3"):
            return copy_object(self._store, self._unrepeated, source, target)
        return self.create(target, self.read(source))

    def touch(self, path: str) -> None:
        """Set a local file's modification time to now; object stores do so at a rename."""
        if self.local is not None:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.local / path)

    def move_folder(self, source: str, target: str, copied: Callable[[], object] = noop) -> bool:
        """Move a folder to a path where none exists: atomically on local disks, else file by file.

        Args:
            source: the folder.
            target: its new path.
            copied: called in an object store after all copies, before the first file is deleted.

        Returns:
            False if the target exists or the source does not.
        """
        if self.local is not None:
            if (self.local / target).exists() or not (self.local / source).exists():
                return False
            (self.local / target).parent.mkdir(parents=True, exist_ok=True)
            (self.local / source).rename(self.local / target)
            return True
        files = self.files_below(source)
        copies = {target + path[len(source) :]: path for path in files}
        # Files that an interrupted move left in the target are copied again.
        if not files or not copies.keys() >= set(self.files_below(target)):
            return False
        with ThreadPoolExecutor(_COPIES) as pool:
            for _, some in groupby(sorted(copies, key=_stage), key=_stage):
                list(pool.map(lambda path: obstore.copy(self._store, copies[path], path), some))
        copied()
        self.delete_folder(source)
        return True

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with its content; nothing happens if it does not exist."""
        if self.local is not None:
            shutil.rmtree(self.local / folder, ignore_errors=True)
            return
        files, markers = self._objects_below(folder)
        for path in sorted(files, key=_stage, reverse=True):
            self.delete(path)
        if markers and folder:
            remove_markers(self.path(folder))

    def files_below(self, folder: str) -> tuple[str, ...]:
        """Return the paths of all files in a folder and its subfolders, relative to the root."""
        return self._objects_below(folder)[0]

    def _objects_below(self, folder: str) -> tuple[tuple[str, ...], bool]:
        """Return the paths of all files below a folder, and whether it has folder markers."""
        pages = obstore.list(self._store, f"{folder}/" if folder else None)
        found = sorted((meta["path"], meta["size"]) for page in pages for meta in page)
        # A marker is listed as an empty file without its trailing `/`; no such file exists.
        files = tuple(
            path
            for path, size in found
            if size or self.local is not None or (path != folder and self.exists(path))
        )
        return files, len(files) < len(found)

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files, in a store many per request; files that do not exist are ignored."""
        some = list(paths)
        if self.local is None and some:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, some)
                return
        for path in some:
            self.delete(path)

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)


def _reopened(root: str, variables: dict[str, str]) -> Storage:
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    return Storage(root)


def to_json(document: Any) -> bytes:
    """Return a JSON document as it is stored: indented, with keys in the given order."""
    # Folder names need not be UTF-8; other bytes become JSON escapes and are read back unchanged.
    return json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace")


def _stage(path: str) -> int:
    """Return the order in which files of a table are copied; they are deleted in the reverse order.

    A table becomes visible through its log: through version 0, or through a checkpoint.
    """
    _, is_log, name = path.rpartition("/_delta_log/")
    starts = name == f"{0:020d}.json" or "checkpoint" in name
    return 0 if not is_log else 2 if starts else 1


def _create_in_folder(target: Path, data: bytes) -> bool:
    """Create a local file; return False if its folder is missing or the file exists."""
    staged = target.with_name(f"_{uuid.uuid4().hex}")
    try:
        try:
            staged.write_bytes(data)
        except FileNotFoundError:
            return False
        try:
            os.link(staged, target)  # unlike a rename, a link never replaces a file
            return True
        except (FileExistsError, FileNotFoundError):
            return False
        except OSError:
            return _rename_without_links(staged, target)
    finally:
        staged.unlink(missing_ok=True)


def _rename_without_links(source: Path, target: Path) -> bool:
    """Rename a file on FAT or a network drive, which have no hard links, without overwriting."""
    if ON_WINDOWS:  # a rename replaces no file there
        try:
            source.rename(target)
            return True
        except FileExistsError:
            return False
    import fcntl  # Unix only

    folder = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # released when the folder is closed
        if target.exists():
            return False
        source.rename(target)
        return True
    finally:
        os.close(folder)


def map_concurrently(
    storage: Storage, do: Callable[[_One], _Done], items: Iterable[_One]
) -> list[_Done]:
    """Return the result for each item: concurrently in an object store, one by one on a disk.

    On a disk, a step is so short that threads would only wait for each other.
    """
    if storage.local is not None:
        return [do(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(do, items))
