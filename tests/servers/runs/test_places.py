"""Places of records: behind URIs, on other machines, on full disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.elsewhere import on_small_disk, other_machine
from helpers.project import PROJECT
from helpers.runs_behind_uri import check_runs_behind
from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake_runs import list_runs, load_plan, prepare, reporting, run_plan

WAITS = "import pathlib, time\npathlib.Path(word).touch()\ntime.sleep(4321)"


def environment(folder: Path) -> dict[str, str]:
    found = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT / "lib")}
    names = ("home", "state", "cache")
    return found | {f"MIRRORLAKE_{name.upper()}": str(folder / name) for name in names}


def test_runs_behind_a_uri(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_runs_behind((folder / "far").as_uri(), folder, monkeypatch)


def test_a_record_is_renewed_while_nothing_happens(folder: Path) -> None:
    put_notebook(folder, "n", RECORD)
    plan = load_plan(put_plan(folder, "name: p\nsteps: [{notebook: n.ipynb}]"))
    prepared = prepare(plan, {}, out=(folder / "far" / "one").as_uri())
    kept = [folder / "far" / "one", folder / "home" / "runs" / prepared.run]
    with reporting.RecordKeeper(prepared, beat=0.02) as keeper:
        keeper.keep({"run": prepared.run}, must=True)
        for place in kept:
            file = place / "run.json"
            os.utime(file, (1, 1))
            end = time.monotonic() + 10
            while file.stat().st_mtime < 2 and time.monotonic() < end:
                time.sleep(0.01)
            assert file.stat().st_mtime > 2
    assert [json.loads((place / "run.json").read_text()) for place in kept] == [
        {"run": prepared.run}
    ] * 2


def test_a_place_that_takes_no_record_is_refused_before_the_start(folder: Path) -> None:
    put_notebook(folder, "n", RECORD)
    (folder / "file").touch()
    plan = put_plan(folder, "name: p\nsteps: [{notebook: n.ipynb}]")
    for place in (folder / "file" / "x", (folder / "file" / "x").as_uri()):
        with pytest.raises(reporting.RecordError, match="Hint: free some space"):
            run_plan(plan, str(place))
    assert not list(folder.rglob("*n.ipynb"))[1:]
    assert list_runs() == []


@pytest.mark.parametrize("seconds", [3600, pytest.param(-3600, marks=pytest.mark.long)])
def test_machines_whose_clocks_are_an_hour_apart(folder: Path, seconds: int) -> None:
    """Two machines share a disk: the second refuses the plan and later reports the run as lost."""
    put_notebook(folder, "slow", WAITS, head='word: str = ""\nroot: str = ""')
    plan = str(put_plan(folder, "name: nightly\nsteps: [{notebook: slow.ipynb}]"))
    (folder / "lake" / "Tables").mkdir(parents=True)
    run = [sys.executable, "-m", "mirrorlake.cli", "run", plan, "-p", f"root={folder}/lake"]
    far = environment(folder) | other_machine(folder, seconds=seconds)
    far["MIRRORLAKE_STATE"] = str(folder / "far")  # its own disk has other locks
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [*run, "-p", f"word={folder}/flag"], env=far, stdout=quiet, stderr=quiet
    ) as process:
        while not (folder / "flag").exists():
            assert process.poll() is None
            time.sleep(0.05)
        here = environment(folder)
        busy = subprocess.run(run, env=here, capture_output=True, text=True, check=False)
        assert (busy.returncode, busy.stdout) == (3, ""), busy.stderr
        assert f"process {process.pid} on far since" in busy.stderr
        (found,) = list_runs()
        offset = time.time() - time.mktime(time.strptime(found.started[:19], "%Y-%m-%dT%H:%M:%S"))
        assert found.status == "running"
        assert found.document["process"]["host"] == "far"
        assert abs(offset + time.timezone * -1 - -seconds) < 300
        process.kill()
    record = folder / "home" / "runs" / found.run / "run.json"
    os.utime(record, (time.time() - 301,) * 2)  # five minutes later
    assert [one.status for one in list_runs()] == ["lost"]


@pytest.mark.long
def test_a_disk_that_is_full_when_the_summary_is_written(folder: Path) -> None:
    """The run ends with status 1 and reports the result and the files that are missing."""
    fill = (
        "with open(word + '/fills', 'wb', buffering=0) as file:\n"
        "    try:\n        while True: file.write(b'x' * 512)\n    except OSError: pass"
    )
    put_notebook(folder, "fills", fill, RECORD)
    put_notebook(folder, "good", RECORD)
    steps = "[{notebook: good.ipynb}, {notebook: fills.ipynb}, {notebook: good.ipynb}]"
    plan = str(put_plan(folder, f"name: p\nsteps: {steps}"))
    disk = folder / "disk"
    disk.mkdir()
    run = [sys.executable, "-m", "mirrorlake.cli", "run", plan, "--out", str(disk), "--json"]
    command = on_small_disk(disk, 128, [*run, "-p", f"word={disk}"])
    done = subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "the summary can't be written: OSError: [Errno 28]" in done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert [step["status"] for step in document["steps"]] == ["done", "failed", "skipped"]
    assert "No space left" in document["steps"][1]["error"]["message"]
    (listed,) = list_runs()  # by the record on the other disk
    assert (listed.status, listed.folder) == ("failed", str(disk))
