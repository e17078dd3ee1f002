"""Kill processes of one lake at random, and check the rows of each version.

Three publishers, two mirrors, a maintenance process and a reader run for ten minutes with `--long`;
`MIRRORLAKE_SOAK_SECONDS` sets another duration. They log each acknowledged operation. The number of
a batch's file in the landing zone is its place in the order of all changes, and each version of the
Delta log contains the number of its last file. So the model has the rows of each version.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers import views_model
from helpers.chaos_program import (
    ARCHIVE,
    COLUMNS,
    DIMENSION,
    MAINTENANCE,
    VIEWS,
    Log,
    digest,
    entries,
    new_batch,
    publish,
)
from helpers.fault_proxy import Fault, FaultProxy, RandomFaults, Request
from helpers.feed_model import Row, check_equal, check_fold, check_periods
from helpers.model import Change, TableModel
from helpers.project import PROJECT
from helpers.s3_server import BUCKET, SECRET, S3Server
from helpers.tables import bag
from mirrorlake import Lake
from mirrorlake.delta.snapshot import read_snapshot
from mirrorlake.names import HIDDEN, file_number

pytestmark = pytest.mark.long
SECONDS = float(os.environ.get("MIRRORLAKE_SOAK_SECONDS", "600"))
WRITERS = 3
FAULTS = 0.03  # the share of faulty requests
LONGEST = 900  # seconds to wait for a process, or for missing work
LIGHT, HEAVY = (4.0, 10.0), (45.0, 90.0)  # seconds between two kills of processes without, with JVM


@dataclass
class Place:
    """A lake's root, the variables of the processes that use it, and the faults of its store."""

    root: str
    variables: dict[str, str] = field(default_factory=dict)
    proxy: FaultProxy | None = None
    faults: int = 0

    def begin_faults(self) -> None:
        if self.proxy is not None:
            noise = RandomFaults(random.randrange(10**6), FAULTS)

            def count(request: Request) -> Fault:
                fault = noise(request)
                self.faults += fault != Fault()
                return fault

            self.proxy.faults = count


@pytest.fixture(params=["local", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "local":
        yield Place(str(tmp_path / "lake"))
        return
    with ExitStack() as stack:
        server = S3Server()
        stack.callback(server.close)
        proxy = FaultProxy(server.port)
        stack.callback(proxy.close)
        for name, value in server.variables().items():
            monkeypatch.setenv(name, value)
        yield Place(f"s3://{BUCKET}/{uuid.uuid4().hex}", server.variables(proxy.port), proxy)


class Actor:
    """A process that is started again after each kill."""

    def __init__(self, place: Place, folder: Path, kind: str, number: int = 0) -> None:
        self.kind, self.number, self.kills, self.done_at_kill = kind, number, 0, 0
        self.log, self.output = (folder / f"{kind}-{number}{end}" for end in (".log", ".txt"))
        arguments = [
            kind,
            place.root,
            str(self.log),
            *([str(number)] if kind == "publisher" else []),
        ]
        self._command = [sys.executable, "-m", "helpers.chaos_program", *arguments]
        paths = os.pathsep.join([str(PROJECT / "lib"), str(PROJECT / "tests")])
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            **os.environ,
            **place.variables,
            "PYTHONPATH": paths,
            "MIRRORLAKE_PROFILE": "small",
        }

    def printed(self) -> str:
        """Return the output of all processes of this actor."""
        return self.output.read_text(errors="replace")

    def count_done(self) -> int:
        """Return the number of completed operations."""
        return sum("done" in entry for entry in entries(self.log))

    def start(self) -> None:
        with self.output.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=out, stderr=out, start_new_session=True
            )

    def await_work(self) -> None:
        """Wait until the process has completed an operation."""
        end = time.monotonic() + LONGEST
        while not self.count_done():
            assert self._process is not None
            assert self._process.poll() is None, self.printed()[-3000:]
            assert time.monotonic() < end, self.printed()[-3000:]
            time.sleep(0.1)  # the log of another process raises no event

    def kill(self) -> None:
        """Kill the process with its JVM; it must still run."""
        assert self._process is not None
        assert self._process.poll() is None, self.printed()[-3000:]
        self.end()
        self.kills += 1
        if self.kills == 1:
            self.done_at_kill = self.count_done()

    def end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait(self) -> None:
        """Wait until the process ends by itself."""
        assert self._process is not None
        assert self._process.wait(LONGEST) == 0, self.printed()[-3000:]


