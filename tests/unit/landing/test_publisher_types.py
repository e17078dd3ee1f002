"""The types of a publisher's columns: inferred, declared, the table's, or wider ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrorlake import Lake, Publisher
from mirrorlake.errors import MirrorlakeError, SchemaError, UsageError
from mirrorlake.landing.metadata import ensure_identity
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage


@pytest.fixture
def publisher(any_storage: Storage, table: TableName) -> Callable[..., Publisher]:
    return lambda **options: Publisher(any_storage, table, **options)


def column(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"v": pa.array(values, kind)})


NOON = datetime(2026, 1, 31, 12)


def rows(*values: Any) -> list[dict[str, Any]]:
    return [{"v": value} for value in values]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1], "long"),
        ([np.int8(1)], "long"),
        ([np.uint32(1)], "long"),
        ([1, 1.5], "double"),
        ([np.float32(1.5)], "double"),
        ([Decimal(5)], "decimal(28,8)"),
        ([Decimal("5.25"), 1], "decimal(28,8)"),
        ([Decimal("1E-10")], "decimal(30,10)"),
        ([Decimal("1E+24")], "decimal(33,8)"),
        ([Decimal("1E+34"), Decimal("0.125")], "decimal(38,3)"),
        ([Decimal("1E-38")], "decimal(38,38)"),
        ([np.uint64(2**63)], "decimal(20,0)"),
        ([True], "boolean"),
    ],
)
def test_values_without_a_type_get_one_with_room(publisher, read, values, kind) -> None:
    done = publisher().insert(rows(*values))
    assert done.columns == {"v": kind}
    assert [row["v"] for row in read(done)] == values


def test_decimals_of_a_data_frame_have_room_too(publisher) -> None:
    frame = pd.DataFrame({"v": [Decimal(5)], "n": pd.array([1], "int32")})
    assert publisher().insert(frame).columns == {"v": "decimal(28,8)", "n": "integer"}


def test_an_arrow_schema_is_taken_as_it_is(publisher) -> None:
    assert publisher().insert(column(pa.decimal128(1, 0), 5)).columns == {"v": "decimal(1,0)"}
    frame = pd.DataFrame({"w": pd.array([Decimal(5)], pd.ArrowDtype(pa.decimal128(2, 1)))})
    assert publisher().insert(frame).columns == {"w": "decimal(2,1)"}


def test_later_decimals_need_no_more_digits(publisher, read) -> None:
    prices = publisher()
    prices.insert(rows(Decimal("5")))
    assert read(prices.insert(rows(Decimal("5.25"))))[0]["v"] == Decimal("5.25")


@pytest.mark.parametrize(
    ("declared", "given", "kind", "values"),
    [
        ("decimal(18,2)", rows(Decimal("5"), None), "decimal(18,2)", [Decimal(5), None]),
        ("Decimal(18, 2)", rows(5), "decimal(18,2)", [Decimal(5)]),
        ("decimal(18,2)", rows(5.25), "decimal(18,2)", [Decimal("5.25")]),
        ("decimal(18,2)", rows("5.25"), "decimal(18,2)", [Decimal("5.25")]),
        ("double", rows(1), "double", [1.0]),
        ("double", pd.DataFrame({"v": [1, 2]}), "double", [1.0, 2.0]),
        ("int", rows(1), "integer", [1]),
        ("bigint", column(pa.int32(), 1), "long", [1]),
        ("string", rows(1234), "string", ["1234"]),
        ("string", pd.DataFrame({"v": [1234]}), "string", ["1234"]),
        ("date", rows("2026-01-31"), "date", [pd.Timestamp("2026-01-31").date()]),
        ("date", pd.DataFrame({"v": pd.to_datetime(["2026-01-31"])}), "date", [date(2026, 1, 31)]),
        ("long", column(pa.string(), "7", None), "long", [7, None]),
        ("double", rows(None), "double", [None]),
        ("timestamp", rows(NOON), "timestamp", [NOON.replace(tzinfo=timezone.utc)]),
        ("timestamp", pd.DataFrame({"v": [NOON]}), "timestamp", [pd.Timestamp(NOON, tz="UTC")]),
    ],
    ids=str,
)
def test_a_declared_type(publisher, read, declared, given, kind, values) -> None:
    done = publisher(types={"V": declared}).insert(given)
    assert done.columns == {"v": kind}
    assert [row["v"] for row in read(done)] == values


def test_types_as_an_arrow_schema(publisher) -> None:
    types = pa.schema([("v", pa.decimal128(18, 2))])
    assert publisher(types=types).insert(rows(5)).columns == {"v": "decimal(18,2)"}


def test_a_declared_type_holds_for_later_rows_of_an_iterator(publisher) -> None:
    many = ({"v": 1 if n < 60_000 else 1.5} for n in range(60_001))
    assert publisher(types={"v": "double"}).insert(many).rows == 60_001


@pytest.mark.parametrize(
    ("types", "given", "says"),
    [
        ({"v": "decimal(39,2)"}, rows(1), "does not exist"),
        ({"v": "decimal(2,3)"}, rows(1), "does not exist"),
        ({"v": "money"}, rows(1), "The type 'money' of column"),
        ({"w": "long"}, rows(1), "types contains 'w', which is not a column"),
        ({"v": "decimal(18,2)"}, rows(1, 5.255), "does not fit decimal"),
        ({"v": "long"}, rows("7", "x"), "does not fit long"),
        ({"v": "date"}, rows(NOON), "does not fit date: the time of day would be lost"),
        ({"v": "boolean"}, rows(1), "is long, but declared as boolean"),
        ({"v": "binary"}, rows("x"), "is string, but declared as binary"),
    ],
)
def test_a_declaration_that_makes_no_sense(
    publisher, any_storage, table, types, given, says
) -> None:
    with pytest.raises(MirrorlakeError, match=says) as caught:
        publisher(types=types).insert(given)
    assert caught.value.hint
    assert caught.value.column in ("v", "w")
    assert [e for e in any_storage.list(table.folder).files if e.name.endswith("parquet")] == []


def test_a_declared_column_may_be_missing_where_the_table_has_it(publisher) -> None:
    typed = publisher(keys=["id"], types={"v": "double"})
    typed.upsert([{"id": 1, "v": 1}])
    typed.upsert([{"id": 1}])
    typed.delete([{"id": 1}])


def test_a_declared_type_that_contradicts_the_table(publisher) -> None:
    publisher().insert(rows(1))
    with pytest.raises(SchemaError, match="'v' is declared as double, but the table has long"):
        publisher(types={"v": "double"}).insert(rows(1))
    assert publisher(types={"v": "int"}).insert(rows(1)).columns == {"v": "integer"}


WIDER = [
    (column(pa.int32(), 1), rows(2**40), {}, "long"),
    (column(pa.int32(), 1), pd.DataFrame({"v": [1.5]}), {}, "double"),
    (column(pa.decimal128(1, 0), 5), rows(Decimal("5.25")), {}, "decimal(28,8)"),
    (
        column(pa.decimal128(1, 0), 5),
        column(pa.decimal128(18, 2), Decimal("5.25")),
        {},
        "decimal(18,2)",
    ),
    (column(pa.decimal128(18, 2), 5), rows(Decimal("5.251")), {}, "decimal(28,8)"),
    (rows(1), rows(1.5), {"v": "decimal(28,8)"}, "decimal(28,8)"),
    (pd.DataFrame({"v": [1]}), pd.DataFrame({"v": [1.5]}), {"v": "decimal(28,8)"}, "decimal(28,8)"),
    (pd.DataFrame({"v": [1]}), rows(Decimal("1.5")), {}, "decimal(28,8)"),
    (column(pa.date32(), 1), column(pa.timestamp("us"), 1), {}, "timestamp_ntz"),
]


@pytest.mark.parametrize(("first", "later", "types", "kind"), WIDER, ids=str)
def test_the_hint_of_a_misfit_names_the_call_that_publishes_it(
    publisher, read, first, later, types, kind
) -> None:
    publisher().insert(first)
    with pytest.raises(SchemaError) as caught:
        publisher().insert(later)
    assert "widen=True" in caught.value.hint
    assert (f"types={types!r}" in caught.value.hint) == bool(types)
    done = publisher(types=types, widen=True).insert(later)
    assert done.columns == {"v": kind}


@pytest.mark.parametrize(
    ("first", "later", "hint"),
    [
        (rows("x"), rows(7), "types={'v': 'string'}"),
        (rows(7), rows("8"), "types={'v': 'long'}"),
        (rows(NOON.replace(tzinfo=timezone.utc)), rows(NOON), "types={'v': 'timestamp'}"),
        (rows(7), pd.DataFrame({"v": ["8"]}), "types={'v': 'long'}"),
        (rows(True), rows(7), "convert the values to boolean"),
        (rows(1.5), rows(2**53 + 1), "correct or round the values to fit double."),
        (rows(Decimal(1)), rows(0.1 + 0.2), "correct or round the values to fit decimal(28,8)."),
    ],
    ids=str,
)
def test_a_misfit_that_no_wider_type_holds(publisher, first, later, hint) -> None:
    publisher().insert(first)
    for widen in (False, True):
        with pytest.raises(SchemaError) as caught:
            publisher(widen=widen).insert(later)
        assert hint in caught.value.hint
    if hint.startswith("types="):
        kind = hint.partition(": '")[2].rstrip("'}")
        assert publisher(types={"v": kind}).insert(later).columns == {"v": kind}


def test_a_number_with_too_many_digits_is_to_be_rounded_or_widened(publisher) -> None:
    publisher().insert(column(pa.decimal128(12, 2), Decimal("5.25")))
    with pytest.raises(SchemaError, match=r"does not fit decimal\(12,2\)") as caught:
        publisher().insert(rows(Decimal("21.005")))
    assert caught.value.hint.startswith("correct or round the values to fit decimal(12,2), or pub")


def test_a_value_that_does_not_fit_a_declared_type_is_to_be_corrected(publisher) -> None:
    keyed = publisher(keys=["order date"], types={"order date": "date"})
    for publish in (keyed.upsert, keyed.delete, keyed.upsert):
        with pytest.raises(SchemaError, match="'order date' does not fit date:") as caught:
            publish([{"order date": "abc"}])
        text = "correct the values: write a value of type date as a date such as 2026-01-31."
        assert caught.value.hint == text
        keyed.upsert([{"order date": "2026-01-31"}])


def test_a_hint_quotes_a_name_for_the_shell(publisher) -> None:
    publisher().insert([{"order date": NOON.date()}])
    with pytest.raises(SchemaError) as caught:
        publisher().insert([{"order date": "2026-01-31"}])
    assert "types={'order date': 'date'} (--types 'order date=date')" in caught.value.hint


def test_an_error_about_no_type_gets_no_hint_about_types(publisher) -> None:
    keyed = publisher(keys=["id"])
    for given in (pa.table({"id": [1], "ID": [1]}), column(pa.int64(), 1)):
        with pytest.raises(MirrorlakeError) as caught:
            keyed.delete(given)
        assert "types" not in caught.value.hint


def test_a_late_value_of_a_new_column_names_the_call_too(publisher) -> None:
    many = ({"v": 1 if n < 60_000 else 1.5} for n in range(60_001))
    with pytest.raises(SchemaError, match="is not of type long") as caught:
        publisher().insert(many)
    assert caught.value.row == 60_001
    assert "types={'v'" in caught.value.hint


def test_widening_leaves_alone_what_fits(publisher) -> None:
    wide = publisher(widen=True)
    wide.insert(column(pa.int32(), 1))
    assert wide.insert(rows(2)).columns == {"v": "integer"}
    assert wide.insert(column(pa.int8(), 1)).columns == {"v": "byte"}


def test_a_publisher_sees_that_another_one_widened_a_column(publisher, tmp_path: Path) -> None:
    living = publisher()
    living.insert(column(pa.int32(), 1))
    with pytest.raises(SchemaError, match="does not fit integer"):
        living.insert(rows(2**40))
    publisher(widen=True).insert(rows(2**40))
    assert living.insert(rows(7)).columns == {"v": "integer"}  # as long as nothing needs more
    assert living.insert(rows(2**40)).columns == {"v": "long"}
    file = tmp_path / "v.csv"
    file.write_text(f"v\n{2**40}\n")
    assert living.insert(file).columns == {"v": "long"}


def test_a_publisher_sees_that_another_one_added_a_column(publisher) -> None:
    """Otherwise the column has two types in the zone, and the mirror stops the table."""
    living, other = publisher(), publisher()
    living.insert([{"id": 1}])
    other.insert([{"id": 2, "v": 5}])
    with pytest.raises(SchemaError, match="'v' is string, but the table has long") as refused:
        living.insert([{"id": 3, "v": "five"}])
    assert "types={'v': 'long'}" in str(refused.value)
    assert living.insert([{"id": 3, "v": 6}]).columns == {"id": "long", "v": "long"}


@pytest.mark.parametrize("source", ["dicts", "arrow", "csv"])
def test_a_publisher_sees_that_the_mirror_widened_a_column(
    publisher, any_storage, table, tmp_path: Path, source: str
) -> None:
    living = publisher()
    living.insert(column(pa.int32(), 1))
    identity = ensure_identity(any_storage, table)
    schema = json.dumps({"fields": [{"name": "V", "type": "long"}]})
    actions = [
        {"metaData": {"schemaString": schema}},
        {"txn": {"appId": identity.app_id, "version": 1}},
    ]
    log = "\n".join(json.dumps(action) for action in actions)
    any_storage.write(f"{table.table_path}/_delta_log/{0:020d}.json", log.encode())
    file = tmp_path / "v.csv"
    file.write_text(f"v\n{2**40}\n")
    given = {"dicts": rows(2**40), "arrow": column(pa.int64(), 2**40), "csv": file}[source]
    assert living.insert(given).columns == {"v": "long"}


def test_a_dry_run_tells_the_types(publisher, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,zip,price,note\n1,01234,1.5,\n")
    types = {"id": "long", "zip": "string", "price": "double", "note": "void"}
    assert publisher(dry_run=True).insert(file).columns == types


def test_a_batch_that_was_published_before_has_its_types(publisher) -> None:
    assert publisher().insert(rows(1), token="a").columns == {"v": "long"}
    again = publisher().insert(rows(1), token="a")
    assert (again.repeated, again.columns) == (True, {"v": "long"})


def test_a_type_that_is_no_text(publisher) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        publisher(types={"v": "timestamp_ltz"})


def test_an_error_names_its_file_among_several(tmp_path: Path) -> None:
    for name, rows in {"a": {"v": [1]}, "b": {"v": [2, None]}, "c": {"v": [3, 2.5]}}.items():
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    with pytest.raises(SchemaError) as caught:
        Lake(tmp_path / "lake").publish("t", str(tmp_path / "*.parquet"))
    error = caught.value
    assert (error.file, error.row, error.column) == ("c.parquet", 2, "v")


def test_a_missing_file_of_a_list_is_named_before_any_is_published(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [1]}), tmp_path / "a.parquet")
    lake = Lake(tmp_path / "lake")
    gone = tmp_path / "gone" / "b.parquet"
    with pytest.raises(UsageError, match=re.escape(f"There is no file {gone}")):
        lake.publish("t", [tmp_path / "a.parquet", gone])
    assert not gone.parent.exists()
    assert not lake.storage.exists("Files/LandingZone/t/00000000000000000001.parquet")
