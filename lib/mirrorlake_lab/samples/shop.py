"""A shop with a temporary PostgreSQL server, whose customers and orders change by a fixed seed.

The server's data and its socket are in a temporary folder, which is removed at the end. The server
is not durable: `fsync` is off. Tests use it as well. The shop's days are in 2026.
"""

from __future__ import annotations

import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from mirrorlake.errors import SetupError, UsageError
from mirrorlake.names import ZONE, file_number
from mirrorlake.results import TextTable
from mirrorlake_sources import publish_postgres

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

TABLES = ("customers", "orders")
SLOT = "lesson"
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
_CITIES = ("Aachen", "Bergen", "Cork", "Delft", "Évora")
_ITEMS = {"bolt": 4, "nut": 3, "screw": 5, "hook": 12}
_SETUP = """
CREATE TABLE customers (id int PRIMARY KEY, city varchar(20), notes text);
ALTER TABLE customers ALTER COLUMN notes SET STORAGE EXTERNAL;
CREATE TABLE orders (
    id int PRIMARY KEY, customer int REFERENCES customers, item varchar(20), n int,
    price numeric(10,2), state varchar(10), at timestamptz
);
"""
_NOTE = "x" * 3000  # long enough to be stored out of line, as EXTERNAL is not compressed
_PATIENCE = 60  # seconds until another process has published its first file
_RESTART = 30  # seconds until the child processes of a killed server have ended
_CHILD = """
import sys
from mirrorlake_lab.samples.shop import TABLES, SLOT
from mirrorlake_sources import PostgresSource, run_source
from mirrorlake.storage.files import Storage

root, dsn, *stamp = sys.argv[1:]
source = PostgresSource(dsn, TABLES, slot=SLOT)
run_source(Storage(root), source, footer=dict(zip(stamp[::2], stamp[1::2])))
"""


