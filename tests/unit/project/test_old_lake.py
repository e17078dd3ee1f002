"""A lake of an earlier version: operations without Spark read it and continue it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from helpers.old_lake import (
    DATA,
    copy_lake,
    expected,
    read_ledger,
    read_status,
    unpack,
    without_spark,
)
from mirrorlake import Lake
from mirrorlake.errors import MetadataError, SchemaError, SequenceError
from mirrorlake.mirror import ledger
from mirrorlake.names import file_name
from mirrorlake.storage.files import Storage


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the lake, for reading only."""
    return unpack(tmp_path_factory.mktemp("before"))


@pytest.fixture
def old(root: Path, tmp_path: Path) -> Lake:
    """Return a copy of the lake, for writing."""
    return copy_lake(root, tmp_path / "copy")


def test_what_lies_in_the_repository_is_small() -> None:
    files = [path for path in DATA.iterdir() if path.name.startswith("lake_0_1")]
    assert sum(path.stat().st_size for path in files) < 300_000


def test_status_ledger_lint_frames_and_views_are_what_they_were(root: Path) -> None:
    known = expected()
    by_newer_rules = [
        ["key-repeated", "by time", "0.parquet"],
        ["key-repeated", "shop.returns", "00000000000000000003.parquet"],
        ["key-repeated", "skipped", "00000000000000000004.parquet"],
    ]
    known["lint"] = sorted([*known["lint"], *by_newer_rules])
    known["lint"].remove(["number-gap", "shop.returns", file_name(2)])  # an operator skipped it
    # Their mirror was killed after a commit: it counted rows only in the log.
    known["status"]["halfway"]["rows"], known["status"]["resting"]["rows"] = 5, 1
    for name, found in without_spark(Lake(root)).items():
        assert found == known[name], name


def test_the_quarantine_is_counted_without_spark(root: Path) -> None:
    known = Counter(".".join(filter(None, row[:2])) for row in expected()["quarantine"])
    assert known
    assert ledger.count_quarantined(Storage(root)) == known


def test_the_state_can_be_made_again_from_the_logs(old: Lake) -> None:
    known = expected()["status"]
    (Path(old.storage.root) / "Files/_mirrorlake/state.json").unlink()
    old.status(rebuild=True)
    found = read_status(old)
    for table in ("by time", "reloaded", "reseeded"):
        del known[table]  # a cycle reads the folder's new order or incarnation again
    for table, line in known.items():
        for name in ("state", "last_file", "backlog_files", "waiting_for", "error"):
            assert found[table][name] == line[name], (table, name)


@pytest.mark.parametrize(
    ("table", "row", "number"),
    [
        ("inventory", {"id": 20, "item": "i", "place": "north", "n": 1}, 14),
        ("shop.orders", {"id": 9, "amount": 1.0}, 3),
        ("events", {"what": "opened again"}, 3),
        ("prices", {"id": 9, "price": 1.0}, 3),
        ("branches", {"id": 9, "v": "v"}, 3),
        ("stock", {"code": "y", "n": 2}, 2),
        ("planned", {"id": 9, "v": "v"}, 4),
        ("halfway", {"id": 9, "v": "v"}, 5),
        ("reseeded", {"id": 9, "v": "v"}, 2),
        ("reloaded", {"id": 10, "v": "v"}, 2),
        ("waiting", {"id": 9, "v": "v"}, 4),
        ("odd names", {"the id": 9, "net weight (kg)": 1.0}, 2),
        ("new", {"id": 2}, 2),
    ],
)
def test_a_publisher_goes_on_counting(old: Lake, table: str, row: dict, number: int) -> None:
    published = old.publisher(table).write([row])
    assert (published.file, published.rows) == (file_name(number), 1)
    assert read_status(old)[table]["backlog_files"] > 0


def test_keys_and_types_of_before_still_bind_publishers(old: Lake) -> None:
    with pytest.raises(MetadataError):
        old.publisher("inventory", keys=["item"])
    with pytest.raises(SchemaError):
        old.publisher("branches").insert([{"id": "text", "v": "v"}])


def test_an_operators_wishes_hold_and_can_be_changed(old: Lake) -> None:
    old.operations.resume("paused")
    assert read_status(old)["paused"]["state"] == "Replicating"
    old.operations.pause("inventory")
    assert read_status(old)["inventory"]["state"] == "Stopped"
    old.operations.skip("waiting", 2, apply=True)
    assert read_status(old)["waiting"]["waiting_for"] is None


def test_a_dropped_table_is_taken_back(old: Lake) -> None:
    old.operations.undrop("gone")
    assert "gone" in map(str, old.tables())
    assert read_status(old)["gone"]["error"] is None
    assert [entry[:3] for entry in read_ledger(old, "gone")] == [[1, file_name(1), {"insert": 3}]]
    assert old.publisher("gone").insert([{"id": 4, "v": "again"}]).file == file_name(2)


def test_applied_files_are_replayed_and_a_table_reseeded(old: Lake) -> None:
    # One of them is in _FilesReadyToDelete, one in _ProcessedFiles.
    assert old.operations.replay("inventory", 1, 2).files == (file_name(14), file_name(15))
    with pytest.raises(SequenceError):
        old.operations.replay("inventory", 12)  # file 12 is published, but not applied
    old.operations.reseed("branches", apply=True)  # the table was renamed
    line = read_status(old)["branches"]
    assert (line["last_file"], line["backlog_files"]) == (0, 2)


def test_a_frame_is_released(old: Lake) -> None:
    assert old.frames.get("sales").number == 2
    old.frames.release("sales")
    assert [(f.model, f.number, f.state) for f in old.frames.list()] == [
        ("old", 1, "released"),
        ("sales", 2, "released"),
    ]


def test_every_kept_document_is_among_the_files(root: Path) -> None:
    """The old lake covers every kept document: a new kind must be added to it."""
    state = root / "Files/_mirrorlake"
    assert {path.name for path in state.iterdir()} >= {
        "control", "dropped", "feeds", "frames", "horizons", "partitioning", "plans", "quarantine",
        "reseeded", "row-files", "staged", "views", "partitioning_capacity.json", "state.json",
    }  # fmt: skip
    formats = {
        "state.json": 2,
        "control/paused.json": 1,
        "partitioning_capacity.json": 1,
        "partitioning/readings/idle.json": 1,
        "partitioning/readings/policies/00000002.json": 1,
        "feeds/inventory/reporting.json": 1,
        "feeds/inventory/archive-kept.inventory.json": 1,
        "frames/sales/00000002.json": 1,
        "views/by_place.json": 2,
    }
    for name, number in formats.items():
        assert json.loads((state / name).read_text(encoding="utf-8"))["format"] == number, name
    plans = list((state / "plans").rglob("*.json"))
    assert {json.loads(path.read_text(encoding="utf-8"))["format"] for path in plans} == {2}
