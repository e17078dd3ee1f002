"""A shop with a PostgreSQL database of its own: customers and orders that change while one looks.

What happens in it is drawn by a seed, so it is the same each time; the days are of 2026.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from mirrorlake.errors import UsageError
from mirrorlake.names import file_number
from mirrorlake.results import TextTable
from mirrorlake.samples.postgres_server import PostgresServer
from mirrorlake.sources.postgres.publish import publish_postgres

if TYPE_CHECKING:
    from mirrorlake.lake import Lake

TABLES = ("customers", "orders")
SLOT = "lesson"
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
_NOTE = "x" * 3000  # stored out of line: long enough, and EXTERNAL is not compressed
_PATIENCE = 60
_CHILD = """
import sys
from mirrorlake.samples.shop import TABLES, SLOT
from mirrorlake.sources.engine import run_source
from mirrorlake.sources.postgres.source import PostgresSource
from mirrorlake.storage import Storage

root, dsn, *stamp = sys.argv[1:]
source = PostgresSource(dsn, TABLES, slot=SLOT)
run_source(Storage(root), source, footer=dict(zip(stamp[::2], stamp[1::2])))
"""


class Shop:
    """The shop's database, and what goes on in it.

    Args:
        customers: how many there are at first.
        orders: how many there are at first.
        seed: of all that happens.

    Raises:
        SetupError: PostgreSQL is not installed.

    Example:
        >>> shop = Shop()  # doctest: +SKIP
        >>> shop.query("SELECT count(*) AS orders FROM orders")  # doctest: +SKIP
    """

    def __init__(self, customers: int = 50, orders: int = 500, seed: int = 1) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # a sample, no secret
        self._server = PostgresServer()
        self.dsn = self._server.dsn()
        self._customers = self._orders = self._day = 0
        self._run([_SETUP])
        self._run([self._new_customer() for _ in range(customers)])
        self._run([self._new_order() for _ in range(orders)])

    def run(self, statement: str) -> None:
        """Runs a statement, as the shop's people would."""
        self._run([statement])

    def query(self, statement: str) -> TextTable:
        """What a query answers."""
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(statement.encode())
            names = tuple(column.name for column in cursor.description or ())
            return TextTable(names, tuple(cursor.fetchall()))

    def trade(self, days: int = 1, *, orders: int = 100) -> None:
        """Days of work: new orders and customers, changed, paid and cancelled ones.

        Each customer's visit is a transaction; some of them end in nothing.
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
                self._run(statements)

    def crash(self) -> None:
        """The database's server is killed, and starts again."""
        self._server.kill()

    def crash_publishing(self, lake: Lake) -> TextTable:
        """Starts to publish in another process, and kills it once a first new file stands.

        Returns:
            How many files there are then, by table.
        """
        if lake.storage.local is None:
            raise UsageError("The lesson's lake is a folder.", hint="choose another root.")
        before = _files(lake)
        stamp = [text for pair in lake.published_footer.items() for text in pair]
        command = [sys.executable, "-c", _CHILD, lake.storage.root, self.dsn, *stamp]
        end = time.monotonic() + _PATIENCE
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while _files(lake) == before and process.poll() is None and time.monotonic() < end:
                time.sleep(0.001)  # another process's files are no event to wait for
            process.send_signal(signal.SIGKILL)
        return TextTable(("table", "files before", "files now"), tuple(
            (table, before[table], now) for table, now in _files(lake).items()
        ))  # fmt: skip

    def publish(self, lake: Lake) -> None:
        """Publishes all up to now."""
        publish_postgres(lake, TABLES, self.dsn, slot=SLOT).check()

    def compare(self, lake: Lake) -> TextTable:
        """The database's rows beside the lake's: how many there are, and how many differ."""
        lines = []
        for table in TABLES:
            here = self._rows(table)
            there = {row["id"]: row.asDict() for row in lake.table(table).read().toLocalIterator()}
            differ = sum(here.get(key) != there.get(key) for key in here.keys() | there.keys())
            lines.append((table, len(here), len(there), differ))
        return TextTable(("table", "rows in the shop", "rows in the lake", "differ"), tuple(lines))

    def close(self) -> None:
        """Stops the server and removes it."""
        self._server.remove()

    def _rows(self, table: str) -> dict[int, dict[str, Any]]:
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(f"SELECT * FROM {table}".encode())
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        for row in rows:
            if "at" in row:  # Spark's rows have moments of the session's zone, without its name
                row["at"] = row["at"].astimezone().replace(tzinfo=None)
        return {row["id"]: row for row in rows}

    def _run(self, statements: list[str]) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("; ".join(statements).encode())

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
    """How many files of each table were published, wherever the mirror has moved them."""
    place = Path(lake.storage.root) / "Files" / "LandingZone"
    return {
        table: sum(file_number(path.name) is not None for path in (place / table).rglob("*"))
        for table in TABLES
    }
