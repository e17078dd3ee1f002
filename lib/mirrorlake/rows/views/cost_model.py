"""Whether an incremental refresh is worth it: what it and a full one are expected to cost.

The full refresh that filled the view was measured; so is every later refresh. Incremental ones
are recorded by the bytes of their changes, the last one of each size: the cost of the next one is
interpolated between them, and extrapolated beyond them. A rule of thumb is the lower bound there,
and decides alone with fewer than two sizes: what any commit costs, and a share of the full
refresh's seconds by the rule of the view's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.names import STATE, TableName
from mirrorlake.rows.views.shape import Method
from mirrorlake.storage import Storage

FORMAT = 2
COMMIT_SECONDS = 1.5  # a commit of nothing, on a small machine, until the lake knows better
_ALIKE = 2  # times the bytes of changes: of refreshes less apart the last one counts
_MOST = 8  # sizes that are remembered
# Of a full refresh's seconds: what is spent however little changed, and for each share that did.
_THUMB = {
    Method.ROWS: (0.3, 7.0),
    Method.SUMS: (0.1, 6.0),
    Method.EXTREMES: (0.1, 6.0),
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
        incremental: seconds of an incremental one; None likewise, or if there is no rule.
    """

    full: float | None = None
    incremental: float | None = None

    @property
    def prefers_full(self) -> bool:
        """Whether a full refresh is expected to be cheaper."""
        if self.full is None or self.incremental is None:
            return False
        return self.full < self.incremental

    def as_dict(self) -> dict[str, float | None]:
        """Seconds by kind of refresh, as `--json` has them."""
        return {kind: None if s is None else round(s, 3) for kind, s in vars(self).items()}


Costs = dict[str, tuple[Cost, ...]]


def estimate(method: Method, changed: int, costs: Costs, least: float = COMMIT_SECONDS) -> Estimate:
    """What a refresh would take.

    Args:
        method: the view's rule.
        changed: bytes of changes to read.
        costs: what was measured, `full` and `incremental`, the last one first.
        least: seconds of the quickest incremental refresh, used if this view had none.
    """
    measured = costs.get("incremental", ())
    full = next(iter(costs.get("full", ())), None)
    if full is None or method is Method.FULL:
        return Estimate(full.seconds if full else None)
    base, slope = _THUMB[method]
    by_byte = slope * full.seconds / max(full.bytes, 1)
    if measured:
        quickest = min(cost.seconds for cost in measured)
        seconds = max(_between(measured, changed, by_byte), min(quickest, least))
    else:
        seconds = least + base * full.seconds + by_byte * changed
    return Estimate(full.seconds, seconds)


def _between(measured: Sequence[Cost], changed: int, by_byte: float) -> float:
    """Seconds for a size, from those of other sizes."""
    sizes = _rising(measured)
    less = [cost for cost in sizes if cost.bytes <= changed]
    more = [cost for cost in sizes if cost.bytes > changed]
    if not less:
        return more[0].seconds - by_byte * (more[0].bytes - changed)
    last = less[-1]
    if ends := more[:1] or less[-2:-1]:
        slope = (ends[0].seconds - last.seconds) / (ends[0].bytes - last.bytes)
        # Beyond the last size not flatter than the thumb: few changes are spared shuffles.
        by_byte = slope if more else max(slope, by_byte)
    return last.seconds + by_byte * (changed - last.bytes)


def _rising(measured: Sequence[Cost]) -> list[Cost]:
    """Costs by size, none above those of more: what took longer for less was cold, or disturbed."""
    found: list[Cost] = []
    for cost in sorted(measured, key=lambda cost: cost.bytes, reverse=True):
        least = min(cost.seconds, found[-1].seconds) if found else cost.seconds
        found.append(Cost(least, cost.bytes))
    return found[::-1]


def read_costs(storage: Storage, name: TableName) -> Costs:
    """What the last refreshes of each kind took, newest first.

    Empty if none was measured, or if they are of another format: it is a cache.
    """
    return _read(storage, _path(name))


def least_seconds(storage: Storage) -> float:
    """The fewest seconds that an incremental refresh of some of the lake's views took."""
    some = storage.files_below(f"{STATE}/views")[:_MOST]
    measured = [_read(storage, path).get("incremental", ()) for path in some]
    return min((cost.seconds for costs in measured for cost in costs), default=COMMIT_SECONDS)


def _read(storage: Storage, path: str) -> Costs:
    kept = storage.read_json(path)
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        return {}
    return {
        kind: tuple(Cost(**cost) for cost in kept[kind])
        for kind in ("full", "incremental")
        if kind in kept
    }


def save_cost(storage: Storage, name: TableName, kind: str, cost: Cost) -> None:
    """Remembers what a refresh took; losing it only makes the next guess worse.

    Costs of a newer format stay as they are: without them the rule of thumb decides.
    """
    kept = storage.read_json(_path(name))
    if isinstance(kept, dict) and kept.get("format", 1) > FORMAT:
        return
    costs = read_costs(storage, name)
    others = [one for one in costs.get(kind, ()) if not _alike(one, cost)]
    costs[kind] = (cost, *others[: _MOST - 1]) if kind == "incremental" else (cost,)
    document: dict[str, Any] = {"format": FORMAT}
    document |= {kind: [asdict(one) for one in some] for kind, some in costs.items()}
    storage.write_json(_path(name), document)


def _alike(one: Cost, other: Cost) -> bool:
    low, high = sorted((one.bytes, other.bytes))
    return high < _ALIKE * max(low, 1)


def forget_costs(storage: Storage, name: TableName) -> None:
    """Removes what is remembered of a view that is dropped."""
    storage.delete(_path(name))


def _path(name: TableName) -> str:
    return f"{STATE}/views/{name.place}.json"
