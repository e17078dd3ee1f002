"""One holder at a time, on disks and object stores, whatever the clocks of machines show."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from obstore.exceptions import PermissionDeniedError

from helpers.project import PROJECT
from mirrorlake.storage import lease as leases
from mirrorlake.storage.files import Storage
from mirrorlake.storage.lease import Lease, LeaseHeldError, is_held, store_now

PATH = "Files/_mirrorlake/plans/p.lease"
HOLDS = """
import sys
from mirrorlake.storage.lease import Lease
from mirrorlake.storage.files import Storage
with Lease(Storage(sys.argv[1]), sys.argv[2], "it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_holder_is_refused_and_nothing_is_left(storage: Storage) -> None:
    with Lease(storage, PATH, "The plan p"):
        with pytest.raises(
            LeaseHeldError, match=r"The plan p is already running: process \d+ on .* since"
        ):
            Lease(storage, PATH, "The plan p").__enter__()
        with Lease(storage, PATH + "2", "The plan q"):
            pass
    assert storage.files_below("") == ()
    with Lease(storage, PATH, "The plan p"):
        pass


def test_on_a_disk_it_ends_with_its_process(tmp_path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path), PATH]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(PROJECT / "lib")},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LeaseHeldError, match=f"process {process.pid} on"):
            Lease(Storage(tmp_path), PATH, "it").__enter__()
        process.kill()
        process.wait()
        with Lease(Storage(tmp_path), PATH, "it"):
            pass
    assert not list(tmp_path.rglob("*.lease"))


def test_a_user_who_can_only_read_sees_the_lease_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store's clock needs a temporary file; without one, this machine's clock is used."""
    storage = Storage("memory:///")
    storage.write(PATH, b"{}")

    def refuse(*_: object) -> None:
        raise PermissionDeniedError("read-only")

    monkeypatch.setattr(Storage, "write", refuse)
    monkeypatch.setattr(Storage, "delete", refuse)
    assert is_held(storage, PATH)
    monkeypatch.setattr(leases, "TTL", 0)
    assert not is_held(storage, PATH)


def test_a_wrong_clock_of_a_user_who_can_only_read_frees_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(hours=1)

    def refuse(*_: object) -> None:
        raise PermissionDeniedError("read-only")

    storage = Storage("memory:///")
    storage.write(PATH + "2", b"of a process that was killed")
    monkeypatch.setattr(leases, "TTL", 0.9)
    with Lease(storage, PATH, "it", ttl=0.6):
        monkeypatch.setattr(Storage, "write", refuse)
        monkeypatch.setattr(leases, "datetime", Ahead)
        assert is_held(storage, PATH)
        assert not is_held(storage, PATH + "2")


def test_on_an_object_store_one_that_is_not_renewed_is_taken_over() -> None:
    storage = Storage("memory:///")
    # The holder's clock is an hour ahead; only the store's clock determines the age.
    dead = {"what": "it", "host": "far", "pid": 7, "since": "2099-01-01T00:00:00+00:00", "id": "x"}
    storage.write(PATH, json.dumps(dead).encode())
    with pytest.raises(LeaseHeldError, match="process 7 on far since 2099"):
        Lease(storage, PATH, "it", ttl=60).__enter__()
    first = storage.stat(PATH)
    assert first is not None
    while (store_now(storage, PATH) - first.modified).total_seconds() < 0.3:
        time.sleep(0.02)
    with Lease(storage, PATH, "it", ttl=0.3) as lease:
        end = time.monotonic() + 1
        while time.monotonic() < end:  # renewals keep it for three times its time to live
            with pytest.raises(LeaseHeldError):
                Lease(storage, PATH, "it", ttl=0.6).__enter__()
            time.sleep(0.1)
        assert not lease.lost
        storage.write(PATH, json.dumps(dead).encode())  # another process has taken it
        while not lease.lost:
            time.sleep(0.02)
    assert storage.read_json(PATH) == dead  # the file is kept
