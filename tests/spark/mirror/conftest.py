"""Tests of the mirror run twice: with deletion vectors, as by default, and with MERGE."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake import Lake

VECTORS, MERGE = "vectors", "merge"
# The tests that a run without --long repeats with MERGE.
_QUICK = (
    "test_every_order_of_up_to_five_markers_on_zero_one_and_two_rows",
    "test_updates_keep_what_the_table_has",
)
_ONE_WAY = ("test_mirror_exchange",)  # it has a lake of each kind


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lake" not in metafunc.fixturenames or metafunc.module.__name__.endswith(_ONE_WAY):
        return
    marks = [] if metafunc.function.__name__ in _QUICK else [pytest.mark.long]
    ways = [VECTORS, pytest.param(MERGE, marks=marks)]
    metafunc.parametrize("lake", ways, indirect=True)


@pytest.fixture
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """Return an empty lake whose new tables have deletion vectors or not."""
    found = Lake(tmp_path / "lake")
    if getattr(request, "param", VECTORS) == MERGE:
        found.operations.defaults(deletion_vectors=False)
    return found
