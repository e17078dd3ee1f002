from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from threading import Barrier

import pytest

from helpers.places import PROCESSED, READY_TO_DELETE
from helpers.plans import plan_files
from mirrorlake.errors import SequenceError
from mirrorlake.landing import check, zone
from mirrorlake.landing.metadata import Identity
from mirrorlake.mirror import applied_files
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage

pytestmark = pytest.mark.promise("LZ-14")

IDENTITY = Identity(TableName(None, "t"), "one life")
FOLDER = IDENTITY.table.folder


def put(storage: Storage, *numbers: int) -> list[str]:
    for number in numbers:
        storage.write(f"{FOLDER}/{file_name(number)}", b"content of %d" % number)
    return [file_name(number) for number in numbers]


class InStep(Storage):
    """A store in which renames wait until a number of them have started."""

    def __init__(self, files: int) -> None:
        super().__init__("memory:///")
        self._together = Barrier(files, timeout=30)

    def rename(self, source: str, target: str) -> bool:
        self._together.wait()
        return super().rename(source, target)


def here(storage: Storage) -> list[int]:
    return sorted(zone.list_folder(storage, IDENTITY.table).numbered)


def away(storage: Storage) -> list[int]:
    return [int(e.name[:20]) for e in storage.list(f"{FOLDER}/{PROCESSED}").files]


def tidy(storage: Storage, last: int) -> None:
    reused = applied_files.move_leftovers(
        storage, IDENTITY, zone.list_folder(storage, IDENTITY.table), last
    )
    if reused is not None:
        raise reused


def test_applied_files_move_and_the_last_one_stays(any_storage: Storage):
    plan = plan_files(any_storage, IDENTITY, 1, put(any_storage, 1, 2, 3))
    put(any_storage, 4)
    applied_files.move_applied(
        any_storage, IDENTITY, zone.list_folder(any_storage, IDENTITY.table), plan
    )
    assert (here(any_storage), away(any_storage)) == ([3, 4], [1, 2])
    plan = plan_files(any_storage, IDENTITY, 4, [file_name(4)])
    applied_files.move_applied(
        any_storage, IDENTITY, zone.list_folder(any_storage, IDENTITY.table), plan
    )
    assert (here(any_storage), away(any_storage)) == ([4], [1, 2, 3])
    assert any_storage.read(f"{FOLDER}/{PROCESSED}/{file_name(2)}") == b"content of 2"


def test_in_a_store_many_files_are_moved_side_by_side():
    storage = InStep(8)
    plan = plan_files(storage, IDENTITY, 1, put(storage, *range(1, 10)))
    applied_files.move_applied(storage, IDENTITY, zone.list_folder(storage, IDENTITY.table), plan)
    assert (here(storage), away(storage)) == ([9], [*range(1, 9)])
    later = datetime.now(timezone.utc) + timedelta(days=2)
    applied_files.sweep(storage, IDENTITY.table, last=9, now=later, keep=timedelta(days=7))
    assert where(storage) == {
        PROCESSED: [],
        READY_TO_DELETE: [file_name(number) for number in range(1, 9)],
    }


def test_leftovers_of_several_plans_move(any_storage: Storage):
    plan_files(any_storage, IDENTITY, 1, put(any_storage, 1, 2))
    plan_files(any_storage, IDENTITY, 3, put(any_storage, 3, 4, 5))
    put(any_storage, 6)
    tidy(any_storage, 5)
    assert (here(any_storage), away(any_storage)) == ([5, 6], [1, 2, 3, 4])
    tidy(any_storage, 5)
    assert (here(any_storage), away(any_storage)) == ([5, 6], [1, 2, 3, 4])


def test_nothing_moves_that_was_not_applied(any_storage: Storage):
    plan_files(any_storage, IDENTITY, 1, put(any_storage, 1, 2, 3))
    tidy(any_storage, 0)
    assert (here(any_storage), away(any_storage)) == ([1, 2, 3], [])


@pytest.mark.parametrize("data", [b"other content", b"CONTENT of 1", b""])
@pytest.mark.parametrize("moved", [True, False])
def test_a_reused_number_is_reported_and_stays(any_storage: Storage, data: bytes, moved: bool):
    plan_files(any_storage, IDENTITY, 1, put(any_storage, 1, 2, 3))
    if moved:
        tidy(any_storage, 3)
    any_storage.write(f"{FOLDER}/{file_name(1)}", data)
    for _ in range(2):
        with pytest.raises(SequenceError, match="applied before") as caught:
            tidy(any_storage, 3)
        assert caught.value.file == file_name(1)
        assert any_storage.read(f"{FOLDER}/{file_name(1)}") == data
    if moved:
        kept = any_storage.read(f"{FOLDER}/{PROCESSED}/{file_name(1)}")
        assert kept == b"content of 1"


