"""The background process over a lake: rounds, advice, recovery after kills, and the commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from helpers.partition_tables import (
    PAST,
    everything,
    hand_made,
    hashed,
    ranged,
    small_table,
    some_rows,
)
from helpers.partitions import check_homogeneous, live_files
from helpers.tables import describe_history
from mirrorlake import Lake
from mirrorlake.cli import main as cli
from mirrorlake.errors import UsageError
from mirrorlake.names import TableName
from mirrorlake.partitioning import operation, store
from mirrorlake.partitioning import process as processes
from mirrorlake.partitioning.operation import Step
from mirrorlake.storage.files import Storage

KILLER = """
import os, signal, sys
from mirrorlake import Lake
from mirrorlake.partitioning.operation import Step
def kill(table, step):
    if step is Step[sys.argv[2]]:
        os.kill(os.getpid(), signal.SIGKILL)
Lake(sys.argv[1]).table("t").partitioning.operate(on_step=kill)
"""


class Killed(BaseException):
    """A kill. Not an Exception, so that no code handles it as a table's failure."""


def killer(step: Step) -> Any:
    def kill(_table: TableName, done: Step) -> None:
        if done is step:
            raise Killed

    return kill


@pytest.mark.promise("PP-14", "PP-15")
def test_rounds_follow_pending_rows_capacity_and_the_file_limit(lake: Lake) -> None:
    for name, files in (("small", [10]), ("large", [60, 60]), ("without", [9])):
        small_table(lake, name, files)
    one_file = {"PartitionKeys": [hashed(2)], "MaxRowCountPerOperation": 60, **PAST}
    for name in ("small", "large"):
        lake.table(name).partitioning.set(one_file)
    order: list[str] = []
    lock = threading.Lock()

    def hear(table: TableName, step: Step) -> None:
        with lock:
            if step is Step.COMMITTED:
                order.append(str(table))

    process = lake.partitioning.process(on_step=hear)
    report = process.run()
    assert not report.failed
    # One at a time at first, the neediest; each full round of successes raises the capacity.
    assert order[0] == "large"
    assert set(order[1:]) == {"large", "small"}
    assert report.operations == len(order) == 3
    assert report.capacity == 3 == processes.read_capacity(lake.storage)
    before = {n: lake.table(n).snapshot().version for n in ("small", "large", "without")}
    assert process.run().tables == ()  # only each newest version is read
    assert {n: lake.table(n).snapshot().version for n in before} == before
    assert before["without"] == 1
    # Another process continues: for an idle table it reads one document, and no log.
    read: list[str] = []
    whole = Storage.read

    def listen(self: Storage, path: str) -> bytes:
        found = whole(self, path)
        read.append(path)
        return found

    def nobody() -> Any:
        raise AssertionError("idle tables need no session")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "read", listen)
        late = processes.Process(
            lake.storage, nobody, lambda: store.tables_with_policies(lake.storage)
        )
        assert late.run().tables == ()
    assert Counter(path.rpartition("/")[2] for path in read) == {
        "idle.json": 2, "partitioning_capacity.json": 2
    }  # fmt: skip
    with operation.table_lock(lake.storage, TableName.parse("small")):
        found = lake.partitioning.diagnostics()
        assert found.shown().rows == ((33.3, 1, 100.0, "large"),)
        # A busy process may still be killed, so the next run tries again.
        small_rows = lake.spark.createDataFrame(some_rows(0, 10))
        small_rows.write.format("delta").mode("append").save(lake.storage.path("Tables/small"))
        assert process.run().tables == ()
    assert not operation.is_at_work(lake.storage, TableName.parse("small"))
    # Above the limit of files: nothing for some hours, and the history contains the reason. The
    # files of tables without a policy count, whether Delta or another writer wrote them.
    more = lake.spark.range(0, 9, 1, 3).write.format("delta")
    more.save(lake.storage.path("Tables/more"))
    files = sum(lake.table(n).partitioning.stats().files for n in (*before, "more"))
    slowed = lake.partitioning.run(file_limit=files - 1)
    assert (slowed.operations, slowed.put_off) == (0, ("large", "small"))
    policy = lake.table("small").partitioning.policy
    assert policy is not None
    hours = ((policy.effective or 0) / 1e6 - time.time()) / 3600
    assert 5.9 < hours <= 6
    history = lake.table("small").partitioning.history()
    assert [row[1] for row in history.rows] == ["set", f"put off: more than {files - 1} files"]
    statistics = lake.table("small").partitioning.stats()
    assert (statistics.rows, statistics.partitioned_rows, statistics.percentage) == (20, 10, 50.0)
    lake.table("small").partitioning.alter_merge(PAST)
    (line,) = lake.partitioning.run(file_limit=files).tables
    assert (line.table, len(line.receipts)) == ("small", 1)
    # Files added between a table's count and its operation do not count as done.
    lake.table("small").partitioning.alter_merge({"MaxRowCountPerOperation": 50})
    asked: list[int] = []

    def session() -> Any:
        asked.append(len(asked))
        if len(asked) == 2:
            small_rows.write.format("delta").mode("append").save(lake.storage.path("Tables/small"))
        return lake.spark

    hurried = processes.Process(lake.storage, session, lambda: [TableName.parse("small")])
    assert hurried.run().operations == 1


