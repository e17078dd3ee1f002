"""The folders of the landing zone: list tables and their numbered files, take the next number.

A batch may have a token: a name that its publisher chose, so that publishing the batch again writes
nothing. Tokens are stored in the footers of published files. A table knows a token as long as it
keeps the file: in its folder, in `_ProcessedFiles`, and in `_FilesReadyToDelete` until that is
cleaned up.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake.errors import InvalidNameError, SequenceError, TableNotFoundError
from mirrorlake.landing.metadata import last_applied
from mirrorlake.names import (
    PROCESSED,
    READY_TO_DELETE,
    SCHEMA_SUFFIX,
    TABLES,
    ZONE,
    TableName,
    file_name,
    file_number,
    place_of,
)
from mirrorlake.storage.files import Entry, Listing, Storage, map_concurrently

TOKEN = b"mirrorlake.token"
BATCH = b"mirrorlake.batch"
_LISTINGS = 5  # a listed file can be missing because the mirror moves it, or as a dangling link
_LARGEST = 2**63 - 1  # Delta's txnVersion is a signed long
_VALID = 60  # seconds for which a listing of a table's folder is relied on
_OF_FILE = re.compile(r"(.*) [0-9a-f]{64}( after \d+)?", re.DOTALL)  # see `Publisher.token_of`


@dataclass(frozen=True)
class BadFolder:
    """A folder of the zone that can't become a table, and the reason."""

    schema: str | None
    name: str
    error: InvalidNameError

    @property
    def folder(self) -> str:
        """The path of the folder, relative to the lake's root."""
        return f"{ZONE}/{place_of(self.schema, self.name)}"


@dataclass(frozen=True)
class Folder:
    """The listing of one table's folder.

    Attributes:
        table: the table.
        numbered: the data files by number.
        listing: everything directly in the folder.
    """

    table: TableName
    numbered: dict[int, Entry]
    listing: Listing

    def pending(self, last: int, skip: Collection[object] = ()) -> tuple[list[Entry], int | None]:
        """Return the files that can be applied after number `last`, and the first missing number.

        Args:
            last: the last applied number.
            skip: the numbers that need no file; the result contains an empty entry for a missing
                one.

        Returns:
            The consecutive files from `last + 1` on. The missing number is None if no file with a
            higher number exists.
        """
        ready = []
        number = last + 1
        while number in self.numbered or number in skip:
            missing = Entry(file_name(number), 0, datetime.now(timezone.utc))
            ready.append(self.numbered.get(number, missing))
            number += 1
        blocked = any(found > number for found in self.numbered)
        return ready, number if blocked else None

    def behind(self, last: int) -> list[Entry]:
        """Return the files with numbers above `last`."""
        return [entry for number, entry in self.numbered.items() if number > last]


def find_tables(
    storage: Storage, base: str = ZONE, *, folders: Sequence[str] | None = None
) -> Iterator[TableName | BadFolder]:
    """Yield each table folder of the zone, or of a folder with the same layout, in order.

    Names that start with `_` are ignored.

    Args:
        storage: the lake's files.
        base: the zone, or the other folder.
        folders: the folders in `base`, if they were listed already.
    """
    for folder in storage.list(base).folders if folders is None else folders:
        schema: str | None = None
        inner: tuple[str, ...] = (folder,)
        if folder.endswith(SCHEMA_SUFFIX) and not folder.startswith("_"):
            schema = folder[: -len(SCHEMA_SUFFIX)]
            inner = storage.list(f"{base}/{folder}").folders
        for name in inner:
            if not name.startswith("_"):
                try:
                    yield TableName(schema, name)
                except InvalidNameError as error:
                    error.hint = "rename the folder."
                    yield BadFolder(schema, name, error)


def published_tables(storage: Storage, base: str = ZONE) -> list[TableName]:
    """Return the folders of `find_tables` that can become tables."""
    return [table for table in find_tables(storage, base) if isinstance(table, TableName)]


