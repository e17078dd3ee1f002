"""Without Spark, the core works, and other parts raise an error that names the missing extra."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.project import PROJECT, SETTINGS
from mirrorlake import EXTRAS

# Hides the packages of all extras, as if they were not installed.
BARE = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [Without if f is PathFinder else f for f in sys.meta_path]
"""
# Runs commands in order, and prints their exit statuses and outputs.
COMMANDS = """
import contextlib, io, json
from rich.console import Console
from mirrorlake.cli import main as cli
from mirrorlake.cli import printing

told = []
for arguments in json.loads(sys.argv[1]):
    shown, complaint = io.StringIO(), io.StringIO()
    sys.argv = ["mirrorlake", *arguments]
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(complaint):
        try:
            cli.main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
    told.append([status, shown.getvalue(), complaint.getvalue()])
print(json.dumps(told))
"""
PYTHON = """
import json
from mirrorlake import Lake
from mirrorlake.errors import SetupError

lake = Lake(sys.argv[1])
lake.publisher("t", keys=["id"]).write([{"id": 1, "word": "a"}])
tables = [table.name for table in lake.status().tables]
told = [lake.lint().errors, tables, len(lake.operations.ledger("t").entries)]
for call in (lake.mirror, lambda: lake.spark, lambda: lake.sql("SELECT 1")):
    try:
        call()
    except SetupError as error:
        told.append(str(error))
try:
    import pyspark
except ModuleNotFoundError as error:
    told.append(type(error).__name__)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def absent() -> list[str]:
    return sorted({name for names in EXTRAS.values() for name in names})


def run_bare(absent: list[str], program: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(absent=absent) + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_shell_without_spark(absent: list[str], tmp_path: Path) -> None:
    rows, root = tmp_path / "rows.csv", str(tmp_path / "lake")
    rows.write_text("id,word\n1,a\n2,b\n")
    commands = [
        ["publish", root, "t", str(rows), "--keys", "id"],
        ["lint", root, "--json"],
        ["status", root, "--json"],
        ["ledger", root, "t", "--json"],
        ["pause", root, "t"],
        ["mirror", root],
        ["sql", root, "SELECT 1"],
        ["quarantine", root],
        ["demo"],
    ]
    told = run_bare(absent, COMMANDS, json.dumps(commands))
    published, lint, status, ledger, pause, *refused = told
    assert [one[0] for one in (published, lint, status, ledger, pause)] == [0] * 5, told
    assert published[1].startswith("t: 00000000000000000001.parquet, 2 rows")
    assert json.loads(lint[1]) == {"findings": []}
    assert [table["state"] for table in json.loads(status[1])["tables"]] == ["Initialized"]
    assert json.loads(ledger[1])["rows"] == []
    mirror, sql, quarantine, demo = refused
    for code, shown, complaint in refused:
        assert (code, shown, complaint.count("\n")) == (1, "", 1), complaint
    for _, _, complaint in (mirror, sql, quarantine):
        assert complaint.endswith("not installed. Hint: pip install 'mirrorlake[spark]'\n")
    assert mirror[2].startswith("mirrorlake: mirrorlake.mirror needs pyspark, which is")
    assert demo[2].endswith("not installed. Hint: pip install 'mirrorlake[notebooks]'\n")


def test_python_without_spark(absent: list[str], tmp_path: Path) -> None:
    errors, tables, applied, *refused, plain = run_bare(absent, PYTHON, str(tmp_path / "lake"))
    assert (errors, tables, applied) == ([], ["t"], 0)
    assert len(refused) == 3
    assert all(text.endswith("Hint: pip install 'mirrorlake[spark]'") for text in refused), refused
    assert plain == "ModuleNotFoundError"  # other packages' imports fail with the usual error


FIGURES = """
import contextlib, io, json
from mirrorlake import Lake

