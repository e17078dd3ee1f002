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

Reader = Callable[[int, int], Iterator[bytes]]  # yields the bytes from start up to end
_CHUNK = 1 << 20
_NO_TIME = datetime(2020, 1, 1, tzinfo=timezone.utc)  # object stores have no times of folders


@dataclass(frozen=True)
class Info:
    """The properties of a file or folder.

    Attributes:
        path: relative to the lake's root.
        size: in bytes; 0 for a folder.
        etag: with quotes; changes whenever the file changes.
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
        """Return the properties of an empty file with the same time."""
        return replace(self, path=path, size=0, etag=etag)


class LakeFiles:
    """The files of one lake.

    Args:
        storage: the lake's storage.
        scratch: a local folder for temporary files, on the lake's own disk if the lake is local.
    """

    def __init__(self, storage: Storage, scratch: Path) -> None:
        self.storage = storage
        self.scratch = scratch
        self._last = 0

    def stat(self, path: str) -> Info | None:
        """Return the properties of a file or folder; None if it does not exist."""
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
        """Return the files and folders in a folder, ordered by name; empty if it does not exist."""
        inner = f"{path}/" if path else ""
        root = self.storage.local
        found: list[Info] = []
        if root is not None:
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(root / path) as entries,
            ):
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # the mirror moved the file
                        found.append(_local_info(inner + entry.name, entry.stat()))
        else:
            listing = self.storage.list(path)
            found = [_folder(inner + name) for name in listing.folders]
            found += [_info(inner + e.name, e.size, e.modified) for e in listing.files]
        visible = (info for info in found if info.name != FOLDER_MARK and _is_text(info.name))
        return sorted(visible, key=lambda info: info.name)

    def open(self, path: str) -> tuple[Info, Reader]:
        """Return a file's properties and a reader of exactly that file.

        Raises:
            FileNotFoundError: the file does not exist.
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
        """Create a folder with its parents; return False if it already exists."""
        if self.stat(path) is not None:
            return False
        if self.storage.local is not None:
            (self.storage.local / path).mkdir(parents=True, exist_ok=True)
        else:
            self.storage.create(f"{path}/{FOLDER_MARK}", b"")
        return True

    def place(self, staged: Path, path: str, *, overwrite: bool) -> bool:
        """Move a complete local file to a path atomically.

        Args:
            staged: the local file.
            path: the target.
            overwrite: whether an existing file is replaced.

        Returns:
            False if the path exists and `overwrite` is False.
        """
        root = self.storage.local
        if root is None:
            return self._upload(staged, path, overwrite)
        for _ in range(2):  # the folder may be deleted after mkdir
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
        """Move a file.

        Args:
            source: the file.
            path: the target.
            overwrite: whether an existing file is replaced.

        Returns:
            False if the path exists and `overwrite` is False.

        Raises:
            FileNotFoundError: the source does not exist.
        """
        root = self.storage.local
        if root is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            return _put(root / source, root / path, overwrite)
        if overwrite:
            self.storage.delete(path)
        return self.storage.rename(source, path)

    def touch(self, file: Path) -> None:
        """Set a local file's time to now, and later than that of each file placed before."""
        self._last = max(time.time_ns(), self._last + 1000)
        os.utime(file, ns=(self._last, self._last))

    def local_info(self, file: Path) -> Info:
        """Return the properties that a local file has once it is placed on the lake's disk."""
        return _local_info(file.name, file.stat())

    def delete_folder(self, path: str) -> None:
        """Delete a folder; on a local disk it disappears atomically."""
        root = self.storage.local
        if root is None:
            self.storage.delete_folder(path)
            return
        trash = self.scratch / f"trash-{uuid.uuid4().hex}"
        self.scratch.mkdir(parents=True, exist_ok=True)
        (root / path).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def same(self, file: Path | str, path: str) -> bool:
        """Return whether a file, local or of the lake, has the same bytes as a file of the lake."""
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
    except UnicodeEncodeError:  # a name that is not UTF-8 has no URL
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
    """One page of a listing.

    Attributes:
        after: the token of the next page; empty on the last page.
    """

    entries: list[Info]
    after: str = ""


