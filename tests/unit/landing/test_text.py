"""Delimited text against a slow reference that writes and reads character by character."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from itertools import cycle, islice, product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.examples import examples
from helpers.markers import MARKER, Marker
from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError
from mirrorlake.landing import check
from mirrorlake.landing import text as module
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.landing.text import read_text
from mirrorlake.storage.files import Storage

Value = str | None
ROW_ENDS = ("\r\n", "\n", "\r")
COLUMN_ENDS = (",", ";", "|", "\t")
QUOTES = ('"', "'", "")
ESCAPES = ("\\", "/", '"', "")
NULLS = ("", "NULL", "\\N")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "gb18030")
COMPRESSIONS = ("", "gz", "zst", "framed", "hadoop")


def declared(columns: dict[str, str] | None = None, **properties: Any) -> TableMetadata:
    listed = [{"Name": name, "DataType": kind} for name, kind in (columns or {}).items()]
    document = {
        "FileFormat": "DelimitedText",
        "SchemaDefinition": {"Columns": listed},
        "FileFormatTypeProperties": properties,
    }
    return TableMetadata.parse(json.dumps(document).encode())


@dataclass(frozen=True)
class Dialect:
    """The slow reference: how a text is written and read."""

    row: str = "\r\n"
    column: str = ","
    quote: str = '"'
    escape: str = "\\"
    null: str = ""
    encoding: str = "utf-8"
    compression: str = ""
    final: bool = True

    @property
    def metadata(self) -> TableMetadata:
        return declared(
            RowSeparator=self.row,
            ColumnSeparator=self.column,
            QuoteCharacter=self.quote,
            EscapeCharacter=self.escape,
            NullValue=self.null,
            Encoding=self.encoding,
        )

    @property
    def escapes(self) -> bool:
        return bool(self.quote and self.escape) and self.escape != self.quote

    def needs_quote(self, value: Value) -> bool:
        special = [self.column, "\r", "\n", *([self.quote] if self.quote else [])]
        return value is not None and (value == self.null or any(c in value for c in special))

    def field(self, value: Value, quoted: bool) -> str:
        if value is None:
            return self.null
        if not quoted and not self.needs_quote(value):
            return value
        if not self.escapes:
            return self.quote + value.replace(self.quote, self.quote * 2) + self.quote
        out, run = "", 0
        for char in value:
            if char == self.quote:  # the escapes before it count twice, then its own
                out += self.escape * (run + 1)
            run = run + 1 if char == self.escape else 0
            out += char
        return self.quote + out + self.escape * run + self.quote

    def write(self, rows: list[list[Value]], quoted: Iterator[bool]) -> str:
        lines = [self.column.join(self.field(v, bool(self.quote) and next(quoted)) for v in row)
                 for row in rows]  # fmt: skip
        # An empty last line is a NULL only where a line ends.
        return self.row.join(lines) + (self.row if self.final or not lines[-1] else "")

    def encode(self, text: str) -> bytes:
        return compress(text.encode(self.encoding), self.compression)

    def tokens(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield each character, and whether it may be special."""
        place = 0
        while place < len(text):
            run = place
            while self.escapes and text[run : run + 1] == self.escape:
                run += 1
            if run > place and text[run : run + 1] == self.quote:
                for _ in range((run - place) // 2):
                    yield self.escape, False
                yield self.quote, (run - place) % 2 == 0
                place = run + 1
            elif self.row != "\r" and text[place] == "\r" and text[place + 1 : place + 2] != "\n":
                yield "\r", False
                place += 1
            else:
                yield text[place], True
                place += 1

    def read(self, text: str) -> tuple[list[list[Value]], bool]:
        """Return the rows without empty lines, and whether the last one is complete."""
        rows: list[list[Value]] = []
        row: list[Value] = []
        value, quoted, inside, before = "", False, False, ""
        tokens = [*self.tokens(text), ("\n", True)]
        for place, (char, special) in enumerate(tokens):
            if inside and special and char == self.quote:
                inside = False
                before = "quote"
                continue
            if before == "quote" and special and char == self.quote:
                value, inside, before = value + char, True, ""  # a quote twice is one
                continue
            before = ""
            if inside and place < len(tokens) - 1:
                value += char
            elif special and char == self.quote and not value and not quoted and self.quote:
                quoted = inside = True
            elif special and char in (self.column, "\r", "\n"):
                if char == "\r" and tokens[place + 1][0] == "\n":
                    continue
                row.append(None if value == self.null and not quoted else value)
                if char != self.column:
                    if len(row) > 1 or value or quoted:
                        rows.append(row)
                    row = []
                value, quoted = "", False
            else:
                value += char
        return rows, not inside


def compress(data: bytes, how: str) -> bytes:
    if how == "gz":
        return gzip.compress(data)
    if how == "zst":
        return bytes(pa.compress(data, "zstd", asbytes=True))
    parts = [data[start : start + 50] for start in range(0, len(data), 50)]
    packed = [bytes(pa.compress(part, "snappy", asbytes=True)) for part in parts]
    if how == "framed":  # one plain part and one to be passed over among them
        out = b"\xff\x06\x00\x00sNaPpY" + b"\xfe\x03\x00\x00pad"
        for number, (part, small) in enumerate(zip(parts, packed, strict=True)):
            body = b"crc!" + (part if number == 1 else small)
            out += bytes([number == 1]) + len(body).to_bytes(3, "little") + body
        return out
    if how == "hadoop":  # blocks of two parts
        out = b""
        for start in range(0, len(parts), 2):
            out += sum(map(len, parts[start : start + 2])).to_bytes(4, "big")
            for small in packed[start : start + 2]:
                out += len(small).to_bytes(4, "big") + small
        return out
    return data


def parse(data: bytes, metadata: TableMetadata, name: str = "f.csv") -> pa.Table:
    return read_text(lambda: io.BytesIO(data), metadata, name=name).read_all()


def file_name(dialect: Dialect) -> str:
    return "f.csv.snappy" if dialect.compression in ("framed", "hadoop") else "f.csv"


def check_dialect(
    dialect: Dialect, header: list[str], rows: list[list[Value]], quoted: Iterator[bool]
):
    text = dialect.write([header, *rows], quoted)
    assert dialect.read(text) == ([header, *rows], True) or len(header) == 1  # the reference itself
    found = parse(dialect.encode(text), dialect.metadata, file_name(dialect))
    assert found.column_names == header
    assert [list(row.values()) for row in found.to_pylist()] == rows
    assert set(found.schema.types) == {pa.string()}


PLAIN: list[list[Value]] = [["1", "a"], ["2", None], [" x ", "ünï 🦆"], [None, None], ["é\\", "\\"]]
ODD: list[list[Value]] = [
    ["", "NULL"],
    ['say "hi"', "it's"],
    ["a,b;c|d\te", "//"],
    ["two\r\nlines", "lone\rreturn\n"],
    ['\\"', "\\'"],
    ["\\\\", '"'],
    ["'", '"\\'],
    ["/'/", '\\\\"\\'],
]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_the_whole_matrix(step: int) -> None:
    """All combinations of row ends, quotes, escapes and nulls, or every fifth of them."""
    encodings, compressions = cycle(ENCODINGS), cycle(COMPRESSIONS)
    seen = set()
    whole = product(ROW_ENDS, COLUMN_ENDS, QUOTES, ESCAPES, NULLS, (True, False))
    for parts in islice(whole, 0, None, step):
        row, column, quote, escape, null, final = parts
        encoding, compression = next(encodings), next(compressions)
        dialect = Dialect(row, column, quote, escape, null, encoding, compression, final)
        rows = [r for r in PLAIN + ODD if quote or not any(dialect.needs_quote(v) for v in r)]
        check_dialect(dialect, ["id", "v"], rows, cycle([False, True, True]))
        seen.add((encoding, compression))
    assert len(seen) == len(ENCODINGS) * len(COMPRESSIONS)


DIALECTS = st.builds(
    Dialect,
    st.sampled_from(ROW_ENDS),
    st.sampled_from(COLUMN_ENDS),
    st.sampled_from(QUOTES),
    st.sampled_from(ESCAPES),
    st.sampled_from(NULLS),
    st.sampled_from(ENCODINGS),
    st.sampled_from(COMPRESSIONS),
    st.booleans(),
)
NASTY = st.text(st.sampled_from("aé🦆 N\\/\"',;|\t\r\n\x00\u2028\ufeff") | st.characters(
    exclude_categories=("Cs", "Cn")), max_size=8)  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[Dialect, list[str], list[list[Value]], list[bool]]:
    dialect = draw(DIALECTS)
    fine = NASTY if dialect.quote else NASTY.filter(lambda v: not dialect.needs_quote(v))
    width = draw(st.integers(1, 4))
    header = [f"{n}{draw(fine)}" for n in range(width)]
    if not dialect.quote:
        assume(not any(dialect.needs_quote(name) for name in header))
    row = st.lists(st.none() | fine, min_size=width, max_size=width)
    return dialect, header, draw(st.lists(row, max_size=6)), draw(st.lists(st.booleans()))


@pytest.mark.parametrize(("piece", "block"), [(1 << 20, 8 << 20), (1, 1000), (2, 400), (7, 400)])
def test_any_table_reads_back(piece: int, block: int) -> None:
    @examples(40)
    @given(tables())
    def reads_back(table: tuple[Dialect, list[str], list[list[Value]], list[bool]]) -> None:
        dialect, header, rows, quoted = table
        check_dialect(dialect, header, rows, cycle([*quoted, True]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", piece)
        patch.setattr(module, "_BLOCK", block)
        reads_back()


@examples(100)
@given(DIALECTS, st.text(st.sampled_from("ab1\\/\"',;|\t\r\n"), max_size=25))
def test_any_text_reads_as_the_reference_reads_it_or_fails_in_the_same_row(
    dialect: Dialect, body: str
) -> None:
    text = f"id{dialect.column}v{dialect.row}{body}"
    rows, whole = dialect.read(text)
    lengths = [len(row) for row in rows]
    bad = next((n for n, length in enumerate(lengths) if length != 2), None)
    if bad is None and whole:
        found = parse(dialect.encode(text), dialect.metadata, file_name(dialect))
        assert [list(row.values()) for row in found.to_pylist()] == rows[1:]
        return
    with pytest.raises(DataFileError) as caught:
        parse(dialect.encode(text), dialect.metadata, file_name(dialect))
    assert (caught.value.file, caught.value.row) == (file_name(dialect), bad or len(rows) - 1)


UTC = timezone.utc
GOOD: dict[str, dict[str, Any]] = {
    "Boolean": {"true": True, "FALSE": False, "1": True, "0": False},
    "ByteArray": {"0x00fF": b"\x00\xff", "AP8=": b"\x00\xff", "0X": b""},
    "DateTime": {
        "2025-06-17": datetime(2025, 6, 17, tzinfo=UTC),
        "2025-06-17 14:30:00": datetime(2025, 6, 17, 14, 30, tzinfo=UTC),
        "2025-06-17T14:30:00.1234567Z": datetime(2025, 6, 17, 14, 30, 0, 123456, UTC),
        "2025-06-17T14:30:00+02:00": datetime(2025, 6, 17, 12, 30, tzinfo=UTC),
        "2025-06-17T14:30:00.5-0130": datetime(2025, 6, 17, 16, 0, 0, 500000, UTC),
        "0001-01-01 00:00:00": datetime(1, 1, 1, tzinfo=UTC),
        "9999-12-31 23:59:59.999999": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    },
    "Double": {"1": 1.0, "-1.5e300": -1.5e300, "inf": float("inf"), "-Infinity": float("-inf")},
    "IDate": {"2025-06-17": date(2025, 6, 17), "0001-01-01": date(1, 1, 1)},
    "Int16": {"32767": 32767, "-32768": -32768, "+7": 7, " 8 ": 8},
    "Int32": {"2147483647": 2**31 - 1, "-2147483648": -(2**31)},
    "Int64": {"9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63)},
    "ITime": {
        "14:30:00": time(14, 30),
        "23:59:59.9999999": time(23, 59, 59, 999999),
        "00:00": time(0),
    },
    "Single": {"1.5": 1.5, "-3e38": pa.scalar(-3e38, pa.float32()).as_py()},
    "String": {" kept ": " kept ", "NULL": "NULL"},
}  # fmt: skip
BAD = {
    "Boolean": ["yes", "2"],
    "ByteArray": ["0xz", "AP8", "ü"],
    "DateTime": ["2025-13-01", "17.06.2025", "2025-06-17T25:00:00", "now"],
    "Double": ["1,5", "x", "1e999", "-1e999"],
    "IDate": ["2025-02-30", "20250617", "x"],
    "Int16": ["32768", "1.0", "++1", "x"],
    "Int32": ["2147483648", "1_0"],
    "Int64": ["9223372036854775808", "1e3"],
    "ITime": ["24:00:00", "2:30 pm", "x"],
    "Single": ["1e39", "x"],
}


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("quote", ["", '"'])
def test_good_values_of_every_declared_type(kind: str, quote: str) -> None:
    lines = [f"{n};{quote}{text}{quote}" for n, text in enumerate(GOOD[kind])]
    data = "\n".join(["n;V", *lines, "9;", f"9;{quote}{quote}"]).encode()
    found = parse(data, declared({"v": kind}, ColumnSeparator=";")).column("V").to_pylist()
    empty = "" if kind == "String" and quote else None
    assert found == [*GOOD[kind].values(), None, empty]


@pytest.mark.parametrize(("kind", "bad"), [(kind, bad) for kind in BAD for bad in BAD[kind]])
@pytest.mark.parametrize("block", [8 << 20, 100])
def test_a_bad_value_is_named_by_row_and_column(kind: str, bad: str, block: int) -> None:
    good = next(iter(GOOD[kind]))
    lines = [f'"{n}\n\n";"{good}"' for n in range(30)] + [
        f'30;"{bad}"',
        f"31;{good}",
        f'32;"{bad}"',
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        with pytest.raises(DataFileError) as caught:
            parse("\n".join(["n;v", *lines]).encode(), declared({"v": kind}, ColumnSeparator=";"))
    assert (caught.value.file, caught.value.row, caught.value.column) == ("f.csv", 31, "v")
    assert repr(bad) in caught.value.message


@pytest.mark.parametrize("data", [b"id,v\n", b"id,v", b"\nid,v\r\n", b'"id","v"'])
def test_a_header_alone_is_no_rows(data: bytes) -> None:
    found = parse(data, declared({"id": "Int32"}))
    assert (found.num_rows, found.schema.types) == (0, [pa.int32(), pa.string()])


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"id\n1\n", [1]),
        (b"id\n1", [1]),
        (b"id\n1\n\n3\n", [1, None, 3]),
        (b"id\n1\n\n", [1, None]),
        (b"id", []),
        (b"id\n", []),
    ],
)
def test_of_a_single_column_each_line_is_a_row(data: bytes, values: list[int | None]) -> None:
    assert parse(data, declared({"id": "Int64"})).column("id").to_pylist() == values


@pytest.mark.parametrize(
    ("data", "row", "says"),
    [
        (b"", None, "Empty"),
        (b"\n\n", None, "Empty"),
        (b"id,v\n1,2\n1\n", 2, "Expected 2 columns, got 1"),
        (b"id,v\n1,2\n\n1,2,3\n", 2, "Expected 2 columns, got 3"),
        (b'id,v\n"1\n1",2\n1,2,3\n', 2, "Expected 2 columns, got 3"),
        (b'id,v\n1,2\n2,"abc\n3,x\n4,y\n', 2, "is not closed"),
        (b'id,"v\n1,2\n', None, "The file is not readable"),
        (b"id\n1\n'2\n", 2, "is not closed"),
        ("id,v\n1,é\n2,ü\n".encode("latin-1"), 1, "The file is not utf-8 text"),
        ('id,v\n"1\n\n",a\n2,b\nü,c\n'.encode("latin-1"), 3, "The file is not utf-8 text"),
        ("ïd,v\n1,2\n".encode("latin-1"), None, "The file is not utf-8 text"),
        ("id,v\n1,2\n".encode("utf-16"), None, "The file is not utf-8 text"),
        (b"id,v\n1,2\n3,\xe2\x82", 2, "The file is not utf-8 text"),
    ],
)
@pytest.mark.parametrize("piece", [1 << 20, 3])
def test_a_text_that_is_none(data: bytes, row: int | None, says: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", piece)
        with pytest.raises(DataFileError, match=says) as caught:
            parse(data, declared(QuoteCharacter="'" if b"'" in data else '"'))
    assert (caught.value.file, caught.value.row, caught.value.column) == ("f.csv", row, None)
    assert caught.value.hint
    assert not any("\ufdd0" <= char <= "\ufdef" for char in caught.value.message)


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("end", ["", "-le", "-be"])
def test_byte_order_marks_and_their_absence(encoding: str, end: str) -> None:
    mark = "\ufeff" if end == "-be" else ""
    data = f"{mark}id\n1\n".encode(encoding + end)
    assert parse(data, declared(Encoding=encoding)).to_pylist() == [{"id": "1"}]
    with pytest.raises(DataFileError, match="The file is not utf-"):
        parse(data[:-1], declared(Encoding=encoding))


@pytest.mark.parametrize("how", ["gz", "zst", "framed", "hadoop"])
@pytest.mark.parametrize("harm", ["cut", "half", "flipped"])
def test_broken_compression(how: str, harm: str) -> None:
    rows = "".join(f"{n},{n * 7919}\n" for n in range(100))
    data = compress(f"id,v\n{rows}".encode(), how)
    middle = len(data) // 2
    flipped = bytes(byte ^ 0xFF for byte in data[middle : middle + 20])
    harmed = {
        "cut": data[:-1],
        "half": data[:middle],
        "flipped": data[:middle] + flipped + data[middle + 20 :],
    }[harm]
    with pytest.raises(DataFileError) as caught:
        parse(harmed, declared(), "f.csv.snappy")
    assert caught.value.file == "f.csv.snappy"
    assert caught.value.hint


def test_a_reserved_chunk_of_snappy_is_not_passed_over() -> None:
    data = compress(b"id,v\n1,2\n", "framed") + b"\x02\x04\x00\x001,2\n"
    with pytest.raises(DataFileError, match="snappy data is corrupt"):
        parse(data, declared())


def inspect(data: bytes, name: str = "1.csv", **document: Any) -> check.FileFacts:
    storage = Storage("memory:///")
    storage.write(f"z/{name}", data)
    metadata = TableMetadata.parse(json.dumps(document).encode())
    return check.inspect_file(storage, f"z/{name}", metadata, staged="staged/1.parquet")


def test_the_marker_column_is_a_number_whatever_is_declared() -> None:
    data = f"{MARKER},id,v\n4,1,a\n2,2,\n 0 ,3,c\n".encode()
    facts = inspect(data, keyColumns=["id"])
    assert (facts.marker, facts.marker_read) == (MARKER, "integer")
    assert facts.rows == {Marker.UPSERT: 1, Marker.DELETE: 1, Marker.INSERT: 1}
    assert list(facts.columns) == ["id", "v"]


@pytest.mark.parametrize(
    ("data", "row", "column"),
    [
        (f"id,{MARKER}\n1,4\n2,x\n", 2, MARKER),
        (f"id,{MARKER}\n1,4\n2,3\n", 2, MARKER),
        (f"id,{MARKER}\n1,4\n2,\n", 2, MARKER),
        (f"id,{MARKER}\n1,4\n,4\n", 2, "id"),
        (f"{MARKER}\n4\n", None, None),
        ("v\n4\n", None, "id"),
        ("id,v,ID\n1,2,3\n", None, "ID"),
        ("id,id\n1,2\n", None, "id"),
        ("id,_change_type\n1,2\n", None, "_change_type"),
        ("id,\n1,2\n", None, None),
    ],
)
def test_headers_and_markers_that_make_no_sense(
    data: str, row: int | None, column: str | None
) -> None:
    with pytest.raises((DataFileError, SchemaError)) as caught:
        inspect(data.encode(), keyColumns=["id"])
    assert (caught.value.file, caught.value.row, caught.value.column) == ("1.csv", row, column)


def test_names_with_escapes_and_returns_are_as_written() -> None:
    data = b'id,"a\\"b","c""d","e\rf","g\nh"\n1,2,3,4,5\n'
    assert list(inspect(data).columns) == ["id", 'a"b', 'c"d', "e\rf", "g\nh"]


def test_zero_bytes_and_unknown_endings() -> None:
    with pytest.raises(DataFileError, match="zero bytes"):
        inspect(b"")
    with pytest.raises(DataFileError, match=r"extension \.xlsx is unknown"):
        inspect(b"id\n1\n", "1.xlsx")
    assert inspect(b"id\n1\n", "1.XLSX", fileExtension=".xlsx").row_count == 1
    assert inspect(b"id\n1\n", "1", fileFormat="CSV").row_count == 1
    with pytest.raises(MirrorlakeError, match="Parquet"):
        inspect(b"id\n1\n", "1")
