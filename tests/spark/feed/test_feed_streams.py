"""Test the feed as a stream, the ways to enable it, and cursors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from helpers.feed_model import RESERVED
from helpers.quiet import commit_quietly
from helpers.tables import describe_history
from mirrorlake import Lake, Table
from mirrorlake.delta.snapshot import FEED
from mirrorlake.errors import FeedError, InvalidNameError, UsageError
from mirrorlake.feed import doctor, ranges
from mirrorlake.spark.sql import delta_name

Change = tuple[int, str, int]


def drain(stream: DataFrame, checkpoint: Path) -> list[list[Change]]:
    """Run a stream of (id, …) with availableNow, and return one list per micro-batch."""
    batches: list[list[Change]] = []

    def take(rows: DataFrame, _number: int) -> None:
        found = rows.select("_commit_version", "_change_type", "id").collect()
        batches.append(sorted(tuple(row) for row in found))

    writer = stream.writeStream.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).foreachBatch(take).start().awaitTermination()
    return batches


def flat(batches: list[list[Change]]) -> list[Change]:
    return sorted(change for batch in batches for change in batch)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table: 0 creates, 1 and 2 insert two files each, 3 updates a row, 4 deletes one."""
    lake = Lake(tmp_path_factory.mktemp("made") / "lake")
    table = lake.create_table("t", {"id": "INT", "v": "STRING"})
    for version in (1, 2):
        rows = lake.spark.range(version * 10, version * 10 + 4, 1, 2)
        rows.selectExpr("int(id) AS id", "'a' AS v").write.format("delta").mode("append").save(
            table.path
        )
    lake.spark.sql(f"UPDATE {table.sql_name} SET v = 'b' WHERE id = 10")
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE id = 11")
    return Path(table.path)


@pytest.fixture
def table(lake: Lake, made: Path) -> Table:
    """Return a copy of the table."""
    shutil.copytree(made, lake.storage.path("Tables/t"))
    return lake.table("t")


INSERTS = [(v, "insert", v * 10 + n) for v in (1, 2) for n in range(4)]
CHANGES = [(3, "update_postimage", 10), (3, "update_preimage", 10), (4, "delete", 11)]


@pytest.mark.promise("CF-04", "CF-05", "CF-06", "CF-13")
def test_streams_from_the_snapshot_from_a_version_and_after_a_loss(
    table: Table, tmp_path: Path
) -> None:
    snapshot = sorted((4, "insert", n) for n in (10, 12, 13, 20, 21, 22, 23))
    stream = table.changes.stream()
    assert flat(drain(stream, tmp_path / "a")) == snapshot
    at = (
        describe_history(table)
        .where("version = 4")
        .selectExpr("CAST(timestamp AS STRING)")
        .first()[0]
    )
    assert flat(drain(table.changes.stream(at), tmp_path / "c")) == CHANGES[2:]
    # The target is complete up to the newest version, and the checkpoint is lost.
    assert flat(drain(table.changes.stream(5), tmp_path / "d")) == []
    table.spark.sql(f"INSERT INTO {table.sql_name} VALUES (50, 'x')")
    new = [(5, "insert", 50)]
    # Data and changes become visible with the same commit.
    assert table.changes.read(5).count() == table.read(version=5).where("id = 50").count() == 1
    assert flat(drain(stream, tmp_path / "a")) == new
    assert flat(drain(table.changes.stream(5), tmp_path / "d")) == new
    assert flat(drain(table.changes.stream(3), tmp_path / "e")) == CHANGES + new
    bounded = flat(drain(table.changes.stream(1, 3), tmp_path / "f"))
    assert bounded == INSERTS + CHANGES[:2]
    for kind in ("property", "vorder", "compact", "miss"):
        commit_quietly(table, kind)
    assert flat(drain(table.changes.stream(3), tmp_path / "e")) == []
    assert table.changes.read(6).count() == 0
    table.spark.sql(f"INSERT INTO {table.sql_name} VALUES (60, 'x')")
    assert flat(drain(table.changes.stream(3), tmp_path / "e")) == [(10, "insert", 60)]
    with pytest.raises(UsageError, match="needs a start"):
        table.changes.stream(end=3)
    with pytest.raises(FeedError, match="beyond the newest version, 10"):
        table.changes.stream(12)
    table.spark.conf.set(ranges.BEYOND_CONF, "true")
    try:
        assert flat(drain(table.changes.stream("2999-01-01"), tmp_path / "h")) == []
        assert flat(drain(table.changes.stream(12), tmp_path / "g")) == []
        for version in (11, 12):  # nothing is returned until the first version exists
            table.spark.sql(f"INSERT INTO {table.sql_name} VALUES ({version}, 'x')")
        assert flat(drain(table.changes.stream(12), tmp_path / "g")) == [(12, "insert", 12)]
    finally:
        table.spark.conf.unset(ranges.BEYOND_CONF)


