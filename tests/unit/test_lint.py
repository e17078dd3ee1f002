from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mirrorlake import Lake
from mirrorlake.cli import app
from mirrorlake.errors import MirrorlakeError, TableNotFoundError
from mirrorlake.landing.check import inspect_file
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.lint.rules import RULES
from mirrorlake.lint.zone import lint_zone
from mirrorlake.names import METADATA, PARTNER_EVENTS, ZONE, TableName, file_name
from mirrorlake.storage import Storage
from zones import KEYED, MARKER, Zone

DOCS = Path(__file__).parents[2] / "docs" / "lint.md"
FIRST, SECOND, THIRD = file_name(1), file_name(2), file_name(3)
BY_TIME = {"keyColumns": ["id"], "fileDetectionStrategy": "LastUpdateTimeFileDetection"}
TYPED = {
    "keyColumns": ["id"],
    "fileFormat": "CSV",
    "FileFormatTypeProperties": {"RowSeparator": "\n"},
    "SchemaDefinition": {
        "Columns": [
            {"Name": "id", "DataType": "Int32", "IsNullable": False},
            {"Name": "n", "DataType": "Int64"},
        ]
    },
}
UUID = "0123456789abcdef0123456789abcdef"

Break = Callable[[Zone], Any]
# Rule, what breaks it in a zone with nothing but its partner, where: table, file, row, column.
CASES: list[tuple[str, Break, tuple[Any, Any, Any, Any]]] = []
_TABLE = ("t", None, None, None)


def at(file=None, row=None, column=None, table="t"):
    return (table, file, row, column)


def case(rule: str, where: tuple[Any, Any, Any, Any]) -> Callable[[Break], Break]:
    def add(make: Break) -> Break:
        CASES.append((rule, make, where))
        return make

    return add


def keyed(zone: Zone, *files: Any, metadata: Any = KEYED, **options: Any) -> None:
    """A table with keys, its files numbered from 1."""
    zone.metadata(metadata)
    for number, data in enumerate(files, start=1):
        zone.put(number, data, **options)


def add(rule: str, where: tuple[Any, Any, Any, Any], *files: Any, **options: Any) -> None:
    CASES.append((rule, lambda zone: keyed(zone, *files, **options), where))


# --- the zone and its folders


@case("zone-missing", at(table=None))
def _(zone):
    zone.storage.delete(f"{ZONE}/{PARTNER_EVENTS}")


@case("partner-missing", at(PARTNER_EVENTS, table=None))
def _(zone):
    zone.storage.delete(f"{ZONE}/{PARTNER_EVENTS}")
    zone.put(1)


for text in (
    "",
    "{",
    "[]",
    "{}",
    '{"partnerName": "x"}',
    '{"partnerName": 1, "sourceInfo": {"sourceType": "x"}}',
    '{"partnerName": "x", "sourceInfo": {"sourceType": "y", "sourceVersion": 3}}',
):
    CASES.append(
        (
            "partner-invalid",
            partial(lambda text, zone: zone.write(PARTNER_EVENTS, text), text),
            at(PARTNER_EVENTS, table=None),
        )
    )


def in_folder(place: str, zone: Zone) -> None:
    folder = zone.local / ZONE / place
    folder.mkdir(parents=True)
    zone.put(1)
    (folder / FIRST).write_bytes((zone.local / ZONE / "t" / FIRST).read_bytes())


for place in (
    "a\nb",
    "a\x1b[2Jb",
    ".hidden",
    "a:b",
    "a\\b",
    "x" * 201,
    " ",
    ".schema/t",
    "s.schema/.x",
):
    CASES.append(("folder-name", partial(in_folder, place), at(table=place)))
for place in ("_orders", "s.schema/_orders"):
    CASES.append(("folder-hidden", partial(in_folder, place), at(table=place)))
CASES.append(("folder-clash", partial(in_folder, "t.schema/u"), at()))
CASES.append(("folder-clash", partial(in_folder, "t.schema/t"), at()))
CASES.append(("folder-case", partial(in_folder, "T"), at()))  # T comes first
CASES.append(("folder-case", partial(in_folder, "T.schema/u"), at()))


