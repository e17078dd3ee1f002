"""The mirror's own transaction compared with MERGE: equal rows, row ids, feed, commit and errors.

Three lakes get the same files: for MERGE, with deletion vectors, and with files written anew.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from helpers.markers import MARKER
from helpers.tables import bag_by_spark, describe_history
from mirrorlake import Lake
from mirrorlake.delta import exchange, key_search
from mirrorlake.delta.actions import live_files
from mirrorlake.mirror import apply
from mirrorlake.spark.jvm import forget_logs, transaction

VECTORS = "delta.enableDeletionVectors"


@pytest.fixture(autouse=True)
def _no_fallback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    messages = [record.getMessage() for record in caplog.get_records("call")]
    assert not any("DuckDB failed" in message for message in messages)


class AllWays:
    """Three lakes with the same files.

    `merge` uses MERGE, `marks` uses deletion vectors, and `plain` writes changed files anew. In
    every other cycle, DuckDB searches the keys for the last two.
    """

    def __init__(self, folder: Path, table: str, keys: list[str]) -> None:
        self.table, self.keys, self.cycles = table, keys, 0
        self.merge, self.marks, self.plain = (
            Lake(folder / name) for name in ("merge", "marks", "plain")
        )

    def publish(self, rows: Any) -> None:
        for lake in (self.merge, self.marks, self.plain):
            lake.publisher(self.table, keys=self.keys).write(rows)

    def mirror(self, *, marks: bool = True) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(apply, "exchange_batch", lambda *_: False)
            assert not self.merge.mirror(deletion_vectors=False).failed
        self.cycles += 1
        with pytest.MonkeyPatch.context() as patch:
            if self.cycles % 2:
                patch.setattr(key_search, "MANY_ROWS", 0)
            for lake, vectors in ((self.marks, marks), (self.plain, False)):
                report = lake.mirror(deletion_vectors=vectors)
                assert not report.failed, report.tables[0].error

    def check(self, columns: list[str]) -> None:
        rows = bag_by_spark(self.merge, self.table, columns)
        changes = feed(self.merge, self.table, columns)
        for lake in (self.marks, self.plain):
            assert bag_by_spark(lake, self.table, columns) == rows
            assert feed(lake, self.table, columns) == changes

    def vectors(self) -> list[int]:
        """Return the number of rows marked as deleted, for each file with a deletion vector."""
        table = self.marks.table(self.table)
        files = live_files(self.marks.storage, table.name.table_path, table.version)
        found = (file["deletionVector"] for file in files if file.get("deletionVector"))
        return sorted(vector["cardinality"] for vector in found)


def feed(lake: Lake, table: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """Return the changes of each commit with rows, by its order instead of its version."""
    rows = lake.table(table).changes.read(0).collect()
    versions = sorted({row["_commit_version"] for row in rows})
    return Counter(
        (versions.index(row["_commit_version"]), row["_change_type"], *[row[c] for c in columns])
        for row in rows
    )


def change(marker: int, n: int, value: str | None, **more: Any) -> dict[str, Any]:
    return {MARKER: marker, "n": n, "v": value, **more}


@pytest.mark.promise("LZ-12")
def test_rows_feed_and_commits_are_those_of_merge(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    both = AllWays(tmp_path, "t", ["n"])
    both.publish([change(0, n, "first") for n in (*range(60), 7, 7)])  # the key 7 has three rows
    both.mirror()
    batches = [
        [change(1, 3, "new"), change(2, 4, None), change(4, 100, "up"), change(0, 5, "twice")],
        [change(4, 7, "all three"), change(1, 200, "an update of nothing"), change(2, 999, None)],
        [change(2, 3, None), change(0, 3, "again"), change(4, 5, "both"), change(2, 100, None)],
        [change(2, n, None) for n in (10, 11)],
        [change(2, 999, None)],
        [change(4, 5_000, "nothing to take out")],
        [change(4, 12, "same"), change(4, 12, "same")],
    ]
    is_long = pytestconfig.getoption("--long")
    for batch in batches if is_long else batches[:2]:
        both.publish(batch)
        both.mirror()
        if is_long:
            both.check(["n", "v"])
    both.check(["n", "v"])  # the feed has the changes of each commit
    assert both.vectors()
    assert said(both.marks) == said(both.merge) == said(both.plain)


def said(lake: Lake) -> tuple[Any, ...]:
    """Return the metadata and metrics of the table's commits."""
    txns = sorted(lake.table("t").snapshot().txns.values())
    batches = [(e.number, e.rows, e.version) for e in lake.operations.ledger("t").entries]
    counted = [f"numTargetRows{what}" for what in ("Inserted", "Updated", "Deleted")]
    merges = [
        row for row in describe_history(lake.table("t")).collect() if row.operation == "MERGE"
    ]
    rows = [[row.operationMetrics.get(name) for name in counted] for row in merges]
    return txns, batches, rows


