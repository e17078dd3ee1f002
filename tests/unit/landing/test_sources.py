from __future__ import annotations

import gzip
import re
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrorlake import Lake
from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError, SourceError, UsageError
from mirrorlake.landing import casts, sources
from mirrorlake.names import TableName
from mirrorlake_sources.engine import run_source
from mirrorlake_sources.folders import CsvDrops
from mirrorlake_sources.postgres.catalog import Column, PgTable, column_type, problem_of
from mirrorlake_sources.postgres.slot import Slot

ROWS = [{"id": 1, "item": "bolt"}, {"id": 2, "item": "nut"}]
TABLE = pa.Table.from_pylist(ROWS)


class Stream:
    """The interface of other data frame libraries."""

    def __init__(self, batches):
        self._batches = batches

    def __arrow_c_stream__(self, requested_schema=None):
        reader = pa.RecordBatchReader.from_batches(TABLE.schema, self._batches)
        return reader.__arrow_c_stream__(requested_schema)


class Array:
    def __arrow_c_array__(self, requested_schema=None):
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


def read(rows) -> pa.Table:
    reader = sources.open_source(rows)
    assert reader is not None
    return reader.read_all()


@pytest.mark.parametrize(
    "rows",
    [
        ROWS, tuple(ROWS), iter(ROWS), (row for row in ROWS), {"a": ROWS[0], "b": ROWS[1]}.values(),
        pd.DataFrame(ROWS), pd.DataFrame(ROWS, index=[7, 7]), TABLE, TABLE.to_batches()[0],
        TABLE.to_reader(), TABLE.to_batches(), iter(TABLE.to_batches(1)),
        [TABLE.slice(0, 1), TABLE.slice(1)], Stream(TABLE.to_batches(1)), Array(),
    ],
    ids=lambda rows: type(rows).__name__,
)  # fmt: skip
def test_all_that_holds_rows(rows):
    found = read(rows)
    assert found.to_pylist() == ROWS
    assert found.schema.names == ["id", "item"]


@pytest.mark.parametrize("names", [["id"], ["ID"], [None, "id"], ["id", "other"]])
def test_a_key_may_be_the_index_of_a_data_frame(names):
    index = pd.MultiIndex.from_arrays([[1, 2]] * len(names), names=names)
    frame = pd.DataFrame({"item": ["bolt", "nut"]}, index=index)
    found = sources.open_source(frame, keys=["Id", "item"]).read_all()
    assert [name.lower() for name in found.schema.names] == ["id", "item"]
    assert found.column(0).to_pylist() == [1, 2]
    assert read(frame).schema.names == ["item"]


def test_one_dict_is_one_row():
    assert read(ROWS[0]).to_pylist() == ROWS[:1]


@pytest.mark.parametrize("rows", [[], (), iter(()), (x for x in ())])
def test_no_rows_have_no_schema(rows):
    assert sources.open_source(rows) is None


def test_an_empty_frame_has_a_schema():
    assert read(TABLE.slice(0, 0)).schema == TABLE.schema
    assert read(pd.DataFrame(ROWS)[:0]).num_rows == 0


@pytest.mark.parametrize(
    "rows", [1, None, object(), [1], ["text"], [ROWS], b"bytes", pa.array([1, 2]), pd.Series([1])]
)
def test_what_does_not_hold_rows(rows):
    with pytest.raises(UsageError, match="can't be published") as caught:
        sources.open_source(rows)
    assert caught.value.hint


@pytest.mark.parametrize("rows", [[ROWS[0], 5], [*TABLE.to_batches(), ROWS[0]]])
def test_an_odd_one_among_them(rows):
    with pytest.raises(UsageError, match=r"has the type .*, not a (dict|record batch)"):
        read(rows)


def test_an_iterator_of_dicts_is_read_as_it_is_needed():
    taken = 0

    def rows():
        nonlocal taken
        for number in range(10 * sources.BATCH_ROWS):
            taken = number + 1
            yield {"id": number}

    reader = sources.open_source(rows())
    # At most one row more than a batch may have been read.
    for batches in range(1, 4):
        reader.read_next_batch()
        assert taken <= (batches + 1) * sources.BATCH_ROWS + 1


def test_an_iterator_of_batches_is_read_as_it_is_needed():
    taken = 0

    def batches():
        nonlocal taken
        for number in range(10):
            taken += 1
            yield pa.record_batch({"id": [number]})

    reader = sources.open_source(batches())
    for number in range(1, 4):
        reader.read_next_batch()
        assert taken <= number + 1


