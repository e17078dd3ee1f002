"""Taking a table back to an earlier version: what it would do, what it means, and doing it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mirrorlake.delta.actions import removed_since
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import Table
from mirrorlake.history.diff import is_made_anew
from mirrorlake.history.versions import check_version
from mirrorlake.mirror.properties import INCARNATION_PROPERTY
from mirrorlake.names import TableName
from mirrorlake.results import Result, TextTable
from mirrorlake.spark.sql import query_errors


@dataclass(frozen=True)
class Restore(Result):
    """What restoring does, or has done.

    Attributes:
        version: the version that comes back.
        newest: the version that was the newest before.
        returned_files: data files that are in the table again.
        dropped_files: data files that no longer are; None before it is done.
        columns: names of columns that come, with `+`, or go, with `-`.
        warnings: what to know before doing it.
        applied: whether it is done.
    """

    table: TableName
    version: int
    newest: int
    returned_files: int
    dropped_files: int | None
    columns: tuple[str, ...]
    warnings: tuple[str, ...]
    applied: bool

    def shown(self) -> TextTable:
        """The same facts, one a row."""
        rows: list[tuple[str, Any]] = [
            ("table", str(self.table)),
            ("from version", self.newest),
            ("back to version", self.version),
            ("files that return", self.returned_files),
        ]
        if self.dropped_files is not None:
            rows.append(("files that go", self.dropped_files))
        if self.columns:
            rows.append(("columns", " ".join(self.columns)))
        rows += [("warning", warning) for warning in self.warnings]
        rows.append(("done", "yes" if self.applied else "no: a dry run"))
        return TextTable(("what", "value"), tuple((what, str(value)) for what, value in rows))

    def __repr__(self) -> str:
        verb = "restored" if self.applied else "would restore"
        return f"{verb} {self.table} from version {self.newest} to {self.version}"


@query_errors()
def restore_table(table: Table, version: int, *, apply: bool) -> Restore:
    """Makes a table what it was; arguments and errors are those of `LakeTable.restore`."""
    check_version(table.storage, table.name, version)
    plan = _plan(table.for_one_operation(), version)
    if not apply:
        return plan
    done = table.spark.sql(
        f"RESTORE TABLE {table.sql_name} TO VERSION AS OF {int(version)}"
    ).first()
    figures = done.asDict() if done is not None else {}
    return replace(
        plan,
        returned_files=int(figures.get("num_restored_files", plan.returned_files)),
        dropped_files=int(figures.get("num_removed_files", 0)),
        applied=True,
    )


def _plan(table: Table, version: int) -> Restore:
    path, now = table.name.table_path, table.snapshot()
    then = read_snapshot(table.storage, path, version)
    old, new = then.schema if then else {}, now.schema
    columns = [f"+{name}" for name in old if name not in new]
    columns += [f"-{name}" for name in new if name not in old]
    warnings = []
    if INCARNATION_PROPERTY in now.properties:
        warnings.append(
            "A mirror feeds this table. It goes on after the last file it has applied: what was"
            f" published since version {version} is not applied again. Publish those changes"
            " anew, or reseed the table."
        )
        if is_made_anew(then, now):
            warnings.append(
                f"Version {version} is from before the table's folder was made anew: its columns"
                " and keys need not be those of today."
            )
    return Restore(
        table=table.name,
        version=version,
        newest=now.version,
        returned_files=len(removed_since(table.storage, path, version, now.version)),
        dropped_files=None,
        columns=tuple(columns),
        warnings=tuple(warnings),
        applied=False,
    )
