"""What lies in a folder: its files with their sizes and times, and the folders in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timezone


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