@case("folder-case", at(table="s.schema"))
def _(zone):
    zone.put(1, table=TableName("s", "t"))
    zone.put(1, table=TableName("S", "u"))


@case("folder-case", at(table="café"))
def _(zone):
    zone.put(1, table=TableName(None, "cafe\u0301"))
    zone.put(1, table=TableName(None, "caf\u00e9"))


@case("folder-empty", _TABLE)
def _(zone):
    (zone.local / ZONE / "t").mkdir()


@case("folder-empty", _TABLE)
def _(zone):
    zone.metadata(KEYED)


@case("folder-nested", at("part.parquet"))
def _(zone):
    zone.put(1)
    zone.put("part.parquet/part-0000.snappy.parquet")


@case("folder-identity", at("_mirrorlake.json"))
def _(zone):
    zone.put(1)
    zone.write("t/_mirrorlake.json", "{}")


@case("folder-taken", _TABLE)
def _(zone):
    zone.put(1)
    zone.delta_log({"id": "long"}, {}, {})


# --- _metadata.json

for text in ("", "{", "[]", "null", '"id"', "\xff", "[" * 100_000):
    CASES.append(
        (
            "metadata-unreadable",
            partial(lambda text, zone: zone.write(f"t/{METADATA}", text.encode("latin-1")), text),
            at(METADATA),
        )
    )
for document in (
    '{"keyColumns": "id"}',
    '{"keyColumns": ["id", "ID"]}',
    '{"keyColumns": [1]}',
    '{"keyColumns": ["id"], "KEYCOLUMNS": ["n"]}',
    '{"keyColumns": ["id"], "keyColumns": ["n"]}',
    '{"isUpsertDefaultRowMarker": 1}',
    '{"fileDetectionStrategy": "ByName"}',
    '{"fileFormat": "Avro"}',
    '{"fileExtension": 1}',
    '{"FileFormatTypeProperties": []}',
    '{"FileFormatTypeProperties": {"FirstRowAsHeader": false}}',
    '{"FirstRowAsHeader": false}',
    '{"FileFormatTypeProperties": {"RowSeparator": "x"}}',
    '{"FileFormatTypeProperties": {"ColumnSeparator": ":"}}',
    '{"FileFormatTypeProperties": {"QuoteCharacter": "`"}}',
    '{"FileFormatTypeProperties": {"EscapeCharacter": "x"}}',
    '{"FileFormatTypeProperties": {"NullValue": 1}}',
    '{"FileFormatTypeProperties": {"Encoding": "klingon"}}',
    '{"SchemaDefinition": {"Columns": {}}}',
    '{"SchemaDefinition": {"Columns": [{"Name": "a"}]}}',
    '{"SchemaDefinition": {"Columns": [{"Name": "a", "DataType": "Int32", "IsNullable": 1}]}}',
):

    def _(document, zone):
        zone.write(f"t/{METADATA}", document)
        zone.put(1)

    CASES.append(("metadata-invalid", partial(_, document), at(METADATA)))


@case("metadata-invalid", at(METADATA, column="a"))
def _(zone):
    zone.metadata({"SchemaDefinition": {"Columns": [{"Name": "a", "DataType": "Blob"}]}})
    zone.put(1)


@case("metadata-unknown", at(METADATA))
def _(zone):
    keyed(zone, None, metadata={"keyColumn": ["id"]})


@case("metadata-unknown", at(METADATA))
def _(zone):
    keyed(zone, None, metadata={"FileFormatTypeProperties": {"Separator": ","}})


for name in ("metadata.json", "_Metadata.json", "_metadata.JSON"):

    @case("metadata-name", at(name))
    def _(zone, name=name):
        zone.put(1)
        zone.write(f"t/{name}", json.dumps(KEYED))


@case("metadata-missing", at(FIRST, 2, MARKER))
def _(zone):
    zone.put(1, {"id": [1, 2], MARKER: [0, 4]})


# --- keys

