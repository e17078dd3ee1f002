"""An operator's actions by their names, as a notebook's parameters give them.

An action says first what it would do; with `apply` it does it. `ledger` and `quarantine` only look.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirrorlake.errors import UsageError
from mirrorlake.landing.zone import published_tables
from mirrorlake.names import TableName, as_table
from mirrorlake.results import Outcome
from mirrorlake.storage import storage_errors

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

LOOKS: Final = ("ledger", "quarantine")
ACTIONS: Final = (*LOOKS, "pause", "resume", "skip", "replay", "reseed", "undrop")


def operate(
    lake: Lake,
    table: str | TableName,
    action: str,
    *,
    first: int = 0,
    last: int = 0,
    files: Sequence[Path] = (),
    apply: bool = False,
) -> Outcome:
    """Does what an operator asks for, or says what that would be.

    Args:
        lake: the lake.
        table: which table, in the lake's own spelling.
        action: one of `ACTIONS`.
        first: the number of the file to skip, or the first to replay; 0 for none.
        last: the last file to replay; 0 for the last that was applied.
        files: a new initial load, for `reseed`; none for the files that were applied.
        apply: do it; otherwise it is only said.

    Raises:
        UsageError: there is no such action, a number is missing, or no publisher feeds the table.
        MirrorlakeError: what the action itself raises; see `Operations`.

    Example:
        >>> operate(lake, "orders", "skip", first=17)  # doctest: +SKIP
        skip orders: file 17 is passed over. Nothing was changed: a dry run.
    """
    if action not in ACTIONS:
        raise UsageError(
            f"There is no action {action!r}.", hint=f"choose one of {', '.join(ACTIONS)}."
        )
    with storage_errors(lake.storage.root):
        return _act(lake, as_table(table), action, first, last, files, apply)


def _act(
    lake: Lake,
    name: TableName,
    action: str,
    first: int,
    last: int,
    files: Sequence[Path],
    apply: bool,
) -> Outcome:
    if action in LOOKS:
        effect = "only looks; nothing is changed"
        return Outcome(action, str(name), effect, applied=True)
    if action == "undrop":
        return lake.operations.undrop(name, dry_run=not apply)
    if name not in published_tables(lake.storage):
        raise UsageError(
            f"No publisher feeds {name}: it has no folder in the landing zone.",
            hint=f"{action} is for tables that a mirror fills.",
        )
    if action in ("skip", "replay") and first < 1:
        raise UsageError(
            f"{action} needs the number of a file.", hint="set the parameter first; from 1 on."
        )
    if action == "skip":
        return lake.operations.skip(name, first, apply=apply)
    if action == "replay":
        return lake.operations.replay(name, first, last or None, dry_run=not apply)
    if action == "reseed":
        return lake.operations.reseed(name, files, apply=apply)
    verb = lake.operations.pause if action == "pause" else lake.operations.resume
    return verb(name, dry_run=not apply)
