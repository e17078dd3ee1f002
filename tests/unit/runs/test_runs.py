"""Plans of notebooks, their records, and the cleaning of executed notebooks."""

from __future__ import annotations

import html
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from mirrorlake.errors import UsageError
from mirrorlake_runs import (
    RunSummary,
    clean_notebook,
    load_plan,
    notebook_files,
    prepare,
    read_records,
    run_plan,
)
from mirrorlake_runs import plan as module

PROFILE_VARIABLE = "MIRRORLAKE_PROFILE"
MIME = "application/vnd.mirrorlake.record+json"
RECORDS = {"number": 7, "text": 'ä → "b"', "list": [1, None, {"deep": True}], "ratio": 0.5}


def write(path: Path, *cells: Any) -> None:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(new_notebook(cells=list(cells), metadata={"kernelspec": kernel}), path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with notebooks that need no Spark, and their parameters."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "notebooks").mkdir()
    (folder / "parameters").mkdir()
    head = new_code_cell("rows: int = 1  # rows", metadata={"tags": ["parameters"]})
    recording = (
        "import os\nfrom mirrorlake_runs import record\n"
        f"record(**{RECORDS!r})\nrecord(rows=rows, profile=os.environ[{PROFILE_VARIABLE!r}])"
    )
    write(
        folder / "notebooks" / "good.ipynb",
        new_markdown_cell(
            '# Title\n[next](bad.ipynb) [page](../docs/a.md "A page") [site](https://a.org)'
            '\n\nand `f[0](x)`:\n\n```\nlake["x"](a)\n```'
        ),
        head,
        new_code_cell(recording),
        new_code_cell("record(number=8)"),
    )
    failing = new_code_cell("rows / 0")
    write(folder / "notebooks" / "bad.ipynb", new_markdown_cell("# Title"), head, failing)
    for name in ("good", "bad"):
        (folder / "parameters" / f"{name}.yaml").write_text("rows: 1\n")
    write(folder / "notebooks" / "lonely.ipynb", head)
    return folder


@pytest.fixture(autouse=True)
def project(folders: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "NOTEBOOKS", folders / "notebooks")
    monkeypatch.setattr(module, "PARAMETERS", folders / "parameters")
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIRRORLAKE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv(PROFILE_VARIABLE, raising=False)


@pytest.fixture
def plan(tmp_path: Path) -> Callable[[str], Path]:
    def put(text: str) -> Path:
        (tmp_path / "p.yaml").write_text(text, encoding="utf-8")
        return tmp_path / "p.yaml"

    return put


class TestLoadPlan:
    def test_defaults_are_filled_in(self, plan) -> None:
        text = (
            "name: two\nsteps:\n- notebook: good\n- {notebook: good, profile: batch, parameters: "
        )
        loaded = load_plan(plan(text + "{rows: 5}}\n"))
        assert loaded.name == "two"
        assert [(step.notebook, step.parameters, step.profile) for step in loaded.steps] == [
            ("good", {"rows": 1}, "notebook"),
            ("good", {"rows": 5}, "batch"),
        ]
        assert load_plan(plan("steps: [{notebook: good, parameters: }]")).name == "p"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: [", r"p\.yaml is not valid YAML"),
            ("- good", r"p\.yaml is not a mapping of names to values"),
            ("word", r"p\.yaml is not a mapping"),
            ("", r"p\.yaml has no list of steps\. Hint: see parameters/plans/demo\.yaml"),
            ("steps: []", "has no list of steps"),
            ("steps: {notebook: good}", "has no list of steps"),
            ("steps: [good]", r"A step of .* names no notebook: 'good'"),
            ("steps: [{parameters: {}}]", "names no notebook"),
            ("steps: [{notebook: 7}]", "names no notebook"),
            (
                "steps: [{notebook: gone}]",
                r"There is no notebook 'gone'\. Hint: the notebooks are bad, good, lonely\.",
            ),
            ("steps: [{notebook: good, parameters: {rows: a}}]", "rows is 'a', which is not of"),
            (
                "steps: [{notebook: good, parameters: {Rows: 1, x: 2}}]",
                r"Notebook good has no parameter Rows, x\. Hint: it has rows\.",
            ),
            ("steps: [{notebook: good, profile: fast}]", r"no profile 'fast'.*Hint: choose one of"),
            ("steps: [{notebook: good}, {notebook: gone}]", "no notebook 'gone'"),
        ],
    )
    def test_what_is_no_plan_is_wrong_use(self, plan, text, message) -> None:
        with pytest.raises(UsageError, match=message):
            load_plan(plan(text))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"There is no file .*gone\.yaml"):
            load_plan(tmp_path / "gone.yaml")

    @pytest.mark.parametrize(
        "text",
        [
            "steps: [{notebook: good, parameters: [rows]}]",
            "steps: [{notebook: good, parameters: {1: 2, x: 3}}]",
            "steps: [{notebook: good, parameter: {rows: 5}}]",
            "steps: [{notebook: good, paramters: {rows: 5}, profile: batch}]",
        ],
    )
    def test_parameters_in_a_wrong_form_are_wrong_use(self, plan, text) -> None:
        with pytest.raises(UsageError):
            load_plan(plan(text))

    def test_a_folder_or_another_encoding_is_wrong_use(self, tmp_path: Path) -> None:
        (tmp_path / "latin.yaml").write_bytes(b"name: \xe4\nsteps: []\n")
        for path in (tmp_path, tmp_path / "latin.yaml"):
            with pytest.raises(UsageError):
                load_plan(path)


