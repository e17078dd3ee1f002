"""Keep the partitioning policies of a lake's tables, and check that they fit the tables.

A policy may add a column for the bucket and a guard to its table; both are done here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mirrorlake.delta.snapshot import Snapshot, open_snapshot, physical_names
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.mirror.properties import partitioning_policies
from mirrorlake.names import SCHEMA_SUFFIX, STATE, TableName
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
from mirrorlake.spark.sql import query_errors, quote
from mirrorlake.storage.files import Storage

_PROPERTY = "delta.constraints."
_RESERVED = ("_metadata", "_change_", "_commit_", "__mirrorlake_")
_TIMES = ("timestamp", "timestamp_ntz")
_ALL = f"{STATE}/partitioning"


def read_setting(storage: Storage, name: TableName, *, fitted: bool = True) -> Setting | None:
    """What is set for a table; None without a policy, or with one of an earlier table only.

    Args:
        storage: the lake's files.
        name: which table.
        fitted: False takes a policy that no longer fits, too: to be shown, changed, deleted.

    Raises:
        UsageError: the table has changed so that the policy no longer fits.
    """
    document = partitioning_policies(storage, name).newest()
    if document is None or document["policy"] is None:
        return None
    snapshot = open_snapshot(storage, name)
    if document["table_id"] != snapshot.metadata["id"]:
        return None
    policy, hot = parse_policy(document["policy"]), parse_hot(document["hot"])
    setting = Setting(policy, hot, document.get("bucket_column"))
    return _fitted(setting, snapshot) if fitted else setting


def append_policy(storage: Storage, name: TableName, document: dict[str, Any]) -> int:
    """Write the next document of a table's policy and return its number.

    Raises:
        ConflictError: other writers won each of 20 attempts.
        FormatError: the newest document has a newer format and can't be superseded.
    """
    return partitioning_policies(storage, name).append(document, f"The policy of {name}")


def tables_with_policies(storage: Storage) -> list[TableName]:
    """Return the tables that have, or had, a policy, from listings of the policies' folders."""
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
    snapshot, at = open_snapshot(storage, name), now_micros()
    if setting.policy.effective is None:
        setting = replace(setting, policy=replace(setting.policy, effective=at))
    setting = _fitted(setting, snapshot)
    if not dry_run:
        document = {
            "table_id": snapshot.metadata["id"],
            "at": format_timestamp(at),
            "reason": reason,
            "policy": setting.policy.document(),
            "hot": None if setting.hot is None else format_timespan(setting.hot),
            "bucket_column": setting.bucket_column,
        }
        append_policy(storage, name, document)
    return setting


def remove_setting(storage: Storage, name: TableName) -> None:
    """Takes a table's policy away; the history keeps it."""
    document = {
        "table_id": open_snapshot(storage, name).metadata["id"],
        "at": format_timestamp(now_micros()),
        "reason": "deleted",
    }
    append_policy(storage, name, document | dict.fromkeys(("policy", "hot", "bucket_column")))


def parse_hot(text: str | None) -> int | None:
    """Microseconds of a timespan; None for none."""
    return None if text is None else parse_timespan(text)


def _fitted(setting: Setting, snapshot: Snapshot) -> Setting:
    check_columns(setting.policy, snapshot.fields)
    physical = physical_names(snapshot.metadata)
    return replace(setting, fingerprint=setting.policy.fingerprint(physical))


def check_columns(policy: Policy, fields: list[dict[str, Any]]) -> None:
    """Refuses a policy whose columns a table lacks, or has with other types.

    Args:
        policy: the policy.
        fields: the table's columns, as the log describes them.

    Raises:
        UsageError: says which column, and what is allowed.
    """
    known = {field["name"]: field for field in fields}
    texts, times = (("string",), "text or a guid as text"), (_TIMES, "a datetime")
    for key, (kinds, what) in ((policy.hash, texts), (policy.range, times)):
        if key is None:
            continue
        field = known.get(key.column)
        if field is None:
            raise UsageError(
                f"The table has no column {key.column!r}.", hint=f"it has {', '.join(known)}."
            )
        if field["type"] not in kinds:
            raise UsageError(
                f"Column {key.column!r} is {field['type']}, and must be {what}.",
                hint=f"allowed types: {', '.join(kinds)}.",
            )
        if reason := why_not_hashed(field):
            raise UsageError(
                f"Column {key.column!r} {reason}.",
                hint="choose another column, or make it STRING: equal keys must have equal hashes.",
            )


def why_not_hashed(field: dict[str, Any]) -> str | None:
    """Why equal texts of a column may have different hashes; None where they can't.

    Args:
        field: the column, as the log describes it.
    """
    metadata = field.get("metadata") or {}
    if metadata.get("__COLLATIONS"):
        return "has a collation, under which different texts are equal"
    kind = str(metadata.get("__CHAR_VARCHAR_TYPE_STRING") or "")
    if kind.startswith("char"):
        return f"is {kind}, and texts are equal whatever blanks they end with"
    return None


def check_bucket_column(table: TableHandle, policy: Policy, name: str) -> HashKey:
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


def add_bucket_column(table: TableHandle, key: HashKey, name: str) -> None:
    """Adds the column with its constraint, if it is not there yet; operations fill it.

    Raises:
        QueryError: Delta refused it.
    """
    if name in table.snapshot().schema:
        return
    _alter(table, f"ADD COLUMNS ({quote(name)} INT)")
    _alter(table, f"ADD CONSTRAINT {quote(_constraint(name))} CHECK ({_check(name, key)})")


def check_guard(table: TableHandle) -> None:
    """Refuses to guard a table with Delta's own partitions, which exclude clustering.

    Raises:
        UsageError: it has partition columns.
    """
    if table.snapshot().partition_columns:
        raise UsageError(
            f"{table.name} has partition columns, and can't be guarded.",
            hint="do without the guard: what an OPTIMIZE mixes is partitioned again.",
        )


def guard_table(table: TableHandle, policy: Policy) -> None:
    """Makes a table `CLUSTER BY` the policy's keys, against other people's OPTIMIZE.

    It leaves files of another clustering provider alone, which only clustered tables have; from
    then on partitioned files are marked as ours. Our own maintenance knows the policy.

    Raises:
        QueryError: Delta refused it.
    """
    _alter(table, f"CLUSTER BY ({', '.join(map(quote, policy.columns))})")


@query_errors()
def _alter(table: TableHandle, change: str) -> None:
    table.spark.sql(f"ALTER TABLE {table.sql_name} {change}")


def _constraint(name: str) -> str:
    return f"mirrorlake_{name.encode().hex()}"


def _check(name: str, key: HashKey) -> str:
    return f"{quote(name)} IS NULL OR {quote(name)} = {bucket_sql(key.column, key)}"
