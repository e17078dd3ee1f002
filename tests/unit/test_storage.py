from __future__ import annotations

import errno
import json
import os
import pickle
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.exceptions import BaseError, NotSupportedError

from helpers.odd_names import ODD_BUT_FINE
from mirrorlake.storage import files, object_stores
from mirrorlake.storage.files import Entry, Listing, Storage

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_list_has_folders_and_files_in_order(any_storage: Storage):
    for path in ("a/2", "a/1", "a/z/deep", "a/b/deep/er", "other"):
        any_storage.write(path, path.encode())
    listing = any_storage.list("a")
    assert listing.folders == ("b", "z")
    assert [(e.name, e.size) for e in listing.files] == [("1", 3), ("2", 3)]
    age = datetime.now(timezone.utc) - listing.files[0].modified
    assert timedelta(seconds=-2) < age < timedelta(minutes=1)
    assert listing.file("2") == listing.files[1]
    assert listing.file("3") is None
    assert any_storage.list("").folders == ("a",)


def test_list_of_nothing_is_empty(any_storage: Storage):
    assert any_storage.list("nowhere") == any_storage.list("no/where")
    assert any_storage.list("nowhere").files == ()
    assert any_storage.list("nowhere").folders == ()


def test_list_of_a_file_is_empty(any_storage: Storage):
    any_storage.write("f", b"")
    assert any_storage.list("f").files == ()


def test_list_survives_names_that_the_object_store_would_refuse(storage: Storage):
    folder = Path(storage.root, "zone")
    folder.mkdir()
    for name in ("line\nfeed", "\x1b[31m", "a\\b", "f#1"):
        (folder / name).mkdir()
        (folder / f"{name}.txt").touch()
    os.mkdir(os.fsencode(folder) + b"/\xff")
    listing = storage.list("zone")
    assert set(listing.folders) == {"line\nfeed", "\x1b[31m", "a\\b", "f#1", "\udcff"}
    assert len(listing.files) == 4


def test_list_passes_over_a_link_to_nowhere(storage: Storage):
    Path(storage.root, "link").symlink_to("nowhere")
    assert storage.list("").files == ()


@pytest.mark.parametrize("name", ODD_BUT_FINE)
def test_odd_names_are_taken_literally(any_storage: Storage, name: str):
    any_storage.write(f"zone/{name}/f", b"1")
    if any_storage.local:
        assert [p.name for p in (any_storage.local / "zone").iterdir()] == [name]
    assert any_storage.list("zone").folders == (name,)
    assert any_storage.rename(f"zone/{name}/f", f"zone/{name}/g")
    assert [e.name for e in any_storage.list(f"zone/{name}").files] == ["g"]
    assert any_storage.read(f"zone/{name}/g") == b"1"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/./x"])
def test_no_path_leaves_the_root(any_storage: Storage, path: str):
    with pytest.raises(ValueError, match="illegal character sequence"):
        any_storage.write(path, b"")
    with pytest.raises(ValueError, match="illegal character sequence"):
        any_storage.read(path)


def test_create_keeps_what_is_there(any_storage: Storage):
    assert any_storage.create("a/f", b"first")
    assert not any_storage.create("a/f", b"second")
    assert any_storage.read("a/f") == b"first"
    assert [e.name for e in any_storage.list("a").files] == ["f"]


def test_of_many_creators_one_wins(any_storage: Storage):
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda i: any_storage.create("f", b"%d" % i), range(64)))
    assert sum(results) == 1
    assert any_storage.read("f") == b"%d" % results.index(True)


def test_write_replaces(any_storage: Storage):
    any_storage.write("f", b"longer than the next")
    any_storage.write("f", b"next")
    assert any_storage.read("f") == b"next"


def test_rename_never_overwrites(any_storage: Storage):
    any_storage.write("a", b"a")
    any_storage.write("deep/er/b", b"b")
    assert not any_storage.rename("a", "deep/er/b")
    assert any_storage.read("a") == b"a"
    assert any_storage.read("deep/er/b") == b"b"
    assert any_storage.rename("a", "new/folder/c")
    assert any_storage.read("new/folder/c") == b"a"
    assert not any_storage.exists("a")


def test_of_many_renames_to_one_name_one_wins(any_storage: Storage):
    for i in range(64):
        any_storage.write(f"from/{i}", b"%d" % i)
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda i: any_storage.rename(f"from/{i}", "to/f"), range(64)))
    assert sum(results) == 1
    winner = results.index(True)
    assert any_storage.read("to/f") == b"%d" % winner
    left = {entry.name for entry in any_storage.list("from").files}
    assert left == {str(i) for i in range(64)} - {str(winner)}


