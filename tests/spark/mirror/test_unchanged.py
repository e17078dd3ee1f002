"""Updates that leave columns unchanged, with the extension `__unchanged__`."""

from __future__ import annotations

import random
from typing import Any

import pytest

from helpers.markers import MARKER, UNCHANGED, Marker
from helpers.model import TableModel
from mirrorlake import Lake
from mirrorlake.errors import DataFileError

KEYS, COLUMNS = ("id",), ["id", "n", "big", "raw"]


def change(chance: random.Random, model: TableModel) -> dict[str, Any]:
    """Return a change as a source makes it: only existing rows keep values."""
    number = chance.randrange(12)
    there = bool(model.rows.get((number,)))
    row: dict[str, Any] = {"id": number, "n": chance.randrange(100)}
    row |= {"big": chance.choice("abc") * 5, "raw": bytes([chance.randrange(9)]), UNCHANGED: []}
    if not there:
        return row | {MARKER: chance.choice([Marker.UPSERT, Marker.INSERT])}
    if chance.random() < 0.2:
        return row | {MARKER: Marker.DELETE}
    names = [name for name in ("big", "raw") if chance.random() < 0.5]
    return row | dict.fromkeys(names) | {UNCHANGED: names, MARKER: Marker.UPDATE}


def apply(model: TableModel, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        found = dict(row)
        model.apply(Marker(found.pop(MARKER)), found)


def publish(lake: Lake, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    fields = [("id", pa.int32()), ("n", pa.int32()), ("big", pa.string()), ("raw", pa.binary())]
    fields += [(UNCHANGED, pa.list_(pa.string())), (MARKER, pa.int32())]
    plain = [row | {MARKER: int(row[MARKER])} for row in rows]
    lake.publisher("t", keys=list(KEYS)).write(pa.Table.from_pylist(plain, pa.schema(fields)))


def test_updates_keep_what_the_table_has(lake: Lake) -> None:
    chance, model = random.Random(7), TableModel(KEYS)
    for files in (1, 2):
        for _ in range(files):
            rows = []
            for _ in range(60):
                rows.append(change(chance, model))
                apply(model, rows[-1:])
            publish(lake, rows)
        assert not lake.mirror().failed
        found = lake.table("t").read()
        assert found.columns == COLUMNS
        read = [
            tuple(bytes(v) if isinstance(v, bytearray) else v for v in r) for r in found.collect()
        ]
        assert sorted(read, key=str) == sorted(model.bag(COLUMNS).elements(), key=str)


def test_an_update_of_a_missing_row_stops_the_table(lake: Lake) -> None:
    row = {"id": 1, "n": 1, "big": "x", "raw": b"", UNCHANGED: [], MARKER: Marker.UPSERT}
    publish(lake, [row])
    assert not lake.mirror().failed
    publish(lake, [row | {"id": 2, "big": None, UNCHANGED: ["big"], MARKER: Marker.UPDATE}])
    (stopped,) = lake.mirror().failed
    assert "leaves 'big' unchanged" in str(stopped.error)
    assert lake.table("t").read().count() == 1


@pytest.mark.parametrize(
    ("names", "marker"), [(["id"], 1), (["nothing"], 1), (["big"], 4), (["big"], 0)]
)
def test_only_updates_keep_values_and_never_of_keys(
    lake: Lake, names: list[str], marker: int
) -> None:
    row = {"id": 1, "n": 1, "big": None, "raw": b"", UNCHANGED: names, MARKER: marker}
    with pytest.raises(DataFileError, match="unchanged") as caught:
        publish(lake, [row])
    assert (caught.value.row, caught.value.column) == (1, UNCHANGED)
