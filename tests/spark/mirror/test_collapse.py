"""Collapsed changes, executed by a loop and compared with the reference for every short order.

No table is written: this covers only the decision, which `tests/helpers/mutants.py` scores.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from pyspark.sql import SparkSession

from helpers.markers import UNCHANGED, Marker
from helpers.model import Change, Row, TableModel
from mirrorlake.mirror import batch

DATA = "example INT, `k.` STRING, v INT, w INT"
KEYS = ("example", "k.")
TABLE = (0, 1, 2)  # the number of rows of the key before the batch
TOLD = [(marker, ()) for marker in Marker]
# Updates that leave columns unchanged; inserted rows have distinct keys.
LEFT = [
    (Marker.UPDATE, ("v",)), (Marker.UPDATE, ("w",)), (Marker.UPDATE, ("v", "w")),
    (Marker.UPDATE, ()), (Marker.DELETE, ()), (Marker.UPSERT, ()),
]  # fmt: skip
Kinds = tuple[tuple[Marker, tuple[str, ...]], ...]


def changes_of(example: int, kinds: Kinds) -> list[Change]:
    row: Row = {"example": example, "k.": "key"}
    return [
        (marker, {**row, "v": 10 * place, "w": 10 * place + 1, UNCHANGED: list(names)})
        for place, (marker, names) in enumerate(kinds, start=1)
    ]


def model_of(example: int, rows: int, changes: list[Change]) -> TableModel | None:
    """Return the rows after the changes; `None` if a change keeps values of a missing row."""
    model = TableModel(KEYS)
    key: Row = {"example": example, "k.": "key"}
    model.apply_all([(Marker.INSERT, {**key, "v": -n, "w": -n - 5}) for n in range(rows)])
    try:
        model.apply_all(changes)
    except AssertionError:
        return None
    return model


def carried_out(rows: int, actions: list[Row]) -> Counter[tuple[Any, ...]]:
    """Return the rows of a key after its actions, as `(v, w)`."""
    before = [{"v": -n, "w": -n - 5} for n in range(rows)]
    once = [action for action in actions if action[batch.ACTION] != batch.APPEND]
    assert len(once) <= 1, actions
    after = [] if once else before
    for action in once:
        if action[batch.ACTION] == batch.DELETE:
            continue
        kept = action.get(batch.KEPT) or ()
        after += [{**action, **{name: old[name] for name in kept}} for old in before]
        if not before and action[batch.ACTION] == batch.REPLACE:
            assert not kept, action
            after.append(action)
    after += [action for action in actions if action[batch.ACTION] == batch.APPEND]
    return Counter((row["v"], row["w"]) for row in after)


def decided(
    spark: SparkSession, changes: list[Change], markers: set[Marker], unchanged: tuple[str, ...]
) -> dict[int, list[Row]]:
    """Return the actions per example; changes are shuffled, because only positions count."""
    rows = [
        (*(row[name] for name in (*KEYS, "v", "w")), int(marker), place, row[UNCHANGED] or None)
        for place, (marker, row) in enumerate(changes)
    ]
    schema = f"{DATA}, {batch.MARKER} INT, {batch.POSITION} BIGINT, {batch.KEPT} ARRAY<STRING>"
    frame = spark.createDataFrame(sorted(rows, key=lambda row: (-row[5] % 7, row[5])), schema)
    if not unchanged:
        frame = frame.drop(batch.KEPT)
    found: dict[int, list[Row]] = {}
    for row in batch.collapse_changes(frame, KEYS, markers, unchanged).collect():
        assert row["k."] == "key"
        found.setdefault(row["example"], []).append(row.asDict())
    return found


@pytest.mark.parametrize(
    ("kinds", "longest", "unchanged"),
    [
        (TOLD, 5, ()),
        ([(m, n) for m, n in TOLD if m is not Marker.INSERT], 4, ()),
        ([(m, n) for m, n in TOLD if m in (Marker.INSERT, Marker.UPSERT)], 4, ()),
        (LEFT, 4, ("v", "w")),
    ],
    ids=["all", "no insert", "no delete", "unchanged"],
)
def test_every_order_is_decided_as_the_model_does(
    spark: SparkSession, kinds: list[Any], longest: int, unchanged: tuple[str, ...]
) -> None:
    markers = {marker for marker, _ in kinds}
    # The first change of a batch may be a delete.
    orders: list[Kinds] = [((Marker.DELETE, ()), (Marker.UPSERT, ()))] * (Marker.DELETE in markers)
    orders += [order for n in range(1, longest + 1) for order in product(kinds, repeat=n)]
    changes = [changes_of(example, order) for example, order in enumerate(orders)]
    found = decided(spark, [change for some in changes for change in some], markers, unchanged)
    for example, order in enumerate(orders):
        for rows in TABLE:
            model = model_of(example, rows, changes[example])
            if model is not None:
                after = carried_out(rows, found.get(example, []))
                assert after == model.bag(["v", "w"]), (order, rows)


def test_a_key_that_the_table_does_not_have_is_refused(spark: SparkSession) -> None:
    """An update keeps a value, but the table lacks its row; other changes are valid."""
    fine = changes_of(1, ((Marker.UPSERT, ()), (Marker.UPDATE, ("v",))))
    lost = changes_of(2, ((Marker.DELETE, ()), (Marker.UPDATE, ("w",))))
    schema = f"{DATA}, {batch.KEPT} ARRAY<STRING>"
    for changes, refused in ((fine, False), (fine + lost, True)):
        kept = [
            row
            for rows in decided(spark, changes, set(Marker), ("v", "w")).values()
            for row in rows
        ]
        frame = spark.createDataFrame(
            [(*(row[name] for name in (*KEYS, "v", "w")), row[batch.KEPT]) for row in kept], schema
        )
        if refused:
            with pytest.raises(Exception, match="leaves 'w' unchanged, but the table does not"):
                batch.require_values(frame, ("v", "w")).collect()
        else:
            (row,) = batch.require_values(frame, ("v", "w")).collect()
            assert (row["v"], row["w"]) == (10, 21)