def test_rename_of_nothing(any_storage: Storage):
    with pytest.raises(FileNotFoundError):
        any_storage.rename("nothing", "b")
    any_storage.write("b", b"b")
    with pytest.raises(FileNotFoundError):
        any_storage.rename("nothing", "c")
    assert not any_storage.exists("c")


def test_delete_is_idempotent(any_storage: Storage):
    any_storage.write("f", b"")
    any_storage.delete("f")
    any_storage.delete("f")
    any_storage.delete("no/such/folder/f")
    assert not any_storage.exists("f")


def test_exists_is_about_files(any_storage: Storage):
    any_storage.write("a/f", b"")
    assert any_storage.exists("a/f")
    assert not any_storage.exists("a")
    assert not any_storage.exists("a/g")


def test_read_of_nothing(any_storage: Storage):
    assert any_storage.read_json("nothing") is None
    with pytest.raises(FileNotFoundError):
        any_storage.read("nothing")
    with pytest.raises(FileNotFoundError):
        any_storage.open("nothing")


def test_a_broken_document_is_not_a_missing_one(any_storage: Storage):
    any_storage.write("f", b"{")
    with pytest.raises(ValueError, match="Expecting"):
        any_storage.read_json("f")


def test_open_seeks_and_reads_in_pieces(any_storage: Storage):
    data = bytes(range(256)) * 1000
    any_storage.write("f", data)
    with any_storage.open("f") as source:
        assert source.seek(0, 2) == len(data)
        assert source.tell() == len(data)
        assert source.read(1) == b""
        source.seek(-3, 2)
        assert source.read() == data[-3:]
        source.seek(100_000)
        assert source.read(5) == data[100_000:100_005]
    assert source.closed


def test_parquet_is_written_and_read_as_a_stream(any_storage: Storage):
    expected = pa.table({"id": list(range(10_000)), "text": ["x" * 50] * 10_000})
    with (
        any_storage.open_writer("new/folder/f.parquet") as sink,
        pq.ParquetWriter(sink, expected.schema) as writer,
    ):
        for batch in expected.to_batches(1000):
            writer.write_batch(batch)
    with any_storage.open("new/folder/f.parquet") as source, pq.ParquetFile(source) as parquet:
        assert parquet.num_row_groups == 10
        assert parquet.read().equals(expected)


def test_the_root_may_be_a_file_uri(tmp_path: Path):
    root = tmp_path / "two words"
    for uri in (root.as_uri(), f"{root.as_uri()}/".replace("file", "FILE", 1)):
        storage = Storage(uri)
        assert storage.local == root
        assert storage.root == str(root)
    storage.write("f", b"1")
    assert (root / "f").read_bytes() == b"1"


def test_a_file_uri_of_windows_has_a_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.14 deprecates the module
        windows = import_module("nturl2path")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "url2pathname", windows.url2pathname)
    assert Storage("file:///C:/two%20words").local == tmp_path / r"C:\two words"


def test_a_relative_root_stays_when_the_working_folder_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = Storage("lake")
    monkeypatch.chdir("/")
    storage.write("f", b"1")
    assert (tmp_path / "lake" / "f").exists()
    assert storage.path("a/b") == f"{tmp_path}/lake/a/b"
    assert storage.path("") == f"{tmp_path}/lake"


