"""The landing zone's folders: which tables there are, their numbered files, and the next number.

A batch may have a token: its publisher's own name of it, so that publishing it again writes
nothing. Tokens lie in the footers of the published files. A table remembers a token as long as it
keeps the file: in its folder, in `_ProcessedFiles`, and until `_FilesReadyToDelete` is swept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    ZONE,
    TableName,
    file_name,
    file_number,
    place_of,
)
from mirrorlake.storage.files import Entry, Listing, Storage

TOKEN = b"mirrorlake.token"
BATCH = b"mirrorlake.batch"
_LARGEST = 2**63 - 1  # Delta's txnVersion is a signed long


@dataclass(frozen=True)
class BadFolder:
    """A folder of the zone that can't become a table, and why."""

    schema: str | None
    name: str
    error: InvalidNameError

    @property
    def folder(self) -> str:
        """The folder, relative to the lake's root."""
        return f"{ZONE}/{place_of(self.schema, self.name)}"


@dataclass(frozen=True)
class Folder:
    """One table's folder as listed.

    Attributes:
        numbered: its data files by number.
        listing: everything directly in it.
    """

    table: TableName
    numbered: dict[int, Entry]
    listing: Listing

    def pending(self, last: int, skip: Collection[int] = ()) -> tuple[list[Entry], int | None]:
        """The files that can be applied after number `last`, and the number that is missing.

        Args:
            last: the last applied number.
            skip: numbers whose files need not be there; an empty entry stands for such a one.

        Returns:
            The consecutive files from `last + 1` on; and the first missing number if files lie
            behind the gap, else None.
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
        """The files that lie behind number `last`."""
        return [entry for number, entry in self.numbered.items() if number > last]


def find_tables(
    storage: Storage, base: str = ZONE, *, folders: Sequence[str] | None = None
) -> Iterator[TableName | BadFolder]:
    """Every table folder of the zone, or of a folder that is laid out like it, in order.

    Names starting with `_` are not looked at.

    Args:
        storage: the lake's files.
        base: the zone, or the other folder.
        folders: what is in it, where that is known.
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
                    yield BadFolder(schema, name, error)


def published_tables(storage: Storage, base: str = ZONE) -> list[TableName]:
    """Those of `find_tables` that can become tables."""
    return [table for table in find_tables(storage, base) if isinstance(table, TableName)]


def no_folder(table: TableName) -> TableNotFoundError:
    """What to say where a table that is asked for has no folder."""
    text = f"There is no folder for {table} in the landing zone."
    return TableNotFoundError(text, hint="publish it first.")


def list_folder(storage: Storage, table: TableName) -> Folder:
    """Lists a table's folder whose files are numbered by their names; raises as `by_number`."""
    return by_number(table, storage.list(table.folder))


def every_file(storage: Storage, table: TableName) -> Iterator[tuple[str, Entry]]:
    """All files of a table's folder with their paths; those moved away after they were applied."""
    for folder in (table.folder, *(f"{table.folder}/{f}" for f in (PROCESSED, READY_TO_DELETE))):
        for entry in storage.list(folder).files:
            yield f"{folder}/{entry.name}", entry


def by_number(table: TableName, listing: Listing) -> Folder:
    """The folder's data files by the numbers in their names.

    Raises:
        SequenceError: a number is used by two files, is 0, or is too large.
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
                hint=f"the first file is {file_name(1)}.",
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
    """The folder's data files, of any name, numbered after `last` by when they were modified.

    Args:
        table: whose folder it is.
        listing: what lies in it.
        applied: the files in it that are applied already, by name, with the numbers they had.
        last: the last applied number.
    """
    visible = [entry for entry in listing.files if not entry.name.startswith(("_", "."))]
    fresh = (entry for entry in visible if entry.name not in applied)
    ordered = sorted(fresh, key=lambda entry: (entry.modified, entry.name))
    numbered = {applied[entry.name]: entry for entry in visible if entry.name in applied}
    numbered |= {last + place: entry for place, entry in enumerate(ordered, start=1)}
    return Folder(table, numbered, listing)


class TokenIndex:
    """The tokens of one table's kept files; each file's footer is read once.

    Args:
        storage: the lake's files.
        table: whose files.
    """

    def __init__(self, storage: Storage, table: TableName) -> None:
        self._storage = storage
        self._table = table
        self._seen: dict[tuple[str, int], bytes | None] = {}

    def find(self, token: str) -> str | None:
        """The path of the file that carries a token, relative to the lake's root; or None."""
        found = None
        seen: dict[tuple[str, int], bytes | None] = {}
        for path, entry in every_file(self._storage, self._table):
            if file_number(entry.name) is None:
                continue
            key = (entry.name, entry.size)
            if key not in self._seen:
                self._seen[key] = read_footer(self._storage, path).get(TOKEN)
            seen[key] = self._seen[key]
            if seen[key] == token.encode():
                found = path
        self._seen = seen  # without what was swept, or replaced with the whole folder
        return found


