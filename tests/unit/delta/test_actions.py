"""Data files and row ids in a log, and which files may contain a row; no Java is started."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrorlake.cli.rows import parse_row_key
from mirrorlake.delta import actions, log_files
from mirrorlake.delta import snapshot as snapshots
from mirrorlake.errors import UsageError
from mirrorlake.rows import row_history
from mirrorlake.storage.files import Storage


def add(path: str, first: int | None = None, rows: int = 10, **more: Any) -> dict[str, Any]:
    known = {} if first is None else {"baseRowId": first, "defaultRowCommitVersion": 1}
    stats = {"numRecords": rows, "minValues": {"id": first}, "maxValues": {"id": 0}}
    action = {"path": path, "partitionValues": {}, "size": 5, "dataChange": True}
    return {"add": action | known | {"stats": json.dumps(stats)} | more}


def remove(path: str, first: int, **more: Any) -> dict[str, Any]:
    known = {"baseRowId": first, "defaultRowCommitVersion": 1, "stats": '{"numRecords":10}'}
    return {"remove": {"path": path, "dataChange": True, "size": 5} | known | more}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A log of 4 versions: write, an update with a deletion vector, OPTIMIZE, delete."""
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1}
    vector |= {"sizeInBytes": 30, "cardinality": 2}
    commits = [
        ("WRITE", [add("a", 0), add("b", 10), add("old")]),
        ("UPDATE", [add("a", 0, deletionVector=vector), remove("a", 0), add("c", 20, 2)]),
        ("OPTIMIZE", [remove("b", 10, dataChange=False), add("d", 22, dataChange=False)]),
        ("DELETE", [remove("c", 20)]),
    ]
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    for version, (operation, changes) in enumerate(commits):
        lines = [{"commitInfo": {"operation": operation}}, *changes]
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
        (log / f"{version:020d}.json").write_text(text)
    return Storage(tmp_path)


def test_files_added_and_removed_by_versions(storage: Storage) -> None:
    uses = list(actions.file_changes(storage, "t", 0, 3, actions.FileHistory()))
    found = [(u.version, u.side, u.file.action["path"], u.file.carries) for u in uses]
    assert found == [
        (0, 1, "a", False),
        (0, 1, "b", False),  # the third file has no ids
        (1, -1, "a", False),
        (1, 1, "a", False),
        (1, 1, "c", True),  # an update may move rows
        (3, -1, "c", True),  # OPTIMIZE changes no data
    ]
    old, new = uses[2].file, uses[3].file
    assert old.key != new.key
    assert old.stats["minValues"] == {"id": 0}  # a removal may lack them
    assert new.names[1].endswith("deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin")
    # It is unknown whether files added before the range carry ids.
    (late,) = actions.file_changes(storage, "t", 3, 3, actions.FileHistory())
    assert late.file.carries


def test_the_last_removal_includes_versions_that_changed_no_rows(storage: Storage) -> None:
    written, *_ = uses = list(actions.file_changes(storage, "t", 0, 0, actions.FileHistory()))
    files = [use.file for use in uses]
    assert actions.last_removal(storage, "t", files, 1, 3) == 2  # b, by OPTIMIZE
    assert actions.last_removal(storage, "t", [written.file], 1, 3) == 1
    assert actions.last_removal(storage, "t", files, 3, 3) is None


def test_live_files_with_and_without_a_checkpoint(storage: Storage, tmp_path: Path) -> None:
    def found(version: int) -> dict[str, int]:
        return {a["path"]: a["records"] for a in actions.live_files(storage, "t", version)}

    assert found(0) == {"a": 10, "b": 10, "old": 10}
    assert found(1) == {"a": 8, "b": 10, "old": 10, "c": 2}
    assert found(3) == {"a": 8, "old": 10, "d": 10}
    kind = pa.struct(
        {
            "path": pa.string(),
            "size": pa.int64(),
            "partitionValues": pa.map_(pa.string(), pa.string()),
            "stats": pa.string(),
            "stats_parsed": pa.struct({"numRecords": pa.int64()}),
            "baseRowId": pa.int64(),
        }
    )
    rows = [
        {"path": "p", "partitionValues": [("x", "1")], "stats_parsed": {"numRecords": 7}},
        {"path": "c", "stats": '{"numRecords":2}', "baseRowId": 20},
        None,
    ]
    log = tmp_path / "t" / "_delta_log"
    pq.write_table(pa.table({"add": pa.array(rows, kind)}), log / f"{1:020d}.checkpoint.parquet")
    (log / "_last_checkpoint").write_text('{"version":1}')
    assert found(3) == {"p": 7, "d": 10}
    (whole,) = (a for a in actions.live_files(storage, "t", 1) if a["path"] == "p")
    assert whole["partitionValues"] == {"x": "1"}


