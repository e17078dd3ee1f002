"""Partition all tables of a lake in the background: `Lake.partitioning`.

The process works in rounds. In each round, the table with most pending rows comes first. The number
of concurrent operations is limited by the capacity and by the machine's cores. If a table has no
work left, the process only reads the number of its newest version, until this number changes; this
also holds for the next process. The process counts the files of tables without a policy only while
there is work, at most every ten minutes. If all tables of the lake together have very many files,
the process slows down to one operation at a time. It also moves the policies' effective
date into the future, so that users can reconsider the policies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from threading import Event

from pyspark.sql import SparkSession

from mirrorlake.delta.commits import find_newest
from mirrorlake.delta.snapshot import delta_tables
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import BusyError, MirrorlakeError
from mirrorlake.mirror.options import has_partitioning_policy, partitioning_policies
from mirrorlake.names import STATE, TableName, as_table
from mirrorlake.notices import noop
from mirrorlake.partitioning.operation import (
    MERGE,
    PARTITION,
    Receipt,
    StepListener,
    clean_up,
    is_at_work,
    run_operation,
)
from mirrorlake.partitioning.policy import now_micros
from mirrorlake.partitioning.statistics import Diagnostics, TableStatistics, count_files
from mirrorlake.partitioning.store import (
    fitting_setting,
    read_setting,
    tables_with_policies,
    write_setting,
)
from mirrorlake.query.catalog import Catalog
from mirrorlake.results import Entries, Result, TextTable, counted
from mirrorlake.spark.sql import spark_message
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept

FILE_LIMIT = 5_000_000
_PUT_OFF = 6 * 3600 * 10**6
_RECOUNT = 600.0  # seconds
_SLOWER, _LONGEST_PAUSE = 1.5, 60.0
_LEAST, _MOST = 1, 32
_SUCCESS_RATE = 0.9
# Versions that wrote format 1 left mixed files: their tables are checked again.
_IDLE_FORMAT = 2
_CAPACITY = f"{STATE}/partitioning_capacity.json"
_CAPACITY_FORMAT = 1


def next_capacity(capacity: int, succeeded: int, failed: int) -> int:
    """Return the capacity after a round.

    The capacity grows by one, up to 32, if the round used all of it and 90 % of the operations
    succeeded. It shrinks by one if fewer succeeded.

    Example:
        >>> next_capacity(2, 2, 0), next_capacity(2, 1, 1), next_capacity(2, 1, 0)
        (3, 1, 2)
    """
    count = succeeded + failed
    if succeeded < _SUCCESS_RATE * count:
        return max(_LEAST, capacity - 1)
    return min(_MOST, capacity + 1) if count >= capacity else capacity


@dataclass(frozen=True)
class TableRun:
    """The operations of one table in a run.

    Attributes:
        table: the table's name.
        receipts: the receipts of the operations, in their order.
        error: the error that ended the operations; None without an error.
    """

    table: str
    receipts: tuple[Receipt, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class ProcessReport(Result):
    """The result of one run of the process.

    Attributes:
        tables: the tables with a policy on which an operation was committed or failed.
        capacity: the number of concurrent operations, after the run.
        put_off: the tables whose effective date was moved, because the tables have too many files.
    """

    tables: tuple[TableRun, ...]
    capacity: int
    put_off: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[TableRun, ...]:
        """The tables with an error."""
        return tuple(line for line in self.tables if line.error)

    @property
    def operations(self) -> int:
        """The number of committed operations."""
        return sum(len(line.receipts) for line in self.tables)

    def shown(self) -> TextTable:
        """Return one row per operation, and one per failure."""
        columns = ("table", "version", "kind", "rows", "files", "files after", "bytes",
                   "bytes after", "partitions", "outlier rows", "problem")  # fmt: skip
        rows: list[tuple[object, ...]] = []
        for line in self.tables:
            for one in line.receipts:
                rows.append(
                    (line.table, one.version, one.kind, one.rows, len(one.files_in),
                     len(one.files_out), one.bytes_in, one.bytes_out, one.partitions,
                     one.outlier_rows, "")
                )  # fmt: skip
            if line.error:
                rows.append((line.table, *[None] * 9, line.error))
        return TextTable(columns, tuple(rows))

    def __repr__(self) -> str:
        late = f", put off for too many files: {', '.join(self.put_off)}" if self.put_off else ""
        failed = counted(len(self.failed), "table")
        return f"{counted(self.operations, 'operation')}, {failed} failed{late}"


class Process:
    """The background process for the tables of one lake.

    Args:
        storage: the lake's files.
        spark: a function that returns a classic Spark session. It is called only if work needs
            Spark.
        tables: a function that returns the tables to process. It is called in each round.
        file_limit: the number of files, in all tables of the lake, above which the process slows
            down.
        on_step: a function that is called after each step of each operation, from several threads.
    """

    def __init__(
        self,
        storage: Storage,
        spark: Callable[[], SparkSession],
        tables: Callable[[], list[TableName]],
        *,
        file_limit: int = FILE_LIMIT,
        on_step: StepListener = noop,
    ) -> None:
        self._storage, self._spark, self._tables = storage, spark, tables
        self._limit, self._on_step = file_limit, on_step
        self._seen: dict[TableName, Idle] = {}
        self._pending: dict[TableName, TableStatistics] = {}  # of tables that may have work
        self._busy: set[TableName] = set()
        self._others, self._recount = 0, 0.0

    def run(self, *, stop: Event | None = None) -> ProcessReport:
        """Run rounds until no table has work left.

        Args:
            stop: an event. If it is set, the running operations finish and no new one starts.
        """
        receipts: dict[str, list[Receipt]] = {}
        errors: dict[str, str] = {}
        put_off: set[str] = set()
        self._busy.clear()  # the process that locked them may have been killed
        while stop is None or not stop.is_set():
            needs = self._needs(errors)
            capacity = read_capacity(self._storage)
            if needs and self._lake_files() > self._limit:
                put_off |= self._put_off()
                capacity = _LEAST
                needs = self._needs(errors)
            if not needs:
                break
            for name, receipt in self._round(needs, capacity).items():
                if isinstance(receipt, str):
                    errors[str(name)] = receipt
                elif receipt is not None:
                    receipts.setdefault(str(name), []).append(receipt)
        names = sorted({*receipts, *errors})
        lines = [TableRun(n, tuple(receipts.get(n, ())), errors.get(n)) for n in names]
        capacity = read_capacity(self._storage)
        return ProcessReport(tuple(lines), capacity, tuple(sorted(put_off)))

    def watch(
        self,
        stop: Event,
        *,
        interval: float = 5,
        on_report: Callable[[ProcessReport], None] = noop,
    ) -> ProcessReport:
        """Run repeatedly until `stop` is set. While there is no work, the pauses become longer.

        Args:
            stop: an event that a signal handler or another thread sets. Running operations finish
                first.
            interval: seconds between two runs while there is work; 5 by default.
            on_report: a function that is called with the report of each run.
        """
        pause = interval
        while True:
            report = self.run(stop=stop)
            on_report(report)
            busy = report.operations > 0 and not report.put_off
            pause = interval if busy else min(pause * _SLOWER, max(interval, _LONGEST_PAUSE))
            if stop.wait(pause):
                return report

    def _needs(self, errors: dict[str, str]) -> list[TableName]:
        """Return the tables that may have work. The table with most pending rows comes first."""
        found: list[tuple[int, TableName]] = []
        there, now = set(), now_micros()
        for name in self._tables():
            number = partitioning_policies(self._storage, name).count()
            newest = find_newest(self._storage, name.table_path) if number else None
            if newest is None:
                continue
            there.add(name)
            if name in self._busy or str(name) in errors:
                continue
            seen = self._seen.get(name) or read_idle(self._storage, name)
            # A table that waits is not counted again in each round.
            if seen is None or not seen.holds(newest, number, now):
                self._pending.pop(name, None)
                try:
                    if (setting := read_setting(self._storage, name)) is not None:
                        table = TableHandle(self._spark, self._storage, name)
                        self._pending[name] = count_files(table, setting)
                except MirrorlakeError as error:
                    errors[str(name)] = str(error)
                    continue
                stats = self._pending.get(name)
                # A later commit or policy has another number, so the table is counted again.
                seen = Idle(newest, number, stats.files if stats else 0)
            self._seen[name] = seen
            if name in self._pending:
                found.append((-self._pending[name].pending_rows, name))
        self._seen = {name: seen for name, seen in self._seen.items() if name in there}
        return [name for _, name in sorted(found)]

    def _lake_files(self) -> int:
        """Return the number of files of all tables; tables without a policy are counted rarely."""
        if time.monotonic() >= self._recount:
            others = delta_tables(self._storage, but=self._seen)
            self._others = sum(map(self._count, others))
            self._recount = time.monotonic() + _RECOUNT
        return self._others + sum(seen.files for seen in self._seen.values())

    def _count(self, name: TableName) -> int:
        try:
            newest = find_newest(self._storage, name.table_path) or 0
            checksum = f"{name.table_path}/_delta_log/{newest:020d}.crc"  # by Delta's own writers
            if known := self._storage.read_json(checksum):
                return int(known["numFiles"])
            return count_files(TableHandle(self._spark, self._storage, name), None).files
        except Exception:  # an unreadable table without a policy must not stop the others
            return 0

    def _round(
        self, needs: list[TableName], capacity: int
    ) -> dict[TableName, Receipt | str | None]:
        """Run one operation on each of the first tables; the capacity limits their number.

        Returns:
            For each table its receipt, an error, or None if the table is idle.
        """
        chosen = needs[:capacity]
        write_capacity(self._storage, capacity, len(chosen))
        self._spark()  # starts the session once, before the threads
        with ThreadPoolExecutor(min(capacity, os.cpu_count() or 1)) as pool:
            done = dict(zip(chosen, pool.map(self._operate, chosen), strict=True))
        failed = sum(isinstance(one, str) for one in done.values())
        succeeded = sum(isinstance(one, Receipt) for one in done.values())
        write_capacity(self._storage, next_capacity(capacity, succeeded, failed))
        return done

    def _operate(self, name: TableName) -> Receipt | str | None:
        try:
            table = TableHandle(self._spark, self._storage, name)
            for kind in (PARTITION, MERGE) if self._pending[name].pending_files else (MERGE,):
                receipt = run_operation(table, kind=kind, on_step=self._on_step)
                if receipt is not None:
                    return receipt
            self._seen[name] = replace(self._seen[name], due=clean_up(table))
            del self._pending[name]
            write_idle(self._storage, name, self._seen[name])
        except BusyError:
            self._busy.add(name)  # another process has locked it
        except MirrorlakeError as error:
            return str(error)
        except Exception as error:  # an error of Spark must not stop the other tables
            return spark_message(error)
        return None

    def _put_off(self) -> set[str]:
        """Move the policies' effective date six hours ahead, and record why in the history."""
        now = now_micros()
        found = set()
        for name in sorted(self._seen):
            setting = fitting_setting(self._storage, name)
            if setting is None or (setting.policy.effective or 0) > now:
                continue
            later = replace(setting.policy, effective=now + _PUT_OFF)
            reason = f"put off: more than {self._limit:,} files"
            write_setting(self._storage, name, replace(setting, policy=later), reason)
            found.add(str(name))
        return found


