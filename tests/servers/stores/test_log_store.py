"""The log store on a real server, without Spark: drivers race for versions, answers are lost."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from helpers import fault_proxy
from helpers.fault_proxy import FaultProxy, LostAnswers
from mirrorlake.spark.jars import delta_jars
from mirrorlake.spark.java import find_java
from mirrorlake.spark.s3 import s3_conf, store_jars

RACE = Path(fault_proxy.__file__).with_name("LogStoreRace.java")
VERSIONS = 10
# Each first answer is lost: Hadoop would wait half a second before it asks again.
QUICK = {"fs.s3a.retry.throttle.interval": "50ms", "fs.s3a.retry.interval": "50ms"}


def start(root: str) -> subprocess.Popen[str]:
    java, delta = find_java(), delta_jars()
    spark = Path(pyspark.__file__).parent / "jars"
    path = [f"{spark}/*", *map(str, [*delta, *store_jars(java, delta)])]
    prefix = "spark.hadoop."
    hadoop = {k.removeprefix(prefix): v for k, v in s3_conf().items() if k.startswith(prefix)}
    hadoop |= QUICK
    command = [
        *(str(java.home / "bin" / "java"), "-cp", os.pathsep.join(path)),
        *("org.codehaus.janino.SimpleCompiler", str(RACE), "LogStoreRace", f"{root}/Tables/t"),
        *(str(VERSIONS), *(f"{name}={value}" for name, value in hadoop.items())),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_each_version_is_committed_by_one_driver_though_every_first_answer_is_lost(
    root: str, proxy: FaultProxy
):
    proxy.faults = LostAnswers(503, only="_delta_log")
    drivers = [start(root) for _ in range(2)]
    got = []
    for driver in drivers:
        out, err = driver.communicate(timeout=500)
        assert driver.returncode == 0, err[-3000:]
        got += [int(line) for line in out.split()]
    assert sorted(got) == list(range(VERSIONS))
    commits = [r for r in proxy.requests if r.method == "PUT" and "_delta_log" in r.key]
    assert commits
    assert all(request.conditional for request in commits)
