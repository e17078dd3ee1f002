"""Two open notebooks and a browser fit into the memory of a laptop with 8 GB."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.memory import PeakMemory
from mirrorlake.spark.session import PROFILE_VARIABLE

MOST = 4e9  # bytes, for both with all their child processes
# The two largest lessons that create a lake.
PAIR = ("learn/10_file_diagnostics", "learn/14_incremental_views")


@pytest.mark.long
def test_two_open_notebooks_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILE_VARIABLE, raising=False)
    with ExitStack() as stack:
        runs = []
        for notebook in PAIR:
            home = tmp_path / Path(notebook).name
            command = [sys.executable, "-m", "mirrorlake.cli", "run", notebook]
            command += ["-p", f"root={home / 'lake'}", "--out", str(home / "runs")]
            said = stack.enter_context((tmp_path / f"{home.name}.log").open("w"))
            run = subprocess.Popen(command, stdout=said, stderr=said)
            runs.append((stack.enter_context(run), PeakMemory(0.5, run.pid)))
        ended = [run.wait() for run, _ in runs]
    assert ended == [0, 0], [log.read_text() for log in tmp_path.glob("*.log")]
    peaks = [watch.stop() for _, watch in runs]
    assert all("java" in peak.sizes for peak in peaks), peaks
    assert sum(peak.total for peak in peaks) < MOST, peaks
