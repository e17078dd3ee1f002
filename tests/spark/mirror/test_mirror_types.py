"""Values of every type, written by Arrow, DuckDB and by hand, mirrored and compared."""

from __future__ import annotations

import math
import random
import struct
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal as D
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.parquet_by_hand import Leaf, boolean, byte, clock, logical, write_parquet
from mirrorlake import Lake
from mirrorlake.landing import types
from mirrorlake.names import file_name, quote

UTC = timezone.utc
NAN, INF = math.nan, math.inf
OLD, GAP, NEW = date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31)
NOON = datetime(2026, 2, 1, 12, 0, 0, 123456)
ANCIENT, FAR = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)
IDS = [UUID(int=0), UUID(int=2**128 - 1), UUID("00112233-4455-6677-8899-aabbccddeeff")]
NANOS = [-1, 1_000, 2**63 - 1]
CUT = ["1969-12-31 23:59:59.999999", "1970-01-01 00:00:00.000001", "2262-04-11 23:47:16.854775"]
MOMENTS = ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2026-02-01 12:00:00.123456"]
TEXTS = ["", "日本 ü", "\"'\\`{0}\n"]
BLOBS = [b"", b"\x00\xff", b"abc"]


def zoned(*moments: datetime) -> list[datetime]:
    return [moment.replace(tzinfo=UTC) for moment in moments]


def storage(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array([*values, None], kind.storage_type))


def pack(kind: str, *numbers: float) -> bytes:
    return struct.pack(kind, *numbers)


