"""What Spark needs for lakes on S3: jars, settings from the standard variables, the log store.

Spark and obstore read the same variables and the same `s3://` URIs. Keys stay in the environment:
no setting holds them on this machine, and on a cluster Spark hides those that it ships.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake.errors import SetupError
from mirrorlake.paths import cache
from mirrorlake.spark.cloud_jars import S3
from mirrorlake.spark.jars import VERSION, fetched_jars
from mirrorlake.spark.java import Java
from mirrorlake.spark.log_store import CLASS, log_store_jar, log_store_path
from mirrorlake.stores.opening import s3_endpoint, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMES = ("s3", "s3a")
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
    import pyspark

    kept = cache()
    jars = [kept / "jars" / VERSION / "*", kept / "jars" / S3.folder / "*", log_store_path()]
    settings = DELTA_CONFS | s3_conf() | {DRIVER_PATH: os.pathsep.join(map(str, jars))}
    confs = (f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    return f"{submit} --class {_SERVER} {' '.join(confs)} spark-internal"


def check_log_store(spark: SparkSession) -> None:
    """Refuses a session that would write to S3 without a log store that knows of other drivers.

    A client of a Connect server can't install one: the message has the server's start line.

    Raises:
        SetupError: with the settings to start it with.
    """
    if spark.conf.get(LOG_STORE_CONF, "") in _GOOD_STORES:
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
