"""No module of the library imports in a circle, not even by an import within a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[3] / "lib"


def _name_of(path: Path) -> str:
    parts = path.relative_to(LIBRARY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports, those within functions too; not what only a type checker runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _statements(other)
        else:
            yield from _statements(child)


def _imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """The library's modules that a module names in its imports."""
    found = set()
    for one in _statements(tree):
        if isinstance(one, ast.Import):
            found |= {alias.name for alias in one.names}
        else:
            assert one.level == 0, "imports are absolute here"
            below = [f"{one.module}.{alias.name}" for alias in one.names]
            found |= {name if name in modules else str(one.module) for name in below}
    return found & modules


def _circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """One circle after the other; of each that is found its last arrow is left out further on."""
    left, found = {name: set(wanted) for name, wanted in imports.items()}, []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            # Each is imported by the one after it; the first and the last are the same.
            circle = error.args[1][::-1]
            found.append(circle)
            left[circle[-2]].discard(circle[-1])
        else:
            return found


def test_no_module_imports_in_a_circle():
    paths = {_name_of(path): path for path in sorted(LIBRARY.rglob("*.py"))}
    imports = {
        name: _imported(ast.parse(path.read_text(encoding="utf-8")), set(paths)) - {name}
        for name, path in paths.items()
    }
    assert sum(map(len, imports.values())) > 1000  # they are read
    assert [" → ".join(circle) for circle in _circles(imports)] == []


def test_lazy_imports_count_and_those_of_a_type_checker_do_not():
    text = """
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorlake.a import only_a_type

def late():
    from mirrorlake.b import value
    from mirrorlake import c
"""
    modules = {f"mirrorlake{end}" for end in ("", ".a", ".b", ".c")}
    assert _imported(ast.parse(text), modules) == {"mirrorlake.b", "mirrorlake.c"}
    assert _circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) in ([["a", "b", "a"]], [["b", "a", "b"]])
