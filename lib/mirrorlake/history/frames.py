"""Frames: pin the versions of a model's tables, so that its readers see exactly these versions.

For each table, a frame has a Delta log of its own that refers to the table's files (a shallow
clone), and a list of these files. Vacuum keeps the files. A frame can therefore be read even if the
table's log was cleaned up, or the table was deleted and created again.

A model loads the columns of each row group into memory (as segments). When it gets a new frame, it
keeps the segments of row groups that still exist, and loads the others. If only the deletion vector
of a file has changed, the file's segments stay. `compare_table` computes what the next frame would
load: it compares the files of a frame with those of the newest version.
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
from mirrorlake.history.versions import TRIES, newest_versions, versions_at_once
from mirrorlake.mirror.options import hide_columns
from mirrorlake.names import TableName, as_table, check_part, split_names
from mirrorlake.query.catalog import Catalog
from mirrorlake.results import Count, Result, TextTable, size_text
from mirrorlake.spark.sql import delta_name, query_errors, spark_message
from mirrorlake.storage.files import Storage, storage_errors

ACTIONS: Final = ("show", "create", "release")
DEFAULT_DAYS = 30.0
_MANY = 1_000  # commits; with more, reading the newest checkpoint is cheaper


class Frames:
    """The frames of a lake, as `lake.frames` returns them.

    Args:
        storage: the lake's storage.
        spark: a function that returns the Spark session. It is called only if an operation needs
            Spark.
    """

    def __init__(self, storage: Storage, spark: Callable[[], SparkSession]) -> None:
        self._storage = storage
        self._spark = spark

    def create(
        self,
        model: str,
        tables: str | Sequence[str | TableName],
        *,
        owner: str | None = None,
        expires_in: float | None = DEFAULT_DAYS,
        dry_run: bool = False,
    ) -> Frame:
        """Pin versions of some tables that were the newest ones at the same time.

        Readers of the model see the previous frame until the new one is complete.

        Args:
            model: the model's name; it must be valid as a folder name.
            tables: the tables of the frame: a list, or one text such as `"sales, stock"`. Upper
                and lower case are handled as in `Lake.find`.
            owner: the person responsible for the frame; by default, the current user.
            expires_in: the number of days after which vacuum may delete the frame's files; None:
                never.
            dry_run: only report which versions would be pinned. The result's state is then
                `planned`.

        Raises:
            UsageError: no tables are given, or `expires_in` is not positive.
            TableNotFoundError: one of the tables does not exist.
            FrameError: a table changed during each attempt, or files are missing.

        Example:
            >>> lake.frames.create("report", ["sales"])  # doctest: +SKIP
            frame 1 of report (complete): sales@v7
        """
        check_part(model)
        wanted = split_names(tables) if isinstance(tables, str) else tables
        if not wanted:
            raise UsageError("A frame needs at least one table.", hint="name the tables.")
        if expires_in is not None and expires_in <= 0:
            raise UsageError(
                f"A frame can't expire after {expires_in} days.",
                hint="give a number above 0, or None for a frame that does not expire.",
            )
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
        catalog = Catalog(self._storage)
        names = sorted({catalog.existing(table) for table in wanted}, key=str)
        newest_versions(self._storage, names)  # fails before anything is written
        if dry_run:
            return replace(frame, state=PLANNED, tables=self._newest(names))
        frame = self._pin(reserve_frame(self._storage, frame), names)
        try:
            measured = tuple(self._clone(frame, framed) for framed in frame.tables)
        except Exception as error:
            self._storage.delete(f"{frame.folder}.json")
            if isinstance(error, MirrorlakeError):
                raise
            raise FrameError(
                f"The model {model} can't be framed: {spark_message(error)}"
            ) from error
        frame = replace(frame, state=COMPLETE, tables=measured)
        save_frame(self._storage, frame)
        return frame

    def _pin(self, frame: Frame, tables: list[TableName]) -> Frame:
        """Choose versions, and make vacuum keep their files."""
        for _ in range(TRIES):
            stamps = self._newest(tables)
            frame = replace(frame, tables=stamps)
            save_frame(self._storage, frame)
            horizons = [read_horizon(self._storage, t.name, t.table_id) for t in stamps]
            if all(t.version >= low for t, low in zip(stamps, horizons, strict=True)):
                return frame
        self._storage.delete(f"{frame.folder}.json")
        raise FrameError(
            f"The model {frame.model} can't be framed: VACUUM removed the chosen versions {TRIES}"
            " times.",
            hint="try again when no VACUUM runs.",
        )

    def _newest(self, tables: list[TableName]) -> tuple[FramedTable, ...]:
        """Return versions of all tables that were the newest ones at the same time."""
        versions = versions_at_once(self._storage, tables)
        if versions is None:
            raise FrameError(
                f"The tables changed {TRIES} times while their versions were read.",
                hint="frame fewer tables, or try again when less is written.",
            )
        stamps = []
        for table, version in zip(tables, versions, strict=True):
            snapshot = read_snapshot(self._storage, table.table_path, version)
            committed = CommitLog(self._storage, table.table_path).timestamp(version)
            if snapshot is None or committed is None:
                raise TableNotFoundError(
                    f"The table {table} was dropped while its version was read.",
                    hint="frame the other tables.",
                )
            timestamp = committed.isoformat(timespec="milliseconds")
            stamps.append(FramedTable(str(table), version, timestamp, str(snapshot.metadata["id"])))
        return tuple(stamps)

    def _clone(self, frame: Frame, framed: FramedTable) -> FramedTable:
        """Clone the log, list the files, and check that each of them exists."""
        table = TableHandle(self._spark, self._storage, framed.name).for_one_operation()
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
                f"Version {framed.version} of {framed.name} can't be framed: {first} is missing.",
                file=str(first),
                hint="another tool deleted it; restore the table to a version that is complete.",
            )
        return replace(framed, **figures)

    def get(self, model: str) -> Frame:
        """Return the frame that a model's readers see.

        Args:
            model: the model's name.

        Raises:
            FrameError: the model has no frame, or its frame was released or has expired.
        """
        return live_frame(self._storage, model)

    def table_path(self, model: str, table: str | TableName, *, verify: bool = True) -> str:
        """Return the full path from which a framed table is read.

        Args:
            model: the model's name.
            table: one of the frame's tables.
            verify: first check whether all files exist.

        Raises:
            FrameError: the frame is not valid, does not contain the table, or files of it are
                missing.
        """
        place = framed_log(self._storage, self._spark, model, table, verify=verify)
        return self._storage.path(place)

    def read(self, model: str, table: str | TableName, *, verify: bool = True) -> DataFrame:
        """Return the rows of a table at the version that the frame pins.

        A view's hidden columns are left out.

        Args:
            model: the model's name.
            table: one of the frame's tables.
            verify: first check whether all files exist.

        Raises:
            FrameError: the frame is not valid, does not contain the table, or files of it are
                missing.

        Example:
            >>> lake.frames.read("report", "sales").count()  # doctest: +SKIP
            328521
        """
        place = framed_log(self._storage, self._spark, model, table, verify=verify)
        rows = self._spark().sql(f"SELECT * FROM {delta_name(self._storage.path(place))}")

        def properties() -> dict[str, str]:
            snapshot = read_snapshot(self._storage, place)
            return snapshot.properties if snapshot else {}

        return hide_columns(rows, properties)

    def show(
        self, model: str, *, delete: tuple[str | TableName, str] | None = None
    ) -> tuple[FrameDiff, ...]:
        """Compare a model's frame with the newest versions of its tables.

        Args:
            model: the model's name.
            delete: a table and a SQL predicate. The result then also includes the effect of a
                DELETE with this predicate, which is not executed.

        Returns:
            One difference per table, with the data that the next frame would load.

        Raises:
            FrameError: the model has no frame.

        Example:
            >>> lake.frames.show("report")  # doctest: +SKIP
            (sales: framed at 7, now 9; 80% of the row groups preserved,)
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
        """Release a model's frame. Readers then get an error until the model has a new frame.

        Vacuum may then delete files that only this frame needed.

        Args:
            model: the model's name.
            dry_run: only return the frame that would be released.

        Raises:
            FrameError: the model has no frame.
        """
        frame = newest_complete(read_frames(self._storage, model))
        if frame is None:
            frame = live_frame(self._storage, model)  # raises the error with the reason
        if dry_run:
            return frame
        frame = replace(frame, state=RELEASED)
        save_frame(self._storage, frame)
        return frame

    def sweep(self) -> list[Frame]:
        """Delete the logs and lists of frames that expired or were released a day or longer ago."""
        now = utc_now()
        _, dead = find_pins(self._storage, now)
        swept = []
        for frame in dead:
            ended = frame.expires if frame.is_expired(now) else frame.created
            newest = newest_complete(read_frames(self._storage, frame.model))
            is_last = newest is not None and newest.number == frame.number
            if is_last or now - datetime.fromisoformat(ended or frame.created) < ABANDONED:
                continue  # the last frame explains why the model has none
            self._storage.delete(f"{frame.folder}.json")
            self._storage.delete_folder(frame.folder)
            swept.append(frame)
        return swept

    def list(self) -> list[Frame]:
        """Return the frame of each model that has one, ordered by model."""
        found = [
            newest_complete(read_frames(self._storage, model)) for model in models(self._storage)
        ]
        return [frame for frame in found if frame is not None]

    def overview(self, model: str = "") -> FrameOverview:
        """Return the frames, and how each differs from the newest versions of its tables.

        Args:
            model: return only the frame of this model; empty: all frames.

        Example:
            >>> lake.frames.overview()  # doctest: +SKIP
            2 frames
        """
        known = self.list()
        frames = tuple(one for one in known if model in ("", one.model))
        moved, problems = [], []
        if known and not frames:
            others = ", ".join(one.model for one in known)
            problems.append((model, f"This model has no frame. Models with a frame: {others}."))
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
        tables: str | Sequence[str | TableName] = (),
        *,
        expires_in: float | None = None,
        dry_run: bool = False,
    ) -> FrameAction:
        """Run an action by its name; for the parameter of a notebook.

        Args:
            action: `show` (which changes nothing), `create` or `release`.
            model: the model's name; required by `create` and `release`.
            tables: the tables of a new frame, as for `create`.
            expires_in: days until a new frame expires; None or 0: never.
            dry_run: only report what the action would do.

        Raises:
            UsageError: the action is unknown, or the model or tables are missing.
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
            return FrameAction("No change was requested.")
        if not model:
            raise UsageError(f"The action {action} needs a model.", hint="set the parameter model.")
        with storage_errors(self._storage.root):
            if action == "release":
                frame = self.release(model, dry_run=dry_run)
                verb = "would be released" if dry_run else "was released: its files may be vacuumed"
                return FrameAction(f"{frame.title} {verb}", frame, not dry_run)
            frame = self.create(model, tables, expires_in=expires_in or None, dry_run=dry_run)
        at = ", ".join(f"{t.table} at version {t.version}" for t in frame.tables)
        verb = "would frame" if dry_run else "frames"
        return FrameAction(f"{model} {verb} {at}", frame, not dry_run)


def framed_log(
    storage: Storage,
    spark: Callable[[], SparkSession],
    model: str,
    table: str | TableName,
    *,
    verify: bool = True,
) -> str:
    """Return the path of a framed table's log, relative to the lake; see `Frames.table_path`."""
    frame = live_frame(storage, model)
    framed = frame.table(as_table(table))
    if framed is None:
        known = ", ".join(t.table for t in frame.tables)
        raise FrameError(
            f"The frame of {model} has no table {table}.", hint=f"it contains {known}."
        )
    frame = follow_move(storage, frame)
    if verify:
        files = read_lists(spark(), storage, [frame], framed.name)
        missing = missing_files(storage, files).first()
        if missing is not None:
            hint = "another tool deleted it; create the frame again."
            if read_snapshot(storage, framed.name.table_path) is None:
                hint = (
                    f"{framed.table} was dropped or renamed: restore it with undrop, or create"
                    " the frame again with other tables."
                )
            raise FrameError(
                f"The frame of {frame.model} is broken: {missing[0]}, a file of {framed.table}"
                f" at version {framed.version}, is missing.",
                file=str(missing[0]),
                hint=hint,
            )
    return frame.log_path(framed.name)


