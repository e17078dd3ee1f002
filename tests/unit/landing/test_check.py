from __future__ import annotations

import io
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.markers import MARKER, Marker
from mirrorlake.errors import DataFileError, MirrorlakeError, SchemaError
from mirrorlake.landing import check
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.storage.files import Storage

NAME = "00000000000000000001.parquet"
KEYED = TableMetadata(("id",))
FREE = TableMetadata()
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
            pa.uint64()]  # fmt: skip


def put(storage: Storage, data: pa.Table | dict, **options) -> str:
    with storage.open_writer(NAME) as sink:
        pq.write_table(data if isinstance(data, pa.Table) else pa.table(data), sink, **options)
    return NAME


def inspect(storage: Storage, data: pa.Table | dict, metadata=KEYED, **options):
    return check.inspect_file(storage, put(storage, data, **options), metadata)


def refused(storage: Storage, data, metadata=KEYED, **options) -> MirrorlakeError:
    with pytest.raises(MirrorlakeError) as caught:
        inspect(storage, data, metadata, **options)
    assert caught.value.file == NAME
    return caught.value


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (pa.array([3000000, 3000000], pa.date32()), "…"),  # after the year 9999
        (pa.array([b"\xff", b"\xff"]).view(pa.string()), "…"),
        (pa.array(["x" * 1000] * 2), "x" * 100),
    ],
    ids=["date", "utf-8", "long"],
)
def test_repeated_keys_of_every_value_are_found(storage: Storage, ids, shown):
    facts = check.inspect_file(storage, put(storage, {"id": ids}), KEYED, compare_keys=True)
    assert facts.repeated_key == (1, f"Rows 1 and 2 have the same key (id={shown}).")


@pytest.mark.promise("LZ-16")
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_markers_of_every_whole_number_type(any_storage: Storage, kind):
    facts = inspect(any_storage, {"id": range(6), MARKER: pa.array([0, 1, 2, 4, 4, 2], kind)})
    expected = {Marker.INSERT: 1, Marker.UPDATE: 1, Marker.DELETE: 2, Marker.UPSERT: 2}
    assert facts.rows == Counter(expected)
    assert facts.row_count == 6
    assert facts.marker == MARKER
    assert list(facts.columns) == ["id"]
    assert facts.name == NAME
    assert facts.size == len(any_storage.read(NAME))


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("spelling", [MARKER, "__ROWMARKER__"])
def test_marker_in_any_place_and_case(storage: Storage, place, spelling):
    columns = [("id", [1]), ("item", ["a"])]
    columns.insert(place, (spelling, [4]))
    facts = inspect(storage, dict(columns))
    assert facts.marker == spelling
    assert list(facts.columns) == ["id", "item"]
    assert facts.rows == {Marker.UPSERT: 1}


def test_a_column_named_nearly_like_the_marker_is_data(storage: Storage):
    facts = inspect(storage, {f"{MARKER}.x": [9], "id": [1], MARKER: [0]})
    assert list(facts.columns) == [f"{MARKER}.x", "id"]
    assert facts.rows == {Marker.INSERT: 1}


@pytest.mark.promise("LZ-15")
def test_without_a_marker_all_rows_are_inserts(storage: Storage):
    facts = inspect(storage, {"id": range(5)}, FREE)
    assert (facts.marker, facts.rows) == (None, {Marker.INSERT: 5})


def test_without_a_marker_all_rows_are_upserts_where_the_folder_says_so(storage: Storage):
    metadata = TableMetadata(("id",), upsert_by_default=True)
    assert inspect(storage, {"id": range(5)}, metadata).rows == {Marker.UPSERT: 5}
    facts = inspect(storage, {"id": range(4), MARKER: pa.array([None, 0, None, 2])}, metadata)
    assert facts.rows == {Marker.UPSERT: 2, Marker.INSERT: 1, Marker.DELETE: 1}


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["4"]), pa.array([4.0]), pa.array([True]), pa.array([None]),
        pa.array([[4]]),
    ],
    ids=lambda values: str(values.type),
)  # fmt: skip
def test_marker_of_another_type(storage: Storage, values):
    error = refused(storage, {"id": [1], MARKER: values})
    assert isinstance(error, DataFileError)
    assert error.column == MARKER
    assert "0 (insert), 1 (update), 2 (delete) or 4 (upsert)" in error.hint


