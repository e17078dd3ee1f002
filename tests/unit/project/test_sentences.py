"""Every listed sentence of a specification has tests that run, or a rule of the adviser."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

import pytest
import yaml

from helpers.project import PROJECT

TESTS = PROJECT / "tests"
SUBJECTS = {
    "feed_sentences.yaml": "CF-",
    "partitioning_sentences.yaml": "PP-",
    "rows_sentences.yaml": "RT-",
}
ADVISERS = PROJECT / "lib" / "mirrorlake" / "partitioning"


def sentences(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((TESTS / name).read_text(encoding="utf-8"))
    return found


@cache
def written() -> dict[str, ast.FunctionDef]:
    """Return the tests of both layers."""
    return {
        f"{path.name}::{node.name}": node
        for layer in ("unit", "spark")
        for path in (TESTS / layer).rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def texts(node: ast.AST) -> set[object]:
    """Return the constants in a part of a program."""
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_sentence_has_a_test_that_everybody_runs(name: str) -> None:
    there = written()
    missing = [(s["says"], t) for s in sentences(name) for t in s["tests"] if t not in there]
    assert missing == []
    is_long = {
        test: "pytest.mark.long" in map(ast.unparse, node.decorator_list)
        for test, node in there.items()
    }
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


def test_every_rule_is_given_and_one_of_its_tests_names_it() -> None:
    ruled = [s for s in sentences("partitioning_sentences.yaml") if "rule" in s]
    given = texts(ast.parse((ADVISERS / "advice.py").read_text(encoding="utf-8")))
    assert {s["rule"] for s in ruled} - given == set()
    there = {test: texts(node) for test, node in written().items()}
    unnamed = [s["says"] for s in ruled if all(s["rule"] not in there[t] for t in s["tests"])]
    assert unnamed == []
