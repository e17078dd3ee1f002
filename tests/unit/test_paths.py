"""Files of the cache are created once and atomically."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mirrorlake.errors import SetupError
from mirrorlake.storage import paths


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRRORLAKE_CACHE", str(tmp_path))
    return tmp_path / "things" / "thing"


def test_one_that_is_there_is_left_alone(target: Path) -> None:
    paths.make_once(target, target.is_file, lambda path: path.write_text("first"))
    paths.make_once(target, target.is_file, lambda path: path.write_text("second"))
    assert target.read_text() == "first"


def test_one_that_another_process_makes_meanwhile_is_not_taken_away(target: Path) -> None:
    """Another process may already use it."""
    making, go_on = threading.Event(), threading.Event()

    def slowly(path: Path) -> None:
        making.set()
        assert go_on.wait(10)
        path.mkdir()
        (path / "whole").touch()

    def late() -> None:
        paths.make_once(target, (target / "whole").is_file, Path.mkdir)

    first = threading.Thread(
        target=paths.make_once, args=(target, (target / "whole").is_file, slowly)
    )
    first.start()
    assert making.wait(10)
    second = threading.Thread(target=late)
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert (target / "whole").is_file()
    assert list(target.parent.iterdir()) == [target]


def test_half_a_folder_is_made_again(target: Path) -> None:
    (target / "half").mkdir(parents=True)

    def make(path: Path) -> None:
        path.mkdir()
        (path / "whole").touch()

    paths.make_once(target, (target / "whole").is_file, make)
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_a_failure_leaves_nothing(target: Path) -> None:
    def make(path: Path) -> None:
        path.write_text("half")
        raise MemoryError

    with pytest.raises(MemoryError):
        paths.make_once(target, target.is_file, make)
    assert list(target.parent.iterdir()) == []


def test_without_a_home_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container can run as a user without an entry in /etc/passwd, and without HOME."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("MIRRORLAKE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(SetupError, match="set HOME or MIRRORLAKE_CACHE"):
        paths.cache()


def test_hints_name_a_page_that_the_reader_can_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel contains no `docs/`."""
    assert paths.docs_page("schedule.md") == "docs/schedule.md"
    monkeypatch.setattr(paths, "IS_CHECKOUT", False)
    assert paths.docs_page("schedule.md") == "the page schedule.md of mirrorlake's documentation"
