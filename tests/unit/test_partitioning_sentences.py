"""Every sentence about the partitioning policy has tests, which are there and run; or a rule."""

from __future__ import annotations

import ast
from typing import Any

import yaml

from mirrorlake.places import PROJECT

TESTS = PROJECT / "tests"
ADVISERS = PROJECT / "lib" / "mirrorlake" / "layout" / "partitioning"
SENTENCES: list[dict[str, Any]] = yaml.safe_load(
    (TESTS / "partitioning_sentences.yaml").read_text(encoding="utf-8")
)


def written() -> dict[str, ast.FunctionDef]:
    """The tests of both layers."""
    return {
        f"{path.name}::{node.name}": node
        for layer in ("unit", "spark")
        for path in (TESTS / layer).glob("test_partitioning*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def texts(node: ast.AST) -> set[object]:
    """The constants in a piece of a program."""
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}


def test_every_sentence_has_a_test_that_everybody_runs() -> None:
    there = written()
    assert [(s["says"], t) for s in SENTENCES for t in s["tests"] if t not in there] == []
    is_long = {
        name: any("long" in ast.unparse(mark) for mark in node.decorator_list)
        for name, node in there.items()
    }
    assert [s["says"] for s in SENTENCES if all(is_long[t] for t in s["tests"])] == []


def test_every_rule_is_given_and_one_of_its_tests_names_it() -> None:
    rules = {s["rule"] for s in SENTENCES if "rule" in s}
    given: set[object] = set()
    for name in ("advice", "review"):
        given |= texts(ast.parse((ADVISERS / f"{name}.py").read_text(encoding="utf-8")))
    assert rules - given == set()
    there = {name: texts(node) for name, node in written().items()}
    unnamed = [
        (s["says"], s["rule"])
        for s in SENTENCES
        if "rule" in s and not any(s["rule"] in there[test] for test in s["tests"])
    ]
    assert unnamed == []


def test_every_promise_of_the_policy_is_one_of_them() -> None:
    promises = yaml.safe_load((TESTS / "promises.yaml").read_text(encoding="utf-8"))
    wanted = {number for number in promises if number.startswith("PP-")}
    assert {s["promise"] for s in SENTENCES if "promise" in s} == wanted


def test_no_sentence_is_said_twice() -> None:
    assert len({s["says"] for s in SENTENCES}) == len(SENTENCES)
