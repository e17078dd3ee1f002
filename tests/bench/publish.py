"""Publish record batches; the peer is pyarrow's Parquet writer with the same codec.

The bench also measures the peak memory of a publishing process while its input grows tenfold: small
by large, so 1 means no growth.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from helpers.bench import BenchResult, compare, run_script
from mirrorlake import Lake

ROWS = 50_000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("day", pa.date32())]
)


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        names = pa.array([f"customer {i % 977}" for i in range(ROWS)])
        amounts = pa.array([i * 0.37 for i in range(ROWS)])
        days = pa.array([i % 365 for i in range(ROWS)], pa.int32()).cast(pa.date32())
        yield pa.RecordBatch.from_arrays([ids, names, amounts, days], schema=SCHEMA)


def run(pairs: int) -> BenchResult:
    ready = list(batches(40))
    with tempfile.TemporaryDirectory() as folder:
        publisher = Lake(folder).publisher("t", keys=["id"])

        def ours() -> float:
            began = time.perf_counter()
            publisher.write(pa.RecordBatchReader.from_batches(SCHEMA, iter(ready)))
            return time.perf_counter() - began

        def peer() -> float:
            began = time.perf_counter()
            with pq.ParquetWriter(f"{folder}/plain.parquet", SCHEMA, compression="zstd") as writer:
                for batch in ready:
                    writer.write_batch(batch)
            return time.perf_counter() - began

        result = compare("publish", "2,000,000 rows", ours, peer, pairs)
    here = Path(__file__)
    small, large = (run_script(here, str(n))["peak_mib"] for n in (10, 100))
    return BenchResult(
        "publish",
        result.seconds,
        {**result.ratios, "memory, tenfold input": round(small / large, 2)},
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        Lake(root).publisher("t", keys=["id"]).write(batches(int(sys.argv[1])))
    print(f'{{"peak_mib": {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}}}')
