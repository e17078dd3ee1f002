"""Snapshots from commits and checkpoints of every layout."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.commits import LOG, write_lines
from mirrorlake.delta import commits
from mirrorlake.delta import snapshot as snapshots
from mirrorlake.storage.files import Storage

UUID = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"


def meta(*columns: str, **properties: str) -> dict:
    fields = [{"name": c, "type": "long", "nullable": True, "metadata": {}} for c in columns]
    schema = json.dumps({"type": "struct", "fields": fields})
    return {"metaData": {"id": "x", "schemaString": schema, "configuration": properties}}


def txn(app: str, version: int) -> dict:
    return {"txn": {"appId": app, "version": version, "lastUpdated": 1}}


PROTOCOL = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": []}}
ADD = {"add": {"path": "metaData.parquet", "size": 1, "dataChange": True, "partitionValues": {}}}


ACTIONS = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
        ("add", pa.struct([("path", pa.string()), ("size", pa.int64())])),
        (
            "metaData",
            pa.struct(
                [
                    ("schemaString", pa.string()),
                    ("configuration", pa.map_(pa.string(), pa.string())),
                ]
            ),
        ),
        ("protocol", pa.struct([("minReaderVersion", pa.int32())])),
    ]
)


def checkpoint(storage: Storage, name: str, *actions: dict, without: str = "") -> None:
    kept = [column for column in ACTIONS.names if column != without]
    rows = [{column: _as_parquet(action.get(column)) for column in kept} for action in actions]
    schema = pa.schema([ACTIONS.field(column) for column in kept])
    with storage.open_writer(f"{LOG}/{name}") as sink:
        pq.write_table(pa.Table.from_pylist(rows, schema), sink, row_group_size=2)


def _as_parquet(action):
    if action and "configuration" in action:
        return action | {"configuration": list(action["configuration"].items())}
    return action


def old_state() -> list[dict]:
    return [PROTOCOL, ADD, meta("id", owner="me"), txn("a", 4), ADD, txn("b", 2)]


def check_newest(storage: Storage, version: int) -> None:
    """Assert the state that every layout of the log must yield."""
    snapshot = snapshots.read_snapshot(storage, "Tables/t")
    assert snapshot is not None
    assert snapshot.version == version
    assert snapshot.txns == {"a": 9, "b": 2}
    assert snapshot.properties == {"owner": "me"}
    assert snapshot.schema == {"id": "long"}
    assert snapshot.protocol["minReaderVersion"] == 3


def test_no_table(any_storage: Storage):
    assert snapshots.read_snapshot(any_storage, "Tables/t") is None
    any_storage.write("Tables/t/part-0.parquet", b"")
    assert snapshots.read_snapshot(any_storage, "Tables/t") is None


def test_commits_only(any_storage: Storage):
    write_lines(any_storage, 0, {"commitInfo": {}}, PROTOCOL, meta("id"))
    write_lines(any_storage, 1, txn("a", 3), ADD)
    write_lines(any_storage, 2, meta("id", "item", owner="me"), txn("a", 7), txn("b", 1))
    snapshot = snapshots.read_snapshot(any_storage, "Tables/t")
    assert snapshot is not None
    assert snapshot.version == 2
    assert snapshot.txns == {"a": 7, "b": 1}
    assert list(snapshot.schema) == ["id", "item"]
    assert snapshot.properties == {"owner": "me"}


def test_properties_that_a_later_commit_drops_are_gone(storage: Storage):
    write_lines(storage, 0, PROTOCOL, meta("id", owner="me"))
    write_lines(storage, 1, meta("id"))
    snapshot = snapshots.read_snapshot(storage, "Tables/t")
    assert snapshot is not None
    assert snapshot.properties == {}


def test_commits_after_a_gap_do_not_count(storage: Storage):
    write_lines(storage, 0, PROTOCOL, meta("id"))
    write_lines(storage, 2, txn("a", 1))
    snapshot = snapshots.read_snapshot(storage, "Tables/t")
    assert snapshot is not None
    assert (snapshot.version, snapshot.txns) == (0, {})


def test_classic_checkpoint_and_commits(any_storage: Storage):
    checkpoint(any_storage, f"{10:020d}.checkpoint.parquet", *old_state())
    any_storage.write_json(f"{LOG}/_last_checkpoint", {"version": 10, "size": 6})
    write_lines(any_storage, 9, txn("a", 99))  # older than the checkpoint, which includes it
    write_lines(any_storage, 10, txn("a", 99))
    write_lines(any_storage, 11, ADD)
    write_lines(any_storage, 12, txn("a", 9))
    check_newest(any_storage, 12)


def test_a_checkpoint_may_lack_empty_columns(storage: Storage):
    checkpoint(storage, f"{10:020d}.checkpoint.parquet", PROTOCOL, meta("id"), without="txn")
    storage.write_json(f"{LOG}/_last_checkpoint", {"version": 10})
    snapshot = snapshots.read_snapshot(storage, "Tables/t")
    assert snapshot is not None
    assert (snapshot.version, snapshot.txns) == (10, {})


def parts(storage: Storage, version: int, *present: int) -> None:
    whole = old_state()
    for number in present:
        name = f"{version:020d}.checkpoint.{number:010d}.{3:010d}.parquet"
        checkpoint(storage, name, *whole[(number - 1) * 2 : number * 2])


def test_checkpoint_in_several_parts(any_storage: Storage):
    parts(any_storage, 10, 1, 2, 3)
    any_storage.write_json(f"{LOG}/_last_checkpoint", {"version": 10, "size": 6, "parts": 3})
    write_lines(any_storage, 11, txn("a", 9))
    check_newest(any_storage, 11)


@pytest.mark.parametrize("extension", ["json", "parquet"])
@pytest.mark.parametrize("pointer", [True, False])
def test_checkpoint_of_version_2(any_storage: Storage, extension: str, pointer: bool):
    name = f"{10:020d}.checkpoint.{UUID}.{extension}"
    if extension == "json":
        actions = [{"checkpointMetadata": {"version": 10}}, {"sidecar": {"path": "s"}}]
        lines = [json.dumps(action) for action in [*old_state(), *actions]]
        any_storage.write(f"{LOG}/{name}", "\n".join(lines).encode())
    else:
        checkpoint(any_storage, name, *old_state())
    if pointer:
        last = {"version": 10, "size": 6, "v2Checkpoint": {"path": name, "sizeInBytes": 1}}
        any_storage.write_json(f"{LOG}/_last_checkpoint", last)
    write_lines(any_storage, 11, txn("a", 9))
    check_newest(any_storage, 11)


@pytest.mark.parametrize("pointer", [None, b"", b'{"version":', b"null", b"[]", b"{}"])
def test_a_truncated_log_with_a_missing_or_corrupt_pointer(any_storage: Storage, pointer):
    checkpoint(any_storage, f"{4:020d}.checkpoint.parquet", PROTOCOL, meta("old"))
    checkpoint(any_storage, f"{10:020d}.checkpoint.parquet", *old_state())
    write_lines(any_storage, 10, txn("a", 99))
    write_lines(any_storage, 11, txn("a", 9))
    if pointer is not None:
        any_storage.write(f"{LOG}/_last_checkpoint", pointer)
    check_newest(any_storage, 11)


def test_other_files_are_not_taken_for_checkpoints(any_storage: Storage):
    checkpoint(any_storage, f"{10:020d}.checkpoint.parquet", *old_state())
    write_lines(any_storage, 11, txn("a", 9))
    for name in (
        f".{10:020d}.checkpoint.parquet.crc",  # Hadoop's checksum on local disks
        f"{99:020d}.checkpoint.parquet.tmp",
        f"{11:020d}.crc",
        "x.checkpoint.parquet",
        f"{0:020d}.{9:020d}.compacted.json",
    ):
        any_storage.write(f"{LOG}/{name}", b"")
    check_newest(any_storage, 11)


def test_incomplete_checkpoints_are_skipped(any_storage: Storage):
    parts(any_storage, 10, 1, 2, 3)
    parts(any_storage, 12, 1, 3)
    for version in range(11, 14):
        write_lines(any_storage, version, txn("a", 9))
    check_newest(any_storage, 13)


def test_parts_of_a_checkpoint_alone_are_not_a_table(any_storage: Storage):
    parts(any_storage, 10, 2)
    assert snapshots.read_snapshot(any_storage, "Tables/t") is None


def test_commit_info(any_storage: Storage):
    write_lines(any_storage, 0, {"commitInfo": {"operation": "WRITE", "userMetadata": "{}"}}, ADD)
    write_lines(any_storage, 1, ADD, {"commitInfo": {"operation": "MERGE"}})
    write_lines(any_storage, 2, ADD)
    assert commits.read_commit_info(any_storage, "Tables/t", 0)["userMetadata"] == "{}"
    assert commits.read_commit_info(any_storage, "Tables/t", 1) == {"operation": "MERGE"}
    assert commits.read_commit_info(any_storage, "Tables/t", 2) == {}
    assert commits.read_commit_info(any_storage, "Tables/t", 3) == {}


def test_a_dropped_column_leaves_its_id_unused() -> None:
    def column(number: int, kind: object = "long", name: str = "c") -> dict:
        return {"name": name, "type": kind, "metadata": {"delta.columnMapping.id": number}}

    def has_dropped(highest: int, *columns: dict) -> bool:
        metadata = {
            "schemaString": json.dumps({"type": "struct", "fields": columns}),
            "configuration": {"delta.columnMapping.maxColumnId": str(highest)} if highest else {},
        }
        return snapshots.Snapshot(metadata=metadata).has_dropped_columns

    nested = column(2, {"type": "struct", "fields": [column(3), column(4)]})
    assert not has_dropped(0, {"name": "c", "type": "long"})  # without column mapping
    assert not has_dropped(4, column(1), nested)
    assert has_dropped(5, column(1), nested)
    assert has_dropped(4, nested)
    assert has_dropped(3, column(1, name="delta.columnMapping.id"), column(3))