@pytest.mark.long
def test_many_keys_are_found_among_more_rows_than_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "_MANY_ROWS", 10)
    both = AllWays(tmp_path, "t", ["n", "day", "v"])
    days = [dt.date(1, 1, 1), dt.date(2024, 2, 29)]
    rows = [
        change(0, n, text, day=day, amount=float(n))
        for n in range(-3, 300)
        for day in days
        for text in ("a", "ä ")
    ]
    both.publish(rows)
    both.mirror()
    changed = [{**row, MARKER: 2 if row["n"] % 2 else 4, "amount": -0.0} for row in rows[5::7]]
    both.publish([*changed, change(4, 1_000, "new", day=days[0], amount=1.5)])
    both.mirror()
    both.check(["n", "day", "v", "amount"])
    assert sum(both.vectors()) == len(changed)


@pytest.mark.parametrize("key", ["n", "day", "text", "odd"])
@pytest.mark.long
def test_a_few_keys_are_searched_among_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(apply, "_MANY_ROWS", 10)
    both = AllWays(tmp_path, "t", [key])
    columns = ["n", "day", "text", "odd", "v"]

    def row(marker: int, n: int, v: str) -> dict[str, Any]:
        day = dt.date(2024, 1, 1) + dt.timedelta(n)
        return {
            MARKER: marker,
            "n": n,
            "day": day,
            "text": f"a {n}",
            "odd": f"'$\\{{ä}}{n}",
            "v": v,
        }

    both.publish([row(0, n, "first") for n in range(-20, 300)])
    both.mirror()
    numbers = (-20, 7, 8, 150, 299, 500)
    both.publish([row(2 if n == 8 else 4, n, "second") for n in numbers])
    both.mirror()
    both.check(columns)
    assert sum(both.vectors()) == len(numbers) - 1


def test_a_search_skips_pages_without_searched_keys(lake: Lake) -> None:
    numbers = np.arange(60_000)  # a page has 20,000 rows
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert(pa.table({"n": numbers, "v": numbers}))
    assert not lake.mirror().failed
    publisher.upsert([{"n": n, "v": -n} for n in (3, 47_000)])
    assert not lake.mirror().failed
    read: Any = lake.table("t").read().where("n = 47000")
    assert [tuple(row) for row in read.collect()] == [(47_000, -47_000)]
    scan = read._jdf.queryExecution().executedPlan().collectLeaves().head()
    assert scan.metrics().apply("numOutputRows").value() < 25_000


def test_keys_are_searched_before_hidden_columns_are_computed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    repeatable = apply.repeatable

    def kept(rows: Any) -> Any:
        plans.append(rows._jdf.queryExecution().executedPlan().toString())
        return repeatable(rows)

    monkeypatch.setattr(apply, "repeatable", kept)
    monkeypatch.setattr(apply, "_MANY_ROWS", 10)
    monkeypatch.setattr(apply, "_SEARCHED_KEYS", 0)
    publisher = lake.publisher("t", keys=["n", "g"])
    publisher.insert([{"n": n, "g": n % 2, "v": n} for n in range(20)])
    assert not lake.mirror().failed
    publisher.upsert([{"n": 3, "g": 1, "v": -3}, {"n": 4, "g": 1, "v": -4}])
    assert not lake.mirror().failed
    (plan,) = plans
    lines = plan.splitlines()
    search = next(place for place, line in enumerate(lines) if "LeftSemi" in line)
    hidden = next(place for place, line in enumerate(lines) if "row_commit_version" in line)
    assert hidden < search  # a plan begins with its last step
    assert "file_name" not in plan[plan.index("LeftSemi") :].split("BroadcastExchange")[0]
    assert bag_by_spark(lake, "t", ["n", "g", "v"])[(3, 1, -3)] == 1


