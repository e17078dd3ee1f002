"""Every PostgreSQL type, from a snapshot and from the stream, equals the output of psql."""

from __future__ import annotations

import csv
import datetime
import io
import struct
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest

from helpers.landed import landed_files

UTC = datetime.timezone.utc
PREPARE = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN cents AS numeric(8,2) CHECK (VALUE >= 0);
CREATE DOMAIN name_of AS varchar(10);
CREATE DOMAIN price AS cents;
"""
# Delta's types, but for decimals, and those of the columns in the files.
COLUMNS = {
    "boolean": "bool",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date32[day]",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestamp_ntz": "timestamp[us]",
}
# A type, what it becomes in the table, and values; each by a snapshot and by the stream.
TYPES: dict[str, tuple[str, list[str]]] = {
    "boolean": ("boolean", ["true", "false"]),
    "smallint": ("short", ["-32768", "32767"]),
    "integer": ("integer", ["-2147483648", "0"]),
    "bigint": ("long", ["-9223372036854775808", "9223372036854775807"]),
    "oid": ("long", ["4294967295"]),
    "real": ("float", ["'NaN'", "'Infinity'", "'-Infinity'", "0.1", "1e-45", "3.4028235e38"]),
    "double precision": ("double", ["'NaN'", "'-Infinity'", "0.1", "5e-324", "-0.0"]),
    "numeric(10,2)": ("decimal(10,2)", ["1.5", "-99999999.99", "0"]),
    "numeric(38,38)": ("decimal(38,38)", ["0.12345678901234567890123456789012345678"]),
    "numeric(38,0)": ("decimal(38,0)", ["99999999999999999999999999999999999999"]),
    "numeric(39,2)": ("string", ["1.5", "'NaN'"]),
    "numeric(3,-2)": ("string", ["12345"]),
    "numeric(2,5)": ("string", ["0.00012"]),
    "numeric": ("string", ["'NaN'", "'Infinity'", "'-Infinity'", "1.10", "1e100", "1e-30"]),
    "money": ("string", ["12.34", "-1234567.8"]),
    "text": ("string", ["''", "'ÄÖ\U0001f600'", "E'a\\nb\\\\\\t\"'", "repeat('x', 5000)"]),
    "varchar(5)": ("string", ["'ab'"]),
    "char(5)": ("string", ["'ab'", "''"]),
    '"char"': ("string", ["'x'"]),
    "name": ("string", ["'abc'"]),
    "bytea": ("binary", ["'\\x'", "'\\x00ff10'", "decode(repeat('ab', 5000), 'hex')"]),
    "date": ("date", ["'0001-01-01'", "'9999-12-31'", "'1582-10-10'", "'1969-12-31'"]),
    "timestamp": (
        "timestamp_ntz",
        ["'0001-01-01 00:00:00'", "'2026-11-22 05:06:07.1'", "'1969-12-31 23:59:59.999999'"],
    ),
    "timestamptz": (
        "timestamp",
        ["'2026-11-22 05:06:07.123456+05:30'", "'1900-01-01 00:00:00+00'"],
    ),
    "timestamp(3)": ("timestamp_ntz", ["'2026-11-22 05:06:07.1239'"]),
    "time": ("string", ["'05:06:07.5'", "'24:00:00'"]),
    "timetz": ("string", ["'05:06:07.5+02'"]),
    "interval": ("string", ["'1 year -2 days 03:04:05.678'", "'-1 mon'", "'0'"]),
    "uuid": ("string", ["'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
    "json": ("string", ['\'{"b": 1,  "a": [1, null]}\'', "'null'"]),
    "jsonb": ("string", ['\'{"b": 1,  "a": [1, null]}\'', "'1.10'"]),
    "xml": ("string", ["'<a>b</a>'"]),
    "int[]": ("string", ["'{1,NULL,3}'", "'{{1,2},{3,4}}'", "'{}'", "'[0:1]={5,6}'"]),
    "text[]": ("string", ["array['a,b', '', NULL, 'q\"q']"]),
    "timestamptz[]": ("string", ["array['2026-11-22 05:06:07+02'::timestamptz, 'infinity']"]),
    "int4range": ("string", ["'[1,5)'", "'empty'", "'(,)'"]),
    "tstzrange": ("string", ["'[2026-01-01 00:00+01,infinity]'"]),
    "int4multirange": ("string", ["'{[1,3),[7,9)}'"]),
    "mood": ("string", ["'it''s ok'"]),
    "mood[]": ("string", ["array['sad','happy']::mood[]"]),
    "pair": ("string", ["ROW(1, 'x y')::pair", "ROW(NULL, NULL)::pair"]),
    "cents": ("decimal(8,2)", ["12.5"]),
    "price": ("decimal(8,2)", ["0.05"]),
    "name_of": ("string", ["'abc'"]),
    "point": ("string", ["'(1.5,-2)'"]),
    "line": ("string", ["'{1,2,3}'"]),
    "lseg": ("string", ["'[(0,0),(1,1)]'"]),
    "box": ("string", ["'((0,0),(1,1))'"]),
    "path": ("string", ["'[(0,0),(1,1)]'", "'((0,0),(1,1))'"]),
    "polygon": ("string", ["'((0,0),(1,1),(2,0))'"]),
    "circle": ("string", ["'<(0,0),5>'"]),
    "inet": ("string", ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'"]),
    "cidr": ("string", ["'10.0.0.0/8'"]),
    "macaddr": ("string", ["'08:00:2b:01:02:03'"]),
    "macaddr8": ("string", ["'08:00:2b:01:02:03:04:05'"]),
    "bit(3)": ("string", ["B'101'"]),
    "varbit": ("string", ["B'10110'", "B''"]),
    "tsvector": ("string", ["'fat:2 cat:3'"]),
    "tsquery": ("string", ["'fat & cat'"]),
    "pg_lsn": ("string", ["'16/B374D848'"]),
    "regclass": ("string", ["'pg_class'"]),
    "xid8": ("string", ["'12345678901'"]),
    "jsonpath": ("string", ["'$.a'"]),
}


def column_type(kind: str) -> str:
    """Return the type of a file's column by the table's type."""
    if kind.startswith("decimal"):
        return kind.replace("decimal", "decimal128").replace(",", ", ")
    return COLUMNS[kind]


def printed(value: Any) -> str:
    """Return a published value as psql prints its type."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        if "." in text:
            text = text.rstrip("0")
        return text + ("+00" if value.tzinfo else "")
    return str(value)


