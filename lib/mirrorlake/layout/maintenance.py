"""Maintain a whole lake by a policy: purge, compact, order and vacuum its tables.

A policy is a small YAML file, for example `parameters/learn/07_maintain.yaml`. The notebook with
the same name runs the policy, and a scheduler can run the notebook. Without `apply: true` in the
policy, no file changes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pyspark.sql import SparkSession

from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import MirrorlakeError, TableFailedError, UsageError
from mirrorlake.history.frames import Frames
from mirrorlake.history.maintenance import Compaction, compact_files
from mirrorlake.history.vacuum import Vacuum, vacuum_table
from mirrorlake.layout.api import Optimize, order_after
from mirrorlake.mirror.options import has_partitioning_policy
from mirrorlake.names import TableName, split_names
from mirrorlake.results import Result, TextTable, counted, optional_figure
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart

_MIB = 2**20
_SMALL_SHARE = 4  # Z-order starts again if files are smaller than this fraction of their target
_OTHERS = {"root", "demo"}  # keys of a parameter file that are not part of the policy


@dataclass(frozen=True)
class MaintenancePolicy:
    """The operations to run on each table, in this order: reorg, optimize, vacuum.

    Attributes:
        tables: names of tables, separated by commas; empty: all tables.
        reorg: remove deleted rows and dropped columns from files, if there are any.
        optimize: combine small files.
        target_mib: the target size of files, in MiB.
        min_files: combine small files only if there are at least this many.
        zorder: columns, separated by commas; empty: none. Z-order the rows by these columns instead
            of only combining files. This rewrites a whole table, so only files below a quarter of
            the target size count as small.
        vorder: write all files in V-Order. By default, this is only done for tables that ask for it
            (the property `mirrorlake.vorder`), or if a compacted file was in V-Order.
        vacuum: delete files that are no longer needed.
        retention_hours: how long removed files are kept, in hours; 0 or less: the table's own
            retention period.
        feed_hours: how far back the change data feed must be readable, in hours; 0 or less: the
            table's `mirrorlake.feedRetentionHours`, and at least as long as removed files are kept.
        apply: change the tables. By default, the run only reports what it would do.
    """

    tables: str = ""
    reorg: bool = True
    optimize: bool = True
    target_mib: int = 128
    min_files: int = 4
    zorder: str = ""
    vorder: bool = False
    vacuum: bool = True
    retention_hours: float = 0.0
    feed_hours: float = 0.0
    apply: bool = False

    @classmethod
    def parse(
        cls, text: str | dict[str, Any], *, tables: str = "", apply: bool = False
    ) -> MaintenancePolicy:
        """Parse a policy from JSON, such as a notebook's parameter. By default, `vacuum` is False.

        Args:
            text: a JSON object, as text or as a dict, whose keys are attributes of
                `MaintenancePolicy`; empty: the defaults.
            tables: names of tables, separated by commas; empty: all tables.
            apply: change the tables. By default, the run only reports what it would do.

        Raises:
            UsageError: the text is not a JSON object, has an unknown key, or a value of the wrong
                type.

        Example:
            >>> MaintenancePolicy.parse('{"min_files": 8}').vacuum
            False
        """
        hint = 'write it like {"min_files": 4}.'
        try:
            values = json.loads(text.strip() or "{}") if isinstance(text, str) else text
        except ValueError as error:
            raise UsageError(f"The policy is not valid JSON: {error}.", hint=hint) from error
        if not isinstance(values, dict):
            raise UsageError("The policy is not a JSON object.", hint=hint)
        if taken := {"tables", "apply"} & set(values):
            raise UsageError(
                f"The policy contains {min(taken)!r}, which is a parameter of its own.",
                hint="remove it from the policy.",
            )
        return make_policy({"vacuum": False} | values | {"tables": tables, "apply": apply})


@dataclass(frozen=True)
class TableMaintenance:
    """The result for one table.

    Attributes:
        table: the table's name.
        reorg, optimize, vacuum: the results of these operations; None if the policy does not
            contain the operation, or the table did not need it.
        error: the error, or None.
    """

    table: TableName
    reorg: Compaction | None = None
    optimize: Compaction | None = None
    vacuum: Vacuum | None = None
    error: str | None = None

    @property
    def note(self) -> str:
        """The error, or the versions that can no longer be read; empty if there are none."""
        if self.error:
            return self.error
        lost = self.vacuum.unreadable if self.vacuum else None
        return f"versions {lost[0]} to {lost[1]} no longer readable" if lost else ""


@dataclass(frozen=True)
class Maintenance(Result):
    """The result of running a policy on a lake.

    Attributes:
        policy: the policy.
        tables: one result per table.
    """

    policy: MaintenancePolicy
    tables: tuple[TableMaintenance, ...]

    @property
    def failed(self) -> tuple[TableMaintenance, ...]:
        """The tables with an error."""
        return tuple(line for line in self.tables if line.error)

    def check(self) -> None:
        """Raise an error if a table failed.

        Raises:
            TableFailedError: with the first table's error.
        """
        if self.failed:
            first = self.failed[0]
            raise TableFailedError(
                f"{counted(len(self.failed), 'table')} failed. {first.table}: {first.error}"
            )

    @optional_figure
    def plot(self) -> Chart | None:
        """Plot for each reason how many files are kept.

        Returns:
            None if the policy does not contain vacuum, or if no file is kept.
        """
        from mirrorlake.show.plots import plot_bars

        counts: Counter[str] = Counter()
        for line in self.tables:
            for share in line.vacuum.kept if line.vacuum else ():
                counts[share.why] += share.files
        if not counts:
            return None
        return plot_bars(
            dict(counts.most_common()), title="Files that are kept, by reason", label="files"
        )

    def shown(self) -> TextTable:
        """Return one row per table."""
        rows = tuple(
            (
                str(line.table),
                line.reorg.files if line.reorg else 0,
                line.optimize.files if line.optimize else 0,
                (line.optimize.files_ordered or 0) if line.optimize else 0,
                line.vacuum.delete_files if line.vacuum else 0,
                line.note,
            )
            for line in self.tables
        )
        return TextTable(
            (
                *("table", "files purged", "files compacted", "files put in V-Order"),
                *("files deleted", "note"),
            ),
            rows,
        )

    def __repr__(self) -> str:
        verb = "maintained" if self.policy.apply else "would maintain"
        return f"{verb} {counted(len(self.tables), 'table')}, {len(self.failed)} failed"


def load_policy(path: Path) -> MaintenancePolicy:
    """Read a policy from a YAML file. Missing keys have their default values.

    Raises:
        UsageError: the file can't be read, has an unknown key, or a value of the wrong type.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} can't be read: {error}.") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a mapping of names to values.")
    return make_policy({k: v for k, v in document.items() if k not in _OTHERS}, str(path))


