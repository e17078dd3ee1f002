"""Rows and descriptions of commits, with the metrics of Spark, of delta-rs, and without any."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mirrorlake.delta import commits
from mirrorlake.storage.files import Storage


@pytest.mark.parametrize(
    ("operation", "metrics", "rows"),
    [
        ("WRITE", {"numOutputRows": 7, "numFiles": 1}, (7, 0, None)),
        ("MERGE", {"numTargetRowsInserted": 1, "numTargetRowsUpdated": 2,
                   "numTargetRowsDeleted": 3, "numOutputRows": 9}, (1, 2, 3)),
        ("UPDATE", {"numUpdatedRows": 4}, (0, 4, 0)),
        ("DELETE", {}, (0, 0, None)),
        ("OPTIMIZE", {"numRemovedFiles": 4, "numAddedFiles": 1}, (0, 0, 0)),
        ("CREATE TABLE", {}, (0, 0, 0)),
        ("CREATE TABLE AS SELECT", {"numOutputRows": 5}, (5, 0, 0)),
        ("SOMETHING NEW", {}, (None, None, None)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_rows_by_operation(operation: str, metrics: dict[str, Any], rows: tuple) -> None:
    assert commits.rows_changed(operation, metrics) == commits.RowsChanged(*rows)


@pytest.mark.parametrize(
    ("operation", "parameters", "note", "said"),
    [
        ("MERGE", {"predicate": '["(id#19318L = id#7)"]'}, None, ""),
        ("DELETE", {"predicate": '["(id#19318L = 7)"]'}, None, "(id = 7)"),
        ("UPDATE", {"predicate": "no JSON"}, None, "no JSON"),
        ("WRITE", {"mode": "Append"}, None, "append"),
        ("RESTORE", {"version": 3, "timestamp": None}, None, "to version 3"),
        ("SET TBLPROPERTIES", {"properties": '{"a": "b"}'}, None, "a = b"),
        ("ADD COLUMNS", {"columns": '[{"column": {"name": "n"}}]'}, None, "n"),
        ("WRITE", {}, "a word from the writer", "a word from the writer"),
        ("MERGE", {}, json.dumps({"incarnation": "i", "last": 9}), "published files up to 9"),
        ("DELETE", {"predicate": "x" * 100}, None, "x" * 59 + "…"),
    ],
)
def test_descriptions_of_commits(
    operation: str, parameters: Any, note: str | None, said: str
) -> None:
    assert commits.describe_commit(operation, parameters, {}, note) == said


def test_the_history_of_a_delta_rs_table(storage: Storage) -> None:
    assert storage.local
    path = storage.local / "Tables" / "t"
    write_deltalake(path, pa.table({"id": range(9)}))
    DeltaTable(path).delete("id < 4")
    history = commits.CommitLog(storage, "Tables/t").read(1, 10)
    assert [(c.rows.inserted, c.rows.deleted) for c in history.commits] == [(0, 4), (9, None)]
    shown = history.shown()
    assert shown.columns[:3] == ("version", "made (UTC)", "operation")
    assert shown.rows[0][2:] == ("DELETE", 0, 0, 4, "id < 4")
    assert "predicate" not in repr(history)
