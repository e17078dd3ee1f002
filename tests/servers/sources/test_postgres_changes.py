"""Changes of a PostgreSQL database arrive in the zone: rows, keys, large values, tables."""

from __future__ import annotations

import json
import random

import pyarrow.parquet as pq
import pytest

from helpers.landed import folder_of, landed_files
from mirrorlake import Lake
from mirrorlake.errors import SourceError
from mirrorlake_sources import read_reports, source

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, n int, word varchar(20))"
FULL = "ALTER TABLE items REPLICA IDENTITY FULL"


def test_a_snapshot_then_every_change(shop) -> None:
    shop.sql(
        f"{ITEMS}; {FULL}; INSERT INTO items SELECT i, i, 'w' || i FROM generate_series(1, 50) i"
    )
    report = shop.run("items")
    assert (report.state, report.failed, report.tables[0].rows) == ("Ended", False, 50)
    shop.assert_equal("items")
    assert shop.run("items").tables[0].rows == 0  # nothing new
    shop.sql("UPDATE items SET n = -n WHERE id < 10")
    shop.sql("UPDATE items SET id = 1000 + id WHERE id > 45")
    shop.sql("DELETE FROM items WHERE id = 20")
    shop.sql(
        "BEGIN; INSERT INTO items VALUES (70, 1, NULL); SAVEPOINT a;"
        "INSERT INTO items VALUES (71, 1, 'no'); ROLLBACK TO a; COMMIT"
    )
    shop.sql("BEGIN; DELETE FROM items; ROLLBACK")
    report = shop.run("items")
    assert report.tables[0].rows == 9 + 2 * 5 + 1 + 1
    shop.assert_equal("items")
    assert len(landed_files(shop.root, "items")) == 2


def test_schemas_odd_names_and_several_tables(shop) -> None:
    shop.sql(
        'CREATE SCHEMA "Odd one";'
        'CREATE TABLE "Odd one"."T b" ("Key" int PRIMARY KEY, "a""b" int);'
        'INSERT INTO "Odd one"."T b" VALUES (1, 2); CREATE TABLE a (id int PRIMARY KEY)'
    )
    shop.run("`Odd one`.`T b`", "public.a")
    shop.sql('INSERT INTO "Odd one"."T b" VALUES (2, 3); INSERT INTO a VALUES (1)')
    shop.run("`Odd one`.`T b`", "a")
    assert folder_of(shop.root, "`Odd one`.`T b`").parent.name == "Odd one.schema"
    assert shop.landed("`Odd one`.`T b`") == [{"Key": 1, 'a"b': 2}, {"Key": 2, 'a"b': 3}]
    assert shop.landed("a") == [{"id": 1}]


def test_each_file_says_where_it_ends(shop) -> None:
    import pyarrow.parquet as pq

    shop.sql(ITEMS + "; " + FULL)
    shop.run("items")
    shop.sql("INSERT INTO items VALUES (1, 1, 'a')")
    shop.run("items")
    footer = pq.read_metadata(landed_files(shop.root, "items")[-1]).metadata
    said = json.loads(footer[b"mirrorlake.source"])
    (system,) = shop.rows("SELECT system_identifier::text FROM pg_control_system()")[0]
    assert said["source"] == f"postgres:{system}/{shop.database}/{shop.slot}"
    assert said["facts"]["columns"][0] == [1, "id", 23, -1]
    (table,) = (one.table for one in Lake(shop.root).status().tables)
    progress = source.read_progress(Lake(shop.root).storage, table, said["source"])
    assert progress is not None
    assert list(progress.position.order) == said["order"]


def test_large_values_with_full_identity(shop) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text);"
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL; ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT i, i, repeat(chr(64 + i), 9000) FROM generate_series(1, 5) i"
    )
    shop.run("t")
    shop.sql(
        "UPDATE t SET n = 10 WHERE id = 1; UPDATE t SET id = 99 WHERE id = 2;"
        "UPDATE t SET big = NULL WHERE id = 3; UPDATE t SET n = NULL WHERE id = 3"
    )
    shop.run("t")
    shop.assert_equal("t")