def make_policy(values: dict[str, Any], source: str = "The policy") -> MaintenancePolicy:
    """Return the policy with these values.

    Raises:
        UsageError: a key is unknown, or a value has the wrong type.
    """
    kinds = {field.name: type(field.default) for field in fields(MaintenancePolicy)}
    for name, value in values.items():
        if name not in kinds:
            raise UsageError(
                f"{source} has the unknown key {name!r}.", hint=f"choose one of {', '.join(kinds)}."
            )
        allowed = (int, float) if kinds[name] is float else (kinds[name],)
        if not isinstance(value, allowed) or (isinstance(value, bool) and kinds[name] is not bool):
            raise UsageError(
                f"{source} has {name}: {value!r}, which is not of type {kinds[name].__name__}.",
                hint=f"give a value of type {kinds[name].__name__}.",
            )
    return MaintenancePolicy(**values)


def maintain(
    spark: Callable[[], SparkSession],
    storage: Storage,
    tables: Iterable[TableName],
    policy: MaintenancePolicy,
    *,
    on_table: Callable[[str], None],
) -> Maintenance:
    """Run a policy on tables; see `Lake.maintain`."""
    lines = []
    for table in tables:
        on_table(str(table))
        try:
            lines.append(_maintain_table(TableHandle(spark, storage, table), policy))
        except MirrorlakeError as error:
            lines.append(TableMaintenance(table, error=str(error)))
    if policy.apply and policy.vacuum:
        Frames(storage, spark).sweep()
    return Maintenance(policy, tuple(lines))


def _maintain_table(table: TableHandle, policy: MaintenancePolicy) -> TableMaintenance:
    purge = Optimize(table).purge
    reorg = optimize = vacuum = None
    if policy.reorg:
        found = purge(dry_run=True)
        if found.files:
            reorg = purge() if policy.apply else found
    if policy.optimize:
        optimize = _optimize_table(table, policy)
    if policy.vacuum:
        vacuum = vacuum_table(
            table,
            retention_hours=policy.retention_hours if policy.retention_hours > 0 else None,
            feed_hours=policy.feed_hours if policy.feed_hours > 0 else None,
            apply=policy.apply,
        )
    return TableMaintenance(table.name, reorg, optimize, vacuum)


def _optimize_table(table: TableHandle, policy: MaintenancePolicy) -> Compaction | None:
    """Compact a table with enough small files, otherwise only order its files if asked."""
    optimize, target = Optimize(table), policy.target_mib * _MIB
    columns, vorder = split_names(policy.zorder), policy.vorder or None
    # A partitioning policy merges the table's files itself.
    if not has_partitioning_policy(table.storage, table.name):
        small = target // _SMALL_SHARE if columns else target
        if compact_files(table, target_bytes=small, dry_run=True).files >= policy.min_files:
            compact = partial(optimize.z_order, columns) if columns else optimize.compact
            return compact(target_bytes=target, vorder=vorder, dry_run=not policy.apply)
    version, done = table.snapshot().version, policy.apply
    none = Compaction(table.name, "optimize", 0, 0, 0, version, 0, 0, 0, applied=done)
    found = order_after(table, none, vorder, dry_run=not done)
    return found if found.files_ordered else None
