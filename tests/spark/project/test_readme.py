"""The README's Python, as a reader would paste it: in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.project import PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_python_in_the_readme_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        # Lines are numbered as in the README, so that a failure points there.
        before = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(before + block[1], "README.md", "exec"), namespace)
