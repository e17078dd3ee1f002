"""Files ordered by modification time: applied ones have numbers from plans, new ones follow."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from helpers.commits import META, write_lines
from helpers.lakes import lake_of
from helpers.places import IDENTITY, METADATA, PROCESSED
from helpers.plans import plan_files
from mirrorlake.errors import SequenceError
from mirrorlake.landing import zone
from mirrorlake.landing.metadata import BY_TIME, Identity, TableMetadata, write_identity
from mirrorlake.mirror import applied_files, next_batch, state, status
from mirrorlake.mirror.state import TableState, save_states
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Listing, Storage

T = TableName(None, "t")
LIFE = Identity(T, "one life")
TIMED = TableMetadata(strategy=BY_TIME)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def put(storage: Storage, name: str, minute: int, data: bytes | None = None) -> None:
    storage.write(f"{T.folder}/{name}", name.encode() if data is None else data)
    moment = (START + timedelta(minutes=minute)).timestamp()
    os.utime(Path(storage.root, T.folder, name), (moment, moment))


def listed(storage: Storage) -> Listing:
    return storage.list(T.folder)


def numbers(storage: Storage, last: int, metadata: TableMetadata = TIMED) -> dict[str, int]:
    folder = next_batch.number_files(storage, LIFE, metadata, listed(storage), last)
    return {entry.name: number for number, entry in folder.numbered.items()}


def apply(storage: Storage, last: int) -> int:
    """Handle the files like a cycle, without the commit."""
    folder = next_batch.number_files(storage, LIFE, TIMED, listed(storage), last)
    ready, missing = folder.pending(last)
    assert missing is None
    plan = plan_files(storage, LIFE, last + 1, [entry.name for entry in ready])
    applied_files.move_applied(storage, LIFE, folder, plan)
    return plan.last


def away(storage: Storage) -> list[str]:
    return [entry.name for entry in storage.list(f"{T.folder}/{PROCESSED}").files]


@pytest.mark.promise("LZ-13")
def test_by_moment_then_by_name_and_hidden_files_are_none(storage: Storage):
    for name, minute in (("z.csv", 1), ("a.csv", 3), ("c", 2), ("B.csv", 2), ("b.csv", 2)):
        put(storage, name, minute)
    for name in ("_metadata.json", "_upload.csv", ".hidden.csv"):
        put(storage, name, 0)
    assert numbers(storage, 0) == {"z.csv": 1, "B.csv": 2, "b.csv": 3, "c": 4, "a.csv": 5}
    assert numbers(storage, 7)["z.csv"] == 8


def test_numbers_in_names_count_for_nothing_by_time(storage: Storage):
    for number, minute in ((1, 3), (5, 1), (0, 2)):
        put(storage, file_name(number), minute)
    assert list(numbers(storage, 0)) == [file_name(5), file_name(0), file_name(1)]


def test_the_last_applied_file_stays_and_is_not_new(storage: Storage):
    put(storage, "a", 1)
    put(storage, "b", 2)
    assert apply(storage, 0) == 2
    assert away(storage) == [f"{1:020d}-a"]
    assert numbers(storage, 2) == {"b": 2}
    put(storage, "older", 0)  # it arrived later, despite its older time
    assert numbers(storage, 2) == {"b": 2, "older": 3}
    assert apply(storage, 2) == 3
    assert away(storage) == [f"{1:020d}-a", f"{2:020d}-b"]


def test_an_old_name_with_other_content_is_a_new_file(storage: Storage):
    put(storage, "a", 1, b"first")
    assert apply(storage, 0) == 1
    put(storage, "a", 2, b"FIRST")  # of the same size
    assert numbers(storage, 1) == {"a": 2}
    assert apply(storage, 1) == 2
    put(storage, "a", 3, b"longer than before")
    assert numbers(storage, 2) == {"a": 3}
    put(storage, "a", 4, b"FIRST")
    assert numbers(storage, 2) == {"a": 2}  # the applied file with a new modification time


def test_what_a_plan_does_not_hold_is_never_moved_away(storage: Storage):
    """A mirror is killed after planning; an older file arrives before it runs again."""
    put(storage, "a", 1)
    put(storage, "b", 2)
    plan = plan_files(storage, LIFE, 1, ["a", "b"])
    put(storage, "copied with its old time", 0)
    folder = next_batch.number_files(storage, LIFE, TIMED, listed(storage), 0)
    applied_files.move_applied(storage, LIFE, folder, plan)
    assert away(storage) == [f"{1:020d}-a"]
    assert numbers(storage, 2) == {"b": 2, "copied with its old time": 3}


def test_a_file_replaced_after_the_listing_is_not_moved(storage: Storage):
    put(storage, "a", 1)
    put(storage, "b", 2)
    folder = next_batch.number_files(storage, LIFE, TIMED, listed(storage), 0)
    plan = plan_files(storage, LIFE, 1, ["a", "b"])
    put(storage, "a", 3, b"again")
    applied_files.move_applied(storage, LIFE, folder, plan)
    assert away(storage) == []
    assert storage.read(f"{T.folder}/a") == b"again"
    assert numbers(storage, 2) == {"b": 2, "a": 3}


def test_leftovers_of_a_killed_mirror_move_and_new_files_stay(storage: Storage):
    for name, minute in (("c", 1), ("b", 2), ("a", 3)):
        put(storage, name, minute)
    plan_files(storage, LIFE, 1, ["c", "b", "a"])  # committed, but not moved
    put(storage, "new", 0)
    folder = next_batch.number_files(storage, LIFE, TIMED, listed(storage), 3)
    applied_files.move_leftovers(storage, LIFE, folder, 3)
    assert away(storage) == [f"{1:020d}-c", f"{2:020d}-b"]
    assert numbers(storage, 3) == {"a": 3, "new": 4}


def test_the_last_file_of_the_commit_before_is_applied_after_a_kill(storage: Storage):
    """A mirror was killed between its second commit and the moves."""
    put(storage, "a", 1)
    assert apply(storage, 0) == 1
    put(storage, "b", 1)
    put(storage, "c", 2)
    plan_files(storage, LIFE, 2, ["b", "c"])
    put(storage, "new", 3)
    assert numbers(storage, 3) == {"a": 1, "b": 2, "c": 3, "new": 4}
    folder = next_batch.number_files(storage, LIFE, TIMED, listed(storage), 3)
    assert applied_files.move_leftovers(storage, LIFE, folder, 3) is None
    assert away(storage) == [f"{1:020d}-a", f"{2:020d}-b"]
    assert numbers(storage, 3) == {"c": 3, "new": 4}
    put(storage, "a", 4)  # the same content again is a new file
    assert numbers(storage, 3) == {"c": 3, "new": 4, "a": 5}


def test_the_strategy_switched_to_time(storage: Storage):
    for number in (1, 2):
        put(storage, file_name(number), number)
    folder = next_batch.number_files(storage, LIFE, TableMetadata(), listed(storage), 0)
    applied_files.move_applied(
        storage, LIFE, folder, plan_files(storage, LIFE, 1, [file_name(1), file_name(2)])
    )
    put(storage, "any name.csv", 5)
    put(storage, file_name(9), 4)
    assert numbers(storage, 2) == {file_name(2): 2, file_name(9): 3, "any name.csv": 4}


def test_the_strategy_switched_to_numbers(storage: Storage):
    put(storage, "a", 1)
    put(storage, "b", 2)
    assert apply(storage, 0) == 2
    put(storage, file_name(3), 3)
    assert numbers(storage, 2, TableMetadata()) == {file_name(3): 3}
    put(storage, file_name(0), 3)
    with pytest.raises(SequenceError, match="between 1 and"):
        numbers(storage, 2, TableMetadata())


def state_of(storage: Storage, tail: str | None, last: int) -> TableState:
    here = listed(storage)
    return TableState(
        None,
        "t",
        "Replicating",
        seen=here.state_of(IDENTITY),
        declared=here.state_of(METADATA),
        strategy=BY_TIME,
        tail=tail,
        last_file=last,
    )


def test_a_listing_shows_whether_a_folder_by_time_is_idle(storage: Storage):
    put(storage, IDENTITY, 0)
    put(storage, METADATA, 0)
    assert status.idle_folder(listed(storage), state_of(storage, None, 0))
    put(storage, "b.csv", 1)
    (entry,) = (e for e in listed(storage).files if e.name == "b.csv")
    applied = state_of(storage, state.file_signature(entry), 7)
    assert status.idle_folder(listed(storage), applied)
    assert not status.idle_folder(listed(storage), state_of(storage, None, 7))
    put(storage, "a.csv", 0)
    assert not status.idle_folder(listed(storage), applied)
    storage.delete(f"{T.folder}/a.csv")
    assert status.idle_folder(listed(storage), applied)
    put(storage, METADATA, 9)
    assert not status.idle_folder(listed(storage), applied)
    put(storage, METADATA, 0)
    for changed in (("b.csv", 2, None), ("b.csv", 1, b"longer")):
        put(storage, *changed)
        assert not status.idle_folder(listed(storage), applied)


def test_status_counts_the_backlog_of_a_folder_by_time(storage: Storage):
    write_identity(storage, LIFE, make_folder=True)
    for name, minute in (("applied", 1), ("y", 3), ("x", 2), ("_hidden", 2)):
        put(storage, name, minute)
    entry = listed(storage).file("applied")
    assert entry is not None
    known = state_of(storage, state.file_signature(entry), 4)
    folder = status.listed_folder(listed(storage), known)
    assert folder is not None
    assert {n: e.name for n, e in folder.numbered.items()} == {4: "applied", 5: "x", 6: "y"}
    save_states(storage, {T.folder: known})
    (line,) = lake_of(storage).status().tables
    assert (line.last_file, line.backlog_files, line.waiting_for) == (4, 2, None)
    assert line.lag_seconds > 3600


def committed(storage: Storage, last: int, rows: int) -> None:
    """Write the table's log as a mirror leaves it after a commit."""
    note = {"incarnation": LIFE.incarnation, "last": last, "total_rows": rows}
    info = {"commitInfo": {"userMetadata": json.dumps(note)}}
    write_lines(storage, 0, info, META, {"txn": {"appId": LIFE.app_id, "version": last}})


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_status_after_a_kill_counts_applied_files_by_time_as_applied(
    storage: Storage, is_moved: bool, is_first: bool
):
    """A mirror that is killed after its commit saves neither the number nor the last file."""
    storage.write(f"{T.folder}/{METADATA}", json.dumps({"fileDetectionStrategy": BY_TIME}).encode())
    known = TableState(None, "t")
    if not is_first:
        put(storage, "a", 1)
        assert apply(storage, 0) == 1
        entry = listed(storage).file("a")
        assert entry is not None
        known = state_of(storage, state.file_signature(entry), 1)
    save_states(storage, {T.folder: known})
    put(storage, "b", 2)
    put(storage, "c", 3)
    first = 1 if is_first else 2
    folder = next_batch.number_files(storage, LIFE, TIMED, listed(storage), first - 1)
    plan = plan_files(storage, LIFE, first, ["b", "c"])
    committed(storage, plan.last, 9)
    if is_moved:
        applied_files.move_applied(storage, LIFE, folder, plan)
    for waiting in range(2):
        (line,) = lake_of(storage).status().tables
        assert (line.last_file, line.rows, line.backlog_files) == (plan.last, 9, waiting)
        put(storage, "new", 4)


