from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from helpers.lakes import lake_of
from helpers.least_table import make_mirrored
from mirrorlake import Lake, MirrorOptions
from mirrorlake.errors import TableNotFoundError
from mirrorlake.landing import zone
from mirrorlake.landing.metadata import Identity, write_identity
from mirrorlake.mirror import state
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.state import TableState, load_states, save_states
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage

ZONE = "Files/LandingZone"


def put(storage: Storage, folder: str, *numbers: int) -> None:
    for number in numbers:
        storage.write(f"{ZONE}/{folder}/{file_name(number)}", b"x")


def no_spark():
    raise AssertionError("Spark was asked for")


def test_an_empty_lake(any_storage: Storage):
    assert lake_of(any_storage).status().tables == ()
    assert any_storage.list("").folders == ()


@pytest.mark.promise("LZ-02")
@pytest.mark.promise("LZ-03")
def test_tables_of_all_schemas_are_found_and_hidden_ones_are_not(any_storage: Storage):
    for folder in ("t", "a.schema/t", "b.schema/t", "b.schema/u", "_scratchPad", "a.schema/_x"):
        put(any_storage, folder, 1)
    names = [TableName("a", "t"), TableName("b", "t"), TableName("b", "u"), TableName(None, "t")]
    assert list(zone.find_tables(any_storage)) == names
    assert [(t.schema, t.name) for t in lake_of(any_storage).status().tables] == [
        (name.schema, name.name) for name in names
    ]


@pytest.mark.parametrize(
    ("applied", "numbers", "backlog", "waiting"),
    [
        (0, [], 0, None),
        (0, [1, 2, 3], 3, None),
        (2, [2], 0, None),
        (2, [2, 3, 4], 2, None),
        (0, [2, 3], 2, 1),
        (2, [2, 4, 5, 7], 3, 3),
        (2, [1, 2, 3, 5], 2, 4),
        (5, [3, 4, 5], 0, None),
        (5, [], 0, None),
    ],
)
def test_backlog_and_gaps(any_storage: Storage, applied, numbers, backlog, waiting):
    put(any_storage, "t", *numbers)
    any_storage.write(f"{ZONE}/t/_metadata.json", b"{}")
    known = TableState(None, "t", state="Replicating", last_file=applied, rows=7)
    save_states(any_storage, {f"{ZONE}/t": known})
    (line,) = lake_of(any_storage).status().tables
    assert (line.backlog_files, line.waiting_for) == (backlog, waiting)
    assert (line.last_file, line.rows, line.state, line.error) == (applied, 7, "Replicating", None)
    assert (line.lag_seconds > 0) <= (backlog > 0)


@pytest.mark.parametrize("is_older", [False, True])
def test_after_a_kill_the_state_is_that_of_the_log(any_storage: Storage, is_older: bool):
    """A mirror that is killed between its commit and the end of its cycle saves no state."""
    life = Identity(TableName(None, "t"), "1")
    note = {"incarnation": "1", "last": 3, "total_rows": 7, "total_bytes": 9, "synced": "now"}
    if is_older:
        del note["total_rows"]
    make_mirrored(any_storage, life, note)
    put(any_storage, "t", 3, 4)
    write_identity(any_storage, life)
    error = {"message": "Bad row.", "file": None, "row": None, "column": None}
    known = TableState(None, "t", "Failed", "1", last_file=1, rows=2, latency=5, error=error)
    save_states(any_storage, {f"{ZONE}/t": known})
    (line,) = lake_of(any_storage).status().tables
    assert (line.state, line.last_file, line.backlog_files) == ("Replicating", 3, 1)
    assert (line.rows, line.latency, line.error) == (2 if is_older else 7, None, None)
    assert (line.applied_bytes, line.synced) == ((0, None) if is_older else (9, "now"))


