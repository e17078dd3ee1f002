from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.markers import MARKER, UNCHANGED
from helpers.places import PROCESSED, READY_TO_DELETE
from helpers.zones import KEYED, T, Zone
from mirrorlake import Lake, Publisher
from mirrorlake.errors import DataFileError, MetadataError, MirrorlakeError, SchemaError, UsageError
from mirrorlake.landing import check, zone
from mirrorlake.landing.metadata import TableMetadata, ensure_identity
from mirrorlake.landing.publisher import Partner
from mirrorlake.landing.zone import list_folder
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage

ROWS = [{"id": 1, "item": "bolt"}, {"id": 2, "item": "nut"}]


@pytest.fixture
def publisher(any_storage: Storage, table: TableName) -> Publisher:
    return Publisher(any_storage, table, keys=["id"])


def files(storage: Storage, table: TableName) -> list[str]:
    return [e.name for e in storage.list(table.folder).files if e.name != "_metadata.json"]


def footer(storage: Storage, table: TableName, number: int) -> pq.FileMetaData:
    with storage.open(f"{table.folder}/{file_name(number)}") as source:
        return pq.read_metadata(source)


def put(storage: Storage, table: TableName, number: int, data: pa.Table) -> None:
    with storage.open_writer(f"{table.folder}/{file_name(number)}") as sink:
        pq.write_table(data, sink)


@pytest.mark.parametrize(
    ("verb", "marker"),
    [
        pytest.param("insert", 0, marks=pytest.mark.promise("LZ-08")),
        pytest.param("update", 1, marks=pytest.mark.promise("LZ-09")),
        pytest.param("upsert", 4, marks=pytest.mark.promise("LZ-11")),
    ],
)
def test_every_verb_has_its_marker_in_the_last_column(publisher, read, verb, marker):
    done = getattr(publisher, verb)(ROWS)
    assert read(done) == [row | {MARKER: marker} for row in ROWS]
    assert list(read(done)[0])[-1] == MARKER
    assert (done.table, done.file, done.rows) == ("t", file_name(1), 2)
    assert repr(done).startswith(f"t: {file_name(1)}, 2 rows, ")


@pytest.mark.promise("LZ-10")
@pytest.mark.promise("LZ-19")
def test_delete_keeps_only_the_keys(publisher, read):
    assert read(publisher.delete([{"item": "bolt", "ID": 1}])) == [{"ID": 1, MARKER: 2}]


@pytest.mark.parametrize("values", [[1, 2], (1, 2), range(1, 3), {1, 2}, [{"id": 1}, 2]])
def test_delete_by_the_values_of_the_key(publisher, read, values):
    assert read(publisher.delete(values)) == [{"id": 1, MARKER: 2}, {"id": 2, MARKER: 2}]


def test_tuples_delete_by_several_keys(any_storage, table, read):
    publisher = Publisher(any_storage, table, keys=["id", "day"])
    assert read(publisher.delete([(1, 7)])) == [{"id": 1, "day": 7, MARKER: 2}]
    for values in ([1, 2], [(1, 7, 2)]):
        with pytest.raises(UsageError, match=r"is not a key of t.*the key columns id, day"):
            publisher.delete(values)


def test_a_table_without_keys_has_none_to_delete_by(any_storage, table):
    with pytest.raises(UsageError, match=r"t has no keys.*as keys"):
        Publisher(any_storage, table).delete([1])
    with pytest.raises(DataFileError, match=r"no key columns. .*as keys \(--keys\)"):
        Publisher(any_storage, table).upsert([{"id": 1}])


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_key_of_a_new_table_that_is_not_a_column(any_storage, table, dry_run):
    publisher = Publisher(any_storage, table, keys=["idd"], dry_run=dry_run)
    with pytest.raises(DataFileError, match="'idd' is missing") as caught:
        publisher.upsert([{"id": 1}])
    assert caught.value.hint == "name columns of the rows in keys (--keys)."


@pytest.mark.parametrize("marker", ["update", "upsert"])
def test_an_update_that_adds_a_column_is_a_warning(publisher, any_storage, table, caplog, marker):
    untyped = {"id": 1, "note": None}
    assert publisher.publish([untyped | {"item": "bolt"}], marker).warning is None  # the first
    assert publisher.publish([untyped | {"ITEM": "nut"}], marker).warning is None
    rows = [{"id": 1, "itme": "nut", "n": 1}]
    for dry_run in (True, False):
        again = Publisher(any_storage, table, dry_run=dry_run)
        done = again.publish(rows, marker)
        assert done.warning.startswith(f"The {marker} adds the columns 'itme', 'n' to t. Column ")
        assert "Hint: check the spelling" in caplog.text
    assert "adds" not in again.publish(rows, marker).warning  # known by now
    assert again.insert([{"id": 2, "other": "nut"}]).warning is None
    declared = Publisher(any_storage, table, types={"shelf": "long"})
    row = {"id": 1, "item": "nut", "itme": "nut", "n": 1, "other": "nut", "shelf": 4}
    assert declared.publish([row], marker).warning is None


