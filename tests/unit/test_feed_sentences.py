"""Every sentence about the change feed has tests, which are there and run."""

from __future__ import annotations

import ast
from typing import Any

import yaml

from mirrorlake.places import PROJECT

TESTS = PROJECT / "tests"
SENTENCES: list[dict[str, Any]] = yaml.safe_load(
    (TESTS / "feed_sentences.yaml").read_text(encoding="utf-8")
)


def written() -> dict[str, bool]:
    """The tests of Spark's layer, and whether they run only under `--long`."""
    found = {}
    for path in (TESTS / "spark").glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(decorator) for decorator in node.decorator_list]
                found[f"{path.name}::{node.name}"] = "pytest.mark.long" in marks
    return found


def test_every_sentence_has_a_test_that_everybody_runs() -> None:
    is_long = written()
    missing = [(s["says"], t) for s in SENTENCES for t in s["tests"] if t not in is_long]
    assert missing == []
    unshown = [s["says"] for s in SENTENCES if all(is_long[t] for t in s["tests"])]
    assert unshown == []


def test_every_promise_of_the_feed_is_one_of_them() -> None:
    promises = yaml.safe_load((TESTS / "promises.yaml").read_text(encoding="utf-8"))
    wanted = {number for number in promises if number.startswith("CF-")}
    assert {s["promise"] for s in SENTENCES if "promise" in s} == wanted


def test_no_sentence_is_said_twice() -> None:
    assert len({s["says"] for s in SENTENCES}) == len(SENTENCES)
