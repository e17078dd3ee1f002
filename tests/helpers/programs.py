"""Programs of the tests that run in separate processes, and end with the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from helpers.project import PROJECT
from helpers.s3_server import SECRET

Program = Callable[..., "subprocess.Popen[str]"]
"""Starts the program with arguments, and with variables of the environment by name."""


@contextmanager
def programs(module: str, environment: Mapping[str, str]) -> Iterator[Program]:
    """Yield a function that starts a module; processes that still run at the end are killed.

    Args:
        module: a module of the tests' helpers.
        environment: the variables of the processes, to which the project's path is added.
    """
    started: list[subprocess.Popen[str]] = []
    paths = os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")])

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**environment, "PYTHONPATH": paths, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def result_of(process: subprocess.Popen[str], longest: float) -> Any:
    """Return the last line of a program as JSON; check that it succeeded and printed no secret."""
    out, err = process.communicate(timeout=longest)
    assert process.returncode == 0, err[:2000] + err[-2000:]
    assert SECRET not in out + err
    return json.loads(out.splitlines()[-1])
