"""Find the test files that a change can affect, by imports and by used names.

Everything imports `Lake`, and `Lake` imports everything, so imports alone would select every test.
Here a function or class counts only if code that counts refers to it, starting at the test. A
method counts if code that counts uses its name on an object, in a module that imports the module of
its class, directly or indirectly. A command counts if a test has its name, a fixture if a function
takes it. Pages and notebooks, which are not found by names, count by their folder. The result may
contain too many files, but not too few.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "mirrorlake"
_ALL = ("pyproject.toml", "requirements.lock", "tests/promises.yaml", "tests/conftest.py")
# Folders whose tests read pages and notebooks.
_DOCUMENTS = {"project", "notebooks", "runs", "site", "course"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WORD = re.compile(r"[A-Za-z_][\w.-]*")


def changed_files(project: Path, since: str = "HEAD") -> list[str]:
    """Return the files that differ from a commit, with untracked files, as paths in the project."""
    commands = (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"])
    found: set[str] = set()
    for command in commands:
        said = subprocess.run(
            ["git", *command], cwd=project, capture_output=True, text=True, check=True
        )
        found.update(said.stdout.splitlines())
    return sorted(found)


@dataclass
class Unit:
    """A function, a method, a class with its dunder methods, or a module's other statements.

    Attributes:
        refers: the names that it uses: `module.definition`, or a module.
        asks: the attributes that it uses on objects.
        takes: its arguments.
        says: its texts of one word.
        called: the bare names by which it may be called.
        owner: the class of a method.
        always: whether it runs without being named, such as an autouse fixture.
    """

    refers: set[str] = field(default_factory=set)
    asks: set[str] = field(default_factory=set)
    takes: set[str] = field(default_factory=set)
    says: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    owner: str = ""
    always: bool = False


class Module:
    """A file's units by name; `""` runs when the module is imported."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path, self.units = name, path, {"": Unit()}
        self.of_tests = not name.startswith(PACKAGE)
        tree = ast.parse(_source(path))
        top = [node for node in tree.body if not isinstance(node, (*_FUNCTIONS, ast.ClassDef))]
        self._imports = dict(_imports(tree))
        self.imported = {target for _, target in _imports(tree, typing=True)}
        self._own = {node.name for node in tree.body if node not in top}
        self._own |= {node.id for part in top for node in ast.walk(part) if _is_stored(node)}
        for part in top:
            self._add("", part)
        for node in tree.body:
            if isinstance(node, _FUNCTIONS):
                self._function(node.name, node)
            elif isinstance(node, ast.ClassDef):
                self._class(node)

    def resolve(self, name: str) -> str:
        """Return the meaning of a name of this module."""
        return self._imports.get(name) or f"{self.name}.{name}"

    def _function(self, name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._add(name, node)
        marks = [word for part in node.decorator_list for word in ast.walk(part)]
        if marks:
            texts = {part.value for part in marks if isinstance(part, ast.Constant)}
            self.units[name].called |= {node.name, *map(_plain, map(str, texts))}
            self.units[name].always = any(getattr(part, "arg", "") == "autouse" for part in marks)

    def _class(self, node: ast.ClassDef) -> None:
        self.units[node.name] = Unit()
        for part in [*node.bases, *node.keywords, *node.decorator_list, *node.body]:
            if isinstance(part, _FUNCTIONS) and not part.name.startswith("__"):
                name = f"{node.name}.{part.name}"
                self._add(name, part)
                self.units[name].called.add(part.name)
                self.units[name].owner = node.name
            else:
                self._add(node.name, part)

    def _add(self, name: str, tree: ast.AST) -> None:
        unit = self.units.setdefault(name, Unit())
        for node in _walk(tree):
            match node:
                case ast.Name(id=used) if used in self._imports or used in self._own:
                    unit.refers.add(self.resolve(used))
                case ast.Attribute(value=ast.Name(id=used), attr=word) if used in self._imports:
                    unit.refers.add(f"{self._imports[used]}.{word}")
                    unit.asks.add(word)
                case ast.Attribute(attr=word):
                    unit.asks.add(word)
                case ast.arg(arg=word):
                    unit.takes.add(word)
                case ast.Constant(value=str(text)) if _WORD.fullmatch(text):
                    unit.says.add(text)


class Imports:
    """The project's modules, read without importing them.

    Args:
        project: the folder with `lib` and `tests`.
    """

    def __init__(self, project: Path) -> None:
        self._project = project
        self._modules: dict[str, Module] = {}
        self._used: dict[Path, set[Path]] = {}
        self._placed: dict[str, tuple[tuple[str, str], ...]] = {}
        for root in ("lib", "tests"):
            for path in sorted((project / root).rglob("*.py")):
                parts = path.relative_to(project / root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self._modules[name] = Module(name, path)
        for path in sorted((project / "notebooks").rglob("*.ipynb")):
            self._modules[f"page.{path.stem}"] = Module(f"page.{path.stem}", path)
        self._add_entry_points()
        self._reached = {name: self._closure(name) for name in self._modules}

    def _add_entry_points(self) -> None:
        """Make whoever calls `registered` refer to what `pyproject.toml` registers."""
        registry = self._modules.get(f"{PACKAGE}.registry")
        if registry is None:
            return
        text = (self._project / "pyproject.toml").read_text(encoding="utf-8")
        for table in re.findall(
            rf'^\[project\.entry-points\."{PACKAGE}\..*?(?=^\[)', text, re.M | re.S
        ):
            for module, name in re.findall(r'^\w+ = "([\w.]+):?(\w*)"', table, re.MULTILINE):
                registry.units["registered"].refers.add(f"{module}.{name}".rstrip("."))
                registry.imported.add(module)

    def _closure(self, name: str) -> set[str]:
        """Return the modules that a module imports, directly or indirectly, and itself."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            name = waiting.pop()
            while name and name not in self._modules:
                name = name.rpartition(".")[0]
            if name and name not in found:
                found.add(name)
                waiting += self._modules[name].imported
        return found

    def touched_by(self, changed: Iterable[str]) -> set[Path] | None:
        """Return the test files that a change can affect.

        Args:
            changed: paths in the project.

        Returns:
            Their paths; None for all of them.
        """
        files = {self._project / name for name in changed}
        if any(str(file.relative_to(self._project)) in _ALL for file in files):
            return None
        tests = [m.path for m in self._modules.values() if m.path.name.startswith("test_")]
        return {test for test in tests if any(self._concerns(file, test) for file in files)}

    def used_by(self, test: Path) -> set[Path]:
        """Return the files with code that a test file can reach."""
        if test not in self._used:
            self._used[test] = {self._modules[module].path for module, _ in self._live(test)}
        return self._used[test]

    def _concerns(self, file: Path, test: Path) -> bool:
        used = self.used_by(test)
        inside = file.relative_to(self._project).parts[0] in ("lib", "tests")
        if file in used or (inside and file.name in test.read_text(encoding="utf-8")):
            return True
        if not inside:
            return not _DOCUMENTS.isdisjoint(test.parts)
        beside = any(path.parent == file.parent for path in used)
        return beside and (file.suffix != ".py" or not file.exists())

    def _live(self, test: Path) -> set[tuple[str, str]]:
        own = self._named(test)
        waiting = [(own, unit) for unit in self._modules[own].units]
        if "notebooks" in test.parts:
            waiting += [(name, "") for name in self._modules if name.startswith("page.")]
        for folder in test.relative_to(self._project / "tests").parents:
            if (path := self._project / "tests" / folder / "conftest.py").is_file():
                units = self._modules[self._named(path)].units
                waiting += [(self._named(path), n) for n, u in units.items() if not n or u.always]
        live: set[tuple[str, str]] = set()
        asked: dict[str, set[str]] = {}  # by which modules
        said: set[str] = set()
        while waiting:
            while waiting:
                found = waiting.pop()
                if found not in live:
                    live.add(found)
                    unit = self._modules[found[0]].units[found[1]]
                    for word in unit.asks:
                        asked.setdefault(word, set()).add(found[0])
                    if self._modules[found[0]].of_tests:
                        said |= unit.says | unit.takes
                    waiting += ((found[0], name) for name in ("", unit.owner))
                    waiting += (place for name in unit.refers for place in self._places(name))
                    waiting += (place for name in unit.says for place in self._spoken(name))
            for module in {module for module, _ in live}:
                for name, unit in self._modules[module].units.items():
                    if (module, name) in live or not unit.called:
                        continue
                    if not unit.owner:
                        wanted = bool(unit.called & said)
                    else:
                        askers = {who for word in unit.called for who in asked.get(word, ())}
                        wanted = (module, unit.owner) in live and any(
                            self._modules[asker].of_tests or module in self._reached[asker]
                            for asker in askers
                        )
                    if wanted:
                        waiting.append((module, name))
        return live

    def _places(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the units that a dotted name refers to; empty for other projects."""
        if name not in self._placed:
            self._placed[name] = ()  # a name that refers to itself
            self._placed[name] = tuple(self._find_places(name))
        return self._placed[name]

    def _find_places(self, name: str) -> Iterator[tuple[str, str]]:
        if name in self._modules:
            yield name, ""
            if f"{name}.__main__" in self._modules:  # `python -m` runs it
                yield f"{name}.__main__", ""
            if "main" in self._modules[name].units:
                yield name, "main"
            return
        parent, _, last = name.rpartition(".")
        module = self._modules.get(parent)
        if module is None:
            return
        if last in module.units:
            yield parent, last
        elif "." not in parent and module.resolve(last) == name:  # its lazy exports
            yield from ((n, last) for n, m in self._modules.items() if last in m.units)
        else:
            yield parent, ""
            if module.resolve(last) != name:
                yield from self._places(module.resolve(last))

    def _spoken(self, text: str) -> tuple[tuple[str, str], ...]:
        """Return the units that a text refers to, such as `mirrorlake.cli` in a command line."""
        parent, _, last = text.rpartition(".")
        if text in self._modules or (
            parent in self._modules and last in self._modules[parent].units
        ):
            return self._places(text)
        return ()

    def _named(self, path: Path) -> str:
        return ".".join(path.relative_to(self._project / "tests").with_suffix("").parts)


def _source(path: Path) -> str:
    """Return a file's Python; for a notebook the code of its cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    lines = [line for cell in cells for line in "".join(cell["source"]).split("\n")]
    return "\n".join(line for line in lines if not line.startswith(("%", "!")))


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those under `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if not _is_for_typing(node):
            yield node
            waiting += [*ast.iter_child_nodes(node)][::-1]


def _is_for_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _imports(tree: ast.AST, *, typing: bool = False) -> Iterator[tuple[str, str]]:
    """Return the imported names and their meanings."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not typing and _is_for_typing(node):
            continue
        for inner in (
            "finalbody",
            "orelse",
            "handlers",
            "cases",
            "body",
        ):  # only statements can import
            waiting += getattr(node, inner, [])[::-1] if not isinstance(node, ast.expr) else []
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _plain(text: str) -> str:
    return text.replace("-", "_")
