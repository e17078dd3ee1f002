"""Options of a cycle, an operator's settings of a table, and the properties of mirrored tables.

An operator's settings (paused, skipped files) are one small file per table in the lake. Every
mirror of the lake follows them, also after a restart.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.snapshot import VORDER, Snapshot, read_snapshot
from mirrorlake.errors import UsageError
from mirrorlake.landing.check import file_hash
from mirrorlake.landing.metadata import (
    Identity,
    TableMetadata,
    ensure_identity,
    last_applied,
    read_identity,
)
from mirrorlake.names import STATE, TableName, file_number, quote, visible_columns
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Entry, Listing, Storage
from mirrorlake.storage.kept import NumberedDocuments, read_kept
from mirrorlake.storage.paths import PROGRAM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTINGS_FORMAT = 2
PLAIN_SETTINGS_FORMAT = 1  # of settings that earlier versions can read, too
DEFAULTS_FORMAT = 1
POLICY_FORMAT = 1  # of the partitioning policies
_CONTROL = f"{STATE}/control"
_DEFAULTS = f"{STATE}/defaults.json"
KEYS_PROPERTY = "mirrorlake.keys"
INCARNATION_PROPERTY = "mirrorlake.incarnation"
VIEW_PROPERTY = "mirrorlake.view"
_MOST_HERE, _MOST_OF_A_CLUSTER = 8, 32
_MOST_NAMED = 10  # waiting files in a hint
STOP, SKIP_ROW, SKIP_FILE = "stop", "skip-row", "skip-file"


@dataclass(frozen=True)
class MirrorOptions:
    """The options of a mirror cycle: its bounds, its error handling and its retention.

    Attributes:
        batch_files: the largest number of files in one commit.
        batch_bytes: the largest total size of the files in one commit, in bytes. A commit has at
            least one file, whatever its size.
        driver_bytes: the largest file that the driver checks itself if Spark runs on a cluster, in
            bytes. Executors check larger files and convert them to Parquet.
        patience: how long to wait for another mirror of this lake, in seconds; None takes no lease.
            Without a lease, run no operations during a cycle, and do not delete or rename folders.
        tables_at_once: the number of tables that are processed concurrently. None is the number of
            cores + 1, because a small commit sometimes waits: at most 8 on this machine, at most
            32 on a cluster.
        shard: `2/8` mirrors the second of eight equal parts of the tables; other mirrors process
            the others. None mirrors all tables.
        on_error: how bad rows and files are handled. `stop` stops their table until they are
            repaired. `skip-row` skips bad rows, `skip-file` skips bad files; both write them to
            the quarantine.
        late_files: whether to apply a file that is older than the last applied one if files are
            ordered by time. If false, such a file stops its table.
        widen: whether a column may get a wider type (integer to long, float to double, more
            digits). If false, any other type stops its table.
        deletion_vectors: True enables deletion vectors for each table with its next batch. Files
            are then not rewritten when few of their rows change, but not every reader can read
            such tables. False creates new tables without deletion vectors. None creates new tables
            as `TableDefaults` requires. A table that has deletion vectors keeps them.
        compact_after: the number of commits after which a table's small files are merged; 0 never
            merges them. This does not affect the rewriting of files with many deleted rows.
        log_retention_days: the log retention of mirrored tables, in days; None does not change it.
        feed_retention_days: how long VACUUM keeps removed files and the change feed, in days; None
            does not change it.
        keep_processed_days: the retention of applied files, in days.
        keep_dropped_days: the retention of dropped tables, in days.

    Example:
        >>> MirrorOptions(on_error="skip-row", batch_files=100).on_error
        'skip-row'
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
    deletion_vectors: bool | None = None
    compact_after: int = 50
    log_retention_days: int | None = None
    feed_retention_days: int | None = None
    keep_processed_days: float = 7
    keep_dropped_days: float = 7


def concurrent_tables(options: MirrorOptions, cores: int | None = None) -> int:
    """Return the number of tables to process concurrently.

    Args:
        options: the options of the cycle.
        cores: the number of cores of the cluster; `None` if Spark runs on this machine.
    """
    if options.tables_at_once is not None:
        return options.tables_at_once
    if cores is not None:
        return min(_MOST_OF_A_CLUSTER, cores + 1)
    return min(_MOST_HERE, (os.cpu_count() or 1) + 1)


