"""Imports between the library, its satellites and packages go one way, without circles.

Imports within functions count; those under TYPE_CHECKING do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[3] / "lib"
CORE = "mirrorlake"
# A package of the library imports only from packages that are listed before it.
ORDER = (
    *("errors", "names", "results", "registry", "notices", "show", "storage", "spark"),
    *("delta", "landing", "query", "mirror", "lint", "history", "layout", "feed"),
    *("source_status", "partitioning", "rows", "views"),
    *("status", "inspection", "table", "lake", "cli"),
)
# Exceptions, still to be removed: packages that import from a later one.
BACKWARDS: set[tuple[str, str]] = {
    ("query", "feed"),
    ("query", "history"),
    ("query", "views"),
}
# The modules and packages that satellites may import.
PUBLIC = {
    *("errors", "names", "results", "notices", "lake", "table", "source_status"),
    *("cli", "inspection", "landing", "show", "status", "storage"),
    *("spark.session",),
}
# Exceptions, still to be removed: other modules that satellites import.
INTERNAL: dict[str, set[str]] = {
    "mirrorlake_runs": {
        "spark.shared",
    },
    "mirrorlake_serve": {
        "mirror.options",
        "mirror.state",
    },
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


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield all imports, including those within functions, but not those under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _statements(other)
        else:
            yield from _statements(child)


def _imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """Return the library's modules that a module imports."""
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
    """Return the import circles; the last import of each is removed to find the next one."""
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
def _imports() -> dict[str, set[str]]:
    """Return the imported modules of each module of the library and its satellites."""
    paths = {_name_of(path): path for path in sorted(LIBRARY.rglob("*.py"))}
    return {
        name: _imported(ast.parse(path.read_text(encoding="utf-8")), set(paths)) - {name}
        for name, path in paths.items()
    }


def _edges() -> Iterator[tuple[str, str]]:
    return ((name, other) for name, others in _imports().items() for other in others)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _inside(name: str) -> str:
    """Return a module's name without the name of its top-level package."""
    return name.partition(".")[2]


def test_no_module_imports_in_a_circle():
    assert sum(map(len, _imports().values())) > 1000  # the files were read
    assert [" → ".join(circle) for circle in _circles(_imports())] == []


def test_the_library_imports_no_satellite():
    assert {_top(name) for name in _imports()} == {CORE, *SATELLITES}
    assert [edge for edge in _edges() if _top(edge[0]) == CORE != _top(edge[1])] == []


def test_satellites_import_those_that_they_stand_on():
    for name, other in _edges():
        if _top(name) != CORE and _top(other) not in (CORE, _top(name)):
            assert _top(other) in SATELLITES[_top(name)], (name, other)


def test_satellites_import_public_modules_of_the_library():
    found: dict[str, set[str]] = {}
    for name, other in _edges():
        inside = _inside(other)
        is_public = {inside, inside.partition(".")[0]} & PUBLIC
        if _top(name) != CORE and _top(other) == CORE and inside and not is_public:
            found.setdefault(_top(name), set()).add(inside)
    assert found == INTERNAL


def test_packages_import_from_their_left():
    places = {name: place for place, name in enumerate(ORDER)}
    edges = [(_inside(a), _inside(b)) for a, b in _edges() if _top(a) == _top(b) == CORE]
    pairs = {(_top(a), _top(b)) for a, b in edges if a and b}
    assert {name for pair in pairs for name in pair} <= set(ORDER)
    assert {(a, b) for a, b in pairs if places[a] < places[b]} == BACKWARDS


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
