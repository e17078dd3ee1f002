"""A batch with a token is published once, whoever repeats it and whenever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers.places import PROCESSED, READY_TO_DELETE
from mirrorlake import Lake, Publisher
from mirrorlake.landing import zone
from mirrorlake.names import TableName
from mirrorlake.storage.files import Listing, Storage

T = TableName(None, "t")
WRITER = """
import sys
from mirrorlake.landing.publisher import Publisher
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

publisher = Publisher(Storage(sys.argv[1]), TableName(None, "t"), keys=["id"])
for number in range(int(sys.argv[2])):
    publisher.insert([{"id": number}], token=f"batch {number}", footer={"at": str(number)})
"""


def ids(storage: Storage) -> list[int]:
    found = []
    for entry in storage.list(T.folder).files:
        if entry.name.endswith(".parquet") and not entry.name.startswith("_"):
            with storage.open(f"{T.folder}/{entry.name}") as source:
                found += pq.read_table(source).column("id").to_pylist()
    return sorted(found)


def test_the_same_token_writes_nothing(any_storage: Storage) -> None:
    publisher = Publisher(any_storage, T, keys=["id"])
    first = publisher.insert([{"id": 1}], token="a")
    again = publisher.insert([{"id": 1}], token="a")
    assert (first.repeated, again.repeated, again.file, again.rows) == (False, True, first.file, 1)
    assert again.bytes == first.bytes
    other = Publisher(any_storage, T).update([{"id": 1}], token="a")
    assert (other.repeated, other.file) == (True, first.file)
    assert publisher.upsert([{"id": 2}], token="b").file != first.file
    assert not publisher.delete([{"id": 2}]).repeated
    assert not publisher.write([{"id": 3}]).repeated  # no token: every call is a batch


def test_footers_carry_token_and_position(any_storage: Storage) -> None:
    publisher = Publisher(any_storage, T, keys=["id"], footer={"who": "me"})
    file = publisher.insert([{"id": 1}], token="a", footer={"position": "7"}).file
    footer = zone.read_footer(any_storage, f"{T.folder}/{file}")
    assert (footer[zone.TOKEN], footer[b"position"], footer[b"who"]) == (b"a", b"7", b"me")
    publisher.insert([{"id": 2}])
    newest = [found.get(b"position") for found in zone.footers_from_the_newest(any_storage, T)]
    assert newest == [None, b"7"]


def test_a_position_is_stored_once(any_storage: Storage) -> None:
    done = Publisher(any_storage, T).insert([{"id": 1}], footer={"position": "7" * 100_000})
    assert 100_000 < done.bytes < 110_000


@pytest.mark.parametrize("folder", [PROCESSED, READY_TO_DELETE])
def test_a_file_that_the_mirror_has_moved_is_known(any_storage: Storage, folder: str) -> None:
    publisher = Publisher(any_storage, T, keys=["id"])
    file = publisher.insert([{"id": 1}], token="a").file
    publisher.insert([{"id": 2}], token="b")
    any_storage.rename(f"{T.folder}/{file}", f"{T.folder}/{folder}/{file}")
    assert publisher.insert([{"id": 1}], token="a").repeated
    assert Publisher(any_storage, T).insert([{"id": 1}], token="a").repeated
    any_storage.delete(f"{T.folder}/{folder}/{file}")  # deleted, so its token is no longer known
    assert not publisher.insert([{"id": 1}], token="a").repeated


def test_a_file_that_the_mirror_moves_meanwhile_is_known(
    any_storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(any_storage, T, keys=["id"])
    file = publisher.insert([{"id": 1}], token="a").file
    publisher.insert([{"id": 2}], token="b")
    again = Publisher(any_storage, T, keys=["id"])

    def list_then_move(storage: Storage, folder: str) -> Listing:
        found = listed(storage, folder)
        if folder == T.folder and any(entry.name == file for entry in found.files):
            storage.rename(f"{folder}/{file}", f"{folder}/{PROCESSED}/{file}")
        return found

    listed = Storage.list
    monkeypatch.setattr(Storage, "list", list_then_move)
    assert again.insert([{"id": 1}], token="a").repeated


def test_a_file_that_was_missing_at_first_is_read_later(
    any_storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(any_storage, T, keys=["id"])
    publisher.insert([{"id": 1}], token="a")
    again = Publisher(any_storage, T, keys=["id"])
    with monkeypatch.context() as patch:
        patch.setattr(zone, "_footer", lambda *_: None)
        assert not again.insert([{"id": 2}], token="b").repeated
    assert again.insert([{"id": 1}], token="a").repeated


def test_a_folder_that_was_made_again_forgets(storage: Storage) -> None:
    publisher = Publisher(storage, T)
    publisher.insert([{"id": 1}], token="a")
    storage.delete_folder(T.folder)
    assert not publisher.insert([{"id": 1}], token="a").repeated


def test_writers_of_the_same_batches_at_the_same_time(storage: Storage) -> None:
    command = [sys.executable, "-c", WRITER, storage.root, "12"]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert ids(storage) == list(range(12))


def killed_writers(storage: Storage, kills: int, batches: int) -> None:
    chance = random.Random(kills)
    command = [sys.executable, "-c", WRITER, storage.root, str(batches)]
    for _ in range(kills):
        writer = subprocess.Popen(command)
        while not Path(storage.root, T.folder).exists() and writer.poll() is None:
            time.sleep(0.002)  # the files of another process raise no event
        time.sleep(chance.random() * 0.15)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    subprocess.run(command, check=True)
    assert ids(storage) == list(range(batches))


def test_a_writer_that_is_killed_goes_on(storage: Storage) -> None:
    killed_writers(storage, 4, 25)


@pytest.mark.long
def test_a_writer_that_is_killed_very_often(storage: Storage) -> None:
    killed_writers(storage, 100, 200)


def test_the_folders_are_not_listed_again_for_a_token_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, searched = Lake(tmp_path / "lake"), []
    find = zone.TokenIndex.find
    monkeypatch.setattr(
        zone.TokenIndex, "find", lambda self, token: searched.append(token) or find(self, token)
    )
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"id\n{name}\n")
    assert lake.publish("t", str(tmp_path / "*.csv")).count == 2
    assert len(searched) == 2  # when the files take their numbers
    assert lake.publish("t", str(tmp_path / "*.csv")).count == 0
