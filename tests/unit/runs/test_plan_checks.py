"""Checks of a plan before its start: form, graph, templates, values."""

from __future__ import annotations

import datetime
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from helpers.pages import blocks
from helpers.project import PROJECT
from helpers.small_notebooks import put_notebook, put_plan
from mirrorlake.errors import AlreadyRunningError, UsageError
from mirrorlake.notices import noop
from mirrorlake_lab import make_course
from mirrorlake_runs import execution, load_plan, parameters, prepare, reporting, run
from mirrorlake_runs import plan as plans
from mirrorlake_runs.execution import Execution, may_pass
from mirrorlake_runs.parameters import Scrubber
from mirrorlake_runs.records import StepResult


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRRORLAKE_HOME", str(tmp_path / "home"))
    put_notebook(tmp_path, "a")
    put_notebook(
        tmp_path, "typed", head="n: int = 1\nx: float = 1.0\non: bool = False\nl: list[str] = []"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("name", "may"),
    [
        *((name, True) for name in ("DeadKernelError", "TimeoutError", "OSError", "SetupError")),
        *((name, True) for name in ("ConflictError", "TableFailedError", "AssertionError")),
        *((name, False) for name in ("UsageError", "DataFileError", "CheckError", "NameError")),
    ],
)
def test_only_errors_that_may_pass_are_retried(name: str, may: bool) -> None:
    assert may_pass({"cell": 1, "name": name, "message": ""}) == may


def test_a_mistyped_root_is_an_error_before_the_start(folder: Path) -> None:
    """Unless the first step that uses the lake creates it."""
    root = f'root: str = "{folder}/mistyped"'
    put_notebook(folder, "opens", "lake = Lake.open(root)\nlake", head=root)
    put_notebook(folder, "makes", "lake = Lake.open(root, new=True)", head=root)
    same = f"parameters: {{root: {folder}/mistyped}}"
    steps = [f"{{notebook: {name}.ipynb, {same}}}" for name in ("makes", "opens")]
    with pytest.raises(UsageError, match=r"Step opens: .*/mistyped is not a lake") as refused:
        run.run_plan(put_plan(folder, f"steps: [{', '.join(steps[::-1])}]"))
    assert "`-p root=…`" in str(refused.value)
    hint = str(refused.value)
    assert hint.index(f" publish {folder}/mistyped TABLE") < hint.index(" sample ")
    assert f" sample {folder}/mistyped` makes a sample lake there" in str(refused.value)
    assert not (folder / "home").exists()
    plan, _ = plans.with_overrides(load_plan(put_plan(folder, f"steps: [{', '.join(steps)}]")), {})
    prepare(plan, {}).check_lakes()


