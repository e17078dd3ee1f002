"""Store the partitioning policies of a lake's tables, and check that they fit the tables.

This module also adds the bucket column and the guard to a table, if its policy has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mirrorlake.delta.snapshot import Snapshot, open_snapshot, physical_names
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.mirror.options import partitioning_policies
from mirrorlake.names import SCHEMA_SUFFIX, STATE, TableName, is_reserved, quote
from mirrorlake.partitioning.groups import bucket_sql
from mirrorlake.partitioning.policy import (
    HashKey,
    Policy,
    Setting,
    format_timespan,
    format_timestamp,
    now_micros,
    parse_policy,
    parse_timespan,
)
from mirrorlake.spark.sql import query_errors
from mirrorlake.storage.files import Storage

_PROPERTY = "delta.constraints."
_TIMES = ("timestamp", "timestamp_ntz")
_ALL = f"{STATE}/partitioning"
# Older versions refuse a policy with a property that they do not know.
_BESIDE = ("Lookback",)


def read_setting(storage: Storage, name: TableName, *, fitted: bool = True) -> Setting | None:
    """Return a table's setting; None without a policy, or if the policy is of an earlier table.

    Args:
        storage: the lake's files.
        name: the table's name.
        fitted: if False, also return a policy that no longer fits, so that the caller can show,
            change or delete it.

    Raises:
        UsageError: the table has changed so that the policy no longer fits.
    """
    document = partitioning_policies(storage, name).newest()
    if document is None or document["policy"] is None:
        return None
    snapshot = open_snapshot(storage, name)
    if document["table_id"] != snapshot.metadata["id"]:
        return None
    policy, hot = parse_policy(stored_policy(document)), parse_hot(document["hot"])
    setting = Setting(policy, hot, document.get("bucket_column"))
    return _fitted(setting, snapshot) if fitted else setting


def stored_policy(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the policy of a stored document; None if the document records a deletion."""
    policy: dict[str, Any] | None = document["policy"]
    return policy and policy | {name: document[name] for name in _BESIDE if name in document}


def append_policy(storage: Storage, name: TableName, document: dict[str, Any]) -> int:
    """Write the next document of a table's policy and return its number.

    Raises:
        ConflictError: in each of 20 attempts, another writer was first.
        FormatError: the newest document has a newer format, so no document can follow it.
    """
    return partitioning_policies(storage, name).append(document, f"The policy of {name}")


def tables_with_policies(storage: Storage) -> list[TableName]:
    """Return the tables that have, or had, a policy.

    This only lists the folders of policies, so tables without a policy cost nothing.
    """
    found = []
    for folder in storage.list(_ALL).folders:
        if not folder.endswith(SCHEMA_SUFFIX):
            found.append(TableName(None, folder))
            continue
        schema = folder[: -len(SCHEMA_SUFFIX)]
        inner = storage.list(f"{_ALL}/{folder}").folders
        found += [TableName(schema, name) for name in inner]
    return found


def fitting_setting(storage: Storage, name: TableName) -> Setting | None:
    """Return a table's setting for readers; None if the policy no longer fits.

    All files then count as not partitioned.
    """
    try:
        return read_setting(storage, name)
    except UsageError:
        return None


def write_setting(
    storage: Storage, name: TableName, setting: Setting, reason: str, *, dry_run: bool = False
) -> Setting:
    """Append a table's setting to its history, and return it as stored.

    Args:
        storage: the lake's files.
        name: the table's name.
        setting: the setting. If its policy has no effective date, this is now.
        reason: the reason to store in the history.
        dry_run: only check the setting.

    Raises:
        UsageError: the policy does not fit the table.
    """
    snapshot, at = open_snapshot(storage, name), now_micros()
    if setting.policy.effective is None:
        setting = replace(setting, policy=replace(setting.policy, effective=at))
    setting = _fitted(setting, snapshot)
    if not dry_run:
        body = setting.policy.document()
        document = {name: body.pop(name) for name in _BESIDE if name in body} | {
            "table_id": snapshot.metadata["id"],
            "at": format_timestamp(at),
            "reason": reason,
            "policy": body,
            "hot": None if setting.hot is None else format_timespan(setting.hot),
            "bucket_column": setting.bucket_column,
        }
        append_policy(storage, name, document)
    return setting


def remove_setting(storage: Storage, name: TableName) -> None:
    """Delete a table's policy. The history still contains it."""
    document = {
        "table_id": open_snapshot(storage, name).metadata["id"],
        "at": format_timestamp(now_micros()),
        "reason": "deleted",
    }
    append_policy(storage, name, document | dict.fromkeys(("policy", "hot", "bucket_column")))


def parse_hot(text: str | None) -> int | None:
    """Return a timespan in microseconds; None for None."""
    return None if text is None else parse_timespan(text)


