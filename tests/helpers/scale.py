"""Count the requests to an object store, and compute their cost.

The store is the S3 server of the tests. Its access log has one line per request of each client:
obstore, Hadoop's driver in Spark, and Arrow. The price and the latency of a request are the
assumptions in `docs/scale.md`, which are read from that page.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.project import PROJECT
from mirrorlake import MirrorOptions
from mirrorlake.delta.log_files import commit_path
from mirrorlake.landing.metadata import Identity, write_identity
from mirrorlake.mirror.engine import Engine
from mirrorlake.names import TableName, file_name
from mirrorlake.storage.files import Storage

PAGE = PROJECT / "docs" / "scale.md"
KINDS = ("LIST", "GET", "HEAD", "PUT", "POST", "DELETE")
_LINE = re.compile(r" s3_(\w+) .* (/\S*) \d{3} ")  # an operation, its key, and the path
_POSTED = ("DeleteObjects", "CreateMultipartUpload", "CompleteMultipartUpload")
_ASSUMED = re.compile(r"^\| `([A-Z]+)` \| ([0-9.]+) \| ([0-9.]+) \|$", re.M)
_QUIET = 0.3  # seconds
_AT_ONCE = 16  # tables that are created concurrently


@dataclass(frozen=True)
class Assumed:
    """The assumed cost of a kind of request: dollars per million, and milliseconds."""

    dollars: float
    milliseconds: float


def assumptions() -> dict[str, Assumed]:
    """Return prices and latencies by kind of request, from the documentation."""
    found = _ASSUMED.findall(PAGE.read_text(encoding="utf-8"))
    known = {kind: Assumed(float(price), float(time)) for kind, price, time in found}
    assert set(known) == set(KINDS), known
    return known


def dollars(counted: Counter[str]) -> float:
    """Return the price of these requests in dollars."""
    prices = assumptions()
    return sum(n * prices[kind].dollars / 1e6 for kind, n in counted.items())


def seconds(counted: Counter[str], at_once: int = 1) -> float:
    """Return how long the requests take, with a number of concurrent ones."""
    known = assumptions()
    return sum(n * known[kind].milliseconds for kind, n in counted.items()) / at_once / 1000


@dataclass
class Count:
    """The counted requests, filled in when the block ends.

    Attributes:
        kinds: the number of requests by kind.
        paths: the kind and the path of each request.
    """

    kinds: Counter[str]
    paths: list[tuple[str, str]]

    @property
    def total(self) -> int:
        """The number of all requests."""
        return self.kinds.total()


@contextmanager
def counted(log: Path) -> Iterator[Count]:
    """Count the requests to a server within the context, from its log."""
    found = Count(Counter(), [])
    start = _end(log)
    yield found
    _end(log)
    with log.open("rb") as lines:
        lines.seek(start)
        text = lines.read().decode(errors="replace")
    for operation, asked in _LINE.findall(text):
        kind = _kind(operation)
        found.kinds[kind] += 1
        found.paths.append((kind, asked))


def _kind(operation: str) -> str:
    """Return the kind of an operation in S3's bill: by its method, with a kind for listings."""
    if operation in _POSTED:
        return "POST"
    return next((kind for kind in KINDS if operation.upper().startswith(kind)), "PUT")


def _end(log: Path) -> int:
    """Return the size of the log once it stops growing: a response can arrive before its line."""
    size, before = log.stat().st_size, -1
    while size != before:
        time.sleep(_QUIET)
        size, before = log.stat().st_size, size
    return size


def make_tables(storage: Storage, count: int) -> list[TableName]:
    """Create tables as a mirror leaves them, with the last applied file in each folder."""
    tables = [TableName(None, f"t{number:05d}") for number in range(count)]

    def make(table: TableName) -> None:
        life = uuid.uuid4().hex
        identity = Identity(table, life)
        storage.write_json(f"{table.folder}/_metadata.json", {"keyColumns": ["id"]})
        storage.write(f"{table.folder}/{file_name(1)}", b"applied, and not read again")
        field = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": life,
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": [field]}),
                    "partitionColumns": [],
                    "configuration": {
                        "mirrorlake.keys": '["id"]',
                        "mirrorlake.incarnation": life,
                    },
                }
            },
            {"txn": {"appId": identity.app_id, "version": 1}},
            {"commitInfo": {"userMetadata": json.dumps({"incarnation": life, "last": 1})}},
        ]
        log = "".join(f"{json.dumps(action)}\n" for action in actions)
        storage.write(commit_path(table.table_path, 0), log.encode())
        write_identity(storage, identity)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(make, tables))
    return tables


def no_spark() -> Any:
    """Fail if a mirror starts Spark."""
    raise AssertionError("an idle mirror needs no Spark")


def idle_cycle(storage: Storage, log: Path, tables: int, shard: str | None = None) -> Count:
    """Count the requests of an idle cycle of a running mirror."""
    make_tables(storage, tables)
    engine = Engine(storage, no_spark, MirrorOptions(shard=shard))
    for _ in range(2):
        report = engine.run_cycle()
        assert not report.failed, report
    with counted(log) as found:
        engine.run_cycle()
    return found