@pytest.mark.parametrize("marker", ["update", "upsert"])
def test_an_update_that_lacks_columns_is_a_warning(any_storage, table, tmp_path, caplog, marker):
    row = {"id": 1} | {f"c{n}": n for n in range(7)}
    Publisher(any_storage, table, keys=["id"]).insert([row])
    path = tmp_path / "fix.csv"
    path.write_text("id,c0\n1,5\n", encoding="utf-8")
    text = (
        "Columns 'c1', 'c2', 'c3', 'c4', 'c5' and 1 more column are missing; they become NULL in"
        " the rows of fix.csv for t. Send all columns of the table to keep the values."
    )
    for dry_run in (True, False):
        again = Publisher(any_storage, table, dry_run=dry_run)
        assert again.publish(path, marker).warning == text
        assert text in caplog.text
        caplog.clear()
    assert again.publish(path, marker).warning == text
    assert not caplog.text  # it was logged before
    one = again.publish([{k: v for k, v in row.items() if k != "c3"}], marker).warning
    assert one.startswith("Column 'c3' is missing; it becomes NULL in the rows of the batch for ")
    assert again.publish([row], marker).warning is None
    assert again.delete([1]).warning is None


def test_a_warning_names_columns_as_they_are_written(any_storage, table):
    publisher = Publisher(any_storage, table, keys=["Id"])
    publisher.insert([{"Id": 1, "Unit Price": 1}])
    for one in (publisher, Publisher(any_storage, table)):
        assert one.upsert([{"Id": 1}]).warning.startswith("Column 'Unit Price' is missing")


def test_rows_with_their_own_markers_that_lack_columns_are_a_warning(any_storage, table):
    Publisher(any_storage, table, keys=["Id"]).insert([{"Id": 1, "Item": "nut", "N": 1}])
    for marker, is_warned in ((0, False), (1, True), (2, False), (4, True)):
        again = Publisher(any_storage, table)
        warning = again.write([{"Id": 1, "more": 2, MARKER: marker}]).warning
        assert (warning or "").startswith("Columns 'Item', 'N'") == is_warned
        assert "adds" not in (warning or "")  # as by a source whose table has a new column
    assert again.load([{"Id": 1, MARKER: 4}]).warning is None


def test_columns_of_all_files_that_are_not_mirrored_are_known(any_storage, table):
    publisher = Publisher(any_storage, table, keys=["id"])
    for row in ({"id": 1}, {"id": 2, "Middle": 1}, {"id": 3}):
        publisher.insert([row])
    again = Publisher(any_storage, table)
    assert again.known_columns == {"id": "long", "middle": "long"}
    assert again.upsert([{"id": 1}]).warning.startswith("Column 'Middle' is missing")


def test_delete_without_any_key_column(publisher, any_storage, table):
    with pytest.raises(SchemaError, match=r"The rows contain no key column.*: id\."):
        publisher.delete([{"item": "bolt"}])
    assert files(any_storage, table) == []


@pytest.mark.promise("LZ-13")
@pytest.mark.promise("LZ-07")
def test_files_are_numbered_from_one_and_compressed(publisher, any_storage, table):
    names = [publisher.upsert([{"id": n}]).file for n in range(12)]
    assert names == [file_name(n + 1) for n in range(12)] == files(any_storage, table)
    assert footer(any_storage, table, 1).row_group(0).column(0).compression == "ZSTD"


def test_bytes_are_those_of_the_file(publisher, any_storage, table):
    done = publisher.upsert(ROWS)
    assert done.bytes == any_storage.list(table.folder).file(done.file).size


@pytest.mark.parametrize("rows", [[], iter(())])
def test_nothing_to_publish(publisher, any_storage, table, rows):
    done = publisher.upsert(rows)
    assert (done.file, done.rows, done.bytes) == (None, 0, 0)
    assert repr(done) == "t: no rows, nothing published"
    assert files(any_storage, table) == []


def test_a_batch_of_zero_rows_is_a_file(publisher, any_storage, table):
    done = publisher.upsert(pa.table({"id": pa.array([], pa.int64())}))
    assert (done.file, done.rows) == (file_name(1), 0)
    assert footer(any_storage, table, 1).num_rows == 0


