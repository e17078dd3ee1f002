"""A real PostgreSQL server for tests, with its own folder and port."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import psycopg
import pytest

from mirrorlake.errors import SetupError
from mirrorlake_lab.samples import shop

USER = shop.USER
PASSWORD = "open sesame"  # of a server that only this machine can reach

__all__ = ["PASSWORD", "USER", "PostgresServer", "ensure_installed"]


def ensure_installed() -> None:
    """Install PostgreSQL if that is possible, else skip the test."""
    try:
        shop.find_binaries()
        return
    except SetupError:
        if os.geteuid() == 0 and shutil.which("apt-get"):
            subprocess.run(["apt-get", "update", "-q"], check=False)
            install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", "postgresql"]
            subprocess.run(install, check=False)
    try:
        shop.find_binaries()
    except SetupError:
        pytest.skip("needs PostgreSQL's server: apt-get install postgresql")


class PostgresServer(shop.PostgresServer):
    """A server with queries for tests."""

    def __init__(self, wal_level: str = "logical") -> None:
        ensure_installed()
        super().__init__(wal_level, PASSWORD)

    def execute(self, script: str, database: str = "postgres") -> None:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(script)  # type: ignore[call-overload]

    def rows(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload]

    def psql(self, query: str, database: str = "postgres") -> str:
        """Return the output of psql as CSV, with NULL as `\\N`."""
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
