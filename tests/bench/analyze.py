"""Analyse 10,000 files; the peer reads their footers one by one with pyarrow.

The files are a few distinct ones under many names, because only the reading of footers is measured.
Both sides read every file and produce a row for each row group and each column chunk. One
measurement uses the local disk, where a footer costs a fraction of a millisecond. The other one
uses a server that responds after 10 ms, like an object store, where parallel reads matter.

The bench also compares the driver's peak memory at 1,000 and at 10,000 files: 1 means no growth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import HTTPStore

from helpers.bench import BenchResult, compare, join_results, run_script
from mirrorlake import Lake
from mirrorlake.storage.files import Storage

FILES = 10_000
_DELAY = 0.01
_DISTINCT = 4


def make(root: Path, count: int) -> None:
    """Create a table of many small files without a Spark commit: a few files under many names."""
    folder = root / "Tables" / "t"
    (folder / "_delta_log").mkdir(parents=True)
    names = [f"c{i}" for i in range(16)]
    for one in range(_DISTINCT):
        values = range(one * 1_000, one * 1_000 + 100 + one)
        rows = pa.table(
            {name: [value * (1 + i) for value in values] for i, name in enumerate(names)}
        )
        pq.write_table(rows, folder / f"{one}.parquet")
    fields = [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in names]
    metadata = {
        "id": "bench",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    lines = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    for number in range(count):
        one = number % _DISTINCT
        if number >= _DISTINCT:
            os.link(folder / f"{one}.parquet", folder / f"{number}.parquet")
        add = {
            "path": f"{number}.parquet",
            "partitionValues": {},
            "size": (folder / f"{one}.parquet").stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": f'{{"numRecords":{100 + one}}}',
        }
        lines.append({"add": add})
    text = "\n".join(map(json.dumps, lines)) + "\n"
    (folder / "_delta_log" / f"{0:020d}.json").write_text(text)


def local(pairs: int) -> BenchResult:
    """Measure on the local disk: all footers as queryable tables, and the complete analysis."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "local"
        make(root, FILES)
        lake = Lake(root)
        asked = {
            f"{FILES:,} files on the local disk": lambda: footers(lake.spark, lake.storage),
            f"{FILES:,} files, the analysis": lambda: analysis(lake),
        }
        return join_results(
            "analyze",
            [compare("analyze", what, ours, lambda: one_by_one(root), pairs)
             for what, ours in asked.items()],
        )  # fmt: skip


def behind_server(pairs: int) -> BenchResult:
    """Measure behind a server that responds after 10 ms."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "lake", FILES)
        lake = Lake(folder)
        with server(Path(folder) / "lake") as url:
            return compare(
                "analyze",
                f"{FILES:,} files, 10 ms a request",
                lambda: behind(lake.spark, url),
                lambda: one_by_one_behind(url),
                pairs,
                warm_up=lambda: behind(lake.spark, url),  # the peer takes two minutes
            )


def memory(pairs: int) -> BenchResult:
    """Compare the driver's peak memory at 1,000 and at 10,000 files; a peak needs no pairs."""
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (1_000, FILES):
            root = Path(folder) / str(count)
            make(root, count)
            peaks.append(run_script(Path(__file__), str(root))["peak_mib"])
    seconds = {f"MiB at {FILES:,} files": round(peaks[1], 1)}
    ratio = round(peaks[0] / peaks[1], 2)
    return BenchResult("analyze", seconds, {"driver's memory, ten times the files": ratio})


PARTS = {"local": local, "server": behind_server, "memory": memory}


def run(pairs: int) -> BenchResult:
    return join_results("analyze", (part(pairs) for part in PARTS.values()))


def footers(spark, storage: Storage) -> float:
    from mirrorlake.delta import files, log_files

    began = time.perf_counter()
    segment = log_files.find_segment(storage, "Tables/t")
    actions = files.read_actions(spark, storage, segment)
    total(files.live_files(actions), storage, "Tables/t", FILES)
    return time.perf_counter() - began


def total(files, storage: Storage, table_path: str, count: int) -> None:
    """Turn all facts of files, row groups and chunks into rows, and sum some of them."""
    from mirrorlake.layout import footers

    read = footers.read_footers(files, storage, table_path)
    groups = read.selectExpr("explode(footer.groups) AS g")
    assert groups.selectExpr("count(g.rows)").first()[0] == count
    chunks = footers.read_chunks(files, storage, table_path)
    assert chunks.selectExpr("count(c.compressed)").first()[0] == 16 * count


