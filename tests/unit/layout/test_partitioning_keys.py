"""XXH64, buckets and timespans without Spark, against published vectors."""

from __future__ import annotations

import pytest
from xxhash import xxh64_intdigest as xxh64

from mirrorlake.errors import UsageError
from mirrorlake.partitioning import groups
from mirrorlake.partitioning import policy as policies

PRIME32 = 2654435761
PRIME64 = 11400714785074694797
# xxHash's own sanity test: length, seed, hash of its generated buffer.
SANITY = [
    (0, 0, 0xEF46DB3751D8E999),
    (0, PRIME32, 0xAC75FDA2929B17EF),
    (1, 0, 0xE934A84ADB052768),
    (1, PRIME32, 0x5014607643A9B4C3),
    (4, 0, 0x9136A0DCA57457EE),
    (14, 0, 0x8282DCC4994E35C8),
    (14, PRIME32, 0xC3BD6BF63DEB6DF0),
    (222, 0, 0xB641AE8CB691C174),
    (222, PRIME32, 0x20CB8AB7AE10C14A),
]


def sanity_buffer(length: int) -> bytes:
    state, found = PRIME32, bytearray()
    for _ in range(length):
        found.append(state >> 56)
        state = state * PRIME64 % 2**64
    return bytes(found)


def test_xxh64_passes_its_authors_sanity_test() -> None:
    for length, seed, wanted in SANITY:
        assert xxh64(sanity_buffer(length), seed) == wanted, (length, seed)


def test_published_hashes_and_buckets() -> None:
    assert xxh64(b"World", 0) == 1846988464401551951
    assert (
        groups.bucket_of("f83a65e0-da2b-42be-b59b-a8e25ea3954c", policies.HashKey("t", 128, 1))
        == 10
    )
    assert groups.bucket_of(None, policies.HashKey("t")) == groups.bucket_of(
        "", policies.HashKey("t")
    )
    assert groups.seeding_number(1) == -7682426122119481604
    assert groups.seeding_number(0) == -365884300664092260


def test_the_hash_of_the_seeding_number_is_the_seed() -> None:
    for seed in (0, 1, 2, 42, 2**31, 2**63 - 1):
        number = groups.seeding_number(seed)
        assert xxh64(number.to_bytes(8, "little", signed=True), 42) == seed


def test_timespans_and_timestamps() -> None:
    day = 86_400_000_000
    for text, wanted in (
        ("1.00:00:00", day),
        ("7.00:00:00", 7 * day),
        ("1d", day),
        ("1.5d", day * 3 // 2),
        ("24h", day),
        ("90m", 5_400_000_000),
        ("90 minutes", 5_400_000_000),
        ("10s", 10_000_000),
        ("100ms", 100_000),
        ("3microseconds", 3),
        ("20ticks", 2),
        ("time(7d)", 7 * day),
        ("timespan( 1.02:03:04.5670000 )", day + 7_384_567_000),
        ("2", 2 * day),
        ("00:05", 300_000_000),
    ):
        assert policies.parse_timespan(text) == wanted, text
        assert policies.parse_timespan(policies.format_timespan(wanted)) == wanted
    for text in (
        "",
        "1 fortnight",
        "-1d",
        "25:00:00",
        "00:60:00",
        "1.00:00:00.0000001",
        "1tick",
        "10675200d",
    ):
        with pytest.raises(UsageError):
            policies.parse_timespan(text)
    for text, wanted in (
        ("1970-01-01", 0),
        ("1970-01-01T00:00:00Z", 0),
        ("datetime(1969-12-31 23:59:59.5)", -500_000),
        ("1970-01-01T01:00:00.0000010+01:00", 1),
        ("2021-01-01T00:00:00.1234567", 1_609_459_200_123_456),
    ):
        assert policies.parse_timestamp(text) == wanted, text
        assert policies.parse_timestamp(policies.format_timestamp(wanted)) == wanted
    assert policies.parse_timespan("10675199d") < 2**63 // 10
    with pytest.raises(UsageError, match="at most 10675199"):
        policies.parse_timespan("9" * 30 + "d")
    for text in ("1 January", "", "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"):
        with pytest.raises(UsageError, match="not a timestamp"):
            policies.parse_timestamp(text)
