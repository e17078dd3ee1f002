"""The source is killed at every step and at random times; in the end all rows are equal."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.killing import Made, run_until
from helpers.landed import landed_files

PROGRAM = """
import sys
from mirrorlake_sources import PostgresSource, run_source
from mirrorlake.storage.files import Storage

root, dsn, slot = sys.argv[1:]
source = PostgresSource(dsn, ["items", "log", "s.other"], slot=slot, rows=40)
assert not run_source(Storage(root), source).failed
"""
TABLES = ("items", "log", "s.other")
SETUP = """
CREATE SCHEMA s;
CREATE TABLE items (id int PRIMARY KEY, n int, word text);
ALTER TABLE items REPLICA IDENTITY FULL;
CREATE TABLE log (number int);
CREATE TABLE s.other (id int PRIMARY KEY, n int);
INSERT INTO items SELECT i, i, 'w' || i FROM generate_series(1, 200) i;
INSERT INTO log SELECT generate_series(-50, 0);
"""
# By what they have made, or have not yet removed: the steps of a first load and of a group.
STEPS = {
    "the folder aside": r"/aside/.*/_metadata\.json$",
    "a part of the first load": r"/aside/.*/_[0-9a-f]{32}\.parquet$",
    "the first load's file": r"/aside/.*/\d{20}\.parquet$",
    "the new folder is complete": r"/aside/.*/_source\.json$",
    "it may take its place": r"/aside/.*/ready$",
    "one table in its place": r"LandingZone/[^/]*/_source\.json$",
    "the other one too": r"s\.schema/other/_source\.json$",
    "a file of changes is written": r"LandingZone/items/_[0-9a-f]{32}\.parquet$",
    "one table's changes stand": r"LandingZone/items/\d{19}[2-9]\.parquet$",
    "another table's stand too": r"LandingZone/log/\d{19}[2-9]\.parquet$",
    "the old folder is away": r"/replaced/.*_source\.json$",
    "the next group": r"LandingZone/s\.schema/other/\d{19}[3-9]\.parquet$",
}


def reached(step: str) -> Callable[[Made], bool]:
    found = re.compile(STEPS[step])
    return lambda made: any(found.search(path) for path in made)


def work(shop, chance: random.Random, transactions: int, start: int) -> None:
    """Run transactions over all tables; the log's numbers reveal lost and repeated changes."""
    for number in range(start, start + transactions):
        key = chance.randrange(1, 200)
        statements = [
            f"UPDATE items SET n = {number}, word = repeat('x', {chance.choice([1, 3000])})"
            f" WHERE id = {key}",
            f"INSERT INTO log VALUES ({number})",
            f"INSERT INTO s.other VALUES ({number}, {key})",
        ]
        if number % 7 == 0:
            statements.append(f"DELETE FROM items WHERE id = {key}")
        if number % 11 == 0:
            statements.append(f"UPDATE s.other SET id = -id WHERE id = {number}")
        if number % 60 == 59:
            statements.append("TRUNCATE s.other")
        shop.sql(f"BEGIN; {'; '.join(statements)}; COMMIT")


def kill_at(shop, steps: list[str]) -> None:
    shop.sql(SETUP)
    chance = random.Random(1)
    kills = 0
    for number, step in enumerate(steps):
        kills += run_until(reached(step), shop.root, PROGRAM, shop.dsn, shop.slot)[0]
        work(shop, chance, 65, 1000 * number + 1)
        kills += run_until(reached(step), shop.root, PROGRAM, shop.dsn, shop.slot)[0]
    assert kills
    killed, _ = run_until(lambda made: False, shop.root, PROGRAM, shop.dsn, shop.slot)
    assert not killed
    shop.assert_equal(*TABLES)


def test_killed_at_a_step(shop) -> None:
    """The kill happens after the first table's changes and before the others'."""
    kill_at(shop, ["one table's changes stand"])


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step(shop, step: str) -> None:
    kill_at(shop, [step, step])


def kill_any_time(shop, rounds: int, seed: int) -> None:
    """Kill the source repeatedly while a writer is active."""
    shop.sql(SETUP)
    chance, done = random.Random(seed), threading.Event()

    def write() -> None:
        number = 1
        while not done.is_set():
            work(shop, chance, 5, number)
            number += 5

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(rounds):
            began = time.monotonic()
            after = chance.uniform(0.5, 4)
            run_until(
                lambda made, began=began, after=after: time.monotonic() - began > after,
                shop.root,
                PROGRAM,
                shop.dsn,
                shop.slot,
            )
    finally:
        done.set()
        writer.join()
    run_until(lambda made: False, shop.root, PROGRAM, shop.dsn, shop.slot)
    shop.assert_equal(*TABLES)


@pytest.mark.long
def test_killed_at_any_moment(shop) -> None:
    kill_any_time(shop, 3, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_any_moment_very_often(shop, seed: int) -> None:
    kill_any_time(shop, 40, seed)


def test_the_server_is_killed(shop) -> None:
    """The writer's open transaction is lost; committed changes are published once."""
    shop.sql(SETUP)
    chance = random.Random(5)
    for number in range(1):
        work(shop, chance, 40, 1000 * number + 1)
        source = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(shop.root), shop.dsn, shop.slot],
            stderr=subprocess.DEVNULL,
        )
        while not _any_file(shop.root) and source.poll() is None:
            time.sleep(0.01)  # another process's files are no event to wait for
        time.sleep(chance.random())
        shop.server.kill()
        source.wait()
    run_until(lambda made: False, shop.root, PROGRAM, shop.dsn, shop.slot)
    shop.assert_equal(*TABLES)
    assert landed_files(shop.root, "log")


def _any_file(root: Path) -> bool:
    return any(root.rglob("*.parquet"))


@pytest.mark.long
def test_pgbench(shop) -> None:
    """Run pgbench for ten minutes while the source is killed at random times."""
    bench = [str(shop.server.bin / "pgbench"), "-h", str(shop.server.folder)]
    bench += ["-p", str(shop.server.port), "-U", "boss"]
    quiet = {"check": True, "capture_output": True}
    subprocess.run([*bench, "-i", "-s", "2", shop.database], **quiet)  # type: ignore[call-overload]
    tables = [f"pgbench_{name}" for name in ("accounts", "branches", "tellers", "history")]
    for name in tables[:3]:
        shop.sql(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    program = PROGRAM.replace('["items", "log", "s.other"]', repr(tables)).replace(
        "rows=40", "rows=5000"
    )
    writer = subprocess.Popen([*bench, "-c", "4", "-T", "600", "-n", shop.database])
    chance = random.Random(9)
    while writer.poll() is None:
        began, after = time.monotonic(), chance.uniform(2, 20)
        run_until(
            lambda made, began=began, after=after: time.monotonic() - began > after,
            shop.root,
            program,
            shop.dsn,
            shop.slot,
        )
    assert writer.returncode == 0
    run_until(lambda made: False, shop.root, program, shop.dsn, shop.slot)
    shop.assert_equal(*tables)
