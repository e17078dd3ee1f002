"""Folders that do not continue after their last applied file: replaced, refilled, renamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.lakes import lake_of
from helpers.places import PROCESSED, READY_TO_DELETE
from helpers.plans import plan_files
from helpers.zones import KEYED, Zone
from mirrorlake import Lake, Publisher
from mirrorlake.errors import SequenceError
from mirrorlake.landing import check
from mirrorlake.landing.metadata import (
    BY_TIME,
    Identity,
    TableMetadata,
    last_applied,
    read_identity,
)
from mirrorlake.landing.zone import list_folder
from mirrorlake.mirror import applied_files, next_batch, state, trash
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.lint import lint_zone
from mirrorlake.mirror.state import TableState
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Entry, Storage

T, OLD = TableName(None, "t"), TableName(None, "before")
LIFE = Identity(T, "one life")
COLUMNS = {"id": "long", "item": "string"}
OTHER = {"id": [7], "item": ["other"]}
TAG_ONLY = b"x" * (check.SMALL + 1)


def no_spark():
    raise AssertionError("Spark was asked for")


def applied(storage: Storage, last: int, table: TableName = T) -> Zone:
    """Create a table as a mirror leaves it: the last file in its folder, the others moved."""
    zone = Zone(storage)
    zone.metadata(KEYED, table)
    for number in range(1, last + 1):
        zone.put(number, {"id": [number], "item": ["applied"]}, table)
    zone.mirrored(COLUMNS, last=last, table=table)
    zone.move_to_processed(*range(1, last), table=table)
    return zone


def path(number: int, table: TableName = T, folder: str = "") -> str:
    return f"{table.folder}/{f'{folder}/' if folder else ''}{file_name(number)}"


def move(storage: Storage, source: TableName, target: TableName) -> None:
    assert storage.move_folder(source.folder, target.folder)


def entry_of(storage: Storage, number: int) -> Entry:
    found = storage.list(T.folder).file(file_name(number))
    assert found is not None
    return found


def fault(storage: Storage, last: int, known: str | None = None) -> SequenceError | None:
    return next_batch.last_file_error(storage, LIFE, list_folder(storage, T), last, known)


def put(storage: Storage, *numbers: int, data: bytes = b"applied") -> list[str]:
    for number in numbers:
        storage.write(path(number), data)
    return [file_name(number) for number in numbers]


def test_an_unchanged_last_file_is_not_an_error(any_storage: Storage):
    plan_files(any_storage, LIFE, 1, put(any_storage, 1, 2))
    assert fault(any_storage, 2) is None
    put(any_storage, 2)  # the same bytes again
    assert fault(any_storage, 2, "another signature") is None
    put(any_storage, 1, data=b"late")  # `move_leftovers` handles lower numbers
    assert fault(any_storage, 2) is None


@pytest.mark.parametrize("data", [b"APPLIED", b"longer than applied", b""])
def test_a_replaced_last_file_is_a_fault_that_names_the_ways_out(any_storage: Storage, data: bytes):
    plan_files(any_storage, LIFE, 1, put(any_storage, 1, 2))
    put(any_storage, 2, data=data)
    found = fault(any_storage, 2, "its signature of before")
    assert found is not None
    assert found.file == file_name(2)
    assert "replaced by other content" in found.message
    for way in ("delete the files up to number 2", "from 3 on", "reseed", "the whole folder"):
        assert way in found.hint
    assert fault(any_storage, 2) is not None


def test_another_extension_is_another_file(any_storage: Storage):
    plan_files(any_storage, LIFE, 1, put(any_storage, 1))
    assert any_storage.rename(path(1), f"{T.folder}/{file_name(1, '.csv')}")
    assert fault(any_storage, 1) is not None


def test_a_file_is_read_only_if_its_signature_differs(any_storage: Storage):
    plan_files(any_storage, LIFE, 1, put(any_storage, 1))
    put(any_storage, 1, data=b"APPLIED")
    assert fault(any_storage, 1, state.file_signature(entry_of(any_storage, 1))) is None


def test_without_a_plan_the_last_file_counts_as_applied(any_storage: Storage):
    put(any_storage, 1, 2)
    assert fault(any_storage, 2) is None
    assert not next_batch.differs_from_applied(any_storage, LIFE, 2, entry_of(any_storage, 2))


@pytest.mark.parametrize(("numbers", "named"), [((1, 3), 1), ((1, 2, 4), 1), ((2, 3), 2)])
def test_lower_numbers_with_other_content_beside_a_missing_last_file(
    any_storage: Storage, numbers: tuple[int, ...], named: int
):
    last = 3 if 3 not in numbers else 4
    plan_files(any_storage, LIFE, 1, put(any_storage, *range(1, last + 1)))
    for number in range(1, last + 1):
        any_storage.delete(path(number))
    put(any_storage, *numbers, data=b"refilled")
    found = fault(any_storage, last)
    assert found is not None
    assert found.file == file_name(named)
    assert f"file {last} is missing" in found.message


def test_only_a_missing_last_file_is_not_an_error(any_storage: Storage):
    plan_files(any_storage, LIFE, 1, put(any_storage, 1, 2, 3))
    any_storage.delete(path(3))
    assert fault(any_storage, 3) is None  # 1 and 2 are leftovers of a killed mirror
    put(any_storage, 4, data=b"the next one")
    assert fault(any_storage, 3) is None
    assert fault(any_storage, 0) is None


def test_lower_numbers_without_a_plan_are_an_error_if_the_last_file_is_missing(
    any_storage: Storage,
):
    put(any_storage, 1)
    assert fault(any_storage, 2) is not None


def test_the_hash_of_a_large_last_file_is_kept_beside_its_tag(any_storage: Storage):
    names = put(any_storage, 1, 2, 3, data=TAG_ONLY)
    files = plan_files(any_storage, LIFE, 1, names).files
    is_store = any_storage.local is None
    assert [bool(file.etag) for file in files] == [is_store] * 3
    assert [bool(file.sha256) for file in files] == [not is_store, not is_store, True]
    put(any_storage, 3, data=TAG_ONLY)  # another ETag in an object store, the same bytes
    assert fault(any_storage, 3, "a signature of before") is None
    put(any_storage, 3, data=TAG_ONLY[:-1] + b"y")
    assert fault(any_storage, 3) is not None


def test_a_tag_alone_does_not_prove_that_content_differs():
    storage = Storage("memory:///")
    put(storage, 1, 2, data=TAG_ONLY)
    plan_files(storage, LIFE, 1, [file_name(1), file_name(2)])
    put(storage, 1, data=TAG_ONLY)
    assert not next_batch.differs_from_applied(storage, LIFE, 1, entry_of(storage, 1))
    put(storage, 1, data=TAG_ONLY + b"y")
    assert next_batch.differs_from_applied(storage, LIFE, 1, entry_of(storage, 1))


@pytest.mark.parametrize(
    ("numbers", "last", "expected"),
    [
        ((1, 2, 3), 2, True),
        ((1,), 1, True),
        ((1,), 2, True),
        ((2, 3), 2, False),  # it does not start at 1
        ((3,), 2, False),
        ((), 2, False),
        ((1, 2, 3), 0, False),  # nothing was applied
    ],
)
def test_a_refilled_folder_has_none_of_its_applied_files(
    any_storage: Storage, numbers: tuple[int, ...], last: int, expected: bool
):
    if last:
        plan_files(any_storage, LIFE, 1, put(any_storage, *range(1, last + 1)))
    any_storage.delete_folder(T.folder)
    put(any_storage, *numbers, data=b"refilled")
    any_storage.write(f"{T.folder}/notes.txt", b"")
    assert next_batch.is_refilled(any_storage, LIFE, TableMetadata(), last) is expected
    by_time = TableMetadata(strategy=BY_TIME)
    assert not next_batch.is_refilled(any_storage, LIFE, by_time, last)


@pytest.mark.parametrize("folder", ["", PROCESSED, READY_TO_DELETE])
def test_a_folder_with_one_applied_file_is_not_refilled(any_storage: Storage, folder: str):
    plan_files(any_storage, LIFE, 1, put(any_storage, 1, 2))
    put(any_storage, 1, 2, 3, data=b"refilled")
    assert next_batch.is_refilled(any_storage, LIFE, TableMetadata(), 2)
    any_storage.write(path(2, folder=folder), b"applied")
    assert not next_batch.is_refilled(any_storage, LIFE, TableMetadata(), 2)


# --- cycles


def cycle(storage: Storage) -> dict[str, str | None]:
    """Run a cycle without Spark and return the file of each table's error."""
    lines = Engine(storage, no_spark).run_cycle().tables
    return {line.name: line.error["file"] if line.error else None for line in lines}