class Shop:
    """A shop's database and its daily changes.

    Attributes:
        dsn: the connection string of the database.
        tables: the names of its tables.
        slot: the name of the replication slot that `publish` uses.

    Args:
        customers: the number of customers at first.
        orders: the number of orders at first.
        seed: the seed of all changes.

    Raises:
        SetupError: PostgreSQL is not installed.

    Example:
        >>> shop = Shop()  # doctest: +SKIP
        >>> shop.query("SELECT count(*) AS orders FROM orders")  # doctest: +SKIP
    """

    tables = TABLES
    slot = SLOT

    def __init__(self, customers: int = 50, orders: int = 500, seed: int = 1) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # a sample, not a secret
        self._server = PostgresServer()
        self.dsn = self._server.dsn()
        self._customers = self._orders = self._day = 0
        self.run(_SETUP)
        self.run(*[self._new_customer() for _ in range(customers)])
        self.run(*[self._new_order() for _ in range(orders)])

    def run(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("; ".join(statements).encode())

    def query(self, statement: str) -> TextTable:
        """Return the rows of a query."""
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(statement.encode())
            names = tuple(column.name for column in cursor.description or ())
            return TextTable(names, tuple(cursor.fetchall()))

    def trade(self, days: int = 1, *, orders: int = 100) -> None:
        """Change the database: new, paid and cancelled orders, new and moved customers.

        Each visit of a customer is one transaction; some are rolled back.

        Args:
            days: the number of days.
            orders: the new orders per day.
        """
        for _ in range(days):
            self._day += 1
            for number in range(orders):
                statements = [self._new_order()]
                known = self._chance.randrange(1, self._orders + 1)
                if number % 3 == 0:
                    statements.append(f"UPDATE orders SET state = 'paid' WHERE id = {known}")
                if number % 10 == 0:
                    statements.append(f"DELETE FROM orders WHERE id = {known}")
                if number % 20 == 0:
                    statements.append(self._new_customer())
                    who = self._chance.randrange(1, self._customers + 1)
                    city = self._chance.choice(_CITIES)
                    statements.append(f"UPDATE customers SET city = '{city}' WHERE id = {who}")
                if number % 25 == 24:
                    statements.append("ROLLBACK")
                self.run(*statements)

    def crash(self) -> None:
        """Kill the database server, and start it again."""
        self._server.kill()

    def crash_publishing(self, lake: Lake) -> TextTable:
        """Publish in another process, and kill it when it has published its first file.

        Returns:
            The number of files before and after, by table.

        Raises:
            UsageError: the lake is not on a local disk.
        """
        if lake.storage.local is None:
            raise UsageError(
                "This lesson needs a lake on a local disk.", hint="choose a folder as root."
            )
        before = _files(lake)
        stamp = [text for pair in lake.published_footer.items() for text in pair]
        command = [sys.executable, "-c", _CHILD, lake.storage.root, self.dsn, *stamp]
        end = time.monotonic() + _PATIENCE
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while _files(lake) == before and process.poll() is None and time.monotonic() < end:
                time.sleep(0.001)  # there is no event for another process's files
            process.send_signal(signal.SIGKILL)
        return TextTable(("table", "files before", "files now"), tuple(
            (table, before[table], now) for table, now in _files(lake).items()
        ))  # fmt: skip

    def publish(self, lake: Lake) -> None:
        """Publish all changes up to now."""
        publish_postgres(lake, TABLES, self.dsn, slot=SLOT).check()

    def compare(self, lake: Lake) -> TextTable:
        """Compare the rows of the database and of the lake: their numbers, and how many differ."""
        lines = []
        for table in TABLES:
            here = self._rows(table)
            there = {row["id"]: row.asDict() for row in lake.table(table).read().toLocalIterator()}
            differ = sum(here.get(key) != there.get(key) for key in here.keys() | there.keys())
            lines.append((table, len(here), len(there), differ))
        return TextTable(("table", "rows in the shop", "rows in the lake", "differ"), tuple(lines))

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self._server.remove()

    def _rows(self, table: str) -> dict[int, dict[str, Any]]:
        rows = self.query(f"SELECT * FROM {table}").document()["rows"]
        for row in rows:
            if "at" in row:  # Spark's rows have timestamps in the session's zone, without the zone
                row["at"] = row["at"].astimezone().replace(tzinfo=None)
        return {row["id"]: row for row in rows}

    def _new_customer(self) -> str:
        self._customers += 1
        city = self._chance.choice(_CITIES)
        return f"INSERT INTO customers VALUES ({self._customers}, '{city}', '{_NOTE}')"

    def _new_order(self) -> str:
        self._orders += 1
        item, n = self._chance.choice(list(_ITEMS)), self._chance.randrange(1, 30)
        who = self._chance.randrange(1, self._customers + 1)
        at = f"2026-01-01 08:00:00+00'::timestamptz + interval '{self._day} days"
        return (
            f"INSERT INTO orders VALUES ({self._orders}, {who}, '{item}', {n},"
            f" {n * _ITEMS[item] / 4:.2f}, 'new', '{at}')"
        )


def _files(lake: Lake) -> dict[str, int]:
    """Return the number of published files by table, applied and moved ones included."""
    place = Path(lake.storage.root) / ZONE
    return {
        table: sum(file_number(path.name) is not None for path in (place / table).rglob("*"))
        for table in TABLES
    }


def find_binaries() -> Path:
    """Return the folder with initdb and pg_ctl of the newest installed server.

    Raises:
        SetupError: PostgreSQL is not installed.
    """
    places = [shutil.which("initdb"), *map(str, DEBIAN.glob("*/bin/initdb"))]
    found = [Path(place).resolve().parent for place in places if place]
    if not found:
        raise SetupError(
            "No PostgreSQL server is installed.",
            hint="run `apt-get install postgresql` or `brew install postgresql`.",
        )
    return max(found)


class PostgresServer:
    """A temporary server that can be stopped, killed and started again.

    Args:
        wal_level: the server's setting; a mirror needs `logical`.
        password: the password of its user over the network; by default a random one.

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
        self._user = None if os.geteuid() else _unprivileged_user()
        self.port = _free_port()
        secret = self.folder / "pw"
        secret.write_text(password or secrets.token_urlsafe())
        secret.chmod(0o600)
        if self._user:
            for path in (self.folder, secret):
                shutil.chown(path, self._user, self._user)
        self._run("initdb", "-D", self.data, "-A", "trust", "-U", USER, "-E", "UTF8",
                  "--locale=C.UTF-8", "-N", f"--pwfile={secret}")  # fmt: skip
        conf = _CONF.format(wal_level=wal_level, port=self.port, folder=self.folder)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(conf)
        (self.data / "pg_hba.conf").write_text(_HBA)
        self.start()

    def dsn(self, database: str = "postgres", user: str = USER) -> str:
        """Return the connection string of a database."""
        return f"host={self.folder} port={self.port} user={user} dbname={database}"

    def start(self) -> None:
        """Start the server, and return when it accepts connections."""
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server in one of pg_ctl's modes."""
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """Kill the server with SIGKILL, as the kernel does without memory, and start it again."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        while not _has_ended(pid):
            time.sleep(0.01)
        deadline = time.monotonic() + _RESTART
        while True:  # the new server refuses to start until the old child processes have ended
            try:
                self.start()
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: Any) -> None:
        subprocess.run(
            [str(self.bin / program), *map(str, arguments)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            cwd="/",
            user=self._user,
            group=self._user,
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _unprivileged_user() -> str:
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise SetupError("PostgreSQL needs a user other than root.", hint="run this as another user.")


def _has_ended(pid: int) -> bool:
    """Check whether a process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
