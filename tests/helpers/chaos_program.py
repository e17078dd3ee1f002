"""Processes of the chaos test: publisher, mirror, maintenance, reader, and `settle` for the end.

Each process runs until it is killed, and logs each completed operation as one line of JSON. A new
process continues with the log of the killed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from helpers import views_model
from helpers.feed_model import Row
from helpers.markers import MARKER, Marker
from helpers.model import Change
from helpers.tables import bag
from mirrorlake import Lake

COLUMNS = list(views_model.COLUMNS["t"])
TYPES = {"example": "long", "id": "long", "g": "string", "x": "long"}
ARCHIVE, DIMENSION = "t_archive", "t_dimension"
VIEWS = ("rows", "sums", "extremes")
OWN_KEYS = 1_000_000  # publisher n has the keys around n * OWN_KEYS
KEPT_TURNS = 200  # a key is deleted this many turns after its insert
PROCESSED_DAYS = 5 / 24 / 60  # a token is known for 5 minutes, so a batch must be completed before
RETENTION_HOURS = 5 / 60  # longer than a commit takes, also on a busy machine


class Log:
    """The log of one process and of those that continue it; each line is on the disk.

    Args:
        path: the path of the log. A line that a kill has cut off is removed.

    Attributes:
        started: the number of started operations, if they are logged.
        done: the number of completed operations by kind.
        tried: the number of completed and failed operations by kind.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._path = path
        self.started = 0
        self.done: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        for entry in entries(path):
            self._count(entry)

    def _count(self, entry: dict[str, Any]) -> None:
        self.started += "started" in entry
        self.done.update([entry["done"]] if "done" in entry else [])
        self.tried.update([entry[end] for end in ("done", "failed") if end in entry])

    def write(self, **entry: Any) -> None:
        """Append a line."""
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(entry).encode() + b"\n")
            os.fsync(file.fileno())
        self._count(entry)

    def attempt(self, kind: str, do: Callable[[], object]) -> None:
        """Run an operation, and log that it is done, or why it failed."""
        try:
            found = do()
        except Exception as error:
            self.write(failed=kind, error=f"{type(error).__name__}: {error}"[:1000])
            time.sleep(0.5)
        else:
            self.write(done=kind, **(found if isinstance(found, dict) else {}))


