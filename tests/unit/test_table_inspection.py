"""A table inspected without Spark: facts, files, versions, guardrails, and the files by version."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mirrorlake import Lake
from mirrorlake.errors import TableNotFoundError, UsageError, VersionError
from mirrorlake.names import TableName

KEYS = {"mirrorlake.keys": '["id"]'}


@pytest.fixture
def parted(tmp_path: Path) -> Lake:
    """A table of three versions: two partitions, one more row, one row deleted."""
    place = tmp_path / "Tables" / "parted"
    rows = pa.table({"id": [1, 2, 3], "part": ["a", "b", "b"]})
    write_deltalake(place, rows, partition_by=["part"])
    commit = place / "_delta_log" / f"{0:020}.json"  # delta-rs accepts no other properties
    text = commit.read_text().replace('"configuration":{}', f'"configuration":{json.dumps(KEYS)}')
    commit.write_text(text)
    write_deltalake(place, pa.table({"id": [4], "part": ["a"]}), mode="append")
    DeltaTable(place).delete("part = 'b'")
    return Lake(tmp_path)


def test_it_has_the_facts_of_the_log(parted: Lake) -> None:
    found = parted.inspect("parted")
    assert repr(found) == "Inspection('parted', version 2)"
    assert (found.version, found.earliest) == (2, 0)
    assert [column["name"] for column in found.columns] == ["id", "part"]
    assert (found.keys, found.partition_columns) == (("id",), ["part"])
    assert found.properties == KEYS
    assert not found.has_feed
    assert found.protocol.startswith("reader 1, writer ")
    assert found.readable_range().newest == 2
    with pytest.raises(TableNotFoundError, match="no table other"):
        parted.inspect("other")


def test_it_lists_the_files_of_the_version_and_opens_them(parted: Lake) -> None:
    files = parted.inspect("parted").files
    assert sorted((file.rows, file.partition) for file in files) == [(1, "part=a"), (1, "part=a")]
    assert [file.size for file in files] == sorted((file.size for file in files), reverse=True)
    assert not any(file.ordered or file.deleted for file in files)
    with parted.inspect("parted").open(files[0]) as source:
        assert source.read(4) == b"PAR1"


def test_a_version_has_the_files_that_it_added_and_removed(parted: Lake) -> None:
    found = parted.inspect("parted")
    changed = found.changed_files(2)
    assert changed.commit.operation == "DELETE"
    assert (len(changed.added), len(changed.removed)) == (0, 1)
    assert changed.removed[0][0].startswith("part=b/")
    assert [one.version for one in found.history(2, newest=1).commits] == [1, 0]
    with pytest.raises(VersionError, match="does not contain version 9"):
        found.changed_files(9)


def test_guardrails_need_no_footers(parted: Lake) -> None:
    found = parted.inspect("parted")
    limits = {one.guardrail: one.value for one in found.guardrails("F2").limits}
    assert (limits["Parquet Files"], limits["Row Groups"], limits["Rows"]) == (2, 2, 2)
    beyond = found.guardrails("F2", row_groups=1_001)
    assert [one.guardrail for one in beyond.exceeded] == ["Row Groups"]
    with pytest.raises(UsageError, match="no SKU"):
        found.guardrails("X1")


def test_newest_versions_of_tables(parted: Lake) -> None:
    names = [TableName(None, "parted"), TableName(None, "other")]
    assert list(parted.versions(names).values()) == [2, None]


def test_files_are_shown_version_by_version(parted: Lake) -> None:
    log = Path(parted.storage.path("Tables/parted/_delta_log"))
    commit = [json.loads(line) for line in (log / f"{1:020}.json").read_text().splitlines()]
    (add,) = (line["add"] for line in commit if "add" in line)
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    again = [{"remove": add}, {"add": add | {"deletionVector": vector}}]
    lines = [json.dumps(line) for line in ({"commitInfo": {"operation": "UPDATE"}}, *again)]
    (log / f"{3:020}.json").write_text("\n".join(lines) + "\n")
    found = parted.table("parted").files_by_version()
    assert repr(found) == "parted: 3 files in 4 versions"
    rows = {row[0]: row[1:] for row in found.shown().rows}
    assert rows["file 3"] == ("", "all its rows", "all its rows", "some rows deleted")
    assert sorted(row[2] for row in rows.values()) == ["", "all its rows", "all its rows"]
    assert "file 3" in found.plot().describe()
    last = parted.table("parted").files_by_version(3)
    assert last.versions == (3,)
    assert sorted(last.files.values()) == sorted(
        kind for (_, version), kind in found.files.items() if version == 3
    )
    for first in (-1, 4):
        with pytest.raises(VersionError, match=f"no version {first} of parted.*from 0 to 3"):
            parted.table("parted").files_by_version(first)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("count", "read().count()"),
        ("head", "read().show(5)"),
        ("files", "files_by_version()"),
        ("histry", "history"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_right_call(
    parted: Lake, name: str, call: str
) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'. Hint: use `{re.escape(call)}`"):
        getattr(parted.table("parted"), name)
