"""Compact and purge the files of tables, and maintain a whole lake by a policy.

OPTIMIZE combines small files. REORG rewrites files without the rows that are marked as deleted.
Both change no row. VACUUM later deletes the old files.

A policy is a small YAML file, for example `parameters/learn/07_maintain.yaml`. The notebook with
the same name runs the policy, and a scheduler can run the notebook. Without `apply: true` in the
policy, no file changes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlglot
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.errors import SqlglotError

from mirrorlake.delta.files import files_of, files_to_purge, matching_files, total
from mirrorlake.delta.snapshot import VECTORS
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import CheckError, MirrorlakeError, UsageError
from mirrorlake.history.frames import Frames
from mirrorlake.history.vacuum import Vacuum, vacuum_table
from mirrorlake.mirror.options import has_partitioning_policy
from mirrorlake.names import TableName, quote
from mirrorlake.results import Result, TextTable, counted
from mirrorlake.spark.sql import query_errors
from mirrorlake.storage.files import Storage

if TYPE_CHECKING:
    from mirrorlake.show.chart import Chart


MIB = 2**20
DEFAULT_TARGET = 1024 * MIB  # Delta's default
_CONF = "spark.databricks.delta.optimize"
_OTHERS = {"root", "demo"}  # keys of a parameter file that are not part of the policy


@dataclass(frozen=True)
class Compaction(Result):
    """The result of OPTIMIZE or REORG, or of a dry run.

    Attributes:
        table: the table's name.
        action: `optimize` or `reorg`.
        files, bytes: the number and size of the files to rewrite; after the operation, of the files
            that were replaced.
        masked_rows: the number of rows in these files that deletion vectors mark as deleted.
        version: the table's newest version after the operation.
        in_vorder: how many of these files are in V-Order. The new files are not.
        files_added, bytes_added: the number and size of the new files; None for a dry run.
        applied: whether the files were rewritten.
        files_ordered: the number of new files in V-Order; None if V-Order was not requested.
    """

    table: TableName
    action: str
    files: int
    bytes: int
    masked_rows: int
    version: int
    in_vorder: int = 0
    files_added: int | None = None
    bytes_added: int | None = None
    applied: bool = False
    files_ordered: int | None = None

    def shown(self) -> TextTable:
        """Return the attributes, one per row."""
        rows = [
            ("files rewritten" if self.applied else "files to rewrite", self.files),
            ("their bytes", self.bytes),
            ("deleted rows in them", self.masked_rows),
        ]
        if self.in_vorder and self.files_ordered is None:
            way = "--vorder" if self.action == "optimize" else "vorder"
            rows.append((f"of these in V-Order ({way} restores it)", self.in_vorder))
        if self.files_added is not None and self.bytes_added is not None:
            rows += [("files written", self.files_added), ("their bytes", self.bytes_added)]
        if self.files_ordered is not None:
            rows.append(
                ("files in V-Order" if self.applied else "files to order", self.files_ordered)
            )
        return TextTable((f"{self.action} {self.table}", "value"), tuple(rows))

    def __repr__(self) -> str:
        if not self.applied:
            return f"{self.table}: {self.action} would rewrite {counted(self.files, 'file')}"
        added = counted(self.files_added or 0, "file")
        return f"{self.table}: {self.action} rewrote {counted(self.files, 'file')} as {added}"


@query_errors()
def compact_files(
    table: TableHandle,
    *,
    where: str | None = None,
    target_bytes: int = DEFAULT_TARGET,
    zorder_by: Sequence[str] = (),
    dry_run: bool = False,
) -> Compaction:
    """Combine small files; see `Optimize.compact`.

    With `zorder_by`, a dry run counts all files that the operation may rewrite, because it can't
    predict which ones it does.
    """
    work = table.for_one_operation()
    if has_partitioning_policy(table.storage, table.name):
        raise UsageError(
            f"{table.name} has a partitioning policy, and OPTIMIZE would mix its partitions.",
            hint="use table.partitioning.run(), which merges small files within a partition.",
        )
    if target_bytes <= 0:
        raise UsageError(f"The target size is {target_bytes:,} bytes.", hint="give a size above 0.")
    if where is not None:
        _check_columns(where, work.snapshot().partition_columns)
    files = files_of(work, work.snapshot().version)
    if where is not None:  # only partitions with a matching row
        files = files.join(matching_files(work, where), "path", "left_semi")
    found = Compaction(
        table.name,
        "optimize",
        version=work.snapshot().version,
        **_figures(files if zorder_by else _files_to_compact(files, target_bytes)),
    )
    if dry_run:
        return found
    work.spark.conf.set(f"{_CONF}.maxFileSize", str(target_bytes))
    work.spark.conf.set(f"{_CONF}.minFileSize", str(target_bytes))
    clause = f" WHERE {where}" if where else ""
    order = f" ZORDER BY ({', '.join(map(quote, zorder_by))})" if zorder_by else ""
    return _run_statement(work.spark, table, found, f"OPTIMIZE {table.sql_name}{clause}{order}")


@query_errors()
def purge_files(
    table: TableHandle, *, drop_vectors: bool = False, dry_run: bool = False
) -> Compaction:
    """Rewrite files with deleted rows or dropped columns; see `Optimize.purge`."""
    work = table.for_one_operation()
    figures = _figures(files_to_purge(work))
    found = Compaction(table.name, "reorg", version=work.snapshot().version, **figures)
    if dry_run:
        return found
    name, feature = table.sql_name, "deletionVectors"
    drops = drop_vectors and feature in work.snapshot().reader_features
    if drops:  # no new deletion vectors may appear between the purge and the drop of the feature
        off = f"SET TBLPROPERTIES ('{VECTORS}' = 'false')"
        work.spark.sql(f"ALTER TABLE {name} {off}").collect()
    done = _run_statement(work.spark, table, found, f"REORG TABLE {name} APPLY (PURGE)")
    if drops:
        work.spark.sql(f"ALTER TABLE {name} DROP FEATURE {feature}").collect()
        return replace(done, version=table.snapshot().version)
    return done


def _check_columns(where: str, parts: list[str]) -> None:
    try:
        tree = sqlglot.parse_one(where, read="spark")
    except SqlglotError as error:
        raise UsageError(f"{where!r} is not a SQL predicate.") from error
    known = {name.lower() for name in parts}
    others = sorted({c.name for c in tree.find_all(exp.Column) if c.name.lower() not in known})
    if others:
        has = f"it is partitioned by {', '.join(parts)}." if parts else "it has no partitions."
        noun = "is not a partition column" if len(others) == 1 else "are not partition columns"
        raise UsageError(f"{', '.join(others)} {noun} of the table.", hint=has)


def _files_to_compact(files: DataFrame, target: int) -> DataFrame:
    """Return the small files of all partitions that have several small files."""
    small = files.where(F.col("size") < target)
    crowded = small.groupBy("parts").count().where("count > 1").select("parts")
    return small.join(crowded, small["parts"].eqNullSafe(crowded["parts"]), "left_semi")


def _figures(files: DataFrame) -> dict[str, Any]:
    return (
        files.agg(
            F.count("*").alias("files"),
            total("size").alias("bytes"),
            total("masked").alias("masked_rows"),
            F.count_if("ordered").alias("in_vorder"),
        )
        .collect()[0]
        .asDict()
    )


def _run_statement(
    session: SparkSession, table: TableHandle, planned: Compaction, statement: str
) -> Compaction:
    row = session.sql(statement).select("metrics.*").collect()[0].asDict(recursive=True)
    return replace(
        planned,
        files=row["numFilesRemoved"],
        bytes=(row["filesRemoved"] or {}).get("totalSize") or 0,
        files_added=row["numFilesAdded"],
        bytes_added=(row["filesAdded"] or {}).get("totalSize") or 0,
        version=table.snapshot().version,
        applied=True,
    )


@dataclass(frozen=True)
class MaintenancePolicy:
    """The operations to run on each table, in this order: reorg, optimize, vacuum.

    Attributes:
        tables: names of tables, separated by commas; empty: all tables.
        reorg: remove deleted rows and dropped columns from files, if there are any.
        optimize: combine small files.
        target_mib: the target size of files, in MiB.
        min_files: combine small files only if there are at least this many.
        vacuum: delete files that are no longer needed.
        retention_hours: how long removed files are kept, in hours; 0 or less: the table's own
            retention period.
        feed_hours: how far back the change data feed must be readable, in hours; 0: as long as
            removed files are kept.
        apply: change the tables. By default, the run only reports what it would do.
    """

    tables: str = ""
    reorg: bool = True
    optimize: bool = True
    target_mib: int = 128
    min_files: int = 4
    vacuum: bool = True
    retention_hours: float = 0.0
    feed_hours: float = 0.0
    apply: bool = False

    @classmethod
    def parse(cls, text: str, *, tables: str = "", apply: bool = False) -> MaintenancePolicy:
        """Parse a policy from JSON, such as a notebook's parameter. By default, `vacuum` is False.

        Args:
            text: a JSON object whose keys are attributes of `MaintenancePolicy`; empty: the
                defaults.
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
            values = json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise UsageError(f"The policy is not JSON: {error}.", hint=hint) from error
        if not isinstance(values, dict):
            raise UsageError("The policy is not a JSON object.", hint=hint)
        if taken := {"tables", "apply"} & set(values):
            raise UsageError(
                f"The policy has the key {sorted(taken)[0]!r}.",
                hint="this is a parameter of its own; remove it from the policy.",
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
            CheckError: with the first table's error.
        """
        if self.failed:
            first = self.failed[0]
            raise CheckError(
                f"{counted(len(self.failed), 'table')} failed; {first.table}: {first.error}",
                hint="fix the error and run it again; the other tables are done.",
            )

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
                line.vacuum.delete_files if line.vacuum else 0,
                line.note,
            )
            for line in self.tables
        )
        return TextTable(
            ("table", "files purged", "files compacted", "files deleted", "note"), rows
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
        raise UsageError(f"{path} is not a YAML mapping of names to values.")
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
                f"{source} has the unknown key {name!r}.", hint=f"choose one of {[*kinds]}."
            )
        allowed = (int, float) if kinds[name] is float else (kinds[name],)
        if not isinstance(value, allowed) or (isinstance(value, bool) and kinds[name] is not bool):
            raise UsageError(
                f"{source} has {name}: {value!r}.",
                hint=f"the type of {name} is {kinds[name].__name__}.",
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
    reorg = optimize = vacuum = None
    if policy.reorg:
        found = purge_files(table, dry_run=True)
        if found.files:
            reorg = purge_files(table) if policy.apply else found
    if policy.optimize and not has_partitioning_policy(
        table.storage, table.name
    ):  # its policy merges files
        target = policy.target_mib * MIB
        found = compact_files(table, target_bytes=target, dry_run=True)
        if found.files >= policy.min_files:
            optimize = compact_files(table, target_bytes=target) if policy.apply else found
    if policy.vacuum:
        vacuum = vacuum_table(
            table,
            retention_hours=policy.retention_hours if policy.retention_hours > 0 else None,
            feed_hours=policy.feed_hours if policy.feed_hours > 0 else None,
            apply=policy.apply,
        )
    return TableMaintenance(table.name, reorg, optimize, vacuum)
