"""The monitor page: the facts of each table, escaped names, and speed."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.html_tags import Tags
from helpers.odd_names import ODD_BUT_FINE
from helpers.old_lake import unpack
from mirrorlake import Lake, results
from mirrorlake.errors import DataFileError, SequenceError, UsageError
from mirrorlake.mirror.state import TableState, failed, save_states
from mirrorlake.names import TableName, file_name
from mirrorlake_lab import monitor
from mirrorlake_lab.pages import html

HOSTILE = "<img src=x onerror=alert(1)>"
SECONDS = 2.0


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake with tables that wait, are paused, failed, or are up to date."""
    return Lake(unpack(tmp_path_factory.mktemp("monitored")))


def test_it_says_what_status_says_with_problem_and_fix(mirrored: Lake) -> None:
    before = sorted(mirrored.storage.local.rglob("*"))
    live = monitor(mirrored)
    status = {line.full_name: line for line in mirrored.status().tables}
    shown = {one.status.full_name: one for one in live.health.tables}
    assert set(shown) == set(status)
    page = live.to_html()
    for name, line in status.items():
        assert html.text(name) in page
        one = shown[name]
        assert (one.status.rows, one.status.backlog_files) == (line.rows, line.backlog_files)
        assert html.text(line.shown_problem) in page
        assert html.text(line.fix) in page
        assert html.dot(line.level, line.shown_state) in page
        if line.error:
            assert line.error["message"].startswith(line.problem.partition(" [")[0])
            assert line.level == "bad"
    assert any(one.fix and one.problem for one in status.values())
    assert "Paused" in page
    assert "Stopped" not in page
    assert any(one.lags and one.applied for one in shown.values())
    levels = [one.status.level for one in live.health.tables]
    assert levels == sorted(levels, key=("bad", "warn", "idle", "good").index)
    assert page.index("problem and fix</th>") < page.index("rows applied</th>")
    assert sorted(mirrored.storage.local.rglob("*")) == before


def test_a_folder_without_a_lake_is_a_problem(tmp_path: Path) -> None:
    """The disk of the lake may not be mounted."""
    live = monitor(Lake(tmp_path))
    assert (live.health.level, repr(live.health)) == ("bad", "0 tables, 1 problem")
    assert "mount the disk" in live.to_html()


def test_a_failed_table_shows_its_errors_and_the_next_step(lake: Lake) -> None:
    table = TableName(None, "my stock")
    lake.storage.write_json(f"{table.folder}/_metadata.json", {"keyColumns": ["id"]})
    file_ids = [[None, None], [1, None], [None, 2], [None], [None], [None]]
    for number, ids in enumerate(file_ids, start=1):
        rows = pa.table({"id": pa.array(ids, pa.int64()), "n": range(len(ids))})
        pq.write_table(rows, Path(lake.landing_zone) / table.name / file_name(number))
    place = f"file {file_name(1)}, row 1, column id"
    error = DataFileError("Key column 'id' is NULL.", file=file_name(1), row=1, column="id")
    save_states(lake.storage, {table.folder: failed(TableState(None, table.name), error)})
    page = monitor(lake).to_html()
    assert html.text(f"Key column 'id' is NULL. [{place}]") in page
    assert "in 2 rows" not in page  # the linter's text for the same error
    assert html.text(f"Key column 'id' is NULL. [file {file_name(2)}, row 2") in page
    assert "The linter finds 2 more errors." in page
    assert html.text("mirrorlake skip ROOT 'my stock' 1 --apply).") in page
    assert f"Store a corrected file as {table.folder}/{file_name(1)}. The next cycle" in page
    lake.operations.skip(table, 1, apply=True)
    page = monitor(lake).to_html()
    assert "The mirror will skip file 1." in page
    assert "Fix: run the mirror" in page
    assert "Store a corrected file" not in page
    reused = SequenceError("The number was applied before.", file=file_name(1), hint="delete it.")
    states = {table.folder: failed(TableState(None, table.name, last_file=1), reused)}
    save_states(lake.storage, states)
    page = monitor(lake).to_html()
    assert "Fix: delete it." in page
    assert "Store a corrected file" not in page
    missing = SequenceError("The file was deleted.", file=file_name(2))
    save_states(
        lake.storage, {table.folder: replace(states[table.folder], error=missing.as_dict())}
    )
    Path(lake.landing_zone, table.name, file_name(2)).unlink()
    assert "Store a corrected file" not in monitor(lake).to_html()
    twice = SequenceError("Two files have the same number.", file=file_name(3))
    save_states(lake.storage, {table.folder: replace(states[table.folder], error=twice.as_dict())})
    Path(lake.landing_zone, table.name, file_name(3)).with_suffix(".csv").write_text("id\n1\n")
    assert "Store a corrected file" not in monitor(lake).to_html()


