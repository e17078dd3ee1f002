"""Test frames: they are pinned together, read exactly, kept by vacuum and compared."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from helpers.delta_files import (
    data_files,
    files_on_disk,
    masked_files,
    needed_files,
    newest_version,
)
from mirrorlake import Lake
from mirrorlake.errors import FrameError, TableNotFoundError, UsageError
from mirrorlake.history import frame_records
from mirrorlake.history import frames as frames_module
from mirrorlake.history import vacuum as vacuum_module
from mirrorlake.history import versions as versions_module
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

VECTORS = {"delta.enableDeletionVectors": "true"}


def bag_of(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def folder(lake: Lake, table: str) -> Path:
    return Path(lake.storage.root) / "Tables" / table


def some(spark: SparkSession, first: int, count: int, parts: int = 1) -> DataFrame:
    return spark.range(first, first + count, 1, parts).selectExpr("id", "id % 7 AS day", "'a' AS v")


@pytest.mark.promise("DL-07", "DL-08", "DL-10")
def test_a_frame_from_its_making_to_its_release(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write("stock", some(spark, 0, 10), properties=VECTORS)
    other = lake.write("shop.`it'``s`", some(spark, 0, 3))
    with pytest.raises(FrameError, match=r"model 'sales' has no frame.*models with frames: none"):
        lake.frames.get("sales")
    frame = lake.frames.create("sales", ["stock", other.name], owner="ann")
    assert [(t.table, t.version, t.files, t.row_groups, t.rows) for t in frame.tables] == [
        ("shop.`it'``s`", 1, 1, 1, 3),
        ("stock", 1, 1, 1, 10),
    ]
    assert frame.tables[1].timestamp == lake.table("stock").readable_range().until.isoformat(
        timespec="milliseconds"
    )
    assert (frame.owner, frame.state) == ("ann", "complete")
    assert [(line.preserved, line.files_preserved) for line in lake.frames.show("sales")] == [
        (1.0, 1),
        (1.0, 1),
    ]

    # Neither readers nor SQL see later changes.
    stock = lake.table("stock")
    lake.write("stock", some(spark, 10, 5))
    spark.sql(f"DELETE FROM {stock.sql_name} WHERE id < 4")
    for seen in (
        lake.frames.read("sales", "STOCK"),
        lake.sql("SELECT stock.* FROM stock WHERE id >= 0", frame="sales"),
    ):
        assert bag_of(seen) == bag_of(some(spark, 0, 10))
    joined = "SELECT count(*) AS n FROM stock JOIN shop.`it'``s` b USING (id)"
    assert [row.n for row in lake.sql(joined, frame="sales").collect()] == [3]
    with pytest.raises(FrameError, match=r"has no table nowhere.*it contains"):
        lake.sql("SELECT * FROM nowhere", frame="sales")
    with pytest.raises(UsageError, match="has one version of"):
        lake.sql("SELECT * FROM stock@v1", frame="sales")
    moved = lake.frames.show("sales")[1]
    assert (moved.framed, moved.newest) == (1, 3)
    assert (moved.files_added, moved.files_removed, moved.files_preserved) == (1, 0, 1)
    assert (moved.rows_added, moved.rows_removed, moved.vectors_changed) == (5, 4, 1)
    assert (moved.row_groups_added, moved.preserved) == (1, 1.0)

    # The next frame contains them. When it is complete, the previous one keeps no files.
    take = frames_module.Frames._clone

    def watched(self: frames_module.Frames, taken: frame_records.Frame, *rest: Any) -> Any:
        assert (
            lake.frames.get("sales") == frame
        )  # readers see this frame until the next is complete
        assert frame_records.find_pins(lake.storage, datetime.now(timezone.utc))[0] == [
            frame,
            taken,
        ]  # vacuum keeps both
        return take(self, taken, *rest)

    monkeypatch.setattr(frames_module.Frames, "_clone", watched)
    second = lake.frames.create("sales", ["stock"], expires_in=None)
    monkeypatch.undo()
    assert (second.number, second.tables[0].version, second.expires) == (2, 3, None)
    assert lake.frames.list() == [second]
    assert frame_records.find_pins(lake.storage, datetime.now(timezone.utc))[0] == [second]
    assert bag_of(lake.frames.read("sales", "stock")) == bag_of(stock.read())

    # Another tool deleted one of its files.
    (gone,) = data_files(folder(lake, "stock"), 3) - data_files(folder(lake, "stock"), 1)
    (folder(lake, "stock") / gone).rename(folder(lake, "stock") / "aside")
    with pytest.raises(FrameError, match=r"sales is broken: .* at version 3, is missing") as caught:
        lake.frames.read("sales", "stock")
    assert str(caught.value.file).endswith(gone)
    with pytest.raises(FrameError, match=r"can't be framed: .* is missing"):
        lake.frames.create("sales", ["stock"])
    assert lake.frames.get("sales") == second  # a frame that fails leaves nothing behind
    (folder(lake, "stock") / "aside").rename(folder(lake, "stock") / gone)

    expired = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat()
    frame_records.save_frame(lake.storage, replace(second, expires=expired))
    with pytest.raises(FrameError, match="expired at"):
        lake.frames.read("sales", "stock")
    assert frame_records.find_pins(lake.storage, datetime.now(timezone.utc))[0] == []
    lake.frames.release("sales")
    with pytest.raises(FrameError, match="2 of sales was released"):
        lake.frames.get("sales")
    for number in (1, 2):
        old = next(
            f for f in frame_records.read_frames(lake.storage, "sales") if f.number == number
        )
        frame_records.save_frame(
            lake.storage, replace(old, created="2020-01-01T00:00:00+00:00", expires=None)
        )
    assert [frame.number for frame in lake.frames.sweep()] == [1]
    assert not (Path(lake.storage.root) / frame.folder).exists()


def test_wrong_frames(lake: Lake, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="at least one table"):
        lake.frames.create("m", [])
    with pytest.raises(UsageError, match="expire after -1"):
        lake.frames.create("m", ["t"], expires_in=-1)
    with pytest.raises(TableNotFoundError, match="no table t"):
        lake.frames.create("m", ["t"])
    lake.write("t", some(spark, 0, 3))
    lake.frames.create("m", ["t"])
    shutil.rmtree(folder(lake, "t"))  # dropped
    (line,) = lake.frames.show("m")
    assert (line.newest, str(line)) == (None, "t: framed at 1, no longer exists")
    with pytest.raises(FrameError, match=r"is broken.* t was dropped or renamed.*undrop"):
        lake.frames.read("m", "t")
    lake.write("t", some(spark, 0, 2))
    (line,) = lake.frames.show("m")
    assert line.recreated
    assert (line.files_removed, line.preserved) == (1, 0.0)


@pytest.mark.long
def test_versions_that_do_not_stand_still(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [TableName(None, "a"), TableName(None, "b")]
    for name in names:
        lake.write(name, some(spark, 0, 1))
    seen: list[int] = []

    def restless(_storage: Storage, tables: list[TableName]) -> list[int]:
        seen.append(1)
        return [len(seen) if len(seen) < 4 else 1 for _ in tables]

    monkeypatch.setattr(versions_module, "newest_versions", restless)
    frame = lake.frames.create("m", names)
    assert [t.version for t in frame.tables] == [1, 1]
    assert len(seen) == 5  # until two reads are equal

    def never_still(_storage: Storage, tables: list[TableName]) -> list[int]:
        seen.append(1)
        return [len(seen)] * len(tables)

    monkeypatch.setattr(versions_module, "newest_versions", never_still)
    with pytest.raises(FrameError, match="changed 20 times"):
        lake.frames.create("m", names)


@pytest.mark.promise("DL-09")
def test_vacuum_and_framing_race(
    lake: Lake,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    """Test each point at which one may overtake the other: every frame stays readable."""
    table = lake.write("t", some(spark, 0, 5))
    name = table.name
    real = frames_module.Frames._newest

    def write_and_vacuum() -> None:
        lake.write("t", some(spark, 100, 5), mode="overwrite")
        lake.table("t").vacuum(retention_hours=0, allow_short=True, apply=True)

    # Vacuum runs completely between reading the versions and pinning; the horizon is seen.
    def late(self: frames_module.Frames, tables: list[TableName]) -> Any:
        stamps = real(self, tables)
        if not done:
            done.append(1)
            write_and_vacuum()
        return stamps

    done: list[int] = []
    monkeypatch.setattr(frames_module.Frames, "_newest", late)
    frame = lake.frames.create("early", [name])
    monkeypatch.undo()
    assert frame.tables[0].version > 1
    assert bag_of(lake.frames.read("early", name)) == bag_of(some(spark, 100, 5))
    table_id = lake.table("t").snapshot().metadata["id"]
    assert frame_records.read_horizon(lake.storage, name, table_id) == frame.tables[0].version - 2

    # Vacuum starts after the pin and before the frame is complete; it sees the pin.
    take = frames_module.Frames._clone

    def slow(self: frames_module.Frames, *arguments: Any) -> Any:
        lake.write("t", some(spark, 200, 5), mode="overwrite")
        lake.table("t").vacuum(retention_hours=0, allow_short=True, apply=True)
        return take(self, *arguments)

    monkeypatch.setattr(frames_module.Frames, "_clone", slow)
    lake.frames.create("pinned", [name])
    monkeypatch.undo()
    assert bag_of(lake.frames.read("pinned", name)) == bag_of(some(spark, 100, 5))

    if not pytestconfig.getoption("--long"):
        return
    # The frame is completed after the horizon is written, before vacuum looks for frames.
    publish = frame_records.publish_horizon

    def then_frame(*arguments: Any) -> None:
        publish(*arguments)
        lake.frames.create("between", [name])
        lake.write("t", some(spark, 300, 5), mode="overwrite")

    lake.frames.release("early")
    monkeypatch.setattr(vacuum_module, "publish_horizon", then_frame)
    lake.table("t").vacuum(retention_hours=0, allow_short=True, apply=True)
    monkeypatch.undo()
    assert bag_of(lake.frames.read("between", name)) == bag_of(some(spark, 200, 5))
    assert bag_of(lake.frames.read("pinned", name)) == bag_of(some(spark, 100, 5))


def check_reload(lake: Lake, line: frames_module.FrameDiff) -> None:
    """Check a difference against plain Python, which walks over all commits of both versions."""
    path = folder(lake, line.table)
    before, now = masked_files(path, line.framed), masked_files(path)
    footers = {name: pq.read_metadata(path / name) for name in {*before, *now}}
    added, removed = sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys())
    moved = [n for n in before.keys() & now.keys() if before[n][0] != now[n][0]]

    def groups(names: Iterable[str]) -> int:
        return sum(footers[name].num_row_groups for name in names)

    def size(names: Iterable[str]) -> int:
        return sum((path / name).stat().st_size for name in names)

    assert (line.files_added, line.files_removed) == (len(added), len(removed))
    assert (line.files_preserved, line.vectors_changed) == (len(before) - len(removed), len(moved))
    assert (line.row_groups_added, line.row_groups_removed) == (groups(added), groups(removed))
    assert line.row_groups_preserved == groups(before) - groups(removed)
    assert (line.bytes_added, line.bytes_removed) == (size(added), size(removed))
    assert line.rows_added == sum(footers[n].num_rows - now[n][1] for n in added)
    gone = sum(footers[n].num_rows - before[n][1] for n in removed)
    assert line.rows_removed == gone + sum(now[n][1] - before[n][1] for n in moved)


@pytest.mark.long
def test_what_a_frame_would_reload_equals_a_slow_reference(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write("t", some(spark, 0, 20), partition_by=["day"], properties=VECTORS)
    name = lake.table("t").sql_name
    spark.sql(f"DELETE FROM {name} WHERE id = 3")
    framed = lake.frames.create("m", ["t"]).tables[0].version
    # A changed vector, a new vector, a whole file: first forecast, then done.
    predicate = "id IN (4, 10) OR day = 2"
    (said,) = lake.frames.show("m", delete=("t", predicate))
    assert (said.files_removed, said.vectors_changed, said.rows_removed) == (1, 2, 5)
    spark.sql(f"DELETE FROM {name} WHERE {predicate}")
    spark.sql(f"INSERT INTO {name} SELECT id, 6L, 'b' FROM range(40, 45, 1, 1)")
    (short,) = lake.frames.show("m")
    check_reload(lake, short)
    assert (short.files_added, short.files_removed, short.vectors_changed) == (1, 1, 2)
    assert short.rows_removed == said.rows_removed
    # Removed files are restored, and some of them change again.
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {framed + 1}")
    spark.sql(f"UPDATE {name} SET v = 'c' WHERE id = 0")
    (short,) = lake.frames.show("m")
    check_reload(lake, short)
    assert (short.files_added, short.files_removed, short.vectors_changed) == (1, 1, 3)
    monkeypatch.setattr(frames_module, "_MANY", 0)  # read the whole log
    assert lake.frames.show("m") == (short,)


@pytest.mark.long
def test_a_frame_follows_its_lake(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    rows = some(spark, 0, 10, 2)
    table = lake.write("s.it's", rows, partition_by=["v"], properties=VECTORS)
    spark.sql(f"DELETE FROM {table.sql_name} WHERE id < 2")
    lake.frames.create("a model", ["s.it's"])
    before = bag_of(table.read())
    lake.write("s.it's", some(spark, 50, 5), mode="overwrite")
    place = tmp_path / "new ü 50%"
    Path(lake.storage.root).rename(place)
    moved = Lake(place, spark=spark)
    done = moved.table("s.it's").vacuum(retention_hours=0, allow_short=True, apply=True)
    assert done.delete_files == 0  # the paths of the frame's files are current
    (line,) = moved.frames.show("a model")
    assert (line.files_removed, line.rows_removed, line.rows_added) == (2, 8, 5)
    assert bag_of(moved.frames.read("a model", "s.it's")) == before

    # A copy reads its own files, not those of the original. A link leads to the same lake.
    copy = Lake(shutil.copytree(place, tmp_path / "copy"), spark=spark)
    read = copy.frames.read("a model", "s.it's")
    assert bag_of(read) == before
    assert all(str(tmp_path / "copy") in name for name in read.inputFiles())
    (tmp_path / "link").symlink_to(tmp_path / "copy")
    linked = Lake(tmp_path / "link", spark=spark)
    assert bag_of(linked.frames.read("a model", "s.it's")) == before
    assert linked.frames.get("a model").place == copy.frames.get("a model").place
    for file in read.inputFiles():
        Path(unquote(file).removeprefix("file:").replace("///", "/")).unlink()
    with pytest.raises(FrameError, match="is broken"):
        copy.frames.read("a model", "s.it's")
    assert bag_of(moved.frames.read("a model", "s.it's")) == before


def check_lake(lake: Lake, made: dict[str, tuple[Counter, set[str]]]) -> None:
    """Check that live frames are unchanged, and that no unneeded file is left."""
    for model, (rows, _) in made.items():
        assert bag_of(lake.frames.read(model, "t")) == rows, model
    needed = needed_files(folder(lake, "t")).union(*(files for _, files in made.values()))
    assert files_on_disk(folder(lake, "t")) == needed
    for model in made:
        check_reload(lake, lake.frames.show(model)[0])


def random_life(lake: Lake, spark: SparkSession, seed: int, steps: int) -> Counter[str]:
    dice = random.Random(seed)
    lake.write("t", some(spark, 0, 20, 2), partition_by=["day"] * (seed % 2), properties=VECTORS)
    name = lake.table("t").sql_name
    made: dict[str, tuple[Counter, set[str]]] = {}
    told: Counter[str] = Counter()
    for step in range(steps):
        low = dice.randrange(20)
        verb = dice.choices(
            ["append", "delete", "update", "overwrite", "frame", "release", "recreate"],
            [3, 3, 3, 1, 4, 1, 1],
        )[0]
        told[verb] += 1
        if verb == "append":
            lake.write("t", some(spark, dice.randrange(100), 5))
        elif verb == "delete":
            spark.sql(f"DELETE FROM {name} WHERE id BETWEEN {low} AND {low + 3}")
        elif verb == "update":
            spark.sql(f"UPDATE {name} SET v = 's{step}' WHERE id % 5 = {low % 5}")
        elif verb == "overwrite":
            lake.write("t", some(spark, 50, 10), mode="overwrite")
        elif verb == "recreate":
            spark.sql(
                f"CREATE OR REPLACE TABLE {name} USING delta"
                " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
                f" AS SELECT id, id % 7 AS day, 'n' AS v FROM range({low}, {low + 9})"
            )
        elif verb == "frame":
            model = dice.choice("xyz")
            lake.frames.create(model, ["t"])
            made[model] = (bag_of(lake.table("t").read()), needed_files(folder(lake, "t")))
        elif made:
            lake.frames.release(made.popitem()[0])
        if step % 5 == 4:
            (folder(lake, "t") / f"forgotten-{step}.parquet").touch()
            lake.table("t").vacuum(retention_hours=0, allow_short=True, apply=True)
            check_lake(lake, made)
            told["vacuum"] += 1
    assert newest_version(folder(lake, "t")) >= told["append"]
    return told


@pytest.mark.promise("DL-09")
@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 5])
def test_live_frames_never_change(lake: Lake, spark: SparkSession, seed: int) -> None:
    told = random_life(lake, spark, seed, 10)
    assert told["frame"]
    assert told["vacuum"] == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 112))
def test_live_frames_never_change_at_length(lake: Lake, spark: SparkSession, seed: int) -> None:
    random_life(lake, spark, seed, 40)


@pytest.mark.long
def test_a_frame_outlives_log_clean_up_and_recreation(lake: Lake, spark: SparkSession) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1, "v": "old"}, {"id": 2, "v": "old"}])
    assert not lake.mirror().failed
    lake.frames.create("m", ["t"])
    before = bag_of(lake.frames.read("m", "t"))
    shutil.rmtree(Path(lake.landing_zone) / "t")
    lake.publisher("t", keys=["code"]).write([{"code": "x"}])
    assert not lake.mirror().failed  # recreated with other columns
    table = lake.table("t")
    table.vacuum(retention_hours=0, allow_short=True, apply=True)
    spark.sql(f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    lake.table("t").restore(table.snapshot().version, apply=True)
    log = folder(lake, "t") / "_delta_log"
    for version in range(table.snapshot().version):
        (log / f"{version:020d}.json").unlink()
    assert lake.table("t").readable_range().limits
    assert bag_of(lake.frames.read("m", "t")) == before == {(1, "old"): 1, (2, "old"): 1}
    assert list(lake.frames.read("m", "t").columns) == ["id", "v"]
    (line,) = lake.frames.show("m")
    assert (line.files_removed, line.rows_removed, line.preserved) == (1, 2, 0.0)


@pytest.mark.long
def test_the_golden_case_scaled_down(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a billion rows in 8 files and 24 row groups, scaled down; one day is deleted."""
    rows, day = 182_264, 100
    spark.conf.set("parquet.block.size", str(64 * 1024))
    spark.conf.set("parquet.page.size", str(16 * 1024))
    try:
        fact = spark.range(0, rows, 1, 8).selectExpr(
            f"id % {rows // day} AS day", "CAST(id AS STRING) AS sale"
        )
        lake.write("fact", fact, properties={"delta.enableDeletionVectors": "false"})
    finally:
        spark.conf.unset("parquet.block.size")
        spark.conf.unset("parquet.page.size")
    frame = lake.frames.create("m", ["fact"]).tables[0]
    footers = [pq.read_metadata(path) for path in folder(lake, "fact").glob("*.parquet")]
    groups = sum(footer.num_row_groups for footer in footers)
    assert (frame.files, frame.rows, frame.row_groups) == (8, rows, groups)
    assert groups >= 24

    deleted = fact.where("day = 3").count()
    (before,) = lake.frames.show("m", delete=("fact", "day = 3"))
    assert lake.table("fact").snapshot().version == 1  # only a preview
    assert (before.files_removed, before.preserved, before.forecast) == (8, 0.0, "day = 3")
    assert (before.rows_added, before.rows_removed) == (rows - deleted, rows)
    assert before.row_groups_added is None
    spark.sql(f"DELETE FROM {lake.table('fact').sql_name} WHERE day = 3")
    (after,) = lake.frames.show("m")
    assert (after.rows_added, after.rows_removed, after.preserved) == (rows - deleted, rows, 0.0)
    assert round((rows - deleted) / rows, 5) == round(999_451_335 / 1_000_000_000, 5)
    lake.write("fact", spark.range(0, 11, 1, 11).selectExpr("id AS day", "'s' AS sale"))
    (last,) = lake.frames.show("m")
    assert last.files_added == len(data_files(folder(lake, "fact")))
    assert (last.files_removed, last.row_groups_removed, last.row_groups_preserved) == (
        8,
        groups,
        0,
    )
    assert last.row_groups_added == sum(
        pq.read_metadata(folder(lake, "fact") / name).num_row_groups
        for name in data_files(folder(lake, "fact"))
    )
    assert last.bytes_removed == frame.bytes
