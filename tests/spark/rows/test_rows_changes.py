"""Test changes with row ids, and the history of a row, against a model that tracks every row."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helpers.quiet import QUIET, commit_quietly
from mirrorlake import Lake, Table
from mirrorlake.cli import main as cli
from mirrorlake.errors import FeedError, UsageError

# The history of one row: (version, change, key, value), in order.
Life = tuple[tuple[int, str, int, str], ...]
KINDS = ["update", "merge", "rekey", "restore", "compact", "delete"]
# The feed can't be read across a RESTORE to a version from before a column was added.
ANY_KINDS = sorted({*KINDS, *QUIET} - {"column"})
KEYS = st.lists(st.integers(0, 7), min_size=len(ANY_KINDS), max_size=len(ANY_KINDS))


class Rows:
    """A model of a table whose rows are objects, which identifies them trivially."""

    def __init__(self) -> None:
        self.lives: list[list[tuple[int, str, int, str]]] = []
        self.versions: list[dict[int, tuple[int, str, int]]] = [{}]  # row: key, value, changed

    def commit(self, after: dict[int, tuple[int, str]], touched: set[int]) -> None:
        """Record a version: the rows it contains, and which of them were written."""
        before, version = self.versions[-1], len(self.versions)
        state = {}
        for row, (key, value) in after.items():
            state[row] = (key, value, version) if row in touched else before[row]
        self.append(state)

    def append(self, state: dict[int, tuple[int, str, int]]) -> None:
        before, version = self.versions[-1], len(self.versions)
        for row in before.keys() | state.keys():
            old, new = before.get(row), state.get(row)
            if old is not None and new is not None and old != new:
                self.lives[row].append((version, "update_preimage", *old[:2]))
                self.lives[row].append((version, "update_postimage", *new[:2]))
            elif old is None and new is not None:
                self.lives[row].append((version, "insert", *new[:2]))
            elif new is None and old is not None:
                self.lives[row].append((version, "delete", *old[:2]))
        self.versions.append(state)

    def new_row(self) -> int:
        self.lives.append([])
        return len(self.lives) - 1


def play(table: Table, rows: Rows, step: str, key: int) -> None:
    """Run one operation on the table and on the model, one version each."""
    version = len(rows.versions)
    now = {row: (k, value) for row, (k, value, _) in rows.versions[-1].items()}
    hit = {row for row, (k, _) in now.items() if k in (key, key + 3)}
    if step == "update":
        run(table, f"UPDATE {{T}} SET v = 'u{version}' WHERE id IN ({key}, {key + 3})")
        rows.commit({r: (k, f"u{version}" if r in hit else v) for r, (k, v) in now.items()}, hit)
    elif step == "rekey":
        run(table, f"UPDATE {{T}} SET id = id + 100 WHERE id IN ({key}, {key + 3})")
        rows.commit({r: (k + 100 if r in hit else k, v) for r, (k, v) in now.items()}, hit)
    elif step == "delete":
        run(table, f"DELETE FROM {{T}} WHERE id IN ({key}, {key + 3})")
        rows.commit({r: state for r, state in now.items() if r not in hit}, set())
    elif step == "merge":
        run(
            table,
            f"MERGE INTO {{T}} t USING (SELECT {key} AS id, 'm{version}' AS v UNION ALL"
            f" SELECT {version + 1000}, 'n') s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET v = s.v"
            " WHEN NOT MATCHED THEN INSERT (id, v, `the part`) VALUES (s.id, s.v, '0')",
        )
        same = {row for row, (k, _) in now.items() if k == key}
        after = {r: (k, f"m{version}" if r in same else v) for r, (k, v) in now.items()}
        fresh = {rows.new_row(): (version + 1000, "n")}
        fresh |= {} if same else {rows.new_row(): (key, f"m{version}")}
        rows.commit(after | fresh, same | set(fresh))
    elif step == "restore":
        run(table, f"RESTORE TABLE {{T}} TO VERSION AS OF {1 + key % (version - 1)}")
        rows.append(rows.versions[1 + key % (version - 1)])
    else:
        commit_quietly(table, step)
        rows.append(rows.versions[-1])


def run(table: Table, statement: str) -> None:
    before = table.snapshot().version
    table.spark.sql(statement.replace("{T}", table.sql_name))
    if table.snapshot().version == before:  # no change writes no version, but the model counts one
        reset = f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES (n = {before})"
        table.spark.sql(reset)


def differences(rows: Rows, before: int, after: int) -> Counter[tuple[str, int, str]]:
    """Return the difference of two versions, row by row."""
    found: Counter[tuple[str, int, str]] = Counter()
    for row in rows.versions[before].keys() | rows.versions[after].keys():
        old, new = (rows.versions[one].get(row, ())[:2] for one in (before, after))
        if old != new and old:
            found[("update_preimage" if new else "delete", *old)] += 1
        if old != new and new:
            found[("update_postimage" if old else "insert", *new)] += 1
    return found


def lives(changes: list[Any]) -> dict[int, Life]:
    found: dict[int, list[tuple[int, str, int, str]]] = {}
    order = ["delete", "insert", "update_preimage", "update_postimage"]
    for row in changes:
        event = (row._commit_version, row._change_type, row.id, row.v)
        found.setdefault(row._row_id, []).append(event)
    by_time = {k: sorted(v, key=lambda e: (e[0], order.index(e[1]))) for k, v in found.items()}
    return {row_id: tuple(events) for row_id, events in by_time.items()}


@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.permutations(ANY_KINDS), keys=KEYS, vectors=st.booleans())
@pytest.mark.long
def test_any_changes_with_ids_are_the_model(
    lake: Lake, steps: list[str], keys: list[int], vectors: bool
) -> None:
    check_model(lake, list(zip(steps, keys, strict=True)), vectors=vectors)


@pytest.mark.promise("RT-08")
def test_changes_with_ids_are_the_model(lake: Lake) -> None:
    kinds = ["column", "update", "merge", "vorder", "rekey", *KINDS[3:]]
    steps = list(zip(kinds, (0, 0, 3, 0, 3, 2, 0, 4), strict=True))
    check_model(lake, steps, vectors=True)


def check_model(lake: Lake, steps: list[tuple[str, int]], *, vectors: bool) -> None:
    name = f"t{len(lake.tables())}"
    properties = {"delta.enableDeletionVectors": str(vectors).lower()}
    data = lake.spark.sql(
        "SELECT CAST(id AS INT) AS id, 'a' AS v, CAST(id % 2 AS STRING) AS `the part` FROM range(6)"
    )
    table = lake.write(name, data, partition_by=["the part"], properties=properties)
    rows = Rows()
    first = {rows.new_row(): (key, "a") for key in range(6)}
    rows.commit(first, set(first))
    for step, key in steps:
        play(table, rows, step, key)
    assert table.snapshot().version == len(rows.versions) - 1
    changes = table.row_tracking.changes(0).collect()
    found = lives(changes)
    assert Counter(found.values()) == Counter(map(tuple, rows.lives))
    # Equal to the feed, which has no ids. Only a RESTORE rewrites more rows than it changes.
    feed = table.changes.read(0)
    with pytest.raises(Exception, match="row_id"):
        feed.select("_metadata.row_id")
    told = ["id", "v", "the part", "_change_type", "_commit_version"]
    back = 2 + [step for step, _ in steps].index("restore")
    ours, theirs = (
        Counter(tuple(row[name] for name in told) for row in some if row._commit_version != back)
        for some in (changes, feed.collect())
    )
    assert ours == theirs
    last = len(rows.versions) - 1
    for before, after in ((1, last), (last // 2, last), (last, 1)):
        diff = table.diff(before, after).collect()
        moved = Counter((row._change_type, row.id, row.v) for row in diff)
        assert moved == differences(rows, before, after), (before, after)
    # The history of a key includes all rows that ever had it.
    life = max(found.values(), key=len)
    key = life[0][2]
    story = table.row_tracking.history(key={"id": key})
    wanted = {i: found[i] for i in found if key in {event[2] for event in found[i]}}
    assert set(story.ids) == set(wanted)
    assert lives(story.events.collect()) == wanted


@pytest.fixture
def command(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Run `rows … --json` on the lake, and return its document, if there is one."""

    def call(table: str, verb: str, *arguments: str, status: int = 0) -> Any:
        line = ["mirrorlake", "rows", verb, str(lake.storage.root), table, *arguments, "--json"]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert (ended.value.code or 0) == status, (shown.out, shown.err)
        return json.loads(shown.out) if shown.out else None

    return call


