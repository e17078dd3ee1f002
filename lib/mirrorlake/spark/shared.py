"""One JVM for processes that follow each other: each starts its Spark in a JVM that is warm.

A process that has `SharedJvm.environment` in its own starts no JVM but joins this one, as under
spark-submit. Only one of them at a time can have a session there. The JVM ends with the process
that launched it, however that ends.
"""

from __future__ import annotations

import subprocess
from typing import Any

from mirrorlake.errors import SetupError
from mirrorlake.spark.session import launch_conf, new_log


class SharedJvm:
    """A JVM without a session, for others to start theirs in.

    Args:
        profile: see `get_spark`; it holds for all sessions.
        root: the lake that they are for, if it lies in a cloud.

    Raises:
        SetupError: there is no usable Java, or it did not start.
    """

    def __init__(self, profile: str, root: str | None = None) -> None:
        from pyspark import SparkConf
        from pyspark.java_gateway import launch_gateway

        conf = SparkConf(loadDefaults=False).setAll(list(launch_conf(profile, root).items()))
        handle, name = new_log()
        with open(handle, "wb") as log:
            try:
                self._gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
                )
            except Exception as error:
                raise SetupError(f"Spark did not start: {error}", hint=f"see {name}.") from error
        known = self._gateway.gateway_parameters
        self.profile = profile
        self.environment = {
            "PYSPARK_GATEWAY_PORT": str(known.port),
            "PYSPARK_GATEWAY_SECRET": known.auth_token,
        }

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._gateway.proc.poll() is None

    def clear(self) -> None:
        """Ends the session that a process has left, for the next one's."""
        from mirrorlake.spark.jvm import end_session

        end_session(self._gateway.jvm)

    def close(self) -> None:
        """Ends the JVM, whatever runs in it."""
        self._gateway.close()
        with self._gateway.proc as process:  # which closes the pipe to it
            process.kill()
