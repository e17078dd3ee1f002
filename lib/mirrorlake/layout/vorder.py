"""V-Order, an open one: rows ordered within each file so that it gets smaller, and quicker to read.

The files stay plain Parquet that any reader takes. Detection is honest both ways: own footer key
and tag, never Microsoft's; a file that no order makes smaller stays, with a tag that says so. The
work is a Spark job, one file at a time in each task, and one short commit that changes no data.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mirrorlake.delta.files import tag
from mirrorlake.delta.snapshot import (
    OPEN_TAG,
    ROW_ID_COLUMN,
    ROW_VERSION_COLUMN,
    SORTED_TAG,
    Snapshot,
    physical_names,
)
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import UsageError
from mirrorlake.layout.footers import OPEN_KEY, Storages
from mirrorlake.layout.measures import MICROSOFT_TAG
from mirrorlake.layout.vorder_file import (
    SCORING_LEVEL,
    Task,
    Unsuitable,
    check_shape,
    choose_order,
    encode,
    new_stats,
    read_rows,
    sort_permutation,
    stores_integers,
)
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable, size_text
from mirrorlake.spark.executors import map_in_arrow, parallelism
from mirrorlake.spark.jvm import Add, DeltaTransaction, transaction
from mirrorlake.spark.rewrite import Bounds, Rewrite, Written, rewrite_files, within
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

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
    outcomes: tuple[FileOutcome, ...]

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

    def summary(self) -> TextTable:
        """What became, or would become, of the files: one row for each kind of outcome."""
        groups: dict[tuple[str, str, str], list[FileOutcome]] = {}
        for one in self.outcomes:
            done = "stays" if one.reason else "ordered" if self.applied else "would be ordered"
            key = (done, one.reason or one.order, ", ".join(one.columns[:4]))
            groups.setdefault(key, []).append(one)
        rows = tuple(
            (*key, len(some), sum(o.rows for o in some), size_text(sum(o.size for o in some)),
             size_text(sum(o.new_size for o in some)))
            for key, some in sorted(groups.items())
        )  # fmt: skip
        names = ("outcome", "order, or why not", "sorted by", "files", "rows", "size", "then")
        return TextTable(names, rows)

    def plot(self) -> Chart:
        """Draw the bytes of the files that were looked at, as they are and ordered."""
        from mirrorlake.show.plots import plot_bars

        return plot_bars(
            {"as they are": self.bytes_before / 1024, "ordered": self.bytes_after / 1024},
            title=f"Files of {self.table} that are not in V-Order",
            label="KiB",
            fmt="{x:,.1f}",
        )

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
    table: TableHandle,
    *,
    apply: bool,
    sort_by: Sequence[str] = (),
    again: bool = False,
    where: str | None = None,
) -> VOrderReport:
    """Orders the files that are not ordered yet, in commits of bounded size.

    A dry run looks at as much as one commit may rewrite. Arguments and errors are those of
    `Optimize.vorder`.
    """
    sort_prefix(table.snapshot().metadata, sort_by)  # before anything is read or written
    job = _Job(table, tuple(sort_by), again, where)
    if not apply:
        return VOrderReport(str(table.name), False, (), job.dry_run())
    commits: list[Rewrite] = []
    outcomes: list[FileOutcome] = []
    make = partial(rewrite_files, table.spark, table.path, job.choose, job.write, note=_NOTE)
    while (commit := make()) is not None:
        commits.append(commit)
        outcomes += job.outcomes
        job.done |= {one.new_path or one.path for one in job.outcomes}
    return VOrderReport(str(table.name), bool(commits), tuple(commits), tuple(outcomes))


@dataclass
class _Job:
    """Ordering one table: what to choose, and how to write it."""

    table: TableHandle
    sort_by: tuple[str, ...]
    again: bool
    where: str | None
    outcomes: tuple[FileOutcome, ...] = ()
    done: set[str] = field(default_factory=set)

    def choose(self, files: DataFrame) -> DataFrame:
        """Files without any V-Order, the largest first; with `again` all but those just done."""
        if self.where is not None:
            files = in_partitions(files, self.table.snapshot(), self.where)
        if self.again:
            chosen = files.where(~F.col("path").isin(list(self.done)))
        else:
            marks = map(tag, (OPEN_TAG, TRIED_TAG, MICROSOFT_TAG))
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

    def dry_run(self) -> tuple[FileOutcome, ...]:
        """Orders files in memory and puts none of them down."""
        with transaction(self.table.spark, self.table.path) as txn:
            paths = within(self.choose(txn.files()), Bounds())
            if not paths:
                return ()
            return self._order(txn, txn.take(paths), write=False)

    def _order(
        self, txn: DeltaTransaction, chosen: Sequence[Add], *, write: bool
    ) -> tuple[FileOutcome, ...]:
        metadata = txn.metadata()
        # The columns of row ids and of commit versions, as a tracking table's files name them.
        hidden = ("", "")
        if txn.tracks_rows:
            properties = metadata["configuration"]
            hidden = properties[ROW_ID_COLUMN], properties[ROW_VERSION_COLUMN]
        prefix = sort_prefix(metadata, self.sort_by)
        # A partitioned file stays sorted by its key.
        key = [(add.get("tags") or {}).get(SORTED_TAG) for add in chosen]
        firsts = [prefix if name is None else (name, *prefix) for name in key]
        tasks = [
            Task(add, *hidden, first, write) for add, first in zip(chosen, firsts, strict=True)
        ]
        table = self.table
        return order_files(table.spark, table.storage, table.name, tasks)


def order_files(
    spark: SparkSession, storage: Storage, name: TableName, tasks: Sequence[Task]
) -> tuple[FileOutcome, ...]:
    """Orders files by a Spark job, one at a time in each task; the largest come first."""
    table_path = name.table_path

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stores = Storages(storage, table_path)
        for batch in batches:
            for task in batch.column("task").to_pylist():
                outcome = order_file(stores, Task(**json.loads(task)))
                yield pa.RecordBatch.from_pydict({"outcome": [json.dumps(asdict(outcome))]})

    rows = [(json.dumps(asdict(task)),) for task in tasks]
    frame = spark.createDataFrame(rows, "task string")
    spread = frame.repartition(min(len(tasks), parallelism(spark)))
    found = map_in_arrow(spread, run, "outcome string").collect()
    outcomes = [_outcome(row["outcome"]) for row in found]
    return tuple(sorted(outcomes, key=lambda one: (-one.size, one.path)))


def in_partitions(files: DataFrame, snapshot: Snapshot, where: str) -> DataFrame:
    """The files of the partitions that a predicate picks.

    Args:
        files: a row an `add`, under the log's field names.
        snapshot: the table.
        where: SQL that names partition columns only.
    """
    schema = StructType.fromJson(snapshot.schema_document)
    names = physical_names(snapshot.metadata)
    values = [
        F.try_element_at("partitionValues", F.lit(names[column]))
        .cast(schema[column].dataType)
        .alias(column)
        for column in snapshot.partition_columns
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


def ordered_add(old: Add, one: FileOutcome) -> Add:
    """The `add` of a file that was ordered, with our tag and never Microsoft's."""
    kept = {key: old[key] for key in ("partitionValues", "clusteringProvider") if key in old}
    tags = {k: v for k, v in (old.get("tags") or {}).items() if k != MICROSOFT_TAG}
    tags[OPEN_TAG] = json.dumps({"order": one.order, "columns": one.columns})
    # Retention by age goes by the rows' age, and ordering them makes them no younger.
    add = kept | {"path": one.new_path, "size": one.new_size, "tags": tags}
    add["modificationTime"] = old["modificationTime"]
    return add if one.stats is None else add | {"stats": one.stats}


