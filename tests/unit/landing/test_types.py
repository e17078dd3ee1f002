from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.parquet_by_hand import Leaf, byte, logical, write_parquet
from mirrorlake.errors import SchemaError
from mirrorlake.landing import casts, check, type_rules, types
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.storage.files import Storage

DOCS = Path(__file__).parents[3] / "docs" / "types.md"

SIMPLE = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "byte"),
    (pa.int16(), "short"),
    (pa.int32(), "integer"),
    (pa.int64(), "long"),
    (pa.uint8(), "short"),
    (pa.uint16(), "integer"),
    (pa.uint32(), "long"),
    (pa.uint64(), "decimal(20,0)"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.json_(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.binary_view(), "binary"),
    (pa.binary(16), "binary"),
    (pa.decimal32(9, 2), "decimal(9,2)"),
    (pa.decimal64(18, 2), "decimal(18,2)"),
    (pa.decimal128(38, 38), "decimal(38,38)"),
    (pa.decimal256(38, 0), "decimal(38,0)"),
    (pa.timestamp("s"), "timestamp_ntz"),
    (pa.timestamp("ms", "UTC"), "timestamp"),
    (pa.timestamp("us", "Europe/Vienna"), "timestamp"),
    (pa.duration("us"), "long"),
    (pa.null(), "void"),
    (pa.dictionary(pa.int8(), pa.string()), "string"),
    (pa.dictionary(pa.int32(), pa.int16()), "short"),
    (pa.run_end_encoded(pa.int32(), pa.int64()), "long"),
    (pa.opaque(pa.binary(), "point", "somebody"), "binary"),
    (type_rules.Stored("ENUM", pa.binary()), "string"),
    (type_rules.Stored("BSON", pa.binary()), "binary"),
    (type_rules.Stored("GEOMETRY", pa.binary()), "binary"),
    (type_rules.Stored("GEOGRAPHY", pa.binary()), "binary"),
    (type_rules.Stored("INT96", pa.timestamp("ns")), "timestamp"),
]
CONVERTED = [
    (pa.float16(), "binary", "float"),
    (pa.time32("s"), "integer", "string"),
    (pa.time32("ms"), "integer", "string"),
    (pa.time64("us"), "long", "string"),
    (pa.time64("ns"), "long", "string"),
    (pa.timestamp("ns"), "long", "timestamp_ntz"),
    (pa.timestamp("ns", "UTC"), "long", "timestamp"),
    (pa.dictionary(pa.int8(), pa.timestamp("ns")), "long", "timestamp_ntz"),
    (pa.duration("s"), "long", "long"),
    (pa.duration("ms"), "long", "long"),
    (pa.duration("ns"), "long", "long"),
    (pa.uuid(), "binary", "string"),
    (pa.bool8(), "byte", "boolean"),
    (type_rules.Stored("INTERVAL", pa.binary(12)), "binary", "string"),
    (type_rules.Stored("BYTE_ARRAY DECIMAL", pa.decimal128(8, 2)), "decimal(38,2)", "decimal(8,2)"),
]
VARIANT = pa.struct([pa.field("metadata", pa.binary(), nullable=False), ("value", pa.binary())])
NESTED = [
    (pa.list_(pa.int8()), "array<byte>"),
    (pa.large_list(pa.string()), "array<string>"),
    (pa.list_(pa.float32(), 3), "array<float>"),
    (pa.list_view(pa.date32()), "array<date>"),
    (pa.large_list_view(pa.bool_()), "array<boolean>"),
    (pa.list_(pa.list_(pa.decimal128(5, 2))), "array<array<decimal(5,2)>>"),
    (pa.struct([("a", pa.int64()), ("b`c", pa.bool_())]), "struct<`a`:long,`b``c`:boolean>"),
    (pa.map_(pa.string(), pa.list_(pa.int32())), "map<string,array<integer>>"),
    (pa.list_(pa.timestamp("ns")), "array<long>"),
    (pa.struct([("t", pa.timestamp("us", "UTC"))]), "struct<`t`:timestamp>"),
    (pa.list_(pa.time32("s")), "array<integer>"),
    (pa.struct([("{0}", pa.time64("ns"))]), "struct<`{0}`:long>"),
    (pa.map_(pa.date32(), pa.uuid()), "map<date,binary>"),
    (pa.fixed_shape_tensor(pa.int32(), [2]), "array<integer>"),
    (pa.list_(pa.null()), "array<void>"),
    (VARIANT, "variant"),
    (pa.struct([*VARIANT, ("typed_value", pa.int64())]), "variant"),
    (pa.list_(VARIANT), "array<variant>"),
]
REFUSED = [
    pa.month_day_nano_interval(),
    pa.decimal256(39, 0),
    pa.decimal128(5, -2),
    pa.decimal128(3, 5),
    type_rules.Stored("BYTE_ARRAY DECIMAL", pa.decimal256(40, 2)),
    pa.struct([]),
    pa.list_(pa.struct([])),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.sparse_union([pa.field("a", pa.int8())]),
    pa.list_(pa.dense_union([pa.field("a", pa.int8())])),
    pa.list_(pa.run_end_encoded(pa.int32(), pa.int64())),
    pa.struct([("a", pa.month_day_nano_interval())]),
    pa.dictionary(pa.int8(), pa.decimal256(39, 0)),
]


