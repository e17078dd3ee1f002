"""The simulation finds planted bugs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.mutants import MUTANTS
from simulation.schedules import make_schedule, run

MOST = 5_000


@pytest.mark.long
@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(monkeypatch)
    for seed in range(MOST):
        if (result := run(make_schedule(seed))).error is not None:
            with capsys.disabled():
                print(f"\n{plant.__name__}: after {seed + 1} schedules: {result.error[:100]}")
            return
    pytest.fail(f"{MOST:,} schedules do not find it")