@pytest.mark.promise("CF-08")
def test_limits_and_excluded_files(
    table: Table, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    by_files = drain(table.changes.stream(1, max_files=2), tmp_path / "a")
    assert flat(by_files) == INSERTS + CHANGES
    assert [len(batch) for batch in by_files] == [4, 4, 3]
    by_bytes = drain(table.changes.stream(1, max_bytes="1b"), tmp_path / "b")
    assert flat(by_bytes) == INSERTS + CHANGES
    assert len(by_bytes) > len(by_files)
    # A stream never splits a version that has change files, however low the limit.
    for batches in (by_bytes, drain(table.changes.stream(3, max_files=1), tmp_path / "e")):
        for version in (3, 4):
            assert sum(version in {c[0] for c in batch} for batch in batches) == 1
    kept = drain(table.changes.stream(1, exclude_regex="part-00001"), tmp_path / "c")
    assert len(flat(kept)) < len(INSERTS + CHANGES)
    assert {c for c in flat(kept) if c[0] > 2} == set(CHANGES)
    # Without the guard, this pattern would exclude every file, change files included.
    none = drain(table.changes.stream(1, exclude_regex="parquet$"), tmp_path / "d")
    assert flat(none) == CHANGES
    # Only a snapshot, which is not a commit, may be split; all of it is delivered.
    parts = drain(table.changes.stream(max_files=1), tmp_path / "f")
    assert len(parts) > 1
    assert {change[0] for change in flat(parts)} == {4}
    assert [change[2] for change in flat(parts)] == [10, 12, 13, 20, 21, 22, 23]
    # A cursor's batches never split a version, not even insert-only ones, with any limit.
    limited: list[tuple[dict[str, Any], list[set[int]]]] = [
        ({"max_bytes": 1}, [{1}, {2}, {3}, {4}]),
        ({"max_files": 3, "max_bytes": 10**9}, [{1}, {2, 3}, {4}]),
        ({"max_files": 1}, [{1}, {2}, {3}, {4}]),
        ({"end": 3}, [{1, 2, 3}]),
    ]
    for number, (limits, expected) in enumerate(
        limited if pytestconfig.getoption("--long") else limited[:2]
    ):
        seen: list[set[int]] = []
        table.changes.cursor(f"whole {number}", start=1).for_each(
            lambda batch, seen=seen: seen.append({row[0] for row in versions(batch.rows)}),
            **limits,
        )
        assert seen == expected


def test_an_exclusion_loses_no_change_under_column_mapping(lake: Lake, tmp_path: Path) -> None:
    rows = lake.spark.range(4)
    properties = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
    mapped = lake.write("mapped", rows, properties=properties)
    lake.spark.sql(f"UPDATE {mapped.sql_name} SET id = 9 WHERE id = 3")
    assert not list(Path(mapped.path).glob("_change_data"))  # Delta distributes them
    version = mapped.snapshot().version
    kept = drain(mapped.changes.stream(version, exclude_regex="parquet$"), tmp_path / "c")
    assert sum(len(batch) for batch in kept) == 2


@pytest.mark.promise("CF-06")
def test_a_lost_checkpoint_of_a_target_that_is_complete_up_to_75(
    lake: Lake, tmp_path: Path
) -> None:
    path = lake.storage.path("Tables/source")
    for number in range(76):  # version n inserts row n
        write_deltalake(
            path,
            pa.table({"id": pa.array([number], pa.int64())}),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"} if number == 0 else None,
        )
    DeltaTable(path, version=70).create_checkpoint()
    for version in range(70):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()
    source = lake.table("source")
    target = lake.storage.path("Tables/target")
    source.read(version=75).write.format("delta").save(target)

    def go_on() -> list[int]:
        rows = source.changes.stream(76).where("_change_type = 'insert'").select("id")
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "new"))
        writer.trigger(availableNow=True).start(target, format="delta").awaitTermination()
        return sorted(row.id for row in lake.table("target").read().collect())

    assert go_on() == list(range(76))  # the target is complete
    lake.spark.sql(f"INSERT INTO {source.sql_name} VALUES (76)")
    assert go_on() == go_on() == list(range(77))
    with pytest.raises(FeedError, match=r"no longer contains version 69.*start at version 70"):
        source.changes.stream(69)


