"""What rewrites a table's files and changes none of its rows: `lake.table(…).optimize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirrorlake.delta.table import Table
from mirrorlake.history.maintenance import DEFAULT_TARGET, Compaction, compact_files, purge_files
from mirrorlake.layout.vorder import VOrderReport, vorder_table


class Optimize:
    """The ways to better files. Each acts at once; with `dry_run` it only says what it would do.

    Args:
        table: whose files.

    Example:
        >>> lake.table("sales").optimize.compact(dry_run=True)  # doctest: +SKIP
        sales: optimize would rewrite 12 files
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def compact(
        self,
        *,
        where: str | None = None,
        target_bytes: int = DEFAULT_TARGET,
        vorder: bool = False,
        dry_run: bool = False,
    ) -> Compaction:
        """Puts the small files of each partition together (Delta's OPTIMIZE).

        Args:
            where: only these partitions: a predicate on partition columns.
            target_bytes: how large files are to become, in bytes; smaller ones are put together.
            vorder: order the rows within the files next, in a commit of its own. Killed between
                the two commits, it leaves a compacted table; ask again to have it ordered.
            dry_run: only say what it would do.

        Returns:
            The files read and written, in numbers and bytes.

        Raises:
            UsageError: the predicate uses other columns, or the table has a partitioning policy.
            QueryError: Delta refused it.

        Example:
            >>> lake.table("sales").optimize.compact(where="month = 3")  # doctest: +SKIP
            sales: optimize made 1 files of 12
        """
        done = compact_files(self._table, where=where, target_bytes=target_bytes, dry_run=dry_run)
        return self._ordered(done, where, dry_run) if vorder else done

    def z_order(
        self,
        columns: Sequence[str],
        *,
        where: str | None = None,
        target_bytes: int = DEFAULT_TARGET,
        vorder: bool = False,
        dry_run: bool = False,
    ) -> Compaction:
        """Brings rows with near values of some columns into the same files (ZORDER BY).

        Args:
            columns: the columns by which rows are brought together.
            where: as for `compact`, whose errors it shares.
            target_bytes: as for `compact`.
            vorder: as for `compact`.
            dry_run: as for `compact`.

        Example:
            >>> lake.table("sales").optimize.z_order(["customer", "day"])  # doctest: +SKIP
            sales: optimize made 4 files of 12
        """
        done = compact_files(
            self._table,
            where=where,
            target_bytes=target_bytes,
            zorder_by=columns,
            dry_run=dry_run,
        )
        return self._ordered(done, where, dry_run) if vorder else done

    def vorder(
        self,
        *,
        sort_by: Sequence[str] = (),
        again: bool = False,
        where: str | None = None,
        dry_run: bool = False,
    ) -> VOrderReport:
        """Orders the rows within each file so that it gets smaller and is read more quickly.

        Args:
            sort_by: columns that every file is sorted by first; the order of the rest is chosen.
            again: take files that are ordered, or were tried, too.
            where: only these partitions: a predicate on partition columns.
            dry_run: only tell the gain that a sample of the files lets expect.

        Returns:
            The commits, and for each file the order that was chosen and the bytes it saves.

        Raises:
            UsageError: there is no such column, or the session is a Connect session.
            ConflictError: other writers were quicker each time; earlier commits stand.

        Example:
            >>> lake.table("sales").optimize.vorder(dry_run=True)  # doctest: +SKIP
            sales: V-Order would make 3 files 41% smaller
        """
        return vorder_table(
            self._table, apply=not dry_run, sort_by=sort_by, again=again, where=where
        )

    def purge(self, *, drop_vectors: bool = False, dry_run: bool = False) -> Compaction:
        """Rewrites files that hold deleted rows or dropped columns (Delta's REORG … PURGE).

        Args:
            drop_vectors: take deletion vectors from the table altogether, so that readers without
                them can read its newest version.
            dry_run: only say how many files hold deleted rows.

        Raises:
            QueryError: Delta refused it.

        Example:
            >>> lake.table("people").optimize.purge()  # doctest: +SKIP
            people: reorg made 2 files of 2
        """
        return purge_files(self._table, drop_vectors=drop_vectors, dry_run=dry_run)

    def _ordered(self, done: Compaction, where: str | None, dry_run: bool) -> Compaction:
        ordered = self.vorder(where=where, dry_run=dry_run).ordered
        return replace(done, files_ordered=ordered, version=self._table.snapshot().version)