@pytest.mark.parametrize(("arrow", "table"), SIMPLE, ids=str)
def test_simple_types_map_one_to_one(arrow, table):
    found = types.column_type(arrow)
    assert (found.table, found.read, found.convert) == (table, table, "{0}")


@pytest.mark.parametrize(("arrow", "read", "table"), CONVERTED, ids=str)
def test_other_simple_types_are_read_as_what_spark_takes(arrow, read, table):
    found = types.column_type(arrow)
    assert (found.read, found.table) == (read, table)
    assert "`t`" in found.convert.format("`t`")


@pytest.mark.parametrize(("arrow", "read"), NESTED, ids=str)
def test_nested_types_become_json_text(arrow, read):
    found = types.column_type(arrow)
    assert (found.read, found.table) == (read, "string")
    assert found.convert.format("`t`").startswith("to_json(")
    assert "{{" not in found.convert.format("`t`")


@pytest.mark.parametrize("arrow", REFUSED, ids=str)
def test_types_without_a_counterpart_are_refused(arrow):
    with pytest.raises(SchemaError, match="has no counterpart") as caught:
        types.column_type(arrow)
    assert caught.value.hint


def test_members_that_differ_by_case_are_refused():
    with pytest.raises(SchemaError, match="'A' twice"):
        types.column_type(pa.struct([("a", pa.int8()), ("A", pa.int8())]))


def test_no_type_is_left_out():
    """Each type id of Arrow must be in one of the lists, so that new ones are noticed."""
    listed = [t for t, *_ in SIMPLE + CONVERTED + NESTED] + REFUSED
    known = {value for name, value in vars(pa.lib).items() if name.startswith("Type_")}
    known.discard(getattr(pa.lib, "Type_MAX_ID", None))
    # Intervals of months and days exist in Arrow's C++ only.
    missing = {pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME}
    assert known - {t.id for t in listed} <= missing


def test_every_row_of_the_table_is_tried():
    """Each row but the last applies to one of the types above: no row hides another."""
    listed = [t for t, *_ in SIMPLE + CONVERTED + NESTED] + REFUSED
    decides = {next(rule for rule in type_rules.RULES if rule.matches(t)) for t in listed}
    assert [rule.arrow or rule.parquet for rule in type_rules.RULES if rule not in decides] == [
        "anything else"
    ]


def test_the_page_shows_the_rows_that_decide():
    lines = ["| Parquet | Arrow | in the table | remarks |", "|---|---|---|---|"]
    for rule in type_rules.RULES[:-1]:
        table = "refused" if rule.table is None else f"`{rule.table}`"
        if rule.unwrap:
            table = rule.note
        table = re.sub(r"\{0\.(storage_type\.)?(\w)\w+\}", r"\2", table)
        note = "" if rule.unwrap and rule.note == table else rule.note
        lines.append(f"| {rule.parquet} | {rule.arrow} | {table} | {note} |")
    expected = "\n".join(lines)
    assert expected in DOCS.read_text(encoding="utf-8"), expected


BAD_LEAVES = {
    "decimal of 40 digits, FIXED": Leaf(
        "a b", "FIXED", [bytes(17)], length=17, converted=5, precision=40, scale=2
    ),
    "decimal of 40 digits, BYTE_ARRAY": Leaf(
        "a b", "BYTE_ARRAY", [bytes(17)], converted=5, precision=40, scale=2
    ),
}


