"""Debezium events from a real broker: offsets from our files, each event published once."""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from helpers.killing import run_until
from helpers.landed import landed_files, landed_rows
from helpers.project import PROJECT
from mirrorlake import Lake, source_status
from mirrorlake.errors import SourceError, UsageError
from mirrorlake_sources import SourceReport, run_source

pytestmark = pytest.mark.long  # a broker is a second JVM, and its jars must be downloaded

COLUMNS = [{"field": "id", "type": "int32"}, {"field": "word", "type": "string", "optional": True}]
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    pytest.importorskip("confluent_kafka")
    from helpers.kafka import KafkaBroker

    started = KafkaBroker()
    yield started
    started.remove()


def record(op: str, number: int, word: str = "", *, table: str = "t") -> tuple[bytes, bytes]:
    """Return a key and an event as Connect's JSON converter writes them."""
    fields = [{"field": "after", "type": "struct", "fields": COLUMNS}]
    row = {"id": number, "word": word}
    payload = {
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "source": {"schema": "public", "table": table},
        "op": op,
    }
    value = {"schema": {"type": "struct", "fields": fields}, "payload": payload}
    return json.dumps({"payload": {"id": number}}).encode(), json.dumps(value).encode()


class Topics:
    """The topics of one test, and a lake."""

    def __init__(self, broker: Any, root: Path) -> None:
        self.broker, self.root = broker, root
        self.prefix = f"shop{next(NUMBERS)}"

    def make(self, table: str, partitions: int = 1, **settings: str) -> str:
        self.broker.make(f"{self.prefix}.{table}", partitions, **settings)
        return f"{self.prefix}.{table}"

    def source(self, **options: Any):
        from mirrorlake_sources import KafkaSource

        topics = options.pop("topics", [f"{self.prefix}.*"])
        given = {"name": self.prefix} | options
        return KafkaSource(self.broker.servers, topics, Lake(self.root).storage, **given)

    def run(self, **options: Any) -> SourceReport:
        return run_source(Lake(self.root).storage, self.source(**options))

    def words(self, table: str = "t") -> dict[int, str]:
        rows = landed_rows(self.root, table)
        found = {row["id"]: row["word"] for row in rows}
        assert len(found) == len(rows)
        return found


@pytest.fixture
def topics(broker: Any, tmp_path: Path) -> Topics:
    return Topics(broker, tmp_path / "lake")


def test_operations_tombstones_and_where_each_file_ends(topics: Topics) -> None:
    topic = topics.make("t", partitions=3)
    changes = [record("c", n, "new") for n in range(20)] + [record("u", n, "old") for n in range(5)]
    gone = record("d", 19)
    topics.broker.send(topic, *changes, gone, (gone[0], None))
    assert not topics.run().failed
    assert topics.words() == {n: "old" if n < 5 else "new" for n in range(19)}
    import pyarrow.parquet as pq

    (file,) = landed_files(topics.root, "t")
    kept = json.loads(pq.read_metadata(file).metadata[b"mirrorlake.source"])
    ends = kept["facts"]["offsets"][topic]
    assert sum(ends.values()) in (26, 27)
    assert kept["order"] == [sum(ends.values())]
    assert not topics.run().failed
    assert len(landed_files(topics.root, "t")) == 1  # there are no new events
    topics.broker.send(topic, record("c", 100, "later"))
    assert not topics.run().failed
    assert topics.words()[100] == "later"
    assert len(landed_files(topics.root, "t")) == 2


def test_wrong_keys_named_by_hand_can_be_corrected(topics: Topics) -> None:
    topics.broker.send(topics.make("t"), record("c", 1, "a"), record("u", 1, "b"))
    assert "'nokey' is missing" in str(topics.run(keys={"t": ["nokey"]}).tables[0].error)
    assert not topics.run(keys={"t": ["id"]}).failed
    assert topics.words() == {1: "b"}


def test_several_topics_and_one_that_can_not_be_read(topics: Topics) -> None:
    good, bad = topics.make("a"), topics.make("b")
    topics.broker.send(good, record("c", 1, "x", table="a"))
    topics.broker.send(bad, record("c", 1, "x", table="b"), (None, b"{"), record("c", 2, table="b"))
    report = topics.run()
    stopped = {one.table: one.error for one in report.tables if one.error}
    assert list(stopped) == ["b"]
    assert "not valid JSON" in str(stopped["b"])
    assert f"{bad}/0" in str(stopped["b"])
    assert topics.words("b") == {1: "x"}  # nothing is skipped
    topics.broker.send(good, record("c", 2, "y", table="a"))
    assert topics.run().failed
    assert topics.words("a") == {1: "x", 2: "y"}


