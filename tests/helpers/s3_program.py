"""What one does with a lake, on S3: run as a process of its own, prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from helpers.notebooks import TOOLS, tool_parameters
from helpers.partition_tables import PAST, hashed
from helpers.scale import counted
from helpers.story import Story, ordered
from mirrorlake import Lake
from mirrorlake.delta.table import create_delta
from mirrorlake.errors import BusyError
from mirrorlake.names import TableName
from mirrorlake.partitioning import operation
from mirrorlake_runs import run_plan

LOG = "MIRRORLAKE_TEST_LOG"
FILES = (2, 12)
POLICY: dict[str, Any] = {"PartitionKeys": [hashed(4)], **PAST}
PLAN: dict[str, Any] = {
    "name": "remote",
    "steps": [
        {"notebook": "mirror"},
        {"notebook": "query", "parameters": {"sql": "SELECT count(*) AS n FROM items"}},
    ],
}


def rows(lake: Lake) -> list[list[object]]:
    found = lake.sql("SELECT id, n FROM items ORDER BY id").collect()
    return [list(row) for row in found]


def work(root: str) -> dict[str, object]:
    lake = Lake(root)
    items = lake.publisher("items", keys=["id"])
    items.upsert([{"id": one, "n": 0} for one in range(5)])
    first = lake.mirror()
    items.upsert([{"id": 1, "n": 1}])
    items.delete([{"id": 4}])
    lake.mirror()
    seen: dict[str, object] = {"errors": [t.error for t in first.tables], "rows": rows(lake)}
    table = lake.table("items")
    seen["at 1"] = table.read(version=1).count()
    table.optimize.compact()
    lake.storage.delete_folder("Files/LandingZone/items")
    seen["dropped"] = list(lake.mirror().dropped)
    seen["tables"] = [str(name) for name in lake.tables()]
    lake.operations.undrop("items")
    seen["back"] = rows(lake)
    items = lake.publisher("items", keys=["id"])
    items.upsert([{"id": 2, "n": 2}])
    seen["after"] = [table.error for table in lake.mirror().tables]
    seen["last"] = rows(lake)
    return seen


def tour(root: str) -> dict[str, object]:
    """Everything else that one does with a lake; each step's outcome, or what went wrong."""
    lake, story = Lake(root), Story()
    step = story.step
    items = lake.publisher("items", keys=["id"])

    def mirror() -> object:
        items.upsert([{"id": one, "n": 0} for one in range(5)])
        lake.mirror()
        items.upsert([{"id": 1, "n": 1}])
        items.delete([{"id": 4}])
        return [table.error for table in lake.mirror().tables]

    def framed() -> object:
        frame = lake.frames.create("model", ["items"])
        return [frame.state, lake.frames.read("model", "items").count()]

    def viewed() -> object:
        lake.views.create("sums", "SELECT n, count(*) AS c FROM items GROUP BY n")
        lake.views.refresh("sums")
        found = sorted(list(row) for row in lake.views.read("sums").select("n", "c").collect())
        return [found, lake.views.drop("sums", apply=True).applied]

    def archived() -> object:
        lake.archive("items", "kept")
        items.upsert([{"id": 3, "n": 3}])
        lake.mirror()
        lake.archive("items", "kept")
        return lake.table("kept").read().count()

    def dimension() -> object:
        lake.update_dimension("items", "dim", stored_as=2)
        return lake.table("dim").read().count()

    def forgotten() -> object:
        lake.forget("items", {"id": 1}, apply=True)
        return rows(lake)

    def vacuumed() -> object:
        lake.table("items").vacuum(retention_hours=0, allow_short=True, apply=True)
        return len(rows(lake))

    def created_again() -> object:
        lake.write("notes", [{"id": 1}])
        lake.sql("DROP TABLE notes")
        lake.create_table("notes", {"id": "bigint"})
        return lake.table("notes").read().count()

    def recorded() -> object:
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "remote.yaml"
            plan.write_text(yaml.safe_dump(PLAN))
            os.environ["MIRRORLAKE_HOME"] = folder
            out = lake.storage.path("Files/runs/1")
            summary = run_plan(plan, out, overrides={"root": root})
        kept = lake.storage.read_json("Files/runs/1/summary.json")
        return [[step.status for step in summary.steps], kept["status"]]

    step("mirror", mirror)
    table = lake.table("items")
    step("rows", lambda: rows(lake))
    step("lint", lambda: len(lake.lint().findings))
    step("status", lambda: [line.state for line in lake.status().tables])
    step("history", lambda: len(table.history(1_000).commits))
    step("at a moment", lambda: table.read(version=1).count())
    step("diff", lambda: table.diff(1, 2).count())
    step("feed", lambda: table.changes.read(2, 2).count())
    step("analyze", lambda: table.analyze().summary["Row Count"])
    step("vorder", lambda: ordered(lake))
    step("compact", lambda: table.optimize.compact() is not None)
    step("frame", framed)
    step("row ids", lambda: table.row_tracking.read().count())
    step("view", viewed)
    step("archive", archived)
    step("dimension", dimension)
    step("partition", lambda: partition(lake))
    step("fence", lambda: fenced(lake))
    step("reconcile", lambda: len(lake.reconcile().findings))
    step("restore", lambda: table.restore(1, apply=True).applied)
    step("restored", lambda: rows(lake))
    step("forget", forgotten)
    step("vacuum", vacuumed)
    step("create again", created_again)
    step("runs", recorded)
    return story.seen


