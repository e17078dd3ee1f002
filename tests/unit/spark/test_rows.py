"""Arguments that `show_rows` and `save_rows` refuse before they start a query."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlake import save_rows, show_rows
from mirrorlake.errors import UsageError

FRAME: Any = SimpleNamespace(columns=["id", "id"])


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("s3://bucket/rows.parquet", r"is a URI.*copy the file"),
        ("rows.parquet", r"several columns named id.*AS"),
    ],
)
def test_a_place_or_columns_that_no_file_can_have(
    path: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=refusal):
        save_rows(FRAME, path)
    assert not list(tmp_path.iterdir())


def test_a_negative_number_of_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="-1 rows can't be shown"):
        show_rows(FRAME, limit=-1)
