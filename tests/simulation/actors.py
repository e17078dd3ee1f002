"""The processes of a simulated lake: the steps of each, which continue after a kill."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import BaseError

from helpers.places import METADATA, ZONE
from mirrorlake import Publisher
from mirrorlake.errors import MirrorlakeError
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.operations import Operations
from mirrorlake.mirror.options import MirrorOptions
from mirrorlake.names import TableName, file_name, file_number
from mirrorlake.storage.files import _CHECKED
from mirrorlake_serve.protocol import RequestError, Target
from mirrorlake_serve.zone import LandingZone
from mirrorlake_sources.engine import run_source
from mirrorlake_sources.source import Batch, ChangesOnly, Group, Position
from simulation.scheduler import Killed, Pool, Process, SimulatedTime, Violation, finish
from simulation.world import Published, SimulatedLake

EXPECTED = (MirrorlakeError, BaseError, OSError, RequestError)
TRIES = 8
Step = tuple[Any, ...]


class Actor:
    """A supervised process: after a kill, it is restarted and continues with its steps.

    Attributes:
        repeats: whether a step that a kill or an error interrupted is repeated until it succeeds.
    """

    repeats = False

    def __init__(self, lake: SimulatedLake, name: str, steps: list[Step]) -> None:
        self.lake, self.name, self.steps = lake, name, steps
        self.place = 0
        self.starts = 0
        self.batches = 0

    def start(self) -> None:
        """Start the process."""
        self.starts += 1
        process = Process(f"{self.name}#{self.starts}")
        self.lake.scheduler.start(process, lambda: self._run(process), process.name)

    def _run(self, process: Process) -> None:
        tries = 0
        try:
            _CHECKED.clear()  # as in a new process
            self.begin()
            while self.place < len(self.steps):
                step = self.steps[self.place]
                if not self.repeats:
                    self.place += 1
                self.lake.scheduler.log(f"{process.name}: {step}")
                try:
                    self.do(*step)
                except EXPECTED as error:
                    self.lake.scheduler.log(f"{process.name}: {type(error).__name__}: {error}")
                    tries += 1
                    if self.repeats and isinstance(error, BaseError) and tries < TRIES:
                        SimulatedTime.sleep(1)
                        continue
                if self.repeats:
                    self.place += 1
        except Killed:
            self.start()
            raise

    def begin(self) -> None:
        """Prepare a new process."""

    def do(self, *step: Any) -> None:
        """Do a step."""
        raise NotImplementedError

    def new_batch(self, table: str, rows: int, number: int = 0) -> Published:
        """Return a new batch of rows, or the existing batch with this number."""
        if not number:
            self.batches += 1
            number = self.batches
        name = f"{self.name}-{number}"
        if name not in self.lake.batches:
            made = [{"id": f"{name}/{row}", "n": row} for row in range(rows)]
            self.lake.batches[name] = Published(table, self.name, number, made)
        return self.lake.batches[name]


class OurPublisher(Actor):
    """A program that uses the library's publisher; it retries a batch with a token on errors."""

    repeats = True

    def begin(self) -> None:
        """Forget the publishers of the previous process."""
        self.publishers: dict[str, Publisher] = {}

    def do(self, table: str, rows: int, with_token: bool) -> None:
        """Publish a batch."""
        batch = self.new_batch(table, rows, self.place + 1)
        if not with_token and getattr(batch, "tried", False):
            return  # it may be published already
        batch.tried = True
        publisher = self.publishers.get(table)
        if publisher is None:
            publisher = Publisher(self.lake.storage, TableName.parse(table), keys=["id"])
            self.publishers[table] = publisher
        token = f"{self.name} {batch.number}" if with_token else None
        batch.file = publisher.insert(batch.rows, token=token).file
        batch.acknowledged = True


class OriginalPublisher(Actor):
    """A publisher like Open Mirroring's SDK: it takes the next number and renames unconditionally.

    As Open Mirroring requires, it must be the only writer of its table.
    """

    def do(self, table: str, rows: int, _with_token: bool) -> None:
        """Publish a batch."""
        storage, folder = self.lake.storage, f"{ZONE}/{table}"
        batch = self.new_batch(table, rows)
        if not storage.exists(f"{folder}/{METADATA}"):
            storage.write_json(f"{folder}/{METADATA}", {"keyColumns": ["id"]})
        numbers = [file_number(entry.name) or 0 for entry in storage.list(folder).files]
        name = file_name(max(numbers, default=0) + 1)
        hidden = f"{folder}/_{batch.writer}{batch.number}.parquet"
        with storage.open_writer(hidden) as sink:
            pq.write_table(pa.Table.from_pylist(batch.rows), sink)
        batch.file = name
        storage._store.rename(hidden, f"{folder}/{name}")  # a rename of HNS is atomic
        batch.acknowledged = True