def files(root: str) -> dict[str, object]:
    """The requests of cycles with few and with many small files, by the server's own log."""
    lake, seen = Lake(root), {}
    publisher = lake.publisher("items", keys=["id"])
    for count in (1, *FILES):  # the first cycle starts Spark and makes the table
        for _ in range(count):
            publisher.upsert([{"id": one, "n": 0.5} for one in range(20)])
        with counted(Path(os.environ[LOG])) as found:
            report = lake.mirror()
        assert not report.failed, report
        seen[str(count)] = found.total
    return seen


def numbered(start: int, end: int) -> list[dict[str, object]]:
    return [{"k": f"key {number % 7}", "n": number} for number in range(start, end)]


def tools(root: str) -> dict[str, object]:
    """Every tool on one table, by papermill; how each went."""
    items = Lake(root).publisher("items", keys=["id"])
    items.upsert([{"id": one, "n": 0} for one in range(5)])
    Lake(root).mirror()
    items.upsert([{"id": 1, "n": 1}])
    Lake(root).mirror()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "incoming").mkdir()
        (Path(folder) / "incoming" / "new.csv").write_text("id,n\n1,2\n")
        os.environ["MIRRORLAKE_HOME"] = folder
        steps = [
            {"notebook": tool, "needs": [], "parameters": tool_parameters(tool, root, "items")}
            for tool in TOOLS
        ]
        plan = Path(folder) / "tools.yaml"
        plan.write_text(yaml.safe_dump({"name": "tools", "one_spark": True, "steps": steps}))
        summary = run_plan(plan, f"{root}/Files/runs/tools")
    return {step.notebook: step.error or step.status for step in summary.steps}


def partition(lake: Lake) -> object:
    """A policy, an operation, and what the process says of itself."""
    for start in (0, 50):
        lake.write("p", numbered(start, start + 50))
    table = lake.table("p")
    table.partitioning.set(POLICY)
    table.partitioning.operate()
    stats = table.partitioning.stats()
    at_work = lake.partitioning.diagnostics().operations_in_progress
    return [stats.pending_rows, table.read().count(), at_work]


def fenced(lake: Lake) -> object:
    """An operation that is slow: another process takes it for dead, and cleans up after it."""
    lake.write("p", numbered(100, 150))
    table, name = lake.table("p"), TableName(None, "p")
    takeovers = []

    def on_step(_table: TableName, done: operation.Step) -> None:
        if done is operation.Step.RECORDED and not takeovers:
            takeovers.append(done)
            operation.recover(lake.storage, name, partial(operation.fence_off, table))

    try:
        table.partitioning.operate(on_step=on_step)
        refused = False
    except BusyError:
        refused = True
    left = [one for one in table.partitioning.receipts() if one.version == -1]
    there = [lake.storage.exists(f"{name.table_path}/{path}") for path in left[0].files_out]
    again = table.partitioning.operate()
    total = lake.sql("SELECT count(*), sum(n) FROM p").collect()[0]
    return [refused, len(left), any(there), again is not None, *total]