add("key-undeclared", at(FIRST, 1, MARKER), {"id": [1], MARKER: [2]}, metadata={})
add("key-undeclared", at(FIRST), {"id": [1]}, metadata={"isUpsertDefaultRowMarker": True})
add("key-unknown", at(METADATA, column="nr"), None, None, metadata={"keyColumns": ["id", "nr"]})
add("key-unknown", at(METADATA, column="nr"),
    metadata=TYPED | {"keyColumns": ["nr"]})  # fmt: skip
add("key-missing", at(SECOND, column="id"), None, {"item": ["b"]})
add("key-null", at(FIRST, 12, "id"),
    {"id": pa.array([*range(11), None, None]), MARKER: [4] * 13}, row_group_size=5)  # fmt: skip


@case("key-changed", at(METADATA))
def _(zone):
    keyed(zone, None, metadata={"keyColumns": ["item"]})
    zone.mirrored({"id": "long", "item": "string"}, last=1)


# --- names and numbers


for name in (
    "0000000000000000001.parquet",
    "000000000000000000001.parquet",
    f" {SECOND}",
    f"{SECOND} ",
    "0000000000000000000 2.parquet",
    "data.parquet",
    "part-00000-abc.snappy.parquet",
    "2.csv",
    f"{SECOND}.bak",
    "0000000000000000000٢.parquet",
):

    @case("file-name", at(name))
    def _(zone, name=name):
        zone.put(1)
        zone.put(name)


for name in (f"{SECOND}.tmp", f"{SECOND}.part", "x.PARQUET.TMP", f"{SECOND}~"):

    @case("file-temporary", at(name))
    def _(zone, name=name):
        zone.put(1)
        zone.put(name)


for name in ("00000000000000000001.json", "00000000000000000001.avro.gz"):

    @case("file-ending", at(name))
    def _(zone, name=name):
        zone.put(name)


@case("file-ending", at("a.parquet.tmp"))
def _(zone):
    zone.metadata(BY_TIME)
    zone.put("a.parquet.tmp")


for place in (FIRST, f"s.schema/{FIRST}", METADATA, f"s.schema/{METADATA}", "orders.csv"):

    @case("file-misplaced", at(place, table=None))
    def _(zone, place=place):
        zone.put(1)
        zone.write(place, b"x")


for place in ("notes.txt", "s.schema/notes.txt"):

    @case("file-unexpected", at(place, table=None))
    def _(zone, place=place):
        zone.put(1)
        zone.write(place, b"x")


@case("file-unexpected", at("readme.txt"))
def _(zone):
    zone.put(1)
    zone.write("t/readme.txt", "x")


for name in (f"_{UUID}.parquet", f"_{UUID}", "_01234567-89ab-cdef-0123-456789abcdef", f"_{SECOND}"):

    @case("file-abandoned", at(name))
    def _(zone, name=name):
        zone.put(1)
        zone.write(f"t/{name}", b"x")
        zone.age(name, 1.1)


@case("file-late", at("b.parquet"))
def _(zone):
    zone.metadata(BY_TIME)
    for name, days in (("a.parquet", 1), ("b.parquet", 2), ("c.parquet", 0.5)):
        zone.put(name)
        zone.age(name, days)
    zone.mirrored({"id": "long", "item": "string"}, last=1, names=["a.parquet"])


for number in (0, 2**63, 10**20 - 1):

    @case("number-range", at(file_name(number)))
    def _(zone, number=number):
        zone.put(1)
        zone.put(number)


@case("number-twice", at(FIRST))
def _(zone):
    zone.put(1)
    zone.put(FIRST.removesuffix(".parquet"))


@case("number-gap", at(SECOND))
def _(zone):
    zone.put(1)
    zone.put(3)


@case("number-gap", at(FIRST))
def _(zone):
    zone.put(2)


@case("number-gap", at(THIRD))
def _(zone):
    for number in (1, 2, 4):
        zone.put(number)
    zone.mirrored({"id": "long", "item": "string"}, last=2, keys=())
    zone.move_to_processed(1)