def page_of(
    files: LakeFiles, parts: tuple[str, ...], recursive: bool, most: int, token: str | None
) -> Page:
    """Return one page of a folder's listing; each folder comes before its contents.

    Args:
        files: the lake's files.
        parts: the folder's path.
        recursive: whether subfolders are listed as well.
        most: the largest number of entries.
        token: `after` of the previous page.

    Raises:
        RequestError: the folder does not exist, or the token is invalid.
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
    """Yield the files and folders in a folder that the server shows."""
    for info in files.children(path):
        try:
            readable(tuple(info.path.split("/")))
        except MirrorlakeError:
            continue
        yield info
        if recursive and info.is_folder:
            yield from visible(files, info.path, recursive=True)


def encode_token(name: str) -> str:
    """Return a token that names the last entry of a page."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def decode_token(token: str) -> str:
    """Return the name in a token.

    Raises:
        RequestError: the token is invalid.
    """
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise bad_request(
            "InvalidQueryParameterValue", "The continuation token is invalid."
        ) from None


class Receipts:
    """Completed renames, which let the server recognise a retry.

    A source that was uploaded once can be renamed once; the same rename again is a retry. A source
    that was uploaded several times has no receipt.

    Args:
        file: the journal, on a local disk.
        most: the largest number of receipts.
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
        """Record that an upload of this file began."""
        with self._lock:
            if len(self._uploads) > self._most:
                self._uploads.clear()  # at worst one receipt too many, or a refused retry
            self._uploads[source] = self._uploads.get(source, 0) + 1
            if source in self._done:
                self._note(source, None)

    def renaming(self, source: str, target: str) -> None:
        """Record that the file is about to be renamed."""
        with self._lock:
            if self._uploads.pop(source, 0) <= 1:
                self._note(source, target)

    def failed(self, source: str) -> None:
        """Record that the rename was refused."""
        with self._lock:
            if source in self._done:
                self._note(source, None)

    def is_retry(self, source: str, target: str) -> bool:
        """Return whether exactly this rename was completed."""
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
    """One file that is being uploaded.

    Attributes:
        path: its path once it is published, relative to the lake's root.
        etag: the ETag of the created file; it does not change until the file is published.
        created: the time of its creation, in seconds since 1970.
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
        """Count a request that writes to the file while the block runs."""
        with self._lock:
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1

    def begin(self) -> None:
        """Create the data file and the journal."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.data.touch()
        self._note({"path": self.path, "etag": self.etag, "created": self.created})

    @classmethod
    def load(cls, journal: Path) -> Upload | None:
        """Return an upload of an earlier server; None if its journal is invalid."""
        try:
            first, *rest = journal.read_text(encoding="utf-8").split("\n")
            head = json.loads(first)
            found = cls(head["path"], journal.parent, journal.stem)
            found.etag, found.created = head["etag"], head["created"]
            for line in rest[:-1]:  # a line without its end was not written completely
                note = json.loads(line)
                found._learn(note["at"], note["length"], note.get("block"))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # Two links mean that the server was killed while publishing: the file must not change.
        return found if found.data.exists() and found.data.stat().st_nlink == 1 else None

    def reserve(self, length: int) -> int:
        """Reserve space for the bytes of a new block, and return its position."""
        with self._lock:
            at = self._end
            self._end += length
            return at

    def add(self, at: int, length: int, block: str | None = None) -> None:
        """Record that a range of bytes is complete."""
        with self._lock:
            if self._is_removed:
                raise RequestError(409, "PathConflict", "The file was created again meanwhile.")
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
        """The number of complete bytes from the start of the file."""
        with self._lock:
            end = 0
            for at, length in sorted(self._extents.items()):
                if at > end:
                    break
                end = max(end, at + length)
            return end

    @property
    def blocks(self) -> dict[str, int]:
        """The complete blocks with their sizes."""
        with self._lock:
            return {block: length for block, (_, length) in self._blocks.items()}

    def finish(self, position: int) -> Path:
        """Return the file with all bytes up to a position.

        Raises:
            RequestError: some of the bytes are missing.
        """
        if position > self.size:
            raise bad_request(
                "InvalidFlushPosition",
                f"The flush position is {position}, but the appended data ends at {self.size}.",
            )
        return self._cut([(0, position)])

    def _cut(self, extents: Sequence[tuple[int, int]]) -> Path:
        """Return a file of these ranges.

        It is the upload's own file if the ranges are in order and no request writes to it.
        """
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
        """Return the file that these blocks make, in this order.

        Raises:
            RequestError: a block was not uploaded.
        """
        with self._lock:
            missing = [block for block in wanted if block not in self._blocks]
            if missing:
                raise bad_request("InvalidBlockList", f"Block {missing[0]!r} was not uploaded.")
            return self._cut([self._blocks[block] for block in wanted])

    def remove(self) -> None:
        """Delete the upload's files."""
        with self._lock:
            self._is_removed = True
        for file in (self._journal, self.data, self.data.with_suffix(".made")):
            file.unlink(missing_ok=True)


