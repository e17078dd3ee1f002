"""What Spark needs for a lake in a cloud: jars and settings, by the scheme of its root.

S3 has a module of its own, see `s3`. For ADLS Gen2 and Google's store Delta's own log stores are
right for many drivers: there a file is created, or renamed, only where there is none.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from mirrorlake.errors import UsageError
from mirrorlake.spark import s3
from mirrorlake.spark.jars import HADOOP, JarSet, fetched_jars, read_sums
from mirrorlake.spark.java import Java
from mirrorlake.storage.object_stores import scheme_of, store_variables

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
    """The jars for a lake's store, fetched and compiled now if this is the first start.

    Google's connector is the user's to bring, in `spark.jars` or `spark.jars.packages`.

    Args:
        root: the lake; none are needed on a local disk.
        java: what compiles.
        delta: Delta's jars.
    """
    if s3.is_s3(root):
        return s3.store_jars(java, delta)
    return fetched_jars(AZURE) if root is not None and scheme_of(root) in _ABFS else []


def cloud_conf(root: str | None, *, cluster: bool = False) -> dict[str, str]:
    """Spark's settings for a lake's store, by the variables that obstore reads.

    Args:
        root: the lake; a local one needs none.
        cluster: executors run elsewhere, and are handed the variables.

    Raises:
        UsageError: Spark knows this kind of store by another scheme.
    """
    if root is None:
        return {}
    scheme = scheme_of(root)
    if scheme in ("az", "azure", "adl"):
        raise UsageError(
            f"Spark can't read {scheme}:// addresses.",
            hint="name the lake abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER.",
        )
    if s3.is_s3(root):
        conf = s3.s3_conf()
    elif scheme in _ABFS:
        conf = _REDACTED | _azure_conf(root)
    elif scheme == "gs":
        conf = _REDACTED | _google_conf()
    else:
        return {}
    shipped = store_variables(root) if cluster else {}
    return conf | {f"spark.executorEnv.{name}": value for name, value in sorted(shipped.items())}


def _azure_conf(root: str) -> dict[str, str]:
    """How Hadoop gets into an account; what is secret it reads from the environment itself."""
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


_REDACTED = {"spark.redaction.regex": s3.REDACTED}


def _set(names: tuple[str, ...]) -> str | None:
    """The first of the variables that is set."""
    return next((name for name in names if os.environ.get(name)), None)


def _from_environment(name: str) -> str:
    """A setting that Hadoop looks up when it needs it: no secret is in Spark's settings."""
    return f"${{env.{name}}}"