@case("number-reused", at(FIRST))
def _(zone):
    zone.put(1)
    zone.put(2)
    zone.mirrored({"id": "long", "item": "string"}, last=2, keys=())
    zone.move_to_processed(1)
    zone.put(1, {"id": [7], "item": ["late"]})


@case("number-reused", at(SECOND))
def _(zone):
    zone.put(1)
    zone.put(2)
    zone.mirrored({"id": "long", "item": "string"}, last=2, keys=())
    zone.put(2, {"id": [7], "item": ["late"]})


@case("number-lost", at(SECOND))
def _(zone):
    zone.put(1)
    zone.put(2)
    zone.mirrored({"id": "long", "item": "string"}, last=2, keys=())
    zone.move_to_processed(1, 2)


# --- contents


for data in (b"PAR1", b"id,n\n1,2\n", b"PAR1" * 20):

    @case("file-unreadable", at(FIRST))
    def _(zone, data=data):
        zone.write(f"t/{FIRST}", data)


for name in (FIRST, "00000000000000000001.csv"):

    @case("file-zero-bytes", at(name))
    def _(zone, name=name):
        zone.write(f"t/{name}", b"")


add("file-without-rows", at(SECOND), None, {"id": pa.array([], pa.int64()),
    "item": pa.array([], pa.string())})  # fmt: skip
add("file-without-columns", at(FIRST), {MARKER: [0]}, metadata={})


def text_file(data: str | bytes, zone: Zone, **properties: Any) -> None:
    zone.metadata(TYPED)
    zone.write("t/00000000000000000001.csv", data)


CSV = "00000000000000000001.csv"
for data, row in (("id,n\n1,2\n3\n", 2), (b"id,n\n1,2\n2,\xff\n", 2), ("id,n\n1,2,3\n", 1)):
    CASES.append(("text-unreadable", partial(text_file, data), at(CSV, row)))
CASES.append(("text-value", partial(text_file, "id,n\n1,2\n2,x\n"), at(CSV, 2, "n")))
CASES.append(
    ("marker-value", partial(text_file, f"id,n,{MARKER}\n1,2,4\n2,3,x\n"), at(CSV, 2, MARKER))
)
CASES.append(
    ("marker-value", partial(text_file, f"id,n,{MARKER}\n1,2,4\n2,3,9\n"), at(CSV, 2, MARKER))
)
CASES.append(("key-null", partial(text_file, "id,n\n1,2\n,3\n"), at(CSV, 2, "id")))

for values in (pa.array(["4"]), pa.array([4.0]), pa.array([True]), pa.array([None])):
    add("marker-type", at(FIRST, column=MARKER), {"id": [1], MARKER: values})
for value in (3, -1, None):
    add("marker-value", at(FIRST, 7, MARKER),
        {"id": range(9), MARKER: pa.array([4] * 6 + [value] * 3, pa.int16())},
        row_group_size=4)  # fmt: skip
add("marker-not-last", at(FIRST, column=MARKER), {MARKER: [4], "id": [1]}, {MARKER: [2], "id": [1]})
add("column-twice", at(FIRST, column="Item"),
    pa.table([[1], ["a"], ["b"]], names=["id", "item", "Item"]))  # fmt: skip
for name in ("_metadata", "__mirrorlake_x", "_change_type"):
    add("column-reserved", at(FIRST, column=name), {"id": [1], name: [1]})
add("column-missing", at(SECOND, column="item"), None, {"id": [1], "n": [2]}, {"id": [1], "n": [3]})
add("column-untyped", at(FIRST), {"id": pa.nulls(1)}, metadata={})
add("type-unsupported", at(FIRST, column="n"),
    {"id": [1], "n": pa.array([None], pa.decimal256(40, 2))})  # fmt: skip
add("type-changed", at(SECOND, column="n"),
    {"id": [1], "n": [1]}, {"id": [1], "n": ["x"]}, {"id": [1], "n": ["y"]},
    {"id": [1], "n": [3]})  # fmt: skip
