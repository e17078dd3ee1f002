"""The files of one version, and of each change, read from a Delta table's log by the executors.

The driver only lists the log and names the pieces to read: a checkpoint with its sidecars, and the
commits behind it. Parsing them is a Spark job, so its memory does not grow with the table. Source:
the Delta transaction log protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from mirrorlake.delta_log import CHECKPOINT
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.storage import Storage

_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
_KINDS = ("add", "remove", "metaData", "protocol", "commitInfo")
ACTIONS = pa.schema(
    [
        ("version", pa.int64()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("vector", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.int64()),
        ("rows", pa.int64()),
        ("deleted", pa.int64()),
        ("partition", pa.string()),
        ("tags", pa.string()),
        ("stats", pa.string()),
        ("body", pa.string()),
    ]
)
_DDL = (
    "version long, kind string, path string, vector string, size long, modified long, rows long,"
    " deleted long, partition string, tags string, stats string, body string"
)
_BATCH = 4096


@dataclass(frozen=True)
class Segment:
    """The part of a log that says what a version holds.

    Attributes:
        version: the version it leads to.
        base: the checkpoint's version it starts from, or -1.
        pieces: names in the log's folder, each with its version.
    """

    version: int
    base: int
    pieces: tuple[tuple[int, str], ...]


def find_segment(
    storage: Storage, table_path: str, version: int | None = None, *, oldest: bool = False
) -> Segment:
    """The log's files to read for one version.

    Args:
        storage: the lake's files.
        table_path: the table's folder, relative to the root.
        version: by default the newest.
        oldest: start as early as the log still allows, not at the newest checkpoint.

    Raises:
        TableNotFoundError: there is no Delta table.
        UsageError: that version is not there, or no longer there.
    """
    log = f"{table_path}/_delta_log"
    names = [entry.name for entry in storage.list(log).files]
    commits = {int(m[1]): m[0] for m in map(_COMMIT.fullmatch, names) if m}
    checkpoints = _complete_checkpoints(names)
    newest = max([*commits, *checkpoints], default=None)
    if newest is None:
        raise TableNotFoundError(f"There is no Delta table at {storage.path(table_path)}.")
    wanted = newest if version is None else version
    starts = [base for base in (-1, *sorted(checkpoints)) if base <= wanted]
    whole = [base for base in starts if all(v in commits for v in range(base + 1, wanted + 1))]
    if not whole or not 0 <= wanted <= newest:
        raise UsageError(
            f"Version {wanted} can't be read: the log goes to {newest}.",
            hint="`history` shows the versions that are there.",
        )
    base = whole[0] if oldest else whole[-1]
    pieces = [(base, name) for name in checkpoints.get(base, ())]
    for name in [name for _, name in pieces]:
        pieces += [(base, f"_sidecars/{sidecar}") for sidecar in _sidecars(storage, log, name)]
    pieces += [(v, commits[v]) for v in range(base + 1, wanted + 1)]
    return Segment(wanted, base, tuple(pieces))


def read_actions(
    spark: SparkSession, storage: Storage, table_path: str, segment: Segment
) -> DataFrame:
    """One row an action of a segment, in `ACTIONS`' columns, parsed by the executors."""
    root, log = storage.root, f"{table_path}/_delta_log"

    def parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = Storage(root)
        for batch in batches:
            for piece in batch.to_pylist():
                yield from _batches(_piece_rows(files, log, piece["version"], piece["name"]))

    pieces = spark.createDataFrame(list(segment.pieces), "version long, name string")
    tasks = min(len(segment.pieces), parallelism(spark))
    return pieces.repartition(tasks).mapInArrow(parse, _DDL)


def parallelism(spark: SparkSession) -> int:
    """How many tasks a job over files has: a Connect session can't ask for the cores."""
    return 2 * int(spark.conf.get("spark.sql.shuffle.partitions") or 2)


