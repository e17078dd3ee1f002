"""Recovery of interrupted operations from the table's log, without Spark."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from mirrorlake.names import TableName
from mirrorlake.partitioning import operation, statistics
from mirrorlake.storage.files import Storage

T = TableName("s", "t")
FILES = ("p=1/a%20b.parquet", "c.parquet")


def receipt(
    name: str = "op", *, read: int = 1, version: int | None = None, days: float = 0
) -> operation.Receipt:
    at = datetime.now(timezone.utc) - timedelta(days=days)
    return operation.Receipt(
        id=name,
        kind=operation.PARTITION,
        at=at.isoformat(),
        table_id="table",
        fingerprint="policy",
        read_version=read,
        rows=1_234,
        checksum="x",
        files_in=("one", "two", "three"),
        files_out=FILES,
        bytes_in=5_000,
        bytes_out=4_000,
        partitions=2,
        outlier_rows=0,
        seconds=1.5,
        version=version,
    )


def write_log(storage: Storage, notes: dict[int, str | None]) -> None:
    """Write commits by version, each with its note."""
    for version, note in notes.items():
        info: dict[str, Any] = {"commitInfo": {} if note is None else {"userMetadata": note}}
        path = f"{T.table_path}/_delta_log/{version:020d}.json"
        storage.write(path, json.dumps(info).encode() + b"\n")


def put_files(storage: Storage) -> None:
    for name in ("p=1/a b.parquet", "c.parquet", "other.parquet"):
        storage.write(f"{T.table_path}/{name}", b"x")


def left(storage: Storage) -> set[str]:
    found = {entry.name for entry in storage.list(T.table_path).files}
    return found | {f"p=1/{entry.name}" for entry in storage.list(f"{T.table_path}/p=1").files}


ALL = {"p=1/a b.parquet", "c.parquet", "other.parquet"}
OWN = json.dumps({"mirrorlake": "partitioning", "operation": "op"})
FENCE = json.dumps({"mirrorlake": "partitioning", "fenced": "op"})


@pytest.mark.parametrize(
    ("notes", "version", "files"),
    [
        ({0: None, 1: None, 2: OWN}, 2, ALL),
        ({0: None, 1: None, 2: None, 3: OWN, 4: OWN}, 3, ALL),
        (
            {1: OWN},
            operation.ABANDONED,
            {"other.parquet"},
        ),  # the version that was read can't be the commit
        ({0: None, 1: None}, operation.ABANDONED, {"other.parquet"}),
        ({1: None, 2: "another's", 3: None}, operation.ABANDONED, {"other.parquet"}),
        ({1: None, 2: FENCE}, operation.ABANDONED, {"other.parquet"}),
        ({1: None, 2: FENCE, 3: OWN}, 3, ALL),
        ({1: None, 3: None}, None, ALL),  # its commit may have been in the gap
        ({1: None, 2: None, 4: None}, None, ALL),
        ({3: None, 4: None}, None, ALL),
    ],
)
def test_the_log_shows_whether_an_operation_was_committed(
    notes: dict[int, str | None], version: int | None, files: set[str], any_storage: Storage
) -> None:
    put_files(any_storage)
    write_log(any_storage, notes)
    operation.write_receipt(any_storage, T, receipt())
    asked: list[str] = []
    operation.recover(any_storage, T, lambda one: asked.append(one.id))
    assert [one.version for one in operation.read_receipts(any_storage, T)] == [version]
    assert left(any_storage) == files
    assert asked == (
        [] if any_storage.local else ["op"]
    )  # on a local disk a lock excludes other processes


def test_nothing_is_deleted_before_the_operation_is_fenced_off() -> None:
    storage = Storage("memory:///")
    put_files(storage)
    write_log(storage, {1: None})
    operation.write_receipt(storage, T, receipt())

    def it_was_only_slow(_: operation.Receipt) -> None:
        write_log(storage, {2: OWN})

    operation.recover(storage, T, it_was_only_slow)
    assert [one.version for one in operation.read_receipts(storage, T)] == [2]
    assert left(storage) == ALL


@pytest.mark.parametrize("version", [0, 7, operation.ABANDONED])
@pytest.mark.parametrize(("days", "kept"), [(29.9, True), (30.1, False)])
def test_settled_receipts_are_kept_for_30_days(
    version: int, days: float, kept: bool, storage: Storage
) -> None:
    put_files(storage)
    old = receipt(version=version, days=days)
    operation.write_receipt(storage, T, old)
    operation.recover(storage, T)
    assert operation.read_receipts(storage, T) == ((old,) if kept else ())
    assert left(storage) == ALL


def test_an_old_unsettled_operation_is_settled_before_it_expires(storage: Storage) -> None:
    put_files(storage)
    write_log(storage, {2: OWN})
    operation.write_receipt(storage, T, receipt(days=31))
    operation.recover(storage, T)
    assert [one.version for one in operation.read_receipts(storage, T)] == [2]


def test_receipts_are_settled_independently(storage: Storage) -> None:
    write_log(storage, {1: None, 2: OWN.replace("op", "second")})
    for name in ("first", "second"):
        operation.write_receipt(storage, T, receipt(name))
    operation.recover(storage, T)
    assert {one.id: one.version for one in operation.read_receipts(storage, T)} == {
        "first": operation.ABANDONED,
        "second": 2,
    }


def test_a_receipt_round_trips(storage: Storage) -> None:
    assert operation.read_receipts(storage, T) == ()
    operation.write_receipt(storage, T, receipt())
    written = receipt(version=3)
    operation.write_receipt(storage, T, written)
    (found,) = operation.read_receipts(storage, T)
    assert found == written
    folder = f"{T.partitioning_path}/receipts"
    document = storage.read_json(f"{folder}/op.json")
    assert document is not None
    assert document["format"] == 1
    assert document["files_out"] == list(FILES)
    assert repr(found) == (
        "version 3: 3 files of 5,000 bytes became 2 of 4,000, 1,234 rows in 2 partitions"
    )
    counted = found.as_dict()
    assert (counted["files_in"], counted["files_out"], counted["rows"]) == (3, 2, 1_234)


def test_only_what_the_operation_wrote_is_deleted(storage: Storage) -> None:
    put_files(storage)
    operation.delete_files(storage, T, receipt())
    operation.delete_files(storage, T, receipt())  # deleting again is allowed
    assert left(storage) == {"other.parquet"}


def test_rows_are_known_only_if_every_file_has_statistics() -> None:
    three, five = {"stats": '{"numRecords": 3}'}, {"stats": '{"numRecords": 5}'}
    masked = five | {"deletionVector": {"cardinality": 2}}
    assert operation.logged_rows([]) == 0
    assert operation.logged_rows([three, five]) == 8
    assert operation.logged_rows([three, masked, masked]) == 9
    assert operation.logged_rows([three | {"deletionVector": None}]) == 3
    for silent in ({}, {"stats": None}, {"stats": ""}, {"stats": '{"minValues": {}}'}):
        assert operation.logged_rows([three, silent]) is None


def test_a_files_own_name() -> None:
    assert statistics.file_name("p=1/q=2/a%20b.parquet") == "a b.parquet"
    assert statistics.file_name("c.parquet") == "c.parquet"


def test_the_text_of_dropped_files() -> None:
    assert repr(operation.Dropped("t", 2, 1_000, 9, 4)) == "t: dropped 2 files with 1,000 rows"
    assert (
        repr(operation.Dropped("t", 2, 1_000, 9, None)) == "t: would drop 2 files with 1,000 rows"
    )
