"""Spark's settings for S3 come from the variables that obstore reads."""

from __future__ import annotations

import os

import pytest

from mirrorlake.spark import clouds

SECRET = "not for logs"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


def test_amazon_needs_nothing_but_the_schemes():
    conf = clouds.s3_conf()
    assert conf["spark.hadoop.fs.s3.impl"].endswith("S3AFileSystem")
    assert conf[clouds.LOG_STORE_CONF] == conf["spark.delta.logStore.s3a.impl"]
    assert not [name for name in conf if "endpoint" in name]


def test_another_server_is_reached_as_obstore_reaches_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    conf = clouds.s3_conf()
    assert conf["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9"
    assert conf["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    assert conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert conf["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert SECRET not in conf.values()
    assert (
        clouds.cloud_conf("s3://b/x", cluster=True)["spark.executorEnv.AWS_SECRET_ACCESS_KEY"]
        == SECRET
    )


def test_the_jars_are_pinned_each():
    assert len(clouds.S3.sha256) == 35
    assert all(len(bytes.fromhex(pinned)) == 32 for pinned in clouds.S3.sha256.values())
    assert not [name for name in clouds.S3.sha256 if "awssdk_bundle" in name]


@pytest.mark.parametrize(
    ("root", "yes"), [("s3://b/x", True), ("S3A://b/x", True), ("/s3/x", False), (None, False)]
)
def test_which_roots_are_on_s3(root: str | None, yes: bool):
    assert clouds.is_s3(root) is yes