def is_lake(storage: Storage) -> bool:
    """Return whether a folder contains a lake: published folders or tables."""
    return any(storage.list(folder).folders for folder in (ZONE, TABLES))


def is_other_folder(storage: Storage) -> bool:
    """Return whether a folder contains files, but no lake. An empty folder can become a lake."""
    found = storage.list("")
    own = {place.partition("/")[0] for place in (ZONE, TABLES)}
    return bool(found.files or found.folders) and own.isdisjoint(found.folders)


def no_folder(storage: Storage, table: TableName) -> TableNotFoundError:
    """Return the error for a table without a folder; its hint has the nearest name."""
    text = f"The landing zone has no folder for the table {table}."
    others = [str(one) for one in published_tables(storage) if one != table]
    near = difflib.get_close_matches(str(table), others, n=1)
    hint = f"did you mean {near[0]}? If not, " if near else ""
    return TableNotFoundError(text, hint=f"{hint}publish the table first.")


def list_folder(storage: Storage, table: TableName) -> Folder:
    """List a table's folder, with its files by number; raise errors as `by_number`."""
    return by_number(table, storage.list(table.folder))


def every_file(storage: Storage, table: TableName) -> Iterator[tuple[str, Entry]]:
    """Yield all files of a table's folder with their paths, including moved applied ones."""
    for folder in (table.folder, *(f"{table.folder}/{f}" for f in (PROCESSED, READY_TO_DELETE))):
        for entry in storage.list(folder).files:
            yield f"{folder}/{entry.name}", entry


def by_number(table: TableName, listing: Listing) -> Folder:
    """Return a folder with its data files by the numbers in their names.

    Raises:
        SequenceError: two files have the same number, or a number is 0 or too large.
    """
    numbered: dict[int, Entry] = {}
    for entry in listing.files:
        number = file_number(entry.name)
        if number is None:
            continue
        if not 1 <= number <= _LARGEST:
            raise SequenceError(
                f"The number of {entry.name} is not between 1 and {_LARGEST}.",
                file=entry.name,
                hint=f"start with {file_name(1)}.",
            )
        if number in numbered:
            raise SequenceError(
                f"{entry.name} and {numbered[number].name} have the same number.",
                file=entry.name,
                hint="remove one of the two.",
            )
        numbered[number] = entry
    return Folder(table, numbered, listing)


def by_time(table: TableName, listing: Listing, applied: Mapping[str, int], last: int) -> Folder:
    """Return a folder with its data files of any name, numbered in the order of their modification.

    Args:
        table: the table.
        listing: the content of the folder.
        applied: the names of applied files in the folder, with their numbers.
        last: the last applied number.
    """
    visible = [entry for entry in listing.files if not entry.name.startswith(("_", "."))]
    fresh = (entry for entry in visible if entry.name not in applied)
    ordered = sorted(fresh, key=lambda entry: (entry.modified, entry.name))
    numbered = {applied[entry.name]: entry for entry in visible if entry.name in applied}
    numbered |= {last + place: entry for place, entry in enumerate(ordered, start=1)}
    return Folder(table, numbered, listing)


