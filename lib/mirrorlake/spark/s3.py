"""What Spark needs for lakes on S3: jars, settings from the standard variables, the log store.

Spark and obstore read the same variables and the same `s3://` URIs. Keys stay in the environment:
no setting holds them on this machine, and on a cluster Spark hides those that it ships. The log
store, by which any number of drivers can commit to one table, is `ConditionalLogStore.java` beside
this module; the compiler that PySpark ships, Janino, makes a jar of it, once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import subprocess
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake.errors import SetupError
from mirrorlake.spark.jars import HADOOP, VERSION, JarSet, fetched_jars, pyspark_home, read_sums
from mirrorlake.spark.java import Java
from mirrorlake.storage.object_stores import s3_endpoint, scheme_of
from mirrorlake.storage.paths import cache, make_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_SCHEMES = ("s3", "s3a")
_SDK = "2.29.52"
# 35 jars: Hadoop's S3A and what it uses of Amazon's SDK, without the SDK's bundle of 640 MB. What
# else they name comes with Spark.
S3 = JarSet(
    "S3",
    f"s3-{HADOOP}",
    (
        f"org.apache.hadoop:hadoop-aws:{HADOOP}",
        *(
            f"software.amazon.awssdk:{name}:{_SDK}"
            for name in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
        ),
    ),
    "software.amazon.awssdk:bundle,io.netty:*,org.slf4j:*,commons-logging:*,commons-codec:*,"
    "org.apache.httpcomponents:*,org.wildfly.openssl:*",
    read_sums("s3_jars.sha256"),
)
CLASS = "mirrorlake.ConditionalLogStore"
_SOURCE = Path(__file__).with_name("ConditionalLogStore.java")
_COMPILE = Path(__file__).with_name("Compile.java")
_SECONDS = 300
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
DRIVER_PATH = "spark.driver.extraClassPath"
REDACTED = "(?i)secret|password|token|access[._]?key|account[._]key"
DELTA_CONFS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
LOG_STORE_CONF = "spark.delta.logStore.s3.impl"
# The other one that knows of other drivers: Delta's own, with a database beside it.
_GOOD_STORES = (CLASS, "io.delta.storage.S3DynamoDBLogStore")


def is_s3(root: str | None) -> bool:
    """Whether a lake's root is on S3."""
    return root is not None and scheme_of(root) in _SCHEMES


def store_jars(java: Java, delta: list[Path]) -> list[Path]:
    """The jars for S3 on this machine, fetched and compiled now if this is the first start."""
    hadoop = fetched_jars(S3)
    return [*hadoop, log_store_jar(java, [*delta, *hadoop])]


def log_store_path() -> Path:
    """Where the compiled log store lies, or will."""
    key = hashlib.sha256(_SOURCE.read_bytes() + VERSION.encode()).hexdigest()[:16]
    return cache() / "log_store" / f"mirrorlake-log-store-{key}.jar"


def log_store_jar(java: Java, jars: list[Path]) -> Path:
    """The jar with the log store, compiled now if it is not in the cache.

    Args:
        java: what compiles it.
        jars: Delta's and Hadoop's for S3, which it stands on.

    Raises:
        SetupError: it can't be compiled.
    """
    target = log_store_path()
    make_once(target, target.is_file, partial(_compile, java, jars))
    return target


def _compile(java: Java, jars: list[Path], target: Path) -> None:
    spark = pyspark_home() / "jars"
    classes = target.parent / "classes"
    class_path = os.pathsep.join([f"{spark}/*", *map(str, jars)])
    command = [
        *(str(java.home / "bin" / "java"), "-cp", class_path, "org.codehaus.janino.SimpleCompiler"),
        *(str(_COMPILE), "Compile", str(_SOURCE), str(classes)),
    ]
    _log.info("compiling the log store for S3 (once) …")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    found = sorted(classes.rglob("*.class")) if classes.is_dir() else []
    if done.returncode != 0 or not found:
        raise SetupError(
            f"The log store for S3 could not be compiled: {done.stderr.strip()[-500:]}",
            hint="tables on S3 are not written without it.",
        )
    with zipfile.ZipFile(target, "w") as jar:
        for file in found:
            jar.write(file, file.relative_to(classes).as_posix())


def s3_conf() -> dict[str, str]:
    """Spark's settings for S3, by the variables that obstore reads."""
    conf = {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        LOG_STORE_CONF: CLASS,
        "spark.delta.logStore.s3a.impl": CLASS,
        "spark.redaction.regex": REDACTED,
    }
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint := s3_endpoint():
        conf["spark.hadoop.fs.s3a.endpoint"] = endpoint
        conf["spark.hadoop.fs.s3a.path.style.access"] = "true"
        secure = endpoint.lower().startswith("https://")
        conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(secure).lower()
        region = region or "us-east-1"
    if region:
        conf["spark.hadoop.fs.s3a.endpoint.region"] = region
    return conf


def server_line() -> str:
    """The line that starts a Connect server for lakes on S3, once `store_jars` has made the jars.

    The server reads the same variables as everything else, from its own environment.
    """
    kept = cache()
    jars = [kept / "jars" / VERSION / "*", kept / "jars" / S3.folder / "*", log_store_path()]
    settings = DELTA_CONFS | s3_conf() | {DRIVER_PATH: os.pathsep.join(map(str, jars))}
    confs = (f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    submit = pyspark_home() / "bin" / "spark-submit"
    return f"{submit} --class {_SERVER} {' '.join(confs)} spark-internal"


def check_log_store(spark: SparkSession, root: str | None) -> None:
    """Refuses a session that would write to S3 without a log store that knows of other drivers.

    A client of a Connect server can't install one: the message has the server's start line.

    Raises:
        SetupError: with the settings to start it with.
    """
    if not is_s3(root) or spark.conf.get(LOG_STORE_CONF, "") in _GOOD_STORES:
        return
    raise SetupError(
        "The running Spark session has no log store for S3: drivers would lose commits.",
        hint="stop it, and let mirrorlake start one; or start the Connect server with the line that"
        f" `python -m mirrorlake.spark.s3` prints on its machine: {server_line()}",
    )


if __name__ == "__main__":
    from mirrorlake.spark.jars import delta_jars
    from mirrorlake.spark.java import find_java

    store_jars(find_java(), delta_jars())
    print(server_line())  # noqa: T201 - it is a program here
