"""Policies of the lake's tables: set, changed, shown, deleted, and kept with their history."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from mirrorlake.delta_log import Snapshot, physical_names, read_snapshot
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.layout.partitioning.policy import (
    Policy,
    check_columns,
    merge_policy,
    parse_policy,
    why_not_hashed,
)
from mirrorlake.layout.partitioning.timespan import (
    format_moment,
    format_timespan,
    parse_moment,
    parse_timespan,
    to_micros,
)
from mirrorlake.names import TableName
from mirrorlake.policy_log import all_policies, append_policy, newest_policy
from mirrorlake.storage import Storage
from mirrorlake.text_table import TextTable

POLICY_NAME = "DataPartitioning"
_COLUMNS = ("PolicyName", "EntityName", "Policy", "ChildEntities", "EntityType")


@dataclass(frozen=True)
class Setting:
    """A table's policy and what belongs to it.

    Attributes:
        policy: the policy; None after it was deleted.
        hot: files created longer ago are cold and stay as they are, microseconds; None for never.
        at: since when it is so, microseconds since 1970.
        reason: who or what wanted it so.
        fingerprint: what the files' tags name.
        bucket_column: the column in which operations store the bucket; None for none.
    """

    policy: Policy | None
    hot: int | None
    at: int
    reason: str
    fingerprint: str = ""
    bucket_column: str | None = None


def now_micros() -> int:
    """This moment, microseconds since 1970."""
    return to_micros(datetime.now(timezone.utc))


def set_policy(
    storage: Storage,
    name: TableName,
    document: Any,
    *,
    hot: str | None = None,
    bucket_column: str | None = None,
    reason: str = "set",
    now: int | None = None,
    dry_run: bool = False,
) -> Setting:
    """Gives a table a policy, in place of the one it had.

    Args:
        storage: the lake's files.
        name: which table.
        document: the original's JSON, as a mapping or as text. Without `EffectiveDateTime` only
            files created from now on are partitioned.
        hot: a timespan; older files are left as they are. By default all files are hot.
        bucket_column: the column in which operations store the bucket.
        reason: kept in the history.
        now: the moment that counts as now, microseconds since 1970.
        dry_run: only say what would be set.

    Raises:
        UsageError: the document is no policy, or the table's columns don't fit.
        TableNotFoundError: there is no such table.
    """
    policy = parse_policy(read_document(document))
    return _write(storage, name, policy, _hot(hot), bucket_column, reason, now, dry_run)


def alter_policy(
    storage: Storage,
    name: TableName,
    changes: Any,
    *,
    hot: str | None = None,
    reason: str = "altered",
    now: int | None = None,
    dry_run: bool = False,
) -> Setting:
    """Changes some properties of a table's policy, as `.alter-merge` does.

    Args:
        storage: the lake's files.
        name: which table.
        changes: the properties to change, as a mapping or as text.
        hot: a timespan instead of the one set before.
        reason: kept in the history.
        now: the moment that counts as now, microseconds since 1970.
        dry_run: only say what would be set.

    Raises:
        UsageError: there is no policy, or what comes out is none.
    """
    setting = kept_setting(storage, name)
    if setting is None or setting.policy is None:
        raise UsageError(f"{name} has no partitioning policy.", hint="set one first.")
    policy = merge_policy(setting.policy, read_document(changes))
    kept = setting.hot if hot is None else _hot(hot)
    # With other buckets the column would be wrong, and is no longer filled.
    same = policy.hash is not None and policy.hash.buckets_like(setting.policy.hash)
    column = setting.bucket_column if same else None
    return _write(storage, name, policy, kept, column, reason, now, dry_run)


def delete_policy(storage: Storage, name: TableName, *, dry_run: bool = False) -> None:
    """Takes a table's policy away; its files stay as they are. A dry run only checks.

    Raises:
        UsageError: there is none.
    """
    setting = kept_setting(storage, name)
    if setting is None or setting.policy is None:
        raise UsageError(f"{name} has no partitioning policy.")
    if not dry_run:
        deleted = Setting(None, None, now_micros(), "deleted")
        _append(storage, name, _snapshot(storage, name), deleted)


def read_setting(storage: Storage, name: TableName) -> Setting | None:
    """What is set for a table; None if nothing ever was, or only for an earlier table.

    Raises:
        UsageError: the table has changed so that the policy no longer fits.
    """
    setting, snapshot = _kept(storage, name)
    if setting is None or setting.policy is None or snapshot is None:
        return setting
    return _fitted(setting, snapshot)


def kept_setting(storage: Storage, name: TableName) -> Setting | None:
    """The same, whether or not the policy still fits the table: to be shown, changed, deleted."""
    return _kept(storage, name)[0]


def fitting_setting(storage: Storage, name: TableName) -> Setting | None:
    """The same for those who read: a policy that no longer fits is none, and no file has tags."""
    try:
        return read_setting(storage, name)
    except UsageError:
        return None


def _kept(storage: Storage, name: TableName) -> tuple[Setting | None, Snapshot | None]:
    document = newest_policy(storage, name)
    if document is None:
        return None, None
    snapshot = _snapshot(storage, name)
    if document["table_id"] != snapshot.metadata["id"]:
        return None, None
    return _setting(document), snapshot


def read_history(storage: Storage, name: TableName) -> TextTable:
    """All policies that a table has had, the oldest first."""
    settings = [_setting(document) for document in all_policies(storage, name)]
    rows = [
        (format_moment(one.at), one.reason, _text(one.policy), _span(one.hot)) for one in settings
    ]
    return TextTable(("At", "Reason", "Policy", "Hot"), tuple(rows))


def show_policy(storage: Storage, name: TableName) -> TextTable:
    """The policy's row, as the original shows it; `Policy` is NULL where there is none."""
    setting = kept_setting(storage, name)
    return policy_row(name, None if setting is None else setting.policy)