@pytest.mark.promise("PP-17")
def test_advice_and_outliers(lake: Lake) -> None:
    """NULL, empty text, 'N/A', a dominant value and far dates are reported and kept apart."""
    count = 22_000
    lake.spark.range(0, count, 1, 4).selectExpr(
        "id",
        "CASE id % 10 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN ' n/a' WHEN 3 THEN 'one'"
        " ELSE 'key ' || id END AS k",
        "'region ' || id % 7 AS region",
        "IF(id < 9, TIMESTAMP '1955-01-01', TIMESTAMP '2024-01-01')"
        " + MAKE_DT_INTERVAL(id * 7919 % 60, 0, 0, 0) AS at",
    ).write.format("delta").save(lake.storage.path("Tables/t"))
    partitioning = lake.table("t").partitioning
    no = partitioning.advise()
    assert no.policy is None  # it is too small for any key
    assert no.findings[0].rule == "too small"
    small = partitioning.stats().size // 20
    yes = partitioning.advise(least_bytes=small)
    assert yes.policy is not None
    assert yes.policy.hash is not None
    assert (yes.policy.hash.column, yes.policy.hash.mode) == ("k", "Uniform")
    rules = [(f.rule, f.column, f.message) for f in yes.findings]
    for word in ("NULL", "empty text", "'N/A'", "one value"):
        assert any(r == "outlier value" and c == "k" and word in m for r, c, m in rules), word
    assert ("far dates", "at", "9 rows far from all others") in rules
    assert any(r == "few values" and c == "region" for r, c, _ in rules)
    with pytest.raises(UsageError, match="no text or timestamp column 'id'"):
        partitioning.advise(["id"])


