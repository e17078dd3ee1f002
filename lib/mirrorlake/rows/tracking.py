"""Switches row tracking on and off, and says before what that commits and costs.

With it every row has a stable id and the version that last changed it. Enabling it later gives ids
to all rows by their files' places in the log: no data file is rewritten, but every file is listed
once more. Source: the Delta transaction log protocol, "Row Tracking".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from mirrorlake.delta.actions import live_files
from mirrorlake.delta.snapshot import ROW_TRACKING, Snapshot, read_snapshot
from mirrorlake.delta.table import Table
from mirrorlake.errors import QueryError, UsageError
from mirrorlake.feed.doctor import FeedFinding
from mirrorlake.history.diff import is_tracked
from mirrorlake.history.versions import check_version, is_enforced
from mirrorlake.results import Result, TextTable
from mirrorlake.rows.row_id_validity import read_row_id_validity
from mirrorlake.spark.older import metadata_column
from mirrorlake.spark.sql import spark_message

FEATURE = "rowTracking"
_FILES_CONF = "spark.databricks.delta.backfill.maxNumFiles"
_FILES_A_COMMIT = "100000"  # Delta's default, which keeps an entry of the log below 100 MB
_NEWER_WRITERS = (
    "Writers that don't know row tracking are refused from then on; dropping the feature lets them"
    " in again. Readers are not concerned."
)
_OTHER_IDS = (
    "Rows were tracked before: those that were rewritten in between get other ids than they had,"
    " and it is unknown which."
)
_NOT_KEPT = (
    "Ids are no longer kept when rows are rewritten: enabled again, they can't be compared with"
    " those of today."
)
_STILL_ASKED = (
    "The protocol still asks writers for row tracking; only dropping the feature ends that."
)
_ALL_LOST = (
    "All ids are lost. Enabled again, numbers start at 0: the same number then names another row."
)


@dataclass(frozen=True)
class Tracking(Result):
    """How a table's rows are tracked.

    Attributes:
        version: the table's newest version.
        enabled: whether rows have ids that can be read.
        supported: whether the protocol asks writers for the feature, enabled or not.
        numbered_from: the first version of the present numbering; before it a row had no id, or
            the same number named another row. None if the table was never tracked.
        trusted_from: the version since which rows have kept their ids, or None.
        findings: what to know about the ids, by version.
    """

    table: str
    version: int
    enabled: bool
    supported: bool
    numbered_from: int | None
    trusted_from: int | None
    findings: tuple[FeedFinding, ...]

    def as_dict(self) -> dict[str, Any]:
        """The document that `rows … show --json` begins with."""
        return vars(self) | {"findings": [finding.as_dict() for finding in self.findings]}

    def shown(self) -> TextTable:
        """The same facts, one a row."""
        rows = [
            ("row tracking", "on" if self.enabled else "off"),
            ("required of writers", "yes" if self.supported else "no"),
        ]
        if self.numbered_from is not None:
            rows.append(("numbered since", f"version {self.numbered_from}"))
            rows.append(("ids kept since", f"version {self.trusted_from}"))
        rows += [(finding.rule, f"{finding.message} {finding.fix}") for finding in self.findings]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        since = f", ids kept since version {self.trusted_from}" if self.enabled else ""
        noun = "warning" if len(self.findings) == 1 else "warnings"
        state = "tracked" if self.enabled else "not tracked"
        return f"{self.table}: rows {state}{since}, {len(self.findings)} {noun}"


@dataclass(frozen=True)
class FeatureChange(Result):
    """What enabling, disabling or dropping commits, or has committed.

    Attributes:
        verb: `enable`, `disable` or `drop`.
        before: the newest version before.
        commits: what is committed, in order, in Delta's words.
        files: data files that are listed again, with ids or without.
        rows: rows in those files, as far as the log knows.
        size: bytes of those files; none of them is read or written.
        warnings: what to know before.
        applied: whether it is done.
    """

    table: str
    verb: str
    before: int
    commits: tuple[str, ...] = ()
    files: int = 0
    rows: int = 0
    size: int = 0
    warnings: tuple[str, ...] = ()
    applied: bool = False

    def shown(self) -> TextTable:
        """The same facts, one a row."""
        listed = [f"version {self.before + n}: {what}" for n, what in enumerate(self.commits, 1)]
        rows = [
            ("files listed again", f"{self.files:,}, none of them rewritten"),
            ("rows in them", f"{self.rows:,}"),
            *(("commit", text) for text in listed),
            *(("warning", warning) for warning in self.warnings),
            ("done", "yes" if self.applied else "no: a dry run"),
        ]
        return TextTable(("what", "value"), tuple(rows))

    def __repr__(self) -> str:
        done = "" if self.applied else "would "
        noun = "commit" if len(self.commits) == 1 else "commits"
        return f"{done}{self.verb} row tracking of {self.table}: {len(self.commits)} {noun}"


def is_supported(snapshot: Snapshot) -> bool:
    """Whether a version's protocol asks its writers for row tracking."""
    return FEATURE in snapshot.writer_features


