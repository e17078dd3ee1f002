"""Test the parameters of tool notebooks: versions, policies, queries that only read."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from mirrorlake import Lake, MaintenancePolicy
from mirrorlake import table as table_api
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import QueryError, TableNotFoundError, UsageError, VersionError
from mirrorlake.feed import ranges
from mirrorlake.feed.scd import Dimension
from mirrorlake.history import diff, maintenance
from mirrorlake.layout import advice
from mirrorlake.layout import api as layout_api
from mirrorlake.names import TableName
from mirrorlake.query import statement
from mirrorlake.sql import query_lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    for _ in range(4):
        write_deltalake(tmp_path / "Tables" / "t", rows_of({"id": [1]}), mode="append")
    write_deltalake(tmp_path / "Tables" / "once", rows_of({"id": [1]}))
    return Lake(tmp_path)


def test_versions_by_number_and_by_default(lake: Lake) -> None:
    found = diff.choose_versions(lake.table("t"))
    assert (found.before, found.after, found.note) == (2, 3, "")
    found = diff.choose_versions(lake.table("t"), 0, 2)
    assert (found.before, found.after) == (0, 2)
    assert diff.choose_versions(lake.table("t"), 1, 1).note == "Both ends are the same version."
    assert "oldest that can be read" in diff.choose_versions(lake.table("once")).note


def test_versions_by_moment(lake: Lake) -> None:
    moment = lake.table("t").history().commits[1].timestamp
    assert moment is not None
    found = diff.choose_versions(lake.table("t"), 0, after_timestamp=moment.isoformat())
    assert (found.before, found.after) == (0, 2)
    found = diff.choose_versions(lake.table("t"), 0, after_timestamp="2999-01-01")
    assert found.after == 3
    found = diff.choose_versions(lake.table("t"), before_timestamp=moment, after_timestamp="")
    assert (found.before, found.after) == (2, 3)
    with pytest.raises(VersionError, match="before the first version"):
        diff.choose_versions(lake.table("t"), before_timestamp="2001-01-01")


@pytest.mark.parametrize(
    ("ends", "error", "message"),
    [
        ({"before": "2"}, UsageError, "'2' is not a version. Hint: give an integer"),
        ({"before": 3, "after": 1}, UsageError, "is after version 1"),
        ({"after": 9}, VersionError, "no version 9 of t"),
        ({"before": -7}, UsageError, "no version -7"),
        ({"after_timestamp": "yesterday"}, UsageError, "yesterday"),
        (
            {"before": 1, "before_timestamp": "2024-05-01"},
            UsageError,
            "Version 1 and the timestamp 2024-05-01 are both given for `before`",
        ),
        (
            {"after": 0, "after_timestamp": "2024-05-01"},
            UsageError,
            "give only one of after and after_timestamp",
        ),
    ],
)
def test_versions_that_make_no_sense(lake: Lake, ends, error, message: str) -> None:
    with pytest.raises(error, match=message):
        diff.choose_versions(lake.table("t"), **ends)


@pytest.mark.parametrize("version", ["x", "2", 1.5, True, datetime(2024, 5, 1)])
@pytest.mark.parametrize("row_ids", [False, True])
def test_a_version_to_read_is_an_integer(lake: Lake, version: Any, row_ids: bool) -> None:
    with pytest.raises(UsageError, match=r"is not a version\. Hint: give an integer"):
        lake.table("t").read(version=version, row_ids=row_ids)


def test_a_policy_vacuums_only_if_it_says_so() -> None:
    assert MaintenancePolicy.parse("").vacuum is False
    assert MaintenancePolicy.parse('{"vacuum": true}', apply=True).vacuum is True
    assert MaintenancePolicy.parse({"vacuum": True}).vacuum is True
    odd: tuple[Any, ...] = ("{", "[1]", '{"files": 3}', '{"vacuum": 1}', '{"apply": true}')
    for text in (*odd, {"files": 3}, {3: 3}, [1], None):
        with pytest.raises(UsageError, match="Hint"):
            MaintenancePolicy.parse(text)


def test_a_policy_that_is_no_policy_is_refused(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"is not a maintenance policy\. Hint: give Maintenance"):
        lake.maintain({"min_files": 3})  # type: ignore[arg-type]
    for odd in ({}, {"PartitionKeys": "day"}, {1: 2}, [1]):
        for call in (lake.table("t").partitioning.apply, lake.table("t").partitioning.report):
            with pytest.raises(UsageError, match="Hint"):
                call(odd)


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("create or replace view v as select 1", r"lake\.views\.create"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1", r"lake\.views\.create"),
        ("SHOW TABLES", r"lake\.tables\(\)"),
    ],
)
def test_statements_on_the_catalog_of_spark_are_refused(lake: Lake, query: str, hint: str) -> None:
    spark: Any = None  # the statement is refused before it needs Spark
    with pytest.raises(UsageError, match=hint):
        query_lake(spark, lake.storage, query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "SELECT 'DROP TABLE x' AS text",
        "SHOW TABLES",
        "DESCRIBE TABLE x",
        "DESCRIBE DETAIL x",
    ],
)
def test_queries_are_let_through(query: str) -> None:
    statement.check_reads_only(statement.parse_statement(query))


@pytest.mark.parametrize(
    "query",
    [
        "",
        "DROP TABLE x",
        "INSERT INTO x SELECT 1",
        "WITH a AS (SELECT 1) INSERT INTO x SELECT * FROM a",
        "FROM a INSERT INTO x SELECT *",
        "DELETE FROM x",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; DROP TABLE x",
        "OPTIMIZE x",
        "VACUUM x",
        "REORG TABLE x APPLY (PURGE)",
        "DESCRIBE DETAIL x; DROP TABLE y",
        "SET a = b",
        "MERGE INTO x USING y ON x.a = y.a WHEN MATCHED THEN DELETE",
    ],
)
def test_what_could_change_a_table_is_refused(query: str) -> None:
    with pytest.raises(QueryError, match="not a query"):
        statement.check_reads_only(statement.parse_statement(query))


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET id = 2",
        "INSERT INTO t VALUES (2)",
        "INSERT OVERWRITE t SELECT * FROM once",
        "MERGE INTO t USING once o ON t.id = o.id WHEN MATCHED THEN DELETE",
        "ALTER TABLE t ADD COLUMNS (n INT)",
        "TRUNCATE TABLE t",
        "SELECT 1; DELETE FROM t",
    ],
)
def test_a_frame_cannot_be_changed(lake: Lake, query: str) -> None:
    with pytest.raises(UsageError, match=r"A frame can't be changed\. Hint: leave out frame"):
        query_lake(cast(Any, None), lake.storage, query, frame="m")


def test_a_timestamp_after_the_newest_commit_reads_the_newest_version(lake: Lake) -> None:
    """In every form, as with `as_of`."""
    done: list[str] = []  # statements that are left to Spark
    spark = cast(Any, SimpleNamespace(sql=done.append))
    for table in ("t@29990101000000000", "t FOR TIMESTAMP AS OF '2999-01-01'"):
        query_lake(spark, lake.storage, f"SELECT * FROM {table} x")
    query_lake(spark, lake.storage, "SELECT * FROM t x", as_of="2999-01-01")
    path = lake.storage.path("Tables/t")
    assert set(done) == {f"SELECT * FROM delta.`{path}` VERSION AS OF 3 x"}
    with pytest.raises(VersionError, match="no version 4 of t"):
        query_lake(spark, lake.storage, "SELECT * FROM t@v4")

    class Rows:
        columns = ("id",)

    def sql(statement: str) -> Rows:
        done.append(statement)
        return Rows()

    conf = SimpleNamespace(set=lambda *_: None)
    stub = cast(Any, SimpleNamespace(sql=sql, conf=conf))
    table = Lake(lake.storage.root, spark=stub).table("t")
    table.read(timestamp="2999-01-01")
    assert done[-1] == f"SELECT * FROM delta.`{path}` VERSION AS OF 3"
    moment = table.history().commits[1].timestamp
    assert moment is not None
    table.read(timestamp=moment)
    assert f"TIMESTAMP AS OF '{moment.isoformat()}'" in done[-1]


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("SELECT nothing FROM t", "nothing"),
        ("SELECT count(*) FROM t@v1 a JOIN t USING (id) WHERE nothing = 1", "nothing"),
        ("SELECT *\nFROM t AS OF VERSION 1 a JOIN t\n  ON a.id = nothing", "nothing"),
        ("SELECT * FROM t@v1 FROM", "FROM"),
    ],
)
def test_positions_in_errors_are_those_of_the_query(lake: Lake, query: str, wrong: str) -> None:
    """Spark reports those in the statement that it gets, which it repeats."""

    def sql(statement: str) -> None:
        before = statement[: statement.rfind(wrong)].split("\n")
        where = f"line {len(before)} pos {len(before[-1])}"
        echo = f"== SQL ==\n{statement}\n--^^^"
        raise ValueError(f"[WRONG] {wrong} ({where})\n\n{echo}; {where};\n'Project [nothing]")

    with pytest.raises(QueryError) as refused:
        query_lake(cast(Any, SimpleNamespace(sql=sql)), lake.storage, query)
    *before, last = query[: query.rfind(wrong)].split("\n")
    assert str(refused.value) == f"[WRONG] {wrong} (line {len(before) + 1}, pos {len(last)})"


@pytest.mark.parametrize(
    ("query", "method"),
    [
        ("OPTIMIZE t ZORDER BY (id)", "partitioning.run()"),
        ("REORG TABLE t APPLY (PURGE)", "optimize.purge()"),
    ],
)
def test_a_statement_does_not_mix_the_partitions_of_a_policy(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, query: str, method: str
) -> None:
    done: list[str] = []  # statements that are left to Spark
    spark = cast(Any, SimpleNamespace(sql=done.append))
    monkeypatch.setattr(maintenance, "has_partitioning_policy", lambda _, table: table.name == "t")
    with pytest.raises(UsageError, match=r"would mix its partitions.*Hint: use") as refused:
        query_lake(spark, lake.storage, query)
    assert f"table.{method}, which" in str(refused.value)
    assert not done
    query_lake(spark, lake.storage, query.replace(" t ", " once "))
    assert len(done) == 1


def test_a_table_is_not_renamed_by_a_statement(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"can't rename t\. Hint: rename the folder"):
        query_lake(cast(Any, None), lake.storage, "ALTER TABLE T RENAME TO u")
    done: list[str] = []  # statements that are left to Spark
    spark = cast(Any, SimpleNamespace(sql=done.append))
    for query in ("ALTER TABLE t RENAME COLUMN id TO n", "ALTER VIEW other RENAME TO t"):
        query_lake(spark, lake.storage, query)
    assert len(done) == 2


def test_a_column_of_a_mirrored_table_is_not_renamed_by_a_statement(lake: Lake) -> None:
    lake.publish("t", rows_of({"id": [1]}))
    done: list[str] = []  # statements that are left to Spark
    spark = cast(Any, SimpleNamespace(sql=done.append))
    with pytest.raises(UsageError, match=r"feeds t, .*Hint: rename the column at the publisher"):
        query_lake(spark, lake.storage, "ALTER TABLE T RENAME COLUMN id TO n")
    assert not done
    for query in ("ALTER TABLE once RENAME COLUMN id TO n", "ALTER TABLE t ADD COLUMN n INT"):
        query_lake(spark, lake.storage, query)
    assert len(done) == 2


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        (
            "RESTORE TABLE T TO VERSION AS OF 1",
            r"use lake.table('t').restore(version, apply=True).",
        ),
        ("SHOW TBLPROPERTIES T", "lake.spark.sql(…), with lake.table('t').sql_name"),
    ],
)
def test_a_statement_whose_table_is_not_found_in_it(lake: Lake, query: str, hint: str) -> None:
    def sql(query: str) -> None:
        raise ValueError("[TABLE_OR_VIEW_NOT_FOUND] The table or view `T` cannot be found.")

    with pytest.raises(QueryError, match=r"lake.sql can't run this statement on t\.") as refused:
        query_lake(cast(Any, SimpleNamespace(sql=sql)), lake.storage, query)
    assert hint in str(refused.value)


def test_column_names_may_be_one_text(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each letter of a text is not a column."""
    found: list[Any] = []
    monkeypatch.setattr(diff, "diff_rows", lambda old, new, match, keys: found.append(keys))
    monkeypatch.setattr(TableHandle, "rows", lambda table, version: None)
    monkeypatch.setattr(
        table_api, "update_dimension", lambda *_, **options: found.append(_[2].keys)
    )
    monkeypatch.setattr(
        layout_api, "compact_files", lambda _, **options: found.append(options["zorder_by"])
    )
    monkeypatch.setattr(layout_api, "order_after", lambda *_, **options: None)
    monkeypatch.setattr(
        layout_api, "vorder_table", lambda _, **options: found.append(options["sort_by"])
    )
    table = lake.table("t")
    table.diff(0, 1, keys="id")
    table.dimension(keys="id")
    table.optimize.z_order("id")
    table.optimize.vorder(sort_by="id")
    assert list(map(list, found)) == [["id"]] * 4
    with pytest.raises(UsageError, match=r"sorted by 'ids', because .*\. Hint: choose one of id\."):
        table.optimize.z_order("ID, ids")
    with pytest.raises(UsageError, match=r"No column to Z-order by"):
        table.optimize.z_order([])
    assert ranges.key_columns(table, "ID") == ("id",)
    with pytest.raises(UsageError, match=r"t has no column ids\..*Hint: its columns are id\."):
        ranges.key_columns(table, "ids")
    changes = cast(Any, SimpleNamespace(columns=["id", "n"]))
    with pytest.raises(UsageError, match=r"no column m\..*Hint: choose from id, n\."):
        Dimension(("id",), except_columns=("m",)).data_columns(changes)
    measured = cast(Any, SimpleNamespace(name="t", snapshot=table.snapshot()))
    with pytest.raises(UsageError, match=r"t has no column n\..*Hint: its columns are id\."):
        advice.advise(measured, used="ID, n")