# Arrow's types, with three values each and the expected values in the table (None: the same).
# The fourth row is always NULL.
MEMBERS = pa.struct(
    [
        ("d", pa.decimal128(38, 10)),
        ("f", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
        ("p", pa.timestamp("us")),
        ("b", pa.binary()),
        ("day", pa.date32()),
        ("n", pa.int64()),
        ("l", pa.list_(pa.int8())),
    ]
)
ODD = pa.struct([("{0}", pa.time64("us")), ("a.b`'\\\"", pa.timestamp("ns")), ("c", pa.int8())])
ARROW: dict[str, tuple[Any, list[Any], list[Any] | None]] = {
    "bool": (pa.bool_(), [True, False, True], None),
    "int8": (pa.int8(), [-128, 127, 0], None),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1, 0], None),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1, 0], None),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0], None),
    "uint8": (pa.uint8(), [0, 255, 1], None),
    "uint16": (pa.uint16(), [0, 2**16 - 1, 1], None),
    "uint32": (pa.uint32(), [0, 2**32 - 1, 1], None),
    "uint64": (pa.uint64(), [0, 2**64 - 1, 1], [D(0), D(2**64 - 1), D(1)]),
    "float16": (pa.float16(), [NAN, INF, 1.5], None),
    "float32": (pa.float32(), [NAN, -INF, -0.0], None),
    "float64": (pa.float64(), [INF, 5e-324, -1.7976931348623157e308], None),
    "decimal32(9, 2)": (pa.decimal32(9, 2), [D("-9999999.99"), D("9999999.99"), D("0.01")], None),
    "decimal64(18, 0)": (pa.decimal64(18, 0), [D(1 - 10**18), D(10**18 - 1), D(0)], None),
    "decimal128(38, 10)": (
        pa.decimal128(38, 10),
        [D("-9999999999999999999999999999.9999999999"), D("1E-10"), D("1.5000000000")],
        None,
    ),
    "decimal256(38, 38)": (pa.decimal256(38, 38), [D("0." + "9" * 38), D("-1E-38"), D(0)], None),
    "decimal256(5, 2)": (pa.decimal256(5, 2), [D("-999.99"), D("999.99"), D("0.00")], None),
    "date32": (pa.date32(), [OLD, GAP, NEW], None),
    "date64": (pa.date64(), [OLD, GAP, NEW], None),
    "time32[s]": (
        pa.time32("s"),
        [time(), time(23, 59, 59), time(1, 2, 3)],
        ["00:00:00", "23:59:59", "01:02:03"],
    ),
    "time32[ms]": (
        pa.time32("ms"),
        [time(), time(23, 59, 59, 999000), time(1, 2, 3, 10000)],
        ["00:00:00", "23:59:59.999", "01:02:03.01"],
    ),
    "time64[us]": (
        pa.time64("us"),
        [time(), time.max, time(1, 2, 3, 1)],
        ["00:00:00", "23:59:59.999999", "01:02:03.000001"],
    ),
    "time64[ns]": (
        pa.time64("ns"),
        [1, 86_400 * 10**9 - 1, 3_600 * 10**9],
        ["00:00:00.000000001", "23:59:59.999999999", "01:00:00"],
    ),
    "timestamp[s]": (
        pa.timestamp("s"),
        [ANCIENT, datetime(1582, 10, 10), datetime(9999, 12, 31)],
        ["0001-01-01 00:00:00", "1582-10-10 00:00:00", "9999-12-31 00:00:00"],
    ),
    "timestamp[ms]": (
        pa.timestamp("ms"),
        [datetime(1900, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999000), ANCIENT],
        ["1900-01-01 00:00:00", "1969-12-31 23:59:59.999", "0001-01-01 00:00:00"],
    ),
    "timestamp[us]": (pa.timestamp("us"), [ANCIENT, FAR, NOON], MOMENTS),
    "timestamp[ns]": (pa.timestamp("ns"), NANOS, CUT),
    "timestamp[ms, tz=UTC]": (
        pa.timestamp("ms", "UTC"),
        zoned(ANCIENT, datetime(1582, 10, 10), datetime(1883, 11, 18)),
        ["0001-01-01 00:00:00", "1582-10-10 00:00:00", "1883-11-18 00:00:00"],
    ),
    "timestamp[us, tz=Asia/Tokyo]": (
        pa.timestamp("us", "Asia/Tokyo"),
        zoned(ANCIENT, datetime(1582, 10, 10), NOON),
        ["0001-01-01 00:00:00", "1582-10-10 00:00:00", "2026-02-01 12:00:00.123456"],
    ),
    "timestamp[ns, tz=UTC]": (pa.timestamp("ns", "UTC"), NANOS, CUT),
    "duration[s]": (pa.duration("s"), [-1, 0, 9 * 10**12], [-(10**6), 0, 9 * 10**18]),
    "duration[ms]": (pa.duration("ms"), [-1, 0, 1], [-1000, 0, 1000]),
    "duration[us]": (pa.duration("us"), [-1, 2**63 - 1, 1], [-1, 2**63 - 1, 1]),
    "duration[ns]": (pa.duration("ns"), [-1, 999, 2**63 - 1], [-1, 0, (2**63 - 1) // 1000]),
    "string": (pa.string(), TEXTS, None),
    "large_string": (pa.large_string(), TEXTS, None),
    "string_view": (pa.string_view(), TEXTS, None),
    "arrow.json": (pa.json_(), ["{}", '{"a": 1.50}', "null"], None),
    "binary": (pa.binary(), BLOBS, None),
    "large_binary": (pa.large_binary(), BLOBS, None),
    "binary_view": (pa.binary_view(), BLOBS, None),
    "fixed_size_binary": (pa.binary(2), [b"\0\0", b"\xff\xff", b"ab"], None),
    "arrow.uuid": (pa.uuid(), [u.bytes for u in IDS], [str(u) for u in IDS]),
    "arrow.bool8": (pa.bool8(), [0, 1, -1], [False, True, True]),
    "arrow.opaque": (pa.opaque(pa.binary(), "wkb", "somebody"), BLOBS, None),
    "dictionary of string": (pa.dictionary(pa.int8(), pa.string()), TEXTS, None),
    "dictionary of long": (pa.dictionary(pa.int32(), pa.int64()), [1, 1, -(2**63)], None),
    "dictionary of decimal": (
        pa.dictionary(pa.int8(), pa.decimal128(5, 2)), [D("1.50")] * 3, None
    ),
    "list": (
        pa.list_(pa.int64()), [[], [None, 2**63 - 1], [0]], ["[]", f"[null,{2**63 - 1}]", "[0]"]
    ),
    "large_list": (pa.large_list(pa.string()), [["ü\""], [], [""]], ['["ü\\""]', "[]", '[""]']),
    "fixed_size_list": (
        pa.list_(pa.float32(), 2),
        [[NAN, INF], [-0.0, 0.1], [None, -INF]],
        ['["NaN","Infinity"]', "[-0.0,0.1]", '[null,"-Infinity"]'],
    ),
    "list_view": (pa.list_view(pa.bool_()), [[True], [], [None]], ["[true]", "[]", "[null]"]),
    "large_list_view": (pa.large_list_view(pa.date32()), [[GAP], [], [OLD]],
                        ['["1582-10-10"]', "[]", '["0001-01-01"]']),
    "list of null": (pa.list_(pa.null()), [[], [None], []], ["[]", "[null]", "[]"]),
    "list of list of time": (pa.list_(pa.list_(pa.time64("us"))), [[[time(1)], None], [], [[None]]],
                             ['[["01:00:00"],null]', "[]", "[[null]]"]),
    "list of float16": (pa.list_(pa.float16()), [[1.5, None], [NAN], [-INF]],
                        ["[1.5,null]", '["NaN"]', '["-Infinity"]']),
    "list of nanoseconds": (
        pa.list_(pa.timestamp("ns", "UTC")),
        [[-1], [], [None, 1_000]],
        ['["1969-12-31T23:59:59.999999Z"]', "[]", '[null,"1970-01-01T00:00:00.000001Z"]'],
    ),
    "list of duration": (pa.list_(pa.duration("ms")), [[1], [], [-1]], ["[1000]", "[]", "[-1000]"]),
    "arrow.fixed_shape_tensor": (
        pa.fixed_shape_tensor(pa.int32(), [2]),
        [[1, 2], [0, 0], [-1, 1]],
        ["[1,2]", "[0,0]", "[-1,1]"],
    ),
    "struct": (
        MEMBERS,
        [
            {"d": D("1.5"), "f": NAN, "t": zoned(NOON)[0], "p": NOON, "b": b"\x00\xff",
             "day": OLD, "n": 2**63 - 1, "l": [1, None]},
            {"d": D("-1234567890123456789012345678.0000000001"), "f": 0.1, "t": zoned(ANCIENT)[0],
             "p": FAR, "b": b"", "day": NEW, "n": 0, "l": []},
            dict.fromkeys(MEMBERS.names),
        ],
        [
            '{"d":1.5000000000,"f":"NaN","t":"2026-02-01T12:00:00.123456Z",'
            '"p":"2026-02-01T12:00:00.123456","b":"AP8=","day":"0001-01-01",'
            '"n":9223372036854775807,"l":[1,null]}',
            '{"d":-1234567890123456789012345678.0000000001,"f":0.1,"t":"0001-01-01T00:00:00.000000Z",'
            '"p":"9999-12-31T23:59:59.999999","b":"","day":"9999-12-31","n":0,"l":[]}',
            '{"d":null,"f":null,"t":null,"p":null,"b":null,"day":null,"n":null,"l":null}',
        ],
    ),
    "struct with odd names": (
        ODD,
        [
            {"{0}": time(1), ODD[1].name: np.datetime64(-1, "ns"), "c": 1},
            {"{0}": None, ODD[1].name: None, "c": None},
            {"{0}": time.max, ODD[1].name: np.datetime64(0, "ns"), "c": 0},
        ],
        [
            '{"{0}":"01:00:00","a.b`\'\\\\\\"":"1969-12-31T23:59:59.999999","c":1}',
            '{"{0}":null,"a.b`\'\\\\\\"":null,"c":null}',
            '{"{0}":"23:59:59.999999","a.b`\'\\\\\\"":"1970-01-01T00:00:00.000000","c":0}',
        ],
    ),
    "map of string": (
        pa.map_(pa.string(), pa.time32("s")),
        [[("a", time(1)), ("", None)], [], [("ü", time())]],
        ['{"a":"01:00:00","":null}', "{}", '{"ü":"00:00:00"}'],
    ),
    "map of int": (pa.map_(pa.int32(), pa.int32()), [[(1, 2)], [], [(-1, None)]],
                   ['{"1":2}', "{}", '{"-1":null}']),
    "map of day": (pa.map_(pa.date32(), pa.int32()), [[(OLD, 1), (NEW, 2)], [], [(GAP, 3)]],
                   ['{"0001-01-01":1,"9999-12-31":2}', "{}", '{"1582-10-10":3}']),
    "map of moment": (
        pa.map_(pa.timestamp("us", "UTC"), pa.int8()), [[(zoned(NOON)[0], 1)], [], []],
        ['{"2026-02-01T12:00:00.123456Z":1}', "{}", "{}"],
    ),
    "map of clock": (
        pa.map_(pa.timestamp("us"), pa.int8()), [[(NOON, 1)], [], [(ANCIENT, 2)]],
        ['{"2026-02-01T12:00:00.123456":1}', "{}", '{"0001-01-01T00:00:00.000000":2}'],
    ),
    "map of binary": (pa.map_(pa.binary(), pa.int8()), [[(b"\x00\xff", 1)], [], []],
                      ['{"AP8=":1}', "{}", "{}"]),
    "map of struct": (
        pa.map_(pa.struct([("a", pa.int8())]), pa.int8()), [[({"a": 1}, 2)], [], []],
        ['{"{\\"a\\":1}":2}', "{}", "{}"],
    ),
}  # fmt: skip
EXTENSIONS = {"arrow.uuid", "arrow.bool8", "arrow.opaque", "arrow.json", "arrow.fixed_shape_tensor"}

INT96 = [pack("<qi", 0, 2_440_588), pack("<qi", 1_999, 1_721_426), pack("<qi", 1, 2_299_156)]
HAND: dict[str, tuple[Leaf, list[Any]]] = {
    leaf.name: (leaf, expected)
    for leaf, expected in [
        (Leaf("plain INT32", "INT32", [1, -(2**31), 0]), [1, -(2**31), 0]),
        (Leaf("INT_8", "INT32", [1, -128, 0], converted=15), [1, -128, 0]),
        (Leaf("INT(16)", "INT32", [1, -1, 0], logical=logical(10, {1: byte(16), 2: boolean(True)})),
         [1, -1, 0]),
        (Leaf("UINT_8", "INT32", [255, 0, 1], converted=11), [255, 0, 1]),
        (Leaf("UINT(32)", "INT32", [-1, 0, 1],
              logical=logical(10, {1: byte(32), 2: boolean(False)})), [2**32 - 1, 0, 1]),
        (Leaf("UINT_64", "INT64", [-1, 0, 1], converted=14), [D(2**64 - 1), D(0), D(1)]),
        (Leaf("DECIMAL INT32", "INT32", [12345, 1 - 10**9, 0], converted=5, precision=9, scale=2),
         [D("123.45"), D("-9999999.99"), D("0.00")]),
        (Leaf("DECIMAL INT64", "INT64", [12345, 1 - 10**18, 0], converted=5, precision=18, scale=2),
         [D("123.45"), D("-9999999999999999.99"), D("0.00")]),
        (Leaf("DECIMAL BYTE_ARRAY 8", "BYTE_ARRAY", [b"\x30\x39", b"\xff", b"\0"], converted=5,
              precision=8, scale=2), [D("123.45"), D("-0.01"), D("0.00")]),
        (Leaf("DECIMAL BYTE_ARRAY 38", "BYTE_ARRAY",
              [b"\x30\x39", (1 - 10**38).to_bytes(16, "big", signed=True), b"\0"], converted=5,
              precision=38, scale=0), [D(12345), D(1 - 10**38), D(0)]),
        (Leaf("DECIMAL FIXED", "FIXED", [b"\0\x30\x39", b"\xff\xff\xff", bytes(3)], length=3,
              converted=5, precision=6, scale=2), [D("123.45"), D("-0.01"), D("0.00")]),
        (Leaf("TIME_MILLIS", "INT32", [0, 86_399_999, 1], converted=7),
         ["00:00:00", "23:59:59.999", "00:00:00.001"]),
        (Leaf("TIME(MICROS, UTC)", "INT64", [0, 86_399_999_999, 1],
              logical=clock(7, "micros", utc=True)),
         ["00:00:00", "23:59:59.999999", "00:00:00.000001"]),
        (Leaf("TIMESTAMP_MILLIS", "INT64", [0, -62_135_596_800_000, -1], converted=9),
         ["1970-01-01 00:00:00", "0001-01-01 00:00:00", "1969-12-31 23:59:59.999"]),
        (Leaf("TIMESTAMP_MICROS", "INT64", [0, -62_135_596_800_000_000, -1], converted=10),
         ["1970-01-01 00:00:00", "0001-01-01 00:00:00", "1969-12-31 23:59:59.999999"]),
        (Leaf("TIMESTAMP(MILLIS, local)", "INT64", [0, -1, 1],
              logical=clock(8, "millis", utc=False)),
         ["1970-01-01 00:00:00", "1969-12-31 23:59:59.999", "1970-01-01 00:00:00.001"]),
        (Leaf("TIMESTAMP(NANOS, UTC)", "INT64", NANOS, logical=clock(8, "nanos", utc=True)), CUT),
        (Leaf("INT96", "INT96", INT96),
         ["1970-01-01 00:00:00", "0001-01-01 00:00:00.000001", "1582-10-10 00:00:00"]),
        (Leaf("ENUM", "BYTE_ARRAY", [b"A", "ü".encode(), b""], logical=logical(4)), ["A", "ü", ""]),
        (Leaf("JSON", "BYTE_ARRAY", [b"{}", b"[1]", b"1.50"], converted=19), ["{}", "[1]", "1.50"]),
        (Leaf("BSON", "BYTE_ARRAY", BLOBS, converted=20), BLOBS),
        (Leaf("plain BYTE_ARRAY", "BYTE_ARRAY", BLOBS), BLOBS),
        (Leaf("plain FIXED", "FIXED", [bytes(12)] * 3, length=12), [bytes(12)] * 3),
        (Leaf("UUID", "FIXED", [u.bytes for u in IDS], length=16, logical=logical(14)),
         [str(u) for u in IDS]),
        (Leaf("FIXED FLOAT16", "FIXED", [b"\x00\x3c", b"\x00\xfc", b"\x01\x00"], length=2,
              logical=logical(15)), [1.0, -INF, 2.0**-24]),
        (Leaf("INTERVAL", "FIXED", [pack("<3I", 14, 3, 4005), b"\xff" * 12, bytes(12)], length=12,
              converted=21),
         ["P14M3DT4.005S", "P4294967295M4294967295DT4294967.295S", "P0M0DT0S"]),
        (Leaf("GEOMETRY", "BYTE_ARRAY", BLOBS, logical=logical(17)), BLOBS),
        (Leaf("GEOGRAPHY", "BYTE_ARRAY", BLOBS, logical=logical(18)), BLOBS),
    ]
}  # fmt: skip
UNKNOWN = {"UNKNOWN INT32": "INT32", "UNKNOWN BYTE_ARRAY": "BYTE_ARRAY", "UNKNOWN INT96": "INT96"}

# DuckDB's types: three expressions, and the expected values in the table.
DUCK: dict[str, tuple[list[str], list[Any]]] = {
    "duckdb VARIANT": (
        ["{'a': 1, 'b': [NULL, 'ü']}::VARIANT", "42::VARIANT", "'x'::VARIANT"],
        ['{"a":1,"b":[null,"ü"]}', "42", '"x"'],
    ),
    "duckdb ENUM": (["'a'::ENUM('a','b')"] * 3, ["a"] * 3),
    "duckdb INTERVAL": (
        ["INTERVAL '14 months 3 days 4.005 seconds'", "INTERVAL 0 DAY", "INTERVAL 1 DAY"],
        ["P14M3DT4.005S", "P0M0DT0S", "P0M1DT0S"],
    ),
    "duckdb UUID": ([f"'{u}'::UUID" for u in IDS], [str(u) for u in IDS]),
    "duckdb TIME": (["TIME '24:00:00'", "TIME '01:02:03.5'", "TIME '00:00:00'"],
                    ["24:00:00", "01:02:03.5", "00:00:00"]),
    "duckdb TIMETZ": (["TIMETZ '12:00:00+02'"] * 3, ["10:00:00"] * 3),
    "duckdb HUGEINT": (["1::HUGEINT"] * 3, [1.0] * 3),
    "duckdb MAP": (["MAP {DATE '2026-02-01': 1.50}"] * 3, ['{"2026-02-01":1.50}'] * 3),
    "duckdb ARRAY": (["[1, NULL]::INT[2]"] * 3, ["[1,null]"] * 3),
    "duckdb UNION": (["union_value(a := 1)"] * 3, ['{"element1":0,"a":1}'] * 3),
    "duckdb DATE": ([f"DATE '{day}'" for day in (OLD, GAP, NEW)], [OLD, GAP, NEW]),
}  # fmt: skip
EXPECTED = (
    {name: values if made is None else made for name, (_, values, made) in ARROW.items()}
    | {name: expected for name, (_, expected) in HAND.items()}
    | {name: expected for name, (_, expected) in DUCK.items()}
)


def write_arrow(path: Path) -> None:
    columns = {"id": pa.array([10, 11, 12, 13], pa.int64())}
    for name, (kind, values, _) in ARROW.items():
        if name in EXTENSIONS:
            columns[name] = storage(kind, values)
        elif isinstance(kind, pa.DictionaryType):
            columns[name] = pa.array([*values, None], kind.value_type).dictionary_encode()
        else:
            columns[name] = pa.array([*values, None], kind)
    columns["null"] = pa.nulls(4)
    pq.write_table(pa.table(columns), path)


def write_by_hand(path: Path) -> None:
    leaves = [Leaf(**{**vars(leaf), "values": [*leaf.values, None]}) for leaf, _ in HAND.values()]
    nothing = [Leaf(name, kind, [None] * 4, logical=logical(11)) for name, kind in UNKNOWN.items()]
    write_parquet(path, [Leaf("id", "INT64", [20, 21, 22, 23]), *leaves, *nothing])


def write_with_duckdb(path: Path) -> None:
    rows = [
        ", ".join([f"{30 + row}::BIGINT AS id"]
                  + [f'{sql[row]} AS "{name}"' for name, (sql, _) in DUCK.items()])
        for row in range(3)
    ]  # fmt: skip
    query = " UNION ALL ".join(f"SELECT {row}" for row in rows)
    duckdb.sql(f"COPY ({query} ORDER BY id) TO '{path}' (FORMAT parquet)")


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Mirror all files in one cycle; return each column's values in the order of the rows."""
    lake = Lake(tmp_path_factory.mktemp("types") / "lake")
    folder = Path(lake.landing_zone) / "types"
    folder.mkdir(parents=True)
    (folder / "_metadata.json").write_text('{"keyColumns":["id"],"isUpsertDefaultRowMarker":true}')
    for number, write in enumerate((write_arrow, write_by_hand, write_with_duckdb), 1):
        write(folder / file_name(number))
    (line,) = lake.mirror().tables
    assert line.error is None
    assert line.last_file == 3
    rows = lake.table("types").read().orderBy("id")
    # Python can't represent all timestamps, and converts them to the machine's time zone.
    moments = {name for name, kind in rows.dtypes if kind.startswith("timestamp")}
    texts = [
        f"CAST({quote(name)} AS STRING)" if name in moments else quote(name)
        for name in rows.columns
    ]
    found = [tuple(row) for row in rows.selectExpr(*texts).collect()]
    return {name: [row[index] for row in found] for index, name in enumerate(rows.columns)}


def plain(value: Any) -> str:
    """Return a comparable value: NaN equals itself, -0.0 differs from 0.0, and 1 from True."""
    if isinstance(value, D):
        value = value.as_integer_ratio()
    return repr(bytes(value) if isinstance(value, bytearray) else value)


@pytest.mark.promise("LZ-24")
@pytest.mark.parametrize("name", EXPECTED)
def test_every_type_has_the_documented_value(mirrored: dict[str, list[Any]], name: str) -> None:
    first = 0 if name in ARROW else 4 if name in HAND else 8
    expected = EXPECTED[name] if name in DUCK else [*EXPECTED[name], None]
    if name in ("float16", "float32"):
        expected = [None if v is None else float(np.float32(v)) for v in expected]
    found = mirrored[name]
    assert [plain(v) for v in found[first : first + len(expected)]] == [plain(v) for v in expected]
    rest = found[:first] + found[first + len(expected) :]
    assert rest == [None] * len(rest)  # rows of the other files lack the column


def test_a_column_with_only_nulls_is_not_added_yet(mirrored: dict[str, list[Any]]) -> None:
    assert set(mirrored) == {"id", *EXPECTED}


def _clock(nanos: int) -> str:
    whole, rest = divmod(nanos, 10**9)
    text = f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
    return text + (f".{rest:09}".rstrip("0") if rest else "")


def _interval(months: int, days: int, millis: int) -> str:
    rest = f".{millis % 1000:03}".rstrip("0") if millis % 1000 else ""
    return f"P{months}M{days}DT{millis // 1000}{rest}S"


def test_conversions_against_plain_python(tmp_path: Path, spark: Any) -> None:
    """Test every half float, and as many random times, intervals, UUIDs and nanoseconds."""
    rng = random.Random(7)
    count = 2**16
    nanos = [rng.randrange(86_400 * 10 ** rng.randrange(10)) for _ in range(count)]
    parts = [[rng.getrandbits(rng.randrange(1, 33)) for _ in range(3)] for _ in range(count)]
    ids = [rng.randbytes(16) for _ in range(count)]
    moments = [rng.randrange(-(2**63) + 1000, 2**63) for _ in range(count)]
    leaves = [
        Leaf("half", "FIXED", [pack("<H", n) for n in range(count)], length=2, logical=logical(15)),
        Leaf("time", "INT64", nanos, logical=clock(7, "nanos", utc=False)),
        Leaf("interval", "FIXED", [pack("<3I", *p) for p in parts], length=12, converted=21),
        Leaf("uuid", "FIXED", ids, length=16, logical=logical(14)),
        Leaf("moment", "INT64", moments, logical=clock(8, "nanos", utc=False)),
    ]
    write_parquet(tmp_path / "x.parquet", leaves)
    with pq.ParquetFile(tmp_path / "x.parquet") as parquet:
        kinds = {
            field.name: types.column_type(field.type) for field in types.published_schema(parquet)
        }
    ddl = ", ".join(f"{quote(name)} {kind.read}" for name, kind in kinds.items())
    columns = [
        f"CAST({kind.convert.format(quote(name))} AS {kind.table}) AS {quote(name)}"
        for name, kind in kinds.items()
    ]
    read = spark.read.schema(ddl).parquet(str(tmp_path / "x.parquet")).selectExpr(*columns)
    found = read.withColumn("moment", read["moment"].cast("string")).toArrow().to_pydict()
    halves = np.arange(count, dtype=np.uint16).view(np.float16).astype(np.float64)
    assert [plain(v) for v in found["half"]] == [plain(v) for v in halves.tolist()]
    assert found["time"] == [_clock(n) for n in nanos]
    assert found["interval"] == [_interval(*p) for p in parts]
    assert found["uuid"] == [str(UUID(bytes=i)) for i in ids]
    epoch = datetime(1970, 1, 1)
    expected = [epoch + timedelta(microseconds=n // 1000) for n in moments]
    assert [datetime.fromisoformat(text.ljust(26, "0")[:26] if "." in text else text)
            for text in found["moment"]] == expected  # fmt: skip


LATE = [
    "two words",
    "a,b;{}()=",
    "dot.ted too",
    "日本 ü",
    'it\'s "q"',
    "x#1%20[y]*?",
    "tab\there",
]


def test_odd_names_a_clock_and_a_late_type_arrive_in_a_plain_table(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    late, ticked = (Path(lake.landing_zone) / name for name in ("late", "ticked"))
    for folder in (late, ticked):
        folder.mkdir(parents=True)
        (folder / "_metadata.json").write_text('{"keyColumns":["id"]}')
    first = {"id": [1, 2], "dot.ted": [1, 2], "some": pa.nulls(2)}
    pq.write_table(pa.table(first), late / file_name(1))
    pq.write_table(pa.table({"id": [1], "a`b": [1]}), ticked / file_name(1))
    assert not lake.mirror().failed
    assert not lake.status().warnings
    assert not caplog.messages
    before = lake.table("late").snapshot()
    assert list(before.schema) == ["id", "dot.ted"]
    assert not {"columnMapping", "timestampNtz"} & set(before.protocol["writerFeatures"])
    second = {"id": [2], "dot.ted": [5], "some": [2.5], "at": pa.array([NOON], pa.timestamp("us"))}
    rows = {**second, **{name: [name] for name in LATE}, "__rowMarker__": [4]}
    pq.write_table(pa.table(rows), late / file_name(2))
    pq.write_table(pa.table({"id": [1], "a`b": [2], "__rowMarker__": [4]}), ticked / file_name(2))
    report = {line.name: line.error for line in lake.mirror().tables}
    assert report["late"] is None
    (warning,) = lake.status().warnings
    assert (warning.kind, warning.where) == ("column mapping", "late")
    assert f"late: {warning.message} Hint: {warning.fix}" in caplog.messages
    advice = {one.rule: one for one in lake.table("late").analyze().advice().findings}[
        "column mapping"
    ]
    assert (advice.evidence, advice.remedy) == (warning.message, warning.fix)
    assert repr(advice.column) in warning.message
    after = lake.table("late").snapshot()
    assert {"columnMapping", "timestampNtz"} <= set(after.protocol["writerFeatures"])
    found = [row.asDict() for row in lake.table("late").read().orderBy("id").collect()]
    nothing = dict.fromkeys(["some", "at", *LATE])
    assert found == [
        {"id": 1, "dot.ted": 1, **nothing},
        {"id": 2, "dot.ted": 5, "some": 2.5, "at": NOON, **{name: name for name in LATE}},
    ]
    # Delta quotes the name without escaping the quote in it; nothing is applied.
    assert report["ticked"] is not None
    assert (report["ticked"]["file"], report["ticked"]["column"]) == (file_name(2), "a`b")
    assert "rename the column" in str(report["ticked"]["message"])
    assert [row["a`b"] for row in lake.table("ticked").read().collect()] == [1]


KINDS = [
    *("boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp"),
    *("timestamp_ntz", "string", "binary", "decimal(5,2)", "decimal(20,0)", "decimal(10,4)"),
]


def test_delta_makes_every_change_that_is_called_safe(tmp_path: Path, spark: Any) -> None:
    """One append makes all changes, and old rows keep their values."""
    path = f"{tmp_path}/wide"
    pairs = {(table, wide) for table in KINDS for found in KINDS
             if (wide := types.widened(table, found)) not in (None, table)}  # fmt: skip
    columns = {f"c{number}": pair for number, pair in enumerate(sorted(pairs))}
    days = {"date": "DATE'1582-10-10'"}
    ddl = ", ".join(f"{name} {table}" for name, (table, _) in columns.items())
    spark.sql(
        f"CREATE TABLE delta.`{path}` ({ddl}) USING delta TBLPROPERTIES"
        " ('delta.enableTypeWidening'='true', 'delta.feature.timestampNtz'='supported')"
    )
    old = ", ".join(f"CAST({days.get(table, 1)} AS {table})" for table, _ in columns.values())
    spark.sql(f"INSERT INTO delta.`{path}` SELECT {old}")
    new = [f"CAST(NULL AS {wide}) AS {name}" for name, (_, wide) in columns.items()]
    append = spark.range(1).selectExpr(*new).write.format("delta").mode("append")
    append.option("mergeSchema", "true").save(path)
    rows = spark.sql(f"SELECT * FROM delta.`{path}` WHERE c0 IS NOT NULL")
    assert [field.dataType for field in rows.schema] == [
        field.dataType for field in spark.range(1).selectExpr(*new).schema
    ]
    (row,) = rows.collect()
    wanted = {"timestamp_ntz": datetime(1582, 10, 10)}
    assert tuple(row) == tuple(wanted.get(wide, 1) for _, wide in columns.values())
