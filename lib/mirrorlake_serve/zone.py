"""The landing zone for clients: check a file, then publish it or refuse a used number (409).

The checks are those of the publisher and of the mirror: a file that the mirror would refuse is
refused here with file, row and column. A problem that may still resolve itself is a warning. A data
file gets its name in a step that never overwrites. For a number that exists the response is 409, so
that the publisher tries the next one; the same bytes again are accepted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import IO
from zlib import crc32

from starlette.concurrency import run_in_threadpool

from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError
from mirrorlake.landing.check import FileFacts, convert_text, footer_columns, inspect_file, is_text
from mirrorlake.landing.metadata import (
    SEQUENTIAL,
    TableMetadata,
    check_keys_kept,
    keys_are_given,
    last_applied,
    read_metadata,
)
from mirrorlake.landing.publisher import Publisher
from mirrorlake.landing.types import fits, widened
from mirrorlake.names import METADATA, PROCESSED, READY_TO_DELETE, TableName, file_name, file_number
from mirrorlake.storage.files import Storage
from mirrorlake_serve.files import Info, LakeFiles, Receipts, Upload, Uploads
from mirrorlake_serve.protocol import RequestError, Target, bad_request, not_found, refusal

_NAMELESS = "upload"  # without an extension, which would determine the format
_log = logging.getLogger("mirrorlake.serve.zone")
_GRACE = 2.0  # seconds that a file waits for a missing earlier number
_LONGEST_GRACE = 10.0  # the same while that number is being uploaded
_PAUSE = 0.05
_STRIPES = 64
_REMEMBERED = 1000


class Checks:
    """Checks of the files of one lake; remembers which uploads passed.

    Args:
        storage: the lake's storage.
        widen: whether a file may have a wider type than its table's column.
    """

    def __init__(self, storage: Storage, *, widen: bool = False) -> None:
        self._storage = storage
        self._widen = widen
        self._sound: OrderedDict[tuple[object, ...], tuple[str, ...]] = OrderedDict()
        self._lock = Lock()

    def check_data(
        self, file: Path | str, table: TableName, name: str, *, etag: str = ""
    ) -> tuple[str, ...]:
        """Check a data file before it gets its name.

        Args:
            file: a local file, or the path of a file in the lake.
            table: the table.
            name: the name that the file gets.
            etag: distinguishes a file of the lake from an earlier one with the same path.

        Returns:
            Warnings.

        Raises:
            MirrorlakeError: the mirror would refuse the file.
        """
        declared = self._storage.stat(f"{table.folder}/{METADATA}")
        # A valid file stays valid as long as the table's declaration does not change.
        known = (etag, str(table), declared and (declared.modified, declared.size))
        with self._lock:
            if etag and known in self._sound:
                return self._sound[known]
        upload = _Upload(self._storage, file)
        warnings = self._check(upload, table, name, declared=declared is not None)
        with self._lock:
            if etag:
                self._sound[known] = warnings
            while len(self._sound) > _REMEMBERED:
                self._sound.popitem(last=False)
        return warnings

    def _check(
        self, storage: Storage, table: TableName, name: str, *, declared: bool
    ) -> tuple[str, ...]:
        publisher = Publisher(self._storage, table, dry_run=True)
        metadata = read_metadata(self._storage, table)
        warnings = () if declared else (f"{table} has no {METADATA}, so it has no keys.",)
        path = _NAMELESS
        with storage.open(path) as source:
            if not source.read(1):
                raise DataFileError(
                    "The file has zero bytes.",
                    file=name,
                    hint="upload it again under the same name.",
                )
        with TemporaryDirectory() as folder:
            if is_text(name, metadata.text):
                scratch = Storage(folder)
                convert_text(storage, path, metadata, scratch, "rows.parquet", name)
                storage, path = scratch, "rows.parquet"
            try:
                facts = inspect_file(storage, path, _as_parquet(metadata), name=name)
            except DataFileError as error:
                # Rows that need keys: the file that declares the keys may still be uploaded.
                if declared or "no key columns" not in error.message:
                    raise
                facts = FileFacts(name, 0, footer_columns(storage, path), None)
                warnings = (*warnings, str(error))
        _check_fits(facts, publisher.known_columns, widen=self._widen)
        return warnings

    def check_metadata(self, data: bytes, table: TableName) -> None:
        """Check a `_metadata.json` before it is published.

        Raises:
            MirrorlakeError: it is invalid, or changes the keys of a table that has files.
        """
        found = TableMetadata.parse(data)
        try:
            before = read_metadata(self._storage, table)
        except MirrorlakeError:
            return  # an invalid declaration may be replaced
        if keys_are_given(self._storage, table):
            check_keys_kept(table, before.keys, found.keys)


def _as_parquet(metadata: TableMetadata) -> TableMetadata:
    """Return metadata with the same keys and markers for rows that are stored as Parquet."""
    return TableMetadata(metadata.keys, metadata.upsert_by_default, metadata.strategy)


class _Upload(Storage):
    """A storage with one file under a fixed name, because the upload's own name has no format."""

    def __init__(self, lake: Storage, file: Path | str) -> None:
        super().__init__(lake.root)
        self._lake = lake
        self._file = file

    def open(self, path: str) -> IO[bytes]:
        """Open the file, whatever the path."""
        return (
            open(self._file, "rb") if isinstance(self._file, Path) else self._lake.open(self._file)
        )


