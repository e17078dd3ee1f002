"""The project's files are consistent, and contain nothing of the machine they were made on."""

from __future__ import annotations

import doctest
import importlib
import itertools
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from helpers.project import PROJECT, SETTINGS
from mirrorlake.cli import main as cli
from mirrorlake_lab import commands as lab_commands

LOCK = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
TEXTS = ["README.md", "CONTRIBUTING.md"]
TEXTS += sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs").rglob("*.md"))
LAUNCHER = (PROJECT / "mirrorlake").read_text(encoding="utf-8")


def tracked() -> list[Path]:
    """Return the files that are under version control, or would be added to it."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git repository")
    found = [PROJECT / name for name in listed.stdout.split("\0") if name]
    return [path for path in found if path.is_file()]


def texts() -> Iterator[tuple[str, str]]:
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data:
            yield str(path.relative_to(PROJECT)), data.decode("utf-8")


@cache
def entries() -> dict[str, list[tuple[Version, str]]]:
    """Return the lock's packages: the versions of each, with the text of their entries."""
    found: dict[str, list[tuple[Version, str]]] = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", "\n" + LOCK)[1:]:
        requirement = Requirement(entry.split("\\")[0].strip())
        (pin,) = requirement.specifier
        assert pin.operator == "==", entry
        key = canonicalize_name(requirement.name)
        found.setdefault(key, []).append((Version(pin.version), entry))
    return found


def direct() -> list[Requirement]:
    lines = [
        *SETTINGS["dependencies"],
        *itertools.chain(*SETTINGS["optional-dependencies"].values()),
    ]
    found = {line: Requirement(line) for line in lines}
    return [one for one in found.values() if one.name != "mirrorlake"]


@pytest.mark.parametrize("requirement", direct(), ids=lambda found: found.name)
def test_direct_dependencies_are_locked_within_their_range(requirement: Requirement) -> None:
    versions = [version for version, _ in entries().get(canonicalize_name(requirement.name), [])]
    assert versions
    assert all(version in requirement.specifier for version in versions), versions


def test_every_entry_of_the_lock_has_hashes() -> None:
    assert len(entries()) > 100
    for name, versions in entries().items():
        for _, entry in versions:
            assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), name


def test_the_python_range_is_the_same_everywhere() -> None:
    lowest, end = re.findall(r"\((\d+, \d+)\)", LAUNCHER)
    environment = yaml.safe_load((PROJECT / "environment.yml").read_text(encoding="utf-8"))
    (python,) = (d for d in environment["dependencies"] if str(d).startswith("python"))
    assert SETTINGS["requires-python"] == f">={lowest.replace(', ', '.')}"
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(
        f"{SETTINGS['requires-python']},<{end.replace(', ', '.')}"
    )
    assert f"--python-version {lowest.replace(', ', '.')}" in LOCK.splitlines()[1]
    names = re.search(r"for name in (.+); do", LAUNCHER)
    assert names is not None
    first, last = (int(part.split(", ")[1]) for part in (lowest, end))
    assert set(re.findall(r"python3\.(\d+)", names[1])) == {str(n) for n in range(first, last)}


