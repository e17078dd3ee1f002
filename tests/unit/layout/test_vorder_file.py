"""V-Order of one file, without Spark: whatever it contains, its rows do not change."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.examples import examples
from helpers.vectors_by_hand import inline_vector
from mirrorlake.errors import UsageError
from mirrorlake.layout import api, footers, vorder
from mirrorlake.storage.files import Storage

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-3, 3),
    pa.int64(): st.sampled_from([0, 1, -(2**63), 2**63 - 1]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.inf]),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "ä\x00", "𝄞" * 5]),
    pa.binary(): st.sampled_from([b"", b"\xff\x00"]),
    pa.decimal128(9, 2): st.sampled_from([Decimal("1.50"), Decimal("-9999999.99")]),
    pa.decimal128(38, 0): st.sampled_from([Decimal(10**37), Decimal(-7)]),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.integers(-(2**55), 2**55),
    pa.timestamp("us"): st.integers(-(2**55), 2**55),
    pa.list_(pa.field("element", pa.int32())): st.lists(st.none() | st.integers(0, 2), max_size=2),
    pa.struct([("x", pa.int32()), ("l", pa.list_(pa.field("element", pa.string())))]): (
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 1), "l": st.just(["q"])})
    ),
    pa.map_(pa.string(), pa.float64()): st.lists(st.tuples(st.just("k"), st.just(0.5)), max_size=1),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Return a few distinct rows, repeated often, so that ordering saves space; all have NULLs."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=6))
    columns = [draw(st.lists(st.none() | KINDS[k], min_size=4, max_size=4)) for k in kinds]
    picks = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 4, (len(kinds), 600))
    arrays = [
        pa.array(values, kind).take(pa.array(pick))
        for values, kind, pick in zip(columns, kinds, picks, strict=True)
    ]
    fields = [pa.field(f"c {i}", kind) for i, kind in enumerate(kinds)]
    return pa.table(arrays, schema=pa.schema(fields))


def bag(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*[rows.column(i).to_pylist() for i in range(rows.num_columns)],
                                 strict=True)))  # fmt: skip


def put(folder: Path, rows: pa.Table, name: str = "a b%/old.parquet", **kw: Any) -> dict[str, Any]:
    path = folder / "t" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **kw)
    quoted = name.replace("%", "%25").replace(" ", "%20")
    return {"path": quoted, "size": path.stat().st_size, "stats": '{"numRecords":600}'}


@examples(30)
@given(tables(), st.sets(st.integers(0, 599), max_size=300))
def test_the_same_rows_in_the_same_schema(rows: pa.Table, gone: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        add = put(Path(folder), rows, compression="none", use_dictionary=False)
        if gone:
            add["deletionVector"] = inline_vector(gone)
        left = rows.filter(pa.array([i not in gone for i in range(rows.num_rows)]))
        outcome = vorder.order_file(
            footers.Storages(Storage(folder), "t"), vorder.Task(add, write=True)
        )
        if outcome.reason:
            assert outcome.reason.startswith("no smaller")
            assert outcome.new_size == add["size"]
            return
        new = Path(folder) / "t" / "a b%" / Path(outcome.new_path).name
        assert new.stat().st_size == outcome.new_size < add["size"]
        assert bag(pq.read_table(new)) == bag(left)
        old = Path(folder) / "t" / "a b%" / "old.parquet"
        shapes = [vorder.physical_shape(pq.ParquetFile(path).schema) for path in (old, new)]
        assert shapes[0] == shapes[1]


def shuffled(count: int = 30_000) -> pa.Table:
    rng = np.random.default_rng(5)
    city, day = rng.integers(0, 40, count), rng.integers(0, 90, count)
    return pa.table(
        {
            "city": pa.array([f"city {i}" for i in range(40)]).take(pa.array(city)),
            "country": city % 7,
            "day": day,
            "price": (city * 31 + day) % 97 / 4,
        }
    )


def test_the_order_that_wins_is_the_smallest_of_all_tried(tmp_path: Path) -> None:
    rows = shuffled()
    task = vorder.Task(put(tmp_path, rows), write=True)
    outcome = vorder.order_file(footers.Storages(Storage(tmp_path), "t"), task)
    assert outcome.order != vorder.NATURAL
    assert outcome.tried == tuple(sorted(outcome.tried, key=lambda one: one[1]))
    assert {kind for kind, _ in outcome.tried} == {
        *(vorder.NATURAL, vorder.LEXICOGRAPHIC, vorder.GROWN)
    }
    assert outcome.new_size < 0.5 * task.add["size"]


def test_memory_is_bounded_by_a_file(tmp_path: Path) -> None:
    """Memory is released after each file: the peak of five files is that of one."""
    adds = [put(tmp_path, shuffled(), f"{number}.parquet") for number in range(5)]
    stores, own = footers.Storages(Storage(tmp_path), "t"), pa.default_memory_pool()
    counted = pa.proxy_memory_pool(own)
    pa.set_memory_pool(counted)
    try:
        peaks = []
        for add in adds:
            assert not vorder.order_file(stores, vorder.Task(add, write=True)).reason
            peaks.append(counted.max_memory())
            assert counted.bytes_allocated() == 0
    finally:
        pa.set_memory_pool(own)
    assert peaks[0] > 0
    assert peaks[-1] <= 1.1 * peaks[0]


def test_files_are_sorted_by_a_required_prefix(tmp_path: Path) -> None:
    rows = shuffled()
    task = vorder.Task(put(tmp_path, rows), prefix=("price", "day"), write=True)
    outcome = vorder.order_file(footers.Storages(Storage(tmp_path), "t"), task)
    assert outcome.columns[:2] == ("price", "day")
    new = pq.read_table(tmp_path / "t" / "a b%" / Path(outcome.new_path).name)
    pairs = list(zip(new["price"].to_pylist(), new["day"].to_pylist(), strict=True))
    assert pairs == sorted(pairs)


def test_the_footer_has_our_key_and_not_microsofts(tmp_path: Path) -> None:
    rows = shuffled().replace_schema_metadata(
        {footers.MICROSOFT_ENABLED: "true", "org.other": "kept"}
    )
    outcome = vorder.order_file(
        footers.Storages(Storage(tmp_path), "t"), vorder.Task(put(tmp_path, rows), write=True)
    )
    keys = pq.read_metadata(tmp_path / "t" / "a b%" / Path(outcome.new_path).name).metadata
    assert not [key for key in keys if b"microsoft" in key.lower()]
    assert keys[b"org.other"] == b"kept"
    assert json.loads(keys[footers.OPEN_KEY.encode()]) == {
        "order": outcome.order,
        "columns": list(outcome.columns),
    }


def test_a_dry_run_returns_the_same_and_writes_nothing(tmp_path: Path) -> None:
    task = vorder.Task(put(tmp_path, shuffled()))
    dry = vorder.order_file(footers.Storages(Storage(tmp_path), "t"), task)
    assert [p.name for p in (tmp_path / "t").rglob("*.parquet")] == ["old.parquet"]
    wet = vorder.order_file(footers.Storages(Storage(tmp_path), "t"), replace(task, write=True))
    assert (dry.new_size, dry.order, dry.columns) == (wet.new_size, wet.order, wet.columns)


def test_files_that_can_not_be_improved_are_kept(tmp_path: Path) -> None:
    stores = footers.Storages(Storage(tmp_path), "t")
    few = put(tmp_path, shuffled(2), "s.parquet", compression="zstd", store_schema=False)
    small = vorder.order_file(stores, vorder.Task(few, write=True))
    assert small.reason.startswith("no smaller")
    legacy = shuffled().replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    assert (
        "old calendar"
        in vorder.order_file(stores, vorder.Task(put(tmp_path, legacy, "l.parquet"))).reason
    )
    no_ids = vorder.Task(put(tmp_path, shuffled(), "i.parquet"), row_id="id", commit_version="cv")
    assert "no ids yet" in vorder.order_file(stores, no_ids).reason


def test_row_ids_move_with_their_rows(tmp_path: Path) -> None:
    rows = shuffled().append_column("id", pa.array([None, 7] * 15_000, pa.int64()))
    add = put(tmp_path, rows) | {"baseRowId": 1_000_000, "defaultRowCommitVersion": 4}
    task = vorder.Task(add, row_id="id", commit_version="cv", write=True)
    outcome = vorder.order_file(footers.Storages(Storage(tmp_path), "t"), task)
    new = pq.read_table(tmp_path / "t" / "a b%" / Path(outcome.new_path).name)
    wanted = [1_000_000 + i if v is None else v for i, v in enumerate(rows["id"].to_pylist())]
    rows = rows.set_column(4, "id", [wanted]).append_column("cv", pa.array([4] * 30_000))
    assert bag(new) == bag(rows)


def test_int96_moments_of_any_year(tmp_path: Path) -> None:
    years = [-62_135_596_800_000_000, 0, 1, 253_402_300_799_999_999]  # 0001 to 9999
    rows = pa.table({"at": pa.array(years * 5_000, pa.timestamp("us", "UTC"))})
    add = put(tmp_path, rows, use_deprecated_int96_timestamps=True, compression="none")
    outcome = vorder.order_file(
        footers.Storages(Storage(tmp_path), "t"), vorder.Task(add, write=True)
    )
    new = pq.read_table(tmp_path / "t" / "a b%" / Path(outcome.new_path).name)
    assert new.schema.field("at").type == pa.timestamp("us", "UTC")
    assert Counter(new["at"].cast(pa.int64()).to_pylist()) == Counter(years * 5_000)


def test_statistics_of_a_file_with_a_deletion_vector() -> None:
    old = (
        '{"numRecords":5,"minValues":{"d":12345678901234567890.123456789012345678},'
        '"maxValues":{"d":1.50},"nullCount":{"d":1,"s":{"x":0},"young":5}}'
    )
    left = pa.table({"d": [None, None, 1], "s": [{"x": 1}, {"x": None}, None]})
    add = {"stats": old, "deletionVector": {"cardinality": 2}}
    new = vorder.new_stats(add, left)
    assert new is not None
    assert "12345678901234567890.123456789012345678" in new
    assert "1.50" in new
    found = json.loads(new)
    assert (found["numRecords"], found["tightBounds"]) == (3, False)
    assert found["nullCount"] == {"d": 2, "s": {"x": 2}, "young": 3}
    assert vorder.new_stats({"stats": old}, left) == old


@examples(20)
@given(st.lists(st.tuples(*[st.none() | st.integers(0, 3)] * 3, st.integers(0, 2**62)), min_size=1))
def test_the_permutation_equals_pythons_stable_sort(rows: list[tuple[int | None, ...]]) -> None:
    table = pa.table([pa.array(c) for c in zip(*rows, strict=True)], names=list("abcd"))
    found = vorder.sort_permutation(table, ["d", "b", "a"]).tolist()
    last = 2**63
    wanted = sorted(
        range(len(rows)),
        key=lambda i: [last if rows[i][c] is None else rows[i][c] for c in (3, 1, 0)],
    )
    assert found == wanted


def test_a_column_that_files_are_not_sorted_by_has_a_reason() -> None:
    fields = [{"name": name, "type": "string", "metadata": {}} for name in ("id", "day")]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {"schemaString": schema, "configuration": {}, "partitionColumns": ["day"]}
    for column, why in (("Day", "it is a partition column"), ("x", "the table has no such column")):
        with pytest.raises(UsageError, match=f"by '{column}', because {why}.*choose one of id"):
            vorder.sort_prefix(metadata, [column])


def test_a_report_counts_the_rewritten_files() -> None:
    better = vorder.FileOutcome("a", 100, 60, order="Z")
    kept = vorder.FileOutcome("b", 100, 100, reason="no smaller in any order: 100 bytes")
    done = api.VOrderReport("sales", True, (), (better, kept))
    assert repr(done).startswith("sales: 1 of 2 files rewritten in V-Order, 200 bytes became 160")
    planned = repr(replace(done, applied=False))
    assert planned.startswith("sales: 1 of 2 files would be rewritten in V-Order, 200 bytes would")
    text = done.plot().describe()
    assert text.startswith("Size of the examined files of sales, before and after V-Order. KiB. ")
