"""What the tools' parameters ask for: two versions, a frame, a policy.

What can't be compared is said, not raised: a table of one version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mirrorlake.delta.table import TableHandle
from mirrorlake.delta.timestamps import parse_utc_timestamp
from mirrorlake.errors import FrameError, UsageError
from mirrorlake.history.frame_diff import FrameDiff
from mirrorlake.history.frame_records import Frame
from mirrorlake.history.maintenance import MaintenancePolicy, make_policy
from mirrorlake.history.versions import check_version, find_readable_range, version_at
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.storage.files import storage_errors

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

ACTIONS: Final = ("show", "create", "release")


@dataclass(frozen=True)
class VersionPair:
    """Two versions of one table, the older first; `note` says why they are the same, if so."""

    table: TableName
    before: int
    after: int
    note: str = ""

    def __repr__(self) -> str:
        return f"{self.table}: versions {self.before} and {self.after}"


def choose_versions(
    table: TableHandle,
    from_version: int = -1,
    to_version: int = -1,
    *,
    from_time: str = "",
    to_time: str = "",
) -> VersionPair:
    """The two versions that a notebook's parameters name; both can be read.

    Args:
        table: which table.
        from_version: the older one; -1 for the one before the newer.
        to_version: the newer one; -1 for the newest.
        from_time: a moment (UTC where it has no zone) instead of `from_version`.
        to_time: a moment instead of `to_version`.

    Raises:
        UsageError: the first is after the second, or a version and a moment are given for one.
        VersionError: one of them can't be read; with the range that can.

    Example:
        >>> choose_versions(lake.table("sales"), 2, 5)  # doctest: +SKIP
        sales: versions 2 and 5
    """
    storage, name = table.storage, table.name
    newest = table.snapshot().version
    after = _version(table, to_version, to_time, newest)
    before = _version(table, from_version, from_time, after - 1)
    if before > after:
        raise UsageError(
            f"Version {before} is after version {after}.", hint="exchange the two ends."
        )
    check_version(storage, name, after)
    if from_version < 0 and not from_time:
        earliest = find_readable_range(storage, name).earliest
        if before < earliest:
            return VersionPair(name, after, after, f"Version {after} is the oldest that is left.")
    check_version(storage, name, before)
    return VersionPair(name, before, after, "" if before < after else "Both ends are one version.")


def _version(table: TableHandle, version: int, time: str, other: int) -> int:
    if time and version != -1:
        raise UsageError("Give either a version or a moment.", hint="leave the version at -1.")
    if time:
        return version_at(table.storage, table.name, parse_utc_timestamp(time))
    if version < -1:
        raise UsageError(f"There is no version {version}.", hint="versions count from 0.")
    return other if version == -1 else version


@dataclass(frozen=True)
class FrameAction(Result):
    """What an action did, or would do.

    Attributes:
        text: that, as a sentence.
        frame: the frame concerned, if there is one.
        applied: whether something was changed.
    """

    text: str
    frame: Frame | None = None
    applied: bool = False

    def shown(self) -> TextTable:
        """The sentence."""
        return TextTable(("result",), ((self.text,),))

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class FrameOverview(Result):
    """Frames, and how far the lake has moved on from each.

    Attributes:
        frames: the frames.
        moved: a line for each of their tables, with the model.
        problems: frames that no longer hold, with the reason.
    """

    frames: tuple[Frame, ...]
    moved: tuple[tuple[str, FrameDiff], ...]
    problems: tuple[tuple[str, str], ...] = ()

    def shown(self) -> TextTable:
        """One row for each table of each frame; if there is none, that."""
        rows: tuple[tuple[Any, ...], ...] = tuple(
            (
                model,
                diff.table,
                diff.framed,
                "gone" if diff.newest is None else diff.newest,
                diff.files_added,
                diff.files_removed,
                f"{diff.preserved:.0%}",
                "made anew" if diff.recreated else "",
            )
            for model, diff in self.moved
        )
        rows += tuple((model, "", "", "", "", "", "", why) for model, why in self.problems)
        if not rows:
            return TextTable(("note",), (("No model has a frame: the action create makes one.",),))
        columns = ("model", "table", "framed", "now", "files new", "files gone", "kept", "note")
        return TextTable(columns, rows)

    def __repr__(self) -> str:
        return "1 frame" if len(self.frames) == 1 else f"{len(self.frames)} frames"


def frame_overview(lake: Lake, model: str = "") -> FrameOverview:
    """The frames of all models, or of one, against the tables as they are now.

    Args:
        lake: the lake.
        model: only this model's; empty for all.

    Example:
        >>> frame_overview(lake)  # doctest: +SKIP
        2 frames
    """
    frames = tuple(one for one in lake.frames.list() if model in ("", one.model))
    moved, problems = [], []
    for frame in frames:
        try:
            moved += [(frame.model, diff) for diff in lake.frames.show(frame.model)]
        except FrameError as error:
            problems.append((frame.model, error.message))
    return FrameOverview(frames, tuple(moved), tuple(problems))


def act_on_frame(
    lake: Lake,
    action: str,
    model: str,
    tables: Sequence[str | TableName] = (),
    *,
    expires_in: float | None = None,
    dry_run: bool = False,
) -> FrameAction:
    """Creates or releases a model's frame; `show` does nothing.

    Args:
        lake: the lake.
        action: one of `ACTIONS`.
        model: whose frame; needed by `create` and `release`.
        tables: the tables of a new frame.
        expires_in: days until a new frame no longer holds; None for never.
        dry_run: only say what would be done.

    Raises:
        UsageError: there is no such action, or the model or tables are missing.
        FrameError: what the action itself raises; see `Frames`.

    Example:
        >>> act_on_frame(lake, "release", "report", dry_run=True)  # doctest: +SKIP
        frame 1 of report would be released
    """
    if action not in ACTIONS:
        raise UsageError(
            f"There is no action {action!r}.", hint=f"choose one of {', '.join(ACTIONS)}."
        )
    if action == "show":
        return FrameAction("Nothing was asked for but to show the frames.")
    if not model:
        raise UsageError(f"{action} needs a model.", hint="set the parameter model.")
    with storage_errors(lake.storage.root):
        if action == "release":
            frame = lake.frames.release(model, dry_run=dry_run)
            verb = "would be released" if dry_run else "was released: its files may be vacuumed"
            return FrameAction(f"{frame.title} {verb}", frame, not dry_run)
        frame = lake.frames.create(model, tables, expires_in=expires_in, dry_run=dry_run)
    at = ", ".join(f"{t.table} at version {t.version}" for t in frame.tables)
    verb = "would frame" if dry_run else "frames"
    return FrameAction(f"{model} {verb} {at}", frame, not dry_run)


def parse_policy(text: str, *, tables: str = "", apply: bool = False) -> MaintenancePolicy:
    """The policy that a notebook's parameter holds as JSON; it vacuums only if it says so.

    Args:
        text: a JSON object with keys of `MaintenancePolicy`; empty for its defaults.
        tables: names separated by commas; empty for all.
        apply: do it, not only say it.

    Raises:
        UsageError: it is no JSON object, has an unknown key, or a value of the wrong kind.

    Example:
        >>> parse_policy('{"min_files": 8}').vacuum
        False
    """
    try:
        values = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise UsageError(
            f"The policy is no JSON: {error}.", hint='write it like {"min_files": 4}.'
        ) from error
    if not isinstance(values, dict):
        raise UsageError("The policy is no JSON object.", hint='write it like {"min_files": 4}.')
    if taken := {"tables", "apply"} & set(values):
        raise UsageError(
            f"The policy has {sorted(taken)[0]!r}.", hint="that is a parameter of its own."
        )
    return make_policy({"vacuum": False} | values | {"tables": tables, "apply": apply})
