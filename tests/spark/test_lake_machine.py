"""Operations in random order against the real engine, compared with a model after each step.

After each step, the rows and row ids of all new versions are read from their files. At the end of a
run, Spark reads the change feed, and some versions. Each run has a lake of its own, so that a
failed run can be repeated alone.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from helpers import views_model
from helpers.feed_model import Row, check_equal, check_fold, check_periods
from helpers.markers import MARKER, Marker
from helpers.model import Change, TableModel
from helpers.partition_tables import PAST, hashed
from helpers.tables import IDS, bag
from mirrorlake import Lake, Table
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.errors import FeedError, TableNotFoundError
from mirrorlake.mirror import apply
from mirrorlake.names import HIDDEN

COLUMNS = list(views_model.COLUMNS["t"])
TYPES = {"example": "integer", "id": "long", "g": "string", "x": "integer"}
WIDE = 2**40
FITS = {"integer": ("integer",), "long": ("integer", "long")}  # types that can be read as another
FIRST_NEW = 100  # smaller ids are those of changes other than inserts
CHANGES = st.lists(
    st.tuples(
        st.sampled_from([Marker.UPSERT, Marker.INSERT, Marker.UPDATE, Marker.DELETE]),
        st.integers(0, 9),
        st.sampled_from([None, "a", "b"]),
        st.none() | st.integers(-2, 5),
    ),
    min_size=1,
    max_size=5,
)
WAYS = st.sampled_from(["vectors", "plain", "merge"])
VIEWS = st.sampled_from(["rows", "sums", "distinct", "extremes", "groups", "self_join", "windows"])
LAYOUT, CHANGED, REPLACED = "layout", "changed", "replaced"


def step(**arguments: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """Return the decorator of a step of an existing table; often rows are published before it."""

    def decorate(method: Any) -> Any:
        def run(self: LakeMachine, changes: list[Any], way: str, **given: Any) -> None:
            if changes:
                self.publish(changes)
            if changes and way:
                self.mirror(way)
            method(self, **given)

        run.__name__ = method.__name__
        ways = st.sampled_from(["vectors", "plain", "merge", ""])  # "": not mirrored yet
        made = rule(changes=CHANGES | st.just([]), way=ways, **arguments)(run)
        return precondition(lambda machine: machine.exists)(made)

    return decorate


class LakeMachine(RuleBasedStateMachine):
    """A table of a lake and its followers.

    Attributes:
        model: the rows after the last step.
        pending: the published batches that are not mirrored.
        deleted: the keys that the last cycle deleted; it may have inserted them again.
        rows: the rows of each version.
        tracked: the rows of each version by key, each with its row id and its commit version.
        kinds: what each version did; of a restore, the restored version.
        x_types: the type of the column `x` in each version.
        followed: the last version that each archive and dimension contains.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.lake = Lake(folder)
        self.lake.operations.defaults(deletion_vectors=False)
        self.name, self.names = "t", count(2)
        self.ids, self.new_ids = list(range(6)), count(FIRST_NEW)
        self.exists, self.types = True, TYPES
        self.model = TableModel(("id",))
        self.pending: list[list[Change]] = []
        self.deleted: set[int] = set()
        self.rows: dict[int, Counter[Row]] = {}
        self.tracked: dict[int, dict[int, tuple[Row, int, int]]] = {}
        self.kinds: dict[int, str | int] = {}
        self.highest = -1  # of all row ids
        self.x_types: dict[int, str] = {-1: "integer"}
        self.followed: dict[str, int] = {}
        self.framed: int | None = None
        self.views: set[str] = set()
        self.series = 1  # of archives and dimensions: a changed type ends the feed of the first

    @property
    def table(self) -> Table:
        return self.lake.table(self.name)

    @property
    def folder(self) -> Path:
        return Path(self.lake.landing_zone) / self.name

    def bag(self, table: str, columns: list[str], version: int | None = None) -> Counter[Row]:
        return bag(self.lake, table, columns, version)

    def committed(self, kind: str | int) -> None:
        """Compare each new version with the model.

        A step may commit several versions; one of them changes the rows, usually the newest.
        """
        last, after = self.rows.get(len(self.rows) - 1, Counter()), self.model.bag(COLUMNS)
        newest = self.table.version
        for version in range(len(self.rows), newest + 1):
            found = list(self.bag(self.name, [*COLUMNS, *IDS], version).elements())
            rows = Counter(row[:-2] for row in found)
            if version == newest or rows != last:
                check_equal(f"version {version}", rows, after)
            self.rows[version] = last = rows
            self.kinds[version] = kind if version == newest else LAYOUT
            self.tracked[version] = {row[1]: (row[:-2], *row[-2:]) for row in found}
            self.check_ids(version)
            snapshot = read_snapshot(self.lake.storage, self.table.name.table_path, version)
            self.x_types[version] = snapshot.schema["x"]
        check_equal("the newest version", self.rows[newest], after)

    def check_ids(self, version: int) -> None:
        """Check that rows keep their ids, and that new rows have new ids."""
        kind, found = self.kinds[version], self.tracked[version]
        same = kind if isinstance(kind, int) else version - 1  # the version that it starts from
        before = {} if kind == REPLACED else self.tracked.get(same, {})
        if kind == CHANGED:
            before = {key: row for key, row in before.items() if key not in self.deleted}
        for key, (row, number, since) in found.items():
            at = f"row {row} of version {version} ({kind}): id {number}, since {since}"
            if key in before:
                old, old_number, old_since = before[key]
                kept = {old_since} if kind != CHANGED else {version, old_since}
                assert number == old_number, f"{at}, before {before[key]}"
                assert since in (kept if row == old else {version}), f"{at}, {before[key]}"
            else:
                assert number > self.highest, f"{at}, but {self.highest} was used"
                assert since == version, at
        numbers = {number for _, number, _ in found.values()}
        assert len(numbers) == len(found), f"row ids of version {version}: {found}"
        self.highest = max([self.highest, *numbers])

    def publish(self, changes: list[tuple[Any, ...]], *, widen: bool = False) -> None:
        batch: list[Change] = []
        for marker, number, g, x in changes:
            if marker is Marker.INSERT:  # of a key that was never there
                self.ids.append(next(self.new_ids))
                number = -1
            key = self.ids[number % len(self.ids)]
            batch.append((marker, {"example": key % 3, "id": key, "g": g, "x": x}))
        types, self.types = self.types, None
        publisher = self.lake.publisher(self.name, keys=["id"], types=types, widen=widen)
        publisher.write([{**row, MARKER: int(marker)} for marker, row in batch])
        self.pending.append(batch)

    def mirror(self, way: str = "plain", kind: str = CHANGED) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if way == "merge":  # as with a Delta that lacks the methods of the mirror's transaction
                patch.setattr(apply, "exchange_batch", lambda *_: False)
            vectors = True if way == "vectors" else None
            report = self.lake.mirror(deletion_vectors=vectors, widen=True)
        assert not report.failed
        changes = [change for batch in self.pending for change in batch]
        self.deleted = {row["id"] for marker, row in changes if marker is Marker.DELETE}
        self.model.apply_all(changes)
        self.pending = []
        self.committed(kind)

    @initialize(changes=CHANGES, way=WAYS)
    def begin(self, changes: list[Any], way: str) -> None:
        self.publish(changes)
        self.mirror(way)

    @step()
    def change(self) -> None:
        self.mirror()

    @step(x=st.sampled_from([WIDE, -WIDE]))
    def widen(self, x: int) -> None:
        self.publish([(Marker.UPSERT, 0, "a", x)], widen=True)
        self.mirror()

    @step()
    def compact(self) -> None:
        table = self.table
        if table.partitioning.policy is None:
            table.optimize.compact()
        else:
            table.partitioning.run()
        self.committed(LAYOUT)

    @step()
    def order(self) -> None:
        self.table.optimize.vorder()
        self.committed(LAYOUT)

    @step()
    def partition(self) -> None:
        partitioning = self.table.partitioning
        partitioning.set({"PartitionKeys": [hashed() | {"ColumnName": "g"}], **PAST})
        partitioning.run()
        self.committed(LAYOUT)

    @step()
    def vacuum(self) -> None:
        self.table.vacuum(retention_hours=0, feed_hours=24, allow_short=True, apply=True)
        self.committed(LAYOUT)

    @step(number=st.integers(0, 99))
    def restore(self, number: int) -> None:
        found = self.table.readable_range()
        version = found.earliest + number % (found.newest - found.earliest + 1)
        self.table.restore(version, apply=True)
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in self.rows[version].elements()]
        self.model = TableModel(("id",), {(row["id"],): [row] for row in rows})
        self.committed(version)

    @step()
    def frame(self) -> None:
        self.lake.frames.create("model", [self.name])
        self.framed = self.table.version

    @step()
    def rename(self) -> None:
        for view in self.views:
            self.lake.views.drop(view, apply=True)
        self.views, self.framed = set(), None  # they name the table
        self.name, old = f"t{next(self.names)}", self.folder
        old.rename(self.folder)
        self.mirror()

    @step()
    def drop(self) -> None:
        shutil.rmtree(self.folder)
        assert self.lake.mirror().dropped == (self.name,)
        with pytest.raises(TableNotFoundError):
            self.lake.table(self.name)
        self.pending, self.exists = [], False

    @precondition(lambda machine: not machine.exists)
    @rule()
    def undrop(self) -> None:
        self.lake.operations.undrop(self.name)
        self.exists = True
        self.mirror()

    @rule(changes=CHANGES, way=WAYS)
    def recreate(self, changes: list[Any], way: str) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # it is missing after a drop
        self.pending, self.model = [], TableModel(("id",))
        self.exists, self.types = True, TYPES
        self.publish(changes)
        self.mirror(way, REPLACED)

    @step(kind=VIEWS, how=st.sampled_from(["auto", "incremental"]))
    def view(self, kind: str, how: str) -> None:
        name, (_, query, expected) = f"view_{kind}", views_model.VIEWS[kind]
        if name in self.views:
            self.lake.views.refresh(name, how=how)
        else:
            self.lake.views.create(name, re.sub(r"\bt\b", self.name, query))
            self.views.add(name)
        columns = [n for n in self.lake.table(name).schema.names if not n.startswith(HIDDEN)]
        rows = list(self.model.bag(COLUMNS).elements())
        check_equal(name, self.bag(name, columns), expected(rows, []))

    @step(kind=st.sampled_from(["archive", "dim1", "dim2"]))
    def follow(self, kind: Any) -> None:
        """Bring an archive or a dimension up to date with the feed."""
        into = f"{kind}_{self.series}"
        try:
            if kind == "archive":
                self.table.archive(into)
            else:
                self.table.dimension(into, stored_as=int(kind[-1]))
        except FeedError:  # a changed type ended the feed: start another series
            assert self.table.changes.diagnose(self.followed[into]).blocking
            self.series += 1
            return
        self.followed[into] = len(self.rows) - 1
        if kind == "archive":
            changes = self.bag(into, ["_commit_version", "_change_type", *COLUMNS])
            check_fold(changes, self.rows_since(changes, 0))
        elif kind == "dim2":
            periods = self.bag(into, [*COLUMNS, "__START_AT", "__END_AT"])
            check_periods(periods, self.rows_since(periods, -2))
        else:
            check_equal(into, self.bag(into, COLUMNS), self.model.bag(COLUMNS))

    def rows_since(self, found: Counter[Row], place: int) -> dict[int, Counter[Row]]:
        """Return the rows of each version since the first one in a column; the newest at least."""
        first = min([len(self.rows) - 1, *(row[place] for row in found)])
        return {version: rows for version, rows in self.rows.items() if version >= first}

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:  # a step has failed
            return
        if not self.exists:
            self.undrop()
        self.check_by_spark()
        self.check_feed()
        if self.framed is not None:
            framed = self.lake.frames.read("model", self.name).select(*COLUMNS)
            found = Counter(tuple(row) for row in framed.collect())
            check_equal("the frame", found, self.rows[self.framed])

    def check_by_spark(self) -> None:
        """Compare the oldest readable version, one in the middle, and the newest."""
        table = self.table
        found = table.readable_range()
        versions = {found.earliest, (found.earliest + found.newest) // 2, found.newest}
        parts = [
            table.row_tracking.read(version=version)
            .withColumns({"x": F.col("x").cast("bigint"), "at": F.lit(version)})
            .select("at", *COLUMNS, *IDS)
            for version in versions
        ]
        rows = Counter(tuple(row) for row in reduce(DataFrame.unionAll, parts).collect())
        expected = Counter(
            (version, *row, *ids)
            for version in versions
            for row, *ids in self.tracked[version].values()
        )
        check_equal("Spark's rows", rows, expected)

    def check_feed(self) -> None:
        """Check that the feed leads to the rows of each version; only changed types end it."""
        changes = self.table.changes
        found = changes.diagnose()
        assert {finding.rule for finding in found.blocking} <= {"schema"}, found
        newest, x_types = self.x_types[len(self.rows) - 1], self.x_types
        fits = [v for v in self.rows if x_types[v] == newest and x_types[v - 1] in FITS[newest]]
        readable = {v for start, end in found.readable for v in range(start, end + 1)}
        assert readable.issuperset(fits), (found, self.x_types)
        for start, end in found.readable:
            rows = changes.read(start, end).select("_commit_version", "_change_type", *COLUMNS)
            expected = {version: self.rows[version] for version in range(start, end + 1)}
            feed = Counter(tuple(row) for row in rows.collect())
            check_fold(feed, expected, self.rows.get(start - 1))


def test_any_order_of_operations_ends_as_the_model_does(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    long, number = pytestconfig.getoption("--long"), count()
    run_state_machine_as_test(
        lambda: LakeMachine(tmp_path / str(next(number))),
        settings=settings(
            max_examples=300 if long else 4,
            stateful_step_count=8 if long else 5,
            deadline=None,
            derandomize=not long,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # a run takes 10 seconds, so shrinking would take hours
        ),
    )


def test_rows_of_a_wider_type_end_the_feed(tmp_path: Path) -> None:
    machine = LakeMachine(tmp_path)
    machine.begin(changes=[(Marker.UPSERT, 0, "a", 1)], way="plain")
    machine.widen(changes=[], way="", x=WIDE)
    machine.recreate(changes=[(Marker.UPSERT, 1, "b", 2)], way="plain")
    machine.teardown()
