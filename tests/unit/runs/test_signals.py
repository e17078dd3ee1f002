"""Hooks that hang, and the metrics for Prometheus, without kernels."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake import Lake
from mirrorlake.errors import UsageError
from mirrorlake.landing import metadata
from mirrorlake.landing.metadata import BY_TIME
from mirrorlake.mirror.state import FAILED, TableState, save_states
from mirrorlake.names import file_name
from mirrorlake_runs import commands, load_plan, prepare, records, reporting


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    put_notebook(tmp_path, "n", RECORD)
    return prepare(load_plan(put_plan(tmp_path, "name: p\nsteps: [{notebook: n.ipynb}]")), {})


def test_a_hook_that_hangs_is_given_up_with_all_that_it_started(
    prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices
) -> None:
    assert reporting.HOOK_LIMIT == 10
    monkeypatch.setattr(reporting, "HOOK_LIMIT", 1.0)
    hangs = ["sh", "-c", f"echo $$ >{tmp_path}/pid; sleep 4321 & wait"]
    began = time.monotonic()
    (told,) = reporting.call_hooks([{"command": hangs}], "{}", prepared)
    assert 1 <= time.monotonic() - began < 5
    assert (told["status"], told["attempts"]) == ("failed", 1)
    assert told["error"] == "it took longer than 1 s"
    assert "failed: it took longer than 1 s" in notices.messages[-1]
    group = int((tmp_path / "pid").read_text())
    while left := processes_of(group):  # a killed process ends a little later
        assert time.monotonic() - began < 10, left
        time.sleep(0.05)


def processes_of(group: int) -> list[Path]:
    """Return the processes of a group that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            fields = path.read_text().rpartition(")")[2].split()
            if fields[2] == str(group) and fields[0] != "Z":
                found.append(path)
    return found


@pytest.mark.parametrize(
    ("file", "strategy", "proposed"),
    [
        (file_name(6), metadata.SEQUENTIAL, None),
        (file_name(7), metadata.SEQUENTIAL, None),
        (file_name(8), metadata.SEQUENTIAL, "8"),
        ("b.parquet", BY_TIME, "b.parquet"),
        (file_name(8), BY_TIME, None),
        ("applied.parquet", BY_TIME, None),
    ],
)
def test_a_skip_is_proposed_only_for_a_file_that_is_not_applied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    strategy: str,
    proposed: str | None,
) -> None:
    """The private name, because only a run with a kernel calls it."""
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    put_notebook(tmp_path, "n", RECORD, head='root: str = ""')
    lake = Lake(tmp_path / "lake")
    lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
    folder = Path(lake.landing_zone) / "t"
    (folder / "b.parquet").touch()
    declared = {"keyColumns": ["id"], "fileDetectionStrategy": strategy}
    (folder / "_metadata.json").write_text(json.dumps(declared))
    error = {"message": "Bad.", "file": file, "row": None, "column": None}
    state = TableState(None, "t", state=FAILED, error=error, last_file=7, strategy=strategy)
    save_states(lake.storage, {"Files/LandingZone/t": state})
    text = f"steps: [{{notebook: n.ipynb, parameters: {{root: {tmp_path}/lake}}}}]"
    prepared = prepare(load_plan(put_plan(tmp_path, text)), {})
    failed = records.StepResult("n.ipynb", "failed")
    resume, *skips = reporting._next_steps(prepared, [failed])
    assert "--resume" in resume
    wanted = [] if proposed is None else [f"skip {tmp_path}/lake t {proposed} --apply"]
    assert [skip.partition("mirrorlake ")[2] for skip in skips] == wanted
    if strategy == BY_TIME and proposed is not None:
        lake.operations.skip("t", proposed, apply=True)
        assert len(reporting._next_steps(prepared, [failed])) == 1  # it will be skipped


def test_metrics_have_the_lag_and_backlog_of_each_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for name in ("stock", "sales.orders"):
        lake.publisher(name, keys=["id"]).upsert([{"id": 1}])
    times = [f"2026-01-01T00:00:{second}+00:00" for second in ("00", "07")]
    records = {"rows": 3, "text": "x", "ok": True}
    step = {"name": "m", "status": "done", "seconds": 2.5, "records": records}
    document = {"plan": "p", "status": "done", "started": times[0], "ended": times[1]}
    document["steps"] = [step]
    reporting.write_metrics(tmp_path / "m.prom", document, [lake.storage.root, "/gone"])
    text = (tmp_path / "m.prom").read_text()
    assert 'mirrorlake_run_seconds{plan="p"} 7.0' in text
    assert 'mirrorlake_step_seconds{plan="p",step="01-m"} 2.5' in text
    for table in ("stock", "sales.orders"):
        labels = f'{{plan="p",root="{lake.storage.root}",table="{table}"}}'
        assert f"mirrorlake_backlog_files{labels} 1.0" in text
        assert f"mirrorlake_lag_seconds{labels} " in text
    assert 'name="text"' not in text


def test_a_report_that_a_later_run_replaced_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs had the same `--out`."""
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
    times = {"started": "2026-01-01T02:00:00+00:00", "ended": "2026-01-01T02:01:00+00:00"}
    for run in ("p-1", "p-2"):
        document = {"run": run, "plan": "p", "status": "done", "folder": f"{tmp_path}/out", **times}
        for folder in (tmp_path / "runs" / run, tmp_path / "out"):
            records.write_whole(folder / records.RECORD, records.as_text(document))
    (tmp_path / "out" / records.REPORT).touch()
    assert records.find_report(records.find_run("p-1")) is None
    assert records.find_report(records.find_run("p-2")) == tmp_path / "out" / records.REPORT


def test_a_lost_run_names_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path))
    document = {"run": "p-1", "plan": "p", "status": "running", "folder": f"{tmp_path}/runs/p-1",
                "started": "2026-01-01T02:00:00+00:00", "steps": [], "versions": {},
                "parameters": {}, "process": {"host": socket.gethostname(), "pid": 2**22,
                "born": 0.0}}  # fmt: skip
    record = tmp_path / "runs" / "p-1" / records.RECORD
    records.write_whole(record, records.as_text(document))
    shown = CliRunner().invoke(commands.runs, ["show", "p-1"])
    assert "run --resume p-1" in shown.output
    opened = CliRunner().invoke(commands.runs, ["open", "p-1"])
    assert isinstance(opened.exception, UsageError)
    assert "run --resume p-1" in opened.exception.hint