def test_write_takes_markers_from_the_rows(publisher, any_storage, table, read):
    rows = [{MARKER: 4, "id": 1}, {MARKER: 2, "id": 1}]
    assert read(publisher.write(pd.DataFrame(rows))) == rows
    assert footer(any_storage, table, 1).schema.to_arrow_schema().field(MARKER).type == pa.int32()


@pytest.mark.promise("LZ-15")
def test_write_without_markers_is_an_initial_load(publisher, read):
    assert read(publisher.write(ROWS)) == ROWS


def test_rows_without_markers_that_may_repeat_keys_are_a_warning(any_storage, table, caplog):
    first = Publisher(any_storage, table, keys=["id"])
    assert first.write(ROWS).warning is None
    assert "t has keys, but the rows of the batch have no marker" in first.write(ROWS).warning
    (line,) = caplog.messages
    assert "Hint: pass marker='upsert'" in line
    assert first.write(ROWS).warning  # and no second line
    again = Publisher(any_storage, table)
    assert again.publish([{"id": 9, "item": "new"}]).warning
    assert len(caplog.messages) == 2
    dry = Publisher(any_storage, table, dry_run=True)
    assert dry.publish(ROWS).warning


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_csv_file_with_another_separator_is_refused(any_storage, table, tmp_path, separator):
    source = tmp_path / "stock.csv"
    source.write_text(f"id{separator}n\n1{separator}2\n")
    Publisher(any_storage, TableName(None, "keyed"), keys=["id"]).insert([{"id": 1, "n": 1}])
    cases = [(TableName(None, "keyed"), {}), (TableName(None, "u"), {"keys": ["id"]})]
    for name, options in (*cases, (table, {}), (table, {"safe_names": True})):
        for marker in ("", "insert") if not options.get("keys") else ("upsert", "delete"):
            with pytest.raises(DataFileError) as caught:
                Publisher(any_storage, name, **options).publish(source, marker)
            assert caught.value.message.startswith(
                f"The file has only one column, {f'id{separator}n'!r}; commas must separate"
            )
            assert caught.value.file == "stock.csv"
            assert "export the file again with commas" in caught.value.hint
    assert files(any_storage, table) == []
    Publisher(any_storage, table).insert([{f"id{separator}n": "x"}])
    assert Publisher(any_storage, table).write(source).rows == 1  # the table has this column
    source.write_text(f"id\n1{separator}2\n")
    assert Publisher(any_storage, TableName(None, "v")).write(source).warning is None


def test_a_key_that_rows_without_markers_repeat_is_a_warning(any_storage, table, caplog):
    rows = [{"id": 7, "day": "a"}, {"id": 7, "day": "b"}, {"id": 7, "day": "a"}]
    first = Publisher(any_storage, table, keys=["id", "day"])
    assert first.write(rows[:2]).warning is None
    warning = first.write(rows).warning
    assert "the batch: Rows 1 and 3 have the same key (id=7, day=a)." in warning
    assert "Hint: publish one row per key, or pass marker='upsert'" in caplog.messages[-1]
    many = Publisher(any_storage, TableName(None, "u"), keys=["id"])
    assert (
        "(id=0), and 4 more keys are repeated"
        in many.write([{"id": n % 5} for n in range(9)] + [{"id": 4}]).warning
    )
    two = Publisher(any_storage, TableName(None, "two"), keys=["id"])
    assert (
        "(id=0), and 1 more key is repeated."
        in two.write([{"id": n % 2} for n in range(4)]).warning
    )
    nested = Publisher(any_storage, TableName(None, "v"), keys=["id"])
    assert nested.write([{"id": [1]}, {"id": [1]}]).warning is None  # Arrow can't compare lists


