"""The three notebooks with a JVM each, against one Spark Connect server that they share.

A ratio above 1 says that sharing is quicker; the server's own start is not counted. Sharing was to
be built in if this showed 2 or more.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers.bench import BenchResult, compare, run_script
from mirrorlake.paths import PARAMETERS


def run(pairs: int) -> BenchResult:
    here = Path(__file__)
    port = _free_port()
    server = subprocess.Popen(
        [sys.executable, str(here), "server", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()  # it says when it is up
        shared = {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"}
        return compare(
            "notebooks",
            "a plan of three, sharing Spark",
            lambda: run_script(here, "tour", env=shared)["took"],
            lambda: run_script(here, "tour")["took"],
            pairs,
        )
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


def tour() -> float:
    from mirrorlake.runs.run import run_plan

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MIRRORLAKE_HOME"] = folder
        began = time.monotonic()
        summary = run_plan(PARAMETERS / "plans" / "tour.yaml", Path(folder) / "out")
        assert summary.failed is None, summary.failed
        return time.monotonic() - began


def serve(port: str) -> None:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from mirrorlake.spark.session import launch_conf

    conf = SparkConf().setAll(list(launch_conf("notebook").items()))
    conf.set("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", port)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    print("up", flush=True)
    sys.stdin.read()  # until the bench closes it
    spark.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        print(f'{{"took": {tour():.3f}}}')