def test_events_that_are_gone_stop_their_table(topics: Topics) -> None:
    """The topic was emptied while the source was stopped: lost events are an error."""
    topic = topics.make("t")
    topics.broker.send(topic, record("c", 1, "a"))
    assert not topics.run().failed
    topics.broker.send(topic, *(record("c", n, "b") for n in range(2, 6)))
    from confluent_kafka import TopicPartition

    for done in topics.broker.admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        done.result(30)
    report = topics.run()
    assert "continues at offset 1" in str(report.tables[0].error)
    assert topics.words() == {1: "a"}


def test_a_topic_that_was_made_again_stops_its_table(topics: Topics) -> None:
    topic = topics.make("t")
    topics.broker.send(topic, *(record("c", n, "a") for n in range(5)))
    assert not topics.run().failed
    for done in topics.broker.admin.delete_topics([topic]).values():
        done.result(30)
    time.sleep(2)  # the broker confirms the deletion before it is complete
    topics.broker.make(topic)
    assert "continues at offset 5" in str(topics.run().tables[0].error)


def test_it_watches_and_tells_its_lag(topics: Topics) -> None:
    topic = topics.make("t")
    topics.broker.send(topic, record("c", 1, "a"))
    stop, told = Event(), list[source_status.SourceReport]()

    def on_report(report: source_status.SourceReport) -> None:
        told.append(report)
        rows = sum(one.rows for one in report.tables)
        if rows == 1:
            topics.broker.send(topic, record("u", 1, "b"))
        if rows >= 2:
            stop.set()

    source = topics.source(interval=0.2)
    run_source(Lake(topics.root).storage, source, once=False, stop=stop, on_report=on_report)
    assert topics.words() == {1: "b"}
    assert told[-1].facts["topics"] == 1
    assert told[-1].facts["lag_events"] == 0


def test_wrong_use_and_a_broker_that_is_not_there(topics: Topics) -> None:
    from mirrorlake_sources import KafkaSource

    with pytest.raises(UsageError):
        KafkaSource("", ["a"], Lake(topics.root).storage)
    with pytest.raises(SourceError, match="no topic nothing"):
        topics.run(topics=["nothing"])
    with pytest.raises(SourceError, match="No such configuration property"):
        topics.run(settings={"no.such": "open sesame"})


PROGRAM = """
import sys
from mirrorlake_sources import KafkaSource, run_source
from mirrorlake.storage.files import Storage

root, servers, topics = sys.argv[1:]
source = KafkaSource(servers, [topics], Storage(root), name="k", rows=25, interval=0.2)
assert not run_source(Storage(root), source).failed
"""


def test_killed_again_and_again_each_event_lands_once(topics: Topics) -> None:
    """The table has no key, so a repeated event would be an additional row."""
    names = {table: topics.make(table, partitions=2) for table in ("a", "b")}
    done, sent = Event(), {"a": 0, "b": 0}

    def write() -> None:
        while not done.is_set():
            for table, topic in names.items():
                events = [record("c", sent[table] + n, table=table) for n in range(20)]
                topics.broker.send(topic, *((None, value) for _, value in events))
                sent[table] += len(events)

    writer = Thread(target=write)
    writer.start()
    chance, arguments = random.Random(3), (topics.broker.servers, f"{topics.prefix}.*")
    try:
        for _ in range(8):
            began, after = time.monotonic(), chance.uniform(1, 4)
            run_until(
                lambda made, began=began, after=after: time.monotonic() - began > after,
                topics.root,
                PROGRAM,
                *arguments,
            )
    finally:
        done.set()
        writer.join()
    assert not run_until(lambda made: False, topics.root, PROGRAM, *arguments)[0]
    for table, count in sent.items():
        assert sorted(row["id"] for row in landed_rows(topics.root, table)) == list(range(count))
    assert count


def test_the_command(topics: Topics) -> None:
    import os
    import subprocess

    topics.broker.send(topics.make("t"), record("c", 1, "a"))
    settings = topics.root.with_suffix(".conf")
    settings.write_text("# ours\nclient.id = tests\n")
    command = [sys.executable, "-m", "mirrorlake.cli", "source", "kafka", str(topics.root)]
    command += ["--servers", topics.broker.servers, "--topics", f"{topics.prefix}.*", "--json"]
    done = subprocess.run(
        [*command, "--settings", str(settings)],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "lib")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["state"] == "Ended"
    assert topics.words() == {1: "a"}
