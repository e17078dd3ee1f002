"""Creating a sample is killed while Spark writes, and run again; foreign commits are refused."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import table as rows_of

from helpers.killing import Made, run_until
from helpers.sample_making import make
from mirrorlake import Lake
from mirrorlake.errors import SampleError
from mirrorlake.storage.files import Storage
from mirrorlake_lab import open_sample, seal_sample

MARKER = "Files/_mirrorlake/sample.json"

MAKING = "import sys; from helpers.sample_making import make; make(sys.argv[1])"


def refused(root: Path) -> None:
    before = Storage(root).files_below("")
    with pytest.raises(SampleError, match="contains other files"):
        open_sample(str(root), fresh=True, tables=["more"])
    assert Storage(root).files_below("") == before


@pytest.mark.long  # a test without --long is below
@pytest.mark.parametrize(
    "until",
    [
        "Tables/t/_delta_log/",
        "Tables/direct/part-",
        "Tables/t/part-",
        "Tables/own/_delta_log/00000000000000000001.json",
        "Tables/sums/part-",
        "Files/_mirrorlake/frames/model/00000001/own/files/",
        "Tables/ordered/part-",
    ],
)
def test_a_making_that_was_killed_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    root = tmp_path / "lake"

    def enough(made: Made) -> bool:
        return any(until in name.removeprefix(f"{root}/") for name in made)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    killed, _ = run_until(enough, root, MAKING)
    assert killed
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    open_sample(str(root), fresh=True, tables=["more"])
    assert list(Storage(root).files_below("")) == [MARKER]
    write_deltalake(copy / "Tables" / "theirs", rows_of({"id": [1]}))
    refused(copy)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed sample."""
    root = tmp_path_factory.mktemp("made") / "lake"
    make(str(root))
    return root


@pytest.fixture
def sample(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "lake")
    return tmp_path / "lake"


def test_a_whole_making_accounts_for_every_file(sample: Path) -> None:
    open_sample(str(sample), fresh=True, tables=["more"])
    assert list(Storage(sample).files_below("")) == [MARKER]


def test_looking_mirroring_and_asking_do_no_harm(sample: Path) -> None:
    lake = Lake(sample)
    lake.status(rebuild=True)
    assert not lake.mirror().failed
    assert lake.sql("SELECT * FROM own").count() == 993
    assert lake.sql("SELECT * FROM sums").count() == 3
    lake.table("own").analyze(scan=False)
    open_sample(str(sample), fresh=True, tables=["more"])


def test_commits_of_others_are_refused(sample: Path) -> None:
    lake = open_sample(str(sample), tables=["more"])  # unsealed from here on
    lake.write("more", [{"id": 1}])
    seal_sample(lake)
    Lake(sample).write("more", [{"id": 2}])
    assert DeltaTable(sample / "Tables" / "more").version() == 2
    refused(sample)
