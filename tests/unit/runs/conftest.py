"""What the tests of runs share: a folder that is their home."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a test's own, where runs and locks are kept, too."""
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))
    return tmp_path
