"""Decisions of partitioning without Spark: capacity, guidance, predicates, stored policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.delta_by_hand import HandMade
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.mirror.options import has_partitioning_policy, partitioning_policies
from mirrorlake.names import TableName
from mirrorlake.partitioning import advice, process, statistics, store, table_policy
from mirrorlake.partitioning import policy as policies
from mirrorlake.storage.files import Storage

GIB = 2**30
T = TableName("sales", "o'brien")
KEY = {"ColumnName": "k", "Kind": "Hash"}
POLICY = {"PartitionKeys": [KEY]}


def test_values_that_a_predicate_allows() -> None:
    for where, wanted in (
        ("k = 'a'", {"a"}),
        ("'a' = K", {"a"}),
        ("`k` IN ('a', 'b') AND n > 3", {"a", "b"}),
        ("k = 'a' OR (k IN ('b') AND n = 1)", {"a", "b"}),
        ("k IN ('a', 'b') AND k IN ('b', 'c')", {"b"}),
        ("k = 'a' AND k = 'b'", set()),
        ("k IS NULL OR k = ''", {None, ""}),
        ("k <=> 'a'", {"a"}),
        # The values are not certain: all files must be read.
        ("k = 'it''s'", None),
        ("k = 5", None),
        ("k IN ('a', 5)", None),
        ("k = 'a' OR n = 1", None),
        ("NOT k = 'a'", None),
        ("k <> 'a'", None),
        ("k LIKE 'a'", None),
        ("upper(k) = 'A'", None),
        ("s.k = 'a'", None),
        ("k = other", None),
        ("k IS NOT NULL", None),
        (r"k = 'a\u0041'", None),
        ('k = "a"', None),
        ("k IN (SELECT k FROM t)", None),
        ("k =", None),
        ("k = '\ud800'", None),
        ("k COLLATE UTF8_LCASE = 'a'", None),
    ):
        found = statistics.key_values(where, "k")
        assert found == (None if wanted is None else frozenset(wanted)), where


def test_capacity_goes_up_one_by_one_and_down_on_failures(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    assert process.read_capacity(storage) == 1
    capacity = 1
    for wanted in [*range(2, 33), 32]:
        capacity = process.next_capacity(capacity, capacity, 0)
        assert capacity == wanted
    assert process.next_capacity(capacity, 9, 1) == 32  # 90 % is enough, but the round was not full
    assert process.next_capacity(10, 9, 1) == 11
    assert process.next_capacity(10, 8, 2) == 9
    assert process.next_capacity(1, 0, 1) == 1
    assert process.next_capacity(4, 0, 0) == 4
    process.write_capacity(storage, 5, 2)
    assert process.read_capacity(storage) == 5
    kept = storage.read_json("Files/_mirrorlake/partitioning_capacity.json") or {}
    assert (kept.pop("at")[:2], kept) == ("20", {"format": 1, "capacity": 5, "in_progress": 2})


def test_diagnostics_name_the_table_with_the_lowest_percentage() -> None:
    lines = tuple(
        statistics.TableStatistics(name, "{}", 100, 2, 9, done, 1, 0, 0, 0)
        for name, done in (("a", 100), ("b", 89), ("c", 95))
    )
    found = statistics.Diagnostics(lines, 4, 1)
    assert found.shown().rows == ((25.0, 1, 89.0, "b"),)
    assert found.is_behind
    assert repr(found) == "1 operation running, b is at 89.0 %"
    assert not statistics.Diagnostics(lines[:1], 4, 0).is_behind
    assert statistics.Diagnostics((), 1, 0).shown().rows == ((0.0, 0, None, None),)


def rules(found: advice.Advice) -> set[tuple[str, str | None]]:
    return {(finding.rule, finding.column) for finding in found.findings}


@pytest.mark.promise("PP-16")
def test_guidance() -> None:
    """Each sentence of Kusto's guidance, and values just below each of its limits."""

    def table(*keys: advice.TextFacts | advice.TimeFacts, size: int = 500 * GIB) -> advice.Survey:
        texts = tuple(key for key in keys if isinstance(key, advice.TextFacts))
        times = tuple(key for key in keys if isinstance(key, advice.TimeFacts))
        return advice.Survey("t", 10**9, size, texts, times)

    filters = advice.advise(table(advice.TextFacts("tenant", 10_000)))
    assert filters.policy is not None
    assert filters.policy.hash == policies.HashKey("tenant", 128, 1, "Uniform")
    assert rules(filters) >= {("filters", "tenant"), ("usage", "tenant")}
    few = advice.advise(table(advice.TextFacts("tenant", 9_999)))
    assert few.policy is None
    assert rules(few) >= {("no key", None), ("few values", "tenant")}
    joins = advice.advise(
        table(advice.TextFacts("device", 1_000_000), advice.TextFacts("tenant", 50_000))
    )
    assert joins.policy is not None
    assert joins.policy.hash == policies.HashKey("device", 128, 1, "ByPartition")
    assert rules(joins) >= {
        ("joins and aggregations", "device"), ("usage", "device"), ("no large dimension", "device")
    }  # fmt: skip
    for values, is_large in ((9_999_999, False), (10_000_000, True)):
        dimension = advice.advise(table(advice.TextFacts("device", values)))
        assert (("no large dimension", "device") not in rules(dimension)) == is_large
    uneven = advice.advise(table(advice.TextFacts("device", 1_000_000, nulls=10**8)))
    assert uneven.policy is not None
    assert uneven.policy.hash == policies.HashKey("device", 128, 1, "Uniform")
    assert ("outlier value", "device") in rules(uneven)
    almost = advice.advise(table(advice.TextFacts("device", 999_999)))
    assert almost.policy is not None
    assert almost.policy.hash is not None
    assert almost.policy.hash.mode == "Uniform"
    # Out of order: a range key; in order: none. No bin is shorter than a day.
    loose = advice.advise(table(advice.TimeFacts("at", 100 * policies.DAY, read_now=0.9)))
    assert loose.policy is not None
    assert loose.policy.range == policies.RangeKey("at", 0, policies.DAY)
    assert ("out of order", "at") in rules(loose)
    tight = advice.advise(table(advice.TimeFacts("at", 100 * policies.DAY, read_now=0.02)))
    assert tight.policy is None
    assert ("in order", "at") in rules(tight)
    # Less than 1 GB per partition: fewer partitions, longer bins, and finally no policy.
    small = advice.advise(table(advice.TextFacts("tenant", 10_000), size=9 * GIB))
    assert small.policy is not None
    assert small.policy.hash is not None
    assert small.policy.hash.max_partition_count == 8
    weeks = advice.advise(
        table(advice.TimeFacts("at", 100 * policies.DAY, read_now=0.9), size=10 * GIB)
    )
    assert weeks.policy is not None
    assert weeks.policy.range is not None
    assert weeks.policy.range.range_size == 10 * policies.DAY
    tiny = advice.advise(
        table(
            advice.TextFacts("tenant", 2_000_000),
            advice.TimeFacts("at", 100 * policies.DAY, read_now=0.9),
            size=2 * GIB - 1,
        )
    )
    assert tiny.policy is None
    assert repr(tiny) == "t: no policy"
    assert ("too small", None) in rules(tiny)
    both = advice.advise(
        table(
            advice.TextFacts("k", 20_000),
            advice.TimeFacts("at", 64 * policies.DAY, read_now=1),
            size=512 * GIB,
        )
    )
    assert both.policy is not None
    assert both.policy.columns == ("k", "at")
    assert both.policy.range is not None
    assert both.policy.range.range_size == 16 * policies.DAY  # 128 buckets of 1 GiB each in a bin
    assert ("view", None) not in rules(both)
    assert ("view", None) in rules(advice.advise(advice.Survey("v", 9, 9, is_view=True)))
    cost = next(finding for finding in both.findings if finding.rule == "cost")
    assert cost.message.startswith("history: 200 operations, 1,000,000,000 rows")
    assert set(both.as_dict()["findings"][0]) == {
        "rule", "table", "file", "row", "column", "message", "fix"
    }  # fmt: skip


