"""What an operator's call did, or would do: the result of pause, skip, replay and the like.

What loses no row and no history acts, and `dry_run=True` only says what it would do; what deletes,
takes back or passes over only says it, and `apply=True` does it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a call did, or would do.

    Attributes:
        verb: the call, such as `pause`.
        table: the table's name.
        effect: what it changes, in words.
        applied: whether it is done; False after a dry run.
        files: the files concerned, in order, where there are any.
    """

    verb: str
    table: str
    effect: str
    applied: bool
    files: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return asdict(self)

    def __repr__(self) -> str:
        done = "" if self.applied else " Nothing was changed: a dry run."
        return f"{self.verb} {self.table}: {self.effect}.{done}"