@pytest.mark.parametrize("leaf", BAD_LEAVES.values(), ids=BAD_LEAVES)
def test_a_refused_type_is_named_with_file_and_column(tmp_path, leaf):
    write_parquet(tmp_path / "7.parquet", [Leaf("id", "INT32", [1]), leaf])
    with pytest.raises(SchemaError, match=r"The type decimal256\(40, 2\) has no") as caught:
        check.inspect_file(Storage(str(tmp_path)), "7.parquet", TableMetadata())
    assert (caught.value.file, caught.value.column) == ("7.parquet", "a b")


WRITABLE = [pa.decimal256(39, 0), pa.list_(pa.decimal256(76, 3))]


@pytest.mark.parametrize("arrow", WRITABLE, ids=str)
def test_a_refused_type_that_arrow_writes_is_named_too(tmp_path, arrow):
    pq.write_table(pa.table({"v": pa.array([None], arrow)}), tmp_path / "7.parquet")
    with pytest.raises(SchemaError, match="no counterpart") as caught:
        check.inspect_file(Storage(str(tmp_path)), "7.parquet", TableMetadata())
    assert (caught.value.file, caught.value.column) == ("7.parquet", "v")


@pytest.mark.parametrize(
    "arrow",
    [
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.decimal128(5, -2),
        pa.decimal128(3, 5),
        pa.list_(pa.run_end_encoded(pa.int32(), pa.int64())),
    ],
    ids=str,
)
def test_the_other_refused_types_no_file_can_hold(tmp_path, arrow):
    schema = pa.schema([("v", arrow)])
    with pytest.raises((pa.ArrowException, OSError)):
        pq.ParquetWriter(tmp_path / "x.parquet", schema).write_table(schema.empty_table())


