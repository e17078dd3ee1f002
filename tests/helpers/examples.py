"""Settings for `--long`: ten times as many Hypothesis examples, and more parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

UNDER_LONG = 10
_times = 1


def try_many() -> None:
    """Switch to `--long`; called before any test is imported."""
    global _times  # one value for the whole test run
    _times = UNDER_LONG


def examples(number: int) -> settings:
    """Return the settings of a test with this number of examples and no deadline."""
    return settings(max_examples=number * _times, deadline=None)


def under_long(*values: Any) -> list[Any]:
    """Return parameters that are tested only under `--long`."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def listed(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return a fixed list of Hypothesis examples, for one Spark statement over all of them."""
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
