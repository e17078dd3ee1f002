"""`__rowMarker__`: what each published row asks for, and how a file's rows are counted by it."""

from __future__ import annotations

from enum import IntEnum

MARKER = "__rowMarker__"


class Marker(IntEnum):
    """The values of the marker column; 3 is not one of them."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    UPSERT = 4


MARKER_HINT = "markers are 0 insert, 1 update, 2 delete, 4 upsert, as whole numbers."
