"""What Spark needs for a lake in a cloud: jars, settings, and the log store for S3.

Spark and obstore read the same variables and the same `s3://` URIs. Keys stay in the environment:
no setting holds them on this machine, and on a cluster Spark redacts the ones that it ships.

On S3, several drivers can commit to one table through `ConditionalLogStore.java`, which is beside
this module; Janino, the compiler that PySpark ships, makes a jar of it once. For ADLS Gen2 and
Google Cloud Storage, Delta's own log stores are safe for several drivers: these stores create or
rename a file only if it does not exist.

`python -m mirrorlake.spark.clouds` prints the line that starts a Connect server for lakes on S3.
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
from urllib.parse import urlsplit

from mirrorlake.errors import SetupError, UsageError
from mirrorlake.spark.jars import HADOOP, VERSION, JarSet, fetched_jars, pyspark_home, read_sums
from mirrorlake.spark.java import Java
from mirrorlake.storage.object_stores import s3_endpoint, scheme_of, store_variables
from mirrorlake.storage.paths import cache, make_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)
_SCHEMES = ("s3", "s3a")
_SDK = "2.29.52"
# 35 jars: Hadoop's S3A and the parts of Amazon's SDK that it uses, without the SDK's bundle of
# 640 MB. Their other dependencies come with Spark.
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
# The other log store that is safe for several drivers is Delta's own, which uses a database.
_GOOD_STORES = (CLASS, "io.delta.storage.S3DynamoDBLogStore")


def is_s3(root: str | None) -> bool:
    """Check whether a lake's root is on S3."""
    return root is not None and scheme_of(root) in _SCHEMES


def store_jars(java: Java, delta: list[Path]) -> list[Path]:
    """Return the jars for S3; at the first start they are fetched and compiled now."""
    hadoop = fetched_jars(S3)
    return [*hadoop, log_store_jar(java, [*delta, *hadoop])]


def log_store_path() -> Path:
    """Return the path of the compiled log store, which may not exist yet."""
    key = hashlib.sha256(_SOURCE.read_bytes() + VERSION.encode()).hexdigest()[:16]
    return cache() / "log_store" / f"mirrorlake-log-store-{key}.jar"


def log_store_jar(java: Java, jars: list[Path]) -> Path:
    """Return the jar with the log store; it is compiled now if it is not in the cache.

    Args:
        java: the Java that runs the compiler.
        jars: the jars of Delta, and those of Hadoop for S3, which the log store needs.

    Raises:
        SetupError: the log store cannot be compiled.
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
    _log.info("Compiling the log store for S3 (once) …")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    found = sorted(classes.rglob("*.class")) if classes.is_dir() else []
    if done.returncode != 0 or not found:
        raise SetupError(
            f"The log store for S3 could not be compiled: {done.stderr.strip()[-500:]}",
            hint="mirrorlake writes no tables on S3 without it; check the Java installation.",
        )
    with zipfile.ZipFile(target, "w") as jar:
        for file in found:
            jar.write(file, file.relative_to(classes).as_posix())


def s3_conf() -> dict[str, str]:
    """Return Spark's settings for S3, from the variables that obstore reads."""
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
    """Return the command line that starts a Connect server for lakes on S3.

    It needs the jars of `store_jars`. The server reads the usual variables from its own
    environment.
    """
    kept = cache()
    jars = [kept / "jars" / VERSION / "*", kept / "jars" / S3.folder / "*", log_store_path()]
    settings = DELTA_CONFS | s3_conf() | {DRIVER_PATH: os.pathsep.join(map(str, jars))}
    confs = (f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    submit = pyspark_home() / "bin" / "spark-submit"
    return f"{submit} --class {_SERVER} {' '.join(confs)} spark-internal"


def check_log_store(spark: SparkSession, root: str | None) -> None:
    """Check that a session for a lake on S3 has a log store that is safe for several drivers.

    A client of a Connect server cannot install one, so the error has the command line of the
    server.

    Raises:
        SetupError: the session has no such log store. The hint has the settings to start it with.
    """
    if not is_s3(root) or spark.conf.get(LOG_STORE_CONF, "") in _GOOD_STORES:
        return
    raise SetupError(
        "The running Spark session has no log store for S3, so concurrent drivers would overwrite"
        " each other's commits.",
        hint="stop the session, and let mirrorlake start one; or start the Connect server with the"
        f" line that `python -m mirrorlake.spark.clouds` prints on its machine: {server_line()}",
    )


AZURE = JarSet(
    "Azure",
    f"azure-{HADOOP}",
    (f"org.apache.hadoop:hadoop-azure:{HADOOP}",),
    "org.slf4j:*,commons-logging:*,commons-codec:*,org.apache.httpcomponents:*",
    read_sums("azure_jars.sha256"),
    "6 MB",
)
_ABFS = ("abfs", "abfss")
_AZURE_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_SAS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_CLIENT = ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
_CLIENT_SECRET = ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET")
_TENANT = ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID")
_GOOGLE_KEYS = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_APPLICATION_CREDENTIALS",
)


