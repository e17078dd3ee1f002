"""Test that a dimension that is killed with SIGKILL at any point ends as the model does.

The program is killed when a number of files exists on disk. Running it again, also twice, completes
the work.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from helpers.dimensions import HOW, as_rows, events_of, type_1, type_2
from helpers.feed_model import type_1_model, type_2_model
from helpers.killing import run_until
from mirrorlake import Lake
from mirrorlake.feed import scd

HEAD = """
import json, sys
from mirrorlake import Lake
from mirrorlake.feed.scd import Dimension
from mirrorlake.feed.scd import apply_changes
lake = Lake(sys.argv[1])
dimension = Dimension(**json.loads(sys.argv[2]))
source, path = lake.storage.path("Files/batches"), lake.storage.path("Tables/dim")
"""
BATCH = HEAD + "apply_changes(lake.spark.read.parquet(source), path, dimension)"
STREAM = (
    HEAD
    + """
rows = lake.spark.readStream.schema(lake.spark.read.parquet(source).schema)
rows = rows.option("maxFilesPerTrigger", 1).parquet(source)
query = rows.writeStream.option("checkpointLocation", lake.storage.path("Files/checkpoint"))
query = query.foreachBatch(lambda batch, _: apply_changes(batch, path, dimension))
query.trigger(availableNow=True).start().awaitTermination()
"""
)
EMPTIED = {"stored_as": 1, "apply_as_truncates": "op = 'T'"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "type 1": (BATCH, EMPTIED),
    "type 1, NULLs ignored": (BATCH, EMPTIED | {"ignore_null_updates": True}),
    "type 2": (BATCH, {"stored_as": 2}),
    "type 2 by a stream": (STREAM, {"stored_as": 2}),
}
FIRST = "a1=1p b2=1p c2=3r"
NEXT = {1: "!2 c4=1p a5=2p c6- a3=9z", 2: "c4=1p a5=2p c6- b3- a3=9z"}
KILLS = 8  # per case, at evenly spaced points
GRAVES = "/dim__tombstones/_delta_log/"


def prepare(lake: Lake, how: dict[str, Any]) -> None:
    """Create a dimension with its first changes, and two files with the next ones."""
    dimension = scd.Dimension(**HOW, **how)
    scd.apply_changes(as_rows(lake.spark, events_of(FIRST)), path_of(lake), dimension)
    rows = as_rows(lake.spark, events_of(NEXT[how["stored_as"]])).repartition(2, "at")
    rows.write.parquet(lake.storage.path("Files/batches"))


def path_of(lake: Lake) -> str:
    return lake.storage.path("Tables/dim")


def check(spark: SparkSession, lake: Lake, how: dict[str, Any]) -> None:
    events = events_of(f"{FIRST} {NEXT[how['stored_as']]}")
    if how["stored_as"] == 2:
        assert type_2(spark, path_of(lake)) == type_2_model(events)
        return
    nulls = how.get("ignore_null_updates", False)
    assert type_1(spark, path_of(lake)) == type_1_model(events, ignore_nulls=nulls)


def run_again(lake: Lake, program: str, how: dict[str, Any]) -> None:
    """Run the program's work in this process, to share its session."""
    source, dimension = lake.storage.path("Files/batches"), scd.Dimension(**HOW, **how)
    if program == BATCH:
        scd.apply_changes(lake.spark.read.parquet(source), path_of(lake), dimension)
        return
    rows = lake.spark.readStream.schema(lake.spark.read.parquet(source).schema)
    query = rows.option("maxFilesPerTrigger", 1).parquet(source).writeStream
    query = query.option("checkpointLocation", lake.storage.path("Files/checkpoint"))
    query = query.foreachBatch(lambda batch, _: scd.apply_changes(batch, path_of(lake), dimension))
    query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.long
def test_killed_between_its_two_tables(lake: Lake, spark: SparkSession) -> None:
    """Test a kill after type 1 has written deletes and before it has written rows."""
    prepare(lake, EMPTIED)
    root = Path(lake.storage.root)
    killed, _ = run_until(
        lambda made: any(GRAVES in name and name.endswith(".json") for name in made),
        root,
        BATCH,
        json.dumps(HOW | EMPTIED),
    )
    assert killed
    assert type_1(spark, path_of(lake)).get((0, "a")) != (2, "p")  # not written yet
    for _ in range(2):
        run_again(lake, BATCH, EMPTIED)
        check(spark, lake, EMPTIED)


@pytest.mark.long
@pytest.mark.parametrize("case", list(CASES))
def test_killed_at_any_moment(tmp_path: Path, spark: SparkSession, case: str) -> None:
    program, how = CASES[case]
    prepared = tmp_path / "prepared"
    prepare(Lake(prepared), how)

    def run(moment: int) -> tuple[bool, int]:
        root = tmp_path / f"killed after {moment}"
        shutil.copytree(prepared, root)
        killed, made = run_until(
            lambda made: len(made) >= moment, root, program, json.dumps(HOW | how)
        )
        lake = Lake(root)
        for _ in range(2 if killed else 0):
            run_again(lake, program, how)
            check(spark, lake, how)
        check(spark, lake, how)
        return killed, len(made)

    killed, total = run(10**9)
    assert not killed
    kills = sum(run(moment)[0] for moment in range(1, total, max(1, total // KILLS)))
    assert kills >= KILLS // 2