def test_a_biography_from_where_files_are_left(lake: Lake, command: Callable[..., Any]) -> None:
    publisher = lake.publisher("stock", keys=["id"])
    publisher.write([{"id": n, "v": "a"} for n in range(4)])
    lake.mirror()  # 1
    for value in "bcd":
        publisher.update([{"id": 1, "v": value}])
        assert not lake.mirror().failed  # 2 to 4
    table = lake.table("stock")
    whole = table.row_tracking.history(key=1)
    kinds = [(row.v, row._change_type) for row in whole.events.collect()]
    assert kinds[0] == ("a", "insert")
    assert [v for v, kind in kinds if kind == "update_postimage"] == ["b", "c", "d"]
    assert repr(whole) == "stock: row id 1, versions 0 to 4"
    by_id = table.row_tracking.history(row_id=1).events
    assert [(row.v, row._change_type) for row in by_id.collect()] == kinds
    # The command returns the same.
    document = command("stock", "history", "--key", "1")
    assert [(row["v"], row["_change_type"]) for row in document["rows"]] == kinds
    assert (document["ids"], document["findings"]) == ([1], [])
    assert command("stock", "history", "--row-id", "99", status=1)["rows"] == []
    command("stock", "history", status=2)
    command("nothing", "show", status=1)
    shown = command("stock", "show", "--limit", "2")
    assert (shown["enabled"], shown["trusted_from"], shown["findings"]) == (True, 0, [])
    assert shown["columns"] == ["id", "v", "_row_id", "_row_commit_version"]
    assert [(row["id"], row["_row_commit_version"]) for row in shown["rows"]] == [(0, 1), (1, 4)]
    planned = command("stock", "disable")
    assert (planned["commits"], planned["applied"]) == (["SET TBLPROPERTIES"], False)
    assert command("stock", "enable")["commits"] == []
    # A vacuumed file shortens the history, which then starts with the existing row.
    log = (Path(table.path) / "_delta_log" / f"{3:020d}.json").read_text().splitlines()
    removed = [json.loads(line)["remove"]["path"] for line in log if '{"remove"' in line]
    for path in removed:
        (Path(table.path) / path).unlink()
    story = table.row_tracking.history(key=1)
    assert (story.start, story.ids) == (3, (1,))
    kinds = [(row.v, row._change_type) for row in story.events.collect()]
    assert kinds[:2] == [("c", "existing"), ("c", "update_preimage")]
    with pytest.raises(FeedError, match=r"can't start at version 2.*start at version 3"):
        table.row_tracking.history(key=1, start=2)
    with pytest.raises(FeedError, match=r"removed are missing.*start after version 3"):
        table.row_tracking.changes(1)
    with pytest.raises(UsageError, match=r"'abc' is not a value of id.* type bigint\. Hint: give"):
        table.row_tracking.history(key="abc")
    with pytest.raises(UsageError, match="either a key or a row id"):
        table.row_tracking.history()
    # Files from before a column's type changed can't be read.
    odd = lake.write("odd", [{"id": 1, "v": 1}])
    lake.write("odd", [{"id": 1, "v": "one"}], mode="overwrite")
    with pytest.raises(FeedError, match=r"changed its type in version 2.*start after version 2"):
        odd.row_tracking.changes(1)
    (event,) = odd.row_tracking.history(key={"id": 1}).events.collect()
    assert (event.v, event._change_type, event._commit_version) == ("one", "existing", 2)


