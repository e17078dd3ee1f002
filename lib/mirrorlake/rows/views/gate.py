"""Whether a refresh by what changed is worth it: what it and a full one are expected to cost.

The full refresh that filled the view was measured; so is every later refresh. The last one by what
changed says what the next one takes, more or less by the bytes that more or less changed. Before
the first there is only a rule of thumb: what a commit costs anyway, and a share of the full one's
seconds by the rule of the view's shape.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.names import STATE, TableName
from mirrorlake.rows.views.shape import Method
from mirrorlake.storage import Storage

FORMAT = 1
COMMIT_SECONDS = 1.5  # a MERGE of nothing, on a small machine
# Of a full refresh's seconds: what is spent however little changed, and for each share that did.
_THUMB = {
    Method.ROWS: (0.3, 7.0),
    Method.SUMS: (0.1, 3.0),
    Method.GROUPS: (0.8, 6.0),
    Method.PARTITIONS: (0.8, 6.0),
}


@dataclass(frozen=True)
class Cost:
    """What a refresh took.

    Attributes:
        seconds: of the clock.
        bytes: what it had to read: the sources' files, or their changes.
    """

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """What the two ways are expected to take.

    Attributes:
        full: seconds of a full refresh; None if none was ever measured.
        incremental: seconds of one by what changed; None likewise, or if there is no rule.
        measured: whether an incremental refresh of this view was measured before.
    """

    full: float | None
    incremental: float | None
    measured: bool

    @property
    def prefers_full(self) -> bool:
        """Whether a full refresh is expected to be cheaper."""
        if self.full is None or self.incremental is None:
            return False
        return self.full < self.incremental


def estimate(method: Method, changed: int, costs: dict[str, Cost]) -> Estimate:
    """What a refresh would take.

    Args:
        method: the view's rule.
        changed: bytes of changes to read.
        costs: what was measured: `full` and `incremental`, each the last.
    """
    full, last = costs.get("full"), costs.get("incremental")
    if full is None or method is Method.FULL:
        return Estimate(full.seconds if full else None, None, measured=False)
    base, slope = _THUMB[method]
    by_byte = slope * full.seconds / max(full.bytes, 1)
    if last is None:
        seconds = COMMIT_SECONDS + base * full.seconds + by_byte * changed
    else:
        seconds = max(last.seconds + by_byte * (changed - last.bytes), COMMIT_SECONDS)
    return Estimate(full.seconds, seconds, measured=last is not None)


def read_costs(storage: Storage, name: TableName) -> dict[str, Cost]:
    """What the last refreshes of each kind took; empty if nobody knows."""
    kept = storage.read_json(_path(name))
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        return {}
    return {kind: Cost(**kept[kind]) for kind in ("full", "incremental") if kind in kept}


def save_cost(storage: Storage, name: TableName, kind: str, cost: Cost) -> None:
    """Remembers what a refresh took; losing it only makes the next guess worse."""
    document: dict[str, Any] = {"format": FORMAT}
    document |= {k: asdict(c) for k, c in (read_costs(storage, name) | {kind: cost}).items()}
    storage.write_json(_path(name), document)


def forget_costs(storage: Storage, name: TableName) -> None:
    """Removes what is remembered of a view that is dropped."""
    storage.delete(_path(name))


def _path(name: TableName) -> str:
    return f"{STATE}/views/{name.place}.json"
