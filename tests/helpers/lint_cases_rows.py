"""Zones that break one rule of the linter on the contents of files."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from helpers.lint_case import CSV, FIRST, SECOND, THIRD, TYPED, Cases, at, keyed, text_file
from helpers.places import METADATA
from helpers.zones import MARKER

CASES = Cases()
case, add = CASES.case, CASES.add

for data in (b"PAR1", b"id,n\n1,2\n", b"PAR1" * 20):

    @case("file-unreadable", at(FIRST))
    def _(zone, data=data):
        zone.write(f"t/{FIRST}", data)


for name in (FIRST, "00000000000000000001.csv"):

    @case("file-zero-bytes", at(name))
    def _(zone, name=name):
        zone.write(f"t/{name}", b"")


add("file-codec", at(FIRST, column="id"), None, compression="brotli")
add("file-without-rows", at(SECOND), None, {"id": pa.array([], pa.int64()),
    "item": pa.array([], pa.string())})  # fmt: skip
add("file-without-columns", at(FIRST), {MARKER: [0]}, metadata={})


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

add("key-repeated", at(SECOND), None, None, {"id": [0, 1], "item": ["a", "b"]})
add("key-repeated", at(SECOND), None, {"id": [2, 1, 3], "item": ["a", "b", "c"]})
add("key-repeated", at(THIRD), {"id": [1], "nr": [1]}, {"id": [1], "nr": [2]},
    {"id": [1], "nr": [1]}, metadata={"keyColumns": ["id", "nr"]})  # fmt: skip

add("key-twice-in-file", at(FIRST, 2), {"id": [1, 2, 2], "item": ["a", "b", "c"]})
add("key-twice-in-file", at(FIRST, 1), {"id": [1, 1, 1], "nr": [1, 2, 1]},
    metadata={"keyColumns": ["id", "nr"]})  # fmt: skip


@case("key-repeated", at(SECOND))
def _(zone):
    keyed(zone, None, {"id": [2], "item": ["a"]})
    zone.mirrored({"id": "long", "item": "string"}, last=1)


for values in (pa.array(["4"]), pa.array([4.0]), pa.array([True]), pa.array([None])):
    add("marker-type", at(FIRST, column=MARKER), {"id": [1], MARKER: values})
for value in (3, -1, None):
    add("marker-value", at(FIRST, 7, MARKER),
        {"id": range(9), MARKER: pa.array([4] * 6 + [value] * 3, pa.int16())},
        row_group_size=4)  # fmt: skip
add("marker-not-last", at(FIRST, column=MARKER), {MARKER: [4], "id": [1]}, {MARKER: [2], "id": [1]})
add("column-twice", at(FIRST, column="Item"),
    pa.table([[1], ["a"], ["b"]], names=["id", "item", "Item"]))  # fmt: skip
add("column-twice", at(FIRST, column="id"),
    pa.table([[1], pa.array([None], pa.int64())], names=["id", "id"]))  # fmt: skip
for name in ("_Metadata", "__mirrorlake_x", "_change_type", "_commit_version", "_COMMIT_TIMESTAMP"):
    add("column-reserved", at(FIRST, column=name), {"id": [1], name: [1]})
add("column-missing", at(SECOND, column="item"), None, {"id": [2], "n": [2]}, {"id": [3], "n": [3]})
add("column-untyped", at(FIRST), {"id": pa.nulls(1)}, metadata={})
add("type-unsupported", at(FIRST, column="n"),
    {"id": [1], "n": pa.array([None], pa.decimal256(40, 2))})  # fmt: skip
add("type-changed", at(SECOND, column="n"),
    {"id": [1], "n": [1]}, {"id": [2], "n": ["x"]}, {"id": [3], "n": ["y"]},
    {"id": [4], "n": [3]})  # fmt: skip
add("type-widened", at(SECOND, column="n"),
    {"id": [1], "n": pa.array([1], pa.int32())}, {"id": [2], "n": [1]}, {"id": [3], "n": [2]},
    {"id": [4], "n": pa.array([3], pa.int32())})  # fmt: skip


@case("type-misfit", at(THIRD, column="item"))
def _(zone):
    keyed(zone, None, None, {"id": [1], "item": [1], MARKER: [4]})
    zone.mirrored({"id": "long", "item": "string"}, last=2)
    zone.move_to_processed(1)


@case("type-misfit", at(METADATA, column="n"))
def _(zone):
    keyed(zone, {"id": pa.array([1], pa.int32()), "n": ["x"]}, metadata=TYPED)
    zone.mirrored({"id": "integer", "n": "string"}, last=1)


@case("column-missing", at(SECOND, column="item"))
def _(zone):
    keyed(zone, None, {"id": [1], MARKER: [4]})
    zone.mirrored({"id": "long", "item": "string"}, last=1)


for kind in (
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
    pa.duration("ns"),
    pa.list_(pa.timestamp("ns")),
    pa.map_(pa.string(), pa.struct([("a", pa.timestamp("ns"))])),
):
    add("type-nanoseconds", at(FIRST, column="n"),
        *({"id": [number], "n": pa.array([None], kind)} for number in (1, 2)))  # fmt: skip
