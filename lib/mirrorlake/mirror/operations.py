"""Operations on the mirror: pause, skip, replay, reseed, undrop, ledger and quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.errors import UsageError
from mirrorlake.landing.publish_files import find_sources
from mirrorlake.landing.zone import published_tables
from mirrorlake.mirror.applied_files import replay, reseed
from mirrorlake.mirror.ledger import Ledger, read_ledger, read_quarantine
from mirrorlake.mirror.options import pause, resume, skip
from mirrorlake.mirror.properties import TableDefaults, read_defaults, write_defaults
from mirrorlake.mirror.trash import dropped_tables, undrop
from mirrorlake.names import TableName, as_table
from mirrorlake.query.catalog import Catalog, no_table
from mirrorlake.results import Outcome
from mirrorlake.storage.files import Storage, storage_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_ONLY: Final = ("ledger", "quarantine")
_ACTIONS: Final = (*_READ_ONLY, "pause", "resume", "skip", "replay", "reseed", "undrop")


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

    def find(self, wanted: str) -> TableName:
        """Return the name of a table that was published, mirrored or dropped.

        A table that was published and not yet mirrored only has a folder in the landing zone; a
        dropped table is kept for 7 days.

        Raises:
            TableNotFoundError: there is no such table; the hint has the nearest names.
            InvalidNameError: no table can have this name.

        Example:
            >>> lake.operations.find("ORDERS")  # doctest: +SKIP
        """
        storage, name = self._storage, as_table(wanted.strip())
        known = {*published_tables(storage), *(one.table for one in dropped_tables(storage))}
        if name in known:
            return name
        if (found := Catalog(storage).find(name)) is not None:
            return found
        raise no_table(storage, wanted.strip(), sorted({*known, *delta_tables(storage)}, key=str))

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
            table: its name, in the lake's spelling.
            action: pause, resume, skip, replay, reseed or undrop; ledger and quarantine change
                nothing.
            first: the number of the file to skip, or of the first file to replay.
            last: the number of the last file to replay; 0 for the last applied file.
            source: for reseed, the new initial load: a file, a folder or a glob. By default the
                applied files.
            apply: do it; by default it is only checked.

        Raises:
            UsageError: there is no such action, a number is missing, or no publisher feeds the
                table.
            MirrorlakeError: as the operation itself.

        Example:
            >>> lake.operations.run("orders", "skip", first=17)  # doctest: +SKIP
            skip orders: file 17 is passed over. Nothing was changed: a dry run.
        """
        if action not in _ACTIONS:
            raise UsageError(
                f"There is no action {action!r}.", hint=f"choose one of {', '.join(_ACTIONS)}."
            )
        name = as_table(table)
        if action in _READ_ONLY:
            return Outcome(action, str(name), "only looks; nothing is changed", applied=True)
        with storage_errors(self._storage.root):
            if action == "undrop":
                return self.undrop(name, dry_run=not apply)
            if name not in published_tables(self._storage):
                raise UsageError(
                    f"No publisher feeds {name}: it has no folder in the landing zone.",
                    hint=f"{action} is for tables that a mirror fills.",
                )
            if action in ("skip", "replay") and first < 1:
                raise UsageError(
                    f"{action} needs the number of a file.", hint="set first to 1 or more."
                )
            if action == "skip":
                return self.skip(name, first, apply=apply)
            if action == "replay":
                return self.replay(name, first, last or None, dry_run=not apply)
            if action == "reseed":
                files = find_sources(source) if source else ()
                return self.reseed(name, files, apply=apply)
            verb = self.pause if action == "pause" else self.resume
            return verb(name, dry_run=not apply)
