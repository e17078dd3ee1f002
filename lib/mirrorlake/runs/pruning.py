"""Deletes old runs: what they made, and nothing else."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

from mirrorlake.errors import UsageError
from mirrorlake.runs.store import (
    RECORD,
    REPORT,
    RUNNING,
    SUMMARY,
    RunRecord,
    list_runs,
    read_record,
)
from mirrorlake.storage import Storage, storage_errors


def prune_runs(
    *,
    keep: int,
    days: float | None = None,
    keep_failed: int | None = None,
    apply: bool = False,
    folder: str | Path | None = None,
) -> list[RunRecord]:
    """Runs that are no longer wanted, of each plan; only with `apply` they are deleted.

    Args:
        keep: how many done runs of each plan stay.
        days: how long done runs stay, even if there are more; by default not at all.
        keep_failed: how many runs that failed, were stopped or are lost stay; by default all.
        apply: whether to delete.
        folder: where the records are, a folder or URI; by default `runs/`.

    Returns:
        The runs that were, or would be, deleted; never one that runs.

    Raises:
        UsageError: a number is negative.
        SetupError: a store can't be reached; what was not deleted is still listed.
    """
    if keep < 0 or (keep_failed or 0) < 0:
        raise UsageError("The number of runs to keep is negative.")
    limit = datetime.now(timezone.utc) - timedelta(days=days) if days is not None else None
    seen: dict[tuple[str, bool], int] = {}
    chosen = []
    for record in list_runs(folder=folder):
        if record.status == RUNNING:
            continue
        done = record.status == "done"
        seen[record.plan, done] = seen.get((record.plan, done), 0) + 1
        most = keep if done else keep_failed
        if most is None or seen[record.plan, done] <= most:
            continue
        if done and limit is not None and datetime.fromisoformat(record.started) >= limit:
            continue
        chosen.append(record)
    if apply:
        for record in chosen:
            _delete(record)
    return chosen


def _delete(record: RunRecord) -> None:
    """Takes away what the run made, its record last, and folders that are empty then."""
    listed = [str(name) for name in record.document.get("files", [])]
    made = [name for name in [*listed, SUMMARY, REPORT, RECORD] if Path(name).name == name]
    if record.is_remote:
        with storage_errors(record.folder):
            storage = Storage(record.folder)
            if _is_of(record, read_record(storage)):
                for name in made:
                    storage.delete(name)
    for place in record.places:
        if _is_of(record, read_record(place)):
            for name in made:
                (place / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                place.rmdir()


def _is_of(record: RunRecord, found: RunRecord | None) -> bool:
    """Whether a place has a run's results, not those of a later one."""
    return found is not None and found.run == record.run