class LakePartitioning:
    """The background process for all tables with a policy, as `lake.partitioning`.

    Args:
        storage: the lake's files.
        spark: a function that returns the Spark session. It is called only if work needs Spark.
    """

    def __init__(self, storage: Storage, spark: Callable[[], SparkSession]) -> None:
        self._storage = storage
        self._spark = spark

    def process(
        self,
        table: str | TableName | None = None,
        *,
        file_limit: int = FILE_LIMIT,
        on_step: StepListener = noop,
    ) -> Process:
        """Return the process. Its `run` works once, and its `watch` until it is stopped.

        Args:
            table: process only this table; by default all tables with a policy.
            file_limit: a number of files; 5,000,000 by default. If all tables of the lake together
                have more files, the process runs one operation at a time.
            on_step: a function that is called after each step of an operation, with the table and
                the step.

        Raises:
            TableNotFoundError: the table does not exist. The hint lists similar names.

        Example:
            >>> lake.partitioning.process().watch(stop)  # doctest: +SKIP
        """
        only = None if table is None else Catalog(self._storage).existing(table)

        def tables() -> list[TableName]:
            return tables_with_policies(self._storage) if only is None else [only]

        return Process(self._storage, self._spark, tables, file_limit=file_limit, on_step=on_step)

    def run(
        self, table: str | TableName | None = None, *, file_limit: int = FILE_LIMIT
    ) -> ProcessReport:
        """Partition new files in all tables with a policy, or in one of them.

        Args:
            table: process only this table; by default all tables with a policy.
            file_limit: as for `process`.

        Returns:
            The operations and errors of each table.

        Raises:
            TableNotFoundError: as for `process`.

        Example:
            >>> lake.partitioning.run("planes").failed  # doctest: +SKIP
            ()
        """
        return self.process(table, file_limit=file_limit).run()

    def stats(self) -> Entries[TableStatistics]:
        """Return how far each table with a policy is partitioned, one row per table.

        Example:
            >>> [table.percentage for table in lake.partitioning.stats()]  # doctest: +SKIP
            [100.0, 87.5]
        """
        spark, storage = self._spark(), self._storage
        lines = [
            # A policy that no longer fits counts as none.
            count_files(TableHandle(spark, storage, name), fitting_setting(storage, name))
            for name in tables_with_policies(storage)
            if has_partitioning_policy(storage, name)
        ]
        columns = lines[0].shown().columns if lines else ()
        empty = "No table has a partitioning policy."
        return Entries(lines, columns, lambda one: one.shown().rows[0], empty)

    def diagnostics(self) -> Diagnostics:
        """Return which share of the tables with a policy is partitioned, with Kusto's column names.

        Example:
            >>> lake.partitioning.diagnostics().is_behind  # doctest: +SKIP
            False
        """
        tables = self.stats()
        at_work = sum(is_at_work(self._storage, as_table(one.table)) for one in tables)
        return Diagnostics(tables, read_capacity(self._storage), at_work)


