"""Jars and settings for a lake's store, by its scheme. Spark's settings contain no key."""

from __future__ import annotations

import os

import pytest

from mirrorlake.errors import UsageError
from mirrorlake.spark import clouds

ABFSS = "abfss://lakes@account.dfs.core.windows.net/one"
ACCOUNT = "spark.hadoop.fs.azure.account.{}.account.dfs.core.windows.net"
SECRET = "not for logs"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("root", [None, "/a/lake", "file:///a/lake", "memory:///"])
def test_a_local_lake_needs_nothing(root: str | None):
    assert clouds.cloud_conf(root) == {}


def test_an_accounts_key_is_read_by_hadoop_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    conf = clouds.cloud_conf(ABFSS)
    assert conf[ACCOUNT.format("auth.type")] == "SharedKey"
    assert conf[ACCOUNT.format("key")] == "${env.AZURE_STORAGE_ACCOUNT_KEY}"
    assert SECRET not in conf.values()
    shipped = clouds.cloud_conf(ABFSS, cluster=True)
    assert shipped["spark.executorEnv.AZURE_STORAGE_ACCOUNT_KEY"] == SECRET


def test_an_application_of_entra_gets_a_token(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"CLIENT_ID": "me", "CLIENT_SECRET": SECRET, "TENANT_ID": "us"}.items():
        monkeypatch.setenv(f"AZURE_{name}", value)
    conf = clouds.cloud_conf(ABFSS)
    assert conf[ACCOUNT.format("oauth2.client.id")] == "me"
    assert "/us/oauth2/token" in conf[ACCOUNT.format("oauth2.client.endpoint")]
    assert conf[ACCOUNT.format("oauth2.client.secret")] == "${env.AZURE_CLIENT_SECRET}"
    assert SECRET not in conf.values()


def test_without_keys_it_is_the_machines_identity():
    provider = clouds.cloud_conf(ABFSS)[ACCOUNT.format("oauth.provider.type")]
    assert provider.endswith("MsiTokenProvider")


def test_google_is_told_its_key_file(monkeypatch: pytest.MonkeyPatch):
    assert len(clouds.cloud_conf("gs://lakes/one")) == 3
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/k.json")
    conf = clouds.cloud_conf("gs://lakes/one")
    assert conf["spark.hadoop.fs.gs.impl"].endswith("GoogleHadoopFileSystem")
    assert "/k.json" in conf.values()


def test_what_spark_can_not_read_is_said_with_what_it_can():
    with pytest.raises(UsageError, match="az://") as caught:
        clouds.cloud_conf("az://lakes/one")
    assert "abfss://" in caught.value.hint


def test_the_jars_are_pinned_each():
    assert len(clouds.AZURE.sha256) == 7
    assert all(len(bytes.fromhex(pinned)) == 32 for pinned in clouds.AZURE.sha256.values())
