"""A PostgreSQL table's first load, against COPY to CSV read by pyarrow; and changes drained from a
slot, against `pg_recvlogical` writing the same changes to a file.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import pyarrow.csv as pacsv

from helpers.bench import BenchResult, compare, join_results
from helpers.postgres import PostgresServer
from mirrorlake.sources.engine import run_source
from mirrorlake.sources.postgres.source import PostgresSource
from mirrorlake.storage import Storage

ROWS = 1_000_000
CHANGES = 300_000
COLUMNS = "id int PRIMARY KEY, n bigint, word varchar(20), f float8, at timestamptz"
FILL = "SELECT i, i, 'word ' || i, i / 7.0, now() FROM generate_series({}, {}) i"


class Bench:
    """A server with two tables; each measurement takes a new lake, or new changes."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self._count = 0
        self._end = ""
        server.execute(f"CREATE TABLE t ({COLUMNS}); ALTER TABLE t REPLICA IDENTITY FULL")
        server.execute(f"INSERT INTO t {FILL.format(1, ROWS)}; ANALYZE t")
        server.execute(f"CREATE TABLE c ({COLUMNS}); ALTER TABLE c REPLICA IDENTITY FULL")
        self._drain()

    def load(self) -> float:
        """A first load."""
        self._count += 1
        slot = f"load{self._count}"
        storage = Storage(self.folder / slot)
        began = time.monotonic()
        run_source(storage, PostgresSource(self.server.dsn(), ["t"], slot=slot))
        seconds = time.monotonic() - began
        self.server.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        return seconds

    def copy(self) -> float:
        """The peer of a first load."""
        path = self.folder / "t.csv"
        command = [str(self.server.bin / "psql"), "-X", "-q", "-d", self.server.dsn()]
        began = time.monotonic()
        subprocess.run([*command, "-c", f"\\copy t to '{path}' csv"], check=True)
        pacsv.read_csv(path)
        return time.monotonic() - began

    def _drain(self) -> None:
        source = PostgresSource(self.server.dsn(), ["c"], slot="drain")
        run_source(Storage(self.folder / "drained"), source)

    def drain(self) -> float:
        """Changes that wait at two slots, ours."""
        server = self.server
        server.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
        self._count += 1
        first = self._count * CHANGES
        server.execute(f"INSERT INTO c {FILL.format(first, first + CHANGES - 1)}")
        self._end = server.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        began = time.monotonic()
        self._drain()
        return time.monotonic() - began

    def receive(self) -> float:
        """The same changes at the other slot."""
        path = self.folder / "peer"
        command = [str(self.server.bin / "pg_recvlogical"), "-d", self.server.dsn()]
        command += ["--slot", "peer", "--start", "-f", str(path), "-E", self._end]
        command += ["-o", "proto_version=1", "-o", "publication_names=drain"]
        began = time.monotonic()
        subprocess.run(command, check=True)
        seconds = time.monotonic() - began
        path.unlink()
        self.server.execute("SELECT pg_drop_replication_slot('peer')")
        return seconds


def _part(pairs: int, name: str) -> BenchResult:
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(server, Path(folder))
            if name == "load":
                return compare("source", "load", bench.load, bench.copy, pairs)
            return compare("source", "drain", bench.drain, bench.receive, pairs)
    finally:
        server.remove()


PARTS = {name: partial(_part, name=name) for name in ("load", "drain")}


def run(pairs: int) -> BenchResult:
    return join_results("source", (part(pairs) for part in PARTS.values()))
