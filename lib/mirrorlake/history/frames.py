"""Frames: versions of a model's tables that are pinned together, read exactly and kept by vacuum.

A frame has its own Delta log over each table's files (a shallow clone) and a list of these files.
It therefore survives the clean-up of the table's log, and the table's recreation.

`compare_table` computes what the next frame would load: the files of a frame against the table as
it is now. A model that is framed again keeps the column segments of row groups that still exist,
and loads the others. A file whose deletion vector changed keeps its segments.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.files import changed_files, files_of, hadoop_path, matching_files, total
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FrameError, MirrorlakeError, TableNotFoundError, UsageError
from mirrorlake.history.frame_records import (
    ABANDONED,
    COMPLETE,
    PINNED,
    PLANNED,
    RELEASED,
    Frame,
    FramedTable,
    find_pins,
    follow_move,
    live_frame,
    measure_files,
    missing_files,
    models,
    newest_complete,
    read_frames,
    read_horizon,
    read_lists,
    reserve_frame,
    save_frame,
    utc_now,
    write_list,
)
from mirrorlake.history.versions import ENFORCED, TRIES, newest_versions, versions_at_once
from mirrorlake.names import TableName, as_table, check_part
from mirrorlake.results import Count, Result, TextTable, size_text
from mirrorlake.spark.sql import delta_name, query_errors, spark_message
from mirrorlake.storage.files import Storage, storage_errors

ACTIONS: Final = ("show", "create", "release")
DEFAULT_DAYS = 30.0
_MANY = 1_000  # commits; beyond these the newest checkpoint is the shorter way


class Frames:
    """The frames of one lake.

    Args:
        storage: the lake's files.
        spark: called when, and only when, a session is needed.
    """

    def __init__(self, storage: Storage, spark: Callable[[], SparkSession]) -> None:
        self._storage = storage
        self._spark = spark

    def create(
        self,
        model: str,
        tables: Sequence[str | TableName],
        *,
        owner: str | None = None,
        expires_in: float | None = DEFAULT_DAYS,
        dry_run: bool = False,
    ) -> Frame:
        """Frames the newest versions of some tables, all as they were at one moment.

        The model's frame before holds until this one is complete.

        Args:
            model: any name that can be a folder's.
            tables: which tables.
            owner: who is to be asked about it; by default the user's name.
            expires_in: days until it no longer holds files; None for never.
            dry_run: only say which versions would be framed; the result's state is `planned`.

        Raises:
            UsageError: no tables, or a time that is over already.
            TableNotFoundError: one of the tables is not there.
            FrameError: the tables don't stand still, or files are gone.
        """
        check_part(model)
        if not tables:
            raise UsageError("A frame has at least one table.", hint="name tables.")
        if expires_in is not None and expires_in <= 0:
            raise UsageError(f"A frame can't expire after {expires_in} days.")
        now = utc_now()
        frame = Frame(
            model=model,
            number=0,
            state=PINNED,
            owner=owner or getpass.getuser(),
            created=now.isoformat(timespec="milliseconds"),
            expires=None
            if expires_in is None
            else (now + timedelta(days=expires_in)).isoformat(timespec="milliseconds"),
            place=hadoop_path(self._storage, ""),
        )
        names = sorted({as_table(table) for table in tables}, key=str)
        newest_versions(self._storage, names)  # before anything is written
        if dry_run:
            return replace(frame, state=PLANNED, tables=self._stamp(names))
        frame = self._pin(reserve_frame(self._storage, frame), names)
        try:
            measured = tuple(self._take(frame, framed) for framed in frame.tables)
        except Exception as error:
            self._storage.delete(f"{frame.folder}.json")
            if isinstance(error, MirrorlakeError):
                raise
            raise FrameError(f"{model} can't be framed: {spark_message(error)}") from error
        frame = replace(frame, state=COMPLETE, tables=measured)
        save_frame(self._storage, frame)
        return frame

    def _pin(self, frame: Frame, tables: list[TableName]) -> Frame:
        """Chooses versions and makes vacuum spare them; only then they are sure to be there."""
        for _ in range(TRIES):
            stamps = self._stamp(tables)
            frame = replace(frame, tables=stamps)
            save_frame(self._storage, frame)
            horizons = [read_horizon(self._storage, t.name, t.table_id) for t in stamps]
            if all(t.version >= low for t, low in zip(stamps, horizons, strict=True)):
                return frame
        self._storage.delete(f"{frame.folder}.json")
        raise FrameError(
            f"Vacuum overtook the frame of {frame.model} {TRIES} times.", hint="try again."
        )

    def _stamp(self, tables: list[TableName]) -> tuple[FramedTable, ...]:
        """The newest versions: read twice, so that there was a moment when all of them held."""
        versions = versions_at_once(self._storage, tables)
        if versions is None:
            raise FrameError(
                f"The tables changed {TRIES} times while they were looked at.",
                hint="frame fewer tables, or when less is written.",
            )
        stamps = []
        for table, version in zip(tables, versions, strict=True):
            snapshot = read_snapshot(self._storage, table.table_path, version)
            made = CommitLog(self._storage, table.table_path).timestamp(version)
            if snapshot is None or made is None:
                raise TableNotFoundError(f"The table {table} is being removed.")
            moment = made.isoformat(timespec="milliseconds")
            stamps.append(FramedTable(str(table), version, moment, str(snapshot.metadata["id"])))
        return tuple(stamps)

    def _take(self, frame: Frame, framed: FramedTable) -> FramedTable:
        """Copies the log, lists the files, and sees that each of them is there."""
        table = TableHandle(self._spark, self._storage, framed.name).for_one_operation()
        table.spark.conf.set(ENFORCED, "false")  # the newest version may be older than that
        copy = delta_name(self._storage.path(frame.log_path(framed.name)))
        table.spark.sql(
            f"CREATE OR REPLACE TABLE {copy} SHALLOW CLONE {table.sql_name}"
            f" VERSION AS OF {framed.version}"
        )
        figures = (
            write_list(frame, table, files_of(table, framed.version))
            .agg(
                F.count("*").alias("files"),
                total("row_groups").alias("row_groups"),
                total("rows").alias("rows"),
                total("size").alias("bytes"),
                F.min_by("path", "found").alias("first"),
                F.coalesce(F.min("found"), F.lit(True)).alias("found"),
            )
            .collect()[0]
            .asDict()
        )
        first, found = figures.pop("first"), figures.pop("found")
        if not found:
            raise FrameError(
                f"Version {framed.version} of {framed.name} can't be framed: {first} is gone.",
                file=str(first),
                hint="another tool vacuumed it; restore the table to a version that is whole.",
            )
        return replace(framed, **figures)

    def get(self, model: str) -> Frame:
        """The frame that a model's readers see.

        Raises:
            FrameError: there is none, or it no longer holds.
        """
        return live_frame(self._storage, model)

    def table_path(self, model: str, table: str | TableName, *, verify: bool = True) -> str:
        """Where a framed table is read from, a full path.

        Raises:
            FrameError: the frame does not hold, lacks the table, or files of it are gone.
        """
        frame = self.get(model)
        framed = frame.table(as_table(table))
        if framed is None:
            known = ", ".join(t.table for t in frame.tables)
            raise FrameError(f"The frame of {model} has no table {table}.", hint=f"it has {known}.")
        frame = follow_move(self._storage, frame)
        if verify:
            files = read_lists(self._spark(), self._storage, [frame], framed.name)
            gone = missing_files(self._storage, files).first()
            if gone is not None:
                raise FrameError(
                    f"The frame of {frame.model} is broken: {gone[0]}, which {framed.table}"
                    f" needs at version {framed.version}, is gone.",
                    file=str(gone[0]),
                    hint="another tool deleted it; create the frame again.",
                )
        return self._storage.path(frame.log_path(framed.name))

    def read(self, model: str, table: str | TableName, *, verify: bool = True) -> DataFrame:
        """The rows that a model's readers see: those of the frame, whatever came later.

        Args:
            model: whose frame.
            table: one of its tables.
            verify: whether to see first that all files are there.

        Raises:
            FrameError: the frame does not hold, lacks the table, or files of it are gone.
        """
        path = self.table_path(model, table, verify=verify)
        return self._spark().sql(f"SELECT * FROM {delta_name(path)}")

    def show(
        self, model: str, *, delete: tuple[str | TableName, str] | None = None
    ) -> tuple[FrameDiff, ...]:
        """How far the lake has moved on, and what the next frame would load anew.

        Args:
            model: whose frame.
            delete: a table and a predicate: what it would be after such a DELETE, not yet done.

        Returns:
            One line a table.

        Raises:
            FrameError: there is no such frame.
        """
        frame = self.get(model)
        touched = frame.table(as_table(delete[0])) if delete else None
        if delete is not None and touched is None:
            raise FrameError(f"The frame of {model} has no table {delete[0]}.")
        return tuple(
            compare_table(
                self._spark,
                self._storage,
                frame,
                framed,
                delete=delete[1] if delete and framed == touched else None,
            )
            for framed in frame.tables
        )

    def release(self, model: str, *, dry_run: bool = False) -> Frame:
        """Lets the model's files go; its readers get an error until it is framed again.

        Args:
            model: whose frame.
            dry_run: only say which frame would be released; it is returned as it is.

        Raises:
            FrameError: there is no such frame.
        """
        frame = newest_complete(read_frames(self._storage, model))
        if frame is None:
            frame = live_frame(self._storage, model)  # says what is wrong
        if dry_run:
            return frame
        frame = replace(frame, state=RELEASED)
        save_frame(self._storage, frame)
        return frame

    def sweep(self) -> list[Frame]:
        """Removes the logs and lists of frames that hold nothing since a day or more."""
        now = utc_now()
        _, dead = find_pins(self._storage, now)
        swept = []
        for frame in dead:
            ended = frame.expires if frame.is_expired(now) else frame.created
            newest = newest_complete(read_frames(self._storage, frame.model))
            is_last = newest is not None and newest.number == frame.number
            if is_last or now - datetime.fromisoformat(ended or frame.created) < ABANDONED:
                continue  # the last one tells why the model has no frame
            self._storage.delete(f"{frame.folder}.json")
            self._storage.delete_folder(frame.folder)
            swept.append(frame)
        return swept

    def list(self) -> list[Frame]:
        """The frame of each model that has one, ordered by model."""
        found = [
            newest_complete(read_frames(self._storage, model)) for model in models(self._storage)
        ]
        return [frame for frame in found if frame is not None]

    def overview(self, model: str = "") -> FrameOverview:
        """Return the frames, and how far the lake has moved on from each.

        Args:
            model: only this model's frame; empty for all.

        Example:
            >>> lake.frames.overview()  # doctest: +SKIP
            2 frames
        """
        frames = tuple(one for one in self.list() if model in ("", one.model))
        moved, problems = [], []
        for frame in frames:
            try:
                moved += [(frame.model, diff) for diff in self.show(frame.model)]
            except FrameError as error:
                problems.append((frame.model, error.message))
        return FrameOverview(frames, tuple(moved), tuple(problems))

    def act(
        self,
        action: str,
        model: str,
        tables: Sequence[str | TableName] = (),
        *,
        expires_in: float | None = None,
        dry_run: bool = False,
    ) -> FrameAction:
        """Run an action by its name, as a notebook's parameter has it.

        Args:
            action: `show` (which does nothing), `create` or `release`.
            model: whose frame; needed by `create` and `release`.
            tables: the tables of a new frame.
            expires_in: days until a new frame expires; None for never.
            dry_run: only report what the action would do.

        Raises:
            UsageError: there is no such action, or the model or tables are missing.
            FrameError: as for `create` and `release`.

        Example:
            >>> lake.frames.act("release", "report", dry_run=True)  # doctest: +SKIP
            frame 1 of report would be released
        """
        if action not in ACTIONS:
            raise UsageError(
                f"There is no action {action!r}.", hint=f"choose one of {', '.join(ACTIONS)}."
            )
        if action == "show":
            return FrameAction("Nothing was asked for but to show the frames.")
        if not model:
            raise UsageError(f"{action} needs a model.", hint="set the parameter model.")
        with storage_errors(self._storage.root):
            if action == "release":
                frame = self.release(model, dry_run=dry_run)
                verb = "would be released" if dry_run else "was released: its files may be vacuumed"
                return FrameAction(f"{frame.title} {verb}", frame, not dry_run)
            frame = self.create(model, tables, expires_in=expires_in, dry_run=dry_run)
        at = ", ".join(f"{t.table} at version {t.version}" for t in frame.tables)
        verb = "would frame" if dry_run else "frames"
        return FrameAction(f"{model} {verb} {at}", frame, not dry_run)


@dataclass(frozen=True)
class FrameAction(Result):
    """What an action did, or would do.

    Attributes:
        text: that, as a sentence.
        frame: the frame concerned, if there is one.
        applied: whether something was changed.
    """

    text: str
    frame: Frame | None = None
    applied: bool = False

    def shown(self) -> TextTable:
        """The sentence."""
        return TextTable(("result",), ((self.text,),))

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class FrameOverview(Result):
    """Frames, and how far the lake has moved on from each.

    Attributes:
        frames: the frames.
        moved: a line for each of their tables, with the model.
        problems: frames that no longer hold, with the reason.
    """

    frames: tuple[Frame, ...]
    moved: tuple[tuple[str, FrameDiff], ...]
    problems: tuple[tuple[str, str], ...] = ()

    def shown(self) -> TextTable:
        """One row for each table of each frame; if there is none, that."""
        rows: tuple[tuple[Any, ...], ...] = tuple(
            (
                model,
                diff.table,
                diff.framed,
                "gone" if diff.newest is None else diff.newest,
                diff.files_added,
                diff.files_removed,
                f"{diff.preserved:.0%}",
                "made anew" if diff.recreated else "",
            )
            for model, diff in self.moved
        )
        rows += tuple((model, "", "", "", "", "", "", why) for model, why in self.problems)
        if not rows:
            return TextTable(("note",), (("No model has a frame: the action create makes one.",),))
        columns = ("model", "table", "framed", "now", "files new", "files gone", "kept", "note")
        return TextTable(columns, rows)

    def __repr__(self) -> str:
        return "1 frame" if len(self.frames) == 1 else f"{len(self.frames)} frames"


@dataclass(frozen=True)
class FrameDiff(Result):
    """One table of a frame, and how far the lake has moved on from it.

    Attributes:
        framed, newest: version numbers; `newest` is None if the table is gone.
        files_added, files_removed, files_preserved: data files, by their names.
        row_groups_added, row_groups_removed, row_groups_preserved: likewise; added ones are None
            where the files are not written yet.
        rows_added: rows of the added files.
        rows_removed: rows of the removed files, and rows that deletion vectors took since.
        bytes_added, bytes_removed: sizes of these files.
        vectors_changed: preserved files with another deletion vector than when framed.
        recreated: whether this is another table of the same name.
        forecast: the predicate of a DELETE that is assumed, or None.
    """

    table: str
    framed: int
    newest: int | None
    files_added: int = 0
    files_removed: int = 0
    files_preserved: int = 0
    row_groups_added: int | None = 0
    row_groups_removed: int = 0
    row_groups_preserved: int = 0
    rows_added: int = 0
    rows_removed: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    vectors_changed: int = 0
    recreated: bool = False
    forecast: str | None = None

    @property
    def preserved(self) -> float:
        """The share of the framed row groups that the next frame need not load, 0 to 1."""
        framed = self.row_groups_removed + self.row_groups_preserved
        return self.row_groups_preserved / framed if framed else 1.0

    def shown(self) -> TextTable:
        """What was added, removed and preserved, by what is counted."""
        rows: tuple[tuple[Any, ...], ...] = (
            ("files", self.files_added, self.files_removed, self.files_preserved),
            (
                "row groups",
                "not known" if self.row_groups_added is None else self.row_groups_added,
                self.row_groups_removed,
                self.row_groups_preserved,
            ),
            ("rows", Count(self.rows_added), Count(self.rows_removed), ""),
            ("size", size_text(self.bytes_added), size_text(self.bytes_removed), ""),
            ("deletion vectors changed", "", "", self.vectors_changed),
        )
        return TextTable((str(self), "added", "removed", "preserved"), rows)

    def __str__(self) -> str:
        if self.newest is None:
            return f"{self.table}: framed at {self.framed}, and gone since"
        moved = f"{self.table}: framed at {self.framed}, now {self.newest}"
        return f"{moved}, made anew" if self.recreated else moved

    def __repr__(self) -> str:
        return f"{self}; {self.preserved:.0%} of the row groups preserved"


@query_errors()
def compare_table(
    spark: Callable[[], SparkSession],
    storage: Storage,
    frame: Frame,
    framed: FramedTable,
    *,
    delete: str | None = None,
) -> FrameDiff:
    """Compares one framed table with what it is now, or would be after a DELETE.

    Args:
        spark: called if anything has changed.
        storage: the lake's files.
        frame: the frame.
        framed: the table in it.
        delete: a predicate; only what it would do is worked out, nothing is deleted.

    Raises:
        QueryError: Spark refused the predicate.
    """
    snapshot = read_snapshot(storage, framed.name.table_path)
    unchanged = FrameDiff(
        framed.table,
        framed.version,
        None if snapshot is None else snapshot.version,
        files_preserved=framed.files,
        row_groups_preserved=framed.row_groups,
    )
    if snapshot is None:
        return unchanged
    recreated = snapshot.metadata["id"] != framed.table_id
    if delete is None and not recreated and snapshot.version == framed.version:
        return unchanged
    table = TableHandle(spark, storage, framed.name, snapshot)
    before = read_lists(table.spark, storage, [frame], framed.name)
    if delete is None and not recreated and _holds_since(table, framed.version):
        before, now = _touched(table, framed.version, before)
    else:
        now = files_of(table, snapshot.version)
    if delete is not None:
        now = _after_delete(table, now, delete)
    added = _added(table, before, now, written=delete is None)
    figures = added.crossJoin(_removed(before, now)).collect()[0].asDict()
    return replace(
        unchanged,
        recreated=recreated,
        forecast=delete,
        files_preserved=framed.files - figures["files_removed"],
        row_groups_preserved=framed.row_groups - figures["row_groups_removed"],
        **figures,
    )


def _holds_since(table: TableHandle, framed: int) -> bool:
    """Whether the log still has every commit since the frame, and these are the shorter way."""
    # Commits are cut off at the front: with the first all of them are there.
    log = CommitLog(table.storage, table.name.table_path)
    return 0 < table.snapshot().version - framed <= _MANY and log.has(framed + 1)


def _touched(table: TableHandle, framed: int, before: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The files that commits since the frame name: as they were framed, and as they are now."""
    changed = changed_files(table, framed + 1, table.snapshot().version)
    named = F.broadcast(changed.select("path").distinct())
    return before.join(named, "path", "left_semi"), changed.where("live").drop("live", "removed")


