"""The same code under Spark Connect, in a process that joins the JVM of the notebooks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from helpers.programs import programs, result_of

_LONGEST = 900  # seconds
pytestmark = pytest.mark.usefixtures("one_spark")


def ask(lake: Path, *parts: str) -> Any:
    with programs("helpers.connect_program", os.environ) as start:
        answers = result_of(start(str(lake), *parts), _LONGEST)
    assert "connect" in answers.pop("kind")
    return answers


def test_connect(tmp_path: Path) -> None:
    mirrored = ask(tmp_path / "lake", "mirrored")["mirrored"]
    (row_id,) = mirrored["rows"]
    assert mirrored == {
        "failed": [],
        "made": [[2], ["t"]],
        "now": [[2, "c", 1.5]],
        "was": [[1, "a"], [2, "b"]],
        "rows": [row_id],
        "told": [
            ["b", "insert", row_id],
            ["b", "update_preimage", row_id],
            ["c", "update_postimage", row_id],
        ],
    }


@pytest.mark.long
def test_the_past_views_and_policies(tmp_path: Path) -> None:
    answers = ask(tmp_path / "lake", "mirrored", "viewed", "past", "partitioned")
    assert answers["viewed"] == ["incremental", [2, "b"]]
    assert answers["past"] == {
        "failed": [],
        "as_of": ["a", "b"],
        "moment": 1,
        "framed": 1,
        "shown": [1, 1, 1, 1],
        "read": [2],
        "asked": 1,
        "kept": ["newest version"],
        "released": "released",
    }
    assert answers["partitioned"] == [["b"], ["b"], ["UsageError"], 1, 1, 3, 3, 3]