@dataclass(frozen=True)
class FrameAction(Result):
    """The result of an action on frames, or of its dry run.

    Attributes:
        text: the result as a sentence.
        frame: the frame, if the action concerns one.
        applied: whether something was changed.
    """

    text: str
    frame: Frame | None = None
    applied: bool = False

    def shown(self) -> TextTable:
        """Return the sentence."""
        return TextTable(("result",), ((self.text,),))

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class FrameOverview(Result):
    """Frames, and how each differs from the newest versions of its tables.

    Attributes:
        frames: the frames.
        moved: for each table of a frame, the model and the difference.
        problems: for each frame that is missing or no longer valid, the model and the reason.
    """

    frames: tuple[Frame, ...]
    moved: tuple[tuple[str, FrameDiff], ...]
    problems: tuple[tuple[str, str], ...] = ()

    def shown(self) -> TextTable:
        """Return one row for each table of each frame, or a note if there are no frames."""
        rows: tuple[tuple[Any, ...], ...] = tuple(
            (
                model,
                diff.table,
                diff.framed,
                "deleted" if diff.newest is None else diff.newest,
                diff.files_added,
                diff.files_removed,
                f"{diff.preserved:.0%}",
                "recreated" if diff.recreated else "",
            )
            for model, diff in self.moved
        )
        rows += tuple((model, "", "", "", "", "", "", why) for model, why in self.problems)
        if not rows:
            return TextTable(("note",), (("No frame was found. The action create creates one.",),))
        columns = (
            "model",
            "table",
            "framed",
            "now",
            "files added",
            "files removed",
            "preserved",
            "note",
        )
        return TextTable(columns, rows)

    def __repr__(self) -> str:
        return "1 frame" if len(self.frames) == 1 else f"{len(self.frames)} frames"