def test_a_new_incarnation_has_applied_no_file_of_the_old_one(any_storage: Storage):
    put(any_storage, "t", 1, 2, 3)
    write_identity(any_storage, Identity(TableName(None, "t"), "2"))
    known = TableState(None, "t", "Replicating", "1", seen="of the old one", last_file=2)
    save_states(any_storage, {f"{ZONE}/t": known})
    (line,) = lake_of(any_storage).status().tables
    assert (line.last_file, line.backlog_files) == (0, 3)


def test_lag_is_the_age_of_the_oldest_file_not_applied(storage: Storage):
    put(storage, "t", 1, 2, 3)
    save_states(storage, {f"{ZONE}/t": TableState(None, "t", last_file=1)})
    now = datetime.now(timezone.utc)
    for number, minutes in ((1, 60), (2, 10), (3, 5)):
        moment = (now - timedelta(minutes=minutes)).timestamp()
        os.utime(Path(storage.root, ZONE, "t", file_name(number)), (moment, moment))
    (line,) = lake_of(storage).status().tables
    assert line.lag_seconds == pytest.approx(600, abs=30)


def test_a_clock_that_runs_ahead_gives_no_negative_lag(storage: Storage):
    put(storage, "t", 1)
    ahead = datetime.now(timezone.utc).timestamp() + 3600
    os.utime(Path(storage.root, ZONE, "t", file_name(1)), (ahead, ahead))
    assert lake_of(storage).status().tables[0].lag_seconds == 0


BAD = [".hidden", "bad:name", "back\\slash", "x.SCHEMA", "line\nfeed", "x" * 201]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("schema", [None, "s"])
def test_a_bad_folder_is_reported_and_others_continue(storage: Storage, schema, name):
    if schema and name == "x.SCHEMA":
        pytest.skip("a fine name inside of a schema")
    inner = name if schema is None else f"{schema}.schema/{name}"
    Path(storage.root, ZONE, inner).mkdir(parents=True)
    put(storage, "zz", 1)
    bad, good = sorted(lake_of(storage).status().tables, key=lambda line: line.name == "zz")
    assert (bad.schema, bad.name, bad.state) == (schema, name, "Failed")
    assert "Hint:" in bad.error["message"]
    assert (good.name, good.error, good.backlog_files) == ("zz", None, 1)


def test_a_bad_schema_folder_is_reported(storage: Storage):
    Path(storage.root, ZONE, "bad:one.schema", "t").mkdir(parents=True)
    (found,) = zone.find_tables(storage)
    assert isinstance(found, zone.BadFolder)
    assert found.folder == f"{ZONE}/bad:one.schema/t"
    assert lake_of(storage).status().failed


@pytest.mark.parametrize("place", [b"\xff", b"\xff.schema/t", b"s.schema/\xff"])
def test_a_folder_with_an_undecodable_name_does_not_stop_others(storage: Storage, place: bytes):
    os.makedirs(os.fsencode(Path(storage.root, ZONE)) + b"/" + place)
    (Path(storage.root, ZONE) / "zz").mkdir()
    report = Engine(storage, no_spark, MirrorOptions(tables_at_once=1)).run_cycle()
    assert [line.state for line in report.tables if line.name != "zz"] == ["Failed"]
    assert len(json.loads(storage.read("Files/Monitoring/tables.json"))["tables"]) == 2
    assert len(load_states(storage)) == 2
    assert len(lake_of(storage).status().failed) == 1


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ([file_name(0)], "not between 1 and"),
        ([file_name(2**63)], "not between 1 and"),
        ([file_name(1), file_name(1, ".csv")], "have the same number"),
    ],
)
def test_numbers_that_make_no_sense_are_that_tables_error(any_storage: Storage, names, match):
    for name in names:
        any_storage.write(f"{ZONE}/t/{name}", b"x")
    put(any_storage, "zz", 1)
    bad, good = lake_of(any_storage).status().tables
    assert match in bad.error["message"]
    assert bad.error["file"] in names
    assert (bad.state, good.error) == ("Failed", None)


