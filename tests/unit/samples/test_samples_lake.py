"""A sample's lake is opened, cleared and sealed; every other lake is refused and stays as is."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from helpers.killing import files, run_until
from mirrorlake import Lake
from mirrorlake.errors import SampleError, UsageError
from mirrorlake.paths import home, lake_path
from mirrorlake.samples.contents import look_into, walk
from mirrorlake.samples.lake import begin, open_sample, seal_sample
from mirrorlake.samples.marker import JOURNAL, MARKER, read_marker
from mirrorlake.spark.stamp import end_marks, mark_commits, mark_of, marked
from mirrorlake.storage import Storage

ZONE = "Files/LandingZone"
MAKING = """
import sys
from mirrorlake.samples.lake import open_sample, seal_sample
lake = open_sample(sys.argv[1], fresh=True)
for number in range(6):
    lake.publisher(f"t{number % 2}", keys=["id"]).upsert([{"id": number, "n": 1}])
seal_sample(lake)
"""


def state(root: Path) -> dict[str, str]:
    """Everything in a folder: each file's content, each link's target, each folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "a folder"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def refused(root: Path, *, match: str = "holds") -> None:
    """Every way to open it is refused, and every byte is as before."""
    before = state(root)
    for fresh in (True, False):
        with pytest.raises(SampleError, match=match) as error:
            open_sample(str(root), fresh=fresh)
        assert "root" in error.value.hint
    assert state(root) == before


def publish(root: Path, table: str = "t", number: int = 1) -> None:
    """What an application does; it knows nothing of samples."""
    Lake(root).publisher(table, keys=["id"]).upsert([{"id": number}])


@pytest.fixture(autouse=True)
def no_marks_left() -> None:
    end_marks()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def sample(root: Path) -> Path:
    """A sealed sample of one table."""
    lake = open_sample(str(root), fresh=True)
    lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
    seal_sample(lake)
    return root


