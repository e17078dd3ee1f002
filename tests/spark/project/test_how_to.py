"""The commands of the pages in docs/how-to, as a reader would paste them: in order.

Only `/data/`, hosts and DSNs are replaced. The pages on clusters and on other versions of Spark are
run by their own tests.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from helpers.environments import bare_environment
from helpers.pages import blocks, in_shell, make_launcher
from helpers.ports import free_port
from helpers.postgres import PostgresServer
from helpers.project import PROJECT
from helpers.s3_server import BUCKET, S3Server
from helpers.small_notebooks import RECORD, put_notebook
from mirrorlake import Lake
from mirrorlake_runs.plan import load_plan

RUN_HERE = {
    *("any-publisher", "database", "dimension", "every-night", "forget", "publish", "s3"),
    *("old-versions", "stopped-table", "undo"),
}
# By the tests of these subjects:
RUN_ELSEWHERE = {"cluster", "csv", "other-sparks", "read-elsewhere"}
_CRONTAB = """#!/bin/sh
# cron's program: prints the table, or reads it
table=$(dirname "$0")/table
if [ "$1" = -l ]; then cat "$table"; else cat >"$table.new" && mv "$table.new" "$table"; fi
"""


def test_every_page_with_commands_is_run() -> None:
    pages = {path.stem for path in (PROJECT / "docs" / "how-to").glob("*.md")}
    found = {page for page in pages if blocks(f"how-to/{page}", "sh", "python")}
    assert found <= RUN_HERE | RUN_ELSEWHERE


def test_publish(tmp_path: Path) -> None:
    for block in blocks("how-to/publish", "python", data=tmp_path):
        exec(compile(block, "publish.md", "exec"), {"__name__": "page"})
    assert Lake(tmp_path / "lake").status().tables[0].backlog_files == 3
    page = (PROJECT / "docs" / "how-to" / "publish.md").read_text(encoding="utf-8")
    make_launcher(tmp_path)
    (tmp_path / "orders.csv").write_text("id,item,price\n2,nut,1.50\n")
    lines = re.findall(r"`(\./mirrorlake [^`\n]+)`", page)
    assert len(lines) == 2
    for line in lines:
        command = line.replace("/data/", f"{tmp_path}/").replace("ROOT", f"{tmp_path}/new")
        in_shell(command, tmp_path, {})


@pytest.fixture
def commands(run: Any, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a page's commands in this process and returns their output."""

    def call(page: str) -> str:
        lines = "".join(blocks(f"how-to/{page}", "sh", data=tmp_path)).replace("\\\n", " ")
        shown = ""
        for line in lines.splitlines():
            if words := shlex.split(line, comments=True):
                assert words[0] == "./mirrorlake"
                shown += run(*words[1:]).out
        return shown

    return call


@pytest.mark.long
def test_dimension_and_forget(commands: Callable[..., str], tmp_path: Path) -> None:
    """Both pages on one lake."""
    lake = Lake(tmp_path / "lake")
    customers = lake.publisher("customers", keys=["id"])
    customers.upsert([{"id": 4711, "name": "Ada"}, {"id": 4712, "name": "Bob"}])
    events = [{"id": 1, "changed_at": n, "op": "u", "city": f"c{n}"} for n in (2, 1)]
    lake.publisher("events").write(events)
    assert not lake.mirror().failed
    commands("dimension")
    assert "a second search found nothing" in commands("forget")
    archive = lake.storage.local / "Tables" / "customers_history"
    assert lake.sql("SELECT name FROM customers_history").collect() == [("Bob",)]
    assert pq.read_table([*archive.glob("*.parquet")], columns=["id"]).to_pydict() == {"id": [4712]}
    by_event = lake.sql("SELECT city FROM dim_customers_by_event ORDER BY __START_AT").collect()
    assert by_event == [("c1",), ("c2",)]

    log, yesterday = archive / "_delta_log", time.time() - 86_400
    for file in log.iterdir():
        os.utime(file, (yesterday, yesterday))
    lake.sql(
        "ALTER TABLE customers_history SET TBLPROPERTIES ("
        "'delta.logRetentionDuration' = 'interval 0 days', 'delta.checkpointInterval' = '1',"
        "'delta.deletedFileRetentionDuration' = 'interval 0 days')"
    )
    files = [file.read_bytes() for file in log.rglob("*") if file.is_file()]
    assert not any(text in data for data in files for text in (b"Ada", b"= 4711"))


