"""Every sentence about a subject has tests, which are there and run."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import yaml

from mirrorlake.places import PROJECT

TESTS = PROJECT / "tests"
SUBJECTS = {"feed_sentences.yaml": "CF-", "rows_sentences.yaml": "RT-"}


def sentences(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((TESTS / name).read_text(encoding="utf-8"))
    return found


def written() -> dict[str, bool]:
    """The tests of Spark's layer, and whether they run only under `--long`."""
    found = {}
    for path in (TESTS / "spark").glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(decorator) for decorator in node.decorator_list]
                found[f"{path.name}::{node.name}"] = "pytest.mark.long" in marks
    return found


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_sentence_has_a_test_that_everybody_runs(name: str) -> None:
    is_long = written()
    missing = [(s["says"], t) for s in sentences(name) for t in s["tests"] if t not in is_long]
    assert missing == []
    unshown = [s["says"] for s in sentences(name) if all(is_long[t] for t in s["tests"])]
    assert unshown == []


@pytest.mark.parametrize(("name", "prefix"), SUBJECTS.items())
def test_every_promise_of_the_subject_is_one_of_them(name: str, prefix: str) -> None:
    promises = yaml.safe_load((TESTS / "promises.yaml").read_text(encoding="utf-8"))
    wanted = {number for number in promises if number.startswith(prefix)}
    assert {s["promise"] for s in sentences(name) if "promise" in s} == wanted


@pytest.mark.parametrize("name", SUBJECTS)
def test_no_sentence_is_said_twice(name: str) -> None:
    found = sentences(name)
    assert len({s["says"] for s in found}) == len(found)
