"""Open a lake on a storage that a test already has, such as one in memory."""

from __future__ import annotations

from mirrorlake import Lake
from mirrorlake.storage.files import Storage


def lake_of(storage: Storage) -> Lake:
    """Return the lake whose files this storage reads and writes."""
    lake = Lake(storage.root)
    lake.storage = storage
    return lake
