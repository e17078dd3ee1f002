"""Test that a commit is repeated after a conflict, and only then."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from mirrorlake.errors import ConflictError, QueryError
from mirrorlake.spark.sql import retry_conflicts


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses, which the test does not wait for."""
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


def commit(outcomes: Iterator[Exception | int]) -> int:
    outcome = next(outcomes)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_a_commit_is_repeated_after_a_conflict(pauses: list[float]) -> None:
    outcomes = iter(
        [
            RuntimeError("[DELTA_CONCURRENT_DELETE_READ] a file was deleted"),
            RuntimeError("[DELTA_METADATA_CHANGED] the metadata changed"),
            ConflictError("Another writer won.", hint="try again."),
            7,
        ]
    )
    assert retry_conflicts(lambda: commit(outcomes)) == 7
    assert len(pauses) == 3
    assert pauses == sorted(set(pauses))


def test_the_last_conflict_is_told_with_a_hint(pauses: list[float]) -> None:
    for lost, why in (
        (RuntimeError("[DELTA_CONCURRENT_APPEND] files were added"), "files were added"),
        (ConflictError("Another writer won.", hint="try again."), "Another writer won."),
    ):
        outcomes = iter([lost] * 9)
        with pytest.raises(ConflictError, match=f"each of 5 attempts: .*{why}") as caught:
            retry_conflicts(lambda outcomes=outcomes: commit(outcomes))
        assert caught.value.hint == "try again when less is written to the table."
        assert "Hint" not in caught.value.message
        assert len(list(outcomes)) == 4
    other = iter([QueryError("A division by zero."), 7])
    with pytest.raises(QueryError, match="division"):
        retry_conflicts(lambda: commit(other))
