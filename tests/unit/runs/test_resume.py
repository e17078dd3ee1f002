"""Resuming a run: replaced results, two processes at once, and another working folder."""

from __future__ import annotations

import datetime
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers.small_notebooks import put_notebook, put_plan
from mirrorlake import lake_path
from mirrorlake.errors import AlreadyRunningError, UsageError
from mirrorlake_runs import RunNotFoundError, commands, find_run, resume_run, run, run_plan
from mirrorlake_runs.execution import Execution
from mirrorlake_runs.plan import open_target
from mirrorlake_runs.records import RECORD, StepResult, as_text
from mirrorlake_runs.reporting import REPORT

IN_USE = "A run with its results in .*out is in progress"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a plan of one notebook, which fails."""
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))
    put_notebook(tmp_path, "n", head='root: str = "lake"')
    put_plan(tmp_path, "name: p\nsteps: [{notebook: n.ipynb}]")
    status(monkeypatch, "failed")
    return tmp_path


def status(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """Let notebooks end with a status, without a kernel; return the lakes that they use."""
    roots: list[str] = []

    def execute(self: Execution) -> StepResult:
        roots.append(lake_path(self.parameters.get("root", "lake")))
        return StepResult(self.name, text)

    monkeypatch.setattr(Execution, "run", execute)
    return roots


def fail_with(monkeypatch: pytest.MonkeyPatch, *errors: dict[str, Any]) -> None:
    """Let each attempt end with the next of these errors, and then succeed."""
    left = list(errors)

    def execute(self: Execution) -> StepResult:
        error = left.pop(0) if left else None
        return StepResult(self.name, "failed" if error else "done", error=error)

    monkeypatch.setattr(Execution, "run", execute)
    monkeypatch.setattr(run, "FIRST_PAUSE", 0.0)


def test_the_errors_of_earlier_attempts_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third attempt is that of a resumed run."""
    names = ("ConflictError", "BusyError")
    errors = [{"cell": 3, "name": name, "message": f"<{name}>\nmore"} for name in names]
    fail_with(monkeypatch, *errors)
    plan = put_plan(folder, "name: p\nsteps: [{notebook: n.ipynb, retry: safe}]")
    first = run_plan(plan)
    assert (first.steps[0].error, first.steps[0].earlier_errors) == (errors[1], errors[:1])
    done = resume_run(first.run)
    assert (done.steps[0].error, done.steps[0].earlier_errors) == (None, errors)
    assert done.as_dict()["steps"][0]["earlier_errors"] == errors
    assert find_run(first.run).document["steps"][0]["earlier_errors"] == errors
    shown = CliRunner().invoke(commands.runs, ["show", first.run]).output
    page = (Path(done.folder) / REPORT).read_text()
    for name in names:
        assert f"n, earlier attempt: {name} in cell 3: <{name}>\n" in shown
        assert f"<p>n, earlier attempt: {name} in cell 3: &lt;{name}&gt;</p>" in page


def test_a_search_for_runs_names_its_folder(folder: Path) -> None:
    def listed(*words: str) -> str:
        return CliRunner().invoke(commands.runs, ["list", *words]).output

    place, decides = folder / "home" / "runs", "MIRRORLAKE_HOME decides which folder is searched."
    assert f"No runs were found in {place}. {decides}\n" in listed()
    assert "No runs were found in elsewhere.\n" in listed("--folder", "elsewhere")
    with pytest.raises(RunNotFoundError, match=f"there are no runs in {place}. {decides}"):
        find_run("none")
    known = run_plan(put_plan(folder, "name: p\nsteps: [{notebook: n.ipynb}]")).run
    assert "No runs" not in listed()
    with pytest.raises(RunNotFoundError, match=f"newest runs in {place} are {known}. {decides}"):
        resume_run("none")


def test_a_record_of_an_earlier_version_is_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_plan(folder / "p.yaml")
    record = Path(first.folder) / RECORD
    document = json.loads(record.read_text())
    del document["steps"][0]["earlier_errors"]
    record.write_text(as_text(document))
    assert CliRunner().invoke(commands.runs, ["show", first.run]).exit_code == 0
    status(monkeypatch, "done")
    assert resume_run(first.run).status == "done"


@pytest.mark.parametrize(
    ("name", "is_resumed"),
    [("UsageError", False), ("InvalidNameError", False), ("CheckError", True)],
)
def test_a_wrong_parameter_is_corrected_instead_of_a_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_resumed: bool
) -> None:
    """A resumed run has the same parameters."""
    for target, what in ((folder / "n.ipynb", "notebook"), (folder / "p.yaml", "plan")):
        fail_with(monkeypatch, {"cell": 3, "name": name, "message": "Wrong."})
        summary = run_plan(open_target(str(target)))
        (step,) = summary.next_steps
        if is_resumed:
            assert step.endswith(f"mirrorlake run --resume {summary.folder}")
        else:
            assert step.startswith(f"Correct the parameters of n and run the {what} again.")
        assert step in (Path(summary.folder) / REPORT).read_text()


