"""Store frames: one record per frame, the list of its files, and the horizons set by vacuum.

A record is written atomically. A frame has three states: `pinned` (its versions are chosen, and
vacuum keeps their files), `complete` (readers see it) and `released`. The newest complete frame of
a model is the valid one. While a new frame is pinned, the previous one stays valid. A *horizon* is
the lowest version that a new frame may have. Vacuum writes the horizon before it looks for frames,
and `Frames.create` looks for horizons after it has pinned versions. So either vacuum sees the
pinned frame, or the new frame sees the horizon.

Each frame also has a list of its files with their sizes. Spark's executors check whether the files
exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.actions import rewrite_paths
from mirrorlake.delta.files import full_path, hadoop_path
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FrameError
from mirrorlake.names import FRAMES, TABLES, TableName, check_part
from mirrorlake.results import Count, Result, TextTable, size_text
from mirrorlake.spark.executors import map_in_arrow
from mirrorlake.spark.sql import escape_glob
from mirrorlake.storage.files import Storage, to_json
from mirrorlake.storage.kept import read_kept

FORMAT = 1
PINNED, COMPLETE, RELEASED = "pinned", "complete", "released"
PLANNED = "planned"  # only the result of a dry run; never stored
_MEASURED = pa.schema({"rows": pa.int64(), "row_groups": pa.int64(), "found": pa.bool_()})
Batches = Iterable["pa.RecordBatch"]
ABANDONED = timedelta(days=1)  # an incomplete frame of this age was interrupted


@dataclass(frozen=True)
class FramedTable:
    """One table of a frame.

    Attributes:
        table: its name in the lake.
        version: the version that readers of the frame see.
        timestamp: when that version was committed, ISO 8601 in UTC.
        table_id: Delta's id of the table, which changes when the table is recreated.
        files, row_groups, rows, bytes: the size of that version.
    """

    table: str
    version: int
    timestamp: str
    table_id: str
    files: int = 0
    row_groups: int = 0
    rows: int = 0
    bytes: int = 0

    @property
    def name(self) -> TableName:
        """The table's name, parsed."""
        return TableName.parse(self.table)


@dataclass(frozen=True)
class Frame(Result):
    """The versions at which the tables of a model are read.

    Attributes:
        model: the model's name.
        number: the frame's number, counted from 1 for each model.
        state: `pinned`, `complete` or `released`; `planned` after a dry run.
        owner: the person responsible for the frame.
        created, expires: ISO 8601 in UTC; `expires` is None if the frame never expires.
        tables: the tables, ordered by name.
        place: the path of the lake, in Hadoop's form, at the time when the frame's logs were
            written.
    """

    model: str
    number: int
    state: str
    owner: str
    created: str
    expires: str | None
    tables: tuple[FramedTable, ...] = field(default=())
    place: str | None = None

    @property
    def title(self) -> str:
        """The frame's name in reports."""
        return f"frame {self.number} of {self.model}"

    @property
    def folder(self) -> str:
        """The folder of the frame's logs and file lists."""
        return f"{FRAMES}/{self.model}/{self.number:08d}"

    def table(self, name: TableName) -> FramedTable | None:
        """Return the framed table of this name, or None if there is none.

        An exact match comes first, then one that differs in case.
        """
        wanted = str(name)
        alike = [t for t in self.tables if t.table.lower() == wanted.lower()]
        return next((t for t in alike if t.table == wanted), next(iter(alike), None))

    def log_path(self, table: TableName) -> str:
        """Return the path of the framed table: a Delta log of its own over the table's files."""
        return f"{self.folder}/{table.place}/table"

    def files_path(self, table: TableName) -> str:
        """Return the path of the list of framed files, which is stored as Parquet."""
        return f"{self.folder}/{table.place}/files"

    def is_expired(self, now: datetime) -> bool:
        """Return whether the frame has expired."""
        return self.expires is not None and datetime.fromisoformat(self.expires) <= now

    def as_dict(self) -> dict[str, Any]:
        """Return the record as it is stored."""
        return {"format": FORMAT, **asdict(self)}

    def shown(self) -> TextTable:
        """Return one row per table."""
        rows = tuple(
            (
                t.table,
                t.version,
                Count(t.files),
                Count(t.row_groups),
                Count(t.rows),
                size_text(t.bytes),
            )
            for t in self.tables
        )
        return TextTable(("table", "version", "files", "row groups", "rows", "size"), rows)

    def __repr__(self) -> str:
        at = ", ".join(f"{t.table}@v{t.version}" for t in self.tables)
        return f"{self.title} ({self.state}): {at}"


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def models(storage: Storage) -> list[str]:
    """Return the models that have or had a frame."""
    return list(storage.list(FRAMES).folders)