def test_large_values_without_full_identity_are_refused_or_looked_up(shop) -> None:
    shop.sql(
        "CREATE TABLE t (id char(3), k date, n int, big text, PRIMARY KEY (id, k));"
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT i, '2026-01-01', i, repeat(chr(64 + i), 9000)"
        " FROM generate_series(1, 5) i"
    )
    refused = shop.run("t")
    assert refused.failed
    said = str(refused.tables[0].error)
    assert "updates that do not change a large value would not contain it (big)" in said
    assert said.endswith(""": ALTER TABLE "public"."t" REPLICA IDENTITY FULL;""")
    assert not folder_of(shop.root, "t").exists()
    assert not shop.run("t", toast="lookup").failed
    shop.sql(
        "UPDATE t SET n = 10 WHERE id = '1'; UPDATE t SET id = '99' WHERE id = '2';"
        "UPDATE t SET n = 30 WHERE id = '3'; DELETE FROM t WHERE id = '3';"
        "UPDATE t SET n = 40 WHERE id = '4'; UPDATE t SET big = 'new' WHERE id = '4'"
    )
    shop.run("t", toast="lookup")
    shop.assert_equal("t")


def test_large_values_kept_by_the_mirror(shop) -> None:
    """An update's file names unchanged values; the values of a changed key are looked up."""
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text, raw bytea);"
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT i, i, repeat(chr(64 + i), 9000), decode(repeat('ab', 9000), 'hex')"
        " FROM generate_series(1, 5) i"
    )
    assert not shop.run("t", toast="keep").failed
    shop.sql(
        "UPDATE t SET n = 10 WHERE id = 1; UPDATE t SET id = 99, n = 9 WHERE id = 2;"
        "UPDATE t SET n = 30 WHERE id = 3; DELETE FROM t WHERE id = 3;"
        "UPDATE t SET n = 40 WHERE id = 4; UPDATE t SET big = 'new' WHERE id = 4;"
        "UPDATE t SET n = 41 WHERE id = 4; UPDATE t SET raw = NULL WHERE id = 5"
    )
    assert not shop.run("t", toast="keep").failed
    newest = landed_files(shop.root, "t")[-1]
    named = pq.read_table(newest).column("__unchanged__").to_pylist()
    assert named[0] == ["big", "raw"]
    assert [] in named
    shop.assert_equal("t")


def test_truncate_replaces_the_folder(shop) -> None:
    shop.sql(
        f"{ITEMS}; {FULL}; INSERT INTO items VALUES (1, 1, 'a');"
        "CREATE TABLE u (LIKE items INCLUDING ALL)"
    )
    shop.sql("ALTER TABLE u REPLICA IDENTITY FULL; INSERT INTO u TABLE items")
    shop.run("items", "u")
    shop.sql("INSERT INTO items VALUES (2, 2, 'b'); INSERT INTO u VALUES (2, 2, 'b')")
    shop.sql(
        "BEGIN; INSERT INTO items VALUES (3, 3, 'c'); TRUNCATE items, u;"
        "INSERT INTO items VALUES (4, 4, 'd'); COMMIT"
    )
    shop.run("items", "u")
    shop.assert_equal("items", "u")
    assert shop.landed("u") == []
    shop.sql("INSERT INTO u VALUES (9, 9, 'z'); UPDATE items SET n = 5")
    shop.run("items", "u")
    shop.assert_equal("items", "u")
    assert len(landed_files(shop.root, "items")) == 2


def test_tables_without_a_key_take_inserts(shop) -> None:
    shop.sql("CREATE TABLE log (word text)")
    shop.run("log")
    shop.sql("INSERT INTO log VALUES ('a'), ('a')")
    shop.sql("UPDATE log SET word = 'b'; DELETE FROM log")  # the application is not hindered
    assert not shop.run("log").failed
    assert shop.landed("log") == [{"word": "a"}, {"word": "a"}]
    shop.sql("TRUNCATE log; INSERT INTO log VALUES ('c')")
    shop.run("log")
    assert shop.landed("log") == [{"word": "c"}]


