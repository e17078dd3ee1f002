"""V-Order, an open one: rows ordered within each file so that it gets smaller, and quicker to read.

The files stay plain Parquet that any reader takes. Detection is honest both ways: own footer key
and tag, never Microsoft's; a file that no order makes smaller stays, with a tag that says so. The
work is a Spark job, one file at a time in each task, and one short commit that changes no data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mirrorlake.delta.snapshot import OPEN_TAG, ROW_ID_COLUMN, ROW_VERSION_COLUMN, physical_names
from mirrorlake.delta.table import Table
from mirrorlake.errors import UsageError
from mirrorlake.layout.footers import Storages, parallelism
from mirrorlake.layout.measures import MICROSOFT_TAG
from mirrorlake.layout.partitioning.tags import SORTED
from mirrorlake.layout.vorder_file import Outcome, Task, order_file
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.gateway import Add, DeltaTransaction, transaction
from mirrorlake.spark.rewrite import Bounds, Rewrite, Written, rewrite_files, within
from mirrorlake.storage import Storage

TRIED_TAG = f"{OPEN_TAG}.tried"
_NOTE = json.dumps({"mirrorlake": "vorder"})


@dataclass(frozen=True)
class VOrderReport(Result):
    """What ordering a table's files did, or would do.

    Attributes:
        table: which table.
        applied: whether anything was committed; otherwise this is what would come of it.
        commits: one entry a commit.
        outcomes: one entry a file that was looked at.
    """

    table: str
    applied: bool
    commits: tuple[Rewrite, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def bytes_before(self) -> int:
        """The bytes of the files that were looked at."""
        return sum(one.size for one in self.outcomes)

    @property
    def bytes_after(self) -> int:
        """The bytes of the files in their place, those that stay among them."""
        return sum(one.new_size for one in self.outcomes)

    @property
    def ordered(self) -> int:
        """How many files are, or would be, replaced."""
        return sum(not one.reason for one in self.outcomes)

    def __repr__(self) -> str:
        if not self.outcomes:
            return f"{self.table}: no file is without V-Order"
        verb = "became" if self.applied else "would become"
        gain = 100 * (1 - self.bytes_after / max(1, self.bytes_before))
        return (
            f"{self.table}: {self.ordered} of {len(self.outcomes)} files in V-Order,"
            f" {self.bytes_before:,} bytes {verb} {self.bytes_after:,} ({gain:.1f} % less)"
        )

    def shown(self) -> TextTable:
        """The files as rows."""
        columns = ("file", "rows", "bytes", "bytes after", "order", "sorted by", "why it stays")
        return TextTable(
            columns,
            tuple(
                (one.path, one.rows, one.size, one.new_size, one.order, ", ".join(one.columns),
                 one.reason)
                for one in self.outcomes
            ),
        )  # fmt: skip


def vorder_table(
    table: Table,
    *,
    apply: bool,
    sort_by: Sequence[str] = (),
    again: bool = False,
    where: str | None = None,
    bounds: Bounds | None = None,
) -> VOrderReport:
    """Orders the files that are not ordered yet, in commits of bounded size.

    `bounds` is how much a commit may rewrite; a dry run looks at so much in all. The other
    arguments and the errors are those of `Optimize.vorder`.
    """
    job = _Job(table, tuple(sort_by), again=again, where=where)
    if not apply:
        return VOrderReport(str(table.name), False, (), job.dry_run(bounds or Bounds()))
    commits: list[Rewrite] = []
    outcomes: list[Outcome] = []
    done: set[str] = set()
    while True:
        commit = rewrite_files(
            table.spark,
            job.path,
            partial(job.choose, done=done),
            job.write,
            note=_NOTE,
            bounds=bounds,
        )
        if commit is None:
            break
        commits.append(commit)
        outcomes += job.outcomes
        done |= {one.new_path or one.path for one in job.outcomes}
    return VOrderReport(str(table.name), bool(commits), tuple(commits), tuple(outcomes))


class _Job:
    """Ordering one table: what to choose, and how to write it."""

    def __init__(
        self,
        table: Table,
        sort_by: tuple[str, ...],
        *,
        again: bool,
        where: str | None,
    ) -> None:
        self.path = table.path
        self.outcomes: tuple[Outcome, ...] = ()
        self._spark = table.spark
        self._storage, self._name = table.storage, table.name
        self._sort_by, self._again, self._where = sort_by, again, where
        self._metadata = table.snapshot().metadata
        sort_prefix(self._metadata, sort_by)  # before anything is read or written

    def choose(self, files: DataFrame, *, done: Iterable[str] = ()) -> DataFrame:
        """Files without any V-Order, the largest first; with `again` all but those just done."""
        if self._where is not None:
            files = in_partitions(files, self._metadata, self._where)
        if self._again:
            chosen = files.where(~F.col("path").isin(list(done)))
        else:
            tags = F.coalesce("tags", F.create_map().cast("map<string, string>"))
            marks = [F.try_element_at(tags, F.lit(tag)) for tag in
                     (OPEN_TAG, TRIED_TAG, MICROSOFT_TAG)]  # fmt: skip
            chosen = files.where(F.coalesce(*marks).isNull())
        return chosen.orderBy(F.desc("size"), "path")

    def write(self, txn: DeltaTransaction, chosen: Sequence[Add]) -> Written:
        """Writes the files that get smaller; the others only get a tag."""
        self.outcomes = self._order(txn, chosen, write=True)
        by_path = {add["path"]: add for add in chosen}
        replaced, adds, kept = [], [], []
        for one in self.outcomes:
            add = by_path[one.path]
            if one.reason:
                kept.append(add | {"tags": (add.get("tags") or {}) | {TRIED_TAG: one.reason}})
            else:
                replaced.append(add)
                adds.append(ordered_add(add, one))
        return Written(replaced, adds, kept)

    def dry_run(self, bounds: Bounds) -> tuple[Outcome, ...]:
        """Orders files in memory and puts none of them down."""
        with transaction(self._spark, self.path) as txn:
            paths = within(self.choose(txn.files()), bounds)
            if not paths:
                return ()
            return self._order(txn, txn.take(paths), write=False)

    def _order(
        self, txn: DeltaTransaction, chosen: Sequence[Add], *, write: bool
    ) -> tuple[Outcome, ...]:
        metadata = txn.metadata()
        hidden = hidden_columns(metadata) if txn.tracks_rows else ("", "")
        prefix = sort_prefix(metadata, self._sort_by)
        # A partitioned file stays sorted by its key.
        key = [(add.get("tags") or {}).get(SORTED) for add in chosen]
        firsts = [prefix if name is None else (name, *prefix) for name in key]
        tasks = [
            Task(add, *hidden, first, write) for add, first in zip(chosen, firsts, strict=True)
        ]
        return order_files(self._spark, self._storage, self._name, tasks)


def order_files(
    spark: SparkSession, storage: Storage, name: TableName, tasks: Sequence[Task]
) -> tuple[Outcome, ...]:
    """Orders files by a Spark job, one at a time in each task; the largest come first."""
    root, table_path = storage.root, name.table_path

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stores = Storages(root, table_path)
        for batch in batches:
            for task in batch.column("task").to_pylist():
                outcome = order_file(stores, Task(**json.loads(task)))
                yield pa.RecordBatch.from_pydict({"outcome": [json.dumps(asdict(outcome))]})

    rows = [(json.dumps(asdict(task)),) for task in tasks]
    frame = spark.createDataFrame(rows, "task string")
    spread = frame.repartition(min(len(tasks), parallelism(spark)))
    found = spread.mapInArrow(run, "outcome string").collect()
    outcomes = [_outcome(row["outcome"]) for row in found]
    return tuple(sorted(outcomes, key=lambda one: (-one.size, one.path)))


def hidden_columns(metadata: dict[str, Any]) -> tuple[str, str]:
    """The columns of row ids and of commit versions, as a tracking table's files name them."""
    properties = metadata["configuration"]
    return properties[ROW_ID_COLUMN], properties[ROW_VERSION_COLUMN]