def _outcome(text: str) -> FileOutcome:
    found = json.loads(text)
    found["columns"] = tuple(found["columns"])
    found["tried"] = tuple(map(tuple, found["tried"]))
    return FileOutcome(**found)


@dataclass(frozen=True)
class FileOutcome:
    """What became of one file.

    Attributes:
        path: the old file, as the log has it.
        size: its bytes.
        new_size: the bytes of the file in its place; the old ones if it stays.
        rows: the rows that were ordered.
        order: what won.
        columns: what it sorts by.
        new_path: the new file, as the log has it; empty if there is none.
        stats: the new file's statistics.
        reason: why the file stays; empty if it does not.
        tried: the sample's bytes by order, the smallest first.
    """

    path: str
    size: int
    new_size: int
    rows: int = 0
    order: str = ""
    columns: tuple[str, ...] = ()
    new_path: str = ""
    stats: str | None = None
    reason: str = ""
    tried: tuple[tuple[str, int], ...] = ()


def order_file(stores: Storages, task: Task) -> FileOutcome:
    """Orders one file; it is replaced only by a smaller one."""
    add = task.add
    stays = FileOutcome(add["path"], add["size"], add["size"])
    try:
        rows, keys, shape = read_rows(stores, task)
        hidden = [name for name in (task.row_id, task.commit_version) if name]
        prefix = [name for name in task.prefix if name in rows.column_names]
        put = partial(encode, row_id=task.row_id, integers=stores_integers(shape))
        order, tried = choose_order(
            rows,
            lambda some: len(put(some, {}, level=SCORING_LEVEL)),
            prefix=prefix,
            fixed=hidden,
        )
        keys[OPEN_KEY] = json.dumps({"order": order.kind, "columns": order.columns})
        moved = rows.take(sort_permutation(rows, order.columns))
        data = put(moved, keys)
        check_shape(data, shape, hidden)
    except Unsuitable as reason:
        return replace(stays, reason=str(reason))
    except (pa.ArrowException, NotImplementedError) as error:
        return replace(stays, reason=f"pyarrow can't: {error}")
    told = replace(
        stays,
        rows=rows.num_rows,
        order=order.kind,
        columns=order.columns,
        tried=tuple((one.kind, one.size) for one in tried),
    )
    if len(data) >= add["size"]:
        return replace(told, reason=f"no smaller in any order: {len(data):,} bytes")
    new_path = _new_path(add["path"])
    if task.write:
        storage, place = stores.place(unquote(new_path))
        with storage.open_writer(place) as sink:
            sink.write(data)
    stats = new_stats(add, rows)
    return replace(told, new_size=len(data), new_path=new_path, stats=stats)


def _new_path(path: str) -> str:
    """A name beside the old file; a clone's file comes into the clone's own folder."""
    folder = "" if ":" in path or path.startswith("/") else path.rpartition("/")[0]
    name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    return f"{folder}/{name}" if folder else name
