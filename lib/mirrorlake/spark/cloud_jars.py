"""The jars that Spark needs for lakes in a cloud, fetched when the first such lake is opened.

For S3 they are 35: Hadoop's S3A and what it uses of Amazon's SDK, without the SDK's bundle of
640 MB. For ADLS Gen2 they are 7. What else they name comes with Spark.
"""

from __future__ import annotations

from mirrorlake.spark.jars import JarSet, read_sums

_HADOOP = "3.4.2"
_SDK = "2.29.52"
S3 = JarSet(
    "S3",
    f"s3-{_HADOOP}",
    (
        f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
        *(
            f"software.amazon.awssdk:{name}:{_SDK}"
            for name in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
        ),
    ),
    "software.amazon.awssdk:bundle,io.netty:*,org.slf4j:*,commons-logging:*,commons-codec:*,"
    "org.apache.httpcomponents:*,org.wildfly.openssl:*",
    read_sums("s3_jars.sha256"),
)
AZURE = JarSet(
    "Azure",
    f"azure-{_HADOOP}",
    (f"org.apache.hadoop:hadoop-azure:{_HADOOP}",),
    "org.slf4j:*,commons-logging:*,commons-codec:*,org.apache.httpcomponents:*",
    read_sums("azure_jars.sha256"),
    "6 MB",
)
