from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.markers import Marker
from helpers.plans import facts_of, plan_files
from mirrorlake import MirrorOptions
from mirrorlake.errors import DataFileError, SequenceError
from mirrorlake.landing.check import SMALL, file_hash
from mirrorlake.landing.metadata import Identity, TableMetadata
from mirrorlake.mirror import next_batch
from mirrorlake.mirror.state import TableState
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Entry, Storage

IDENTITY = Identity(TableName("s", "t"), "one life")
FOLDER = IDENTITY.table.folder


def put(storage: Storage, number: int, *ids: int | None) -> str:
    name = file_name(number)
    with storage.open_writer(f"{FOLDER}/{name}") as sink:
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
    return name


def check(storage: Storage, names: list[str], *keys: str) -> next_batch.Batch:
    listing, state = storage.list(FOLDER), TableState("s", "t")
    at = next_batch.load_context(storage, IDENTITY, TableMetadata(keys), None, listing, state)
    return next_batch.check_batch(at, names, MirrorOptions(), {})


def test_a_plan_has_names_sizes_and_hashes(any_storage: Storage):
    names = [put(any_storage, number, number) for number in (4, 5)]
    plan = plan_files(any_storage, IDENTITY, 4, names)
    assert (plan.first, plan.last) == (4, 5)
    assert [file.name for file in plan.files] == names
    for file in plan.files:
        path = f"{FOLDER}/{file.name}"
        assert file.sha256 == file_hash(any_storage, path)
        assert file.size == len(any_storage.read(path))
    assert next_batch.find_plan(any_storage, IDENTITY, 4) == plan
    assert any_storage.read_json(next_batch.plan_path(IDENTITY, 4)) == plan.document()


def test_another_number_incarnation_or_table_has_no_plan(any_storage: Storage):
    plan_files(any_storage, IDENTITY, 4, [put(any_storage, 4, 1)])
    assert next_batch.find_plan(any_storage, IDENTITY, 5) is None
    assert next_batch.find_plan(any_storage, Identity(IDENTITY.table, "another life"), 4) is None
    assert next_batch.find_plan(any_storage, Identity(TableName(None, "t"), "one life"), 4) is None


@pytest.mark.parametrize("more", [0, 2])
def test_the_plan_that_is_there_wins(any_storage: Storage, more: int):
    names = [put(any_storage, number, number) for number in (1, 2, 3)]
    found = plan_files(any_storage, IDENTITY, 1, names[:2])
    assert plan_files(any_storage, IDENTITY, 1, names[: 1 + more]) == found
    assert next_batch.find_plan(any_storage, IDENTITY, 1) == found


def test_an_unchanged_plan_is_not_rewritten(any_storage: Storage):
    plan = plan_files(any_storage, IDENTITY, 1, [put(any_storage, 1, 1)])
    before = any_storage.read(next_batch.plan_path(IDENTITY, 1))
    next_batch.renew_plan(
        any_storage, IDENTITY, plan, facts_of(any_storage, IDENTITY, 1, [file_name(1)])
    )
    assert any_storage.read(next_batch.plan_path(IDENTITY, 1)) == before


def test_a_file_uploaded_again_renews_its_hash_and_nothing_else(any_storage: Storage):
    plan = plan_files(any_storage, IDENTITY, 1, [put(any_storage, n, n) for n in (1, 2, 3)])
    put(any_storage, 2, 7, 8, 9)
    put(any_storage, 4, 4)
    names = [file_name(number) for number in (1, 2, 3)]
    next_batch.renew_plan(any_storage, IDENTITY, plan, facts_of(any_storage, IDENTITY, 1, names))
    renewed = next_batch.find_plan(any_storage, IDENTITY, 1)
    assert renewed is not None
    assert (renewed.first, renewed.last, renewed.planned) == (1, 3, plan.planned)
    assert renewed.files[0] == plan.files[0]
    assert renewed.files[2] == plan.files[2]
    assert renewed.files[1].sha256 == file_hash(any_storage, f"{FOLDER}/{file_name(2)}")
    assert renewed.files[1] != plan.files[1]


sizes = st.lists(st.integers(0, 100), max_size=20)


@given(sizes, st.integers(1, 25), st.integers(0, 300))
def test_a_batch_is_the_longest_beginning_within_both_bounds(sizes, max_files, max_bytes):
    now = datetime.now(timezone.utc)
    entries = [Entry(file_name(n + 1), size, now) for n, size in enumerate(sizes)]
    names = next_batch.cut_batch(entries, max_files, max_bytes)
    count = len(names)
    assert names == [entry.name for entry in entries[:count]]
    assert (count > 0) == (len(entries) > 0)
    assert count <= max_files
    assert count <= 1 or sum(sizes[:count]) <= max_bytes
    if count < len(entries):
        assert count == max_files or sum(sizes[: count + 1]) > max_bytes