def test_a_large_table_comes_in_pieces():
    reader = sources.open_source(pa.table({"id": range(2 * sources.BATCH_ROWS + 1)}))
    assert [b.num_rows for b in reader] == [sources.BATCH_ROWS, sources.BATCH_ROWS, 1]


def test_columns_of_dicts_are_united_in_the_order_seen():
    found = read([{"b": 1}, {"a": "x", "b": None}, {"c": None}])
    assert found.schema.names == ["b", "a", "c"]
    assert found.to_pylist()[1] == {"b": None, "a": "x", "c": None}
    assert found.schema.field("c").type == pa.null()


def test_all_of_a_list_takes_part_in_finding_the_schema():
    rows = [{"id": n} for n in range(sources.BATCH_ROWS)] + [{"id": 1.5, "late": "x"}]
    assert read(rows).schema.field("id").type == pa.float64()


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ({"id": "x"}, "not of type long"),
        ({"id": 1.5}, "not of type long"),
        ({"id": 2**63}, "not of type long"),
        ({"id": 1, "late": 1}, "is missing in the first"),
    ],
)
def test_a_late_row_that_does_not_fit_is_named(last, error):
    rows = [{"id": n} for n in range(sources.BATCH_ROWS + 10)]
    rows[sources.BATCH_ROWS + 4] = last
    with pytest.raises(SchemaError, match=error) as caught:
        read(iter(rows))
    assert (caught.value.row, caught.value.column) == (sources.BATCH_ROWS + 5, list(last)[-1])


@pytest.mark.parametrize(
    ("first", "late"),
    [
        (1, 1.5),
        (1, True),
        (True, 1),
        ("a", 1),
        (1, "1"),
        (date(2020, 1, 1), datetime(2020, 1, 1, 5)),
        (datetime(2020, 1, 1), 5),
        (Decimal("1.25"), Decimal("1E-9")),
        ([1], [1.5]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (b"a", "a"),
        (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=timezone.utc)),
    ],
)
def test_a_late_value_is_never_changed_to_fit(first, late):
    rows = [{"v": first}] * sources.BATCH_ROWS + [{"v": first}, {"v": late}]
    with pytest.raises(SchemaError, match="is not of type") as caught:
        read(iter(rows))
    assert (caught.value.row, caught.value.column) == (sources.BATCH_ROWS + 2, "v")


@pytest.mark.parametrize(
    ("first", "late"),
    [
        (1, 1.0),
        (1.5, 2),
        (1, None),
        (Decimal("1.25"), Decimal("3.5")),
        (Decimal("1"), Decimal("1.255")),
        (Decimal("1.25"), 3),
        ([1], []),
        ({"a": 1}, {"a": None}),
        (datetime(2020, 1, 1), date(2020, 1, 1)),
    ],
)
def test_a_late_value_of_a_kindred_type_is_kept(first, late):
    found = read(iter([{"v": first}] * sources.BATCH_ROWS + [{"v": late}]))["v"][-1].as_py()
    assert found == (datetime(2020, 1, 1) if isinstance(late, date) else late)


@pytest.mark.parametrize("bad", ["x", 2**64, "\ud800", object(), {"a": 1}])
def test_values_that_do_not_agree_are_named(bad):
    rows = [{"id": 1, "v": n} for n in range(10)]
    rows[6]["v"] = bad
    with pytest.raises(SchemaError) as caught:
        sources.open_source(rows)
    assert (caught.value.row, caught.value.column) == (7, "v")


@pytest.mark.parametrize(
    ("first", "bad"),
    [
        (date(2020, 1, 1), datetime(2020, 1, 1, 5)),
        (datetime(2020, 1, 1), date(2020, 1, 1)),
        (datetime(2020, 1, 1), 5),
        (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=timezone.utc)),
        (b"a", "a"),
        (True, 1),
    ],
)
def test_values_that_only_look_alike_are_not_mixed(first, bad):
    with pytest.raises(SchemaError, match="can't be converted to one type") as caught:
        sources.open_source([{"v": first}] * 5 + [{"v": bad}])
    assert (caught.value.row, caught.value.column) == (6, "v")


@pytest.mark.parametrize(("rows", "match"), [([{}], "no columns"), ([{1: 2}], "not a string")])
def test_dicts_without_column_names(rows, match):
    with pytest.raises(SchemaError, match=match):
        sources.open_source(rows)


