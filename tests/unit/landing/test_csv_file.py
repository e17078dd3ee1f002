"""CSV files as typed columns: no value changes, and errors name the place of a misfit."""

from __future__ import annotations

import gzip
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.project import PROJECT
from mirrorlake import Lake
from mirrorlake.errors import DataFileError, MirrorlakeError
from mirrorlake.landing import sources
from mirrorlake.names import file_name

LARGE, PAD = 10_000, "x" * 1_000  # so many rows of this length are more than one block


def read(path: Path, text: str | bytes, **options: Any) -> pa.Table:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = sources.open_source(path, **options)
    assert reader is not None
    return reader.read_all()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "-2", ""], pa.int64(), [1, -2, None]),
        (["1", "1.5"], pa.float64(), [1.0, 1.5]),
        (["1.5", "1"], pa.float64(), [1.5, 1.0]),
        (["0", "0.5", "-0.25", "1e5"], pa.float64(), [0, 0.5, -0.25, 1e5]),
        (["0.30000000000000004"], pa.float64(), [0.30000000000000004]),
        (["1.2345678901234567e-05"], pa.float64(), [1.2345678901234567e-05]),
        (["1", "NULL", "NaN", "n/a"], pa.int64(), [1, None, None, None]),
        (["", "NULL"], pa.null(), [None, None]),
        (["x", "NULL", ""], pa.string(), ["x", "NULL", ""]),
        (["01234", "99999"], pa.string(), ["01234", "99999"]),
        (["99999", "01234"], pa.string(), ["99999", "01234"]),
        (["00.5"], pa.string(), ["00.5"]),
        (["-01"], pa.string(), ["-01"]),
        (["+4366012345"], pa.string(), ["+4366012345"]),
        (["0x1A"], pa.string(), ["0x1A"]),
        (['"1,234.50"', "5"], pa.string(), ["1,234.50", "5"]),
        (["5", '"1,234.50"'], pa.string(), ["5", "1,234.50"]),
        (["1e400"], pa.string(), ["1e400"]),
        (["10:20"], pa.string(), ["10:20"]),
        ([" 5", "6 "], pa.int64(), [5, 6]),
        ([" x", "6"], pa.string(), [" x", "6"]),
        (['"5"', "6"], pa.int64(), [5, 6]),
        (['"a\nb"'], pa.string(), ["a\nb"]),
        (['"say ""x"""'], pa.string(), ['say "x"']),
        (["true", "False"], pa.bool_(), [True, False]),
        (["2026-01-31"], pa.date32(), [date(2026, 1, 31)]),
        (
            ["2026-01-31", "2026-01-31 10:20:30.5"],
            pa.timestamp("us"),
            [datetime(2026, 1, 31), datetime(2026, 1, 31, 10, 20, 30, 500_000)],
        ),
        (
            ["2026-01-31T10:00:00+02:00"],
            pa.timestamp("us", "UTC"),
            [datetime(2026, 1, 31, 8, tzinfo=timezone.utc)],
        ),
        (
            ["2026-01-31 10:00:00", "2026-01-31 10:00:00Z"],
            pa.string(),
            ["2026-01-31 10:00:00", "2026-01-31 10:00:00Z"],
        ),
        (["12345678901234567890"], pa.decimal128(28, 8), [Decimal("12345678901234567890")]),
        (
            ["1", "123456789012345678.25"],
            pa.decimal128(28, 8),
            [Decimal(1), Decimal("123456789012345678.25")],
        ),
        (
            ["0.1234567890123456789", "7"],
            pa.decimal128(38, 19),
            [Decimal("0.1234567890123456789"), Decimal(7)],
        ),
        (["9" * 39], pa.string(), ["9" * 39]),
        (["9" * 30, "1e5"], pa.string(), ["9" * 30, "1e5"]),
    ],
    ids=str,
)
def test_the_type_that_keeps_every_value(
    file: Path, texts: list[str], kind: pa.DataType, values: list[Any]
) -> None:
    found = read(file, "n,v\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts)))
    assert found.schema.field("v").type == kind
    assert found.column("v").to_pylist() == values


@pytest.mark.parametrize("late", ["late", "007", "1.5", '"1,234.50"', ""])
def test_the_whole_file_decides(file: Path, late: str) -> None:
    found = read(file, "v,w\n" + f"1234567,{PAD}\n" * LARGE + f"{late},\n")
    kind = {"1.5": pa.float64(), "": pa.int64()}.get(late, pa.string())
    assert found.schema.types == [kind, pa.string()]
    assert found.num_rows == LARGE + 1
    last = found.column("v")[-1].as_py()
    assert last == {"1.5": 1.5, "": None}.get(late, late.strip('"'))
    assert str(found.column("v")[0].as_py()) == ("1234567.0" if late == "1.5" else "1234567")


@given(
    st.lists(
        st.one_of(
            st.text("0123456789+-.eEx :TZ,", min_size=1, max_size=20),
            st.decimals(allow_nan=False, allow_infinity=False).map(lambda d: f"{d:f}"),
            st.floats(allow_nan=False).map(repr),
            st.integers().map(str),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_number_changes(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "v.csv"
    found = read(path, "v,n\n" + "".join(f'"{text}",1\n' for text in texts)).column("v")
    for text, value in zip(texts, found.to_pylist(), strict=True):
        if isinstance(value, float):
            # Python reads the same double; nothing but digits that no double has may differ.
            assert value == float(text)
            assert "e" in text.lower() or Decimal(repr(value)) == Decimal(text.strip())
        elif isinstance(value, (int, Decimal)) and not isinstance(value, bool):
            assert value == Decimal(text.strip())
            assert not text.strip().lstrip("-").startswith("0") or abs(value) < 1
        elif isinstance(value, str):
            assert value == text


def test_bytes_that_are_no_utf8_stay_bytes(file: Path) -> None:
    found = read(file, b"v,n\nM\xfcnchen,1\nGraz,2\n")
    assert found.column("v").to_pylist() == [b"M\xfcnchen", b"Graz"]
    assert found.column("n").to_pylist() == [1, 2]


def test_a_header_alone_has_no_types(file: Path) -> None:
    assert read(file, "a,b\n").schema.types == [pa.null(), pa.null()]


def test_an_existing_type_governs(tmp_path: Path) -> None:
    known = {
        "zip": "string", "n": "double", "p": "decimal(10,2)", "i": "short", "at": "timestamp",
        "local": "timestamp_ntz", "day": "date", "raw": "binary", "ok": "boolean", "f": "float",
    }  # fmt: skip
    text = (
        "ZIP,n,p,i,at,local,day,raw,ok,f\n"
        "1234,5,7,8,2026-01-31T10:00:00Z,2026-01-31 10:00:00,2026-01-31,ab,1,1.5\n"
        "NULL,,,NULL,,,,,,\n"
    )
    path = tmp_path / "rows.csv.gz"
    found = read(path, gzip.compress(text.encode()), known=known)
    assert found.schema.names == ["ZIP", *list(known)[1:]]
    assert found.schema.types == [
        pa.string(), pa.float64(), pa.decimal128(10, 2), pa.int16(), pa.timestamp("us", "UTC"),
        pa.timestamp("us"), pa.date32(), pa.binary(), pa.bool_(), pa.float32(),
    ]  # fmt: skip
    first, second = found.to_pylist()
    assert list(first.values()) == [
        "1234", 5.0, Decimal(7), 8, datetime(2026, 1, 31, 10, tzinfo=timezone.utc),
        datetime(2026, 1, 31, 10), date(2026, 1, 31), b"ab", True, 1.5,
    ]  # fmt: skip
    assert list(second.values()) == ["NULL", None, None, None, None, None, None, b"", None, None]


@pytest.mark.parametrize("rows", [1, LARGE])
def test_every_bad_column_is_named_with_its_first_row(file: Path, rows: int) -> None:
    text = (
        "id,price,qty,note\n"
        + f"1,2.5,3,{PAD}\n" * rows
        + '2,"1,234.50",4,y\n3,5,many,z\n4,x,y,z\n'
    )
    with pytest.raises(DataFileError) as caught:
        read(file, text, known={"id": "long", "price": "double", "qty": "integer"})
    error = caught.value
    assert (error.file, error.row, error.column) == ("rows.csv", rows + 1, "price")
    assert error.message == (
        "2 columns have values of other types: "
        f"'1,234.50' in row {rows + 1} of column 'price' is not of type double; "
        f"'many' in row {rows + 2} of column 'qty' is not of type integer."
    )
    assert error.hint == (
        "correct the values: write a value of type double as a number without units and"
        " separators, such as 1234.5; a value of type integer as a whole number without a decimal"
        " point, at most 2147483647, such as 12."
    )


def test_one_bad_column(file: Path) -> None:
    with pytest.raises(DataFileError) as caught:
        read(file, "v,w\n1,2\nx,3\n", known={"v": "long"})
    assert caught.value.message == "'x' in row 2 of column 'v' is not of type long."
    assert (caught.value.row, caught.value.column) == (2, "v")


@pytest.mark.parametrize(
    ("known", "text", "form"),
    [
        ("boolean", "yes", "true or false"),
        ("byte", "1.0", "a whole number without a decimal point, at most 127, such as 12"),
        ("double", "10%", "a number without units and separators, such as 1234.5"),
        ("double", "€12.50", "a number without units and separators, such as 1234.5"),
        ("date", "31.01.2026", "a date such as 2026-01-31"),
        ("timestamp", "31.01.2026 10:00", "a time such as 2026-01-31T10:00:00Z"),
        ("timestamp_ntz", "x", "a time without a zone, such as 2026-01-31 10:00:00"),
        ("decimal(3,0)", "1.5", "a whole number without a decimal point, at most 999, such as 12"),
        (
            "decimal(10,2)",
            "1.255",
            "a number rounded to 2 digits after the point, with at most 8 before it, such as 0.50",
        ),
    ],
)
def test_a_hint_has_an_accepted_form_of_the_type(
    file: Path, known: str, text: str, form: str
) -> None:
    with pytest.raises(DataFileError) as caught:
        read(file, f"v\n{text}\n", known={"v": known})
    hint = f"correct the values: write a value of type {known} as {form}"
    assert caught.value.hint.removesuffix(", or publish and mirror with widen=True (--widen).") in (
        hint,
        f"{hint}.",
    )
    example = form.rpartition("such as ")[2].replace("true or false", "true")
    assert read(file, f"v\n{example}\n", known={"v": known}).num_rows == 1


def test_the_hint_for_whole_numbers_names_more_than_a_wider_type(file: Path) -> None:
    with pytest.raises(DataFileError, match=r"'9001\.0' in row 1 .* not of type long") as caught:
        read(file, "v\n9001.0\n", known={"v": "long"})
    assert caught.value.hint == (
        "correct the values: write a value of type long as a whole number without a decimal point,"
        " at most 9223372036854775807, such as 12, or publish and mirror with widen=True (--widen)."
    )


@pytest.mark.parametrize(
    ("known", "text", "kind"),
    [
        ("integer", "7", pa.int32()),  # what fits stays
        ("integer", str(2**40), pa.int64()),
        ("integer", "1.5", pa.float64()),
        ("long", "1.5", pa.decimal128(28, 8)),
        ("decimal(10,2)", "1.255", pa.decimal128(28, 8)),
        ("date", "2026-01-31 10:00:00", pa.timestamp("us")),
        ("long", "x", None),
        ("long", "1e5", None),
        ("double", "12345678901234567890123", pa.float64()),
        ("timestamp", "x", None),
    ],
)
def test_widening_is_what_the_mirror_does_without_loss(
    file: Path, known: str, text: str, kind: pa.DataType | None
) -> None:
    rows = f"v,n\n{text},1\n"
    if kind is not None:
        assert read(file, rows, known={"v": known}, widen=True).schema.field("v").type == kind
    else:
        with pytest.raises(DataFileError, match="is not of type"):
            read(file, rows, known={"v": known}, widen=True)
    if text not in ("7", "12345678901234567890123"):
        with pytest.raises(DataFileError, match="is not of type") as caught:
            read(file, rows, known={"v": known})
        assert ("widen=True" in caught.value.hint) == (kind is not None)


def test_a_declared_type_goes_first_and_is_not_widened(file: Path) -> None:
    text = "zip,price\n1234,5\n"
    declared = {"zip": "string", "price": "decimal(18,2)"}
    assert read(file, text, declared=declared).to_pylist() == [{"zip": "1234", "price": Decimal(5)}]
    with pytest.raises(DataFileError, match="row 1 of column 'price' is not of type"):
        read(file, text.replace(",5", ",5.125"), declared=declared, widen=True)


@pytest.mark.parametrize(("text", "row"), [("a,b\n1,2\n3,4\n5\n", 3), ("a,b\n1,2,3\n", 1)])
def test_a_row_of_another_length_is_named(file: Path, text: str, row: int) -> None:
    with pytest.raises(MirrorlakeError) as caught:
        read(file, text)
    assert (caught.value.file, caught.value.row) == ("rows.csv", row)
    assert "commas between the values, in UTF-8" in caught.value.hint


def test_the_page_on_csv_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PROJECT / "docs/how-to/csv.md").read_text(encoding="utf-8")
    code, document = (
        page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("python", "json")
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports/stock.csv").write_text("id,zip\n1,01234\n")
    place: dict[str, Any] = {}
    exec(code, place)
    lake = place["lake"]
    batch = lake.publisher("stock").upsert([{"id": 2, "zip": "5"}])
    assert (batch.file, batch.columns) == (file_name(2), {"id": "long", "zip": "string"})
    other = tmp_path / "my-lake/Files/LandingZone/other"
    other.mkdir()
    (other / "_metadata.json").write_text(document)
    (other / file_name(1)).with_suffix(".csv").write_text("id;zip\n1;01234\n")
    report = lake.lint()
    assert report.errors == ()
    assert (other / "_metadata.json").read_text() == document


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_quote_that_is_not_closed_swallows_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, end: str
) -> None:
    def write(text: str) -> pa.Table:
        data = (text + end).encode()
        return read(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)

    with pytest.raises(DataFileError, match="quote is not closed") as caught:
        write('id,v\n1,a\n2,"b\n3,c')
    assert (caught.value.file, caught.value.row) == (name, 2)
    monkeypatch.setattr(sources, "_READ", pacsv.ReadOptions(use_threads=False, block_size=1000))
    with pytest.raises(DataFileError, match="a quote is not closed"):
        write('id,v\n1,"' + "b\n3,c\n" * 1000)
    assert write('id,v\n1,5" pipe\n2,"x\ny"').column("v").to_pylist() == ['5" pipe', "x\ny"]
    assert write("id,v\n").num_rows == 0


def test_a_header_in_another_encoding_is_refused_with_a_fix(file: Path) -> None:
    with pytest.raises(DataFileError, match="not a readable CSV file") as caught:
        read(file, b"id,stra\xdfe\n1,x\n")
    assert "UTF-8" in caught.value.hint


def test_a_new_column_that_is_not_utf8_is_reported(file: Path) -> None:
    stock = Lake(file.parent / "lake").publisher("stock")
    file.write_bytes(b"id,city\n1,M\xfcnchen\n")
    assert "'city'" in str(stock.write(file).warning)
    assert stock.write(file).warning is None  # the table has the column