def test_a_replaced_last_file_stops_its_table_until_it_is_put_back(any_storage: Storage):
    zone = applied(any_storage, 2)
    before = any_storage.read(path(2))
    assert cycle(any_storage) == {"t": None}
    zone.put(2, OTHER)
    zone.put(3)  # not applied, so Spark is not started
    for _ in range(2):
        assert cycle(any_storage) == {"t": file_name(2)}
        (line,) = lake_of(any_storage).status().tables
        assert (line.state, line.last_file, line.backlog_files) == ("Failed", 2, 1)
    (preview,) = lake_of(any_storage).mirror(dry_run=True).tables
    assert (preview.error["file"], preview.file_names) == (file_name(2), ())
    assert [e.name for e in any_storage.list(f"{T.folder}/{PROCESSED}").files] == [file_name(1)]
    any_storage.write(path(2), before)
    any_storage.delete(path(3))
    assert cycle(any_storage) == {"t": None}
    assert lake_of(any_storage).status().tables[0].state == "Replicating"


class Reads(Storage):
    """A store that records the paths of all reads."""

    def __init__(self) -> None:
        super().__init__("memory:///")
        self.paths: list[str] = []

    def read(self, path: str) -> bytes:
        self.paths.append(path)
        return super().read(path)

    def chunks(self, path: str) -> Iterator[bytes]:
        self.paths.append(path)
        return super().chunks(path)