add("type-widened", at(SECOND, column="n"),
    {"id": [1], "n": pa.array([1], pa.int32())}, {"id": [1], "n": [1]})  # fmt: skip


@case("type-misfit", at(THIRD, column="item"))
def _(zone):
    keyed(zone, None, None, {"id": [1], "item": [1]})
    zone.mirrored({"id": "long", "item": "string"}, last=2)
    zone.move_to_processed(1)


@case("type-misfit", at(METADATA, column="n"))
def _(zone):
    keyed(zone, {"id": pa.array([1], pa.int32()), "n": ["x"]}, metadata=TYPED)
    zone.mirrored({"id": "integer", "n": "string"}, last=1)


@case("column-missing", at(SECOND, column="item"))
def _(zone):
    keyed(zone, None, {"id": [1]})
    zone.mirrored({"id": "long", "item": "string"}, last=1)


for kind in (
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
    pa.duration("ns"),
    pa.list_(pa.timestamp("ns")),
    pa.map_(pa.string(), pa.struct([("a", pa.timestamp("ns"))])),
):
    add("type-nanoseconds", at(FIRST, column="n"), *[{"id": [1], "n": pa.array([None], kind)}] * 2)


@pytest.mark.parametrize(
    ("rule", "make", "where"), CASES, ids=[f"{i}-{rule}" for i, (rule, _, _) in enumerate(CASES)]
)
def test_each_rule_and_no_other(storage: Storage, rule, make, where):
    make(Zone(storage))
    findings = lint_zone(storage).findings
    assert [found.rule for found in findings] == [rule], findings
    found = findings[0]
    assert (found.table, found.file, found.row, found.column) == where
    assert found.message.endswith(".")
    assert re.match(r"[A-Z][a-z]+ .*[.)]$", found.fix, re.DOTALL), found.fix


def test_every_rule_is_tested():
    assert {rule for rule, _, _ in CASES} == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_page_has_an_entry_a_rule(rule):
    entry = f"### `{rule.id}`: {rule.severity.value}\n\n{rule.what} {rule.why}\n\nFix: {rule.fix}\n"
    assert " ".join(entry.split()) in " ".join(DOCS.read_text(encoding="utf-8").split())


