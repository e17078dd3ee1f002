"""The mirror compared with its reference: every order of markers, and random changes.

Many examples share one MERGE, each with its own key prefix, because a MERGE takes a second.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from helpers.examples import listed
from helpers.markers import MARKER, Marker
from helpers.model import Change, TableModel
from helpers.tables import bag, describe_history
from mirrorlake import Lake

COLUMNS = ["example", "k", "v", "w"]
SCHEMA = pa.schema(
    [("example", pa.int64()), ("k", pa.string()), ("v", pa.int64()), (MARKER, pa.int32())]
)
WIDER = SCHEMA.insert(3, pa.field("w", pa.string()))


def as_table(changes: list[Change], schema: pa.Schema = SCHEMA) -> pa.Table:
    rows = [{**row, MARKER: int(marker)} for marker, row in changes]
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.mark.promise("LZ-08", "LZ-09", "LZ-10", "LZ-11", "LZ-12")
def test_every_order_of_up_to_five_markers_on_zero_one_and_two_rows(lake: Lake) -> None:
    before: list[Change] = []
    changes: list[Change] = []
    model = TableModel(("example", "k"))
    orders = [order for n in range(1, 6) for order in product(Marker, repeat=n)]
    for example, (order, existing) in enumerate(product(orders, (0, 1, 2))):
        key = {"example": example, "k": "key"}
        before += [(Marker.INSERT, {**key, "v": -1 - n}) for n in range(existing)]
        changes += [(marker, {**key, "v": n}) for n, marker in enumerate(order)]
    publisher = lake.publisher("orders", keys=["example", "k"])
    for part in (before, changes):
        publisher.write(as_table(part))
        model.apply_all(part)
        assert not lake.mirror().failed
    columns = ["example", "k", "v"]
    assert bag(lake, "orders", columns) == model.bag(columns)


KEYS = st.sampled_from(["a", "B", "b", "o'brien", "`", ""])
ROWS = st.fixed_dictionaries(
    {"k": KEYS, "v": st.none() | st.integers(-2, 2), "w": st.none() | st.text("xyz'\\", max_size=2)}
)
FILE = st.lists(st.tuples(st.sampled_from(list(Marker)), ROWS), max_size=6)
EXAMPLE = st.lists(st.lists(FILE, min_size=2, max_size=2), min_size=2, max_size=2)


@pytest.mark.parametrize("vectors", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.promise("LZ-12", "LZ-13", "LZ-19")
def test_random_changes_end_as_the_model_does(
    tmp_path_factory: pytest.TempPathFactory, vectors: bool
) -> None:
    examples: list[list[list[list[Change]]]] = listed(EXAMPLE, 120)
    lake = Lake(tmp_path_factory.mktemp("random"))
    lake.operations.defaults(deletion_vectors=vectors)
    publisher = lake.publisher("random", keys=["example", "k"])
    model = TableModel(("example", "k"))
    for cycle in range(2):
        for file in range(2):
            changes: list[Change] = []
            for number, example in enumerate(examples):
                for marker, row in example[cycle][file]:
                    full: dict[str, Any] = {"example": number, **row}
                    if cycle == 0:
                        del full["w"]  # a column that the publisher adds later
                    changes.append((marker, full))
            publisher.write(as_table(changes, SCHEMA if cycle == 0 else WIDER))
            model.apply_all(changes)
        assert not lake.mirror().failed
    assert bag(lake, "random", COLUMNS) == model.bag(COLUMNS)


@pytest.mark.promise("LZ-05", "LZ-15", "LZ-16")
def test_without_keys_inserts_work_and_changes_are_refused(lake: Lake) -> None:
    publisher = lake.publisher("log")
    publisher.write([{"line": "a"}, {"line": "a"}])
    publisher.insert([{"line": "b"}])
    assert not lake.mirror().failed
    assert bag(lake, "log", ["line"]) == {("a",): 2, ("b",): 1}
    assert lake.table("log").snapshot().protocol["minReaderVersion"] == 1


@pytest.mark.promise("LZ-17", "LZ-18", "LZ-19")
def test_the_documents_examples(lake: Lake) -> None:
    """Employees move from Redmond to Bellevue; a key changes in one file, and in a table."""
    publisher = lake.publisher("employees", keys=["EmployeeID"])
    publisher.write(
        [
            {MARKER: 0, "EmployeeID": "E0001", "EmployeeLocation": "Redmond"},
            {MARKER: 0, "EmployeeID": "E0002", "EmployeeLocation": "Redmond"},
            {MARKER: 0, "EmployeeID": "E0003", "EmployeeLocation": "Redmond"},
            {MARKER: 1, "EmployeeID": "E0001", "EmployeeLocation": "Bellevue"},
        ]
    )
    lake.publisher("renamed", keys=["EmployeeID"]).write(
        [
            {MARKER: 0, "EmployeeID": "E0001", "EmployeeLocation": "Bellevue"},
            {MARKER: 2, "EmployeeID": "E0001", "EmployeeLocation": None},
            {MARKER: 0, "EmployeeID": "E0002", "EmployeeLocation": "Bellevue"},
        ]
    )
    assert not lake.mirror().failed
    columns = ["EmployeeID", "EmployeeLocation"]
    assert bag(lake, "renamed", columns) == {("E0002", "Bellevue"): 1}
    assert bag(lake, "employees", columns) == {
        ("E0001", "Bellevue"): 1,
        ("E0002", "Redmond"): 1,
        ("E0003", "Redmond"): 1,
    }
    publisher.write(
        [
            {MARKER: 2, "EmployeeID": "E0002", "EmployeeLocation": None},
            {MARKER: 2, "EmployeeID": "E0001", "EmployeeLocation": None},
            {MARKER: 0, "EmployeeID": "E0002", "EmployeeLocation": "Bellevue"},
        ]
    )
    assert not lake.mirror().failed
    assert bag(lake, "employees", columns) == {("E0002", "Bellevue"): 1, ("E0003", "Redmond"): 1}


def test_version_0_has_all_properties_and_each_cycle_is_one_commit(lake: Lake) -> None:
    publisher = lake.publisher("stock", keys=["id"])
    publisher.write([{"id": 1, "n": 1}])
    lake.mirror()
    publisher.upsert([{"id": 1, "n": 2}])
    publisher.delete([{"id": 7}])
    publisher.upsert([{"id": 2, "n": 5, "added": "x"}])
    lake.mirror()
    table = lake.table("stock")
    history = {row.version: row.operation for row in describe_history(table).collect()}
    assert history == {0: "CREATE TABLE", 1: "WRITE", 2: "MERGE"}
    properties = table.snapshot().properties
    by_default = lake.operations.defaults().deletion_vectors is None
    assert table.snapshot().has_vectors is by_default
    assert properties["delta.enableChangeDataFeed"] == "true"
    assert properties["delta.enableRowTracking"] == "true"
    assert properties["mirrorlake.keys"] == '["id"]'
    assert list(table.snapshot().schema) == ["id", "n", "added"]
    assert table.read(version=0).count() == 0
    assert [tuple(row) for row in table.read(version=1).collect()] == [(1, 1)]