def test_guidance_on_a_policy_that_was_set() -> None:
    """Allowed properties that are not recommended, and values just within each limit."""
    survey = advice.Survey(
        "t",
        10**9,
        1280 * GIB,
        (
            advice.TextFacts("k", 2_000_000),
            advice.TextFacts("few", 9_999),
            advice.TextFacts("some", 999_999),
        ),
        (advice.TimeFacts("at", 10 * policies.DAY),),
    )

    def found(
        hash: policies.HashKey | None = None, range: policies.RangeKey | None = None, **more: int
    ) -> set[str]:
        waiting = more.pop("pending_rows", 0)
        policy = policies.Policy(hash, range, **more)
        return {line.rule for line in advice.review(policy, survey, pending_rows=waiting)}

    assert found(policies.HashKey("k", 128, 1, "ByPartition"), policies.RangeKey("at")) == set()
    assert found(policies.HashKey("k", 129)) == {"many partitions"}
    assert found(policies.HashKey("k", 128), policies.RangeKey("at", 0, policies.DAY - 1)) == {
        "short spans", "small partitions"
    }  # fmt: skip
    assert found(policies.HashKey("k", seed=2)) == {"seed"}
    assert found(policies.HashKey("few", 2)) == {"few values"}
    assert found(policies.HashKey("some", 2)) == set()
    assert found(policies.HashKey("some", 2, 1, "ByPartition")) == {"assignment"}
    assert found(policies.HashKey("k", 1281)) == {"many partitions", "small partitions"}
    bounds = {"max_rows": 5_000_000, "max_size": 5 * GIB, "min_rows": 0}
    assert found(policies.HashKey("k"), **bounds) == set()
    assert (
        found(policies.HashKey("k"), max_rows=1, max_size=1) == set()
    )  # small operations save memory
    assert found(policies.HashKey("k"), min_rows=1) == {"waiting rows"}
    assert found(policies.HashKey("k"), max_rows=5_000_001) == {"large operations"}
    assert found(policies.HashKey("k"), max_size=5 * GIB + 1) == {"large operations"}
    assert found(policies.HashKey("k"), pending_rows=50_000_000) == set()
    assert found(policies.HashKey("k"), pending_rows=50_000_001) == {"much history"}


