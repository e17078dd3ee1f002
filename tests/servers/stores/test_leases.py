"""Leases on a real store, and a storage in a process without credentials."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import time

import pytest

from helpers.fault_proxy import Fault, FaultProxy, LostAnswers, Request
from helpers.places import METADATA, STATE
from helpers.project import PROJECT
from helpers.s3_server import SECRET
from mirrorlake.errors import BusyError
from mirrorlake.landing import metadata
from mirrorlake.mirror import state
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake.storage.lease import Lease, LeaseHeldError, is_held, only_one

LOCK = f"{STATE}/mirror.lock"
DEAD = {"host": "far", "pid": 7, "since": "2099-01-01T00:00:00+00:00", "id": "x"}


def test_one_mirror_of_a_lake_at_a_time(root: str, caplog: pytest.LogCaptureFixture):
    storage = Storage(root)
    with state.mirror_lease(storage, 1):
        assert is_held(storage, LOCK)
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(BusyError, match=rf"Another mirror of this lake.*process {os.getpid()}"),
            state.mirror_lease(Storage(root), 0.3),
        ):
            pass
        assert "Waiting for another mirror of this lake: process" in caplog.text
    assert not is_held(storage, LOCK)
    assert storage.files_below("") == ()


def test_a_lease_is_known_as_taken_whatever_the_answer(root: str, proxy: FaultProxy):
    storage = Storage(root)
    proxy.faults = LostAnswers(503, 412)
    with Lease(storage, LOCK, "it") as lease:
        lease.confirm()
        with pytest.raises(LeaseHeldError):
            Lease(storage, LOCK, "it").__enter__()
    assert storage.files_below("") == ()


def test_one_that_nobody_renews_is_taken_over_and_its_holder_is_told(root: str):
    storage = Storage(root)
    storage.write(LOCK, json.dumps(DEAD).encode())
    with pytest.raises(LeaseHeldError, match="process 7 on far"):
        Lease(storage, LOCK, "it", ttl=60).__enter__()
    time.sleep(2)  # the store's times are whole seconds
    with Lease(storage, LOCK, "it", ttl=1.5) as lease:
        lease.confirm()
        storage.write(
            LOCK, json.dumps(DEAD).encode()
        )  # the holder was too slow, and another process has taken it
        with pytest.raises(LeaseHeldError, match="process 7 on far"):
            lease.confirm()
    assert storage.read_json(LOCK) == DEAD


def test_a_store_that_fails_at_the_end_spoils_nothing(root: str, proxy: FaultProxy):
    def refuse(request: Request) -> Fault:
        return Fault(403, times=0) if request.method != "GET" else Fault()

    with only_one(Storage(root), LOCK, 1, "work"):
        proxy.faults = refuse


def test_what_changes_within_a_second_is_seen(root: str):
    storage, table = Storage(root), TableName(None, "t")
    metadata.declare_keys(storage, table, ("a",))
    before = storage.list(table.folder)
    storage.write(f"{table.folder}/{METADATA}", b'{"keyColumns": ["b"]}')
    storage.write(f"{table.folder}/x.csv", b"1")
    one = storage.list(table.folder)
    storage.write(f"{table.folder}/x.csv", b"2")
    other = storage.list(table.folder)
    assert before.state_of(METADATA) != one.state_of(METADATA) == other.state_of(METADATA)
    files = [listing.file("x.csv") for listing in (one, other)]
    assert files[0] is not None
    assert files[1] is not None
    assert state.file_signature(files[0]) != state.file_signature(files[1])


def test_a_storage_takes_its_keys_to_another_process_and_shows_them_to_none(root: str):
    storage = Storage(root.replace("s3://", "s3a://"))
    assert storage.root == root  # one canonical form
    storage.write("a", b"content")
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read('a'))"
    bare = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(storage),
        env=bare | {"PYTHONPATH": str(PROJECT / "lib")},
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == b"b'content'"
    assert SECRET not in repr(storage)
