"""Zones that break one rule of the linter on folders, metadata, keys and names of files."""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa

from helpers.lint_case import BY_TIME, FIRST, SECOND, THIRD, TYPED, UUID, Cases, at, keyed
from helpers.places import METADATA, PARTNER_EVENTS, ZONE
from helpers.zones import KEYED, MARKER, Zone
from mirrorlake.mirror import next_batch, options
from mirrorlake.names import TableName, file_name

CASES = Cases()
case, add = CASES.case, CASES.add

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
for place, table in (
    ("CON", "CON"),
    ("nul.x", "`nul.x`"),
    ("a?b", "a?b"),
    ('"q"', '"q"'),
    ("tail.", "`tail.`"),
    ("tail ", "tail "),
    ("Com1.schema/t", "Com1.t"),
):
    CASES.append(("folder-windows", partial(in_folder, place), at(table=table)))
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


@case("folder-empty", at())
def _(zone):
    (zone.local / ZONE / "t").mkdir()


@case("folder-empty", at())
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


@case("folder-taken", at())
def _(zone):
    zone.put(1)
    zone.delta_log({"id": "long"}, {}, {})


@case("folder-unreadable", at())
def _(zone):
    zone.put(1)
    zone.storage.write(f"Tables/t/_delta_log/{0:020d}.json", b'{"metaData":')


@case("folder-unreadable", at())
def _(zone):
    zone.put(1)
    (zone.local / ZONE / "t" / "loop").symlink_to("loop")


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
    '{"isPartitionEnabled": 1}',
    '{"ISPARTITIONENABLED": true}',
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
        zone.put(name, {"id": [1], "item": ["a"], MARKER: [4]})
        zone.age(name, days)
    zone.mirrored({"id": "long", "item": "string"}, last=1, names=["a.parquet"])


@case("file-skipped", at(SECOND))
def _(zone):
    zone.put(1)
    zone.put(2, {"id": [None], MARKER: [9]})
    zone.put(4)
    for number in (2, 3):
        options.skip(zone.storage, TableName(None, "t"), number, apply=True)


@case("file-skipped", at("b.csv"))
def _(zone):
    zone.metadata(BY_TIME)
    zone.put("a.parquet", {"id": [1], "item": ["a"], MARKER: [4]})
    zone.write("t/b.csv", "corrupt")
    table = TableName(None, "t")
    waiting = next_batch.waiting_by_time(zone.storage, table)
    options.skip(zone.storage, table, "b.csv", apply=True, waiting=waiting)


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
