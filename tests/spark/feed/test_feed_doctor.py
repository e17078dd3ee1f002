"""Test that readable versions of a diagnosis can be read, and that the others can't.

The tables go through all problems; then all ranges of versions are tried.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from mirrorlake import Lake, Table
from mirrorlake.errors import FeedError
from mirrorlake.feed import doctor, ranges
from mirrorlake.spark.sql import delta_name

ON = "delta.enableChangeDataFeed = true"


def make(lake: Lake, name: str, *statements: str) -> Table:
    """Create a table by statements in which `T` is its name."""
    sql_name = delta_name(lake.storage.path(f"Tables/{name}"))
    for statement in statements:
        lake.spark.sql(statement.replace("{T}", sql_name))
    return lake.table(name)


def is_read(table: Table, start: int, end: int) -> bool:
    try:
        ranges.read_feed(table.spark, table.path, start, end).collect()
    except Exception:
        return False
    return True


def check_every_range(table: Table) -> doctor.Diagnosis:
    """Compare prediction and outcome for every range, and return the diagnosis of all."""
    whole = table.changes.diagnose()
    for start in range(whole.start, whole.end + 1):
        for end in range(start, whole.end + 1):
            predicted = any(a <= start and end <= b for a, b in whole.readable)
            assert is_read(table, start, end) == predicted, (start, end, whole.findings)
            part = table.changes.diagnose(start, end)
            assert bool(part.blocking) != predicted, (start, end)
    return whole


def check_longest_ranges(table: Table) -> doctor.Diagnosis:
    """Check with fewer reads that readable ranges can be read and can't be extended."""
    whole = table.changes.diagnose()
    for start, end in whole.readable:
        assert is_read(table, start, end), (start, end)
        assert start == whole.start or not is_read(table, start - 1, end), (start - 1, end)
        assert end == whole.end or not is_read(table, start, end + 1), (start, end + 1)
    good = {v for start, end in whole.readable for v in range(start, end + 1)}
    for version in {*range(whole.start, whole.end + 1)} - good:
        assert not is_read(table, version, version), version
    return whole


def rules(diagnosis: doctor.Diagnosis) -> list[tuple[str, tuple[int, int], bool]]:
    return [(f.rule, f.versions, f.blocks) for f in diagnosis.findings]


@pytest.mark.long  # the table below has these problems as well
@pytest.mark.promise("CF-18")
def test_column_mapping(lake: Lake) -> None:
    table = make(
        lake,
        "mapped",
        "CREATE TABLE {T} (id INT NOT NULL, a STRING, s STRUCT<x: INT, y: INT>) USING delta"
        f" TBLPROPERTIES ({ON}, delta.columnMapping.mode = 'name',"
        " delta.enableTypeWidening = true)",
        "INSERT INTO {T} VALUES (1, 'x', struct(1, 2))",  # 1
        "ALTER TABLE {T} RENAME COLUMN a TO aa",  # 2
        "ALTER TABLE {T} DROP COLUMN s.y",  # 3
        "INSERT INTO {T} VALUES (2, 'y', struct(3))",  # 4
        "ALTER TABLE {T} ALTER COLUMN id DROP NOT NULL",  # 5
        "ALTER TABLE {T} ADD COLUMN late INT",  # 6
        "ALTER TABLE {T} ALTER COLUMN id TYPE BIGINT",  # 7
        "UPDATE {T} SET late = 5",  # 8
    )
    whole = check_every_range(table)
    assert [r for r in rules(whole) if r[2]] == [
        ("schema", (2, 2), True),
        ("schema", (3, 3), True),
        ("schema", (7, 7), True),
    ]
    assert whole.readable == ((0, 1), (2, 2), (3, 6), (7, 8))
    with pytest.raises(FeedError, match=r"Version 2 renames column a to aa.*Readable: 1, 2"):
        table.changes.read(1, 2)
    with pytest.raises(FeedError, match="from integer to long"):
        table.changes.read(6)
    assert table.changes.read(1, 1).columns[:3] == [
        "id",
        "a",
        "s",
    ]  # a range has the columns of its end
    assert table.changes.read(3, 6).columns[:4] == ["id", "aa", "s", "late"]


