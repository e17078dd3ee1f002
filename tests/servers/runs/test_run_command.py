"""`run` as schedulers call it: another process, signals, exit statuses, an empty environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.project import PROJECT
from helpers.small_notebooks import RECORD, put_notebook, put_plan

SLOW = "import pathlib, time\npathlib.Path(word).touch()\ntime.sleep(4321)"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    put_notebook(tmp_path, "good", RECORD)
    put_notebook(tmp_path, "bad", "rows / 0")
    put_notebook(tmp_path, "slow", SLOW)
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    """Return the few variables that cron sets, and the folders of the test."""
    found = {"MIRRORLAKE_HOME": str(place / "home"), "MIRRORLAKE_STATE": str(place / "state")}
    return found | {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT / "lib")}


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mirrorlake.cli", *arguments],
        cwd="/",
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(place: Path, *arguments: str, status: int = 0) -> Any:
    process = start(place, *arguments)
    out, err = process.communicate(timeout=200)
    assert process.returncode == status, (out, err)
    assert "Traceback" not in err
    return json.loads(out) if "--json" in arguments else out + err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def kernels(place: Path) -> list[str]:
    """Return the command lines of the test's processes that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"MIRRORLAKE_HOME={place / 'home'}".encode() in text and int(folder.name) != os.getpid():
            found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def test_parameters_are_checked_and_the_summary_is_printed(place: Path) -> None:
    notebook = str(place / "good.ipynb")
    for line, message in [
        (["-p", "rows=twenty"], "Parameter rows is 'twenty', which is not of type int."),
        (["-p", "months=3"], "good has no parameter months."),
        (["-p", "rows"], "-p 'rows' is not a parameter."),
    ]:
        refused = call(place, "run", notebook, *line, "--json", status=2)["error"]
        assert refused["message"] == message
    assert not (place / "home").exists()
    out = str(place / "out")
    chosen = ["-p", "rows=20", "-p", "word=7"]
    document = call(place, "run", notebook, *chosen, "--out", out, "--json")
    keys = {"run", "plan", "status", "started", "ended", "parameters", "steps", "next_steps"}
    assert set(document) == keys
    assert (document["status"], document["parameters"]) == ("done", {"rows": 20, "word": "7"})
    assert document["steps"][0]["records"] == {"rows": 20, "word": "7"}
    assert document == json.loads((place / "out" / "summary.json").read_text())
    (listed,) = call(place, "runs", "list", "--json")["runs"]
    assert listed["folder"] == out
    assert set(listed) == {"run", "plan", "status", "started", "ended", "folder"}
    assert "rows: 20" in call(place, "runs", "show", document["run"])


def test_a_failure_is_1_and_a_backfill_goes_on_day_by_day(place: Path) -> None:
    head = 'rows: int = 1\nword: str = ""\nhere: str = ""'
    check = "import os\nassert word != '2026-01-02' or os.path.exists(here)"
    put_notebook(place, "day", check, RECORD, head=head)
    text = "name: daily\nsteps: [{notebook: day.ipynb, parameters: {word: '{{ date }}'}}]"
    plan, flag = str(put_plan(place, text, "daily")), place / "flag"
    days = ["--for", "date=2026-01-01..2026-01-03", "-p", f"here={flag}"]
    first = call(place, "run", plan, *days, "--json", status=1)["runs"]
    assert [one["status"] for one in first] == ["done", "failed"]
    flag.touch()
    again = call(place, "run", "--resume", first[1]["run"], "--json")["runs"]
    assert [one["steps"][0]["records"]["word"] for one in again] == ["2026-01-02", "2026-01-03"]
    assert again[0]["run"] == first[1]["run"]


def test_sigterm_ctrl_c_and_sigkill(place: Path) -> None:
    steps = "[{notebook: good.ipynb}, {notebook: slow.ipynb}, {notebook: bad.ipynb}]"
    plan = str(put_plan(place, f"name: nightly\nsteps: {steps}"))
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        flag, out = place / f"flag-{status}", place / f"out-{status}"
        process = start(place, "run", plan, "-p", f"word={flag}", "--out", str(out), "--json")
        wait_for(flag, process)
        if status == 143:
            began = time.monotonic()
            busy = call(place, "run", plan, "--json", status=3)["error"]
            assert f"process {process.pid} on" in busy["message"]
            assert time.monotonic() - began < 60  # the start of an interpreter on a busy machine
        process.send_signal(number)
        shown, _ = process.communicate(timeout=60)
        assert process.returncode == status
        document = json.loads(shown)
        assert document == json.loads((out / "summary.json").read_text())
        assert document["status"] == "stopped"
        assert [step["status"] for step in document["steps"]] == ["done", "stopped", "skipped"]
        assert document["steps"][1]["error"]["cell"] == 3
    flag = place / "flag-kill"
    process = start(place, "run", plan, "-p", f"word={flag}")
    wait_for(flag, process)
    assert call(place, "runs", "list", "--json")["runs"][0]["status"] == "running"
    process.kill()
    process.communicate()
    found = call(place, "runs", "list", "--failed", "--json")["runs"]
    assert [run["status"] for run in found] == ["lost", "stopped", "stopped"]
    end = time.monotonic() + 60
    while kernels(place) and time.monotonic() < end:  # kernels end with their parent
        time.sleep(0.2)
    assert kernels(place) == []
    # No lease blocks the next run, which fails for another reason.
    call(place, "run", plan, "-p", "word=/no/such/folder/x", status=1)
    assert not list((place / "state").rglob("*.lease"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_units_of_the_recipes_are_right(tmp_path: Path) -> None:
    text = (PROJECT / "docs" / "schedule.md").read_text(encoding="utf-8")
    for name in ("nightly.service", "nightly.timer"):
        block = text.split(f"# /etc/systemd/system/{name}\n")[1].split("```")[0]
        block = block.replace("/opt/mirrorlake/.venv/bin/mirrorlake", sys.executable)
        (tmp_path / name).write_text(block.replace("User=lake\n", ""), encoding="utf-8")
    units = [str(tmp_path / name) for name in ("nightly.timer", "nightly.service")]
    command = ["systemd-analyze", "verify", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if "nightly" in line], done.stderr
