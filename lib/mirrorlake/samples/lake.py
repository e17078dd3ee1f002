"""Opens the lake of a sample, and no other: nothing deletes a lake that it did not make.

A notebook that makes a sample begins with `open_sample` and ends with `seal_sample`. In between the
lake's marker says `making`; a making that was killed is told from its end by that, and may begin
again. Its own files are known by the journal (what this library writes) and by a mark on every
commit (what Spark writes). Somebody else's process has neither: what it publishes, writes or
frames, into a sealed sample or into a half-made one, makes the next `open_sample` refuse. The rules
are in `contents`; what they leave open is somebody else's. A process makes one sample at a time.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from mirrorlake.errors import SampleError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.names import STATE, TABLES, ZONE
from mirrorlake.notices import say
from mirrorlake.paths import lake_path
from mirrorlake.samples.contents import Contents, look_into, walk
from mirrorlake.samples.marker import JOURNAL, MARKER, JournalStorage, Marker, read_marker
from mirrorlake.spark.stamp import end_marks, mark_commits
from mirrorlake.storage import Storage

_SHARED = frozenset({".", "Files", TABLES, ZONE, STATE})
_HINT = "choose another root, or remove that lake yourself if you don't need it."


def open_sample(root: str, *, fresh: bool = False, tables: Sequence[str] = ()) -> Lake:
    """Opens a sample's lake to make it, or to go on with it; starts no Spark.

    Args:
        root: the lake, as a notebook's parameter has it; see `lake_path`.
        fresh: remove first what earlier makings made.
        tables: those that Spark itself writes first, without `lake.write` or the mirror.

    Returns:
        The lake. What is written through it, and the commits of this process, are the making's.

    Raises:
        SampleError: the lake holds something that no sample's making made; nothing was changed.

    Example:
        >>> import tempfile
        >>> lake = open_sample(tempfile.mkdtemp(), fresh=True)
        >>> lake.publisher("t", keys=["id"]).upsert([{"id": 1}]).rows
        1
        >>> seal_sample(lake)
    """
    lake = Lake(lake_path(root))
    begin(lake, fresh=fresh, tables=tables)
    return lake


def begin(lake: Lake, *, fresh: bool = False, tables: Sequence[str] = ()) -> None:
    """Does what `open_sample` does, for a lake at hand; its storage keeps a journal from now on."""
    storage = lake.storage
    found = _check(storage)
    marker = Marker(uuid.uuid4().hex, "making", tuple(tables), found.made)
    marker.write(storage)
    if fresh:
        _remove(storage, (*found.made, *found.derived))
        marker = Marker(marker.making, "making", marker.tables)
        marker.write(storage)
    lake.storage = JournalStorage(storage, marker)
    mark_commits(marker.making)


def seal_sample(lake: Lake) -> None:
    """Ends a making: from now on every change of the lake is somebody else's.

    What the making did not make is not taken in; the next `open_sample` refuses because of it.

    Raises:
        UsageError: the lake was not opened by `open_sample`, or is sealed already.
    """
    storage = lake.storage
    if not isinstance(storage, JournalStorage):
        raise UsageError(f"{lake} was not opened as a sample.", hint="use open_sample.")
    found = look_into(storage, storage.marker)
    Marker(storage.marker.making, "sealed", (), found.made).write(storage)
    storage.end()
    end_marks()
    if found.foreign:
        say(f"{storage.root} holds what this sample did not make: {_listed(found.foreign)}")


def _check(storage: Storage) -> Contents:
    """What lies in the lake, all of it a sample's own.

    Raises:
        SampleError: it is not.
    """
    if storage.local is not None and storage.local.is_symlink():
        raise SampleError(f"{storage.root} is a symbolic link.", hint=_HINT)
    marker = None if _is_linked(storage) else read_marker(storage)
    if marker is None:
        if found := walk(storage):
            raise SampleError(
                f"{storage.root} is not a sample: it holds {_listed(found)}.", hint=_HINT
            )
        return Contents({}, (), ())
    contents = look_into(storage, marker)
    if contents.foreign:
        raise SampleError(
            f"{storage.root} is a sample, but it holds what no making of it made:"
            f" {_listed(contents.foreign)}.",
            hint=_HINT,
        )
    return contents


def _is_linked(storage: Storage) -> bool:
    """Whether the marker would be read from somewhere else."""
    if storage.local is None:
        return False
    marker = storage.local / MARKER
    return any(path.is_symlink() for path in (marker, *list(marker.parents)[:2]))


def _remove(storage: Storage, paths: Iterable[str]) -> None:
    """Removes files that were found in the lake, then the folders that this leaves empty."""
    kept = {MARKER, JOURNAL}
    gone = [path for path in paths if path not in kept]
    if storage.local is None:
        for path in gone:
            storage.delete(path)
        return
    for path in gone:
        # Not by obstore: it refuses the names of files that it was killed over.
        (storage.local / path).unlink(missing_ok=True)
    emptied = {str(folder) for path in gone for folder in PurePosixPath(path).parents}
    for folder, _, _ in os.walk(storage.local, topdown=False):
        place = PurePosixPath(folder).relative_to(storage.local)
        around = {str(place), *map(str, place.parents)} - _SHARED
        # A folder without files that somebody else made may be a table that begins.
        if around & emptied:
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(folder)


def _listed(paths: Iterable[str]) -> str:
    found = [path.encode(errors="backslashreplace").decode() for path in sorted(paths)]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