def test_a_step_that_cannot_begin_does_not_begin_others_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The internal class, because no kernel is needed to schedule steps."""
    begun: list[str] = []

    def execute(self: Execution) -> StepResult:
        begun.append(self.name)
        return StepResult(self.name, "done")

    monkeypatch.setattr(Execution, "run", execute)
    missing = 'parameters: {l: ["{{ steps.a.records.missing }}"]}'
    steps = ["{notebook: a.ipynb}", f"{{notebook: typed.ipynb, needs: a, {missing}}}"]
    steps += ["{notebook: a.ipynb, name: b, needs: a}", "{notebook: a.ipynb, name: c, needs: b}"]
    plan = load_plan(put_plan(folder, f"parallel: 2\nsteps: [{', '.join(steps)}]"))
    results = run.Schedule(prepare(plan, {}), noop, noop).execute()
    assert [one.status for one in results] == ["done", "failed", "done", "done"]
    assert begun == ["a.ipynb"] * 3


@pytest.mark.parametrize("hook", ["page --key secret:PAGE", "{command: page secret:PAGE}"])
def test_a_secret_in_the_command_line_of_a_hook_is_looked_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    plan = load_plan(put_plan(folder, f"steps: [{{notebook: a.ipynb}}]\non_failure: {hook}"))
    monkeypatch.delenv("PAGE", raising=False)
    with pytest.raises(UsageError, match="There is no secret 'PAGE'"):
        prepare(plan, {})
    monkeypatch.setenv("PAGE", "long enough")
    assert prepare(plan, {}).secrets == {"PAGE": "long enough"}


def test_a_hook_with_an_open_quotation_is_an_error_before_the_start(folder: Path) -> None:
    path = put_plan(folder, "steps: [{notebook: a.ipynb}]\non_failure: logger it's over")
    with pytest.raises(UsageError, match="No closing quotation"):
        load_plan(path)


def test_a_hook_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "steps: [{notebook: a.ipynb}]\non_failure: [false 'a b', {url: 'http://localhost:1'}]"
    plan = load_plan(put_plan(folder, text))
    command, url = plan.hooks["on_failure"]
    assert (command, url) == ({"command": ["false", "a b"]}, {"url": "http://localhost:1"})
    monkeypatch.setattr("shlex.split", pytest.fail)
    monkeypatch.setattr(reporting, "HOOK_ATTEMPTS", 1)
    told = reporting.call_hooks([command, url], "{}", prepare(plan, {}))
    assert [one["hook"] for one in told] == ["false 'a b'", "http://localhost:1"]


def test_a_plan_is_locked_without_a_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("MIRRORLAKE_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with plans.only_run("p", []), pytest.raises(AlreadyRunningError), plans.only_run("p", []):
        pass


def test_a_plan_is_locked_for_a_user_who_may_not_write_the_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two users have different state folders. The permissions of root are not limited."""
    lake, write = folder / "lake", Path.open
    lake.mkdir()

    def read_only(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode != "r" and path.is_relative_to(lake):
            raise PermissionError(13, "Permission denied", str(path))
        return write(path, mode, **options)

    monkeypatch.setenv("MIRRORLAKE_STATE", str(folder / "first"))
    with plans.only_run("p", [str(lake)]):
        monkeypatch.setenv("MIRRORLAKE_STATE", str(folder / "second"))
        monkeypatch.setattr(Path, "open", read_only)
        with (
            pytest.raises(AlreadyRunningError, match="already running: process"),
            plans.only_run("p", [str(lake)]),
        ):
            pass
    with plans.only_run("p", [str(lake)]):
        pass


def test_a_secret_that_cannot_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe\xfd\xfc")
    monkeypatch.setenv("MIRRORLAKE_SECRETS", str(tmp_path))
    with pytest.raises(UsageError, match=r"'BINARY' can't be read .*MIRRORLAKE_SECRETS"):
        parameters.look_up("BINARY")
    with pytest.raises(UsageError, match="There is no secret 'MISSING'"):
        parameters.look_up("MISSING")


class TestValues:
    @pytest.mark.parametrize(
        ("kind", "text", "value"),
        [
            ("int", "20", 20),
            ("int", "-3", -3),
            ("float", "2", 2.0),
            ("float", "1e-3", 0.001),
            ("bool", "true", True),
            ("bool", "No", False),
            ("str", "007", "007"),
            ("str", "2026-01-01", "2026-01-01"),
            ("str", "", ""),
            ("list[str]", "[a, b]", ["a", "b"]),
            ("dict[str, int]", "{a: 1}", {"a": 1}),
            ("int | None", "null", None),
            ("str | None", "null", None),
            ("Optional[int]", "4", 4),
            ("Literal['x', 'y']", "y", "y"),
            ("Unheard[of]", "[1]", [1]),
            ("", "3", 3),
        ],
    )
    def test_a_text_is_read_by_the_annotation(self, kind: str, text: str, value: object) -> None:
        read = parameters.Parameter("p", kind).check(text, as_text=True)
        assert read == value
        assert type(read) is type(value)

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("int", "twenty"),
            ("int", "1.5"),
            ("int", "true"),
            ("float", "x"),
            ("bool", "7"),
            ("list[int]", "[a]"),
            ("list", "a"),
            ("Literal['x', 'y']", "z"),
        ],
    )
    def test_another_type_is_named_with_the_parameter(self, kind: str, text: str) -> None:
        with pytest.raises(UsageError) as refused:
            parameters.Parameter("months", kind).check(text, as_text=True)
        assert "months" in refused.value.message
        assert kind in refused.value.message

    def test_parameters_are_read_from_the_source(self, folder: Path) -> None:
        found = parameters.read_parameters(folder / "typed.ipynb")
        assert [(p.name, p.annotation) for p in found.values()] == [
            ("n", "int"),
            ("x", "float"),
            ("on", "bool"),
            ("l", "list[str]"),
        ]
        put_notebook(folder, "plain", head="n = 1\nwhen = None\n")
        assert [
            p.annotation for p in parameters.read_parameters(folder / "plain.ipynb").values()
        ] == [
            "int",
            "",
        ]
        put_notebook(folder, "none", head="")
        assert parameters.read_parameters(folder / "none.ipynb") == {}

    def test_what_is_no_notebook(self, folder: Path) -> None:
        (folder / "x.ipynb").write_text("no")
        for name in ("x.ipynb", "gone.ipynb"):
            with pytest.raises(UsageError, match=name):
                plans.open_target(str(folder / name))

    def test_a_path_has_the_values_of_the_notebooks_file(self, folder: Path) -> None:
        put_notebook(folder / "notebooks" / "learn", "typed", head="n: int = 1\nword: str = 'a'")
        values = folder / "parameters" / "learn" / "typed.yaml"
        values.parent.mkdir(parents=True)
        values.write_text("{n: 5, word: b}")
        step = "{notebook: notebooks/learn/typed.ipynb, parameters: {word: c}}"
        plan = load_plan(put_plan(folder, f"steps: [{step}, {{notebook: typed.ipynb}}]"))
        assert [step.parameters for step in plan.steps] == [{"n": 5, "word": "c"}, {}]

    def test_overrides_reach_every_step_that_has_them(self, folder: Path) -> None:
        text = "steps: [{notebook: a.ipynb}, {notebook: typed.ipynb, parameters: {n: 7}}]"
        plan, read = plans.with_overrides(
            load_plan(put_plan(folder, text)), {"rows": "5", "x": "3"}, as_text=True
        )
        assert read == {"rows": 5, "x": 3.0}
        assert [step.parameters for step in plan.steps] == [{"rows": 5}, {"n": 7, "x": 3.0}]
        with pytest.raises(
            UsageError, match=r"no parameter z\. Hint: it has l, n, on, rows, word, x"
        ):
            plans.with_overrides(plan, {"z": 1})
        with pytest.raises(UsageError, match=r"no parameter rosw\. Hint: did you mean rows\?"):
            plans.with_overrides(plan, {"rosw": 1})
        with pytest.raises(UsageError, match=r"'nigthly'\. Hint: did you mean nightly\?"):
            plans.open_target("nigthly")