def test_a_stream_goes_on_after_columns_were_renamed_and_dropped(
    lake: Lake, tmp_path: Path
) -> None:
    rows = lake.spark.range(1).selectExpr("id", "'a' AS v", "1 AS gone")
    properties = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
    table = lake.write("t", rows, properties=properties)
    first = table.snapshot().version
    seen: list[tuple[Any, ...]] = []

    def take(batch: DataFrame, _number: int) -> None:
        data = [name for name in batch.columns if name not in RESERVED]
        seen.extend((tuple(data), *row) for row in batch.select(*data).collect())

    def run() -> None:
        stream = table.changes.stream(first, schema_tracking=str(tmp_path / "cp" / "schema"))
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "cp"))
        writer.trigger(availableNow=True).foreachBatch(take).start().awaitTermination()

    def stops() -> list[str]:
        """Run the stream to its end, and return the reasons for which it stopped."""
        reasons: list[str] = []
        while len(reasons) < 5:
            try:
                run()
            except StreamingQueryException as error:
                reasons.append(str(error))
            else:
                break
        return reasons

    stops()
    lake.spark.sql(f"ALTER TABLE {table.sql_name} RENAME COLUMN v TO w")
    lake.spark.sql(f"INSERT INTO {table.sql_name} VALUES (2, 'b', 2)")
    assert {"EVOLUTION" in reason for reason in stops()} == {True}
    lake.spark.sql(f"ALTER TABLE {table.sql_name} DROP COLUMN gone")
    lake.spark.sql(f"INSERT INTO {table.sql_name} VALUES (3, 'c')")
    assert {"EVOLUTION" in reason for reason in stops()} == {True}
    assert seen == [
        (("id", "v", "gone"), 0, "a", 1),
        (("id", "w", "gone"), 2, "b", 2),
        (("id", "w"), 3, "c"),
    ]


def versions(rows: DataFrame) -> list[Any]:
    return rows.select("_commit_version").distinct().collect()