def _fitted(setting: Setting, snapshot: Snapshot) -> Setting:
    check_columns(setting.policy, snapshot.fields)
    physical = physical_names(snapshot.metadata)
    return replace(setting, fingerprint=setting.policy.fingerprint(physical))


def check_columns(policy: Policy, fields: list[dict[str, Any]]) -> None:
    """Raise an error if a table lacks a policy's columns or has them with other types.

    Args:
        policy: the policy.
        fields: the table's columns, as in the log.

    Raises:
        UsageError: the message names the column and the allowed types.
    """
    known = {field["name"]: field for field in fields}
    texts, times = (("string",), "text or a guid as text"), (_TIMES, "a datetime")
    for key, (kinds, what) in ((policy.hash, texts), (policy.range, times)):
        if key is None:
            continue
        field = known.get(key.column)
        if field is None:
            raise UsageError(
                f"The table has no column {key.column!r}.",
                hint=f"its columns are {', '.join(known)}.",
            )
        if field["type"] not in kinds:
            raise UsageError(
                f"Column {key.column!r} is {field['type']} but must be {what}.",
                hint=f"use a column of type {' or '.join(kinds)}.",
            )
        if reason := why_not_hashed(field):
            raise UsageError(
                f"Column {key.column!r} {reason}.",
                hint="choose another column, or make it STRING: equal keys must have equal hashes.",
            )


def why_not_hashed(field: dict[str, Any]) -> str | None:
    """Return why equal texts of a column may have different hashes; None if they can't.

    Args:
        field: the column, as in the log.
    """
    metadata = field.get("metadata") or {}
    if metadata.get("__COLLATIONS"):
        return "has a collation, under which different texts are equal"
    kind = str(metadata.get("__CHAR_VARCHAR_TYPE_STRING") or "")
    if kind.startswith("char"):
        return f"is {kind}, under which texts with different trailing blanks are equal"
    return None


def check_bucket_column(table: TableHandle, policy: Policy, name: str) -> HashKey:
    """Check the name of a column for the bucket, and return the hash key.

    The column is for engines that do not read tags. Operations fill it when they write a file. In
    files that are not partitioned, it is NULL. A check constraint refuses all other values, so that
    the bucket is never wrong after a change of the key. If a reader filters by
    `k = 'x' AND (bucket = 10 OR bucket IS NULL)`, it skips the other files by their statistics.

    Raises:
        UsageError: the policy has no hash key, or the column is one of the table's own, or contains
            the buckets of another policy.
    """
    if policy.hash is None:
        raise UsageError("The policy has no hash key, so there is no bucket to store.")
    if not name.strip() or is_reserved(name):
        raise UsageError(
            f"{name!r} can't be the name of the column for the bucket.",
            hint="choose a name that is not empty and not reserved by Spark, such as bucket.",
        )
    snapshot = table.snapshot()
    known = snapshot.properties.get(f"{_PROPERTY}{_constraint(name)}")
    if name in snapshot.schema and known != _check(name, policy.hash):
        raise UsageError(
            f"{table.name} has a column {name!r} that does not contain the buckets of this policy.",
            hint="choose another name for the column.",
        )
    return policy.hash


def add_bucket_column(table: TableHandle, key: HashKey, name: str) -> None:
    """Add the column for the bucket with its constraint, unless it exists.

    Raises:
        QueryError: Delta refused the change.
    """
    if name in table.snapshot().schema:
        return
    _alter(table, f"ADD COLUMNS ({quote(name)} INT)")
    _alter(table, f"ADD CONSTRAINT {quote(_constraint(name))} CHECK ({_check(name, key)})")


def check_guard(table: TableHandle) -> None:
    """Raise an error if a table has partition columns, which exclude clustering and so the guard.

    Raises:
        UsageError: the table has partition columns.
    """
    if table.snapshot().partition_columns:
        raise UsageError(
            f"{table.name} has partition columns and can't be guarded.",
            hint="leave out the guard: files that an OPTIMIZE mixes are partitioned again.",
        )


def guard_table(table: TableHandle, policy: Policy) -> None:
    """Make a table `CLUSTER BY` the policy's keys, as a guard against OPTIMIZE by other writers.

    Files of a clustered table have a clustering provider, and OPTIMIZE skips the files of other
    providers. From then on, partitioned files have mirrorlake as their provider. mirrorlake's own
    maintenance does not need the guard, because it checks for a policy.

    Raises:
        QueryError: Delta refused the change.
    """
    _alter(table, f"CLUSTER BY ({', '.join(map(quote, policy.columns))})")


@query_errors()
def _alter(table: TableHandle, change: str) -> None:
    table.spark.sql(f"ALTER TABLE {table.sql_name} {change}")


def _constraint(name: str) -> str:
    return f"mirrorlake_{name.encode().hex()}"


def _check(name: str, key: HashKey) -> str:
    return f"{quote(name)} IS NULL OR {quote(name)} = {bucket_sql(key.column, key)}"
