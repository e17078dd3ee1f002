"""V-Order on whole tables: rows, ids, feeds and streams do not change."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from helpers.analyses import MICROSOFT, rows
from helpers.delta_by_hand import HandMade
from helpers.delta_files import data_files
from helpers.tables import describe_history
from mirrorlake import Lake
from mirrorlake.cli import main as cli
from mirrorlake.errors import ConflictError, RewriteError, UsageError
from mirrorlake.layout import vorder
from mirrorlake.spark.jvm import transaction
from mirrorlake.spark.rewrite import Bounds, Write, Written, rewrite_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ALL = """
CREATE TABLE delta.`{path}` (id BIGINT, `k e,y` STRING, d DECIMAL(10, 2), dd DECIMAL(30, 5),
  f DOUBLE, g FLOAT, b BOOLEAN, t TIMESTAMP, n TIMESTAMP_NTZ, day DATE, bin BINARY,
  st STRUCT<a: INT, l: ARRAY<STRING>, t: TIMESTAMP>, m MAP<STRING, ARRAY<TIMESTAMP>>, sh SMALLINT,
  p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES (
  'delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'true',
  'delta.enableChangeDataFeed' = 'true', 'delta.columnMapping.mode' = 'id')
"""
LOAD = """
INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, 'k' || (id * 7919 % 13), id % 17, id % 5,
  CASE WHEN id % 10 = 0 THEN DOUBLE('NaN') WHEN id % 11 = 0 THEN -0.0D
       WHEN id % 7 = 0 THEN NULL ELSE id % 3 END,
  id % 4, id % 2 = 0, TIMESTAMP '0002-01-01' + MAKE_INTERVAL(id % 90), TIMESTAMP_NTZ '2024-01-01',
  DATE '2024-01-01' + INT(id % 30), CAST('b' || id % 6 AS BINARY),
  CASE WHEN id % 5 = 0 THEN NULL
       ELSE STRUCT(INT(id % 3), ARRAY('x', NULL), TIMESTAMP '2024-01-01') END,
  MAP('k' || id % 4, ARRAY(TIMESTAMP '2024-01-01 00:00:00.123456', NULL)), SMALLINT(id % 3),
  'a b/%' || id % 2 FROM RANGE({start}, {start} + 4000)
"""


def bag(lake: Lake, name: str, hidden: str = "") -> Counter[str]:
    query = f"SELECT *{hidden} FROM delta.`{lake.storage.path(f'Tables/{name}')}`"
    return Counter(repr(tuple(row)) for row in lake.spark.sql(query).collect())


def feed_rows(lake: Lake, name: str, start: int) -> int:
    reader = lake.spark.read.format("delta").option("readChangeFeed", "true")
    return reader.option("startingVersion", start).load(lake.storage.path(f"Tables/{name}")).count()


def streamed(lake: Lake, name: str, scratch: Path) -> int:
    reader = lake.spark.readStream.format("delta").option("ignoreDeletes", "true")
    stream = reader.option("skipChangeCommits", "true").load(lake.storage.path(f"Tables/{name}"))
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(scratch / "c")).start(str(scratch / "out"))
    query.awaitTermination()
    return lake.spark.read.parquet(str(scratch / "out")).count()


@pytest.mark.promise("DL-15")
def test_every_type_with_ids_and_deletion_vectors(lake: Lake, tmp_path: Path) -> None:
    path = lake.storage.path("Tables/t")
    lake.spark.sql(ALL.format(path=path))
    for start in (0, 4000):
        lake.spark.sql(LOAD.format(path=path, start=start))
    # Scattered rows, a run of rows, and one row: the three kinds of containers in a vector.
    lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 10 = 3 OR id BETWEEN 4500 AND 5000")
    hidden = ", _metadata.row_id, _metadata.row_commit_version"
    before, version = bag(lake, "t", hidden), lake.table("t").snapshot().version
    report = lake.table("t").optimize.vorder(dry_run=True)
    assert not report.applied
    assert lake.table("t").snapshot().version == version
    applied = lake.table("t").optimize.vorder()
    (commit,) = applied.commits
    assert applied.ordered == commit.files_in == commit.files_out == 4
    assert commit.rows == sum(before.values())
    assert commit.bytes_out < commit.bytes_in
    assert applied.bytes_after == report.bytes_after
    assert bag(lake, "t", hidden) == before
    assert feed_rows(lake, "t", version + 1) == 0
    assert not lake.table("t").optimize.vorder().outcomes
    last = describe_history(lake.table("t")).first()
    assert json.loads(last.userMetadata) == {"mirrorlake": "vorder"}
    analysis = lake.table("t").analyze(scan=False)
    assert [f["Open V-Order"] for f in rows(analysis, "Parquet Files")] == [True] * 4
    assert [f["Open V-Order Tag"] for f in rows(analysis, "Parquet Files")] == [True] * 4
    assert analysis.summary["VOrder Files"] == 0
    assert analysis.summary["VOrder Disagreements"] == 0
    assert analysis.summary["Deleted Rows"] == 0
    # Statistics still skip files, and counts are still right.
    kept = lake.spark.sql(f"SELECT count(*) c FROM delta.`{path}` WHERE id >= 4000").first().c
    assert kept == sum(i % 10 != 3 and not 4500 <= i <= 5000 for i in range(4000, 8000))


@pytest.mark.long
def test_files_of_other_writers_are_distinguished(lake: Lake) -> None:
    """Microsoft's files are kept unless requested; files that don't shrink are not tried twice."""
    table = HandMade(Path(lake.storage.path("Tables/t")))
    rng = np.random.default_rng(1)
    some = pa.table({"a": rng.integers(0, 9, 20_000), "b": rng.integers(0, 99, 20_000)})
    table.create(some.schema)
    names = [
        table.file("theirs.parquet", some, footer=MICROSOFT, tags={"VORDER": "true"}),
        table.file("plain.parquet", some),
        table.file("tiny.parquet", some.slice(0, 3), compression="zstd", store_schema=False),
    ]
    table.commit("WRITE", add=names)
    before = bag(lake, "t")
    report = lake.table("t").optimize.vorder(sort_by=["b"])
    assert {one.path: bool(one.reason) for one in report.outcomes} == {
        "plain.parquet": False,
        "tiny.parquet": True,
    }
    assert report.outcomes[0].columns[0] == "b"
    assert not lake.table("t").optimize.vorder().outcomes
    files = {
        f["Parquet File"]: f for f in rows(lake.table("t").analyze(scan=False), "Parquet Files")
    }
    assert files["theirs.parquet"]["VOrder"] is True
    assert files["tiny.parquet"]["Open V-Order"] is False
    again = lake.table("t").optimize.vorder(again=True)
    assert "theirs.parquet" in {one.path for one in again.outcomes if not one.reason}
    summary = lake.table("t").analyze(scan=False).summary
    assert (summary["VOrder Files"], summary["VOrder Disagreements"]) == (0, 0)
    assert summary["Open V-Order Files"] == 2
    assert bag(lake, "t") == before
    with pytest.raises(UsageError, match="no_column"):
        lake.table("t").optimize.vorder(sort_by=["no_column"], dry_run=True)
    done = CliRunner().invoke(
        cli.app, ["vorder", lake.storage.root, "t", "--again", "--dry-run", "--json"]
    )
    document = json.loads(done.stdout)
    assert {row["file"] for row in document["rows"]} >= {"tiny.parquet"}
    assert (
        "no file is without"
        in CliRunner().invoke(cli.app, ["vorder", lake.storage.root, "t"]).stdout
    )


def scanned(file: Path, columns: list[str]) -> dict[str, int]:
    """Return the work of a scan of some columns: what it reads, decodes and expands."""
    footer = pq.read_metadata(file)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema in columns]
    values = pq.read_table(file, columns=columns).to_pandas()
    return {
        "chunks": len(chunks),
        "bytes": sum(chunk.total_compressed_size for chunk in chunks),
        "decompressed bytes": sum(chunk.total_uncompressed_size for chunk in chunks),
        "chunks without a dictionary": sum(not chunk.has_dictionary_page for chunk in chunks),
        "runs": sum(int((values[name] != values[name].shift()).sum()) for name in columns),
    }


def read_ratio(ours: Path, plain: Path, query: str) -> float:
    """Return the CPU time of a query on our file in proportion to that on the plain one.

    Both are read by turns in this thread, whose own time other processes hardly change, and the
    shortest of many times counts.
    """
    times: dict[Path, list[float]] = {ours: [], plain: []}
    with duckdb.connect(config={"threads": 1}) as engine:
        for _ in range(20):
            for file, taken in times.items():
                began = time.thread_time()
                engine.execute(query.format(file)).fetchall()
                taken.append(time.thread_time() - began)
    return min(times[ours]) / min(times[plain])


@pytest.mark.promise("DL-22")
def test_optimize_by_partition_with_vorder(lake: Lake) -> None:
    rows_ = lake.spark.range(0, 10_000, 1, 2).selectExpr(
        "hash(id) % 50 AS store", "abs(hash(id, 1)) % 300 AS item", "DATE'2026-01-01' AS `a day`"
    )
    other = rows_.withColumn("a day", rows_["a day"] + 1)
    table = lake.write("t", rows_.unionByName(other), partition_by=["a day"])
    told = table.read().groupBy("a day").count().collect()

    def files() -> dict[str, set[tuple[str, bool]]]:
        with transaction(lake.spark, table.path) as txn:
            found: dict[str, set[tuple[str, bool]]] = {}
            for row in txn.files().collect():
                (day,) = row["partitionValues"].values()
                found.setdefault(day, set()).add(
                    (row["path"], "mirrorlake.vorder" in (row["tags"] or {}))
                )
            return found

    before = files()
    where = "`a day` = DATE'2026-01-02'"
    planned = table.optimize.compact(where=where, vorder=True, dry_run=True)
    assert (planned.applied, planned.files, planned.files_ordered) == (False, 2, 2)
    assert files() == before
    command = ["optimize", lake.storage.root, "t", "--where", where, "--vorder", "--json"]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["files_added"], document["files_ordered"]) == (1, 1)
    after = files()
    assert after["2026-01-01"] == before["2026-01-01"]
    ((_, ordered),) = after["2026-01-02"]
    assert ordered
    assert table.read().groupBy("a day").count().collect() == told
    assert table.optimize.compact(where=where, vorder=True).files_ordered == 0
    for wrong, says in (
        ("store = 1", "not a partition column"),
        ("`a day` =", "not a SQL predicate"),
    ):
        with pytest.raises(UsageError, match=says):
            table.optimize.compact(where=wrong, vorder=True)


@pytest.mark.promise("DL-21")
def test_row_groups_have_the_requested_size(lake: Lake) -> None:
    frame = lake.spark.range(0, 30_000, 1, 2).selectExpr("hash(id) % 50 AS a", "id")

    def groups() -> list[list[int]]:
        files = Path(lake.storage.path("Tables/t"))
        footers = [pq.read_metadata(files / name) for name in sorted(data_files(files))]
        return [[f.row_group(n).num_rows for n in range(f.num_row_groups)] for f in footers]

    def command(name: str, *options: str) -> None:
        arguments = [name, lake.storage.root, "t", "--row-group-rows", *options]
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == 0, done.output

    table = lake.write("t", frame, row_group_rows=10_000)
    assert groups() == [[10_000, 5_000]] * 2
    table.optimize.compact(row_group_rows=20_000)
    assert groups() == [[20_000, 10_000]]
    command("vorder", "8000")
    assert groups() == [[8_000, 8_000, 8_000, 6_000]]
    summary = table.analyze(scan=False).summary
    assert (summary["Row Groups"], summary["Max Rows Per Row Group"]) == (4, 8_000)
    lake.write("t", frame, mode="overwrite", vorder=True, row_group_rows=10_000)
    assert groups() == [[10_000, 5_000]] * 2
    command("optimize", "9000", "--zorder-by", "a", "--no-vorder")
    assert groups() == [[9_000, 9_000, 9_000, 3_000]]
    assert table.read().count() == 30_000


@pytest.mark.long
def test_optimize_keeps_it_unless_refused_and_then_reports_it(lake: Lake) -> None:
    """A kill between the commits of `optimize --vorder` has that effect; a rerun completes it."""
    frame = lake.spark.range(0, 40_000, 1, 2).selectExpr(
        "hash(id) % 50 AS a", "hash(id, 1) % 9 AS b"
    )
    table = lake.write("t", frame)
    assert table.optimize.vorder().ordered == 2
    planned = table.optimize.compact(dry_run=True)
    assert (planned.files, planned.in_vorder, planned.files_ordered) == (2, 2, 2)
    done = CliRunner().invoke(cli.app, ["optimize", lake.storage.root, "t", "--no-vorder"])
    assert "of these in V-Order (--vorder restores it)" in done.stdout
    assert table.analyze(scan=False).summary["Open V-Order Files"] == 0
    assert table.optimize.vorder(dry_run=True).ordered == 1
    told = bag(lake, "t")
    again = table.optimize.compact(vorder=True)
    assert (again.files_added, again.files_ordered, again.in_vorder) == (0, 1, 0)
    assert table.analyze(scan=False).summary["Open V-Order Files"] == 1
    assert "of these in V-Order" not in repr(again.shown())
    assert bag(lake, "t") == told


@pytest.mark.promise("DL-14")
def test_at_write_time(lake: Lake, pytestconfig: pytest.Config) -> None:
    """One commit; smaller and faster than the same rows by Spark; every engine reads them."""
    frame = lake.spark.range(0, 400_000, 1, 1).selectExpr(
        "hash(id) % 50 AS store", "hash(id, 1) % 365 AS day", "abs(hash(id, 2)) % 40 AS item",
        "'item ' || abs(hash(id, 2)) % 40 AS name", "id AS order_id",
    )  # fmt: skip
    table = lake.write("sales", frame, vorder=True)
    path = lake.storage.path("Tables/sales")
    assert (table.version, table.detail()["numFiles"]) == (1, 1)
    frame.write.format("delta").save(lake.storage.path("Tables/plain"))
    (ours,) = Path(path).glob("*.parquet")
    (plain,) = Path(lake.storage.path("Tables/plain")).glob("*.parquet")
    assert table.detail()["sizeInBytes"] == ours.stat().st_size < 0.8 * plain.stat().st_size
    snapshot = lake.table("sales").snapshot()
    assert snapshot.version == 1
    # Like all tables of `lake.write`, it has change feed and row tracking from version 0 on.
    assert snapshot.properties["delta.enableChangeDataFeed"] == "true"
    assert snapshot.properties["delta.enableRowTracking"] == "true"
    assert lake.table("sales").changes.read(1).count() == 400_000
    total = "SELECT count(*), sum(store), sum(day), sum(item), max(name), sum(order_id) FROM"
    wanted = tuple(lake.sql(f"{total} plain").first())
    assert tuple(lake.sql(f"{total} sales").first()) == wanted
    assert duckdb.sql(f"{total} '{ours}'").fetchall() == [wanted]
    read = DeltaTable(path).to_pyarrow_table()  # delta-rs
    assert (read.num_rows, pa.compute.sum(read["order_id"]).as_py()) == (wanted[0], wanted[-1])

    # A scan of three columns has less work of every kind; `bench vorder` measures seconds.
    columns = ["store", "day", "name"]
    work, plain_work = scanned(ours, columns), scanned(plain, columns)
    for what in ("bytes", "decompressed bytes", "runs"):
        assert work[what] < 0.8 * plain_work[what], what
    assert (work["chunks"], work["chunks without a dictionary"]) == (len(columns), 0)
    if not pytestconfig.getoption("--long"):
        return
    by_name = "SELECT name, sum(store), sum(day) FROM '{}' GROUP BY name"
    assert read_ratio(ours, plain, by_name) < 0.9
    lake.write(
        "sales", lake.spark.range(3).selectExpr("'x' AS name"), mode="overwrite", vorder=True
    )
    assert lake.table("sales").read().where("name = 'x' AND store IS NULL").count() == 3
    assert lake.table("sales").read().count() == 3
    first = lake.write(
        "new", lake.spark.range(3).selectExpr("id AS `o d.d`"), mode="overwrite", vorder=True
    )
    assert (first.version, lake.table("new").read().count()) == (1, 3)
    with pytest.raises(UsageError, match="no column ID"):
        lake.write("sales", lake.spark.range(3).selectExpr("id AS ID"), vorder=True)
    with pytest.raises(UsageError, match="ignore"):
        lake.write("sales", frame, mode="ignore", vorder=True)


def test_the_mirrors_tables(lake: Lake) -> None:
    ids = list(range(3000))
    rows_in = pa.table({"id": ids, "v": [i * 7919 % 11 for i in ids], "w": ["word"] * 3000})
    lake.publisher("t", keys=["id"]).write(rows_in)
    for command in ("defaults", "mirror"):
        done = CliRunner().invoke(cli.app, [command, lake.storage.root, "--vorder"])
        assert done.exit_code == 0, done.output
    assert lake.table("t").snapshot().wants_vorder
    assert (
        CliRunner().invoke(cli.app, ["mirror", lake.storage.root, "--vorder", "--watch"]).exit_code
    )
    analysis = lake.table("t").analyze(scan=False)
    assert analysis.summary["Open V-Order Files"] == analysis.summary["Parquet Files"] > 0
    assert feed_rows(lake, "t", 0) == 3000
    version = lake.table("t").snapshot().version
    lake.mirror(vorder=True)
    assert lake.table("t").snapshot().version == version
    with pytest.raises(UsageError, match="A publisher feeds t"):
        lake.write("t", lake.table("t").read(), vorder=True)


@pytest.fixture
def plain(lake: Lake) -> Lake:
    """A table of four files with row ids, half of its rows deleted by deletion vectors."""
    path = lake.storage.path("Tables/t")
    lake.spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, m MAP<STRING, INT>) USING delta TBLPROPERTIES"
        " ('delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'true',"
        " 'delta.enableChangeDataFeed' = 'true')"
    )
    lake.spark.sql(
        f"INSERT INTO delta.`{path}` SELECT id, MAP('a', INT(id)) FROM RANGE(0, 1000, 1, 4)"
    )
    lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 2 = 0")
    return lake


def by_spark(arrange: Callable[[DataFrame], DataFrame]) -> Write:
    """Return a writer by which Delta writes the arranged rows, one file per Spark partition."""

    def write(txn: Any, chosen: Any) -> Written:
        return Written(chosen, txn.write(arrange(txn.rows(chosen, keep_ids=True)), checked=True))

    return write


def one_sorted_file(frame: DataFrame) -> DataFrame:
    return frame.repartition(1).sortWithinPartitions("id")


@pytest.mark.long
def test_rewriting_with_concurrent_writers(plain: Lake, tmp_path: Path) -> None:
    """A concurrent append is no conflict; after a delete of the same files the rewrite restarts."""
    path = plain.storage.path("Tables/t")
    hidden = ", _metadata.row_id, _metadata.row_commit_version"
    seen = streamed(plain, "t", tmp_path)
    before = bag(plain, "t", hidden)
    disturb = iter(
        [
            f"INSERT INTO delta.`{path}` VALUES (5000, NULL)",
            f"DELETE FROM delta.`{path}` WHERE id = 501",
            f"INSERT INTO delta.`{path}` VALUES (5001, NULL)",
        ]
    )

    def write(txn: Any, chosen: Any) -> Written:
        written = by_spark(one_sorted_file)(txn, chosen)
        if statement := next(disturb, None):
            plain.spark.sql(statement)
        return written

    first = rewrite_files(plain.spark, path, lambda f: f, write, note="test")
    assert first is not None
    assert (first.attempts, first.files_in, first.files_out, first.rows) == (1, 4, 1, 500)
    found = bag(plain, "t", hidden)
    assert not before - found
    assert sum(found.values()) == 501
    assert streamed(plain, "t", tmp_path) == seen + 1  # only the appended row
    second = rewrite_files(plain.spark, path, lambda f: f, write, note="test")
    assert second is not None
    # The first attempt conflicted with the delete, the second only saw an append.
    assert (second.attempts, second.rows) == (2, 500)
    after = bag(plain, "t", hidden)
    assert sum(after.values()) == 501
    assert sum((before - after).values()) == 1  # the deleted row; all others keep their ids
    version = plain.table("t").snapshot().version
    assert feed_rows(plain, "t", version) == 0
    nothing = rewrite_files(plain.spark, path, lambda f: f.where("false"), write, note="")
    assert nothing is None


@pytest.mark.long
def test_vorder_with_concurrent_writers(
    plain: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During ordering, a concurrent append is kept; after a delete the files are ordered again."""
    path = plain.storage.path("Tables/t")
    plain.spark.sql(f"INSERT INTO delta.`{path}` SELECT id % 5, NULL FROM RANGE(0, 20000, 1, 1)")
    hidden = ", _metadata.row_id, _metadata.row_commit_version"
    seen, before = streamed(plain, "t", tmp_path), bag(plain, "t", hidden)
    order = vorder.order_files
    disturb = iter(
        [
            f"INSERT INTO delta.`{path}` VALUES (5000, NULL)",
            f"DELETE FROM delta.`{path}` WHERE id = 3",
        ]
    )

    def order_beside_others(*arguments: Any) -> Any:
        found = order(*arguments)
        for statement in disturb:
            plain.spark.sql(statement)
        return found

    monkeypatch.setattr("mirrorlake.layout.api.order_files", order_beside_others)
    report = plain.table("t").optimize.vorder()
    assert report.commits[0].attempts == 2
    found = bag(plain, "t", hidden)
    assert sum((found - before).values()) == 1
    assert sum((before - found).values()) == 4001  # 4,000 of the new rows, and one of the old
    assert not [row for row in found if row.startswith("(3,")]
    # The stream gets the append; it is set to skip deletes, and the rewrite changes no data.
    assert streamed(plain, "t", tmp_path) == seen + 1


def test_a_rewrite_that_would_lose_a_row_is_not_committed(plain: Lake) -> None:
    path = plain.storage.path("Tables/t")
    version = plain.table("t").snapshot().version
    spoilt = [
        lambda f: f.where("id <> 7"),
        lambda f: f.withColumn("id", f["id"] + (f["id"] == 7).cast("int")),
        lambda f: f.withColumn("m", f["m"].cast("map<string, int>")).where("id > 7").unionAll(
            f.where("id <= 7").withColumn("m", f["m"]).limit(0)
        ),
    ]  # fmt: skip
    for arrange in spoilt:
        with pytest.raises(RewriteError, match="nothing was committed"):
            rewrite_files(plain.spark, path, lambda f: f, by_spark(arrange), note="")
    assert plain.table("t").snapshot().version == version
    one = rewrite_files(
        plain.spark, path, lambda f: f.orderBy("path"), by_spark(one_sorted_file), note="",
        bounds=Bounds(rows=1),
    )  # fmt: skip
    assert one is not None
    assert (one.files_in, one.rows) == (1, 125)
    with transaction(plain.spark, path) as slow:
        taken = slow.take([row.path for row in slow.files().select("path").collect()])
        plain.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 9")
        with pytest.raises(ConflictError):
            slow.commit_layout([], taken)


def test_a_rewrite_requires_a_jvm_gateway() -> None:
    connect: Any = object()
    with (
        pytest.raises(UsageError, match="Spark Connect"),
        transaction(connect, "/nowhere"),
    ):
        pass