def test_a_cursor(table: Table) -> None:
    cursor = table.changes.cursor("reports")
    assert (cursor.position, cursor.lag.versions) == (-1, 5)
    batch = cursor.read(end=2)
    assert repr(batch) == "versions 0 to 2"
    assert batch.rows.count() == 8
    assert cursor.read(end=2).rows.count() == 8  # not committed, so the same batch comes again
    cursor.commit(batch)
    assert (cursor.position, cursor.lag.versions) == (2, 2)
    assert repr(cursor) == "reports: at version 2, 2 behind"
    assert cursor.lag.seconds > 0
    assert table.changes.cursor("audit", start=4).read().rows.count() == 1
    cursor.commit(cursor.read())
    nothing = cursor.read()
    assert (nothing.is_empty, repr(nothing), nothing.rows.count()) == (True, "nothing new", 0)
    assert nothing.rows.columns == ["id", "v", *RESERVED]
    assert cursor.lag.versions == cursor.lag.seconds == 0
    table.spark.sql(f"RESTORE TABLE {table.sql_name} TO VERSION AS OF 3")
    restored = cursor.read()
    assert {(r.id, r._change_type) for r in restored.rows.collect()} >= {(11, "insert")}
    cursor.commit(restored)
    assert cursor.read().is_empty
    kinds = ("property", "column", "miss")
    for kind in kinds:
        last = commit_quietly(table, kind)
    quiet = cursor.read(max_files=1)  # one batch, although many versions have no files
    assert (quiet.end, quiet.rows.count(), cursor.lag.versions) == (last, 0, len(kinds))
    cursor.commit(quiet)
    assert (cursor.read().is_empty, cursor.lag.versions) == (True, 0)
    table.spark.sql(f"INSERT INTO {table.sql_name} (id, v) VALUES (60, 'x')")
    commit_quietly(table, "property")
    assert cursor.for_each(lambda batch: None, max_files=1) == 1
    with pytest.raises(InvalidNameError):
        table.changes.cursor("../x")


def test_a_cursor_notices_that_its_table_was_made_again(lake: Lake) -> None:
    table = lake.create_table("t", {"id": "INT"})
    cursor = table.changes.cursor("c")
    cursor.commit(cursor.read())
    shutil.rmtree(table.path)
    again = lake.create_table("t", {"id": "INT"})
    with pytest.raises(FeedError, match="was recreated"):
        again.changes.cursor("c").read()
    again.changes.cursor("c").move(-1)
    assert again.changes.cursor("c").read().end == 0