def read_frames(storage: Storage, model: str) -> list[Frame]:
    """Return all records of a model, oldest first.

    Raises:
        FormatError: a record has a newer format. Vacuum then fails, too, so that it does not
            delete files that such a frame needs.
    """
    check_part(model)
    names = [e.name for e in storage.list(f"{FRAMES}/{model}").files if e.name.endswith(".json")]
    found = [read_kept(storage, f"{FRAMES}/{model}/{name}", FORMAT) for name in names]
    return [_parse(document) for document in found if document is not None]


def _parse(document: dict[str, Any]) -> Frame:
    fields = {key: value for key, value in document.items() if key != "format"}
    tables = tuple(FramedTable(**table) for table in fields.pop("tables"))
    return Frame(**fields, tables=tables)


def save_frame(storage: Storage, frame: Frame) -> None:
    """Write a frame's record atomically."""
    storage.write(f"{frame.folder}.json", to_json(frame.as_dict()))


def reserve_frame(storage: Storage, frame: Frame) -> Frame:
    """Write the record of a new frame under the model's next free number."""
    known = read_frames(storage, frame.model)
    number = known[-1].number + 1 if known else 1
    while True:
        numbered = replace(frame, number=number)
        if storage.create(f"{numbered.folder}.json", to_json(numbered.as_dict())):
            return numbered
        number += 1


def newest_complete(frames: list[Frame]) -> Frame | None:
    """Return a model's newest complete frame, even if it was released; older ones are not valid."""
    done = [frame for frame in frames if frame.state in (COMPLETE, RELEASED) and frame.tables]
    return done[-1] if done else None


def live_frame(storage: Storage, model: str) -> Frame:
    """Return the frame that a model's readers see.

    Raises:
        FrameError: the model has no frame, or its frame was released or has expired.
    """
    frame = newest_complete(read_frames(storage, model))
    if frame is None:
        known = ", ".join(models(storage)) or "none"
        raise FrameError(
            f"The model {model!r} has no frame.", hint=f"create one; models with frames: {known}."
        )
    again = f"create a new frame of {model}."
    if frame.state == RELEASED:
        raise FrameError(f"Frame {frame.number} of {model} was released.", hint=again)
    if frame.is_expired(utc_now()):
        raise FrameError(f"Frame {frame.number} of {model} expired at {frame.expires}.", hint=again)
    return frame


def find_pins(storage: Storage, now: datetime) -> tuple[list[Frame], list[Frame]]:
    """Return the frames whose files vacuum must keep, and all other frames of the lake."""
    pins: list[Frame] = []
    dead: list[Frame] = []
    for model in models(storage):
        frames = read_frames(storage, model)
        newest = newest_complete(frames)
        for frame in frames:
            if frame.state == PINNED:
                is_valid = now - datetime.fromisoformat(frame.created) < ABANDONED
            else:
                is_valid = frame == newest and frame.state == COMPLETE and not frame.is_expired(now)
            (pins if is_valid else dead).append(frame)
    return pins, dead


def publish_horizon(storage: Storage, table: TableName, table_id: str, version: int) -> None:
    """Forbid new frames below a version.

    Each horizon is a separate empty file, so that concurrent vacuums do not overwrite each other's.
    """
    storage.create(f"{_horizons(table, table_id)}/{version:020d}", b"")
    for entry in storage.list(_horizons(table, table_id)).files:
        if entry.name.isdecimal() and int(entry.name) < version:
            storage.delete(f"{_horizons(table, table_id)}/{entry.name}")


def read_horizon(storage: Storage, table: TableName, table_id: str) -> int:
    """Return the lowest version that a new frame may have; 0 if there is no horizon."""
    names = [entry.name for entry in storage.list(_horizons(table, table_id)).files]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _horizons(table: TableName, table_id: str) -> str:
    return f"{table.horizons_path}/{table_id}"


