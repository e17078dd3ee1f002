"""Runs with real kernels: order, retries, timeouts, secrets, hooks, resuming, and records."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import nbformat
import pytest

from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake import Lake
from mirrorlake.errors import AlreadyRunningError, UsageError
from mirrorlake.mirror.state import FAILED, TableState, save_states
from mirrorlake_runs import (
    RunNotFoundError,
    find_run,
    list_runs,
    load_plan,
    prune_runs,
    resume_run,
    run_plan,
)
from mirrorlake_runs import plan as plans

SECRET = 'pa"ss<w>örd & more/1'


def test_a_graph_runs_side_by_side_and_passes_records_on(folder: Path) -> None:
    """Each of two steps waits for the other, so they must run in parallel."""
    meet = (
        "import pathlib, time\npathlib.Path(word, str(rows)).touch()\n"
        "while len(list(pathlib.Path(word).glob('*'))) < 2: time.sleep(0.05)\n"
    )
    put_notebook(folder, "meet", meet, RECORD)
    put_notebook(folder, "bad", "raise ValueError('no ' + word)")
    put_notebook(folder, "last", RECORD)
    (folder / "place").mkdir()
    text = f"""
parallel: 2
steps:
- {{notebook: last.ipynb, needs: [x, y],
   parameters: {{rows: "{{{{ steps.x.records.rows + 1 }}}}"}}}}
- {{notebook: meet.ipynb, name: x, timeout: 120, parameters: {{rows: 7, word: {folder}/place}}}}
- {{notebook: meet.ipynb, name: y, timeout: 120, parameters: {{rows: 8, word: {folder}/place}}}}
- {{notebook: bad.ipynb, needs: x, continue_on_error: true}}
- {{notebook: last.ipynb, name: after, needs: bad}}
- {{notebook: last.ipynb, name: wrong, needs: x,
   parameters: {{rows: "{{{{ steps.x.records.gone }}}}"}}}}
- {{notebook: last.ipynb, name: never, needs: wrong}}
"""
    summary = run_plan(put_plan(folder, text))
    statuses = [step.status for step in summary.steps]
    assert statuses == ["done", "done", "done", "failed", "done", "failed", "skipped"]
    assert summary.steps[0].records["rows"] == 8
    assert summary.steps[3].error == {"cell": 3, "name": "ValueError", "message": "no a"}
    assert "gone" in summary.steps[5].error["message"]
    assert summary.status == "failed"


def test_retries_timeouts_and_kernels_that_die(folder: Path) -> None:
    once = (
        "import pathlib\nseen = pathlib.Path(word).exists()\npathlib.Path(word).touch()\n"
        "assert seen, 'first time'"
    )
    put_notebook(folder, "once", once, RECORD)
    put_notebook(folder, "slow", "import subprocess\nsubprocess.run(['sleep', '1234'])")
    put_notebook(folder, "dies", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    put_notebook(
        folder,
        "bad_file",
        "from mirrorlake.errors import CheckError\nraise CheckError('t failed', hint='mend it.')",
        head='root: str = ""',
    )
    lake = Lake(folder / "lake")
    lake.publisher("t", keys=["id"]).upsert([{"id": 1}])
    error = {"message": "Bad.", "file": f"{7:020}.parquet", "row": 1, "column": None}
    state = TableState(None, "t", state=FAILED, error=error)
    save_states(lake.storage, {"Files/LandingZone/t": state})
    text = f"""
