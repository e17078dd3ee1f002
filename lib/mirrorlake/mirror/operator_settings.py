"""What an operator asked for: tables paused, files to skip. One small file per table, kept on disk.

Every mirror of the lake obeys it, and a killed one finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache

from mirrorlake.kept import read_kept
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Outcome
from mirrorlake.storage import Storage

FORMAT = 1


@dataclass(frozen=True)
class OperatorSettings:
    """An operator's settings for one table.

    Attributes:
        paused: since when nothing is to be applied, ISO-8601 UTC; None if the table is not paused.
        skip: numbers of files that are not to be applied, whether they are there or not.
    """

    paused: str | None = None
    skip: frozenset[int] = frozenset()


def _path(place: str) -> str:
    return f"{STATE}/control/{place}.json"


def read_settings(storage: Storage, table: TableName) -> OperatorSettings:
    """The settings of a table; the defaults if there are none.

    Raises:
        FormatError: they are of a newer format.
    """
    document = read_kept(storage, _path(table.place), FORMAT) or {}
    return OperatorSettings(document.get("paused"), frozenset(document.get("skip", ())))


def all_settings(storage: Storage) -> Callable[[TableName], OperatorSettings]:
    """The settings of a lake's tables, by table; raises as `read_settings`.

    Costs a listing now, and one read per table that has some.
    """
    there = _places(storage)

    @cache
    def settings_of(table: TableName) -> OperatorSettings:
        return read_settings(storage, table) if table.place in there else OperatorSettings()

    return settings_of


def _places(storage: Storage) -> frozenset[str]:
    listing = storage.list(f"{STATE}/control")
    places = [entry.name for entry in listing.files]
    for folder in listing.folders:
        inner = storage.list(f"{STATE}/control/{folder}").files
        places += [f"{folder}/{entry.name}" for entry in inner]
    return frozenset(place.removesuffix(".json") for place in places)


def _write(storage: Storage, table: TableName, settings: OperatorSettings) -> None:
    if settings == OperatorSettings():
        storage.delete(_path(table.place))
        return
    document = {"format": FORMAT, "paused": settings.paused, "skip": sorted(settings.skip)}
    storage.write_json(_path(table.place), document)


def pause(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Lets no further file of the table be applied; what runs is ended."""
    settings = read_settings(storage, table)
    if settings.paused is None and not dry_run:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        _write(storage, table, OperatorSettings(now, settings.skip))
    effect = "no further files are applied until it is resumed"
    return Outcome("pause", str(table), effect, applied=not dry_run)


def resume(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Lets the table go on."""
    settings = read_settings(storage, table)
    if not dry_run:
        _write(storage, table, OperatorSettings(None, settings.skip))
    return Outcome("resume", str(table), "it goes on with the next cycle", applied=not dry_run)


@contextmanager
def paused(storage: Storage, table: TableName) -> Iterator[None]:
    """Pauses a table meanwhile; after an error it stays so, until what was begun is ended."""
    before = read_settings(storage, table).paused
    pause(storage, table)
    yield
    if before is None:
        resume(storage, table)


def skip(storage: Storage, table: TableName, number: int, *, apply: bool = False) -> Outcome:
    """Lets a file that can't be applied, or never comes, be passed over; says so, or does it."""
    settings = read_settings(storage, table)
    if apply:
        _write(storage, table, OperatorSettings(settings.paused, settings.skip | {number}))
    return Outcome("skip", str(table), f"file {number} is passed over", applied=apply)
