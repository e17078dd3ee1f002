"""Digests are those of PostgreSQL, and their sums do not depend on the order of the rows."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.landing.digests import (
    LONGEST,
    NO_ROWS,
    Sums,
    add_sums,
    digest_texts,
    digest_values,
    find_ranges,
    sum_batch,
)

# Computed by PostgreSQL 15 with the expression in the docstring of `digest_values`.
BY_POSTGRES = [
    (pa.string(), "", 4696542705509922086),
    (pa.string(), "abcdefghijkl", 654866539713934891),
    (pa.string(), "mirrorlake, ä", 2875076341123639188),
    (pa.int16(), -5, -1730460243560643730),
    (pa.float32(), 0.5, -2416119486399866026),
    (pa.timestamp("us"), datetime(2026, 11, 26, 12, 0, 0, 1), 3977227626955054183),
    (pa.int64(), None, 434346878670890809),
]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.none() | st.text(max_size=30) | st.just("x" * (LONGEST + 1)),
        st.none() | st.floats(),
    ),
    min_size=1,
    max_size=30,
)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    kinds = (pa.int64(), pa.string(), pa.float64())
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, ["id", "word", "x"])


def sums_of(rows: list[tuple[Any, ...]], key: str | None = "id") -> dict[int, Sums]:
    starts = [10, 20, 30] if key else [-(2**62), 0, 2**62]
    batch = batch_of(rows)
    found = sum_batch(batch, batch.schema.names, key, starts, digest_values)
    return {place: (count, total) for place, count, total in found}


@pytest.mark.parametrize(("kind", "value", "digest"), BY_POSTGRES)
def test_a_digest_is_the_one_of_postgresql(kind: pa.DataType, value: Any, digest: int) -> None:
    batch = pa.record_batch([pa.array([value], kind)], ["a"])
    assert digest_values(batch, ["a"]).tolist() == [digest]


def test_a_row_has_one_digest_for_all_its_values() -> None:
    batch = pa.record_batch(
        [pa.array([1]), pa.array(["b"]), pa.array([None], pa.bool_())], [*"abc"]
    )
    assert digest_values(batch, ["a", "b", "c"]).tolist() == [-3584803871881480611]


@given(ROWS)
def test_a_digest_does_not_depend_on_the_other_rows(rows: list[tuple[Any, ...]]) -> None:
    for digest in (digest_values, digest_texts):
        together = digest(batch_of(rows), ["id", "word", "x"]).tolist()
        alone = [digest(batch_of([row]), ["id", "word", "x"]).tolist()[0] for row in rows]
        assert together == alone


@given(ROWS, st.randoms())
def test_sums_of_parts_add_up_in_any_order(rows: list[tuple[Any, ...]], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    half = len(rows) // 2
    for key in ("id", None):
        added: dict[int, Sums] = {}
        for part in filter(None, (shuffled[:half], shuffled[half:])):
            for place, sums in sums_of(part, key).items():
                added[place] = add_sums(added.get(place, NO_ROWS), sums)
        assert added == sums_of(rows, key)
    places = {min(row[0] // 10, 3) for row in rows}
    assert {place: count for place, (count, _) in sums_of(rows).items()} == {
        place: sum(min(row[0] // 10, 3) == place for row in rows) for place in places
    }


def test_rows_that_exchange_values_have_another_sum() -> None:
    before = sums_of([(1, "a", 1.0), (2, "b", 2.0)])
    assert sums_of([(1, "b", 1.0), (2, "a", 2.0)]) != before
    assert sums_of([(1, "a", 1.0)] * 2) != sums_of([(2, "b", 2.0)] * 2)


def test_a_null_key_does_not_move_other_rows() -> None:
    large = 2**60 + 1  # no double
    batch = pa.record_batch([pa.array([large, None])], ["id"])
    places = find_ranges(batch, "id", [large + 1, large + 3], digest_values(batch, ["id"]))
    assert places.tolist()[0] == 0
    words = pa.record_batch([pa.array(["b", None])], ["id"])
    assert find_ranges(words, "id", ["b", "c"], digest_values(words, ["id"])).tolist()[0] == 1


def test_equal_values_of_another_type_have_the_same_digest() -> None:
    pairs = [
        (pa.array([7], pa.int16()), pa.array([7], pa.int64())),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([0.1], pa.float32()), pa.array([0.1], pa.float32()).cast(pa.float64())),
        (pa.array([Decimal("1.50")]), pa.array(["1.50"])),
        (pa.array(["x", "x"]).dictionary_encode(), pa.array(["x", "x"])),
    ]
    for one, other in pairs:
        first, second = (digest_values(pa.record_batch([a], ["a"]), ["a"]) for a in (one, other))
        assert first.tolist() == second.tolist()
