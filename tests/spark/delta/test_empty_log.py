"""Tables whose version 0 was interrupted by a kill can be created again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake import Lake
from mirrorlake.delta.table import remove_empty_log


def leave_remains(lake: Lake, *names: str) -> None:
    """Leave the files that Delta has on disk before it renames its first commit."""
    for name in names:
        log = Path(lake.storage.path(f"Tables/{name}/_delta_log"))
        (log / "_staged_commits").mkdir(parents=True)
        (log / ".00000000000000000000.json.5e1a.tmp").write_text('{"commitInfo":')


def test_a_table_is_created_where_a_process_was_killed(lake: Lake) -> None:
    leave_remains(lake, "t", "made")
    lake.publisher("t", keys=["id"]).write([{"id": 1, "v": "a"}])
    assert not lake.mirror().failed
    assert lake.table("t").snapshot().properties["delta.enableChangeDataFeed"] == "true"
    lake.create_table("made", {"id": "BIGINT"}, keys=["id"])
    assert lake.table("made").read().count() == 0


@pytest.mark.long
def test_every_way_to_create_a_table_continues(lake: Lake) -> None:
    leave_remains(lake, "t", "made", "written", "ordered", "archived", "dimension", "view")
    lake.publisher("t", keys=["id"]).write([{"id": 1, "v": "a"}])
    assert not lake.mirror().failed
    lake.create_table("made", {"id": "BIGINT"}, keys=["id"])
    rows = lake.table("t").read()
    lake.write("written", rows)
    lake.write("ordered", rows, vorder=True)
    lake.archive("t", "archived")
    lake.table("t").dimension("dimension", stored_as=2)
    lake.views.create("view", "SELECT v, count(*) AS n FROM t GROUP BY v")
    lake.views.refresh("view")
    counts = {str(name): lake.table(name).read().count() for name in lake.tables()}
    assert counts == {"made": 0} | dict.fromkeys(
        ("archived", "dimension", "ordered", "t", "view", "written"), 1
    )
    assert lake.table("t").snapshot().properties["delta.enableChangeDataFeed"] == "true"
    lake.archive("t", "archived")  # it knows its own


def test_a_log_without_its_versions_is_kept(tmp_path: Path) -> None:
    checksum = tmp_path / "_delta_log" / "00000000000000000007.crc"
    checksum.parent.mkdir()
    checksum.write_text("{}")
    remove_empty_log(str(tmp_path))
    assert checksum.exists()
    checksum.rename(checksum.with_name(".7.crc.tmp"))
    remove_empty_log(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
