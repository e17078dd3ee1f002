"""Debezium Server's HTTP sink: a response means durable events, and each event lands once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from helpers.landed import landed_rows
from helpers.project import PROJECT
from helpers.serving import DEADLINE, Lake, serving, session_of
from mirrorlake import Lake as PublicLake
from mirrorlake_serve import Workspace
from mirrorlake_sources import Journal, run_source

COLUMNS = [
    {"field": "ID", "type": "double"},
    {"field": "SENSOR_ID", "type": "string", "optional": True},
    {
        "field": "READING_TS",
        "type": "int64",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Timestamp",
    },
]


def event(op: str, before: Any, after: Any) -> dict[str, Any]:
    """Return an event as Oracle's connector sends it: without a key, with names in capitals."""
    fields = [
        {"field": name, "type": "struct", "fields": COLUMNS, "optional": True}
        for name in ("before", "after")
    ]
    source = {"connector": "oracle", "db": "XEPDB1", "schema": "APPUSER", "table": "READINGS"}
    payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
    return {"schema": {"type": "struct", "fields": fields}, "payload": payload}


def row(number: int, sensor: str) -> dict[str, Any]:
    return {"ID": float(number), "SENSOR_ID": sensor, "READING_TS": 1774298969818}


DDL = {
    "payload": {
        "source": {"connector": "oracle", "schema": "APPUSER", "table": "READINGS"},
        "databaseName": "XEPDB1",
        "schemaName": "APPUSER",
        "ddl": "CREATE TABLE …",
        "tableChanges": [
            {
                "type": "CREATE",
                "id": '"XEPDB1"."APPUSER"."READINGS"',
                "table": {"primaryKeyColumnNames": ["ID"], "columns": []},
            }
        ],
    }
}
EVENTS = [
    DDL,
    event("r", None, row(22, "SENSOR-003")),
    event("c", None, row(61, "SENSOR-004")),
    event("u", row(61, "SENSOR-004"), row(61, "SENSOR-005")),
    event("d", row(22, "SENSOR-003"), None),
]


def post(served: Lake, name: str, body: Any, query: str = "") -> requests.Response:
    url = f"{served.ready.rest}/debezium/{name}?lake={served.item.id}&{query}"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return served.session.post(url, data=data, timeout=DEADLINE)


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_events_one_by_one_land_as_one_set_of_rows(served: Lake) -> None:
    """Scenario 10: a snapshot, changes, and a schema change that names the key."""
    for one in EVENTS:
        answer = post(served, "sensors", one)
        assert (answer.status_code, answer.json()) == (200, {"events": 1})
    wait_for(lambda: [r["SENSOR_ID"] for r in landed(served)] == ["SENSOR-005"])
    assert landed(served)[0]["ID"] == 61.0


def landed(served: Lake) -> list[dict[str, Any]]:
    folder = served.root / "Files/LandingZone/APPUSER.schema/READINGS"
    return landed_rows(served.root, "APPUSER.READINGS") if any(folder.glob("0*")) else []


def test_a_batch_and_a_key_by_the_tables_metadata(served: Lake) -> None:
    served.put("APPUSER.schema/READINGS/_metadata.json", b'{"keyColumns": ["ID"]}')
    assert post(served, "sensors", EVENTS[1:]).json() == {"events": 4}
    wait_for(lambda: [r["ID"] for r in landed(served)] == [61.0])


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("s", b"{", "not valid JSON"),
        ("s", b"[" * 100_000, "not valid JSON"),
        ("s", b'{"id": 1}', "remove ExtractNewRecordState"),
        ("s", b'{"payload": {"op": "c", "source": 7}}', "not a Debezium event"),
        (
            "s",
            b'[{"payload": {"op": "c", "after": 5, "source": {"table": "t"}}}]',
            "not a Debezium event",
        ),
        ("_x", b"[]", "_x"),
        ("..%2fx", b"[]", "leave its folder"),
    ],
)
def test_what_is_no_event_is_400_and_nothing_of_it_is_taken(
    served: Lake, name: str, body: bytes, says: str
) -> None:
    answer = post(served, name, body)
    assert (answer.status_code, says in answer.text) == (400, True), answer.text
    journals = served.root / "Files/_mirrorlake/sources/journals"
    assert not [path for path in journals.rglob("*") if path.is_file()]


