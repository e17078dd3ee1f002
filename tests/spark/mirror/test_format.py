"""The landing zone's format as a matrix: a publisher's actions, and the resulting table.

All cases share one lake and its cycles. The library writes no files here: pyarrow and the tests
write them, like a publisher for the original service.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.markers import MARKER
from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.mirror import status
from mirrorlake.names import file_name

Action = Callable[[Path], None]
KEYS = {"keyColumns": ["id"]}


def parquet(number: int, rows: list[dict[str, Any]] | pa.Table, **options: Any) -> Action:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    return lambda folder: pq.write_table(table, folder / file_name(number), **options)


def text(name: str, content: str | bytes) -> Action:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data) and None


def metadata(**document: Any) -> Action:
    return lambda folder: (folder / "_metadata.json").write_text(json.dumps(document)) and None


def remake(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def rename(folder: Path) -> None:
    folder.rename(folder.with_name(f"{folder.name} renamed"))


def by_time(*files: tuple[str, list[dict[str, Any]]]) -> Action:
    def write(folder: Path) -> None:
        for place, (name, rows) in enumerate(files):
            pq.write_table(pa.Table.from_pylist(rows), folder / name)
            moment = time.time() - 1000 + place
            os.utime(folder / name, (moment, moment))

    return write


@dataclass
class Cycle:
    """A publisher's actions before a cycle, and the expected table after it.

    Attributes:
        rows: the expected rows; None if no table may exist.
        error: a part of the expected error.
        table: the table's name; by default the name of the case.
    """

    actions: list[Action]
    rows: list[dict[str, Any]] | None
    error: str = ""
    table: str = ""


@dataclass
class Case:
    promise: str
    what: str
    cycles: list[Cycle]
    schema: str | None = None

    @property
    def name(self) -> str:
        return f"{self.promise} {self.what}"


A, B, C = {"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}
COLUMNS = {
    "Columns": [
        {"Name": "id", "DataType": "Int32", "IsNullable": False},
        {"Name": "v", "DataType": "String"},
        {"Name": "at", "DataType": "datetime", "IsNullable": True},
    ]
}


def marked(marker: int, row: dict[str, Any]) -> dict[str, Any]:
    return {**row, MARKER: marker}


def csv_case(what: str, name: str, content: str | bytes, **document: Any) -> Case:
    declared = {"FileFormat": "DelimitedText", "SchemaDefinition": COLUMNS, **KEYS, **document}
    rows = [{"id": 1, "v": 'a "quoted", b', "at": None}, {"id": 2, "v": None, "at": None}]
    return Case("LZ-07", what, [Cycle([metadata(**declared), text(name, content)], rows)])


CASES = [
    Case(
        "LZ-07",
        "Parquet in five codecs",
        [
            Cycle(
                [
                    parquet(1, [A], compression="none"),
                    parquet(2, [B], compression="snappy"),
                    parquet(3, [C], compression="gzip"),
                    parquet(4, [{"id": 4, "v": "d"}], compression="zstd"),
                    parquet(5, [{"id": 5, "v": "e"}], compression="lz4"),
                ],
                [A, B, C, {"id": 4, "v": "d"}, {"id": 5, "v": "e"}],
            )
        ],
    ),
    csv_case("CSV", f"{1:020d}.csv", 'id,v\r\n1,"a ""quoted"", b"\r\n2,\r\n'),
    csv_case(
        "CSV gzip",
        f"{1:020d}.csv.gz",
        gzip.compress(f'id,v,{MARKER}\n3,x,0\n1,"a \\"quoted\\", b",4\n2,,4\n3,,2\n'.encode()),
    ),
    csv_case(
        "text of another kind",
        f"{1:020d}.dat",
        'id|v\r1|a "quoted", b\r2|N/A\r'.encode("utf-16"),
        FileExtension="dat",
        FileFormatTypeProperties={
            "FirstRowAsHeader": True,
            "RowSeparator": "\r",
            "ColumnSeparator": "|",
            "QuoteCharacter": "'",
            "EscapeCharacter": "/",
            "NullValue": "N/A",
            "Encoding": "UTF-16",
        },
    ),
    Case(
        "LZ-13",
        "files by time",
        [
            Cycle(
                [
                    metadata(fileDetectionStrategy="LastUpdateTimeFileDetection", **KEYS),
                    by_time(
                        ("z first.parquet", [marked(4, A)]),
                        ("a%20+[second] ü.parquet", [marked(4, {"id": 1, "v": "b"}), marked(4, B)]),
                        ("m-third.parquet", [marked(2, {"id": 2, "v": None})]),
                    ),
                ],
                [{"id": 1, "v": "b"}],
            ),
            # The last file is still in the folder and not applied again; its name is reused.
            Cycle([], [{"id": 1, "v": "b"}]),
            Cycle([by_time(("m-third.parquet", [marked(0, C)]))], [{"id": 1, "v": "b"}, C]),
        ],
    ),
    Case(
        "LZ-16",
        "marker column first, last, between",
        [
            Cycle(
                [metadata(**KEYS), parquet(1, [{MARKER: 0, "id": 1, "v": "x"}])],
                [{"id": 1, "v": "x"}],
            ),
            Cycle(
                [parquet(2, [{"id": 1, MARKER: 1, "v": "a"}]), parquet(3, [marked(4, B)])], [A, B]
            ),
        ],
    ),
    Case(
        "LZ-04",
        "metadata in any case, upserts by default",
        [
            Cycle(
                [
                    metadata(KEYCOLUMNS=["ID"], isupsertdefaultrowmarker=True),
                    parquet(1, [A, B]),
                    parquet(2, [{"id": 1, "v": "new"}]),
                ],
                [{"id": 1, "v": "new"}, B],
            )
        ],
    ),
    Case(
        "LZ-06",
        "keys added later, then changed",
        [
            Cycle([parquet(1, [A, B])], [A, B]),
            Cycle([metadata(**KEYS), parquet(2, [marked(2, A)])], [B]),
            Cycle([metadata(keyColumns=["v"]), parquet(3, [marked(2, B)])], [B], "can't become"),
        ],
    ),
    Case(
        "LZ-17",
        "an update without a column sets it to NULL",
        [
            Cycle(
                [metadata(**KEYS), parquet(1, [A, B]), parquet(2, [marked(1, {"id": 1})])],
                [{"id": 1, "v": None}, B],
            ),
            Cycle(
                [parquet(3, [marked(1, {"id": 2})])], [{"id": 1, "v": None}, {"id": 2, "v": None}]
            ),
        ],
    ),
    Case(
        "LZ-19",
        "deletes with key columns only",
        [Cycle([metadata(**KEYS), parquet(1, [A, B]), parquet(2, [{"id": 1, MARKER: 2}])], [B])],
    ),
    Case(
        "LZ-02",
        "a declared schema is an empty table at once",
        [
            Cycle([metadata(SchemaDefinition=COLUMNS, **KEYS)], []),
            Cycle(
                [parquet(1, pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))],
                [{**A, "at": None}],
            ),
        ],
    ),
    Case(
        "LZ-03",
        "one name in two schemas",
        [Cycle([parquet(1, [A])], [A]), Cycle([parquet(2, [B])], [A, B])],
        schema="one",
    ),
    Case(
        "LZ-03",
        "one name in two schemas",
        [Cycle([parquet(1, [C])], [C]), Cycle([], [C])],
        schema="two",
    ),
    Case(
        "LZ-20",
        "a deleted folder",
        [Cycle([parquet(1, [A])], [A]), Cycle([shutil.rmtree], None), Cycle([], None)],
    ),
    Case(
        "LZ-21",
        "a folder made again",
        [
            Cycle(
                [metadata(**KEYS), parquet(1, [A]), parquet(2, [marked(2, A), marked(0, B)])], [B]
            ),
            Cycle([remake, parquet(1, [{"id": "x"}])], [{"id": "x"}]),
            Cycle([shutil.rmtree], None),
            Cycle([Path.mkdir, parquet(1, [C])], [C]),
        ],
    ),
    Case(
        "LZ-23",
        "a renamed folder",
        [
            Cycle([parquet(1, [A]), parquet(2, [B])], [A, B]),
            Cycle([rename], [A, B], table="LZ-23 a renamed folder renamed"),
            Cycle(
                [lambda f: parquet(3, [C])(f.with_name(f"{f.name} renamed"))],
                [A, B, C],
                table="LZ-23 a renamed folder renamed",
            ),
        ],
    ),
    Case(
        "LZ-24",
        "nested as JSON, blobs binary",
        [
            Cycle(
                [parquet(1, [{"id": 1, "n": {"a": [1, None]}, "l": ["x"], "b": b"\x00\xff"}])],
                [{"id": 1, "n": '{"a":[1,null]}', "l": '["x"]', "b": b"\x00\xff"}],
            )
        ],
    ),
    Case(
        "LZ-25",
        "a column comes",
        [
            Cycle([metadata(**KEYS), parquet(1, [A])], [A]),
            Cycle(
                [parquet(2, [marked(0, {**B, "new col": 0.5, "_change_type_code": 1})])],
                [
                    {**A, "new col": None, "_change_type_code": None},
                    {**B, "new col": 0.5, "_change_type_code": 1},
                ],
            ),
        ],
    ),
    Case(
        "LZ-26",
        "a column goes",
        [
            Cycle([metadata(**KEYS), parquet(1, [A])], [A]),
            Cycle([parquet(2, [{"id": 2}])], [A, {"id": 2, "v": None}]),
            Cycle([parquet(3, [C])], [A, {"id": 2, "v": None}, C]),
        ],
    ),
    Case(
        "LZ-27",
        "a type changes",
        [
            Cycle([parquet(1, [A])], [A]),
            Cycle([parquet(2, [B]), parquet(3, [{"id": "3", "v": "c"}])], [A, B], "'id' is string"),
            Cycle([parquet(4, [C])], [A, B], "'id' is string"),
        ],
    ),
    Case(
        "LZ-28",
        "a type changes and the folder is made again",
        [
            Cycle([parquet(1, [A])], [A]),
            Cycle([parquet(2, [{"id": "2", "v": "b"}])], [A], "'id' is string"),
            Cycle(
                [remake, parquet(1, [{"id": "1", "v": "a"}, {"id": "2", "v": "b"}])],
                [{"id": "1", "v": "a"}, {"id": "2", "v": "b"}],
            ),
            Cycle(
                [remake, parquet(1, [{"id": "1", "renamed": "a"}])],
                [{"id": "1", "renamed": "a"}],
            ),
        ],
    ),
]
CYCLES = max(len(case.cycles) for case in CASES)


def folder_of(lake: Lake, case: Case) -> Path:
    zone = Path(lake.landing_zone)
    return (zone / f"{case.schema}.schema" if case.schema else zone) / case.name


@dataclass
class TextTable:
    """The tables after one cycle: rows by table and columns, and errors by table."""

    rows: Counter[tuple[Any, ...]] | None
    error: str


def look(lake: Lake, report: status.MirrorReport, case: Case, cycle: Cycle) -> TextTable:
    name = cycle.table or case.name
    full = f"`{case.schema}`.`{name}`" if case.schema else f"`{name}`"
    errors = [t.error["message"] for t in report.tables if t.error and t.name == name]
    there = (Path(lake.storage.root) / "Tables" / (case.schema or "") / name).is_dir()
    if not there:
        return TextTable(None, *errors or [""])
    columns = sorted(lake.table(full).snapshot().schema)
    return TextTable(bag(lake, full, columns), *errors or [""])


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[TextTable]]:
    """Run all cases together, cycle by cycle."""
    lake = Lake(tmp_path_factory.mktemp("format") / "lake")
    seen: dict[int, list[TextTable]] = {number: [] for number in range(len(CASES))}
    for turn in range(CYCLES):
        for case in CASES:
            if turn == 0:
                folder_of(lake, case).mkdir(parents=True)
            for action in case.cycles[turn].actions if turn < len(case.cycles) else ():
                action(folder_of(lake, case))
        report = lake.mirror(options=MirrorOptions(tables_at_once=4))
        for number, case in enumerate(CASES):
            if turn < len(case.cycles):
                seen[number].append(look(lake, report, case, case.cycles[turn]))
    return seen


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, id=case.name, marks=pytest.mark.promise(case.promise))
        for n, case in enumerate(CASES)
    ],
)
def test_the_format(shown: dict[int, list[TextTable]], number: int) -> None:
    for turn, (cycle, found) in enumerate(zip(CASES[number].cycles, shown[number], strict=True)):
        assert cycle.error in found.error, turn
        assert bool(cycle.error) == bool(found.error), (turn, found.error)
        if cycle.rows is None:
            assert found.rows is None, turn
        else:
            expected = Counter(tuple(row[c] for c in sorted(row)) for row in cycle.rows)
            assert found.rows == expected, turn
