"""Tests of the mirror run twice: with MERGE, and with deletion vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake import Lake

MERGE, VECTORS = "merge", "vectors"
# The test that a run without --long repeats with deletion vectors.
_QUICK = "test_every_order_of_up_to_five_markers_on_zero_one_and_two_rows"
_ONE_WAY = ("test_mirror_exchange",)  # it has a lake of each kind


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lake" not in metafunc.fixturenames or metafunc.module.__name__.endswith(_ONE_WAY):
        return
    marks = [] if metafunc.function.__name__ == _QUICK else [pytest.mark.long]
    ways = [MERGE, pytest.param(VECTORS, marks=marks)]
    metafunc.parametrize("lake", ways, indirect=True)


@pytest.fixture
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """Return an empty lake whose new tables have deletion vectors or not."""
    found = Lake(tmp_path / "lake")
    if getattr(request, "param", MERGE) == VECTORS:
        found.operations.defaults(deletion_vectors=True)
    return found
