"""Database, landing zone and Delta table have equal rows after changes and new loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.postgres import PostgresServer
from mirrorlake import Lake
from mirrorlake.names import TableName
from mirrorlake_sources import PostgresSource, run_source

SETUP = """
CREATE SCHEMA s;
CREATE TABLE s.u (id int PRIMARY KEY, at timestamp);
CREATE TABLE t (id int PRIMARY KEY, n numeric(8,2), word text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t SELECT i, i / 3.0, 'w' || i FROM generate_series(1, 100) i;
INSERT INTO s.u VALUES (1, '2026-01-02 03:04:05.6');
"""
CHANGES = """
UPDATE t SET n = -n WHERE id < 50;
DELETE FROM t WHERE id > 90;
UPDATE t SET id = id + 1000 WHERE id = 7;
INSERT INTO s.u VALUES (2, NULL);
"""


class Mirrored:
    """A database and its lake."""

    def __init__(self, lake: Lake, server: PostgresServer) -> None:
        self.lake, self.server = lake, server

    def publish(self, *reseed: str) -> None:
        source = PostgresSource(self.server.dsn(), ["t", "s.u"])
        again = [TableName.parse(name) for name in reseed]
        assert not run_source(self.lake.storage, source, reseed=again).failed
        assert not self.lake.mirror().failed

    def assert_equal(self) -> None:
        for table in ("t", "s.u"):
            wanted = self.server.rows(f"SELECT * FROM {table} ORDER BY 1")
            found = self.lake.sql(f"SELECT * FROM {table} ORDER BY 1").collect()
            assert [tuple(row) for row in found] == wanted


@pytest.fixture
def mirrored(lake: Lake) -> Iterator[Mirrored]:
    server = PostgresServer()
    server.execute(SETUP)
    yield Mirrored(lake, server)
    server.remove()


def test_a_database_mirrored(mirrored: Mirrored) -> None:
    mirrored.publish()
    mirrored.assert_equal()
    mirrored.server.execute(CHANGES)
    mirrored.publish()
    mirrored.assert_equal()


@pytest.mark.long
def test_emptied_altered_and_loaded_again(mirrored: Mirrored) -> None:
    mirrored.publish()
    execute = mirrored.server.execute
    execute("BEGIN; TRUNCATE t; INSERT INTO t VALUES (5, 5, 'after'); COMMIT")
    mirrored.publish()
    mirrored.assert_equal()
    execute("ALTER TABLE t ADD COLUMN more int DEFAULT 9")
    execute("INSERT INTO t VALUES (6, 6, 'more', 1)")
    mirrored.publish()  # it loads again automatically
    mirrored.assert_equal()
    mirrored.publish("s.u")
    mirrored.assert_equal()
    old = mirrored.lake.sql("SELECT count(*) FROM t@v1").collect()[0][0]
    assert old == 100  # the history is kept