@pytest.mark.long
def test_undo(commands: Callable[..., str], tmp_path: Path) -> None:
    """The rows of files 1 and 3 remain; those of file 2 are reverted, and file 4 is skipped."""
    lake = Lake(tmp_path / "lake")
    orders = lake.publisher("orders", keys=["id"])
    for rows in ([{"id": 1, "n": 1}, {"id": 2, "n": 1}], [{"id": 2, "n": 2}], [{"id": 3, "n": 3}]):
        orders.upsert(rows)
        assert not lake.mirror().failed
    orders.delete([1])
    commands("undo")
    table, expected = lake.table("orders"), [(1, 1), (2, 1), (3, 3)]
    assert sorted(map(tuple, table.read().collect())) == expected
    lake.publisher("orders").upsert([{"id": 2, "n": 4}])
    for block in blocks("how-to/undo", "python", data=tmp_path):
        exec(compile(block, "undo.md", "exec"), {"__name__": "page"})
    assert not lake.mirror().failed
    assert sorted(map(tuple, table.read().collect())) == expected


@pytest.mark.long
def test_old_versions(commands: Callable[..., str], tmp_path: Path) -> None:
    """The files of the log get the times of the page."""
    lake = Lake(tmp_path / "lake")
    orders = lake.publisher("orders", keys=["id"])
    for rows in ([{"id": 1, "n": 1}, {"id": 2, "n": 1}], [{"id": 2, "n": 2}]):
        orders.upsert(rows)
        assert not lake.mirror().failed
    log = tmp_path / "lake" / "Tables" / "orders" / "_delta_log"
    for version, day in enumerate((1, 1, 2)):
        at = datetime(2026, 3, day, 12, version, tzinfo=timezone.utc).timestamp()
        os.utime(log / f"{version:020d}.json", (at, at))
    assert "sales" in commands("old-versions")
    orders.upsert([{"id": 3, "n": 3}])
    assert not lake.mirror().failed
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks("how-to/old-versions", "python", data=tmp_path):
        exec(compile(block, "old-versions.md", "exec"), names)
    assert names["first"].collect() == [(2, 1)]
    assert sorted(names["then"]["n"]) == [1, 1]
    assert names["report"].collect() == [(2,)]
    assert names["total"].collect() == [(3,)]
    assert sorted(map(tuple, names["pinned"].collect())) == [(1, 1), (2, 2)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("Correct the file", {(1, 1), (2, 2), (3, 3), (4, 4)}),
        ("Leave out the invalid rows", {(1, 1), (2, 2), (3, 3)}),
        ("Leave out the file", {(1, 1), (2, 2)}),
        ("Publish applied files again", {(1, 1), (2, 2)}),
        ("Load the table again", {(9, 9)}),
        ("Recreate the table", {(9, 9)}),
    ],
)
def test_stopped_table(
    choice: str, expected: set[tuple[int, int]], run: Any, tmp_path: Path
) -> None:
    """Each choice of the page, on a table whose second file has a row without a key."""
    see, *fixes = blocks("how-to/stopped-table", "sh", data=tmp_path)
    page = (PROJECT / "docs" / "how-to" / "stopped-table.md").read_text(encoding="utf-8")
    fix = dict(zip(re.findall("^### (.*)", page, re.M), fixes, strict=True))[choice]
    lake = Lake(tmp_path / "lake")
    lake.publisher("orders", keys=["id"]).write([{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    assert not lake.mirror().failed
    rows = {"id": [3, None], "n": [3, 4], "__rowMarker__": pa.array([4, 4], pa.int32())}
    folder = tmp_path / "lake" / "Files" / "LandingZone" / "orders"
    pq.write_table(pa.table(rows), folder / f"{2:020d}.parquet")
    rows["id"] = [3, 4]
    pq.write_table(pa.table(rows), tmp_path / "corrected.parquet")
    pq.write_table(pa.table({"id": [9], "n": [9]}), tmp_path / "orders.parquet")
    assert lake.mirror().failed
    for line in see.splitlines():
        assert "orders" in run(*shlex.split(line, comments=True)[1:], status=1).out
    for line in fix.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "./mirrorlake":
            run(*arguments)
        else:
            subprocess.run([program, *arguments], check=True)
    found = lake.table("orders").read().select("id", "n").collect()
    assert {*map(tuple, found)} == expected


def test_steps_that_a_page_adds_to_the_plan(tmp_path: Path) -> None:
    (steps,) = blocks("how-to/dimension", "yaml")
    plan = (PROJECT / "parameters" / "plans" / "nightly.yaml").read_text(encoding="utf-8")
    (tmp_path / "nightly.yaml").write_text(f"{plan}\n{steps}")
    assert len(load_plan(tmp_path / "nightly.yaml").steps) == 4 + len(yaml.safe_load(steps))


def test_every_night(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """The page's cron line runs the plan with an empty environment, and `runs list` shows it.

    A quick run replaces the edited plan by one without Spark, and skips the first block.
    """
    first, limited, copy, line, listed = blocks("how-to/every-night", "sh", data=tmp_path)
    (edited,) = blocks("how-to/every-night", "yaml")
    make_launcher(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, source in (("crontab", _CRONTAB), ("logger", "#!/bin/sh\ncat >/dev/null\n")):
        (programs / name).write_text(source)
        (programs / name).chmod(0o755)
    (programs / "table").write_text("0 1 * * * true\n")
    Lake(tmp_path / "lake").publisher("t", keys=["id"]).upsert([{"id": 1}])
    environment = bare_environment(tmp_path) | {"PATH": f"{programs}:{os.environ['PATH']}"}
    if is_long := pytestconfig.getoption("--long"):
        in_shell(first, tmp_path, environment)
        in_shell(limited, tmp_path, environment)
    else:
        put_notebook(tmp_path, "n", RECORD, head='rows: int = 1\nword: str = "a"\nroot: str = ""')
        edited = f"name: nightly\nsteps: [{{notebook: {tmp_path}/n.ipynb}}]"
    plan = tmp_path / "jobs" / "parameters" / "plans" / "nightly.yaml"
    in_shell(copy, tmp_path, environment)
    assert plan.is_file()
    plan.write_text(edited)
    in_shell(f"{copy.splitlines()[0]}\n{line}", tmp_path, environment)
    kept, added = (programs / "table").read_text().splitlines()
    assert kept == "0 1 * * * true"
    command = added.removeprefix("30 2 * * * ")
    done = subprocess.run(["env", "-i", "/bin/sh", "-c", command], cwd="/", check=False)
    assert done.returncode == 0
    shown = in_shell(f"{copy.splitlines()[0]}\n{listed}", tmp_path, environment)
    assert len({*re.findall("nightly-[0-9T]+", shown)}) == 1
    assert bool(Lake(tmp_path / "lake").status().tables[0].rows) == is_long


@pytest.mark.long
def test_s3(tmp_path: Path) -> None:
    (block,) = blocks("how-to/s3", "sh")
    export, *lines = block.replace(
        "s3://bucket/lake", f"s3://{BUCKET}/{uuid.uuid4().hex}"
    ).splitlines()
    assert export.startswith("export AWS_")
    make_launcher(tmp_path)
    (tmp_path / "stock.csv").write_text("id,n\n1,2\n")
    server = S3Server()
    try:
        in_shell("\n".join(lines), tmp_path, server.variables())
    finally:
        server.close()


@pytest.mark.long
def test_database(tmp_path: Path) -> None:
    """The source and the mirror of the page run side by side until the rows are in the tables."""
    (block,) = blocks("how-to/database", "sh", data=tmp_path)
    server = PostgresServer()
    for table in ("customers", "orders"):
        server.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")
        server.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    (prepare,) = blocks("how-to/database", "sql")
    try:
        for statement in prepare.strip().split(";\n"):
            server.execute(statement)  # each by itself: ALTER SYSTEM runs in no transaction
        block = re.sub("'postgresql:.*'", f"'{server.dsn(user='reader')}'", block)
        with _in_background(block, tmp_path):
            _await_rows(tmp_path / "lake", 2)
    finally:
        server.remove()


@pytest.mark.long
def test_any_publisher(tmp_path: Path) -> None:
    (block,) = blocks("how-to/any-publisher", "sh", data=tmp_path)
    lake = Lake(tmp_path / "lake")
    lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
    with _in_background(block.replace("--mirror", f"--mirror --port {free_port()}"), tmp_path):
        _await_rows(tmp_path / "lake", 1)


@contextmanager
def _in_background(block: str, folder: Path) -> Iterator[None]:
    """Run the commands of a block at the same time while the block of the caller runs."""
    make_launcher(folder)
    script = re.sub(r"^(\./mirrorlake [^#\n]*).*$", r"\1 &", block, flags=re.MULTILINE)
    log = folder / "log"
    with log.open("wb") as target:
        process = subprocess.Popen(
            ["bash", "-c", f"{script}\nwait"],
            cwd=folder,
            env=os.environ | bare_environment(folder),
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
    try:
        yield
    except AssertionError as error:
        raise AssertionError(log.read_text()[-3000:]) from error
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await_rows(root: Path, tables: int) -> None:
    until = time.monotonic() + 300
    while sum(one.rows > 0 for one in Lake(root).status().tables) < tables:
        assert time.monotonic() < until
        time.sleep(0.5)  # another process's commit offers no event to wait for