def test_a_commit_reads_no_state_that_the_checksum_has(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "a"} for n in range(10)])
    lake.mirror(deletion_vectors=True)
    with transaction(lake.spark, lake.storage.path("Tables/t")) as txn:
        known = lake.table("t").snapshot().txns
        (app_id,) = known
        assert txn.has_seen(app_id, known[app_id])
        assert not txn.has_seen(app_id, known[app_id] + 1)
        assert not txn.has_seen("another", 1)
        assert not txn._snapshot._computedStateTriggered()


def test_a_statement_reads_no_state_that_the_checksum_has(lake: Lake) -> None:
    lake.publisher("t", keys=["n"]).insert([{"n": n, "v": "a"} for n in range(10)])
    lake.mirror()
    path = lake.storage.path("Tables/t")
    before = []
    for number in (10, 11):
        with transaction(lake.spark, path) as txn:
            before.append(txn._snapshot)
        lake.spark.sql(f"INSERT INTO delta.`{path}` VALUES ({number}, 'b')")
    assert not any(snapshot._computedStateTriggered() for snapshot in before)
    counted = [(snapshot.numOfFiles(), snapshot.sizeInBytes()) for snapshot in before]
    computed = [snapshot.computedState() for snapshot in before]
    assert counted == [(state.numOfFiles(), state.sizeInBytes()) for state in computed]
    rows = lake.table("t").read().selectExpr("_metadata.row_id AS id").collect()
    assert len({row.id for row in rows}) == 12


def test_nor_does_one_after_another_writers_commit(lake: Lake, tmp_path: Path) -> None:
    lake.publisher("t", keys=["n"]).insert([{"n": n, "v": "a"} for n in range(10)])
    lake.mirror()
    table, elsewhere = Path(lake.storage.path("Tables/t")), tmp_path / "elsewhere"
    shutil.copytree(table, elsewhere)
    lake.spark.sql(f"INSERT INTO delta.`{elsewhere}` VALUES (10, 'b')")
    with transaction(lake.spark, str(table)) as txn:
        before = txn.version
    shutil.copytree(elsewhere, table, dirs_exist_ok=True)
    with transaction(lake.spark, str(table)) as txn:
        assert txn.version == before + 1
        assert txn._snapshot.numOfFiles() == 2
        assert not txn.has_seen("another", 1)
        assert not txn._snapshot._computedStateTriggered()


def test_row_ids_stay_distinct_without_a_checksum(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "a"} for n in range(10)])
    lake.mirror(deletion_vectors=True)
    for number in range(3):
        for checksum in Path(lake.storage.path("Tables/t/_delta_log")).glob("*.crc"):
            checksum.unlink()
        forget_logs(lake.spark._jvm)
        publisher.upsert([{"n": number, "v": "b"}, {"n": 100 + number, "v": "new"}])
        lake.mirror()
    rows = lake.table("t").read().selectExpr("n", "v", "_metadata.row_id AS id").collect()
    assert len({row.id for row in rows}) == len(rows) == 13
    assert {row.n for row in rows if row.v == "b"} == {0, 1, 2}