def test_a_later_version_reads_only_its_own_commits(storage: Storage, tmp_path: Path) -> None:
    files = actions.LiveFiles(storage, "t")
    first = files.of(1)
    before = [actions.live_files(storage, "t", version) for version in range(4)]
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").unlink()  # must not be read again
    assert [files.of(version) for version in (1, 2, 3)] == before[1:]
    assert first == before[1]
    assert files.of(3) == before[3]
    with pytest.raises(FileNotFoundError):
        files.of(2)


def test_files_named_by_a_log(storage: Storage, tmp_path: Path) -> None:
    log = tmp_path / "t" / "_delta_log"
    told = list(actions.named_files(storage, f"t/_delta_log/{2:020d}.json"))
    assert told == ["b", "d"]
    kind = pa.struct({"path": pa.string(), "stats": pa.string(), "baseRowId": pa.int64()})
    table = pa.table({"add": pa.array([{"path": "p"}, None], kind)})
    table = table.append_column("remove", pa.array([None, {"path": "gone"}], kind))
    name = f"{1:020d}.checkpoint.parquet"
    pq.write_table(table, log / name)
    assert list(actions.named_files(storage, f"t/_delta_log/{name}")) == ["p"]
    (log / f"{1:020d}.crc").write_text('{"allFiles": [{"path": "q"}]}')
    assert list(actions.named_files(storage, f"t/_delta_log/{1:020d}.crc")) == ["q"]
    (log / f".{1:020d}.json.crc").write_bytes(b"crc")
    assert list(actions.named_files(storage, f"t/_delta_log/.{1:020d}.json.crc")) == []
    # Without the first commits and a pointer, the checkpoint is found by a listing.
    (log / f"{0:020d}.json").unlink()
    (found,) = actions.removals(storage, "t", 0, 3)
    assert {removed.files[0] for removed in found} == {"gone", "b", "c"}
    (found,) = actions.removals(storage, "t", 1, 3)  # the checkpoint is not needed
    assert {removed.files[0] for removed in found} == {"b", "c"}
    (log / "_last_checkpoint").write_text('{"version":1}')
    log_files.cut_before_checkpoint(storage, "t")
    assert sorted(path.name for path in log.glob("0*.json")) == [
        f"{version:020d}.json" for version in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"id": 5}, True),
        ({"id": "7"}, True),
        ({"id": 8}, False),
        ({"id": 5, "v": "l"}, False),
        ({"id": 5, "v": "n"}, True),
        ({"d": date(2024, 1, 2)}, True),
        ({"d": "2024-02-01"}, False),
        ({"d": datetime(2024, 1, 31, 9)}, True),
        ({"d": datetime(2024, 2, 1)}, True),
        ({"d": "2024-1-31"}, True),
        ({"v": datetime(2024, 1, 31)}, True),
        ({"v": None}, True),
        ({"id": None}, True),
        ({"d": None}, True),
        ({"id": "x"}, True),  # Spark reports the error
        ({"t": 3}, True),
        ({"other": 1}, True),
        ({"v": True}, True),
        ({"d": date(2024, 2, 1)}, False),
    ],
)
def test_which_files_may_hold_a_key(key: dict[str, Any], expected: bool) -> None:
    kinds = {"id": "integer", "v": "string", "d": "date", "t": "timestamp", "other": "long"}
    fields = [{"name": name, "type": kind, "metadata": {}} for name, kind in kinds.items()]
    fields[1]["metadata"] = {"delta.columnMapping.physicalName": "col-v"}
    snapshot = snapshots.Snapshot(metadata={"schemaString": json.dumps({"fields": fields})})
    low = {"id": 3, "col-v": "m", "d": "2024-01-01", "t": "2024-01-01T00:00:00.000Z"}
    high = {"id": 7, "col-v": "p", "d": "2024-01-31", "t": "2024-01-01T00:00:00.000Z"}
    stats = json.dumps({"numRecords": 4, "minValues": low, "maxValues": high})
    file = actions.DataFile({"path": "a", "stats": stats}, 100, 1, 4, carries=False)
    assert row_history.may_contain(file, snapshot, key) is expected
    assert [file.holds(n) for n in (99, 100, 103, 104)] == [False, True, True, False]
    assert actions.DataFile({"path": "a"}, 100, 1, None, carries=False).holds(10**12)


def test_keys_on_the_command_line() -> None:
    assert parse_row_key(["7"], ("id",)) == {"id": "7"}
    assert parse_row_key(["a=b"], ("id",)) == {"id": "a=b"}
    assert parse_row_key(["id=7"], ("id",)) == {"id": "7"}
    assert parse_row_key(["a=1", "b=2=3"], ("a", "b")) == {"a": "1", "b": "2=3"}
    assert parse_row_key(["x=1"], ()) == {"x": "1"}
    with pytest.raises(UsageError, match="COLUMN=VALUE"):
        parse_row_key(["7"], ())
