"""A sample lake can be opened, cleared and sealed; any other lake is refused and unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyarrow import table as rows_of

from helpers.examples import under_long
from helpers.killing import files, run_until
from mirrorlake import Lake
from mirrorlake.errors import AlreadyRunningError, SampleError, UsageError
from mirrorlake.storage import paths
from mirrorlake.storage.files import Storage
from mirrorlake_lab import open_sample, seal_sample
from mirrorlake_runs.plan import only_run

MARKER = "Files/_mirrorlake/sample.json"

ZONE = "Files/LandingZone"
MAKING = """
import sys
from mirrorlake_lab import open_sample, seal_sample
lake = open_sample(sys.argv[1], fresh=True, tables=["t", "t0", "t1"])
for number in range(6):
    lake.publisher(f"t{number % 2}", keys=["id"]).upsert([{"id": number, "n": 1}])
seal_sample(lake)
"""


def state(root: Path) -> dict[str, str]:
    """Return each file's hash, each link's target and each folder below a folder."""
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


def refused(root: Path, *, match: str = "contains") -> None:
    """Assert that every way to open the lake is refused and changes no byte."""
    before = state(root)
    for fresh in (True, False):
        with pytest.raises(SampleError, match=match) as error:
            open_sample(str(root), fresh=fresh, tables=["t"])
        assert "root" in error.value.hint
    assert state(root) == before


def publish(root: Path, table: str = "t", number: int = 1) -> None:
    """Publish as an application does, which does not know samples."""
    Lake(root).publisher(table, keys=["id"]).upsert([{"id": number}])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def sample(root: Path) -> Path:
    """A sealed sample of one table."""
    lake = open_sample(str(root), fresh=True, tables=["t"])
    lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
    seal_sample(lake)
    return root


class TestOpening:
    def test_absent_and_empty_roots_are_fine(self, root: Path, tmp_path: Path) -> None:
        assert open_sample(str(root), tables=["t"]).storage.root == str(root)
        (tmp_path / "empty" / "Files").mkdir(parents=True)
        assert open_sample(str(tmp_path / "empty"), fresh=True, tables=["t"]).tables() == []

    def test_a_relative_root_starts_from_home(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
        assert (
            open_sample("lakes/a", tables=["t"]).storage.root
            == paths.lake_path("lakes/a")
            == f"{paths.home()}/lakes/a"
        )

    def test_the_marker_is_there_before_anything_else(self, root: Path) -> None:
        lake = open_sample(str(root), tables=["t"])
        assert list(lake.storage.files_below("")) == [MARKER]
        assert json.loads((root / MARKER).read_text())["state"] == "making"

    def test_a_sealed_sample_is_cleared(self, sample: Path) -> None:
        open_sample(str(sample), fresh=True, tables=["t"])
        assert [str(path.relative_to(sample)) for path in files_of(sample)] == [MARKER]
        assert not (sample / ZONE / "t").exists()

    def test_without_fresh_it_goes_on(self, sample: Path) -> None:
        for number in (2, 3):
            lake = open_sample(str(sample), tables=["t"])
            assert lake.publisher("t").upsert([{"id": number}]).file == f"{number:020}.parquet"
            seal_sample(lake)
        open_sample(str(sample), fresh=True, tables=["t"])
        assert not (sample / ZONE / "t").exists()

    def test_sealing_lists_what_was_made(self, sample: Path) -> None:
        marker = json.loads((sample / MARKER).read_text())
        assert marker["state"] == "sealed"
        assert sorted(marker["files"]) == [
            f"{ZONE}/_partnerEvents.json",
            f"{ZONE}/t/{1:020}.parquet",
            f"{ZONE}/t/_metadata.json",
        ]

    def test_only_a_sample_can_be_sealed(self, lake: Lake) -> None:
        with pytest.raises(UsageError, match="not opened as a sample"):
            seal_sample(lake)


def files_of(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if not path.is_dir()]


class TestOwnLakes:
    def test_published_files(self, root: Path) -> None:
        publish(root)
        refused(root, match="is not a sample: it contains Files/LandingZone/_partnerEvents.json")

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
        with pytest.raises(SampleError, match="is not a sample"):
            open_sample(str(tmp_path / "link"), fresh=True, tables=["t"])

    def test_a_marker_behind_a_link_is_not_the_lakes(self, sample: Path, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "Files").symlink_to(sample / "Files")
        before = state(sample)
        refused(tmp_path / "own", match="is not a sample")
        assert state(sample) == before

    @pytest.mark.parametrize(
        "text", ["", "[]", '{"format": 3, "state": "sealed"}', '{"format": 2, "state": "x"}', "{}"]
    )
    def test_a_marker_that_is_none(self, sample: Path, text: str) -> None:
        (sample / MARKER).write_text(text)
        refused(sample, match="can't be read")

    def test_a_copied_marker_accounts_for_nothing_else(self, sample: Path, root: Path) -> None:
        own = root.parent / "own"
        publish(own)
        (own / MARKER).parent.mkdir()
        shutil.copy(sample / MARKER, own / MARKER)
        refused(own, match="contains other files")

    @pytest.mark.parametrize(
        "how", ["../outside.txt", "/{}/outside.txt", "Files/../../outside.txt"]
    )
    def test_no_name_in_a_marker_leaves_the_lake(
        self, sample: Path, tmp_path: Path, how: str
    ) -> None:
        outside = tmp_path / "outside.txt"
        outside.write_text("mine")
        document = json.loads((sample / MARKER).read_text())
        digest = hashlib.sha256(b"mine").hexdigest()
        document["files"][how.format(str(tmp_path).strip("/"))] = digest
        (sample / MARKER).write_text(json.dumps(document))
        open_sample(str(sample), fresh=True, tables=["t"])
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


# Until the sample is sealed, all files in its tables and in the kept state belong to it.
AFTER_THE_SEAL = {"a Delta table", "a frame", "a policy", "a pause"}
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
    "a pause": lambda sample: Lake(sample).operations.pause("t"),
    "something among the status files": put("Files/Monitoring/notes.txt"),
    "data files without a log": put(
        "Tables/theirs/part-00000-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f-c000.snappy.parquet"
    ),
    "a file beside Files and Tables": put("README.md"),
}


class TestOthersInASample:
    @pytest.mark.parametrize(
        ("what", "sealed"),
        [(what, True) for what in THEIRS]
        + [(what, False) for what in THEIRS if what not in AFTER_THE_SEAL],
    )
    def test_it_is_refused(self, sample: Path, what: str, sealed: bool) -> None:
        theirs = THEIRS[what]
        if not sealed:
            lake = open_sample(str(sample), tables=["t"])
            lake.publisher("t").upsert([{"id": 2}])
        theirs(sample)
        refused(sample, match="contains other files")

    def test_sealing_takes_nothing_of_others_in(
        self, sample: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        lake = open_sample(str(sample), tables=["t"])
        publish(sample, "theirs")
        lake.publisher("t").upsert([{"id": 2}])
        seal_sample(lake)
        assert "are not the sample's: Files/LandingZone/theirs" in caplog.text
        refused(sample, match="theirs")

    def test_others_files_stay_theirs_when_they_are_moved(self, sample: Path) -> None:
        lake = open_sample(str(sample), tables=["t"])
        publish(sample, "t", 9)
        theirs = f"{ZONE}/t/{2:020}.parquet"
        assert lake.storage.rename(theirs, f"{ZONE}/t/_ProcessedFiles/{2:020}.parquet")
        refused(sample, match=f"files: Files/LandingZone/t/_ProcessedFiles/{2:020}.parquet")

    def test_what_comes_after_the_seal_is_not_the_makings(self, root: Path) -> None:
        lake = open_sample(str(root), tables=["t"])
        seal_sample(lake)
        lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
        refused(root)

    def test_an_empty_folder_of_others_stays(self, sample: Path) -> None:
        (sample / ZONE / "theirs").mkdir()
        open_sample(str(sample), fresh=True, tables=["t"])
        assert (sample / ZONE / "theirs").is_dir()

    def test_what_is_derived_does_no_harm(self, sample: Path) -> None:
        for name in ("replicator.json", "tables.json"):
            put(f"Files/Monitoring/{name}")(sample)
        kept = ("state.json", "state-3-of-8.json", "mirror.lock", "mirror-2-of-8.lock")
        for name in (*kept, "staged/a/b.parquet", "copies/a/b"):
            put(f"Files/_mirrorlake/{name}")(sample)
        assert [line.name for line in Lake(sample).status().tables] == ["t"]
        open_sample(str(sample), fresh=True, tables=["t"])
        assert [str(path.relative_to(sample)) for path in files_of(sample)] == [MARKER]
        assert not (sample / "Files" / "Monitoring").exists()

    @pytest.mark.parametrize("made", [True, False])
    def test_the_run_that_makes_it_holds_its_lease(self, root: Path, made: bool) -> None:
        root.mkdir()
        for _ in range(1 + made):
            with only_run("demo", [str(root)]):
                lease = [path for path in files_of(root) if path.suffix == ".lease"]
                lake = open_sample(str(root), fresh=True, tables=["t"])
                lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
                seal_sample(lake)
                assert len(lease) == 1
                with pytest.raises(AlreadyRunningError), only_run("demo", [str(root)]):
                    pass
                assert [path for path in files_of(root) if path.suffix == ".lease"] == lease
        assert [path for path in files_of(root) if path.suffix == ".lease"] == []

    @pytest.mark.parametrize("folder", ["_ProcessedFiles", "_FilesReadyToDelete"])
    def test_a_mirror_may_move_and_delete_applied_files(self, sample: Path, folder: str) -> None:
        zone = f"{ZONE}/t"
        name = f"{1:020}.parquet"
        storage = Storage(sample)
        assert storage.rename(f"{zone}/{name}", f"{zone}/{folder}/{name}")
        lake = open_sample(str(sample), tables=["t"])
        lake.storage.delete(f"{zone}/{folder}/{name}")
        open_sample(str(sample), fresh=True, tables=["t"])


class TestKilledMakings:
    @pytest.mark.parametrize("number", [2, 7, *under_long(1, 4, 9, 12)])
    def test_a_killed_making_runs_again(self, root: Path, number: int) -> None:
        run_until(lambda made: len(made) >= number, root, MAKING)
        publish_into = root.parent / "copy"
        shutil.copytree(root, publish_into)
        open_sample(str(root), fresh=True, tables=["t"])
        assert [str(path.relative_to(root)) for path in files_of(root)] == [MARKER]
        publish(publish_into, "t0", 99)
        refused(publish_into)

    @pytest.mark.parametrize("left", [30, *under_long(60, 5)])
    def test_a_killed_clearing_goes_on(self, root: Path, left: int) -> None:
        lake = open_sample(str(root), tables=["t"])
        for number in range(100):
            lake.storage.write(f"Tables/t/{number}.csv", b"%d" % number)
        seal_sample(lake)
        run_until(lambda _: len(files(root)) <= left, root, MAKING)
        open_sample(str(root), fresh=True, tables=["t"])
        assert [str(path.relative_to(root)) for path in files_of(root)] == [MARKER]

    def test_files_that_were_cut_off(self, root: Path) -> None:
        lake = open_sample(str(root), tables=["t"])
        lake.storage.write(f"{ZONE}/t/_metadata.json", b"{}")
        put(f"{ZONE}/t/_metadata.json#7")(root)
        put(f"{MARKER}#1")(root)
        (root / ZONE / "t" / ("_" + "ab" * 16)).write_bytes(b"{}")
        open_sample(str(root), fresh=True, tables=["t"])
        assert not (root / ZONE / "t").exists()

    @pytest.mark.parametrize("folder", ["", "/_ProcessedFiles"])
    def test_files_written_by_hand_are_declared(self, root: Path, folder: str) -> None:
        for writes in (["t/a.csv"], []):
            lake = open_sample(str(root), fresh=True, tables=["t"], writes=writes)
            lake.storage.write(f"{ZONE}/t{folder}/a.csv", b"1,2")
        refused(root)

    @pytest.mark.parametrize("name", ["Tables/u/a.parquet", "Tables/s/b/a.parquet", "Tables/tt/a"])
    def test_other_tables_are_not_the_makings(self, root: Path, name: str) -> None:
        open_sample(str(root), tables=["t", "s.a"])
        put("Tables/t/a.parquet")(root)
        put("Tables/s/a/a.parquet")(root)
        open_sample(str(root), tables=["t", "s.*"])
        put(name)(root)
        if name == "Tables/s/b/a.parquet":
            open_sample(str(root), tables=["t"])
        else:
            refused(root, match=name)


def test_what_a_making_publishes_again_is_its_own(root: Path, monkeypatch: Any) -> None:
    lake = open_sample(str(root), fresh=True, tables=["t"])
    lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
    # The mirror has applied file 1.
    monkeypatch.setattr("mirrorlake.mirror.applied_files.last_applied", lambda *_: 1)
    assert lake.operations.replay("t", 1).files == (f"{2:020}.parquet",)
    seal_sample(lake)
    open_sample(str(root), fresh=True, tables=["t"])
    assert not (root / ZONE / "t").exists()