def test_the_page_has_the_rules_in_their_order_and_no_other():
    ids = re.findall(r"^### `(.+)`", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert ids == [rule.id for rule in RULES]


def clean_plain(zone: Zone) -> None:
    zone.metadata(KEYED)
    zone.put(1)
    zone.put(2, {"id": [1, 2], "item": ["b", None], MARKER: [1, 4]})
    zone.put(3, {"id": [1], MARKER: [2]})  # a delete needs its key alone
    zone.put(4, {"id": [3], "item": ["c"], "more": [1.5], MARKER: [0]})
    zone.write(f"t/_{UUID}.parquet", b"half a file")
    zone.write("t/.DS_Store", b"")


def clean_without_keys(zone: Zone) -> None:
    zone.put(1)
    zone.put(2, {"ID": [None], "item": ["a"], MARKER: [0]})


def clean_by_time(zone: Zone) -> None:
    zone.metadata(BY_TIME)
    for days, name in enumerate(("b.parquet", "a", "any name will do.parquet")):
        zone.put(name)
        zone.age(name, 9 - days)
    zone.mirrored({"id": "long", "item": "string"}, last=1, names=["b.parquet"])


def clean_text(zone: Zone) -> None:
    zone.metadata(TYPED)
    zone.write("t/00000000000000000001.csv", f"id,n,{MARKER}\n1,2,4\n2,,1\n")


def clean_declared(zone: Zone) -> None:
    zone.metadata(TYPED)


def clean_upserts_by_default(zone: Zone) -> None:
    zone.metadata(KEYED | {"isUpsertDefaultRowMarker": True})
    zone.put(1)
    zone.put(2, {"id": [1, 2], "item": ["b", "c"], MARKER: pa.array([None, 2], pa.int8())})


def clean_mirrored(zone: Zone) -> None:
    """Applied up to 3; the mirror was killed before it moved 2."""
    clean_plain(zone)
    zone.mirrored({"id": "long", "item": "string"}, last=3)
    zone.move_to_processed(1)


def clean_renamed(zone: Zone) -> None:
    """Renamed since the last cycle: the table is where the folder was."""
    old = TableName(None, "before")
    for number in (1, 2):
        zone.put(number, table=old)
    zone.mirrored({"id": "long", "item": "string"}, last=1, keys=(), table=old)
    (zone.local / old.folder).rename(zone.local / ZONE / "t")


def clean_recreated(zone: Zone) -> None:
    """The table there was made of another folder of that name, with other columns and keys."""
    keyed(zone, None)
    zone.mirrored({"id": "string", "nr": "long"}, last=1, keys=("nr",))
    zone.storage.delete(zone.identity_path())


def clean_keys_added(zone: Zone) -> None:
    keyed(zone, None)
    zone.mirrored({"id": "long", "item": "string"}, last=1, keys=())


def clean_odd_names(zone: Zone) -> None:
    for table in (TableName("a`b.c", "d e"), TableName(None, "Größe;--"), TableName("s", "t")):
        zone.metadata({"keyColumns": ["`'\""]}, table)
        zone.put(1, {"`'\"": [1], "a.b": [2], MARKER: [4]}, table)
    zone.write("_scratchPad/half.parquet", b"x")


CLEAN = [make for name, make in sorted(globals().items()) if name.startswith("clean_")]


@pytest.mark.parametrize("make", CLEAN, ids=lambda make: make.__name__)
def test_nothing_is_found_in_a_clean_zone(storage: Storage, make):
    make(Zone(storage))
    assert lint_zone(storage).findings == ()


def test_an_object_store_is_linted_the_same(any_storage: Storage):
    zone = Zone(any_storage)
    clean_plain(zone)
    assert lint_zone(any_storage).findings == ()
    zone.put(6, {"id": pa.array([1, None]), MARKER: [4, 9]})
    zone.write("t/00000000000000000007.parquet", b"")
    zone.write("t/00000000000000000008.csv", b"id,item\r\n1,a\r\n")
    assert [(f.rule, f.file, f.row) for f in lint_zone(any_storage).findings] == [
        ("number-gap", file_name(5), None),
        ("marker-value", file_name(6), 2),
        ("key-null", file_name(6), 2),
        ("file-zero-bytes", file_name(7), None),
        ("type-changed", "00000000000000000008.csv", None),
        ("column-missing", "00000000000000000008.csv", None),
    ]


def test_a_copied_folder_begins_anew(storage: Storage):
    zone = Zone(storage)
    old = TableName(None, "before")
    zone.put(2, table=old)
    zone.mirrored({"id": "long"}, last=2, keys=(), names=[file_name(2)], table=old)
    storage.write(f"{ZONE}/t/_mirrorlake.json", storage.read(zone.identity_path(old)))
    zone.put(2)
    assert [(f.rule, f.table) for f in lint_zone(storage).findings] == [("number-gap", "t")]


def test_all_that_is_wrong_with_a_file_is_told(storage: Storage):
    zone = Zone(storage)
    zone.metadata({"keyColumns": ["id", "nr"]})
    zone.put(1, {"id": [1], "nr": [1], "n": [1]})
    zone.put(2, {
        MARKER: [4, 3, 9], "id": [None, None, 3], "_metadata": [1, 2, 3], "n": ["a", "b", "c"],
        "d": pa.array([None] * 3, pa.decimal256(50, 1)),
    })  # fmt: skip
    found = {(f.rule, f.row, f.column): f.message for f in lint_zone(storage).findings}
    assert set(found) == {
        ("marker-value", 2, MARKER),
        ("key-null", 1, "id"),
        ("column-reserved", None, "_metadata"),
        ("type-unsupported", None, "d"),
        ("marker-not-last", None, MARKER),
        ("type-changed", None, "n"),
        ("key-missing", None, "nr"),
    }
    assert found["marker-value", 2, MARKER] == "Unknown row marker 3, in 2 rows."
    assert found["key-null", 1, "id"] == "Key column 'id' is NULL, in 2 rows."


def test_every_wrong_field_of_the_metadata_is_told_and_the_others_count(storage: Storage):
    zone = Zone(storage)
    zone.metadata({
        "keyColumns": ["id"], "fileFormat": "Avro", "fileExtension": 7, "keyColumms": ["x"],
    })  # fmt: skip
    zone.put(1, {"id": [None], "n": [1], MARKER: [4]})
    findings = lint_zone(storage).findings
    assert [f.rule for f in findings] == ["metadata-unknown", *["metadata-invalid"] * 2, "key-null"]
    assert findings[0].fix.startswith("Write keyColumns")
    assert [f.message for f in findings[1:3]] == [
        "fileFormat is 'Avro'.", "fileExtension is 7, not a text.",
    ]  # fmt: skip


def test_a_gap_says_since_when_and_how_much_waits(storage: Storage):
    zone = Zone(storage)
    for number, days in ((1, 5), (3, 2), (4, 3), (8, 1)):
        zone.put(number)
        zone.age(file_name(number), days)
    first, second = lint_zone(storage).findings
    oldest = storage.list(f"{ZONE}/t").moment(file_name(4))
    youngest = storage.list(f"{ZONE}/t").moment(file_name(8))
    assert oldest
    assert youngest
    assert first.message == f"Waiting for 2 since {oldest[:19]}Z: 3 files lie behind it."
    assert second.message == f"Waiting for 5 to 7 since {youngest[:19]}Z: 1 file lies behind it."
    assert (first.file, second.file) == (file_name(2), file_name(5))


def test_names_that_are_no_text_and_no_decoration(storage: Storage):
    zone = Zone(storage)
    zone.put(1)
    (zone.local / ZONE / "t" / "\udcff\x1b[31m.bin").write_bytes(b"x")
    (found,) = lint_zone(storage).findings
    assert found.file == "\\udcff\x1b[31m.bin"
    result = CliRunner().invoke(app, ["lint", storage.root])
    assert "\x1b" not in result.stdout
    assert r"\x1b[31m.bin" in result.stdout


def test_one_table(storage: Storage):
    zone = Zone(storage)
    zone.storage.delete(f"{ZONE}/{PARTNER_EVENTS}")
    for table in (TableName("s", "a"), TableName("s", "b"), TableName("s", "A")):
        zone.put(2, table=table)
    lake = Lake(storage.root)
    report = lake.lint("s.a")
    assert [(f.rule, f.table) for f in report.findings] == [
        ("folder-case", "s.a"),
        ("number-gap", "s.a"),
    ]
    assert (report.tables, report.files) == (1, 1)
    with pytest.raises(TableNotFoundError):
        lake.lint("s.c")


def test_many_files_are_told_of_one_by_one_and_in_order(storage: Storage):
    zone = Zone(storage)
    for number in range(1, 131):
        zone.put(number, {"id": [1], MARKER: [4 if number % 50 == 0 else 0]})
    heard = []
    report = lint_zone(storage, on_file=lambda *what: heard.append(what))
    assert heard == [(TableName(None, "t"), done, 130) for done in range(1, 131)]
    assert [f.file for f in report.findings] == [file_name(50), file_name(100)]
    assert report.files == 130


def everything_below(root: Path) -> dict[str, Any]:
    return {
        str(path): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in sorted(root.rglob("*"))
    }


def test_a_run_changes_nothing_and_starts_no_spark(storage: Storage):
    zone = Zone(storage)
    clean_mirrored(zone)
    text_file("id,n\n1,x\n", zone)
    zone.put(9, {"id": [None], MARKER: ["x"]}, TableName("s", "u"))
    before = everything_below(zone.local)
    code = (
        "import sys; from mirrorlake import Lake; found = Lake(sys.argv[1]).lint().findings; "
        "print(len(found), sorted({'pyspark', 'py4j'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, storage.root], capture_output=True, text=True, check=True
    )
    count, modules = done.stdout.split(maxsplit=1)
    assert int(count) == len(lint_zone(storage).findings) > 3
    assert modules.strip() == "[]"
    assert everything_below(zone.local) == before


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["lint", *arguments])
    return result.exit_code, result.stdout