parallel: 4
steps:
- {{notebook: bad_file.ipynb, retry: safe, retries: 2, parameters: {{root: {folder}/lake}}}}
- {{notebook: once.ipynb, retry: safe, retries: 2, parameters: {{word: {folder}/flag}}}}
- {{notebook: slow.ipynb, timeout: 12}}
- {{notebook: dies.ipynb}}
"""
    summary = run_plan(put_plan(folder, text))
    bad_file, once_, slow, dies = summary.steps
    assert (bad_file.status, bad_file.attempts) == ("failed", 1)  # a retry would not help
    assert once_.status == "done"
    # On a busy machine the timeout may pass before the kernel reaches the cell that sleeps.
    assert (slow.status, slow.error["name"]) == ("failed", "TimeoutError")
    assert (dies.status, dies.error["name"], dies.error["cell"]) == ("failed", "DeadKernelError", 3)
    document = find_run(summary.run).document
    assert [step["attempts"] for step in document["steps"]] == [1, 2, 1, 1]
    assert document["process"]["pid"]
    assert {"python", "mirrorlake", "spark", "delta"} <= set(document["versions"])
    page = (Path(summary.folder) / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert 'id="failing-4"' in page
    resume, skip = summary.next_steps
    assert resume.endswith(f"mirrorlake run --resume {summary.folder}")
    assert skip.endswith(f"mirrorlake skip {folder}/lake t 7 --apply")
    assert resume in page
    assert skip in page
    assert "The notebook took longer than its timeout" in page


def test_the_numbers_of_all_attempts_count(folder: Path) -> None:
    """The first attempt applies files and fails; the others have nothing to apply."""
    work = f"""
import pathlib
from mirrorlake_runs import record
before = sorted(pathlib.Path({str(folder)!r}).glob("attempt-*"))
pathlib.Path({str(folder)!r}, f"attempt-{{len(before)}}").touch()
files = 0 if before else 3
record(not_summed=["stopped"], files=files, stopped=1 - len(before), dry_run=False, text=word)
"""
    put_notebook(folder, "mirror", work, "assert len(before) >= rows, 'a table is stopped'")
    put_notebook(folder, "again", RECORD)
    text = """
steps:
- {notebook: mirror.ipynb, retry: safe, retries: 1, parameters: {rows: 2}}
- {notebook: again.ipynb, parameters: {rows: "{{ steps.mirror.records.files }}"}}
"""
    first = run_plan(put_plan(folder, text))
    failed, skipped = first.steps
    assert (failed.status, failed.attempts, skipped.attempts) == ("failed", 2, 0)
    assert failed.records == {"files": 3, "stopped": 0, "dry_run": False, "text": "a"}
    second = resume_run(first.run)
    done, after = second.steps
    assert (done.status, done.attempts, after.attempts) == ("done", 3, 1)
    assert done.records == {"files": 3, "stopped": -1, "dry_run": False, "text": "a"}
    assert after.records["rows"] == 3
    assert done.seconds > failed.seconds > 0
    document = find_run(first.run).document
    assert [step["attempts"] for step in document["steps"]] == [3, 1]
    assert [step["attempts"] for step in second.as_dict()["steps"]] == [3, 1]
    page = (Path(second.folder) / "report.html").read_text()
    assert "<th>attempts</th>" in page
    assert '<td class="done">done</td><td>3</td>' in page
    command = [sys.executable, "-m", "mirrorlake.cli", "runs", "show", first.run]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"mirror +│ done +│ 3 ", shown.stdout), shown.stdout


class Receiver(BaseHTTPRequestHandler):
    """A server that refuses the first request and keeps the others."""

    requests: ClassVar[list[tuple[dict[str, str], bytes]]] = []
    refused = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not Receiver.refused:
            Receiver.refused += 1
            self.send_response(503)
        else:
            Receiver.requests.append((dict(self.headers), body))
            self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def receiver() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


def test_secrets_are_nowhere_and_hooks_are_called_once(
    folder: Path, receiver: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    monkeypatch.setenv("MIRRORLAKE_SECRETS", str(folder / "secrets"))
    (folder / "secrets").mkdir()
    (folder / "secrets" / "hook-key").write_text("signing-key\n")
    spread = (
        "import sys, os, html, json, base64\nfrom mirrorlake_runs import record\n"
        f"assert word == {json.dumps(SECRET[::-1])}[::-1]\n"
        "print(word); print(repr(word)); print(json.dumps(word), html.escape(word))\n"
        "print(word[:5], end='', flush=True); print(word[5:])\n"
        "print(base64.b64encode(word.encode()).decode(), file=sys.stderr)\n"
        "os.write(2, word.encode() + b'\\n')\nos.system('echo \"$DB_PASSWORD\" >/dev/stderr')\n"
        "record(found=word, inside={word: [word]})"
    )
    tell = f"import sys\nopen('{folder}/told', 'a').write(sys.stdin.read())\n"
    (folder / "tell.py").write_text(tell)
    put_notebook(folder, "spread", "word", spread, "raise ValueError(f'can not use {word}')")
    text = f"""