@pytest.mark.parametrize("searched", ["duckdb", "spark"])
def test_deleted_rows_are_not_found_in_a_large_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, searched: str
) -> None:
    monkeypatch.setattr(apply, "_MANY_ROWS", 1)
    monkeypatch.setattr(apply, "_SEARCHED_KEYS", 0)
    searches: list[Any] = []
    run = key_search.KeySearch.run

    def counted(search: Any, *given: Any) -> Any:
        searches.append(search)
        return run(search, *given)

    monkeypatch.setattr(key_search.KeySearch, "run", counted)
    if searched == "duckdb":
        monkeypatch.setattr(key_search, "MANY_ROWS", 1)
    publisher = lake.publisher("t", keys=["n"])
    rows = dict.fromkeys(range(60), 0)
    publisher.insert([{"n": n, "v": v} for n, v in rows.items()])
    lake.mirror(deletion_vectors=True)
    chance, table = np.random.default_rng(1), lake.table("t")
    first = table.version
    feeds: list[Counter[tuple[Any, ...]]] = []
    for version in range(1, 6):
        keys = [int(n) for n in chance.choice(8, 5, replace=False)]
        changes: Counter[tuple[Any, ...]] = Counter()
        for n in keys:
            new = None if n % 3 == version % 3 else version
            old = rows.pop(n, None)
            if new is None:
                publisher.delete([{"n": n}])
                changes += Counter([("delete", n, old)] if old is not None else [])
                continue
            publisher.upsert([{"n": n, "v": new}])
            rows[n] = new
            kinds = ("insert",) if old is None else ("update_preimage", "update_postimage")
            changes += Counter((k, n, old if k == "update_preimage" else new) for k in kinds)
        assert not lake.mirror().failed
        feeds.append(changes)
        assert bag_by_spark(lake, "t", ["n", "v"]) == Counter(rows.items())
    for place, changes in enumerate(feeds, first + 1):
        feed = table.changes.read(place, place).select("_change_type", "n", "v").collect()
        assert Counter(map(tuple, feed)) == changes
    assert bool(searches) == (searched == "duckdb")


def test_row_groups_are_limited(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "_ROWS_A_GROUP", 100)
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n} for n in range(250)])
    lake.mirror()
    (file,) = Path(lake.storage.path("Tables/t")).glob("*.parquet")
    footer = pq.read_metadata(file)
    counts = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]
    assert counts == [100, 100, 50]


def test_rows_of_a_table_without_row_tracking(lake: Lake) -> None:
    """Test a table whose rows have no positions, so that its files are rewritten."""
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "a"} for n in range(3)])
    lake.mirror(deletion_vectors=False)
    table = lake.table("t")
    off = "SET TBLPROPERTIES (delta.enableRowTracking = false)"
    lake.spark.sql(f"ALTER TABLE {table.sql_name} {off}")
    publisher.upsert([{"n": 1, "v": "b"}])
    publisher.delete([{"n": 2}])
    assert not lake.mirror().failed
    assert {row["n"]: row["v"] for row in table.read().collect()} == {0: "a", 1: "b"}


@pytest.mark.parametrize("vectors", [pytest.param(True, marks=pytest.mark.long), False])
def test_updated_rows_keep_their_ids_and_get_a_new_version(
    lake: Lake, vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_COPIED_ROWS", 4)  # a file is rewritten as three files
    monkeypatch.setattr(exchange, "_ROWS_A_FILE", 2)
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "a"} for n in range(10)])
    lake.mirror(deletion_vectors=vectors)

    def ids() -> dict[int, tuple[int, int]]:
        rows = (
            lake.table("t")
            .read()
            .selectExpr("n", "_metadata.row_id AS id", "_metadata.row_commit_version AS version")
        )
        return {row["n"]: (row["id"], row["version"]) for row in rows.collect()}

    before = ids()
    publisher.upsert([{"n": 3, "v": "a"}])
    assert not lake.mirror().failed
    files = live_files(lake.storage, "Tables/t", lake.table("t").snapshot().version)
    parts = min(3, lake.spark.sparkContext.defaultParallelism)
    assert len(files) == (2 if vectors else parts + 1)
    for _ in range(2):
        publisher.upsert([{"n": 3, "v": "b"}, {"n": 50, "v": "c"}])
        publisher.delete([{"n": 4}])
        assert not lake.mirror().failed
    after, version = ids(), lake.table("t").snapshot().version
    assert after[3] == (before[3][0], version)
    assert after[50][1] == version
    assert after[50][0] not in {row_id for row_id, _ in before.values()}
    assert {n: after[n] for n in (0, 1, 9)} == {n: before[n] for n in (0, 1, 9)}
    assert 4 not in after
    known = lake.table("t").row_tracking.history(key=3)
    assert known.ids == (before[3][0],)
    assert max(event["_commit_version"] for event in known.events.collect()) == version