class TestForm:
    @pytest.mark.parametrize(
        ("step", "message"),
        [
            ("retries: 2", "has retries without `retry: safe`"),
            ("retry: often", "'often' is not one of"),
            ("timeout: 0", "0 is less than or equal to"),
            ("timeout: soon", "'soon' is not of type 'number'"),
            ("need: [a]", "'need' was unexpected"),
            ("parameters: {rows: x}", "rows is 'x', which is not of type int"),
            ("parameters: {rows: '{{ nonsense }}'}", "unknown name nonsense"),
            ("parameters: {rows: '{{ steps.b.records.x }}'}", "uses the step b"),
            ("parameters: {rows: '{{ date'}", "can't be read"),
            ("needs: [b]", "There is no step 'b'"),
            ("needs: [a]", "in a circle: a → a"),
            ("\non_failure: [[logger, no]]", "such as `- command: [logger, nightly failed]`"),
        ],
    )
    def test_what_is_wrong_is_said_before_the_start(
        self, folder: Path, step: str, message: str
    ) -> None:
        with pytest.raises(UsageError) as refused:
            load_plan(put_plan(folder, f"steps:\n- notebook: a.ipynb\n  {step}\n"))
        assert message in str(refused.value)

    def test_a_circle_is_named(self, folder: Path) -> None:
        steps = [("x", "z"), ("y", "x"), ("z", "y"), ("w", "z")]
        text = "".join(
            f"- {{notebook: a.ipynb, name: {name}, needs: [{need}]}}\n" for name, need in steps
        )
        with pytest.raises(UsageError, match="x → z → y → x"):
            load_plan(put_plan(folder, f"steps:\n{text}"))

    def test_a_plan_without_needs_is_a_chain(self, folder: Path) -> None:
        steps = "[{notebook: a.ipynb}, {notebook: typed.ipynb}, {notebook: a.ipynb}]"
        assert load_plan(put_plan(folder, f"steps: {steps}")).edges == ((), (0,), (1,))
        assert load_plan(put_plan(folder, f"parallel: 2\nsteps: {steps}")).edges == ((), (), ())
        graph = "[{notebook: a.ipynb}, {notebook: typed.ipynb, needs: a}]"
        assert load_plan(put_plan(folder, f"steps: {graph}")).edges == ((), (0,))

    def test_the_schema_is_one_and_takes_the_projects_plans(self) -> None:
        schema = json.loads(plans.SCHEMA.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        for path in sorted((PROJECT / "parameters" / "plans").glob("*.yaml")):
            jsonschema.validate(yaml.safe_load(path.read_text()), schema)
        for page in ("how-to/every-night", "schedule"):
            (plan,) = blocks(page, "yaml")
            jsonschema.validate(yaml.safe_load(plan), schema)

    def test_the_page_on_the_nightly_plan_keeps_its_steps(self, tmp_path: Path) -> None:
        path = tmp_path / "parameters" / "plans" / "nightly.yaml"
        path.parent.mkdir(parents=True)
        (tmp_path / "notebooks").symlink_to(PROJECT / "notebooks")
        path.write_text(*blocks("how-to/every-night", "yaml"))
        edited, own = load_plan(path), plans.open_target("nightly")
        assert [step.name for step in edited.steps] == [step.name for step in own.steps]
        limited = blocks("how-to/every-night", "sh")[1].split()
        assert limited[-1] == "max_lag=90000"
        own, _ = plans.with_overrides(own, {"max_lag": "90000"}, as_text=True)
        for plan in (edited, own):
            limits = [step.parameters.get("max_lag") for step in plan.steps]
            assert limits == [None, 90000, None, None]


class TestTemplates:
    KNOWN = parameters.known_names(
        datetime.date(2026, 3, 1), "r-1", {"m": {"records": {"lag": 2.5}}}
    )

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("{{ date }}", "2026-03-01"),
            ("{{ date - days(1) }}", "2026-02-28"),
            ("{{ date.replace(day=5) }}", "2026-03-05"),
            ("day {{ date }} of {{ run_id }}", "day 2026-03-01 of r-1"),
            ("{{ steps.m.records.lag }}", 2.5),
            ("{{ steps.m.records.lag > 1 }}", True),
            (["{{ run_id }}", 3], ["r-1", 3]),
            ({"a": "{{ 1 + 1 }}"}, {"a": 2}),
            ("no template", "no template"),
        ],
    )
    def test_they_keep_their_types(self, text: object, value: object) -> None:
        assert parameters.fill(text, self.KNOWN) == value

    @pytest.mark.parametrize(
        "text",
        [
            "{{ steps.m.records.gone }}",
            "x {{ steps.gone.records.lag }}",
            "{{ env.NO_SUCH_VARIABLE_HERE }}",
            "{{ 1 / 0 }}",
            "{{ date.__class__.__mro__ }}",
            "{{ ''.__class__.__subclasses__() }}",
            "{{ env.update({'a': 'b'}) }}",
            "{{ days }}",
        ],
    )
    def test_what_fails_or_would_leave_the_sandbox_is_an_error(self, text: str) -> None:
        with pytest.raises(UsageError, match="template"):
            parameters.fill(text, self.KNOWN)

    def test_a_missing_variable_is_found_before_the_start(self, folder: Path) -> None:
        text = "steps: [{notebook: a.ipynb, parameters: {word: '{{ env.NO_SUCH_THING }}'}}]"
        with pytest.raises(UsageError, match=r"variable NO_SUCH_THING is not set\. Hint: set it"):
            prepare(load_plan(put_plan(folder, text)), {})

    def test_a_filled_value_has_the_parameters_type(self, folder: Path) -> None:
        text = "steps: [{notebook: a.ipynb, parameters: {rows: '{{ date }}'}}]"
        with pytest.raises(UsageError, match="Step a: Parameter rows is '2"):
            prepare(load_plan(put_plan(folder, text)), {})


