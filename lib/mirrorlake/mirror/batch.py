"""Read a batch's files as one DataFrame, collapse its changes per key, and bound its keys.

`collapse_changes` turns the changes of a key into actions on the rows of that key in the table:
keep, delete or replace them; insert a row if none exists; append rows (marker 0 does not check for
duplicates). `tests/helpers/model.py` has the same semantics as a loop over rows.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F

from mirrorlake.delta.exchange import ACTION, APPEND, DELETE, REPLACE, REPLACE_ONLY
from mirrorlake.delta.files import decoded_path
from mirrorlake.delta.log_files import Action
from mirrorlake.landing import check
from mirrorlake.landing.check import FileFacts
from mirrorlake.landing.metadata import UNCHANGED, Marker
from mirrorlake.mirror.next_batch import Batch, Target
from mirrorlake.names import file_number, quote
from mirrorlake.spark.jvm import has_gateway
from mirrorlake.spark.sql import escape_glob, literal
from mirrorlake.storage.files import Storage

# Columns that the engine adds; published columns can't have these names.
MARKER = "__mirrorlake_marker"
POSITION = "__mirrorlake_position"
KEPT = "__mirrorlake_kept"  # the names of columns that keep the table's values
FILE_ROWS = 2**40  # more rows than a file can hold: the distance between the files' positions
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
_FILE_NAME = "_metadata.file_name"  # URL-encoded
_NAME, _NUMBER = "__mirrorlake_name", "__mirrorlake_number"
_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L"}
SEARCHED = frozenset((*_SUFFIX, "string"))
"""The types of keys that a scan can search, see `search_condition`."""
_TYPES = {**dict.fromkeys(_SUFFIX, int), "date": dt.date, "string": str}
# ASCII texts without escapes or variables compare alike in Python, in the log and in Spark.
_PLAIN_TEXT = re.compile(r"[\w .:/@+-]{0,200}", re.ASCII)
_UNKNOWN: tuple[check.Bounds, ...] = ((None, None),)
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_STEPS = 16  # about as many steps divide the range of a table's keys
Limits = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The smallest and the largest values of columns, from a file's statistics."""


def collapse_changes(
    batch: DataFrame,
    keys: tuple[str, ...],
    markers: set[Marker],
    unchanged: tuple[str, ...] = (),
) -> DataFrame:
    """Return the actions that apply a batch of changes to a table.

    Args:
        batch: the changes, with `MARKER` and `POSITION` (the unique order of application).
        keys: the key columns, never NULL.
        markers: the markers that occur in the batch; fewer markers make a cheaper query.
        unchanged: columns that some update leaves unchanged; the batch then has `KEPT`.

    Returns:
        The data columns and `ACTION`, with at most one row per key that is not `APPEND`. With
        `unchanged`, also `KEPT`: the columns to which no change of the batch assigns a value.
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
    alive = position > deleted  # changes before the last delete of the key have no effect
    if Marker.INSERT in markers:
        # An update replaces the rows inserted before it, and inserts a row only if none exists.
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
    """Fill the unchanged columns of a key's last update from earlier changes in the batch."""
    position = F.col(POSITION)
    alive = (position > F.col("__deleted")) & (position <= F.col("__updated"))
    values: dict[str, Column] = {}
    missing = []
    for name in unchanged:
        assigned = F.when(alive & ~_keeps(name), position)
        value = F.max_by(F.col(quote(name)), assigned).over(key)
        values[name] = F.when(last_update, value).otherwise(F.col(quote(name)))
        has_value = F.max(assigned).over(key).isNotNull()
        missing.append(F.when(last_update & ~has_value, F.lit(name)))
    return found.withColumns(values | {KEPT: F.array_compact(F.array(*missing))})


def _keeps(name: str) -> Column:
    return F.array_contains(F.coalesce(F.col(KEPT), F.array().cast("array<string>")), name)


def require_values(changes: DataFrame, unchanged: tuple[str, ...]) -> DataFrame:
    """Return rows for a table without their keys; the query fails if a row needs a kept value."""
    values = {name: F.expr(value_or_error(name, quote(name), quote(KEPT))) for name in unchanged}
    return changes.withColumns(values).drop(KEPT)