@pytest.mark.long
def test_every_type_names_with_spaces_and_composed_keys(tmp_path: Path) -> None:
    both = AllWays(tmp_path, "a b%41ü", ["a key", "day"])
    row = {
        "a key": "ü%41 b", "day": dt.date(2024, 1, 31), "d": Decimal("1.50"), "f": float("nan"),
        "t": dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), "b": b"\0", "y": True,
    }  # fmt: skip
    rows = [row | {"a key": key, MARKER: 0} for key in ("ü%41 b", "plain", "x")]
    both.publish(pa.Table.from_pylist(rows))
    both.mirror()
    changed = [row | {"d": None, MARKER: 1}, row | {"a key": "x", MARKER: 2}]
    both.publish(pa.Table.from_pylist(changed))
    both.mirror()
    columns = ["a key", "day", "d", "t", "b", "y"]
    both.check(columns)
    assert both.vectors() == [2]


@pytest.mark.long
def test_a_table_goes_from_one_way_to_the_other_at_any_cycle(tmp_path: Path) -> None:
    both = AllWays(tmp_path, "t", ["n"])
    both.publish([change(0, n, "first") for n in range(20)])
    both.mirror(marks=False)
    for cycle in range(4):
        # MERGE applies the new column of the second cycle; vectors are enabled from the first.
        more = {"w": "wide"} if cycle >= 1 else {}
        both.publish([change(4, cycle, "new", **more), change(2, cycle + 10, None, **more)])
        both.mirror()
        both.check(["n", "v", *more])
        assert both.marks.table("t").snapshot().properties[VECTORS] == "true"
    assert both.vectors()
    # A cycle without the option does not disable them: the table keeps deletion vectors.
    both.publish([change(4, 5, "after")])
    for lake in (both.merge, both.marks, both.plain):
        assert not lake.mirror().failed
    both.check(["n", "v", "w"])
    assert VECTORS not in both.merge.table("t").snapshot().properties


@pytest.mark.long
def test_without_a_feed_or_row_ids_rows_change_alike(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "a"} for n in range(10)])
    lake.mirror(deletion_vectors=True)
    lake.spark.sql(
        f"ALTER TABLE delta.`{lake.table('t').path}` SET TBLPROPERTIES"
        " ('delta.enableChangeDataFeed' = 'false', 'delta.enableRowTracking' = 'false')"
    )
    publisher.write([change(4, 3, "b"), change(2, 4, None), change(0, 11, "c")])
    assert not lake.mirror().failed
    expected = Counter((n, "a") for n in range(10) if n not in (3, 4))
    assert bag_by_spark(lake, "t", ["n", "v"]) == expected + Counter([(3, "b"), (11, "c")])


def test_many_changes_rewrite_large_files() -> None:
    file = {"records": 1_000_000, "size": 20 * 2**20}
    assert not apply.is_rewrite_cheaper([file], 200_000)
    assert apply.is_rewrite_cheaper([file], 300_000)
    assert not apply.is_rewrite_cheaper([file, file], 300_000)
    assert not apply.is_rewrite_cheaper([{"records": 10, "size": 1000}], 10)
    assert not apply.is_rewrite_cheaper([], 10)


@pytest.mark.long
def test_too_many_deleted_rows_are_purged_in_the_same_cycle(tmp_path: Path) -> None:
    both = AllWays(tmp_path, "t", ["n"])
    numbers = np.arange(100_000)
    both.publish(changes(numbers, 0))
    both.mirror()
    both.publish(changes(numbers[:19_990], 2))
    both.mirror()
    assert both.vectors() == [19_990]
    both.publish(changes(numbers[-3000:], 4))
    both.mirror()
    assert both.vectors() == []
    both.check(["n"])


