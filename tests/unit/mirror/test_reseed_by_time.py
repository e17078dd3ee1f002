"""Skip, replay and reseed of a folder whose files are ordered by time."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from helpers.commits import write_lines
from helpers.lakes import lake_of
from helpers.places import PROCESSED
from helpers.zones import KEYED, MARKER, Zone, interrupt_reseed
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import SequenceError, UsageError
from mirrorlake.landing import check
from mirrorlake.landing.metadata import BY_TIME, read_identity, read_metadata
from mirrorlake.mirror import applied_files, next_batch, options
from mirrorlake.mirror.state import TableState, save_states
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Entry, Storage

T = TableName(None, "t")
COLUMNS = {"id": "long", "item": "string"}
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
B, A, C = "b.parquet", "a.parquet", "c.parquet"  # as they were applied
MOVED = [f"{1:020d}-{B}", f"{2:020d}-{A}", C]


def put(storage: Storage, name: str, minute: int, item: str | None = None) -> None:
    Zone(storage).put(name, {"id": [1], "item": [item or name]})
    timestamp = (START + timedelta(minutes=minute)).timestamp()
    os.utime(Path(storage.root, T.folder, name), (timestamp, timestamp))


@pytest.fixture
def lake(storage: Storage) -> Storage:
    """Return a lake with three applied files, the last one in its folder, and a waiting file."""
    zone = Zone(storage)
    zone.metadata(KEYED | {"fileDetectionStrategy": BY_TIME})
    for minute, name in enumerate((B, A, C)):
        put(storage, name, minute)
    zone.mirrored(COLUMNS, last=3, names=[B, A, C])
    for name, moved in zip((B, A), MOVED, strict=False):
        assert storage.rename(f"{T.folder}/{name}", f"{T.folder}/{PROCESSED}/{moved}")
        storage.touch(f"{T.folder}/{PROCESSED}/{moved}")
    put(storage, file_name(2), 3, "waiting")
    return storage


def context(storage: Storage) -> tuple[next_batch.TableContext, next_batch.Skips]:
    """Return the state of the table, and the files that an operator skips, as a cycle does."""
    identity, metadata = read_identity(storage, T), read_metadata(storage, T)
    assert identity is not None
    snapshot = read_snapshot(storage, T.table_path)
    listing, known = storage.list(T.folder), TableState(None, "t")
    at = next_batch.load_context(storage, identity, metadata, snapshot, listing, known)
    return at, next_batch.operator_skips(at, options.read_settings(storage, T))


def with_options(
    storage: Storage, **settings: Any
) -> tuple[next_batch.TableContext, options.MirrorOptions, next_batch.Skips]:
    """Return the arguments of `following_files`."""
    at, skips = context(storage)
    return at, options.MirrorOptions(**settings), skips


def apply_next(storage: Storage) -> None:
    """Apply the waiting file 4 like a cycle, without the rows in the table."""
    at, skips = context(storage)
    batch = next_batch.preview_batch(at, options.MirrorOptions(), skips)
    plan = next_batch.make_plan(storage, at.identity, 4, batch.facts, options.STOP)
    write_lines(storage, 1, {"txn": {"appId": at.identity.app_id, "version": 4}})
    applied_files.move_applied(storage, at.identity, at.folder, plan)


def next_files(storage: Storage) -> list[str]:
    """Return the files that the next cycles apply, in order."""
    (line,) = lake_of(storage).mirror(dry_run=True).tables
    assert line.error is None
    return list(line.file_names)


def test_a_replay_reads_applied_files(lake: Storage) -> None:
    assert applied_files.replay(lake, T, 1, dry_run=True).files == tuple(MOVED)
    done = applied_files.replay(lake, T, 2).files
    items = [
        pq.read_table(Path(lake.root, T.folder, name)).column("item").to_pylist() for name in done
    ]
    assert items == [[A], [C]]
    assert next_files(lake) == [file_name(2), *done]
    with pytest.raises(SequenceError, match="Number 4 was not applied"):
        applied_files.replay(lake, T, 3, 4)


def test_a_reseed_keeps_the_order_of_applied_and_waiting_files(lake: Storage) -> None:
    before = read_identity(lake, T)
    assert before is not None
    known = TableState(None, "t", "Replicating", before.incarnation, seen="old", strategy=BY_TIME)
    save_states(lake, {T.folder: replace(known, last_file=3, tail="old")})
    assert "of 3 kept files, in one commit" in applied_files.reseed(lake, T).effect
    applied_files.reseed(lake, T, apply=True)
    for _ in range(2):
        assert read_identity(lake, T) != before
        assert next_files(lake) == [*MOVED, file_name(2)]
        (line,) = lake_of(lake).status().tables
        assert (line.last_file, line.backlog_files) == (0, 4)
        applied_files.reseed(lake, T, apply=True)  # again, before the next cycle


def test_reseeded_files_keep_their_names_when_they_are_moved(lake: Storage) -> None:
    applied_files.reseed(lake, T, apply=True)
    identity = read_identity(lake, T)
    assert identity is not None
    plan = next_batch.find_plan(lake, identity, 1)
    assert plan is not None
    metadata = read_metadata(lake, T)
    folder = next_batch.number_files(lake, identity, metadata, lake.list(T.folder), 0)
    applied_files.move_applied(lake, identity, folder, plan)
    assert [entry.name for entry in lake.list(f"{T.folder}/{PROCESSED}").files] == MOVED[:2]


@pytest.mark.parametrize("is_renewed", [True, False])
def test_an_interrupted_reseed_is_repeated(lake: Storage, is_renewed: bool) -> None:
    interrupt_reseed(lake, is_renewed=is_renewed)
    assert applied_files.reseed(lake, T, apply=True).effect.count("of 3 kept files")
    options.resume(lake, T)
    assert next_files(lake) == [*MOVED, file_name(2)]


@pytest.mark.parametrize(("number", "is_kept"), [(1, True), (2, False), (3, True)])
def test_a_reseed_skips_the_same_files_again(lake: Storage, number: int, is_kept: bool) -> None:
    options.skip(lake, T, number, apply=True)
    if not is_kept:
        lake.delete(f"{T.folder}/{PROCESSED}/{MOVED[number - 1]}")
    applied_files.reseed(lake, T, apply=True)
    left = [name for name in MOVED if name != MOVED[number - 1]]
    assert next_files(lake) == [*left, file_name(2)]


def test_a_reseed_applies_partly_applied_files_in_the_same_way(lake: Storage) -> None:
    moved = f"{PROCESSED}/{MOVED[0]}"
    Zone(lake).put(moved, {"id": [1, 2], "item": ["b", "c"], MARKER: [4, 9]})
    lake.write(f"{T.folder}/{PROCESSED}/{MOVED[1]}", b"corrupt")
    identity = read_identity(lake, T)
    assert identity is not None
    plan = next_batch.find_plan(lake, identity, 1)
    assert plan is not None
    bad, corrupt, good = plan.files
    files = (replace(bad, rejected=1), replace(corrupt, skipped="It is corrupt."), good)
    next_batch.rewrite_plan(lake, identity, replace(plan, files=files))
    effect = applied_files.reseed(lake, T, apply=True).effect
    assert effect.endswith(". The mirror skips the same rows and files again (file 1, file 2)")
    assert next_files(lake) == [MOVED[0], C, file_name(2)]


def test_a_replaced_last_file_is_no_longer_kept(lake: Storage) -> None:
    put(lake, C, 4, "new")
    for work in (applied_files.reseed, lambda *of: applied_files.replay(*of, 3)):
        with pytest.raises(SequenceError, match="File 3 is no longer kept"):
            work(lake, T)
    assert applied_files.replay(lake, T, 1, 2, dry_run=True).files == tuple(MOVED[:2])


def test_a_new_file_with_the_name_of_a_moved_one_is_not_reseeded(storage: Storage) -> None:
    zone = Zone(storage)
    zone.metadata(KEYED)
    for number in (1, 2):
        zone.put(number)
    zone.mirrored(COLUMNS, last=2)
    zone.move_to_processed(1)
    zone.put(1, {"id": [7], "item": ["other"]})
    with pytest.raises(SequenceError, match="has the name of the applied file 1") as caught:
        applied_files.reseed(storage, T)
    assert caught.value.file == file_name(1)


def test_a_skip_names_the_waiting_file(lake: Storage) -> None:
    operations = lake_of(lake).operations
    put(lake, "later.parquet", 4)
    done = operations.skip("t", 5)
    assert done.effect == "file 5 (later.parquet) would be skipped"
    assert operations.skip("t", "later.parquet") == done
    for file in (0, 6, "6", "gone.parquet", C):
        with pytest.raises(UsageError, match=f"t has no waiting file {file}") as found:
            operations.skip("t", file, apply=True)
        assert found.value.hint == f"its waiting files are 4 ({file_name(2)}), 5 (later.parquet)."
    operations.skip("t", 4, apply=True)
    assert next_files(lake) == ["later.parquet"]


def test_only_the_file_that_was_seen_is_skipped(lake: Storage) -> None:
    put(lake, "later.parquet", 4)
    options.skip(lake, T, file_name(2), apply=True, waiting=next_batch.waiting_by_time(lake, T))
    lake.delete(f"{T.folder}/{file_name(2)}")
    assert next_files(lake) == ["later.parquet"]  # it has the number now
    put(lake, file_name(2), 5, "waiting")
    assert next_files(lake) == ["later.parquet", file_name(2)]


@pytest.mark.parametrize("minute", [3, 5])
def test_a_file_that_replaces_a_skipped_one_is_applied(lake: Storage, minute: int) -> None:
    """Also if it has the same name, size and time."""
    before = lake.list(T.folder).file(file_name(2))
    lake_of(lake).operations.skip("t", 4, apply=True)
    assert next_files(lake) == []
    put(lake, file_name(2), minute, "Waiting")
    after = lake.list(T.folder).file(file_name(2))
    assert before is not None
    assert after is not None
    assert before.size == after.size
    assert next_files(lake) == [file_name(2)]


def test_a_skip_by_name_counts_for_a_file_of_an_unfinished_plan(lake: Storage) -> None:
    """The numbers of a plan that a reseed has written are not those of the files' times."""
    applied_files.reseed(lake, T, apply=True)
    waiting = next_batch.waiting_by_time(lake, T)
    options.skip(lake, T, MOVED[0], apply=True, waiting=waiting)
    assert next_files(lake) == [*MOVED[1:], file_name(2)]