class TestDays:
    def test_a_range(self) -> None:
        found = run.days_of("date=2026-02-27..2026-03-01")
        assert [day.isoformat() for day in found] == ["2026-02-27", "2026-02-28", "2026-03-01"]
        assert len(run.days_of("date=2026-01-01")) == 1
        document = {"day": "2026-02-27", "backfill": {"until": "2026-03-01"}}
        assert run.days_after(document) == found[1:]
        assert run.days_after({"day": "2026-02-27"}) == []

    @pytest.mark.parametrize(
        "text", ["date=2026-01-02..2026-01-01", "day=2026-01-01", "date=x..y", "date", "date="]
    )
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(UsageError, match="--for"):
            run.days_of(text)


def test_a_notebook_need_not_name_its_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nbformat` makes notebooks without a kernel. No kernel runs: papermill only prepares it."""
    papermill = execution.import_papermill()
    prepare_only = partial(papermill.execute_notebook, prepare_only=True)
    kernel = SimpleNamespace(group=None, manager=None, close=lambda: None)
    monkeypatch.setattr(papermill, "execute_notebook", prepare_only)
    monkeypatch.setattr(execution, "StartedKernel", lambda *_: kernel)
    nbformat.write(new_notebook(cells=[new_code_cell("n")]), tmp_path / "own.ipynb")
    files = (tmp_path / "own.ipynb", tmp_path / "done.ipynb")
    done = Execution("own", *files, {"n": 7}, {}, {}, Scrubber(), alone=False).run()
    assert (done.status, done.error) == ("done", None)
    assert "n = 7" in nbformat.read(files[1], as_version=4).cells[0].source


def test_a_copy_of_a_lesson_runs_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Students have lakes of their own, whatever folder a teacher runs their copies from."""
    papermill = execution.import_papermill()
    prepare_only = partial(papermill.execute_notebook, prepare_only=True)
    folders: list[Path | None] = []

    def start(_environment: object, _scrubber: object, folder: Path | None) -> SimpleNamespace:
        folders.append(folder)
        return SimpleNamespace(group=None, manager=None, close=lambda: None)

    monkeypatch.setattr(papermill, "execute_notebook", prepare_only)
    monkeypatch.setattr(execution, "StartedKernel", start)
    put_notebook(tmp_path, "own")
    copies = [make_course(tmp_path / name).notebooks[0] for name in ("ada", "bob")]
    for path in (*copies, tmp_path / "own.ipynb"):
        target = tmp_path / "done.ipynb"
        done = Execution("one", path, target, {}, {}, {}, Scrubber(), alone=False).run()
        assert (done.status, done.error) == ("done", None)
    assert folders == [tmp_path / "ada", tmp_path / "bob", None]