def value_or_error(name: str, value: str, kept: str) -> str:
    """Return SQL for the value of a column that fails if the row keeps the table's value."""
    text = literal(f"An update leaves {name!r} unchanged, but the table does not have its row.")
    is_kept = f"array_contains({kept}, {literal(name)})"
    return f"CASE WHEN {is_kept} THEN raise_error({text}) ELSE {value} END"


def read_batch(spark: SparkSession, batch: Batch, *, ordered: bool) -> DataFrame:
    """Read the files of a batch, with one scan per distinct footer schema.

    Args:
        spark: the session of this commit.
        batch: the files, in order.
        ordered: whether `MARKER` and `POSITION` are needed; an append needs neither.

    Returns:
        The rows; an empty DataFrame if all files are skipped.
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
    if not fields:  # all columns are NULL: read one of them for the number of rows
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
    position = place * F.lit(FILE_ROWS) + F.col("_metadata.row_index")
    if any(file.unchanged for file in batch.facts):
        names = F.col(quote(UNCHANGED)) if sample.unchanged else F.lit(None).cast("array<string>")
        columns.append(names.alias(KEPT))
    return raw.select(
        *columns,
        F.coalesce(marker, default).alias(MARKER),
        position.cast("long").alias(POSITION),
    )


def published_reader(spark: SparkSession, schema: str) -> DataFrameReader:
    """Return a reader of published Parquet files.

    Dates before 1582 are read as written, whatever the session's setting for files of Spark 2.
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
        # One listing of the folder; Spark makes three requests for each path given by itself.
        folder = escape_glob(storage.path(folders.pop()))
        raw = reader.option("pathGlobFilter", f"{{{','.join(sorted(names))}}}").parquet(folder)
        found = [path.rpartition("/")[2] for path in raw.inputFiles()]
        if sorted(found) == sorted(names):
            return raw  # otherwise a file is missing, and Spark names it below
    return reader.parquet(*[escape_glob(storage.path(file.source)) for file in files])


def _is_left_out(files: list[FileFacts]) -> Column:
    """Return the condition that a row is one of its file's rejected rows."""
    row = F.col("_metadata.row_index")
    names = {file.source.rpartition("/")[2]: file.left_out for file in files}
    plain = decoded_path(F.col(_FILE_NAME))
    conditions = [(plain == name) & row.isin(*rows) for name, rows in names.items()]
    return reduce(lambda one, other: one | other, conditions)


def _with_place(
    spark: SparkSession, raw: DataFrame, files: list[FileFacts], first: int
) -> tuple[DataFrame, Column]:
    """Return the rows with the place of their file in the batch, from its name or from a join.

    Args:
        spark: the session of this commit.
        raw: the rows.
        files: the files of these rows.
        first: the number of the first file of the batch.

    Returns:
        The rows, and the column with the place.
    """
    names = {file.source.rpartition("/")[2]: file.number for file in files}
    if all(file_number(name) == number for name, number in names.items()):
        # An integer literal would change the code that Spark compiles in each cycle.
        number, before = F.substring(_FILE_NAME, 1, 20), F.lit(str(first))
        return raw, (number.cast("decimal(20,0)") - before.cast("decimal(20,0)")).cast("long")
    places = [(name, number - first) for name, number in names.items()]
    places_by_name = spark.createDataFrame(places, f"{_NAME} string, {_NUMBER} long")
    plain = decoded_path(F.col(_FILE_NAME))
    lost = F.raise_error(F.concat(F.lit("no number for the file "), plain)).cast("long")
    found = F.coalesce(F.col(_NUMBER), lost)
    return raw.join(F.broadcast(places_by_name), plain == F.col(_NAME), "left"), found


Bounds = Mapping[str, check.Bounds]
"""The smallest and largest value of key columns."""