def _check_fits(facts: FileFacts, known: dict[str, str], *, widen: bool) -> None:
    for name, column in facts.columns.items():
        table = known.get(name.lower())
        if table is None or fits(column.table, table):
            continue
        wider = widened(table, column.table)
        if wider is None or not widen:
            raise SchemaError(
                f"Column {name!r} is {column.table}, but the table has {table}.",
                file=facts.name,
                column=name,
                hint=f"convert the values to {table}, or delete the table's folder and publish it "
                "again with the new type"
                + ("." if wider is None else ", or start the server with --widen."),
            )


class _GapError(Exception):
    """A lower number is missing."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class LandingZone:
    """The landing zone of one lake, as clients write to it.

    Args:
        storage: the lake's storage.
        state: a local folder for uploads, on the lake's own disk if the lake is local.
        widen: whether files may have wider types than the columns of their tables.
    """

    def __init__(self, storage: Storage, state: Path, *, widen: bool = False) -> None:
        self.storage = storage
        self.files = LakeFiles(storage, state / "uploads")
        self.uploads = Uploads(state / "uploads")
        self.receipts = Receipts(state / "renames.jsonl")
        self.checks = Checks(storage, widen=widen)
        self._locks = [Lock() for _ in range(_STRIPES)]
        self._uploading: Counter[str] = Counter()
        self._recent: dict[str, Info] = {}

    def recent(self, path: str) -> Info | None:
        """Return a recently published file, which the mirror may have moved already, or None."""
        return self._recent.get(path)

    @contextmanager
    def uploading(self, path: str) -> Iterator[None]:
        """Mark a path as being uploaded while the block runs."""
        self._uploading[path] += 1
        try:
            yield
        finally:
            self._uploading[path] -= 1
            if not self._uploading[path]:
                del self._uploading[path]

    async def publish(
        self, staged: Path, target: Target, *, only_new: bool = False
    ) -> tuple[Info, tuple[str, ...]]:
        """Move a complete local file to its path.

        Args:
            staged: the file; it does not exist afterwards.
            target: its path.
            only_new: refuse an existing path, even with the same bytes.

        Returns:
            The published file, and warnings.

        Raises:
            RequestError: the file is invalid, or the path is taken.
        """
        if only_new and await run_in_threadpool(self.files.stat, target.path) is not None:
            raise taken(target, "The file already exists.")
        self.files.touch(staged)
        is_data = await run_in_threadpool(self._is_data, target)
        if is_data:
            await run_in_threadpool(self._refuse_if_taken, target, staged)
        warnings = await self._check(staged, target, self.files.local_info(staged).etag)
        before = self.files.local_info(staged)

        def place() -> None:
            nonlocal before
            if is_data:
                self.files.touch(staged)
                before = self.files.local_info(staged)
                if self._number_is_free(target, staged) and not self.files.place(
                    staged, target.path, overwrite=False
                ):
                    self._same_or_taken(target, staged, target.path)
                self._undo_if_applied(target, None)
            elif not self.files.place(staged, target.path, overwrite=not only_new):
                raise taken(target, "The file already exists.")

        await self._place(target, place)
        info = await run_in_threadpool(self.files.stat, target.path)
        info = info or replace(before, path=target.path)  # the mirror has moved it already
        if is_data:
            self._recent[target.path] = info
            while len(self._recent) > _REMEMBERED:
                del self._recent[next(iter(self._recent))]
        return info, warnings

    @asynccontextmanager
    async def ending(self, upload: Upload, target: Target) -> AsyncIterator[None]:
        """End an upload after the block.

        If the lake's object store failed, the upload stays, so that the client can repeat the
        request.
        """
        keep = False
        try:
            yield
        except Exception as error:
            keep = self.storage.local is None and refusal(error).status >= 500
            raise
        finally:
            if not keep:
                await run_in_threadpool(self.uploads.discard, target.path, upload)

    async def rename(
        self, source: str, target: Target, *, only_new: bool = False
    ) -> tuple[Info | None, tuple[str, ...]]:
        """Rename a file or folder of the zone; arguments and errors as for `publish`.

        Returns:
            The file, or None if the mirror has moved it already; and warnings.
        """
        found = await run_in_threadpool(self.files.stat, source)
        if found is None:
            if self.receipts.is_retry(source, target.path):
                return await run_in_threadpool(self._renamed_before, target), ()
            raise RequestError(404, "SourcePathNotFound", "The source does not exist.")
        if found.is_folder:
            return await run_in_threadpool(self._rename_folder, source, target), ()
        if source == target.path:
            return found, ()
        if only_new and await run_in_threadpool(self.files.stat, target.path) is not None:
            raise taken(target, "The file already exists.")
        if self.uploads.get(source) is not None:
            raise RequestError(409, "PathConflict", "The source was created but not flushed.")
        is_data = await run_in_threadpool(self._is_data, target)
        if is_data:
            await run_in_threadpool(self._refuse_if_taken, target, source)
        warnings = await self._check(source, target, found.etag)

        def place() -> None:
            if self.storage.local is not None:
                self.files.touch(self.storage.local / source)
            self.receipts.renaming(source, target.path)
            try:
                if is_data and not self._number_is_free(target, source):
                    self.storage.delete(source)
                elif not self.files.move(source, target.path, overwrite=not is_data):
                    self._same_or_taken(target, source, target.path)
                    self.storage.delete(source)
                if is_data:
                    self._undo_if_applied(target, source)
            except (RequestError, _GapError):
                self.receipts.failed(source)
                raise
            except FileNotFoundError:
                raise RequestError(
                    404, "SourcePathNotFound", "The source was removed meanwhile."
                ) from None

        await self._place(target, place)
        return await run_in_threadpool(self.files.stat, target.path), warnings

    def _renamed_before(self, target: Target) -> Info | None:
        """Return the file of a completed rename, or None if the mirror has moved it already.

        Raises:
            RequestError: a server was killed before the rename, and neither file exists now.
        """
        found = self.files.stat(target.path)
        if found is None and target.table is not None and target.number is not None:
            last = self._last_processed(target.table, target.path.rpartition("/")[0])
            if target.number > last and self._is_sequential(target.table):
                raise RequestError(404, "SourcePathNotFound", "The source does not exist.")
        return found

    def delete(self, target: Target, *, recursive: bool) -> None:
        """Delete a file or folder.

        Raises:
            RequestError: the path does not exist, or the folder is not empty.
        """
        found = self.files.stat(target.path)
        dropped = [self.uploads.discard(target.path)]
        self._recent.clear()
        if found is None or found.is_folder:
            if found and not recursive and self.files.children(target.path):
                raise RequestError(409, "DirectoryNotEmpty", "The folder is not empty.")
            below = self.uploads.below(target.path)
            dropped += [self.uploads.discard(one.path, one) for one in below]
        if found is None:
            if any(dropped):
                return
            raise not_found()
        if found.is_folder:
            self.files.delete_folder(target.path)
        else:
            self.storage.delete(target.path)

    def _rename_folder(self, source: str, target: Target) -> Info | None:
        if target.path.startswith(f"{source}/"):
            raise bad_request("InvalidRenameSourcePath", "A folder can't be moved into itself.")
        if not self.storage.move_folder(source, target.path):
            raise RequestError(409, "PathAlreadyExists", "The new path already exists.")
        return self.files.stat(target.path)

    async def _check(self, file: Path | str, target: Target, etag: str = "") -> tuple[str, ...]:
        """Check a file and return warnings.

        Raises:
            RequestError: the mirror would refuse the file (names file, row and column), or the
                lake's store failed.
        """
        if target.is_in_partition:
            text = "The mirror does not apply files in partition folders."
            hint = "publish all files into the table's own folder."
            raise bad_request("InvalidInput", f"{target.path}: {text} Hint: {hint}")
        if target.table is None:
            return ()
        check = self._check_metadata if target.is_metadata else self._check_data
        try:
            warnings = await run_in_threadpool(check, file, target, etag)
        except MirrorlakeError as error:
            _log.warning("%s: refused: %s", target.path, error)
            raise refusal(error) from error
        for text in warnings:
            _log.warning("%s: %s", target.path, text)
        return warnings

    def _check_metadata(self, file: Path | str, target: Target, _etag: str) -> tuple[str, ...]:
        if target.table is not None:
            data = file.read_bytes() if isinstance(file, Path) else self.storage.read(file)
            self.checks.check_metadata(data, target.table)
        return ()

    def _check_data(self, file: Path | str, target: Target, etag: str) -> tuple[str, ...]:
        if target.table is None or not (target.is_staged or self._is_data(target)):
            return ()
        name = target.name
        if target.is_staged:
            if isinstance(file, Path) and not file.stat().st_size:
                return ()  # the client has not sent its blocks yet
            name = name[1:].partition("_")[0].removesuffix(".temp").removesuffix(".tmp")
        return self.checks.check_data(file, target.table, name, etag=etag)

    def _is_data(self, target: Target) -> bool:
        """Return whether the mirror reads the file: a numbered one, or any if time is the order."""
        if target.table is None or not target.is_visible:
            return False
        return target.number is not None or not self._is_sequential(target.table)

    def _is_sequential(self, table: TableName) -> bool:
        try:
            return read_metadata(self.storage, table).strategy == SEQUENTIAL
        except MirrorlakeError:
            return True  # the check reports the error

    async def _place(self, target: Target, place: Callable[[], None]) -> None:
        """Run one step with the folder's lock; wait a little for a missing earlier number."""
        folder = target.path.rpartition("/")[0]
        # Unlike `hash`, this is the same in each process, as the simulation needs it.
        lock = self._locks[crc32(folder.encode()) % _STRIPES]
        began = time.monotonic()

        def step() -> None:
            with lock:
                place()

        while True:
            try:
                await run_in_threadpool(step)
                return
            except _GapError as gap:
                waited = time.monotonic() - began
                longest = _LONGEST_GRACE if self._is_uploading(folder, gap.number) else _GRACE
                if waited > longest:
                    text = f"{target.name} leaves a gap: the next file is {file_name(gap.number)}."
                    hint = "publish that file first; a missing number blocks all later files."
                    _log.warning("%s: refused: %s", target.path, text)
                    raise bad_request("InvalidInput", f"{text} Hint: {hint}") from None
            await asyncio.sleep(_PAUSE)

    def _is_uploading(self, folder: str, number: int) -> bool:
        paths = [*self._uploading, *(one.path for one in self.uploads.below(folder))]
        inside = (path[len(folder) + 1 :] for path in paths if path.startswith(f"{folder}/"))
        return any(file_number(name.lstrip("_")) == number for name in inside)

    def _refuse_if_taken(self, target: Target, file: Path | str) -> None:
        """Refuse a file with a taken number before its rows are checked."""
        with suppress(_GapError):  # the gap may be closed before the file is placed
            self._number_is_free(target, file)

    def _number_is_free(self, target: Target, file: Path | str) -> bool:
        """Return whether the file must be placed; False if the same bytes were published before.

        Raises:
            RequestError: another file has the number.
            _GapError: a lower number is missing.
        """
        folder = target.path.rpartition("/")[0]
        if target.table is None or target.number is None:
            return True
        if not self._is_sequential(target.table):
            return True
        numbered: dict[int, str] = {}
        for entry in self.storage.list(folder).files:
            number = file_number(entry.name)
            if number is not None:
                numbered[number] = entry.name
        if target.number in numbered:
            self._same_or_taken(target, file, f"{folder}/{numbered[target.number]}")
            return False
        if not numbered or target.number < min(numbered):
            last = self._last_processed(target.table, folder)
            if target.number <= last:
                for path in _moved(target):
                    if self.storage.stat(path) is not None:
                        self._same_or_taken(target, file, path)
                        return False
                raise taken(target, f"Number {target.number} was applied before.")
            numbered.setdefault(last, "")
        below = max((n for n in numbered if n < target.number), default=0)
        if below + 1 < target.number:
            raise _GapError(below + 1)
        return True

    def _undo_if_applied(self, target: Target, source: str | None) -> None:
        """Take a file back if another one with its number was applied and moved away meanwhile.

        A publisher that writes directly into the folder can cause this.

        Raises:
            RequestError: the number is taken.
        """
        if target.number is None or self.storage.stat(target.path) is None:
            return  # the mirror has applied and moved this file
        for path in _moved(target):
            try:
                # In an object store, both exist while the mirror moves this file.
                if self.storage.stat(path) is None or self.files.same(target.path, path):
                    continue
            except FileNotFoundError:
                return  # the mirror has moved this file meanwhile
            if source is None:
                self.storage.delete(target.path)
            else:
                self.files.move(target.path, source, overwrite=True)
            raise taken(target, f"Number {target.number} was applied before.")

    def _last_processed(self, table: TableName, folder: str) -> int:
        """Return the last applied number, from the folders of applied files or the table's log."""
        found = [
            number
            for moved in (PROCESSED, READY_TO_DELETE)
            for entry in self.storage.list(f"{folder}/{moved}").files
            if (number := file_number(entry.name)) is not None
        ]
        return max([*found, last_applied(self.storage, table)])

    def _same_or_taken(self, target: Target, file: Path | str, path: str) -> None:
        """Accept the same bytes again.

        Raises:
            RequestError: the existing file has other bytes.
        """
        if path.rpartition("/")[2] == target.name:
            for place in (path, *_moved(target)):  # the mirror may move the file meanwhile
                try:
                    if self.files.same(file, place):
                        return
                    break
                except FileNotFoundError:
                    if not isinstance(file, Path) and self.storage.stat(file) is None:
                        raise
        raise taken(target, f"{target.name} is taken by another file.")


def _moved(target: Target) -> Iterator[str]:
    """Return the paths to which the mirror moves an applied file."""
    folder = target.path.rpartition("/")[0]
    return (f"{folder}/{moved}/{target.name}" for moved in (PROCESSED, READY_TO_DELETE))


def taken(target: Target, text: str) -> RequestError:
    """Return the error 409 for a path that another file has taken."""
    return RequestError(
        409,
        "PathAlreadyExists",
        f"{text} Hint: list the folder, and publish {target.name} under the next number."
        if target.number is not None
        else text,
    )