class TestOpening:
    def test_absent_and_empty_roots_are_fine(self, root: Path, tmp_path: Path) -> None:
        assert open_sample(str(root)).storage.root == str(root)
        (tmp_path / "empty" / "Files").mkdir(parents=True)
        assert open_sample(str(tmp_path / "empty"), fresh=True).tables() == []

    def test_a_relative_root_starts_from_home(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
        assert open_sample("lakes/a").storage.root == lake_path("lakes/a") == f"{home()}/lakes/a"

    def test_the_marker_is_there_before_anything_else(self, root: Path) -> None:
        lake = open_sample(str(root))
        assert list(walk(lake.storage)) == [MARKER]
        assert json.loads((root / MARKER).read_text())["state"] == "making"

    def test_a_sealed_sample_is_cleared(self, sample: Path) -> None:
        open_sample(str(sample), fresh=True)
        assert [str(path.relative_to(sample)) for path in files_of(sample)] == [MARKER]
        assert not (sample / ZONE / "t").exists()

    def test_without_fresh_it_goes_on(self, sample: Path) -> None:
        for number in (2, 3):
            lake = open_sample(str(sample))
            assert lake.publisher("t").upsert([{"id": number}]).file == f"{number:020}.parquet"
            seal_sample(lake)
        open_sample(str(sample), fresh=True)
        assert not (sample / ZONE / "t").exists()

    def test_sealing_lists_what_was_made(self, sample: Path) -> None:
        marker = read_marker(Storage(sample))
        assert marker is not None
        assert marker.state == "sealed"
        assert sorted(marker.files) == [
            f"{ZONE}/_partnerEvents.json",
            f"{ZONE}/t/{1:020}.parquet",
            f"{ZONE}/t/_metadata.json",
        ]
        assert not (sample / JOURNAL).exists()

    def test_a_file_may_be_written_by_its_full_path(self, root: Path) -> None:
        lake = open_sample(str(root))
        with lake.storage.open_writer(f"{lake.landing_zone}/t/a.parquet") as file:
            file.write(b"rows")
        seal_sample(lake)
        marker = read_marker(Storage(root))
        assert marker is not None
        assert list(marker.files) == [f"{ZONE}/t/a.parquet"]

    def test_only_a_sample_can_be_sealed(self, lake: Lake) -> None:
        with pytest.raises(UsageError, match="not opened as a sample"):
            seal_sample(lake)

    def test_an_object_store_keeps_the_same_rules(self) -> None:
        lake = Lake("memory:///")
        storage = lake.storage
        begin(lake, fresh=True)
        lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
        assert storage.exists(JOURNAL)
        seal_sample(lake)
        begin(lake)
        lake.publisher("u", keys=["id"]).upsert([{"id": 1}])
        begin(lake, fresh=True)  # the making before has not ended
        assert list(walk(storage)) == [MARKER]
        seal_sample(lake)
        storage.write("Files/LandingZone/theirs/a.parquet", b"rows")
        before = walk(storage)
        with pytest.raises(SampleError, match="theirs"):
            begin(lake, fresh=True)
        assert walk(storage) == before


def files_of(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if not path.is_dir()]


class TestOwnLakes:
    def test_published_files(self, root: Path) -> None:
        publish(root)
        refused(root, match="is not a sample: it holds Files/LandingZone/_partnerEvents.json")

    def test_tables(self, root: Path) -> None:
        write_deltalake(root / "Tables" / "t", rows_of({"id": [1]}))
        refused(root, match="is not a sample")

    @pytest.mark.parametrize("name", ["thesis.txt", "Files/a.csv", ".hidden", "Files/Monitoring/x"])
    def test_any_file(self, root: Path, name: str) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("mine")
        refused(root, match="is not a sample")

    def test_links(self, sample: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(sample)
        with pytest.raises(SampleError, match="is a symbolic link"):
            open_sample(str(tmp_path / "link"), fresh=True)

    def test_a_marker_behind_a_link_is_not_the_lakes(self, sample: Path, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "Files").symlink_to(sample / "Files")
        before = state(sample)
        refused(tmp_path / "own", match="is not a sample")
        assert state(sample) == before

    @pytest.mark.parametrize(
        "text", ["", "[]", '{"format": 2, "state": "sealed"}', '{"format": 1, "state": "x"}', "{}"]
    )
    def test_a_marker_that_is_none(self, sample: Path, text: str) -> None:
        (sample / MARKER).write_text(text)
        refused(sample, match="can't be read")

    def test_a_copied_marker_accounts_for_nothing_else(self, sample: Path, root: Path) -> None:
        own = root.parent / "own"
        publish(own)
        (own / MARKER).parent.mkdir()
        shutil.copy(sample / MARKER, own / MARKER)
        refused(own, match="no making of it made")

    @pytest.mark.parametrize(
        "how", ["../outside.txt", "/{}/outside.txt", "Files/../../outside.txt"]
    )
    def test_no_name_in_a_marker_leaves_the_lake(
        self, sample: Path, tmp_path: Path, how: str
    ) -> None:
        outside = tmp_path / "outside.txt"
        outside.write_text("mine")
        document = json.loads((sample / MARKER).read_text())
        facts = [4, hashlib.sha256(b"mine").hexdigest()]
        document["files"][how.format(str(tmp_path).strip("/"))] = facts
        (sample / MARKER).write_text(json.dumps(document))
        open_sample(str(sample), fresh=True)
        assert outside.read_text() == "mine"
        assert not (sample / ZONE / "t").exists()


def overwrite(sample: Path) -> None:
    file = sample / ZONE / "t" / f"{1:020}.parquet"
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)


def link_file(sample: Path) -> None:
    (sample / ZONE / "t" / "link.parquet").symlink_to(sample / ZONE / "t" / f"{1:020}.parquet")


def link_folder(sample: Path) -> None:
    (sample / "Tables").symlink_to(sample.parent)


def replaced_by_link(sample: Path) -> None:
    file = sample / ZONE / "t" / f"{1:020}.parquet"
    file.rename(sample.parent / "elsewhere.parquet")
    file.symlink_to(sample.parent / "elsewhere.parquet")


def commit(sample: Path) -> None:
    write_deltalake(sample / "Tables" / "t", rows_of({"id": [1]}))


def put(name: str) -> Callable[[Path], None]:
    def do(sample: Path) -> None:
        (sample / name).parent.mkdir(parents=True, exist_ok=True)
        (sample / name).write_text("theirs")

    return do


def copied(sample: Path) -> None:
    shutil.copytree(sample / ZONE / "t", sample / ZONE / "theirs")


THEIRS = {
    "into the same table": lambda sample: publish(sample, "t", 9),
    "into a table of their own": lambda sample: publish(sample, "theirs"),
    "over a file of the sample": overwrite,
    "a copy of the sample's files": copied,
    "a link": link_file,
    "a link to a folder": link_folder,
    "a link in a file's place": replaced_by_link,
    "a Delta table": commit,
    "a frame": put("Files/_mirrorlake/frames/retail.json"),
    "a policy": put("Files/_mirrorlake/partitioning/t/policy.json"),
    "a pause": lambda sample: Lake(sample).pause("t"),
    "something among the status files": put("Files/Monitoring/notes.txt"),
    "data files without a log": put(
        "Tables/theirs/part-00000-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f-c000.snappy.parquet"
    ),
    "a file beside Files and Tables": put("README.md"),
}


class TestOthersInASample:
    @pytest.mark.parametrize("theirs", THEIRS.values(), ids=list(THEIRS))
    @pytest.mark.parametrize("sealed", [True, False])
    def test_it_is_refused(
        self, sample: Path, theirs: Callable[[Path], None], sealed: bool
    ) -> None:
        if not sealed:
            lake = open_sample(str(sample))
            lake.publisher("t").upsert([{"id": 2}])
        theirs(sample)
        refused(sample, match="holds what no making of it made")

    def test_sealing_takes_nothing_of_others_in(
        self, sample: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lake = open_sample(str(sample))
        publish(sample, "theirs")
        lake.publisher("t").upsert([{"id": 2}])
        seal_sample(lake)
        assert "did not make: Files/LandingZone/theirs" in capsys.readouterr().err
        refused(sample, match="theirs")

    def test_others_files_stay_theirs_when_they_are_moved(self, sample: Path) -> None:
        lake = open_sample(str(sample))
        publish(sample, "t", 9)
        theirs = f"{ZONE}/t/{2:020}.parquet"
        assert lake.storage.rename(theirs, f"{ZONE}/t/_ProcessedFiles/{2:020}.parquet")
        assert lake.storage.move_folder(f"{ZONE}/t", f"{ZONE}/u")
        refused(sample, match=f"made: Files/LandingZone/u/_ProcessedFiles/{2:020}.parquet")

    def test_what_comes_after_the_seal_is_not_the_makings(self, root: Path) -> None:
        lake = open_sample(str(root))
        seal_sample(lake)
        lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
        refused(root)

    def test_an_empty_folder_of_others_stays(self, sample: Path) -> None:
        (sample / ZONE / "theirs").mkdir()
        open_sample(str(sample), fresh=True)
        assert (sample / ZONE / "theirs").is_dir()

    def test_what_is_derived_does_no_harm(self, sample: Path) -> None:
        for name in ("replicator.json", "tables.json"):
            put(f"Files/Monitoring/{name}")(sample)
        for name in ("state.json", "mirror.lock", "staged/a/b.parquet", "copies/a/b"):
            put(f"Files/_mirrorlake/{name}")(sample)
        assert [line.name for line in Lake(sample).status().tables] == ["t"]
        open_sample(str(sample), fresh=True)
        assert [str(path.relative_to(sample)) for path in files_of(sample)] == [MARKER]
        assert not (sample / "Files" / "Monitoring").exists()

    @pytest.mark.parametrize("folder", ["_ProcessedFiles", "_FilesReadyToDelete"])
    def test_a_mirror_may_move_and_delete_applied_files(self, sample: Path, folder: str) -> None:
        zone = f"{ZONE}/t"
        name = f"{1:020}.parquet"
        storage = Storage(sample)
        assert storage.rename(f"{zone}/{name}", f"{zone}/{folder}/{name}")
        lake = open_sample(str(sample))
        lake.storage.delete(f"{zone}/{folder}/{name}")
        open_sample(str(sample), fresh=True)


class TestKilledMakings:
    @pytest.mark.parametrize("number", [1, 2, 4, 7, 9, 12])
    def test_a_killed_making_runs_again(self, root: Path, number: int) -> None:
        run_until(lambda made: len(made) >= number, root, MAKING)
        publish_into = root.parent / "copy"
        shutil.copytree(root, publish_into)
        open_sample(str(root), fresh=True)
        assert [str(path.relative_to(root)) for path in files_of(root)] == [MARKER]
        publish(publish_into, "t0", 99)
        refused(publish_into)

    @pytest.mark.parametrize("left", [60, 30, 5])
    def test_a_killed_clearing_goes_on(self, root: Path, left: int) -> None:
        lake = open_sample(str(root))
        for number in range(100):
            lake.storage.write(f"{ZONE}/t/{number}.csv", b"%d" % number)
        seal_sample(lake)
        run_until(lambda _: len(files(root)) <= left, root, MAKING)
        open_sample(str(root), fresh=True)
        assert [str(path.relative_to(root)) for path in files_of(root)] == [MARKER]

    def test_a_file_that_was_cut_off(self, root: Path) -> None:
        lake = open_sample(str(root))
        writer = lake.storage.open_writer(f"{ZONE}/t/a.parquet")
        writer.write(b"half")
        lake.storage.write(f"{ZONE}/t/_metadata.json", b"{}")
        put(f"{ZONE}/t/_metadata.json#7")(root)
        put(f"{MARKER}#1")(root)
        (root / ZONE / "t" / ("_" + "ab" * 16)).write_bytes(b"{}")
        open_sample(str(root), fresh=True)
        writer.close()
        assert not (root / ZONE / "t").exists()

    def test_somebody_replaces_a_whole_file_of_a_killed_making(self, root: Path) -> None:
        lake = open_sample(str(root))
        with lake.storage.open_writer(f"{ZONE}/t/{1:020}.parquet") as file:
            file.write(b"ours")
        put(f"{ZONE}/t/{1:020}.parquet")(root)
        refused(root)


class TestDeltaTablesOfAKilledMaking:
    """What Spark writes is not in the journal; these are the files that it leaves."""

    part = "part-00000-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f-c000.snappy.parquet"

    @pytest.fixture
    def table(self, root: Path) -> Path:
        lake = open_sample(str(root), tables=["logless"])
        table = root / "Tables" / "t"
        self.commit(table, 0, marked("{}"))
        names = [self.part, f".{self.part}.crc", f"month=1/{self.part}"]
        logs = [
            f"{0:020}.crc",
            f".{1:020}.json.0a.tmp",
            f"..{1:020}.json.0a.tmp.crc",
            f"{9:020}.checkpoint.parquet",
        ]
        for name in [*names, *[f"_delta_log/{name}" for name in [*logs, "_last_checkpoint"]]]:
            put(f"Tables/t/{name}")(root)
        assert lake.storage.root == str(root)
        return table

    def commit(self, table: Path, version: int, note: str | None) -> None:
        info = {"commitInfo": {"operation": "WRITE", "userMetadata": note}}
        (table / "_delta_log").mkdir(parents=True, exist_ok=True)
        text = json.dumps(info, separators=(",", ":")) + '\n{"add":{}}\n'
        (table / "_delta_log" / f"{version:020}.json").write_text(text)

    def test_its_own_commits_and_their_files_go(self, root: Path, table: Path) -> None:
        put(f"Tables/logless/{self.part}")(root)
        found = look_into(Storage(root), read_marker(Storage(root)))
        assert found.foreign == ()
        open_sample(str(root), fresh=True)
        assert not table.exists()
        assert not (root / "Tables" / "logless").exists()

    @pytest.mark.parametrize("note", [None, "{}", "[]", "text", '{"sample": 7}', '{"sample": "x"}'])
    def test_somebody_elses_commit(self, root: Path, table: Path, note: str | None) -> None:
        self.commit(table, 1, note)
        refused(root, match=f"made: Tables/t/_delta_log/{1:020}.json")

    @pytest.mark.parametrize("name", ["notes.txt", "mine.parquet", "_delta_log/notes.json"])
    def test_somebody_elses_file(self, root: Path, table: Path, name: str) -> None:
        put(f"Tables/t/{name}")(root)
        refused(root, match=name)

    def test_a_table_inside_files_is_not_sparks(self, root: Path, table: Path) -> None:
        shutil.copytree(table, root / "Files" / "t")
        refused(root, match="Files/t/")

    def test_after_the_seal_every_commit_is_somebody_elses(self, root: Path, table: Path) -> None:
        lake = open_sample(str(root))
        mark = marked("{}")
        seal_sample(lake)
        self.commit(table, 1, mark)
        refused(root)


def test_a_mark_is_one_key_more_of_a_note() -> None:
    assert marked('{"a": 1}') == '{"a": 1}'
    mark_commits("id")
    assert json.loads(marked('{"a": 1}')) == {"a": 1, "sample": "id"}
    assert mark_of(marked("{}")) == "id"
    assert marked("") == ""
    end_marks()
    assert mark_of(marked("{}")) is None
