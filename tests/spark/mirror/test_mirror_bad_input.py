"""Bad input: a clear error for that table only; nothing is lost, and other tables continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.markers import MARKER
from helpers.tables import bag
from mirrorlake import Lake
from mirrorlake.names import file_name

# Each name costs two commits; a quick run has all special characters in three names.
MIXED_NAMES = ["it's 日本 ü", 'q"uote b`tick a%20b', "[x]{y}*? #1 e=f,"]
ODD_NAMES = ["it's", 'q"uote', "b`tick", "two words", "日本 ü", "a%20b", "x#1", "[x]{y}*?", "e=f,"]


def put(lake: Lake, folder: str, number: int, data: dict[str, Any] | pa.Table | bytes) -> Path:
    """Write a file by hand, like another publisher."""
    path = Path(lake.landing_zone) / folder / file_name(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        pq.write_table(data if isinstance(data, pa.Table) else pa.table(data), path)
    return path


def declare(lake: Lake, folder: str, text: str = '{"keyColumns": ["id"]}') -> None:
    path = Path(lake.landing_zone) / folder / "_metadata.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


GOOD = {"id": [1, 2], "v": ["a", "b"]}
BAD: dict[str, tuple[Any, dict[str, Any]]] = {
    "unknown marker": (
        {"id": [1, 2], "v": ["x", "y"], MARKER: [1, 3]},
        {"row": 2, "column": MARKER, "says": "Unknown row marker 3"},
    ),
    "marker of a wrong type": (
        {"id": [1], "v": ["x"], MARKER: ["1"]},
        {"row": None, "column": MARKER, "says": "has the type string"},
    ),
    "marker null": (
        {"id": [1], "v": ["x"], MARKER: pa.array([None], pa.int32())},
        {"row": 1, "column": MARKER, "says": "NULL"},
    ),
    "key missing": ({"v": ["x"]}, {"row": None, "column": "id", "says": "missing"}),
    "key null": (
        {"id": [1, None], "v": ["x", "y"]},
        {"row": 2, "column": "id", "says": "is NULL"},
    ),
    "zero bytes": (b"", {"row": None, "column": None, "says": "zero bytes"}),
    "not parquet": (b"hello", {"row": None, "column": None, "says": "Parquet"}),
    "other type": (
        {"id": [1], "v": [1.5]},
        {"row": None, "column": "v", "says": "but the table has string"},
    ),
    "column twice": (
        pa.table([[1], ["x"], ["y"]], names=["id", "v", "V"]),
        {"row": None, "column": "V", "says": "twice"},
    ),
    "no such type": (
        {"id": [1], "v": pa.array([None], pa.decimal256(40, 2))},
        {"row": None, "column": "v", "says": "no counterpart"},
    ),
}


# Rows before a bad file cost two commits. A quick run has them where the error depends on the
# table, for a bad row and for an empty file; in other cases the bad file is the table's first one.
LOADED = {"other type", "unknown marker", "zero bytes"}


@pytest.mark.promise("LZ-27")
@pytest.mark.complaint("empty-file", "hidden-error", "type-drift")
@pytest.mark.parametrize(
    "loaded", [LOADED, pytest.param(set(BAD), marks=pytest.mark.long)], ids=["some", "all"]
)
def test_each_kind_of_bad_file_stops_its_table_only_and_can_be_repaired(
    lake: Lake, loaded: set[str]
) -> None:
    for kind, (data, _) in BAD.items():
        declare(lake, kind)
        files = [GOOD] * (kind in loaded) + [data, {"id": [9], "v": ["behind"]}]
        for number, rows in enumerate(files, 1):
            put(lake, kind, number, rows)
    declare(lake, "truncated")
    whole = put(lake, "truncated", 1, GOOD).read_bytes()
    put(lake, "truncated", 2, whole[: len(whole) // 2])
    put(lake, "fine", 1, GOOD)
    put(lake, "fine", 2, pa.table(GOOD).slice(0, 0))

    report = {line.name: line for line in lake.mirror().tables}
    fine = report.pop("fine")
    assert (fine.error, fine.last_file) == (None, 2)
    truncated = report.pop("truncated")
    assert truncated.error is not None
    assert truncated.error["file"] == file_name(2)
    for kind, line in report.items():
        expected, before = BAD[kind][1], int(kind in loaded)
        assert line.error is not None, kind
        assert line.error["file"] == file_name(before + 1), kind
        assert line.error["row"] == expected["row"], kind
        assert line.error["column"] == expected["column"], kind
        assert expected["says"] in line.error["message"], kind
        assert "Hint:" in line.error["message"] or kind == "column twice", kind
        assert (line.state, line.last_file, line.backlog_files) == ("Failed", before, 2), kind
        if before:
            assert bag(lake, f"`{kind}`", ["id", "v"]) == {(1, "a"): 1, (2, "b"): 1}, kind
    assert {table.name for table in lake.tables()} == {*loaded, "fine", "truncated"}

    # The same name with valid rows: the table catches up without any other action.
    put(lake, "zero bytes", 2, {"id": [2], "v": ["repaired"], MARKER: [4]})
    line = next(line for line in lake.mirror().tables if line.name == "zero bytes")
    assert (line.state, line.last_file, line.error) == ("Replicating", 3, None)
    expected = {(1, "a"): 1, (2, "repaired"): 1, (9, "behind"): 1}
    assert bag(lake, "`zero bytes`", ["id", "v"]) == expected


@pytest.mark.promise("LZ-05")
def test_changes_without_keys_are_refused(lake: Lake) -> None:
    declare(lake, "no keys", "{}")
    for name in ("no file", "no keys"):
        put(lake, name, 1, {"id": [1], "v": ["a"]})
        put(lake, name, 2, {"id": [1], "v": ["b"], MARKER: [1]})
    for line in lake.mirror().tables:
        assert line.error is not None
        assert "no key columns" in line.error["message"]
        assert bag(lake, f"`{line.name}`", ["id", "v"]) == {(1, "a"): 1}


@pytest.mark.promise("LZ-04", "LZ-06")
def test_keys_come_late_and_stay(lake: Lake) -> None:
    put(lake, "t", 1, {"a": [1], "b": ["x"], "v": [1]})
    assert not lake.mirror().failed
    declare(lake, "t", '{"KEYCOLUMNS": ["a", "b"]}')
    put(lake, "t", 2, {"a": [1, 1], "b": ["x", "y"], "v": [2, 3], MARKER: [1, 1]})
    assert not lake.mirror().failed
    assert bag(lake, "t", ["a", "b", "v"]) == {(1, "x", 2): 1, (1, "y", 3): 1}
    assert lake.table("t").snapshot().properties["mirrorlake.keys"] == '["a", "b"]'
    declare(lake, "t", '{"keyColumns": ["a"]}')
    put(lake, "t", 3, {"a": [1], "b": ["x"], "v": [9], MARKER: [1]})
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert "can't become" in line.error["message"]
    assert bag(lake, "t", ["a", "b", "v"]) == {(1, "x", 2): 1, (1, "y", 3): 1}


def test_broken_metadata_stops_its_table(lake: Lake) -> None:
    declare(lake, "broken", '{"keyColumns": [')
    put(lake, "broken", 1, GOOD)
    put(lake, "fine", 1, GOOD)
    report = {line.name: line for line in lake.mirror().tables}
    assert report["fine"].error is None
    error = report["broken"].error
    assert error is not None
    assert (error["file"], "not valid JSON" in error["message"]) == ("_metadata.json", True)


@pytest.mark.promise("LZ-01", "LZ-02", "LZ-03")
@pytest.mark.parametrize(
    "names", [MIXED_NAMES, pytest.param(ODD_NAMES, marks=pytest.mark.long)], ids=["mixed", "each"]
)
def test_odd_names_work_and_impossible_ones_are_refused(lake: Lake, names: list[str]) -> None:
    for name in names:
        declare(lake, name)
        put(lake, name, 1, {"id": [1, 2], "v": [name, "x"]})
        put(lake, name, 2, {"id": [2], "v": [None], MARKER: [2]})
    for schema in ("north", "south"):
        put(lake, f"{schema}.schema/orders", 1, {"id": [1], "v": [schema]})
    put(lake, "a:b", 1, GOOD)
    put(lake, "tab\there", 1, GOOD)
    put(lake, "north", 1, GOOD)  # a table named like a schema
    put(lake, "_scratchPad", 1, GOOD)
    report = {(line.schema, line.name): line for line in lake.mirror().tables}
    refused = {name for (_, name), line in report.items() if line.error}
    assert refused == {"a:b", "tab\there", "north"}
    for name in names:
        assert bag(lake, f"`{name.replace('`', '``')}`", ["id", "v"]) == {(1, name): 1}
        found = lake.sql(f"SELECT v FROM `{name.replace('`', '``')}`@v1 WHERE id = 1").collect()
        assert [row.v for row in found] == [name]
    for schema in ("north", "south"):
        assert bag(lake, f"{schema}.orders", ["v"]) == {(schema,): 1}
    assert not (Path(lake.storage.root) / "Tables" / "_scratchPad").exists()


def test_a_table_that_no_mirror_made_is_left_alone(lake: Lake, spark: Any) -> None:
    path = lake.storage.path("Tables/mine")
    spark.range(3).write.format("delta").save(path)
    put(lake, "mine", 1, {"id": [7]})
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert "the mirror did not make" in line.error["message"]
    assert spark.read.format("delta").load(path).count() == 3


def test_a_table_with_keys_that_no_mirror_made_is_left_alone(lake: Lake) -> None:
    table = lake.create_table("mine", {"id": "BIGINT"}, keys=["id"])
    put(lake, "mine", 1, {"id": [7]})
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert "the mirror did not make" in line.error["message"]
    assert table.read().count() == 0


@pytest.mark.promise("LZ-13", "LZ-14")
@pytest.mark.complaint("no-backlog")
def test_a_gap_blocks_later_files_and_the_last_file_stays(lake: Lake) -> None:
    put(lake, "t", 1, {"id": [1]})
    put(lake, "t", 2, {"id": [2]})
    put(lake, "t", 4, {"id": [4]})
    (line,) = lake.mirror().tables
    assert (line.last_file, line.backlog_files, line.waiting_for) == (2, 1, 3)
    assert line.error is None
    assert line.lag_seconds >= 0
    assert bag(lake, "t", ["id"]) == {(1,): 1, (2,): 1}
    zone = Path(lake.landing_zone) / "t"
    assert sorted(p.name for p in zone.glob("0*")) == [file_name(2), file_name(4)]
    assert [p.name for p in (zone / "_ProcessedFiles").iterdir()] == [file_name(1)]
    put(lake, "t", 3, {"id": [3]})
    (line,) = lake.mirror().tables
    assert (line.last_file, line.backlog_files, line.waiting_for) == (4, 0, None)
    assert bag(lake, "t", ["id"]) == {(n,): 1 for n in (1, 2, 3, 4)}


@pytest.mark.complaint("lost-writers")
def test_a_number_used_again_is_reported_and_never_applied(lake: Lake) -> None:
    for number in (1, 2, 3):
        put(lake, "t", number, {"id": [number]})
    lake.mirror()
    late = put(lake, "t", 2, {"id": [99]})
    put(lake, "t", 4, {"id": [4]})
    (line,) = lake.mirror().tables
    assert line.error is not None
    assert (line.error["file"], "applied before" in line.error["message"]) == (file_name(2), True)
    assert late.exists()
    assert bag(lake, "t", ["id"]) == {(n,): 1 for n in (1, 2, 3, 4)}
    late.unlink()
    (line,) = lake.mirror().tables
    assert (line.error, line.state) == (None, "Replicating")


def test_markers_of_every_whole_number_type(lake: Lake) -> None:
    """One table has a file with each marker type."""
    kinds = ["int8", "int16", "int64", "uint8", "uint32", "uint64"]
    declare(lake, "t")
    for number, kind in enumerate(kinds, 1):
        marker = pa.array([0, 4, 2], getattr(pa, kind)())
        rows = {"id": [number, -number, number], "v": ["a", kind, None]}
        put(lake, "t", number, {MARKER: marker, **rows})
    assert not lake.mirror().failed
    expected = {(-number, kind): 1 for number, kind in enumerate(kinds, 1)}
    assert bag(lake, "t", ["id", "v"]) == expected


def test_odd_column_names_work_and_reserved_ones_are_refused(lake: Lake) -> None:
    odd = {"id": [1, 2], "unit price": [1.5, 2.5], "a,b;{}()=": ["x", "y"], "dot.ted `": [0, 1]}
    declare(lake, "odd")
    put(lake, "odd", 1, odd)
    put(lake, "odd", 2, {**odd, "unit price": [9.5, 8.5], MARKER: [4, 2]})
    declare(lake, "late")
    put(lake, "late", 1, {"id": [1]})
    for name in ("_metadata", "__mirrorlake_position", "_change_type"):
        put(lake, name.strip("_"), 1, {"id": [1], name: [1]})
    report = {line.name: line.error for line in lake.mirror().tables}
    assert report.pop("odd") is report.pop("late") is None
    assert all("is reserved" in error["message"] for error in report.values() if error)
    assert all(error is not None for error in report.values())
    rows = [row.asDict() for row in lake.table("odd").read().collect()]
    assert rows == [{"id": 1, "unit price": 9.5, "a,b;{}()=": "x", "dot.ted `": 0}]
    put(lake, "late", 2, {"id": [1, 2], "unit price": [7.5, 8.5], MARKER: [4, 4]})
    line = next(line for line in lake.mirror().tables if line.name == "late")
    assert line.error is None
    rows = sorted(tuple(row) for row in lake.table("late").read().collect())
    assert rows == [(1, 7.5), (2, 8.5)]
