"""The landing zone's folders: which tables there are, and which numbered files each holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from mirrorlake.errors import InvalidNameError, SequenceError, TableNotFoundError
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
from mirrorlake.storage import Entry, Listing, Storage

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
