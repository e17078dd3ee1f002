"""The lesson's shop on a machine without PostgreSQL; with it, `tests/notebooks` runs the lesson."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake.errors import SetupError
from mirrorlake_lab import Shop
from mirrorlake_lab.samples import shop


def test_without_a_server_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop, "DEBIAN", tmp_path / "nothing")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no PostgreSQL server .* Hint: install one"):
        Shop()
    assert list(tmp_path.iterdir()) == []
