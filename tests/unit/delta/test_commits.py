"""Versions, timestamps and files of commits, without Spark."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from helpers.commits import LOG, META, add, commit, remove
from mirrorlake.delta import actions, commits, log_files
from mirrorlake.delta import snapshot as snapshots
from mirrorlake.storage.files import Storage

HOUR = 3_600_000


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 64, 100])
def test_the_newest_version_is_found_by_doubling_steps(any_storage: Storage, count: int) -> None:
    for version in range(count):
        commit(any_storage, version, *([META] if version == 0 else []))
    assert commits.find_newest(any_storage, "Tables/t") == count - 1
    assert commits.CommitLog(any_storage, "Tables/t").earliest(count - 1) == 0
    any_storage.write(f"{LOG}/_last_checkpoint", b'{"version": 0}')
    assert commits.find_newest(any_storage, "Tables/t") == count - 1
    assert commits.find_newest(any_storage, "Tables/nowhere") is None
    for version in range(count // 2):
        any_storage.delete(f"{LOG}/{version:020d}.json")
    assert commits.CommitLog(any_storage, "Tables/t").earliest(count - 1) == count // 2


def test_history_reads_only_the_versions_shown(any_storage: Storage) -> None:
    for version in range(30):
        commit(any_storage, version, inCommitTimestamp=1_000 * version, userMetadata="why")
    log = commits.CommitLog(any_storage, "Tables/t")
    reads: list[str] = []
    inner = any_storage.open
    any_storage.open = lambda path: (reads.append(path), inner(path))[1]  # type: ignore[method-assign]
    found = log.read(29, 3)
    assert len(reads) == 3
    assert [commit.version for commit in found.commits] == [29, 28, 27]
    assert (found.more, found.commits[0].metrics) == (True, {"numFiles": 2})
    assert found.commits[0].timestamp == datetime.fromtimestamp(29, timezone.utc)
    document = found.as_dict()
    assert document["columns"][:3] == ["version", "timestamp", "operation"]
    assert document["rows"][0]["timestamp"] == "1970-01-01T00:00:29.000+00:00"
    assert document["rows"][0]["note"] == "why"
    assert "29" in repr(found)
    assert not log.read(29, 100).more


def test_a_clock_that_was_set_back(storage: Storage) -> None:
    for version, moment in enumerate((100, 300, 200, 250)):
        commit(storage, version)
        assert storage.local
        os.utime(storage.local / f"{LOG}/{version:020d}.json", (moment, moment))
    found = commits.CommitLog(storage, "Tables/t").read(3, 10).commits
    moments = [commit.timestamp.timestamp() for commit in reversed(found)]
    assert moments == pytest.approx([100, 300, 300.001, 300.002])


def test_removed_and_missing_files(any_storage: Storage) -> None:
    commit(any_storage, 0, META, add("a%20b"), add("c"))
    commit(any_storage, 1, remove("c", 5), add("d"))
    commit(any_storage, 2, remove("d", 7), add("e"))
    assert actions.removed_since(any_storage, "Tables/t", 0, 2) == [actions.Removed(("c",), 5)]
    assert actions.removed_since(any_storage, "Tables/t", 1, 2) == [actions.Removed(("d",), 7)]
    (found,) = actions.removals(any_storage, "Tables/t", 0, 2)
    assert {removed.files[0] for removed in found} == {"c", "d"}
    any_storage.write("Tables/t/c", b"x")
    assert actions.missing_files(any_storage, "Tables/t", found) == ["d"]


def test_a_snapshot_of_an_older_version(any_storage: Storage) -> None:
    for version in range(4):
        meta = {"metaData": {**META["metaData"], "configuration": {"v": str(version)}}}
        commit(any_storage, version, meta)
    found = [snapshots.read_snapshot(any_storage, "Tables/t", version) for version in (1, None, 99)]
    assert [s and s.properties["v"] for s in found] == ["1", "3", "3"]
    assert log_files.checkpoint_files(any_storage, "Tables/t") == (-1, ())


def put(folder: Path, version: int, *lines: dict[str, Any], at: int = 0) -> None:
    log = folder / "t" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    path = log / f"{version:020d}.json"
    path.write_text("\n".join(json.dumps(a, separators=(",", ":")) for a in lines))
    os.utime(path, (at / 1000, at / 1000))


def metadata(**properties: str) -> dict[str, Any]:
    schema = json.dumps({"type": "struct", "fields": [{"name": "a", "type": "integer"}]})
    return {"metaData": {"id": "i", "schemaString": schema, "configuration": properties}}


def test_a_timeline(tmp_path: Path) -> None:
    for version, hour in enumerate((1, 3, 3, 2, 5)):
        put(tmp_path, version, metadata(), at=hour * HOUR)
    timeline = commits.read_versions(Storage(tmp_path), "t")
    assert (timeline.first, timeline.latest) == (0, 4)
    # A clock that stands still or goes back is moved on by a millisecond.
    assert timeline.times == (HOUR, 3 * HOUR, 3 * HOUR + 1, 3 * HOUR + 2, 5 * HOUR)
    assert [timeline.at_or_after(h * HOUR) for h in (0, 1, 2, 5, 6)] == [0, 0, 1, 4, 5]
    assert [timeline.at_or_before(h * HOUR) for h in (0, 1, 2, 5, 6)] == [-1, 0, 0, 4, 4]
    (tmp_path / "t/_delta_log" / f"{1:020d}.json").unlink()
    (tmp_path / "t/_delta_log" / f"{3:020d}.checkpoint.parquet").touch()
    cut = commits.read_versions(Storage(tmp_path), "t")
    assert (cut.first, cut.versions) == (3, range(2, 5))


def test_in_commit_timestamps(tmp_path: Path) -> None:
    on = metadata(**{"delta.enableInCommitTimestamps": "true"})
    for version in range(2):
        info = {"commitInfo": {"inCommitTimestamp": (version + 7) * HOUR}}
        put(tmp_path, version, info, on, at=HOUR)
    assert commits.read_versions(Storage(tmp_path), "t").times == (7 * HOUR, 8 * HOUR)


def test_commits(tmp_path: Path) -> None:
    def file(kind: str, path: str, change: bool = True) -> dict[str, Any]:
        return {kind: {"path": path, "size": 10, "dataChange": change}}

    put(tmp_path, 0, metadata(**{"delta.enableChangeDataFeed": "true"}))
    put(tmp_path, 1, {"commitInfo": {"operation": "WRITE"}}, file("add", "a"))
    update = [file("cdc", "_change_data/c", False), file("add", "b"), file("remove", "a")]
    put(tmp_path, 2, *update)
    put(tmp_path, 3, file("add", "d", False), file("remove", "b", False), metadata())
    storage = Storage(tmp_path)
    found = [commits.read_commit(storage, "t", version, files=True) for version in range(4)]
    assert [c.files for c in found] == [(), ("a",), ("_change_data/c",), ()]
    assert [c.size for c in found] == [0, 10, 10, 0]
    assert found[1].operation == "WRITE"
    assert [s.has_feed for s in commits.read_states(storage, "t", 1, 3)] == [True, True, False]