def test_an_idle_table_is_listed_and_not_read():
    storage = Reads()
    applied(storage, 2)
    applied(storage, 2, OLD)
    cycle(storage)
    for rewritten in (False, True):
        if rewritten:
            storage.write(path(2), storage.read(path(2)))
            cycle(storage)
        storage.paths.clear()
        assert cycle(storage) == {"t": None, "before": None}
        assert [path for path in storage.paths if "LandingZone" in path or "plans" in path] == []
    storage.write(path(2), bytes(reversed(storage.read(path(2)))))
    storage.paths.clear()
    assert cycle(storage) == {"t": file_name(2), "before": None}
    assert path(2) in storage.paths


def test_the_same_bytes_again_are_never_an_error(any_storage: Storage):
    applied(any_storage, 1)
    cycle(any_storage)
    any_storage.write(path(1), any_storage.read(path(1)))
    assert cycle(any_storage) == {"t": None}
    any_storage.delete(path(1))
    assert cycle(any_storage) == {"t": None}


@pytest.mark.parametrize("rest", ["processed files", "nothing"])
def test_a_refilled_folder_of_the_same_name_stops_its_table(any_storage: Storage, rest: str):
    """A publisher that numbers files by the content of an emptied folder causes this."""
    zone = applied(any_storage, 3)
    assert cycle(any_storage) == {"t": None}
    any_storage.delete(path(3))
    if rest == "nothing":
        any_storage.delete_folder(f"{T.folder}/{PROCESSED}")
    zone.put(1, OTHER)
    assert cycle(any_storage) == {"t": file_name(1)}
    zone.put(4)
    assert cycle(any_storage) == {"t": file_name(1)}
    assert [found.rule for found in lint_zone(any_storage).errors] == ["number-reused"]
    for number in (1, 4):
        any_storage.delete(path(number))
    assert cycle(any_storage) == {"t": None}


def test_an_earlier_version_s_state_is_compared_once(storage: Storage):
    zone = applied(storage, 1)
    cycle(storage)
    document = storage.read_json("Files/_mirrorlake/state.json")
    for kept in document["tables"].values():
        del kept["tail"]
    storage.write_json("Files/_mirrorlake/state.json", document)
    zone.put(1, OTHER)
    assert cycle(storage) == {"t": file_name(1)}


# --- renames


def renamed(storage: Storage) -> tuple[Identity | None, TableName]:
    """Follow the rename of `t`; return its identity, and the table of the saved state."""
    identity = read_identity(storage, T)
    assert identity is not None
    states = {OLD.folder: TableState(None, OLD.name, incarnation=identity.incarnation)}
    assert trash.follow_folders(storage, states, [T]) == ([], [])
    (kept,) = states.values()
    return read_identity(storage, T), kept.table


@pytest.mark.parametrize("emptied", [False, True])
def test_a_folder_renamed_with_its_files_continues(any_storage: Storage, emptied: bool):
    zone = applied(any_storage, 2, OLD)
    before = read_identity(any_storage, OLD)
    move(any_storage, OLD, T)
    if emptied:
        any_storage.delete(path(2))
    zone.put(3)
    identity, table = renamed(any_storage)
    assert before
    assert (identity, table) == (Identity(T, before.incarnation, OLD), T)
    assert last_applied(any_storage, T) == 2