def test_the_door_asks_for_the_token_and_for_post(served: Lake) -> None:
    url = f"{served.ready.rest}/debezium/s?lake={served.item.id}"
    assert served.session.get(url, timeout=DEADLINE).status_code == 405
    refused = requests.post(url, b"[]", verify=served.ready.ca, timeout=DEADLINE)
    assert refused.status_code == 401
    # As a sink without authentication has it: the token in the address, over http on this machine.
    plain = f"{served.ready.http}/debezium/s?lake={served.item.id}&sig={served.ready.token}"
    assert requests.post(plain, b"[]", timeout=DEADLINE).json() == {"events": 0}
    nowhere = f"{served.ready.rest}/debezium/s?lake=nowhere"
    assert served.session.post(nowhere, b"[]", timeout=DEADLINE).status_code == 400


def test_a_later_server_publishes_what_an_earlier_one_took(tmp_path: Path, home: Path) -> None:
    """A read-only server publishes nothing."""
    root = tmp_path / "lake"
    Journal(PublicLake(root).storage, "sensors").append(json.dumps(EVENTS).encode())
    with serving(Workspace(str(root), read_only=True)) as ready, session_of(ready) as session:
        url = f"{ready.rest}/debezium/status"
        assert session.post(url, b"[]", timeout=DEADLINE).status_code == 403
    zone = root / "Files/LandingZone"
    assert not zone.exists()
    with serving(Workspace(str(root))):
        wait_for(lambda: any(zone.rglob("0*.parquet")))
    assert [r["ID"] for r in landed_rows(root, "APPUSER.READINGS")] == [61.0]


def test_a_lake_that_is_deleted_takes_its_journal_along(served: Lake) -> None:
    assert post(served, "sensors", EVENTS).ok
    rest = f"{served.ready.rest}/v1/workspaces/{served.ready.workspace}/mirroredDatabases"
    gone = served.session.delete(f"{rest}/{served.item.id}?hardDelete=true", timeout=DEADLINE)
    assert gone.status_code == 200
    assert not served.root.exists()
    assert post(served, "sensors", EVENTS).status_code == 400


def test_a_full_journal_goes_on_in_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published files of the journal are deleted, and no event lands twice."""
    monkeypatch.setattr("mirrorlake_sources.folders.LARGEST", 1)
    storage = PublicLake(tmp_path).storage
    journal = Journal(storage, "s")
    journal.append(json.dumps(DDL).encode())
    for number in range(5):
        journal.append(json.dumps(event("c", None, row(number, "x"))).encode())
        if number % 2:
            assert not run_source(storage, journal.source()).failed
    assert len(list(journal.folder.iterdir())) == 2  # the newest of the last run, and one since
    assert not run_source(storage, journal.source()).failed
    assert [r["ID"] for r in landed_rows(tmp_path, "APPUSER.READINGS")] == [0, 1, 2, 3, 4]


def test_killed_after_an_answer_the_events_are_there(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "lake"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "lib"), "MIRRORLAKE_CACHE": str(home)}
    command = [sys.executable, "-m", "mirrorlake.cli", "serve", str(root), "--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with requests.Session() as session:
            session.trust_env, session.verify = False, told["ca"]
            session.headers["Authorization"] = f"Bearer {told['token']}"
            url = f"{told['rest']}/debezium/sensors"
            for number in range(30):
                body = json.dumps([DDL, event("c", None, row(number, "x"))])
                assert session.post(url, body, timeout=DEADLINE).json() == {"events": 2}
        process.send_signal(signal.SIGKILL)
    storage = PublicLake(root).storage
    assert not run_source(storage, Journal(storage, "sensors").source()).failed
    found = sorted(r["ID"] for r in landed_rows(root, "APPUSER.READINGS"))
    assert found == [float(number) for number in range(30)]
