from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from helpers.landed import landed_rows
from helpers.postgres import PostgresServer
from mirrorlake import Lake, source_status
from mirrorlake_sources import PostgresSource, run_source

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def server() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server; its binaries are installed if they are missing."""
    started = PostgresServer()
    yield started
    started.remove()


class Shop:
    """A database that is published into its own lake."""

    def __init__(self, server: PostgresServer, root: Path) -> None:
        self.server = server
        self.root = root
        number = next(_numbers)
        self.database, self.slot = f"shop{number}", f"shop{number}"
        server.execute(f"CREATE DATABASE {self.database}")
        self.dsn = server.dsn(self.database)

    def sql(self, script: str) -> None:
        """Run statements, each in its own transaction unless the script has BEGIN."""
        self.server.execute(script, self.database)

    def source(self, *tables: str, **options: Any) -> PostgresSource:
        given = {"slot": self.slot, "heartbeat": 0.0} | options
        return PostgresSource(given.pop("dsn", self.dsn), tables, **given)

    def run(
        self, *tables: str, reseed: tuple[str, ...] = (), **options: Any
    ) -> source_status.SourceReport:
        source = self.source(*tables, **options)
        return run_source(Lake(self.root).storage, source, reseed=reseed)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.server.rows(query, self.database)

    def landed(self, table: str) -> list[dict[str, Any]]:
        return sorted(landed_rows(self.root, table), key=lambda row: str(list(row.values())))

    def assert_equal(self, *tables: str) -> None:
        """Check that the published rows of each table equal the rows that the driver reads."""
        for table in tables:
            with psycopg.connect(self.dsn) as connection:
                cursor = connection.execute(f"SELECT * FROM {table}")  # type: ignore[call-overload]
                names = [column.name for column in cursor.description or ()]
                found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            # The stream announces a new column with the next row; until then it is NULL.
            assert _known(landed_rows(self.root, table)) == _known(found), table

    def drop(self) -> None:
        self.server.execute(
            f"SELECT pg_terminate_backend(active_pid, 9000) FROM pg_replication_slots"
            f" WHERE database = '{self.database}' AND active_pid IS NOT NULL;"
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE database = '{self.database}' AND NOT active"
        )
        self.server.execute(f"DROP DATABASE {self.database} WITH (FORCE)")


def _known(rows: list[dict[str, Any]]) -> Counter[tuple[tuple[str, Any], ...]]:
    """Return rows as a multiset, each without its NULLs."""
    return Counter(
        tuple(sorted((name, value) for name, value in row.items() if value is not None))
        for row in rows
    )


@pytest.fixture
def shop(server: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(server, tmp_path / "lake")
    yield made
    made.drop()


@pytest.fixture
def new_shop(server: PostgresServer, tmp_path: Path) -> Iterator[Callable[[], Shop]]:
    """Yield a function that replaces the shop, since a server has a limited number of slots."""
    numbers, made = count(), list[Shop]()

    def make() -> Shop:
        while made:
            made.pop().drop()
        made.append(Shop(server, tmp_path / f"lake{next(numbers)}"))
        return made[-1]

    yield make
    for one in made:
        one.drop()
