"""Test the change feed of a table that another engine writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from mirrorlake import Lake


def test_delta_rs_writes_and_we_read(lake: Lake) -> None:
    path = lake.storage.path("Tables/t")
    Path(path).parent.mkdir(parents=True)
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})  # 0
    table = DeltaTable(path)
    table.update({"v": "'x'"}, predicate="id = 1")  # 1
    table.delete("id = 2")  # 2
    changed = pa.table({"id": pa.array([3, 4], pa.int64()), "v": ["y", "z"]})
    merge = table.merge(changed, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()  # 3
    ours = lake.table("t")
    assert not ours.changes.diagnose().findings
    found = ours.changes.read(0).select("_commit_version", "_change_type", "id", "v").collect()
    assert sorted(tuple(row) for row in found) == [
        (0, "insert", 1, "a"),
        (0, "insert", 2, "b"),
        (0, "insert", 3, "c"),
        (1, "update_postimage", 1, "x"),
        (1, "update_preimage", 1, "a"),
        (2, "delete", 2, "b"),
        (3, "insert", 4, "z"),
        (3, "update_postimage", 3, "y"),
        (3, "update_preimage", 3, "c"),
    ]
    net = ours.changes.net(1, keys=["id"]).select("_change_type", "id", "v").collect()
    assert sorted(tuple(row) for row in net) == [
        ("delete", 2, "b"),
        ("insert", 4, "z"),
        ("update_postimage", 1, "x"),
        ("update_postimage", 3, "y"),
        ("update_preimage", 1, "a"),
        ("update_preimage", 3, "c"),
    ]
