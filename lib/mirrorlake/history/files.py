"""The files of a version as a DataFrame: the log's actions replayed by Spark, not on the driver.

Full paths are as Hadoop prints them (`file:/…`), so that they can be joined with a listing and
handed to VACUUM. Source: the Delta transaction log protocol.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta_log import OPEN_TAG, checkpoint_files, read_snapshot
from mirrorlake.history.commits import CommitLog
from mirrorlake.history.tombstones import Z85
from mirrorlake.spark.sql import escape_glob
from mirrorlake.storage import Storage

_VECTOR = "struct<storageType:string,pathOrInlineDv:string,offset:int,cardinality:bigint>"
_ADD = (
    f"struct<path:string,size:bigint,partitionValues:map<string,string>,tags:map<string,string>,"
    f"stats:string,stats_parsed:struct<numRecords:bigint>,deletionVector:{_VECTOR}>"
)
_REMOVE = f"struct<path:string,size:bigint,deletionTimestamp:bigint,deletionVector:{_VECTOR}>"
_CDC = "struct<path:string,size:bigint>"
ACTIONS = f"add {_ADD}, remove {_REMOVE}, cdc {_CDC}"


def hadoop_path(storage: Storage, relative: str) -> str:
    """A full path as Hadoop prints it."""
    path = storage.path(relative)
    return f"file:{path}" if storage.local is not None else path


def read_log(
    spark: SparkSession, storage: Storage, table_path: str, first: int, last: int
) -> DataFrame:
    """The file actions of a range of commits, as they stand: `version`, `add`, `remove`, `cdc`."""
    log = CommitLog(storage, table_path)
    paths = [escape_glob(storage.path(log.name(n))) for n in range(first, last + 1)]
    if not paths:
        return spark.createDataFrame([], f"version bigint, {ACTIONS}")
    rows = spark.read.schema(ACTIONS).json(paths)
    version = F.substring("_metadata.file_name", 1, 20).cast("bigint")
    return rows.select(version.alias("version"), "add", "remove", "cdc").where(
        "add IS NOT NULL OR remove IS NOT NULL OR cdc IS NOT NULL"
    )


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
    found, names = checkpoint_files(storage, table_path, version)
    parts = [read_log(spark, storage, table_path, found + 1, version)]
    log = f"{table_path}/_delta_log"
    for suffix in (".parquet", ".json"):
        some = [escape_glob(storage.path(f"{log}/{n}")) for n in names if n.endswith(suffix)]
        if some:
            reader = spark.read.schema(f"add {_ADD}, remove {_REMOVE}")
            rows = reader.parquet(*some) if suffix == ".parquet" else reader.json(some)
            parts.append(rows.select(F.lit(found).cast("bigint").alias("version"), "add", "remove"))
    actions = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
    return _last_words(storage, table_path, actions)


def changed_files(
    spark: SparkSession, storage: Storage, table_path: str, first: int, last: int
) -> DataFrame:
    """The last word of a range of commits on each file that they name; see `latest_actions`."""
    return _last_words(storage, table_path, read_log(spark, storage, table_path, first, last))


def _last_words(storage: Storage, table_path: str, actions: DataFrame) -> DataFrame:
    snapshot = read_snapshot(storage, table_path)
    features = (snapshot.protocol if snapshot else {}).get("readerFeatures") or []
    base = hadoop_path(storage, table_path)
    # Decoding their names is much code for Spark to compile: most tables have none.
    columns = _columns(base, vectors="deletionVectors" in features)
    flat = actions.where("add IS NOT NULL OR remove IS NOT NULL").select("version", *columns)
    kept = ["size", "rows", "masked", "parts", "ordered", "live", "removed"]
    last = flat.groupBy("path", "vector").agg(F.max_by(F.struct(*kept), "version").alias("last"))
    return last.select("path", "vector", "last.*")


def files_of(spark: SparkSession, storage: Storage, table_path: str, version: int) -> DataFrame:
    """The data files of a version; columns as in `latest_actions`, without the last two."""
    found = latest_actions(spark, storage, table_path, version).where("live")
    return found.drop("live", "removed")


def feed_files(
    spark: SparkSession, storage: Storage, table_path: str, first: int, last: int
) -> DataFrame:
    """Every file that the change feed of these versions is read from: `path`."""
    base = hadoop_path(storage, table_path)
    actions = read_log(spark, storage, table_path, first, last)
    named = F.coalesce("add.path", "remove.path", "cdc.path")
    vector = F.coalesce("add.deletionVector", "remove.deletionVector")
    both = F.array(full_path(named, base), _vector_file(vector, base))
    return actions.select(F.explode(both).alias("path")).where("path IS NOT NULL").distinct()


def full_path(path: Column, base: str) -> Column:
    """A path of the log, which is URL-encoded and mostly relative, as Hadoop prints it."""
    # url_decode is made for forms, where a plus is a space.
    decoded = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
    absolute = F.regexp_replace(decoded, "^file:/+", "file:/")
    return (
        F.when(decoded.startswith("/"), F.concat(F.lit("file:"), decoded))
        .when(decoded.rlike("^[a-zA-Z][a-zA-Z0-9+.-]*:/"), absolute)
        .otherwise(F.concat(F.lit(f"{base}/"), decoded))
    )


def _columns(base: str, *, vectors: bool) -> list[Column]:
    vector = F.coalesce("add.deletionVector", "remove.deletionVector")
    records = F.coalesce(
        F.get_json_object("add.stats", "$.numRecords").cast("bigint"),
        F.col("add.stats_parsed.numRecords"),
    )
    masked = F.coalesce("add.deletionVector.cardinality", F.lit(0).cast("bigint"))
    return [
        full_path(F.coalesce("add.path", "remove.path"), base).alias("path"),
        (_vector_file(vector, base) if vectors else F.lit(None).cast("string")).alias("vector"),
        F.coalesce("add.size", "remove.size").alias("size"),
        (records - masked).alias("rows"),
        masked.alias("masked"),
        F.to_json("add.partitionValues").alias("parts"),
        F.try_element_at("add.tags", F.lit(OPEN_TAG)).isNotNull().alias("ordered"),
        F.col("add").isNotNull().alias("live"),
        F.coalesce("remove.deletionTimestamp", F.lit(0).cast("bigint")).alias("removed"),
    ]


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
