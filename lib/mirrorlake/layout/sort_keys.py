"""Values as bytes that sort like the values: for ranges of different types in one column."""

from __future__ import annotations

import struct
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def sort_key(value: Any) -> bytes | None:
    """Bytes whose order is the order of the values of one type; None for what has no order here.

    Example:
        >>> sort_key(-1) < sort_key(0) < sort_key(256)
        True
        >>> sort_key(-1.5) < sort_key(0.0) < sort_key(1e300)
        True
    """
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return (value + 2**63).to_bytes(9, "big")
    if isinstance(value, float):
        bits: int = struct.unpack(">Q", struct.pack(">d", value))[0]
        flipped = bits ^ (2**64 - 1 if bits >> 63 else 1 << 63)
        return flipped.to_bytes(8, "big")
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, Decimal):
        # The unscaled number, of 38 digits at most: all values of a column have one scale.
        sign, digits, _ = value.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        return (unscaled + 10**39).to_bytes(17, "big")
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        passed = moment - _EPOCH
        micros = (passed.days * 86_400 + passed.seconds) * 10**6 + passed.microseconds
        return sort_key(micros)
    if isinstance(value, date):
        return sort_key(value.toordinal())
    if isinstance(value, time):
        return value.isoformat().encode()
    return None
