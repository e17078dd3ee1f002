"""Properties of a mirrored table, and the defaults of a lake's new tables."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mirrorlake.delta.snapshot import Snapshot, read_snapshot
from mirrorlake.landing.metadata import Identity, TableMetadata
from mirrorlake.mirror.options import MirrorOptions
from mirrorlake.names import STATE, TableName
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import NumberedDocuments, read_kept

FORMAT = 1  # of the defaults
POLICY_FORMAT = 1  # of the partitioning policies
_DEFAULTS = f"{STATE}/defaults.json"
KEYS_PROPERTY = "mirrorlake.keys"
INCARNATION_PROPERTY = "mirrorlake.incarnation"
VIEW_PROPERTY = "mirrorlake.view"


def is_stale_incarnation(snapshot: Snapshot | None, identity: Identity) -> bool:
    """Whether a table was filled from, or made for, an earlier incarnation of its folder."""
    if snapshot is None or identity.app_id in snapshot.txns:
        return False
    made_for = snapshot.properties.get(INCARNATION_PROPERTY)
    return bool(snapshot.txns) or made_for != identity.incarnation


def keys_property(metadata: TableMetadata) -> dict[str, str]:
    """The keys as a JSON list."""
    return {KEYS_PROPERTY: json.dumps(list(metadata.keys), ensure_ascii=False)}


def declared_keys(properties: dict[str, str]) -> tuple[str, ...]:
    """The key columns that a table's properties declare."""
    return tuple(json.loads(properties.get(KEYS_PROPERTY, "[]")))


def retention(options: MirrorOptions) -> dict[str, str]:
    """How long the log reaches back, and removed files with the feed, as Delta's properties."""
    days = {
        "delta.logRetentionDuration": options.log_retention_days,
        "delta.deletedFileRetentionDuration": options.feed_retention_days,
    }
    return {name: f"interval {int(n)} days" for name, n in days.items() if n is not None}


@dataclass(frozen=True)
class TableDefaults:
    """The defaults of a lake's new tables.

    Attributes:
        deletion_vectors: whether they have deletion vectors; see `MirrorOptions`.
    """

    deletion_vectors: bool = False


def read_defaults(storage: Storage) -> TableDefaults:
    """Return a lake's defaults.

    Raises:
        FormatError: they are of a newer format.
    """
    document = read_kept(storage, _DEFAULTS, FORMAT) or {}
    return TableDefaults(bool(document.get("deletion_vectors", False)))


def write_defaults(storage: Storage, defaults: TableDefaults) -> None:
    """Write a lake's defaults."""
    storage.write_json(_DEFAULTS, {"format": FORMAT} | asdict(defaults))


def partitioning_policies(storage: Storage, table: TableName) -> NumberedDocuments:
    """Return the documents of a table's partitioning policy; `partitioning` writes them."""
    return NumberedDocuments(storage, f"{table.partitioning_path}/policies", POLICY_FORMAT)


def has_partitioning_policy(storage: Storage, table: TableName) -> bool:
    """Check whether a policy partitions the table's files, so that compaction must not mix them.

    The policy of an earlier table of the same name does not count.
    """
    newest = partitioning_policies(storage, table).newest()
    if newest is None or newest["policy"] is None:
        return False
    snapshot = read_snapshot(storage, table.table_path)
    return snapshot is not None and bool(snapshot.metadata["id"] == newest["table_id"])
