"""A promise is held only if all tests that carry it and ran have passed."""

from __future__ import annotations

import pytest

from helpers.promises import PromiseCount

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise ValueError

@pytest.fixture
def unclosed():
    yield
    raise ValueError

@pytest.mark.promise("held", "failed", "setup", "teardown", "xfailed", "skipped too")
def test_pass(): pass

@pytest.mark.promise("failed")
def test_fail(): assert False

@pytest.mark.promise("setup")
def test_setup(broken): pass

@pytest.mark.promise("teardown")
def test_teardown(unclosed): pass

@pytest.mark.promise("xfailed")
@pytest.mark.xfail(strict=True)
def test_xfail(): assert False

@pytest.mark.promise("skipped", "skipped too")
def test_skip(): pytest.skip("not here")

@pytest.mark.promise("held")
def test_not_selected(): assert False
"""


def test_one_test_that_does_not_pass_breaks_its_promises(pytester: pytest.Pytester) -> None:
    names = ("held", "failed", "setup", "teardown", "xfailed", "skipped", "skipped too")
    known = pytester.path / "promises.yaml"
    known.write_text("".join(f"{name}: a text\n" for name in names), encoding="utf-8")
    pytester.makeini("[pytest]\nmarkers = promise")
    pytester.makepyfile(TESTS)
    count = PromiseCount(known)
    options = ("-p", "no:xdist", "-p", "no:cacheprovider", "-k", "not not_selected")
    done = pytester.inline_run(*options, plugins=[count])
    done.assertoutcome(passed=2, skipped=2, failed=3)
    assert count.held == {"held", "skipped too"}
    assert count.broken == {"failed", "setup", "teardown", "xfailed"}
