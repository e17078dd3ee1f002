"""Analysing 10,000 files, against reading their footers one by one with pyarrow.

Once on the local disk, where a footer costs a fraction of a millisecond, and once behind a server
that answers each request after 10 ms, as object stores do: there reading many at once is the point.
Also the driver's peak memory at 1,000 and at 10,000 files: small by large, so 1 is flat.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import HTTPStore

from mirrorlake import Lake
from mirrorlake.runs.bench import BenchResult, compare, run_script
from mirrorlake.storage import Storage

FILES = 10_000
BEHIND_SERVER = 1_000
_DELAY = 0.01


def make(root: Path, count: int) -> None:
    """A table of so many small files, without a Spark commit."""
    folder = root / "Tables" / "t"
    (folder / "_delta_log").mkdir(parents=True)
    rows = pa.table({f"c{i}": range(i, i + 100) for i in range(16)})
    pq.write_table(rows, folder / "0.parquet")
    size = (folder / "0.parquet").stat().st_size
    fields = [
        {"name": n, "type": "long", "nullable": True, "metadata": {}} for n in rows.schema.names
    ]
    metadata = {
        "id": "bench",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    lines = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    for number in range(count):
        if number:
            shutil.copy(folder / "0.parquet", folder / f"{number}.parquet")
        add = {
            "path": f"{number}.parquet",
            "partitionValues": {},
            "size": size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": '{"numRecords":100}',
        }
        lines.append({"add": add})
    text = "\n".join(map(json.dumps, lines)) + "\n"
    (folder / "_delta_log" / f"{0:020d}.json").write_text(text)


def run(pairs: int) -> BenchResult:
    here = Path(__file__)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "local"
        make(local, FILES)
        small = Path(folder) / "small"
        make(small, 1_000)
        lake = Lake(local)
        result = compare(
            "analyze",
            f"{FILES:,} files on the local disk",
            lambda: footers(lake.spark, lake.storage),
            lambda: one_by_one(local),
            pairs,
        )
        seconds, ratios = dict(result.seconds), dict(result.ratios)
        with server(small) as url:
            slow = compare(
                "analyze",
                f"{BEHIND_SERVER:,} files, 10 ms a request",
                lambda: behind(lake.spark, url),
                lambda: one_by_one_behind(url),
                pairs,
            )
        peaks = [run_script(here, str(root))["peak_mib"] for root in (small, local)]
        ratios["driver's memory, ten times the files"] = round(peaks[0] / peaks[1], 2)
    return BenchResult("analyze", seconds | slow.seconds, ratios | slow.ratios)


def footers(spark, storage: Storage) -> float:
    from mirrorlake.layout import log_files, measures
    from mirrorlake.layout.footers import read_footers

    began = time.perf_counter()
    segment = log_files.find_segment(storage, "Tables/t")
    live = log_files.live_files(log_files.read_actions(spark, storage, "Tables/t", segment))
    facts = read_footers(live, storage, "Tables/t")
    found = measures.row_groups(facts).selectExpr("count(*)", "sum(`Compressed Size`)").first()
    assert found[0] == FILES
    return time.perf_counter() - began


def one_by_one(root: Path) -> float:
    began = time.perf_counter()
    total = 0
    for number in range(FILES):
        metadata = pq.read_metadata(root / "Tables" / "t" / f"{number}.parquet")
        total += look(metadata)
    assert total
    return time.perf_counter() - began


def look(metadata: pq.FileMetaData) -> int:
    """The same facts of a footer that the analysis takes."""
    size = 0
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        for c in range(group.num_columns):
            chunk = group.column(c).to_dict()
            size += chunk["total_compressed_size"]
    return size


class server:
    """The lake behind HTTP, each answer 10 ms late."""

    def __init__(self, root: Path) -> None:
        folder = str(root)

        class Late(SimpleHTTPRequestHandler):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments, directory=folder)

            def do_GET(self) -> None:
                time.sleep(_DELAY)
                span = self.headers.get("Range")
                data = Path(self.translate_path(self.path)).read_bytes()
                start, end = 0, len(data)
                if span:
                    first, _, last = span.removeprefix("bytes=").partition("-")
                    start, end = int(first), int(last) + 1 if last else len(data)
                part = data[start:end]
                self.send_response(206 if span else 200)
                self.send_header("Content-Length", str(len(part)))
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
                self.send_header("Last-Modified", self.date_time_string(0))
                self.send_header("ETag", '"1"')
                self.end_headers()
                self.wfile.write(part)

            def log_message(self, *_: object) -> None:
                pass

        Late.protocol_version = "HTTP/1.1"
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Late)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def behind(spark, url: str) -> float:
    from mirrorlake.layout.footers import read_footers

    size = len(bytes(obstore.get(store(url), "Tables/t/0.parquet").bytes()))
    began = time.perf_counter()
    rows = [(f"{url}/Tables/t/{n}.parquet", size, None) for n in range(BEHIND_SERVER)]
    files = spark.createDataFrame(rows, "path string, size long, stats string")
    found = read_footers(files, Storage(tempfile.gettempdir()), "t")
    assert found.selectExpr("count(footer.row_groups)").first()[0] == BEHIND_SERVER
    return time.perf_counter() - began


def one_by_one_behind(url: str) -> float:
    source = store(url)
    began = time.perf_counter()
    for number in range(BEHIND_SERVER):
        with pq.ParquetFile(pa.PythonFile(obstore.open_reader(source, f"Tables/t/{number}.parquet"))
                            ) as file:  # fmt: skip
            look(file.metadata)
    return time.perf_counter() - began


def store(url: str) -> HTTPStore:
    return HTTPStore.from_url(url, client_options={"allow_http": True})


if __name__ == "__main__":
    analysis = Lake(sys.argv[1]).table("t").analyze(scan=False)
    assert analysis.summary["Parquet Files"] in (1_000, FILES)
    analysis.guardrails()
    print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
