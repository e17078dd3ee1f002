"""The check whether the files of a feed exist."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirrorlake.delta import actions
from mirrorlake.feed import doctor
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage


def test_files_of_a_feed_are_checked_concurrently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The internal function, because the other steps of a diagnosis need a table."""
    storage = Storage(tmp_path)
    monkeypatch.setattr(storage, "local", None)
    both = threading.Barrier(2, timeout=10)

    def exists(_: actions.Places, path: str) -> bool:
        both.wait()
        return path == "there"

    monkeypatch.setattr(actions.Places, "exists", exists)
    table = SimpleNamespace(storage=storage, name=TableName(None, "t"))
    states = [
        SimpleNamespace(version=version, commit=SimpleNamespace(files=[path]))
        for version, path in enumerate(("there", "lost"))
    ]
    (found,) = doctor._missing_files(table, states)  # type: ignore[arg-type]
    assert (found.versions, found.file) == ((1, 1), "lost")
