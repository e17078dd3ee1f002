"""What `--long` adds: ten times as many examples of hypothesis, and further parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest
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


def under_long(*values: Any) -> list[Any]:
    """Parameters of a test that are tried under `--long` only."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


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
