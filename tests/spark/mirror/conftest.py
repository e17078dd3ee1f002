"""Tests of the mirror run with deletion vectors, as by default, and without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake import Lake
from mirrorlake.mirror import apply

VECTORS, PLAIN, MERGE = "vectors", "plain", "merge"
# The test that each run repeats without deletion vectors, and with MERGE.
_QUICK = "test_every_order_of_up_to_five_markers_on_zero_one_and_two_rows"
_ONE_WAY = ("test_mirror_exchange", "test_mirror_range")  # they choose the way themselves


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lake" not in metafunc.fixturenames or metafunc.module.__name__.endswith(_ONE_WAY):
        return
    ways = [VECTORS, pytest.param(PLAIN, marks=pytest.mark.long)]
    if metafunc.function.__name__ == _QUICK:
        ways = [VECTORS, PLAIN, MERGE]
    metafunc.parametrize("lake", ways, indirect=True)


@pytest.fixture
def lake(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return an empty lake whose new tables have deletion vectors or not."""
    found, way = Lake(tmp_path / "lake"), getattr(request, "param", VECTORS)
    if way != VECTORS:
        found.operations.defaults(deletion_vectors=False)
    if way == MERGE:  # as with a Delta that lacks the methods of the mirror's transaction
        monkeypatch.setattr(apply, "exchange_batch", lambda *_: False)
    return found