def assert_as_psql(shop, names: list[str]) -> None:
    shown = list(csv.DictReader(io.StringIO(shop.server.psql("SELECT * FROM t", shop.database))))
    wanted = sorted(shown, key=lambda row: int(row["id"]))
    found = sorted(shop.landed("t"), key=lambda row: row["id"])
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        for name in names:
            value = ours[name]
            if isinstance(value, float):
                # psql prints as few digits as tell the number, of 4 or of 8 bytes, from all others.
                wide = str(pq.read_schema(landed_files(shop.root, "t")[-1]).field(name).type)
                form = "d" if wide == "double" else "f"
                digits = struct.unpack(form, struct.pack(form, float(theirs[name])))[0]
                assert repr(value) == repr(digits), (name, value, theirs[name])
            else:
                assert printed(value) == theirs[name], (name, value, theirs[name])


def test_every_type(shop) -> None:
    """Both the snapshot's rows and the stream's rows equal the output of psql."""
    shop.sql(PREPARE)
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(TYPES))
    shop.sql(f"CREATE TABLE t (id serial PRIMARY KEY, {columns})")
    shop.sql("ALTER TABLE t REPLICA IDENTITY FULL")
    inserts = "; ".join(
        f"INSERT INTO t (c{i}) VALUES ({value})"
        for i, (_, values) in enumerate(TYPES.values())
        for value in values
    )
    names = [f"c{i}" for i in range(len(TYPES))]
    shop.sql(inserts)
    shop.run("t")
    assert_as_psql(shop, names)
    shop.sql(inserts)
    shop.run("t")
    assert_as_psql(shop, names)
    shop.sql("UPDATE t SET id = -id")  # all values again, by updates and deletes
    shop.run("t")
    assert_as_psql(shop, names)
    for file in landed_files(shop.root, "t"):
        schema = pq.read_schema(file)
        found = [str(schema.field(f"c{i}").type) for i in range(len(TYPES))]
        assert found == [column_type(kind) for kind, _ in TYPES.values()]