def test_sound_files_are_all_checked_in_order(any_storage: Storage):
    names = [put(any_storage, n, *range(n)) for n in range(1, 20)]
    batch = check(any_storage, names, "id")
    assert batch.error is None
    assert [file.name for file in batch.facts] == names
    assert [file.row_count for file in batch.facts] == list(range(1, 20))


@pytest.mark.parametrize("bad", range(1, 6))
def test_check_stops_at_the_first_bad_file(any_storage: Storage, bad: int):
    names = [put(any_storage, n, n) for n in range(1, 7)]
    put(any_storage, bad, 1, None)
    any_storage.write(f"{FOLDER}/{file_name(6)}", b"")  # bad too, but later
    batch = check(any_storage, names, "id")
    assert [file.name for file in batch.facts] == names[: bad - 1]
    assert isinstance(batch.error, DataFileError)
    assert (batch.error.file, batch.error.row) == (file_name(bad), 2)


def test_a_file_that_is_gone_since_the_listing(any_storage: Storage):
    names = [put(any_storage, 1, 1), file_name(2)]
    batch = check(any_storage, names)
    assert len(batch.facts) == 1
    assert isinstance(batch.error, SequenceError)
    assert batch.error.file == file_name(2)


LARGE = b"x" * (SMALL + 1)


def test_the_etag_replaces_the_hash_of_a_large_file(any_storage: Storage):
    path, names = f"{FOLDER}/{file_name(1)}", [file_name(1), file_name(2)]
    for name in names:
        any_storage.write(f"{FOLDER}/{name}", LARGE)
    file, _ = plan_files(any_storage, IDENTITY, 1, names).files
    document = any_storage.read_json(next_batch.plan_path(IDENTITY, 1))
    plan = next_batch.find_plan(any_storage, IDENTITY, 1)
    assert plan is not None
    assert plan.files[0] == file
    if any_storage.local is not None:
        assert (document["format"], file.etag) == (next_batch.PLAIN_PLAN_FORMAT, None)
        assert "etag" not in document["files"][0]
    else:
        assert (document["format"], file.sha256) == (3, "")
        assert file.etag
    assert next_batch.is_as_planned(any_storage, IDENTITY, plan, entry_of(any_storage))
    any_storage.write(path, LARGE[:-1] + b"y")
    assert not next_batch.is_as_planned(any_storage, IDENTITY, plan, entry_of(any_storage))


def test_an_older_plan_identifies_a_large_file_by_its_hash(any_storage: Storage):
    path = f"{FOLDER}/{file_name(1)}"
    any_storage.write(path, LARGE)
    plan = next_batch.Plan(
        1, (next_batch.PlannedFile(file_name(1), len(LARGE), file_hash(any_storage, path)),), ""
    )
    any_storage.write_json(next_batch.plan_path(IDENTITY, 1), plan.document())
    assert plan.document()["format"] == next_batch.PLAIN_PLAN_FORMAT
    assert next_batch.is_as_planned(any_storage, IDENTITY, plan, entry_of(any_storage))
    any_storage.write(path, LARGE)  # uploaded again: another ETag, the same hash
    assert next_batch.is_as_planned(any_storage, IDENTITY, plan, entry_of(any_storage))


def entry_of(storage: Storage) -> Entry:
    found = storage.list(FOLDER).file(file_name(1))
    assert found is not None
    return found


@pytest.mark.parametrize("first", [1, 6, 4000, 5001])
def test_a_number_s_plan_is_found_among_many(any_storage: Storage, first: int):
    for start in (1, 6, 4000, 5001):
        any_storage.write_json(
            next_batch.plan_path(IDENTITY, start), next_batch.Plan(start, (), "").document()
        )
    last = {1: 5, 6: 3999, 4000: 5000, 5001: 9999}[first]
    for number in (first, last):
        found = next_batch.plan_of(any_storage, IDENTITY, number)
        assert found is not None
        assert found.first == first
    assert next_batch.plan_of(any_storage, IDENTITY, 0) is None


@pytest.mark.parametrize(
    ("sizes", "max_files", "max_bytes", "count"),
    [
        ([5, 5], 9, 10, 2),
        ([5, 5], 9, 9, 1),
        ([5, 100, 5], 9, 10, 1),  # files after one that does not fit wait, too
        ([5, 5, 5], 2, 100, 2),
        ([100], 1, 10, 1),
        ([1, 1], 9, 2, 2),
    ],
)
def test_where_a_batch_ends(sizes: list[int], max_files: int, max_bytes: int, count: int):
    now = datetime.now(timezone.utc)
    entries = [Entry(file_name(n), size, now) for n, size in enumerate(sizes, start=1)]
    assert next_batch.cut_batch(entries, max_files, max_bytes) == [
        entry.name for entry in entries[:count]
    ]


