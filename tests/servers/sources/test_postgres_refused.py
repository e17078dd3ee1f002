"""Errors of the server come with a hint and without secrets; other tables continue."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest

from helpers.landed import folder_of, landed_files
from helpers.postgres import PostgresServer
from mirrorlake import Lake
from mirrorlake.errors import BusyError, SourceError, UsageError
from mirrorlake_sources import PostgresSource, run_source

SECRET = "hunter2 'quoted'"


def test_a_wrong_password_is_never_shown(shop) -> None:
    dsn = psycopg.conninfo.make_conninfo(
        host="127.0.0.1", port=shop.server.port, user="boss", password=SECRET, dbname=shop.database
    )
    with pytest.raises(SourceError, match="password authentication failed") as caught:
        shop.run("t", dsn=dsn)
    assert "hunter2" not in str(caught.value)
    assert "pg_hba.conf" in caught.value.hint
    with pytest.raises(UsageError, match="can't be parsed") as unread:
        PostgresSource("host=x password='hunter2", ["t"])
    assert "hunter2" not in str(unread.value)
    url = f"postgresql://boss:hunter2@127.0.0.1:1/{shop.database}"
    with pytest.raises(SourceError, match="refused") as gone:
        shop.run("t", dsn=url)
    assert "hunter2" not in str(gone.value)


def test_the_command_shows_no_secret(shop) -> None:
    command = [sys.executable, "-m", "mirrorlake.cli", "source", "postgres", str(shop.root)]
    secret = {"MIRRORLAKE_DSN": f"postgresql://boss:hunter2@127.0.0.1:{shop.server.port}/x"}
    done = subprocess.run(
        [*command, "--tables", "t", "--json"],
        env=os.environ | secret,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "hunter2" not in done.stdout + done.stderr
    assert "password authentication failed" in json.loads(done.stdout)["error"]["message"]


def test_a_role_without_rights(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    role = f"reader_{shop.slot}"
    shop.sql(f"CREATE ROLE {role} LOGIN")
    dsn = shop.server.dsn(shop.database, role)
    try:
        with pytest.raises(SourceError) as caught:
            shop.run("t", dsn=dsn)
        assert caught.value.hint == f'ALTER ROLE "{role}" REPLICATION;'
        shop.sql(caught.value.hint)
        refused = shop.run("t", dsn=dsn)
        assert f'GRANT SELECT ON "public"."t" TO "{role}";' in str(refused.tables[0].error)
        shop.sql(f"GRANT SELECT ON t TO {role}")
        with pytest.raises(SourceError, match="may not change the publication") as owner:
            shop.run("t", dsn=dsn)
        shop.sql(owner.value.hint.partition(": ")[2])
        with pytest.raises(SourceError, match="may not change") as second:
            shop.run("t", dsn=dsn)
        shop.sql(second.value.hint.partition(": ")[2])
        with pytest.raises(SourceError, match="may not change") as third:
            shop.run("t", dsn=dsn)
        shop.sql(third.value.hint.partition(": ")[2])
        assert not shop.run("t", dsn=dsn).failed
        shop.sql("INSERT INTO t VALUES (1)")
        shop.run("t", dsn=dsn)
        assert shop.landed("t") == [{"id": 1}]
    finally:
        shop.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_wal_level(tmp_path: Path) -> None:
    server = PostgresServer(wal_level="replica")
    try:
        with pytest.raises(SourceError, match="wal_level is replica") as caught:
            run_source(Lake(tmp_path).storage, PostgresSource(server.dsn(), ["t"]))
        server.execute(caught.value.hint.partition(": ")[2])
        server.stop()
        server.start()
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        assert not run_source(Lake(tmp_path).storage, PostgresSource(server.dsn(), ["t"])).failed
    finally:
        server.remove()


def test_a_table_that_is_gone_or_was_made_again(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    shop.run("t", "u", "nowhere")
    shop.sql("DROP TABLE t; INSERT INTO u VALUES (1)")
    report = shop.run("t", "u", "nowhere")
    states = {
        one.table: (one.state, "There is no table" in str(one.error)) for one in report.tables
    }
    assert states == {"t": ("Stopped", True), "u": ("Running", False), "nowhere": ("Stopped", True)}
    assert shop.landed("u") == [{"id": 1}]
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (7, 7)")
    shop.run("t", "u", reseed=("t",))
    assert shop.landed("t") == [{"id": 7, "n": 7}]
    shop.sql("DROP TABLE u; CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (9)")
    assert not shop.run("t", "u").failed  # made again between two runs: loaded again
    assert shop.landed("u") == [{"id": 9}]


def test_a_view_and_an_unlogged_table(shop) -> None:
    shop.sql("CREATE VIEW v AS SELECT 1 AS x; CREATE UNLOGGED TABLE w (id int PRIMARY KEY)")
    report = shop.run("v", "w")
    assert ["only permanent tables" in str(one.error) for one in report.tables] == [True, True]


def test_a_folder_of_another_publisher_is_left_alone(shop) -> None:
    Lake(shop.root).publisher("t", keys=["id"]).insert([{"id": 5}])
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    for reseed in ((), ("t",)):
        report = shop.run("t", reseed=reseed)
        assert "files of another publisher" in str(report.tables[0].error)
    assert shop.landed("t") == [{"id": 5}]


def test_another_source_of_the_same_table(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    shop.run("t")
    report = shop.run("t", slot=shop.slot + "b")
    assert "is published by the source" in str(report.tables[0].error)
    assert not shop.run("t").failed


def test_two_processes_with_one_slot(shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorlake_sources.postgres.slot._HELD", 0.2)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    with shop.source("t"), pytest.raises(BusyError, match="Another process reads the slot"):
        shop.run("t")
    assert not shop.run("t").failed


def test_the_database_is_restarted_while_it_watches(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    stop, failed = threading.Event(), []

    def watch() -> None:
        try:
            run_source(
                Lake(shop.root).storage, shop.source("t", interval=0.1), once=False, stop=stop
            )
        except BaseException as error:
            failed.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    wait_for(lambda: folder_of(shop.root, "t").exists())
    for number in range(3):
        shop.sql(f"INSERT INTO t VALUES ({number})")
        (shop.server.kill if number else shop.server.stop)()
        if not number:
            shop.server.start()
    shop.sql("INSERT INTO t VALUES (99)")
    wait_for(lambda: {"id": 99} in shop.landed("t"))
    stop.set()
    watcher.join(30)
    assert not failed
    shop.assert_equal("t")


def test_sigterm_publishes_what_is_whole(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    command = [sys.executable, "-m", "mirrorlake.cli", "source", "postgres", str(shop.root)]
    options = ["--dsn", shop.dsn, "--tables", "t", "--slot", shop.slot, "--watch"]
    process = subprocess.Popen([*command, *options, "--interval", "3600"])
    wait_for(lambda: folder_of(shop.root, "t").exists())
    shop.sql("INSERT INTO t SELECT generate_series(1, 1000)")
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"
    wait_for(lambda: shop.rows(active) == [(True,)])
    time.sleep(1)  # the stream is on its way; the interval is an hour
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert time.monotonic() - started < 30
    shop.assert_equal("t")


def test_the_lakes_disk_is_full(shop) -> None:
    """A limit on file sizes simulates a full disk: writes fail in the same way."""
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, word text)")
    shop.sql("ALTER TABLE t REPLICA IDENTITY FULL")
    shop.run("t")
    shop.sql("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 20000) i")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises((SourceError, OSError)):
            shop.run("t")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(landed_files(shop.root, "t")) == 1
    shop.run("t")
    shop.assert_equal("t")


def wait_for(ready) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # what another process does is no event to wait for
