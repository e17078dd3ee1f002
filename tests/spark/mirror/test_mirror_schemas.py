"""Schemas and folders compared with their reference: random publishers, many tables in one lake.

A commit takes about a second, so each table is one example, and all share the cycles. Names are
`t03`, `t03-2` for its renamed folder, and `t03-3 copy` for a copy.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helpers.markers import MARKER, Marker
from helpers.model import FolderModel, PublishedFile, Row
from helpers.tables import bag
from mirrorlake import Lake, MirrorOptions
from mirrorlake.mirror import status
from mirrorlake.mirror.options import Step
from mirrorlake.names import TableName, file_name

TABLES, CYCLES = 8, 3
ARROW = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
DELTA = {"int": "integer", "long": "long", "string": "string"}
NAMES = ("a", "A", "b c", "ö")
VALUES: dict[str, Callable[[int], Any]] = {
    "int": lambda n: n,
    "long": lambda n: 2**40 + n,
    "string": lambda n: f"it's {n}",
}


@dataclass
class Seen:
    """The rows of a table at a version, for later time travel."""

    version: int
    columns: list[str]
    rows: Counter[tuple[Any, ...]]


@dataclass
class Publisher:
    """A publisher of one table's folder and its copies, with a model of each folder."""

    zone: Path
    name: str
    chance: random.Random
    folders: dict[str, FolderModel] = field(default_factory=dict)
    past: dict[str, list[Seen]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    homes: dict[int | None, str] = field(default_factory=dict)
    names: int = 1
    lives: int = 0

    def fresh_name(self) -> str:
        self.names += 1
        return f"{self.name}-{self.names}"

    def one(self) -> str | None:
        return self.chance.choice(sorted(self.folders)) if self.folders else None

    def make(self, name: str) -> None:
        (self.zone / name).mkdir()
        (self.zone / name / "_metadata.json").write_text(json.dumps({"keyColumns": ["id"]}))
        self.folders[name] = FolderModel(("id",))

    def put(self, name: str, number: int, file: PublishedFile) -> None:
        fields = [pa.field("id", pa.int32())]
        fields += [
            pa.field(column, ARROW[kind]) for column, kind in file.columns.items() if column != "id"
        ]
        self.chance.shuffle(fields)
        fields.insert(self.chance.choice([0, len(fields)]), pa.field(MARKER, pa.int32()))
        rows = [{**row, MARKER: int(marker)} for marker, row in file.changes]
        pq.write_table(
            pa.Table.from_pylist(rows, schema=pa.schema(fields)),
            self.zone / name / file_name(number),
        )
        ordered = {f.name: file.columns[f.name] for f in fields if f.name != MARKER}
        self.folders[name].files[number] = PublishedFile(ordered, file.changes)

    def some_file(self, name: str, kinds: tuple[str, ...]) -> PublishedFile:
        chosen = {}
        for column in self.chance.sample(NAMES, self.chance.randrange(4)):
            if column.lower() not in {name.lower() for name in chosen}:
                known = self.folders[name].columns.get(column.lower())
                usual = known if known and self.chance.random() < 0.7 else None
                chosen[column] = usual or self.chance.choice(kinds)
        changes: list[tuple[Marker, Row]] = []
        only = self.chance.choice([list(Marker), [Marker.INSERT]])
        for _ in range(self.chance.randrange(5)):
            row: Row = {"id": self.chance.randrange(4)}
            for column, kind in chosen.items():
                n = self.chance.randrange(-1, 4)
                row[column] = None if n < 0 else VALUES[kind](n)
            changes.append((self.chance.choice(only), row))
        return PublishedFile({"id": "int", **chosen}, changes)

    # The actions of a publisher between two cycles.

    def publish(self) -> None:
        name = self.one()
        if name is None:
            self.make(self.name)
            name = self.name
        model = self.folders[name]
        number = max([model.last, *model.files]) + 1
        self.put(name, number, self.some_file(name, ("int", "int", "long", "string")))

    def repair(self) -> None:
        for name, model in self.folders.items():
            if model.error is not None:
                number, _ = model.error
                sound = self.some_file(name, ("int",))
                sound.columns = {
                    c: model.columns.get(c.lower(), kind) for c, kind in sound.columns.items()
                }
                sound.changes = [(Marker.UPSERT, {"id": 3})]
                self.put(name, number, sound)

    def gap(self) -> None:
        name = self.one()
        if name is not None:
            model = self.folders[name]
            number = max([model.last, *model.files]) + 2
            self.put(name, number, self.some_file(name, ("int",)))

    def delete(self) -> None:
        name = self.one()
        if name is not None:
            shutil.rmtree(self.zone / name)
            del self.folders[name]

    def remake(self) -> None:
        name = self.one()
        if name is not None:
            shutil.rmtree(self.zone / name)
            self.make(name)
            for number in range(1, 1 + self.chance.choice([0, 1, 1, 2])):
                self.put(name, number, self.some_file(name, ("string", "long")))

    def rename(self) -> None:
        name = self.one()
        if name is not None:
            new = self.fresh_name()
            (self.zone / name).rename(self.zone / new)
            self.folders[new] = self.folders.pop(name)

    def copy(self) -> None:
        name = self.one()
        if name is not None and len(self.folders) < 3:
            new = f"{self.fresh_name()} copy"
            shutil.copytree(self.zone / name, self.zone / new)
            self.folders[new] = deepcopy(self.folders[name])

    def mirror(self, *, widen: bool) -> None:
        """Apply a cycle to the models; a copy without its original is a renamed folder."""
        for life, home in list(self.homes.items()):
            holders = sorted(name for name, model in self.folders.items() if model.life == life)
            heir = home if home in holders else next(iter(holders), None)
            if heir not in (home, None):
                self.past[heir] = self.past.pop(home, [])
            for name in holders:
                if name != heir:
                    self.folders[name] = FolderModel(("id",), self.folders[name].files)
        for model in self.folders.values():
            if model.life is None:
                self.lives += 1
                model.life = self.lives
            model.mirror(widen=widen)
        self.homes = {model.life: name for name, model in self.folders.items()}


ACTIONS = ("publish", "publish", "publish", "repair", "gap", "delete", "remake", "rename", "copy")


def check(lake: Lake, publisher: Publisher, report: status.MirrorReport) -> None:
    """Check that every table equals its model, and that no other tables exist."""
    lines = {line.name: line for line in report.tables}
    for name, model in publisher.folders.items():
        line, where = lines[name], (name, publisher.done)
        assert (line.last_file, line.waiting_for) == (model.last, model.waiting_for), where
        if model.error is None:
            assert line.error is None, where
        else:
            number, column = model.error
            assert line.error is not None, where
            found = (line.error["file"], line.error["column"].lower())
            assert found == (file_name(number), column.lower()), where
            assert line.state == "Failed", where
        if model.table is None:
            assert not (lake.storage.local / "Tables" / name).exists(), where
            continue
        table = lake.table(f"`{name}`")
        snapshot = table.snapshot()
        types = {column.lower(): kind for column, kind in snapshot.schema.items()}
        assert types == {column: DELTA[kind] for column, kind in model.columns.items()}, where
        assert list(types) == list(model.columns), where
        rows = bag(lake, f"`{name}`", list(model.columns))
        assert rows == model.table.bag(list(model.columns)), where
        seen = publisher.past.setdefault(name, [])
        if not seen or seen[-1].version != snapshot.version:
            seen.append(Seen(snapshot.version, list(model.columns), rows))
    there = {table.name for table in lake.tables() if table.name.startswith(publisher.name)}
    assert there == {name for name, m in publisher.folders.items() if m.table}, publisher.done


class Killed(BaseException):
    """A kill; not an `Exception`, so that no code handles it as a table's failure."""


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_tables_with_odd_names_can_be_replaced_and_the_feed_continues(
    lake: Lake, killed: bool
) -> None:
    lake.publisher("t", keys=["id"]).write([{"id": 1, "two words": "a", "gone": 1}])
    assert not lake.mirror().failed
    shutil.rmtree(Path(lake.landing_zone) / "t")
    lake.publisher("t").write([{"code": "x", "two words": 1.5}])  # without keys

    def kill(_table: TableName, done: Step) -> None:
        if killed and done is Step.COMMITTED:
            raise Killed

    with suppress(Killed):
        assert not lake.mirror(on_step=kill).failed
    lake.publisher("t").write([{"code": "y", "two words": 2.5}])
    assert not lake.mirror().failed
    table = lake.table("t")
    assert bag(lake, "t", ["code", "two words"]) == {("x", 1.5): 1, ("y", 2.5): 1}
    assert table.snapshot().properties["delta.enableChangeDataFeed"] == "true"
    newest = table.snapshot().version
    feed = lake.spark.read.format("delta").option("readChangeFeed", "true")
    rows = feed.option("startingVersion", newest).load(lake.storage.path("Tables/t"))
    assert [(row.code, row._change_type) for row in rows.collect()] == [("y", "insert")]
    assert [row.gone for row in table.read(version=1).collect()] == [1]


SCRIPT = st.lists(st.lists(st.sampled_from(ACTIONS), max_size=4), min_size=CYCLES, max_size=CYCLES)


@settings(
    max_examples=1,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(SCRIPT, min_size=TABLES, max_size=TABLES),
    st.lists(st.booleans(), min_size=CYCLES, max_size=CYCLES),
    st.integers(0, 2**32),
)
@pytest.mark.promise("LZ-20", "LZ-21", "LZ-23", "LZ-25", "LZ-26", "LZ-27", "LZ-28")
def test_random_publishers_end_as_the_model_does(
    tmp_path_factory: pytest.TempPathFactory,
    scripts: list[list[list[str]]],
    widening: list[bool],
    seed: int,
) -> None:
    lake = Lake(tmp_path_factory.mktemp("schemas") / "lake")
    zone = Path(lake.landing_zone)
    zone.mkdir(parents=True)
    publishers = [
        Publisher(zone, f"t{number:02d}", random.Random(seed + number)) for number in range(TABLES)
    ]
    for cycle, widen in enumerate(widening):
        for publisher, script in zip(publishers, scripts, strict=True):
            for action in ["publish", *script[cycle]] if cycle == 0 else script[cycle]:
                getattr(publisher, action)()
                publisher.done.append(action)
            publisher.done.append(f"cycle {cycle}{', widen' * widen}")
            publisher.mirror(widen=widen)
        report = lake.mirror(options=MirrorOptions(widen=widen))
        for publisher in publishers:
            check(lake, publisher, report)
    for publisher in publishers:  # a recreated or renamed table keeps its history
        for name, model in publisher.folders.items():
            if model.table is not None:
                for seen in publisher.past[name][:-1]:
                    before = lake.table(f"`{name}`").read(version=seen.version)
                    columns = [f"`{column}`" for column in seen.columns]
                    rows = Counter(tuple(row) for row in before.select(*columns).collect())
                    assert rows == seen.rows, (name, seen.version, publisher.done)
