from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.errors import SchemaError
from mirrorlake.landing.types import column_type, fits

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
]
NESTED = [
    (pa.list_(pa.int8()), "array<byte>"),
    (pa.large_list(pa.string()), "array<string>"),
    (pa.list_(pa.float32(), 3), "array<float>"),
    (pa.list_view(pa.date32()), "array<date>"),
    (pa.list_(pa.list_(pa.decimal128(5, 2))), "array<array<decimal(5,2)>>"),
    (pa.struct([("a", pa.int64()), ("b`c", pa.bool_())]), "struct<`a`:long,`b``c`:boolean>"),
    (pa.map_(pa.string(), pa.list_(pa.int32())), "map<string,array<integer>>"),
    (pa.list_(pa.timestamp("ns")), "array<long>"),
    (pa.struct([("t", pa.timestamp("us", "UTC"))]), "struct<`t`:timestamp>"),
]
REFUSED = [
    pa.float16(),
    pa.time32("s"),
    pa.time64("us"),
    pa.month_day_nano_interval(),
    pa.decimal256(39, 0),
    pa.decimal128(5, -2),
    pa.decimal128(3, 5),
    pa.uuid(),
    pa.bool8(),
    pa.struct([]),
    pa.list_(pa.struct([])),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.sparse_union([pa.field("a", pa.int8())]),
    pa.list_(pa.dense_union([pa.field("a", pa.int8())])),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.list_(pa.time32("s")),
    pa.struct([("a", pa.time64("ns"))]),
    pa.dictionary(pa.int8(), pa.time32("s")),
]


@pytest.mark.parametrize(("arrow", "table"), SIMPLE, ids=str)
def test_simple_types_map_one_to_one(arrow, table):
    found = column_type(arrow)
    assert (found.read, found.table, found.convert) == (table, table, "{}")


@pytest.mark.parametrize(("arrow", "read"), NESTED, ids=str)
def test_nested_types_become_json_text(arrow, read):
    found = column_type(arrow)
    assert (found.read, found.table, found.convert) == (read, "string", "to_json({})")


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: pa.dictionary(pa.int8(), t)])
def test_nanoseconds_are_read_as_numbers(zone, wrap):
    found = column_type(wrap(pa.timestamp("ns", zone)))
    assert found.read == "long"
    assert found.table == ("timestamp_ntz" if zone is None else "timestamp")
    assert f"AS {found.table})" in found.convert.format("`t`")


@pytest.mark.parametrize("arrow", REFUSED, ids=str)
def test_types_without_a_counterpart_are_refused(arrow):
    with pytest.raises(SchemaError, match="has no counterpart") as caught:
        column_type(arrow)
    assert caught.value.hint


def test_no_type_is_left_out():
    """Every type id of Arrow is in one of the lists, so that a new one is thought about."""
    listed = [t for t, _ in SIMPLE + NESTED] + REFUSED
    ids = {t.id for t in listed}
    known = {
        value
        for name, value in vars(pa.lib).items()
        if name.startswith("Type_") and name not in ("Type_MAX_ID",)
    }
    # Intervals of months and days exist in Arrow's C++ only.
    assert known - ids <= {pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME} | {
        pa.lib.Type_LARGE_LIST_VIEW, pa.lib.Type_FIXED_SIZE_LIST,
    }  # fmt: skip


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
    assert fits(found, table) is expected


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
    assert fits(f"decimal({p},{s})", f"decimal({wide_p},{wide_s})") is holds