def live_files(actions: DataFrame) -> DataFrame:
    """The `add`s that stand at the end of a segment; a file with its deletion vector is one."""
    files = actions.where(F.col("kind").isin("add", "remove"))
    # Within a commit a file may be removed under one vector and added under another.
    last = Window.partitionBy("path", "vector").orderBy(F.desc("version"))
    ranked = files.withColumn("rank", F.row_number().over(last))
    return ranked.where("rank = 1 AND kind = 'add'").drop("rank", "kind", "body")


def read_metadata(actions: DataFrame) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `metaData` and the `protocol` at the end of a segment."""
    latest = actions.where(F.col("kind").isin("metaData", "protocol")).groupBy("kind")
    rows = latest.agg(F.max_by("body", "version").alias("body")).collect()
    found: dict[str, dict[str, Any]] = {row["kind"]: json.loads(row["body"]) for row in rows}
    return found.get("metaData", {}), found.get("protocol", {})


def _complete_checkpoints(names: list[str]) -> dict[int, tuple[str, ...]]:
    found: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(CHECKPOINT.fullmatch, names)):
        version = int(match["version"])
        if match["parts"]:
            parts.setdefault((version, int(match["parts"])), []).append(match[0])
        else:
            found[version] = [match[0]]
    for (version, count), pieces in parts.items():
        if len(pieces) == count:  # a writer may have died between two parts
            found.setdefault(version, pieces)
    return {version: tuple(pieces) for version, pieces in found.items()}


def _sidecars(storage: Storage, log: str, name: str) -> list[str]:
    if name.endswith(".json"):
        lines = map(json.loads, storage.read(f"{log}/{name}").splitlines())
        return [line["sidecar"]["path"] for line in lines if "sidecar" in line]
    with storage.open(f"{log}/{name}") as source, pq.ParquetFile(source) as checkpoint:
        if "sidecar" not in checkpoint.schema_arrow.names:
            return []
        column = checkpoint.read(columns=["sidecar"]).column("sidecar").drop_null()
        return [sidecar["path"] for sidecar in column.to_pylist()]


def _piece_rows(storage: Storage, log: str, version: int, name: str) -> Iterator[dict[str, Any]]:
    if name.endswith(".json"):
        for line in storage.read(f"{log}/{name}").splitlines():
            ((kind, action),) = json.loads(line).items()
            if kind in _KINDS:
                yield _row(version, kind, action)
        return
    with storage.open(f"{log}/{name}") as source, pq.ParquetFile(source) as checkpoint:
        kinds = [kind for kind in _KINDS if kind in checkpoint.schema_arrow.names]
        for batch in checkpoint.iter_batches(_BATCH, columns=kinds):
            for kind in kinds:
                # A checkpoint's removes are tombstones: they were gone before it.
                if kind != "remove":
                    for action in batch.column(kind).drop_null().to_pylist():
                        yield _row(version, kind, action)


def _row(version: int, kind: str, action: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(ACTIONS.names)
    row |= {"version": version, "kind": kind}
    if kind not in ("add", "remove"):
        if kind == "metaData":  # Parquet hands maps over as lists of pairs
            action["configuration"] = dict(action.get("configuration") or {})
        row["body"] = json.dumps(action, default=str)
        return row
    vector = action.get("deletionVector") or {}
    stats = action.get("stats")
    known = json.loads(stats) if stats else action.get("stats_parsed") or {}
    return row | {
        "path": unquote(action["path"]),
        "vector": "".join(
            str(vector.get(key, "")) for key in ("storageType", "pathOrInlineDv", "offset")
        ),
        "size": action.get("size"),
        "modified": action.get("modificationTime") or action.get("deletionTimestamp"),
        "rows": known.get("numRecords"),
        "deleted": vector.get("cardinality", 0),
        "partition": json.dumps(dict(action.get("partitionValues") or {}), sort_keys=True),
        "tags": json.dumps(dict(action.get("tags") or {})),
        "stats": stats,
    }


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == _BATCH:
            yield pa.RecordBatch.from_pylist(waiting, ACTIONS)
            waiting = []
    yield pa.RecordBatch.from_pylist(waiting, ACTIONS)