def make_options(options: MirrorOptions | None, settings: Mapping[str, Any]) -> MirrorOptions:
    """Return the options with some of their fields set by name.

    Raises:
        UsageError: there is no such field, or it has no such value.
    """
    known = [field.name for field in fields(MirrorOptions)]
    if unknown := [name for name in settings if name not in known]:
        raise UsageError(
            f"The mirror has no setting {unknown[0]!r}.",
            hint=f"choose one of {', '.join(known)}.",
        )
    made = replace(options or MirrorOptions(), **settings)
    if made.on_error not in (STOP, SKIP_ROW, SKIP_FILE):
        raise UsageError(
            f"on_error can't be {made.on_error!r}.",
            hint=f"choose one of {STOP}, {SKIP_ROW}, {SKIP_FILE}.",
        )
    if made.batch_files < 1 or made.batch_bytes < 1:
        raise UsageError(
            "batch_files or batch_bytes is less than 1.", hint="set both to 1 or more."
        )
    return made


class Step(Enum):
    """A finished step of a table's cycle."""

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
class SkippedFile:
    """A waiting file that an operator skips in a folder that is ordered by time.

    Its number is not enough: if a file of the folder is replaced, others get its number.

    Attributes:
        name: its name.
        size: its size in bytes.
        published: the time of its last modification, ISO-8601 UTC.
        content: its ETag in an object store; its SHA-256 on a local disk.
    """

    name: str
    size: int
    published: str
    content: str

    @classmethod
    def of(cls, storage: Storage, table: TableName, entry: Entry) -> SkippedFile:
        """Return the description of a file; raise FileNotFoundError if it is missing."""
        content = entry.etag or file_hash(storage, f"{table.folder}/{entry.name}")
        return cls(entry.name, entry.size, entry.modified.isoformat(), content)

    def is_same(self, storage: Storage, table: TableName, entry: Entry) -> bool:
        """Return whether a file is this one, and not another one that has replaced it."""
        known = (self.name, self.size, self.published)
        if known != (entry.name, entry.size, entry.modified.isoformat()):
            return False
        with suppress(FileNotFoundError):  # the mirror has moved it
            return self == self.of(storage, table, entry)
        return False


@dataclass(frozen=True)
class OperatorSettings:
    """An operator's settings for one table.

    Attributes:
        paused: when the table was paused, ISO-8601 UTC; None if it is not paused.
        skip: numbers of files to skip, whether they exist or not.
        incarnation: the incarnation of the folder in which files are skipped; None if they are
            skipped in any.
        files: files to skip that have no number yet, because the folder is ordered by time.
    """

    paused: str | None = None
    skip: frozenset[int] = frozenset()
    incarnation: str | None = None
    files: frozenset[SkippedFile] = frozenset()

    def skipped(self, identity: Identity | None) -> frozenset[int]:
        """Return the numbers to skip in a folder; another incarnation's numbers are other files."""
        return self.skip if self._is_for(identity) else frozenset()

    def skipped_files(self, identity: Identity | None) -> frozenset[SkippedFile]:
        """Return the files to skip in a folder that is ordered by time, whether applied or not."""
        return self.files if self._is_for(identity) else frozenset()

    def skips(
        self, storage: Storage, identity: Identity, waiting: Iterable[Entry]
    ) -> frozenset[int | str]:
        """Return the skipped numbers, and the names of skipped files that still wait.

        A file that has replaced a skipped file is another one.

        Args:
            storage: the lake's files.
            identity: the identity of the folder.
            waiting: its files that are not applied.
        """
        files = self.skipped_files(identity)
        names = (
            entry.name
            for entry in (waiting if files else ())
            if any(file.is_same(storage, identity.table, entry) for file in files)
        )
        return frozenset((*self.skipped(identity), *names))

    def _is_for(self, identity: Identity | None) -> bool:
        found = None if identity is None else identity.incarnation
        return self.incarnation in (None, found)


def _settings_path(table: TableName) -> str:
    return f"{_CONTROL}/{table.place}.json"


def read_settings(storage: Storage, table: TableName) -> OperatorSettings:
    """Return the settings of a table, or the defaults if none are stored.

    Raises:
        FormatError: The settings have a newer format.
    """
    document = read_kept(storage, _settings_path(table), SETTINGS_FORMAT) or {}
    return OperatorSettings(
        document.get("paused"),
        frozenset(document.get("skip", ())),
        document.get("incarnation"),
        frozenset(SkippedFile(**file) for file in document.get("files", ())),
    )


def all_settings(storage: Storage) -> Callable[[TableName], OperatorSettings]:
    """Return a function that reads the settings of a table and raises like `read_settings`.

    This costs one listing, and one read per table with settings.
    """
    listing = storage.list(_CONTROL)
    names = [entry.name for entry in listing.files]
    for folder in listing.folders:
        names += [f"{folder}/{entry.name}" for entry in storage.list(f"{_CONTROL}/{folder}").files]
    stored = {name.removesuffix(".json") for name in names}

    @cache
    def settings_of(table: TableName) -> OperatorSettings:
        return read_settings(storage, table) if table.place in stored else OperatorSettings()

    return settings_of


