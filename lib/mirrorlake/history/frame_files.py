"""What a frame keeps of its tables on disk: their lists of files, and their logs.

The lists hold paths relative to the lake's root, so that vacuum spares the files wherever the lake
lies. The logs are shallow clones, which name files by full paths: when the lake was moved or
copied since, these are put right before anyone reads by them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.actions import rewrite_paths
from mirrorlake.delta.files import full_path, hadoop_path
from mirrorlake.history.frame_records import FRAMES, Frame, FramedTable, save_frame
from mirrorlake.history.listing import measure_files
from mirrorlake.names import TABLES, TableName
from mirrorlake.spark.sql import escape_glob
from mirrorlake.storage import Storage


def write_list(
    spark: SparkSession, storage: Storage, frame: Frame, table: TableName, files: DataFrame
) -> DataFrame:
    """Measures a version's files and keeps their list; the list as it was written."""
    base = hadoop_path(storage, "") + "/"

    def relative(name: str) -> Column:
        column = F.col(name)
        cut = F.substring(column, F.lit(len(base) + 1), F.length(column))
        return F.when(column.startswith(base), cut).otherwise(column).alias(name)

    measured = measure_files(spark, storage, files)
    others = [name for name in measured.columns if name not in ("path", "vector")]
    target = storage.path(frame.files_path(table))
    rows = measured.select(relative("path"), relative("vector"), *others)
    rows.write.mode("overwrite").parquet(target)
    return spark.read.parquet(escape_glob(target))


def read_list(
    spark: SparkSession, storage: Storage, frame: Frame, framed: FramedTable
) -> DataFrame:
    """The files of one framed table, by full paths as Hadoop prints them."""
    return _read(spark, storage, [frame.files_path(framed.name)])


def read_lists(
    spark: SparkSession, storage: Storage, frames: list[Frame], table: TableName
) -> DataFrame:
    """The files of one table in several frames: `path`, `vector`, `frame` (`frame 1 of model`)."""
    found = [(frame, frame.table(table)) for frame in frames]
    paths = [frame.files_path(framed.name) for frame, framed in found if framed]
    return _read(spark, storage, paths).select("path", "vector", "frame")


def _read(spark: SparkSession, storage: Storage, lists: list[str]) -> DataFrame:
    base = hadoop_path(storage, "") + "/"

    def full(name: str) -> Column:
        column = F.col(name)
        own = column.startswith(f"{TABLES}/")  # what lies elsewhere has its full path
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
    """Makes a frame's logs name the files where they are now; the frame with the lake's place.

    A copy of a lake would otherwise read the files of the original.
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
    """Whether another path leads to this very lake, as links do."""
    return storage.local is not None and (
        Path(place.removeprefix("file:")).resolve() == storage.local.resolve()
    )
