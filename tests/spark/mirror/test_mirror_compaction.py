"""The mirror compacts a table in small steps; the rows stay the same."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.delta import exchange
from mirrorlake.delta.actions import live_files
from mirrorlake.mirror.options import Step

ROWS = 90_000


def paths(lake: Lake) -> list[str]:
    """Return the paths of the table's live files, the largest first."""
    files = live_files(lake.storage, "Tables/t", lake.table("t").version)
    return [add["path"] for add in sorted(files, key=lambda add: -int(add["size"]))]


def test_one_cycle_rewrites_only_the_file_with_most_deleted_rows(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    for first in (0, ROWS):
        # 10 MB per file that can't be compressed: one file exceeds the limit of 8 MiB
        publisher.write([{"id": first + n, "v": os.urandom(60).hex()} for n in range(ROWS)])
        assert not lake.mirror(deletion_vectors=True).failed
    old = set(paths(lake))
    assert len(old) == 2
    publisher.delete([{"id": n} for n in range(30_000)])
    publisher.delete([{"id": ROWS + n} for n in range(10_000)])
    publisher.upsert([{"id": -1, "v": "new"}])
    steps: list[Step] = []
    assert not lake.mirror(on_step=lambda _table, step: steps.append(step)).failed
    assert Step.COMPACTED in steps
    left = {*range(30_000, ROWS), *range(ROWS + 10_000, 2 * ROWS), -1}
    assert bag(lake, "t", ["id"]) == Counter((n,) for n in left)
    deleted = {
        add["path"]: add["deletionVector"]["cardinality"]
        for add in live_files(lake.storage, "Tables/t", lake.table("t").version)
        if add.get("deletionVector")
    }
    assert len(paths(lake)) == 2
    assert list(deleted.values()) == [10_000]  # the other file is below the limit of 20 %
    assert set(deleted) < old


def test_a_large_file_is_rewritten_in_parts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def row_ids() -> dict[int, tuple[int, int]]:
        table, ids = lake.table("t").sql_name, "_metadata.row_id, _metadata.row_commit_version"
        return {
            n: tuple(own) for n, *own in lake.spark.sql(f"SELECT id, {ids} FROM {table}").collect()
        }

    monkeypatch.setattr(exchange, "_COPIED_ROWS", ROWS // 3)
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": n, "v": os.urandom(60).hex()} for n in range(ROWS)])
    assert not lake.mirror(deletion_vectors=True).failed
    before, (old,) = row_ids(), paths(lake)
    publisher.delete([{"id": n} for n in range(0, ROWS, 3)])
    publisher.upsert([{"id": -1, "v": "new"}])
    assert not lake.mirror(deletion_vectors=True).failed
    found = live_files(lake.storage, "Tables/t", lake.table("t").version)
    assert old not in paths(lake)
    assert not any(add.get("deletionVector") for add in found)
    assert len([add for add in found if int(add["records"]) > ROWS // 6]) == 2
    after = row_ids()
    assert after.pop(-1)
    assert after == {n: own for n, own in before.items() if n % 3}
    assert lake.table("t").history().commits[0].operation == "OPTIMIZE"


def test_small_files_are_merged_and_a_large_file_stays(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    publisher.write([{"id": n, "v": os.urandom(60).hex()} for n in range(ROWS)])
    options = MirrorOptions(compact_after=3)
    assert not lake.mirror(options=options).failed
    (large,) = paths(lake)
    for number in range(3):
        publisher.upsert([{"id": ROWS + number, "v": str(number)}])
        assert not lake.mirror(options=options).failed
    first, *others = paths(lake)
    assert first == large
    assert len(others) <= 2
    assert sum(bag(lake, "t", ["id", "v"]).values()) == ROWS + 3


def test_a_cycle_does_not_compact_and_write_a_checkpoint(lake: Lake) -> None:
    publisher = lake.publisher("t", keys=["id"])
    for number in range(7):
        publisher.upsert([{"id": number, "v": str(number)}])
        # From version 3, each cycle makes two commits: 3 and 4, 5 and 6, 7 and 8.
        options = MirrorOptions(compact_after=0 if number < 2 else 1)
        assert not lake.mirror(options=options).failed
    commits = lake.table("t").history().commits
    assert [one.version for one in commits if one.operation == "OPTIMIZE"] == [8, 6, 4]
    assert commits[0].version == 10
    publisher.upsert([{"id": 7, "v": "7"}])
    assert not lake.mirror(options=MirrorOptions(compact_after=1)).failed
    newest = lake.table("t").history().commits[0]
    assert (newest.version, newest.operation) == (12, "OPTIMIZE")
