"""Options of a cycle, and an operator's settings for one table.

An operator's settings (paused, files to skip) are one small file per table in the lake. Every
mirror of the lake obeys them, and a killed one finds them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from mirrorlake.errors import UsageError
from mirrorlake.names import STATE, TableName
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.listing import AT_ONCE

FORMAT = 1  # of settings
_CONTROL = f"{STATE}/control"
_One = TypeVar("_One")
_Done = TypeVar("_Done")
_MOST_HERE, _MOST_OF_A_CLUSTER = 8, 32
STOP, SKIP_ROW, SKIP_FILE = "stop", "skip-row", "skip-file"


@dataclass(frozen=True)
class MirrorOptions:
    """Bounds of a cycle, and what it does with trouble.

    Attributes:
        batch_files: most files in one commit.
        batch_bytes: most bytes of files in one commit, but at least one file.
        driver_bytes: the largest file that the driver looks into itself where Spark runs on a
            cluster; larger ones are checked, and made Parquet of, by executors.
        patience: seconds to wait for another mirror of this lake; None does not look for one.
        tables_at_once: how many tables are worked on side by side. A small commit waits now and
            then, so that one more than there are cores keeps all of them busy: None takes this
            machine's cores, at most 8, or those of the cluster, at most 32.
        shard: `2/8` mirrors the second of eight shares of the tables, and leaves the others to
            other mirrors; None mirrors all.
        on_error: what a bad row or file does: `STOP` its table until it is repaired; `SKIP_ROW`
            leaves bad rows out, `SKIP_FILE` bad files, and puts them into quarantine.
        late_files: whether a file that is older than the last applied one may still be applied,
            where files are ordered by time; otherwise it stops its table.
        widen: whether a column may get a wider type (integer to long, float to double, more
            digits); otherwise any other type stops its table.
        deletion_vectors: whether tables get deletion vectors, with the next batch of theirs: no
            file is written again then when few of its rows change, but not every reader reads
            such tables. A table that has them keeps them.
        compact_after: commits of a table after which its small files are put together; 0 never.
        log_retention_days: how far back a mirrored table's log reaches; None leaves it as it is.
        feed_retention_days: how long removed files and the change feed stay before a vacuum may
            take them; None leaves it as it is.
        keep_processed_days: how long applied files are kept.
        keep_dropped_days: how long a dropped table can be taken back.
    """

    batch_files: int = 1000
    batch_bytes: int = 4 * 2**30
    driver_bytes: int = 64 * 2**20
    patience: float | None = 600
    tables_at_once: int | None = None
    shard: str | None = None
    on_error: str = STOP
    late_files: bool = False
    widen: bool = False
    deletion_vectors: bool = False
    compact_after: int = 50
    log_retention_days: int | None = None
    feed_retention_days: int | None = None
    keep_processed_days: float = 7
    keep_dropped_days: float = 7


def at_once(options: MirrorOptions, cores: int | None = None) -> int:
    """How many tables are worked on side by side.

    Args:
        options: as they were given.
        cores: of the cluster; None where Spark runs on this machine.
    """
    if options.tables_at_once is not None:
        return options.tables_at_once
    if cores is not None:
        return min(_MOST_OF_A_CLUSTER, cores + 1)
    return min(_MOST_HERE, (os.cpu_count() or 1) + 1)


def side_by_side(
    storage: Storage, do: Callable[[_One], _Done], items: Iterable[_One]
) -> list[_Done]:
    """What comes of each item: in a store many at a time, on a disk one after the other.

    There a step is so short that threads would only wait for each other.
    """
    if storage.local is not None:
        return [do(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(do, items))


def make_options(options: MirrorOptions | None, settings: Mapping[str, Any]) -> MirrorOptions:
    """Return the options with some of their fields set by name.

    Raises:
        UsageError: there is no such field, or it has no such value.
    """
    known = [field.name for field in fields(MirrorOptions)]
    if unknown := [name for name in settings if name not in known]:
        raise UsageError(
            f"The mirror has no setting {unknown[0]!r}.", hint=f"it has {', '.join(known)}."
        )
    made = replace(options or MirrorOptions(), **settings)
    if made.on_error not in (STOP, SKIP_ROW, SKIP_FILE):
        raise UsageError(
            f"on_error can't be {made.on_error!r}.",
            hint=f"choose one of {STOP}, {SKIP_ROW}, {SKIP_FILE}.",
        )
    if made.batch_files < 1 or made.batch_bytes < 1:
        raise UsageError(
            "A batch has at least one file.", hint="set batch_files and batch_bytes to 1 or more."
        )
    return made


class Step(Enum):
    """What has just been done for a table."""

    LISTED = "listed"
    IDENTIFIED = "identified"
    CHECKED = "checked"
    PLANNED = "planned"
    QUARANTINED = "quarantined"
    CREATED = "created"
    COMMITTED = "committed"
    MOVED = "moved"
    COMPACTED = "compacted"


StepListener = Callable[[TableName, Step], None]


@dataclass(frozen=True)
class OperatorSettings:
    """An operator's settings for one table.

    Attributes:
        paused: since when nothing is to be applied, ISO-8601 UTC; None if the table is not paused.
        skip: numbers of files that are not to be applied, whether they are there or not.
    """

    paused: str | None = None
    skip: frozenset[int] = frozenset()


def _settings_path(table: TableName) -> str:
    return f"{_CONTROL}/{table.place}.json"


def read_settings(storage: Storage, table: TableName) -> OperatorSettings:
    """The settings of a table; the defaults if there are none.

    Raises:
        FormatError: they are of a newer format.
    """
    document = read_kept(storage, _settings_path(table), FORMAT) or {}
    return OperatorSettings(document.get("paused"), frozenset(document.get("skip", ())))


def all_settings(storage: Storage) -> Callable[[TableName], OperatorSettings]:
    """The settings of a lake's tables, by table; raises as `read_settings`.

    Costs a listing now, and one read per table that has some.
    """
    listing = storage.list(_CONTROL)
    names = [entry.name for entry in listing.files]
    for folder in listing.folders:
        names += [f"{folder}/{entry.name}" for entry in storage.list(f"{_CONTROL}/{folder}").files]
    there = {name.removesuffix(".json") for name in names}

    @cache
    def settings_of(table: TableName) -> OperatorSettings:
        return read_settings(storage, table) if table.place in there else OperatorSettings()

    return settings_of


def _write_settings(storage: Storage, table: TableName, settings: OperatorSettings) -> None:
    if settings == OperatorSettings():
        storage.delete(_settings_path(table))
        return
    document = {"format": FORMAT, "paused": settings.paused, "skip": sorted(settings.skip)}
    storage.write_json(_settings_path(table), document)


def pause(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Lets no further file of the table be applied; what runs is ended."""
    settings = read_settings(storage, table)
    if settings.paused is None and not dry_run:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        _write_settings(storage, table, OperatorSettings(now, settings.skip))
    effect = "no further files are applied until it is resumed"
    return Outcome("pause", str(table), effect, applied=not dry_run)


def resume(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Lets the table go on."""
    settings = read_settings(storage, table)
    if not dry_run:
        _write_settings(storage, table, OperatorSettings(None, settings.skip))
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
        _write_settings(storage, table, OperatorSettings(settings.paused, settings.skip | {number}))
    return Outcome("skip", str(table), f"file {number} is passed over", applied=apply)
