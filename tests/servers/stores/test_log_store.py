"""The log store on a real server, without Spark: drivers compete for versions, answers are lost."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from helpers import fault_proxy
from helpers.fault_proxy import FaultProxy, LostAnswers
from mirrorlake.spark.clouds import s3_conf, store_jars
from mirrorlake.spark.jars import delta_jars
from mirrorlake.spark.java import find_java
from mirrorlake.storage.files import Storage

PROGRAM = Path(fault_proxy.__file__).with_name("LogStoreProgram.java")
VERSIONS = 10
# A user may have set this; it must have no effect, or VACUUM would delete logs.
FAST = {"delta.enableFastS3AListFrom": "true"}
# Each first answer is lost; Hadoop would wait half a second before it retries.
QUICK = {"fs.s3a.retry.throttle.interval": "50ms", "fs.s3a.retry.interval": "50ms"}


def start(*arguments: str) -> subprocess.Popen[str]:
    java, delta = find_java(), delta_jars()
    spark = Path(pyspark.__file__).parent / "jars"
    path = [f"{spark}/*", *map(str, [*delta, *store_jars(java, delta)])]
    prefix = "spark.hadoop."
    hadoop = {k.removeprefix(prefix): v for k, v in s3_conf().items() if k.startswith(prefix)}
    hadoop |= QUICK | FAST
    command = [
        *(str(java.home / "bin" / "java"), "-cp", os.pathsep.join(path)),
        *("org.codehaus.janino.SimpleCompiler", str(PROGRAM), PROGRAM.stem, *arguments),
        *(f"{name}={value}" for name, value in hadoop.items()),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_each_version_is_committed_by_one_driver_though_every_first_answer_is_lost(
    root: str, proxy: FaultProxy
):
    proxy.faults = LostAnswers(503, only="_delta_log")
    drivers = [start("race", f"{root}/Tables/t", str(VERSIONS)) for _ in range(2)]
    got = []
    for driver in drivers:
        out, err = driver.communicate(timeout=500)
        assert driver.returncode == 0, err[-3000:]
        got += [int(line) for line in out.split()]
    assert sorted(got) == list(range(VERSIONS))
    commits = [r for r in proxy.requests if r.method == "PUT" and "_delta_log" in r.key]
    assert commits
    assert all(request.conditional for request in commits)


def listed(folder: str, start_at: str) -> list[str]:
    program = start("list", folder, start_at)
    out, err = program.communicate(timeout=500)
    assert program.returncode == 0, err[-3000:]
    return out.split()


def test_a_log_is_listed_from_a_version_on_and_a_table_without_its_log(
    root: str, proxy: FaultProxy
) -> None:
    storage, log = Storage(root), "Tables/t/_delta_log"
    for version in range(8):
        storage.write(f"{log}/{version:020d}.json", b"{}")
    inner = ("_sidecars/00000000000000000009.parquet", "_staged_commits/00000000000000000009.json")
    for name in (*inner, "00000000000000000005.checkpoint.parquet", "_last_checkpoint"):
        storage.write(f"{log}/{name}", b"x")
    storage.write("Tables/t/_delta_log2/00000000000000000009.json", b"x")
    storage.write("Tables/t/part.parquet", b"x")
    proxy.requests.clear()
    assert listed(storage.path(log), f"{5:020d}.checkpoint") == [
        "00000000000000000005.checkpoint.parquet",
        "00000000000000000005.json",
        "00000000000000000006.json",
        "00000000000000000007.json",
        "_last_checkpoint",
    ]
    assert len(proxy.requests) == 1  # one listing, from that version on
    # VACUUM uses this listing to find unused files, so it must contain no file of the log.
    found = listed(storage.path("Tables/t"), "all")
    assert found == ["_delta_log/", "_delta_log2/", "part.parquet"]