@pytest.mark.parametrize("value", [3, 5, -1, 2**62, None])
@pytest.mark.parametrize("row", [1, 7, 10, 11, 25])
def test_unknown_marker_with_its_row(any_storage: Storage, value, row):
    markers = [4] * 25
    markers[row - 1] = value
    markers[24] = value  # only the first is named
    data = {"id": range(25), MARKER: pa.array(markers, pa.int64())}
    error = refused(any_storage, data, row_group_size=10)
    assert (error.row, error.column) == (row, MARKER)
    assert f"Unknown row marker {'NULL' if value is None else value}." in error.message


@pytest.mark.promise("LZ-05")
@pytest.mark.parametrize("marker", [Marker.UPDATE, Marker.DELETE, Marker.UPSERT])
def test_without_keys_only_inserts(storage: Storage, marker):
    assert inspect(storage, {"id": [1], MARKER: [0]}, FREE).rows == {Marker.INSERT: 1}
    error = refused(storage, {"id": [1, 2], MARKER: [0, int(marker)]}, FREE)
    assert marker.name.lower() in error.message
    assert "keyColumns" in error.hint
    assert error.column == MARKER


@pytest.mark.promise("LZ-05")
def test_without_keys_no_upserts_by_default(storage: Storage):
    assert "upsert rows" in refused(storage, {"id": [1]}, TableMetadata((), True)).message


def test_keys_are_found_without_regard_to_case(storage: Storage):
    assert inspect(storage, {"ID": [1]}).row_count == 1


@pytest.mark.promise("LZ-04")
def test_a_key_column_is_missing(storage: Storage):
    error = refused(storage, {"id": [1]}, TableMetadata(("id", "region")))
    assert (error.column, error.row) == ("region", None)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("row", [1, 10, 11, 23])
def test_a_key_is_null_with_its_row(any_storage: Storage, statistics, row):
    second = [f"r{i}" for i in range(25)]
    second[row - 1] = None
    second[24] = None
    data = {"id": range(25), "region": second, "item": pa.nulls(25, pa.string())}
    error = refused(
        any_storage,
        data,
        TableMetadata(("id", "REGION")),
        row_group_size=10,
        write_statistics=statistics,
    )
    assert (error.row, error.column) == (row, "region")
    assert isinstance(error, DataFileError)


def test_the_statistics_of_a_namesake_do_not_speak_for_a_key(storage: Storage):
    data = {"a": [{"b": 1}, {"b": 2}], "a.b": pa.array([1, None])}
    assert refused(storage, data, TableMetadata(("a.b",))).row == 2


def test_nulls_outside_the_keys_are_fine(storage: Storage):
    assert inspect(storage, {"id": [1], "item": pa.array([None], pa.string())}).row_count == 1


def test_zero_rows_are_fine(storage: Storage):
    plain = {"id": pa.array([], pa.int64())}
    for columns in (plain, plain | {MARKER: pa.array([], pa.int32())}):
        facts = inspect(storage, columns)
        assert facts.row_count == 0
        assert facts.columns["id"].table == "long"


