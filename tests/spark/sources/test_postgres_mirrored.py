"""A database, the zone, the Delta table: equal after changes, a TRUNCATE and a new load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.postgres import PostgresServer
from mirrorlake import Lake
from mirrorlake.sources.engine import run_source
from mirrorlake.sources.postgres.source import PostgresSource, reseeded


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.remove()


def test_a_database_mirrored(lake: Lake, server: PostgresServer) -> None:
    def publish(*reseed: str) -> None:
        source = PostgresSource(server.dsn(), ["t", "s.u"])
        assert not run_source(lake.storage, source, reseed=reseeded(reseed)).failed
        assert not lake.mirror().failed

    def assert_equal() -> None:
        for table in ("t", "s.u"):
            wanted = server.rows(f"SELECT * FROM {table} ORDER BY 1")
            found = lake.sql(f"SELECT * FROM {table} ORDER BY 1").collect()
            assert [tuple(row) for row in found] == wanted

    server.execute(
        "CREATE SCHEMA s; CREATE TABLE s.u (id int PRIMARY KEY, at timestamp);"
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(8,2), word text);"
        "ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT i, i / 3.0, 'w' || i FROM generate_series(1, 100) i;"
        "INSERT INTO s.u VALUES (1, '2026-01-02 03:04:05.6')"
    )
    publish()
    assert_equal()
    server.execute("UPDATE t SET n = -n WHERE id < 50; DELETE FROM t WHERE id > 90")
    server.execute("UPDATE t SET id = id + 1000 WHERE id = 7; INSERT INTO s.u VALUES (2, NULL)")
    publish()
    assert_equal()
    server.execute("BEGIN; TRUNCATE t; INSERT INTO t VALUES (5, 5, 'after'); COMMIT")
    publish()
    assert_equal()
    server.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 9")
    server.execute("INSERT INTO t VALUES (6, 6, 'more', 1)")
    publish()  # loaded again by itself
    assert_equal()
    publish("s.u")
    assert_equal()
    old = lake.sql("SELECT count(*) FROM t@v1").collect()[0][0]
    assert old == 100  # the history is kept