@pytest.mark.long
def test_every_other_trouble_at_once(lake: Lake) -> None:
    table = make(
        lake,
        "t",
        "CREATE TABLE {T} (id INT, n INT) USING delta",
        "INSERT INTO {T} VALUES (1, 1), (2, 2)",  # 1
        f"ALTER TABLE {{T}} SET TBLPROPERTIES ({ON}, delta.enableTypeWidening = true)",  # 2
        "INSERT INTO {T} VALUES (3, 3)",  # 3
        "ALTER TABLE {T} ALTER COLUMN n TYPE BIGINT",  # 4
        "UPDATE {T} SET n = 30 WHERE id = 3",  # 5
        "UPDATE {T} SET n = 31 WHERE id = 3",  # 6
        "INSERT OVERWRITE {T} SELECT * FROM {T}",  # 7
        "RESTORE TABLE {T} TO VERSION AS OF 6",  # 8
        "DELETE FROM {T} WHERE id = 1",  # 9
    )
    log = Path(table.path) / "_delta_log"
    gone = (log / f"{5:020d}.json").read_text().split('"cdc":{"path":"')[1].split('"')[0]
    (Path(table.path) / gone).unlink()
    whole = check_every_range(table)
    assert rules(whole) == [
        ("feed-off", (0, 1), True),
        ("schema", (0, 3), True),
        ("missing-file", (5, 5), True),
        ("overwrite", (7, 7), False),
        ("restore", (8, 8), False),
        ("readable", (4, 4), False),
        ("readable", (6, 9), False),
    ]
    document = whole.as_dict()["findings"]
    assert all(
        list(finding) == ["rule", "table", "file", "row", "column", "message", "fix"]
        for finding in document
    )
    assert document[2]["file"] == gone
    assert document[1]["column"] == "n"
    assert all(finding["fix"] for finding in document)
    assert "9 findings" not in repr(whole)
    assert "3 blocking" in repr(whole)
    bridged = table.changes.read(0, across_gaps=True)
    found = bridged.select("_commit_version", "_change_origin", "_change_type", "id", "n").collect()
    origins = {(row[0], row[1]) for row in found}
    assert origins == {(3, "snapshots"), (5, "snapshots"), *((v, "feed") for v in (6, 7, 8, 9))}
    assert state_after(found) == {(2, 2): 1, (3, 31): 1}


def state_after(found: list[Any]) -> dict[tuple[int, int], int]:
    """Return the table that results from all changes of a feed."""
    rows: dict[tuple[int, int], int] = {}
    for row in found:
        sign = 1 if row._change_type in ("insert", "update_postimage") else -1
        rows[row.id, row.n] = rows.get((row.id, row.n), 0) + sign
    return {row: count for row, count in rows.items() if count}


@pytest.mark.long
def test_a_table_made_again_and_versions_older_than_the_retention(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1, "v": "a"}])
    lake.mirror()  # 1
    shutil.rmtree(Path(lake.landing_zone) / "t")
    lake.publisher("t", keys=["id"]).write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    assert not lake.mirror().failed  # 2, another table of the same name
    table = lake.table("t")
    newest = table.snapshot().version
    whole = check_every_range(table)
    (made,) = (f for f in whole.findings if f.rule == "recreated")
    assert not made.blocks
    assert "another table of the same name" in made.message
    assert made.versions == (newest, newest) == (2, 2)
    before = table.changes.read(0, 1).collect()
    assert {(row.id, row._change_type) for row in before} == {(1, "insert")}
    # The age of a commit is its file's. In a copy, which is not cached, the first two are old.
    shutil.copytree(lake.storage.root, f"{lake.storage.root} copy")
    lake = Lake(f"{lake.storage.root} copy")
    table = lake.table("t")
    week_ago = time.time() - 8 * 24 * 3600
    for version in (0, 1):
        log = Path(table.path) / "_delta_log" / f"{version:020d}.json"
        os.utime(log, (week_ago + version, week_ago + version))
    whole = check_every_range(table)
    (old,) = (f for f in whole.findings if f.rule == "retention")
    assert (old.versions, old.blocks) == ((0, 1), False)
    assert "older than delta.deletedFileRetentionDuration" in old.message
    assert table.changes.read(0).count() == 4
    setting = old.fix.split()[1]  # from the fix
    lake.spark.conf.set(setting, "true")  # a plain session
    try:
        assert not is_read(table, 1, newest)
    finally:
        lake.spark.conf.set(setting, "false")


