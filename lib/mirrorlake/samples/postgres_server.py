"""A PostgreSQL server of one's own: in a temporary folder, on a socket there, gone in the end.

For the lesson on databases, and for tests. It keeps nothing safe: `fsync` is off.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from mirrorlake.errors import SetupError

USER = "boss"
DEBIAN = Path("/usr/lib/postgresql")
_CONF = """
wal_level = {wal_level}
port = {port}
listen_addresses = '127.0.0.1'
unix_socket_directories = '{folder}'
fsync = off
shared_buffers = 32MB
max_wal_size = 256MB
max_replication_slots = 30
max_wal_senders = 30
wal_sender_timeout = 30s
"""
_HBA = "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
_PATIENCE = 30  # seconds until what a killed server leaves has ended


def find_binaries() -> Path:
    """Where initdb and pg_ctl of the newest server are.

    Raises:
        SetupError: there are none.
    """
    places = [shutil.which("initdb"), *map(str, DEBIAN.glob("*/bin/initdb"))]
    found = [Path(place).resolve().parent for place in places if place]
    if not found:
        raise SetupError(
            "There is no PostgreSQL server on this machine.",
            hint="install one: `apt-get install postgresql`, or `brew install postgresql`.",
        )
    return max(found)


class PostgresServer:
    """A server that can be stopped, killed and started again.

    Args:
        wal_level: `logical` has what a mirror needs.
        password: of its one user, over the network; by default nobody knows it.

    Raises:
        SetupError: PostgreSQL is not installed.

    Example:
        >>> server = PostgresServer()  # doctest: +SKIP
        >>> server.dsn()  # doctest: +SKIP
        'host=/tmp/mlpg-x port=40001 user=boss dbname=postgres'
    """

    def __init__(self, wal_level: str = "logical", password: str = "") -> None:
        self.bin = find_binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="mlpg-"))
        self.data = self.folder / "data"
        # The server refuses to run as root.
        self._user = None if os.geteuid() else _somebody()
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self.port = _free_port()
        secret = self.folder / "pw"
        secret.write_text(password or secrets.token_urlsafe())
        if self._user:
            os.chown(secret, owner.pw_uid, owner.pw_gid)
        secret.chmod(0o600)
        self._run("initdb", "-D", self.data, "-A", "trust", "-U", USER, "-E", "UTF8",
                  "--locale=C.UTF-8", "-N", f"--pwfile={secret}")  # fmt: skip
        conf = _CONF.format(wal_level=wal_level, port=self.port, folder=self.folder)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(conf)
        (self.data / "pg_hba.conf").write_text(_HBA)
        self.start()

    def dsn(self, database: str = "postgres", user: str = USER) -> str:
        """A connection string."""
        return f"host={self.folder} port={self.port} user={user} dbname={database}"

    def start(self) -> None:
        """Starts it; returns when it takes connections."""
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stops it, in one of pg_ctl's modes."""
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """SIGKILL, as when the machine's memory is full; then it is started again."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}/stat").exists() and not _is_zombie(pid):
            time.sleep(0.01)
        deadline = time.monotonic() + _PATIENCE
        while True:  # its children end by themselves; the new one refuses to start before
            try:
                self.start()
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def remove(self) -> None:
        """Stops it and removes its folder."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: Any) -> None:
        extra: dict[str, Any] = {"user": self._user, "group": self._user} if self._user else {}
        with open(os.devnull, "wb") as out:
            subprocess.run(
                [str(self.bin / program), *map(str, arguments)],
                check=True,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd="/",
                **extra,
            )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _somebody() -> str:
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise SetupError("There is no user to run PostgreSQL as.", hint="don't run this as root.")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
