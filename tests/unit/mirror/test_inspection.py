"""Choosing the driver or executors to check a file; `tests/spark/cluster` runs it on a cluster."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from mirrorlake import MirrorOptions
from mirrorlake.errors import DataFileError, MirrorlakeError
from mirrorlake.landing import check
from mirrorlake.landing.metadata import TableMetadata
from mirrorlake.mirror import engine
from mirrorlake.storage.files import Storage


def no_spark() -> object:
    raise AssertionError("Spark was asked for")


def test_on_one_machine_and_for_small_files_it_is_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    large = {"1.csv": 10**12}
    assert engine.choose_inspection(no_spark, large, 1) is check.inspect_file  # type: ignore[arg-type]
    monkeypatch.setenv("SPARK_MASTER", "spark://somewhere:7077")
    most = MirrorOptions().driver_bytes
    assert engine.choose_inspection(no_spark, {"1.csv": most}, most) is check.inspect_file  # type: ignore[arg-type]
    assert engine.choose_inspection(no_spark, {}, most) is check.inspect_file  # type: ignore[arg-type]


def test_results_and_errors_of_executors_are_pickled_without_loss(
    storage: Storage, tmp_path: Path
) -> None:
    storage.write("t/1.csv", b"id,v\n1,a\n,b\n3,c\n")
    metadata = TableMetadata(("id",))
    copies = []
    for staged in ("a.parquet", "b.parquet"):
        again: Storage = pickle.loads(pickle.dumps(storage))
        found = check.inspect_file(
            again, "t/1.csv", metadata, number=1, staged=staged, skip_rows=True
        )
        copies.append(pickle.loads(pickle.dumps(found)))
        assert copies[-1] == found
    assert [row.row for row in copies[0].rejects] == [2]
    assert copies[0].sha256 == copies[1].sha256
    with pytest.raises(DataFileError) as caught:
        check.inspect_file(storage, "t/1.csv", metadata, number=1)
    error: MirrorlakeError = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error)) == (DataFileError, str(caught.value))
    assert (error.file, error.row, error.column) == ("1.csv", 2, "id")
