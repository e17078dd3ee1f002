"""Test row tracking: enabling and disabling, operations that keep ids, and the warnings."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from mirrorlake import Lake, Table
from mirrorlake.delta import commits
from mirrorlake.errors import UsageError
from mirrorlake.spark.sql import delta_name

Ids = dict[int, tuple[int, int]]


def make(lake: Lake, name: str, *statements: str) -> Table:
    """Create a table by statements in which `{T}` is its name."""
    sql_name = delta_name(lake.storage.path(f"Tables/{name}"))
    for statement in statements:
        lake.spark.sql(statement.replace("{T}", sql_name))
    return lake.table(name)


def run(table: Table, statement: str) -> None:
    table.spark.sql(statement.replace("{T}", table.sql_name))


def ids(table: Table, version: int | None = None) -> Ids:
    """Return row id and commit version by the column `id`."""
    rows = table.row_tracking.read(version=version).select("id", "_row_id", "_row_commit_version")
    found = [tuple(row) for row in rows.collect()]
    by_key = {row[0]: (row[1], row[2]) for row in found}
    assert len({row_id for row_id, _ in by_key.values()}) == len(found)
    return by_key


def operations(table: Table, after: int) -> list[str]:
    newest = table.snapshot().version
    path = table.name.table_path
    versions = range(after + 1, newest + 1)
    return [
        commits.read_commit_info(table.storage, path, version)["operation"] for version in versions
    ]


def hidden_columns(table: Table) -> list[int]:
    """Return how many hidden columns for ids and commit versions each file has."""
    files = [file.removeprefix("file:") for file in table.read().inputFiles()]
    names = [pq.read_schema(file).names for file in sorted(files)]
    return [sum(name.startswith("_row-") for name in found) for found in names]


def rules(table: Table) -> list[tuple[str, tuple[int, int]]]:
    return [(finding.rule, finding.versions) for finding in table.row_tracking.status().findings]


@pytest.mark.promise("RT-01", "RT-03", "RT-09")
def test_at_creation(lake: Lake) -> None:
    columns = {"id": "INT", "v": "STRING"}
    lake.create_table("source_table", columns)
    lake.sql("INSERT INTO source_table SELECT CAST(id AS INT), 'a' FROM range(0, 3, 1, 1)")
    lake.sql(
        "CREATE TABLE created (id INT, v STRING) TBLPROPERTIES (delta.enableRowTracking = true)"
    )
    lake.sql(
        "CREATE TABLE table_name\n"
        "TBLPROPERTIES (delta.enableRowTracking = true)\n"
        "AS SELECT * FROM source_table;"
    )
    created, ctas = lake.table("created"), lake.table("table_name")
    empty = lake.create_table("empty", columns, row_tracking=True)
    written = lake.write("written", [{"id": 7, "_ROW_ID": 1}])
    for table in (created, ctas, empty, written):
        tracking = table.row_tracking.status()
        assert (tracking.enabled, tracking.supported) == (True, True)
        assert (tracking.numbered_from, tracking.trusted_from, tracking.findings) == (0, 0, ())
    assert ids(ctas) == {0: (0, 0), 1: (1, 0), 2: (2, 0)}
    # Hidden columns are returned only by name.
    assert ctas.read().columns == ["id", "v"]
    seen = lake.sql("SELECT id, _metadata.row_id, _metadata.row_commit_version FROM table_name")
    assert {tuple(row) for row in seen.collect()} == {(n, n, 0) for n in range(3)}
    assert [kind for _, kind in seen.dtypes[1:]] == ["bigint", "bigint"]
    with pytest.raises(UsageError, match="has a column _row_id of its own"):
        written.row_tracking.read()
    (row,) = written.row_tracking.read(names=("number", "since")).collect()
    assert (row.number, row.since) == (0, 1)
    # The protocol refuses a writer that lacks the feature, and nothing is written.
    more = pa.table({"id": pa.array([9], pa.int32()), "v": ["z"]})
    with pytest.raises(Exception, match=r"[Uu]nsupported.*RowTracking"):
        write_deltalake(ctas.path, more, mode="append")
    assert ctas.snapshot().version == 0
    plain = lake.create_table("plain", columns, feed=False)
    write_deltalake(plain.path, more, mode="append")
    assert not plain.row_tracking.status().enabled
    assert plain.read().count() == 1
    with pytest.raises(UsageError, match=r"not tracked in version 1.*enable"):
        plain.row_tracking.read()


@pytest.mark.promise("RT-02", "RT-07")
def test_later_off_again_and_dropped(lake: Lake) -> None:
    table = make(
        lake,
        "t",
        "CREATE TABLE {T} (id INT, v STRING) USING delta"
        " TBLPROPERTIES (delta.enableChangeDataFeed = true)",
        "INSERT INTO {T} SELECT /*+ REPARTITION(2) */ CAST(id AS INT), 'a' FROM range(6)",  # 1
    )
    lake.spark.conf.set("spark.databricks.delta.backfill.maxNumFiles", "1")
    files = sorted(table.read().inputFiles())
    planned = table.row_tracking.enable(dry_run=True)
    backfill = ("UPGRADE PROTOCOL", *["ROW TRACKING BACKFILL"] * 2, "SET TBLPROPERTIES")
    assert planned.commits == backfill
    assert (planned.files, planned.rows, planned.applied) == (2, 6, False)
    assert "can't write to the table" in planned.warnings[0]
    assert table.snapshot().version == 1
    done = table.row_tracking.enable()
    assert tuple(operations(table, 1)) == done.commits == backfill  # 2 to 5
    assert repr(done) == "enable row tracking of t: 4 commits"
    assert sorted(table.read().inputFiles()) == files  # no file is rewritten
    found = ids(table)
    assert {number for number, _ in found.values()} == set(range(6))
    assert {version for _, version in found.values()} <= {3, 4}
    assert table.row_tracking.enable().commits == ()
    assert rules(table) == [("enabled", (5, 5))]

    run(table, "UPDATE {T} SET v = 'b' WHERE id = 2")  # 6
    before, features = ids(table), table.snapshot().protocol
    assert table.row_tracking.disable().commits == ("SET TBLPROPERTIES",)
    done = table.row_tracking.disable(apply=True)  # 7
    assert "can't be compared" in done.warnings[0]
    # The feature, the protocol and the ids in files stay, but ids can no longer be read.
    assert table.snapshot().protocol == features
    assert table.row_tracking.status().supported
    assert sum(hidden_columns(table)) == 2
    with pytest.raises(UsageError, match="no longer tracked in version 7"):
        table.row_tracking.read()
    assert ids(table, version=6) == before
    with pytest.raises(Exception, match=r"[Uu]nsupported.*RowTracking"):
        write_deltalake(table.path, pa.table({"id": pa.array([9], pa.int32())}), mode="append")
    assert rules(table)[1:] == [("disabled", (7, 7))]
    off = table.row_tracking.status().findings[1].message
    assert off.endswith("after version 7 lose their ids, as long as row tracking is off.")
    run(table, "UPDATE {T} SET v = 'c' WHERE id = 2")  # 8
    again = table.row_tracking.enable(dry_run=True)
    assert again.commits == ("SET TBLPROPERTIES",)
    assert "other ids" in again.warnings[0]
    assert table.row_tracking.enable().applied  # 9
    after = ids(table)
    lost = {key for key in after if after[key][0] != before[key][0]}
    assert 2 in lost  # so the warning is right
    assert max(number for number, _ in before.values()) < after[2][0]
    tracking = table.row_tracking.status()
    assert (tracking.numbered_from, tracking.trusted_from) == (5, 9)
    assert rules(table)[1:] == [("disabled", (7, 9))]
    assert "lost their ids" in tracking.findings[1].message

    dropped = table.row_tracking.drop()
    newest = table.snapshot().version
    assert "All ids are lost" in dropped.warnings[0]
    assert table.row_tracking.drop(apply=True).commits == dropped.commits
    assert tuple(operations(table, newest)) == dropped.commits
    assert not table.row_tracking.status().supported
    assert table.row_tracking.status().numbered_from is None
    write_deltalake(
        table.path, pa.table({"id": pa.array([9], pa.int32()), "v": ["z"]}), mode="append"
    )
    table.row_tracking.enable()
    assert {number for number, _ in ids(table).values()} == set(range(7))  # they start again at 0
    last = table.snapshot().version
    tracking = table.row_tracking.status()
    assert (tracking.numbered_from, tracking.trusted_from) == (last, last)
    assert "dropped" in {rule for rule, _ in rules(table)}
    # Versions with another numbering are read from the feed, and have no ids.
    run(table, "DELETE FROM {T} WHERE id = 9")
    changes = table.row_tracking.changes(8).collect()
    assert {(row.v, row._change_type) for row in changes if row._row_id is None} == {
        ("b", "update_preimage"),
        ("c", "update_postimage"),
        ("z", "insert"),
    }
    assert [row.id for row in changes if row._row_id is not None] == [9]
    lake.spark.conf.unset("spark.databricks.delta.backfill.maxNumFiles")


@pytest.mark.promise("RT-04", "RT-05")
def test_what_keeps_ids(lake: Lake, pytestconfig: pytest.Config) -> None:
    table = make(
        lake,
        "t",
        "CREATE TABLE {T} (id INT, v STRING) USING delta CLUSTER BY (id)"
        " TBLPROPERTIES (delta.enableRowTracking = true, delta.enableDeletionVectors = true)",
        "INSERT INTO {T} SELECT CAST(id AS INT), 'a' FROM range(0, 5)",  # 1
        "INSERT INTO {T} SELECT CAST(id AS INT), 'a' FROM range(5, 10)",  # 2
    )
    first = ids(table)
    assert all(first[key][1] == 1 + (key > 4) for key in first)
    assert sum(hidden_columns(table)) == 0  # the log has the ids

    known = [first]

    def changed_by(statement: str, *expected: int) -> Ids:
        """Check that only these rows get a new commit version, and that all rows keep their ids."""
        before = known[-1]
        run(table, statement)
        after, newest = ids(table), table.snapshot().version
        for key in before.keys() & after.keys():
            assert after[key] == (before[key][0], newest if key in expected else before[key][1])
        known.append(after)
        return after

    changed_by("UPDATE {T} SET v = 'b' WHERE id IN (2, 7)", 2, 7)  # 3
    after = changed_by(
        "MERGE INTO {T} t USING (SELECT 3 AS id, 'c' AS v UNION ALL SELECT 20, 'n') s"
        " ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
        3,
    )  # 4
    assert after[20][1] == 4
    assert 4 not in changed_by("DELETE FROM {T} WHERE id = 4")
    moved = known[-1]
    for statement in ("REORG TABLE {T} APPLY (PURGE)", "OPTIMIZE {T} FULL"):
        files = set(table.read().inputFiles())
        assert changed_by(statement) == moved
        assert files - set(table.read().inputFiles())
    # Ids of moved rows are now stored in the files.
    assert set(hidden_columns(table)) == {2}
    assert table.optimize.vorder(again=True).outcomes
    assert ids(table) == moved
    changed_by("UPDATE {T} SET v = 'z' WHERE id = 1", 1)
    version = table.snapshot().version
    run(table, "RESTORE TABLE {T} TO VERSION AS OF 3")
    back = ids(table)
    assert back == known[1]
    assert {1, 4} <= back.keys()
    # Commit versions decreased, so a search for later ones misses the restored rows.
    later = table.row_tracking.read().where(f"_row_commit_version > {version}")
    assert later.count() == 0
    run(table, "INSERT INTO {T} VALUES (30, 'n')")
    kept = ids(table)
    used = {number for state in known for number, _ in state.values()}
    assert kept[30][0] > max(used)  # no id is used twice
    assert rules(table) == [("restore", (version + 1, version + 1))]
    assert table.row_tracking.status().trusted_from == 0

    if not pytestconfig.getoption("--long"):
        return
    replace = table.read().where("id >= 5").write.format("delta").mode("overwrite")
    replace.option("replaceWhere", "id >= 5").save(table.path)
    now = ids(table)
    assert all((now[key] == kept[key]) == (key < 5) for key in now)
    run(table, "INSERT OVERWRITE {T} SELECT * FROM {T}")
    anew = ids(table)
    assert not {number for number, _ in anew.values()} & {number for number, _ in now.values()}
    last = table.snapshot().version
    assert [rule for rule, _ in rules(table)] == ["restore", "overwrite", "overwrite"]
    assert "id >= 5" in table.row_tracking.status().findings[1].message
    assert table.row_tracking.status().trusted_from == last


@pytest.mark.promise("RT-06")
def test_a_clone_numbers_its_rows_anew(lake: Lake) -> None:
    table = make(
        lake,
        "t",
        "CREATE TABLE {T} USING delta TBLPROPERTIES (delta.enableRowTracking = true)"
        " AS SELECT CAST(id AS INT) AS id, 'a' AS v FROM range(3)",
    )
    first = make(lake, "first", f"CREATE TABLE {{T}} SHALLOW CLONE {table.sql_name}")
    assert ids(first) == ids(table) == {0: (0, 0), 1: (1, 0), 2: (2, 0)}  # by chance
    assert rules(first) == [("clone", (0, 0))]
    assert "do not mean equal rows" in first.row_tracking.status().findings[0].message
    # From then on, one id identifies different rows in clone and source.
    run(first, "INSERT INTO {T} VALUES (8, 'clone')")
    run(table, "INSERT INTO {T} VALUES (9, 'source')")
    assert ids(first)[8] == ids(table)[9] == (3, 1)
    # The ids of moved rows are stored in the files, but do not apply to a clone.
    run(table, "UPDATE {T} SET v = 'b' WHERE id = 1")
    run(table, "OPTIMIZE {T}")
    assert ids(table) == {0: (0, 0), 1: (1, 2), 2: (2, 0), 9: (3, 1)}
    second = make(lake, "second", f"CREATE TABLE {{T}} SHALLOW CLONE {table.sql_name}")
    order = table.read().selectExpr("id", "_metadata.row_index").collect()
    assert ids(second) == {row.id: (row.row_index, 0) for row in order}
    assert ids(second) != ids(table)


def test_mirrored_tables_are_tracked(lake: Lake) -> None:
    publisher = lake.publisher("`odd ``n@me`", keys=["the id"])
    publisher.write([{"the id": n, "v": "a"} for n in range(3)])
    lake.mirror()
    publisher.update([{"the id": 1, "v": "b"}])
    publisher.delete([{"the id": 2}])
    assert not lake.mirror().failed
    table = lake.table("`odd ``n@me`")
    found: dict[Any, Any] = {
        row["the id"]: (row._row_id, row._row_commit_version)
        for row in table.row_tracking.read().collect()
    }
    assert found == {0: (0, 1), 1: (1, 2)}
    assert table.row_tracking.status().trusted_from == 0