def no_spark() -> Any:
    raise AssertionError("Spark was asked for")


def partitioning(storage: Storage) -> table_policy.TablePolicy:
    return table_policy.TablePolicy(TableHandle(no_spark, storage, T))


def test_statistics_start_the_session_before_they_create_columns(tmp_path: Path) -> None:
    """Creating a column requires a session, so the table's own must be started first."""
    HandMade(tmp_path / T.table_path).create(pa.schema([("k", pa.string())]))
    kept = partitioning(Storage(tmp_path))
    kept.set(POLICY)
    with pytest.raises(AssertionError, match="Spark was asked for"):
        kept.stats()


def test_policies_are_stored_with_their_history(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    table = HandMade(tmp_path / T.table_path)
    table.create(pa.schema([("k", pa.string()), ("n", pa.int64())]))
    kept = partitioning(storage)
    assert store.read_setting(storage, T) is None
    assert not has_partitioning_policy(storage, T)
    assert kept.show().rows == (("DataPartitioning", "sales.o'brien", None, None, "Table"),)
    with pytest.raises(UsageError, match="set one first"):
        kept.alter_merge({})
    with pytest.raises(UsageError, match="not valid JSON"):
        kept.set("{")
    with pytest.raises(UsageError, match="'n' is long"):
        kept.set({"PartitionKeys": [{"ColumnName": "n", "Kind": "Hash"}]})
    checked = kept.set(POLICY, dry_run=True)
    assert not has_partitioning_policy(storage, T)
    policy = kept.set(POLICY)
    setting = store.read_setting(storage, T)
    assert setting is not None
    assert setting.policy == policy
    # By default it is the time when the policy was set.
    effective = policy.effective or 0
    assert (
        policies.now_micros() - 60_000_000
        < (checked.effective or 0)
        <= effective
        <= policies.now_micros()
    )
    assert replace(checked, effective=effective) == policy
    assert has_partitioning_policy(storage, T)
    change = {"EffectiveDateTime": "2020-01-01"}
    assert kept.alter_merge(change, hot="31d", dry_run=True).effective == 1_577_836_800_000_000
    assert kept.delete(dry_run=True) == policy
    assert store.read_setting(storage, T) == setting  # dry runs changed nothing
    altered = kept.alter_merge({**change, "Lookback": "All"}, hot="31d")
    # Older versions of mirrorlake refuse a stored policy with properties that they do not know.
    newest = partitioning_policies(storage, T).newest() or {}
    assert "Lookback" not in newest["policy"]
    setting = store.read_setting(storage, T)
    assert setting is not None
    assert (setting.policy, setting.hot) == (altered, 31 * policies.DAY)
    shown = kept.show()
    assert shown.columns == ("PolicyName", "EntityName", "Policy", "ChildEntities", "EntityType")
    assert '"EffectiveDateTime": "2020-01-01T00:00:00"' in shown.rows[0][2]
    assert kept.delete() == altered
    assert not has_partitioning_policy(storage, T)
    with pytest.raises(UsageError, match="no partitioning policy"):
        kept.delete()
    history = kept.history()
    assert [row[:2] for row in history.rows[:2]] == [
        (policies.format_timestamp(effective), "set"),
        (history.rows[1][0], "altered"),
    ]
    assert history.rows[2][1:] == ("deleted", None, None)
    assert '"Lookback": {"Kind": "All"' in history.rows[1][2]
    # A table created in place of another has no policy.
    kept.set(POLICY)
    newest = {
        "table_id": "another",
        "at": "2024-01-01",
        "reason": "set",
        "policy": None,
        "hot": None,
    }
    store.append_policy(storage, T, newest)
    assert store.read_setting(storage, T) is None
    store.append_policy(storage, T, {**newest, "policy": policies.parse_policy(POLICY).document()})
    assert store.read_setting(storage, T) is None
    assert not has_partitioning_policy(storage, T)  # so it is compacted like any other table


def described(folder: Path, **columns: dict[str, str]) -> None:
    """Replace the columns' metadata in the table's first commit."""
    first = folder / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            for field in schema["fields"]:
                field["metadata"] = columns.get(field["name"], {})
                field["name"] = field["metadata"].get("renamed", field["name"])
            line["metaData"]["schemaString"] = json.dumps(schema)
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_policy_that_no_longer_fits_can_be_corrected(tmp_path: Path) -> None:
    """Reads ignore it; it can be shown, changed and deleted; operations report the error."""
    storage, folder = Storage(tmp_path), tmp_path / T.table_path
    HandMade(folder).create(pa.schema([("k", pa.string()), ("n", pa.int64())]))
    kept = partitioning(storage)
    for metadata, said in (
        ({"__COLLATIONS": {"k": "spark.UTF8_LCASE"}}, "has a collation"),
        ({"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}, r"is char\(5\).*STRING"),
        ({"renamed": "other"}, "no column 'k'.*its columns are other, n"),
    ):
        described(folder, k={"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"})
        policy = kept.set(POLICY)
        described(folder, k=metadata)
        with pytest.raises(UsageError, match=said):
            store.read_setting(storage, T)
        with pytest.raises(UsageError, match=said):
            kept.alter_merge({"MaxRowCountPerOperation": 5})
        assert store.fitting_setting(storage, T) is None
        assert kept.show().rows[0][2] is not None
    altered = kept.alter_merge({"PartitionKeys": [{**KEY, "ColumnName": "other"}]})
    assert altered == replace(policy, hash=policies.HashKey("other"))
    assert kept.policy == altered
    described(folder, other={"renamed": "k"})
    kept.delete()
    assert kept.show().rows[0][2] is None


def test_a_table_is_idle_until_something_changes(tmp_path: Path) -> None:
    storage, idle = Storage(tmp_path), process.Idle(5, 2, 100, 1_000)
    assert idle.holds(5, 2, 999)
    assert not idle.holds(5, 2, 1_000)  # replaced files must be vacuumed
    assert not idle.holds(6, 2, 0)
    assert not idle.holds(5, 3, 0)
    assert process.Idle(5, 2).holds(5, 2, 2**62)
    assert process.read_idle(storage, T) is None
    process.write_idle(storage, T, idle)
    assert process.read_idle(storage, T) == idle
    path = f"{T.partitioning_path}/idle.json"
    # Versions that wrote format 1 left mixed files behind.
    storage.write_json(path, (storage.read_json(path) or {}) | {"format": 1})
    assert process.read_idle(storage, T) is None
    process.write_idle(storage, T, idle)
    assert process.read_idle(storage, T) == idle
    storage.write_json(path, {"format": 99, "other": 1})
    assert process.read_idle(storage, T) is None


def test_tables_with_policies_are_found_without_reading_others(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    assert store.tables_with_policies(storage) == []
    names = [T, TableName(None, "sales"), TableName("dbo", "a.schema b"), TableName(None, "ü `x")]
    for name in names:
        assert partitioning_policies(storage, name).count() == 0
        store.append_policy(storage, name, {"policy": None})
        store.append_policy(storage, name, {"policy": None})
        assert partitioning_policies(storage, name).count() == 2
    assert set(store.tables_with_policies(storage)) == set(names)