def _added(table: TableHandle, before: DataFrame, now: DataFrame, *, written: bool) -> DataFrame:
    added = now.join(before.select("path"), "path", "left_anti")
    if written:
        added = measure_files(table.storage, added)
    groups = total("row_groups") if written else F.lit(None).cast("bigint")
    return added.agg(
        F.count("*").alias("files_added"),
        groups.alias("row_groups_added"),
        total("rows").alias("rows_added"),
        total("size").alias("bytes_added"),
    )


def _removed(before: DataFrame, now: DataFrame) -> DataFrame:
    today = now.select(
        "path",
        F.col("vector").alias("vector_now"),
        F.col("masked").alias("masked_now"),
        F.lit(1).alias("there"),
    )
    both = before.join(today, "path", "left")
    gone = F.col("there").isNull()
    moved = ~gone & ~F.col("vector").eqNullSafe(F.col("vector_now"))

    # Not every file has statistics, but each deletion vector says how many rows it takes.
    taken = total(F.when(moved, F.col("masked_now") - F.col("masked")))
    return both.agg(
        F.count_if(gone).alias("files_removed"),
        total(F.when(gone, F.col("row_groups"))).alias("row_groups_removed"),
        (total(F.when(gone, F.col("rows"))) + taken).alias("rows_removed"),
        total(F.when(gone, F.col("size"))).alias("bytes_removed"),
        F.count_if(moved).alias("vectors_changed"),
    )


def _after_delete(table: TableHandle, now: DataFrame, predicate: str) -> DataFrame:
    """The files as a DELETE would leave them: gone, rewritten under other names, or masked."""
    hits = matching_files(table, predicate)
    both = now.join(hits, "path", "left").withColumn("hits", F.coalesce("hits", F.lit(0)))
    left = both.where("rows IS NULL OR hits < rows")
    touched = F.col("hits") > 0
    if table.snapshot().properties.get("delta.enableDeletionVectors", "false") == "true":
        changed = left.withColumn("vector", F.when(touched, "new").otherwise(F.col("vector")))
    else:
        renamed = F.when(touched, F.concat("path", F.lit(" rewritten"))).otherwise(F.col("path"))
        changed = left.withColumn("path", renamed)
    fewer = {"rows": F.col("rows") - F.col("hits"), "masked": F.col("masked") + F.col("hits")}
    return changed.withColumns(fewer).drop("hits")
