"""Test reports of feeds, archives and dimensions, also if only a part can be read."""

from __future__ import annotations

import shutil
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from helpers.notebooks import lake_state
from mirrorlake import Lake, Table
from mirrorlake.errors import FeedError, QueryError, UsageError


def change(table: Table, *statements: str) -> None:
    for statement in statements:
        table.spark.sql(statement.format(t=table.sql_name))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with `stock`: versions 1 to 4 insert rows 1 and 2, update 1 twice, delete 2."""
    lake = Lake(tmp_path_factory.mktemp("made") / "lake")
    columns = {"id": "bigint", "a name": "string", "at": "timestamp"}
    change(
        lake.create_table("stock", columns, keys=["id"]),
        "INSERT INTO {t} VALUES (1, 'a', timestamp'2024-05-01 10:00:00'), (2, 'b', NULL)",
        "UPDATE {t} SET `a name` = 'c' WHERE id = 1",
        "UPDATE {t} SET at = timestamp'2024-05-02 10:00:00' WHERE id = 1",
        "DELETE FROM {t} WHERE id = 2",
    )
    return Path(lake.storage.root)


@pytest.fixture
def stock(made: Path, tmp_path: Path) -> Table:
    """Return the table in a copy of its lake."""
    return Lake(shutil.copytree(made, tmp_path / "copy")).table("stock")


def make_late(lake: Lake, **options: object) -> Table:
    """Create a table whose feed is enabled in version 2."""
    late = lake.create_table("late", {"id": "bigint", "n": "int"}, feed=False, **options)
    change(late, "INSERT INTO {t} VALUES (1, 1), (2, 2)")
    late.changes.enable()
    change(late, "UPDATE {t} SET n = 9 WHERE id = 1")
    return late


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_a_key_with_a_time_does_not_depend_on_the_zone_of_python(
    lake: Lake, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create_table("clock", {"at": kind, "n": "int"}, keys=["at"])
    change(table, f"INSERT INTO {{t}} VALUES ({kind}'2024-05-01 10:00:00', 1)")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = table.changes.report()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.followed == "at 2024-05-01 10:00:00"
    assert [row[0] for row in found.timeline.rows] == [1]


@pytest.mark.long
def test_changes_by_version_raw_and_net_and_one_key(stock: Table, tmp_path: Path) -> None:
    before = lake_state(tmp_path)
    found = stock.changes.report()
    assert (found.start, found.end, found.keys) == (0, 4, ("id",))
    assert [(row[0], *row[3:]) for row in found.by_version.rows] == [
        (0, 0, 0, 0), (1, 2, 0, 0), (2, 0, 1, 0), (3, 0, 1, 0), (4, 0, 0, 1),
    ]  # fmt: skip
    assert found.raw == {"inserted": 2, "updated": 2, "deleted": 1}
    assert found.net == {"inserted": 1, "updated": 0, "deleted": 0}
    assert found.followed == "id 1"
    assert [(row[0], row[2], row[3]) for row in found.timeline.rows] == [
        (1, "insert", "id 1: a name a, at 2024-05-01 10:00:00"),
        (2, "update", "id 1: a name a → c"),
        (3, "update", "id 1: at 2024-05-01 10:00:00 → 2024-05-02 10:00:00"),
    ]
    assert stock.changes.report("3", where="id = 2").raw["deleted"] == 1
    assert [row[0] for row in stock.changes.report(newest=2).by_version.rows] == [3, 4]
    assert lake_state(tmp_path) == before


def test_what_the_feed_does_not_hold_is_a_note(lake: Lake) -> None:
    late = make_late(lake)
    found = late.changes.report()
    assert (found.shown_from, found.shown_to) == (2, 3)
    assert found.raw == {"inserted": 0, "updated": 1, "deleted": 0}
    assert [note.split(". ")[0] for note in found.notes] == [
        "Of versions 0 to 3 only 2 to 3 can be read",
        "The table declares no keys, so there is no net result",
    ]
    bridged = late.changes.report(keys=["id"], across_gaps=True)
    assert bridged.raw == {"inserted": 2, "updated": 1, "deleted": 0}
    assert bridged.net == {"inserted": 2, "updated": 0, "deleted": 0}
    off = lake.create_table("off", {"id": "bigint"}, feed=False).changes.report()
    assert (off.shown_from, off.by_version.rows, off.timeline.rows) == (None, (), ())
    assert "not enabled" in off.notes[0]


def test_ranges_keys_and_filters_that_make_no_sense(stock: Table) -> None:
    changes = stock.changes
    with pytest.raises(UsageError, match="after its end"):
        changes.report("3", "2")
    with pytest.raises(FeedError, match="beyond the newest"):
        changes.report("9")
    with pytest.raises(UsageError, match="no column nothing"):
        changes.report(keys=["nothing"])
    with pytest.raises(QueryError):
        changes.report(where="nothing = 1")
    with pytest.raises(UsageError, match="1 or more"):
        changes.report(newest=0)


@pytest.mark.long  # every run of the notebook archive shows one
def test_an_archive_says_what_it_did(stock: Table) -> None:
    planned = stock.archive(dry_run=True)
    assert (planned.into, planned.did) == ("stock_history", "would archive 5 versions up to 4")
    done = stock.archive()
    assert done.did == "5 new versions, archived up to 4"
    assert done.facts == {
        "versions behind": 0, "versions archived": 4, "rows inserted": 2, "rows updated": 2,
        "rows deleted": 1,
    }  # fmt: skip
    assert [(row[0], *row[2:]) for row in done.details.rows] == [
        (4, 0, 0, 1), (3, 0, 1, 0), (2, 0, 1, 0), (1, 2, 0, 0),
    ]  # fmt: skip
    for dry_run in (True, False):
        assert stock.archive(dry_run=dry_run).did == "nothing new, archived up to 4"


def test_a_feed_that_is_off_is_reported(lake: Lake) -> None:
    off = lake.create_table("off", {"id": "bigint"}, keys=["id"], feed=False)
    for report in (off.archive(), off.dimension()):
        assert "is off. Hint: enable it with table.changes.enable()" in report.why_not
    for dry_run in (True, False):
        with pytest.raises(FeedError, match=r"feed of off is off\. Hint: enable it with"):
            lake.archive("off", "kept", dry_run=dry_run)
    assert [str(name) for name in lake.tables()] == ["off"]
    off.changes.enable()
    assert not off.archive().why_not


@pytest.mark.long
def test_a_dimension_with_its_periods(stock: Table) -> None:
    assert stock.dimension(stored_as=2, dry_run=True).did == "would take versions 0 to 4"
    found = stock.dimension(stored_as=2)
    assert found.facts == {
        "keys": 2, "periods": 4, "keys that are there now": 1, "most periods of a key": 3,
    }  # fmt: skip
    assert found.periods == {"1": ((1, 2), (2, 3), (3, None)), "2": ((1, 4),)}
    for dry_run in (True, False):
        assert stock.dimension(stored_as=2, dry_run=dry_run).did == "nothing new"
    assert stock.dimension("latest").facts == {"rows": 1}


@pytest.mark.long
def test_a_dimension_of_a_feed_that_begins_late(lake: Lake) -> None:
    late = make_late(lake)
    assert "declares no keys" in late.dimension(stored_as=2).why_not
    first = late.dimension(stored_as=2, keys=["id"])
    assert first.periods == {"1": ((3, None),), "2": ((3, None),)}
    change(late, "UPDATE {t} SET n = 10 WHERE id = 2", "DELETE FROM {t} WHERE id = 1")
    then = late.dimension(stored_as=2, keys=["id"])
    assert then.did == "versions 4 to 5"
    assert then.periods == {"2": ((3, 4), (4, None)), "1": ((3, 5),)}


def test_other_tables_are_never_written_into(stock: Table, tmp_path: Path) -> None:
    Lake(tmp_path / "copy").create_table("mine", {"id": "bigint"})
    before = lake_state(tmp_path)
    with pytest.raises(UsageError, match="mine exists and is not a dimension"):
        stock.dimension("mine")
    with pytest.raises(UsageError, match="stored as type 3"):
        stock.dimension(stored_as=3)
    assert lake_state(tmp_path) == before


def follow(table: Table) -> None:
    table.archive("kept")
    table.dimension("dim", stored_as=2, track_history_columns=["n"])


def content(lake: Lake, name: str, *columns: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in lake.table(name).read().select(*columns).collect()}


def test_archives_and_dimensions_follow_a_renamed_and_widened_table(lake: Lake) -> None:
    lake.publisher("t", keys=["id"], types={"n": "int"}).upsert([{"id": 1, "n": 1, "v": "a"}])
    lake.mirror()
    table = lake.table("t")
    policy = table.partitioning.set({"PartitionKeys": [{"ColumnName": "v", "Kind": "Hash"}]})
    follow(table)
    zone = Path(lake.landing_zone)
    (zone / "t").rename(zone / "new")
    wider = lake.publisher("new", widen=True, types={"n": "bigint"})
    wider.upsert([{"id": 1, "n": 2**40, "v": "a"}])
    assert not lake.mirror(widen=True).failed
    table = lake.table("new")
    assert table.partitioning.policy == policy
    follow(table)
    last = table.version
    assert content(lake, "kept", "n", "_change_type", "_commit_version") == {
        (1, "insert", 1), (1, "update_preimage", last), (2**40, "update_postimage", last),
    }  # fmt: skip
    assert content(lake, "dim", "n", "__START_AT", "__END_AT") == {
        (1, 1, last), (2**40, last, None),
    }  # fmt: skip
    assert table.archive("kept").recovered == ""


@pytest.mark.long
def test_changes_before_a_wider_type_are_read_after_it(lake: Lake) -> None:
    table = lake.create_table("t", {"id": "bigint", "n": "int"}, keys=["id"])
    change(table, "INSERT INTO {t} VALUES (1, 1)")
    follow(table)
    change(
        table,
        "INSERT INTO {t} VALUES (2, 2)",
        "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableTypeWidening = true)",
        "ALTER TABLE {t} ALTER COLUMN n TYPE bigint",
        f"UPDATE {{t}} SET n = {2**40} WHERE id = 1",
    )
    with pytest.raises(FeedError, match="from integer to long"):
        table.changes.read(2)
    follow(table)
    archived = {(1, 1, 1), (2, 2, 2), (1, 1, 5), (1, 2**40, 5)}
    assert content(lake, "kept", "id", "n", "_commit_version") == archived
    periods = {(1, 1, 1, 5), (1, 2**40, 5, None), (2, 2, 2, None)}
    assert content(lake, "dim", "id", "n", "__START_AT", "__END_AT") == periods
    change(
        table,
        "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)",
        "ALTER TABLE {t} ALTER COLUMN n TYPE decimal(22,1)",
        "UPDATE {t} SET n = 3.5 WHERE id = 2",
        "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
    )
    with pytest.raises(FeedError, match=r"Hint: archive into another table"):
        table.archive("kept")
    how = {"stored_as": 2, "track_history_columns": ["n"]}
    with pytest.raises(FeedError, match=r"Hint: .*from_snapshot=True"):
        table.dimension("dim", **how)
    table.dimension("dim", **how, from_snapshot=True)
    periods = {(1, 1, 1, 5), (1, 2**40, 5, None), (2, 2, 2, 9), (2, Decimal("3.5"), 9, None)}
    assert content(lake, "dim", "id", "n", "__START_AT", "__END_AT") == periods