def test_s3_can_rename_without_overwriting(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_REGION", "x")
    storage = Storage("s3://bucket/lake/")
    assert storage.path("a") == "s3://bucket/lake/a"
    assert storage.local is None
    bare = obstore.store.from_url("s3://bucket/lake")
    with pytest.raises(NotSupportedError):
        obstore.rename(bare, "a", "b", overwrite=False)
    assert storage._store.config["copy_if_not_exists"] == "multipart"


@given(json_values)
def test_any_document_reads_back(document):
    data = files.to_json(document)
    data.decode()  # valid UTF-8, whatever is in it
    assert json.loads(data) == document


def fill(storage: Storage, folder: str) -> list[str]:
    paths = [f"{folder}/{name}" for name in ("_delta_log/0.json", "a b/part=1/f #1%", "z")]
    for path in paths:
        storage.write(path, path.encode())
    return paths


def test_files_below_are_all_files_with_their_paths(any_storage: Storage):
    paths = fill(any_storage, "t/x")
    any_storage.write("t/xy", b"beside it")
    assert any_storage.files_below("t/x") == tuple(sorted(paths))
    assert any_storage.files_below("nowhere") == ()


@pytest.mark.parametrize("target", ["moved", "deep/er/moved"])
def test_a_folder_moves_whole(any_storage: Storage, target: str):
    paths = fill(any_storage, "t/x")
    any_storage.write("t/xy", b"beside it")
    assert any_storage.move_folder("t/x", target)
    assert any_storage.files_below("t/x") == ()
    assert any_storage.list("t").folders == ()
    moved = {path: any_storage.read(path) for path in any_storage.files_below(target)}
    assert moved == {target + path[3:]: path.encode() for path in paths}
    assert any_storage.read("t/xy") == b"beside it"


def test_a_folder_never_moves_over_another(any_storage: Storage):
    fill(any_storage, "a")
    any_storage.write("b/f", b"b")
    before = any_storage.files_below("")
    assert not any_storage.move_folder("a", "b")
    assert not any_storage.move_folder("nowhere", "c")
    assert any_storage.files_below("") == before


def test_a_folder_moves_on_after_it_was_cut_short_or_not_at_all(any_storage: Storage):
    """A table is never visible twice or in part: its log is copied last and deleted first."""
    fill(any_storage, "a")
    seen: list[tuple[bool, bool]] = []
    delete = Storage.delete

    def watch(self: Storage, path: str) -> None:
        logs = (self.exists("a/_delta_log/0.json"), self.exists("b/_delta_log/0.json"))
        seen.append(logs)
        delete(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "delete", watch)
        assert any_storage.move_folder("a", "b")
    if any_storage.local is None:
        assert seen == [(True, True), (False, True), (False, True)]
    assert len(any_storage.files_below("b")) == 3


def test_a_folder_is_deleted_with_all_in_it(any_storage: Storage):
    fill(any_storage, "t/x")
    any_storage.write("t/xy", b"beside it")
    any_storage.delete_folder("t/x")
    any_storage.delete_folder("t/x")
    any_storage.delete_folder("nowhere")
    assert any_storage.files_below("") == ("t/xy",)


def test_touch_makes_now_the_moment_and_no_file(any_storage: Storage):
    any_storage.write("f", b"content")
    if any_storage.local is not None:
        os.utime(any_storage.local / "f", (0, 0))
    any_storage.touch("f")
    any_storage.touch("nothing")
    (entry,) = any_storage.list("").files
    assert datetime.now(timezone.utc) - entry.modified < timedelta(minutes=1)
    assert any_storage.read("f") == b"content"


def test_create_without_its_folder_does_nothing_where_there_are_folders(any_storage: Storage):
    made = any_storage.create("gone/f", b"1", make_folder=False)
    assert made == any_storage.exists("gone/f") == (any_storage.local is None)
    if any_storage.local is not None:
        assert not (any_storage.local / "gone").exists()
    any_storage.write("here/other", b"")
    assert any_storage.create("here/f", b"first", make_folder=False)
    assert not any_storage.create("here/f", b"second", make_folder=False)
    assert any_storage.read("here/f") == b"first"
    assert [entry.name for entry in any_storage.list("here").files] == ["f", "other"]


def test_a_full_disk_creates_no_incomplete_file(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    def fill(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    assert storage.local is not None
    (storage.local / "here").mkdir()
    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(OSError, match="No space left"):
        storage.create("here/f", b"whole", make_folder=False)
    assert list((storage.local / "here").iterdir()) == []


def test_of_many_creators_without_a_folder_one_wins(any_storage: Storage):
    any_storage.write("here/other", b"")

    def create(number: int) -> bool:
        return any_storage.create("here/f", b"%d" % number, make_folder=False)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(create, range(64)))
    assert sum(results) == 1
    assert any_storage.read("here/f") == b"%d" % results.index(True)
    assert [entry.name for entry in any_storage.list("here").files] == ["f", "other"]


def test_a_root_is_the_same_place_when_it_is_opened_again(tmp_path, monkeypatch):
    """Another process gets the root as text; a memory store must not become a folder."""
    monkeypatch.chdir(tmp_path)
    for uri in ("memory:///", "memory://"):
        root = Storage(uri).root
        assert root == "memory://"
        assert pickle.loads(pickle.dumps(Storage(uri))).local is None
        assert Storage(root).path("a/b") == "memory:///a/b"
    assert list(tmp_path.iterdir()) == []


SIZES = [
    0,
    1,
    object_stores.TAIL - 1,
    object_stores.TAIL,
    object_stores.TAIL + 1,
    3 * object_stores.TAIL + 17,
]


@pytest.fixture(params=[True, False])
def knows_ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the store can be asked for a file's last bytes; Azure can't."""
    get = obstore.get

    def refuse(store: Any, path: str, *, options: Any = None) -> Any:
        if options and "suffix" in options.get("range", {}):
            raise BaseError("no such ranges")
        return get(store, path, options=options)

    if not request.param:
        monkeypatch.setattr(obstore, "get", refuse)
    return bool(request.param)


@pytest.mark.usefixtures("knows_ends")
@pytest.mark.parametrize("size", SIZES)
def test_a_reader_has_every_range_of_a_file(any_storage: Storage, size: int):
    data = random.Random(size).randbytes(size)
    any_storage.write("f", data)
    with any_storage.open("f") as source:
        assert source.seek(0, os.SEEK_END) == size
        for start in {
            0,
            1,
            size // 2,
            max(0, size - object_stores.TAIL - 5),
            max(0, size - 3),
            size,
            size + 9,
        }:
            for length in (0, 1, 70_000, object_stores.TAIL + 3, size):
                source.seek(start)
                assert source.read(length) == data[start : start + length]
        source.seek(0)
        assert source.read() == data
    assert b"".join(any_storage.chunks("f")) == data


def test_a_reader_of_what_is_not_there(any_storage: Storage):
    with pytest.raises(FileNotFoundError):
        any_storage.open("f")
    with pytest.raises(FileNotFoundError):
        list(any_storage.chunks("f"))


def test_names_from_some_name_on(any_storage: Storage):
    for name in ("a", "b", "c", "d"):
        any_storage.write(f"f/{name}", b"")
    any_storage.write("f/c2/deep", b"")
    any_storage.write("fa", b"")
    assert any_storage.names_from("f", "b") == ("c", "d")
    assert any_storage.names_from("f", "") == ("a", "b", "c", "d")
    assert any_storage.names_from("f", "d") == any_storage.names_from("no", "") == ()


def test_files_are_deleted_together_and_copied_where_there_is_none(any_storage: Storage):
    for name in ("a", "b"):
        any_storage.write(f"f/{name}", name.encode())
    assert any_storage.copy("f/a", "g/a", is_small=True)
    assert not any_storage.copy("f/b", "g/a", is_small=True)
    assert any_storage.read("g/a") == b"a"
    with pytest.raises(FileNotFoundError):
        any_storage.copy("f/c", "g/c", is_small=True)
    any_storage.delete_files(["f/0", "f/a", "f/c", "f/b"])
    any_storage.delete_files([])
    assert any_storage.files_below("f") == ()


NAMES = st.sampled_from(["a", "b", "a-b", "_x", "z"])
KEYS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@given(
    keys=st.dictionaries(KEYS, st.integers(0, 2), max_size=60),
    page=st.integers(1, 9),
    worth=st.sampled_from([0, 1, 3]),
)
def test_one_listing_of_all_tells_of_many_folders(
    keys: dict[str, int], page: int, worth: int
) -> None:
    def entry(path: str) -> Entry:
        when = datetime(2026, 1, 1, tzinfo=timezone.utc)
        return Entry(path.rpartition("/")[2], keys[path], when, "tag")

    def slow(folder: str) -> Listing:
        below = [key.removeprefix(f"{folder}/") for key in keys if key.startswith(f"{folder}/")]
        inner = sorted({rest.partition("/")[0] for rest in below if "/" in rest})
        files = sorted(rest for rest in below if "/" not in rest)
        return Listing(tuple(inner), tuple(entry(f"{folder}/{name}") for name in files))

    folders = {key.rpartition("/")[0] for key in keys} - {""}
    wanted = {folder for folder in folders if "z" not in folder}
    ordered = sorted(keys)
    pages = [
        [(path, entry(path)) for path in ordered[start : start + page]]
        for start in range(0, len(ordered), page)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "AT_ONCE", worth)
        found = files.split_pages(pages, wanted)
    assert found == {folder: slow(folder) for folder in found}
    assert found.keys() <= wanted
    if worth == 0:  # it goes to the end
        empty = {key.rpartition("/")[0] for key, size in keys.items() if size == 0}
        assert found.keys() == wanted - empty
