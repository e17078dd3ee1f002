"""Options and fixtures of all tests: `--long`, `--changed`, promises, peak memory, a lake."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from helpers.examples import try_many
from helpers.memory import PeakMemory
from helpers.one_jvm import OneJvm
from helpers.project import PROJECT
from helpers.promises import PromiseCount
from helpers.touched import Imports, changed_files
from mirrorlake import Lake
from mirrorlake_runs.fast_jsonschema import import_jsonschema

import_jsonschema()  # before a test imports nbformat
# A test is not timed, because other work on the machine would make it fail.
settings.register_profile("mirrorlake", deadline=None)
settings.load_profile("mirrorlake")
TESTS = Path(__file__).parent
PROMISES = TESTS / "promises.yaml"
WITH_SPARK = ("spark", "notebooks")
# The folders of each group are run by one process. The browser's tests share a JupyterLab, and the
# tests of sources a PostgreSQL server. The notebooks share a sample lake and a JVM, the project's
# tests start their own JVMs, and two of these in addition to the common one exceed 8 GB. The feed's
# tests have streams, and the common JVM can call back only one process.
TOGETHER = (
    ("tests/browser/",),
    ("tests/notebooks/", "tests/spark/project/"),
    ("tests/servers/sources/",),
    ("tests/spark/feed/",),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="add complete kill matrices and soak tests"
    )
    parser.addoption(
        "--changed", action="store_true", help="run only tests that a change can affect"
    )
    parser.addoption("--pictures", action="store_true", help="save screenshots in docs/pictures")
    parser.addoption("--since", default="HEAD", help="commit with which --changed compares")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        try_many()
    config.pluginmanager.register(PromiseCount(PROMISES))
    if not hasattr(config, "workerinput"):  # the main process
        config.pluginmanager.register(MemoryLine())
        if not config.getoption("--long"):  # soak and kill tests start their own JVMs
            config.pluginmanager.register(OneJvm("small"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--changed"):
        changed = changed_files(PROJECT, config.getoption("--since"))
        touched = Imports(PROJECT).touched_by(changed)
        others = [item for item in items if touched is not None and item.path not in touched]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if touched is None or item.path in touched]
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in WITH_SPARK:
            item.add_marker("spark")
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="runs under --long"))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection; they live until the end."""
    gc.collect()
    gc.freeze()


class ByFile(LoadFileScheduling):
    """A scheduler that assigns whole files to processes, and some whole folders."""

    def _split_scope(self, nodeid: str) -> str:
        groups = [group[0] for group in TOGETHER if nodeid.startswith(group)]
        return groups[0] if groups else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


class MemoryLine:
    """Prints the peak memory of the run, with all processes that it started."""

    def pytest_sessionstart(self) -> None:
        self.watch = PeakMemory(seconds=10)  # a measurement reads the memory map of each process

    def pytest_terminal_summary(self, terminalreporter) -> None:
        terminalreporter.line(f"peak memory: {self.watch.stop()}")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return an empty lake."""
    return Lake(tmp_path / "lake")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which runs and their leases are stored."""
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))
    return tmp_path
