"""A PostgreSQL server of the tests' own: in a folder of its own, on a port of its own, real."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "boss"
PASSWORD = "open sesame"
CONF = """
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
HBA = "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


def binaries() -> Path:
    """Where initdb and pg_ctl are; installs them where that can be done, else skips the test."""
    for _ in range(2):
        places = [
            shutil.which("initdb"),
            *map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        ]
        found = [Path(place).resolve().parent for place in places if place]
        if found:
            return max(found)
        if os.geteuid() == 0 and shutil.which("apt-get"):
            subprocess.run(["apt-get", "update", "-q"], check=False)
            install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", "postgresql"]
            subprocess.run(install, check=False)
    pytest.skip("needs PostgreSQL's server: apt-get install postgresql")


class PostgresServer:
    """A server that can be stopped, killed and started again."""

    def __init__(self, wal_level: str = "logical") -> None:
        self.bin = binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="mlpg-"))
        self.data = self.folder / "data"
        # The server refuses to run as root.
        self._user = None if os.geteuid() else _somebody()
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (self.folder / "pw").write_text(PASSWORD)
        (self.folder / "pw").chmod(0o644)
        self._run("initdb", "-D", self.data, "-A", "trust", "-U", USER, "-E", "UTF8",
                  "--locale=C.UTF-8", "-N", f"--pwfile={self.folder / 'pw'}")  # fmt: skip
        conf = CONF.format(wal_level=wal_level, port=self.port, folder=self.folder)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(conf)
        (self.data / "pg_hba.conf").write_text(HBA)
        self.start()

    def dsn(self, database: str = "postgres", user: str = USER) -> str:
        return f"host={self.folder} port={self.port} user={user} dbname={database}"

    def start(self) -> None:
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """SIGKILL, as when the machine's memory is full."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}/stat").exists() and not _is_zombie(pid):
            time.sleep(0.01)
        deadline = time.monotonic() + 30
        while True:  # its children end by themselves; the new one refuses to start before
            try:
                self.start()
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def remove(self) -> None:
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def execute(self, script: str, database: str = "postgres") -> None:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(script)  # type: ignore[call-overload]

    def rows(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload]

    def psql(self, query: str, database: str = "postgres") -> str:
        """What psql prints, as CSV with NULL as `\\N`."""
        command = [
            str(self.bin / "psql"),
            "-X",
            "--csv",
            "-P",
            "null=\\N",
            "-d",
            self.dsn(database),
        ]
        environment = {**os.environ, "PGTZ": "UTC", "PGDATESTYLE": "ISO"}
        done = subprocess.run(
            [*command, "-c", query], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout

    def _run(self, program: str, *arguments: Any) -> None:
        command: Sequence[str] = [str(self.bin / program), *map(str, arguments)]
        extra: dict[str, Any] = {"user": self._user, "group": self._user} if self._user else {}
        with open(os.devnull, "wb") as out:
            subprocess.run(
                command,
                check=True,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd="/",
                **extra,
            )


def _somebody() -> str:
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise RuntimeError("no user to run PostgreSQL as")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