def read_footer(storage: Storage, path: str) -> dict[bytes, bytes]:
    """What a published file's footer carries; nothing where it is no readable Parquet file."""
    return _footer(storage, path) or {}


def _footer(storage: Storage, path: str) -> dict[bytes, bytes] | None:
    """The same; None if there is no file."""
    try:
        with storage.open(path) as source:
            return dict(pq.read_metadata(source).metadata or {})
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError):
        return {}


def footers_from_the_newest(storage: Storage, table: TableName) -> Iterator[dict[bytes, bytes]]:
    """The footers of a table's kept numbered files, the highest number first."""
    found = [
        (number, path)
        for path, entry in every_file(storage, table)
        if (number := file_number(entry.name)) is not None
    ]
    for _, path in sorted(found, reverse=True):
        yield read_footer(storage, path)


def last_number(storage: Storage, table: TableName) -> int:
    """The number that was given last; 0 if none was."""
    numbered = list_folder(storage, table).numbered
    if numbered:
        return max(numbered)
    found = [
        number
        for folder in (PROCESSED, READY_TO_DELETE)
        for entry in storage.list(f"{table.folder}/{folder}").files
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
    """Gives a staged file the next number, by a rename that never overwrites.

    Args:
        storage: the lake's files.
        table: whose file it is.
        staged: its path; the name is hidden.
        batch: its id, which its footer carries.
        tokens: those of the table's files.
        token: the batch's own, if it has one.

    Returns:
        The file's new name; None if a file before it carries the token already.
    """
    number = last_number(storage, table) + 1
    while True:
        # All files below the number are looked at before it is taken.
        if token is not None and tokens.find(token):
            return None
        name = file_name(number)
        path = f"{table.folder}/{name}"
        if not _rename(storage, table, staged, name, batch):
            number += 1
            continue
        # A quick mirror may have applied this very file and moved it away already.
        if _processed_batch(storage, table, name) in (None, batch):
            return name
        # This writer was so slow that its number was applied and moved away meanwhile.
        if not storage.rename(path, staged):
            storage.delete(path)  # the staged file was not gone yet
        number = last_number(storage, table) + 1


def _rename(storage: Storage, table: TableName, staged: str, name: str, batch: str) -> bool:
    """Renames to a number; whatever the store answered, what counts is whose batch is there."""
    path = f"{table.folder}/{name}"

    def stands() -> bool:  # even if it is applied and moved by now
        own = read_footer(storage, path).get(BATCH, b"").decode() == batch
        return own or _processed_batch(storage, table, name) == batch

    try:
        if storage.rename(staged, path):
            return True
    except Exception:
        if not stands():
            raise
    else:
        if storage.local is not None or not stands():
            return False  # a local disk's refusal is never about the own file
    with suppress(Exception):  # it is published; what is left over is hidden
        storage.delete(staged)
    return True


def _processed_batch(storage: Storage, table: TableName, name: str) -> str | None:
    """Which batch was processed under a name: "" if of another publisher, None if none."""
    for folder in (PROCESSED, READY_TO_DELETE):
        footer = _footer(storage, f"{table.folder}/{folder}/{name}")
        if footer is not None:
            return footer.get(BATCH, b"").decode()
    return None
