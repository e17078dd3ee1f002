"""The jars that Spark needs for ADLS Gen2: 7 of them, 6 MB. What else they name Spark has."""

from __future__ import annotations

from pathlib import Path

from mirrorlake.spark.jars import JarSet, fetched_jars, read_sums

HADOOP = "3.4.2"
AZURE = JarSet(
    "Azure",
    f"azure-{HADOOP}",
    (f"org.apache.hadoop:hadoop-azure:{HADOOP}",),
    "org.slf4j:*,commons-logging:*,commons-codec:*,org.apache.httpcomponents:*",
    read_sums("azure_jars.sha256"),
    "6 MB",
)


def azure_jars() -> list[Path]:
    """The jars on this machine, fetched now if they are not in the cache yet; as `fetched_jars`."""
    return fetched_jars(AZURE)
