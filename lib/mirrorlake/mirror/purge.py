"""Takes rows out of a Delta table so that no file keeps them: no old version, no feed, no log.

Values never get into a statement that the log writes down: rows are deleted by a MERGE with a
view of them. The log is cut back to a checkpoint, since its statistics hold values of files that
are long gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import SparkSession

from mirrorlake.delta.actions import named_files
from mirrorlake.delta.commits import read_commit_info, versions
from mirrorlake.delta.log_files import cut_before_checkpoint
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import committing
from mirrorlake.mirror.apply import commit_with_retries
from mirrorlake.spark.session import new_session
from mirrorlake.spark.sql import delta_name, literal, quote, temporary_view
from mirrorlake.storage import Storage

_INTERVAL = "delta.checkpointInterval"
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


@dataclass(frozen=True)
class DeltaTraces:
    """What of one Delta table holds the rows looked for.

    Attributes:
        path: the table, relative to the lake's root.
        current: rows by file, of the files that the newest version has.
        history: the same of the other versions' files.
        feed: the same of the change feed's files.
        log: the files of its log that tell values of files which hold the rows, or are gone.
        versions: the versions that the log has, rising.
    """

    path: str
    current: dict[str, int]
    history: dict[str, int]
    feed: dict[str, int]
    log: tuple[str, ...]
    versions: tuple[int, ...]

    @property
    def found(self) -> bool:
        """Whether anything has to be done about this table."""
        return bool(self.current or self.history or self.feed or self.log)


def trace_delta(
    spark: SparkSession,
    storage: Storage,
    path: str,
    count: Callable[[list[str]], dict[str, int]],
) -> DeltaTraces | None:
    """Looks through all files of a Delta table; None if there is no table.

    Args:
        spark: the running session.
        storage: the lake's files.
        path: the table, relative to the lake's root.
        count: how many of the rows looked for some of its files have, by file.
    """
    if read_snapshot(storage, path, dropped=True) is None:
        return None
    log = f"{path}/_delta_log/"
    below = storage.files_below(path)
    data = [
        file
        for file in below
        if file.endswith(".parquet") and not file.startswith(log) and "/." not in file
    ]
    session = new_session(spark)
    frame = session.sql(f"SELECT * FROM {delta_name(storage.path(path))}")
    live = {unquote(uri).rpartition("/")[2] for uri in frame.inputFiles()}
    rows = count(data)
    # By name: under column mapping the feed's files lie in folders with random names.
    feed = {file: n for file, n in rows.items() if _name(file).startswith("cdc-")}
    others = {file: n for file, n in rows.items() if file not in feed}
    current = {file: n for file, n in others.items() if _name(file) in live}
    sound = {_name(file) for file in data if file not in rows}
    telling = [
        file
        for file in below
        if file.startswith(log)
        and any(_name(told) not in sound for told in named_files(storage, file))
    ]
    return DeltaTraces(
        path,
        current,
        {file: n for file, n in others.items() if file not in current},
        feed,
        tuple(telling),
        tuple(versions(storage, path)),
    )


def _name(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def erase_rows(
    spark: SparkSession, storage: Storage, traces: DeltaTraces, columns: list[str], condition: str
) -> None:
    """Deletes rows in one commit, then whatever file still has them, and the log up to then.

    Every version before is unreadable afterwards. Nothing else may write to the table meanwhile:
    VACUUM takes the files of a write that isn't committed yet for old ones.

    Args:
        spark: the running session.
        storage: the lake's files.
        traces: what was found of the table.
        columns: columns that tell the rows from all others.
        condition: SQL that is true of the rows.
    """
    session = new_session(spark)
    # On this session alone: VACUUM must not spare the newest past.
    session.conf.set(_RETENTION_CHECK, "false")
    target = delta_name(storage.path(traces.path))
    if traces.current:
        commit_with_retries(lambda: _delete(session, target, columns, condition))
    snapshot = read_snapshot(storage, traces.path, dropped=True)
    if snapshot and "deletionVectors" in snapshot.writer_features:
        # A deletion vector hides rows that its file still has.
        session.sql(f"REORG TABLE {target} APPLY (PURGE)").collect()
    # The log first: after a kill in between the files are found, and all of it is done again.
    _cut_log(session, storage, traces.path)
    session.sql(f"VACUUM {target} RETAIN 0 HOURS").collect()


def _delete(session: SparkSession, target: str, columns: list[str], condition: str) -> None:
    names = [quote(name) for name in columns]
    rows = session.sql(f"SELECT DISTINCT {', '.join(names)} FROM {target} WHERE {condition}")
    on = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
    with temporary_view(rows) as view:
        session.sql(f"MERGE INTO {target} t USING {view} s ON {on} WHEN MATCHED THEN DELETE")


def _cut_log(session: SparkSession, storage: Storage, path: str) -> None:
    """Lets the log begin with a checkpoint of now; the mirror's last note goes along."""
    target = delta_name(storage.path(path))
    snapshot = read_snapshot(storage, path, dropped=True)
    before = snapshot.properties.get(_INTERVAL) if snapshot else None
    with committing(session, _last_note(storage, path)):
        session.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(_INTERVAL)} = '1')")
    cut_before_checkpoint(storage, path)
    if before in (None, "1"):  # only a forgetting that was killed leaves a 1 behind
        session.sql(f"ALTER TABLE {target} UNSET TBLPROPERTIES ({literal(_INTERVAL)})")
    else:
        value = literal(before)
        session.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(_INTERVAL)} = {value})")


def _last_note(storage: Storage, path: str) -> str:
    """What the mirror's last commit says of itself, so that state and ledger can be rebuilt."""
    for version in reversed(versions(storage, path)):
        text = read_commit_info(storage, path, version).get("userMetadata") or ""
        if '"incarnation"' in text:
            return str(text)
    return ""
