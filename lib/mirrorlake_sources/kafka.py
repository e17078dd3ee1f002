"""Read Debezium events from Kafka topics, with offsets from the published files.

A table's position is the next offset of each partition of its topics. It is stored in the footer of
each file, so a restart continues exactly there, whatever a consumer group has committed.
"""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Generator, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from threading import Event as Flag
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mirrorlake.errors import DataFileError, MirrorlakeError, SourceError, UsageError
from mirrorlake.landing.zone import published_tables
from mirrorlake.names import TableName, split_names
from mirrorlake.storage.files import Storage
from mirrorlake_sources.debezium import Event, EventRows, PrimaryKeys, read_event
from mirrorlake_sources.source import Batch, ChangesOnly, Group, Position, read_progress

_SECONDS = 20.0  # for the response of a broker
_PATIENCE = 60.0  # seconds without a message after which a run with `once` fails
_PIECE = 1000  # messages consumed at once
_Place = tuple[str, int]  # topic and partition
_Offsets = dict[_Place, int]


@dataclass
class _PendingMessages:
    """Unpublished events of one table with a common schema, and the offsets after them."""

    events: list[Event] = field(default_factory=list)
    offsets: _Offsets = field(default_factory=dict)


class KafkaSource(ChangesOnly):
    """Topics of Debezium events, as JSON with keys and schemas.

    Args:
        servers: the brokers, as `host:port,…`.
        topics: their names; `*` matches any text.
        storage: the lake's storage.
        name: distinguishes several sources of one cluster.
        keys: the key columns of tables whose events have no key.
        settings: further settings of librdkafka, such as `security.protocol`; never logged.
        interval: publish at least once in this number of seconds.
        rows: publish after this number of events.

    Raises:
        UsageError: an argument is invalid.

    Example:
        >>> source = KafkaSource("localhost:9092", ["shop.*"], lake.storage)  # doctest: +SKIP
        >>> run_source(lake.storage, source)  # doctest: +SKIP
    """

    keeps_changes = True

    def __init__(
        self,
        servers: str,
        topics: str | Iterable[str],
        storage: Storage,
        *,
        name: str = "mirrorlake",
        keys: Mapping[str, Sequence[str]] | None = None,
        settings: Mapping[str, str] | None = None,
        interval: float = 5.0,
        rows: int = 100_000,
    ) -> None:
        self._wanted = split_names(topics)
        if not servers or not self._wanted:
            raise UsageError("No broker or no topic is named.", hint="set servers and topics.")
        self._storage = storage
        self._settings = {
            **(settings or {}),
            "bootstrap.servers": servers,
            "group.id": f"mirrorlake-{name}",  # librdkafka requires one; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        self._own = name
        self._keys = keys
        self._interval, self._most = interval, rows
        self._consumer: Consumer | None = None
        self._next: _Offsets = {}
        self._begins: _Offsets = {}
        self._ends: _Offsets = {}
        self._places: list[_Place] = []
        self.name = ""

    def __enter__(self) -> KafkaSource:
        """Connect, and find the partitions of the topics.

        Raises:
            SourceError: no broker responds, or a topic does not exist.
        """
        self._rows = EventRows(self._storage, self._keys)
        try:
            self._consumer = Consumer(self._settings)
            found = self._consumer.list_topics(timeout=_SECONDS)
        except (KafkaException, ValueError) as error:
            self._close()
            raise SourceError(
                f"Kafka can't be read: {_text(error)}.", hint="check servers and settings."
            ) from None
        self.name = f"kafka:{found.cluster_id}/{self._own}"
        self._places = []
        for pattern in self._wanted:
            topics = [t for t in found.topics if fnmatch.fnmatchcase(t, pattern)]
            if not topics and "*" not in pattern:
                self._close()
                raise SourceError(f"There is no topic {pattern}.", hint="check topics.")
            self._places += [(t, p) for t in sorted(topics) for p in found.topics[t].partitions]
        self._places = sorted(set(self._places))
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the connections."""
        self._close()

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def tables(self) -> Mapping[TableName, tuple[str, ...] | MirrorlakeError]:
        """Return the tables that this source has published; others appear with an event."""
        found: dict[TableName, tuple[str, ...] | MirrorlakeError] = {}
        for table in published_tables(self._storage):
            try:
                progress = read_progress(self._storage, table, self.name)
            except MirrorlakeError:
                continue  # another source publishes the table
            if progress is not None:
                found[table] = self._rows.recall(table)
        return found

    def changes(
        self, since: MutableMapping[TableName, Position], stop: Flag, *, once: bool
    ) -> Generator[Group, None, None]:
        """Yield the events of the topics after the positions of the tables.

        Raises:
            SourceError: the first message of a topic is not an event, or no broker responds.
        """
        met = set(since)
        yield Group(self._find_ends(since))
        self._assign(since)
        pending: dict[TableName, _PendingMessages] = {}
        waiting, ended = 0, set[_Place]()
        first = heard = time.monotonic()
        while not stop.is_set():
            for message in self._consume():
                heard, place = time.monotonic(), _place(message)
                if message.error() is not None:
                    ended.add(place)
                    continue
                ended.discard(place)
                first = first if waiting else heard
                self._next[place] = (message.offset() or 0) + 1
                try:
                    event = self._event(message)
                except SourceError as error:
                    yield self._group(pending, since)
                    waiting = 0
                    yield self._stopped(since, place, error)
                    continue
                if isinstance(event, PrimaryKeys):
                    self._rows.learn(event)
                if not isinstance(event, Event):
                    continue
                table = event.table
                if table not in met:
                    met.add(table)
                    yield Group(appeared={table: self._rows.key(event)})
                if self._next[place] <= self._done(since, table, place):
                    continue
                one = pending.setdefault(table, _PendingMessages())
                if one.events and (event.marker is None or event.types != one.events[0].types):
                    yield Group([self._batch(table, pending.pop(table), since)])
                    one = pending[table] = _PendingMessages()
                one.offsets[place] = self._next[place]
                if event.marker is None:
                    yield Group([self._emptied(table, pending.pop(table), since, place)])
                    continue
                one.events.append(event)
                waiting += 1
            now = time.monotonic()
            whole = once and all(self._is_read(place, ended) for place in self._places)
            if waiting and (whole or waiting >= self._most or now - first >= self._interval):
                yield self._group(pending, since)
                waiting = 0
            elif not waiting and not once:
                yield Group()
            if whole:
                return
            if once and now - heard > _PATIENCE:
                raise SourceError(
                    f"No broker has responded for {_PATIENCE:.0f} seconds.", hint="run it again."
                )
        yield self._group(pending, since)

    @staticmethod
    def _done(since: Mapping[TableName, Position], table: TableName, place: _Place) -> float:
        """Return the published offset of a partition; infinity if the table is stopped."""
        position = since.get(table)
        return float("inf") if position is None else offsets_of(position).get(place, 0)

    def _find_ends(self, since: Mapping[TableName, Position]) -> list[Batch]:
        """Read the offsets of the partitions; return a problem for each table with lost events."""
        self._begins = {}
        for place in self._places:
            self._begins[place], self._ends[place] = self._bounds(place)
        lost = []
        for table, position in since.items():
            for place, at in offsets_of(position).items():
                low, high = self._begins.get(place, 0), self._ends.get(place, at)
                if not low <= at <= high:
                    problem = SourceError(
                        f"{table} continues at offset {at} of {place[0]}/{place[1]}, which has"
                        f" {low} to {high}.",
                        hint="delete the table's folder and let Debezium take a new snapshot; keep"
                        " events for longer than a source may be stopped (retention.ms).",
                    )
                    after = Position((position.order[0] + 1,), position.facts)
                    lost.append(Batch(table, None, after, problem=problem))
                    break
        return lost

    def _stopped(
        self, since: Mapping[TableName, Position], place: _Place, error: SourceError
    ) -> Group:
        """Stop the tables of a topic that has an unreadable event; the other tables continue.

        Raises:
            SourceError: no table of the topic is known yet.
        """
        found = []
        for table, position in since.items():
            if any(topic == place[0] for topic, _ in offsets_of(position)):
                after = position_of(position, {place: self._next[place]})
                found.append(Batch(table, None, after, problem=error))
        if not found:
            raise error
        return Group(found)

    def _emptied(
        self,
        table: TableName,
        one: _PendingMessages,
        since: Mapping[TableName, Position],
        place: _Place,
    ) -> Batch:
        """Return the batch of a TRUNCATE; with several partitions its order is unknown."""
        position = position_of(since[table], one.offsets)
        if sum(topic == place[0] for topic, _ in self._places) == 1:
            return Batch(table, None, position, replaces=True)
        problem = SourceError(
            f"{table} was truncated, and its topic {place[0]} has several partitions.",
            hint="give the topic one partition and let Debezium take a new snapshot.",
        )
        return Batch(table, None, position, problem=problem)

    def _assign(self, since: Mapping[TableName, Position]) -> None:
        """Start each partition at the smallest position of its tables."""
        starts: _Offsets = {}
        for position in since.values():
            for place, offset in offsets_of(position).items():
                starts[place] = min(offset, starts.get(place, offset))
        self._next = {place: starts.get(place, self._begins[place]) for place in self._places}
        self._kafka.assign([TopicPartition(t, p, offset) for (t, p), offset in self._next.items()])

    def _bounds(self, place: _Place) -> tuple[int, int]:
        try:
            return self._kafka.get_watermark_offsets(TopicPartition(*place), timeout=_SECONDS)
        except KafkaException as error:
            raise SourceError(
                f"Kafka can't be read: {_text(error)}.", hint="run it again."
            ) from None

    def _consume(self) -> list[Message]:
        """Return the next messages and ends of partitions.

        Raises:
            SourceError: the broker refuses, or an offset does not exist any more.
        """
        found = self._kafka.consume(_PIECE, timeout=min(0.5, self._interval))
        for message in found:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise SourceError(f"Kafka can't be read: {error.str()}.", hint="run it again.")
        return found

    def _is_read(self, place: _Place, ended: set[_Place]) -> bool:
        return place in ended or self._next[place] >= self._ends[place]

    def _event(self, message: Message) -> Event | PrimaryKeys | None:
        topic, partition = _place(message)
        label, row = f"{topic}/{partition}", message.offset() or 0
        try:
            value, key = _json(message.value()), _json(message.key())
            found = value if key is None else {"key": key, "value": value}
            return read_event(found, file=label, row=row)
        except (ValueError, RecursionError) as error:
            text, hint, column = f"The event is not valid JSON: {error}.", _CONVERTER, None
        except DataFileError as error:
            text, hint, column = error.message, error.hint or "", error.column
        raise SourceError(text, file=label, row=row, column=column, hint=hint)

    def _group(
        self, pending: dict[TableName, _PendingMessages], since: Mapping[TableName, Position]
    ) -> Group:
        found = [self._batch(t, one, since) for t, one in pending.items() if t in since]
        pending.clear()
        return Group(found)

    def _batch(
        self, table: TableName, one: _PendingMessages, since: Mapping[TableName, Position]
    ) -> Batch:
        return self._rows.batch(table, one.events, position_of(since[table], one.offsets))

    def facts(self) -> dict[str, Any]:
        """Return the number of topics and of events that are not read yet, as last reported."""
        for place in self._next:
            try:
                found = self._kafka.get_watermark_offsets(TopicPartition(*place), cached=True)
            except KafkaException:
                continue
            self._ends[place] = max([self._ends[place], *found])
        lag = sum(max(0, self._ends[place] - offset) for place, offset in self._next.items())
        return {"topics": len({topic for topic, _ in self._places}), "lag_events": lag}

    @property
    def _kafka(self) -> Consumer:
        if self._consumer is None:
            raise UsageError("The source is not open.", hint="use it in a with block.")
        return self._consumer


_CONVERTER = "set Debezium's key.converter and value.converter to JSON, or format=json."


def offsets_of(position: Position) -> _Offsets:
    """Return the next offset of each partition of a table, from its position."""
    kept = position.facts.get("offsets", {})
    return {(topic, int(p)): at for topic, parts in kept.items() for p, at in parts.items()}


def position_of(before: Position, offsets: _Offsets) -> Position:
    """Return a table's next position; positions compare by the sum of offsets, which only grow."""
    found = {**offsets_of(before), **offsets}
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(found.items()):
        document.setdefault(topic, {})[str(partition)] = at
    return Position((sum(found.values()),), {"offsets": document})


def _place(message: Message) -> _Place:
    return message.topic() or "", message.partition() or 0


def _json(data: bytes | str | None) -> Any:
    return None if data is None else json.loads(data)


def _text(error: Exception) -> str:
    found = error.args[0] if error.args else error
    return found.str() if isinstance(found, KafkaError) else str(found)
