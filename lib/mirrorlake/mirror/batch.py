"""A plan's files as one DataFrame, its changes collapsed per key, and the range of its keys.

The collapse is what each key's rows become: a function per key, not the last change. With n
existing rows of the key it says: keep, delete, or replace them; insert a row if there was none;
append further rows (marker 0 does not look for duplicates). `tests/helpers/model.py` is the same
thing as a loop over rows.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F

from mirrorlake.delta.files import decoded_path
from mirrorlake.landing import check
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.metadata import UNCHANGED, Marker
from mirrorlake.mirror.next_batch import Batch, Target
from mirrorlake.names import file_number
from mirrorlake.spark.jvm import has_gateway
from mirrorlake.spark.sql import escape_glob, literal, quote
from mirrorlake.storage.files import Storage

# Columns of the engine's own; a published column can't have these names.
MARKER = "__mirrorlake_marker"
POSITION = "__mirrorlake_position"
ACTION = "__mirrorlake_action"
KEPT = "__mirrorlake_kept"  # the columns whose values are the table's

DELETE = "delete"  # remove the key's rows
REPLACE = "replace"  # replace the key's rows; insert this one if there is none
REPLACE_ONLY = "replace_only"  # replace the key's rows; nothing if there is none
APPEND = "append"  # insert, whatever there is


def compact_changes(
    batch: DataFrame,
    keys: tuple[str, ...],
    markers: set[Marker],
    unchanged: tuple[str, ...] = (),
) -> DataFrame:
    """The actions that bring a table from before a batch to after it.

    Args:
        batch: the changes, with `MARKER` and `POSITION` (the order of application, unique).
        keys: the key columns, never NULL.
        markers: which markers occur in the batch at all; the fewer, the cheaper.
        unchanged: the columns that some update leaves as they are; then the batch has `KEPT`.

    Returns:
        The data columns and `ACTION`; for each key at most one row that is not `APPEND`. With
        `unchanged` also `KEPT`: what no change of the batch gives a value.
    """
    key = Window.partitionBy(*[F.col(quote(name)) for name in keys])
    marker, position = F.col(MARKER), F.col(POSITION)
    is_delete = marker == int(Marker.DELETE)
    is_insert = marker == int(Marker.INSERT)
    is_update = marker.isin(int(Marker.UPDATE), int(Marker.UPSERT))

    def last(condition: Column) -> Column:
        return F.coalesce(F.max(F.when(condition, position)).over(key), F.lit(-1))

    nothing = F.lit(-1).cast("long")
    columns = batch.columns
    found = batch.withColumns(
        {
            "__deleted": last(is_delete) if Marker.DELETE in markers else nothing,
            "__updated": last(is_update),
        }
    )
    deleted, updated = F.col("__deleted"), F.col("__updated")
    alive = position > deleted  # what came before the last delete of the key has no effect
    if Marker.INSERT in markers:
        # An update makes the rows inserted before it its own, and inserts only if it meets none.
        first_update = F.min(F.when(is_update & alive, position)).over(key)
        first_insert = F.min(F.when(is_insert & alive, position)).over(key)
        replaced = F.sum((is_insert & alive & (position < updated)).cast("int")).over(key)
        replaced = replaced.cast("int")
        found = found.withColumns(
            {
                "__alone": first_insert.isNull() | (first_insert > first_update),
                "__copies": replaced,
            }
        )
        alone, copies = F.col("__alone"), F.col("__copies")
    else:
        alone, copies = F.lit(True), F.lit(0)
    inserted = F.when(alone, copies + 1).otherwise(copies)
    update_actions = F.when(deleted >= 0, F.array_repeat(F.lit(APPEND), inserted)).otherwise(
        F.concat(
            F.array(F.when(alone, F.lit(REPLACE)).otherwise(F.lit(REPLACE_ONLY))),
            F.array_repeat(F.lit(APPEND), copies),
        )
    )
    actions = (
        F.when(is_delete & (position == deleted), F.array(F.lit(DELETE)))
        .when(is_update & alive & (position == updated), update_actions)
        .when(is_insert & alive & (position > updated), F.array(F.lit(APPEND)))
    )
    if unchanged:
        found = _fill(found, unchanged, key, is_update & (position == updated))
    kept = [F.col(quote(name)) for name in columns if name not in (MARKER, POSITION)]
    return found.select(*kept, F.explode(actions).alias(ACTION))


def _fill(
    found: DataFrame, unchanged: tuple[str, ...], key: WindowSpec, last_update: Column
) -> DataFrame:
    """Gives a key's last update what it leaves as it is, as far as an earlier change has it."""
    position = F.col(POSITION)
    alive = (position > F.col("__deleted")) & (position <= F.col("__updated"))
    values: dict[str, Column] = {}
    missing = []
    for name in unchanged:
        told = F.when(alive & ~_keeps(name), position)
        value = F.max_by(F.col(quote(name)), told).over(key)
        values[name] = F.when(last_update, value).otherwise(F.col(quote(name)))
        is_told = F.max(told).over(key).isNotNull()
        missing.append(F.when(last_update & ~is_told, F.lit(name)))
    return found.withColumns(values | {KEPT: F.array_compact(F.array(*missing))})


