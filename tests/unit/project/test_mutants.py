"""The mutation tool: the changes that it makes, and the mutants that tests detect."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from helpers.mutants import PROJECT, Mutant, mutants, survives


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("if a < b: pass", ["not a < b", "a <= b"]),
        ("x = a + 1", ["a - 1", "2"]),
        ("x = not a", ["not not a"]),
        ("x = a and b", ["a or b"]),
        ("return a", ["return None"]),
        ("return None", []),
        ("return", []),
        ("x = max(a)", ["min"]),
        ("x = F.max(a)", ["F.min"]),
        ("x = True", ["False"]),
        ("x = 'text'", []),
        ("raise ValueError(a < 1)", []),
        ("for b in a: continue", ["break"]),
        ("x: int = a", []),
    ],
)
def test_what_is_changed(line: str, changes: list[str]) -> None:
    found = [mutant.change.partition(" → ")[2] for mutant in mutants(f"def f(a, b):\n    {line}\n")]
    assert [text.replace("if ", "").split(":")[0] for text in found] == changes


def test_one_change_at_a_time_in_the_functions_asked_for() -> None:
    source = "def f(a):\n    return a < 1\n\ndef g(a):\n    return a > 1\n"
    whole = [ast.unparse(mutant.tree) for mutant in mutants(source)]
    assert len(whole) == len(set(whole)) == 6
    assert all((f"a {sign} 1" in text) for text, sign in zip(whole[3:], "<<<", strict=True))
    assert [mutant.line for mutant in mutants(source, ("g",))] == [5, 5, 5]


def test_tests_notice_a_mutant_or_do_not(tmp_path: Path) -> None:
    path = PROJECT / "lib" / "mirrorlake" / "names.py"
    source = path.read_text(encoding="utf-8")
    test = tmp_path / "test_of_mutants_names.py"
    test.write_text(
        "from mirrorlake.names import file_name\n"
        "def test_it(): assert file_name(7).startswith('0' * 19 + '7')\n"
    )
    same = Mutant(0, "", ast.parse(source))
    wrong = Mutant(0, "", ast.parse(source + "\n\ndef file_name(number): return 'x'\n"))
    assert [survives(path, mutant, [str(test)]) for mutant in (same, wrong)] == [True, False]
