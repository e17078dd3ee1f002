"""Policies of the lake's tables: kept with their history, and what they change of the table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from mirrorlake.delta.snapshot import (
    Snapshot,
    all_policies,
    append_policy,
    newest_policy,
    physical_names,
    read_snapshot,
)
from mirrorlake.delta.table import Table
from mirrorlake.errors import QueryError, TableNotFoundError, UsageError
from mirrorlake.layout.partitioning.groups import bucket_sql
from mirrorlake.layout.partitioning.policy import (
    HashKey,
    Policy,
    check_columns,
    merge_policy,
    parse_policy,
)
from mirrorlake.layout.partitioning.timespan import (
    format_timespan,
    format_timestamp,
    now_micros,
    parse_timespan,
)
from mirrorlake.names import TableName
from mirrorlake.results import TextTable
from mirrorlake.spark.sql import quote, spark_message
from mirrorlake.storage import Storage

_PROPERTY = "delta.constraints."
_RESERVED = ("_metadata", "_change_", "_commit_", "__mirrorlake_")
_COLUMNS = ("PolicyName", "EntityName", "Policy", "ChildEntities", "EntityType")


@dataclass(frozen=True)
class Setting:
    """A table's policy and what belongs to it.

    Attributes:
        policy: the policy.
        hot: files created longer ago are cold and stay as they are, microseconds; None for never.
        bucket_column: the column in which operations store the bucket; None for none.
        fingerprint: what the files' tags name; empty until the policy is fitted to the table.
    """

    policy: Policy
    hot: int | None = None
    bucket_column: str | None = None
    fingerprint: str = ""


def set_policy(
    storage: Storage,
    name: TableName,
    document: Any,
    *,
    hot: str | None = None,
    bucket_column: str | None = None,
    dry_run: bool = False,
) -> Setting:
    """Gives a table a policy, in place of the one it had; see `TablePolicy.set`."""
    setting = Setting(read_policy(document), _hot(hot), bucket_column)
    return _write(storage, name, setting, "set", dry_run=dry_run)


def alter_policy(
    storage: Storage,
    name: TableName,
    changes: Any,
    *,
    hot: str | None = None,
    reason: str = "altered",
    dry_run: bool = False,
) -> Setting:
    """Changes some properties of a table's policy; see `TablePolicy.alter_merge`.

    Args:
        storage: the lake's files.
        name: which table.
        changes: the properties to change, as a mapping or as text.
        hot: a timespan instead of the one set before.
        reason: kept in the history.
        dry_run: check only.
    """
    setting = kept_setting(storage, name)
    if setting is None:
        raise UsageError(f"{name} has no partitioning policy.", hint="set one first.")
    policy = merge_policy(setting.policy, _parsed(changes))
    kept = setting.hot if hot is None else _hot(hot)
    # With other buckets the column would be wrong, and is no longer filled.
    same = policy.hash is not None and policy.hash.buckets_like(setting.policy.hash)
    changed = Setting(policy, kept, setting.bucket_column if same else None)
    return _write(storage, name, changed, reason, dry_run=dry_run)


def delete_policy(storage: Storage, name: TableName, *, dry_run: bool = False) -> Policy:
    """Takes a table's policy away, and returns it; see `TablePolicy.delete`."""
    setting = kept_setting(storage, name)
    if setting is None:
        raise UsageError(f"{name} has no partitioning policy.")
    if not dry_run:
        _append(storage, name, _snapshot(storage, name), None, "deleted", now_micros())
    return setting.policy


def read_setting(storage: Storage, name: TableName) -> Setting | None:
    """What is set for a table; None without a policy, or with one of an earlier table only.

    Raises:
        UsageError: the table has changed so that the policy no longer fits.
    """
    found = _kept(storage, name)
    return found and _fitted(*found)


def fitting_setting(storage: Storage, name: TableName) -> Setting | None:
    """The same for readers: a policy that no longer fits counts as none, and no file has tags."""
    try:
        return read_setting(storage, name)
    except UsageError:
        return None


def kept_setting(storage: Storage, name: TableName) -> Setting | None:
    """The same, whether or not the policy still fits the table: to be shown, changed, deleted."""
    found = _kept(storage, name)
    return found and found[0]


def _kept(storage: Storage, name: TableName) -> tuple[Setting, Snapshot] | None:
    document = newest_policy(storage, name)
    if document is None or document["policy"] is None:
        return None
    snapshot = _snapshot(storage, name)
    if document["table_id"] != snapshot.metadata["id"]:
        return None
    policy, hot = parse_policy(document["policy"]), _hot(document["hot"])
    return Setting(policy, hot, document.get("bucket_column")), snapshot


def read_history(storage: Storage, name: TableName) -> TextTable:
    """All policies that a table has had, the oldest first."""
    rows = [
        (one["at"], one["reason"], one["policy"] and _text(one["policy"]), one["hot"])
        for one in all_policies(storage, name)
    ]
    return TextTable(("At", "Reason", "Policy", "Hot"), tuple(rows))


def show_policy(storage: Storage, name: TableName) -> TextTable:
    """The policy's row, as Kusto shows it; `Policy` is NULL where there is none."""
    setting = kept_setting(storage, name)
    return policy_row(name, None if setting is None else setting.policy)


