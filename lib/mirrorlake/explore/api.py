"""What `Lake` offers to those who look: monitor page, explorer, the form to publish with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlake.querying import QueriedLake

if TYPE_CHECKING:
    from mirrorlake.explore.monitor import Monitor


class ExploredLake(QueriedLake):
    """A lake as people look at it."""

    def monitor(self, *, every: float = 10) -> Monitor:
        """How the tables that publishers feed are, on a page that refreshes itself; no Spark.

        Args:
            every: seconds between two looks in Lab.

        Returns:
            What Lab shows as a live page; `to_html` makes a file of it, `close` ends the looking.

        Raises:
            UsageError: the seconds are less than 1.

        Example:
            >>> lake.monitor().to_html("monitor.html")  # doctest: +SKIP
        """
        from mirrorlake.explore.monitor import Monitor
        from mirrorlake.lake import Lake

        assert isinstance(self, Lake)
        return Monitor(self, every=every)