def test_conda_users_get_the_lock_with_its_hashes() -> None:
    environment = yaml.safe_load((PROJECT / "environment.yml").read_text(encoding="utf-8"))
    (pip,) = (d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert "pip" in environment["dependencies"]
    assert {"--require-hashes", "-r requirements.lock"} <= set(pip)


def test_ci_runs_the_tests_that_everybody_runs() -> None:
    script = PROJECT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "./mirrorlake test" in script.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("arguments", "warm"),
    [
        (["tests/unit"], False),
        (["tests/unit/", "-q", "-k", "names"], False),
        (["-x", "tests/unit/test_names.py::test_refused", "tests/unit/landing"], False),
        ([str(PROJECT / "tests" / "unit")], False),
        (["tests/unit", "tests/servers"], False),
        (["tests/unit", "tests/spark"], True),
        (["tests/unit/../spark/delta"], True),
        (["-q"], True),
        ([], True),
        (["tests"], True),
    ],
)
def test_spark_is_warmed_up_where_it_may_be_needed(arguments: list[str], warm: bool) -> None:
    assert lab_commands.needs_no_spark(arguments) is not warm


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    for name in ("six", "typer", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the working folder')\n")
    done = subprocess.run(
        [PROJECT / "mirrorlake", "status", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_the_unit_tests_look_for_no_java(tmp_path: Path) -> None:
    """Run the whole command with an empty cache and without Java; the cache stays empty."""
    command = [sys.executable, "-m", "mirrorlake.cli", "test", "tests/unit/test_errors.py"]
    environment = {"MIRRORLAKE_CACHE": str(tmp_path / "cache"), "PATH": "", "HOME": str(tmp_path)}
    environment |= {"PYTHONPATH": str(PROJECT / "lib")}
    done = subprocess.run(
        [*command, "-n", "0", "-p", "no:cacheprovider"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slowest 10 durations" in done.stdout
    assert not (tmp_path / "cache").exists()


def test_nothing_of_the_library_or_the_tests_is_ignored() -> None:
    shown = {path.relative_to(PROJECT) for path in tracked()}
    for folder in ("lib", "tests", "notebooks", "parameters"):
        for pattern in ("*.py", "*.ipynb", "*.yaml"):
            here = {path.relative_to(PROJECT) for path in (PROJECT / folder).rglob(pattern)}
            assert {p for p in here if ".ipynb_checkpoints" not in p.parts} <= shown


def test_no_test_imports_another() -> None:
    """Code that tests share is in `tests/helpers`."""
    importing = re.compile(r"^\s*(?:from|import) (?:\w+\.)*test_\w+", re.M)
    for path in (PROJECT / "tests").rglob("*.py"):
        assert not importing.search(path.read_text(encoding="utf-8")), path


# Concatenated, so that this file does not contain the text that it searches for.
HOSTS = [
    ".".join(parts)
    for parts in (
        ("maven", "org"),
        ("maven", "apache"),
        ("repo1", "maven"),
        ("sonatype", "org"),
        ("spark-packages", "org"),
        ("pypi", "org"),
        ("pypi", "python"),
        ("files", "pythonhosted"),
        ("conda", "anaconda"),
        ("registry", "npmjs"),
    )
]
PLACES = [f"/{name}/" for name in ("work", "root", "Users")] + ["/tmp" + "/w", "/" + "root\n"]
PLACES += ["/home" + "/runner"]


def test_no_registry_is_named() -> None:
    found = [(path, host) for path, text in texts() for host in HOSTS if host in text]
    assert found == []


def test_no_path_of_a_machine_is_named() -> None:
    found = [(path, place) for path, text in texts() for place in PLACES if place in text]
    assert found == []


@pytest.mark.parametrize("name", TEXTS)
def test_commands_that_are_named_exist(name: str) -> None:
    text = (PROJECT / name).read_text(encoding="utf-8")
    commands = cli.command().commands
    named = set(re.findall(r"\./mirrorlake ([a-z][a-z-]*)", text))
    assert named or name not in ("README.md", "CONTRIBUTING.md")
    assert named <= set(commands)


def test_every_complaint_has_a_test() -> None:
    known = yaml.safe_load((PROJECT / "tests" / "complaints.yaml").read_text(encoding="utf-8"))
    marks = [
        mark
        for path in (PROJECT / "tests").rglob("test_*.py")
        for mark in re.findall(r"^@pytest\.mark\.complaint\((.+)\)$", path.read_text(), re.M)
    ]
    assert {name for mark in marks for name in re.findall(r'"([^"]+)"', mark)} == set(known)


def test_the_docs_list_every_command() -> None:
    text = (PROJECT / "docs" / "commands.md").read_text(encoding="utf-8")
    commands = cli.command().commands
    listed = set(re.findall(r"^\| `([a-z]+)[ `]", text, re.MULTILINE))
    assert listed == set(commands)


@pytest.mark.parametrize("name", TEXTS)
def test_paths_that_are_named_exist(name: str) -> None:
    text = (PROJECT / name).read_text(encoding="utf-8")
    pattern = r"(?<![\w./])((?:lib|tests|parameters|notebooks)/[\w./-]*\w|\w+\.(?:yml|lock|toml))"
    for path in set(re.findall(pattern, text)):
        if "NN_" not in path:
            assert (PROJECT / path).exists(), path


def modules() -> list[str]:
    found = pkgutil.walk_packages([str(PROJECT / "lib"), str(PROJECT / "docs" / "_ext")])
    names = [module.name for module in found if module.name.startswith("mirrorlake")]
    return [name for name in names if not name.endswith("__main__")]


def examples_of(name: str) -> list[doctest.DocTest]:
    """Return the docstrings of a module that have examples."""
    found = doctest.DocTestFinder().find(importlib.import_module(name))
    return [docstring for docstring in found if docstring.examples]


@pytest.fixture
def no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if Spark is started: examples that need it are marked `# doctest: +SKIP`."""

    def refuse(*_: object) -> None:
        raise AssertionError("this example needs Spark")

    monkeypatch.setattr("mirrorlake.spark.session.get_spark", refuse)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name: str) -> None:
    runner = doctest.DocTestRunner()
    for example in examples_of(name):
        runner.run(example)
    assert runner.summarize().failed == 0


def test_there_are_examples_in_docstrings() -> None:
    assert any(examples_of(name) for name in modules())