def test_the_plan_describes_skipped_files(any_storage: Storage):
    names = [put(any_storage, 1, 1), file_name(2), put(any_storage, 3, 3)]
    applied, never, broken = facts_of(any_storage, IDENTITY, 1, names)
    applied = replace(applied, rows=Counter({Marker.UPSERT: 2, Marker.DELETE: 0}))
    never = replace(never, skipped=SequenceError("It never came."))
    broken = replace(broken, skipped=DataFileError("It is broken."))
    next_batch.make_plan(any_storage, IDENTITY, 1, [applied, never, broken], "skip-file")
    plan = next_batch.find_plan(any_storage, IDENTITY, 1)
    assert plan is not None
    assert plan.on_error == "skip-file"
    one, two, three = plan.files
    assert (one.skipped, one.rows, one.rejected) == (None, {"upsert": 2}, 0)
    assert (two.sha256, two.published) == ("", None)
    assert "It never came." in str(two.skipped)
    assert three.sha256 == file_hash(any_storage, f"{FOLDER}/{names[2]}")
    assert three.published is not None
    assert "It is broken." in str(three.skipped)
    with pytest.raises(FileNotFoundError):  # it was deleted after the check
        next_batch.make_plan(
            any_storage, IDENTITY, 9, [replace(applied, name=file_name(9))], "stop"
        )


def test_older_plans_have_defaults_for_newer_fields(any_storage: Storage):
    file = {"name": file_name(1), "size": 3, "sha256": "x"}
    document = {"format": 1, "first": 1, "last": 1, "planned": "then", "files": [file]}
    any_storage.write_json(next_batch.plan_path(IDENTITY, 1), document)
    plan = next_batch.find_plan(any_storage, IDENTITY, 1)
    assert plan is not None
    assert plan.on_error == "stop"
    (found,) = plan.files
    assert (found.published, found.rows, found.rejected, found.skipped) == (None, {}, 0, None)


def test_a_file_older_than_the_last_applied_one_is_late(any_storage: Storage):
    names = [put(any_storage, number, number) for number in (1, 2, 3)]
    plan = plan_files(any_storage, IDENTITY, 1, names)
    document = plan.document()
    times = ["2026-01-01T00:00:00+00:00", "2026-01-03T00:00:00+00:00", "2026-01-02T00:00:00+00:00"]
    for file, moment in zip(document["files"], times, strict=True):
        file["published"] = moment
    any_storage.write_json(next_batch.plan_path(IDENTITY, 1), document)
    last = datetime.fromisoformat(times[2])
    before = Entry("new.csv", 1, last - timedelta(seconds=1))
    error = next_batch.late_file_error(any_storage, IDENTITY, 3, before)
    assert isinstance(error, SequenceError)
    assert error.file == "new.csv"
    assert times[2] in str(error)
    for moment in (last, last + timedelta(seconds=1)):
        assert (
            next_batch.late_file_error(any_storage, IDENTITY, 3, Entry("new.csv", 1, moment))
            is None
        )
    assert (
        next_batch.late_file_error(any_storage, IDENTITY, 0, before) is None
    )  # nothing is applied yet
    document["files"][2]["published"] = None  # it never arrived
    any_storage.write_json(next_batch.plan_path(IDENTITY, 1), document)
    assert next_batch.late_file_error(any_storage, IDENTITY, 3, before) is None


def test_a_planned_file_is_identified_by_name_size_and_hash(any_storage: Storage):
    plan = plan_files(any_storage, IDENTITY, 1, [put(any_storage, 1, 1)])
    (entry,) = (e for e in any_storage.list(FOLDER).files if not e.name.startswith("_"))
    assert next_batch.is_as_planned(any_storage, IDENTITY, plan, entry) is True
    assert next_batch.is_as_planned(any_storage, IDENTITY, None, entry) is False
    assert (
        next_batch.is_as_planned(any_storage, IDENTITY, plan, replace(entry, name="other")) is False
    )
    assert (
        next_batch.is_as_planned(any_storage, IDENTITY, plan, replace(entry, size=entry.size + 1))
        is False
    )
    data = any_storage.read(f"{FOLDER}/{entry.name}")
    any_storage.write(f"{FOLDER}/{entry.name}", bytes(reversed(data)))
    assert next_batch.is_as_planned(any_storage, IDENTITY, plan, entry) is False


def test_staged_files_have_a_folder_per_incarnation():
    assert next_batch.staging(IDENTITY).endswith("/staged/one life")
