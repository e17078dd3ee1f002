"""The jars that Spark needs for S3: 35 of them, 12 MB, fetched when the first lake on S3 is opened.

They are Hadoop's S3A and what it uses of Amazon's SDK, without the SDK's bundle of 640 MB; what
else they name comes with Spark.
"""

from __future__ import annotations

from pathlib import Path

from mirrorlake.spark.jars import JarSet, fetched_jars, read_sums

HADOOP = "3.4.2"
_SDK = "2.29.52"
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


def s3_jars() -> list[Path]:
    """The jars on this machine, fetched now if they are not in the cache yet; as `fetched_jars`."""
    return fetched_jars(S3)
