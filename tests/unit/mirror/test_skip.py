"""Skipped files: a skip is only for the folder's present files, not for later ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.lakes import lake_of
from helpers.zones import KEYED, MARKER, Zone, interrupt_reseed
from mirrorlake import MirrorOptions
from mirrorlake.errors import MirrorlakeError, SequenceError, UsageError
from mirrorlake.landing import check
from mirrorlake.landing.metadata import read_identity, read_metadata, renew_identity
from mirrorlake.mirror import applied_files, next_batch, options
from mirrorlake.mirror.engine import Engine
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage

T, RENAMED = TableName(None, "t"), TableName(None, "renamed")
SETTINGS = "Files/_mirrorlake/control/t.json"
COLUMNS = {"id": "long", "item": "string"}


def no_spark():
    raise AssertionError("Spark was asked for")


def waiting_for(storage: Storage, number: int) -> bool:
    """Return whether the status and the next cycle find that the number is missing."""
    (line,) = lake_of(storage).status().tables
    (previewed,) = lake_of(storage).mirror(dry_run=True).tables
    assert line.waiting_for in (None, number)
    assert previewed.applied_files == (number - 1 if line.waiting_for else number)
    return line.waiting_for is not None


def put(storage: Storage, *numbers: int) -> Zone:
    zone = Zone(storage)
    zone.metadata(KEYED)
    for number in numbers:
        zone.put(number)
    return zone


def apply_skipped(storage: Storage) -> None:
    """Create a table whose file 2 was skipped, and whose last applied file is 3."""
    put(storage, 1, 2, 3).mirrored(COLUMNS, last=3)
    options.skip(storage, T, 2, apply=True)


def skipped(storage: Storage) -> frozenset[int]:
    return options.read_settings(storage, T).skipped(read_identity(storage, T))


@pytest.mark.parametrize("is_mirrored", [True, False])
def test_a_skip_ends_with_its_folder(any_storage: Storage, is_mirrored: bool):
    zone = put(any_storage, 1, 3)
    if is_mirrored:
        zone.identify()
    assert waiting_for(any_storage, 2)
    options.skip(any_storage, T, 2, apply=True)
    assert not waiting_for(any_storage, 2)
    any_storage.delete_folder(T.folder)
    put(any_storage, 1, 3)
    assert waiting_for(any_storage, 2)
    zone.identify()
    assert waiting_for(any_storage, 2)
    options.skip(any_storage, T, 4, apply=True)
    assert waiting_for(any_storage, 2)
    assert skipped(any_storage) == {4}


def test_the_mirror_skips_no_file_of_a_later_folder(any_storage: Storage):
    put(any_storage)
    options.skip(any_storage, T, 1, apply=True)
    any_storage.write(f"{T.folder}/{1:020}.parquet", b"corrupt")
    (line,) = Engine(any_storage, no_spark).run_cycle().tables
    assert line.error["file"] == "_metadata.json"  # no file has the columns yet
    any_storage.delete_folder(T.folder)
    put(any_storage)
    any_storage.write(f"{T.folder}/{1:020}.parquet", b"corrupt")
    (line,) = Engine(any_storage, no_spark).run_cycle().tables
    assert line.error["file"] == f"{1:020}.parquet"


def test_a_skip_without_a_folder_is_for_the_next_one(any_storage: Storage):
    options.skip(any_storage, T, 2, apply=True)
    put(any_storage, 1, 3).identify()
    assert not waiting_for(any_storage, 2)


def test_older_settings_skip_in_every_folder(any_storage: Storage):
    zone = put(any_storage, 1, 3)
    any_storage.write_json(SETTINGS, {"format": 1, "paused": None, "skip": [2]})
    assert not waiting_for(any_storage, 2)
    zone.identify()
    assert not waiting_for(any_storage, 2)
    options.skip(any_storage, T, 9, apply=True)
    assert skipped(any_storage) == {2, 9}
    renew_identity(any_storage, T)
    assert skipped(any_storage) == frozenset()


def test_a_pause_keeps_the_skips(any_storage: Storage):
    apply_skipped(any_storage)
    options.pause(any_storage, T)
    options.resume(any_storage, T)
    assert skipped(any_storage) == {2}
    renew_identity(any_storage, T)
    assert skipped(any_storage) == frozenset()


def test_a_renamed_folder_keeps_its_skips(any_storage: Storage):
    apply_skipped(any_storage)
    Engine(any_storage, no_spark).run_cycle()
    assert any_storage.move_folder(T.folder, RENAMED.folder)
    Engine(any_storage, no_spark).run_cycle()
    settings = options.read_settings(any_storage, RENAMED)
    assert settings.skipped(read_identity(any_storage, RENAMED)) == {2}
    assert options.read_settings(any_storage, T) == options.OperatorSettings()
    renew_identity(any_storage, RENAMED)
    assert settings.skipped(read_identity(any_storage, RENAMED)) == frozenset()


@pytest.mark.parametrize("is_older", [True, False])
def test_a_reseed_keeps_the_skips_only_of_kept_files(
    any_storage: Storage, tmp_path: Path, is_older: bool
):
    apply_skipped(any_storage)
    if is_older:
        any_storage.write_json(SETTINGS, {"format": 1, "paused": None, "skip": [2]})
    before = read_identity(any_storage, T)
    any_storage.delete(f"{T.folder}/{2:020}.parquet")
    applied_files.reseed(any_storage, T, apply=True)
    assert read_identity(any_storage, T) != before
    assert skipped(any_storage) == {2}
    load = tmp_path / "load.csv"
    load.write_text("id,item\n1,a\n")
    applied_files.reseed(any_storage, T, [load], apply=True)
    assert skipped(any_storage) == frozenset()
    assert not any_storage.exists(SETTINGS)


@pytest.mark.parametrize("is_renewed", [True, False])
def test_an_interrupted_reseed_keeps_the_skips(any_storage: Storage, is_renewed: bool):
    apply_skipped(any_storage)
    interrupt_reseed(any_storage, is_renewed=is_renewed)
    assert skipped(any_storage) == {2}
    assert options.read_settings(any_storage, T).paused
    applied_files.reseed(any_storage, T, apply=True)
    options.resume(any_storage, T)
    assert skipped(any_storage) == {2}
    assert options.read_settings(any_storage, T).incarnation


def apply_partly(storage: Storage) -> None:
    """Create a table whose file 2 was applied without a row, and whose file 3 was skipped."""
    zone = put(storage, 1, 4)
    zone.put(2, {"id": [2, 3], "item": ["b", "c"], MARKER: [4, 9]})
    storage.write(f"{T.folder}/{file_name(3)}", b"corrupt")
    identity = zone.mirrored(COLUMNS, last=4)
    facts = []
    for number in (1, 2, 3, 4):
        path, metadata = f"{T.folder}/{file_name(number)}", read_metadata(storage, T)
        if number == 3:
            facts.append(check.skipped_file(storage, path, number, SequenceError("skipped")))
        else:
            facts.append(check.inspect_file(storage, path, metadata, number=number, skip_rows=True))
    plan = next_batch.find_plan(storage, identity, 1)
    assert plan is not None
    next_batch.renew_plan(storage, identity, plan, facts)
    zone.move_to_processed(1, 2, 3)


def test_a_reseed_names_the_options_for_files_that_were_applied_in_part(any_storage: Storage):
    apply_partly(any_storage)
    effect = applied_files.reseed(any_storage, T).effect
    assert effect.split(". ") == [
        "the next cycle would replace it with the rows of 4 kept files, in one commit",
        "Rows of file 2 were skipped: mirror with on_error='skip-row' (--on-error skip-row)",
        "Skip file 3 again, or mirror with on_error='skip-file' (--on-error skip-file)",
        "Until then, the table stops and keeps its rows",
    ]
    options.skip(any_storage, T, 3, apply=True)
    effect = applied_files.reseed(any_storage, T).effect
    assert "of 3 kept files" in effect
    assert "file 3" not in effect
    put(any_storage, 1).put("_ProcessedFiles/" + file_name(2))  # repaired
    assert applied_files.reseed(any_storage, T).effect.endswith("3 kept files, in one commit")


def test_a_part_of_reseeded_files_does_not_replace_the_table(any_storage: Storage):
    apply_partly(any_storage)
    options.skip(any_storage, T, 3, apply=True)
    applied_files.reseed(any_storage, T, apply=True)
    (previewed,) = lake_of(any_storage).mirror(dry_run=True).tables
    (line,) = Engine(any_storage, no_spark).run_cycle().tables  # Spark would commit file 1
    assert previewed.applied_files == 0
    assert previewed.error["file"] == line.error["file"] == file_name(2)
    identity = read_identity(any_storage, T)
    assert next_batch.find_plan(any_storage, identity, 1) is None
    skip_rows = MirrorOptions(on_error="skip-row")
    (previewed,) = lake_of(any_storage).mirror(dry_run=True, options=skip_rows).tables
    assert (previewed.applied_files, previewed.error) == (3, None)  # and one is skipped


@pytest.mark.parametrize(("first", "bad"), [(1, 2), (3, 3)])
def test_a_replay_refuses_files_that_were_applied_in_part(
    any_storage: Storage, first: int, bad: int
):
    apply_partly(any_storage)
    for dry_run in (True, False):
        with pytest.raises(MirrorlakeError, match=r"publish its valid rows") as caught:
            applied_files.replay(any_storage, T, first, first + 1, dry_run=dry_run)
        assert caught.value.file == file_name(bad)
        assert f"Hint: file {bad} was applied" in str(caught.value)
    assert applied_files.replay(any_storage, T, 4).files == (
        file_name(5),
    )  # no other was published


def test_a_replay_refuses_a_range_that_ends_before_it_starts(any_storage: Storage):
    put(any_storage, 1, 2, 3).mirrored(COLUMNS, last=3)
    before = any_storage.files_below("")
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=r"starts at file 3, after its end 1\. Hint: swap"):
            applied_files.replay(any_storage, T, 3, 1, dry_run=dry_run)
    assert any_storage.files_below("") == before


def test_an_error_while_replaying_names_the_kept_file(any_storage: Storage):
    put(any_storage, 1).put(1, {"id": [1], MARKER: [9]})
    Zone(any_storage).mirrored(COLUMNS, last=1)
    with pytest.raises(MirrorlakeError, match="Unknown row marker 9") as caught:
        applied_files.replay(any_storage, T, 1)
    assert caught.value.file == file_name(1)
