"""Stored documents: a newer format raises an error and is not changed; an older one is read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from helpers.lakes import lake_of
from helpers.places import IDENTITY
from helpers.plans import plan_files
from mirrorlake import Publisher
from mirrorlake.errors import FormatError
from mirrorlake.landing import manifest, metadata
from mirrorlake.landing.metadata import Identity, read_identity, write_identity
from mirrorlake.mirror import next_batch, options, state, trash
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.lint import lint_zone
from mirrorlake.mirror.state import TableState, load_states, save_states
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept

T = TableName(None, "t")
LIFE = Identity(T, "one life", TableName(None, "before"))
STATES = "Files/_mirrorlake/state.json"
PLAN = next_batch.plan_path(LIFE, 1)


def make_plan(storage: Storage) -> str:
    storage.write(f"{T.folder}/{file_name(1)}", b"x")
    plan_files(storage, LIFE, 1, [file_name(1)])
    return PLAN


def make_identity(storage: Storage) -> str:
    write_identity(storage, LIFE, make_folder=True)
    return f"{T.folder}/{IDENTITY}"


def make_manifest(storage: Storage) -> str:
    manifest.write_manifest(storage, T, manifest.Manifest(3, "id", ("id",), ()))
    return f"{T.folder}/_manifest.json"


def make_settings(storage: Storage) -> str:
    options.pause(storage, T)
    options.skip(storage, T, 7)
    return "Files/_mirrorlake/control/t.json"


def make_trash(storage: Storage) -> str:
    storage.write(f"{T.table_path}/_delta_log/{0:020d}.json", b"{}")
    trash.drop_table(storage, T, LIFE)
    if storage.local is None:
        return "Files/_mirrorlake/dropped_in_place/t.json"
    (stamp,) = storage.list("Files/_mirrorlake/dropped/t").folders
    return f"Files/_mirrorlake/dropped/t/{stamp}/identity.json"


def make_state(storage: Storage) -> str:
    save_states(storage, {T.folder: TableState(None, "t", last_file=3)})
    return STATES


CASES: list[tuple[Callable[[Storage], str], Callable[[Storage], object], int]] = [
    (make_plan, lambda storage: next_batch.find_plan(storage, LIFE, 1), next_batch.PLAN_FORMAT),
    (make_identity, lambda storage: read_identity(storage, T), metadata.FORMAT),
    (make_manifest, lambda storage: manifest.read_manifest(storage, T), manifest.FORMAT),
    (make_settings, lambda storage: options.read_settings(storage, T), options.SETTINGS_FORMAT),
    (make_settings, lambda storage: options.all_settings(storage)(T), options.SETTINGS_FORMAT),
    (make_trash, trash.dropped_tables, trash.FORMAT),
    (make_state, load_states, state.FORMAT),
]


@pytest.mark.parametrize(("make", "read", "known"), CASES)
def test_a_newer_document_is_refused_in_words(any_storage: Storage, make, read, known: int):
    path = make(any_storage)
    document = any_storage.read_json(path)
    assert document is not None
    plain = {
        make_plan: next_batch.PLAIN_PLAN_FORMAT,
        make_settings: options.PLAIN_SETTINGS_FORMAT,
    }
    assert document["format"] == plain.get(make, known)
    any_storage.write_json(path, document | {"format": known + 1, "more": [1]})
    before = any_storage.read(path)
    with pytest.raises(FormatError) as caught:
        read(any_storage)
    assert f"{path} has format {known + 1}" in caught.value.message
    assert f"reads at most {known}" in caught.value.message
    assert caught.value.hint.startswith("upgrade mirrorlake")
    assert any_storage.read(path) == before


@pytest.mark.parametrize(
    ("make", "read", "known"), [one for one in CASES if one[2] == 1 or one[0] is make_settings]
)
def test_a_document_without_a_format_is_of_the_first(any_storage: Storage, make, read, known: int):
    path = make(any_storage)
    whole = read(any_storage)
    document = any_storage.read_json(path) or {}
    del document["format"]
    any_storage.write_json(path, document)
    assert read(any_storage) == whole


def test_a_plan_of_the_first_format_lacks_only_what_came_later(any_storage: Storage):
    path = make_plan(any_storage)
    whole = next_batch.find_plan(any_storage, LIFE, 1)
    document = any_storage.read_json(path) or {}
    del document["on_error"]
    files = [
        {name: file[name] for name in ("name", "size", "sha256")} for file in document["files"]
    ]
    any_storage.write_json(path, document | {"format": 1, "files": files})
    found = next_batch.find_plan(any_storage, LIFE, 1)
    assert whole is not None
    assert found is not None
    assert (found.numbers, found.on_error) == (whole.numbers, "stop")
    assert [file.sha256 for file in found.files] == [file.sha256 for file in whole.files]


@pytest.mark.parametrize("text", ["[]", "7", '{"format": "1"}', "{"])
def test_an_invalid_document_raises_an_error(any_storage: Storage, text: str):
    any_storage.write("note.json", text.encode())
    with pytest.raises((ValueError, TypeError), match=r"."):
        read_kept(any_storage, "note.json", 1)
    assert read_kept(any_storage, "absent.json", 1) is None


def no_spark():
    raise AssertionError("Spark was asked for")


def test_newer_states_stop_the_mirror_but_not_the_status_and_can_be_made_again(storage: Storage):
    storage.write(f"{T.folder}/{file_name(1)}", b"x")
    newer = {"format": state.FORMAT + 1, "tables": {}, "more": 1}
    storage.write_json(STATES, newer)
    with pytest.raises(FormatError, match="rebuild=True"):
        Engine(storage, no_spark).run_cycle()
    (line,) = lake_of(storage).status().tables
    assert (line.name, line.backlog_files) == ("t", 1)
    assert json.loads(storage.read(STATES)) == newer
    lake_of(storage).status(rebuild=True)
    assert load_states(storage) == {}


def test_the_linter_names_a_newer_identity(storage: Storage):
    path = make_identity(storage)
    storage.write_json(path, (storage.read_json(path) or {}) | {"format": metadata.FORMAT + 1})
    found = [f for f in lint_zone(storage).findings if f.rule == "folder-identity"]
    assert [f.table for f in found] == ["t"]
    assert "format 2" in found[0].message


def test_newer_settings_of_one_table_stop_no_other(storage: Storage):
    for table in (T, TableName(None, "u")):
        Publisher(storage, table, keys=("id",)).upsert([{"id": 1}])
    options.skip(storage, T, 7, apply=True)
    path = "Files/_mirrorlake/control/t.json"
    storage.write_json(path, storage.read_json(path) | {"format": options.SETTINGS_FORMAT + 1})
    one, other = lake_of(storage).status().tables
    assert f"{path} has format" in one.error["message"]
    assert (other.name, other.error, other.backlog_files) == ("u", None, 1)
