"""Mutation tests: small wrong changes of a module show whether its tests detect errors.

    python tests/helpers/mutants.py [NAME …]

tests the code in `DECIDING`, each with its tests, and lists the mutants that survive. A mutant is
one changed operator, number, condition or result. Texts and `raise` statements are not changed.
Each
mutant runs in its own process; if Spark evaluates the code, the processes share a JVM.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 40


@dataclass(frozen=True)
class Deciding:
    """Code that determines the rows of tables.

    Attributes:
        module: under `lib`.
        tests: under `tests`; those in `spark` start their sessions in one JVM.
        functions: its top-level functions and classes to change; by default all.
    """

    module: str
    tests: tuple[str, ...]
    functions: tuple[str, ...] = ()

    @property
    def needs_spark(self) -> bool:
        """Whether one of the tests needs Spark."""
        return any(test.startswith("spark/") for test in self.tests)


_RECEIPTS = ("Dropped", "Receipt", "write_receipt", "read_receipts", "recover", "delete_files")
_LISTINGS = ("published_tables", "no_folder", "list_folder", "every_file")
_NET = "spark/feed/test_feed_net.py::test_"
_SHAPES = (
    *("Role", "Link", "Member", "read_joins", "_links", "_owner", "_has", "Method", "Aggregate"),
    *("Shape", "full", "read_shape", "is_steady", "_oddity", "_distrusted", "_expanded"),
    *("_windows", "_groups", "_group_keys", "_aggregate", "settle_types", "_is_plain", "_is_exact"),
)
DECIDING = {
    "plan": Deciding(
        "mirrorlake/mirror/next_batch.py",
        (
            "unit/mirror/test_plan.py",
            "unit/mirror/test_numbering.py",
            "unit/mirror/test_kept.py",
            "unit/mirror/test_last_file.py",
        ),
        (
            *("PlannedFile", "Plan", "plan_path", "find_plan", "plan_of", "make_plan"),
            *(
                "renew_plan",
                "rewrite_plan",
                "_describe_files",
                "staging",
                "is_as_planned",
                "differs_from_applied",
            ),
        ),
    ),
    "next batch": Deciding(
        "mirrorlake/mirror/next_batch.py",
        (
            "unit/mirror/test_plan.py",
            "unit/mirror/test_numbering.py",
            "unit/mirror/test_last_file.py",
        ),
        (
            *("late_file_error", "cut_batch", "number_files", "last_file_error", "is_refilled"),
            *("planned_files", "following_files", "_cut", "complete_plan", "preview_batch"),
        ),
    ),
    "numbering": Deciding(
        "mirrorlake/landing/zone.py",
        ("unit/mirror/test_numbering.py", "unit/mirror/test_plan.py", "unit/mirror/test_status.py"),
        ("BadFolder", "Folder", "find_tables", *_LISTINGS, "by_number", "by_time"),
    ),
    "receipts of operations": Deciding(
        "mirrorlake/partitioning/operation.py",
        ("unit/layout/test_partitioning_receipts.py",),
        (*_RECEIPTS, "_settle", "_folder", "_path", "_receipt"),
    ),
    "receipts of renames": Deciding(
        "mirrorlake_serve/files.py", ("unit/serve/test_receipts.py",), ("Receipts",)
    ),
    "view shapes": Deciding(
        "mirrorlake/views/shape.py", ("unit/rows/test_view_shapes.py",), _SHAPES
    ),
    "view stages": Deciding("mirrorlake/views/stages.py", ("unit/rows/test_view_stages.py",)),
    "collapse": Deciding(
        "mirrorlake/mirror/batch.py",
        ("spark/mirror/test_collapse.py",),
        ("collapse_changes", "_fill", "_keeps", "require_values", "value_or_error"),
    ),
    "net changes": Deciding(
        "mirrorlake/feed/ranges.py",
        (
            f"{_NET}a_key_with_several_rows_is_refused_where_keys_are_relied_on",
            f"{_NET}a_value_that_moves_where_null_was_is_a_change",
            f"{_NET}a_range_with_more_versions_than_a_mark_has_places_for_is_summed_up",
            f"{_NET}an_outcome_is_of_its_keys_last_change",
            f"{_NET}random_feeds_come_to_what_the_model_says",
        ),
        ("net_changes", "_of_unique_keys", "_of_any_rows", "_kind"),
    ),
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
        line: its line.
        change: the change, as `before → after`.
        tree: the whole module with the change.
    """

    line: int
    change: str
    tree: ast.Module


def mutants(source: str, functions: tuple[str, ...] = ()) -> Iterator[Mutant]:
    """Yield all mutants of a module.

    Args:
        source: its text.
        functions: only these top-level functions and classes; by default all.
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
    """Make the change with this number in a node; return False if it does not exist."""
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
    """Return whether the tests pass with a mutant, in a separate process with a time limit."""
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

    for name in list(sys.modules):  # modules that are imported already can't be mutated
        if name.startswith(("mirrorlake", "helpers")):
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
    """Test modules, and list the surviving mutants."""
    for heavy in ("pytest", "pyarrow.parquet", "pyspark.sql", "sqlglot"):  # these are not mutated
        importlib.import_module(heavy)
    os.chdir(PROJECT)
    for name in names or DECIDING:
        with _one_jvm(DECIDING[name].needs_spark) as clear:
            score(name, clear)


def score(name: str, after_each: Callable[[], None]) -> None:
    """Test one entry of `DECIDING`; `after_each` is called after each mutant's process."""
    deciding = DECIDING[name]
    path = PROJECT / "lib" / deciding.module
    source = path.read_text(encoding="utf-8")
    tests = [f"tests/{test}" for test in deciding.tests]

    def is_left(mutant: Mutant) -> bool:
        left = survives(path, mutant, tests)
        after_each()
        return left

    if not is_left(Mutant(0, "", ast.parse(source))):
        raise SystemExit(f"{name}: its tests fail without any mutant.")
    found = list(mutants(source, deciding.functions))
    left = [mutant for mutant in found if is_left(mutant)]
    noticed = 100 * (1 - len(left) / len(found))
    print(f"{name}: {noticed:.0f} % of {len(found)} mutants are noticed", flush=True)
    for mutant in left:
        change = mutant.change.splitlines()[0][:120]
        print(f"  {deciding.module}:{mutant.line}  {change}", flush=True)


@contextmanager
def _one_jvm(wanted: bool) -> Iterator[Callable[[], None]]:
    """Let the tests' sessions start in one JVM; yield a function that ends the last session."""
    if not wanted:
        yield lambda: None
        return
    from mirrorlake.spark.session import SharedJvm

    jvm = SharedJvm("small")
    os.environ.update(jvm.environment)
    try:
        yield jvm.clear
    finally:
        for variable in jvm.environment:
            del os.environ[variable]
        jvm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
