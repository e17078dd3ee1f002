"""Runs that are ended at any moment: each is accounted for, nothing is left, nothing is lost.

Two hundred runs under `--long`, every fortieth with the tool `mirror` and so with Spark;
`MIRRORLAKE_SOAK_RUNS` makes it shorter.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.environments import bare_environment
from helpers.left_over import wait_until_gone
from helpers.project import PROJECT
from helpers.small_notebooks import put_notebook, put_plan
from mirrorlake import Lake
from mirrorlake_runs import RunRecord, list_runs, load_plan, prune_runs
from mirrorlake_runs.records import read_record

pytestmark = pytest.mark.long
RUNS = int(os.environ.get("MIRRORLAKE_SOAK_RUNS", "200"))
ROWS = 5
HEAD = 'root: str = ""\nn: int = 0\nflag: str = ""'
PUBLISH = f"""from mirrorlake import Lake
rows = [{{"id": {ROWS} * n + part, "n": n}} for part in range({ROWS})]
Lake(root).publisher("sales", keys=["id"]).upsert(rows, token=f"run {{n}}")"""
CHECK = "import os\nassert not os.path.exists(flag), 'it was to fail'"
CONFIRM = """from mirrorlake import Lake
from mirrorlake_runs import record
Lake(root).publisher("confirmed", keys=["n"]).upsert([{"n": n}], token=f"run {n}")
record(n=n)"""
SIGNALS = {"stopped": signal.SIGTERM, "left": signal.SIGINT, "killed": signal.SIGKILL}
OVER = ("done", "failed", "stopped")  # a signal may come when all is written
STATUSES = {0: ("done",), 1: ("failed",), 143: ("stopped",), 130: ("stopped",)}
STATUSES |= {-signal.SIGKILL: ("lost", *OVER), -signal.SIGTERM: OVER, -signal.SIGINT: OVER}


class Soak:
    """Starts runs of one plan on one lake, and ends them.

    Args:
        folder: where everything lies.
        chance: decides.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.home, self.lake = folder / "home", folder / "lake"
        self.usual = {"small": 10.0, "spark": 40.0}  # seconds of a whole run
        self.environment = bare_environment(folder) | {"PYTHONPATH": str(PROJECT / "lib")}
        self.environment |= {"MIRRORLAKE_CACHE": os.environ.get("MIRRORLAKE_CACHE", "")}
        self.environment["HOME"] = os.environ["HOME"]  # Spark's jars are in its cache
        (folder / "flags").mkdir()
        for name, source in (("publish", PUBLISH), ("check", CHECK), ("confirm", CONFIRM)):
            put_notebook(folder, name, source, head=HEAD)
        for kind, middle in (("small", "check.ipynb"), ("spark", "mirror")):
            names = ("publish.ipynb", middle, "confirm.ipynb")
            steps = ", ".join(f"{{notebook: {one}}}" for one in names)
            put_plan(folder, f"name: soak\nsteps: [{steps}]", kind)

    def out(self, n: int) -> Path:
        return self.folder / "out" / f"{n}"

    def record(self, n: int) -> RunRecord | None:
        return read_record(self.out(n))

    def start(self, n: int, kind: str) -> subprocess.Popen[str]:
        values = {"root": self.lake, "n": n, "flag": self.folder / "flags" / f"{n}"}
        chosen = [part for name, value in values.items() for part in ("-p", f"{name}={value}")]
        return self.call(str(self.folder / f"{kind}.yaml"), *chosen, "--out", str(self.out(n)))

    def call(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "mirrorlake.cli", "run", *arguments],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process: subprocess.Popen[str], fate: str, kind: str) -> tuple[int, str]:
        """Waits for a run's end, or brings it about at any moment; its exit status and stderr."""
        began = time.monotonic()
        if fate in SIGNALS:
            try:
                process.wait(self.chance.uniform(0, 1.1 * self.usual[kind]))
            except subprocess.TimeoutExpired:
                process.send_signal(SIGNALS[fate])
        told = process.communicate(timeout=600)[1]
        if process.returncode == 0 and fate == "done":
            self.usual[kind] = time.monotonic() - began
        return process.returncode, told

    def run(self, n: int) -> str:
        """One run with a fate; how its record says that it went, or that it has none."""
        kind = "spark" if n % 40 == 20 else "small"
        fates = ("done", "failed", "stopped", "left", "killed")
        fate = self.chance.choices(fates, weights=(30, 15, 25, 5, 25))[0] if n else "done"
        flag = self.folder / "flags" / f"{n}"
        if fate == "failed" and kind == "small":
            flag.touch()
        process = self.start(n, kind)
        if fate == "done" and n % 10 == 9:
            self.refuse_another(process, n)
        status, told = self.end(process, fate, kind)
        flag.unlink(missing_ok=True)
        assert wait_until_gone(self.home) == []
        record = self.record(n)
        if record is None:  # it was ended before it began
            assert fate in SIGNALS, (status, told)
            assert status
            return "none"
        assert record.status in STATUSES[status], (n, fate, status, told)
        assert "Traceback" not in told or fate == "left", told
        return record.status

    def refuse_another(self, process: subprocess.Popen[str], n: int) -> None:
        """A second run of the plan meanwhile is refused, and leaves nothing."""
        while self.record(n) is None and process.poll() is None:
            time.sleep(0.05)
        other = self.start(RUNS + n, "small")
        told = other.communicate(timeout=600)[1]
        if process.poll() is None:
            assert other.returncode == 3, told
            assert f"process {process.pid} on" in told
            assert not self.out(RUNS + n).exists()

    def resume(self, n: int) -> None:
        """Goes on with a run until it is done; now and then it is killed once more."""
        while (record := self.record(n)) is not None and record.status != "done":
            fate = self.chance.choices(("done", "stopped", "killed"), weights=(80, 10, 10))[0]
            process = self.call("--resume", str(self.out(n)))
            status, told = self.end(process, fate, "small")
            assert fate in SIGNALS or status == 0, told
            assert wait_until_gone(self.home) == []


def test_every_run_is_accounted_for(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    soak = Soak(tmp_path, random.Random(20))
    assert str(soak.lake) == lake.storage.root
    assert load_plan(tmp_path / "small.yaml").name == load_plan(tmp_path / "spark.yaml").name
    (soak.lake / "Tables").mkdir(parents=True)
    found: dict[int, str] = {}
    for n in range(RUNS):
        found[n] = soak.run(n)
        if found[n] not in ("done", "none") and soak.chance.random() < 0.5:
            soak.resume(n)
    print({status: list(found.values()).count(status) for status in {*found.values()}})
    recorded = [n for n, status in found.items() if status != "none"]
    assert len(list_runs()) == len({record.folder for record in list_runs()})
    by_folder = {record.folder for record in list_runs()}
    assert by_folder >= {str(soak.out(n)) for n in recorded}
    for n in recorded:
        soak.resume(n)
    assert {record.status for record in list_runs() if record.folder in by_folder} <= {"done"}
    assert list(tmp_path.rglob("*.lease")) == []
    assert not lake.mirror().failed
    sales = lake.sql("SELECT id, n FROM sales ORDER BY id").collect()
    model = [(ROWS * n + part, n) for n in recorded for part in range(ROWS)]
    assert [tuple(row) for row in sales if row.n < RUNS] == model
    confirmed = lake.sql("SELECT n FROM confirmed ORDER BY n").collect()
    assert [row.n for row in confirmed if row.n < RUNS] == recorded
    prune_runs(keep=0, keep_failed=0, apply=True)
    assert list((tmp_path / "home" / "runs").iterdir()) == []
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
