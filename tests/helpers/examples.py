"""How many examples hypothesis tries: some in every run, ten times as many under `--long`."""

from __future__ import annotations

from hypothesis import settings

UNDER_LONG = 10
_times = 1


def try_many() -> None:
    """Called under `--long`, before any test is imported."""
    global _times  # one run of the tests is long or not
    _times = UNDER_LONG


def examples(number: int) -> settings:
    """The settings of a test that tries so many; each takes as long as it takes."""
    return settings(max_examples=number * _times, deadline=None)
