"""The options of the mirror, and the steps that it reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.names import TableName

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


def retention(options: MirrorOptions) -> dict[str, str]:
    """How long the log reaches back, and removed files with the feed, as Delta's properties."""
    days = {
        "delta.logRetentionDuration": options.log_retention_days,
        "delta.deletedFileRetentionDuration": options.feed_retention_days,
    }
    return {name: f"interval {int(n)} days" for name, n in days.items() if n is not None}


def make_options(options: MirrorOptions | None, settings: Mapping[str, Any]) -> MirrorOptions:
    """The options with some of their fields set by name.

    Raises:
        UsageError: there is no such field.
    """
    known = [field.name for field in fields(MirrorOptions)]
    if unknown := [name for name in settings if name not in known]:
        raise UsageError(
            f"The mirror has no setting {unknown[0]!r}.", hint=f"it has {', '.join(known)}."
        )
    return replace(options or MirrorOptions(), **settings)


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


def noop(*_ignored: object) -> None:
    """A listener that does nothing."""
