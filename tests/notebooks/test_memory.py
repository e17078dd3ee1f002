"""Two notebooks open at once, as people have them, fit beside a browser into a laptop of 8 GB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.memory import PeakMemory
from mirrorlake.spark.session import PROFILE_VARIABLE

MOST = 4e9  # bytes, of both with all that they start
# The two largest lessons that begin a lake of their own.
PAIR = ("learn/10_file_diagnostics", "learn/14_incremental_views")


@pytest.mark.long
def test_two_open_notebooks_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILE_VARIABLE, raising=False)
    runs = []
    for notebook in PAIR:
        home = tmp_path / Path(notebook).name
        command = [sys.executable, "-m", "mirrorlake.cli", "run", notebook]
        command += ["-p", f"root={home / 'lake'}", "--out", str(home / "runs")]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        runs.append((run, PeakMemory(0.5, run.pid)))
    said = [run.communicate()[0] for run, _ in runs]
    assert [run.returncode for run, _ in runs] == [0, 0], said
    peaks = [watch.stop() for _, watch in runs]
    assert all("java" in peak.sizes for peak in peaks), peaks
    assert sum(peak.total for peak in peaks) < MOST, peaks
