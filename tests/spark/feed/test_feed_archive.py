"""Test that an archive contains every change once: over runs, kills, lost state and a RESTORE."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.examples import under_long
from helpers.feed_model import RESERVED
from helpers.killing import run_until
from helpers.quiet import QUIET, commit_quietly
from mirrorlake import Lake, Table
from mirrorlake.errors import FeedError
from mirrorlake.feed import archive as archive_module
from mirrorlake.names import TableName

INTO = TableName("history", "stock")
STEPS = ("prepared", "begun", "saved", "streamed")
KILLER = """
import os, signal, sys
from mirrorlake import Lake
from mirrorlake.feed.archive import Archive
from mirrorlake.names import TableName
def kill(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
lake = Lake(sys.argv[1])
Archive(lake.table("stock"), TableName("history", "stock")).run(on_step=kill)
"""
RUN = """
import sys
from mirrorlake import Lake
Lake(sys.argv[1]).archive("stock", "history.stock")
"""
KILLS = 8  # at evenly spaced points


class Killed(BaseException):
    """A kill, which is not an Exception, so that no handler takes it for a failure."""


def change(table: Table, number: int) -> None:
    """Commit three versions: an insert of several files, an update, and one without changes."""
    rows = table.spark.range(number * 10, number * 10 + 4, 1, 2).selectExpr("id", "'a' AS v")
    rows.write.format("delta").mode("append").save(table.path)
    table.spark.sql(f"UPDATE {table.sql_name} SET v = 'b{number}' WHERE id % 10 = 1")
    commit_quietly(table, QUIET[number % len(QUIET)])


def model(changes: int) -> Counter[tuple[Any, ...]]:
    """Return the feed after this number of changes, computed by a loop."""
    feed: Counter[tuple[Any, ...]] = Counter()
    values: dict[int, str] = {}
    for number in range(1, changes + 1):
        for key in range(number * 10, number * 10 + 4):
            values[key] = "a"
            feed[key, "a", "insert", 3 * number - 2] += 1
        for key in (key for key in values if key % 10 == 1):
            feed[key, values[key], "update_preimage", 3 * number - 1] += 1
            values[key] = f"b{number}"
            feed[key, values[key], "update_postimage", 3 * number - 1] += 1
    return feed


@pytest.fixture
def stock(lake: Lake) -> Table:
    table = lake.create_table("stock", {"id": "BIGINT", "v": "STRING"}, keys=["id"])
    change(table, 1)
    return table


def content(table: Table, columns: tuple[str, ...] = ("id", "v")) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in table.read().select(*columns, *RESERVED).collect())


def check(lake: Lake, start: int = 0) -> None:
    feed = lake.table("stock").changes.read(start)
    expected = Counter(tuple(row) for row in feed.select("id", "v", *RESERVED).collect())
    assert content(lake.table(INTO)) == expected


@pytest.mark.promise("CF-06", "CF-16")
def test_every_run_appends_what_is_new(
    lake: Lake, stock: Table, pytestconfig: pytest.Config
) -> None:
    first = lake.archive("stock", INTO)
    assert repr(first) == "stock → history.stock: 4 new versions, archived up to 3"
    assert (first.lag.versions, first.recovered) == (0, "")
    check(lake)
    version = lake.table(INTO).snapshot().version
    assert repr(lake.archive("stock", INTO)).endswith("nothing new, archived up to 3")
    assert lake.table(INTO).snapshot().version == version  # without new versions there is no commit
    commit_quietly(stock, "property")
    assert repr(lake.archive("stock", INTO)).endswith("1 new version, archived up to 4")
    assert repr(lake.archive("stock", INTO)).endswith("nothing new, archived up to 4")
    assert lake.archive("stock", INTO, dry_run=True).lag.versions == 0
    change(stock, 2)
    done = lake.archive("stock", INTO)
    assert (done.start, done.end) == (5, 7)
    check(lake)
    state = Path(lake.storage.root) / "Files/_mirrorlake/feeds/stock/archive-history.stock"
    shutil.rmtree(state / "checkpoint-1")
    change(stock, 3)
    lost = lake.archive("stock", INTO)
    assert (lost.start, lost.end) == (8, 10)
    assert "the old one is missing" in lost.recovered
    check(lake)
    if not pytestconfig.getoption("--long"):
        return
    shutil.rmtree(lake.table(INTO).path)
    assert repr(lake.archive("stock", INTO)).endswith("11 new versions, archived up to 10")
    check(lake)


def test_an_archive_begins_with_the_newest_rows_if_files_of_the_feed_are_missing(
    lake: Lake, stock: Table
) -> None:
    follower = lake.archive("stock", "follower")
    for file in Path(stock.path, "_change_data").glob("*.parquet"):
        file.unlink()
    fresh = lake.archive("stock", INTO)
    assert fresh.end == 3
    assert repr(fresh).endswith("1 new version, archived up to 3")
    newest = Counter((row.id, row.v) for row in stock.read().collect())
    assert Counter((row.id, row.v) for row in lake.table(INTO).read().collect()) == newest
    change(stock, 2)
    for file in Path(stock.path, "_change_data").glob("*.parquet"):
        file.unlink()
    with pytest.raises(
        FeedError, match=r"The archive follower can't continue: .* a VACUUM deleted"
    ):
        lake.archive("stock", "follower")
    assert follower.end == 3


@pytest.mark.long
def test_what_is_spoilt_or_restored_is_put_right(lake: Lake, stock: Table) -> None:
    lake.archive("stock", INTO)
    state = Path(lake.storage.root) / "Files/_mirrorlake/feeds/stock/archive-history.stock"
    for file in (state / "checkpoint-1" / "offsets").iterdir():
        file.write_text("nonsense")
    change(stock, 2)
    assert "new checkpoint" in lake.archive("stock", INTO).recovered
    check(lake)
    shutil.rmtree(state.parent)
    change(stock, 3)
    lake.archive("stock", INTO)
    check(lake)
    kept = lake.table(INTO)
    lake.spark.sql(f"RESTORE TABLE {kept.sql_name} TO VERSION AS OF 2")
    assert "restored" in lake.archive("stock", INTO).recovered
    check(lake)
    lake.spark.sql(f"RESTORE TABLE {stock.sql_name} TO VERSION AS OF 3")  # this time the source
    lake.spark.sql(f"ALTER TABLE {stock.sql_name} ADD COLUMN w INT")
    lake.spark.sql(f"INSERT INTO {stock.sql_name} (id, v, w) VALUES (99, 'x', 5)")
    lake.archive("stock", INTO)
    check(lake)
    assert lake.table(INTO).read().where("w = 5").count() == 1
    with pytest.raises(FeedError, match="not an archive of"):
        lake.archive(INTO, "stock")


@pytest.mark.parametrize("step", [*under_long(*STEPS[:-1]), STEPS[-1]])
def test_an_exception_after_any_step(lake: Lake, stock: Table, step: str) -> None:
    archive = archive_module.Archive(stock, INTO)

    def kill(done: str) -> None:
        if done == step:
            raise Killed

    with pytest.raises(Killed):
        archive.run(on_step=kill)
    change(stock, 2)
    archive.run()
    check(lake)
    if step == "streamed":  # the sink has committed, but not the checkpoint
        state = Path(lake.storage.root) / "Files/_mirrorlake/feeds/stock/archive-history.stock"
        commits = sorted((state / "checkpoint-1" / "commits").glob("[0-9]*"))
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
        change(stock, 3)
        archive.run()
        check(lake)


@pytest.mark.long
def test_an_archive_that_begins_with_a_snapshot_or_a_version(lake: Lake, stock: Table) -> None:
    off = "SET TBLPROPERTIES (delta.enableChangeDataFeed = %s)"
    lake.spark.sql(f"ALTER TABLE {stock.sql_name} {off % 'false'}")  # 4
    lake.spark.sql(f"ALTER TABLE {stock.sql_name} {off % 'true'}")  # 5

    def kill(done: str) -> None:
        if done == "begun":
            raise Killed

    with pytest.raises(Killed):
        archive_module.Archive(stock, INTO).run(on_step=kill)
    change(stock, 2)  # 6 to 8
    report = lake.archive("stock", INTO)
    assert (report.start, report.end) == (6, 8)
    found = content(lake.table(INTO))
    assert sorted(row[:4] for row in found if row[3] == 5) == sorted(
        (row.id, row.v, "insert", 5) for row in stock.read(version=5).collect()
    )
    later = lake.table(INTO).read().where("_commit_version > 5")
    assert later.exceptAll(stock.changes.read(6)).count() == 0
    assert later.count() == stock.changes.read(6).count()
    lake.archive("stock", "from_6", start=6)
    assert lake.table("from_6").read().exceptAll(stock.changes.read(6)).count() == 0
    with pytest.raises(FeedError, match="not enabled in version 4"):
        lake.archive("stock", "from_1", start=1)


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
def test_sigkill(lake: Lake, stock: Table, step: str) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, lake.storage.root, step], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    change(stock, 2)
    lake.archive("stock", INTO)
    check(lake)


@pytest.mark.long
@pytest.mark.parametrize("archived_before", [False, True], ids=["new", "existing"])
def test_sigkill_at_any_moment(
    lake: Lake, stock: Table, tmp_path: Path, archived_before: bool
) -> None:
    if archived_before:
        lake.archive("stock", INTO)
        change(stock, 2)
    changes = 1 + archived_before

    def run(moment: int) -> tuple[bool, int]:
        root = tmp_path / f"killed after {moment}"
        shutil.copytree(lake.storage.root, root)
        killed, made = run_until(lambda made: len(made) >= moment, root, RUN)
        copy = Lake(root)
        change(copy.table("stock"), changes + 1)
        for _ in range(2):
            copy.archive("stock", INTO)
            rows = copy.table(INTO).read().select("id", "v", *RESERVED[:2]).collect()
            assert Counter(map(tuple, rows)) == model(changes + 1), moment
        return killed, len(made)

    killed, total = run(10**9)
    assert not killed
    kills = sum(run(moment)[0] for moment in range(1, total, max(1, total // KILLS)))
    assert kills >= KILLS // 2