steps:
- {{notebook: spread.ipynb, parameters: {{word: 'secret:DB_PASSWORD'}}}}
on_failure:
- {{url: '{receiver}', secret: 'secret:hook-key'}}
- {{command: [{sys.executable}, {folder}/tell.py]}}
- "no-such-command-here"
on_success: ["touch {folder}/success"]
"""
    summary = run_plan(put_plan(folder, text), overrides={"rows": 3})
    (step,) = summary.steps
    assert (step.status, step.error["name"]) == ("failed", "ValueError")
    assert step.error["message"] == "can not use [secret]"
    assert step.records == {"found": "[secret]", "inside": {"[secret]": ["[secret]"]}}
    shown = capfd.readouterr()
    written = [path for path in folder.rglob("*") if path.is_file()]
    mine = {folder / "spread.ipynb", folder / "secrets" / "hook-key"}
    texts = [path.read_text(errors="replace") for path in written if path not in mine]
    texts += [shown.out, shown.err]
    forms = [SECRET, json.dumps(SECRET)[1:-1], SECRET.replace("&", "&amp;"), "signing-key"]
    for form in [*forms, "w>örd", "rd & more"]:
        assert not [text for text in texts if form in text], form
    cells = nbformat.read(step.output, as_version=4).cells
    assert 'word = "secret:DB_PASSWORD"' in "\n".join(cell.source for cell in cells)
    # Each hook was called once for the outcome; the receiver's first answer was a failure.
    ((headers, body),) = Receiver.requests
    assert json.loads(body) == summary.as_dict() == json.loads((folder / "told").read_text())
    digest = hmac.new(b"signing-key", body, hashlib.sha256).hexdigest()
    assert headers["X-Mirrorlake-Signature"] == f"sha256={digest}"
    assert not (folder / "success").exists()
    kept = find_run(summary.run).document["hooks"]
    assert [(h["status"], h["attempts"]) for h in kept] == [("done", 2), ("done", 1), ("failed", 3)]


def test_unknown_secrets_are_refused_before_the_start(folder: Path) -> None:
    put_notebook(folder, "a", "word")
    text = "steps: [{notebook: a.ipynb, parameters: {word: 'secret:NO_SUCH_SECRET'}}]"
    with pytest.raises(UsageError, match="no secret 'NO_SUCH_SECRET'"):
        run_plan(put_plan(folder, text))
    assert not (folder / "home").exists()


def test_a_run_is_resumed_after_its_last_done_step(folder: Path) -> None:
    count = "import pathlib\nwith open(word, 'a') as f: f.write('x')\n" + RECORD
    put_notebook(folder, "count", count)
    flag = folder / "flag"
    put_notebook(folder, "needs", f"assert __import__('os').path.exists({str(flag)!r})", RECORD)
    text = """
