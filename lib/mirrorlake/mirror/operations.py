"""The operator's methods: pause, resume, skip, replay, reseed, undrop, ledger and quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import UsageError
from mirrorlake.landing.publisher import find_sources
from mirrorlake.landing.zone import no_folder, published_tables
from mirrorlake.mirror.applied_files import replay, reseed
from mirrorlake.mirror.ledger import Ledger, read_ledger, read_quarantine
from mirrorlake.mirror.next_batch import waiting_by_time
from mirrorlake.mirror.options import (
    OperatorSettings,
    TableDefaults,
    pause,
    read_defaults,
    read_settings,
    resume,
    skip,
    write_defaults,
)
from mirrorlake.mirror.trash import dropped_tables, undrop
from mirrorlake.names import TableName, as_table
from mirrorlake.query.catalog import Catalog, no_table
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Storage, storage_errors
from mirrorlake.storage.paths import lake_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_ONLY: Final = ("ledger", "quarantine")
_ACTIONS: Final = (*_READ_ONLY, "pause", "resume", "skip", "replay", "reseed", "undrop")


class Operations:
    """The operator's methods of a mirror. Only `quarantine` needs Spark.

    Args:
        storage: the lake's files.
        spark: returns a Spark session; called only when one is needed.
        footer: additional metadata for the footers of files that are published again.
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

    def find(self, wanted: str) -> TableName:
        """Return the name of a published, mirrored or dropped table.

        A table that is published and not yet mirrored only has a folder in the landing zone. A
        dropped table is kept for 7 days.

        Args:
            wanted: the name, in any case.

        Returns:
            The name, with upper and lower case as in the lake.

        Raises:
            TableNotFoundError: There is no such table; the hint has the nearest names.
            InvalidNameError: No table can have this name.

        Example:
            >>> lake.operations.find("ORDERS")  # doctest: +SKIP
        """
        storage, name = self._storage, as_table(wanted.strip())
        known = {*published_tables(storage), *(one.table for one in dropped_tables(storage))}
        if name in known:
            return name
        if (found := Catalog(storage).find(name)) is not None:
            return found
        raise no_table(wanted.strip(), sorted({*known, *delta_tables(storage)}, key=str))

    def _settable(self, table: str | TableName) -> TableName:
        """Return the name of a table that exists or has settings; raise like `find`."""
        name = as_table(table)
        if read_settings(self._storage, name) != OperatorSettings():
            return name
        return self.find(str(name))

    def _published(self, table: str | TableName) -> TableName:
        """Return the name of a table; if it is a text, check that the table has a folder.

        Raises:
            TableNotFoundError: The landing zone has no folder for the table.
        """
        if isinstance(table, TableName):
            return table
        name = self.find(table)
        if name not in published_tables(self._storage):
            raise no_folder(self._storage, name)
        return name

    def pause(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Pause a table: no further files are applied until it is resumed.

        A running commit finishes. Publishers can continue to publish.

        Args:
            table: the table's name.
            dry_run: preview the effect and change nothing.

        Returns:
            What was done, or would be done.

        Raises:
            TableNotFoundError: There is no such table; the hint has the nearest names.

        Example:
            >>> lake.operations.pause("orders")  # doctest: +SKIP
        """
        return pause(self._storage, self._settable(table), dry_run=dry_run)

    def resume(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Resume a paused table with the next cycle.

        Args:
            table: the table's name.
            dry_run: preview the effect and change nothing.

        Returns:
            What was done, or would be done.

        Raises:
            TableNotFoundError: There is no such table; the hint has the nearest names.

        Example:
            >>> lake.operations.resume("orders")  # doctest: +SKIP
        """
        return resume(self._storage, self._settable(table), dry_run=dry_run)

    def skip(self, table: str | TableName, number: int | str, *, apply: bool = False) -> Outcome:
        """Skip a file that can't be applied or never arrives.

        The ledger and the quarantine record the skipped file. The skip ends when the folder is
        deleted, or its files are replaced by a new initial load. In a folder that is ordered by
        time, it also ends when the skipped file is replaced: the new file is applied.

        Args:
            table: the table's name.
            number: the number of the file, or its name. If the folder is ordered by time, the
                waiting files have the numbers that follow the last applied one; the preview names
                the file.
            apply: skip the file. By default, only preview it.

        Returns:
            What was done, or would be done.

        Raises:
            TableNotFoundError: There is no such table; the hint has the nearest names.
            UsageError: There is no such number or name. In a folder that is ordered by time, only
                a file that exists can be skipped.

        Example:
            >>> lake.operations.skip("orders", 17, apply=True)  # doctest: +SKIP
        """
        name = self._settable(table)
        waiting = waiting_by_time(self._storage, name)
        return skip(self._storage, name, number, apply=apply, waiting=waiting)

    def replay(
        self,
        table: str | TableName,
        first: int,
        last: int | None = None,
        *,
        as_is: bool = False,
        dry_run: bool = False,
    ) -> Outcome:
        """Publish applied files again, in their order, after all published files.

        Args:
            table: the table's name.
            first: the number of the first file.
            last: the number of the last file; by default the last applied file.
            as_is: keep the files' row markers. By default, inserts become upserts, so that rows are
                not duplicated.
            dry_run: preview the files and change nothing.

        Returns:
            What was done, with the names of the new files. After a dry run, with the names of the
            applied files.

        Raises:
            TableNotFoundError: There is no such table in the landing zone.
            SequenceError: A number was not applied, or its file is no longer kept.
            MirrorlakeError: A file was applied without its invalid rows. Nothing has changed.
            UsageError: The range ends before it starts, or the table has no keys, and `as_is` is
                not set.

        Example:
            >>> lake.operations.replay("orders", 3, 5)  # doctest: +SKIP
        """
        return replay(
            self._storage,
            self._published(table),
            first,
            last,
            as_is=as_is,
            footer=self._footer,
            dry_run=dry_run,
        )

    def reseed(
        self, table: str | TableName, files: Iterable[Path] = (), *, apply: bool = False
    ) -> Outcome:
        """Replace a table's rows with the next cycle, in one commit; its history is kept.

        With `apply`, the call waits for a running cycle of the mirror. If rows or files were
        skipped, the effect names the option that the mirror needs again. Without it, the table
        stops and keeps its rows. In a folder that is ordered by time, they are skipped again.

        Args:
            table: the table's name.
            files: the files of a new initial load. They also replace files that are not applied
                yet. By default, the applied files are used, which must all be kept.
            apply: reseed the table. By default, only check the files.

        Returns:
            What was done, or would be done.

        Raises:
            TableNotFoundError: There is no such table in the landing zone.
            SequenceError: An applied file is no longer kept, or another file has its name.
            MirrorlakeError: A file of the new load is invalid. Nothing has changed.
            BusyError: A mirror of the lake did not finish its cycle within 600 seconds.

        Example:
            >>> lake.operations.reseed("orders", apply=True)  # doctest: +SKIP
        """
        return reseed(
            self._storage, self._published(table), files, footer=self._footer, apply=apply
        )

    def defaults(
        self,
        *,
        deletion_vectors: bool | None = None,
        vorder: bool | None = None,
        safe_names: bool | None = None,
        dry_run: bool = False,
    ) -> TableDefaults:
        """Return the defaults of the lake's new tables, and set them if arguments are given.

        Args:
            deletion_vectors: whether new mirrored tables have deletion vectors. By default, the
                setting is not changed; until it is set, new tables with keys have them.
            vorder: whether new tables ask for files in V-Order, by the property
                `mirrorlake.vorder`. `write`, `optimize` and maintenance follow it; the mirror only
                after it has compacted small files, because ordering takes longer than a batch.
            safe_names: whether `Lake.publisher` and `publish` rename new columns such as
                `unit price` to `unit_price`, so that tables need no column mapping.
            dry_run: preview the new defaults and change nothing.

        Returns:
            The defaults after the call.

        Raises:
            FormatError: The stored defaults have a newer format.

        Example:
            >>> lake.operations.defaults(deletion_vectors=False)  # doctest: +SKIP
            TableDefaults(deletion_vectors=False, vorder=False, safe_names=False)
        """
        found = read_defaults(self._storage)
        asked = {"deletion_vectors": deletion_vectors, "vorder": vorder, "safe_names": safe_names}
        wanted = replace(found, **{name: on for name, on in asked.items() if on is not None})
        if wanted != found and not dry_run:
            write_defaults(self._storage, wanted)
        return wanted

    def undrop(self, table: str | TableName, *, dry_run: bool = False) -> Outcome:
        """Restore a table that was dropped in the last 7 days, and its folder if it had one.

        If the folder exists again with files, the next cycle replaces the table's rows by theirs.

        Args:
            table: the table's name.
            dry_run: preview the effect and change nothing.

        Returns:
            What was done, or would be done.

        Raises:
            TableNotFoundError: No dropped table of that name is kept.
            UsageError: A table of that name exists again.

        Example:
            >>> lake.operations.undrop("orders")  # doctest: +SKIP
        """
        return undrop(self._storage, as_table(table), dry_run=dry_run)

    def ledger(self, table: str | TableName, *, last: int | None = None) -> Ledger:
        """Return which files were applied, when, with how many rows, and in which version.

        Args:
            table: the table's name.
            last: the number of newest batches to return; by default all.

        Returns:
            The ledger, one entry per file.

        Raises:
            TableNotFoundError: There is no such table; the hint has the nearest names.

        Example:
            >>> lake.operations.ledger("orders")  # doctest: +SKIP
        """
        return read_ledger(self._storage, self.find(str(table)), last=last)

    def quarantine(self, table: str | TableName | None = None) -> DataFrame:
        """Return the skipped rows and files, with reasons.

        Args:
            table: the table's name; by default all tables.

        Returns:
            A Spark DataFrame, one row per skipped row or file.

        Raises:
            TableNotFoundError: There is no such table; the hint has the nearest names.

        Example:
            >>> lake.operations.quarantine("orders").show()  # doctest: +SKIP
        """
        name = None if table is None else self.find(str(table))
        return read_quarantine(self._spark(), self._storage, name)

    def run(
        self,
        table: str | TableName,
        action: str,
        *,
        first: int = 0,
        last: int = 0,
        source: str = "",
        apply: bool = False,
    ) -> Outcome:
        """Run the operation of a name, as a notebook's parameters give it.

        Args:
            table: its name, with upper and lower case as in the lake.
            action: pause, resume, skip, replay, reseed or undrop; ledger and quarantine change
                nothing.
            first: the number of the file to skip, or of the first file to replay.
            last: the number of the last file to replay; 0 for the last applied file.
            source: for reseed, the new initial load: a file, a folder or a glob. By default the
                applied files. A relative path starts from `MIRRORLAKE_HOME`, or from the project.
            apply: do it; by default it is only checked.

        Raises:
            UsageError: there is no such action, a number is missing, or no publisher feeds the
                table.
            MirrorlakeError: as the operation itself.

        Example:
            >>> lake.operations.run("orders", "skip", first=17)  # doctest: +SKIP
            skip orders: file 17 would be skipped. Nothing was changed: a dry run.
        """
        if action not in _ACTIONS:
            raise UsageError(
                f"There is no action {action!r}.", hint=f"choose one of {', '.join(_ACTIONS)}."
            )
        name = as_table(table)
        if action in _READ_ONLY:
            return Outcome(action, str(name), "no change was requested", applied=True)
        with storage_errors(self._storage.root):
            if action == "undrop":
                return self.undrop(name, dry_run=not apply)
            if name not in published_tables(self._storage):
                raise UsageError(
                    f"No publisher feeds {name}: it has no folder in the landing zone.",
                    hint="choose a table with a folder in the landing zone.",
                )
            if action in ("skip", "replay") and first < 1:
                raise UsageError(
                    f"The action {action} needs the number of a file.",
                    hint="set first to 1 or more.",
                )
            if action == "skip":
                return self.skip(name, first, apply=apply)
            if action == "replay":
                return self.replay(name, first, last or None, dry_run=not apply)
            if action == "reseed":
                files = find_sources(lake_path(source)) if source else ()
                return self.reseed(name, files, apply=apply)
            verb = self.pause if action == "pause" else self.resume
            return verb(name, dry_run=not apply)
