"""MERGE reads only files of the table that can contain a batch's keys."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from helpers.markers import Marker
from helpers.model import Change, TableModel
from helpers.tables import bag, describe_history
from mirrorlake import Lake
from mirrorlake.mirror import apply


def test_files_out_of_the_keys_range_are_left_alone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "exchange_batch", lambda *_: False)
    lake.operations.defaults(deletion_vectors=False)
    publisher = lake.publisher("sales", keys=["day", "No."])
    model = TableModel(("day", "No."))

    def publish(marker: Marker, rows: list[dict]) -> None:
        changes: list[Change] = [(marker, row) for row in rows]
        getattr(publisher, marker.name.lower())(rows)
        model.apply_all(changes)

    def row(day: int, number: str, n: int) -> dict:
        return {"day": dt.date(2024, 1, day), "No.": number, "n": n}

    for day in (1, 2, 3):  # one file of the table each
        publish(Marker.INSERT, [row(day, letter, 0) for letter in "abcd"])
        assert not lake.mirror().failed
    before = set(lake.table("sales").read().inputFiles())
    publish(Marker.UPSERT, [row(2, "a", 1), row(2, "d", 2)])  # both ends of a range are in it
    publish(Marker.DELETE, [row(2, "b", 0)])
    publish(Marker.INSERT, [row(2, "c", 3)])
    publish(Marker.UPDATE, [row(2, "A new one", 4)])
    assert not lake.mirror().failed
    assert bag(lake, "sales", ["day", "No.", "n"]) == model.bag(["day", "No.", "n"])
    assert len(before & set(lake.table("sales").read().inputFiles())) == 2
    (latest,) = describe_history(lake.table("sales")).limit(1).collect()
    assert "2024-01-02" in json.dumps(latest.operationParameters)
    assert latest.operationMetrics["numTargetFilesRemoved"] == "1"
