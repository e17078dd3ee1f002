"""Files of a lake as the protocol shows them: properties, listings, placing, moving, deleting.

Everything works over `Storage`. On local disks files are placed by one `link` or `rename`; on
object stores they are written under a hidden name first.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import IO

from mirrorlake.errors import MirrorlakeError
from mirrorlake.storage.files import Storage
from mirrorlake_serve.errors import bad_request, not_found
from mirrorlake_serve.paths import FOLDER_MARK, readable

Reader = Callable[[int, int], Iterator[bytes]]  # the bytes from a position up to another
_CHUNK = 1 << 20
_NO_TIME = datetime(2020, 1, 1, tzinfo=timezone.utc)  # object stores keep none of a folder


@dataclass(frozen=True)
class Info:
    """The properties of a file or folder.

    Attributes:
        path: relative to the lake's root.
        size: in bytes, 0 of a folder.
        etag: in quotes; changes with every change of the file.
    """

    path: str
    size: int
    modified: datetime
    etag: str
    is_folder: bool = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def empty(self, path: str, etag: str) -> Info:
        """The same time, of an empty file."""
        return replace(self, path=path, size=0, etag=etag)


class LakeFiles:
    """The files of one lake.

    Args:
        storage: where they lie.
        scratch: a local folder for what is on its way; on the lake's own disk if it has one.
    """

    def __init__(self, storage: Storage, scratch: Path) -> None:
        self.storage = storage
        self.scratch = scratch
        self._last = 0

    def stat(self, path: str) -> Info | None:
        """The properties of what is at a path, or None."""
        root = self.storage.local
        if root is not None:
            try:
                return _local_info(path, os.stat(root / path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        entry = self.storage.stat(path) if path else None
        if entry is not None:
            return _info(path, entry.size, entry.modified)
        found = self.storage.list(path)
        return _folder(path) if found.folders or found.files else None

    def children(self, path: str) -> list[Info]:
        """What lies directly in a folder, ordered by name; nothing if there is no such folder."""
        inner = f"{path}/" if path else ""
        root = self.storage.local
        found: list[Info] = []
        if root is not None:
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(root / path) as entries,
            ):
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # moved away meanwhile
                        found.append(_local_info(inner + entry.name, entry.stat()))
        else:
            listing = self.storage.list(path)
            found = [_folder(inner + name) for name in listing.folders]
            found += [_info(inner + e.name, e.size, e.modified) for e in listing.files]
        visible = (info for info in found if info.name != FOLDER_MARK and _is_text(info.name))
        return sorted(visible, key=lambda info: info.name)

    def walk(self, path: str, *, recursive: bool) -> Iterator[Info]:
        """What lies in a folder, and in its folders; each folder before what is in it."""
        for info in self.children(path):
            yield info
            if recursive and info.is_folder:
                yield from self.walk(info.path, recursive=True)

    def open(self, path: str) -> tuple[Info, Reader]:
        """A file's properties, and what reads from just that file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        root = self.storage.local
        if root is None:
            entry = self.storage.stat(path)
            if entry is None:
                raise FileNotFoundError(path)
            return _info(path, entry.size, entry.modified), partial(self._ranges, path)
        source = open(root / path, "rb")  # noqa: SIM115 - its reader closes it
        return _local_info(path, os.fstat(source.fileno())), partial(_pieces, source)

    def _ranges(self, path: str, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            chunk = self.storage.read_range(path, start, min(start + 8 * _CHUNK, end))
            start += len(chunk)
            yield chunk

    def make_folder(self, path: str) -> bool:
        """Makes a folder with those above it; False if it was there."""
        if self.stat(path) is not None:
            return False
        if self.storage.local is not None:
            (self.storage.local / path).mkdir(parents=True, exist_ok=True)
        else:
            self.storage.create(f"{path}/{FOLDER_MARK}", b"")
        return True

    def place(self, staged: Path, path: str, *, overwrite: bool) -> bool:
        """Puts a finished local file at a path in one step; without `overwrite` False if taken."""
        root = self.storage.local
        if root is None:
            return self._upload(staged, path, overwrite)
        for _ in range(2):  # the folder may be deleted in between
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return _put(staged, root / path, overwrite)
        return _put(staged, root / path, overwrite)

    def _upload(self, staged: Path, path: str, overwrite: bool) -> bool:
        hidden = path if overwrite else f"{path.rpartition('/')[0]}/_{uuid.uuid4().hex}"
        with open(staged, "rb") as source, self.storage.open_writer(hidden) as sink:
            shutil.copyfileobj(source, sink, 8 * _CHUNK)
        if not overwrite and not self.storage.rename(hidden, path):
            self.storage.delete(hidden)
            return False
        staged.unlink()
        return True

    def move(self, source: str, path: str, *, overwrite: bool) -> bool:
        """Moves a file; without `overwrite` False if the path is taken.

        Raises:
            FileNotFoundError: there is no such source.
        """
        root = self.storage.local
        if root is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            return _put(root / source, root / path, overwrite)
        if overwrite:
            self.storage.delete(path)
        return self.storage.rename(source, path)

    def touch(self, file: Path) -> None:
        """Makes now the time of a local file, later than of any other that was placed here."""
        self._last = max(time.time_ns(), self._last + 1000)
        os.utime(file, ns=(self._last, self._last))

    def local_info(self, file: Path) -> Info:
        """The properties of a local file, as it has them once it is placed on the lake's disk."""
        return _local_info(file.name, file.stat())

    def delete_folder(self, path: str) -> None:
        """Removes a folder; on local disks it is gone in one step."""
        root = self.storage.local
        if root is None:
            self.storage.delete_folder(path)
            return
        trash = self.scratch / f"trash-{uuid.uuid4().hex}"
        self.scratch.mkdir(parents=True, exist_ok=True)
        (root / path).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def same(self, file: Path | str, path: str) -> bool:
        """Whether a local file, or one of the lake, has the same bytes as a file of the lake."""
        with (
            open(file, "rb") if isinstance(file, Path) else self.storage.open(file) as mine,
            self.storage.open(path) as theirs,
        ):
            while True:
                chunk = mine.read(_CHUNK)
                if chunk != theirs.read(_CHUNK):
                    return False
                if not chunk:
                    return True


def _pieces(source: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    with source:
        source.seek(start)
        while start < end and (chunk := source.read(min(_CHUNK, end - start))):
            start += len(chunk)
            yield chunk


def _put(source: Path, target: Path, overwrite: bool) -> bool:
    if overwrite:
        os.replace(source, target)
        return True
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    source.unlink()
    return True


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # a name on disk that is not UTF-8 has no address
        return False
    return True


def _folder(path: str) -> Info:
    return Info(path, 0, _NO_TIME, '"0x0"', is_folder=True)


def _info(path: str, size: int, modified: datetime) -> Info:
    return Info(path, size, modified, f'"0x{int(modified.timestamp() * 1e6):X}{size:X}"')


def _local_info(path: str, stat: os.stat_result) -> Info:
    modified = datetime.fromtimestamp(stat.st_mtime, timezone.utc)
    etag = f'"0x{stat.st_mtime_ns:X}{stat.st_ino:X}"'
    is_folder = stat.st_mode & 0o170000 == 0o040000
    return Info(path, 0 if is_folder else stat.st_size, modified, etag, is_folder)


@dataclass(frozen=True)
class Page:
    """Some entries of a listing.

    Attributes:
        after: where the next page begins; "" if there is none.
    """

    entries: list[Info]
    after: str = ""


def page_of(
    files: LakeFiles, parts: tuple[str, ...], recursive: bool, most: int, token: str | None
) -> Page:
    """A page of what lies in a folder, folders before what is in them.

    Args:
        files: the lake's.
        parts: the folder's path.
        recursive: whether the folders in it are listed, too.
        most: how many entries at most.
        token: the earlier page's `after`.

    Raises:
        RequestError: there is no such folder, or the token is not one of ours.
    """
    path = readable(parts)
    info = files.stat(path)
    if path and info is None and path not in ("Files", "Files/LandingZone", "Tables"):
        raise not_found()
    if info is not None and not info.is_folder:
        return Page([info])
    last = tuple(decode_token(token).split("/")) if token else ()
    found: list[Info] = []
    for one in visible(files, path, recursive=recursive):
        if tuple(one.path.split("/")) <= last:
            continue
        if len(found) == most:
            return Page(found, encode_token(found[-1].path))
        found.append(one)
    return Page(found)


def visible(files: LakeFiles, path: str, *, recursive: bool) -> Iterator[Info]:
    """What lies in a folder and is served."""
    for info in files.children(path):
        try:
            readable(tuple(info.path.split("/")))
        except MirrorlakeError:
            continue
        yield info
        if recursive and info.is_folder:
            yield from visible(files, info.path, recursive=True)


def encode_token(name: str) -> str:
    """A token that names the last entry of a page."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def decode_token(token: str) -> str:
    """The name in a token.

    Raises:
        RequestError: there is none.
    """
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise bad_request("InvalidQueryParameterValue", "The continuation is not ours.") from None