def cloud_jars(root: str | None, java: Java, delta: list[Path]) -> list[Path]:
    """Return the jars for a lake's store; at the first start they are fetched and compiled now.

    The user provides Google's connector, in `spark.jars` or `spark.jars.packages`.

    Args:
        root: the root of the lake. A lake on a local disk needs no jars.
        java: the Java that runs the compiler.
        delta: Delta's jars.
    """
    if is_s3(root):
        return store_jars(java, delta)
    return fetched_jars(AZURE) if root is not None and scheme_of(root) in _ABFS else []


def cloud_conf(root: str | None, *, cluster: bool = False) -> dict[str, str]:
    """Return Spark's settings for a lake's store, from the variables that obstore reads.

    Args:
        root: the root of the lake. A lake on a local disk needs no settings.
        cluster: whether executors run on other machines, to which the variables are sent.

    Raises:
        UsageError: Spark needs another scheme for this kind of store.
    """
    if root is None:
        return {}
    scheme = scheme_of(root)
    if scheme in ("az", "azure", "adl"):
        raise UsageError(
            f"Spark can't read {scheme}:// addresses.",
            hint="use abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER for the lake.",
        )
    if is_s3(root):
        conf = s3_conf()
    elif scheme in _ABFS:
        conf = _REDACTED | _azure_conf(root)
    elif scheme == "gs":
        conf = _REDACTED | _google_conf()
    else:
        return {}
    shipped = store_variables(root) if cluster else {}
    return conf | {f"spark.executorEnv.{name}": value for name, value in sorted(shipped.items())}


def _azure_conf(root: str) -> dict[str, str]:
    """Return the settings for access to an account. Hadoop reads secrets from the environment."""
    host = urlsplit(root).netloc.rpartition("@")[2]
    account, kind = f"spark.hadoop.fs.azure.account.{{}}.{host}", "auth.type"
    if key := _set(_AZURE_KEYS):
        return {
            account.format(kind): "SharedKey",
            account.format("key"): _from_environment(key),
        }
    if token := _set(_SAS):
        fixed = f"spark.hadoop.fs.azure.sas.fixed.token.{host}"
        return {account.format(kind): "SAS", fixed: _from_environment(token)}
    package = "org.apache.hadoop.fs.azurebfs.oauth2"
    client, secret, tenant = _set(_CLIENT), _set(_CLIENT_SECRET), _set(_TENANT)
    oauth = {account.format(kind): "OAuth"}
    if client and secret and tenant:
        page = f"https://login.microsoftonline.com/{os.environ[tenant]}/oauth2/token"
        return oauth | {
            account.format("oauth.provider.type"): f"{package}.ClientCredsTokenProvider",
            account.format("oauth2.client.endpoint"): page,
            account.format("oauth2.client.id"): os.environ[client],
            account.format("oauth2.client.secret"): _from_environment(secret),
        }  # fmt: skip
    return oauth | {account.format("oauth.provider.type"): f"{package}.MsiTokenProvider"}


def _google_conf() -> dict[str, str]:
    hadoop = "com.google.cloud.hadoop.fs.gcs"
    conf = {
        "spark.hadoop.fs.gs.impl": f"{hadoop}.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": f"{hadoop}.GoogleHadoopFS",
    }
    if name := _set(_GOOGLE_KEYS):
        conf["spark.hadoop.google.cloud.auth.service.account.enable"] = "true"
        file = "spark.hadoop.google.cloud.auth.service.account.json.keyfile"
        conf[file] = os.environ[name]
    return conf


_REDACTED = {"spark.redaction.regex": REDACTED}


def _set(names: tuple[str, ...]) -> str | None:
    """Return the name of the first variable that is set."""
    return next((name for name in names if os.environ.get(name)), None)


def _from_environment(name: str) -> str:
    """Return a value that Hadoop looks up in the environment; Spark's settings have no secret."""
    return f"${{env.{name}}}"


if __name__ == "__main__":
    from mirrorlake.spark.jars import delta_jars
    from mirrorlake.spark.java import find_java

    store_jars(find_java(), delta_jars())
    print(server_line())  # noqa: T201 - the output of the program
