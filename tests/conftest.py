"""What all layers share: `--long`, the promises' count, a lake in a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mirrorlake import Lake

PROMISES = Path(__file__).parent / "promises.yaml"
_held = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="add full kill matrices and soaks")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_held] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = yaml.safe_load(PROMISES.read_text(encoding="utf-8"))
    for item in items:
        for marker in item.iter_markers("promise"):
            unknown = [number for number in marker.args if number not in known]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: no promise {unknown} in promises.yaml")
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="runs under --long"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.passed:
        for marker in item.iter_markers("promise"):
            item.config.stash[_held].update(marker.args)


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    known = yaml.safe_load(PROMISES.read_text(encoding="utf-8"))
    held = config.stash[_held]
    terminalreporter.section("promises")
    terminalreporter.line(f"{len(held)} of {len(known)} promises are held by the tests that ran")
    for number, text in known.items():
        if number not in held:
            terminalreporter.line(f"  not yet: {number} {text}")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(tmp_path / "lake")
