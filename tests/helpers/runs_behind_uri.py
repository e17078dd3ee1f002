"""Runs with results behind a URI, used from one machine and from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_notebooks import RECORD, put_notebook, put_plan
from mirrorlake.storage.files import Storage
from mirrorlake_runs import (
    RunNotFoundError,
    find_report,
    find_run,
    list_runs,
    prune_runs,
    resume_run,
    run_plan,
)


def check_runs_behind(place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a plan that fails at first, then list, show, resume, open and prune it.

    Args:
        place: an empty URI.
        folder: a local folder.
        monkeypatch: pytest's fixture, for the environment.
    """
    flag, storage = folder / "flag", Storage(place)
    put_notebook(folder, "good", RECORD)
    put_notebook(folder, "needs", f"assert __import__('os').path.exists({str(flag)!r})", RECORD)
    plan = put_plan(folder, "name: p\nsteps: [{notebook: good.ipynb}, {notebook: needs.ipynb}]")
    for machine in ("one", "two"):
        monkeypatch.setenv("MIRRORLAKE_HOME", str(folder / machine))
        monkeypatch.setenv("MIRRORLAKE_CACHE", str(folder / machine / "cache"))
        if machine == "one":
            run = run_plan(plan, f"{place}/first/").run
            storage.write("first/mine.txt", b"not made by a run")
            assert [record.folder for record in list_runs()] == [f"{place}/first"]
        (listed,) = list_runs(folder=place)
        assert listed == find_run(f"{place}/first")
        assert (listed.run, listed.status, listed.folder) == (run, "failed", f"{place}/first")
    # The second machine has neither the record nor the executed notebook.
    assert list_runs() == []
    page = find_report(listed)
    assert page is not None
    assert "AssertionError" in page.read_text(encoding="utf-8")
    assert page.is_relative_to(folder / "two" / "cache")
    flag.touch()
    again = resume_run(f"{place}/first")
    assert (again.run, again.status, again.folder) == (run, "done", f"{place}/first")
    assert find_run(f"{place}/first").status == "done"
    assert b'id="step-1"' in storage.read("first/report.html")
    assert b"papermill" in (folder / "two" / "runs" / run / "01-good.ipynb").read_bytes()
    for wrong in (f"{place}/none", f"{place}"):
        with pytest.raises(RunNotFoundError):
            find_run(wrong)
    assert [record.run for record in prune_runs(keep=0, folder=place)] == [run]
    assert len(storage.files_below("first")) == 6
    prune_runs(keep=0, folder=place, apply=True)
    assert storage.files_below("first") == ("first/mine.txt",)
    assert list_runs(folder=place) == list_runs() == []