def test_names_from_outside_stay_text(lake: Lake) -> None:
    for name in [HOSTILE.replace("/", ""), *ODD_BUT_FINE]:
        lake.publisher(f"`{name.replace('`', '``')}`", keys=["id"]).upsert([{"id": 1}])
    page = monitor(lake).to_html()
    found = Tags(page)
    assert not found.tags & {"img", "script", "x", "iframe"}
    assert not any(name.startswith("on") for name in found.attributes)
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_a_text_that_would_turn_the_line_is_shown_by_its_code() -> None:
    shown = html.table(
        results.TextTable(("a", "b", "n"), (("x\u202ey", "\udcff", 1234567), (None, "", None)))
    )
    assert "x\\u202ey" in shown
    assert "\\udcff" in shown
    assert '<td class="n">1,234,567</td>' in shown
    assert "NULL" in shown


def test_sixty_tables_are_looked_at_in_two_seconds(mirrored: Lake, tmp_path: Path) -> None:
    root = shutil.copytree(mirrored.storage.local, tmp_path / "many")
    for number in range(60):
        for folder in ("Files/LandingZone", "Tables"):
            shutil.copytree(root / folder / "inventory", root / folder / f"t{number}")
    lake = Lake(root)
    began = time.process_time()
    live = monitor(lake)
    document = live.to_html()
    assert time.process_time() - began < SECONDS  # CPU time: other tests run at the same time
    assert sum(one.status.full_name.startswith("t") for one in live.health.tables) >= 60
    assert sum(bool(one.lags) for one in live.health.tables) >= 60
    assert document.count("<svg") >= 60


def test_lab_gets_a_live_page_and_a_report_its_twin(lake: Lake) -> None:
    stock = lake.publisher("stock", keys=["id"])
    stock.upsert([{"id": 1}])
    live = monitor(lake, every=1)
    try:
        bundle = live._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in bundle
        assert "stock" in bundle["text/html"]
        assert bundle["text/plain"].endswith("1 table, 0 problems")
        stock.upsert([{"id": 2}])
        shown = live.widget.children[1]
        changed = Event()
        shown.observe(lambda _: changed.set(), "value")
        assert changed.wait(10)
        assert live.health.tables[0].status.backlog_files == 2
    finally:
        live.close()
    with pytest.raises(UsageError, match="too short"):
        monitor(lake, every=0)


def test_a_refresh_that_fails_is_shown_above_the_last_content(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = monitor(lake, every=3600)
    try:
        now, shown = live.widget.children[0].children[0], live.widget.children[1]
        lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
        live.refresh()
        with monkeypatch.context() as patch:
            patch.setattr(Lake, "status", lambda _, **__: 1 / 0)
            for _ in range(2):
                now.click()
        assert shown.value.count("can&#x27;t be read: division by zero") == 1
        assert "stock" in shown.value
        now.click()
        assert "division" not in shown.value
    finally:
        live.close()


def test_the_page_is_served_to_this_machine_alone(lake: Lake) -> None:
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
    server, stop = html.PageServer(lambda: monitor(lake).to_html(every=5)), Event()
    thread = Thread(target=server.run, args=(stop,))
    thread.start()
    try:
        place = server.address.removeprefix("http://").rstrip("/")
        for path, host, status in (
            ("/", place, 200),
            ("/x", place, 404),
            ("/", "evil.org:80", 403),
        ):
            connection = http.client.HTTPConnection(place)
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            assert answer.status == status
            assert ("stock" in body) == (status == 200)
            if status == 200:
                assert "default-src 'none'" in str(answer.headers["Content-Security-Policy"])
                assert 'http-equiv="refresh" content="5"' in body
    finally:
        stop.set()
        thread.join()


def test_the_command_writes_the_page_and_starts_no_spark(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.publisher("stock", keys=["id"]).upsert([{"id": 1}])
    program = (
        "import sys; from mirrorlake.cli import main as cli\n"
        "try:\n    cli.main()\nfinally:\n"
        "    sys.stderr.write(f\"spark {'pyspark' in sys.modules}\")"
    )
    page = tmp_path / "monitor.html"
    done = subprocess.run(
        [sys.executable, "-c", program, "monitor", str(tmp_path / "lake"), "--html", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("spark False")
    assert done.stdout == "1 table, 0 problems\n"
    assert "stock" in page.read_text(encoding="utf-8")
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")


def test_a_page_that_can_not_be_written_is_refused(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be written"):
        monitor(lake).to_html(tmp_path / "missing" / "monitor.html")
