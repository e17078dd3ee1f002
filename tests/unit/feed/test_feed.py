"""Test decisions about feeds without Spark: timelines, schema changes, gaps."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.delta_by_hand import HandMade, metadata
from helpers.feed_model import (
    Event,
    check_fold,
    check_periods,
    net_model,
    type_1_model,
    type_2_model,
)
from helpers.zones import T, Zone
from mirrorlake import Lake
from mirrorlake.delta import commits
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FeedError, UsageError
from mirrorlake.feed import changes, cursor, dimension, doctor, ranges
from mirrorlake.feed.archive import Archive
from mirrorlake.feed.scd import Dimension
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

HOUR = 3_600_000


def column(name: str, kind: Any = "integer", nullable: bool = True, physical: str = "") -> Any:
    metadata = {"delta.columnMapping.physicalName": physical} if physical else {}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: Any) -> Any:
    return {"type": "struct", "fields": list(fields)}


@pytest.mark.parametrize(
    ("old", "new", "texts"),
    [
        ([column("a")], [column("a"), column("b")], []),
        ([column("a", nullable=False)], [column("A")], ["renames column a to A"]),
        ([column("a")], [column("a", nullable=False)], ["makes column a NOT NULL"]),
        ([column("a")], [column("b")], ["drops column a"]),
        ([column("a")], [column("a", "long")], ["changes column a from integer to long"]),
        (
            [column("a", physical="x")],
            [column("b", "long", physical="x")],
            ["renames column a to b", "changes column a from integer to long"],
        ),
        (
            [column("s", struct(column("x"), column("y")))],
            [column("s", struct(column("x")))],
            ["drops column s.y"],
        ),
        (
            [column("l", {"type": "array", "elementType": struct(column("x"))})],
            [column("l", {"type": "array", "elementType": struct(column("x", "long"))})],
            ["changes column l.elementType.x from integer to long"],
        ),
        (
            [column("s", struct())],
            [column("s", "string")],
            ["changes column s from struct to string"],
        ),
    ],
)
def test_breaks(old: Any, new: Any, texts: list[str]) -> None:
    assert [found.text for found in doctor.find_breaks(old, new)] == texts


@pytest.mark.parametrize(
    ("old", "new", "widens"),
    [("integer", "long", True), ("long", "integer", False), ("integer", "string", False)],
)
def test_a_wider_type_is_known(old: str, new: str, widens: bool) -> None:
    (found,) = doctor.find_breaks([column("x", old)], [column("x", new)])
    assert found.widens == widens


LONG, INT = (pa.schema([("x", kind)]) for kind in (pa.int64(), pa.int32()))
REMOVED, CHANGE_FILE = {"remove": {"path": "a"}}, {"cdc": {"path": "c", "dataChange": False}}


@pytest.mark.parametrize(
    ("old", "new", "actions", "is_read"),
    [
        (LONG, INT, [REMOVED], False),
        (LONG, INT, [REMOVED, CHANGE_FILE], True),
        (LONG, INT, [{"remove": {"path": "a", "dataChange": False}}], True),
        (LONG, INT, [], True),  # the table was empty
        (INT, LONG, [REMOVED], True),
    ],
)
@pytest.mark.parametrize("mode", ["none", "name"])
def test_rows_of_removed_files_must_fit_the_new_type(
    tmp_path: Path, old: pa.Schema, new: pa.Schema, actions: Any, is_read: bool, mode: str
) -> None:
    lake = Lake(tmp_path)
    table = HandMade(Path(lake.storage.path("Tables/t")))
    properties = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": mode}
    table.create(old, properties)
    table.commit("WRITE")
    table.log("REPLACE TABLE", [metadata(new, properties), *actions])  # 2
    table.commit("WRITE")
    for name in ("a", "c"):
        (table.folder / name).touch()
    feed, first = lake.table("t").changes, () if mode == "none" else ((0, 1),)
    assert feed.diagnose().readable == (*first, (2 if is_read else 3, 3))
    assert feed.diagnose(2).readable == ((2 if is_read else 3, 3),)
    assert feed.diagnose(2, 2).readable == (((2, 2),) if is_read else ())


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((4,), r"no version 4 of t.* from 0 to 2"),
        ((-1,), r"no version -1 of t"),
        ((2, 1), r"starts at version 2, after its end 1.*swap"),
        ((1, -1), r"starts at version 1, after its end -1"),
    ],
)
def test_a_range_without_versions_is_not_diagnosed(
    fed: Lake, ends: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        fed.table("t").changes.diagnose(*ends)
    assert not fed.table("t").changes.diagnose(3).findings  # the next version


@pytest.mark.parametrize("start", [-1, 4])
def test_an_archive_begins_at_an_existing_version_or_the_next(fed: Lake, start: int) -> None:
    """Otherwise, the archive would be empty until the table has this version."""
    message = f"can't begin at version {start} of t.*from 0 to 3"
    with pytest.raises(UsageError, match=message):
        fed.archive("t", "kept", start=start, dry_run=True)
    assert fed.archive("t", "kept", start=3, dry_run=True).start == 3


@pytest.fixture
def fed(tmp_path: Path) -> Lake:
    """A lake with a table `t` that has a change feed and the versions 0 to 2."""
    lake = Lake(tmp_path)
    table = HandMade(Path(lake.storage.path("Tables/t")))
    table.create(pa.schema({"id": pa.int64()}), {"delta.enableChangeDataFeed": "true"})
    for _ in range(2):
        table.commit("WRITE")
    return lake


def test_a_change_file_is_never_left_out() -> None:
    for regex in ("parquet", "^part-0", "(?i:PART)", "cdc", ".*", "country=US/", "x|_change_data"):
        guarded = changes.keep_change_files(regex)
        for path in ("part-00000.parquet", "country=US/part-1.parquet"):
            assert bool(re.search(guarded, path)) == bool(re.search(regex, path))
        for path in ("_change_data/cdc-0.parquet", "_change_data/country=US/cdc-0.parquet"):
            assert not re.search(guarded, path)


@pytest.mark.parametrize(
    ("span", "readable", "whole", "segments"),
    [
        ((0, 5), [(0, 5)], set(), [(0, 5, True)]),
        ((0, 5), [(2, 3)], {1, 3, 5}, [(0, 1, False), (2, 3, True), (4, 5, False)]),
        ((0, 5), [(2, 3)], {1, 5}, [(0, 1, False), (2, 5, False)]),
        ((2, 6), [(4, 6)], {1, 5}, [(2, 5, False), (6, 6, True)]),
        ((2, 8), [(2, 4), (6, 8)], {3, 6}, [(2, 3, True), (4, 6, False), (7, 8, True)]),
        ((1, 4), [(1, 2), (3, 4)], set(), [(1, 2, True), (3, 4, True)]),
        ((0, 3), [], {3}, [(0, 3, False)]),
    ],
)
def test_gaps_reach_from_one_whole_version_to_another(
    span: tuple[int, int], readable: Any, whole: set[int], segments: list[Any]
) -> None:
    found = doctor.Diagnosis("t", *span, (), tuple(readable))
    planned = ranges.plan_segments(found, lambda version: version in whole or version < 0)
    assert planned == [ranges.RangePart(*segment) for segment in segments]


def test_a_gap_without_a_whole_version_on_both_sides_is_lost() -> None:
    found = doctor.Diagnosis("t", 1, 4, (), ((1, 1), (4, 4)))
    with pytest.raises(FeedError, match=r"versions 2 to 3 are lost.*no version before"):
        ranges.plan_segments(found, lambda version: version == 4)
    with pytest.raises(FeedError, match="no version after"):
        ranges.plan_segments(found, lambda version: version == 1)
    assert doctor.span_text((2, 3), "version") == "versions 2 to 3"


def test_the_references_themselves() -> None:
    """Check the reference models themselves against results computed by hand."""
    feed = [(1, "insert", (1, "a")), (2, "delete", (1, "a")), (2, "update_preimage", (2, "x"))]
    feed += [(2, "update_postimage", (2, "y")), (3, "insert", (3, "z"))]
    assert net_model(feed, 1) == [
        (2, "update_preimage", (2, "x")),
        (2, "update_postimage", (2, "y")),
        (3, "insert", (3, "z")),
    ]
    events = [Event((1,), 1, ("a", 1)), Event((1,), 5, None), Event((1,), 3, (None, 2))]
    assert type_1_model(events) == {}
    assert type_1_model([*events, Event((1,), 7, (None, 4))]) == {(1,): (None, 4)}
    assert type_1_model([events[0], events[2]], ignore_nulls=True) == {(1,): ("a", 2)}
    assert type_2_model(events) == {((1,), ("a", 1), 1, 3): 1, ((1,), (None, 2), 3, 5): 1}
    assert type_2_model([events[1]]) == {((1,), None, 5, 5): 1}


@pytest.mark.parametrize(
    ("start", "end", "fix"),
    [(7, None, "choose a start up to version 2. "), (1, 7, "leave out the end to read ")],
)
def test_an_end_beyond_the_newest_version(start: int, end: int | None, fix: str) -> None:
    timeline = commits.Timeline(0, range(3), (0, HOUR, 2 * HOUR))
    no_session: Any = None  # only timestamps and the default of `beyond_latest` need one
    with pytest.raises(FeedError, match=r"^Version 7 is beyond the newest version, 2 of 1970") as e:
        ranges.resolve_span(no_session, timeline, start, end, "error")
    assert e.value.hint.startswith(fix)
    assert e.value.hint.endswith(" or row_tracking.changes (--beyond clip).")
    assert "Latest" not in e.value.message


def test_the_checks_of_histories_find_errors() -> None:
    """Check the check of a feed and that of a dimension, with a row that is updated and deleted."""
    old, new = (1, "a"), (1, "b")
    rows = {0: Counter(), 1: Counter([old]), 2: Counter([new]), 3: Counter()}
    feed = [(1, "insert", *old), (2, "update_preimage", *old), (2, "update_postimage", *new)]
    feed.append((3, "delete", *new))
    periods = [(*old, 1, 2), (*new, 2, 3)]
    check_fold(Counter(feed), rows)
    check_fold(Counter(feed[1:]), {2: rows[2]}, rows[1])
    check_periods(Counter(periods), rows)
    for missing in (*feed, None):
        found = [change for change in feed if change != missing] + [feed[0]] * (missing is None)
        with pytest.raises(AssertionError, match="the changes up to version"):
            check_fold(Counter(found), rows)
    for wrong in ([], periods[:1], periods + periods[1:], [(*old, 1, 3)], [(*old, 1, None)]):
        with pytest.raises(AssertionError, match="the changes up to version"):
            check_periods(Counter(wrong), rows)


def test_an_archive_and_its_preview_name_no_new_version_alike(storage: Storage) -> None:
    spark: Any = None  # only the figures need it
    Zone(storage).delta_log({}, {}, {})
    table = TableHandle(spark, storage, T)
    archive = Archive(table, TableName(None, "t_history"))
    lag = cursor.Lag(0, 0.0)
    for applied in (True, False):
        report = archive.report(4, 4, lag=lag, applied=applied)
        assert report.did == "nothing new, archived up to 4"
    assert archive.report(3, 4, lag=lag).did == "1 new version, archived up to 4"
    assert archive.report(3, 4, lag=lag, applied=False).did == "would archive 1 version up to 4"


def test_hints_name_the_options_of_the_commands(storage: Storage) -> None:
    spark: Any = None  # the columns are checked first
    Zone(storage).delta_log({"id": "long"}, {}, {})
    table = TableHandle(spark, storage, T)
    with pytest.raises(UsageError, match=r"as keys \(--keys\)"):
        ranges.key_columns(table, None)
    Zone(storage).delta_log({"id": "long"}, {}, {}, TableName(None, "t_history"))
    with pytest.raises(UsageError, match=r"not a dimension.*with into \(--into\)"):
        dimension.update_dimension(table, "t_history", Dimension(("id",)), from_snapshot=True)
    assert "(--keys)" in dimension.update_dimension(table, "", Dimension(())).why_not
    with pytest.raises(FeedError, match=r"with into \(--into\)"):
        Archive(table, TableName(None, "t_history")).plan()
