"""Files of a lake as the protocol shows them, and uploads that are not published yet.

`LakeFiles` works on any `Storage`. On a local disk it places a file with one `link` or `rename`; on
an object store it writes the file under a hidden name first.

`Uploads` keeps each upload in a local file, with a journal of the complete ranges beside it, so
that a restarted server continues. An upload that is never flushed is removed after a day.
`Receipts` distinguishes the retry of a rename, whose response was lost, from a rename of a missing
file.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import RLock
from typing import IO

from mirrorlake.errors import MirrorlakeError
from mirrorlake.names import fingerprint
from mirrorlake.storage.files import Storage
from mirrorlake_serve.protocol import FOLDER_MARK, RequestError, bad_request, not_found, readable

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


class Receipts:
    """Which renames were done, so that one whose answer was lost can be asked for again.

    A source that was uploaded once may be renamed once; the same rename again is a retry. A source
    that several uploads shared gives no receipt.

    Args:
        file: the journal, on a local disk.
        most: how many are remembered.
    """

    def __init__(self, file: Path, *, most: int = 10_000) -> None:
        self._file = file
        self._most = most
        self._done: dict[str, str] = {}
        self._uploads: dict[str, int] = {}
        self._lock = RLock()
        with contextlib.suppress(FileNotFoundError):
            lines = file.read_text(encoding="utf-8").split("\n")[:-1]
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    note = json.loads(line)
                    self._learn(note["source"], note["target"])
            if len(lines) > 2 * most:
                self._rewrite()

    def uploaded(self, source: str) -> None:
        """Somebody has begun to upload this file."""
        with self._lock:
            if len(self._uploads) > self._most:
                self._uploads.clear()  # then there is one receipt too many, or a retry fails
            self._uploads[source] = self._uploads.get(source, 0) + 1
            if source in self._done:
                self._note(source, None)

    def renaming(self, source: str, target: str) -> None:
        """The file is about to be renamed."""
        with self._lock:
            if self._uploads.pop(source, 0) <= 1:
                self._note(source, target)

    def failed(self, source: str) -> None:
        """The rename was refused."""
        with self._lock:
            if source in self._done:
                self._note(source, None)

    def is_retry(self, source: str, target: str) -> bool:
        """Whether exactly this rename was done."""
        return self._done.get(source) == target

    def _note(self, source: str, target: str | None) -> None:
        self._learn(source, target)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "ab", buffering=0) as journal:
            journal.write(json.dumps({"source": source, "target": target}).encode() + b"\n")

    def _learn(self, source: str, target: str | None) -> None:
        self._done.pop(source, None)
        if target is not None:
            self._done[source] = target
        while len(self._done) > self._most:
            del self._done[next(iter(self._done))]

    def _rewrite(self) -> None:
        lines = [json.dumps({"source": s, "target": t}) + "\n" for s, t in self._done.items()]
        staged = self._file.with_suffix(".new")
        staged.write_text("".join(lines), encoding="utf-8")
        staged.replace(self._file)


class Upload:
    """One file on its way.

    Attributes:
        path: where it will be, relative to the lake's root.
        etag: of the file as created; it stays the same until the file is published.
        created: when it was begun, in seconds since 1970.
        data: the local file with its bytes.
    """

    def __init__(self, path: str, folder: Path, name: str) -> None:
        self.path = path
        self.etag = f'"0x{uuid.uuid4().hex[:16].upper()}"'
        self.created = time.time()
        self.data = folder / f"{name}.data"
        self._journal = folder / f"{name}.jsonl"
        self._extents: dict[int, int] = {}
        self._blocks: dict[str, tuple[int, int]] = {}
        self._end = 0
        self._writers = 0
        self._is_removed = False
        self._lock = RLock()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """While a request writes to the file."""
        with self._lock:
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1

    def begin(self) -> None:
        """Makes both files."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.data.touch()
        self._note({"path": self.path, "etag": self.etag, "created": self.created})

    @classmethod
    def load(cls, journal: Path) -> Upload | None:
        """An upload of an earlier server; None if its journal makes no sense."""
        try:
            first, *rest = journal.read_text(encoding="utf-8").split("\n")
            head = json.loads(first)
            found = cls(head["path"], journal.parent, journal.stem)
            found.etag, found.created = head["etag"], head["created"]
            for line in rest[:-1]:  # a line without its end was being written
                note = json.loads(line)
                found._learn(note["at"], note["length"], note.get("block"))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # Two names: the server was killed while it published the file, which must stay as it is.
        return found if found.data.exists() and found.data.stat().st_nlink == 1 else None

    def reserve(self, length: int) -> int:
        """A place for a block's bytes."""
        with self._lock:
            at = self._end
            self._end += length
            return at

    def add(self, at: int, length: int, block: str | None = None) -> None:
        """Notes that these bytes are in the file, whole."""
        with self._lock:
            if self._is_removed:
                raise RequestError(409, "PathConflict", "The file was made again meanwhile.")
            note = {"at": at, "length": length} | ({} if block is None else {"block": block})
            self._note(note)
            self._learn(at, length, block)

    def _learn(self, at: int, length: int, block: str | None) -> None:
        if block is None:
            self._extents[at] = max(length, self._extents.get(at, 0))
        else:
            self._blocks[block] = (at, length)
        self._end = max(self._end, at + length)

    def _note(self, document: Mapping[str, object]) -> None:
        with open(self._journal, "ab", buffering=0) as journal:
            journal.write(json.dumps(document).encode() + b"\n")

    @property
    def size(self) -> int:
        """How many bytes from the beginning on are there."""
        with self._lock:
            end = 0
            for at, length in sorted(self._extents.items()):
                if at > end:
                    break
                end = max(end, at + length)
            return end

    @property
    def blocks(self) -> dict[str, int]:
        """The blocks that are there, with their sizes."""
        with self._lock:
            return {block: length for block, (_, length) in self._blocks.items()}

    def finish(self, position: int) -> Path:
        """The file with all bytes up to a position.

        Raises:
            RequestError: some of them are missing.
        """
        if position > self.size:
            raise bad_request(
                "InvalidFlushPosition",
                f"The flush is at {position}, but {self.size} bytes were appended.",
            )
        return self._cut([(0, position)])

    def _cut(self, extents: Sequence[tuple[int, int]]) -> Path:
        """The file of these pieces: the upload's own, if they lie in order and nobody writes."""
        end, in_order = 0, self._writers == 0
        for at, length in extents:
            in_order &= at == end
            end += length
        if in_order:
            os.truncate(self.data, end)
            return self.data
        made = self.data.with_suffix(".made")
        with open(self.data, "rb") as source, open(made, "wb", buffering=0) as sink:
            for at, length in extents:
                _copy(source.fileno(), sink.fileno(), at, length)
        return made

    def finish_blocks(self, wanted: Sequence[str]) -> Path:
        """The file that the blocks make, in this order.

        Raises:
            RequestError: one of them was not uploaded.
        """
        with self._lock:
            missing = [block for block in wanted if block not in self._blocks]
            if missing:
                raise bad_request("InvalidBlockList", f"Block {missing[0]!r} was not uploaded.")
            return self._cut([self._blocks[block] for block in wanted])

    def remove(self) -> None:
        """Removes its files."""
        with self._lock:
            self._is_removed = True
        for file in (self._journal, self.data, self.data.with_suffix(".made")):
            file.unlink(missing_ok=True)


