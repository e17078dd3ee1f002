"""Policies of the lake's tables: kept with their history, and what they change of the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mirrorlake.delta.snapshot import (
    Snapshot,
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
    parse_policy,
)
from mirrorlake.layout.partitioning.timespan import (
    format_timespan,
    format_timestamp,
    now_micros,
    parse_timespan,
)
from mirrorlake.names import TableName
from mirrorlake.spark.sql import quote, spark_message
from mirrorlake.storage import Storage

_PROPERTY = "delta.constraints."
_RESERVED = ("_metadata", "_change_", "_commit_", "__mirrorlake_")
_KEPT = ("policy", "hot", "bucket_column")
Kept = tuple[dict[str, Any] | None, str | None, str | None]


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


def read_setting(storage: Storage, name: TableName, *, fitted: bool = True) -> Setting | None:
    """What is set for a table; None without a policy, or with one of an earlier table only.

    Args:
        storage: the lake's files.
        name: which table.
        fitted: False takes a policy that no longer fits, too: to be shown, changed, deleted.

    Raises:
        UsageError: the table has changed so that the policy no longer fits.
    """
    document = newest_policy(storage, name)
    if document is None or document["policy"] is None:
        return None
    snapshot = _snapshot(storage, name)
    if document["table_id"] != snapshot.metadata["id"]:
        return None
    policy, hot = parse_policy(document["policy"]), parse_hot(document["hot"])
    setting = Setting(policy, hot, document.get("bucket_column"))
    return _fitted(setting, snapshot) if fitted else setting


def fitting_setting(storage: Storage, name: TableName) -> Setting | None:
    """The same for readers: a policy that no longer fits counts as none, and no file has tags."""
    try:
        return read_setting(storage, name)
    except UsageError:
        return None


def write_setting(
    storage: Storage, name: TableName, setting: Setting, reason: str, *, dry_run: bool = False
) -> Setting:
    """Puts a table's setting into its history, and returns it as it is kept.

    Args:
        storage: the lake's files.
        name: which table.
        setting: the setting; without a date its policy holds from now on.
        reason: kept in the history.
        dry_run: check only.

    Raises:
        UsageError: the policy does not fit the table.
    """
    snapshot, at = _snapshot(storage, name), now_micros()
    if setting.policy.effective is None:
        setting = replace(setting, policy=replace(setting.policy, effective=at))
    setting = _fitted(setting, snapshot)
    if not dry_run:
        hot = None if setting.hot is None else format_timespan(setting.hot)
        kept = (setting.policy.document(), hot, setting.bucket_column)
        _append(storage, name, snapshot, at, reason, kept)
    return setting


def remove_setting(storage: Storage, name: TableName) -> None:
    """Takes a table's policy away; the history keeps it."""
    _append(storage, name, _snapshot(storage, name), now_micros(), "deleted", (None, None, None))


def parse_hot(text: str | None) -> int | None:
    """Microseconds of a timespan; None for none."""
    return None if text is None else parse_timespan(text)


def _fitted(setting: Setting, snapshot: Snapshot) -> Setting:
    check_columns(setting.policy, snapshot.fields)
    physical = physical_names(snapshot.metadata)
    return replace(setting, fingerprint=setting.policy.fingerprint(physical))


def _append(
    storage: Storage, name: TableName, snapshot: Snapshot, at: int, reason: str, kept: Kept
) -> None:
    known = {"table_id": snapshot.metadata["id"], "at": format_timestamp(at), "reason": reason}
    append_policy(storage, name, known | dict(zip(_KEPT, kept, strict=True)))


def _snapshot(storage: Storage, name: TableName) -> Snapshot:
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        raise TableNotFoundError(f"There is no table {name} in the lake.")
    return snapshot


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