def test_nobody_is_warned_of_rows_that_repeat_no_key(any_storage, table, caplog):
    load = Publisher(any_storage, table, keys=["id"])
    parts = [load.write([{"id": n, "item": "a"}, {"id": n + 5, "item": "b"}]) for n in (20, 10, 0)]
    again = Publisher(any_storage, table)
    marked = [again.publish(ROWS, marker) for marker in ("insert", "upsert", "update", "delete")]
    marked.append(again.write([{"id": 1, "item": "a", MARKER: 4}]))
    without_rows = again.write(pa.table({"id": pa.array([], pa.int64())}))
    assert {done.warning for done in (*parts, *marked, without_rows)} == {None}
    twice = [*ROWS, *ROWS]
    assert {again.publish(twice, marker).warning for marker in ("insert", "upsert")} == {None}
    without_keys = Publisher(any_storage, TableName(None, "u"))
    assert without_keys.write(twice).warning is None
    assert [without_keys.write(ROWS).warning for _ in range(2)] == [None, None]
    by_default = {"keyColumns": ["id"], "isUpsertDefaultRowMarker": True}
    any_storage.write_json("Files/LandingZone/v/_metadata.json", by_default)
    upserts = Publisher(any_storage, TableName(None, "v"))
    assert [upserts.write(ROWS).warning for _ in range(2)] == [None, None]
    whole = Publisher(any_storage, TableName(None, "w"), keys=["id"])
    assert [whole.load(ROWS).warning for _ in range(2)] == [None, None]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("then", "may_repeat"),
    [((1.5, 2), False), ((0, 1), True), (("a", "b"), True), ((None, None), True)],
)
def test_keys_repeat_unless_their_ranges_say_that_they_do_not(then, may_repeat):
    """Ranges may be unknown, or have different types."""
    seen = check.SeenKeys()
    assert not seen.add({"id": [(1, 1)]})
    assert seen.add({"id": [then]}) is may_repeat
    assert seen.add({"id": [(5, 6), (1, 1)]})


@pytest.mark.parametrize("marker", [3, "4", 1.0, None, 2**40])
def test_write_with_wrong_markers(publisher, any_storage, table, marker):
    with pytest.raises(MirrorlakeError) as caught:
        publisher.write([{"id": 1, MARKER: marker}])
    assert caught.value.column == MARKER
    assert files(any_storage, table) == []


def test_a_verb_and_markers_in_the_rows(publisher, any_storage, table):
    with pytest.raises(UsageError, match="have a column __rowMarker__"):
        publisher.upsert([{"id": 1, MARKER: 4}])
    assert files(any_storage, table) == []


@pytest.mark.promise("LZ-05")
@pytest.mark.parametrize("verb", ["update", "delete", "upsert"])
def test_without_keys_only_inserts(any_storage, table, verb):
    publisher = Publisher(any_storage, table)
    assert publisher.insert(ROWS).file == file_name(1)
    with pytest.raises(DataFileError, match=f"{verb} rows, but the table has no key columns"):
        getattr(publisher, verb)(ROWS)
    assert files(any_storage, table) == [file_name(1)]


def failing_rows() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"id": [1], "item": ["a"]})
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([{"id": None}], DataFileError),
        ([{"other": 1}], DataFileError),
        ([{"id": "text"}], SchemaError),
        ([{"id": 2**63}], SchemaError),
        ([{"id": 1, "item": 5}], SchemaError),
        ([{"id": 1, "at": Decimal("1" * 40)}], SchemaError),
        (pa.table({"id": [1], "ID": [1]}), SchemaError),
        (pd.DataFrame(index=[0]), SchemaError),
        (failing_rows, ZeroDivisionError),
        ("no such file.csv", UsageError),
        (5, UsageError),
    ],
)
def test_nothing_is_visible_after_a_bad_batch(publisher, any_storage, table, rows, error):
    publisher.upsert(ROWS)
    before = any_storage.list(table.folder)
    with pytest.raises(error):
        publisher.upsert(rows() if callable(rows) else rows)
    assert any_storage.list(table.folder) == before
    assert publisher.upsert(ROWS).file == file_name(2)


def test_a_null_key_is_named_with_its_row(publisher):
    with pytest.raises(DataFileError) as caught:
        publisher.upsert([{"id": 1}, {"id": None}])
    assert (caught.value.file, caught.value.row, caught.value.column) == ("the batch", 2, "id")


def test_another_type_is_refused_by_every_later_publisher(publisher, any_storage, table):
    publisher.upsert(ROWS)
    again = Publisher(any_storage, table)
    for other in (publisher, again):
        with pytest.raises(SchemaError, match="'item' is long, but the table has string"):
            other.upsert([{"id": 3, "item": 7}])


def test_a_column_that_a_batch_adds_is_known_to_the_next(publisher):
    publisher.upsert(ROWS)
    publisher.upsert([{"id": 1, "price": 1.5}])
    with pytest.raises(SchemaError, match="'PRICE' is string, but the table has double"):
        publisher.upsert([{"id": 1, "PRICE": "dear"}])


