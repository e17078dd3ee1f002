"""The bounds of a batch's keys, as conditions on the rows that can match."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.landing import check
from mirrorlake.mirror import batch, next_batch


def conditions(
    folder: Path, files: list[dict[str, pa.Array]], keys: dict[str, str], **options: Any
) -> list[str]:
    """Return the conditions for files with these columns, and keys with these table types."""
    bounds = []
    for number, columns in enumerate(files):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=2, **options)
        with pq.ParquetFile(path) as parquet:
            bounds.append(check.footer_bounds(parquet, list(keys)))
    target = next_batch.Target(keys, ())
    return batch.key_conditions(batch.key_bounds(bounds, tuple(keys), target), target)


def test_the_bounds_are_those_of_all_row_groups_of_all_files(tmp_path: Path) -> None:
    files = [{"id": pa.array(ids, pa.int64())} for ids in ([5, 9, 7], [-3, 8], [], [2**40])]
    assert conditions(tmp_path, files, {"id": "long"}) == [f"t.`id` BETWEEN -3L AND {2**40}L"]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pa.array([1, 2], pa.int8()), "byte", "1Y AND 2Y"),
        (pa.array([1, 2], pa.uint8()), "short", "1S AND 2S"),
        (pa.array([1, 2], pa.int16()), "integer", "1 AND 2"),
        (pa.array([1, 2**32 - 1], pa.uint32()), "long", f"1L AND {2**32 - 1}L"),
        (pa.array(["b", "a-1"]), "string", "'a-1' AND 'b'"),
        (pa.array(["b", "a"]).dictionary_encode(), "string", "'a' AND 'b'"),
        (
            pa.array([dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
            "date",
            "DATE'0001-01-01' AND DATE'2024-02-29'",
        ),
    ],
)
def test_numbers_days_and_plain_texts_have_bounds(
    tmp_path: Path, values: pa.Array, kind: str, expected: str
) -> None:
    assert conditions(tmp_path, [{"k": values}], {"k": kind}) == [f"t.`k` BETWEEN {expected}"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1.5, float("nan")]), "double"),
        (pa.array([dt.datetime(2024, 1, 1)]), "timestamp_ntz"),
        (pa.array([b"a"]), "binary"),
        (pa.array([True]), "boolean"),
        (pa.array([2**63], pa.uint64()), "decimal(20,0)"),
        (pa.array([{"k": "x"}]), "string"),
        (pa.array(["o'brien", "a"]), "string"),
        (pa.array(["${spark.app.name}", "a"]), "string"),
        (pa.array(["a\\", "b"]), "string"),
        (pa.array(["é", "e"]), "string"),
    ],
    ids=str,
)
def test_values_without_a_certain_order_have_no_bounds(
    tmp_path: Path, values: pa.Array, kind: str
) -> None:
    assert conditions(tmp_path, [{"k": values}], {"k": kind}) == []


def test_one_file_without_statistics_prevents_bounds(tmp_path: Path) -> None:
    files = [{"id": pa.array([1])}]
    assert conditions(tmp_path, files, {"id": "long"}) != []
    assert conditions(tmp_path, files, {"id": "long"}, write_statistics=False) == []
    told = [{"id": [(1, 1)]}, {}]
    assert batch.key_bounds(told, ("id",), next_batch.Target({"id": "long"}, ())) == {}


def test_each_key_column_has_its_own(tmp_path: Path) -> None:
    columns = {
        "A`b": pa.array([3, 1]),
        "price": pa.array([0.5, 1.5]),
        "s.k": pa.array([1, 2]),
        "s": pa.array([{"k": 8}, {"k": 9}]),
    }
    keys = {"a`b": "long", "price": "double", "s.k": "long"}
    assert conditions(tmp_path, [columns], keys) == ["t.`a``b` BETWEEN 1L AND 3L"]


@pytest.mark.parametrize(
    ("least", "most", "bounds", "expected"),
    [
        (1, 9, (9, 12), True),
        (1, 9, (10, 12), False),
        (13, 20, (10, 12), False),
        ("a", "f", ("f", "g"), True),
        ("a", "f", ("g", "h"), False),
        ("2024-01-01", "2024-01-31", (dt.date(2024, 1, 31), dt.date(2024, 2, 3)), True),
        ("2024-01-01", "2024-01-31", (dt.date(2024, 2, 1), dt.date(2024, 2, 3)), False),
        (None, 9, (10, 12), True),
        (1.5, 9.5, (10, 12), True),  # an unsupported type rules nothing out
    ],
)
def test_a_file_is_left_out_if_its_statistics_rule_the_keys_out(
    least: Any, most: Any, bounds: tuple[Any, Any], expected: bool
) -> None:
    add = {"stats": json.dumps({"minValues": {"col-1": least}, "maxValues": {"col-1": most}})}
    limits = batch.file_limits(add)
    assert batch.may_match(limits, {"k": bounds}, {"k": "col-1"}) is expected
    assert batch.may_match(batch.file_limits({}), {"k": bounds}, {"k": "col-1"})
    assert batch.may_match(limits, {}, {"k": "col-1"})


def with_ids(least: int | None, most: int | None) -> batch.Limits:
    """Return the limits of a file with ids in a range."""
    return {"id": least}, {"id": most}


@given(
    kind=st.sampled_from([("byte", 8), ("short", 16), ("integer", 32), ("long", 64)]),
    data=st.data(),
)
def test_wide_bounds_hold_the_given_ones_and_are_values_of_the_type(
    kind: tuple[str, int], data: st.DataObject
) -> None:
    name, bits = kind
    value = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    low, high = sorted(data.draw(st.lists(value, min_size=2, max_size=2)))
    ends = data.draw(st.lists(st.lists(value, min_size=2, max_size=2).map(sorted), max_size=3))
    limits = [with_ids(*pair) for pair in ends]
    found = batch.wide_bounds(
        {"id": (low, high)}, limits, {"id": "id"}, next_batch.Target({"id": name}, ())
    )
    below, above = found["id"]
    assert -(2 ** (bits - 1)) <= below <= low <= high <= above < 2 ** (bits - 1)


def test_batches_all_over_a_table_have_the_same_bounds() -> None:
    limits = [with_ids(0, 999_999), with_ids(1_000_000, 1_999_999)]
    target, names = next_batch.Target({"id": "long"}, ()), {"id": "id"}
    batches = [(200, 1_999_696), (31, 1_999_999), (5_000, 1_990_000)]
    found = [batch.wide_bounds({"id": ends}, limits, names, target)["id"] for ends in batches]
    assert found == [(0, 2**21 - 1)] * 3
    narrow = {"id": (700_000, 700_010)}
    assert batch.wide_bounds(narrow, limits, names, target) == narrow


def test_texts_days_and_tables_without_statistics_keep_their_bounds() -> None:
    bounds = {"id": (1, 10**6), "day": (dt.date(2024, 1, 1), dt.date(2025, 1, 1)), "t": ("a", "z")}
    target = next_batch.Target({"id": "long", "day": "date", "t": "string"}, ())
    names = {name: name for name in bounds}
    assert (
        batch.wide_bounds(bounds, [with_ids(None, None), batch.file_limits({})], names, target)
        == bounds
    )