def analysis(lake: Lake) -> float:
    began = time.perf_counter()
    found = lake.table("t").analyze(scan=False)
    seconds = time.perf_counter() - began
    assert found.summary["Parquet Files"] == FILES
    assert found.summary["Stale Files"] == 0
    found.release()
    return seconds


def one_by_one(root: Path) -> float:
    began = time.perf_counter()
    paths = (root / "Tables" / "t" / f"{number}.parquet" for number in range(FILES))
    groups, chunks = look((str(path), pq.read_metadata(path)) for path in paths)
    assert (len(groups), len(chunks)) == (FILES, 16 * FILES)
    return time.perf_counter() - began


def look(footers: Iterable[tuple[str, pq.FileMetaData]]) -> tuple[list[dict], list[dict]]:
    """Collect the facts of the analysis as public analysers do: in one dict each."""
    groups, chunks = [], []
    for path, metadata in footers:
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            mine = [group.column(c).to_dict() for c in range(group.num_columns)]
            size = sum(chunk["total_compressed_size"] for chunk in mine)
            raw = sum(chunk["total_uncompressed_size"] for chunk in mine)
            groups.append(
                {"path": path, "created_by": metadata.created_by, "keys": metadata.metadata,
                 "group": g, "rows": group.num_rows, "size": size, "raw": raw}
            )  # fmt: skip
            chunks += [{"path": path, "group": g, **chunk} for chunk in mine]
    return groups, chunks


@contextmanager
def server(root: Path) -> Iterator[str]:
    """Serve the lake over HTTP, with a delay of 10 ms per response, in a separate process."""
    command = [sys.executable, __file__, "--serve", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def serve(root: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await asyncio.sleep(_DELAY)
                data = (root / head.split(" ", 2)[1].lstrip("/")).read_bytes()
                span = re.search(r"(?im)^range: bytes=(\d+)-(\d+)", head)
                start, end = map(int, span.groups()) if span else (0, len(data) - 1)
                part = data[start : end + 1]
                writer.write(
                    f"HTTP/1.1 {206 if span else 200} OK\r\nContent-Length: {len(part)}\r\n"
                    f'Content-Range: bytes {start}-{end}/{len(data)}\r\nETag: "1"\r\n'
                    "Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n".encode()
                    + part
                )
                await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


def behind(spark, url: str) -> float:
    sizes = sizes_behind(url)
    began = time.perf_counter()
    rows = [(f"{url}/Tables/t/{n}.parquet", size, None) for n, size in enumerate(sizes)]
    files = spark.createDataFrame(rows, "path string, size long, stats string")
    total(files, Storage(tempfile.gettempdir()), "t", FILES)
    return time.perf_counter() - began


def one_by_one_behind(url: str) -> float:
    """Read each footer with one request, since the log has the files' sizes."""
    source, sizes = store(url), sizes_behind(url)

    def opened() -> Iterator[tuple[str, pq.FileMetaData]]:
        for number, size in enumerate(sizes):
            path = f"Tables/t/{number}.parquet"
            tail = obstore.get_range(source, path, start=max(0, size - 2**16), end=size)
            yield path, pq.read_metadata(pa.BufferReader(bytes(tail)))

    began = time.perf_counter()
    assert len(look(opened())[1]) == 16 * FILES
    return time.perf_counter() - began


def sizes_behind(url: str) -> list[int]:
    """Return the sizes that the log would have."""
    found = [len(bytes(obstore.get(store(url), f"Tables/t/{n}.parquet").bytes()))
             for n in range(_DISTINCT)]  # fmt: skip
    return [found[number % _DISTINCT] for number in range(FILES)]


def store(url: str) -> HTTPStore:
    return HTTPStore.from_url(url, client_options={"allow_http": True})


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        asyncio.run(serve(Path(sys.argv[2])))
    analysis = Lake(sys.argv[1]).table("t").analyze(scan=False)
    assert analysis.summary["Parquet Files"] in (1_000, FILES)
    analysis.guardrails()
    print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
