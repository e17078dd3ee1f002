"""The notebooks that need a PostgreSQL server, which they or the test start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from helpers.notebooks import run_nbval
from helpers.postgres import PostgresServer, ensure_installed
from helpers.project import NOTEBOOKS
from mirrorlake import Lake
from mirrorlake.spark.session import PROFILE_VARIABLE, SharedJvm
from mirrorlake_lab import Shop
from mirrorlake_runs import run_plan

pytestmark = pytest.mark.long  # each starts a server


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.remove()


def test_the_lessons_committed_outputs(jvm: SharedJvm, tmp_path: Path) -> None:
    ensure_installed()
    done = run_nbval([NOTEBOOKS / "learn" / "16_a_database_mirrored.ipynb"], tmp_path, jvm)
    assert done.returncode == 0, done.stdout[-6000:]


def test_an_update_of_a_customers_city_does_not_send_the_notes() -> None:
    """The server does not send the unchanged notes of a customer, as the lesson states."""
    ensure_installed()
    shop = Shop(customers=1, orders=0)
    try:
        shop.run("SELECT pg_create_logical_replication_slot('seen', 'test_decoding')")
        shop.run("UPDATE customers SET city = 'Cork'")
        seen = shop.query("SELECT data FROM pg_logical_slot_get_changes('seen', NULL, NULL)")
    finally:
        shop.close()
    assert [line for (line,) in seen.rows if "notes[text]:unchanged-toast-datum" in line]


def test_the_tool_mirrors_a_database(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that can't be replicated is reported with its fix, and the other one is mirrored."""
    server.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, n int);"
        "INSERT INTO orders SELECT i, i FROM generate_series(1, 7) i;"
        "CREATE TABLE notes (id int PRIMARY KEY, text text)"
    )
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
    monkeypatch.setenv("MIRRORLAKE_DSN", server.dsn())
    monkeypatch.setenv(PROFILE_VARIABLE, "small")
    Lake(tmp_path / "lake").publisher("other").insert([{"id": 1}])
    plan = tmp_path / "plan.yaml"
    parameters = {"root": "lake", "tables": "orders,notes"}
    step = {"notebook": "source_postgres", "parameters": parameters}
    plan.write_text(yaml.safe_dump({"steps": [step]}))
    (done,) = run_plan(plan, tmp_path / "out").steps
    assert done.status == "failed"  # the table notes is stopped
    assert done.error is not None
    assert "REPLICA IDENTITY FULL" in done.error["message"]
    assert done.records == {"tables": 2, "rows": 7, "stopped": 1, "unfit": 1}
    assert Lake(tmp_path / "lake").sql("SELECT sum(n) FROM orders").collect()[0][0] == 28
    step["parameters"] = {"root": "lake", "tables": "orders", "verify": True}
    plan.write_text(yaml.safe_dump({"steps": [step]}))
    assert run_plan(plan, tmp_path / "out").failed is None
    path = Lake(tmp_path / "lake").table("orders").path
    Lake(tmp_path / "lake").spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3")
    (done,) = run_plan(plan, tmp_path / "out").steps
    assert done.error is not None
    assert "orders: id=3: missing in the lake" in done.error["message"]