@dataclass(frozen=True)
class FrameDiff(Result):
    """The difference between the version of a table in a frame and its newest version.

    Attributes:
        table: the table's name.
        framed, newest: the version in the frame and the newest version. `newest` is None if the
            table does not exist any more.
        files_added, files_removed, files_preserved: the numbers of data files that only the newest
            version has, only the framed one has, or both have.
        row_groups_added, row_groups_removed, row_groups_preserved: the same for row groups.
            `row_groups_added` is None for a forecast, because the new files are not written yet.
        rows_added: the number of rows in the added files.
        rows_removed: the number of rows in the removed files, plus rows that newer deletion vectors
            mark as deleted.
        bytes_added, bytes_removed: the sizes of the added and the removed files.
        vectors_changed: the number of preserved files that have another deletion vector now.
        recreated: whether the table was deleted and created again.
        forecast: the predicate of the DELETE whose effect is included, or None.
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
        """The share of the frame's row groups that the next frame does not need to load, 0 to 1."""
        framed = self.row_groups_removed + self.row_groups_preserved
        return self.row_groups_preserved / framed if framed else 1.0

    def shown(self) -> TextTable:
        """Return what was added, removed and preserved: files, row groups, rows and size."""
        rows: tuple[tuple[Any, ...], ...] = (
            ("files", self.files_added, self.files_removed, self.files_preserved),
            (
                "row groups",
                "unknown" if self.row_groups_added is None else self.row_groups_added,
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
            return f"{self.table}: framed at {self.framed}, no longer exists"
        moved = f"{self.table}: framed at {self.framed}, now {self.newest}"
        return f"{moved}, recreated" if self.recreated else moved

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
    """Compare the version of a table in a frame with the newest one, or with it after a DELETE.

    Args:
        spark: a function that returns the Spark session. It is called only if the table has
            changed.
        storage: the lake's storage.
        frame: the frame.
        framed: the table in the frame.
        delete: a SQL predicate; the effect of this DELETE is computed, but nothing is deleted.

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
    if delete is None and not recreated and _has_commits_since(table, framed.version):
        before, now = _changed_since(table, framed.version, before)
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


def _has_commits_since(table: TableHandle, framed: int) -> bool:
    """Return whether the commits since the frame can be read, and reading them is cheaper."""
    # Old commits are removed first, so if the first commit exists, all of them do.
    log = CommitLog(table.storage, table.name.table_path)
    return 0 < table.snapshot().version - framed <= _MANY and log.has(framed + 1)


def _changed_since(
    table: TableHandle, framed: int, before: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """Return the files that changed since the frame: those of the frame, and the newest ones."""
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
    is_removed = F.col("there").isNull()
    is_masked = ~is_removed & ~F.col("vector").eqNullSafe(F.col("vector_now"))

    # A file may lack statistics, but each deletion vector has the number of its rows.
    taken = total(F.when(is_masked, F.col("masked_now") - F.col("masked")))
    return both.agg(
        F.count_if(is_removed).alias("files_removed"),
        total(F.when(is_removed, F.col("row_groups"))).alias("row_groups_removed"),
        (total(F.when(is_removed, F.col("rows"))) + taken).alias("rows_removed"),
        total(F.when(is_removed, F.col("size"))).alias("bytes_removed"),
        F.count_if(is_masked).alias("vectors_changed"),
    )


def _after_delete(table: TableHandle, now: DataFrame, predicate: str) -> DataFrame:
    """Return the files that a DELETE would remove, rewrite, or give a deletion vector."""
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
