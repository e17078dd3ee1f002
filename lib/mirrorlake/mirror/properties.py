"""The properties of a mirrored table: its feed, its row ids, its keys, how long it keeps what."""

from __future__ import annotations

import json

from mirrorlake.landing.metadata import TableMetadata

KEYS_PROPERTY = "mirrorlake.keys"
INCARNATION_PROPERTY = "mirrorlake.incarnation"
_ODD = " ,;{}()\n\t="


def creation_properties(
    metadata: TableMetadata, columns: dict[str, str], incarnation: str
) -> dict[str, str]:
    """What version 0 is created with, so that feed and row ids cover everything."""
    return {
        "delta.enableChangeDataFeed": "true",
        "delta.enableRowTracking": "true",
        INCARNATION_PROPERTY: incarnation,
        **keys_property(metadata),
        **mapping_property(columns),
    }


def keys_property(metadata: TableMetadata) -> dict[str, str]:
    """The keys as a JSON list."""
    return {KEYS_PROPERTY: json.dumps(list(metadata.keys), ensure_ascii=False)}


def mapping_property(columns: dict[str, str]) -> dict[str, str]:
    """Column mapping, only where a name has a character that Parquet's writers refuse."""
    odd = any(char in _ODD for name in columns for char in name)
    return {"delta.columnMapping.mode": "name"} if odd else {}


def retention_properties(log_days: int | None, feed_days: int | None) -> dict[str, str]:
    """How long the log reaches back, and removed files with the feed; None leaves Delta's own."""
    found = {}
    if log_days is not None:
        found["delta.logRetentionDuration"] = f"interval {int(log_days)} days"
    if feed_days is not None:
        found["delta.deletedFileRetentionDuration"] = f"interval {int(feed_days)} days"
    return found
