"""V-Order: bytes of all candidate orders, scans before and after, and the rewrite against OPTIMIZE.

Data: the flights, a star fact of 2,000,000 × 16, and a log with wide strings; all are shuffled,
like a table with many writers. Bytes are of whole files with the same writer and codec, so a ratio
is shuffled by ordered. Scans read three columns behind a filter.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from helpers.bench import BenchResult, join_results
from mirrorlake import Lake
from mirrorlake.layout import vorder
from mirrorlake_lab import flights as sample

SCANS = {
    "flights": (["carrier", "dest", "arr_delay"], "origin", "JFK"),
    "star": (["store", "date", "amount"], "channel", "web"),
    "wide": (["host", "status", "bytes"], "agent", None),
}


def star(count: int = 2_000_000) -> pa.Table:
    """Return a fact with five dimensions, dependent columns, and measures."""
    rng = np.random.default_rng(1)

    def zipf(size: int, steep: float = 1.2) -> np.ndarray:
        return (rng.zipf(steep, count) - 1) % size

    day, store, product = rng.integers(0, 730, count), zipf(120), zipf(3000, 1.3)
    customer, promo = zipf(60_000, 1.1), np.where(rng.random(count) < 0.8, 0, zipf(25))
    price = np.random.default_rng(7).integers(100, 20_000, 3000)[product]
    quantity = np.minimum(rng.geometric(0.45, count), 12)
    discount = np.where(promo > 0, (promo * 7) % 11, 0)
    return pa.table(
        {
            "date": pa.array((day + 18_000).astype("int32")).cast(pa.date32()),
            "month": (day // 30).astype("int32"),
            "store": store.astype("int32"),
            "region": (store % 9).astype("int32"),
            "channel": pa.array(["web", "shop", "phone", "app"]).take(pa.array(store % 4)),
            "product": product.astype("int32"),
            "category": pa.array([f"category {i}" for i in range(40)]).take(pa.array(product % 40)),
            "brand": pa.array([f"brand {i}" for i in range(300)]).take(pa.array(product % 300)),
            "customer": customer.astype("int64"),
            "segment": (customer % 5).astype("int32"),
            "promo": promo.astype("int32"),
            "discount": discount.astype("int32"),
            "quantity": quantity.astype("int32"),
            "price": price / 100,
            "amount": np.round(price * quantity * (100 - discount) / 100) / 100,
            "currency": pa.array(["EUR", "USD", "GBP"]).take(pa.array(store % 3)),
        }
    )


def wide(count: int = 300_000) -> pa.Table:
    """Return the log of a web server."""
    rng = np.random.default_rng(2)
    host, path, agent = (rng.zipf(a, count) % n for a, n in ((1.3, 200), (1.2, 5000), (1.4, 60)))
    status = rng.choice([200, 200, 200, 304, 404, 500], count)
    hosts = [f"server-{i:03d}.region-{i % 7}.example.org" for i in range(200)]
    paths = [f"/shop/{i % 31}/articles/{i * 7919 % 5000:05d}?from={i % 13}" for i in range(5000)]
    agents = [f"Mozilla/5.0 (platform {i}) Engine/{i * 3}.{i % 7} Browser/{i}" for i in range(60)]
    moments = np.cumsum(rng.integers(0, 2_000_000, count))
    return pa.table(
        {
            "at": pa.array(moments, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "host": pa.array(hosts).take(pa.array(host)),
            "path": pa.array(paths).take(pa.array(path)),
            "agent": pa.array(agents).take(pa.array(agent)),
            "status": status.astype("int32"),
            "bytes": path * 37 % 9000 + rng.integers(0, 3, count),
            "session": [f"{x:016x}" for x in rng.integers(0, count // 20, count)],
        }
    )


def flights() -> pa.Table:
    return pa.Table.from_pandas(sample.load_flights(), preserve_index=False)


DATA = {"flights": flights, "star": star, "wide": wide}


def one_data_set(name: str, pairs: int) -> BenchResult:
    """Measure bytes and scans of one data set."""
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        compare_bytes(name, DATA[name](), Path(folder), ratios)
        compare_scans(name, Path(folder), pairs, seconds, ratios)
    return BenchResult("vorder", seconds, ratios)


def rewrite(pairs: int) -> BenchResult:
    """Compare the V-Order rewrite of a table's files with `OPTIMIZE`."""
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = shuffle(star())
        (Path(folder) / "star.parquet").write_bytes(vorder.encode(rows, {}))
        compare_rewrite(Path(folder), pairs, seconds, ratios)
    return BenchResult("vorder", seconds, ratios)