MOMENTS = ["infinity", "-infinity", "0044-03-15 BC", "20000-02-29", "9999-12-31", "0001-01-01"]


def test_moments_without_end_and_out_of_the_ordinary(shop) -> None:
    """Infinity becomes the last or first day that all readers support; real days do not change."""
    shop.sql("CREATE TABLE t (id serial PRIMARY KEY, d date, ts timestamp, tz timestamptz)")
    values = "; ".join(f"INSERT INTO t (d, ts, tz) VALUES ('{m}', '{m}', '{m}')" for m in MOMENTS)
    shop.sql(values)
    shop.run("t")
    shop.sql(values)
    shop.run("t")
    found: list[tuple[int, int, int]] = []
    for file in landed_files(shop.root, "t"):
        table = pq.read_table(file, columns=["d", "ts", "tz"])
        days = table.column("d").cast("int32").cast("int64").to_pylist()
        times = [table.column(name).cast("int64").to_pylist() for name in ("ts", "tz")]
        found += zip(days, *times, strict=True)
    day = 86_400_000_000
    last, first = 2_932_896, -719_162  # days of 9999-12-31 and 0001-01-01
    ends = [(last, (last + 1) * day - 1), (first, first * day)]
    # As the server counts them: its own arithmetic, in days since 1970.
    rest = [
        (days, days * day)
        for (days,) in shop.rows(
            "SELECT d - date '1970-01-01' FROM t WHERE isfinite(d) ORDER BY id"
        )
    ][: len(MOMENTS) - 2]
    assert [(d, ts) for d, ts, _ in found] == (ends + rest) * 2
    assert all(ts == tz for _, ts, tz in found)


def test_columns_landed_as_text(shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, d date, n numeric(5,2), ok bool, by bytea)")
    shop.sql("ALTER TABLE t REPLICA IDENTITY FULL")
    shop.sql("INSERT INTO t VALUES (1, 'infinity', 'NaN', true, '\\x00')")
    text = ("t.d", "public.t.n", "t.ok", "t.by")
    shop.run("t", text=text)
    shop.sql("INSERT INTO t VALUES (2, '-infinity', 'NaN', false, '\\x01')")
    shop.run("t", text=text)
    assert shop.landed("t") == [
        {"id": 1, "d": "infinity", "n": "NaN", "ok": "t", "by": "\\x00"},
        {"id": 2, "d": "-infinity", "n": "NaN", "ok": "f", "by": "\\x01"},
    ]


@pytest.mark.parametrize("when", ["snapshot", "stream"])
def test_a_value_without_counterpart_stops_its_table(shop, when: str) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(5,2)); CREATE TABLE u (id int PRIMARY KEY)"
    )
    if when == "stream":
        shop.run("t", "u")
    shop.sql("INSERT INTO t VALUES (1, 'NaN'); INSERT INTO u VALUES (1)")
    report = shop.run("t", "u")
    states = {one.table: one.state for one in report.tables}
    assert states == {"t": "Stopped", "u": "Running"}
    assert "--text TABLE.n" in str(report.tables[0].error)
    assert shop.landed("u") == [{"id": 1}]
    assert not shop.run("t", "u", text=("t.n",), reseed=("t",)).failed
    assert shop.landed("t") == [{"id": 1, "n": "NaN"}]