@pytest.mark.parametrize(
    ("leaf", "table"),
    [
        (Leaf("v", "INT96", [None]), "timestamp"),
        (Leaf("v", "BYTE_ARRAY", [b"A"], converted=4), "string"),
        (Leaf("v", "BYTE_ARRAY", [b"A"], logical=logical(4)), "string"),
        (Leaf("v", "BYTE_ARRAY", [b"A"], converted=20), "binary"),
        (Leaf("v", "BYTE_ARRAY", [b"A"], logical=logical(17)), "binary"),
        (Leaf("v", "FIXED", [bytes(12)], length=12, converted=21), "string"),
        (Leaf("v", "FIXED", [bytes(12)], length=12), "binary"),
        (Leaf("v", "FIXED", [bytes(16)], length=16, logical=logical(14)), "string"),
        (Leaf("v", "INT32", [1], logical=logical(10, {1: byte(8), 2: (2, b"")})), "short"),
        (Leaf("v", "INT96", [None], logical=logical(11)), "void"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_only_the_parquet_schema_tells(tmp_path, leaf, table):
    write_parquet(tmp_path / "x.parquet", [leaf])
    with pq.ParquetFile(tmp_path / "x.parquet") as parquet:
        assert types.column_type(types.published_schema(parquet).field(0).type).table == table


def test_run_end_encoded_values_are_written_out():
    values = pa.compute.run_end_encode(pa.array(["a", "a", None, "b"]))
    batch = pa.record_batch({"v": values})
    schema = casts.wanted_schema(batch.schema)
    assert schema.field("v").type == pa.string()
    assert casts.cast_batch(batch, schema, 0).column("v").to_pylist() == ["a", "a", None, "b"]


def test_leaves_below_nested_columns_are_told_apart(tmp_path):
    """The leaves of one column do not shift those of the next."""
    moment = pa.timestamp("us")
    schema = pa.schema(
        [
            ("a", pa.struct([("n", pa.int64()), ("t", moment)])),
            ("b", pa.map_(pa.string(), pa.list_(moment))),
            ("c", pa.dictionary(pa.int32(), pa.string())),
            ("d", pa.fixed_shape_tensor(pa.int32(), [2])),
            ("e", moment),
            ("f", pa.int64()),
        ]
    )
    with pq.ParquetWriter(
        tmp_path / "x.parquet", schema, use_deprecated_int96_timestamps=True
    ) as writer:
        writer.write_table(schema.empty_table())
    with pq.ParquetFile(tmp_path / "x.parquet") as parquet:
        reads = [types.column_type(field.type).read for field in types.published_schema(parquet)]
    assert reads == [
        "struct<`n`:long,`t`:timestamp>",
        "map<string,array<timestamp>>",
        "string",
        "array<integer>",
        "timestamp",
        "long",
    ]


@pytest.mark.parametrize(
    ("found", "table", "expected"),
    [
        ("long", "long", True),
        ("void", "string", True),
        ("string", "void", False),
        ("byte", "long", True),
        ("short", "integer", True),
        ("integer", "long", True),
        ("long", "integer", False),
        ("integer", "short", False),
        ("float", "double", True),
        ("double", "float", False),
        ("integer", "double", False),
        ("long", "string", False),
        ("string", "long", False),
        ("boolean", "byte", False),
        ("date", "timestamp", False),
        ("timestamp", "timestamp_ntz", False),
        ("timestamp_ntz", "timestamp", False),
        ("decimal(10,2)", "decimal(10,2)", True),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(12,4)", True),
        ("decimal(10,2)", "decimal(10,4)", False),
        ("decimal(10,2)", "decimal(11,4)", False),
        ("decimal(10,2)", "decimal(38,1)", False),
        ("decimal(20,0)", "long", False),
        ("long", "decimal(20,0)", False),
    ],
)
def test_fits(found, table, expected):
    assert types.fits(found, table) is expected


decimals = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))


@given(decimals, decimals)
def test_a_decimal_fits_when_its_largest_and_its_finest_value_do(found, table):
    (p, s), (wide_p, wide_s) = found, table
    largest, finest = 10**p - 1, 1  # in units of 10**-s
    whole = 10**38
    holds = all(
        unit * whole // 10**s * 10**wide_s % whole == 0
        and unit * 10**wide_s // 10**s <= 10**wide_p - 1
        for unit in (largest, finest)
    )
    assert types.fits(f"decimal({p},{s})", f"decimal({wide_p},{wide_s})") is holds


@pytest.mark.parametrize(
    ("table", "found", "expected"),
    [
        ("long", "integer", "long"),
        ("integer", "long", "long"),
        ("byte", "integer", "integer"),
        ("byte", "short", "short"),
        ("short", "void", "short"),
        ("integer", "double", "double"),
        ("short", "float", "double"),
        ("double", "integer", "double"),
        ("double", "long", None),
        ("long", "double", None),
        ("float", "double", "double"),
        ("float", "short", "float"),
        ("float", "integer", "double"),
        ("float", "long", None),
        ("long", "decimal(20,0)", "decimal(20,0)"),
        ("long", "decimal(5,2)", "decimal(22,2)"),
        ("byte", "decimal(3,0)", "decimal(10,0)"),
        ("integer", "decimal(12,4)", "decimal(14,4)"),
        ("decimal(10,2)", "decimal(12,2)", "decimal(12,2)"),
        ("decimal(10,2)", "decimal(11,4)", "decimal(12,4)"),
        ("decimal(10,2)", "decimal(20,0)", "decimal(22,2)"),
        ("decimal(10,2)", "integer", "decimal(12,2)"),
        ("decimal(10,2)", "byte", "decimal(10,2)"),
        ("decimal(38,0)", "decimal(38,1)", None),
        ("decimal(38,30)", "long", None),
        ("decimal(10,2)", "double", None),
        ("double", "decimal(5,2)", None),
        ("date", "timestamp_ntz", "timestamp_ntz"),
        ("timestamp_ntz", "date", "timestamp_ntz"),
        ("date", "timestamp", None),
        ("timestamp", "timestamp_ntz", None),
        ("integer", "string", None),
        ("string", "integer", None),
        ("boolean", "byte", None),
        ("binary", "string", None),
    ],
)
def test_widened(table, found, expected):
    assert types.widened(table, found) == expected


NUMBERS = st.sampled_from(["byte", "short", "integer", "long", "float", "double"]) | decimals.map(
    lambda d: "decimal({},{})".format(*d)
)


@given(NUMBERS, NUMBERS)
def test_what_widens_holds_both_and_stays(table, found):
    wide = types.widened(table, found)
    if types.fits(found, table):
        assert wide == table
    if wide is not None:
        assert types.widened(wide, table) == wide
        assert types.widened(wide, found) == wide