def test_status_counts_the_files_of_a_folder_by_time_before_its_first_cycle(storage: Storage):
    storage.write(f"{T.folder}/{METADATA}", json.dumps({"fileDetectionStrategy": BY_TIME}).encode())
    for name in ("a.csv", "b.csv"):
        put(storage, name, 1)
    assert [line.backlog_files for line in lake_of(storage).status().tables] == [2]


def test_a_number_is_one_that_delta_can_keep(storage: Storage):
    largest = 2**63 - 1
    for name in ("#notes.txt", file_name(1), file_name(largest)):
        put(storage, name, 0)
    assert list(zone.list_folder(storage, T).numbered) == [1, largest]
    for number in (0, largest + 1):
        put(storage, file_name(number), 0)
        with pytest.raises(SequenceError, match=f"not between 1 and {largest}"):
            zone.list_folder(storage, T)
        Path(storage.root, T.folder, file_name(number)).unlink()


def test_a_skipped_file_has_an_empty_entry(storage: Storage):
    for number in (1, 3, 6):
        put(storage, file_name(number), 0)
    ready, missing = zone.list_folder(storage, T).pending(0, skip={2, 4})
    assert [entry.name for entry in ready] == [file_name(number) for number in (1, 2, 3, 4)]
    assert [entry.size > 0 for entry in ready] == [True, False, True, False]
    assert missing == 5
    assert zone.list_folder(storage, T).pending(0, skip={2, 4, 5})[1] is None