class Heard(list[tuple[str, int, int]]):
    def __call__(self, name: str, index: int, total: int) -> None:
        self.append((name, index, total))


@pytest.mark.parametrize("terminal", [True, False])
def test_what_cells_print_is_shown_on_a_terminal_only(
    folders: Path, plan, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path, terminal: bool
) -> None:
    head = new_code_cell("rows = 1", metadata={"tags": ["parameters"]})
    says = new_code_cell("print('month', 2)")
    write(folders / "notebooks" / "talks.ipynb", new_markdown_cell("# Title"), head, says)
    (folders / "parameters" / "talks.yaml").write_text("rows: 1\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert run_plan(plan("steps: [{notebook: talks}]\n"), tmp_path / "out").failed is None
    shown = capsys.readouterr()
    assert ("month 2\n" in shown.err, shown.out) == (terminal, "")


@pytest.mark.skipif(os.name == "nt", reason="a path is no socket there")
def test_a_kernel_talks_by_sockets_of_its_users_own(
    folders: Path, plan, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
) -> None:
    head = new_code_cell("rows = 1", metadata={"tags": ["parameters"]})
    asks = "from ipykernel.kernelapp import IPKernelApp\napp = IPKernelApp.instance()"
    says = new_code_cell(f"{asks}\nprint('by', app.transport, app.ip)")
    write(folders / "notebooks" / "talks.ipynb", new_markdown_cell("# Title"), head, says)
    (folders / "parameters" / "talks.yaml").write_text("rows: 1\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run_plan(plan("steps: [{notebook: talks}]\n"), tmp_path / "out").failed is None
    (found,) = re.findall(r"by ipc (\S+)\n", capsys.readouterr().err)
    assert Path(found).is_absolute()
    assert not Path(found).parent.exists()  # nothing is left of it


@pytest.fixture(scope="module")
def ran(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSummary, Heard]:
    """Run a plan whose second notebook fails."""
    home = tmp_path_factory.mktemp("home")
    (home / "p.yaml").write_text(
        "name: three\nsteps:\n- {notebook: good, parameters: {rows: 5}, profile: batch}\n"
        "- {notebook: bad, parameters: {rows: 6}}\n- notebook: good\n"
    )
    heard = Heard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NOTEBOOKS", folders / "notebooks")
        patch.setattr(module, "PARAMETERS", folders / "parameters")
        patch.setenv("MIRRORLAKE_HOME", str(home))
        patch.setenv("MIRRORLAKE_STATE", str(home / "state"))
        patch.delenv(PROFILE_VARIABLE, raising=False)
        summary = run_plan(home / "p.yaml", overrides={"rows": 9}, on_step=heard)
        assert PROFILE_VARIABLE not in os.environ
    assert Path(summary.folder).parent == home / "runs"
    return summary, heard


class TestRunPlan:
    def test_the_rest_is_skipped_after_a_failure(self, ran) -> None:
        summary, heard = ran
        assert [(s.notebook, s.status) for s in summary.steps] == [
            ("good", "done"),
            ("bad", "failed"),
            ("good", "skipped"),
        ]
        assert heard == [("good", 1, 3), ("bad", 2, 3)]
        assert summary.failed is summary.steps[1]
        names = sorted(path.name for path in Path(summary.folder).iterdir())
        made = ["01-good.ipynb", "02-bad.ipynb", "report.html", "run.json", "summary.json"]
        assert names == made
        page = (Path(summary.folder) / "report.html").read_text(encoding="utf-8")
        assert 'next page <a href="https://a.org"' in page  # the report's folder lacks the others
        assert "<code>f[0](x)</code>" in page
        assert 'lake["x"](a)' in html.unescape(page)

    def test_records_come_back_as_they_were_made(self, ran) -> None:
        done = ran[0].steps[0]
        assert done.records == RECORDS | {"number": 8, "rows": 9, "profile": "batch"}
        assert read_records(done.output) == done.records
        assert done.error is None
        assert done.seconds > 0

    def test_the_failing_notebook_is_kept_and_named(self, ran) -> None:
        failed = ran[0].failed
        assert failed.error["name"] == "ZeroDivisionError"
        assert failed.error["message"] == "division by zero"
        assert failed.records == {}
        kept = nbformat.read(failed.output, as_version=4)
        sources = [cell.source for cell in kept.cells]
        assert "rows / 0" in sources
        assert "rows = 9" in "\n".join(sources)
        outputs = [o for cell in kept.cells for o in cell.get("outputs", [])]
        assert [o.ename for o in outputs if o.output_type == "error"] == ["ZeroDivisionError"]

    def test_the_cell_is_counted_as_the_notebooks_reader_counts(self, ran, folders) -> None:
        source = nbformat.read(folders / "notebooks" / "bad.ipynb", as_version=4)
        number = [cell.source for cell in source.cells].index("rows / 0") + 1
        assert ran[0].failed.error["cell"] == number

    def test_the_summary_is_kept(self, ran) -> None:
        summary, _ = ran
        kept = json.loads((Path(summary.folder) / "summary.json").read_text(encoding="utf-8"))
        assert set(kept) == {
            *("run", "plan", "status", "started", "ended", "parameters", "steps", "next_steps")
        }
        assert (kept["plan"], kept["run"]) == ("three", Path(summary.folder).name)
        assert (kept["status"], kept["parameters"]) == ("failed", {"rows": 9})
        assert kept["ended"] >= kept["started"]
        assert kept == summary.as_dict()
        assert kept["started"].endswith("+00:00")
        assert [step["status"] for step in kept["steps"]] == ["done", "failed", "skipped"]
        assert kept["steps"][0]["records"]["text"] == RECORDS["text"]
        assert kept["steps"][1]["error"] == summary.failed.error
        assert kept["steps"][2] == {
            "notebook": "good",
            "status": "skipped",
            "seconds": 0.0,
            "output": None,
            "error": None,
            "records": {},
            "attempts": 0,
            "earlier_errors": [],
        }

    @pytest.mark.parametrize("chosen", [None, "", "batch"])
    def test_a_profile_of_ones_own_counts_and_nothing_leaks(
        self, plan, tmp_path, monkeypatch, chosen
    ) -> None:
        """Only the environment of the kernel is checked; no kernel starts."""
        if chosen is not None:
            monkeypatch.setenv(PROFILE_VARIABLE, chosen)
        for profile in ("notebook", "batch"):
            loaded = load_plan(plan(f"steps: [{{notebook: good, profile: {profile}}}]"))
            execution = prepare(loaded, {}, out=tmp_path / "out").execution(0, {})
            assert execution.environment == {PROFILE_VARIABLE: chosen or profile}
        assert os.environ.get(PROFILE_VARIABLE) == chosen

    def test_nothing_is_made_for_what_is_no_plan(self, plan, tmp_path) -> None:
        with pytest.raises(UsageError):
            run_plan(plan("steps: []"), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def executed() -> Any:
    """Return a notebook as papermill and a browser leave it."""
    shown = new_output(
        "execute_result", {"text/plain": "1"}, execution_count=41, metadata={"width": 1}
    )
    widget = "application/vnd.jupyter.widget-view+json"
    drawn = new_output("display_data", {"text/plain": "Box()", widget: {"model_id": "0abc"}})
    times = {"papermill": {"duration": 1}, "execution": {"iopub.status.busy": "2024-01-01"}}
    notebook = new_notebook(
        cells=[
            new_markdown_cell("# Title", metadata={"collapsed": True}),
            new_code_cell("rows: int = 1", metadata={"tags": ["parameters"]}, execution_count=40),
            new_code_cell("rows = 2", metadata={"tags": ["injected-parameters"]}),
            new_code_cell("rows", outputs=[shown], execution_count=41, metadata=times),
            new_code_cell(
                "draw()",
                outputs=[drawn, new_output("stream", name="stdout", text="drawn\n")],
                execution_count=None,
                metadata={"tags": ["nbval-ignore-output"], **times},
            ),
        ]
    )
    notebook.metadata = {
        "kernelspec": {"name": "mine", "display_name": "Mine", "language": "python"},
        "language_info": {"name": "python", "version": "3.99"},
        "papermill": {"start_time": "2024-01-01"},
        "widgets": {"state": {}},
    }
    return nbformat.from_dict(notebook)


class TestClean:
    def test_what_was_printed_is_one_output_however_it_came(self) -> None:
        parts = [("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c\n"), ("stdout", "d\n")]
        outputs = [new_output("stream", name=name, text=text) for name, text in parts]
        cell = new_code_cell("work()", outputs=outputs)
        (cleaned,) = clean_notebook(new_notebook(cells=[cell])).cells
        assert [(one.name, one.text) for one in cleaned.outputs] == [
            ("stdout", "a\nb\n"),
            ("stderr", "c\n"),
            ("stdout", "d\n"),
        ]
        assert len(cell.outputs) == 4

    def test_what_differs_from_run_to_run_goes(self) -> None:
        before = executed()
        cleaned = clean_notebook(before)
        assert before == executed() | {"cells": before.cells}  # the original stays as it was
        assert before.metadata.papermill
        assert len(before.cells) == 5
        assert [cell.source for cell in cleaned.cells] == [
            "# Title",
            "rows: int = 1",
            "rows",
            "draw()",
        ]
        assert [cell.id for cell in cleaned.cells] == [f"cell-{n:02}" for n in range(4)]
        assert [cell.get("execution_count") for cell in cleaned.cells] == [None, 1, 2, 3]
        assert [dict(cell.metadata) for cell in cleaned.cells] == [
            {},
            {"tags": ["parameters"]},
            {},
            {"tags": ["nbval-ignore-output"]},
        ]
        assert set(cleaned.metadata) == {"kernelspec", "language_info"}
        assert cleaned.metadata.language_info == {"name": "python", "version": "3.99"}
        nbformat.validate(cleaned)

    def test_outputs_stay_but_for_their_counters_and_widgets(self) -> None:
        *_, result, drawn = clean_notebook(executed()).cells
        assert result.outputs == [
            {
                "output_type": "execute_result",
                "data": {"text/plain": "1"},
                "metadata": {},
                "execution_count": 2,
            }
        ]
        assert drawn.outputs == [
            {"output_type": "display_data", "data": {"text/plain": "Box()"}, "metadata": {}},
            {"output_type": "stream", "name": "stdout", "text": "drawn\n"},
        ]

    def test_it_settles_at_once(self) -> None:
        once = clean_notebook(executed())
        assert clean_notebook(once) == once

    def test_a_file_is_written_only_if_it_has_to_be(self, tmp_path: Path) -> None:
        path = tmp_path / "n.ipynb"
        nbformat.write(executed(), path)
        assert notebook_files.clean_file(path)
        assert nbformat.read(path, as_version=4) == clean_notebook(executed())
        written = path.stat().st_mtime_ns
        assert not notebook_files.clean_file(path)
        assert path.stat().st_mtime_ns == written

    def test_what_papermill_executed_becomes_what_was_there(self, ran, folders, tmp_path) -> None:
        source = nbformat.read(folders / "notebooks" / "good.ipynb", as_version=4)
        cleaned = clean_notebook(nbformat.read(ran[0].steps[0].output, as_version=4))
        assert [cell.source for cell in cleaned.cells] == [cell.source for cell in source.cells]
        assert "papermill" not in json.dumps(cleaned)

    def test_the_marks_of_a_failure_go(self, ran, folders) -> None:
        """A notebook that failed once can be fixed and committed."""
        source = nbformat.read(folders / "notebooks" / "bad.ipynb", as_version=4)
        cleaned = clean_notebook(nbformat.read(ran[0].failed.output, as_version=4))
        assert [cell.source for cell in cleaned.cells] == [cell.source for cell in source.cells]


class TestRecords:
    def test_later_ones_win_and_other_outputs_are_passed_over(self, tmp_path: Path) -> None:
        outputs = [
            new_output("display_data", {MIME: {"a": 1, "b": 1}, "text/plain": "a: 1"}),
            new_output("display_data", {"text/plain": "other"}),
            new_output("stream", name="stdout", text="x"),
            new_output("display_data", {MIME: {"b": 2}}),
        ]
        write(tmp_path / "n.ipynb", new_markdown_cell("x"), new_code_cell("y", outputs=outputs))
        assert read_records(tmp_path / "n.ipynb") == {"a": 1, "b": 2}

    def test_a_notebook_without_any(self, tmp_path: Path) -> None:
        write(tmp_path / "n.ipynb", new_code_cell("y"))
        assert read_records(tmp_path / "n.ipynb") == {}