@pytest.mark.promise("PP-18")
def test_leftover_files_are_deleted(lake: Lake) -> None:
    """Files of a killed operation are deleted by the next one; replaced files after retention."""
    folder = hand_made(lake, [some_rows(0, 60), some_rows(60, 60)])
    table = lake.table("t")
    table.partitioning.set({"PartitionKeys": [hashed(2)], **PAST})
    with pytest.raises(Killed):
        table.partitioning.operate(on_step=killer(Step.RECORDED))
    (dead,) = table.partitioning.receipts()
    assert dead.version is None
    assert all((folder / path).exists() for path in dead.files_out)
    disturb = iter([f"DELETE FROM {table.sql_name} WHERE id = 5"])

    def meddle(_table: TableName, step: Step) -> None:
        if step is Step.RECORDED and (statement := next(disturb, None)):
            lake.spark.sql(statement)

    # A delete wins once, so the operation starts again with the remaining rows.
    receipt = table.partitioning.operate(on_step=meddle)
    assert receipt is not None
    assert receipt.rows == 119
    before = everything(lake)
    assert sum(before.values()) == 119
    assert not any((folder / path).exists() for path in dead.files_out)
    there = {path.name for path in folder.glob("*.parquet")}
    assert set(receipt.files_out) <= there
    assert len(there - {"f0.parquet", "f1.parquet"} - set(receipt.files_out)) == 1  # the delete's
    assert [r.version for r in table.partitioning.receipts()] == [-1, receipt.version]
    # A commit whose receipt was not completed is found by its note.
    operation.write_receipt(lake.storage, table.name, replace(receipt, version=None))
    assert table.partitioning.operate() is None
    assert table.partitioning.receipts()[-1] == receipt
    # Replaced files are kept for older versions; the process deletes them when they are due.
    assert lake.partitioning.run().operations == 0
    assert (folder / "f0.parquet").exists()
    zero = "'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
    lake.spark.sql(f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ({zero})")
    hours_ago = datetime.now(timezone.utc) - timedelta(hours=2)
    operation.write_receipt(lake.storage, table.name, replace(receipt, at=hours_ago.isoformat()))
    assert not lake.partitioning.run().failed
    assert not (folder / "f0.parquet").exists()
    assert everything(lake) == before
    operation.write_receipt(
        lake.storage, table.name, replace(receipt, at="2020-01-01T00:00:00+00:00")
    )
    table.partitioning.operate()
    assert not [r for r in table.partitioning.receipts() if r.at.startswith("2020")]


ACTIONS = ("append", "delete", "update", "partition", "merge", "optimize", *Step)
KILLS = (Step.WRITTEN, Step.RECORDED, Step.COMMITTED)
STORY = st.permutations(["append", "delete", "update", "optimize", *KILLS])


def tell(root: Path, story: list[str | Step], most_groups: int = 10_000) -> None:
    """Apply all actions to a table and to a dictionary, and compare after each risky one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirrorlake.partitioning.groups.MOST_GROUPS", most_groups)
        _tell(root, story)


def _tell(root: Path, story: list[str | Step]) -> None:
    lake = Lake(root)
    folder = Path(lake.storage.path("Tables/t"))
    name = f"delta.`{folder}`"
    lake.spark.sql(
        f"CREATE TABLE {name} (id BIGINT, k STRING, at TIMESTAMP) USING delta TBLPROPERTIES"
        " ('delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true')"
    )
    partitioning = lake.table("t").partitioning
    key = hashed(3, PartitionAssignmentMode="ByPartition")
    policy = partitioning.set({"PartitionKeys": [key, ranged("1d")], **PAST})
    model: dict[int, tuple[Any, Any]] = {}
    for turn, action in enumerate(["append", *story, "all"]):
        if action == "append":
            new = some_rows(turn * 100, 30)
            lake.spark.createDataFrame(new).coalesce(1).write.format("delta").mode("append").save(
                str(folder)
            )
            model |= {
                r["id"]: (r["k"], r["at"] and r["at"].replace(tzinfo=None)) for r in new.to_pylist()
            }
        elif action == "delete":
            lake.spark.sql(f"DELETE FROM {name} WHERE id % 5 = {turn % 5}")
            model = {key: row for key, row in model.items() if key % 5 != turn % 5}
        elif action == "update":
            lake.spark.sql(f"UPDATE {name} SET k = 'new {turn}' WHERE id % 7 = {turn % 7}")
            for key in [key for key in model if key % 7 == turn % 7]:
                model[key] = (f"new {turn}", model[key][1])
        elif action == "optimize":
            lake.spark.sql(f"OPTIMIZE {name}").collect()
        elif isinstance(action, Step):
            with contextlib.suppress(Killed):
                partitioning.operate(on_step=killer(action))
        elif action == "all":
            while partitioning.operate():
                pass
        else:
            partitioning.operate(merge=action == "merge")
        for read in (lake.table("t").read, partitioning.read):
            found = Counter(map(tuple, read().collect()))
            assert found == Counter((key, *row) for key, row in model.items()), (turn, action)
    files = live_files(folder)
    assert check_homogeneous(files, policy) == len(files)
    assert partitioning.stats().pending_rows == 0
    assert all(receipt.version is not None for receipt in partitioning.receipts())


ONCE = settings(
    max_examples=1,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.long
@ONCE
@given(STORY)
def test_any_story_keeps_the_rows(
    tmp_path_factory: pytest.TempPathFactory, story: list[Any]
) -> None:
    tell(tmp_path_factory.mktemp("story"), story)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
@settings(ONCE, max_examples=5, derandomize=False)
@given(story=st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=20))
def test_many_stories(
    tmp_path_factory: pytest.TempPathFactory, part: int, story: list[Any]
) -> None:
    """Run forty stories in eight parts, each a few minutes long.

    The parts are random and differ. In every other part one operation does not have room for all
    groups.
    """
    tell(tmp_path_factory.mktemp("story"), story, 3 if part % 2 else 10_000)


@pytest.mark.long
@pytest.mark.parametrize("step", list(Step), ids=lambda step: step.value)
def test_sigkill(lake: Lake, step: Step) -> None:
    folder = hand_made(lake, [some_rows(0, 60), some_rows(60, 60)])
    before = everything(lake)
    policy = lake.table("t").partitioning.set({"PartitionKeys": [hashed(2)], **PAST})
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, lake.storage.root, step.name],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert everything(lake) == before
    assert not lake.partitioning.run().failed
    files = live_files(folder)
    assert check_homogeneous(files, policy) == len(files) == 2
    assert everything(lake) == before
    assert [r.version for r in lake.table("t").partitioning.receipts() if r.version != -1] == [2]


def test_the_command(lake: Lake, tmp_path: Path) -> None:
    small_table(lake, "t", [50, 50])
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"PartitionKeys": [hashed(2)], **PAST}))

    def call(verb: str, *arguments: str, table: str = "t") -> tuple[int, Any]:
        done = CliRunner().invoke(
            cli.app, ["partition", verb, lake.storage.root, table, *arguments]
        )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, json.loads(done.stdout) if "--json" in arguments else done.stdout

    _, document = call("set", str(policy), "--dry-run", "--json")
    assert document["rows"][0]["Policy"] is not None
    assert call("show", "--json")[1]["rows"][0]["Policy"] is None
    code, document = call("set", str(policy), "--json")
    assert code == 0
    assert document["rows"][0]["Policy"]["PartitionKeys"][0]["Properties"]["MaxPartitionCount"] == 2
    assert "DataPartitioning" in call("show")[1]
    policy.write_text('{"MaxRowCountPerOperation": 50}')
    _, document = call("alter-merge", str(policy), "--json")
    assert document["rows"][0]["Policy"]["MaxRowCountPerOperation"] == 50
    for wrong in (
        ["set"],
        ["show", str(policy)],
        ["run", "--hot", "3d"],
        ["alter-merge", "--guard"],
    ):
        assert call(*wrong)[0] == 2
    with pytest.raises(UsageError, match="single table"):
        call("show", table="*")
    small_table(lake, "u", [50])
    lake.table("u").partitioning.set({"PartitionKeys": [hashed(2)], **PAST})
    lake.table("u").partitioning.run()
    code, document = call("stats", "--json", table="*")
    assert code == 1  # behind
    assert [(row["TableName"], row["PartitionedRowPercentage"]) for row in document["rows"]] == [
        ("t", 0.0),
        ("u", 100.0),
    ]
    assert document["diagnostics"]["TableWithMinPartitioningPercentage"] == "t"
    assert [(one.table, one.rows) for one in lake.partitioning.stats()] == [("t", 100), ("u", 50)]
    _, document = call("run", "--dry-run", "--json", table="*")
    assert document["rows"][0]["PartitionedRowPercentage"] == 0
    code, document = call("run", "--json", table="*")
    assert code == 0
    assert [len(line["operations"]) for line in document["tables"]] == [2]
    _, document = call("stats", "--json")
    assert document["rows"][0]["PartitionedRowPercentage"] == 100.0
    assert call("stats", table="*")[0] == 0
    assert "0 operations" in call("run", "--once")[1]
    _, document = call("advise", "--json")
    assert document["policy"] is None
    assert document["findings"][0]["rule"] == "too small"
    assert "DataPartitioning" in call("show")[1]
    _, document = call("delete", "--dry-run", "--json")
    assert document["rows"][0]["Policy"] is not None
    _, document = call("delete", "--json")
    assert document["rows"][0]["Policy"] is None


def test_the_mirror_leaves_partitioned_files_alone(lake: Lake) -> None:
    """Its own compaction would mix them; the process runs in a parallel thread until stopped."""
    from mirrorlake import MirrorOptions

    publisher = lake.publisher("t", keys=["id"])
    rows = [{"id": n, "k": f"k{n % 9}"} for n in range(60)]
    publisher.write(pa.Table.from_pylist(rows))
    lake.mirror(options=MirrorOptions(compact_after=1))
    keys = {"PartitionKeys": [hashed(3)], **PAST}
    policy = lake.table("t").partitioning.set(keys, bucket_column="bucket")
    stop, reports = threading.Event(), []
    process = lake.partitioning.process("t")

    def hear(report: Any) -> None:
        reports.append(report)
        if len(reports) > 1 or report.operations:
            stop.set()

    worker = threading.Thread(
        target=process.watch, args=(stop,), kwargs={"interval": 0.05, "on_report": hear}
    )
    worker.start()
    publisher.upsert([{"id": 1, "k": "new"}, {"id": 100, "k": "k1"}])
    assert not lake.mirror(options=MirrorOptions(compact_after=1)).failed
    worker.join()
    assert not [report for report in reports if report.failed]
    lake.partitioning.run()
    folder = lake.storage.path("Tables/t")
    assert check_homogeneous(live_files(folder), policy) == len(live_files(folder))
    # The bucket of a changed key was updated, although the mirror does not know the column.
    assert lake.table("t").read("bucket IS NULL").count() == 0
    assert lake.table("t").read("k = 'new'").count() == 1
    assert lake.table("t").read().count() == 61
    operations = {row.operation for row in describe_history(lake.table("t")).collect()}
    assert not [
        row
        for row in describe_history(lake.table("t")).collect()
        if row.operation == "OPTIMIZE" and "mirrorlake" not in (row.userMetadata or "")
    ], operations