@pytest.mark.parametrize(
    ("values", "row", "kinds"),
    [
        ([1, None, "x", None], 3, "str after int"),
        (["x", float("nan"), 1], 3, "int after str"),
        ([date(2020, 1, 1), None, datetime(2020, 1, 1, 5)], 3, "datetime after date"),
        ([datetime(2020, 1, 1), date(2020, 1, 1)], 2, "date after datetime"),
        (["a", b"a"], 2, "bytes after str"),
        (["\ud800"], 1, "surrogates not allowed"),
    ],
)
def test_a_data_frame_with_a_mixed_column_names_its_row_and_types(values, row, kinds):
    frame = pd.DataFrame({"id": range(len(values)), "v": pd.Series(values, dtype="object")})
    with pytest.raises(SchemaError, match=kinds) as caught:
        sources.open_source(frame.set_index(pd.Index([0.5] * len(frame))))
    assert (caught.value.row, caught.value.column) == (row, "v")


def test_a_data_frame_that_has_no_types():
    with pytest.raises(SchemaError, match="data frame"):
        sources.open_source(pd.DataFrame([[1, 2]], columns=["id", "id"]))


def test_a_data_frame_with_objects_of_one_type():
    days = [date(2020, 1, 1), None, pd.NaT]
    times = [datetime(2020, 1, 1), pd.Timestamp("2020-01-02"), float("nan")]
    frame = pd.DataFrame({"d": days, "t": times, "b": [b"a", None, b"b"]}, dtype="object")
    found = read(frame).to_pydict()
    assert found["d"] == [date(2020, 1, 1), None, None]
    assert found["t"] == [datetime(2020, 1, 1), datetime(2020, 1, 2), None]
    assert found["b"] == [b"a", None, b"b"]


@pytest.mark.parametrize(
    "second",
    [{"id": [2], "extra": ["lost?"]}, {}, {"id": ["7"]}, {"id": [7.0]}, {"ID": [2]}],
)
def test_batches_of_another_schema_are_refused_not_cut_to_fit(second):
    batches = [pa.record_batch({"id": [1]}), pa.record_batch(second)]
    with pytest.raises(SchemaError, match="batch after 1 rows") as caught:
        read(iter(batches))
    assert caught.value.row == 2
    assert caught.value.column in {"id", "ID", "extra"}


def test_an_error_of_the_caller_stays_what_it_is():
    def rows():
        yield from ROWS * sources.BATCH_ROWS
        raise ZeroDivisionError("the caller's")

    with pytest.raises(ZeroDivisionError, match="the caller's"):
        read(rows())


def test_parquet_files(tmp_path):
    path = tmp_path / "rows.PARQUET"
    pq.write_table(TABLE, path)
    assert read(path).to_pylist() == read(str(path)).to_pylist() == ROWS


@pytest.mark.parametrize("name", ["rows.csv", "rows.CSV", "rows.csv.gz"])
def test_csv_files(tmp_path, name):
    data = b"id,item\n1,bolt\n2,nut\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read(tmp_path / name).to_pylist() == ROWS


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b""),
        ("a.csv", b"id,x\n1,2\n3\n"),
        ("a.parquet", b""),
        ("a.parquet", b"no parquet"),
    ],
    ids=["empty csv", "ragged csv", "empty parquet", "no parquet"],
)
def test_broken_files_are_named(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataFileError) as caught:
        read(tmp_path / name)
    assert caught.value.file == name


def test_a_parquet_file_whose_pages_are_broken_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": [f"x{n}" for n in range(100_000)]}), path)
    data = bytearray(path.read_bytes())
    data[1000:2000] = b"\xff" * 1000
    path.write_bytes(data)
    with pytest.raises(DataFileError) as caught:
        read(path)
    assert caught.value.file == "a.parquet"


def test_no_such_file(tmp_path):
    with pytest.raises(UsageError, match="There is no file"):
        sources.open_source(tmp_path / "a.parquet")
    with pytest.raises(MirrorlakeError):
        sources.open_source(tmp_path)


def cast(values: pa.Array, known: str | None = None) -> pa.Array:
    batch = pa.record_batch({"v": values})
    wanted = casts.wanted_schema(batch.schema)
    schema = casts.target_schema(wanted, {} if known is None else {"v": known})
    return casts.cast_batch(batch, schema, 0).column(0)


NANOS = pa.array([1_999, -1, -1_000, -1_001, None, 0], pa.int64())


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_become_microseconds_and_are_cut_off_downwards(zone):
    found = cast(NANOS.cast(pa.timestamp("ns", zone)))
    assert found.type == pa.timestamp("us", zone)
    assert found.cast(pa.int64()).to_pylist() == [1, -1, -1, -2, None, 0]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_other_units_become_microseconds_too(unit):
    found = cast(pa.array([datetime(1969, 12, 31, 23, 59, 59)], pa.timestamp(unit)))
    assert found.type == pa.timestamp("us")
    assert found.to_pylist() == [datetime(1969, 12, 31, 23, 59, 59)]


