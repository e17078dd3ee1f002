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
from mirrorlake.landing import publisher as publisher_module
from mirrorlake.landing import zone
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Listing, Storage

T = TableName(None, "t")
WRITER = """
import sys
from mirrorlake.landing.publisher import Publisher
from mirrorlake.names import TableName, file_name
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


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the folders of the table that are listed, and the footers that are read for tokens."""
    found: list[str] = []
    list_one, read_columns = Storage.list, publisher_module.footer_columns

    def list_folder(storage: Storage, folder: str) -> Listing:
        found.extend([folder] if folder.startswith(T.folder) else [])
        return list_one(storage, folder)

    def footer_columns(storage: Storage, path: str) -> object:
        found.append(path)
        return read_columns(storage, path)

    monkeypatch.setattr(Storage, "list", list_folder)
    monkeypatch.setattr(publisher_module, "footer_columns", footer_columns)
    return found


@pytest.mark.parametrize("with_token", [False, True])
def test_one_publisher_lists_its_folder_once(
    any_storage: Storage, listed: list[str], with_token: bool
) -> None:
    publisher = Publisher(any_storage, T, keys=["id"])
    publisher.upsert([{"id": 0}], token="0" if with_token else None)
    del listed[:]
    for number in range(1, 5):
        token = str(number) if with_token else None
        assert publisher.upsert([{"id": number}], token=token).file == file_name(number + 1)
    assert listed == []
    if with_token:
        assert [publisher.upsert([{"id": 0}], token=str(n)).repeated for n in range(5)] == [
            True
        ] * 5
        assert [path for path in listed if path == T.folder] == []


def test_publishing_files_lists_the_folder_once(tmp_path: Path, listed: list[str]) -> None:
    files = [tmp_path / f"{name}.csv" for name in "abcdef"]
    for number, file in enumerate(files):
        file.write_text(f"id\n{number}\n")
    Lake(tmp_path / "one").publish("t", files[:1], keys="id", marker="upsert")
    one = len(listed)
    Lake(tmp_path / "all").publish("t", files, keys="id", marker="upsert")
    assert len(listed) == 2 * one
    lake = Lake(tmp_path / "all")
    assert lake.publish("t", files, keys="id", marker="upsert").count == 0
    assert len([path for path in listed[2 * one :] if path == T.folder]) <= 3


def test_a_lake_lists_a_folder_once_for_several_calls(tmp_path: Path, listed: list[str]) -> None:
    lake = Lake(tmp_path / "lake")
    lake.publish("t", [{"id": 0}], keys="id")
    del listed[:]
    for number in range(1, 5):
        lake.publish("t", [{"id": number, f"n{number}": 1.5}], keys="id", marker="upsert")
    assert listed == []
    assert lake.publish("t", [{"id": 5, "n1": 2}], marker="upsert").batches[0].columns == {
        "id": "long", "n1": "double",
    }  # fmt: skip


def test_publishers_and_a_mirror_take_turns(any_storage: Storage) -> None:
    chance = random.Random(5)
    publishers = [Publisher(any_storage, T, keys=["id"]) for _ in range(3)]
    files: dict[str, str | None] = {}
    for _ in range(150):
        if chance.random() < 0.2:
            numbers = sorted(zone.list_folder(any_storage, T).numbered)[:-1]
            for number in numbers if chance.random() < 0.5 else numbers[::-2]:
                name = file_name(number)
                any_storage.rename(f"{T.folder}/{name}", f"{T.folder}/{PROCESSED}/{name}")
        token = str(chance.randrange(60)) if chance.random() < 0.8 else None
        done = chance.choice(publishers).upsert([{"id": 1}], token=token)
        assert done.repeated == (token in files)
        if token is None or not done.repeated:
            files[token or f"without {len(files)}"] = done.file
        else:
            assert done.file == files[token]
    assert sorted(map(str, files.values())) == [file_name(n + 1) for n in range(len(files))]


def test_a_file_that_was_moved_before_the_own_one_is_known(any_storage: Storage) -> None:
    publisher, other = Publisher(any_storage, T), Publisher(any_storage, T)
    publisher.insert([{"id": 1}], token="a")
    for token in "bc":
        other.insert([{"id": 2}], token=token)
    name = file_name(2)
    any_storage.rename(f"{T.folder}/{name}", f"{T.folder}/{PROCESSED}/{name}")
    assert publisher.insert([{"id": 2}], token="b").file == name
    assert publisher.insert([{"id": 2}], token="d").file == file_name(4)


def test_text_is_read_as_another_publisher_has_typed_it(tmp_path: Path) -> None:
    first, other = Lake(tmp_path / "lake"), Lake(tmp_path / "lake")
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("id,code\n2,7\n")
    first.publish("t", str(tmp_path / "a.csv"))
    other.publish("t", [{"id": 3, "code": "007"}])
    done = first.publish("t", str(tmp_path / "b.csv")).batches[0]
    assert done.columns == {"id": "long", "code": "string"}


def test_a_folder_that_another_publisher_made_again_is_listed(storage: Storage) -> None:
    publisher = Publisher(storage, T)
    for number in range(2):
        publisher.insert([{"id": number}], token=str(number))
    storage.delete_folder(T.folder)
    for number in range(2):  # as many files as before
        Publisher(storage, T).insert([{"id": number}], token=f"new {number}")
    assert publisher.insert([{"id": 1}], token="new 1").repeated
    assert publisher.insert([{"id": 1}], token="1").file == file_name(3)


def test_a_folder_with_text_is_always_listed(any_storage: Storage) -> None:
    publisher = Publisher(any_storage, T)
    for number in (1, 3, 5):
        any_storage.write(f"{T.folder}/{file_name(number, '.csv')}", b"id\n1\n")
        assert publisher.insert([{"id": number}]).file == file_name(number + 1)


def test_a_listing_is_relied_on_for_a_minute(
    any_storage: Storage, monkeypatch: pytest.MonkeyPatch, listed: list[str]
) -> None:
    publisher = Publisher(any_storage, T)
    publisher.insert([{"id": 1}])
    later = time.monotonic() + 100
    monkeypatch.setattr(time, "monotonic", lambda: later)
    del listed[:]
    assert publisher.insert([{"id": 2}]).file == file_name(2)
    assert listed == [T.folder]