def measure_files(storage: Storage, files: DataFrame) -> DataFrame:
    """Read the footers of data files, and check that the files and their deletion vectors exist.

    Args:
        storage: the lake's storage; files outside it are not checked.
        files: `path`, `vector`, `rows`, `masked` and further columns; paths in Hadoop's form.

    Returns:
        The same columns, with `rows` from the footer, then `row_groups` (NULL if no footer was
        read) and `found`: whether the file and its deletion vector exist.
    """
    known = ", ".join(f"{name} {kind}" for name, kind in files.dtypes)
    base = hadoop_path(storage, "") + "/"

    def measure(batches: Batches) -> Batches:
        for batch in batches:
            facts = []
            for file in batch.to_pylist():
                groups, rows, found = None, file["rows"], _exists(storage, base, file["vector"])
                if file["path"].startswith(base):
                    try:
                        with storage.open(file["path"][len(base) :]) as source:
                            footer = pq.read_metadata(source)
                        groups, rows = footer.num_row_groups, footer.num_rows - file["masked"]
                    except FileNotFoundError:
                        found = False
                facts.append({"rows": rows, "row_groups": groups, "found": found})
            measured = pa.RecordBatch.from_pylist(facts, _MEASURED)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns |= dict(zip(_MEASURED.names, measured.columns, strict=True))
            yield pa.RecordBatch.from_pydict(columns)

    return map_in_arrow(files, measure, f"{known}, row_groups bigint, found boolean")


def missing_files(storage: Storage, files: DataFrame) -> DataFrame:
    """Return the files and deletion vectors that do not exist, as `path`.

    Args:
        storage: the lake's storage; files outside it are not checked.
        files: `path` and `vector`, in Hadoop's form.
    """
    base = hadoop_path(storage, "") + "/"

    def missing(batches: Batches) -> Batches:
        for batch in batches:
            names = {name for column in batch.columns for name in column.to_pylist()}
            absent = sorted(name for name in names if not _exists(storage, base, name))
            yield pa.RecordBatch.from_arrays([pa.array(absent, pa.string())], names=["path"])

    return map_in_arrow(files.select("path", "vector"), missing, "path string")


def _exists(storage: Storage, base: str, path: str | None) -> bool:
    return path is None or not path.startswith(base) or storage.exists(path[len(base) :])


def write_list(frame: Frame, table: TableHandle, files: DataFrame) -> DataFrame:
    """Measure the files of a version, store their list, and return the stored list."""
    base = hadoop_path(table.storage, "") + "/"

    def relative(name: str) -> Column:
        column = F.col(name)
        cut = column.substr(F.lit(len(base) + 1), F.length(column))
        return F.when(column.startswith(base), cut).otherwise(column).alias(name)

    measured = measure_files(table.storage, files)
    others = [name for name in measured.columns if name not in ("path", "vector")]
    target = table.storage.path(frame.files_path(table.name))
    rows = measured.select(relative("path"), relative("vector"), *others)
    rows.write.mode("overwrite").parquet(target)
    return table.spark.read.parquet(escape_glob(target))


def read_lists(
    spark: SparkSession, storage: Storage, frames: list[Frame], table: TableName
) -> DataFrame:
    """Return the files of one table in several frames, each with its `frame` (`frame 1 of model`).

    Paths are full paths in Hadoop's form.
    """
    found = [frame.table(table) for frame in frames]
    lists = [f.files_path(t.name) for f, t in zip(frames, found, strict=True) if t]
    base = hadoop_path(storage, "") + "/"

    def full(name: str) -> Column:
        column = F.col(name)
        own = column.startswith(f"{TABLES}/")  # other files are listed with their full paths
        return F.when(own, F.concat(F.lit(base), column)).otherwise(column)

    rows = spark.read.parquet(*[escape_glob(storage.path(path)) for path in lists])
    place = full_path(F.col("_metadata.file_path"), "")
    model, number = (
        F.regexp_extract(place, rf"^.*/{FRAMES}/([^/]+)/(\d+)/", group) for group in (1, 2)
    )
    name = F.concat(F.lit("frame "), number.cast("int"), F.lit(" of "), model)
    return rows.select("*", name.alias("frame")).withColumns(
        {"path": full("path"), "vector": full("vector")}
    )


def follow_move(storage: Storage, frame: Frame) -> Frame:
    """Rewrite the paths in a frame's logs if the lake was moved or copied, and return the frame.

    Without this, the frames of a copied lake would read the files of the original.
    """
    here = hadoop_path(storage, "")
    if frame.place in (here, None) or _is_same(storage, frame.place):
        return frame
    for framed in frame.tables:
        rewrite_paths(storage, frame.log_path(framed.name), frame.place, here)
    moved = replace(frame, place=here)
    save_frame(storage, moved)
    return moved


def _is_same(storage: Storage, place: str) -> bool:
    """Return whether another path leads to this lake, for example through a link."""
    return storage.local is not None and (
        Path(place.removeprefix("file:")).resolve() == storage.local.resolve()
    )