def least(root: str) -> dict[str, object]:
    """The least of a lake, for a Connect client."""
    lake = Lake(root)
    lake.publisher("items", keys=["id"]).upsert([{"id": 1, "n": 0}])
    report = lake.mirror()
    return {"rows": rows(lake), "errors": [table.error for table in report.tables]}


def append(root: str, writer: int, count: int) -> dict[str, object]:
    lake = Lake(root)
    path = lake.storage.path("Tables/shared")
    create_delta(lake.spark, path, {"w": "INT", "n": "INT"}, {})  # both drivers at once
    done = 0
    for number in range(count):
        lake.spark.sql(f"INSERT INTO delta.`{path}` VALUES ({writer}, {number})")
        done += 1
    return {"done": done}


def count(root: str) -> dict[str, object]:
    lake = Lake(root)
    path = lake.storage.path("Tables/shared")
    (row,) = lake.spark.sql(f"SELECT count(*), count(DISTINCT w, n) FROM delta.`{path}`").collect()
    return {"rows": row[0], "distinct": row[1]}


def begin(root: str) -> dict[str, object]:
    lake = Lake(root)
    lake.publisher("t").insert([{"k": "none", "w": -1, "n": 0}])
    lake.mirror()
    lake.table("t").partitioning.set(POLICY)
    return {}


def publish(root: str, writer: int, seconds: int) -> dict[str, object]:
    """Inserts rows, each once; how many."""
    publisher, number, end = Lake(root).publisher("t"), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        some = range(number, number + 10)
        publisher.insert([{"k": f"{writer}-{n % 5}", "w": writer, "n": n} for n in some])
        number += 10
        time.sleep(0.5)
    return {"rows": number}


def watch(root: str, seconds: int) -> dict[str, object]:
    """Mirrors; failures that pass are told."""
    lake, stop, told = Lake(root), threading.Event(), []
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    lake.watch(stop, interval=1, on_report=lambda report: told.extend(report.failed))
    return {"failed": [str(line.error) for line in told]}


def tidy(root: str, seconds: int) -> dict[str, object]:
    """An OPTIMIZE and a partitioning side by side."""
    lake, end = Lake(root), time.monotonic() + seconds
    done, passed = {"optimized": 0, "partitioned": 0}, []
    lake.spark.range(1).count()

    def repeat(what: str, do: Callable[[], object]) -> None:
        while time.monotonic() < end:
            try:
                do()
                done[what] += 1
            except Exception as error:
                passed.append(f"{what}: {str(error)[:200]}")
            time.sleep(1)

    name = lake.table("t").sql_name

    def optimize() -> None:
        lake.spark.newSession().sql(f"OPTIMIZE {name}").collect()

    threads = [
        threading.Thread(target=repeat, args=("optimized", optimize)),
        threading.Thread(target=repeat, args=("partitioned", lake.table("t").partitioning.operate)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {**done, "passed": passed}


def settle(root: str) -> dict[str, object]:
    """What there is once all have ended."""
    lake = Lake(root)
    report = lake.mirror()
    lake.table("t").partitioning.operate()
    (found,) = lake.sql("SELECT count(*) r, count(DISTINCT w, n) d, sum(n) s FROM t").collect()
    return {
        "failed": [str(line.error) for line in report.failed],
        "rows": found["r"],
        "distinct": found["d"],
        "sum": found["s"],
    }


PROGRAMS: dict[str, Callable[..., dict[str, object]]] = {
    one.__name__: one
    for one in (work, tour, tools, least, files, append, count, begin, publish, watch, tidy, settle)
}

if __name__ == "__main__":
    what, at, *numbers = sys.argv[1:]
    print(json.dumps(PROGRAMS[what](at, *map(int, numbers)), default=str))
