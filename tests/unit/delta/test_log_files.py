"""The files of a log that a version needs."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrorlake.delta import log_files
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.storage.files import Storage


def test_a_segment_starts_at_a_complete_checkpoint(storage: Storage) -> None:
    with pytest.raises(TableNotFoundError):
        log_files.find_segment(storage, "t")
    sink = io.BytesIO()
    pq.write_table(pa.table({"add": [1]}), sink)
    checkpoint = sink.getvalue()
    log = "t/_delta_log"
    for version in range(2, 8):
        storage.write(f"{log}/{version:020d}.json", b"")
    parts = [f"{v:020d}.checkpoint.{i:010d}.{2:010d}.parquet" for v in (3, 5) for i in (1, 2)]
    for name in parts[:3]:  # the second part of version 5 is missing
        storage.write(f"{log}/{name}", checkpoint)
    storage.write(f"{log}/{1:020d}.checkpoint.parquet", checkpoint)
    newest = log_files.find_segment(storage, "t")
    assert (newest.version, newest.base) == (7, 3)
    assert (len(newest.checkpoint), len(newest.commits)) == (2, 4)
    assert log_files.find_segment(storage, "t", oldest=True).base == 1
    assert log_files.find_segment(storage, "t", 2).base == 1
    for gone in (0, 8, -1):
        with pytest.raises(UsageError, match=f"not contain version {gone}"):
            log_files.find_segment(storage, "t", gone)