def test_seconds_beyond_the_range_of_microseconds():
    with pytest.raises(SchemaError) as caught:
        cast(pa.array([0, 2**60], pa.timestamp("s")))
    assert (caught.value.row, caught.value.column) == (2, "v")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_of_one_unit(unit):
    two_seconds = pa.array([2_000_000_000], pa.int64()).cast(pa.duration("ns"))
    found = cast(two_seconds.cast(pa.duration(unit)))
    assert found.type == pa.duration("us")
    assert found.cast(pa.int64()).to_pylist() == [2_000_000]


def test_dictionaries_become_plain():
    for values in (["a", None, "a"], [datetime(2020, 1, 1)]):
        found = cast(pa.array(values).dictionary_encode())
        assert found.to_pylist() == values
    assert found.type == pa.timestamp("us")
    views = pa.array(["a", "b"], pa.string_view())  # the categories of polars
    indices = pa.array([1, None, 0, 1], pa.uint32())
    assert cast(pa.DictionaryArray.from_arrays(indices, views)).to_pylist() == ["b", None, "a", "b"]


FITTING = [
    (pa.array([1, None]), "byte", pa.int8()),
    (pa.array([127.0]), "byte", pa.int8()),
    (pa.array([2**53]), "double", pa.float64()),
    (pa.array([1, 2]), "decimal(10,2)", pa.decimal128(10, 2)),
    (pa.array([0.1, None, 1.25]), "decimal(10,2)", pa.decimal128(10, 2)),
    (pa.array([Decimal("0.10"), None]), "double", pa.float64()),
    (pa.array([Decimal("1.2")]), "decimal(10,2)", pa.decimal128(2, 1)),
    (pa.array([Decimal("1.20000")]), "decimal(10,2)", pa.decimal128(10, 2)),
    (pa.array([2**63], pa.uint64()), "decimal(19,0)", pa.decimal128(19, 0)),
    (pa.array([2**63], pa.uint64()), "decimal(20,0)", pa.uint64()),
    (pa.array([1], pa.uint64()), "long", pa.int64()),
    (pa.array([date(2020, 2, 29)]), "timestamp_ntz", pa.timestamp("us")),
    (pa.array([None]), "string", pa.string()),
    (pa.array([None]), "timestamp", pa.timestamp("us", "UTC")),
    (pa.array([1], pa.int8()), "long", pa.int8()),
    (pa.array([1.5], pa.float32()), "double", pa.float32()),
    (pa.array(["{}"], pa.json_()), "string", pa.string()),
]


@pytest.mark.parametrize(("values", "known", "expected"), FITTING, ids=str)
def test_values_that_fit_take_the_tables_type(values, known, expected):
    found = cast(values, known)
    assert found.type == expected
    assert found.null_count == values.null_count


def test_a_double_becomes_the_nearest_float():
    found = cast(pa.array([0.1, float("inf"), float("nan"), None]), "float")
    assert found[0].as_py() == pytest.approx(0.1, rel=1e-7)
    assert found[1].as_py() == float("inf")


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (pa.array([1, 128]), "byte"),
        (pa.array([1.0, 1.5]), "long"),
        (pa.array([1.0, float("nan")]), "long"),
        (pa.array([0, 2**53 + 1]), "double"),
        (pa.array([1.0, 1e300]), "float"),
        (pa.array([1, 10**8]), "decimal(10,2)"),
        (pa.array([0.1, 0.125]), "decimal(10,2)"),
        (pa.array([0.1, 1e9]), "decimal(10,2)"),
        (pa.array([Decimal("0"), Decimal("1.234")]), "decimal(10,2)"),
        (pa.array([Decimal("0.5"), Decimal("12345678901234567890.5")]), "double"),
        (pa.array([1, 2**63], pa.uint64()), "long"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named_and_never_changed(values, known):
    with pytest.raises(SchemaError, match="does not fit") as caught:
        cast(values, known)
    assert (caught.value.row, caught.value.column) == (2, "v")


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (pa.array(["1"]), "long"),
        (pa.array(["1.5"]), "double"),
        (pa.array(["1"]), "decimal(10,0)"),
        (pa.array(["2020-01-01"]), "date"),
        (pa.array(["true"]), "boolean"),
        (pa.array([1]), "string"),
        (pa.array([1]), "boolean"),
        (pa.array([True]), "long"),
        (pa.array([b"1"]), "string"),
        (pa.array([1]), "timestamp"),
        (pa.array([datetime(2020, 1, 1)]), "timestamp"),
        (pa.array([datetime(2020, 1, 1, tzinfo=timezone.utc)]), "timestamp_ntz"),
        (pa.array([datetime(2020, 1, 1, tzinfo=timezone.utc)]), "date"),
        (pa.array([[1]]), "long"),
    ],
    ids=str,
)
def test_text_never_becomes_a_number_nor_anything_else(values, known):
    with pytest.raises(SchemaError, match=re.escape(f"but the table has {known}")):
        cast(values, known)


