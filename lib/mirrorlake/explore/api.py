"""What `Lake` offers to those who look: monitor page, explorer, the form to publish with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlake.querying import QueriedLake

if TYPE_CHECKING:
    from mirrorlake.explore.explorer import Explorer
    from mirrorlake.explore.monitor import Monitor
    from mirrorlake.explore.publish_form import PublishForm


class ExploredLake(QueriedLake):
    """A lake as people look at it."""

    def explore(self) -> Explorer:
        """The lake to look at and click through, in Lab; Spark starts when rows are asked for.

        Returns:
            What Lab shows as tabs: Zone, Tables, Versions, Rows, Feed, Files, Views, Runs;
            `to_html` makes a file of what can be shown without Spark.

        Example:
            >>> lake.explore().open("Versions")  # doctest: +SKIP
        """
        from mirrorlake.explore.explorer import Explorer
        from mirrorlake.lake import Lake

        assert isinstance(self, Lake)
        return Explorer(self)

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

    def publish_form(self, table: str = "") -> PublishForm:
        """A form in Lab: choose a file, look at its rows, choose keys and marker, check, publish.

        Args:
            table: the table to begin with; it need not be there yet.

        Returns:
            The form. A file that is not sound is refused with row, column and fix, and nothing is
            published; what is published is the same as by the command `publish`.

        Example:
            >>> lake.publish_form("stock")  # doctest: +SKIP
        """
        from mirrorlake.explore.publish_form import PublishForm
        from mirrorlake.lake import Lake

        assert isinstance(self, Lake)
        return PublishForm(self, table)