def read_capacity(storage: Storage) -> int:
    """Return the number of operations that may run concurrently: the stored value, or 1.

    Raises:
        FormatError: the document has a newer format, so it must not be overwritten.
    """
    return int((read_kept(storage, _CAPACITY, _CAPACITY_FORMAT) or {}).get("capacity", 1))


def write_capacity(storage: Storage, capacity: int, in_progress: int = 0) -> None:
    """Store the capacity for the next process, with the number of running operations."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    kept = {"capacity": capacity, "in_progress": in_progress, "at": now}
    storage.write_json(_CAPACITY, {"format": _CAPACITY_FORMAT, **kept})


@dataclass(frozen=True)
class Idle:
    """The state of a table without work, stored for the next round and the next process.

    The table has new work only after a new version, another policy, or the end of the retention
    period of replaced files. Until then, the process reads one small document instead of the
    table's log, and runs no job that counts files.

    Attributes:
        version: the table's version.
        policy: the number of its newest policy.
        files: the number of its files, which count for the process's limit.
        due: when replaced files must be vacuumed, in microseconds since 1970; None for never.
    """

    version: int
    policy: int
    files: int = 0
    due: int | None = None

    def holds(self, version: int, policy: int, now: int) -> bool:
        """Return whether the table still has no work."""
        same = (self.version, self.policy) == (version, policy)
        return same and (self.due is None or now < self.due)


def read_idle(storage: Storage, name: TableName) -> Idle | None:
    """Return the stored state of an idle table.

    None: the table had work, or the document (a cache) has another format.
    """
    document = storage.read_json(_idle_path(name))
    if document is None or document.pop("format", 1) != _IDLE_FORMAT:
        return None
    return Idle(**document)


def write_idle(storage: Storage, name: TableName, idle: Idle) -> None:
    """Store the state of an idle table.

    A document of a newer format is not overwritten, because it can be computed again each time.
    """
    kept = storage.read_json(_idle_path(name)) or {}
    if kept.get("format", 1) > _IDLE_FORMAT:
        return
    storage.write_json(_idle_path(name), {"format": _IDLE_FORMAT, **asdict(idle)})


def _idle_path(name: TableName) -> str:
    return f"{name.partitioning_path}/idle.json"
