"""Frames: the versions of a model's tables, pinned together, read exactly, and kept by vacuum.

A frame is a log of its own over each table's files (a shallow clone) and a list of these files. So
it outlives the clean-up of the table's log and the table's being made anew.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mirrorlake.delta.commits import CommitLog
from mirrorlake.delta.files import files_of, hadoop_path, total
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.delta.table import TableHandle
from mirrorlake.errors import FrameError, MirrorlakeError, TableNotFoundError, UsageError
from mirrorlake.history.frame_diff import FrameDiff, compare_table
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
from mirrorlake.spark.sql import delta_name, spark_message
from mirrorlake.storage.files import Storage

DEFAULT_DAYS = 30.0


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
