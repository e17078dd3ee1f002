"""Counts the requests that a real store is sent by the real code, and what they cost.

The store is the tests' own S3 server; its access log has a line for each request of anybody:
obstore, Hadoop's driver in Spark, Arrow. What a request costs and how long it takes are the
assumptions of `docs/scale.md`, which are read from there.
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
_LINE = re.compile(r" s3_(\w+) .* (/\S*) \d{3} ")  # an operation, its key, what was asked for
_POSTED = ("DeleteObjects", "CreateMultipartUpload", "CompleteMultipartUpload")
_ASSUMED = re.compile(r"^\| `([A-Z]+)` \| ([0-9.]+) \| ([0-9.]+) \|$", re.M)
_QUIET = 0.3  # seconds
_AT_ONCE = 16  # tables that are made side by side


@dataclass(frozen=True)
class Assumed:
    """What one kind of request costs: dollars for a million, and milliseconds."""

    dollars: float
    milliseconds: float


def assumptions() -> dict[str, Assumed]:
    """Prices and latencies by kind of request, from the documentation's page."""
    found = _ASSUMED.findall(PAGE.read_text(encoding="utf-8"))
    known = {kind: Assumed(float(price), float(time)) for kind, price, time in found}
    assert set(known) == set(KINDS), known
    return known


def dollars(counted: Counter[str]) -> float:
    """What these requests cost."""
    prices = assumptions()
    return sum(n * prices[kind].dollars / 1e6 for kind, n in counted.items())


def seconds(counted: Counter[str], at_once: int = 1) -> float:
    """How long they take, so many at once."""
    known = assumptions()
    return sum(n * known[kind].milliseconds for kind, n in counted.items()) / at_once / 1000


@dataclass
class Count:
    """What was counted, filled in when the block ends.

    Attributes:
        kinds: requests by kind.
        paths: each request: its kind and what it asked for.
    """

    kinds: Counter[str]
    paths: list[tuple[str, str]]

    @property
    def total(self) -> int:
        """All of them."""
        return self.kinds.total()


@contextmanager
def counted(log: Path) -> Iterator[Count]:
    """Counts what a server is asked meanwhile, by its log."""
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
    """What S3 bills an operation as: by its request's method, and listings by themselves."""
    if operation in _POSTED:
        return "POST"
    return next((kind for kind in KINDS if operation.upper().startswith(kind)), "PUT")


def _end(log: Path) -> int:
    """The log's size once nothing is added any more: an answer may be there before its line."""
    size, before = log.stat().st_size, -1
    while size != before:
        time.sleep(_QUIET)
        size, before = log.stat().st_size, size
    return size


def make_tables(storage: Storage, count: int) -> list[TableName]:
    """Tables as a mirror has left them, each with its last applied file in its folder."""
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
    """In place of what starts Spark for a mirror."""
    raise AssertionError("an idle mirror needs no Spark")


def idle_cycle(storage: Storage, log: Path, tables: int, shard: str | None = None) -> Count:
    """The requests of a cycle of a running mirror of so many tables with nothing to do."""
    make_tables(storage, tables)
    engine = Engine(storage, no_spark, MirrorOptions(shard=shard))
    for _ in range(2):
        report = engine.run_cycle()
        assert not report.failed, report
    with counted(log) as found:
        engine.run_cycle()
    return found
