"""Mutants: small wrong changes of a module, to see whether its tests notice.

    python tests/helpers/mutants.py [NAME …]

scores the modules of `DECIDING`, each by the unit tests named beside it, and lists the mutants that
survive. A mutant is one changed operator, number, condition or result; texts are left alone, and so
are the lines of `raise`, which say what is wrong. Each runs in a process of its own.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120

DECIDING = {
    "plan": (
        "mirror/plan.py",
        ("mirror/test_plan.py", "mirror/test_numbering.py", "mirror/test_kept.py"),
    ),
    "numbering": (
        "landing/zone.py",
        ("mirror/test_numbering.py", "mirror/test_plan.py", "mirror/test_status.py"),
    ),
    "view shapes": ("rows/views/shape.py", ("rows/test_view_shapes.py",)),
    "view joins": ("rows/views/joins.py", ("rows/test_view_shapes.py",)),
}

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "greatest": "least",
    "least": "greatest",
}


@dataclass(frozen=True)
class Mutant:
    """One wrong change.

    Attributes:
        line: where.
        change: what, as `before → after`.
        tree: the whole module with it.
    """

    line: int
    change: str
    tree: ast.Module


def mutants(source: str, functions: tuple[str, ...] = ()) -> Iterator[Mutant]:
    """All mutants of a module.

    Args:
        source: its text.
        functions: only those of these top-level functions; by default all.
    """
    tree = ast.parse(source)
    places = [n for n, _ in enumerate(_places(tree, functions))]
    for place in places:
        for change in range(3):
            mutated = copy.deepcopy(tree)
            node = list(_places(mutated, functions))[place]
            before = ast.unparse(node)
            if not _mutate(node, change):
                break
            ast.fix_missing_locations(mutated)
            yield Mutant(node.lineno, f"{before} → {ast.unparse(node)}", mutated)


def _places(tree: ast.Module, functions: tuple[str, ...]) -> Iterator[ast.AST]:
    for top in tree.body:
        inside = isinstance(top, (ast.FunctionDef, ast.ClassDef))
        if inside and (not functions or top.name in functions):
            yield from _inner(top)


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise) or (
        isinstance(node, ast.FunctionDef) and node.name == "__repr__"
    ):
        return
    if hasattr(node, "lineno"):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inner(child)


def _mutate(node: ast.AST, change: int) -> bool:
    """Makes the change of this number in a node; False if there is none."""
    match node:
        case ast.Compare(ops=ops) if change < len(ops) and type(ops[change]) in _SWAPS:
            ops[change] = _SWAPS[type(ops[change])]()
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if change == 0 and type(op) in _SWAPS:
            node.op = _SWAPS[type(op)]()
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()) if change == 0:
            node.operand = ast.UnaryOp(node.op, node.operand)
        case ast.Constant(value=bool(value)) if change == 0:
            node.value = not value
        case ast.Constant(value=int(value)) if change == 0:
            node.value = value + 1
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if change == 0:
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.Return(value=value) if change == 0 and not _is_none(value):
            node.value = ast.Constant(None)
        case ast.Name(id=name) if change == 0 and name in _NAMES:
            node.id = _NAMES[name]
        case ast.Attribute(attr=name) if change == 0 and name in _NAMES:
            node.attr = _NAMES[name]
        case ast.Continue() | ast.Break() if change == 0:
            node.__class__ = ast.Break if isinstance(node, ast.Continue) else ast.Continue
        case _:
            return False
    return True


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def survives(path: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Whether the tests pass with a mutant, in a process of its own; one that hangs is caught."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(PATIENCE_SECONDS)
        status = 1
        try:
            status = int(_run(path, mutant, tests))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _run(path: Path, mutant: Mutant, tests: list[str]) -> int:
    import pytest

    for name in list(sys.modules):  # what this process has imported already is not mutated
        if name.partition(".")[0] in ("mirrorlake", "helpers"):
            del sys.modules[name]
    loader = importlib.machinery.SourceFileLoader
    whole: Callable[[importlib.machinery.SourceFileLoader, str], object] = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> object:
        if Path(self.path) == path:
            return compile(mutant.tree, self.path, "exec")
        return whole(self, name)

    loader.get_code = get_code  # type: ignore[method-assign, assignment]
    return pytest.main(["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests])


def main(names: list[str]) -> None:
    """Scores modules, and lists what survives."""
    for heavy in ("pytest", "pyarrow.parquet", "pyspark.sql", "sqlglot"):  # no mutant is in them
        importlib.import_module(heavy)
    os.chdir(PROJECT)
    for name in names or DECIDING:
        module, files = DECIDING[name]
        path = PROJECT / "lib" / "mirrorlake" / module
        tests = [f"tests/unit/{file}" for file in files]
        whole = Mutant(0, "", ast.parse(path.read_text(encoding="utf-8")))
        if not survives(path, whole, tests):
            raise SystemExit(f"{name}: its tests fail without any mutant.")
        found = list(mutants(path.read_text(encoding="utf-8")))
        left = [mutant for mutant in found if survives(path, mutant, tests)]
        score = 100 * (1 - len(left) / len(found))
        print(f"{name}: {score:.0f} % of {len(found)} mutants are noticed", flush=True)
        for mutant in left:
            print(f"  {module}:{mutant.line}  {mutant.change.splitlines()[0][:120]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