lake, imports = Lake(sys.argv[1]), json.loads(sys.argv[2])
lake.publisher("t", keys=["id"]).write([{"id": 1}])
with contextlib.redirect_stderr(io.StringIO()) as said:
    drawn = [lake.status().plot("backlog"), lake.status().plot("lag")]
    names = {}
    for line in imports:
        exec(line, names)
    drawn += [names[name]("mirror") for name in names if name.startswith("plot_")]
print(json.dumps([drawn, said.getvalue()]))
"""


def imports_of_notebooks() -> set[str]:
    """Return the lines of all notebooks that import something."""
    found = set()
    for path in (PROJECT / "notebooks").rglob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = (cell["source"] for cell in cells if cell["cell_type"] == "code")
        lines = (line.strip() for cell in code for line in cell)
        found |= {line for line in lines if line.startswith(("import ", "from "))}
    return found


def test_notebooks_without_matplotlib_go_on_without_figures(tmp_path: Path) -> None:
    imports = json.dumps(sorted(imports_of_notebooks()))
    drawn, said = run_bare(["matplotlib"], FIGURES, str(tmp_path / "lake"), imports)
    assert drawn == [None] * len(drawn)
    assert len(drawn) > 8
    assert said.count("\n") == 1
    assert said.startswith("Figures are left out. mirrorlake.show needs matplotlib")
    assert said.endswith("Hint: pip install 'mirrorlake[notebooks]'\n")


OURS = {path.name for path in (PROJECT / "lib").glob("mirrorlake*")} | {"mirrorlake_docs"}


def imported() -> dict[str, list[str]]:
    """Return the third-party packages that the library imports, with the importing modules."""
    found: dict[str, list[str]] = {}
    for path in (PROJECT / "lib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [str(node.module)]
            for name in names:
                found.setdefault(name.split(".")[0], []).append(path.name)
    return {n: p for n, p in found.items() if n not in {*sys.stdlib_module_names, *OURS}}


def test_every_import_is_of_the_core_or_of_an_extra() -> None:
    """The packages listed for an extra are those that it installs."""
    packages = packages_distributions()

    def brought(lines: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(line).name) for line in lines}

    core = brought(SETTINGS["dependencies"])
    # They are installed with others: nbformat, nbclient, jupyter_core, jupyter_client, traitlets,
    # IPython, tqdm and pygments with papermill, JupyterLab and nbconvert, comm with ipywidgets,
    # py4j with PySpark.
    indirect = {"nbformat", "IPython", "py4j", "nbclient", "jupyter_core", "pygments", "tqdm"}
    indirect |= {"comm", "jupyter_client", "traitlets"}
    for name, places in imported().items():
        extra = next((extra for extra, names in EXTRAS.items() if name in names), None)
        wanted = core if extra is None else brought(SETTINGS["optional-dependencies"][extra])
        if name not in indirect:
            owners = {canonicalize_name(owner) for owner in packages[name]}
            assert owners & wanted, (name, extra, places)
    for extra, names in EXTRAS.items():
        wanted = brought(SETTINGS["optional-dependencies"][extra])
        for name in set(names) - indirect:
            assert {canonicalize_name(owner) for owner in packages[name]} & wanted, (name, extra)


def test_one_page_describes_the_installation() -> None:
    """No public registry has the package, so its name alone installs nothing."""
    start = PROJECT / "docs" / "start.md"
    text = start.read_text(encoding="utf-8")
    section = text.partition("## Install only what you need\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert sorted(named) == sorted(SETTINGS["optional-dependencies"])
    wheel = f"{SETTINGS['name']}-{SETTINGS['version']}-py3-none-any.whl"
    assert wheel in section
    pages = {*(PROJECT / "docs").rglob("*.md"), *PROJECT.glob("*.md")} - {start}
    named_pages = [
        path.name
        for path in pages
        if re.search(r"pip install '?mirrorlake", path.read_text(encoding="utf-8"))
    ]
    assert named_pages == []


def test_messages_do_not_name_the_launcher_of_a_checkout() -> None:
    """Except for docstrings and generated pages, they name `PROGRAM`, which an installation has."""
    pages = {"lessons.py", "lint_rules.py"}
    for path in (path for path in (PROJECT / "lib").rglob("*.py") if path.name not in pages):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [n.value for n in nodes if isinstance(n, ast.Constant) and id(n) not in alone]
        assert [text for text in texts if "./mirrorlake " in str(text)] == [], path


@pytest.mark.long
def test_a_wheel_in_a_bare_environment(tmp_path: Path) -> None:
    """Install the built wheel with the core's packages only."""
    source, python = tmp_path / "source", str(tmp_path / "venv" / "bin" / "python")
    source.mkdir()
    shutil.copytree(PROJECT / "lib", source / "lib", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("notebooks", "parameters"):
        shutil.copytree(PROJECT / name, source / name)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    uv = [str(Path(sys.executable).parent / "uv")]
    options = ["--python", sys.executable, "--no-build-isolation", "--out-dir", str(tmp_path)]
    run([*uv, "build", "--quiet", "--wheel", *options, str(source)])
    (wheel,) = tmp_path.glob("*.whl")
    run([*uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")])
    lock = ["--constraint", str(PROJECT / "requirements.lock"), "--no-verify-hashes"]
    run([*uv, "pip", "install", "--quiet", "--python", python, *lock, str(wheel)])
    (tmp_path / "rows.csv").write_text("id,word\n1,a\n")
    script, root = str(tmp_path / "venv" / "bin" / "mirrorlake"), str(tmp_path / "lake")
    run([script, "publish", root, "t", str(tmp_path / "rows.csv"), "--keys", "id"])
    assert "0 errors and 0 warnings in 1 table" in run([script, "lint", root])
    assert "Initialized" in run([script, "status", root])
    assert json.loads(run([script, "ledger", root, "t", "--json"]))["rows"] == []
    hint = "Hint: pip install 'mirrorlake[spark]'\n"
    assert run([script, "mirror", root], status=1).endswith(hint)
    run([script, "notebooks", str(tmp_path / "copies")])
    copied = {path.relative_to(tmp_path / "copies") for path in (tmp_path / "copies").rglob("*.*")}
    sources = [*(PROJECT / "notebooks").rglob("*.ipynb"), *(PROJECT / "parameters").rglob("*.yaml")]
    sources += [PROJECT / "notebooks" / n for n in ("conftest.py", "pytest.ini", "sanitize.cfg")]
    assert copied == {path.relative_to(PROJECT) for path in sources}
    assert "no benches here" in run([script, "bench"], status=2)
    told = json.loads(run([python, "-c", "import sys\n" + PYTHON, str(tmp_path / "other")]))
    assert told[:3] == [[], ["t"], 0]
    assert told[3].endswith(hint.strip())
    # With the extras for notebooks, a tool runs by its name from any folder, as schedulers call it.
    run([*uv, "pip", "install", "--quiet", "--python", python, *lock, f"{wheel}[spark,notebooks]"])
    bare = {"PATH": "/usr/bin:/bin", "MIRRORLAKE_HOME": str(tmp_path / "home")}
    values = {"root": root, "table": "t", "source": str(tmp_path / "rows.csv"), "keys": "id"}
    chosen = [part for key, value in values.items() for part in ("-p", f"{key}={value}")]
    command = [script, "run", "publish", *chosen, "--json"]
    summary = json.loads(run(command, environment=bare))
    assert (summary["status"], summary["steps"][0]["records"]["rows"]) == ("done", 1)
    assert summary["run"] in run([script, "runs", "list"], environment=bare)
    for plan in (
        "nightly",
        "report",
    ):  # without a checkout, they are found and their parameters are checked
        refused = run([script, "run", plan, "-p", "months=3"], status=2, environment=bare)
        assert f"{plan} has no parameter months. Hint: it has" in refused


def run(command: list[str], status: int = 0, environment: dict[str, str] | None = None) -> str:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment or known,
        cwd="/" if environment else None,
        check=False,
    )
    assert done.returncode == status, (command, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr
