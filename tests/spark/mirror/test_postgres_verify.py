"""Tables are compared with their database at one point, while both change."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.postgres import PostgresServer
from mirrorlake import Lake
from mirrorlake.errors import SourceError
from mirrorlake_sources import PostgresSource, Verification, run_source, verify_postgres
from mirrorlake_sources.postgres import expressions
from mirrorlake_sources.postgres import verify as verifying
from mirrorlake_sources.postgres.connection import Server
from mirrorlake_sources.postgres.verify import DifferentRow

# Types with the values whose texts differ between PostgreSQL, Arrow and Java.
EDGES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295"],
    "real": ["'NaN'", "'-Infinity'", "0.1", "1e-45", "'-0.0'"],
    "double precision": ["'NaN'", "'Infinity'::float8 - 'Infinity'", "0.1", "5e-324", "'-0.0'"],
    "numeric(10,2)": ["-0.5", "0", "99999999.99"],
    "numeric(20,8)": ["0", "0.00000012", "-0.00000001", "0.000001", "1.5", "-0.000000999"],
    "numeric(38,38)": ["0", "0.12345678901234567890123456789012345678"],
    "numeric": ["'NaN'", "1.10", "1e-30", "-0.0"],
    "text": [
        "''",
        "'ÄÖ\U0001f600'",
        "E'a\\nb\\\\\\t\"'",
        "'NULL'",
        "repeat('ä', 120)",
        "repeat('ä', 121)",
    ],
    "char(5)": ["'ab'", "''"],
    '"char"': ["'x'"],
    "bytea": ["'\\x'", "'\\x00ff10'", "decode(repeat('0f', 121), 'hex')"],
    "date": ["'0001-01-01'", "'infinity'", "'-infinity'", "'1582-10-10'", "'0044-03-15 BC'"],
    "timestamp": ["'0001-01-01 00:00:00'", "'infinity'", "'1969-12-31 23:59:59.999999'"],
    "timestamptz": ["'2026-11-22 05:06:07.123456+05:30'", "'-infinity'", "'1900-01-01 00:00+00'"],
    "interval": ["'1 year -2 days 03:04:05.678'"],
    "uuid": ["'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "json": ['\'{"b": 1,  "a": [1, null]}\'', "'null'"],
    "jsonb": ['\'{"b": 1,  "a": [1, null]}\''],
    "int[]": ["'{1,NULL,3}'", "'{}'"],
    "text[]": ["array['a,b', '', NULL, 'q\"q']"],
    "inet": ["'10.0.0.0/8'"],
    "pair": ["ROW(1, 'x y')::pair", "ROW(NULL, NULL)::pair"],
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.remove()


class Published:
    """A database that is published into its own lake."""

    def __init__(self, server: PostgresServer, root: Path) -> None:
        self.server, self.lake = server, Lake(root)
        self.slot = self.database = f"verified{next(_numbers)}"
        server.execute(f"CREATE DATABASE {self.database}")
        self.dsn = server.dsn(self.database)

    def sql(self, script: str) -> None:
        self.server.execute(script, self.database)

    def publish(self, *tables: str, **options: Any) -> None:
        source = PostgresSource(self.dsn, tables, slot=self.slot, **options)
        assert not run_source(self.lake.storage, source).failed

    def verify(self, *tables: str, **options: Any) -> Verification:
        return verify_postgres(self.lake, tables, self.dsn, slot=self.slot, **options)

    def change_lake(self, statement: str, table: str) -> None:
        """Change the lake's table without the source."""
        self.lake.spark.sql(statement.format(t=f"delta.`{self.lake.table(table).path}`")).collect()


@pytest.fixture
def published(server: PostgresServer, tmp_path: Path) -> Iterator[Published]:
    made = Published(server, tmp_path / "lake")
    yield made
    server.execute(
        "SELECT pg_terminate_backend(active_pid, 9000) FROM pg_replication_slots"
        f" WHERE database = '{made.database}' AND active"
    )
    server.execute(f"DROP DATABASE {made.database} WITH (FORCE)")


def assert_equal(found: Verification, **rows: int) -> None:
    assert found.lines == []
    assert {one.table: (one.source_rows, one.lake_rows) for one in found.tables} == {
        table: (count, count) for table, count in rows.items()
    }
    assert not found.failed


def test_every_type_and_kind_of_key(published: Published, pytestconfig: pytest.Config) -> None:
    """Rows are equal if they are only published, applied, or both."""
    columns = ", ".join(f'"c {i}%" {kind}' for i, kind in enumerate(EDGES))
    published.sql("CREATE TYPE pair AS (a int, b text)")
    published.sql(f"CREATE TABLE t (id serial PRIMARY KEY, {columns})")
    published.sql("ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE log (at int, word text)")
    published.sql("CREATE TABLE u (word text, day date, n int, PRIMARY KEY (word, day))")
    published.sql("ALTER TABLE u REPLICA IDENTITY FULL")
    inserts = "; ".join(
        f'INSERT INTO t ("c {i}%") VALUES ({value})'
        for i, values in enumerate(EDGES.values())
        for value in values
    )
    inserts += "; INSERT INTO log VALUES (1, 'a'), (1, 'a'), (NULL, NULL)"
    days = "SELECT chr(64 + i % 60), date '2026-01-01' + i, i FROM generate_series(1, 700) i"
    published.sql(f"{inserts}; INSERT INTO u {days}")
    count = sum(map(len, EDGES.values()))
    published.publish("log")  # the other tables are loaded by the verification
    assert_equal(published.verify("t", "log", "u"), t=count, log=3, u=700)
    published.lake.mirror()
    published.sql(inserts)
    published.sql("UPDATE t SET id = -id WHERE id % 3 = 0; UPDATE u SET n = -n WHERE n > 650")
    published.publish("t", "log", "u")
    published.sql("DELETE FROM u WHERE n % 100 = 0; INSERT INTO u VALUES ('A', '2020-01-01', 0)")
    assert_equal(published.verify("t", "log", "u"), t=2 * count, log=6, u=694)
    if pytestconfig.getoption("--long"):
        published.lake.mirror()
        assert_equal(published.verify("t", "log", "u"), t=2 * count, log=6, u=694)


def test_differences_are_named_with_exit_status_1(published: Published, run: Any) -> None:
    published.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(8,2), word text, at timestamptz);"
        "ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE log (word text);"
        "INSERT INTO t SELECT i, i, 'w' || i, '2026-01-01Z' FROM generate_series(1, 900) i;"
        "INSERT INTO log VALUES ('a'), ('b')"
    )
    published.publish("t", "log")
    published.lake.mirror()
    published.change_lake("UPDATE {t} SET n = 5.01 WHERE id = 5", "t")
    published.change_lake("DELETE FROM {t} WHERE id IN (100, 101)", "t")
    published.change_lake("INSERT INTO {t} SELECT * FROM {t} WHERE id = 200", "t")
    published.change_lake("INSERT INTO {t} SELECT 1000, n, word, at FROM {t} WHERE id = 201", "t")
    published.change_lake("UPDATE {t} SET word = NULL WHERE id = 300", "t")
    published.change_lake("UPDATE {t} SET at = at + INTERVAL 1 MICROSECOND WHERE id = 400", "t")
    published.change_lake("INSERT INTO {t} VALUES ('b'), ('c')", "log")
    published.sql("UPDATE t SET n = 7 WHERE id = 101")  # not applied yet: it adds the row again
    options = ["--tables", "t,log", "--dsn", published.dsn, "--slot", published.slot]
    root = str(published.lake.storage.root)
    document = run("source", "postgres", root, *options, "--verify", "--json", status=1)
    t, log = document["tables"]
    found = {row["key"]["id"]: (row["kind"], row["columns"]) for row in t["rows"]}
    assert found == {
        "5": ("changed", ["n"]),
        "100": ("missing", []),
        "200": ("duplicate", []),
        "300": ("changed", ["word"]),
        "400": ("changed", ["at"]),
        "1000": ("extra", []),
    }
    rows = {row["key"]["id"]: row for row in t["rows"]}
    assert (rows["5"]["source"]["n"], rows["5"]["lake"]["n"]) == ("5.00", "5.01")
    assert rows["100"]["source"]["word"] == "w100"
    assert rows["100"]["lake"] is rows["1000"]["source"] is None
    assert (rows["300"]["source"]["word"], rows["300"]["lake"]["word"]) == ("w300", None)
    assert rows["400"]["lake"]["at"] == "2026-01-01 00:00:00.000001+00:00"
    assert (t["source_rows"], t["lake_rows"]) == (900, 901)
    of_5 = {"column": "id", "start": "5", "end": "7", "source_rows": 2, "lake_rows": 2}
    assert of_5 in t["ranges"]
    assert len(t["ranges"]) == 6
    assert sorted((row["kind"], row["lake"]["word"]) for row in log["rows"]) == [
        ("duplicate", "b"),
        ("extra", "c"),
    ]
    changed = DifferentRow(**rows["400"] | {"columns": tuple(rows["400"]["columns"])})
    assert str(changed) == (
        "id=400: at is '2026-01-01 00:00:00+00:00' in the database"
        " and '2026-01-01 00:00:00.000001+00:00' in the lake"
    )
    usage = run("source", "postgres", root, *options, "--verify", "--watch", status=2)
    assert "--watch" in usage.err


@contextmanager
def commits_between(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
) -> Iterator[list[int]]:
    """Commit changes once, after the point and before the source publishes up to it."""
    calls: list[int] = []

    def publish(*arguments: Any, **options: Any) -> Any:
        if not calls:
            change()
        calls.append(1)
        return run_source(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(verifying, "run_source", publish)
        yield calls


def test_a_file_with_changes_before_and_after_the_point(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.sql("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    published.sql("ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL")
    published.sql("INSERT INTO t SELECT i, 0, repeat('x', 3000) FROM generate_series(1, 40) i")
    published.publish("t", toast="keep")
    published.lake.mirror()
    published.sql("UPDATE t SET n = 1 WHERE id < 10; DELETE FROM t WHERE id = 20")
    published.sql(
        "INSERT INTO t VALUES (50, 1, repeat('y', 3000)); UPDATE t SET n = 2 WHERE id = 1"
    )

    def change() -> None:
        published.sql("UPDATE t SET n = 3 WHERE id < 5; DELETE FROM t WHERE id = 7")
        published.sql("INSERT INTO t VALUES (20, 9, 'again'); UPDATE t SET id = 99 WHERE id = 8")

    with commits_between(monkeypatch, change) as calls:
        assert_equal(published.verify("t", toast="keep"), t=40)
    assert len(calls) == 1
    published.change_lake("UPDATE {t} SET n = 8 WHERE id = 30", "t")
    published.change_lake("UPDATE {t} SET big = NULL WHERE id = 1", "t")
    with commits_between(
        monkeypatch, lambda: published.sql("UPDATE t SET n = 4 WHERE id IN (3, 4)")
    ):
        found = published.verify("t", toast="keep").tables[0].rows
    assert [(row.key["id"], row.columns) for row in found] == [("1", ("big",)), ("30", ("n",))]


def test_a_table_that_is_emptied_after_the_point_is_compared_again(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    published.sql("CREATE TABLE other (id int PRIMARY KEY)")
    published.publish("t", "other")
    published.lake.mirror()

    def change() -> None:
        published.sql("TRUNCATE t; INSERT INTO t VALUES (3), (4), (5)")

    with commits_between(monkeypatch, change) as calls:
        assert_equal(published.verify("t"), t=3)
    assert len(calls) == 2
    # The other table was not verified, and is still published.
    members = "SELECT tablename FROM pg_publication_tables ORDER BY 1"
    assert published.server.rows(members, published.database) == [("other",), ("t",)]


def test_a_table_that_cannot_be_compared(published: Published) -> None:
    published.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE gone (id int PRIMARY KEY)")
    published.publish("t", "gone")
    published.sql("DROP TABLE gone")
    found = published.verify("t", "gone")
    assert found.failed
    assert [one.problem is None for one in found.tables] == [True, False]
    assert "gone" in found.lines[0]
    server = Server(published.dsn)
    with closing(server.replication()) as busy:  # a source that reads nothing
        names = f"(proto_version '1', publication_names '{published.slot}')"
        busy.pgconn.exec_(f"START_REPLICATION SLOT {published.slot} LOGICAL 0/0 {names}".encode())
        published.sql("INSERT INTO t VALUES (1)")
        with pytest.raises(SourceError, match="has not published the changes up to"):
            published.verify("t", timeout=0.1)


def test_a_mistyped_slot_is_refused_and_not_created(published: Published) -> None:
    published.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    made = (
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
        " UNION ALL SELECT pubname::text FROM pg_publication ORDER BY 1"
    )

    def verify(slot: str) -> str:
        with pytest.raises(SourceError) as refused:
            verify_postgres(published.lake, ["u"], published.dsn, slot=slot)
        return refused.value.message

    of_none = f"The database {published.database} has no replication slot {published.slot} for"
    assert verify(published.slot) == f"{of_none} pgoutput; it has none."
    assert published.server.rows(made, published.database) == []
    published.publish("t")
    before = published.server.rows(made, published.database)
    assert f"slot other for pgoutput; it has {published.slot}." in verify("other")
    assert published.server.rows(made, published.database) == before
    assert not published.lake.storage.exists("Files/LandingZone/u/_metadata.json")


@pytest.mark.parametrize(
    "digest", ["hash_record_of_another_version(ROW('a'::text))", "hashtextextended('a', 0)"]
)
def test_a_server_with_other_hashes_is_refused(
    published: Published, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    """No old and no big-endian server is available, so the test replaces the expression."""
    published.sql("CREATE TABLE t (id int PRIMARY KEY)")
    published.publish("t")
    monkeypatch.setattr(expressions, "digest_of", lambda _values: digest)
    with pytest.raises(SourceError, match="need PostgreSQL 14 or newer"):
        published.verify("t")


@contextmanager
def running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread until the end of the block; raise its error."""
    stop, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert errors == []


def test_no_false_alarm_under_load(published: Published, tmp_path: Path) -> None:
    """While pgbench writes and the mirror runs, only the planted difference is found."""
    tables = ("pgbench_accounts", "pgbench_tellers", "pgbench_history")
    bench = [str(published.server.bin / "pgbench"), "-d", published.dsn]
    subprocess.run([*bench[:1], "-i", "-q", published.dsn], check=True, capture_output=True)
    for table in tables[:2]:
        published.sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    published.sql("DELETE FROM pgbench_accounts WHERE aid > 10000")
    published.publish(*tables)
    assert not published.lake.mirror().failed
    published.change_lake("UPDATE {t} SET abalance = 1 WHERE aid = 9500", "pgbench_accounts")
    script = tmp_path / "load.sql"
    script.write_text(
        "\\set aid random(1, 9000)\n\\set tid random(1, 10)\n\\set delta random(-5000, 5000)\n"
        "BEGIN;\nUPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;\n"
        "UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;\n"
        "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)"
        " VALUES (:tid, 1, :aid, :delta, CURRENT_TIMESTAMP);\nEND;\n"
    )

    def follow(stop: threading.Event) -> None:
        source = PostgresSource(published.dsn, tables, slot=published.slot, interval=0.3)
        run_source(published.lake.storage, source, once=False, stop=stop)

    def mirror(stop: threading.Event) -> None:
        while not stop.wait(0.5):  # without a pause it takes the time of the verification
            assert not published.lake.mirror().failed

    def write(stop: threading.Event) -> None:
        load = ["-n", "-c", "2", "-R", "100", "-T", "600", "-f", str(script), published.dsn]
        with subprocess.Popen([*bench[:1], *load], stderr=subprocess.DEVNULL) as writer:
            stop.wait()
            writer.terminate()

    history = "SELECT count(*) FROM pgbench_history"
    with running(follow), running(mirror), running(write):
        while not published.server.rows(f"{history} HAVING count(*) > 100", published.database):
            pass
        found = published.verify(*tables)
        ((written,),) = published.server.rows(history, published.database)
    assert [line.split(" is ")[0] for line in found.lines] == [
        "pgbench_accounts: aid=9500: abalance"
    ]
    accounts, _, verified = found.tables
    assert (accounts.source_rows, accounts.lake_rows) == (10_000, 10_000)
    assert 100 < verified.source_rows < written