class Uploads:
    """The open uploads of one lake, at most one for each path.

    Args:
        folder: their folder, on a local disk.
        most: the largest number of open uploads.
        seconds: the time after which an upload is removed.
    """

    def __init__(self, folder: Path, *, most: int = 10_000, seconds: float = 86_400) -> None:
        self.folder = folder
        self._most = most
        self._seconds = seconds
        self._open: dict[str, Upload] = {}
        self._lock = RLock()
        self._swept = time.time()

    def load(self) -> None:
        """Load the uploads of an earlier server; delete expired and invalid files."""
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
        """Begin an upload; it replaces an open upload for the same path.

        Raises:
            RequestError: too many uploads are open.
        """
        with self._lock:
            self.sweep()
            if len(self._open) >= self._most and path not in self._open:
                raise RequestError(
                    429,
                    "TooManyRequests",
                    f"{self._most:,} uploads are open. Hint: flush some of them.",
                )
            self.discard(path)
            name = f"{fingerprint(path)}-{uuid.uuid4().hex[:8]}"
            made = self._open[path] = Upload(path, self.folder, name)
            made.begin()
            return made

    def get_or_create(self, path: str) -> Upload:
        """Return the open upload for a path; the first of several parallel requests creates it.

        Raises:
            RequestError: too many uploads are open.
        """
        with self._lock:
            return self._open.get(path) or self.create(path)

    def get(self, path: str) -> Upload | None:
        """Return the open upload for a path, or None."""
        return self._open.get(path)

    def below(self, folder: str) -> list[Upload]:
        """Return the open uploads for paths in a folder."""
        with self._lock:
            return [one for path, one in self._open.items() if path.startswith(f"{folder}/")]

    def discard(self, path: str, upload: Upload | None = None) -> bool:
        """Remove the open upload for a path.

        Args:
            path: the path.
            upload: remove only this upload; by default any.

        Returns:
            False if there was no such upload.
        """
        with self._lock:
            found = self._open.get(path)
            if found is None or upload not in (None, found):
                return False
            del self._open[path]
        found.remove()
        return True

    def sweep(self) -> None:
        """Remove expired uploads, at most once a minute."""
        now = time.time()
        if now - self._swept < min(60, self._seconds):
            return
        self._swept = now
        for path, upload in list(self._open.items()):
            if upload.created + self._seconds <= now:
                self.discard(path, upload)

    def scratch(self) -> Path:
        """Return the path of a new temporary file beside the uploads."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{uuid.uuid4().hex}.part"


def _copy(source: int, sink: int, at: int, length: int) -> None:
    while length:
        chunk = os.pread(source, min(_CHUNK, length), at)
        if not chunk:
            raise bad_request("InvalidBlockList", "A block is incomplete.")
        os.write(sink, chunk)
        at += len(chunk)
        length -= len(chunk)