@pytest.mark.promise("CF-01", "CF-02", "CF-03")
def test_switching_it_on(lake: Lake) -> None:
    spark = lake.spark

    def new(name: str, columns: str) -> Table:
        lake.sql(f"CREATE TABLE {name} ({columns})")
        return lake.table(name)

    lake.sql(
        "CREATE TABLE student (id INT, name STRING, age INT)"
        " TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    lake.sql("INSERT INTO student VALUES (1, 'Ada', 36)")
    assert [row.name for row in lake.table("student").changes.read(0).collect()] == ["Ada"]
    columns = {"the id": "INT", "_change_type_code": "STRING"}  # no reserved name
    made = lake.create_table("new", columns, keys=["the id"])
    assert (made.snapshot().properties[FEED], made.keys) == ("true", ("the id",))
    old = new("myDeltaTable", "id INT")
    spark.sql(f"INSERT INTO {old.sql_name} VALUES (1)")
    lake.sql("ALTER TABLE myDeltaTable SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(f"INSERT INTO {old.sql_name} VALUES (2)")
    assert [row.id for row in old.changes.read(2).collect()] == [2]
    with pytest.raises(FeedError, match=r"not enabled in version 1.*start at version 2"):
        old.changes.read(1)
    with pytest.raises(FeedError, match="not enabled"):
        old.changes.read("2000-01-01")
    with pytest.raises(FeedError, match="not enabled"):
        old.changes.stream(0)
    assert old.changes.enable() == 3  # no change
    for name, enable in {
        "by_setting": lambda: lake.sql(f"set {doctor.DEFAULT_CONF} = true;"),
        "by_call": lake.enable_feed_for_new_tables,
    }.items():
        enable()
        try:
            assert new(name, "id INT").snapshot().properties[FEED] == "true"
        finally:
            spark.conf.set(doctor.DEFAULT_CONF, "false")
    after = new("after", "id INT")
    assert after.snapshot().properties[FEED] == "false"
    assert after.changes.enable() == 1
    with pytest.raises(FeedError, match=r"_change_type.*Hint: rename"):
        lake.create_table("bad", {"_change_type": "STRING"})
    clash = new("clash", "id INT, `_Commit_Version` BIGINT, commit_version INT")
    with pytest.raises(FeedError, match=r"_Commit_Version.*rename"):
        clash.changes.enable()
    spark.sql(f"INSERT INTO {clash.sql_name} VALUES (1, 2, 3)")
    version = clash.changes.enable(rename_reserved=True)
    assert list(clash.snapshot().schema) == ["id", "Commit_Version_", "commit_version"]
    assert tuple(clash.read().first()) == (1, 2, 3)
    assert clash.changes.read(version).count() == 0


@pytest.mark.promise("CF-17")
def test_a_clone_has_a_feed_of_its_own(table: Table, lake: Lake) -> None:
    clone = delta_name(lake.storage.path("Tables/c"))
    lake.spark.sql(f"CREATE TABLE {clone} SHALLOW CLONE {table.sql_name} VERSION AS OF 2")
    lake.spark.sql(f"DELETE FROM {clone} WHERE id < 20")
    found = (
        lake.table("c")
        .changes.read(0)
        .selectExpr("_commit_version", "_change_type", "id")
        .collect()
    )
    inserted = [(0, "insert", row[2]) for row in INSERTS]
    gone = [(1, "delete", n) for n in range(10, 14)]
    assert sorted(tuple(row) for row in found) == sorted(inserted + gone)
    assert table.changes.read(0).count() == len(INSERTS + CHANGES)
    notes = [(f.rule, f.blocks) for f in lake.table("c").changes.diagnose().findings]
    assert notes == [("clone", False)]


@pytest.mark.promise("CF-14", "CF-15")
def test_where_change_files_are_written_and_how_long_they_last(lake: Lake) -> None:
    lake.spark.sql(
        f"CREATE TABLE {delta_name(lake.storage.path('Tables/t'))} (id INT, part INT, v STRING)"
        " USING delta PARTITIONED BY (part) TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    table = lake.table("t")
    folder = Path(table.path) / "_change_data"

    def files() -> int:
        return len(list(folder.rglob("*.parquet")))

    lake.spark.sql(
        f"INSERT INTO {table.sql_name} SELECT /*+ REPARTITION(2, part) */ * FROM"
        " (SELECT id, id % 2 AS part, 'a' AS v FROM range(8000))"
    )
    lake.spark.sql(f"DELETE FROM {table.sql_name} WHERE part = 1")
    assert files() == 0
    assert table.changes.read(1).count() == 12_000
    counts = []
    for statement in (
        "UPDATE {} SET v = 'b' WHERE id = 0",
        "DELETE FROM {} WHERE id = 2",
        "MERGE INTO {} t USING (SELECT 4 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ):
        lake.spark.sql(statement.format(table.sql_name))
        counts.append(files())
    assert 0 < counts[0] < counts[1] < counts[2]
    # Change files are smaller than the files that were rewritten.
    rewritten = [path.stat().st_size for path in Path(table.path).glob("part=0/*.parquet")]
    assert sum(path.stat().st_size for path in folder.rglob("*.parquet")) < sum(rewritten) / 2
    # Old versions are read with the newest columns.
    lake.spark.sql(f"ALTER TABLE {table.sql_name} ADD COLUMN late INT")
    inserted = table.changes.read(1, 1)
    assert inserted.columns == ["id", "part", "v", "late", *RESERVED]
    assert inserted.where("late IS NOT NULL").count() == 0
    lake.spark.sql(f"VACUUM {table.sql_name}")  # within the retention, so everything is kept
    assert files() == counts[2]
    lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    lake.spark.sql(f"VACUUM {table.sql_name} RETAIN 0 HOURS")
    assert files() == 0
    assert "missing-file" in {f.rule for f in table.changes.diagnose().findings}
