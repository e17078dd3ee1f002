"""The lesson's shop without PostgreSQL; `tests/notebooks` runs the lesson with it."""

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
    with pytest.raises(SetupError, match=r"No PostgreSQL server .* Hint: run `apt-get"):
        Shop()
    assert list(tmp_path.iterdir()) == []
