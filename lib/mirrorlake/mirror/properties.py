"""The properties of a mirrored table: its feed, its row ids, its keys, how long it keeps what."""

from __future__ import annotations

import json

from mirrorlake.delta.create import OWN_TABLE, mapping_property
from mirrorlake.delta.snapshot import FEED, Snapshot
from mirrorlake.landing.identity import Identity
from mirrorlake.landing.metadata import TableMetadata

KEYS_PROPERTY = "mirrorlake.keys"
INCARNATION_PROPERTY = "mirrorlake.incarnation"
VIEW_PROPERTY = "mirrorlake.view"
_FEED_RESTS = "mirrorlake.feedRests"  # switched off by the mirror, which switches it on again


def is_stale_incarnation(snapshot: Snapshot | None, identity: Identity) -> bool:
    """Whether a table was filled from, or made for, an earlier incarnation of its folder."""
    if snapshot is None or identity.app_id in snapshot.txns:
        return False
    made_for = snapshot.properties.get(INCARNATION_PROPERTY)
    return bool(snapshot.txns) or made_for != identity.incarnation


def creation_properties(metadata: TableMetadata, incarnation: str) -> dict[str, str]:
    """What version 0 is created with, so that feed and row ids cover everything."""
    return OWN_TABLE | {INCARNATION_PROPERTY: incarnation} | keys_property(metadata)


def keys_property(metadata: TableMetadata) -> dict[str, str]:
    """The keys as a JSON list."""
    return {KEYS_PROPERTY: json.dumps(list(metadata.keys), ensure_ascii=False)}


def suspend_feed(
    known: dict[str, str], before: dict[str, str], after: dict[str, str]
) -> dict[str, str]:
    """What to set before a table is replaced by one of other columns; empty where nothing is.

    With column mapping Delta refuses to drop columns and write rows in one commit while the feed is
    on. Nobody can read a feed across that commit anyway.

    Args:
        known: the table's properties.
        before: its columns with their types.
        after: the columns it will have.
    """
    mapped = known.get("delta.columnMapping.mode", "none") != "none" or mapping_property(after)
    drops = any(after.get(name) != kind for name, kind in before.items())
    if mapped and drops and known.get(FEED) == "true":
        return {FEED: "false", _FEED_RESTS: "true"}
    return {}


def reenable_feed(known: dict[str, str]) -> dict[str, str]:
    """What to set after such a commit."""
    return {FEED: "true", _FEED_RESTS: "false"} if known.get(_FEED_RESTS) == "true" else {}


def retention_properties(log_days: int | None, feed_days: int | None) -> dict[str, str]:
    """How long the log reaches back, and removed files with the feed; None leaves Delta's own."""
    found = {}
    if log_days is not None:
        found["delta.logRetentionDuration"] = f"interval {int(log_days)} days"
    if feed_days is not None:
        found["delta.deletedFileRetentionDuration"] = f"interval {int(feed_days)} days"
    return found
