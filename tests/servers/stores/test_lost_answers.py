"""Each write happens once and its outcome is known, whatever the store answers."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from helpers.fault_proxy import RESET, Fault, FaultProxy, LostAnswers, RandomFaults
from helpers.writers import publish_side_by_side
from mirrorlake import Publisher
from mirrorlake.landing import zone
from mirrorlake.landing.metadata import ensure_identity
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

TABLE = TableName(None, "t")
# The store's answer is lost; the client gets these statuses, one per attempt.
LOST = {
    "503": (503,),
    "reset": (RESET,),
    "412 at the retry": (503, 412),
    "404 at the retry": (RESET, 404),
    "412 by a gateway that retries": (412,),
    "404 by a gateway that retries": (404,),
}
lost = pytest.mark.parametrize("answers", LOST.values(), ids=LOST)


def published(storage: Storage) -> list[int]:
    found = []
    for number, entry in sorted(zone.list_folder(storage, TABLE).numbered.items()):
        with storage.open(f"{TABLE.folder}/{entry.name}") as source:
            found += [(number, row["id"]) for row in pq.read_table(source).to_pylist()]
    return found


@lost
def test_a_batch_is_published_once(root: str, proxy: FaultProxy, answers: tuple[int, ...]):
    storage = Storage(root)
    proxy.faults = LostAnswers(*answers)
    publisher = Publisher(storage, TABLE, keys=["id"])
    for number in (1, 2, 3):
        done = publisher.insert([{"id": number}])
        assert done.file == f"{number:020d}.parquet"
    assert proxy.faults.lost >= 4  # the keys and three batches
    assert published(storage) == [(1, 1), (2, 2), (3, 3)]
    assert not [path for path, entry in zone.every_file(storage, TABLE) if entry.name[0] == "_" and
                entry.name.endswith(".parquet")]  # fmt: skip


@lost
def test_a_file_is_known_as_created(root: str, proxy: FaultProxy, answers: tuple[int, ...]):
    storage = Storage(root)
    proxy.faults = LostAnswers(*answers)
    assert storage.create("note", b"same")
    assert not storage.create("note", b"same")  # the same content, but of another call
    assert storage.read("note") == b"same"


@lost
def test_an_identity_is_one(root: str, proxy: FaultProxy, answers: tuple[int, ...]):
    storage = Storage(root)
    proxy.faults = LostAnswers(*answers)
    assert ensure_identity(storage, TABLE) == ensure_identity(Storage(root), TABLE)


@pytest.mark.parametrize("answers", list(LOST.values())[:4], ids=list(LOST)[:4])
def test_a_rename_is_known_as_done(root: str, proxy: FaultProxy, answers: tuple[int, ...]):
    storage = Storage(root)
    storage.write("a", b"1")
    storage.write("b", b"2")
    proxy.faults = LostAnswers(*answers)
    assert storage.rename("a", "to")
    assert not storage.rename("b", "to")
    assert storage.files_below("") == ("b", "to")
    with pytest.raises(FileNotFoundError):
        storage.rename("a", "elsewhere")


def test_a_batch_whose_staged_file_can_not_be_deleted_is_published_once(
    root: str, proxy: FaultProxy
):
    storage = Storage(root)
    publisher = Publisher(storage, TABLE)
    hidden = f"{TABLE.folder}/_"
    proxy.faults = lambda request: (
        Fault(403, times=0) if request.method == "DELETE" and hidden in request.key else Fault()
    )
    assert publisher.insert([{"id": 1}]).file == f"{1:020d}.parquet"
    assert publisher.insert([{"id": 2}]).file == f"{2:020d}.parquet"
    assert published(storage) == [(1, 1), (2, 2)]


def test_many_publishers_over_a_bad_line_lose_nothing(root: str, proxy: FaultProxy):
    Publisher(Storage(root), TABLE, keys=["id"])
    proxy.faults = RandomFaults(seed=22)

    wanted = publish_side_by_side(root)
    proxy.faults = LostAnswers()
    found = published(Storage(root))
    assert sorted(one for _, one in found) == wanted
    assert sorted(number for number, _ in found) == list(range(1, len(wanted) + 1))
