"""Create a lake with tables of other writers: `python -m helpers.foreign_lake ROOT [VERSIONS]`.

- `by_delta_rs`: written by delta-rs, four versions, with a nested column and names of all kinds;
- `by_spark`: by plain Spark, with column mapping and deletion vectors, and no change feed;
- `parted`: 300 files in 300 partitions, one version;
- `wide and empty`: 500 columns, no row;
- `often`: a given number of versions, with a change feed, as of a job that rewrites a small table
  every minute; one checkpoint per 1,000 versions.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from helpers.delta_by_hand import HandMade
from mirrorlake.spark.session import get_spark
from mirrorlake.spark.sql import delta_name

TABLES = ("by_delta_rs", "by_spark", "parted", "wide and empty")
LONG = ("often",)  # too many versions for every tool without --long
FEW, MANY = 200, 10_000
_FILES = 10
_CHECKPOINT = 1000


def make_foreign_lake(root: Path, versions: int = FEW) -> None:
    """Create all five tables.

    Args:
        root: the lake.
        versions: the number of versions of `often`.
    """
    make_often(root / "Tables" / "often", versions)
    _by_delta_rs(root / "Tables" / "by_delta_rs")
    days = pa.table({"id": range(600), "day": [n % 300 for n in range(600)]})
    write_deltalake(root / "Tables" / "parted", days, partition_by=["day"])
    wide = pa.schema([("id", pa.int64()), *((f"c{n}", pa.string()) for n in range(499))])
    write_deltalake(root / "Tables" / "wide and empty", wide.empty_table())
    _by_spark(root / "Tables" / "by_spark")


def _by_delta_rs(path: Path) -> None:
    start = datetime(2024, 2, 28, tzinfo=timezone.utc)
    for part in range(2):
        rows = [
            {
                "id": n,
                "a name's 100%": f"value {n % 9}",
                "größe": Decimal(n) / 4,
                "at": start + timedelta(hours=n),
                "where": {"x": float(n), "tags": ["a", None]},
            }
            for n in range(part * 50, part * 50 + 50)
        ]
        write_deltalake(path, pa.Table.from_pylist(rows), mode="append")
    table = DeltaTable(path)
    table.delete("id < 5")
    table.update(updates={"`größe`": "0"}, predicate="id = 7")


def _by_spark(path: Path) -> None:
    spark, name = get_spark(), delta_name(str(path))
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "false",
        "delta.enableRowTracking": "false",
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    columns = "id bigint, `a b` string, n int"
    spark.sql(f"CREATE TABLE {name} ({columns}) USING delta TBLPROPERTIES ({listed})")
    rows = "SELECT id, concat('v', id % 7), CAST(id % 50 AS int) FROM range(1000)"
    spark.sql(f"INSERT INTO {name} {rows}")
    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN n TO amount")
    spark.sql(f"UPDATE {name} SET amount = NULL WHERE id < 20")


def make_often(path: Path, versions: int) -> None:
    """Create a table whose only file is replaced in each version, by turns by one of ten files."""
    table = HandMade(path)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table.create(schema, {"delta.enableChangeDataFeed": "true"}, writer=4)
    for turn in range(_FILES):
        rows = {"id": range(20), "text": [f"turn {turn if n < 3 else 0}" for n in range(20)]}
        table.file(f"part-{turn}.parquet", pa.table(rows, schema))
    for version in range(1, versions):
        actions = [{"add": table.adds[f"part-{version % _FILES}.parquet"]}]
        if version > 1:
            gone = table.adds[f"part-{(version - 1) % _FILES}.parquet"]
            kept = {name: gone[name] for name in ("path", "partitionValues", "size", "dataChange")}
            when = {"deletionTimestamp": gone["modificationTime"], "extendedFileMetadata": True}
            actions.append({"remove": kept | when})
        table.log("WRITE", actions, operationParameters={"mode": "Overwrite", "partitionBy": "[]"})
        if version % _CHECKPOINT == 0:
            DeltaTable(path).create_checkpoint()


if __name__ == "__main__":
    make_foreign_lake(Path(sys.argv[1]), *map(int, sys.argv[2:]))