def test_two_columns_of_one_name():
    for names in (["id", "id"], ["id", "ID"]):
        with pytest.raises(SchemaError, match="occurs twice"):
            casts.wanted_schema(pa.schema([(name, pa.int64()) for name in names]))


def test_the_keys_of_csv_folders_may_be_one_text(tmp_path: Path) -> None:
    folder = tmp_path / "drops" / "orders"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,day,n\n1,2,3\n")
    lake = Lake(tmp_path / "lake")
    run_source(lake.storage, CsvDrops(folder.parent, keys={"orders": "id, day"}))
    assert lake.publisher("orders", dry_run=True).keys == ("id", "day")


def test_a_declared_decimal_takes_large_whole_numbers():
    found = sources.open_source([{"v": 2**100}, {"v": 1}], declared={"v": "decimal(38,0)"})
    assert found.read_all().to_pylist() == [{"v": Decimal(2**100)}, {"v": Decimal(1)}]
    with pytest.raises(SchemaError, match="one type") as caught:
        sources.open_source([{"v": 2**100}])
    assert "decimal(38,0)" in caught.value.hint


def test_a_dict_of_columns_is_not_one_row():
    with pytest.raises(UsageError, match="dict of columns") as caught:
        sources.open_source({"id": [1, 2], "v": [3, 4]})
    assert "list of dicts" in caught.value.hint
    assert sources.open_source({"id": 1, "v": [3, 4]}).read_all().num_rows == 1


def test_a_data_frame_without_rows_and_columns_has_no_rows():
    assert sources.open_source(pd.DataFrame([])) is None


@pytest.mark.parametrize(
    ("identity", "toast", "statement"),
    [
        ("d", "refuse", 'ALTER TABLE "sales"."t" REPLICA IDENTITY FULL;'),
        ("n", "lookup", 'ALTER TABLE "sales"."t" REPLICA IDENTITY DEFAULT;'),
        ("d", "lookup", None),
        ("f", "refuse", None),
    ],
)
def test_a_hint_ends_with_the_statement_to_paste(
    identity: str, toast: str, statement: str | None
) -> None:
    columns = (
        Column(1, "id", 23, -1, column_type(23, -1)),
        Column(2, "name", 25, -1, column_type(25, -1), toastable=True),
    )
    table = PgTable(TableName("sales", "t"), 1, identity, columns, ("id",), (), "")
    problem = problem_of(table, toast=toast)
    if statement is None:
        assert problem is None
        return
    assert problem is not None
    assert problem.hint.rpartition(": ")[2] == statement
    if toast == "refuse":
        assert "updates that do not change a large value would not contain it" in problem.message


@pytest.mark.parametrize(("number", "version"), [(90624, "9"), (120022, "12")])
def test_an_older_server_is_refused_before_any_query(number: int, version: str) -> None:
    connection = SimpleNamespace(info=SimpleNamespace(server_version=number))
    with pytest.raises(SourceError, match=rf"is PostgreSQL {version}\. .* needs 13 or newer"):
        Slot(connection, "mirrorlake").check_server()


@pytest.mark.parametrize("name", ["stock.xlsx", "stock.tsv"])
def test_a_file_of_another_format_is_named_as_such(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"PK id\tn\n1\t2\n")
    with pytest.raises(DataFileError, match="neither a Parquet nor a CSV file") as caught:
        sources.open_source(path)
    assert caught.value.hint == "export it again as a .parquet, .csv or .csv.gz file."


def test_the_hint_for_a_missing_file_begins_with_the_path(tmp_path):
    with pytest.raises(UsageError) as caught:
        sources.open_source(tmp_path / "stock.csv")
    assert caught.value.hint == "check the path. In Python, pass rows or keys as a list."


@pytest.mark.parametrize("source", ["exports", "exports/*.csv"])
def test_the_hint_for_a_folder_or_pattern_names_lake_publish(tmp_path, source):
    (tmp_path / "exports").mkdir()
    with pytest.raises(UsageError, match=r"is a folder|There is no file") as caught:
        sources.open_source(tmp_path / source)
    assert "lake.publish(table, source)" in caught.value.hint