def policy_row(name: TableName, policy: Policy | None) -> TextTable:
    """A policy's row, as the original shows it."""
    return TextTable(_COLUMNS, ((POLICY_NAME, str(name), _text(policy), None, "Table"),))


def _fitted(setting: Setting, snapshot: Snapshot) -> Setting:
    assert setting.policy is not None
    fields = json.loads(snapshot.metadata["schemaString"])["fields"]
    check_columns(setting.policy, {field["name"]: field["type"] for field in fields})
    for field in fields:
        reason = why_not_hashed(field)
        if field["name"] in setting.policy.columns and reason:
            raise UsageError(
                f"Column {field['name']!r} {reason}.",
                hint="choose another column, or make it STRING: equal keys must have equal hashes.",
            )
    physical = physical_names(snapshot.metadata)
    return replace(setting, fingerprint=setting.policy.fingerprint(physical))


def _write(
    storage: Storage,
    name: TableName,
    policy: Policy,
    hot: int | None,
    bucket_column: str | None,
    reason: str,
    now: int | None,
    dry_run: bool,
) -> Setting:
    snapshot = _snapshot(storage, name)
    at = now_micros() if now is None else now
    if policy.effective is None:
        policy = replace(policy, effective=at)
    setting = _fitted(Setting(policy, hot, at, reason, "", bucket_column), snapshot)
    if not dry_run:
        _append(storage, name, snapshot, setting)
    return setting


def _append(storage: Storage, name: TableName, snapshot: Snapshot, setting: Setting) -> None:
    document = {
        "table_id": snapshot.metadata["id"],
        "at": format_moment(setting.at),
        "reason": setting.reason,
        "policy": None if setting.policy is None else setting.policy.document(),
        "hot": _span(setting.hot),
        "bucket_column": setting.bucket_column,
    }
    append_policy(storage, name, document)


def _setting(document: dict[str, Any]) -> Setting:
    kept = document["policy"]
    policy = None if kept is None else parse_policy(kept)
    at = parse_moment(document["at"])
    column = document.get("bucket_column")
    return Setting(policy, _hot(document["hot"]), at, document["reason"], "", column)


def _snapshot(storage: Storage, name: TableName) -> Snapshot:
    snapshot = read_snapshot(storage, name.table_path)
    if snapshot is None:
        raise TableNotFoundError(f"There is no table {name} in the lake.")
    return snapshot


def read_document(given: Any) -> Any:
    """A policy's JSON document, parsed where it is text."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The policy is no JSON: {error}.") from error


def _hot(text: str | None) -> int | None:
    return None if text is None else parse_timespan(text)


def _span(micros: int | None) -> str | None:
    return None if micros is None else format_timespan(micros)


def _text(policy: Policy | None) -> str | None:
    return None if policy is None else json.dumps(policy.document(), ensure_ascii=False)
