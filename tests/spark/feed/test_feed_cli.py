"""Test the commands on a change feed, in this process to share its session."""

from __future__ import annotations

from typing import Any

from helpers.feed_model import RESERVED
from mirrorlake import Lake


def test_changes_and_doctor(lake: Lake, run: Any) -> None:
    publisher = lake.publisher("s.stock", keys=["id"])
    publisher.write([{"id": 2, "v": "a"}, {"id": 1, "v": "b"}])
    lake.mirror()
    publisher.update([{"id": 2, "v": "c"}])
    publisher.delete([{"id": 1}])
    assert not lake.mirror().failed
    root = lake.storage.root
    table = lake.table("s.stock")
    document = run("changes", root, "s.stock", "--from", "1", "--json")
    assert document["columns"] == ["id", "v", *RESERVED]
    rows = [(r["_commit_version"], r["_change_type"], r["id"]) for r in document["rows"]]
    assert rows == [
        (1, "insert", 1),
        (1, "insert", 2),
        (2, "delete", 1),
        (2, "update_preimage", 2),
        (2, "update_postimage", 2),
    ]
    assert document["rows"][0]["_commit_timestamp"].endswith("+00:00")
    net = run("changes", root, "s.stock", "--from", "0", "--to", "2", "--net", "--json")["rows"]
    assert [(r["id"], r["v"], r["_change_type"]) for r in net] == [(2, "c", "insert")]
    moment = document["rows"][-1]["_commit_timestamp"].replace("T", " ")[:23]
    later = run("changes", root, "s.stock", "--from", moment, "--json")["rows"]
    assert {row["_commit_version"] for row in later} == {2}
    assert "update_postimage" in run("changes", root, "s.stock", "--from", "2").out
    assert (
        run("changes", root, "s.stock", "--from", "9", "--beyond", "clip", "--json")["rows"] == []
    )
    assert (
        "beyond the newest version" in run("changes", root, "s.stock", "--from", "9", status=1).err
    )
    assert "nor a timestamp" in run("changes", root, "s.stock", "--from", "noon", status=2).err
    run("changes", root, "s.stock", status=2)
    assert "no table" in run("changes", root, "nothing", "--from", "0", status=1).err
    assert run("doctor", root, "s.stock", "--json") == {"findings": []}
    lake.spark.sql(
        f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)"
    )
    found = run("doctor", root, "s.stock", "--json", status=1)["findings"]
    assert [(f["rule"], f["table"]) for f in found] == [
        ("feed-off", "s.stock"),
        ("readable", "s.stock"),
    ]
    assert set(found[0]) == {"rule", "table", "file", "row", "column", "message", "fix"}
    assert run("doctor", root, "s.stock", "--to", "2", "--json") == {"findings": []}
    assert "feed-off" in run("doctor", root, "s.stock", status=1).out
    assert "not enabled" in run("changes", root, "s.stock", "--from", "1", status=1).err
    bridged = run("changes", root, "s.stock", "--from", "1", "--across-gaps", "--json")
    assert {row["_change_origin"] for row in bridged["rows"]} == {"feed"}


def test_archive_and_dimension(lake: Lake, run: Any) -> None:
    root = lake.storage.root
    publisher = lake.publisher("stock", keys=["id"])
    publisher.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    lake.mirror()
    planned = run("archive", root, "stock", "--dry-run", "--json")
    assert planned == {
        "table": "stock", "into": "stock_history", "start": 0, "end": 1, "versions_behind": 2,
        "recovered": "", "applied": False, "why_not": "",
    }  # fmt: skip
    shown = run("dimension", root, "stock", "--dry-run").out.splitlines()
    assert shown == [
        "stock → dim_stock: would take versions 0 to 1",
        "Nothing was changed: a dry run.",
    ]
    assert [str(name) for name in lake.tables()] == ["stock"]
    assert run("archive", root, "stock", "--into", "kept", "--start", "1", "--json")["start"] == 1
    publisher.update([{"id": 1, "v": "c"}])
    lake.mirror()
    assert "1 new version, archived up to 2" in run("archive", root, "stock", "--into", "kept").out
    done = run("dimension", root, "stock", "--stored-as", "2", "--track-history", "v", "--json")
    assert done == {
        "table": "stock", "into": "dim_stock", "start": 0, "end": 2, "did": "versions 0 to 2",
        "applied": True, "why_not": "",
    }  # fmt: skip
    assert lake.table("dim_stock").read().count() == 3
    assert "of the other type" in run("dimension", root, "stock", status=2).err
    run("dimension", root, "stock", "--stored-as", "3", status=2)
    assert "no table" in run("archive", root, "stok", status=1).err
    lake.create_table("off", {"id": "bigint"}, feed=False)
    assert "is off" in run("archive", root, "off", "--json", status=1)["why_not"]
    assert "declares no keys" in run("dimension", root, "off", status=1).out
    assert "is off" in run("dimension", root, "off", "--keys", "id", status=1).out
    assert run("dimension", root, "off", "--keys", "id", "--from-snapshot", "--json")["end"] == 0