def _keeps(name: str) -> Column:
    return F.array_contains(F.coalesce(F.col(KEPT), F.array().cast("array<string>")), name)


def refuse_kept(changes: DataFrame, unchanged: tuple[str, ...]) -> DataFrame:
    """Rows for a table that has none of their keys; fails where a value would be the table's."""
    values = {name: F.expr(refused(name, quote(name), quote(KEPT))) for name in unchanged}
    return changes.withColumns(values).drop(KEPT)


def refused(name: str, value: str, kept: str) -> str:
    """SQL for a column's value that fails if the row leaves it to the table."""
    text = literal(f"An update leaves {name!r} as it is, but the table does not have its row.")
    says = f"array_contains({kept}, {literal(name)})"
    return f"CASE WHEN {says} THEN raise_error({text}) ELSE {value} END"


_ROWS = 2**40  # more rows than one file can hold; positions of later files start beyond
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
_FILE_NAME = "_metadata.file_name"  # URL-encoded
_NAME, _NUMBER = "__mirrorlake_name", "__mirrorlake_number"


def read_batch(spark: SparkSession, batch: Batch, *, ordered: bool) -> DataFrame:
    """Reads the files, one scan per identical footer schema; an empty frame if there are none.

    Args:
        spark: the session of this apply.
        batch: the files, in order.
        ordered: whether `MARKER` and `POSITION` are needed; an append needs neither.
    """
    files = [file for file in batch.facts if file.skipped is None]
    if not files:
        columns = (f"{quote(name)} {kind}" for name, kind in batch.target.columns.items())
        return spark.createDataFrame([], ", ".join(columns))
    groups: dict[tuple[object, ...], list[FileFacts]] = {}
    for file in files:
        plain = (file.marker, file.marker_read, bool(file.left_out), bool(file.unchanged))
        schema = (*plain, *file.columns.items())
        groups.setdefault(schema, []).append(file)
    frames = [_read_group(spark, batch, group, ordered=ordered) for group in groups.values()]
    return reduce(lambda left, right: left.unionAll(right), frames)


def _read_group(
    spark: SparkSession, batch: Batch, files: list[FileFacts], *, ordered: bool
) -> DataFrame:
    sample = files[0]
    fields = [
        f"{quote(name)} {kind.read}" for name, kind in sample.columns.items() if kind.read != "void"
    ]
    if sample.marker:
        fields.append(f"{quote(sample.marker)} {sample.marker_read}")
    if sample.unchanged:
        fields.append(f"{quote(UNCHANGED)} array<string>")
    if not fields:  # nothing but NULLs: one column of them tells how many rows there are
        fields = [f"{quote(next(iter(sample.columns)))} integer"]
    raw = _read_files(spark, batch.at.storage, files, ", ".join(fields))
    if sample.left_out:
        raw = raw.where(~_is_left_out(files))
    present = {name.lower(): (name, kind) for name, kind in sample.columns.items()}

    def column(name: str, kind: str) -> Column:
        source, found = present.get(name.lower(), (None, None))
        if source is None or found is None or found.table == "void":
            return F.lit(None).cast(kind).alias(name)
        value = F.expr(found.convert.format(quote(source)))
        return value.cast(kind).alias(name)

    columns = [column(name, kind) for name, kind in batch.target.columns.items()]
    if not ordered:
        return raw.select(*columns)
    default = F.lit(int(batch.at.metadata.default_marker))
    marker = F.col(quote(sample.marker)).cast("int") if sample.marker else default
    raw, place = _with_place(spark, raw, files, batch.at.last + 1)
    position = place * F.lit(_ROWS) + F.col("_metadata.row_index")
    if any(file.unchanged for file in batch.facts):
        names = F.col(quote(UNCHANGED)) if sample.unchanged else F.lit(None).cast("array<string>")
        columns.append(names.alias(KEPT))
    return raw.select(
        *columns,
        F.coalesce(marker, default).alias(MARKER),
        position.cast("long").alias(POSITION),
    )


def published_reader(spark: SparkSession, schema: str) -> DataFrameReader:
    """What reads published Parquet files.

    Other writers' days before 1582 are what they say, whatever the session makes of Spark 2's.
    """
    options = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}
    return spark.read.options(**options).schema(schema)


