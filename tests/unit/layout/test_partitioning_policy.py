"""The policy's JSON: allowed values, defaults, and errors."""

from __future__ import annotations

import copy
import json
import re
from datetime import date
from typing import Any

import pytest

from helpers.least_table import make_table
from helpers.project import PROJECT
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.names import TableName
from mirrorlake.partitioning import policy as policies
from mirrorlake.partitioning import store
from mirrorlake.partitioning.table_policy import TablePolicy
from mirrorlake.storage.files import Storage

EXAMPLE: dict[str, Any] = {
    "PartitionKeys": [
        {
            "ColumnName": "tenant_id",
            "Kind": "Hash",
            "Properties": {
                "Function": "XxHash64",
                "MaxPartitionCount": 128,
                "Seed": 1,
                "PartitionAssignmentMode": "Uniform",
            },
        },
        {
            "ColumnName": "timestamp",
            "Kind": "UniformRange",
            "Properties": {
                "Reference": "2021-01-01T00:00:00",
                "RangeSize": "7.00:00:00",
                "OverrideCreationTime": False,
            },
        },
    ]
}
TYPES = {"tenant_id": "string", "timestamp": "timestamp", "n": "long", "local": "timestamp_ntz"}
SCHEMA = [{"name": name, "type": kind} for name, kind in TYPES.items()]
HASH, RANGE = (copy.deepcopy(key) for key in EXAMPLE["PartitionKeys"])


