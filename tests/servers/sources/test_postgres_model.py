"""Random transactions over several tables while the source runs; in the end all rows are equal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirrorlake import Lake
from mirrorlake_sources import read_reports, run_source

TABLES = ("a", "b", "log")
SETUP = """
CREATE TABLE a (id int PRIMARY KEY, n int, big text);
ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
ALTER TABLE a REPLICA IDENTITY FULL;
CREATE TABLE b (x int, y varchar(5), n int, PRIMARY KEY (x, y));
CREATE TABLE log (n int);
INSERT INTO a SELECT i, i, repeat('s', 3000) FROM generate_series(1, 4) i;
"""
KEY = st.integers(1, 6)
ADD = "INSERT INTO a (id, n, big) VALUES ({}, {}, repeat('{}', {})) ON CONFLICT DO NOTHING"
MOVE = "UPDATE a SET id = {1} WHERE id = {0} AND NOT EXISTS (SELECT 1 FROM a WHERE id = {1})"
PUT = "INSERT INTO b VALUES ({}, 'k{}', {}) ON CONFLICT (x, y) DO UPDATE SET n = excluded.n"
STATEMENT = st.one_of(
    st.builds(
        ADD.format,
        KEY,
        st.integers(-5, 5),
        st.sampled_from("xyz"),
        st.sampled_from([0, 3, 9000]),
    ),
    st.builds("UPDATE a SET n = n + {} WHERE id >= {}".format, st.integers(-9, 9), KEY),
    st.builds("UPDATE a SET big = NULL WHERE id = {}".format, KEY),
    st.builds(
        MOVE.format,
        KEY,
        KEY,
    ),
    st.builds("DELETE FROM a WHERE id = {}".format, KEY),
    st.builds(
        PUT.format,
        KEY,
        KEY,
        KEY,
    ),
    st.builds("UPDATE b SET x = x + 10, n = {} WHERE x = {}".format, KEY, KEY),
    st.builds("DELETE FROM b WHERE x < {}".format, KEY),
    st.builds("INSERT INTO log SELECT generate_series(1, {})".format, KEY),
    st.sampled_from(["TRUNCATE b", "TRUNCATE log, a", "DELETE FROM a"]),
)
SAVED = st.builds(
    lambda kept, lost: [*kept, "SAVEPOINT s", *lost, "ROLLBACK TO s"],
    st.lists(STATEMENT, max_size=2),
    st.lists(STATEMENT, min_size=1, max_size=2),
)
ALTER = st.sampled_from(
    [
        ["ALTER TABLE b ADD COLUMN IF NOT EXISTS more int"],
        ["ALTER TABLE b ADD COLUMN IF NOT EXISTS given int DEFAULT 7", "UPDATE b SET n = 1"],
        ["INSERT INTO log VALUES (1)",
         "ALTER TABLE log ADD COLUMN IF NOT EXISTS w text DEFAULT 'd'"],
        ["ALTER TABLE b ALTER y TYPE varchar(9)", "INSERT INTO b (x, y) VALUES (99, 'longer')"
         " ON CONFLICT DO NOTHING"],
    ]
)  # fmt: skip
TRANSACTION = st.tuples(
    st.one_of(st.lists(STATEMENT, min_size=1, max_size=5), SAVED, ALTER),
    st.sampled_from(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]),
)


def equal_in_the_end(shop: Any, transactions: list[Any]) -> None:
    shop.sql(SETUP)
    stop, failed = threading.Event(), []

    def watch() -> None:
        try:
            source = shop.source(*TABLES, interval=0.05, rows=3)
            run_source(Lake(shop.root).storage, source, once=False, stop=stop)
        except BaseException as error:
            failed.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        while len(transactions) % 2 and not read_reports(Lake(shop.root).storage) and not failed:
            time.sleep(0.05)  # half the time it has begun, half the time it begins meanwhile
        for statements, end in transactions:
            shop.sql(f"BEGIN; {'; '.join(statements)}; {end}")
    finally:
        stop.set()
        watcher.join()
    assert not failed
    assert not shop.run(*TABLES).failed
    shop.assert_equal(*TABLES)


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=4, deadline=None, suppress_health_check=QUIET)
@given(st.lists(TRANSACTION, min_size=3, max_size=25))
def test_any_transactions(new_shop: Callable[[], Any], transactions: list[Any]) -> None:
    equal_in_the_end(new_shop(), transactions)


@pytest.mark.long
@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(st.lists(TRANSACTION, min_size=10, max_size=80))
def test_very_many_transactions(new_shop: Callable[[], Any], transactions: list[Any]) -> None:
    equal_in_the_end(new_shop(), transactions)