def test_a_skip_of_before_without_a_name_counts_for_its_number(lake: Storage) -> None:
    path = "Files/_mirrorlake/control/t.json"
    lake.write_json(path, {"format": 1, "paused": None, "skip": [4]})
    assert next_files(lake) == []


def test_settings_have_the_format_of_before_unless_a_file_is_skipped_by_name(lake: Storage) -> None:
    def stored() -> dict[str, Any]:
        return lake.read_json("Files/_mirrorlake/control/t.json") or {}

    operations = lake_of(lake).operations
    operations.skip("t", 3, apply=True)
    assert stored()["format"] == 1
    assert "files" not in stored()
    operations.skip("t", 4, apply=True)
    operations.pause("t")
    assert (stored()["format"], stored()["skip"]) == (2, [3])
    assert [file["name"] for file in stored()["files"]] == [file_name(2)]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_reseed_leaves_out_a_file_that_was_skipped_by_name(
    lake: Storage, is_replaced: bool
) -> None:
    options.skip(lake, T, 4, apply=True, waiting=next_batch.waiting_by_time(lake, T))
    if is_replaced:
        put(lake, file_name(2), 3, "Waiting")
    apply_next(lake)
    skipped = [] if is_replaced else [4]
    assert applied_files._skipped_numbers(lake, T) == set(skipped)  # what a reseed leaves out
    applied_files.reseed(lake, T, apply=True)
    names = [*MOVED[:2], f"{3:020d}-{C}", file_name(2)]
    assert next_files(lake) == (names if is_replaced else names[:3])
    settings = options.read_settings(lake, T)
    assert settings.skipped(read_identity(lake, T)) == set(skipped)