class TokenIndex:
    """The last number and the tokens of one table's kept files; each file's footer is read once.

    Numbers are taken in ascending order, and the mirror leaves the last file in the folder. So no
    file was added while the last known file is there and the next number is free. For a minute,
    the folders are then not listed again, whatever the number of their files.

    Args:
        storage: the lake's files.
        table: the table.
    """

    def __init__(self, storage: Storage, table: TableName) -> None:
        self._storage = storage
        self._table = table
        self._seen: dict[tuple[str, int], bytes | None] = {}
        self._last = (0, "")  # the last known number, and the batch of its file
        self._has_tokens = False  # whether the tokens of all files up to it are known
        self._valid_until = 0.0
        self._paths: dict[str, str] = {}  # by token
        self._newest: dict[str, tuple[int, str]] = {}  # by the name of the published file

    def find(self, token: str) -> str | None:
        """Return the path of the file with a token, relative to the lake's root, or None."""
        self._refresh()
        path = self._paths.get(token)
        if path is not None and read_footer(self._storage, path).get(TOKEN) != token.encode():
            self._read()  # the file was moved or deleted
            path = self._paths.get(token)
        return path

    def newest(self, name: str) -> tuple[int, str] | None:
        """Return the number and the token of the highest-numbered file with such a token.

        Args:
            name: the name of the file that was published; see `Publisher.token_of`.
        """
        self._refresh()
        return self._newest.get(name)

    def next_number(self) -> int:
        """Return the number after the last one that a file took."""
        if not self._is_last_there():
            self.forget()
            folder = list_folder(self._storage, self._table)
            self._rely_on((number, entry.name) for number, entry in folder.numbered.items())
            return last_number(self._storage, self._table, folder) + 1
        return self._last[0] + 1

    def add(self, number: int, batch: str, token: str | None) -> None:
        """Add the file that this writer has just published under a number."""
        self._last = (number, batch)
        if token is not None:
            self._index(number, f"{self._table.folder}/{file_name(number)}", token)

    def is_last(self, number: int | None) -> bool:
        """Return whether no file was added after the one with a number; False if that is unsure."""
        following = f"{self._table.folder}/{file_name(self._last[0] + 1)}"
        return (
            number == self._last[0]
            and self._is_last_there()
            and not self._storage.exists(following)
        )

    def forget(self) -> None:
        """List the folders again at the next call."""
        self._last, self._has_tokens = (0, ""), False

    def _is_last_there(self) -> bool:
        number, batch = self._last
        if not batch or time.monotonic() > self._valid_until:
            return False
        path = f"{self._table.folder}/{file_name(number)}"
        return read_footer(self._storage, path).get(BATCH, b"").decode() == batch

    def _rely_on(self, files: Iterable[tuple[int, str]]) -> None:
        """Rely on a listing of numbers and names for a minute.

        A writer that publishes text can use the next number with another extension, so such a
        folder is always listed.
        """
        plain = all(1 <= n <= _LARGEST and name == file_name(n) for n, name in files)
        self._valid_until = time.monotonic() + _VALID if plain else 0.0

    def _refresh(self) -> None:
        if not (self._has_tokens and self.is_last(self._last[0])):
            self._read()

    def _read(self) -> None:
        """List the folders, and read the footers of the files that are not known."""
        for _ in range(_LISTINGS):
            files = [
                (number, path, (entry.name, entry.size))
                for path, entry in every_file(self._storage, self._table)
                if (number := file_number(entry.name)) is not None
            ]
            new = [(key, path) for _, path, key in files if key not in self._seen]
            footers = map_concurrently(
                self._storage, lambda path: _footer(self._storage, path), [path for _, path in new]
            )
            pairs = zip(new, footers, strict=True)
            self._seen |= {
                key: footer.get(TOKEN) for (key, _), footer in pairs if footer is not None
            }
            self._has_tokens = all(key in self._seen for key, _ in new)
            if self._has_tokens:
                break  # otherwise, the mirror has moved a file since its folder was listed
        there = {key for _, _, key in files}
        self._seen = {key: token for key, token in self._seen.items() if key in there}
        self._paths, self._newest = {}, {}
        for number, path, key in files:
            if token := self._seen.get(key):
                self._index(number, path, token.decode(errors="replace"))
        here = {n: path for n, path, (name, _) in files if path == f"{self._table.folder}/{name}"}
        last = max(here, default=0)
        batch = read_footer(self._storage, here[last]).get(BATCH, b"").decode() if last else ""
        self._last = (last, batch)
        self._rely_on((number, path.rpartition("/")[2]) for number, path in here.items())

    def _index(self, number: int, path: str, token: str) -> None:
        self._paths[token] = path
        if match := _OF_FILE.fullmatch(token):
            newest = self._newest.get(match[1], (0, ""))
            self._newest[match[1]] = max(newest, (number, token))