def policy_row(name: TableName, policy: Policy | None) -> TextTable:
    """A policy's row, as Kusto shows it."""
    text = None if policy is None else _text(policy.document())
    return TextTable(_COLUMNS, (("DataPartitioning", str(name), text, None, "Table"),))


def _fitted(setting: Setting, snapshot: Snapshot) -> Setting:
    policy = setting.policy
    check_columns(policy, snapshot.fields)
    physical = physical_names(snapshot.metadata)
    return replace(setting, fingerprint=policy.fingerprint(physical))


def _write(
    storage: Storage, name: TableName, setting: Setting, reason: str, *, dry_run: bool
) -> Setting:
    snapshot, at = _snapshot(storage, name), now_micros()
    if setting.policy.effective is None:
        setting = replace(setting, policy=replace(setting.policy, effective=at))
    setting = _fitted(setting, snapshot)
    if not dry_run:
        _append(storage, name, snapshot, setting, reason, at)
    return setting


def _append(
    storage: Storage,
    name: TableName,
    snapshot: Snapshot,
    setting: Setting | None,
    reason: str,
    at: int,
) -> None:
    hot = None if setting is None else setting.hot
    document = {
        "table_id": snapshot.metadata["id"],
        "at": format_timestamp(at),
        "reason": reason,
        "policy": setting and setting.policy.document(),
        "hot": None if hot is None else format_timespan(hot),
        "bucket_column": setting and setting.bucket_column,
    }
    append_policy(storage, name, document)


def _snapshot(storage: Storage, name: TableName) -> Snapshot:
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        raise TableNotFoundError(f"There is no table {name} in the lake.")
    return snapshot


def read_policy(document: Any) -> Policy:
    """A policy from its JSON document, as a mapping or as text."""
    return parse_policy(_parsed(document))


def _parsed(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The policy is not JSON: {error}.") from error


def _hot(text: str | None) -> int | None:
    return None if text is None else parse_timespan(text)


def _text(policy: dict[str, Any]) -> str:
    return json.dumps(policy, ensure_ascii=False)


def check_bucket_column(table: Table, policy: Policy, name: str) -> HashKey:
    """The hash key whose bucket a column of the table is to hold, for engines that read no tags.

    Operations fill the column when they rewrite a file; in unpartitioned files it is NULL. A check
    constraint refuses any value but the key's own bucket, so that a changed key can't leave a wrong
    one behind. A reader asks for `k = 'x' AND (bucket = 10 OR bucket IS NULL)`, and statistics do
    the rest.

    Raises:
        UsageError: there is no hash key, or the column is one of the table's own, or holds the
            buckets of another policy.
    """
    if policy.hash is None:
        raise UsageError("Without a hash key there is no bucket to store.")
    if not name.strip() or name.lower().startswith(_RESERVED):
        raise UsageError(
            f"{name!r} can't be the name of the column for the bucket.",
            hint="choose one like bucket, which is neither empty nor hides what Spark adds.",
        )
    snapshot = table.snapshot()
    known = snapshot.properties.get(f"{_PROPERTY}{_constraint(name)}")
    if name in snapshot.schema and known != _check(name, policy.hash):
        raise UsageError(
            f"{table.name} has a column {name!r} that does not hold the buckets of this policy.",
            hint="choose another name for the column.",
        )
    return policy.hash


def add_bucket_column(table: Table, key: HashKey, name: str) -> None:
    """Adds the column with its constraint, if it is not there yet; operations fill it.

    Raises:
        QueryError: Delta refused it.
    """
    if name in table.snapshot().schema:
        return
    _alter(table, f"ADD COLUMNS ({quote(name)} INT)")
    _alter(table, f"ADD CONSTRAINT {quote(_constraint(name))} CHECK ({_check(name, key)})")


def check_guard(table: Table) -> None:
    """Refuses to guard a table with Delta's own partitions, which exclude clustering.

    Raises:
        UsageError: it has partition columns.
    """
    if table.snapshot().metadata.get("partitionColumns"):
        raise UsageError(
            f"{table.name} has partition columns, and can't be guarded.",
            hint="do without the guard: what an OPTIMIZE mixes is partitioned again.",
        )


def guard_table(table: Table, policy: Policy) -> None:
    """Makes a table `CLUSTER BY` the policy's keys, against other people's OPTIMIZE.

    It leaves files of another clustering provider alone, which only clustered tables have; from
    then on partitioned files are marked as ours. Our own maintenance knows the policy.

    Raises:
        QueryError: Delta refused it.
    """
    _alter(table, f"CLUSTER BY ({', '.join(map(quote, policy.columns))})")


def _alter(table: Table, change: str) -> None:
    try:
        table.spark.sql(f"ALTER TABLE {table.sql_name} {change}")
    except Exception as error:
        raise QueryError(spark_message(error)) from error


def _constraint(name: str) -> str:
    return f"mirrorlake_{name.encode().hex()}"


def _check(name: str, key: HashKey) -> str:
    return f"{quote(name)} IS NULL OR {quote(name)} = {bucket_sql(key.column, key)}"