def key_bounds(
    files: Iterable[Mapping[str, Sequence[check.Bounds]]], keys: tuple[str, ...], target: Target
) -> dict[str, check.Bounds]:
    """Return the smallest and largest value of each key column with bounds in all footers.

    Args:
        files: the bounds of each file of the batch, see `footer_bounds`.
        keys: the key columns as the table spells them.
        target: the table's columns.

    Returns:
        Only columns whose values certainly compare alike in Python, in the log and in Spark.
    """
    comparable = [key for key in keys if target.columns[key] in _TYPES]
    known = list(files)
    found: dict[str, check.Bounds] = {}
    for key in comparable:
        kind = target.columns[key]
        bounds = [pair for file in known for pair in file.get(key.lower(), _UNKNOWN)]
        if not bounds or not all(isinstance(end, _TYPES[kind]) for pair in bounds for end in pair):
            continue
        low, high = min(pair[0] for pair in bounds), max(pair[1] for pair in bounds)
        if all(_literal(end, kind) is not None for end in (low, high)):
            found[key] = low, high
    return found


def key_conditions(bounds: Bounds, target: Target, table: str | None = "t") -> list[str]:
    """Return SQL conditions that every row of the table fulfils if a row of the batch matches it.

    Args:
        bounds: the result of `key_bounds`.
        target: the table's columns.
        table: the table's alias; None for no alias.
    """
    of = f"{table}." if table else ""
    return [
        f"{of}{quote(key)} BETWEEN {_literal(low, target.columns[key])}"
        f" AND {_literal(high, target.columns[key])}"
        for key, (low, high) in bounds.items()
    ]


def search_condition(key: str, values: Iterable[Any], kind: str) -> str | None:
    """Return the SQL condition that a key has one of these values.

    Parquet's reader evaluates it on the statistics of each page, so it skips most pages of a file
    that is sorted by the key. A page has 20,000 rows by default.

    Args:
        key: the key column.
        values: its values; at least one.
        kind: the type of the column, one of `SEARCHED`.

    Returns:
        None if a value has no plain literal.
    """
    literals = [_literal(value, kind) for value in values]
    plain = [text for text in literals if text is not None]
    if len(plain) < len(literals):
        return None
    return f"{quote(key)} IN ({', '.join(plain)})"


def _literal(value: Any, kind: str) -> str | None:
    """Return a bound as SQL of the column's type, so that it is compared without a cast."""
    if kind in _SUFFIX:
        return f"{value}{_SUFFIX[kind]}"
    if kind == "date":
        return f"DATE'{value.isoformat()}'"
    return literal(value) if _PLAIN_TEXT.fullmatch(value) else None


def file_limits(add: Action) -> Limits:
    """Return the limits from the statistics of an `add` action; empty without statistics."""
    stats = json.loads(add.get("stats") or "{}")
    return stats.get("minValues") or {}, stats.get("maxValues") or {}


def may_match(limits: Limits, bounds: Bounds, names: Mapping[str, str]) -> bool:
    """Return whether a file of the table can have rows within the bounds, by its statistics.

    Args:
        limits: the limits of the file.
        bounds: see `key_bounds`.
        names: the physical column names.
    """
    least_of, most_of = limits
    for key, (low, high) in bounds.items():
        least, most = least_of.get(names[key]), most_of.get(names[key])
        if least is None or most is None:
            continue
        # The log has dates as ISO text, and truncates long texts to bounds that still hold.
        first, last = (str(end) if isinstance(end, dt.date) else end for end in (low, high))
        if type(least) is type(most) is type(first) and (most < first or least > last):
            return False
    return True


def wide_bounds(
    bounds: Bounds, limits: Sequence[Limits], names: Mapping[str, str], target: Target
) -> Bounds:
    """Return wider bounds that are equal for many batches: multiples of a large step.

    Spark compiles the code of a query for each number in a filter. Rounded bounds limit how often.

    Args:
        bounds: see `key_bounds`.
        limits: the limits of the table's files.
        names: the physical column names.
        target: the table's columns.
    """
    found = dict(bounds)
    whole = {key: bits for key in bounds if (bits := _BITS.get(target.columns[key]))}
    for key, bits in whole.items():
        low, high = bounds[key]
        values = (known.get(names[key]) for pair in limits for known in pair)
        ends = [end for end in values if isinstance(end, int)]
        if not ends:
            continue
        step = 1 << ((max(ends) - min(ends)) // _STEPS).bit_length()
        if high - low < step:
            continue  # exact bounds read fewer rows
        most = (1 << (bits - 1)) - 1
        found[key] = max(low - low % step, ~most), min(high - high % step + step - 1, most)
    return found