name: again
steps:
- {notebook: count.ipynb}
- {notebook: needs.ipynb, parameters: {rows: "{{ steps.count.records.rows * 2 }}"}}
"""
    plan = put_plan(folder, text)
    first = run_plan(plan, overrides={"word": str(folder / "counted")})
    assert [step.status for step in first.steps] == ["done", "failed"]
    flag.touch()
    plan.unlink()  # the record is sufficient
    second = resume_run(first.run)
    assert (second.run, second.status) == (first.run, "done")
    assert second.steps[1].records == {"rows": 2, "word": str(folder / "counted")}
    assert (folder / "counted").read_text() == "x"
    assert len(find_run(first.run).document["resumed"]) == 1
    with pytest.raises(UsageError, match="is done"):
        resume_run(first.run)
    with pytest.raises(RunNotFoundError):
        resume_run("no-such-run")


def test_one_at_a_time_by_name_and_lake(folder: Path) -> None:
    put_notebook(folder, "n", RECORD, head='root: str = ""  # lake')
    lake = folder / "lake"
    (lake / "Tables").mkdir(parents=True)
    plan = load_plan(put_plan(folder, "name: nightly\nsteps: [{notebook: n.ipynb}]"))
    with plans.only_run("nightly", [str(lake)]):
        began = time.monotonic()
        with pytest.raises(
            AlreadyRunningError, match=r"nightly on .*lake is already running: process"
        ):
            run_plan(plan, folder / "elsewhere", overrides={"root": str(lake)})
        assert time.monotonic() - began < 1
        with (
            plans.only_run("other", [str(lake)]),
            plans.only_run("nightly", [str(folder / "lake2")]),
        ):
            pass
        with plans.only_run("nightly", []):
            pass
    assert [path.name for path in lake.rglob("*")] == ["Tables"]
    assert not list((folder / "state").rglob("*.lease"))
    assert not (folder / "elsewhere").exists()


def test_runs_are_listed_and_pruned(folder: Path) -> None:
    """Use records as runs write them, without kernels."""
    for number in range(100):
        run = f"p-{number:03d}"
        place = folder / "home" / "runs" / run
        place.mkdir(parents=True)
        status = "failed" if number % 10 == 0 else "done"
        document: dict[str, Any] = {"run": run, "plan": "p", "status": status}
        document |= {"folder": str(place), "files": ["01-a.ipynb"]}
        document |= {
            "started": f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}+00:00",
            "ended": "",
        }
        if number == 5:
            document |= {"status": "running", "process": {"host": "x", "pid": 1, "born": "0"}}
        if number == 6:
            process = {"host": socket.gethostname(), "pid": 2**22 + 1, "born": "1"}
            document |= {"status": "running", "process": process}
        (place / "run.json").write_text(json.dumps(document))
        (place / "01-a.ipynb").write_text("{}")
    (folder / "home" / "runs" / "p-099" / "mine.txt").write_text("not made by a run")
    began = time.monotonic()
    found = list_runs()
    assert time.monotonic() - began < 0.5
    assert [record.run for record in found] == [f"p-{n:03d}" for n in range(99, -1, -1)]
    assert (find_run("p-005").status, find_run("p-006").status) == ("running", "lost")
    assert len(list_runs(failed=True)) == 11
    assert list_runs(plan="q") == []
    assert len(prune_runs(keep=3)) == 85
    assert len(list_runs()) == 100  # the runs were only returned
    prune_runs(keep=0, apply=True)
    assert {record.status for record in list_runs()} == {"failed", "lost", "running"}
    prune_runs(keep=0, keep_failed=1, apply=True)
    assert [record.run for record in list_runs()] == ["p-090", "p-005"]
    assert sorted(path.name for path in (folder / "home" / "runs").iterdir()) == [
        *("p-005", "p-090", "p-099"),
    ]
    for wrong in ("..", ".", "", "../runs/p-005x"):
        with pytest.raises(RunNotFoundError):
            find_run(wrong)


def test_a_single_notebook_has_no_lock_and_keeps_its_name(folder: Path) -> None:
    put_notebook(folder, "mine", RECORD)
    with plans.only_run("mine", []):
        summary = run_plan(
            plans.open_target(str(folder / "mine.ipynb")),
            folder / "out",
            overrides={"rows": "4"},
            as_text=True,
            metrics=folder / "metrics" / "m.prom",
        )
    assert summary.as_dict()["plan"] == "mine"
    assert summary.steps[0].records == {"rows": 4, "word": "a"}
    assert [record.folder for record in list_runs()] == [str(folder / "out")]
    text = (folder / "metrics" / "m.prom").read_text()
    assert 'mirrorlake_run_status{plan="mine",status="done"} 1.0' in text
    assert 'mirrorlake_record{name="rows",plan="mine",step="01-mine"} 4.0' in text
    # A summary that can't be written is reported without a traceback.
    (folder / "out" / "summary.json").unlink()
    (folder / "out" / "summary.json").mkdir()
    again = run_plan(plans.open_target(str(folder / "mine.ipynb")), folder / "out")
    assert (again.status, again.kept) == ("done", False)


def test_a_step_that_is_cancelled_from_within_fails_and_the_run_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that is not an `Exception` ends the step's thread; the run must still end."""

    def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError("the loop is closed")

    engine = "mirrorlake_runs.papermill_engine.KernelEngine"
    monkeypatch.setattr(f"{engine}.execute_notebook", cancelled)
    put_notebook(folder, "n", RECORD)
    summary = run_plan(put_plan(folder, "steps: [{notebook: n.ipynb}]"))
    assert [step.status for step in summary.steps] == ["failed"]
    assert summary.steps[0].error["name"] == "CancelledError"
