"""Count the promises that hold: all tests that carry a promise and ran have passed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

_PROMISE = "promise"


class PromiseCount:
    """A plugin that judges promises from the reports of all test processes.

    A failure, an error in setup or teardown, and an expected failure break the promises of a test;
    a skipped test neither holds nor breaks them.

    Args:
        path: the YAML file with the numbers and texts of the promises.
    """

    def __init__(self, path: Path) -> None:
        self._known: dict[str, str] = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._passed: set[str] = set()
        self.broken: set[str] = set()

    @property
    def held(self) -> set[str]:
        """The numbers of the promises that hold."""
        return self._passed - self.broken

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers(_PROMISE):
                unknown = [number for number in marker.args if number not in self._known]
                if unknown:
                    raise pytest.UsageError(f"{item.nodeid}: promises.yaml has no {unknown}")
                item.user_properties += [(_PROMISE, number) for number in marker.args]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        numbers = {str(value) for key, value in report.user_properties if key == _PROMISE}
        if report.failed or (report.skipped and hasattr(report, "wasxfail")):
            self.broken |= numbers
        elif report.passed and report.when == "call":
            self._passed |= numbers

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("promises")
        terminalreporter.line(
            f"{len(self.held)} of {len(self._known)} promises are held by the tests that ran"
        )
        for number, text in self._known.items():
            if number not in self.held:
                state = "broken" if number in self.broken else "not yet"
                terminalreporter.line(f"  {state}: {number} {text}")
