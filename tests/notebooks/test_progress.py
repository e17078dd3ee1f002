"""The text about Spark's progress below a slow cell, during and between jobs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

PROGRAM = """
import json
import time
from threading import Thread

from mirrorlake.notices import spark_work
from mirrorlake.spark.session import get_spark

spark = get_spark()
before = spark_work()
SLOW = "java_method('java.lang.Thread', 'sleep', 1500L)"  # in each task of the job
job = Thread(target=lambda: spark.range(0, 6, 1, 6).selectExpr(SLOW).collect())
job.start()
told = set()
while job.is_alive():
    told.add(spark_work())
    time.sleep(0.05)
job.join()
print(json.dumps([before, sorted(told), spark_work()]))
"""


@pytest.mark.usefixtures("one_spark")  # no other job runs there
def test_it_counts_the_tasks_that_are_done() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    before, told, after = json.loads(done.stdout)
    assert before == after == "Spark: between two jobs"
    counted = [one for one in told if re.fullmatch(r"Spark: \d of 6 tasks", one)]
    assert len(counted) >= 2, told
