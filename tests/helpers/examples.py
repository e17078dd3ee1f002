"""How many examples hypothesis tries: some in every run, ten times as many under `--long`."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

UNDER_LONG = 10
_times = 1


def try_many() -> None:
    """Called under `--long`, before any test is imported."""
    global _times  # one run of the tests is long or not
    _times = UNDER_LONG


def examples(number: int) -> settings:
    """The settings of a test that tries so many; each takes as long as it takes."""
    return settings(max_examples=number * _times, deadline=None)


def listed(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Hypothesis's examples, the same each time, for one statement of Spark to take them all."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found
