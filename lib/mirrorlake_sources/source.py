"""What a source is: three questions that `engine` asks, whatever stands behind them.

A new source answers them and passes `tests/servers/sources/test_conformance.py`; publishing exactly
once, first loads, stopping one table and restarts are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

import pyarrow as pa

from mirrorlake.errors import MirrorlakeError
from mirrorlake.names import TableName
from mirrorlake_sources.position import Position

Publish = Callable[[pa.RecordBatchReader], None]


@dataclass(frozen=True)
class Batch:
    """What happened to one table between two positions.

    Attributes:
        table: which one.
        rows: the changes in their order, with `__rowMarker__`; None if there are none to publish.
        position: where the table stands with them.
        replaces: the table was emptied before these rows: its folder is replaced.
        problem: why the table can't go on; nothing of it is published any more.
        reseed: the table needs a new first load.
    """

    table: TableName
    rows: pa.RecordBatchReader | None
    position: Position
    replaces: bool = False
    problem: MirrorlakeError | None = None
    reseed: bool = False


@dataclass(frozen=True)
class Group:
    """Batches that end at the same point of the source.

    Attributes:
        batches: in the order in which they are to be published; empty when nothing happened.
        end: what `confirm` is told once all of them stand.
        appeared: tables that were not known before, with their keys: found before the batches.
    """

    batches: list[Batch] = field(default_factory=list)
    end: Any = None
    appeared: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)


class Source(Protocol):
    """A source of changes. It is entered before the first question and left after the last."""

    @property
    def name(self) -> str:
        """Which source this is: the same at each start, and another one for other data."""

    @property
    def keeps_changes(self) -> bool:
        """Whether a stopped table can go on later: its changes are still there then."""

    def __enter__(self) -> Source:
        """Connects, and checks all that can be checked."""

    def __exit__(self, *_error: object) -> None:
        """Lets go of everything."""

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """Its tables, each with its key columns, or with what keeps it from being read."""

    def covers(self, table: TableName) -> bool:
        """Whether the source still has all changes since the table's last position."""

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """Hands a table's rows to `publish`, in parts, from several threads if it likes.

        Returns:
            The position after which the table's changes are still to come; None where the
            source has no rows but those that its changes bring, or `stop` was set.
        """

    def changes(
        self, since: MutableMapping[TableName, Position], stop: Event, *, once: bool
    ) -> Generator[Group, None, None]:
        """What happened since, in order, and each change in one batch only.

        Args:
            since: the tables to read, and where each stands. The engine moves them on, and
                takes out a table that is stopped.
            stop: ends the iterator soon after it is set, with what is whole by then.
            once: end with what there is now. Otherwise go on, with an empty group each second
                or so while nothing happens.
        """

    def confirm(self, end: Any) -> None:
        """All up to a group's end is published for good: the source may forget it."""

    def facts(self) -> dict[str, Any]:
        """How the source itself stands, for `status`: what JSON can hold."""


class ChangesOnly:
    """What a source answers that has nothing but changes, and keeps them by rules of its own."""

    def covers(self, table: TableName) -> bool:
        """Always: what is no longer there is found when it is read; nothing is loaded again."""
        return True

    def snapshot(self, table: TableName, publish: Publish, stop: Event) -> Position | None:
        """There are no rows but those that the changes bring."""
        return None

    def confirm(self, end: Any) -> None:
        """Nothing is forgotten on account of it."""