def test_zero_bytes_are_not(any_storage: Storage):
    any_storage.write(NAME, b"")
    with pytest.raises(DataFileError, match="zero bytes") as caught:
        check.inspect_file(any_storage, NAME, KEYED)
    assert caught.value.file == NAME
    assert "same name" in caught.value.hint


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_file_cut_off_anywhere(storage: Storage, step: int):
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(100), MARKER: [4] * 100}), sink)
    whole = sink.getvalue()
    for length in {*range(1, len(whole), step), *range(len(whole) - 9, len(whole))}:
        storage.write(NAME, whole[:length])
        with pytest.raises(
            DataFileError, match="The file is not a readable Parquet file"
        ) as caught:
            check.inspect_file(storage, NAME, KEYED)
        assert caught.value.file == NAME
        assert check.footer_columns(storage, NAME) == {}


@pytest.mark.parametrize("data", [b"id,item\n1,a\n", b"PAR1", b"PAR1" * 10, b"\0" * 100])
def test_something_else(storage: Storage, data):
    storage.write(NAME, data)
    with pytest.raises(DataFileError, match="The file is not a readable Parquet file"):
        check.inspect_file(storage, NAME, KEYED)


def test_no_file(any_storage: Storage):
    with pytest.raises(FileNotFoundError):
        check.inspect_file(any_storage, NAME, KEYED)


@pytest.mark.parametrize(
    "names", [["id", "item", "item"], ["id", "item", "ITEM"], ["id", MARKER, MARKER.upper()]]
)
def test_two_columns_of_one_name(storage: Storage, names):
    error = refused(storage, pa.table([[1], [0], [0]], names=names))
    assert isinstance(error, SchemaError)
    assert error.column == names[2]


def test_a_type_without_a_counterpart_names_file_and_column(storage: Storage):
    error = refused(storage, {"id": [1], "at": pa.array([None], pa.decimal256(40, 2))})
    assert isinstance(error, SchemaError)
    assert error.column == "at"
    assert error.hint


def test_only_a_marker(storage: Storage):
    assert "no data column" in refused(storage, {MARKER: [0]}, FREE).message


def test_errors_may_call_the_file_otherwise(storage: Storage):
    path = put(storage, {"x": [1]})
    with pytest.raises(DataFileError) as caught:
        check.inspect_file(storage, path, KEYED, name="the batch")
    assert caught.value.file == "the batch"


@pytest.mark.promise("LZ-07")
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4"])
def test_every_compression(storage: Storage, codec):
    facts = inspect(storage, {"id": range(1000), MARKER: [4] * 1000}, compression=codec)
    assert facts.rows == {Marker.UPSERT: 1000}


def test_a_codec_that_spark_lacks_is_refused(storage: Storage):
    """Spark would fail with an error of its own, also if only one column has this codec."""
    codecs = {"id": "snappy", "item": "brotli", MARKER: "none"}
    error = refused(storage, {"id": [1], "item": ["a"], MARKER: [4]}, compression=codecs)
    assert isinstance(error, DataFileError)
    assert (error.file, error.column) == (NAME, "item")
    assert error.message == "The file is compressed with Brotli."
    assert error.hint == "publish it uncompressed, or compressed with Snappy, GZIP, ZSTD or LZ4."


def test_text_annotated_as_json_is_text(storage: Storage):
    facts = inspect(storage, {"id": [1], "doc": pa.array(["{}"], pa.json_())})
    assert facts.columns["doc"].table == "string"


def test_footer_columns(any_storage: Storage):
    put(any_storage, {"id": [1], MARKER: [9], "item": ["a"]})  # the rows are not looked at
    assert {n: c.table for n, c in check.footer_columns(any_storage, NAME).items()} == {
        "id": "long",
        "item": "string",
    }


def test_hash(any_storage: Storage):
    any_storage.write("f", b"abc" * 1_000_000)
    any_storage.write("g", b"abc" * 1_000_000)
    any_storage.write("h", b"abc" * 999_999 + b"abd")
    hashes = [check.file_hash(any_storage, name) for name in "fgh"]
    assert hashes[0] == hashes[1] != hashes[2]
    any_storage.write("f", b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert check.file_hash(any_storage, "f") == empty
