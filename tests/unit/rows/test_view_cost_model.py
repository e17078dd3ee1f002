"""The expected costs of full and incremental refreshes, and the choice between them."""

from __future__ import annotations

import pytest

from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake.views import explain, shape

Cost, Method = explain.Cost, shape.Method
MIB = 2**20


def test_without_a_measurement_changes_are_tried() -> None:
    guess = explain.estimate(Method.SUMS, MIB, {})
    assert (guess.full, guess.incremental, guess.prefers_full) == (None, None, False)


def test_a_query_without_a_rule_has_nothing_to_choose() -> None:
    guess = explain.estimate(Method.FULL, MIB, {"full": (Cost(9.0, 100 * MIB),)})
    assert (guess.full, guess.incremental, guess.prefers_full) == (9.0, None, False)


@pytest.mark.parametrize("method", [m for m in Method if m is not Method.FULL])
def test_before_the_first_refresh_by_what_changed_a_rule_of_thumb_decides(
    method: Method,
) -> None:
    large, small = {"full": (Cost(60.0, 1000 * MIB),)}, {"full": (Cost(0.5, MIB),)}
    assert not explain.estimate(method, MIB, large).prefers_full
    assert explain.estimate(method, 900 * MIB, large).prefers_full
    assert explain.estimate(method, 1000, small).prefers_full
    guesses = [
        explain.estimate(method, size, large).incremental or 0 for size in (0, MIB, 100 * MIB)
    ]
    assert guesses == sorted(guesses)


def test_what_was_measured_decides_later() -> None:
    costs = {"full": (Cost(10.0, 100 * MIB),), "incremental": (Cost(4.0, MIB),)}
    guess = explain.estimate(Method.ROWS, MIB, costs)
    assert (guess.incremental, guess.prefers_full) == (4.0, False)
    slow = costs | {"incremental": (Cost(12.0, MIB),)}
    assert explain.estimate(Method.ROWS, MIB, slow).prefers_full
    # The cost of few changes says nothing about many, and vice versa.
    assert explain.estimate(Method.ROWS, 90 * MIB, costs).prefers_full
    many = costs | {"incremental": (Cost(30.0, 50 * MIB),)}
    assert not explain.estimate(Method.ROWS, MIB, many).prefers_full


def test_several_sizes_say_what_lies_between_and_beyond() -> None:
    sizes = (Cost(3.0, 10), Cost(9.0, 100), Cost(2.0, 1))
    costs = {"full": (Cost(10.0, 1000),), "incremental": sizes}
    for changed, seconds in ((1, 2.0), (10, 3.0), (55, 6.0), (100, 9.0), (190, 15.0)):
        assert explain.estimate(Method.SUMS, changed, costs).incremental == pytest.approx(seconds)
    # A larger refresh that was faster shows that the smaller one was disturbed.
    costs["incremental"] = (Cost(3.0, 10), Cost(2.5, 100))
    for changed, seconds in ((10, 2.5), (50, 2.5), (500, 2.5 + 6 * 10 * 400 / 1000)):
        assert explain.estimate(Method.SUMS, changed, costs).incremental == pytest.approx(seconds)


def test_the_lakes_other_views_say_what_a_refresh_takes_at_least(tmp_path) -> None:
    storage, full = Storage(tmp_path), {"full": (Cost(2.0, 1000),)}
    assert explain.least_seconds(storage) == explain.COMMIT_SECONDS
    assert not explain.estimate(Method.SUMS, 1, full, explain.least_seconds(storage)).prefers_full
    explain.save_cost(storage, TableName("s", "v"), "incremental", Cost(9.0, 10))
    explain.save_cost(storage, TableName(None, "w"), "incremental", Cost(7.0, 10))
    explain.save_cost(storage, TableName(None, "w"), "full", Cost(0.1, 10))
    assert explain.least_seconds(storage) == 7.0
    assert explain.estimate(Method.SUMS, 1, full, explain.least_seconds(storage)).prefers_full
    # On a fast machine, measurements of this view can be below the default lower bound.
    quick = full | {"incremental": (Cost(0.2, 100), Cost(0.1, 10))}
    assert explain.estimate(Method.SUMS, 1, quick).incremental == pytest.approx(0.1)


def test_costs_are_kept_beside_the_lake_and_may_be_lost(tmp_path) -> None:
    storage, name = Storage(tmp_path), TableName("s", "v")
    assert explain.read_costs(storage, name) == {}
    explain.save_cost(storage, name, "full", Cost(2.5, 10))
    explain.save_cost(storage, name, "full", Cost(2.6, 1000))
    for cost in (
        Cost(1.5, 0),
        Cost(1.6, 5),
        Cost(9.0, 80),
        Cost(1.4, 9),
    ):
        explain.save_cost(storage, name, "incremental", cost)
    assert explain.read_costs(storage, name) == {
        "full": (Cost(2.6, 1000),),
        "incremental": (Cost(1.4, 9), Cost(9.0, 80), Cost(1.5, 0)),
    }
    explain.save_cost(storage, name, "full", Cost(2.6, 1000), chosen=True)
    seconds = [cost.seconds for cost in explain.read_costs(storage, name)["incremental"]]
    assert seconds == pytest.approx([1.26, 8.1, 1.35])
    for kind, size in (("full", 1000), ("incremental", 80)):  # a slower one raises it by 20 %
        explain.save_cost(storage, name, kind, Cost(90.0, size))
    costs = explain.read_costs(storage, name)
    assert (costs["full"], costs["incremental"][0]) == ((Cost(3.12, 1000),), Cost(9.72, 80))
    for size in range(20):
        explain.save_cost(storage, name, "incremental", Cost(1.0, 4**size))
    assert len(explain.read_costs(storage, name)["incremental"]) == 8
    explain.forget_costs(storage, name)
    assert explain.read_costs(storage, name) == {}
