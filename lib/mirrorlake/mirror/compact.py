"""Puts the small files of constant mirroring together, now and then, beside readers and writers."""

from __future__ import annotations

from pyspark.sql import SparkSession

from mirrorlake.mirror.failures import CONFLICT
from mirrorlake.spark.messages import spark_message
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name

# Files of 128 MiB and more are left alone: the cost follows what is new, not the table.
_CONFS = {
    "spark.databricks.delta.optimize.minFileSize": str(128 * 2**20),
    "spark.databricks.delta.optimize.maxFileSize": str(256 * 2**20),
}


def compact(spark: SparkSession, path: str) -> bool:
    """Compacts a Delta table; no row changes, and readers notice nothing.

    Returns:
        False if another writer was quicker: then it is worth another try after the next commit.
    """
    session = new_session(spark)
    for name, value in _CONFS.items():
        session.conf.set(name, value)
    try:
        session.sql(f"OPTIMIZE {delta_name(path)}").collect()
    except Exception as error:
        if CONFLICT.search(spark_message(error)):
            return False
        raise
    return True
