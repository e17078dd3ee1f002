"""What lies in a folder: its files with their sizes and times, and the folders in it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

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
