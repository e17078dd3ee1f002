"""One Spark session for all tests of this layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mirrorlake.spark.session import get_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def spark() -> Iterator[SparkSession]:
    session = get_spark("notebook")
    yield session
    session.stop()