def test_late_files_can_be_skipped(lake: Storage) -> None:
    late = ["x.parquet", "y.parquet"]
    for minute, name in enumerate(late):
        put(lake, name, minute)
    for name in late:
        error = next_batch.following_files(*with_options(lake)).error
        assert error is not None
        assert error.file == name
        lake_of(lake).operations.skip("t", name, apply=True)
    chosen = next_batch.following_files(*with_options(lake))
    assert (chosen.names, chosen.error) == ([*late, file_name(2)], None)
    assert chosen.skip.keys() == set(late)


def test_all_late_files_are_skipped_with_skip_file(lake: Storage) -> None:
    for minute, name in enumerate(("x.parquet", "y.parquet")):
        put(lake, name, minute)
    chosen = next_batch.following_files(*with_options(lake, on_error="skip-file"))
    assert (chosen.skip.keys(), chosen.error) == ({4, 5}, None)


def test_a_skipped_late_file_does_not_change_which_files_are_late(lake: Storage) -> None:
    put(lake, "x.parquet", 0)
    identity = context(lake)[0].identity
    path = f"{T.folder}/x.parquet"
    facts = [check.skipped_file(lake, path, 4, SequenceError("It is late."))]
    next_batch.make_plan(lake, identity, 4, facts, options.STOP)
    for minute, is_late in ((1, True), (2, False)):
        entry = Entry("y.parquet", 1, START + timedelta(minutes=minute))
        error = next_batch.late_file_error(lake, identity, 4, entry)
        assert (error is not None) == is_late


@pytest.mark.parametrize("has_type", [True, False])
def test_an_error_names_how_a_corrected_file_keeps_its_place(
    any_storage: Storage, has_type: bool
) -> None:
    zone = Zone(any_storage)
    zone.metadata(KEYED | {"fileDetectionStrategy": BY_TIME})
    zone.mirrored(COLUMNS)
    zone.put(B, {"id": ["x"]} if has_type else None)
    if not has_type:
        any_storage.write(f"{T.folder}/{B}", b"corrupt")
    (line,) = lake_of(any_storage).mirror(dry_run=True).tables
    assert line.error is not None
    assert line.error["file"] == B
    how = "keep its modification time" if any_storage.local else "upload later files again"
    assert how in line.error["message"]
    zone.metadata(KEYED)
    any_storage.delete(f"{T.folder}/{B}")
    any_storage.write(f"{T.folder}/{file_name(1)}", b"corrupt")
    (line,) = lake_of(any_storage).mirror(dry_run=True).tables
    assert how not in str(line.error)