class Server(Actor):
    """A server of the landing zone, and clients that publish through it at the same time."""

    repeats = True
    scratch: Path

    def begin(self) -> None:
        """Start the server with the stored uploads of the previous one."""
        self.zone = LandingZone(self.lake.storage, self.scratch / self.name)
        self.zone.uploads.load()

    def do(self, table: str, *rows: int) -> None:
        """Publish some batches at the same time."""
        with Pool() as pool:
            sent = [pool.submit(self._send, table, n, client) for client, n in enumerate(rows)]
        for one in sent:
            one.result()

    def _send(self, table: str, rows: int, client: int) -> None:
        batch = self.new_batch(table, rows, 10 * self.place + client + 1)
        batch.writer = f"{self.name} {client}"
        name, folder = TableName.parse(table), f"{ZONE}/{table}"
        state = self.__dict__.setdefault("sent", {})
        hidden = f"_{self.name}{batch.number}.parquet"
        for _ in range(3 * TRIES):
            if batch.acknowledged:
                return
            try:
                if batch.number not in state:
                    staged = self.scratch / f"{self.name}-{client}.parquet"
                    pq.write_table(pa.Table.from_pylist(batch.rows), staged)
                    finish(self.zone.publish(staged, Target(f"{folder}/{hidden}", name, hidden)))
                    files = self.zone.files.children(folder)
                    state[batch.number] = max((file_number(i.name) or 0 for i in files), default=0)
                    state[batch.number] += 1
                batch.file = file_name(state[batch.number])
                target = Target(f"{folder}/{batch.file}", name, batch.file)
                finish(self.zone.rename(f"{folder}/{hidden}", target))
                batch.acknowledged = True
            except RequestError as error:
                self.lake.scheduler.log(f"{self.name} {client}: {error}")
                if error.status == 404:
                    return  # unknown
                if error.status == 409:
                    state[batch.number] += 1
                elif "gap" in str(error):
                    state[batch.number] = max(1, state[batch.number] - 1)
                else:
                    raise
            except BaseError as error:
                self.lake.scheduler.log(f"{self.name} {client}: {type(error).__name__}: {error}")
                SimulatedTime.sleep(1)


class Mirror(Actor):
    """A mirror, of all tables or of a shard."""

    options: Mapping[str, Any] = {}

    def begin(self) -> None:
        """Create an engine without a cache."""
        made = MirrorOptions(**{"patience": 30, "compact_after": 0, **self.options})
        self.engine = Engine(self.lake.storage, _no_spark, made)

    def do(self, *_step: Any) -> None:
        """Run a cycle."""
        self.lake.cycles += 1
        try:
            self.lake.scheduler.log(repr(self.engine.run_cycle()))
        finally:
            self.lake.cycles -= 1


class Operator(Actor):
    """An operator, who repeats interrupted operations, as their documentation requires."""

    repeats = True

    def do(self, action: str, table: str, number: int = 0, after: float = 0) -> None:
        """Do one operation, after some seconds."""
        SimulatedTime.sleep(after)
        lake, storage = self.lake, self.lake.storage
        name, operations = TableName.parse(table), Operations(storage, _no_spark)
        if action in ("drop", "drop slowly", "rename"):
            lake.taken.add(table)
        if action == "skip":
            lake.skipped.add((table, number))
            operations.skip(name, number, apply=True)
        elif action == "replay":
            lake.replayed |= {name.table_path, f"{name.table_path}2"}
            operations.replay(name, number)
        elif action == "reseed":
            operations.reseed(name, apply=True)
        elif action == "undrop":
            operations.undrop(name)
        elif action == "drop":
            lake.excuse(table)
            storage._store.delete_below(f"{name.folder}/")
            lake.excuse(table)
        elif action == "drop slowly":
            lake.excuse(table)
            storage.delete_folder(name.folder)
            lake.excuse(table)
        elif action == "rename":
            if lake.cycles:
                lake.taken_in_cycle.add(table)
                lake.replayed.add(f"{name.table_path}2")  # it can mix files of both folders
            storage._store.move_below(f"{name.folder}/", f"{name.folder}2/")
            lake.renamed[table] = f"{table}2"
        else:
            getattr(operations, action)(name)


class FollowedSource(ChangesOnly):
    """A source whose changes are numbered rows; the first of them are the initial load."""

    name = "sim:source"
    keeps_changes = True

    def __init__(self, actor: SourceReader, table: str, last: int, loaded: int) -> None:
        self._actor, self._table, self._last, self._loaded = actor, table, last, loaded

    def __enter__(self) -> FollowedSource:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def tables(self) -> Mapping[TableName, tuple[str, ...]]:
        """Return the only table."""
        return {TableName.parse(self._table): ("id",)}

    def _rows(self, number: int) -> pa.RecordBatchReader:
        rows = self._actor.new_batch(self._table, 2, number).rows
        return pa.Table.from_pylist(rows).to_reader()

    def snapshot(
        self, _table: TableName, publish: Callable[[pa.RecordBatchReader], None], _stop: object
    ) -> Position | None:
        """Publish the initial load."""
        for number in range(1, self._loaded + 1):
            publish(self._rows(number))
        return Position((self._loaded,)) if self._loaded else None

    def changes(
        self, since: MutableMapping[TableName, Position], _stop: object, *, once: bool
    ) -> Generator[Group, None, None]:
        """Yield one change after the other."""
        (table,) = self.tables()
        start = since[table].order if table in since else ()
        for number in range((start[0] if start else 0) + 1, self._last + 1):
            yield Group([Batch(table, self._rows(number), Position((number,)))], number)

    def confirm(self, end: Any) -> None:
        """Note that all changes so far are published."""
        for number in range(1, end + 1):
            self._actor.new_batch(self._table, 2, number).acknowledged = True

    def facts(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


class SourceReader(Actor):
    """A program that publishes a source."""

    repeats = True

    def do(self, table: str, last: int, loaded: int) -> None:
        """Publish up to a change."""
        writer, self.name = self.name, "source"  # two readers of one source publish the same rows
        try:
            report = run_source(self.lake.storage, FollowedSource(self, table, last, loaded))
        finally:
            self.name = writer
        # The store's faults pass: a stopped table would be loaded again, or miss its last changes.
        if report.failed:
            raise Violation(f"the source has stopped a table: {report.tables}")


def _no_spark() -> Any:
    """Return no session, because the replaced commit does not use it."""