@pytest.mark.parametrize("last", [1, 2])
def test_a_folder_renamed_and_refilled_starts_a_new_incarnation(any_storage: Storage, last: int):
    zone = applied(any_storage, last, OLD)
    before = read_identity(any_storage, OLD)
    move(any_storage, OLD, T)
    any_storage.delete(path(last))
    any_storage.delete_folder(f"{T.folder}/{PROCESSED}")
    for number in (1, 2, 3):
        zone.put(number, OTHER)
    assert lint_zone(any_storage).errors == ()
    identity, table = renamed(any_storage)
    assert before
    assert identity
    assert identity.incarnation != before.incarnation
    assert (identity.origin, table) == (None, T)
    # A mirror that is killed here has not saved that the table was moved.
    states = {OLD.folder: TableState(None, OLD.name, incarnation=before.incarnation)}
    assert trash.follow_folders(any_storage, states, [T]) == ([], [])
    assert read_identity(any_storage, T) == identity


def test_a_rename_that_is_cut_off_before_the_new_incarnation_is_completed(
    any_storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    zone = applied(any_storage, 1, OLD)
    before = read_identity(any_storage, OLD)
    move(any_storage, OLD, T)
    zone.put(1, OTHER)

    def fail(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("mirrorlake.mirror.trash.renew_identity", fail)
        assert before
        states = {OLD.folder: TableState(None, OLD.name, incarnation=before.incarnation)}
        (stuck,) = trash.follow_folders(any_storage, states, [T])[1]
        assert stuck.table == T
        assert list(states) == [OLD.folder]
    identity, table = renamed(any_storage)
    assert identity
    assert (identity.incarnation != before.incarnation, table) == (True, T)


def test_a_rename_with_applied_and_new_files_stops_the_table(any_storage: Storage):
    zone = applied(any_storage, 2, OLD)
    cycle(any_storage)
    move(any_storage, OLD, T)
    for number in (1, 2, 3):
        zone.put(number, OTHER)  # the former file 1 is in `_ProcessedFiles`
    cycle(any_storage)
    (line,) = lake_of(any_storage).status().tables
    assert (line.name, line.state, line.last_file) == ("t", "Failed", 2)
    assert line.error["file"] == file_name(2)


def test_a_publisher_continues_numbering_in_a_renamed_folder_without_files(any_storage: Storage):
    applied(any_storage, 2, OLD)
    move(any_storage, OLD, T)
    any_storage.delete(path(2))
    any_storage.delete_folder(f"{T.folder}/{PROCESSED}")
    publisher = Publisher(any_storage, T, keys=["id"])
    assert publisher.known_columns == {"id": "long", "item": "string"}
    assert publisher.upsert([{"id": 1}]).file == file_name(3)


def test_a_publisher_starts_numbering_again_in_a_copied_folder(storage: Storage):
    applied(storage, 1, OLD)
    (Path(storage.root) / T.folder).mkdir()
    identity = f"{T.folder}/_mirrorlake.json"
    storage.write(identity, storage.read(f"{OLD.folder}/_mirrorlake.json"))
    assert Publisher(storage, T, keys=["id"]).upsert([{"id": 1}]).file == file_name(1)


# --- replays


def test_a_file_that_was_not_applied_is_not_replayed(storage: Storage):
    zone = applied(storage, 2)
    zone.put(2, OTHER)
    for dry_run in (True, False):
        with pytest.raises(
            SequenceError, match="content of file 2 is not the content that was applied"
        ) as caught:
            applied_files.replay(storage, T, 1, dry_run=dry_run)
        assert caught.value.file == file_name(2)
    with pytest.raises(SequenceError, match="content of file 2 is not the content"):
        applied_files.reseed(storage, T)
    operations = Lake(storage.root).operations
    assert operations.replay("t", 1, 1, dry_run=True).effect == "file 1 would be published again"
    assert operations.replay("t", 1, 1).files == (file_name(3),)
    for verb in (operations.pause, operations.resume):
        assert "would be applied" in verb("t", dry_run=True).effect
        assert "are applied" in verb("t").effect


@pytest.mark.parametrize("strategy", ["by number", BY_TIME])
def test_a_new_load_counts_the_waiting_files_that_it_replaces(
    any_storage: Storage, tmp_path: Path, strategy: str
):
    load = tmp_path / "load.csv"
    load.write_text("id,item\n1,a\n")
    zone = applied(any_storage, 2)
    if strategy == BY_TIME:
        zone.metadata(KEYED | {"fileDetectionStrategy": BY_TIME})
    assert "aside" not in applied_files.reseed(any_storage, T, [load]).effect
    for number in (3, 4):
        zone.put(number)
    any_storage.write(f"{T.folder}/_{file_name(5)}", b"a file that is not published yet")
    done = applied_files.reseed(any_storage, T, [load], apply=True)
    assert done.effect.endswith("of 1 new file, in one commit; 2 waiting files are set aside")
    aside = any_storage.files_below("Files/_mirrorlake/reseeded/t")
    assert sorted(path.rpartition("/")[2] for path in aside) == [file_name(n) for n in range(1, 5)]
