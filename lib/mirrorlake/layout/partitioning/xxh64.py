"""XXH64 in plain Python, and how Spark's own `xxhash64` is given any seed.

Spark's function is XXH64 with the seed 42, and the hash of each argument is the seed of the next. A
number is hashed by steps that can all be undone, so for every seed there is one number that, given
as the first argument, leaves exactly that seed for the second. Source: the XXH64 specification.
"""

from __future__ import annotations

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_MASK = 2**64 - 1
_SPARK_SEED = 42


def xxh64(data: bytes, seed: int = 0) -> int:
    """The hash, from 0 to 2^64 - 1.

    Example:
        >>> hex(xxh64(b""))
        '0xef46db3751d8e999'
    """
    length, position = len(data), 0
    if length >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while position <= length - 32:
            for lane in range(4):
                word = int.from_bytes(data[position : position + 8], "little")
                lanes[lane] = _round(lanes[lane], word)
                position += 8
        turned = sum(_left(v, by) for v, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            turned = ((turned ^ _round(0, lane)) * _P1 + _P4) & _MASK
        state = turned
    else:
        state = (seed + _P5) & _MASK
    state = (state + length) & _MASK
    while position <= length - 8:
        word = int.from_bytes(data[position : position + 8], "little")
        state = (_left(state ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        position += 8
    if position <= length - 4:
        word = int.from_bytes(data[position : position + 4], "little")
        state = (_left(state ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        position += 4
    for byte in data[position:]:
        state = _left(state ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    state = (state ^ state >> 33) * _P2 & _MASK
    state = (state ^ state >> 29) * _P3 & _MASK
    return state ^ state >> 32


def seeding_number(seed: int) -> int:
    """The signed 64-bit number after which Spark's `xxhash64` goes on with this seed.

    Example:
        >>> seeding_number(1)
        -7682426122119481604
    """
    state = seed & _MASK
    state ^= state >> 32
    state = _unshift(state * _inverse(_P3) & _MASK, 29)
    state = _unshift(state * _inverse(_P2) & _MASK, 33)
    state = _left((state - _P4) * _inverse(_P1) & _MASK, 64 - 27)
    word = state ^ ((_SPARK_SEED + _P5 + 8) & _MASK)
    word = _left(word * _inverse(_P1) & _MASK, 64 - 31) * _inverse(_P2) & _MASK
    return word - 2**64 if word >= 2**63 else word


def _round(lane: int, word: int) -> int:
    return _left((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _left(value: int, by: int) -> int:
    value &= _MASK
    return (value << by | value >> (64 - by)) & _MASK


def _unshift(value: int, by: int) -> int:
    """Undoes `v ^ v >> by`, where `by` is at least a third of 64."""
    return value ^ value >> by ^ value >> 2 * by


def _inverse(factor: int) -> int:
    return pow(factor, -1, 2**64)
