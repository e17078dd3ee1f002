"""A slow, obvious writer of deletion vectors."""

from __future__ import annotations

import base64
import struct
from typing import Any

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def inline_vector(positions: set[int]) -> dict[str, Any]:
    """Return a deletion vector that is stored in the log."""
    data = serialised(sorted(positions), runs=False)
    text = base64.b85encode(data + b"\0" * (-len(data) % 4))
    inline = text.decode().translate(str.maketrans(_B85, _Z85))
    return {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": len(data),
            "cardinality": len(positions)}  # fmt: skip


def serialised(positions: list[int], *, runs: bool) -> bytes:
    """Return positions in the format of deletion vectors."""
    by_high: dict[int, dict[int, list[int]]] = {}
    for p in sorted(set(positions)):
        by_high.setdefault(p >> 32, {}).setdefault((p >> 16) & 0xFFFF, []).append(p & 0xFFFF)
    data = struct.pack("<iq", 1_681_511_377, len(by_high))
    for high, containers in by_high.items():
        data += struct.pack("<I", high)
        if runs:
            flags = bytearray((len(containers) + 7) // 8)
            for i in range(len(containers)):
                flags[i // 8] |= 1 << i % 8
            data += struct.pack("<I", 12_347 | (len(containers) - 1) << 16) + bytes(flags)
        else:
            data += struct.pack("<II", 12_346, len(containers))
        for key, low in containers.items():
            data += struct.pack("<HH", key, len(low) - 1)
        if not runs or len(containers) >= 4:
            data += b"\0\0\0\0" * len(containers)
        for low in containers.values():
            if runs:
                here = set(low)
                starts = [v for v in low if v - 1 not in here]
                ends = [v for v in low if v + 1 not in here]
                pairs = zip(starts, ends, strict=True)
                data += struct.pack("<H", len(starts)) + b"".join(
                    struct.pack("<HH", start, end - start) for start, end in pairs
                )
            elif len(low) <= 4_096:
                data += struct.pack(f"<{len(low)}H", *low)
            else:
                bits = bytearray(8_192)
                for v in low:
                    bits[v // 8] |= 1 << v % 8
                data += bytes(bits)
    return data