def in_partitions(files: DataFrame, metadata: dict[str, Any], where: str) -> DataFrame:
    """The files of the partitions that a predicate picks.

    Args:
        files: a row an `add`, under the log's field names.
        metadata: the log's `metaData`.
        where: SQL that names partition columns only.
    """
    schema = StructType.fromJson(json.loads(metadata["schemaString"]))
    names = physical_names(metadata)
    values = [
        F.try_element_at("partitionValues", F.lit(names[column]))
        .cast(schema[column].dataType)
        .alias(column)
        for column in metadata.get("partitionColumns") or []
    ]
    return files.select(F.struct("*").alias("_file"), *values).where(where).select("_file.*")


def sort_prefix(metadata: dict[str, Any], sort_by: Sequence[str]) -> tuple[str, ...]:
    """The columns to sort by first, by the files' names.

    Raises:
        UsageError: one of them is no column, or a partition's.
    """
    names = physical_names(metadata)
    partitions = metadata.get("partitionColumns") or []
    for column in sort_by:
        if column not in names or column in partitions:
            raise UsageError(
                f"Can't sort by {column!r}.", hint=f"one of {', '.join(names)}; not a partition."
            )
    return tuple(names[column] for column in sort_by)


def ordered_add(old: Add, one: Outcome) -> Add:
    """The `add` of a file that was ordered, with our tag and never Microsoft's."""
    kept = {key: old[key] for key in ("partitionValues", "clusteringProvider") if key in old}
    tags = {k: v for k, v in (old.get("tags") or {}).items() if k != MICROSOFT_TAG}
    tags[OPEN_TAG] = json.dumps({"order": one.order, "columns": one.columns})
    # Retention by age goes by the rows' age, and ordering them makes them no younger.
    add = kept | {"path": one.new_path, "size": one.new_size, "tags": tags}
    add["modificationTime"] = old["modificationTime"]
    return add if one.stats is None else add | {"stats": one.stats}


def _outcome(text: str) -> Outcome:
    found = json.loads(text)
    found["columns"] = tuple(found["columns"])
    found["tried"] = tuple(map(tuple, found["tried"]))
    return Outcome(**found)