def test_the_tables_of_a_frame_can_be_one_text(lake: Lake) -> None:
    for tables in ("t", "T", "t, T", ["t"], [TableName(None, "T")]):
        frame = lake.frames.create("m", tables, dry_run=True)
        assert [one.table for one in frame.tables] == ["t"]
    with pytest.raises(TableNotFoundError, match=r"no table tt in .* did you mean t\?"):
        lake.frames.create("m", "t, tt")
    assert lake.frames.list() == []


def test_an_unknown_model_names_the_known_ones(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = SimpleNamespace(model="report")
    monkeypatch.setattr(type(lake.frames), "list", lambda _: [frame])
    assert "Models with a frame: report." in repr(lake.frames.overview("reprot").shown())


def test_frames_of_a_lake_without_any(lake: Lake) -> None:
    assert "No frame was found" in repr(lake.frames.overview().shown())
    assert not lake.frames.act("show", "").applied
    planned = lake.frames.act("create", "m", ["t"], dry_run=True)
    assert (repr(planned), planned.applied) == ("m would frame t at version 3", False)
    for days in (0.0, None):
        never = lake.frames.act("create", "m", "t", expires_in=days, dry_run=True).frame
        assert never is not None
        assert never.expires is None
    for action, model in (("make", "m"), ("create", "")):
        with pytest.raises(UsageError, match="Hint"):
            lake.frames.act(action, model, ["t"])
    assert lake.frames.list() == []