class Uploads:
    """The open uploads of one lake, at most one for each path.

    Args:
        folder: where they are kept, on a local disk.
        most: how many may be open at once.
        seconds: how long one may stay open.
    """

    def __init__(self, folder: Path, *, most: int = 10_000, seconds: float = 86_400) -> None:
        self.folder = folder
        self._most = most
        self._seconds = seconds
        self._open: dict[str, Upload] = {}
        self._lock = RLock()
        self._swept = time.time()

    def load(self) -> None:
        """Finds what an earlier server has left; removes what is too old, or makes no sense."""
        if not self.folder.is_dir():
            return
        known: set[str] = set()
        for journal in sorted(self.folder.glob("*.jsonl")):
            found = Upload.load(journal)
            if found is not None and found.created + self._seconds > time.time():
                self._open[found.path] = found
                known |= {journal.name, found.data.name}
        for file in self.folder.iterdir():
            if file.name not in known:
                if file.is_dir():
                    shutil.rmtree(file, ignore_errors=True)
                else:
                    file.unlink(missing_ok=True)

    def create(self, path: str) -> Upload:
        """Begins an upload, in place of one that was open for the path.

        Raises:
            RequestError: too many are open.
        """
        with self._lock:
            self.sweep()
            if len(self._open) >= self._most and path not in self._open:
                raise RequestError(
                    429, "TooManyRequests", f"{self._most} uploads are open. Flush some of them."
                )
            self.discard(path)
            name = f"{fingerprint(path)}-{uuid.uuid4().hex[:8]}"
            made = self._open[path] = Upload(path, self.folder, name)
            made.begin()
            return made

    def get_or_create(self, path: str) -> Upload:
        """The open upload for a path; the first of several parallel requests begins it.

        Raises:
            RequestError: too many are open.
        """
        with self._lock:
            return self._open.get(path) or self.create(path)

    def get(self, path: str) -> Upload | None:
        """The open upload for a path."""
        return self._open.get(path)

    def below(self, folder: str) -> list[Upload]:
        """The open uploads for paths in a folder."""
        with self._lock:
            return [one for path, one in self._open.items() if path.startswith(f"{folder}/")]

    def discard(self, path: str, upload: Upload | None = None) -> bool:
        """Ends the upload for a path; if one is given, only that one. False if there was none."""
        with self._lock:
            found = self._open.get(path)
            if found is None or upload not in (None, found):
                return False
            del self._open[path]
        found.remove()
        return True

    def sweep(self) -> None:
        """Once a minute, removes what has been open for too long."""
        now = time.time()
        if now - self._swept < min(60, self._seconds):
            return
        self._swept = now
        for path, upload in list(self._open.items()):
            if upload.created + self._seconds <= now:
                self.discard(path, upload)

    def scratch(self) -> Path:
        """The name of a new file beside the uploads, for one request."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{uuid.uuid4().hex}.part"


def _copy(source: int, sink: int, at: int, length: int) -> None:
    while length:
        chunk = os.pread(source, min(_CHUNK, length), at)
        if not chunk:
            raise bad_request("InvalidBlockList", "A block was cut short.")
        os.write(sink, chunk)
        at += len(chunk)
        length -= len(chunk)