def test_a_unique_index_as_key(shop) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL UNIQUE, n int);"
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key;"
        "INSERT INTO t VALUES (1, 10, 1)"
    )
    shop.run("t")
    assert json.loads((folder_of(shop.root, "t") / "_metadata.json").read_text())["keyColumns"] == [
        "code"
    ]
    shop.sql("UPDATE t SET id = 2; UPDATE t SET code = 11; INSERT INTO t VALUES (3, 12, 1)")
    shop.run("t")
    shop.assert_equal("t")


def test_partitioned_tables_land_as_one(shop) -> None:
    shop.sql(
        "CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 (n int, x int, id int NOT NULL); ALTER TABLE p2 DROP COLUMN x;"
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20);"
        "INSERT INTO p SELECT i, i FROM generate_series(0, 19) i"
    )
    shop.run("p")
    shop.assert_equal("p")
    shop.sql(
        "DELETE FROM p WHERE id = 15; UPDATE p SET id = 15 WHERE id = 5;"
        "UPDATE p SET n = 0 WHERE id < 12"
    )
    shop.run("p")
    shop.assert_equal("p")


ALTERED = {
    # what is altered: the state afterwards
    "ALTER TABLE items ADD COLUMN more int": "Running",
    "ALTER TABLE items ADD COLUMN more numeric(5,2) DEFAULT 7.5": "Running",
    "ALTER TABLE items ADD COLUMN more double precision DEFAULT random()": "Running",
    "ALTER TABLE items ADD COLUMN more serial": "Running",
    "ALTER TABLE items DROP COLUMN word": "Running",
    "ALTER TABLE items DROP COLUMN word; ALTER TABLE items ADD COLUMN word varchar(20)": "Running",
    "ALTER TABLE items ALTER word TYPE varchar(40)": "Running",
    "ALTER TABLE items ALTER word TYPE text": "Running",
    "ALTER TABLE items RENAME COLUMN word TO words": "Stopped",
    "ALTER TABLE items ALTER n TYPE bigint": "Stopped",
    "ALTER TABLE items RENAME TO things": "Stopped",
    "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (n)": "Stopped",
}


ALTERED_QUICK = ("more numeric(5,2) DEFAULT 7.5", "word varchar(20)", "TO words", "KEY (n)")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, marks=[] if change.endswith(ALTERED_QUICK) else pytest.mark.long)
        for change in ALTERED
    ],
)
def test_an_altered_table(shop, change: str) -> None:
    """The table continues, is loaded again, or stops with an error; others continue."""
    shop.sql(
        f"{ITEMS}; {FULL};"
        "INSERT INTO items SELECT i, i, 'w' || i FROM generate_series(1, 5) i;"
        "CREATE TABLE other (id int PRIMARY KEY)"
    )
    shop.run("items", "other")
    shop.sql("UPDATE items SET n = n + 100 WHERE id = 1")
    shop.sql(change)
    now = "things" if "things" in change else "items"
    shop.sql(f"UPDATE {now} SET n = n + 200 WHERE id = 2; INSERT INTO other VALUES (1)")
    report = shop.run("items", "other")
    states = {one.table: one.state for one in report.tables}
    assert states == {"items": ALTERED[change], "other": "Running"}, report.tables
    shop.assert_equal("other")
    if ALTERED[change] == "Running":
        dropped = "DROP COLUMN" in change and "ADD COLUMN" not in change
        if dropped:  # old rows keep what they had until they change
            assert {row["id"] for row in shop.landed("items")} == {1, 2, 3, 4, 5}
        else:
            shop.assert_equal("items")
        shop.sql("DELETE FROM items WHERE id = 3")
        assert not shop.run("items", "other").failed
        if not dropped:
            shop.assert_equal("items")
        return
    error = str(report.tables[0].error)
    assert "--reseed items" in error or now == "things", error
    again = shop.run("items", "other")
    assert again.failed  # it stays stopped, and says so
    if now == "items":
        assert not shop.run("items", "other", reseed=("items",)).failed
        shop.assert_equal("items")
        shop.sql("INSERT INTO other VALUES (2); DELETE FROM items WHERE id = 1")
        assert not shop.run("items", "other").failed
        shop.assert_equal("items", "other")


