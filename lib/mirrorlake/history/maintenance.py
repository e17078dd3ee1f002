"""Maintenance of a whole lake by a policy: purge, compact, vacuum, table by table.

A policy is a small YAML file, `parameters/learn/07_maintain.yaml` for one; the notebook of that
name runs it, and a scheduler runs the notebook. Nothing is changed unless the policy says
`apply: true`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from mirrorlake.delta.snapshot import has_policy
from mirrorlake.delta.table import Table
from mirrorlake.errors import CheckError, MirrorlakeError, UsageError
from mirrorlake.history.compact import MIB, Compaction, compact_files, purge_files
from mirrorlake.history.frames import Frames
from mirrorlake.history.vacuum import Vacuum, vacuum_table
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.storage import Storage

_OTHERS = {"root", "demo"}  # keys of the notebook's file that are no policy


@dataclass(frozen=True)
class MaintenancePolicy:
    """What is done to each table, in this order: reorg, optimize, vacuum.

    Attributes:
        tables: names separated by commas; empty for all.
        reorg: purge deleted rows where there are any.
        optimize: put small files together.
        target_mib: how large files are to become.
        min_files: fewer small files than this are left alone.
        vacuum: delete what nobody needs.
        retention_hours: how long removed files stay; 0 or less for the table's own retention.
        feed_hours: how far back change feeds have to be readable; 0 for as long as files stay.
        apply: do it, not only say it.
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


@dataclass(frozen=True)
class TableMaintenance:
    """What was found and done for one table.

    Attributes:
        reorg, optimize, vacuum: None where the policy or the table had no need of it.
        error: what went wrong, or None.
    """

    table: TableName
    reorg: Compaction | None = None
    optimize: Compaction | None = None
    vacuum: Vacuum | None = None
    error: str | None = None


@dataclass(frozen=True)
class Maintenance(Result):
    """One run of a policy over a lake."""

    policy: MaintenancePolicy
    tables: tuple[TableMaintenance, ...]

    @property
    def failed(self) -> tuple[TableMaintenance, ...]:
        """The tables with an error."""
        return tuple(line for line in self.tables if line.error)

    def check(self) -> None:
        """Ends a run with an error if a table has one.

        Raises:
            CheckError: with the first table's error.
        """
        if self.failed:
            first = self.failed[0]
            raise CheckError(
                f"{len(self.failed)} tables failed; {first.table}: {first.error}",
                hint="mend what the error names, and run it again; the other tables are done.",
            )

    def shown(self) -> TextTable:
        """One row a table."""
        rows = tuple(
            (
                str(line.table),
                line.reorg.files if line.reorg else 0,
                line.optimize.files if line.optimize else 0,
                line.vacuum.delete_files if line.vacuum else 0,
                _said(line),
            )
            for line in self.tables
        )
        return TextTable(
            ("table", "files purged", "files compacted", "files deleted", "note"), rows
        )

    def __repr__(self) -> str:
        verb = "maintained" if self.policy.apply else "would maintain"
        return f"{verb} {len(self.tables)} tables, {len(self.failed)} failed"


def _said(line: TableMaintenance) -> str:
    if line.error:
        return line.error
    lost = line.vacuum.unreadable if line.vacuum else None
    return f"versions {lost[0]} to {lost[1]} no longer readable" if lost else ""


def load_policy(path: Path) -> MaintenancePolicy:
    """Reads a policy file; keys left out have their defaults.

    Raises:
        UsageError: no such file, an unknown key, or a value of the wrong kind.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} can't be read: {error}.") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a mapping of names to values.")
    return make_policy({k: v for k, v in document.items() if k not in _OTHERS}, str(path))


def parse_policy(text: str, *, tables: str = "", apply: bool = False) -> MaintenancePolicy:
    """The policy that a notebook's parameter holds as JSON; it vacuums only if it says so.

    Args:
        text: a JSON object with keys of `MaintenancePolicy`; empty for its defaults.
        tables: names separated by commas; empty for all.
        apply: do it, not only say it.

    Raises:
        UsageError: it is no JSON object, has an unknown key, or a value of the wrong kind.

    Example:
        >>> parse_policy('{"min_files": 8}').vacuum
        False
    """
    try:
        values = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise UsageError(
            f"The policy is no JSON: {error}.", hint='write it like {"min_files": 4}.'
        ) from error
    if not isinstance(values, dict):
        raise UsageError("The policy is no JSON object.", hint='write it like {"min_files": 4}.')
    if taken := {"tables", "apply"} & set(values):
        raise UsageError(
            f"The policy has {sorted(taken)[0]!r}.", hint="that is a parameter of its own."
        )
    return make_policy({"vacuum": False} | values | {"tables": tables, "apply": apply})


def make_policy(values: dict[str, Any], source: str = "The policy") -> MaintenancePolicy:
    """A policy by its keys.

    Raises:
        UsageError: an unknown key, or a value of the wrong kind.
    """
    kinds = {field.name: type(field.default) for field in fields(MaintenancePolicy)}
    for name, value in values.items():
        if name not in kinds:
            raise UsageError(f"{source} has an unknown key {name!r}.", hint=f"keys: {[*kinds]}.")
        allowed = (int, float) if kinds[name] is float else (kinds[name],)
        if not isinstance(value, allowed) or (isinstance(value, bool) and kinds[name] is not bool):
            raise UsageError(
                f"{source} has {name}: {value!r}.", hint=f"it has to be {kinds[name].__name__}."
            )
    return MaintenancePolicy(**values)


def maintain(
    spark: Callable[[], SparkSession],
    storage: Storage,
    known: list[TableName],
    policy: MaintenancePolicy,
    *,
    on_table: Callable[[str], None] = lambda name: None,
) -> Maintenance:
    """Runs a policy over a lake's tables, one after the other; one that fails stops no other.

    Args:
        spark: called when a session is needed.
        storage: the lake's files.
        known: the lake's tables.
        policy: what to do.
        on_table: hears each table's name before it is worked on.

    Raises:
        UsageError: the policy names a table that is not there.
    """
    chosen = _chosen(known, policy)
    lines = []
    for table in chosen:
        on_table(str(table))
        try:
            lines.append(_maintain_table(Table(spark, storage, table), policy))
        except MirrorlakeError as error:
            lines.append(TableMaintenance(table, error=str(error)))
    if policy.apply and policy.vacuum:
        Frames(storage, spark).sweep()
    return Maintenance(policy, tuple(lines))


def _chosen(known: list[TableName], policy: MaintenancePolicy) -> list[TableName]:
    wanted = [TableName.parse(part.strip()) for part in policy.tables.split(",") if part.strip()]
    if missing := [str(table) for table in wanted if table not in known]:
        raise UsageError(
            f"The policy names {', '.join(missing)}, which the lake has not.",
            hint=f"it has {', '.join(map(str, known))}.",
        )
    return wanted or known


def _maintain_table(table: Table, policy: MaintenancePolicy) -> TableMaintenance:
    reorg = optimize = vacuum = None
    if policy.reorg:
        found = purge_files(table, dry_run=True)
        if found.files:
            reorg = purge_files(table) if policy.apply else found
    if policy.optimize and not has_policy(table.storage, table.name):  # merged elsewhere
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
