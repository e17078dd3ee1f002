"""Read a table's data files from its log as DataFrames: Spark replays the actions, not the driver.

The driver only names the files to read: a checkpoint with its sidecars, and the commits after it.
Its memory does not grow with the table. Full paths are written as Hadoop prints them (`file:/…`),
so that they can be joined with a listing and passed to VACUUM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from mirrorlake.delta.actions import Places, encode, vector_path
from mirrorlake.delta.log_files import Segment, commit_path, find_segment
from mirrorlake.delta.snapshot import (
    OPEN_TAG,
    ROW_ID_COLUMN,
    ROW_TRACKING,
    ROW_VERSION_COLUMN,
    Snapshot,
    physical_name,
)
from mirrorlake.delta.table import TableHandle
from mirrorlake.spark.executors import ensure_python, map_in_arrow, parallelism
from mirrorlake.spark.sql import escape_glob
from mirrorlake.storage.files import Storage

_VECTOR = "struct<storageType:string,pathOrInlineDv:string,offset:int,cardinality:bigint>"
_ADD = (
    "struct<path:string,size:bigint,modificationTime:bigint,partitionValues:map<string,string>,"
    "tags:map<string,string>,stats:string,stats_parsed:struct<numRecords:bigint>,"
    f"deletionVector:{_VECTOR}>"
)
_REMOVE = (
    "struct<path:string,size:bigint,deletionTimestamp:bigint,stats:string,"
    f"deletionVector:{_VECTOR}>"
)
_CHECKPOINT = f"add {_ADD}, remove {_REMOVE}"
_AT_ONCE = 16
_COMMIT = f"{_CHECKPOINT}, cdc struct<path:string,size:bigint>, commitInfo string"


def hadoop_path(storage: Storage, relative: str) -> str:
    """Return a full path as Hadoop prints it."""
    path = storage.path(relative)
    return f"file:{path}" if storage.local is not None else path


def read_actions(spark: SparkSession, storage: Storage, segment: Segment) -> DataFrame:
    """Return the actions of a segment, one row per action.

    Returns:
        `version`, `kind` (`add`, `remove` or `commitInfo`). For a file: `path` (decoded, relative
        to the table's folder or a full URI), `vector` (identifies its deletion vector), `size`,
        `modified` (milliseconds since 1970), `rows` (deleted ones included; NULL without
        statistics), `deleted`, `partition` and `tags` (JSON), `stats` as in the log. For a commit:
        `body`, its `commitInfo` as JSON.
    """
    # A checkpoint's removes are tombstones of files that earlier commits removed.
    actions = _read_segment(spark, storage, segment).where(
        f"add IS NOT NULL OR commitInfo IS NOT NULL OR (remove IS NOT NULL"
        f" AND version > {segment.base})"
    )
    vector = F.coalesce("add.deletionVector", "remove.deletionVector")
    parts = [vector["storageType"], vector["pathOrInlineDv"], vector["offset"].cast("string")]
    values = F.map_from_entries(F.array_sort(F.map_entries("add.partitionValues")))
    is_file = F.col("commitInfo").isNull()
    return actions.select(
        "version",
        F.when(F.col("add").isNotNull(), "add")
        .when(F.col("remove").isNotNull(), "remove")
        .otherwise("commitInfo")
        .alias("kind"),
        decoded_path(F.coalesce("add.path", "remove.path")).alias("path"),
        F.when(is_file, F.concat_ws("", *parts)).alias("vector"),
        F.coalesce("add.size", "remove.size").alias("size"),
        F.coalesce("add.modificationTime", "remove.deletionTimestamp").alias("modified"),
        _records().alias("rows"),
        F.when(is_file, F.coalesce(vector["cardinality"], F.lit(0))).alias("deleted"),
        F.coalesce(F.to_json(values), F.lit("{}")).alias("partition"),
        F.coalesce(F.to_json("add.tags"), F.lit("{}")).alias("tags"),
        F.coalesce("add.stats", "remove.stats").alias("stats"),
        F.col("commitInfo").alias("body"),
    )


def live_files(actions: DataFrame) -> DataFrame:
    """Return the `add` actions that are live at the end of a segment.

    A file together with its deletion vector counts as one file.
    """
    files = actions.where(F.col("kind").isin("add", "remove"))
    # A commit may remove a file with one vector and add it with another.
    last = Window.partitionBy("path", "vector").orderBy(F.desc("version"))
    ranked = files.withColumn("rank", F.row_number().over(last))
    return ranked.where("rank = 1 AND kind = 'add'").drop("rank", "kind", "body")


def latest_actions(table: TableHandle, version: int) -> DataFrame:
    """Return the last action on each file and deletion vector up to a version.

    Returns:
        `path`, `vector` (the deletion vector's file, or NULL), `size`, `rows` (without deleted
        ones; NULL without statistics), `masked` (rows deleted by the vector), `parts` (the
        partition's values as JSON), `ordered` (whether its rows are in V-Order), `live` (whether
        the version contains it), `removed` (when it was removed, in milliseconds since 1970).
    """
    segment = find_segment(table.storage, table.name.table_path, version)
    return _last_actions(table, _read_segment(table.spark, table.storage, segment))


def changed_files(table: TableHandle, first: int, last: int) -> DataFrame:
    """Return the last action on each file that a range of commits names.

    The columns are those of `latest_actions`.
    """
    return _last_actions(table, _read_range(table, first, last))


def files_of(table: TableHandle, version: int) -> DataFrame:
    """Return a version's data files, with the columns of `latest_actions` except the last two."""
    return latest_actions(table, version).where("live").drop("live", "removed")


def files_to_purge(table: TableHandle) -> DataFrame:
    """Return the files with deleted rows or dropped columns; columns as in `files_of`.

    The rule is that of Delta's REORG: a file holds a dropped column if its schema has a field, on
    any level, that the table's schema lacks. Footers are read only if a column was ever dropped.
    """
    snapshot = table.snapshot()
    files = files_of(table, snapshot.version)
    if not snapshot.has_dropped_columns:
        return files.where("masked > 0")
    known = _file_schema(snapshot)
    storage, folder = table.storage, table.name.table_path
    base = f"{hadoop_path(storage, folder)}/"

    def choose(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places = Places(storage, folder)

        def is_chosen(path: str, masked: int) -> bool:
            if masked:
                return True
            own, name = places.place(path.removeprefix(base))
            with own.open(name) as source:
                schema = pq.read_metadata(source).schema.to_arrow_schema()
            return _has_more(pa.struct(list(schema)), known)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for batch in batches:
                paths, masked = (batch.column(name).to_pylist() for name in ("path", "masked"))
                yield batch.filter(pa.array(pool.map(is_chosen, paths, masked), pa.bool_()))

    return map_in_arrow(files.repartition(parallelism(table.spark)), choose, files.schema)


def _file_schema(snapshot: Snapshot) -> dict[str, Any]:
    """Return the schema of a table's files as Spark's JSON, with the columns of row ids."""
    properties, hidden = snapshot.properties, []
    if properties.get(ROW_TRACKING, "false").lower() == "true":
        names = [properties.get(name) for name in (ROW_ID_COLUMN, ROW_VERSION_COLUMN)]
        hidden = [{"name": name, "type": "long"} for name in names if name]
    return {"type": "struct", "fields": [*snapshot.fields, *hidden]}


def _has_more(found: pa.DataType, known: Any) -> bool:
    """Return whether a type in a file has a field that the table's type, Spark's JSON, lacks."""
    match known:
        case {"type": "struct", "fields": fields} if pa.types.is_struct(found):
            kinds = {physical_name(field).lower(): field["type"] for field in fields}
            return any(
                one.name.lower() not in kinds or _has_more(one.type, kinds[one.name.lower()])
                for one in found
            )
        case {"type": "array", "elementType": inner} if pa.types.is_list(found):
            return _has_more(found.value_type, inner)
        case {"type": "map", "keyType": key, "valueType": value} if pa.types.is_map(found):
            return _has_more(found.key_type, key) or _has_more(found.item_type, value)
    return False


def feed_files(table: TableHandle, first: int, last: int) -> DataFrame:
    """Return the `path` of each file from which the change feed of these versions is read."""
    base = hadoop_path(table.storage, table.name.table_path)
    actions = _read_range(table, first, last)
    named = F.coalesce("add.path", "remove.path", "cdc.path")
    both = F.array(full_path(named, base), _vector_file(table))
    return actions.select(F.explode(both).alias("path")).where("path IS NOT NULL").distinct()


def matching_files(table: TableHandle, predicate: str) -> DataFrame:
    """Return the files with rows that match a predicate: `path`, and their number, `hits`."""
    base = hadoop_path(table.storage, table.name.table_path)
    # As an expression, the predicate can't end the statement.
    rows = table.rows().where(F.expr(predicate))
    path = full_path(F.col("_metadata.file_path"), base).alias("path")
    return rows.groupBy(path).agg(F.count("*").alias("hits"))


def tag(name: str) -> Column:
    """Return one tag of a file, or NULL."""
    tags = F.coalesce("tags", F.create_map().cast("map<string, string>"))
    return F.try_element_at(tags, F.lit(name))


def total(column: Column | str) -> Column:
    """Return the sum of a column, 0 without rows."""
    return F.coalesce(F.sum(column), F.lit(0))


def _read_range(table: TableHandle, first: int, last: int) -> DataFrame:
    paths = [commit_path(table.name.table_path, version) for version in range(first, last + 1)]
    return _read_commits(table.spark, table.storage, paths)


def _read_segment(spark: SparkSession, storage: Storage, segment: Segment) -> DataFrame:
    parts = [_read_commits(spark, storage, segment.commits)]
    for kind in ("parquet", "json"):
        if some := [path for path in segment.checkpoint if path.endswith(f".{kind}")]:
            paths = [escape_glob(storage.path(path)) for path in some]
            rows = spark.read.schema(_CHECKPOINT).load(paths, format=kind)
            base = F.lit(segment.base).cast("bigint").alias("version")
            parts.append(rows.select(base, "add", "remove"))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)


def _read_commits(spark: SparkSession, storage: Storage, paths: Sequence[str]) -> DataFrame:
    """Return the actions of commits: `version`, `add`, `remove`, `cdc`, `commitInfo`."""
    if not paths:
        return spark.createDataFrame([], f"version bigint, {_COMMIT}")
    rows = spark.read.schema(_COMMIT).json([escape_glob(storage.path(path)) for path in paths])
    version = F.substring("_metadata.file_name", 1, 20).cast("bigint").alias("version")
    return rows.select(version, *rows.columns)


def _last_actions(table: TableHandle, actions: DataFrame) -> DataFrame:
    base = hadoop_path(table.storage, table.name.table_path)
    masked = F.coalesce("add.deletionVector.cardinality", F.lit(0).cast("bigint"))
    flat = actions.where("add IS NOT NULL OR remove IS NOT NULL").select(
        "version",
        full_path(F.coalesce("add.path", "remove.path"), base).alias("path"),
        _vector_file(table).alias("vector"),
        F.coalesce("add.size", "remove.size").alias("size"),
        (_records() - masked).alias("rows"),
        masked.alias("masked"),
        F.to_json("add.partitionValues").alias("parts"),
        F.try_element_at("add.tags", F.lit(OPEN_TAG)).isNotNull().alias("ordered"),
        F.col("add").isNotNull().alias("live"),
        F.coalesce("remove.deletionTimestamp", F.lit(0).cast("bigint")).alias("removed"),
    )
    kept = ["size", "rows", "masked", "parts", "ordered", "live", "removed"]
    last = flat.groupBy("path", "vector").agg(F.max_by(F.struct(*kept), "version").alias("last"))
    return last.select("path", "vector", "last.*")


def _records() -> Column:
    """Return a file's rows, deleted ones included, from its statistics."""
    stats = F.coalesce("add.stats", "remove.stats")
    written = F.get_json_object(stats, "$.numRecords").cast("bigint")
    return F.coalesce(written, "add.stats_parsed.numRecords")


def full_path(path: Column, base: str) -> Column:
    """Return a path of the log as Hadoop prints it.

    In the log a path is URL-encoded and usually relative to the table's folder.
    """
    decoded = decoded_path(path)
    absolute = F.regexp_replace(decoded, "^file:/+", "file:/")
    return (
        F.when(decoded.startswith("/"), F.concat(F.lit("file:"), decoded))
        .when(decoded.rlike("^[a-zA-Z][a-zA-Z0-9+.-]*:/"), absolute)
        .otherwise(F.concat(F.lit(f"{base}/"), decoded))
    )


def decoded_path(path: Column) -> Column:
    """Decode a URL-encoded path."""
    # url_decode decodes forms, where a plus is a space.
    return F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))


def _vector_file(table: TableHandle) -> Column:
    """Return the file of an action's deletion vector.

    An inline vector is named by its content, so that it is counted. Tables without deletion vectors
    start no Python worker.
    """

    @F.udf(returnType="string", useArrow=False)
    def named(kind: str | None, where: str | None) -> str | None:
        path = vector_path({"storageType": kind, "pathOrInlineDv": where}) if kind else None
        return None if path is None else encode(path)

    if "deletionVectors" not in table.snapshot().reader_features:
        return F.lit(None).cast("string")
    ensure_python(table.spark)
    vector = F.coalesce("add.deletionVector", "remove.deletionVector")
    kind, where = vector["storageType"], vector["pathOrInlineDv"]
    file = full_path(named(kind, where), hadoop_path(table.storage, table.name.table_path))
    return F.when(kind == "i", F.concat(F.lit("inline:"), where)).otherwise(file)