def test_altered_and_emptied_within_one_transaction(shop) -> None:
    shop.sql(f"{ITEMS}; {FULL}; INSERT INTO items VALUES (1, 1, 'a')")
    shop.run("items")
    shop.sql(
        "BEGIN; INSERT INTO items VALUES (2, 2, 'b'); ALTER TABLE items ADD COLUMN x int;"
        "INSERT INTO items VALUES (3, 3, 'c', 3); ALTER TABLE items DROP COLUMN word;"
        "INSERT INTO items VALUES (4, 4, 4); COMMIT"
    )
    shop.run("items")
    rows = {row["id"]: row for row in shop.landed("items")}
    assert {key: row["x"] for key, row in rows.items()} == {1: None, 2: None, 3: 3, 4: 4}
    assert len(landed_files(shop.root, "items")) == 4


def test_a_table_that_was_left_out_is_loaded_again(shop) -> None:
    """The server does not keep its changes meanwhile, so continuing would miss them."""
    shop.sql(f"{ITEMS}; {FULL}; CREATE TABLE other (id int PRIMARY KEY)")
    shop.run("items", "other")
    shop.run("other")
    shop.sql("INSERT INTO items VALUES (1, 1, 'a'); INSERT INTO other VALUES (1)")
    shop.run("other")
    shop.run("items", "other")
    shop.assert_equal("items", "other")


def test_a_lost_slot_stops_and_says_reseed(shop) -> None:
    shop.sql(f"{ITEMS}; {FULL}; INSERT INTO items VALUES (1, 1, 'a')")
    shop.run("items")
    shop.sql(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    shop.sql("INSERT INTO items VALUES (2, 1, 'a')")
    with pytest.raises(SourceError, match=r"is lost.*--reseed items"):
        shop.run("items")
    (report,) = read_reports(Lake(shop.root).storage)
    assert (report.state, report.failed) == ("Stopped", True)
    shop.run("items", reseed=("items",))
    shop.assert_equal("items")


def test_an_idle_database_moves_its_slot(shop) -> None:
    shop.sql(ITEMS + "; CREATE TABLE noise (x int); " + FULL)
    shop.run("items")
    query = f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"
    before = shop.rows(query)
    shop.sql("INSERT INTO noise SELECT generate_series(1, 1000)")
    report = shop.run("items")
    assert shop.rows(query) > before
    assert report.facts["wal_status"] == "reserved"
    assert report.facts["lag_bytes"] < 1_000_000  # the server writes, too


def test_a_transaction_larger_than_memory_allows(shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorlake_sources.postgres.gather.MOST_ROWS", 100)
    shop.sql(f"{ITEMS}; {FULL}")
    shop.run("items")
    shop.sql("INSERT INTO items SELECT i, i, 'w' || i FROM generate_series(1, 2345) i")
    shop.sql("UPDATE items SET n = -n WHERE id % 3 = 0")
    shop.run("items", rows=10)
    shop.assert_equal("items")


def test_changes_during_the_snapshot_are_neither_lost_nor_doubled(shop) -> None:
    """A writer is active during the load; a table without a key would show a duplicate."""
    import threading

    shop.sql(
        f"{ITEMS}; {FULL}; CREATE TABLE log (id int);"
        "INSERT INTO items SELECT i, i, 'w' FROM generate_series(1, 300) i"
    )
    done, chance = threading.Event(), random.Random(1)

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            shop.sql(
                f"BEGIN; UPDATE items SET n = {number} WHERE id = {chance.randrange(1, 300)};"
                f"INSERT INTO log VALUES ({number}); COMMIT"
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            shop.run("items", "log")
    finally:
        done.set()
        writer.join()
    shop.run("items", "log")
    shop.assert_equal("items", "log")
