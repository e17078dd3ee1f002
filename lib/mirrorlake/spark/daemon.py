"""Forks the Python workers of a local Spark, with what they need already imported.

Spark starts this module instead of its own (`spark.python.daemon.module`). A worker lives for a
minute after its last task; importing pandas and Arrow in each new one takes a second of a core.
"""

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
