"""A real S3 server for tests: versitygw in front of a folder, on its own port.

It is built once from its Go module into the cache. Its conditional requests are correct under
concurrency, which is checked before a test relies on it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from helpers.ports import free_port
from mirrorlake.storage import paths
from mirrorlake.storage.files import Storage

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
BUCKET = "lakes"
KEY, SECRET = "tester", "open sesame 3"
_BUILD_SECONDS = 900
_RACERS, _ROUNDS = 8, 5


def _program() -> Path:
    return paths.cache() / "servers" / f"versitygw-{VERSION}" / "versitygw"


def is_built() -> bool:
    """Return whether the server's program is in the cache."""
    return _program().is_file()


def server_binary() -> Path:
    """Return the server's program; build it if it is missing, or skip the test without Go."""
    target = _program()
    if not target.is_file() and shutil.which("go") is None:
        pytest.skip("needs an S3 server, which is built with Go: there is no go on the PATH")
    try:
        paths.make_once(target, target.is_file, _build)
    except subprocess.SubprocessError as error:
        pytest.skip(f"needs an S3 server; versitygw {VERSION} could not be built: {error}")
    return target


def _build(target: Path) -> None:
    environment = os.environ | {"GOBIN": str(target.parent)}
    command = ["go", "install", MODULE]
    subprocess.run(command, env=environment, check=True, timeout=_BUILD_SECONDS)


class S3Server:
    """A server with one bucket; `close` stops it and deletes its folder."""

    def __init__(self) -> None:
        program = server_binary()
        self.folder = Path(tempfile.mkdtemp(prefix="mls3-"))
        self.data, meta, users = (self.folder / name for name in ("data", "meta", "users"))
        for folder in (self.data / BUCKET, meta, users):
            folder.mkdir(parents=True)
        self.requests = self.folder / "requests"  # its access log
        self.port = free_port()
        command = [
            *(
                str(program),
                "--access",
                KEY,
                "--secret",
                SECRET,
                "--port",
                f"127.0.0.1:{self.port}",
                "--access-log",
                str(self.requests),
            ),
            *("--iam-dir", str(users), "posix", "--sidecar", str(meta), str(self.data)),
        ]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    log = (self.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"the S3 server did not start: {log}") from None
                time.sleep(0.05)

    def variables(self, port: int | None = None) -> dict[str, str]:
        """Return the standard variables for the server, or for a proxy in front of it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def check_races(root: str) -> None:
    """Create and rename one file from many threads at once; exactly one must win each time."""
    storage = Storage(f"{root}/race")

    def create(number: int, racer: int) -> bool:
        return storage.create(f"create-{number}", f"{racer}".encode())

    def rename(number: int, racer: int) -> bool:
        storage.write(f"from-{number}-{racer}", f"{racer}".encode())
        return storage.rename(f"from-{number}-{racer}", f"to-{number}")

    with ThreadPoolExecutor(_RACERS) as pool:
        for race in (create, rename):
            for number in range(_ROUNDS):
                won = list(pool.map(partial(race, number), range(_RACERS)))
                assert sum(won) == 1, f"{race.__name__}: {sum(won)} winners"