def test_columns_are_published_under_safe_names(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = [{"Order ID": 1, "unit price (EUR)": 1.5, "note": "a b"}]
    lake.publisher("orders", keys="Order ID").upsert(rows)  # a table without the option
    assert lake.operations.defaults(safe_names=True).safe_names
    old, new = lake.publisher("orders"), lake.publisher("new", keys="Order ID")
    assert set(old.upsert([{"Order ID": 1, "Sold At": 2}]).columns) == {"Order ID", "Sold_At"}
    wanted = {"Order_ID": "long", "unit_price_EUR": "double", "note": "string"}
    assert new.upsert(rows).columns == wanted
    frame = pd.DataFrame(rows).set_index("Order ID")
    assert set(new.upsert(frame).columns) == set(wanted)
    csv = tmp_path / "orders.csv"
    csv.write_text("Order ID,unit price (EUR),note\n2,3,4\n")
    assert lake.publish("new", str(csv), marker="upsert").batches[0].columns == wanted
    assert new.keys == ("Order_ID",)
    assert new.delete([1]).columns == {"Order_ID": "long"}
    assert new.delete([{"Order ID": 2}]).columns == {"Order_ID": "long"}
    exact = lake.publisher("exact", types={"the price": "decimal(9,2)"})
    assert exact.insert([{"the price": 1}]).columns == {"the_price": "decimal(9,2)"}
    as_is = lake.publisher("other", safe_names=False)
    assert set(as_is.insert([{"a b": 1}]).columns) == {"a b"}
    with pytest.raises(
        SchemaError, match=r"'a_b' is the safe name of two columns, 'a b' and 'a_b'"
    ):
        new.upsert([{"Order ID": 1, "a b": 1, "a_b": 2}])


def test_a_table_keeps_its_safe_names(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = [{"Order ID": 1, "unit price": 1.5}]
    open_before = lake.publisher("orders")
    assert open_before.known_columns == {}
    lake.publisher("orders", keys="Order ID", safe_names=True).upsert(rows)
    wanted = {"Order_ID": "long", "unit_price": "double"}
    later = lake.publisher("orders", keys="Order ID", types={"unit price": "double"})
    assert later.keys == ("Order_ID",)
    assert later.upsert(rows).columns == wanted
    assert later.upsert(pd.DataFrame(rows).set_index("Order ID")).columns == wanted
    assert later.delete([{"Order ID": 1}]).columns == {"Order_ID": "long"}
    csv = tmp_path / "orders.csv"
    csv.write_text("Order ID,unit price\n2,3\n")
    published = lake.publish("orders", str(csv), keys="Order ID", marker="upsert")
    assert published.batches[0].columns == wanted
    lake.publisher("log", safe_names=True).insert([{"unit price": 1.5}])
    running = lake.publisher("log")
    running.insert([{"n": 1}])
    lake.publisher("log", safe_names=True).insert([{"sold at": 2}])  # while `running` is open
    assert set(running.insert([{"unit price": 2.5, "sold at": 3}]).columns) == {
        "unit_price",
        "sold_at",
    }


def test_a_column_is_not_taken_for_another_with_its_safe_name(tmp_path: Path) -> None:
    publisher = Lake(tmp_path).publisher("t", types={"a_b": "long"})
    publisher.insert([{"a_b": 1}])
    both = publisher.insert([{"a_b": 1, "a b": "x"}])
    assert both.columns == {"a_b": "long", "a b": "string"}
    assert publisher.insert([{"a b": "y"}]).columns == {"a b": "string"}
    csv = tmp_path / "t.csv"
    csv.write_text("id,n m,n_m\n1,x,2\n")
    Lake(tmp_path).publisher("u").insert([{"n_m": 1}])
    found = Lake(tmp_path).publish("u", str(csv)).batches[0].columns
    assert found == {"id": "long", "n m": "string", "n_m": "long"}


def test_a_column_of_nulls_has_no_type_yet(publisher, read):
    publisher.upsert([{"id": 1, "note": None}])
    publisher.upsert([{"id": 1, "note": "text"}])
    assert read(publisher.upsert([{"id": 1, "note": None}]))[0]["note"] is None


def test_whole_numbers_take_the_tables_smaller_type(any_storage, table):
    publisher = Publisher(any_storage, table, keys=["id"])
    publisher.upsert(pa.table({"id": pa.array([1], pa.int16())}))
    publisher.upsert([{"id": 2}])
    assert footer(any_storage, table, 2).schema.to_arrow_schema().field("id").type == pa.int16()
    with pytest.raises(SchemaError, match="does not fit short") as caught:
        publisher.upsert([{"id": 3}, {"id": 40_000}])
    assert (caught.value.row, caught.value.column) == (2, "id")


def test_text_never_becomes_a_number(any_storage, table):
    publisher = Publisher(any_storage, table)
    publisher.insert([{"n": 1}])
    with pytest.raises(SchemaError, match="'n' is string, but the table has long"):
        publisher.insert([{"n": "1"}])


@pytest.mark.parametrize("data", [b"", b"broken"])
def test_a_broken_file_in_the_zone_stops_no_publisher(any_storage, table, data):
    any_storage.write(f"{table.folder}/{file_name(1)}", data)
    assert Publisher(any_storage, table).insert(ROWS).file == file_name(2)


def test_types_of_a_mirrored_table_count_when_its_files_are_gone(any_storage, table):
    any_storage.write_json(f"{table.folder}/_metadata.json", KEYED)
    publisher = Publisher(any_storage, table)
    identity = ensure_identity(any_storage, table)
    fields = [{"name": "Id", "type": "short"}, {"name": "doc", "type": {"type": "struct"}}]
    actions = [
        {"metaData": {"schemaString": json.dumps({"fields": fields})}},
        {"txn": {"appId": identity.app_id, "version": 1}},
    ]
    log = "\n".join(json.dumps(action) for action in actions)
    any_storage.write(f"{table.table_path}/_delta_log/{0:020d}.json", log.encode())
    publisher.upsert([{"id": 5}])  # after number 1, which the table has already
    assert footer(any_storage, table, 2).schema.to_arrow_schema().field("id").type == pa.int16()


def test_types_of_another_life_of_the_folder_do_not_count(any_storage, table):
    any_storage.write(f"{table.folder}/_metadata.json", b"{}")
    ensure_identity(any_storage, table)
    actions = [
        {"metaData": {"schemaString": '{"fields":[{"name":"id","type":"string"}]}'}},
        {"txn": {"appId": "mirrorlake/t/an-earlier-one", "version": 1}},
    ]
    log = "\n".join(json.dumps(action) for action in actions)
    any_storage.write(f"{table.table_path}/_delta_log/{0:020d}.json", log.encode())
    assert Publisher(any_storage, table).insert([{"id": 5}]).rows == 1


@pytest.mark.promise("LZ-04")
def test_keys_and_partner_lie_where_the_format_has_them(any_storage, table):
    partner = Partner("Contoso", "SQL", "2025")
    publisher = Publisher(any_storage, table, keys=["id", "region"], partner=partner)
    assert publisher.keys == ("id", "region")
    publisher.upsert([{"id": 1, "region": "EU"}])
    zone = "Files/LandingZone"
    assert any_storage.read_json(f"{zone}/t/_metadata.json") == {"keyColumns": ["id", "region"]}
    source = {"sourceType": "SQL", "sourceVersion": "2025", "additionalInformation": {}}
    expected = {"partnerName": "Contoso", "sourceInfo": source}
    assert any_storage.read_json(f"{zone}/_partnerEvents.json") == expected
    Publisher(any_storage, TableName(None, "u"), partner=Partner("Other"))
    assert any_storage.read_json(f"{zone}/_partnerEvents.json") == expected


@pytest.mark.promise("LZ-06")
@pytest.mark.parametrize("aside", ["", PROCESSED, READY_TO_DELETE])
def test_other_keys_are_refused_once_there_is_a_file(any_storage, table, aside):
    Publisher(any_storage, table, keys=["id"]).insert(ROWS)
    if aside:
        path = f"{table.folder}/{{}}{file_name(1)}"
        any_storage.rename(path.format(""), path.format(f"{aside}/"))
    with pytest.raises(MetadataError, match="can't become"):
        Publisher(any_storage, table, keys=["item"])
    assert Publisher(any_storage, table).keys == ("id",)


def test_other_keys_are_refused_when_the_mirror_has_made_the_table_of_its_declaration(any_storage):
    zone = Zone(any_storage)
    zone.metadata(KEYED)
    zone.mirrored({"id": "long", "item": "string"})
    with pytest.raises(MetadataError, match="can't become"):
        Publisher(any_storage, T, keys=["item"])


def test_a_refused_first_batch_leaves_no_keys(any_storage, table):
    publisher = Publisher(any_storage, table, keys=["nokey"])
    with pytest.raises(DataFileError, match="'nokey' is missing"):
        publisher.upsert(ROWS)
    assert any_storage.list(table.folder).files == ()
    assert Publisher(any_storage, table, keys=["id"]).upsert(ROWS).file == file_name(1)
    assert any_storage.read_json(f"{table.folder}/_metadata.json") == {"keyColumns": ["id"]}


def test_keys_of_a_publisher_that_was_killed_before_its_first_file_are_replaced(
    any_storage, table, monkeypatch
):
    def killed(*_: str) -> bool:
        raise KeyboardInterrupt

    publisher = Publisher(any_storage, table, keys=["item"])
    with monkeypatch.context() as patched:
        patched.setattr(any_storage, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            publisher.upsert(ROWS)
    metadata = f"{table.folder}/_metadata.json"
    assert any_storage.read_json(metadata) == {"keyColumns": ["item"]}  # before the file
    assert Publisher(any_storage, table, keys=["id"]).upsert(ROWS).file == file_name(1)
    assert any_storage.read_json(metadata) == {"keyColumns": ["id"]}


def test_of_two_first_publishers_the_first_file_gives_the_keys(any_storage, table):
    one, other = (Publisher(any_storage, table, keys=[key]) for key in ("id", "item"))
    one.upsert(ROWS)
    with pytest.raises(MetadataError, match="can't become"):
        other.upsert(ROWS)
    assert files(any_storage, table) == [file_name(1)]


@pytest.mark.promise("LZ-06")
def test_keys_may_come_later(any_storage, table):
    Publisher(any_storage, table).insert(ROWS)
    assert Publisher(any_storage, table, keys=["id"]).upsert(ROWS).file == file_name(2)


def test_keys_may_be_a_text(any_storage, table):
    assert Publisher(any_storage, table, keys="Order ID").keys == ("Order ID",)
    assert Publisher(any_storage, table, keys="id, day").keys == ("id", "day")


def test_keys_that_make_no_sense(any_storage, table):
    with pytest.raises(MetadataError):
        Publisher(any_storage, table, keys=["id", "ID"])
    assert any_storage.list(table.folder).files == ()


@pytest.mark.promise("LZ-03")
def test_tables_of_two_schemas_are_counted_apart(any_storage):
    for schema in ("a", "b"):
        table = TableName(schema, "t")
        assert Publisher(any_storage, table).insert(ROWS).file == file_name(1)
        assert files(any_storage, table) == [file_name(1)]


def test_files_are_published_under_their_own_name_in_errors(publisher, tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("id,item\n1,a\n,b\n")
    with pytest.raises(DataFileError) as caught:
        publisher.upsert(path)
    assert (caught.value.file, caught.value.row, caught.value.column) == ("rows.csv", 2, "id")


@pytest.mark.promise("LZ-14")
@pytest.mark.parametrize("aside", [PROCESSED, READY_TO_DELETE])
def test_counting_goes_on_after_processed_files(any_storage, table, aside):
    publisher = Publisher(any_storage, table)
    for _ in range(3):
        publisher.insert(ROWS)
    for number in (1, 2, 3):
        path = f"{table.folder}/{{}}{file_name(number)}"
        any_storage.rename(path.format(""), path.format(f"{aside}/"))
    assert publisher.insert(ROWS).file == file_name(4)


@pytest.mark.promise("LZ-14")
@pytest.mark.parametrize("aside", [PROCESSED, READY_TO_DELETE])
def test_a_slow_publisher_does_not_reuse_a_number(any_storage, table, read, monkeypatch, aside):
    publisher = Publisher(any_storage, table)
    for number in range(4):
        publisher.insert([{"id": number}])
    # What the mirror does while this publisher sleeps between its look and its claim.
    for number in (1, 2, 3):
        path = f"{table.folder}/{{}}{file_name(number)}"
        any_storage.rename(path.format(""), path.format(f"{aside}/"))
    looks = []
    look = zone.last_number

    def stale(*folder: Any) -> int:
        looks.append(look(*folder))
        return 1 if len(looks) == 1 else looks[-1]

    monkeypatch.setattr(zone, "last_number", stale)
    done = Publisher(any_storage, table).insert([{"id": 99}])
    assert done.file == file_name(5)
    assert len(looks) == 2
    assert [row["id"] for row in read(done)] == [99]
    assert files(any_storage, table) == [file_name(4), file_name(5)]
    assert len(any_storage.list(f"{table.folder}/{aside}").files) == 3


@pytest.mark.parametrize("aside", [PROCESSED, READY_TO_DELETE])
@pytest.mark.parametrize("left", [True, False], ids=["half moved", "moved"])
def test_a_mirror_may_be_quicker_than_the_publishers_last_look(
    any_storage, table, monkeypatch, aside, left
):
    publisher = Publisher(any_storage, table)
    publisher.insert(ROWS)
    rename = any_storage.rename

    def rename_and_move(source: str, target: str) -> bool:
        done = rename(source, target)
        data = any_storage.read(target)
        any_storage.create(target.replace("/t/", f"/t/{aside}/"), data)
        if not left:
            any_storage.delete(target)
        return done

    monkeypatch.setattr(any_storage, "rename", rename_and_move)
    done = publisher.insert(ROWS)  # the same rows as before, and still another batch
    assert done.file == file_name(2)
    expected = [file_name(1), file_name(2)] if left else [file_name(1)]
    assert files(any_storage, table) == expected


def test_the_same_rows_twice_are_two_different_files(publisher, any_storage, table):
    one, two = publisher.upsert(ROWS), publisher.upsert(ROWS)
    folder = table.folder
    assert any_storage.read(f"{folder}/{one.file}") != any_storage.read(f"{folder}/{two.file}")


def test_a_taken_number_is_passed_over(any_storage, table, monkeypatch):
    publisher = Publisher(any_storage, table)
    for _ in range(3):
        publisher.insert(ROWS)
    monkeypatch.setattr(zone, "last_number", lambda *_: 0)
    assert Publisher(any_storage, table).insert(ROWS).file == file_name(4)


def test_a_dead_writers_leftover_is_in_nobodys_way(publisher, any_storage, table):
    any_storage.write(f"{table.folder}/_{'0' * 32}.parquet", b"half a fi")
    assert publisher.upsert(ROWS).file == file_name(1)
    assert list(list_folder(any_storage, table).numbered) == [1]


def test_columns_that_hardly_repeat_are_written_without_a_dictionary(lake: Lake) -> None:
    rows = 20_000
    table = pa.table(
        {"id": range(rows), "state": pa.array(["open", "shut"]).take(pa.array([0, 1] * 10_000))}
    )
    publisher = lake.publisher("t", keys=["id"])
    publisher.upsert(table)
    path = lake.storage.local / publisher.table.folder / "00000000000000000001.parquet"
    group = pq.ParquetFile(path).metadata.row_group(0)
    found = {group.column(k).path_in_schema: group.column(k).encodings for k in range(3)}
    assert any("DICTIONARY" in one for one in found["state"])
    assert not any("DICTIONARY" in one for one in found["id"])
    assert pq.read_table(path).column("id").to_pylist() == list(range(rows))
    nested = table.append_column("tags", pa.array([["a"]] * rows))
    lake.publisher("n", keys=["id"]).upsert(nested)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_a_first_load_can_have_keys_that_arrow_cannot_take(any_storage, table, caplog, kind):
    rows = pa.table({"s": pa.array([b"b", b"a", b"b"]).cast(pa.string()).cast(kind)})
    Publisher(any_storage, table, keys=["s"]).write(rows)
    assert "Rows 1 and 3 have the same key (s=" in caplog.messages[-1]


@pytest.mark.parametrize(
    "lists",
    [
        pa.array([["item"], []]),
        pa.array([[], None]),
        pa.nulls(2),
        pa.array([["item"], []], pa.large_list(pa.large_string())),
        pa.array([["item"], []], pa.large_list(pa.string_view())),
    ],
    ids=lambda lists: str(lists.type),
)
def test_lists_of_unchanged_columns_are_no_data_column(any_storage, table, lists):
    publisher = Publisher(any_storage, table, keys=["id"])
    done = publisher.update(pa.table({"id": [1, 2], "item": ["bolt", None], UNCHANGED: lists}))
    assert list(done.columns) == ["id", "item"]
    with any_storage.open(f"{table.folder}/{done.file}") as source:
        assert pq.read_schema(source).field(UNCHANGED).type == pa.list_(pa.string())
    assert publisher.update([{"id": 1, "item": "nut", UNCHANGED: []}]).columns == done.columns


@pytest.mark.parametrize(
    "rows",
    [{UNCHANGED: "item"}, {UNCHANGED: [1]}, {UNCHANGED.upper(): ["item"]}],
    ids=["text", "numbers", "case"],
)
def test_a_column_that_looks_like_that_of_unchanged_columns_is_refused(publisher, rows):
    with pytest.raises(SchemaError, match="only '__unchanged__' of lists") as caught:
        publisher.update([{"id": 1, "item": None} | rows])
    assert caught.value.column == next(iter(rows))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()], ids=str)
def test_lists_of_unchanged_columns_in_files_of_other_libraries(any_storage, table, kind):
    lists = pa.array([["item"]], pa.large_list(kind))
    markers = pa.array([1], pa.int32())
    rows = pa.table({"id": [1], "item": ["bolt"], UNCHANGED: lists, MARKER: markers})
    put(any_storage, table, 1, rows)
    path = f"{table.folder}/{file_name(1)}"
    facts = check.inspect_file(any_storage, path, TableMetadata(("id",)))
    assert (list(facts.columns), facts.unchanged) == (["id", "item"], ("item",))
