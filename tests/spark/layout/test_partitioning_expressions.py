"""Buckets and bins of Spark against plain Python: many texts, seeds, counts and timestamps."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from helpers.partitions import bin_start
from mirrorlake.partitioning import groups
from mirrorlake.partitioning import policy as policies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_buckets_of_any_seed_and_count(spark: SparkSession) -> None:
    chance = random.Random(1)
    alphabet = "aZ09 -`'\"\\\0é漢🙂"
    texts: list[str | None] = ["".join(chance.choices(alphabet, k=k % 70)) for k in range(400)]
    texts += [None, "", "N/A", "World", "f83a65e0-da2b-42be-b59b-a8e25ea3954c"]
    keys = [
        policies.HashKey("k", count, seed)
        for count in (2, 3, 7, 100, 128, 1000, 2047, 2048)
        for seed in (1, 2, 2**63 - 1)
    ]
    frame = spark.createDataFrame([(text,) for text in texts], "k string")
    rows = frame.select("k", *[F.expr(groups.bucket_sql("k", key)) for key in keys]).collect()
    assert len(rows) == len(texts)
    for row in rows:
        assert list(row[1:]) == [groups.bucket_of(row["k"], key) for key in keys], row["k"]
    found = {row["k"]: row[1 + keys.index(policies.HashKey("k", 128, 1))] for row in rows}
    assert found["f83a65e0-da2b-42be-b59b-a8e25ea3954c"] == 10
    assert found[None] == found[""]


@pytest.mark.promise("PP-07")
def test_bins_by_reference_and_size(spark: SparkSession) -> None:
    """Kusto's own examples, timestamps before the reference, NULL; no time zone changes a bin."""
    utc = timezone.utc
    cases = [
        # moment, size, reference, and the start of its bin
        ("2017-05-15T10:20", "1d", "1970-01-01T12:00", "2017-05-14T12:00"),
        ("2017-05-17T10:20", "7.00:00:00", "2017-06-04", "2017-05-14"),
        ("1969-12-31T23:59:59.999999", "1.00:00:00", "1970-01-01", "1969-12-31"),
        ("2021-01-01", "7d", "2021-01-01", "2021-01-01"),
        ("0001-02-03", "time(1h)", "2021-01-01T00:30", "0001-02-02T23:30"),
        (None, "7d", "2021-01-01", "2021-01-01"),
    ]
    chance = random.Random(2)
    moments: list[datetime | None] = [None] + [
        datetime(1970, 1, 1, tzinfo=utc) + timedelta(microseconds=chance.randint(-(10**16), 10**16))
        for _ in range(300)
    ]
    moments += [
        None if c[0] is None else policies.from_micros(policies.parse_timestamp(c[0]))
        for c in cases
    ]
    keys = [
        policies.RangeKey("t", policies.parse_timestamp(ref), policies.parse_timespan(size))
        for _, size, ref, _ in cases
    ]
    zone = spark.conf.get("spark.sql.session.timeZone")
    frame = spark.createDataFrame(
        [(None if m is None else policies.to_micros(m),) for m in moments], "u long"
    )
    try:
        for name in ("UTC", "Asia/Kathmandu"):
            spark.conf.set("spark.sql.session.timeZone", name)
            start = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
            both = frame.select(
                "u",
                F.expr("timestamp_micros(u)").alias("t"),
                F.expr(f"timestampadd(MICROSECOND, u, {start})").alias("n"),
            )
            assert dict(both.dtypes)["n"] == "timestamp_ntz"
            columns = [
                groups.bin_of(groups.micros(column, with_zone=column == "t"), key)
                for key in keys
                for column in ("t", "n")
            ]
            for row in both.select("u", *columns).collect():
                moment = (
                    None
                    if row["u"] is None
                    else datetime(1970, 1, 1, tzinfo=utc) + timedelta(microseconds=row["u"])
                )
                wanted = [
                    bin_start(moment, policies.Policy(range=key)) for key in keys for _ in range(2)
                ]
                assert list(row[1:]) == wanted, moment
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    for (moment, *_, wanted), key in zip(cases, keys, strict=True):
        when = None if moment is None else policies.from_micros(policies.parse_timestamp(moment))
        assert bin_start(when, policies.Policy(range=key)) == policies.parse_timestamp(wanted), (
            moment
        )