def has_worked(actors: list[Actor]) -> bool:
    """Check whether each kind of operation was done twice, and each process worked after a kill.

    A publisher must have completed a batch of a killed process by its token.
    """
    lines = [entry for actor in actors for entry in entries(actor.log)]
    done = Counter(entry.get("done") for entry in lines)
    return (
        min(done[kind] for kind in ("publish", "cycle", "read", *MAINTENANCE)) >= 2
        and all(actor.kills and actor.count_done() > actor.done_at_kill for actor in actors)
        and any(entry.get("repeated") for entry in lines)
    )


def kill_at_random(actors: list[Actor]) -> None:
    """Kill and restart the actors, each group in rounds of a random order.

    It takes longer than `SECONDS` if the machine is too slow for some work of each kind.
    """
    groups = [
        (LIGHT, [a for a in actors if a.kind in ("publisher", "reader")]),
        (HEAVY, [a for a in actors if a.kind in ("mirror", "maintenance")]),
    ]
    now = time.monotonic()
    end, due = now + SECONDS, [now + random.uniform(*pause) for pause, _ in groups]
    rounds: list[list[Actor]] = [[], []]
    while min(due) < end or not has_worked(actors):
        assert time.monotonic() < end + LONGEST, "too little work was done"
        group = due.index(min(due))
        time.sleep(max(0.0, due[group] - time.monotonic()))
        pause, members = groups[group]
        rounds[group] = rounds[group] or random.sample(members, len(members))
        actor = rounds[group].pop()
        actor.kill()
        actor.start()
        due[group] = time.monotonic() + random.uniform(*pause)


Logs = dict[tuple[str, int], list[dict[str, Any]]]


def summarize(place: Place, actors: list[Actor], logs: Logs) -> dict[str, Any]:
    """Return the number of operations, failures, kills and faults by kind."""
    lines = [entry for log in logs.values() for entry in log]
    failed = Counter(f"{e['failed']}: {e['error'].split(':')[0]}" for e in lines if "failed" in e)
    kills: Counter[str] = Counter()
    for actor in actors:
        kills[actor.kind] += actor.kills
    return {
        "place": place.root.split(":")[0] if place.variables else "local",
        "seconds": SECONDS,
        "done": dict(Counter(e["done"] for e in lines if "done" in e)),
        "applying cycles": sum(e.get("files", 0) > 0 for e in lines),
        "completed by token": sum(e.get("repeated", False) for e in lines),
        "failed": dict(failed),
        "kills": dict(kills),
        "faults": place.faults,
    }


def batches_by_file(logs: Logs) -> dict[int, list[Change]]:
    """Return the changes of each file; check that each batch is in one file, and their order."""
    found: dict[int, list[Change]] = {}
    for writer in range(WRITERS):
        done = [entry for entry in logs["publisher", writer] if "done" in entry]
        numbers = [file_number(entry["file"]) or 0 for entry in done]
        assert numbers == sorted(set(numbers))
        assert [entry["turn"] for entry in done] == list(range(1, len(done) + 1))
        for number, entry in zip(numbers, done, strict=True):
            assert number not in found, f"file {number} has two batches"
            found[number] = new_batch(writer, entry["turn"])
    assert sorted(found) == list(range(1, len(found) + 1))
    return found


def rows_by_version(lake: Lake, batches: dict[int, list[Change]]) -> dict[int, Counter[Row]]:
    """Return the expected rows of each version, whose log contains the number of its last file."""
    table, model, last = lake.table("t"), TableModel(("id",)), 0
    found = {}
    for version in range(table.version + 1):
        snapshot = read_snapshot(lake.storage, table.name.table_path, version)
        assert snapshot is not None
        upto = max(snapshot.txns.values(), default=0)
        assert upto >= last, f"version {version} ends with file {upto}, before {last}"
        for number in range(last + 1, upto + 1):
            model.apply_all(batches[number])
        found[version], last = model.bag(COLUMNS), upto
    assert last == len(batches)
    return found


