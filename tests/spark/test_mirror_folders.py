"""What becomes of a table whose folder changes: made again, with NULL columns only at first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlake import Lake
from mirrorlake.names import file_name
from tables import bag


def test_a_folder_made_again_while_nobody_watched_makes_the_table_anew(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": 1, "v": "old"}])
    publisher.upsert([{"id": 2, "v": "old"}])
    assert not lake.mirror().failed
    shutil.rmtree(Path(lake.landing_zone) / "t")
    publisher = lake.publisher("t", keys=["code"])
    publisher.write([{"code": "x", "v": 1.5}, {"code": "y", "v": 2.5}])  # the same numbers again
    publisher.delete([{"code": "y"}])
    assert not lake.mirror().failed
    assert bag(lake, "t", ["code", "v"]) == {("x", 1.5): 1}
    snapshot = lake.table("t").snapshot()
    assert list(snapshot.schema) == ["code", "v"]
    assert snapshot.properties["mirrorlake.keys"] == '["code"]'
    before = lake.table("t").as_of(version=1)  # history survives, frames of it too
    assert sorted(tuple(row) for row in before.collect()) == [(1, "old"), (2, "old")]


def test_columns_of_nothing_but_null_wait_for_their_type(lake: Lake) -> None:
    folder = Path(lake.landing_zone) / "t"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.nulls(2), "b": pa.nulls(2)}), folder / file_name(1))
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert "none has a type" in line.error["message"]
    pq.write_table(pa.table({"a": [1], "b": pa.nulls(1)}), folder / file_name(2))
    assert not lake.mirror().failed
    assert bag(lake, "t", ["a"]) == {(None,): 2, (1,): 1}
    pq.write_table(pa.table({"a": [2], "b": ["now"]}), folder / file_name(3))
    assert not lake.mirror().failed
    assert bag(lake, "t", ["a", "b"]) == {(None, None): 2, (1, None): 1, (2, "now"): 1}