@pytest.mark.promise("CF-18")
def test_one_table_through_every_trouble(lake: Lake) -> None:
    table = make(
        lake,
        "all",
        "CREATE TABLE {T} (id INT, n INT NOT NULL, a STRING, b STRING) USING delta",
        "INSERT INTO {T} VALUES (1, 1, 'x', 'x'), (2, 2, 'y', 'y')",  # 1
        f"ALTER TABLE {{T}} SET TBLPROPERTIES ({ON}, delta.enableTypeWidening = true,"
        " delta.columnMapping.mode = 'name')",  # 2
    )

    def write(query: str, mode: str, life: str) -> None:
        """Write rows, and record the folder's incarnation as the mirror does."""
        rows = lake.spark.sql(query).write.format("delta")
        rows.option("userMetadata", json.dumps({"incarnation": life})).mode(mode).save(table.path)

    write("SELECT 3 AS id, 3 AS n, 'z' AS a, 'z' AS b", "append", "first")  # 3
    make(
        lake,
        "all",
        "ALTER TABLE {T} RENAME COLUMN a TO aa",  # 4
        "ALTER TABLE {T} DROP COLUMN b",  # 5
        "UPDATE {T} SET n = 30 WHERE id = 3",  # 6
        "ALTER TABLE {T} ALTER COLUMN n TYPE BIGINT",  # 7
        "UPDATE {T} SET n = 31 WHERE id = 3",  # 8, whose change file is deleted
        "INSERT OVERWRITE {T} SELECT * FROM {T}",  # 9
        "RESTORE TABLE {T} TO VERSION AS OF 8",  # 10
        "DELETE FROM {T} WHERE id = 1",  # 11
    )
    write("SELECT 1 AS id, 1L AS n, 'x' AS aa", "overwrite", "second")  # 12
    write("SELECT 2 AS id, 2L AS n, 'y' AS aa", "append", "second")  # 13
    make(
        lake,
        "all",
        "ALTER TABLE {T} ALTER COLUMN n DROP NOT NULL",  # 14, no break
        "INSERT INTO {T} VALUES (3, NULL, 'z')",  # 15
    )
    log = Path(table.path) / "_delta_log"
    (cdc,) = [line for line in (log / f"{8:020d}.json").read_text().splitlines() if '"cdc"' in line]
    (Path(table.path) / json.loads(cdc)["cdc"]["path"]).unlink()
    # Spark has no statement that makes a column NOT NULL.
    widened = [json.loads(line) for line in (log / f"{7:020d}.json").read_text().splitlines()]
    (metadata,) = [action["metaData"] for action in widened if "metaData" in action]
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["nullable"], schema["fields"][1]["nullable"] = False, True
    metadata["schemaString"] = json.dumps(schema)
    info = {"commitInfo": {"timestamp": 0, "operation": "CHANGE COLUMN", "operationParameters": {}}}
    lines = [json.dumps(action) for action in (info, {"metaData": metadata})]
    (log / f"{16:020d}.json").write_text("\n".join(lines) + "\n")
    # The age of a commit is its file's. In a copy, which is not cached, the first four are old.
    shutil.copytree(lake.storage.root, f"{lake.storage.root} copy")
    table = Lake(f"{lake.storage.root} copy").table("all")
    week_ago = time.time() - 8 * 24 * 3600
    for version in range(4):
        path = Path(table.path) / "_delta_log" / f"{version:020d}.json"
        os.utime(path, (week_ago + version, week_ago + version))
    whole = check_longest_ranges(table)
    found = rules(whole)
    assert {rule for rule in found if rule[2]} == {
        ("feed-off", (0, 1), True),
        ("schema", (4, 4), True),
        ("schema", (5, 5), True),
        ("schema", (7, 7), True),
        ("missing-file", (8, 8), True),
        ("schema", (16, 16), True),
    }
    notes = {rule[:2] for rule in found if not rule[2] and rule[0] != "readable"}
    assert notes == {
        ("retention", (0, 3)),
        ("overwrite", (9, 9)),
        ("restore", (10, 10)),
        ("overwrite", (12, 12)),
        ("recreated", (12, 12)),
    }
    assert whole.readable == ((2, 3), (4, 4), (5, 6), (7, 7), (9, 15), (16, 16))
    # A range has the columns of its end.
    columns = [table.changes.read(*ends).columns for ends in ((4, 4), (5, 6))]
    assert [some[: some.index("_change_type")] for some in columns] == [
        ["id", "n", "aa", "b"],
        ["id", "n", "aa"],
    ]
    said = " ".join(finding.message for finding in whole.blocking)
    for text in (
        "renames column a to aa",
        "drops column b",
        "column n from integer to long",
        "makes column id NOT NULL",
    ):
        assert text in said
    assert all(finding.fix for finding in whole.findings)