def check_tracked(table: Table, snapshot: Snapshot) -> None:
    """Refuses a table whose rows have no ids at a version.

    Raises:
        UsageError: with the way to get some.
    """
    if is_tracked(snapshot.properties):
        return
    gone = " any more" if is_supported(snapshot) else ""
    raise UsageError(
        f"The rows of {table.name} are not tracked{gone} in version {snapshot.version}.",
        hint=f"`rows enable ROOT {table.name}`; `rows show ROOT {table.name}` tells which versions"
        " have ids.",
    )


def read_tracking(table: Table) -> Tracking:
    """How a table's rows are tracked, and how far their ids can be trusted; needs no Spark job."""
    snapshot = table.snapshot()
    trust = read_row_id_validity(table)
    return Tracking(
        str(table.name),
        snapshot.version,
        is_tracked(snapshot.properties),
        is_supported(snapshot),
        trust.numbered_from,
        trust.trusted_from,
        trust.findings,
    )


def change_tracking(table: Table, verb: str, *, dry_run: bool) -> FeatureChange:
    """Enables row tracking, disables it, or takes the feature out of the protocol.

    Disabled, the feature and the protocol stay. With the feature goes `domainMetadata`, which came
    with it, unless clustering needs it.

    Args:
        table: the table.
        verb: `enable`, `disable` or `drop`.
        dry_run: only return what it would commit.

    Raises:
        QueryError: Delta refused it.
    """
    snapshot = table.snapshot()
    nothing = FeatureChange(str(table.name), verb, snapshot.version, applied=not dry_run)
    enabled, supported = is_tracked(snapshot.properties), is_supported(snapshot)
    files: list[dict[str, Any]] = []
    if verb == "enable":
        if enabled:
            return nothing
        files, backfills = _listed_again(table, snapshot, "BACKFILL")
        commits = [*["UPGRADE PROTOCOL"] * (not supported), *backfills, "SET TBLPROPERTIES"]
        clauses, warnings = [f"SET TBLPROPERTIES ('{ROW_TRACKING}' = 'true')"], []
        if not supported:
            warnings = [_NEWER_WRITERS]
        elif read_row_id_validity(table).numbered_from is not None:
            warnings = [_OTHER_IDS]
    elif verb == "disable":
        if not enabled:
            return nothing
        commits, warnings = ["SET TBLPROPERTIES"], [_NOT_KEPT, _STILL_ASKED]
        clauses = [f"SET TBLPROPERTIES ('{ROW_TRACKING}' = 'false')"]
    else:
        if not supported:
            return nothing
        files, backfills = _listed_again(table, snapshot, "UNBACKFILL")
        features = snapshot.writer_features
        alone = "clustering" not in features and "domainMetadata" in features
        clauses = [f"DROP FEATURE {name}" for name in (FEATURE, *["domainMetadata"] * alone)]
        commits = ["SET TBLPROPERTIES", *backfills, *["DROP FEATURE"] * len(clauses)]
        warnings = [_ALL_LOST]
    for clause in [] if dry_run else clauses:
        try:
            table.spark.sql(f"ALTER TABLE {table.sql_name} {clause}")
        except Exception as error:
            raise QueryError(spark_message(error)) from error
    return replace(
        nothing,
        commits=tuple(commits),
        files=len(files),
        rows=sum(add["records"] for add in files),
        size=sum(add["size"] for add in files),
        warnings=tuple(warnings),
    )


def _listed_again(
    table: Table, snapshot: Snapshot, verb: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """The files that get ids or lose them, and the commits which do that."""
    gains = verb == "BACKFILL"
    adds = live_files(table.storage, table.name.table_path, snapshot.version)
    files = [add for add in adds if (add.get("baseRowId") is None) == gains]
    most = int(table.spark.conf.get(_FILES_CONF, _FILES_A_COMMIT) or _FILES_A_COMMIT)
    return files, [f"ROW TRACKING {verb}"] * math.ceil(len(files) / most)


ID_NAMES = ("_row_id", "_row_commit_version")


def read_with_ids(
    table: Table, *, version: int | None = None, names: Sequence[str] = ID_NAMES
) -> DataFrame:
    """The rows of a version, each with its id and the version that inserted or updated it last.

    Args:
        table: the table.
        version: which; by default the newest.
        names: what the two columns are called, if the table has such columns itself.

    Raises:
        UsageError: the version's rows have no ids, or a column has one of the names.
        VersionError: that version can't be read.
    """
    if version is not None:
        check_version(table.storage, table.name, version, enforced=is_enforced(table.spark))
    snapshot = read_snapshot(table.storage, table.name.table_path, version) or table.snapshot()
    check_tracked(table, snapshot)
    taken = {name.lower() for name in snapshot.schema}
    if clash := [name for name in names if name.lower() in taken]:
        raise UsageError(
            f"The table {table.name} has a column {clash[0]} itself.",
            hint="give other names: names=('id_of_row', 'version_of_row').",
            column=clash[0],
        )
    reader = table.spark.read.format("delta")
    rows = (reader if version is None else reader.option("versionAsOf", version)).load(table.path)
    hidden = metadata_column(rows)
    return rows.withColumns(
        {
            names[0]: hidden.getField("row_id"),
            names[1]: hidden.getField("row_commit_version"),
        }
    )
