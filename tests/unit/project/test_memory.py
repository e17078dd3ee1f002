"""The monitor of the memory that a run and its child processes use."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from helpers.memory import PeakMemory, Sample, take_sample

HUNGRY = "data = bytearray(b'x' * 60_000_000); print(1, flush=True); input()"

FORKED = """
import os, sys
data = bytearray(b"x" * 60_000_000)
if os.fork() == 0:
    print(1, flush=True)
sys.stdin.read()
"""


def test_a_child_of_a_child_counts_at_its_peak() -> None:
    shell = ["sh", "-c", f'"{sys.executable}" -c "{HUNGRY}"; sleep 60']
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        watch = PeakMemory(0.01, child.pid)
        child.stdout.readline()
        began = time.monotonic()
        while watch.peak.total < 60_000_000:  # a background thread measures
            assert time.monotonic() - began < 10, watch.peak
            time.sleep(0.01)
        child.stdin.write(b"\n")
        child.stdin.flush()
        while (now := take_sample(psutil.Process(child.pid))).total > 60_000_000:
            assert time.monotonic() - began < 20, now
        peak = watch.stop()
        for one in [*psutil.Process(child.pid).children(), child]:
            one.kill()
    assert peak.processes == 2
    assert now.total < peak.total


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="it does not tell shares")
def test_what_a_fork_shares_counts_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        found, began = Sample(), time.monotonic()
        while found.processes < 2:  # a process that was just forked is not counted at first
            assert time.monotonic() - began < 10
            found = take_sample(psutil.Process(parent.pid))
    assert 60_000_000 < found.total < 100_000_000


def test_it_is_said_in_one_line() -> None:
    sizes = Counter(java=2_750_000_000, other=1_149_000_000)
    assert str(Sample(7, sizes)) == "3.9 GB in 7 processes (java 2.8, other 1.1)"