def test_the_columns_of_a_key_are_checked_by_one_job(lake: Lake) -> None:
    table = lake.write("s", [{"id": n, "v": "a", "w": n} for n in range(4)])
    context = table.spark.sparkContext

    def jobs(key: dict[str, Any]) -> int:
        group = ",".join(key)
        context.setJobGroup(group, "")
        try:
            assert table.row_tracking.history(key=key).ids == (1,)
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)
        return len(context.statusTracker().getJobIdsForGroup(group))

    table.row_tracking.history(key={"id": 1})  # Delta reads the table's log once
    assert 0 < jobs({"id": 1, "v": "a", "w": 1}) <= jobs({"id": 1})
    with pytest.raises(UsageError, match=r"'abc' is not a value of w, which has the type bigint"):
        table.row_tracking.history(key={"id": 1, "v": "a", "w": "abc"})


def test_a_history_starts_after_an_optimize_whose_old_files_were_vacuumed(lake: Lake) -> None:
    table = lake.write("s", [{"id": n, "v": "a"} for n in range(4)])  # 1
    lake.write("s", [{"id": n, "v": "a"} for n in range(4, 8)])  # 2
    old = list(Path(table.path).glob("*.parquet"))
    table.optimize.compact()  # 3
    for path in old:
        path.unlink()
    for start in (None, 3):
        story = table.row_tracking.history(key={"id": 1}, start=start)
        (event,) = story.events.collect()
        assert (story.start, event.id, event._change_type) == (3, 1, "existing")
    with pytest.raises(FeedError, match=r"can't start at version 1.*start at version 3"):
        table.row_tracking.history(key={"id": 1}, start=1)
    for path in Path(table.path).glob("*.parquet"):
        path.unlink()
    with pytest.raises(FeedError, match="file of the newest version of s is missing"):
        table.row_tracking.history(key={"id": 1})