def changes(numbers: Any, marker: int) -> pa.Table:
    markers = pa.array(np.full(len(numbers), marker, np.int32))
    return pa.table({"n": pa.array(numbers, pa.int64()), MARKER: markers})


@pytest.mark.long
def test_vectors_are_dropped_for_readers_without_them_and_come_back(tmp_path: Path) -> None:
    both = AllWays(tmp_path, "t", ["n"])
    both.publish([change(0, n, "first") for n in range(10)])
    both.mirror()
    both.publish([change(4, 3, "new"), change(2, 4, None)])
    both.mirror()
    table = both.marks.table("t")
    assert both.vectors() == [2]
    with pytest.raises(DeltaProtocolError):
        DeltaTable(table.path).to_pyarrow_table()
    assert not table.optimize.purge(drop_vectors=True, dry_run=True).applied
    done = table.optimize.purge(drop_vectors=True)
    assert (done.applied, done.version) == (True, table.version)
    assert "deletionVectors" not in table.snapshot().reader_features
    read = DeltaTable(table.path).to_pyarrow_table().to_pydict()
    assert Counter(zip(read["n"], read["v"], strict=True)) == bag_by_spark(
        both.merge, "t", ["n", "v"]
    )
    for vectors in (False, True):
        both.publish([change(4, 5, f"then {vectors}")])
        both.mirror(marks=vectors)
        both.check(["n", "v"])
        assert both.vectors() == [1] * vectors


@pytest.mark.long
def test_new_tables_follow_the_lakes_defaults(lake: Lake, run: Any) -> None:
    for table, keys in (("first", ["n"]), ("log", [])):
        lake.publisher(table, keys=keys).insert([{"n": 1}])
    lake.mirror()
    assert lake.table("first").snapshot().has_vectors
    assert lake.table("log").snapshot().protocol["minReaderVersion"] == 1
    note = "1 table: delta-rs' to_pandas, Daft and DataFusion raise an error on deletion vectors"
    assert lake.status().notes[0].startswith(note)
    root = lake.storage.root
    unset = {"deletion_vectors": None, "vorder": False, "safe_names": False}
    assert run("defaults", root, "--json") == unset
    run("defaults", root, "--no-deletion-vectors", "--dry-run")
    assert lake.operations.defaults().deletion_vectors is None
    found = run("defaults", root, "--no-deletion-vectors", "--json")
    assert found == unset | {"deletion_vectors": False}
    assert lake.operations.defaults(vorder=False).deletion_vectors is False
    publisher = lake.publisher("before", keys=["n"])
    for new in (publisher, lake.publisher("first", keys=["n"])):
        new.insert([{"n": 2}])
    lake.mirror()
    assert lake.table("first").snapshot().has_vectors
    assert not lake.table("before").snapshot().has_vectors
    publisher.upsert([{"n": 3}])
    run("mirror", root, "--table", "before", "--deletion-vectors")
    assert lake.table("before").snapshot().has_vectors
    run("reorg", root, "before", "--drop-vectors")
    assert not lake.table("before").snapshot().has_vectors


@pytest.mark.long
def test_a_cycle_like_the_one_before_compiles_nothing(lake: Lake) -> None:
    metrics: Any = lake.spark
    compiled = metrics._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    publisher = lake.publisher("t", keys=["n"])
    publisher.insert([{"n": n, "v": "a"} for n in range(1_000)])
    lake.mirror(deletion_vectors=True)
    counts = []
    for number in range(6):
        publisher.upsert([{"n": n, "v": f"b{number}"} for n in range(number, 1_000, 100)])
        before = compiled.getCount()
        assert not lake.mirror().failed
        counts.append(compiled.getCount() - before)
    assert counts[0] > 0  # otherwise nothing was compiled
    assert counts[-1] == 0, counts
