"""A session without the log store is refused for a lake on S3."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from mirrorlake import Lake
from mirrorlake.errors import SetupError
from mirrorlake.spark.session import get_spark


def test_a_running_session_without_the_log_store_is_refused_for_s3(spark: SparkSession):
    with pytest.raises(SetupError, match="no log store for S3") as caught:
        get_spark(root="s3://bucket/lake")
    assert "--conf spark.delta.logStore.s3.impl=mirrorlake.ConditionalLogStore" in caught.value.hint
    assert "--class org.apache.spark.sql.connect.service.SparkConnectServer" in caught.value.hint
    assert get_spark(root="/a/local/lake") is not None


def test_nor_is_one_that_a_lake_was_given(spark: SparkSession):
    lake = Lake("s3://bucket/lake", spark=spark)
    with pytest.raises(SetupError, match="no log store for S3"):
        _ = lake.spark
