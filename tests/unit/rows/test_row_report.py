"""Test how the key of a row is given, and what the status of row tracking shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.zones import T, Zone
from mirrorlake import names
from mirrorlake.delta import actions
from mirrorlake.delta.snapshot import ROW_ID_COLUMN, ROW_VERSION_COLUMN, open_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.mirror.forget import delete_row_files
from mirrorlake.names import TableName
from mirrorlake.rows import changes, row_history
from mirrorlake.rows.tracking import Tracking
from mirrorlake.storage.files import Storage


@pytest.mark.parametrize(
    ("text", "keys", "wanted"),
    [
        ("", ("id",), None),
        ("  ", (), None),
        ("7", ("id",), {"id": "7"}),
        ('{"id": 7, "day": "2024-05-01"}', (), {"id": 7, "day": "2024-05-01"}),
    ],
)
def test_a_key_is_a_value_or_json(text: str, keys: tuple[str, ...], wanted: Any) -> None:
    assert row_history.parse_key(text, keys, "t") == wanted


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("{id: 7}", ("id",), "not valid JSON"),
        ("{}", ("id",), "has no column"),
        ("7", (), "declares no keys"),
        ("7", ("a", "b"), "a, b"),
    ],
)
def test_what_is_no_key_is_refused(text: str, keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        row_history.parse_key(text, keys, "t")


@pytest.mark.parametrize("enabled", [True, False])
def test_ids_are_kept_only_while_rows_are_tracked(enabled: bool) -> None:
    status = Tracking("t", 7, enabled, True, 4, 6, (), 0, 0)
    assert ("ids kept since version 6" in repr(status)) is enabled
    assert (("ids kept since", "version 6") in status.shown().rows) is enabled
    assert ("numbered since", "version 4") in status.shown().rows


def test_keys_are_spelled_as_the_columns() -> None:
    """An internal function, because the report itself starts Spark."""
    assert names.spelled(("Day", "ID", "gone"), ["id", "n", "day"]) == ("day", "id")


def test_temporary_logs_contain_no_values_and_are_deleted_by_table(any_storage: Storage) -> None:
    spark: Any = None  # the log is written before Spark reads it
    stats = {"numRecords": 3, "minValues": {"name": "Ada"}, "maxValues": {"name": "Ada"}}
    action = {"path": "a.parquet", "stats": json.dumps(stats)}
    file = actions.DataFile(action, 100, 1, 3, carries=False)
    other = TableName(None, "t 2")
    for table in (T, other):
        properties = {ROW_ID_COLUMN: "_id", ROW_VERSION_COLUMN: "_version"}
        Zone(any_storage).delta_log({"name": "string"}, properties, {}, table)
        handle = TableHandle(spark, any_storage, table)
        snapshot = open_snapshot(any_storage, table)
        with pytest.raises(AttributeError):
            changes.read_file_rows(handle, snapshot, [file])
    logs = any_storage.files_below(names.ROW_FILES)
    assert len(logs) == 2
    for log in logs:
        data = any_storage.read(log)
        assert b"numRecords" in data
        assert b"Ada" not in data
    delete_row_files(any_storage, [other.table_path])
    (left,) = any_storage.files_below(names.ROW_FILES)
    assert b"/Tables/t/a.parquet" in any_storage.read(left)