def _read_files(
    spark: SparkSession, storage: Storage, files: list[FileFacts], schema: str
) -> DataFrame:
    reader = published_reader(spark, schema)
    folders = {file.source.rpartition("/")[0] for file in files}
    names = {file.source.rpartition("/")[2] for file in files}
    plain = all(_PLAIN_NAME.fullmatch(name) for name in names)
    if storage.local is None and len(folders) == 1 and plain and has_gateway(spark):
        # One listing of a store's folder, where each path by itself is asked for three times.
        folder = escape_glob(storage.path(folders.pop()))
        raw = reader.option("pathGlobFilter", f"{{{','.join(sorted(names))}}}").parquet(folder)
        found = [path.rpartition("/")[2] for path in raw.inputFiles()]
        if sorted(found) == sorted(names):
            return raw  # else one is gone, and Spark shall say which
    return reader.parquet(*[escape_glob(storage.path(file.source)) for file in files])


def _is_left_out(files: list[FileFacts]) -> Column:
    """Whether a row is one of those that its file is applied without."""
    row = F.col("_metadata.row_index")
    names = {file.source.rpartition("/")[2]: file.left_out for file in files}
    plain = decoded_path(F.col(_FILE_NAME))
    conditions = [(plain == name) & row.isin(*rows) for name, rows in names.items()]
    return reduce(lambda one, other: one | other, conditions)


def _with_place(
    spark: SparkSession, raw: DataFrame, files: list[FileFacts], first: int
) -> tuple[DataFrame, Column]:
    """Each row with its file's place in the batch: by the name, else by a small joined table.

    Args:
        spark: the session of this apply.
        raw: the rows.
        files: theirs.
        first: the number of the batch's first file.
    """
    names = {file.source.rpartition("/")[2]: file.number for file in files}
    if all(file_number(name) == number for name, number in names.items()):
        # A whole number becomes part of the code that Spark compiles, in each cycle; this does not.
        number, before = F.substring(_FILE_NAME, 1, 20), F.lit(str(first))
        return raw, (number.cast("decimal(20,0)") - before.cast("decimal(20,0)")).cast("long")
    places = [(name, number - first) for name, number in names.items()]
    places_by_name = spark.createDataFrame(places, f"{_NAME} string, {_NUMBER} long")
    plain = decoded_path(F.col(_FILE_NAME))
    lost = F.raise_error(F.concat(F.lit("no number for the file "), plain)).cast("long")
    found = F.coalesce(F.col(_NUMBER), lost)
    return raw.join(F.broadcast(places_by_name), plain == F.col(_NAME), "left"), found


_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L"}
_TYPES = {**dict.fromkeys(_SUFFIX, int), "date": dt.date, "string": str}
# Texts without escapes, variables or letters of any other alphabet: no doubt how they compare.
_PLAIN_TEXT = re.compile(r"[\w .:/@+-]{0,200}", re.ASCII)
_UNKNOWN: tuple[check.Bounds, ...] = ((None, None),)
Bounds = Mapping[str, check.Bounds]
"""The smallest and largest value of key columns."""


def key_bounds(
    files: Iterable[Mapping[str, Sequence[check.Bounds]]], keys: tuple[str, ...], target: Target
) -> dict[str, check.Bounds]:
    """The smallest and largest value of each key column whose bounds all footers tell.

    Args:
        files: the bounds of each of the batch's files, see `footer_bounds`.
        keys: the key columns in the table's spelling.
        target: the table's columns.

    Returns:
        Only columns whose values surely compare alike here, in the log and in Spark; often none.
    """
    known = [key for key in keys if target.columns[key] in _TYPES]
    told = list(files)
    found: dict[str, check.Bounds] = {}
    for key in known:
        kind = target.columns[key]
        bounds = [pair for file in told for pair in file.get(key.lower(), _UNKNOWN)]
        if not bounds or not all(isinstance(end, _TYPES[kind]) for pair in bounds for end in pair):
            continue
        low, high = min(pair[0] for pair in bounds), max(pair[1] for pair in bounds)
        if all(_literal(end, kind) is not None for end in (low, high)):
            found[key] = low, high
    return found


def key_conditions(bounds: Bounds, target: Target, table: str | None = "t") -> list[str]:
    """What is true of a row of the table if a row of the batch can match it, as SQL.

    Args:
        bounds: what `key_bounds` found.
        target: the table's columns.
        table: what the table is called; None leaves that out.
    """
    of = f"{table}." if table else ""
    return [
        f"{of}{quote(key)} BETWEEN {_literal(low, target.columns[key])}"
        f" AND {_literal(high, target.columns[key])}"
        for key, (low, high) in bounds.items()
    ]


def _literal(value: Any, kind: str) -> str | None:
    """A bound as SQL of the column's own type, so that it is compared without a cast."""
    if kind in _SUFFIX:
        return f"{value}{_SUFFIX[kind]}"
    if kind == "date":
        return f"DATE'{value.isoformat()}'"
    return literal(value) if _PLAIN_TEXT.fullmatch(value) else None