def test_a_number_without_a_plan_is_reported(any_storage: Storage):
    put(any_storage, 1, 2)
    with pytest.raises(SequenceError) as caught:
        tidy(any_storage, 2)
    assert caught.value.file == file_name(1)
    assert here(any_storage) == [1, 2]


def test_another_extension_is_another_file(any_storage: Storage):
    plan_files(any_storage, IDENTITY, 1, put(any_storage, 1, 2))
    any_storage.rename(f"{FOLDER}/{file_name(1)}", f"{FOLDER}/{file_name(1, '.csv')}")
    with pytest.raises(SequenceError) as caught:
        tidy(any_storage, 2)
    assert caught.value.file == file_name(1, ".csv")


def test_a_move_cut_short_between_its_halves_is_finished(any_storage: Storage):
    plan_files(any_storage, IDENTITY, 1, put(any_storage, 1, 2))
    any_storage.write(f"{FOLDER}/{PROCESSED}/{file_name(1)}", b"content of 1")
    tidy(any_storage, 2)
    assert (here(any_storage), away(any_storage)) == ([2], [1])


def test_a_deleted_file_is_not_an_error(any_storage: Storage):
    plan = plan_files(any_storage, IDENTITY, 1, put(any_storage, 1, 2))
    folder = zone.list_folder(any_storage, IDENTITY.table)
    any_storage.delete(f"{FOLDER}/{file_name(1)}")
    applied_files.move_applied(any_storage, IDENTITY, folder, plan)
    assert (here(any_storage), away(any_storage)) == ([2], [])


def test_a_large_file_that_is_uploaded_again_is_compared_with_the_applied_file(
    any_storage: Storage,
):
    large = b"x" * (check.SMALL + 1)
    names = put(any_storage, 1, 2)
    any_storage.write(f"{FOLDER}/{names[0]}", large)
    plan_files(any_storage, IDENTITY, 1, names)
    tidy(any_storage, 2)
    any_storage.write(f"{FOLDER}/{names[0]}", large)  # with another ETag in an object store
    tidy(any_storage, 2)
    assert (here(any_storage), away(any_storage)) == ([2], [1])
    any_storage.write(f"{FOLDER}/{names[0]}", large[:-1] + b"y")
    with pytest.raises(SequenceError):
        tidy(any_storage, 2)
    assert (here(any_storage), away(any_storage)) == ([1, 2], [1])


def where(storage: Storage) -> dict[str, list[str]]:
    return {
        folder: [entry.name for entry in storage.list(f"{FOLDER}/{folder}").files]
        for folder in (PROCESSED, READY_TO_DELETE)
    }


@pytest.mark.promise("LZ-29")
def test_applied_files_move_through_two_folders_by_age_and_others_do_not(any_storage: Storage):
    mine = [file_name(1), file_name(2, ".csv.gz"), f"{3:020d}-any name.csv"]
    others = [file_name(9), "notes.txt", "x" * 20, "٣" * 20]
    for name in mine + others:
        any_storage.write(f"{FOLDER}/{PROCESSED}/{name}", name.encode())

    def sweep_after(**age: float) -> dict[str, list[str]]:
        now = datetime.now(timezone.utc) + timedelta(**age)
        applied_files.sweep(any_storage, IDENTITY.table, last=3, now=now, keep=timedelta(days=7))
        return where(any_storage)

    everything = {PROCESSED: sorted(mine + others), READY_TO_DELETE: []}
    assert sweep_after(hours=0) == sweep_after(hours=23) == everything
    assert sweep_after(hours=25) == {PROCESSED: sorted(others), READY_TO_DELETE: sorted(mine)}
    assert sweep_after(days=6.9) == {PROCESSED: sorted(others), READY_TO_DELETE: sorted(mine)}
    any_storage.write(f"{FOLDER}/{READY_TO_DELETE}/mine.txt", b"")
    assert sweep_after(days=7.1) == {PROCESSED: sorted(others), READY_TO_DELETE: ["mine.txt"]}


def test_a_sweep_finishes_what_another_one_began(any_storage: Storage):
    name = file_name(1)
    for folder in (PROCESSED, READY_TO_DELETE):
        any_storage.write(f"{FOLDER}/{folder}/{name}", b"the same")
    now = datetime.now(timezone.utc) + timedelta(days=2)
    applied_files.sweep(any_storage, IDENTITY.table, last=1, now=now, keep=timedelta(days=7))
    assert where(any_storage) == {PROCESSED: [], READY_TO_DELETE: [name]}


def test_concurrent_sweeps_do_not_conflict(any_storage: Storage):
    names = [file_name(number) for number in range(1, 101)]
    for name in names:
        any_storage.write(f"{FOLDER}/{PROCESSED}/{name}", b"")
    now = datetime.now(timezone.utc) + timedelta(days=2)

    def run(_: int) -> None:
        applied_files.sweep(any_storage, IDENTITY.table, last=100, now=now, keep=timedelta(days=7))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    assert where(any_storage) == {PROCESSED: [], READY_TO_DELETE: names}