def test_the_command(storage: Storage):
    zone = Zone(storage)
    zone.put(1)
    assert run(storage.root) == (0, "0 errors and 0 warnings in 1 table, 1 file read\n")
    assert run(storage.root, "--json") == (0, '{\n  "findings": []\n}\n')
    zone.put(2, {"id": [1]})
    status, text = run(storage.root)
    assert status == 0  # a warning is no reason to stop
    assert text.startswith("warning column-missing t: Column 'item' is missing")
    assert "0 errors and 1 warning in 1 table, 2 files read" in text
    zone.put(3, {"id": [1, 2], "item": ["a", "b"], MARKER: [0, 3]})
    status, text = run(storage.root, "--json", "--table", "t")
    assert status == 1
    warning, error = json.loads(text)["findings"]
    assert warning["rule"] == "column-missing"
    assert error == {
        "rule": "marker-value",
        "severity": "error",
        "table": "t",
        "file": THIRD,
        "row": 2,
        "column": MARKER,
        "message": "Unknown row marker 3.",
        "fix": "Write 0 for an insert, 1 for an update, 2 for a delete, 4 for an upsert.",
    }
    assert f"[file {THIRD}, row 2, column {MARKER}] Fix: Write 0 for" in run(storage.root)[1]


def test_a_report_shows_the_same_facts_everywhere(storage: Storage):
    Zone(storage).put(2)
    report = Lake(storage.root).lint()
    assert repr(report) == "1 error and 0 warnings in 1 table, 1 file read"
    assert report.errors == report.findings
    assert report.warnings == ()
    assert "number-gap" in report._repr_html_()
    assert report.errors[0].fix in report._repr_html_()
    assert report.shown().rows[0][:4] == ("error", "number-gap", "t", FIRST)


ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, None]), st.sampled_from([0, 1, 2, 4, 0, 4, 3, None])),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(
    files=st.lists(st.tuples(ROWS, st.integers(1, 5)), min_size=1, max_size=6),
    keys=st.booleans(),
    upsert=st.booleans(),
)
def test_rows_as_a_plain_loop_finds_them(tmp_path_factory, files, keys, upsert):
    storage = Storage(tmp_path_factory.mktemp("lake"))
    zone = Zone(storage)
    document = {"isUpsertDefaultRowMarker": upsert} | (KEYED if keys else {})
    zone.metadata(document)
    expected = set()
    for number, (rows, group) in enumerate(files, start=1):
        ids, markers = [row[0] for row in rows], [row[1] for row in rows]
        data = {"id": pa.array(ids, pa.int64()), MARKER: pa.array(markers, pa.int32())}
        zone.put(number, data, row_group_size=group)
        allowed = {0, 1, 2, 4} | ({None} if upsert else set())
        unknown = [i for i, marker in enumerate(markers, start=1) if marker not in allowed]
        needing = [i for i, m in enumerate(markers, start=1) if m in allowed - {0}]
        nulls = [i for i, key in enumerate(ids, start=1) if key is None]
        if unknown:
            expected.add((number, "marker-value", unknown[0]))
        if needing and not keys:
            expected.add((number, "key-undeclared", needing[0]))
        if nulls and keys:
            expected.add((number, "key-null", nulls[0]))
    report = lint_zone(storage)
    assert {(int(f.file[:20]), f.rule, f.row) for f in report.errors if f.file} == expected
    # The mirror's own check refuses the very same files.
    metadata = TableMetadata.parse(json.dumps(document).encode())
    for number in range(1, len(files) + 1):
        path = f"{ZONE}/t/{file_name(number)}"
        if number in {number for number, _, _ in expected}:
            with pytest.raises(MirrorlakeError):
                inspect_file(storage, path, metadata)
        else:
            inspect_file(storage, path, metadata)
