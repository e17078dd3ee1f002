"""A sequence of steps with a lake, whose outcomes and seconds are recorded."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from helpers.partition_tables import PAST, hashed
from mirrorlake import Lake
from mirrorlake.errors import MirrorlakeError


class Story:
    """Steps that run one after the other.

    Attributes:
        seen: the outcome of each step: its result, mirrorlake's error, or another error.
        seconds: the seconds of each step.
    """

    def __init__(self) -> None:
        self.seen: dict[str, object] = {}
        self.seconds: dict[str, float] = {}

    def step(self, name: str, do: Callable[[], object]) -> None:
        """Run a step and record its outcome; an error does not stop the following steps."""
        began = time.monotonic()
        try:
            found = do()
        except MirrorlakeError as error:
            found = {"said": error.message, "hint": error.hint}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error)[:1500]}"}
        self.seen[name], self.seconds[name] = found, round(time.monotonic() - began, 1)
        told = json.dumps(found, default=str)
        print(f"\n{name}, {self.seconds[name]} s: {told}", file=sys.stderr, flush=True)


def ordered(lake: Lake) -> int:
    """Write a table `v` in V-Order, and return its number of rows."""
    lake.write("v", [{"city": f"city {n * 7919 % 15}", "n": n // 9} for n in range(5000)])
    return lake.table("v").optimize.vorder().commits[0].rows


def partitioned(lake: Lake) -> int:
    """Partition a table `p` by a policy, and return the sum of its values."""
    lake.write("p", [{"k": f"k{n % 11}", "v": n} for n in range(40)])
    table = lake.table("p")
    table.partitioning.set({"PartitionKeys": [hashed(2)], **PAST})
    table.partitioning.operate()
    return sum(row["v"] for row in table.read().collect())
