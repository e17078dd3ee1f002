"""Which steps wait for which: the graph of `needs`, checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from mirrorlake.errors import UsageError


class Node(Protocol):
    """What the graph has to know of a step."""

    @property
    def name(self) -> str:
        """What other steps call it."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the steps that it waits for."""
        ...


def needed_by(steps: Sequence[Node]) -> list[tuple[int, ...]]:
    """For each step the indexes of the steps that it waits for itself.

    Raises:
        UsageError: a name that no step has, or more than one; a cycle.
    """
    names = [step.name for step in steps]
    found = []
    for step in steps:
        for need in step.needs:
            if (count := names.count(need)) != 1:
                what = "There is no step" if count == 0 else "There is more than one step"
                raise UsageError(
                    f"Step {step.name} needs {need}. {what} {need!r}.",
                    hint=f"there are {', '.join(names)}; `name` gives a step a name of its own.",
                )
        found.append(tuple(names.index(need) for need in step.needs))
    _check_cycles(found, names)
    return found


def ancestors(needs: Sequence[tuple[int, ...]], index: int) -> set[int]:
    """All steps that a step waits for, through others too; the graph has no cycle."""
    found: set[int] = set()
    waiting = list(needs[index])
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += needs[one]
    return found


def ready_steps(
    needs: Sequence[tuple[int, ...]], begun: Collection[int], passed: Collection[int]
) -> list[int]:
    """The steps that can begin, in the plan's order.

    Args:
        needs: what each step waits for.
        begun: those that run, ran, or are skipped.
        passed: those after which others may begin.
    """
    return [
        index
        for index, waits in enumerate(needs)
        if index not in begun and all(one in passed for one in waits)
    ]


def _check_cycles(needs: Sequence[tuple[int, ...]], names: Sequence[str]) -> None:
    """Takes away what can run, again and again; what is left waits for itself."""
    passed: set[int] = set()
    while ready := ready_steps(needs, passed, passed):
        passed |= set(ready)
    left = [index for index in range(len(names)) if index not in passed]
    if not left:
        return
    path = [left[0]]
    while path.count(path[-1]) == 1:
        path.append(next(one for one in needs[path[-1]] if one in left))
    circle = " → ".join(names[one] for one in path[path.index(path[-1]) :])
    raise UsageError(
        f"The steps need each other in a circle: {circle}.", hint="take one of the needs away."
    )
