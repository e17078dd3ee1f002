"""The JVM that the steps of a run share.

A plan with `one_spark` starts the Spark of steps that follow each other in one JVM, which is warm.
Each step has a session of its own, as ever. After a step that failed or was stopped, and where the
profile changes, the JVM is ended and the next step has a new one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mirrorlake.storage.object_stores import CLOUDS, scheme_of

if TYPE_CHECKING:
    from mirrorlake.spark.shared import SharedJvm

_log = logging.getLogger("mirrorlake.runs.jvm")
_ELSEWHERE = ("SPARK_MASTER", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")


class OneSpark:
    """The JVM of a run.

    Args:
        wanted: whether the plan asks for it; without it nothing is started. Nor is it where Spark
            runs elsewhere anyway: on a cluster, a Connect server, or under spark-submit.
        roots: the lakes of the run.
    """

    def __init__(self, wanted: bool, roots: Iterable[str]) -> None:
        self._wanted = wanted and not set(_ELSEWHERE) & set(os.environ)
        self._root = next((root for root in sorted(roots) if scheme_of(root) in CLOUDS), None)
        self._jvm: SharedJvm | None = None

    def environment(self, profile: str) -> dict[str, str]:
        """What the next step needs in its environment to join.

        Raises:
            SetupError: the JVM did not start.
        """
        if not self._wanted:
            return {}
        if self._jvm is not None and (self._jvm.profile != profile or not self._jvm.alive):
            self.close()
        if self._jvm is None:
            from mirrorlake.spark.shared import SharedJvm

            self._jvm = SharedJvm(profile, self._root)
        return self._jvm.environment

    def step_ended(self, *, done: bool) -> None:
        """Makes room for the next step's session."""
        try:
            if self._jvm is not None and done:
                self._jvm.clear()
                return
        except Exception as error:  # whatever it was: the next step has a new one
            _log.warning(f"the JVM of the steps is given up: {error}")
        self.close()

    def close(self) -> None:
        """Ends the JVM; another step would have a new one."""
        if self._jvm is not None:
            self._jvm.close()
            self._jvm = None
