"""What people may choose about mirroring."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class MirrorOptions:
    """Bounds and habits of a cycle.

    Attributes:
        batch_files: most files in one commit.
        batch_bytes: most bytes of files in one commit, but at least one file.
        tables_at_once: how many tables are worked on side by side.
        widen: whether a column may get a wider type (integer to long, float to double, more
            digits); otherwise any other type stops its table.
        compact_after: commits of a table after which its small files are put together; 0 never.
        log_retention_days: how far back a mirrored table's log reaches; None leaves it as it is.
        feed_retention_days: how long removed files and the change feed stay before a vacuum may
            take them; None leaves it as it is.
        keep_processed_days: how long applied files are kept.
        keep_dropped_days: how long a dropped table can be taken back.
    """

    batch_files: int = 1000
    batch_bytes: int = 4 * 2**30
    tables_at_once: int = os.cpu_count() or 1
    widen: bool = False
    compact_after: int = 50
    log_retention_days: int | None = None
    feed_retention_days: int | None = None
    keep_processed_days: float = 7
    keep_dropped_days: float = 7
