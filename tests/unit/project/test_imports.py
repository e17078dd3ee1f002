"""Imports between the library, its satellites and packages go one way, without circles.

Imports within functions and under `TYPE_CHECKING` count as well.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[3] / "lib"
CORE = "mirrorlake"
# A package of the library imports only packages that are named before it.
ORDER = (
    *("errors", "names", "results", "registry", "notices", "show", "storage", "spark"),
    *("delta", "landing", "query", "mirror", "history", "layout", "feed"),
    *("source_status", "partitioning", "rows", "views", "sql"),
    *("status", "inspection", "table", "lake", "cli", "__main__"),
)
# What satellites may import: modules, or all modules of a package.
PUBLIC = {
    *("errors", "names", "results", "notices", "lake", "table", "source_status"),
    *("cli", "inspection", "landing", "show", "status", "storage"),
    *("mirror.reconcile", "spark.session"),
}
SATELLITES = {  # with the satellites that each may import
    "mirrorlake_runs": set[str](),
    "mirrorlake_sources": set[str](),
    "mirrorlake_serve": {"mirrorlake_sources"},
    "mirrorlake_lab": {"mirrorlake_runs", "mirrorlake_sources"},
}


def _name_of(path: Path) -> str:
    parts = path.relative_to(LIBRARY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """Return the library's modules that a module imports anywhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else str(node.module) for name in below}
    return found & modules


def _circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return circles of imports; of each found circle, the last import is then left out."""
    left, found = {name: set(wanted) for name, wanted in imports.items()}, []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            # Each module is imported by the next one; the first and the last are the same.
            circle = error.args[1][::-1]
            found.append(circle)
            left[circle[-2]].discard(circle[-1])
        else:
            return found


@cache
def _trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module of the library and its satellites."""
    paths = {_name_of(path): path for path in sorted(LIBRARY.rglob("*.py"))}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}


@cache
def _imports() -> dict[str, set[str]]:
    """Return the modules of the library and its satellites that each of them imports."""
    modules = set(_trees())
    return {name: _imported(tree, modules) - {name} for name, tree in _trees().items()}


def _edges() -> Iterator[tuple[str, str]]:
    return ((name, other) for name, others in _imports().items() for other in others)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _inside(name: str) -> str:
    """Return the name of a module without the name of the library."""
    return name.partition(".")[2]


def _package_of(name: str) -> str:
    """Return the package of a module: of the library each package by itself, else the satellite."""
    inside = _inside(name)
    return f"{CORE}.{_top(inside)}" if _top(name) == CORE and "." in inside else _top(name)


def test_no_module_imports_in_a_circle():
    assert sum(map(len, _imports().values())) > 1000  # they are read
    assert [" → ".join(circle) for circle in _circles(_imports())] == []


def test_the_library_imports_no_satellite():
    assert {_top(name) for name in _imports()} == {CORE, *SATELLITES}
    assert [edge for edge in _edges() if _top(edge[0]) == CORE != _top(edge[1])] == []


def test_satellites_import_only_the_satellites_below_them():
    for name, other in _edges():
        if _top(name) != CORE and _top(other) not in (CORE, _top(name)):
            assert _top(other) in SATELLITES[_top(name)], (name, other)


def test_satellites_import_public_modules_of_the_library():
    found: dict[str, set[str]] = {}
    for name, other in _edges():
        inside = _inside(other)
        is_public = {inside, _top(inside)} & PUBLIC
        if _top(name) != CORE and _top(other) == CORE and inside and not is_public:
            found.setdefault(_top(name), set()).add(inside)
    assert found == {}


def test_packages_import_from_their_left():
    places = {name: place for place, name in enumerate(ORDER)}
    edges = [(_inside(a), _inside(b)) for a, b in _edges() if _top(a) == _top(b) == CORE]
    pairs = {(a, _top(b)) for a, b in edges if a and b}
    assert {_top(name) for pair in pairs for name in pair} <= set(ORDER)
    assert {(a, b) for a, b in pairs if places[_top(a)] < places[b]} == set()


def test_no_class_name_twice_within_a_package():
    names = Counter(
        (_package_of(name), node.name)
        for name, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert names["mirrorlake.views", "Definition"] == 1  # classes are found
    assert [name for name, count in names.items() if count > 1] == []


def test_imports_in_functions_and_for_type_checkers_count():
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
    assert _imported(ast.parse(text), modules) == {f"mirrorlake.{end}" for end in "abc"}
    assert _circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) in ([["a", "b", "a"]], [["b", "a", "b"]])