def entries(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def digest(rows: Iterable[Row]) -> str:
    """Return a hash of rows that does not depend on their order."""
    return hashlib.sha256(repr(sorted(rows, key=repr)).encode()).hexdigest()


def new_batch(writer: int, turn: int) -> list[Change]:
    """Return the changes of a publisher's turn: an insert of the turn as a key, and others.

    It deletes an old key, and changes recent ones. `x` grows with each change of a publisher. If
    the batch were applied twice, the inserted row would exist twice.
    """
    chance = random.Random(f"{writer} {turn}")
    recent = range(max(1, turn - KEPT_TURNS // 2), turn + 1)
    changes = [(Marker.INSERT, turn), (Marker.DELETE, turn - KEPT_TURNS)]
    changes += [
        (chance.choice([Marker.UPSERT, Marker.UPDATE, Marker.DELETE]), chance.choice(recent))
        for _ in range(6)
    ]

    def row(place: int, key: int) -> dict[str, Any]:
        g = chance.choice([None, "a", "b"])
        return {"example": key % 3, "id": writer * OWN_KEYS + key, "g": g, "x": 10 * turn + place}

    return [(kind, row(place, key)) for place, (kind, key) in enumerate(changes)]


def publish(lake: Lake, log: Log, writer: int, *, only_complete: bool = False) -> None:
    """Publish one batch after another; first complete the batch of a killed process by its token.

    Args:
        lake: the lake.
        log: the log of the publisher.
        writer: the number of the publisher.
        only_complete: publish no new batch.
    """

    open_publisher = cache(lambda: lake.publisher("t", keys=["id"], types=TYPES))

    def send() -> dict[str, Any]:
        rows = [{**row, MARKER: int(kind)} for kind, row in new_batch(writer, log.started)]
        done = open_publisher().write(rows, token=f"{writer} {log.started}")
        time.sleep(random.uniform(0, 0.4))  # a kill now leaves a batch that is not acknowledged
        return {"turn": log.started, "file": done.file, "repeated": done.repeated}

    if only_complete:
        if log.done["publish"] < log.started:
            log.write(done="publish", **send())
        return
    while True:
        if log.done["publish"] == log.started:
            time.sleep(random.uniform(0.5, 2))  # leave the cores to the JVMs
            log.write(started=log.started + 1)
        log.attempt("publish", send)


def mirror(lake: Lake, log: Log) -> None:
    """Run one cycle of the mirror after another."""

    def cycle() -> dict[str, Any]:
        report = lake.mirror(compact_after=5, keep_processed_days=PROCESSED_DAYS)
        report.check()
        return {"files": report.files}

    while True:
        log.attempt("cycle", cycle)
        time.sleep(random.uniform(0, 3))  # the other mirror, or a rewrite, commits meanwhile


def refresh_views(lake: Lake) -> None:
    existing = {str(view.name) for view in lake.views.list()}
    for kind in VIEWS:
        if f"view_{kind}" in existing:
            lake.views.refresh(f"view_{kind}")
        else:
            lake.views.create(f"view_{kind}", views_model.VIEWS[kind][1])


MAINTENANCE: dict[str, Callable[[Lake], object]] = {
    "archive": lambda lake: lake.table("t").archive(ARCHIVE),
    "dimension": lambda lake: lake.table("t").dimension(DIMENSION, stored_as=2),
    "views": refresh_views,
    "compact": lambda lake: lake.table("t").optimize.compact(),
    "vorder": lambda lake: lake.table("t").optimize.vorder(),
    "vacuum": lambda lake: lake.table("t").vacuum(
        retention_hours=RETENTION_HOURS, feed_hours=24, allow_short=True, apply=True
    ),
}


def maintain(lake: Lake, log: Log) -> None:
    """Run the maintenance operations; next is one of those that were tried least often."""
    while True:
        least = min(log.tried[kind] for kind in MAINTENANCE)
        kind = random.choice([kind for kind in MAINTENANCE if log.tried[kind] == least])
        log.attempt(kind, partial(MAINTENANCE[kind], lake))


def read(lake: Lake, log: Log) -> None:
    """Read the newest version twice, the second time after newer commits."""

    def twice() -> dict[str, Any]:
        version = lake.table("t").version
        rows = bag(lake, "t", COLUMNS, version)
        time.sleep(random.uniform(1, 4))
        again = bag(lake, "t", COLUMNS, version)
        return {"version": version, "digests": [digest(r.elements()) for r in (rows, again)]}

    while True:
        log.attempt("read", twice)


def settle(lake: Lake) -> dict[str, Any]:
    """Mirror and maintain what is left, alone; return the feed, and the differences of views."""
    while lake.mirror().files:
        pass
    for run in MAINTENANCE.values():
        run(lake)
    changes = lake.table("t").changes
    columns = ["_commit_version", "_change_type", *COLUMNS]
    ranges = changes.diagnose().readable
    feed = [
        row for start, end in ranges for row in changes.read(start, end).select(columns).collect()
    ]
    differences = {kind: lake.views.check(f"view_{kind}").differences for kind in VIEWS}
    return {"ranges": ranges, "feed": feed, "differences": differences}


def main() -> None:
    what, root, path, *number = sys.argv[1:]
    lake = Lake(root)
    if what == "settle":
        Path(path).write_text(json.dumps(settle(lake)))
    else:
        PROGRAMS[what](lake, Log(Path(path)), *map(int, number))


PROGRAMS: dict[str, Callable[..., None]] = {
    "publisher": publish,
    "mirror": mirror,
    "maintenance": maintain,
    "reader": read,
}

if __name__ == "__main__":
    main()
