"""A lake that earlier code made: it is read as it was, and all its work goes on without a repeat.

The lake is always read at another place than it was made at. What writes works on a copy of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.old_lake import (
    OPTIONS,
    copy_lake,
    expected,
    in_order,
    read_ledger,
    read_status,
    read_versions,
    rows_of,
    table_rows,
    unpack,
    with_spark,
)
from mirrorlake import Lake
from mirrorlake.errors import FrameError
from mirrorlake.names import file_name


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake as it was packed; only to be copied."""
    return unpack(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def known() -> Any:
    """What the code that made the lake read from it."""
    return expected()


@pytest.fixture
def old(root: Path, tmp_path: Path) -> Lake:
    """A copy of the lake."""
    return copy_lake(root, tmp_path / "copy")


def newest(known: Any, table: str) -> list[Any]:
    return list(known["versions"][table].values())[-1]


def sums(lake: Lake, table: str) -> list[Any]:
    return rows_of(lake.sql(f"SELECT * FROM {table}"))


@pytest.mark.long
def test_every_version_frame_and_bad_row_reads_as_before(old: Lake, known: Any) -> None:
    for name, found in with_spark(old).items():
        if not isinstance(known[name], dict):
            assert found == known[name], name
            continue
        assert found.keys() == known[name].keys()
        for part, value in known[name].items():
            assert found[part] == value, (name, part)


# What one batch makes of what was begun: versions more, and rows that are added or replaced.
BEGUN = {"planned": 2, "planned csv": 1, "halfway": 1, "inventory": 1}
PLANNED = [
    [1, "planned"],
    [2, "planned 2"],
    [3, "planned 3"],
    [4, "planned"],
    [5, "after the plan"],
]


def test_what_was_begun_is_ended_once(old: Lake, known: Any) -> None:
    before = {name: old.table(name).snapshot().version for name in BEGUN}
    for name, more in BEGUN.items():
        assert not old.mirror(name, options=OPTIONS).failed, name
        assert old.table(name).snapshot().version == before[name] + more, name
    assert table_rows(old, "planned") == PLANNED
    assert table_rows(old, "halfway") == in_order([*newest(known, "halfway"), [6, "not applied"]])
    assert [row[5] for row in read_ledger(old, "halfway")] == [1, 2, 2, 3]
    ledger = [row[:6] for row in read_ledger(old, "inventory")]
    assert [row[:6] for row in known["ledger"]["inventory"]] == ledger[:11]


@pytest.mark.long
def test_one_cycle_applies_what_waits_and_ends_what_was_begun(old: Lake, known: Any) -> None:
    before = {str(name): old.table(name).snapshot().version for name in old.tables()}
    report = old.mirror(options=OPTIONS)
    assert (report.failed, report.dropped) == ((), ())
    status = read_status(old)
    assert {name: line["last_file"] for name, line in status.items()} == {
        name: line["last_file"] for name, line in known["status"].items()
    } | {
        "by time": 3, "halfway": 4, "inventory": 13, "new": 1, "planned": 3, "planned csv": 2,
        "reloaded": 1, "reseeded": 1, "shop.orders": 2, "shop.returns": 3, "skipped": 4,
    }  # fmt: skip
    waiting = {"paused": ("Stopped", 1, None), "waiting": ("Replicating", 1, 2)}
    for name, line in status.items():
        found = (line["state"], line["backlog_files"], line["waiting_for"])
        assert found == waiting.get(name, ("Replicating", 0, None)), name

    changed = {
        "by time": [*newest(known, "by time"), [9, "0.parquet"]],
        "halfway": [*newest(known, "halfway"), [6, "not applied"]],
        "inventory": [row for row in newest(known, "inventory") if row[0] not in (4, 9)]
        + [[4, "late", "east", 40, None]],
        "new": [[1]],
        "planned": PLANNED,
        "planned csv": [*newest(known, "planned csv"), [7, 1.0, None]],
        "reloaded": [[1, "loaded"], [9, "loaded"]],
        "shop.orders": [*newest(known, "shop.orders"), [4, 6.0, "2024-03-01 00:00:00"]],
        "shop.returns": [[1], [3]],
        "skipped": [[1], [3], [4]],
    }  # fmt: skip
    for name in known["status"]:
        rows = changed.get(name) or newest(known, name)
        assert table_rows(old, name) == in_order(rows), name

    # One version a batch, and of what was begun nothing twice.
    grown = BEGUN | {"waiting": 0}
    for name, more in grown.items():
        assert old.table(name).snapshot().version == before[name] + more, name
    ledger = {name: [row[:6] for row in read_ledger(old, name)] for name in grown}
    assert ledger["planned"][1:] == [
        [2, file_name(2), {"insert": 1, "update": 1}, 1, None, before["planned"] + 1],
        [3, file_name(3), {"insert": 1}, 0, None, before["planned"] + 2],
    ]
    assert [row[5] for row in ledger["halfway"]] == [1, 2, 2, 3]
    assert [row[:6] for row in known["ledger"]["inventory"]] == ledger["inventory"][:11]
    new = [row for row in rows_of(old.operations.quarantine()) if row not in known["quarantine"]]
    reasons = [(row[1], row[4], row[6]) for row in new]
    assert reasons == [
        ("returns", None, "Skipped on demand."),
        ("planned", 2, "Key column 'id' is NULL."),
    ]
    assert len(rows_of(old.operations.quarantine())) == len(known["quarantine"]) + 2

    processed = Path(old.landing_zone) / "halfway/_ProcessedFiles"
    assert sorted(path.name for path in processed.iterdir()) == [file_name(n) for n in (1, 2, 3)]
    # Another cycle has nothing left to do, old versions stay, and the frame holds what it held.
    assert old.mirror(options=OPTIONS).progress == report.progress
    for name in ("inventory", "reloaded", "planned"):
        found = read_versions(old, name)
        assert {v: found[v] for v in known["versions"][name]} == known["versions"][name]
    assert rows_of(old.frames.read("sales", "inventory")) == known["framed"]["sales"]["inventory"]


@pytest.mark.long
def test_tables_paused_dropped_gapped_and_cut_off_go_on(old: Lake, known: Any) -> None:
    old.operations.undrop("gone")
    old.publisher("gone").insert([{"id": 4, "v": "again"}])
    old.operations.resume("paused")
    old.operations.skip("waiting", 2, apply=True)
    # The feed of this table was switched off when its mirror was killed.
    assert old.table("resting").snapshot().properties["mirrorlake.feedRests"] == "true"
    old.publisher("resting").upsert([{"id": 8, "v": "on"}])
    old.publisher("own past").upsert([{"id": 1, "v": "back"}])
    for table in ("gone", "paused", "waiting", "resting", "own past"):
        assert not old.mirror(table, options=OPTIONS).failed, table
    assert table_rows(old, "gone") == [[1, "gone 1"], [2, "gone 2"], [3, "gone 3"], [4, "again"]]
    assert old.table("gone").snapshot().version == 2
    assert table_rows(old, "paused")[1] == [2, "after the pause"]
    assert table_rows(old, "waiting") == [[1, "waiting 1"], [2, "waiting 2"], [3, "behind a gap"]]
    assert table_rows(old, "resting") == [[7, "another life"], [8, "on"]]
    properties = old.table("resting").snapshot().properties
    assert properties["delta.enableChangeDataFeed"] == "true"
    assert properties["mirrorlake.feedRests"] == "false"
    assert table_rows(old, "own past")[0] == [1, "back"]


@pytest.mark.long
def test_a_folder_renamed_before_is_reseeded_renamed_and_dropped(old: Lake) -> None:
    zone = Path(old.landing_zone)
    old.operations.reseed("branches", apply=True)
    assert not old.mirror("branches", options=OPTIONS).failed
    assert table_rows(old, "branches") == [[1, "shops 1"], [2, "moved"], [3, "shops 3"]]
    (zone / "branches").rename(zone / "offices")
    (zone / "places/_metadata.json").unlink()
    for path in sorted((zone / "places").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (zone / "places").rmdir()
    report = old.mirror(options=OPTIONS)
    assert (report.failed, report.dropped) == ((), ("places",))
    assert table_rows(old, "offices") == [[1, "shops 1"], [2, "moved"], [3, "shops 3"]]
    assert rows_of(old.table("offices").read(version=1))[1] == [2, "shops 2"]
    old.operations.undrop("places")
    assert len(table_rows(old, "places")) == 3


@pytest.mark.long
def test_partitioning_leaves_what_is_done_and_goes_on(old: Lake, known: Any) -> None:
    report = old.partitioning.run()
    assert [(line.table, line.error) for line in report.tables] == [("measures", None)]
    ((receipt,),) = [line.receipts for line in report.tables]
    # The operation that was killed is done once, with another try's files.
    assert (receipt.kind, receipt.rows, receipt.version) == ("partition", 40, 6)
    assert receipt.checksum == known["partitioning"]["measures"]["receipts"][1][3]
    kept = old.table("measures").partitioning.receipts()
    assert sorted(r.version or 0 for r in kept) == [-1, 4, 6]
    assert table_rows(old, "measures", "id", "k", "at") == [
        row[:3] for row in newest(known, "measures")
    ]
    assert old.table("measures").partitioning.stats().pending_rows == 0
    assert old.table("readings").snapshot().version == 2
    assert old.partitioning.run().operations == 0
    assert old.table("raw").partitioning.policy is None
    found = old.table("measures").scan("k = 'k3'")
    wanted = [row[:3] for row in newest(known, "measures") if row[1] == "k3"]
    assert [row[:3] for row in rows_of(found.rows)] == wanted
    assert all(row[3] is not None for row in table_rows(old, "measures") if row[1] is not None)
    old.table("readings").partitioning.alter_merge({"MaxRowCountPerOperation": 2000})
    assert len(old.table("readings").partitioning.history().rows) == 3


@pytest.mark.long
def test_views_follow_by_what_changed(old: Lake) -> None:
    old.publisher("places").upsert([{"place": "south", "open": False}])
    for table in ("inventory", "places"):
        assert not old.mirror(table, options=OPTIONS).failed
    for view in ("by_place", "dbo.with_place", "most"):
        assert old.views.check(view).differences == 0  # at the versions that it shows
        done = old.views.refresh(view, how="incremental", check=True)
        assert (done.mode, done.differences) == ("incremental", 0), view
        assert old.views.refresh(view).mode == "nothing"
    assert sums(old, "by_place") == [
        ["east", 3, 53, 53 / 3],
        ["north", 2, 10, 5.0],
        ["south", 3, 47, 47 / 3],
        ["west", 1, 6, 6.0],
    ]
    assert sums(old, "most") == [["east", 40], ["north", 10], ["south", 30], ["west", 6]]
    assert [row[:3] for row in sums(old, "dbo.with_place")] == [
        [0, "item 0", True], [1, "item one", True], [10, "item 10", False],
        [3, "item three", False], [4, "late", False], [5, "item 5", False],
        [7, "item 7", False], [8, "item 8", False],
    ]  # fmt: skip


@pytest.mark.long
def test_what_follows_a_feed_goes_on_from_its_place(old: Lake, known: Any) -> None:
    cursor = old.table("inventory").changes.cursor("reporting")
    assert (cursor.position, old.table("shop.orders").changes.cursor("reporting").position) == (
        4,
        1,
    )
    assert not old.mirror("inventory", options=OPTIONS).failed
    kinds = [row[5] for row in rows_of(cursor.read().rows)]
    assert sorted(set(kinds)) == ["delete", "insert", "update_postimage", "update_preimage"]

    archived = old.archive("inventory", "kept.inventory")
    assert (archived.start, archived.end, archived.recovered) == (11, 11, "")
    rows = table_rows(old, "kept.inventory")
    new = [row for row in rows if row not in newest(known, "kept.inventory")]
    assert len(rows) == len(newest(known, "kept.inventory")) + len(new)
    assert [(row[0], row[5], row[6]) for row in new] == [
        (4, "update_preimage", 11), (4, "update_postimage", 11), (9, "delete", 11),
    ]  # fmt: skip
    assert old.archive("inventory", "kept.inventory").start == 12

    assert old.update_dimension("inventory", "dimension_1").start == 10
    assert old.update_dimension("inventory", "dimension_1").is_empty
    one = table_rows(old, "dimension_1", "id", "item", "place", "n", "colour")
    assert one == table_rows(old, "inventory")
    assert old.update_dimension("inventory", "dimension_2", stored_as=2).start == 11
    two = table_rows(old, "dimension_2")
    assert [row[:1] + row[5:] for row in two if row[0] in (4, 9)] == [
        [4, 1, 11], [4, 11, None], [9, 6, 11],
    ]  # fmt: skip
    assert len(two) == len(newest(known, "dimension_2")) + 1


@pytest.mark.long
def test_rows_keep_their_ids_and_biographies(old: Lake, known: Any) -> None:
    table = old.table("inventory")
    story = table.row_tracking.history(key=3)
    events = [row.asDict(recursive=True) for row in story.events.collect()]
    assert (len(story.ids), story.start, story.end) == (1, 0, 10)
    assert [(e["_change_type"], e["_commit_version"], e["n"]) for e in events] == [
        ("insert", 1, 3), ("update_preimage", 10, 3), ("update_postimage", 10, 30),
    ]  # fmt: skip
    told = {
        name: old.table(name).row_tracking.status() for name in ("untracked", "raw", "inventory")
    }
    assert {name: (one.enabled, one.supported) for name, one in told.items()} == {
        "untracked": (False, True), "raw": (True, True), "inventory": (True, True),
    }  # fmt: skip
    ids = rows_of(table.row_tracking.read(version=1), "id", "_row_id")
    later = dict(map(tuple, rows_of(table.row_tracking.read(), "id", "_row_id")))
    assert all(later[key] == row for key, row in ids if key in (0, 1, 3, 4, 5))
    changes = rows_of(table.diff(1, 2))
    assert [(row[0], row[-1]) for row in changes] == [
        (1, "update_preimage"), (1, "update_postimage"), (2, "delete"),
    ]  # fmt: skip
    query = "SELECT count(*) FROM inventory@v1 JOIN inventory@v10 USING (id)"
    assert rows_of(old.sql(query)) == [[5]]
    feed = rows_of(old.sql("SELECT * FROM table_changes('inventory', 2, 2)"))
    assert sorted(row[5] for row in feed) == ["delete", "update_postimage", "update_preimage"]


@pytest.mark.long
def test_a_person_is_found_wherever_earlier_code_put_them(old: Lake) -> None:
    def places(table: str, **keys: Any) -> dict[str, tuple[int, int | None]]:
        found = old.forget(table, keys)
        assert not found.applied
        return {trace.where: (trace.files, trace.rows) for trace in found.traces}

    assert places("inventory", id=1) == {
        "table": (1, 1), "history": (4, 4), "change feed": (1, 2), "log": (15, None),
        "applied files": (2, 2),
    }  # fmt: skip
    assert places("branches", id=2) == {
        "table": (1, 1), "history": (1, 1), "change feed": (1, 2), "log": (4, None),
        "applied files": (1, 1), "applied files in place": (1, 1),
    }  # fmt: skip
    assert places("reloaded", id=5) == {"files set aside": (1, 1)}
    assert places("dirty", id=2) == {
        "quarantine": (1, 1), "log of quarantine": (5, None), "applied files": (1, 1),
    }  # fmt: skip
    assert places("planned csv", id=7) == {"staged files": (2, None), "pending files": (1, 1)}


def test_manifests_frames_files_and_diagnostics_are_understood(old: Lake, known: Any) -> None:
    found = old.reconcile()
    assert [(f.rule, f.table) for f in found.findings] == [
        ("rows-differ", "events"),
        ("not-applied-yet", "shop.orders"),
    ]
    with pytest.raises(FrameError):
        old.frames.read("old", "places")
    moved = {line.table: (line.framed, line.newest) for line in old.frames.show("sales")}
    assert moved == {"inventory": (10, 10), "shop.orders": (1, 1), "vectors": (3, 4)}
    kept = old.table("vectors").vacuum(retention_hours=0, feed_hours=0, allow_short=True)
    assert "frame 2 of sales" in repr(kept.shown())
    assert "no file is without V-Order" in repr(old.table("ordered").optimize.vorder(dry_run=True))
    saved = old.table("shop.orders").analyze().save(["Columns"])
    assert saved == ["diagnostics.columns"]
    assert len(table_rows(old, "diagnostics.columns")) == 6
    assert old.table("swept").readable_range().earliest == 2