PARTS: dict[str, Callable[[int], BenchResult]] = {
    **{name: partial(one_data_set, name) for name in DATA},
    "rewrite": rewrite,
}


def run(pairs: int) -> BenchResult:
    return join_results("vorder", (part(pairs) for part in PARTS.values()))


def shuffle(rows: pa.Table) -> pa.Table:
    return rows.take(np.random.default_rng(3).permutation(rows.num_rows))


def compare_bytes(name: str, rows: pa.Table, folder: Path, ratios: dict[str, float]) -> None:
    """Compare shuffled bytes with those of every candidate order and of the chosen one."""
    shuffled = shuffle(rows)
    base = len(vorder.encode(shuffled, {}))
    ratios[f"{name}, bytes, natural"] = round(base / len(vorder.encode(rows, {})), 3)

    def score(some: pa.Table) -> int:
        return len(vorder.encode(some, {}, level=1))

    chosen, tried = vorder.choose_order(shuffled, score)
    for one in tried:
        moved = shuffled.take(vorder.sort_permutation(shuffled, one.columns))
        data = vorder.encode(moved, {})
        label = one.kind + (f" of {len(one.columns)}" if one.columns else "")
        ratios[f"{name}, bytes, {label}"] = round(base / len(data), 3)
        if one == chosen:
            ratios[f"{name}, bytes, chosen"] = round(base / len(data), 3)
            (folder / f"{name}-after.parquet").write_bytes(data)
    (folder / f"{name}-before.parquet").write_bytes(vorder.encode(shuffled, {}))


def compare_scans(
    name: str, folder: Path, pairs: int, seconds: dict[str, float], ratios: dict[str, float]
) -> None:
    """Compare scans of three columns with three engines, on the file before and after."""
    columns, where, value = SCANS[name]
    files = [str(folder / f"{name}-{when}.parquet") for when in ("after", "before")]
    if value is None:
        value = pq.read_table(files[0], columns=[where])[where][0].as_py()
    spark = Lake(folder).spark

    def by_duckdb(file: str) -> None:
        listed = ", ".join(f'max("{c}")' for c in columns)
        duckdb.sql(f"SELECT {listed} FROM '{file}' WHERE \"{where}\" = '{value}'").fetchall()

    def by_pyarrow(file: str) -> None:
        ds.dataset(file).to_table(columns=columns, filter=pc.field(where) == value)

    def by_spark(file: str) -> None:
        frame = spark.read.parquet(file).where(f"`{where}` = '{value}'").select(*columns)
        frame.write.format("noop").mode("overwrite").save()

    engines = {"DuckDB": by_duckdb, "pyarrow": by_pyarrow, "Spark": by_spark}
    for engine, scan in engines.items():
        for file in files:
            scan(file)
        timed = [(clock(scan, files[0]), clock(scan, files[1])) for _ in range(2 * pairs + 1)]
        what = f"{name}, scan by {engine}"
        seconds[what] = round(statistics.median(one for one, _ in timed), 4)
        ratios[what] = round(statistics.median(other / one for one, other in timed), 2)


def compare_rewrite(
    folder: Path, pairs: int, seconds: dict[str, float], ratios: dict[str, float]
) -> None:
    """Compare the ordering of a table's files with `OPTIMIZE` of as many small files."""
    lake = Lake(folder / "lake")
    source = lake.spark.read.parquet(str(folder / "star.parquet")).repartition(4).persist()
    source.count()

    def ours(number: int) -> float:
        path = lake.storage.path(f"Tables/o{number}")
        source.write.format("delta").save(path)
        return clock(lake.table(f"o{number}").optimize.vorder)

    def peer(number: int) -> float:
        path = lake.storage.path(f"Tables/p{number}")
        source.write.format("delta").save(path)
        return clock(lake.spark.sql, f"OPTIMIZE delta.`{path}`")

    ours(0), peer(0)
    timed = [(ours(n), peer(n)) for n in range(1, pairs + 1)]
    seconds["rewrite"] = round(statistics.median(one for one, _ in timed), 2)
    seconds["rewrite, OPTIMIZE"] = round(statistics.median(other for _, other in timed), 2)
    ratios["rewrite"] = round(statistics.median(other / one for one, other in timed), 2)


def clock(call: Callable[..., object], *arguments: object, **named: object) -> float:
    began = time.perf_counter()
    call(*arguments, **named)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