def test_results_of_a_later_run_are_not_replaced(folder: Path) -> None:
    first, second = (run_plan(folder / "p.yaml", folder / "out") for _ in range(2))
    with pytest.raises(UsageError, match=f"The run {second.run} has replaced the results"):
        resume_run(first.run)
    assert find_run(str(folder / "out")).run == second.run
    assert resume_run(second.run).run == second.run


def test_a_run_is_resumed_by_one_process_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The internal function is called when the first process has read the run's record."""
    first = run_plan(open_target(str(folder / "n.ipynb")), folder / "out")
    refused = []

    def fetch(*_: object) -> None:
        with pytest.raises(
            AlreadyRunningError, match=f"{IN_USE}: process {os.getpid()} on"
        ) as error:
            resume_run(first.run)
        refused.append(error)

    monkeypatch.setattr(run, "fetch_notebooks", fetch)
    assert resume_run(first.run).run == first.run
    assert len(refused) == 1
    assert not list((folder / "out").glob("*.lease"))


def test_a_folder_has_the_results_of_one_run_at_a_time(folder: Path) -> None:
    """A single notebook has no lock of its plan; the first run here is one of another plan."""
    earlier = run_plan(folder / "p.yaml", folder / "out")
    hints = []

    def others(*_: object) -> None:
        for start in (
            lambda: run_plan(open_target(str(folder / "n.ipynb")), folder / "out"),
            lambda: resume_run(earlier.run),
        ):
            with pytest.raises(AlreadyRunningError, match=f"{IN_USE}: process") as refused:
                start()
            hints.append(refused.value.hint)

    first = run_plan(folder / "p.yaml", folder / "out", on_step=others)
    assert hints == ["wait for it, or start a new run with another folder in --out."] * 2
    assert find_run(str(folder / "out")).run == first.run
    assert not list((folder / "out").glob("*.lease"))


@pytest.mark.parametrize(
    ("planned", "overrides", "lake"),
    [
        ("", {"root": "other"}, "other"),
        ("", {"root": "/no/such/lake"}, "/no/such/lake"),
        ("root: lakes/one", {}, "lakes/one"),
        ('root: "lake-{{ run_id }}"', {"root": "lake-{{ date }}"}, "lake-2026-01-02"),
    ],
)
def test_a_relative_root_is_the_same_lake_in_another_folder(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    planned: str,
    overrides: dict[str, str],
    lake: str,
) -> None:
    """Without `MIRRORLAKE_HOME`, an installed package uses the working folder."""
    monkeypatch.delenv("MIRRORLAKE_HOME")
    monkeypatch.setattr("mirrorlake.storage.paths.IS_CHECKOUT", False)
    plan = put_plan(folder, f"name: p\nsteps: [{{notebook: n.ipynb, parameters: {{{planned}}}}}]")
    first, second = folder / "first", folder / "second"
    for place in (first, second):
        place.mkdir()
    monkeypatch.chdir(first)
    day, later = datetime.date(2026, 1, 2), {"until": "2026-01-02"}
    started = run_plan(plan, overrides=overrides, day=day, backfill=later)
    monkeypatch.chdir(second)
    assert resume_run(started.folder).status == "failed"
    roots = status(monkeypatch, "done")
    commands.run(resume=started.folder)
    assert roots == [str(first / lake)]


def test_the_days_after_a_resumed_one_use_its_lake(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, later = datetime.date(2026, 1, 2), {"until": "2026-01-04"}
    started = run_plan(folder / "p.yaml", overrides={"root": "a"}, day=day, backfill=later)
    monkeypatch.setenv("MIRRORLAKE_HOME", str(folder))
    roots = status(monkeypatch, "done")
    commands.run(resume=started.folder)
    assert roots == [str(folder / "home" / "a")] * 3


def test_a_copy_of_a_lesson_keeps_its_relative_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a copy resolves its root in its own folder."""
    put_notebook(folder, "n", head='%env MIRRORLAKE_HOME=.\nroot: str = "lake"')
    started = run_plan(folder / "p.yaml", overrides={"root": "a"})
    monkeypatch.setenv("MIRRORLAKE_HOME", str(folder))
    roots = status(monkeypatch, "done")
    assert resume_run(started.folder).status == "done"
    assert roots == [str(folder / "a")]


def test_a_disk_without_locks_can_have_results(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    done = run_plan(open_target(str(folder / "n.ipynb")), folder / "out")
    assert find_run(str(folder / "out")).run == done.run