@pytest.mark.promise("LZ-13")
def test_pending_files_end_at_a_gap(any_storage: Storage):
    put(any_storage, "t", 3, 1, 2, 5, 6)
    folder = zone.list_folder(any_storage, TableName(None, "t"))
    ready, missing = folder.pending(1)
    assert [entry.name for entry in ready] == [file_name(2), file_name(3)]
    assert missing == 4
    assert folder.pending(4)[1] is None
    assert folder.pending(6) == ([], None)


def test_looking_changes_nothing(any_storage: Storage):
    put(any_storage, "t", 1)
    lake_of(any_storage).status()
    assert any_storage.list("Files").folders == ("LandingZone",)
    assert [e.name for e in any_storage.list(f"{ZONE}/t").files] == [file_name(1)]


def test_states_are_saved_and_reported_in_fabrics_format(any_storage: Storage):
    error = {"message": "m", "file": None, "row": 1, "column": "c"}
    incarnation = "0" * 31 + "7"
    known = TableState("s", "t", "Failed", incarnation, rows=5, bytes=6, synced="2026-01-01")
    known = replace(known, latency=1.5, error=error)
    save_states(any_storage, {"folder": known})
    assert load_states(any_storage) == {"folder": known}
    (line,) = any_storage.read_json("Files/Monitoring/tables.json")["tables"]
    assert line == {
        "id": "00000000-0000-0000-0000-000000000007",
        "status": "Failed",
        "errorCode": "TableFailed",
        "errorMessage": "m [row 1, column c]",
        "normalizedTableName": "s.t",
        "sourceTableName": "t",
        "sourceSchemaName": "s",
        "sourceObjectType": "Table",
        "metrics": {
            "processedRowCount": 5,
            "processedByte": 6,
            "lastSourceCommitTimeUtc": "0001-01-01T00:00:00",
            "lastSyncTimeUtc": "2026-01-01",
        },
    }


def test_the_monitoring_file_has_empty_texts_without_schema_and_error(any_storage: Storage):
    save_states(any_storage, {"folder": TableState(None, "t")})
    (line,) = any_storage.read_json("Files/Monitoring/tables.json")["tables"]
    assert (line["sourceSchemaName"], line["normalizedTableName"]) == ("", "t")
    assert (line["errorCode"], line["errorMessage"]) == ("", "")
    assert line["metrics"]["lastSyncTimeUtc"] == "0001-01-01T00:00:00"
    replicator = any_storage.read_json("Files/Monitoring/replicator.json")
    assert replicator == {"status": "Running", "errorCode": "", "errorMessage": ""}


def test_older_monitoring_files_are_rewritten(any_storage: Storage):
    any_storage.write_json("Files/Monitoring/replicator.json", {"status": "Running"})
    assert not state.is_running(any_storage)
    save_states(any_storage, {})
    assert state.is_running(any_storage)


def test_states_of_an_older_format_are_made_again(any_storage: Storage):
    any_storage.write_json("Files/_mirrorlake/state.json", {"format": 1, "tables": 1})
    assert load_states(any_storage) is None


def test_a_report_as_text_and_document(any_storage: Storage):
    put(any_storage, "t", 1)
    any_storage.write(f"{ZONE}/u/{file_name(0)}", b"")
    report = lake_of(any_storage).status()
    assert repr(report) == "2 tables, 1 problem"
    assert set(report.as_dict()["tables"][0]) == {
        "name", "schema", "state", "rows", "last_file", "backlog_files", "backlog_bytes",
        "waiting_for", "waiting_since", "lag_seconds", "error",
    }  # fmt: skip


def test_a_single_table_has_to_be_there(lake: Lake) -> None:
    with pytest.raises(TableNotFoundError, match=r"no folder for the table nowhere.*Hint:"):
        lake.mirror("nowhere")
    assert not lake.storage.exists("Files/Monitoring/tables.json")
