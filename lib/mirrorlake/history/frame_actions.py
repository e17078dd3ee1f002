"""A model's frame by the name of an action, as a notebook's parameters give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mirrorlake.errors import FrameError, UsageError
from mirrorlake.history.frame_diff import FrameDiff
from mirrorlake.history.frame_records import Frame
from mirrorlake.results import Result, TextTable
from mirrorlake.storage import storage_errors

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake.names import TableName

ACTIONS: Final = ("show", "create", "release")


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
    if action == "release":
        with storage_errors(lake.storage.root):
            frame = lake.frames.release(model, dry_run=dry_run)
        verb = "would be released" if dry_run else "was released: its files may be vacuumed"
        return FrameAction(f"{frame.title} {verb}", frame, not dry_run)
    with storage_errors(lake.storage.root):
        frame = lake.frames.create(model, tables, expires_in=expires_in, dry_run=dry_run)
    at = ", ".join(f"{t.table} at version {t.version}" for t in frame.tables)
    verb = "would frame" if dry_run else "frames"
    return FrameAction(f"{model} {verb} {at}", frame, not dry_run)