def with_property(key: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {"PartitionKeys": [{**key, "Properties": {**key["Properties"], name: value}}]}


def test_the_examples_of_the_page_are_valid() -> None:
    page = (PROJECT / "docs" / "partitioning.md").read_text(encoding="utf-8")
    found = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    by_key, by_day, both = (policies.parse_policy(json.loads(text)) for text in found)
    assert by_key.hash == policies.HashKey("customer_id", 64, 1, "Uniform")
    assert by_day.range == policies.RangeKey("timestamp", 1_609_459_200_000_000, 86_400_000_000)
    assert both == policies.parse_policy(EXAMPLE)
    (change,) = re.findall(r"echo '(.*)' > change.json", page)
    changed = policies.merge_policy(by_day, json.loads(change))
    assert changed.document()["EffectiveDateTime"] == "2026-01-01T00:00:00"


def test_kustos_example_reads_and_writes() -> None:
    policy = policies.parse_policy(EXAMPLE)
    assert policy.hash == policies.HashKey("tenant_id", 128, 1, "Uniform")
    assert policy.range == policies.RangeKey("timestamp", 1_609_459_200_000_000, 7 * 86_400_000_000)
    assert policy.columns == ("tenant_id", "timestamp")
    document = policy.document()
    assert document["PartitionKeys"] == EXAMPLE["PartitionKeys"]
    assert "EffectiveDateTime" not in document
    assert policies.parse_policy(document) == policy
    store.check_columns(policy, SCHEMA)


def test_defaults_of_bounds_and_keys() -> None:
    plain = policies.parse_policy(
        {
            "PartitionKeys": [
                {"ColumnName": "timestamp", "Kind": "UniformRange"},
                {"ColumnName": "tenant_id", "Kind": "Hash", "Properties": {}},
            ]
        }
    )
    assert plain == policies.Policy(
        policies.HashKey("tenant_id", 128, 1, "Uniform"), policies.RangeKey("timestamp")
    )
    assert plain.range is not None
    assert (plain.range.reference, plain.range.range_size) == (0, 86_400_000_000)
    assert not plain.range.override_creation_time
    assert (plain.min_rows, plain.row_limit, plain.size_limit) == (0, 5_000_000, 5_368_709_120)
    small = policies.merge_policy(
        plain, {"MaxRowCountPerOperation": 1000, "MinRowCountPerOperation": 5}
    )
    assert (small.min_rows, small.row_limit, small.size_limit) == (5, 1000, 5_368_709_120)
    assert small.hash == plain.hash
    assert policies.merge_policy(small, {"MaxOriginalSizePerOperation": 7}).size_limit == 7


@pytest.mark.promise("PP-03")
def test_two_keys_one_of_each_kind_and_their_types() -> None:
    for keys, said in (
        ([HASH, HASH], "two keys of kind Hash"),
        ([RANGE, RANGE], "two keys of kind UniformRange"),
        ([HASH, RANGE, HASH], "has 3 keys.*at most 2"),
        ([], "one or two keys"),
        (HASH, "one or two keys"),
        ([{**HASH, "Kind": "Range"}], r"PartitionKeys\[0\]\.Kind .*Hash or UniformRange"),
        ([{**HASH, "ColumnName": ""}], "ColumnName"),
        ([{**HASH, "Column": "x"}], "unknown property 'Column'.*ColumnName"),
    ):
        with pytest.raises(UsageError, match=said):
            policies.parse_policy({"PartitionKeys": keys})
    for key in (HASH, RANGE):
        store.check_columns(policies.parse_policy({"PartitionKeys": [key]}), SCHEMA)
    store.check_columns(policies.Policy(range=policies.RangeKey("local")), SCHEMA)
    for policy, said in (
        (policies.Policy(policies.HashKey("n")), "'n' is long.*column of type string"),
        (policies.Policy(policies.HashKey("timestamp")), "'timestamp' is timestamp"),
        (
            policies.Policy(range=policies.RangeKey("tenant_id")),
            "'tenant_id' is string.*timestamp_ntz",
        ),
        (policies.Policy(range=policies.RangeKey("none")), "no column 'none'"),
    ):
        with pytest.raises(UsageError, match=said):
            store.check_columns(policy, SCHEMA)


@pytest.mark.promise("PP-04")
def test_hash_properties_their_ranges_and_defaults() -> None:
    bare = {"PartitionKeys": [{"ColumnName": "c", "Kind": "Hash"}]}
    assert policies.parse_policy(bare).document()["PartitionKeys"][0]["Properties"] == {
        "Function": "XxHash64",
        "MaxPartitionCount": 128,
        "Seed": 1,
        "PartitionAssignmentMode": "Uniform",
    }
    for name, good in (
        ("MaxPartitionCount", (2, 128, 2048)),
        ("Seed", (1, 2**63 - 1)),
        ("PartitionAssignmentMode", ("ByPartition", "Uniform")),
        ("Function", ("XxHash64",)),
    ):
        for value in good:
            document = policies.parse_policy(with_property(HASH, name, value)).document()
            assert document["PartitionKeys"][0]["Properties"][name] == value
    for value, mode in (("uniform", "Uniform"), ("BYPARTITION", "ByPartition")):
        policy = policies.parse_policy(with_property(HASH, "PartitionAssignmentMode", value))
        assert policy.hash is not None
        assert policy.hash.mode == mode
    for name, bad, allowed in (
        ("MaxPartitionCount", (0, 1, 2049, "128", 1.5, True, None), "from 2 to 2048"),
        ("Seed", (0, -1, "1", None), "whole number from 1"),
        ("PartitionAssignmentMode", ("by partition", None, 1), "ByPartition or Uniform"),
        ("Function", ("xxhash64", "Md5", None), "XxHash64"),
    ):
        for value in bad:
            with pytest.raises(UsageError, match=f"{name} is .*{allowed}"):
                policies.parse_policy(with_property(HASH, name, value))
    with pytest.raises(UsageError, match=r"unknown property 'Sead'.*MaxPartitionCount"):
        policies.parse_policy(with_property(HASH, "Sead", 1))


def test_range_properties_and_properties_of_the_policy() -> None:
    for name, value, allowed in (
        ("RangeSize", "0.00:00:00", "over zero"),
        ("RangeSize", 7, "timespan"),
        ("RangeSize", "7x", "not a timespan"),
        ("Reference", "yesterday", "not a timestamp"),
        ("Reference", 0, "timestamp as text"),
        ("OverrideCreationTime", "true", "true or false"),
        ("Function", "bin_at", "unknown property 'Function'"),  # it can't be chosen
    ):
        with pytest.raises(UsageError, match=allowed):
            policies.parse_policy(with_property(RANGE, name, value))
    for change, said in (
        ({"EffectiveDateTime": 5}, "EffectiveDateTime is 5"),
        ({"EffectiveDateTime": date(2020, 1, 1)}, 'EffectiveDateTime is "2020-01-01"'),
        ({"MinRowCountPerOperation": -1}, "MinRowCountPerOperation is -1.*from 0 to 9223"),
        ({"MaxRowCountPerOperation": 2**63}, "MaxRowCountPerOperation is 9223"),
        ({"MaxOriginalSizePerOperation": 1.0}, "MaxOriginalSizePerOperation is 1.0"),
        ({"MaxRowCount": 1}, "unknown property 'MaxRowCount'"),
        ({"Lookback": "Hot"}, 'Kind is "Hot".*Default or HotCache or All or Custom'),
        ({"Lookback": {"Kind": "Custom"}}, "CustomPeriod is null.*timespan"),
        ({"Lookback": {"CustomPeriod": "3d"}}, 'CustomPeriod is "3d".*with Custom'),
        ([], "not a JSON object"),
    ):
        with pytest.raises(UsageError, match=said):
            policies.merge_policy(policies.parse_policy(EXAMPLE), change)
    dated = policies.merge_policy(
        policies.parse_policy(EXAMPLE), {"EffectiveDateTime": "2020-01-01"}
    )
    assert dated.document()["EffectiveDateTime"] == "2020-01-01T00:00:00"
    custom = {"Kind": "Custom", "CustomPeriod": "30.00:00:00"}
    for lookback, written in (
        ("hotcache", {"Kind": "HotCache", "CustomPeriod": None}),
        (custom, custom),
        ({"Kind": "Default"}, None),
    ):
        policy = policies.merge_policy(dated, {"Lookback": lookback})
        assert policy.document().get("Lookback") == written
        assert policies.parse_policy(policy.document()) == policy


def test_the_fingerprint_depends_on_what_determines_bucket_and_bin() -> None:
    names = {"tenant_id": "col-1", "timestamp": "col-2"}
    policy = policies.parse_policy(EXAMPLE)
    same = policies.merge_policy(
        policy, {"EffectiveDateTime": "2020-01-01", "MaxRowCountPerOperation": 9}
    )
    assert same.fingerprint(names) == policy.fingerprint(names)
    spread = policies.parse_policy(with_property(HASH, "PartitionAssignmentMode", "ByPartition"))
    assert spread.fingerprint(names) == policies.parse_policy(
        {"PartitionKeys": [HASH]}
    ).fingerprint(names)
    others = [
        policies.parse_policy(with_property(HASH, "Seed", 2)),
        policies.parse_policy(with_property(HASH, "MaxPartitionCount", 64)),
        policies.parse_policy(with_property(RANGE, "RangeSize", "1d")),
        policies.parse_policy(with_property(RANGE, "Reference", "2021-01-02")),
        policies.parse_policy({"PartitionKeys": [HASH]}),
        policy,
    ]
    assert len({one.fingerprint(names) for one in others}) == len(others)
    assert policy.fingerprint({**names, "tenant_id": "col-3"}) != policy.fingerprint(names)


def test_the_files_of_a_mirrored_table_are_not_dropped(storage: Storage) -> None:
    """The rows of such a table come from its publisher, as those of a view from its query."""
    name = TableName(None, "t")
    make_table(storage, name)
    table = TableHandle(lambda: pytest.fail("Spark was asked for"), storage, name)
    for apply in (False, True):
        with pytest.raises(UsageError, match="publisher feeds t"):
            TablePolicy(table).drop_older_than("365d", apply=apply)
