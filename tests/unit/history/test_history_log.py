"""Test what is read from a log without Spark: versions, timestamps, removed files; and frames."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.commits import META, add, commit, remove
from mirrorlake import Lake
from mirrorlake.errors import (
    InvalidNameError,
    QueryError,
    TableNotFoundError,
    UsageError,
    VersionError,
)
from mirrorlake.history import frame_records, versions
from mirrorlake.mirror.options import INCARNATION_PROPERTY as INCARNATION
from mirrorlake.names import TableName
from mirrorlake.query import statement
from mirrorlake.storage.files import Storage

TABLE = TableName(None, "t")


def test_a_removal_dated_by_a_clock_that_was_ahead(storage: Storage) -> None:
    hour = 3_600_000
    now = int(datetime.now(timezone.utc).timestamp() * 1000)
    for version in range(6):
        gone = [remove("f1", now + hour)] if version == 2 else []
        made = now - (10 - version) * 1000
        commit(storage, version, *([META] if version == 0 else gone), inCommitTimestamp=made)
    readable = versions.find_readable_range(storage, TABLE)
    assert [(limit.what, limit.version) for limit in readable.limits] == [("vacuumed files", 2)]
    with pytest.raises(VersionError, match="1 of t was vacuumed: f1"):
        versions.check_version(storage, TABLE, 1)
    versions.check_version(storage, TABLE, 2)


def test_the_reach_of_a_table_that_was_copied(storage: Storage) -> None:
    day = 86_400_000
    now = int(datetime.now(timezone.utc).timestamp() * 1000)
    for version in range(5):  # the log's files are new, although the commits have old timestamps
        made = now - (5 - version) * day
        gone = [remove(f"f{version}", made)] if version in (1, 3) else []
        commit(storage, version, *([META] if version == 0 else gone), timestamp=made)
    readable = versions.find_readable_range(storage, TABLE)
    assert [(limit.what, limit.version) for limit in readable.limits] == [("vacuumed files", 3)]
    for version in (1, 2):
        with pytest.raises(VersionError, match="was vacuumed: f3"):
            versions.check_version(storage, TABLE, version)
    versions.check_version(storage, TABLE, 3)


def test_the_reach_looks_only_at_what_was_removed_since(storage: Storage) -> None:
    now = int(datetime.now(timezone.utc).timestamp() * 1000)
    day = 86_400_000
    for version in range(6):  # a day apart, the newest now; each removes the previous file
        made = now - (5 - version) * day
        actions = [remove(f"f{version - 1}", made)] if version else [META]
        commit(storage, version, *actions, add(f"f{version}"), timestamp=made)
        storage.write(f"Tables/t/f{version}", b"x")
    looked: list[str] = []
    inner = storage.exists
    storage.exists = lambda path: (looked.append(path), inner(path))[1]  # type: ignore[method-assign]
    versions.check_version(storage, TABLE, 4)
    data = {path for path in looked if path.startswith("Tables/") and "_delta_log" not in path}
    assert data == {f"Tables/t/f{n}" for n in (3, 4)}
    looked.clear()
    versions.check_version(storage, TABLE, 5)
    data = {path for path in looked if path.startswith("Tables/") and "_delta_log" not in path}
    assert not data


def test_the_reach_and_its_words(any_storage: Storage) -> None:
    now = datetime.now(timezone.utc)
    week = timedelta(days=7)

    def at(ago: timedelta) -> int:
        return int((now - ago).timestamp() * 1000)

    ages = [week * 3, week * 2, week / 2, week / 3, timedelta(0)]
    for version, ago in enumerate(ages):
        actions = [META] if version == 0 else [remove(f"f{version - 1}", at(ago))]
        commit(any_storage, version, *actions, add(f"f{version}"), inCommitTimestamp=at(ago))
        any_storage.write(f"Tables/t/f{version}", b"x")
    readable = versions.find_readable_range(any_storage, TABLE)
    assert (readable.earliest, readable.newest, readable.limits) == (0, 4, ())
    assert readable.plain_session is not None
    assert readable.plain_session.version == 2
    assert "plain Spark session" in repr(readable.shown())
    assert "enforceTimeTravel" in repr(readable)
    versions.check_version(any_storage, TABLE, 1)
    versions.check_timestamp(any_storage, TABLE, now - week * 2)
    any_storage.delete("Tables/t/f2")
    readable = versions.find_readable_range(any_storage, TABLE)
    assert (readable.earliest, [limit.what for limit in readable.limits]) == (3, ["vacuumed files"])
    assert readable.plain_session is None
    with pytest.raises(VersionError, match=r"2 of t was vacuumed: f2"):
        versions.check_version(any_storage, TABLE, 2)
    versions.check_version(any_storage, TABLE, 1)  # does not need that file
    for version in (-1, 5):
        with pytest.raises(VersionError, match=f"no version {version} of t.*versions 3 to 4"):
            versions.check_version(any_storage, TABLE, version)
    with pytest.raises(VersionError, match="versions 3 to 4"):
        versions.check_timestamp(any_storage, TABLE, now - 4 * week)
    versions.check_timestamp(any_storage, TABLE, now - week / 4)
    assert versions.check_when(any_storage, TABLE, now + week) == 4
    assert versions.check_when(any_storage, TABLE, now - week / 4) == now - week / 4
    with pytest.raises(TableNotFoundError):
        versions.find_readable_range(any_storage, TableName(None, "gone"))


@pytest.mark.parametrize("days", [2, 7])
def test_the_reach_beyond_the_files_that_checkpoints_name(storage: Storage, days: int) -> None:
    """A checkpoint names only files removed within the retention before it."""
    day = 86_400_000
    now = int(datetime.now(timezone.utc).timestamp() * 1000)
    count, properties = 24, [("delta.deletedFileRetentionDuration", f"interval {days} days")]
    for version in range(count):  # a day apart, the newest now; each removes the previous file
        made = now - (count - 1 - version) * day
        actions = [remove(f"f{version - 1}", made)] if version else [META]
        commit(storage, version, *actions, add(f"f{version}"), timestamp=made)
        if version % 3 == 2:
            named = range(max(0, version - days), version)
            removes = [{"path": f"f{v}", "deletionTimestamp": made - (version - 1 - v) * day}
                       for v in named]  # fmt: skip
            kinds = {
                "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64()}),
                "metaData": pa.struct({"configuration": pa.map_(pa.string(), pa.string())}),
            }
            columns = {
                "remove": [*removes, None],
                "metaData": [*[None] * len(removes), {"configuration": properties}],
            }
            arrays = {name: pa.array(columns[name], kind) for name, kind in kinds.items()}
            place = f"Tables/t/_delta_log/{version:020d}.checkpoint.parquet"
            pq.write_table(pa.table(arrays), storage.path(place))
            storage.write_json("Tables/t/_delta_log/_last_checkpoint", {"version": version})
        storage.write(f"Tables/t/f{version}", b"x")
    assert versions.find_readable_range(storage, TABLE).earliest == 0
    for gone in (2, 9, 15, 21):  # VACUUM deletes the oldest files first
        storage.delete(f"Tables/t/f{gone}")
        assert versions.find_readable_range(storage, TABLE).earliest == gone + 1
        with pytest.raises(VersionError, match=f"{gone} of t was vacuumed: f{gone}"):
            versions.check_version(storage, TABLE, gone)
        versions.check_version(storage, TABLE, gone - 1)


def test_a_restore_of_a_mirrored_table_names_the_way_to_apply_later_files(
    storage: Storage,
) -> None:
    meta = {"id": "x", "schemaString": '{"fields": []}', "configuration": {INCARNATION: "1"}}
    for version in range(3):
        commit(storage, version, *([{"metaData": meta}] if version == 0 else ()))
    table = Lake(storage.root).table("t")
    (warning,) = table.restore(1).warnings
    assert "files that it has applied since version 1 are not applied again" in warning
    assert "not applied yet are still applied by the next cycle" in warning
    assert "with replay; ledger lists" in warning
    text: Any = "1"
    with pytest.raises(UsageError, match=r"'1' is not a version\. Hint: give an integer"):
        table.restore(text)


def frame(number: int, state: str, *, model: str = "m", hours: float = 1) -> frame_records.Frame:
    table = frame_records.FramedTable("s.t", 3, "2024-01-01T00:00:00+00:00", "id")
    expires = (datetime.now(timezone.utc) + timedelta(hours=hours)).isoformat()
    created = datetime.now(timezone.utc).isoformat()
    return frame_records.Frame(model, number, state, "ann", created, expires, (table,))


def test_framed_tables_whose_names_differ_in_case() -> None:
    upper, lower = (
        frame_records.FramedTable(name, 3, "2024-01-01T00:00:00+00:00", "id") for name in ("T", "t")
    )
    both = replace(frame(1, "complete"), tables=(upper, lower))
    found = [both.table(TableName(None, name)) for name in ("t", "T", "u")]
    assert found == [lower, upper, None]
    assert replace(both, tables=(upper,)).table(TableName(None, "t")) == upper


def test_which_frames_hold_files(any_storage: Storage) -> None:
    for one in (
        frame(1, "complete"),
        frame(2, "complete"),
        frame(3, "pinned"),
    ):
        frame_records.save_frame(any_storage, one)
    found = frame_records.read_frames(any_storage, "m")
    assert [f.number for f in found] == [1, 2, 3]
    assert (
        frame_records.newest_complete(found)
        == found[1]
        == frame_records.live_frame(any_storage, "m")
    )
    pins, dead = frame_records.find_pins(any_storage, datetime.now(timezone.utc))
    assert ([f.number for f in pins], [f.number for f in dead]) == ([2, 3], [1])
    later = datetime.now(timezone.utc) + timedelta(days=2)
    assert (
        frame_records.find_pins(any_storage, later)[0] == []
    )  # both have expired or were never completed
    frame_records.save_frame(any_storage, frame(2, "released"))
    assert [
        f.number for f in frame_records.find_pins(any_storage, datetime.now(timezone.utc))[0]
    ] == [3]
    assert frame_records.reserve_frame(any_storage, frame(0, "pinned")).number == 4
    assert found[0].table(TableName("S", "T")) == found[0].tables[0]
    assert found[0].files_path(TableName("s", "t")).endswith("m/00000001/s.schema/t/files")


def test_a_horizon_never_goes_back(any_storage: Storage) -> None:
    assert frame_records.read_horizon(any_storage, TABLE, "id") == 0
    for version in (5, 9, 7):
        frame_records.publish_horizon(any_storage, TABLE, "id", version)
    assert frame_records.read_horizon(any_storage, TABLE, "id") == 9
    assert frame_records.read_horizon(any_storage, TABLE, "of another life") == 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM t@v2", "delta.`/t` VERSION AS OF 2 AS `t`"),
        ("SELECT * FROM `t`@V2 x", "delta.`/t` VERSION AS OF 2 x"),
        ("SELECT * FROM T AS OF VERSION 2", "delta.`/t` VERSION AS OF 2 AS `T`"),
        ("SELECT * FROM t FOR VERSION AS OF 2", "delta.`/t` FOR VERSION AS OF 2 AS `t`"),
        ("SELECT * FROM `t@v2`", "FROM `t@v2`"),
        ("SELECT 't@v2' /* t@v2 */ FROM u -- t@v2", "SELECT 't@v2' /* t@v2 */ FROM u -- t@v2"),
        ("WITH t AS (SELECT * FROM t@v1) SELECT * FROM t", "SELECT * FROM t"),
        ("WITH t AS (SELECT * FROM t@v1) SELECT * FROM t", "delta.`/t` VERSION AS OF 1 AS `t`"),
        ("WITH RECURSIVE t AS (SELECT 1 UNION ALL SELECT * FROM t) SELECT 1", "FROM t)"),
        (
            "MERGE INTO t x USING t@v5 s ON x.a = s.a WHEN MATCHED THEN UPDATE SET *",
            "MERGE INTO delta.`/t` x USING (SELECT * FROM delta.`/t` VERSION AS OF 5) s ON x.a",
        ),
        (
            "MERGE INTO u USING t@v5 ON u.a = t.a WHEN MATCHED THEN DELETE",
            "USING (SELECT * FROM delta.`/t` VERSION AS OF 5) AS `t` ON",
        ),
        ("SELECT * FROM (SELECT * FROM t@v1) JOIN t@v2 b", "JOIN delta.`/t` VERSION AS OF 2 b"),
    ],
)
def test_every_way_to_say_when(query: str, expected: str) -> None:
    parsed = statement.parse_statement(query)
    edits = statement.resolve_tables(
        parsed, lambda n: statement.Relation("/t") if n.name.lower() == "t" else None
    )
    assert expected in statement.apply_edits(parsed.text, edits)


def test_a_word_is_not_a_version() -> None:
    with pytest.raises(QueryError, match=r"@latest is not a version\. Hint: write @v"):
        statement.parse_statement("SELECT * FROM t@latest")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "CREATE TABLE t (id INT, n DECIMAL(5, 2)) TBLPROPERTIES (a.b = true)",
            "CREATE TABLE delta.`/t` (id INT, n DECIMAL(5, 2)) USING delta"
            " TBLPROPERTIES (a.b = true)",
        ),
        (
            "create or replace table s . `a.b`\nPARTITIONED BY (n) AS SELECT 1 AS n;",
            "create or replace table delta.`/t` USING delta\nPARTITIONED BY (n) AS SELECT 1 AS n;",
        ),
        ("CREATE TABLE t (SELECT 1 AS n)", "CREATE TABLE delta.`/t` USING delta (SELECT 1 AS n)"),
        (
            "CREATE TABLE IF NOT EXISTS t (id INT) USING delta COMMENT 'LOCATION'",
            "CREATE TABLE IF NOT EXISTS delta.`/t` (id INT) USING delta COMMENT 'LOCATION'",
        ),
        ("CREATE TABLE t SHALLOW CLONE u", "CREATE TABLE delta.`/t` SHALLOW CLONE u"),
        (
            "-- OPTIMIZE u\nOPTIMIZE /* u */ t ZORDER BY (t)",
            "-- OPTIMIZE u\nOPTIMIZE /* u */ delta.`/t` ZORDER BY (t)",
        ),
        ("REORG TABLE t APPLY (PURGE);", "REORG TABLE delta.`/t` APPLY (PURGE);"),
        (
            "ALTER TABLE t UNSET TBLPROPERTIES ('a')",
            "ALTER TABLE delta.`/t` UNSET TBLPROPERTIES ('a')",
        ),
        ("describe detail t", "describe detail delta.`/t`"),
    ],
)
def test_a_command_names_its_table_by_path(query: str, expected: str) -> None:
    parsed = statement.parse_statement(query)
    assert parsed.command is not None
    assert not parsed.command.is_elsewhere
    assert statement.apply_edits(parsed.text, parsed.command.place("/t")) == expected


@pytest.mark.parametrize(
    "query",
    [
        "CREATE TABLE t (id INT) USING parquet",
        "CREATE TABLE t (id INT) TBLPROPERTIES (a = 'b') LOCATION '/t'",
        "CREATE TABLE t STORED AS parquet AS SELECT 1",
    ],
)
def test_a_table_with_another_format_or_a_location_is_elsewhere(query: str) -> None:
    command = statement.parse_statement(query).command
    assert command is not None
    assert command.is_elsewhere


@pytest.mark.parametrize(
    "query",
    [
        "VACUUM '/t'",
        "OPTIMIZE delta.`/t`",
        "CREATE TABLE a.b.c (id INT)",
        "CREATE VIEW t AS SELECT 1",
        "CREATE TABLE",
        "DROP TABLE t; DROP TABLE u",
        "SELECT 'VACUUM t'",
    ],
)
def test_other_statements_are_no_commands(query: str) -> None:
    assert statement.parse_statement(query).command is None


def test_a_moment_that_has_to_be_worked_out() -> None:
    asked: list[str] = []

    def evaluate(expression: str) -> datetime:
        asked.append(expression)
        return datetime(2024, 4, 28, tzinfo=timezone.utc)

    checked: list[object] = []

    def check(when: statement.When) -> statement.When:
        checked.append(when)
        return when

    query = "SELECT * FROM t TIMESTAMP AS OF current_date() - INTERVAL 1 DAY x"
    parsed = statement.parse_statement(query)
    edits = statement.resolve_tables(
        parsed, lambda n: statement.Relation("/t", check=check), evaluate
    )
    assert asked == ["current_date() - INTERVAL 1 DAY"]
    assert (
        statement.apply_edits(parsed.text, edits)
        == "SELECT * FROM delta.`/t` TIMESTAMP AS OF '2024-04-28T00:00:00+00:00' x"
    )
    assert checked == [datetime(2024, 4, 28, tzinfo=timezone.utc)]


def test_a_model_needs_a_name(storage: Storage) -> None:
    lake = Lake(storage.root)
    with pytest.raises(InvalidNameError):
        lake.frames.create("../m", ["t"])
    with pytest.raises(UsageError, match="at least one table"):
        lake.frames.create("m", [])
