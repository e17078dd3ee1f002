"""The mirror as `Lake` offers it: its watching, its state, and what operators do with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.landing.zone import published_tables
from mirrorlake.mirror.applied_files import replay, reseed
from mirrorlake.mirror.ledger import Ledger, read_ledger, read_quarantine
from mirrorlake.mirror.options import MirrorOptions, StepListener, pause, resume, skip
from mirrorlake.mirror.properties import TableDefaults, read_defaults, write_defaults
from mirrorlake.mirror.status import Preview, Report, preview_cycle, status_report
from mirrorlake.mirror.trash import undrop
from mirrorlake.names import TableName, as_table
from mirrorlake.notices import noop
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mirrorlake.mirror.forget import Forgotten
    from mirrorlake.mirror.reconcile import Reconciliation


_SLOW = 10.0  # seconds


class Operations:
    """To see what the mirror did, to stop and to repair. Only `quarantine` needs Spark.

    Args:
        storage: the lake's files.
        spark: called when a session is needed.
        footer: what the footers of files that are published again carry besides.
    """

    def __init__(
        self,
        storage: Storage,
        spark: Callable[[], SparkSession],
        footer: Mapping[str, str] | None = None,
    ) -> None:
        self._storage = storage
        self._spark = spark
        self._footer = footer

    def pause(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Applies no further files of a table until it is resumed.

        Args:
            table: which table.
            dry_run: only say what it would do.

        Example:
            >>> lake.operations.pause("orders")  # doctest: +SKIP
        """
        return pause(self._storage, as_table(table), dry_run=dry_run)

    def resume(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Lets a paused table go on.

        Args:
            table: which table.
            dry_run: only say what it would do.

        Example:
            >>> lake.operations.resume("orders")  # doctest: +SKIP
        """
        return resume(self._storage, as_table(table), dry_run=dry_run)

    def skip(self, table: str | TableName, number: int, *, apply: bool = False) -> Outcome:
        """Passes over a file that can't be applied, or that never comes.

        Args:
            table: which table.
            number: the file's number.
            apply: do it; by default it is only checked.

        Example:
            >>> lake.operations.skip("orders", 17, apply=True)  # doctest: +SKIP
        """
        return skip(self._storage, as_table(table), number, apply=apply)

    def replay(
        self,
        table: str | TableName,
        first: int,
        last: int | None = None,
        *,
        as_is: bool = False,
        dry_run: bool = False,
    ) -> Outcome:
        """Publishes applied files once more.

        Args:
            table: which table.
            first: the first file's number.
            last: the last file's number; by default the last applied one.
            as_is: keep the files' markers; by default inserts become upserts, so that no row is
                there twice.
            dry_run: only say which files would be published again.

        Returns:
            With the names of the new files; after a dry run with those of the applied ones.

        Raises:
            SequenceError: a number was not applied, or its file is no longer kept.

        Example:
            >>> lake.operations.replay("orders", 3, 5)  # doctest: +SKIP
        """
        return replay(
            self._storage,
            as_table(table),
            first,
            last,
            as_is=as_is,
            footer=self._footer,
            dry_run=dry_run,
        )

    def reseed(
        self, table: str | TableName, files: Iterable[Path] = (), *, apply: bool = False
    ) -> Outcome:
        """Lets the next cycle replace a table's rows in one commit; its history stays.

        Args:
            table: which table.
            files: a new initial load; by default the applied files, as far as all are kept.
            apply: do it; by default it is only checked.

        Raises:
            SequenceError: an applied file is no longer kept.
            MirrorlakeError: a file of the new load is not sound; nothing has changed then.

        Example:
            >>> lake.operations.reseed("orders", apply=True)  # doctest: +SKIP
        """
        return reseed(self._storage, as_table(table), files, footer=self._footer, apply=apply)

    def defaults(
        self, *, deletion_vectors: bool | None = None, dry_run: bool = False
    ) -> TableDefaults:
        """What new tables of the lake are made with; without arguments it only tells.

        Args:
            deletion_vectors: whether the mirror's new tables have deletion vectors, as with
                `mirror(deletion_vectors=True)`.
            dry_run: only say what they would be.

        Returns:
            The defaults as they are now.

        Example:
            >>> lake.operations.defaults(deletion_vectors=True)  # doctest: +SKIP
            TableDefaults(deletion_vectors=True)
        """
        found = read_defaults(self._storage)
        if deletion_vectors is not None and deletion_vectors != found.deletion_vectors:
            found = replace(found, deletion_vectors=deletion_vectors)
            if not dry_run:
                write_defaults(self._storage, found)
        return found

    def undrop(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Brings back a table that was dropped with its folder in the last 7 days.

        Args:
            table: which table.
            dry_run: only say what it would do.

        Raises:
            MirrorlakeError: none was dropped, or the name is taken.

        Example:
            >>> lake.operations.undrop("orders")  # doctest: +SKIP
        """
        return undrop(self._storage, as_table(table), dry_run=dry_run)

    def ledger(self, table: str | TableName, *, last: int | None = None) -> Ledger:
        """Which files were applied, when, as what, and in which version.

        Args:
            table: which table.
            last: only the newest batches, so many of them.

        Example:
            >>> lake.operations.ledger("orders")  # doctest: +SKIP
        """
        return read_ledger(self._storage, as_table(table), last=last)

    def quarantine(self, table: str | TableName | None = None) -> DataFrame:
        """The rows and files that were passed over, with reasons.

        Args:
            table: which table; by default all.

        Example:
            >>> lake.operations.quarantine("orders").show()  # doctest: +SKIP
        """
        return read_quarantine(
            self._spark(), self._storage, None if table is None else as_table(table)
        )


class MirroredLake:
    """A lake as the mirror sees it: its landing zone, and the tables that follow it.

    `Lake` adds what else there is to do with tables.
    """

    def __init__(self, root: str | os.PathLike[str], *, spark: SparkSession | None = None) -> None:
        self.storage = Storage(root)
        self._spark = spark
        self._is_fit = False

    def __repr__(self) -> str:
        return f"Lake({self.storage.root!r})"

    @property
    def spark(self) -> SparkSession:
        """The session, started now if there is none.

        Raises:
            SetupError: the one that was given would lose commits on this lake's store.
        """
        if not self._is_fit or self._spark is None:
            from mirrorlake.spark.s3 import check_log_store
            from mirrorlake.spark.session import get_spark

            if self._spark is not None:
                check_log_store(self._spark, self.storage.root)
            self.storage.check_conditions()
            self._spark = self._spark or get_spark(root=self.storage.root)
            self._is_fit = True
        return self._spark

    @property
    def operations(self) -> Operations:
        """What operators do: pause, resume, skip, replay, reseed, undrop, ledger, quarantine."""
        return Operations(self.storage, lambda: self.spark)

    def preview(
        self, table: str | TableName | None = None, *, options: MirrorOptions | None = None
    ) -> Preview:
        """What the next cycle of the mirror would apply; writes nothing, needs no Spark.

        Args:
            table: only this one; by default all of the landing zone.
            options: bounds of the cycle.

        Raises:
            TableNotFoundError: the table has no folder in the landing zone.

        Example:
            >>> lake.preview()  # doctest: +SKIP
            3 files of 2 tables would be applied: a dry run
        """
        return preview_cycle(self.storage, None if table is None else as_table(table), options)

    def waiting(self, table: str | TableName) -> Preview:
        """What waits in one table's folder; empty where nothing was ever published for it.

        Example:
            >>> lake.waiting("orders").tables  # doctest: +SKIP
            ()
        """
        name = as_table(table)
        known = name in published_tables(self.storage)
        return preview_cycle(self.storage, name) if known else Preview(())

    def watch(
        self,
        stop: Event,
        *,
        table: str | TableName | None = None,
        interval: float = 5,
        options: MirrorOptions | None = None,
        on_step: StepListener = noop,
        on_report: Callable[[Report], None] = noop,
    ) -> Report:
        """Mirrors cycle after cycle until `stop` is set.

        A table that takes long does not hold up the others: they are looked at again meanwhile.
        New and dropped folders wait for the cycle's end.

        Args:
            stop: an event; set by a signal's handler, for one. The cycle under way is finished.
            table: only this one; by default all.
            interval: seconds between two cycles; longer after failures.
            options: as for `mirror`.
            on_step: as for `mirror`.
            on_report: called with the report of each cycle.

        Returns:
            The last cycle's report.
        """
        from mirrorlake.mirror.engine import Engine, watch

        patience = max(interval, _SLOW)
        engine = Engine(
            self.storage, lambda: self.spark, options, on_step, stop, others_after=patience
        )
        only = None if table is None else as_table(table)
        return watch(engine, stop, only=only, interval=interval, on_report=on_report)

    def status(self, *, rebuild: bool = False) -> Report:
        """How each table stands, from a listing and the kept state; needs no Spark.

        Args:
            rebuild: whether the kept state is read again from the tables' own logs.

        Example:
            >>> [line.state for line in lake.status().tables]  # doctest: +SKIP
            ['Replicating']
        """
        return status_report(self.storage, rebuild=rebuild)

    def reconcile(self, table: str | TableName | None = None) -> Reconciliation:
        """Compares tables with the manifests that their publishers left.

        Args:
            table: only this one; by default all.

        Returns:
            Row counts and checksums by ranges of keys, and where they differ.

        Example:
            >>> lake.reconcile("orders").findings  # doctest: +SKIP
            ()
        """
        from mirrorlake.mirror.reconcile import reconcile

        tables = delta_tables(self.storage) if table is None else [as_table(table)]
        return reconcile(self.spark, self.storage, tables)

    def forget(
        self, table: str | TableName, keys: Mapping[str, Any], *, apply: bool = False
    ) -> Forgotten:
        """Finds a person's rows wherever they lie; with `apply` removes them and searches again.

        Args:
            table: which table.
            keys: the person, by column and value.
            apply: remove what is found; by default it is only said.

        Returns:
            What was found, place by place: table, history, feed, quarantine, log, published files.

        Raises:
            UsageError: the columns are not the table's keys.

        Example:
            >>> lake.forget("people", {"id": 7})  # doctest: +SKIP
        """
        from mirrorlake.mirror.forget import forget

        return forget(self.spark, self.storage, as_table(table), keys, apply=apply)
