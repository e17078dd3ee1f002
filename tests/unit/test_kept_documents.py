"""What layout, views, frames and feeds keep: a newer format is refused in words, and stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.delta_by_hand import HandMade
from helpers.places import STATE
from mirrorlake import names
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FormatError
from mirrorlake.feed import archive as archive_module
from mirrorlake.feed import cursor as cursor_module
from mirrorlake.history import frame_records
from mirrorlake.mirror.options import has_partitioning_policy
from mirrorlake.names import TableName
from mirrorlake.partitioning import operation, process, store
from mirrorlake.partitioning.table_policy import TablePolicy
from mirrorlake.storage.files import Storage
from mirrorlake.views import definition, explain

T = TableName(None, "t")
NOW = frame_records.utc_now().isoformat()
FRAME = frame_records.Frame(
    "model",
    1,
    frame_records.PINNED,
    "me",
    NOW,
    None,
    (frame_records.FramedTable("t", 0, NOW, "by-hand"),),
)
RECEIPT = operation.Receipt(
    "one", operation.MERGE, NOW, "by-hand", "f", 0, 1, "c", ("a",), ("b",), 1, 1, 1, 0, 0.1
)
POLICY = {"PartitionKeys": [{"ColumnName": "k", "Kind": "Hash"}]}
INNER = T.partitioning_path
FEEDS = f"{STATE}/feeds/t"
COSTS = f"{STATE}/views/t.json"


def no_spark() -> Any:
    raise AssertionError("Spark was asked for")


def handle(storage: Storage) -> TableHandle:
    return TableHandle(no_spark, storage, T)


def partitioning(storage: Storage) -> TablePolicy:
    return TablePolicy(handle(storage))


def archive(storage: Storage) -> archive_module.Archive:
    return archive_module.Archive(handle(storage), TableName(None, "old"))


@pytest.fixture
def storage(storage: Storage) -> Storage:
    """A lake with one table, of which a document of each kind is kept."""
    HandMade(Path(storage.root) / T.table_path).create(pa.schema([("k", pa.string())]))
    frame_records.save_frame(storage, FRAME)
    partitioning(storage).set(POLICY)
    operation.write_receipt(storage, T, RECEIPT)
    process.write_idle(storage, T, process.Idle(0, 1))
    process.write_capacity(storage, 3)
    storage.write_json(f"{INNER}/cleaned.json", {"at": NOW})
    cursor_module.Cursor(handle(storage), "me").move(0)
    storage.write_json(f"{FEEDS}/archive-old.json", {"format": 1, "checkpoint": 1, "start": 0})
    return storage


RECORD = f"{names.FRAMES}/model/00000001.json"
SETTING = f"{INNER}/policies/00000001.json"
RECEIPTS = f"{INNER}/receipts/one.json"
CAPACITY = f"{STATE}/partitioning_capacity.json"

CASES: list[tuple[str, Callable[[Storage], object]]] = [
    (RECORD, lambda storage: frame_records.read_frames(storage, "model")),
    (RECORD, lambda storage: frame_records.reserve_frame(storage, FRAME)),
    (RECORD, lambda storage: frame_records.find_pins(storage, frame_records.utc_now())),
    (SETTING, lambda storage: store.read_setting(storage, T)),
    (SETTING, lambda storage: has_partitioning_policy(storage, T)),  # so nothing is compacted
    (SETTING, lambda storage: partitioning(storage).history()),
    (SETTING, lambda storage: partitioning(storage).set(POLICY)),
    (SETTING, lambda storage: partitioning(storage).alter_merge({})),
    (SETTING, lambda storage: partitioning(storage).delete()),
    (SETTING, lambda storage: store.append_policy(storage, T, {})),
    (RECEIPTS, lambda storage: operation.read_receipts(storage, T)),
    (RECEIPTS, lambda storage: operation.recover(storage, T)),
    (RECEIPTS, lambda storage: operation.clean_up(handle(storage))),
    (f"{INNER}/cleaned.json", lambda storage: operation.clean_up(handle(storage))),
    (CAPACITY, process.read_capacity),
    (CAPACITY, lambda storage: process.Process(storage, no_spark, lambda: [T]).run()),
    (f"{FEEDS}/me.json", lambda storage: cursor_module.Cursor(handle(storage), "me").position),
    (f"{FEEDS}/me.json", lambda storage: cursor_module.Cursor(handle(storage), "me").lag),
    (f"{FEEDS}/me.json", lambda storage: cursor_module.Cursor(handle(storage), "me").read()),
    (f"{FEEDS}/me.json", lambda storage: cursor_module.Cursor(handle(storage), "me").move(5)),
    (f"{FEEDS}/archive-old.json", lambda storage: archive(storage).run()),
]


@pytest.mark.parametrize(("path", "use"), CASES)
def test_a_newer_document_is_refused_in_words(storage: Storage, path: str, use) -> None:
    storage.write_json(path, (storage.read_json(path) or {}) | {"format": 99, "more": [1]})
    before = {file: storage.read(file) for file in storage.files_below(STATE)}
    with pytest.raises(FormatError) as caught:
        use(storage)
    assert f"{path} has format 99" in str(caught.value)
    assert "upgrade mirrorlake" in str(caught.value)
    assert {file: storage.read(file) for file in storage.files_below(STATE)} == before


def test_documents_without_a_format_are_of_the_first(storage: Storage) -> None:
    def read_all() -> list[object]:
        cursor = cursor_module.Cursor(handle(storage), "me")
        kept = (
            frame_records.read_frames(storage, "model"),
            operation.read_receipts(storage, T),
            store.read_setting(storage, T),
        )
        return [
            *kept,
            process.read_idle(storage, T),
            process.read_capacity(storage),
            cursor.position,
        ]

    before = read_all()
    assert before[0] == [FRAME]
    assert before[1] == (RECEIPT,)
    assert before[3:] == [process.Idle(0, 1), 3, 0]
    for path in (RECORD, RECEIPTS, SETTING, CAPACITY, f"{FEEDS}/me.json"):
        document = storage.read_json(path) or {}
        assert document.pop("format") == 1
        storage.write_json(path, document)
    assert read_all() == before


def test_a_broken_place_can_be_set_again(storage: Storage) -> None:
    storage.write(f"{FEEDS}/me.json", b"{")
    cursor = cursor_module.Cursor(handle(storage), "me")
    cursor.move(0)
    assert cursor.position == 0


def test_a_view_of_a_newer_format_is_refused(storage: Storage) -> None:
    name = TableName("s", "v")
    document = json.loads(
        definition.Definition(name, "abc", "SELECT k FROM t", {T: ("k",)}).as_property()
    )
    newer = json.dumps(document | {"format": 99})
    folder = Path(storage.root) / name.table_path
    HandMade(folder).create(pa.schema([("k", pa.string())]), {"mirrorlake.view": newer})
    for read in (
        lambda: definition.read_definition(storage, name),
        lambda: definition.list_definitions(storage),
    ):
        with pytest.raises(FormatError, match=r"The view s\.v has format 99.*upgrade mirrorlake"):
            read()


def test_costs_of_a_newer_format_are_ignored_and_stay(storage: Storage) -> None:
    storage.write_json(COSTS, {"format": 99, "full": [{"seconds": 1, "bytes": 1, "more": 1}]})
    before = storage.read(COSTS)
    assert explain.read_costs(storage, T) == {}
    explain.save_cost(storage, T, "full", explain.Cost(1.0, 2))
    assert storage.read(COSTS) == before


def test_what_is_known_of_an_idle_table_is_ignored_and_stays(storage: Storage) -> None:
    path = f"{INNER}/idle.json"
    storage.write_json(path, {"format": 99, "more": 1})
    before = storage.read(path)
    assert process.read_idle(storage, T) is None
    process.write_idle(storage, T, process.Idle(0, 1))
    assert storage.read(path) == before