def check_history(lake: Lake, logs: Logs, settled: dict[str, Any]) -> dict[str, int]:
    """Prove the history; return the number of versions, and of those read from their files."""
    versions = rows_by_version(lake, batches_by_file(logs))
    newest = max(versions)
    final = bag(lake, "t", COLUMNS)
    check_equal("the final rows", final, versions[newest])
    assert max(final.values()) == 1
    status = lake.status()
    assert not status.problems, status.problems
    assert [line.backlog_files for line in status.tables] == [0]

    found = lake.table("t").readable_range()
    for version in range(found.earliest, newest + 1):
        check_equal(f"version {version}", bag(lake, "t", COLUMNS, version), versions[version])
    reads = [entry for entry in logs["reader", 0] if "done" in entry]
    for entry in reads:
        version = entry["version"]
        assert set(entry["digests"]) == {digest(versions[version].elements())}, version

    assert settled["ranges"] == [[0, newest]]
    feed = Counter(tuple(row) for row in settled["feed"])
    check_fold(feed, versions)
    check_order(feed)
    check_fold(bag(lake, ARCHIVE, ["_commit_version", "_change_type", *COLUMNS]), versions)
    check_periods(bag(lake, DIMENSION, [*COLUMNS, "__START_AT", "__END_AT"]), versions)
    assert settled["differences"] == dict.fromkeys(VIEWS, 0)
    for kind in VIEWS:
        columns = [
            name for name in lake.table(f"view_{kind}").schema.names if not name.startswith(HIDDEN)
        ]
        expected = views_model.VIEWS[kind][2](list(final.elements()), [])
        check_equal(kind, bag(lake, f"view_{kind}", columns), expected)
    read = {entry["version"] for entry in reads} | set(range(found.earliest, newest + 1))
    return {"versions": len(versions), "versions read": len(read), "rows": final.total(),
            "changes": feed.total()}  # fmt: skip


def check_order(feed: Counter[Row]) -> None:
    """Check that `x` of each key only grows."""
    last: dict[int, int] = {}
    for _, kind, _, key, _, x in sorted(feed, key=lambda change: change[0]):
        if kind in ("insert", "update_postimage"):
            assert x > last.get(key, -1), f"{x} of key {key} after {last[key]}"
            last[key] = x


def test_histories_under_chaos(place: Place, tmp_path: Path) -> None:
    kinds = [*(("publisher", n) for n in range(WRITERS)), ("mirror", 0), ("mirror", 1),
             ("maintenance", 0), ("reader", 0)]  # fmt: skip
    actors = [Actor(place, tmp_path, *one) for one in kinds]
    place.begin_faults()
    try:
        for group in (actors[:WRITERS], actors[WRITERS:-2], actors[-2:]):  # each needs the former
            for actor in group:
                actor.start()
            for actor in group:
                actor.await_work()
        kill_at_random(actors)
    finally:
        for actor in actors:
            actor.end()
    if place.proxy is not None:
        place.proxy.faults = lambda _request: Fault()
    lake = Lake(place.root)
    for number in range(WRITERS):
        publish(lake, Log(actors[number].log), number, only_complete=True)
    settle = Actor(place, tmp_path, "settle")
    settle.start()
    settle.wait()
    logs = {(a.kind, a.number): entries(a.log) for a in actors}
    summary = summarize(place, actors, logs)
    try:
        summary |= check_history(lake, logs, json.loads(settle.log.read_text()))
    finally:
        print(json.dumps(summary))
    if place.proxy is None:
        lost = [what for what in summary["failed"] if what.startswith(("publish:", "read:"))]
        assert not lost, lost
    else:
        assert place.faults > 0
    for actor in actors:
        assert SECRET not in actor.printed() + actor.log.read_text()
