"""What is said of Spark below a slow cell, while it works and when it rests."""

from __future__ import annotations

import re
import time
from threading import Thread

from pyspark.sql import SparkSession

from mirrorlake.spark.progress import spark_work

SLOW = "java_method('java.lang.Thread', 'sleep', 1500L)"  # in each task of the job


def test_it_counts_the_tasks_that_are_done(spark: SparkSession) -> None:
    assert spark_work() == "Spark: between two jobs"
    job = Thread(target=lambda: spark.range(0, 6, 1, 6).selectExpr(SLOW).collect())
    job.start()
    told = set()
    while job.is_alive():
        told.add(spark_work())
        time.sleep(0.05)
    job.join()
    counted = [one for one in told if re.fullmatch(r"Spark: \d of 6 tasks", one)]
    assert len(counted) >= 2, told
    assert spark_work() == "Spark: between two jobs"