def write_settings(storage: Storage, table: TableName, settings: OperatorSettings) -> None:
    """Write the settings of a table; the defaults are stored by deleting the document."""
    if settings.paused is None and not settings.skip and not settings.files:
        storage.delete(_settings_path(table))
        return
    document: dict[str, Any] = {
        "format": SETTINGS_FORMAT if settings.files else PLAIN_SETTINGS_FORMAT,
        "paused": settings.paused,
        "skip": sorted(settings.skip),
        "incarnation": settings.incarnation,
    }
    if settings.files:
        files = sorted(settings.files, key=lambda file: (file.published, file.name))
        document["files"] = [asdict(file) for file in files]
    storage.write_json(_settings_path(table), document)


def copy_settings(storage: Storage, source: TableName, target: TableName) -> None:
    """Give a table the settings of another one; a paused table remains paused."""
    found = read_settings(storage, source)
    paused = found.paused or read_settings(storage, target).paused
    write_settings(storage, target, replace(found, paused=paused))


def pause(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Pause a table: a running commit finishes, and no further file is applied."""
    settings = read_settings(storage, table)
    if settings.paused is None and not dry_run:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        write_settings(storage, table, replace(settings, paused=now))
    are = "would be" if dry_run else "are"
    effect = f"no further files {are} applied until it is resumed"
    return Outcome("pause", str(table), effect, applied=not dry_run)


def resume(storage: Storage, table: TableName, *, dry_run: bool = False) -> Outcome:
    """Resume a paused table."""
    settings = read_settings(storage, table)
    if not dry_run:
        write_settings(storage, table, replace(settings, paused=None))
    are = "would be" if dry_run else "are"
    effect = f"files {are} applied again from the next cycle on"
    return Outcome("resume", str(table), effect, applied=not dry_run)


@contextmanager
def paused(storage: Storage, table: TableName) -> Iterator[None]:
    """Pause a table within the context; after an error it remains paused, to be run again."""
    before = read_settings(storage, table).paused
    pause(storage, table)
    yield
    if before is None:
        resume(storage, table)


def skip(
    storage: Storage,
    table: TableName,
    file: int | str,
    *,
    apply: bool = False,
    waiting: Mapping[int, Entry] | None = None,
) -> Outcome:
    """Skip a file that can't be applied or never arrives; by default only preview it.

    Args:
        storage: the lake's files.
        table: the table.
        file: the number of the file, or its name.
        apply: skip the file.
        waiting: the waiting files by number, if the folder is ordered by time.

    Raises:
        UsageError: `file` is neither a number nor the name of a numbered file; or the folder is
            ordered by time, and has no such waiting file.
    """
    listing = storage.list(table.folder)
    last = last_applied(storage, table)
    number = _number_of(table, file, last, waiting)
    entry = waiting[number] if waiting is not None and number > last else None
    if apply:
        # Before the first cycle, the skip creates the identity, so that a later folder of the same
        # name does not inherit it.
        identity = read_identity(storage, table)
        if identity is None and listing != Listing((), ()):
            identity = ensure_identity(storage, table)
        settings = read_settings(storage, table)
        incarnation = None if identity is None else identity.incarnation
        skipped, files = settings.skipped(identity), settings.skipped_files(identity)
        if entry is None:
            skipped |= {number}
        else:
            files |= {SkippedFile.of(storage, table, entry)}
        settings = OperatorSettings(settings.paused, skipped, incarnation, files)
        write_settings(storage, table, settings)
    if number <= last:
        effect = f"file {number} is already applied; only a reseed skips it"
    else:
        if entry is not None:
            named = f"file {number} ({entry.name})"
        else:
            exists = number in map(file_number, (entry.name for entry in listing.files))
            named = f"file {number}{'' if exists else ', which does not exist yet,'}"
        effect = f"{named} {'is' if apply else 'would be'} skipped"
    return Outcome("skip", str(table), effect, applied=apply)


def _number_of(
    table: TableName, file: int | str, last: int, waiting: Mapping[int, Entry] | None
) -> int:
    """Return the number of a file; the other arguments and the errors are those of `skip`.

    Args:
        table: see `skip`.
        file: see there.
        last: the last applied number.
        waiting: see there.
    """
    text = str(file)
    if text.isdecimal():
        number = int(text)
    elif waiting is None:
        number = file_number(text) or 0
    else:
        number = next((one for one, entry in waiting.items() if entry.name == text), 0)
    if waiting is None:
        if number < 1:
            hint = "give the number of the file, which is 1 or more."
            raise UsageError(f"{table} has no numbered file {text}.", hint=hint)
    elif not 1 <= number <= last and number not in waiting:
        first = sorted(waiting.items())[:_MOST_NAMED]
        names = ", ".join(f"{one} ({entry.name})" for one, entry in first)
        hint = f"its waiting files are {names}." if names else "no file waits in its folder."
        raise UsageError(f"{table} has no waiting file {text}.", hint=hint)
    return number


def skip_command(table: TableName, file: int | str) -> str:
    """Return the command that skips a file, given by its number or its name."""
    return f"{PROGRAM} skip ROOT {shlex.join([str(table), str(file)])} --apply"


def or_skip(fix: str, table: TableName, file: int | str) -> str:
    """Return a fix, and the command that skips the file as another way; `fix` may be empty."""
    skips = f"skip the file ({skip_command(table, file)})."
    return f"{fix} Or {skips}" if fix else skips


def is_stale_incarnation(snapshot: Snapshot | None, identity: Identity) -> bool:
    """Return whether a table belongs to an earlier incarnation of its folder."""
    if snapshot is None or identity.app_id in snapshot.txns:
        return False
    made_for = snapshot.properties.get(INCARNATION_PROPERTY)
    return bool(snapshot.txns) or made_for != identity.incarnation


def is_mirrored(properties: Mapping[str, str]) -> bool:
    """Return whether a mirror created the table; views and dimensions can have keys, too."""
    return INCARNATION_PROPERTY in properties


def keys_property(metadata: TableMetadata) -> dict[str, str]:
    """Return the table property with the keys as a JSON list."""
    return {KEYS_PROPERTY: json.dumps(list(metadata.keys), ensure_ascii=False)}


def declared_keys(properties: dict[str, str]) -> tuple[str, ...]:
    """Return the key columns that a table's properties declare."""
    return tuple(json.loads(properties.get(KEYS_PROPERTY, "[]")))


def hide_columns(rows: DataFrame, properties: Callable[[], Mapping[str, str]]) -> DataFrame:
    """Return the rows of a table without the columns that a view hides.

    Args:
        rows: the rows.
        properties: returns the table's properties; called only if a column may be hidden.
    """
    shown = visible_columns(rows.columns)
    if len(shown) == len(rows.columns) or VIEW_PROPERTY not in properties():
        return rows
    return rows.select(*map(quote, shown))


def retention(options: MirrorOptions) -> dict[str, str]:
    """Return Delta's properties for the retention of the log, and of removed files and the feed."""
    days = {
        "delta.logRetentionDuration": options.log_retention_days,
        "delta.deletedFileRetentionDuration": options.feed_retention_days,
    }
    return {name: f"interval {int(n)} days" for name, n in days.items() if n is not None}


@dataclass(frozen=True)
class TableDefaults:
    """The defaults of a lake's new tables.

    Attributes:
        deletion_vectors: whether new mirrored tables have deletion vectors; see `MirrorOptions`.
            By default (None), those with keys have them.
        vorder: whether new tables ask for files in V-Order, which `optimize`, maintenance and
            `Lake.write` then write.
        safe_names: whether publishers rename columns so that no table needs column mapping; see
            `Publisher`.
    """

    deletion_vectors: bool | None = None
    vorder: bool = False
    safe_names: bool = False


def read_defaults(storage: Storage) -> TableDefaults:
    """Return a lake's defaults.

    Raises:
        FormatError: The defaults have a newer format.
    """
    document = read_kept(storage, _DEFAULTS, DEFAULTS_FORMAT) or {}
    return TableDefaults(**{f.name: document.get(f.name, f.default) for f in fields(TableDefaults)})


def write_defaults(storage: Storage, defaults: TableDefaults) -> None:
    """Write a lake's defaults."""
    storage.write_json(_DEFAULTS, {"format": DEFAULTS_FORMAT} | asdict(defaults))


def new_table_properties(storage: Storage) -> dict[str, str]:
    """Return the properties that a lake's defaults give to every new table."""
    return {VORDER: "true"} if read_defaults(storage).vorder else {}


def partitioning_policies(storage: Storage, table: TableName) -> NumberedDocuments:
    """Return the documents of a table's partitioning policy; `partitioning` writes them."""
    return NumberedDocuments(storage, f"{table.partitioning_path}/policies", POLICY_FORMAT)


def has_partitioning_policy(storage: Storage, table: TableName) -> bool:
    """Check whether a policy partitions the table's files, so that compaction must not mix them.

    The policy of an earlier table of the same name does not count.
    """
    newest = partitioning_policies(storage, table).newest()
    if newest is None or newest["policy"] is None:
        return False
    snapshot = read_snapshot(storage, table.table_path)
    return snapshot is not None and bool(snapshot.metadata["id"] == newest["table_id"])
