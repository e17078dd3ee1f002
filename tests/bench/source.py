"""A PostgreSQL table's first load, and changes drained from a replication slot.

The peer of the first load is COPY to CSV, read by pyarrow. The peer of the changes is
`pg_recvlogical`, which writes the same changes to a file. Without a peer, the bench measures the
latency of an inserted row at 1,000 a second: from its insertion to a file in the zone, and to a row
of the Delta table. The part "sustained" doubles the rate until the 99th percentile of this latency
exceeds 5 seconds, after a run that is not counted. The part "verify" compares 10,000,000 rows with
their database; its peers are the first load of the same table, with and without the cycle of the
mirror.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from datetime import datetime
from functools import partial
from pathlib import Path

import psycopg
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from helpers.bench import BenchResult, compare, join_results, lake_part
from helpers.postgres import PostgresServer
from mirrorlake import Lake
from mirrorlake.landing.metadata import read_identity
from mirrorlake.names import TableName
from mirrorlake.spark.session import get_spark
from mirrorlake.storage.files import Storage
from mirrorlake_sources import PostgresSource, run_source, verify_postgres

ROWS = 1_000_000
VERIFIED = 10_000_000
CHANGES = 300_000
RATE, TRANSACTIONS, SECONDS = 1_000, 50, 30  # rows and transactions a second, and for how long
LONGEST = 5.0  # seconds: the accepted 99th percentile of the latency at a sustained rate
PATIENCE = 120
WAYS = ("end to end", "to the zone", "waiting for a cycle", "in its cycle")
COLUMNS = "id int PRIMARY KEY, n bigint, word varchar(20), f float8, at timestamptz"
FILL = "SELECT i, i, 'word ' || i, i / 7.0, now() FROM generate_series({}, {}) i"


class Bench:
    """A server with two tables; each measurement uses a new lake or new changes."""

    def __init__(self, server: PostgresServer, folder: Path, rows: int = ROWS) -> None:
        self.server, self.folder = server, folder
        self._count = 0
        self._end = ""
        server.execute(f"CREATE TABLE t ({COLUMNS}); ALTER TABLE t REPLICA IDENTITY FULL")
        server.execute(f"INSERT INTO t {FILL.format(1, rows)}; ANALYZE t")
        server.execute(f"CREATE TABLE c ({COLUMNS}); ALTER TABLE c REPLICA IDENTITY FULL")
        self._drain()

    def load(self, *, mirrored: bool = False) -> float:
        """Measure a first load to the landing zone, or to the table."""
        self._count += 1
        slot = f"load{self._count}"
        lake = Lake(self.folder / slot)
        began = time.monotonic()
        run_source(lake.storage, PostgresSource(self.server.dsn(), ["t"], slot=slot))
        if mirrored:
            assert not lake.mirror().failed
        seconds = time.monotonic() - began
        self.server.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        return seconds

    def copy(self) -> float:
        """Measure the peer of a first load."""
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
        """Measure our source on changes that wait at a slot."""
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
        """Measure the peer on the same changes at another slot."""
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


def _verify(pairs: int) -> BenchResult:
    """Measure the comparison of a mirrored table with its database."""
    get_spark()
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench, lake = Bench(server, Path(folder), VERIFIED), Lake(f"{folder}/verified")
            run_source(lake.storage, PostgresSource(server.dsn(), ["t"]))
            lake.mirror()

            def verify() -> float:
                began = time.monotonic()
                found = verify_postgres(lake, ["t"], server.dsn())
                assert not found.failed, found
                return time.monotonic() - began

            loads = {
                "verify, peer with the mirror": partial(bench.load, mirrored=True),
                "verify, peer without the mirror": bench.load,
            }
            return join_results(
                "source",
                (
                    compare("source", name, verify, peer, pairs, warm_up=verify)
                    for name, peer in loads.items()
                ),
            )
    finally:
        server.remove()


def _end_to_end(lake: Lake, _pairs: int) -> BenchResult:
    """Measure the latency of inserted rows, by the clocks of the log and of the files."""
    parts = _latencies(lake, RATE)
    shares = {"median": 0.5, "99 %": 0.99}
    seconds = {
        f"{name}, {share}": round(_quantile(parts[name], part), 3)
        for name in WAYS
        for share, part in shares.items()
    }
    return BenchResult("source", seconds, {})


def _sustained(_pairs: int) -> BenchResult:
    """Double the rate until the latency is too long."""
    get_spark()
    seconds: dict[str, float] = {}
    rate = RATE
    with tempfile.TemporaryDirectory() as folder:
        _latencies(Lake(folder), rate)  # not counted: the first cycles of a JVM are slow
    while True:
        with tempfile.TemporaryDirectory() as folder:
            found = _latencies(Lake(folder), rate)[WAYS[0]]
        middle, longest = _quantile(found, 0.5), _quantile(found, 0.99)
        seconds[f"{rate:,} rows a second, median"] = round(middle, 3)
        seconds[f"{rate:,} rows a second, 99 %"] = round(longest, 3)
        if longest > LONGEST:
            return BenchResult("source", seconds, {"sustained rate, in 1,000 rows": rate / 2000})
        rate *= 2


def _quantile(values: list[float], share: float) -> float:
    """Return a quantile of the values."""
    return sorted(values)[int(len(values) * share)]


def _latencies(lake: Lake, rate: int) -> dict[str, list[float]]:
    """Return the latencies of the inserted rows in seconds, for each part of their way."""
    server = PostgresServer()
    try:
        server.execute("CREATE TABLE t (id bigserial, at timestamptz NOT NULL)")
        server.execute("INSERT INTO t (at) VALUES (clock_timestamp())")
        _flow(server, lake, rate)
        return _measured(lake, rate)
    finally:
        server.remove()


def _flow(server: PostgresServer, lake: Lake, rate: int) -> None:
    """Run a source and a mirror while a writer commits; end when all rows are in the table."""
    stop = threading.Event()
    source = PostgresSource(server.dsn(), ["t"], interval=0.5)
    workers = [
        threading.Thread(target=lambda: run_source(lake.storage, source, once=False, stop=stop)),
        threading.Thread(target=lambda: lake.watch(stop, interval=0.1)),
    ]
    for worker in workers:
        worker.start()
    while not _rows(lake):
        time.sleep(0.1)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        began = time.monotonic()
        for number in range(SECONDS * TRANSACTIONS):
            connection.execute(
                "INSERT INTO t (at) SELECT clock_timestamp() FROM generate_series(1, %s)",
                (rate // TRANSACTIONS,),
            )
            time.sleep(max(0.0, began + (number + 1) / TRANSACTIONS - time.monotonic()))
    end = time.monotonic() + PATIENCE
    while _rows(lake) < SECONDS * rate + 1 and time.monotonic() < end:
        time.sleep(0.2)
    stop.set()
    for worker in workers:
        worker.join()


def _rows(lake: Lake) -> int:
    return sum(line.rows for line in lake.status().tables)


def _measured(lake: Lake, rate: int) -> dict[str, list[float]]:
    """Return the latencies of rows, from the ledger and the times of the plans."""
    root = lake.storage.local
    assert root is not None
    table = TableName.parse("t")
    identity = read_identity(lake.storage, table)
    assert identity is not None
    planned = {path.stem: path.stat().st_mtime for path in (root / identity.plans).glob("*.json")}
    files = {path.name: path for path in (root / table.folder).rglob("0*.parquet")}
    parts: dict[str, list[float]] = {name: [] for name in WAYS}
    plan = 0.0
    for entry in lake.operations.ledger("t").entries:
        assert entry.published
        assert entry.applied
        plan = planned.get(entry.file.removesuffix(".parquet"), plan)  # named after its first file
        published, applied = (as_seconds(text) for text in (entry.published, entry.applied))
        for number, at in _moments(files[entry.file]).items():
            if number == 1:
                continue  # from before the flow
            steps = (applied - at, published - at, max(plan - published, 0.0), applied - plan)
            for name, seconds in zip(WAYS, steps, strict=True):
                parts[name].append(seconds)
    assert len(parts[WAYS[0]]) == rate * SECONDS
    return parts


def as_seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _moments(path: Path) -> dict[int, float]:
    """Return the time at which each row of a file was written at the source, by its id."""
    read = pq.read_table(path, columns=["id", "at"])
    return {row["id"]: row["at"].timestamp() for row in read.to_pylist()}


PARTS = {
    **{name: partial(_part, name=name) for name in ("load", "drain")},
    "end to end": lake_part(_end_to_end),
    "sustained": _sustained,
    "verify": _verify,
}


def run(pairs: int) -> BenchResult:
    return join_results("source", (part(pairs) for part in PARTS.values()))
