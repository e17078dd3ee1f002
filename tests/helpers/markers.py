"""The row markers of the landing zone, as its format has them; not the library's own names."""

from __future__ import annotations

from enum import IntEnum

MARKER = "__rowMarker__"
UNCHANGED = "__unchanged__"  # the library's own: the columns that an update leaves as they are


class Marker(IntEnum):
    INSERT = 0
    UPDATE = 1
    DELETE = 2
    UPSERT = 4