@pytest.mark.promise("CF-07")
def test_a_vacuumed_feed_and_a_lost_log(lake: Lake) -> None:
    table = make(
        lake,
        "v",
        "CREATE TABLE {T} (id INT, v STRING) USING delta"
        f" TBLPROPERTIES ({ON}, delta.checkpointInterval = 3)",
        "INSERT INTO {T} VALUES (1, 'a'), (2, 'b')",
        "UPDATE {T} SET v = 'c' WHERE id = 1",
        "UPDATE {T} SET v = 'd' WHERE id = 1",
    )
    assert not table.changes.diagnose().findings
    assert repr(table.changes.diagnose()) == "v, versions 0 to 3: 0 findings, 0 blocking"
    lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    lake.spark.sql(f"VACUUM {table.sql_name} RETAIN 0 HOURS")
    whole = check_longest_ranges(table)
    assert [r for r in rules(whole) if r[2]] == [("missing-file", (v, v), True) for v in (1, 2, 3)]
    with pytest.raises(FeedError, match=r"versions 2 to 3 are lost.*no version before"):
        table.changes.read(2, across_gaps=True)
    # A comparison of the newest version with an empty table is always possible.
    for start in (0, 1):
        rows = table.changes.read(start, across_gaps=True).collect()
        assert {tuple(row)[:4] for row in rows} == {(1, "d", "insert", 3), (2, "b", "insert", 3)}
    for version in range(3):
        (Path(table.path) / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(FeedError, match="no longer contains version"):
        table.changes.read(0)
    with pytest.raises(FeedError, match=r"no longer contains versions 1 to 2.*start at version 3"):
        table.changes.stream(1)
    assert rules(table.changes.diagnose())[0] == ("log-lost", (0, 2), True)


def test_a_gap_is_bridged_by_row_ids_where_there_are_some(lake: Lake) -> None:
    publisher = lake.publisher("ids", keys=["id"])
    publisher.write([{"id": n, "v": "a"} for n in range(4)])
    lake.mirror()  # 1
    publisher.update([{"id": 1, "v": "b"}])
    publisher.delete([{"id": 2}])
    publisher.upsert([{"id": 9, "v": "n"}])
    lake.mirror()  # 2, whose change files are deleted
    publisher.update([{"id": 1, "v": "c"}])
    assert not lake.mirror().failed  # 3
    table = lake.table("ids")
    log = (Path(table.path) / "_delta_log" / f"{2:020d}.json").read_text()
    for part in log.split('"cdc":{"path":"')[1:]:
        (Path(table.path) / part.split('"')[0]).unlink()
    found = table.changes.read(1, across_gaps=True)
    columns = ["_commit_version", "_change_origin", "_change_type", "id", "v"]
    assert sorted(tuple(row) for row in found.select(*columns).collect()) == [
        *((1, "feed", "insert", n, "a") for n in range(4)),
        (2, "row ids", "delete", 2, "a"),
        (2, "row ids", "insert", 9, "n"),
        (2, "row ids", "update_postimage", 1, "b"),
        (2, "row ids", "update_preimage", 1, "a"),
        (3, "feed", "update_postimage", 1, "c"),
        (3, "feed", "update_preimage", 1, "b"),
    ]
    table.optimize.purge()
    for vector in Path(table.path).glob("*.bin"):  # of versions 2 and 3
        vector.unlink()
    found = table.changes.read(1, across_gaps=True).where("_commit_version > 1")
    assert sorted(tuple(row) for row in found.select(*columns[1:]).collect()) == [
        ("row ids", "delete", 2, "a"),
        ("row ids", "insert", 9, "n"),
        ("row ids", "update_postimage", 1, "c"),
        ("row ids", "update_preimage", 1, "a"),
    ]
