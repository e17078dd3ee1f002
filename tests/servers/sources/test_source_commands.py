"""The commands `source`: exit status, JSON, status, and published files without lint findings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.landed import landed_rows
from mirrorlake import Lake


def run(*arguments: object, status: int = 0) -> str:
    command = [sys.executable, "-m", "mirrorlake.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout


def test_postgres_lands_clean_and_status_tells_the_slot(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, n numeric(5,2)); INSERT INTO t VALUES (1, 2)")
    shop.sql("CREATE SCHEMA s; CREATE TABLE s.u (id int PRIMARY KEY); INSERT INTO s.u VALUES (1)")
    options = ["--dsn", shop.dsn, "--slot", shop.slot, "--json"]
    source = ("source", "postgres", shop.root, "--tables", "t,s.u", *options)
    report = json.loads(run(*source))
    assert {one["table"]: one["state"] for one in report["tables"]} == {
        "t": "Running",
        "s.u": "Running",
    }
    shop.sql("UPDATE t SET n = 3; INSERT INTO s.u VALUES (5)")
    run(*source)
    shop.assert_equal("t", "s.u")
    lint = Lake(shop.root).lint()
    assert [(found.rule, found.message) for found in lint.findings] == []
    status = json.loads(run("status", shop.root, "--json"))
    assert [
        table["full_name"] if "full_name" in table else table["name"] for table in status["tables"]
    ]
    (told,) = status["sources"]
    assert told["facts"]["wal_status"] == "reserved"
    assert told["facts"]["lag_bytes"] < 100_000
    assert told["state"] == "Ended"
    assert shop.slot in run("status", shop.root)


def test_a_stopped_table_is_exit_status_1(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, word text)")
    options = ["--dsn", shop.dsn, "--slot", shop.slot]
    said = run("source", "postgres", shop.root, "--tables", "t", *options, status=1)
    assert "REPLICA IDENTITY FULL" in said


def test_folders_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "drops"
    (folder / "orders").mkdir(parents=True)
    (folder / "orders" / "a.csv").write_text('id,word\n1,"a, b"\n2,\n')
    run("source", "csv", tmp_path / "lake", folder, "--keys", "orders=id")
    assert landed_rows(tmp_path / "lake", "orders") == [
        {"id": "1", "word": "a, b"},
        {"id": "2", "word": None},
    ]
    (folder / "orders" / "b.csv").write_text("id,word\n1\n")
    assert "b.csv" in run(
        "source", "csv", tmp_path / "lake", folder, "--keys", "orders=id", status=1
    )
    line = {"key": {"id": 1}, "value": {"op": "c", "after": {"id": 1}, "source": {"table": "t"}}}
    (folder / "e.jsonl").write_text(json.dumps(line) + "\n")
    assert "schemas.enable" in run("source", "debezium", tmp_path / "l2", folder, status=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("postgres", "ROOT", "--tables", "t", "--slot", "Bad Name"),
        ("postgres", "ROOT", "--tables", ""),
        ("postgres", "ROOT", "--tables", "a.b.c"),
        ("postgres", "ROOT", "--tables", "t", "--toast", "guess"),
        ("csv", "ROOT", "/no/such/folder"),
        ("csv", "ROOT", "/tmp", "--keys", "t"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...]) -> None:
    run("source", *arguments, status=2)
