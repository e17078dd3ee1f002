"""The files that a table's log names, as DataFrames: Spark replays the actions, not the driver.

The driver only names the pieces to read: a checkpoint with its sidecars, and the commits after it.
Its memory does not grow with the table. Full paths are as Hadoop prints them (`file:/…`), so that
they can be joined with a listing and handed to VACUUM.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from mirrorlake.delta.log_files import Segment, commit_path, find_segment
from mirrorlake.delta.snapshot import OPEN_TAG, read_snapshot
from mirrorlake.delta.vectors import Z85
from mirrorlake.spark.sql import escape_glob
from mirrorlake.storage import Storage

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
_COMMIT = f"{_CHECKPOINT}, cdc struct<path:string,size:bigint>, commitInfo string"


def hadoop_path(storage: Storage, relative: str) -> str:
    """A full path as Hadoop prints it."""
    path = storage.path(relative)
    return f"file:{path}" if storage.local is not None else path


def read_actions(spark: SparkSession, storage: Storage, segment: Segment) -> DataFrame:
    """One row an action of a segment.

    Returns:
        `version`, `kind` (`add`, `remove` or `commitInfo`); of a file `path` (decoded, relative to
        the table's folder or a full URI), `vector` (what tells its deletion vectors apart), `size`,
        `modified` (milliseconds since 1970), `rows` (deleted ones included; NULL where no
        statistics tell), `deleted`, `partition` and `tags` (JSON), `stats` as the log has them; of
        a commit `body`, its `commitInfo` as JSON.
    """
    # A checkpoint's removes are tombstones: they were gone before it.
    actions = _read_segment(spark, storage, segment).where(
        f"add IS NOT NULL OR commitInfo IS NOT NULL OR (remove IS NOT NULL"
        f" AND version > {segment.base})"
    )
    vector = F.coalesce("add.deletionVector", "remove.deletionVector")
    told = [vector["storageType"], vector["pathOrInlineDv"], vector["offset"].cast("string")]
    values = F.map_from_entries(F.array_sort(F.map_entries("add.partitionValues")))
    is_file = F.col("commitInfo").isNull()
    return actions.select(
        "version",
        F.when(F.col("add").isNotNull(), "add")
        .when(F.col("remove").isNotNull(), "remove")
        .otherwise("commitInfo")
        .alias("kind"),
        _decoded(F.coalesce("add.path", "remove.path")).alias("path"),
        F.when(is_file, F.concat_ws("", *told)).alias("vector"),
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
    """The `add`s that stand at the end of a segment; a file with its deletion vector is one."""
    files = actions.where(F.col("kind").isin("add", "remove"))
    # Within a commit a file may be removed under one vector and added under another.
    last = Window.partitionBy("path", "vector").orderBy(F.desc("version"))
    ranked = files.withColumn("rank", F.row_number().over(last))
    return ranked.where("rank = 1 AND kind = 'add'").drop("rank", "kind", "body")


def latest_actions(
    spark: SparkSession, storage: Storage, table_path: str, version: int
) -> DataFrame:
    """The last word of the log, up to a version, on each file and deletion vector.

    Returns:
        `path`, `vector` (the deletion vector's file, or NULL), `size`, `rows` (without deleted
        ones; NULL where no statistics tell), `masked` (rows deleted by the vector), `parts` (the
        partition's values as JSON), `ordered` (whether its rows are in V-Order), `live` (whether it
        is in the version), `removed` (when it was removed, milliseconds since 1970).
    """
    segment = find_segment(storage, table_path, version)
    return _last_words(storage, table_path, _read_segment(spark, storage, segment))


def changed_files(
    spark: SparkSession, storage: Storage, table_path: str, first: int, last: int
) -> DataFrame:
    """The last word of a range of commits on each file that they name; see `latest_actions`."""
    return _last_words(storage, table_path, _read_range(spark, storage, table_path, first, last))


def files_of(spark: SparkSession, storage: Storage, table_path: str, version: int) -> DataFrame:
    """The data files of a version; columns as in `latest_actions`, without the last two."""
    found = latest_actions(spark, storage, table_path, version).where("live")
    return found.drop("live", "removed")


def feed_files(
    spark: SparkSession, storage: Storage, table_path: str, first: int, last: int
) -> DataFrame:
    """Every file that the change feed of these versions is read from: `path`."""
    base = hadoop_path(storage, table_path)
    actions = _read_range(spark, storage, table_path, first, last)
    named = F.coalesce("add.path", "remove.path", "cdc.path")
    vector = F.coalesce("add.deletionVector", "remove.deletionVector")
    both = F.array(full_path(named, base), _vector_file(vector, base))
    return actions.select(F.explode(both).alias("path")).where("path IS NOT NULL").distinct()


def _read_range(
    spark: SparkSession, storage: Storage, table_path: str, first: int, last: int
) -> DataFrame:
    return _read_commits(
        spark, storage, [commit_path(table_path, version) for version in range(first, last + 1)]
    )


def _read_segment(spark: SparkSession, storage: Storage, segment: Segment) -> DataFrame:
    parts = [_read_commits(spark, storage, segment.commits)]
    for suffix in (".parquet", ".json"):
        some = [
            escape_glob(storage.path(path)) for path in segment.checkpoint if path.endswith(suffix)
        ]
        if some:
            reader = spark.read.schema(_CHECKPOINT)
            rows = reader.parquet(*some) if suffix == ".parquet" else reader.json(some)
            base = F.lit(segment.base).cast("bigint").alias("version")
            parts.append(rows.select(base, "add", "remove"))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)


def _read_commits(spark: SparkSession, storage: Storage, paths: Sequence[str]) -> DataFrame:
    """The actions of commits as they stand: `version`, `add`, `remove`, `cdc`, `commitInfo`."""
    if not paths:
        return spark.createDataFrame([], f"version bigint, {_COMMIT}")
    rows = spark.read.schema(_COMMIT).json([escape_glob(storage.path(path)) for path in paths])
    version = F.substring("_metadata.file_name", 1, 20).cast("bigint").alias("version")
    return rows.select(version, *rows.columns)


def _last_words(storage: Storage, table_path: str, actions: DataFrame) -> DataFrame:
    snapshot = read_snapshot(storage, table_path)
    base = hadoop_path(storage, table_path)
    vector = F.coalesce("add.deletionVector", "remove.deletionVector")
    masked = F.coalesce("add.deletionVector.cardinality", F.lit(0).cast("bigint"))
    # Decoding their names is much code for Spark to compile: most tables have none.
    marked = snapshot is not None and "deletionVectors" in snapshot.reader_features
    file = _vector_file(vector, base) if marked else F.lit(None)
    flat = actions.where("add IS NOT NULL OR remove IS NOT NULL").select(
        "version",
        full_path(F.coalesce("add.path", "remove.path"), base).alias("path"),
        file.cast("string").alias("vector"),
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
    """The rows of a file, deleted ones included, by its statistics."""
    stats = F.coalesce("add.stats", "remove.stats")
    written = F.get_json_object(stats, "$.numRecords").cast("bigint")
    return F.coalesce(written, "add.stats_parsed.numRecords")


def full_path(path: Column, base: str) -> Column:
    """A path of the log, which is URL-encoded and mostly relative, as Hadoop prints it."""
    decoded = _decoded(path)
    absolute = F.regexp_replace(decoded, "^file:/+", "file:/")
    return (
        F.when(decoded.startswith("/"), F.concat(F.lit("file:"), decoded))
        .when(decoded.rlike("^[a-zA-Z][a-zA-Z0-9+.-]*:/"), absolute)
        .otherwise(F.concat(F.lit(f"{base}/"), decoded))
    )


def _decoded(path: Column) -> Column:
    # url_decode is made for forms, where a plus is a space.
    return F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))


def _vector_file(vector: Column, base: str) -> Column:
    """The file of a deletion vector; an inline one stands in for itself, so that it counts."""
    where = vector["pathOrInlineDv"]
    encoded = F.right(where, F.lit(20))
    folder = F.left(where, F.length(where) - 20)
    starts = F.array(*[F.lit(5 * word) for word in range(4)])
    digits = F.array_join(F.transform(starts, lambda start: _word(encoded, start)), "")
    number = F.regexp_replace(digits, "^(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-")
    slash = F.when(F.length(folder) > 0, F.concat(folder, F.lit("/"))).otherwise("")
    own = F.concat(F.lit(f"{base}/"), slash, F.lit("deletion_vector_"), number, F.lit(".bin"))
    kind = vector["storageType"]
    return (
        F.when(kind == "u", own)
        .when(kind == "p", full_path(where, base))
        .when(kind == "i", F.concat(F.lit("inline:"), where))
    )


def _word(encoded: Column, start: Column) -> Column:
    """Five characters of Z85, after the first so many, as eight hexadecimal digits."""

    def take(value: Column, place: Column) -> Column:
        digit = F.instr(F.lit(Z85), F.substring(encoded, start + place, F.lit(1))) - 1
        return value * 85 + digit

    # Lambdas are not compiled: written out, this would be most of what Spark compiles for a query.
    places = F.array(*[F.lit(place) for place in range(1, 6)])
    value = F.aggregate(places, F.lit(0).cast("bigint"), take)
    return F.lpad(F.lower(F.hex(value)), 8, "0")