def read_footer(storage: Storage, path: str) -> dict[bytes, bytes]:
    """Return the metadata in a published file's footer; empty if the file is not readable."""
    return _footer(storage, path) or {}


def _footer(storage: Storage, path: str) -> dict[bytes, bytes] | None:
    """Return the metadata like `read_footer`, but None if the file does not exist."""
    try:
        with storage.open(path) as source:
            return dict(pq.read_metadata(source).metadata or {})
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError):
        return {}


def footers_from_the_newest(storage: Storage, table: TableName) -> Iterator[dict[bytes, bytes]]:
    """Yield the footers of a table's kept numbered files, the highest number first."""
    found = [
        (number, path)
        for path, entry in every_file(storage, table)
        if (number := file_number(entry.name)) is not None
    ]
    for _, path in sorted(found, reverse=True):
        yield read_footer(storage, path)


def last_number(storage: Storage, table: TableName, folder: Folder | None = None) -> int:
    """Return the last number that a file took; 0 if there is none.

    Args:
        storage: the lake's files.
        table: the table.
        folder: the table's folder, if it was listed already.
    """
    numbered = (folder or list_folder(storage, table)).numbered
    if numbered:
        return max(numbered)
    found = [
        number
        for aside in (PROCESSED, READY_TO_DELETE)
        for entry in storage.list(f"{table.folder}/{aside}").files
        if (number := file_number(entry.name)) is not None
    ]
    return max(found, default=0) or last_applied(storage, table)


def take_number(
    storage: Storage,
    table: TableName,
    staged: str,
    batch: str,
    tokens: TokenIndex,
    token: str | None,
) -> str | None:
    """Rename a staged file to the next number, without ever overwriting a file.

    Args:
        storage: the lake's files.
        table: the table.
        staged: the path of the file; its name is hidden.
        batch: the id of the batch, which is in the file's footer.
        tokens: the tokens of the table's files.
        token: the token of the batch, if it has one.

    Returns:
        The new name; None if an earlier file has the token already.
    """
    number = tokens.next_number()
    while True:
        # Check all files below the number for the token before taking it.
        if token is not None and tokens.find(token):
            return None
        name = file_name(number)
        path = f"{table.folder}/{name}"
        if not _rename(storage, table, staged, name, batch):
            tokens.forget()
            number = max(number + 1, tokens.next_number())
            continue
        # The mirror may have applied this file and moved it already.
        if _processed_batch(storage, table, name) in (None, batch):
            tokens.add(number, batch, token)
            return name
        # This writer was so slow that another file with its number was applied and moved meanwhile.
        if not storage.rename(path, staged):
            storage.delete(path)  # the staged file still exists
        tokens.forget()
        number = tokens.next_number()


def _rename(storage: Storage, table: TableName, staged: str, name: str, batch: str) -> bool:
    """Rename a file to a number; whatever the store answers, the batch in the target decides."""
    path = f"{table.folder}/{name}"

    def is_published() -> bool:  # even if the file was applied and moved meanwhile
        own = read_footer(storage, path).get(BATCH, b"").decode() == batch
        return own or _processed_batch(storage, table, name) == batch

    try:
        if storage.rename(staged, path):
            return True
    except Exception:
        if not is_published():
            raise
    else:
        if storage.local is not None or not is_published():
            return False  # a local disk never refuses because of this file itself
    with suppress(Exception):  # the file is published; the staged copy is hidden
        storage.delete(staged)
    return True


def _processed_batch(storage: Storage, table: TableName, name: str) -> str | None:
    """Return the batch of a processed file: "" if it has none, None without a file."""
    for folder in (PROCESSED, READY_TO_DELETE):
        footer = _footer(storage, f"{table.folder}/{folder}/{name}")
        if footer is not None:
            return footer.get(BATCH, b"").decode()
    return None
