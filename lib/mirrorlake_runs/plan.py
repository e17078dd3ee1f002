"""Plans: read them, check them as a whole before anything starts, and prepare a run of one.

A plan is a YAML file: `name` and `steps`, each with a `notebook` and the `parameters` that differ
from the notebook's own. `plan.schema.json`, which editors read too, lists the rest. A plan that has
neither `needs` nor `parallel` is a chain; in any other one a step waits for what it `needs`.

A prepared run has its id, its folder, its secrets and the values that are known before the start.
One run of a plan goes on at a time: it holds a lease in each of its lakes, and one on this machine.
The machine's own counts where no lake can hold one: without a root, on a lake that is read-only, or
where there is none yet.
"""

from __future__ import annotations

import contextlib
import datetime
import graphlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from obstore.exceptions import PermissionDeniedError

from mirrorlake.errors import AlreadyRunningError, UsageError
from mirrorlake.names import STATE, fingerprint
from mirrorlake.spark.session import PROFILE_VARIABLE, PROFILES
from mirrorlake.storage.files import Storage, storage_errors
from mirrorlake.storage.lease import Lease, LeaseHeldError
from mirrorlake.storage.paths import NOTEBOOKS, PARAMETERS, lake_path, may_be_lake, state
from mirrorlake_runs.execution import Execution
from mirrorlake_runs.fast_jsonschema import import_jsonschema
from mirrorlake_runs.parameters import (
    Parameter,
    Scrubber,
    fill,
    has_template,
    is_secret,
    known_names,
    look_up,
    map_leaves,
    names_in,
    read_parameters,
    resolve,
    steps_named,
)
from mirrorlake_runs.records import StepResult, runs_folder, slug

SCHEMA = Path(__file__).with_name("plan.schema.json")


@dataclass(frozen=True)
class PlanStep:
    """One notebook with its parameters, and what happens before and after it.

    Attributes:
        notebook: as the plan names it.
        parameters: what the notebook is given, templates and references to secrets among it.
        profile: the profile of its Spark.
        name: what `needs` and templates call it.
        needs: the names of the steps that it waits for.
        retries: how many more attempts it has.
        timeout: seconds for one attempt; None for no limit.
        continue_on_error: whether what needs it runs even if it fails.
        path: the notebook's file.
        known: the parameters that the notebook has.
    """

    notebook: str
    parameters: dict[str, Any]
    profile: str
    name: str
    needs: tuple[str, ...]
    retries: int
    timeout: float | None
    continue_on_error: bool
    path: Path
    known: dict[str, Parameter]


@dataclass(frozen=True)
class Plan:
    """Notebooks to run.

    Attributes:
        edges: for each step the indexes of those that it waits for.
        parallel: how many steps run side by side.
        one_spark: whether steps that follow each other start their Spark in one JVM.
        history: whether the run becomes a row of `diagnostics.runs`.
        hooks: what is called, by outcome: `on_failure`, `on_success`.
        document: the plan as it was read, and `beside` the folder that its paths start from.
        single: whether this is one notebook that was asked for by itself.
    """

    name: str
    steps: tuple[PlanStep, ...]
    edges: tuple[tuple[int, ...], ...]
    parallel: int
    one_spark: bool
    history: bool
    hooks: dict[str, list[Any]]
    document: dict[str, Any]
    beside: Path
    single: bool = False


def notebook_names() -> list[str]:
    """The project's notebooks as a plan names them: `mirror`, `learn/02_mirror`."""
    found = (path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.rglob("*.ipynb"))
    return sorted(
        str(path.with_suffix("")) for path in found if ".ipynb_checkpoints" not in path.parts
    )


def load_plan(path: Path) -> Plan:
    """Reads a plan, with all parameters of each step filled in.

    Raises:
        UsageError: no such file, not a plan, or a parameter that the notebook does not have.
    """
    return parse_plan(_read_yaml(path), str(path), path.stem, path.absolute().parent)


def open_target(target: str) -> Plan:
    """The plan that `run` is asked for: a notebook's name or path, or a plan's.

    Raises:
        UsageError: it is neither.
    """
    path = Path(target)
    if path.suffix in (".yaml", ".yml"):
        return load_plan(path)
    if target in notebook_names() or path.suffix == ".ipynb":
        name = path.stem
        document = {"name": name[:100], "steps": [{"notebook": target}]}
        return replace(parse_plan(document, target, name, Path.cwd()), single=True)
    if (named := PARAMETERS / "plans" / f"{target}.yaml").is_file() and path.name == target:
        return load_plan(named)
    plans = sorted(found.stem for found in (PARAMETERS / "plans").glob("*.yaml"))
    raise UsageError(
        f"There is no notebook {target!r}, and no plan of that name.",
        hint=f"there are {', '.join(notebook_names())}; plans: {', '.join(plans)}.",
    )


def parse_plan(document: dict[str, Any], origin: str, default_name: str, beside: Path) -> Plan:
    """Checks a plan that was read from a file or from a run's record.

    Args:
        document: the plan.
        origin: where it is from, in messages.
        default_name: its name if it has none.
        beside: the folder that the paths of its notebooks start from.

    Raises:
        UsageError: it is no plan; says what is wrong.
    """
    # What YAML takes for a date is the text that was written.
    document = map_leaves(
        document, lambda part: part.isoformat() if isinstance(part, datetime.date) else part
    )
    _check_form(document, origin)
    given = [_read_step(step, beside) for step in document["steps"]]
    chain = "parallel" not in document and not any("needs" in step for step in document["steps"])
    edges: list[tuple[int, ...]]
    if chain:
        edges = [(index - 1,) if index else () for index in range(len(given))]
    else:
        edges = _read_needs(given)
    for index, step in enumerate(given):
        before = {given[one].name for one in _ancestors(edges, index)}
        if unknown := sorted(steps_named(step.parameters) - before):
            raise UsageError(
                f"A template of step {step.name} uses the step {', '.join(unknown)}.",
                hint=f"it can use what it needs: {', '.join(sorted(before)) or 'nothing'}.",
            )
    if document.get("one_spark") and document.get("parallel", 1) > 1:
        raise UsageError(
            f"{origin} has one_spark, and steps side by side.",
            hint="a JVM has one session at a time: leave out one_spark or parallel.",
        )
    hooks = {name: _as_list(document.get(name, [])) for name in ("on_failure", "on_success")}
    return Plan(
        str(document.get("name") or default_name),
        tuple(given),
        tuple(edges),
        document.get("parallel", 1),
        document.get("one_spark", False),
        document.get("history", False),
        hooks,
        document,
        beside,
    )


def with_overrides(
    plan: Plan, values: Mapping[str, Any], *, as_text: bool = False
) -> tuple[Plan, dict[str, Any]]:
    """A plan whose steps have other values for some parameters, and these values as read.

    Args:
        plan: the plan.
        values: by name; a value counts in every step that has the parameter.
        as_text: whether they are texts from a command line.

    Raises:
        UsageError: no step has a parameter, or a value is not of its type.
    """
    known = {name: step.known[name] for step in reversed(plan.steps) for name in step.known}
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(
            f"{plan.name} has no parameter {', '.join(unknown)}.",
            hint=f"it has {', '.join(sorted(known)) or 'none'}.",
        )
    steps = []
    for step in plan.steps:
        own = {name: value for name, value in values.items() if name in step.known}
        own = {name: _checked(step.known[name], value, as_text) for name, value in own.items()}
        steps.append(replace(step, parameters=step.parameters | own))
    read = {name: _checked(known[name], value, as_text) for name, value in values.items()}
    if steps_named(read):
        raise UsageError("A parameter of a whole run can't use the results of its steps.")
    return replace(plan, steps=tuple(steps)), read


def check_values(step: PlanStep, values: Mapping[str, Any]) -> dict[str, Any]:
    """A step's values once their templates are filled in.

    Raises:
        UsageError: one is not of its parameter's type.
    """
    return {name: _checked(step.known[name], value, False) for name, value in values.items()}


def _check_form(document: dict[str, Any], origin: str) -> None:
    """Checks that a document has the form of a plan.

    Args:
        document: the plan as read.
        origin: where it comes from, in messages.

    Raises:
        UsageError: it has not; says where and what.
    """
    steps = document.get("steps")
    if not isinstance(steps, list) or not steps:
        raise UsageError(f"{origin} has no list of steps.", hint="see parameters/plans/demo.yaml.")
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("notebook"), str):
            raise UsageError(f"A step of {origin} names no notebook: {step!r}.")
    if any(not isinstance(key, str) for key in _keys(document)):
        raise UsageError(f"{origin} has a key that is no text.", hint="put it in quotes.")
    errors = sorted(_validator().iter_errors(document), key=lambda error: list(error.path))
    if errors:
        first = errors[0]
        where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first.path)
        place = f" at {where} (steps counted from 1)" if where else ""
        raise UsageError(
            f"{origin} is not a plan{place}: {first.message}.", hint="see docs/schedule.md."
        )


@cache
def _validator() -> Any:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return import_jsonschema().Draft202012Validator(schema)


def _keys(value: Any) -> list[Any]:
    """All keys in a document, at any depth."""
    if isinstance(value, dict):
        return [*value, *(key for part in value.values() for key in _keys(part))]
    if isinstance(value, list):
        return [key for part in value for key in _keys(part)]
    return []


def _read_needs(steps: Sequence[PlanStep]) -> list[tuple[int, ...]]:
    """For each step the indexes of the steps that it waits for itself.

    Raises:
        UsageError: a name that no step has, or more than one; a cycle.
    """
    names = [step.name for step in steps]
    found = []
    for step in steps:
        for need in step.needs:
            if (count := names.count(need)) != 1:
                what = "There is no step" if count == 0 else "There is more than one step"
                raise UsageError(
                    f"Step {step.name} needs {need}. {what} {need!r}.",
                    hint=f"there are {', '.join(names)}; `name` gives a step a name of its own.",
                )
        found.append(tuple(names.index(need) for need in step.needs))
    try:
        graphlib.TopologicalSorter(dict(enumerate(found))).prepare()
    except graphlib.CycleError as error:
        circle = " → ".join(names[index] for index in reversed(error.args[1]))
        raise UsageError(
            f"The steps need each other in a circle: {circle}.", hint="take one of the needs away."
        ) from None
    return found


def _ancestors(needs: Sequence[tuple[int, ...]], index: int) -> set[int]:
    """All steps that a step waits for, through others too; the graph has no cycle."""
    found: set[int] = set()
    waiting = list(needs[index])
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += needs[one]
    return found


def _checked(parameter: Parameter, value: Any, as_text: bool) -> Any:
    if has_template(value) or is_secret(value):
        return value  # checked when it is known
    return parameter.check(value, as_text=as_text)


def _read_step(step: dict[str, Any], beside: Path) -> PlanStep:
    notebook = step["notebook"]
    path, defaults = _find_notebook(notebook, beside)
    known = read_parameters(path)
    known |= {name: Parameter(name, "") for name in defaults if name not in known}
    chosen = step.get("parameters") or {}
    if unknown := sorted(set(chosen) - set(known)):
        raise UsageError(
            f"Notebook {notebook} has no parameter {', '.join(unknown)}.",
            hint=f"it has {', '.join(known) or 'none'}.",
        )
    profile = step.get("profile", "notebook")
    if profile not in PROFILES:
        raise UsageError(f"There is no profile {profile!r}.", hint=f"choose one of {PROFILES}.")
    retries = step.get("retries", 1 if step.get("retry") == "safe" else 0)
    if retries and step.get("retry") != "safe":
        raise UsageError(
            f"The step of {notebook} has retries, but does not say `retry: safe`.",
            hint="say so if executing it twice does no harm.",
        )
    return PlanStep(
        notebook,
        defaults | {name: _checked(known[name], value, False) for name, value in chosen.items()},
        profile,
        step.get("name") or path.stem,
        tuple(_as_list(step.get("needs", []))),
        retries,
        step.get("timeout"),
        step.get("continue_on_error", False),
        path,
        known,
    )


def _find_notebook(notebook: str, beside: Path) -> tuple[Path, dict[str, Any]]:
    """A notebook's file, and the values that its parameter file gives."""
    if notebook.endswith(".ipynb"):
        path = beside / Path(notebook).expanduser()
        if not path.is_file():
            raise UsageError(f"There is no notebook {path}.")
        return path, {}
    names = notebook_names()
    if notebook not in names:
        known = ", ".join(names)
        raise UsageError(f"There is no notebook {notebook!r}.", hint=f"there are {known}.")
    values = PARAMETERS / f"{notebook}.yaml"
    defaults = _read_yaml(values) if values.is_file() else {}
    return NOTEBOOKS / f"{notebook}.ipynb", defaults


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}.") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {error}.") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a mapping of names to values.")
    return document


_LETTERS = 12  # of a fingerprint


@dataclass
class Prepared:
    """A run that can start: made, its secrets are looked up, and all values checked by then.

    Attributes:
        run: its id.
        work: the local folder where notebooks are executed.
        out: a URI where the results go too; empty if they stay on this machine.
        day: its date in templates.
        overrides: parameters of the whole run.
        secrets: by name.
        done: results of steps from before, by index.
        before: the results of earlier attempts at the other steps, by index.

    Raises:
        UsageError: a template or a value is wrong, or a secret is not known.
    """

    plan: Plan
    run: str
    work: Path
    out: str
    day: datetime.date
    overrides: dict[str, Any]
    started: datetime.datetime
    done: dict[int, StepResult] = field(default_factory=dict)
    before: dict[int, StepResult] = field(default_factory=dict)
    secrets: dict[str, str] = field(init=False)
    scrubber: Scrubber = field(init=False)

    def __post_init__(self) -> None:
        """Looks up the secrets, and tries the templates that can be filled before the start."""
        steps = self.plan.steps
        names = names_in([step.parameters for step in steps])
        names |= names_in(list(self.plan.hooks.values()))
        self.secrets = {name: look_up(name) for name in sorted(names)}
        self.scrubber = Scrubber(self.secrets.values())
        for index, step in enumerate(steps):
            early = {key: v for key, v in step.parameters.items() if not steps_named(v)}
            try:
                self.values(index, early, {})
            except UsageError as error:
                raise UsageError(f"Step {step.name}: {error.message}", hint=error.hint) from None

    @property
    def folder(self) -> str:
        """Where the results are found, a path or URI."""
        return self.out or str(self.work)

    @property
    def places(self) -> list[Path]:
        """The folders of this machine that have its record, first the one it works in."""
        return list(dict.fromkeys([self.work, runs_folder() / self.run]))

    def values(
        self, index: int, chosen: dict[str, Any], results: Mapping[int, StepResult]
    ) -> dict[str, Any]:
        """Some of a step's parameters with templates filled in, and references to secrets left.

        Args:
            index: of the step.
            chosen: the parameters.
            results: of the steps that are done, by index.

        Raises:
            UsageError: a template fails, or a value is not of its type.
        """
        done = {
            self.plan.steps[one].name: {
                "status": result.status,
                "records": result.records,
                "output": result.output,
                "seconds": result.seconds,
            }
            for one, result in results.items()
        }
        known = known_names(self.day, self.run, done)
        return check_values(self.plan.steps[index], fill(chosen, known))

    def execution(self, index: int, results: Mapping[int, StepResult]) -> Execution:
        """What executes a step.

        Raises:
            UsageError: a template fails, or a value is not of its type.
        """
        step = self.plan.steps[index]
        parameters = self.values(index, step.parameters, results)
        secret_values = {}
        for name, value in parameters.items():
            if is_secret(value):
                plain = resolve(value, self.secrets)
                if isinstance(plain, str):
                    plain = step.known[name].check(plain, as_text=True)
                secret_values[name] = plain
        return Execution(
            step.notebook,
            step.path,
            self.work / f"{index + 1:02d}-{step.path.name}",
            parameters,
            secret_values,
            {PROFILE_VARIABLE: os.environ.get(PROFILE_VARIABLE) or step.profile},
            self.scrubber,
            self.plan.parallel == 1,
        )

    def roots(self) -> set[str]:
        """The lakes that the steps work on, as far as that is known before the start."""
        found = set()
        for index, step in enumerate(self.plan.steps):
            root = step.parameters.get("root")
            if isinstance(root, str) and root and not steps_named(root) and not is_secret(root):
                found.add(str(self.values(index, {"root": root}, {})["root"]))
        return found


def prepare(
    plan: Plan,
    overrides: dict[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    day: datetime.date | None = None,
) -> Prepared:
    """Settles what a new run is, and checks everything that can be checked by now.

    Args:
        plan: with the overrides in it.
        overrides: the run's own parameters, for its record.
        out: where the results go; by default a new folder under `runs/`.
        day: the run's date; by default today's, in UTC.

    Raises:
        UsageError: a template or a value is wrong, or a secret is not known.
    """
    started = datetime.datetime.now(datetime.timezone.utc)
    run = f"{slug(plan.name)}-{started:%Y%m%dT%H%M%S%f}"
    text = os.fspath(out) if out is not None else ""
    remote = "://" in text
    work = runs_folder() / run if remote or not text else Path(text).absolute()
    day = day or started.date()
    target = text.rstrip("/") if remote else ""
    return Prepared(plan, run, work, target, day, overrides, started)


@contextlib.contextmanager
def only_run(plan: str, roots: Iterable[str]) -> Iterator[None]:
    """Keeps other runs of a plan from the same lakes.

    Args:
        plan: its name.
        roots: the lakes, as the parameters name them.

    Raises:
        AlreadyRunningError: there is such a run; says which one.
        SetupError: the store of a lake can't be reached.
    """
    places = sorted({lake_path(root) for root in roots})
    what = f"The plan {plan}" + (f" on {', '.join(places)}" if places else "")
    with contextlib.ExitStack() as held:
        try:
            for place in places or [""]:
                name = f"{slug(plan)}-{fingerprint(plan + chr(0) + place, _LETTERS)}"
                held.enter_context(Lease(_machine(), f"plans/{name}.lease", what))
                if place and may_be_lake(place):
                    path = f"{STATE}/plans/{slug(plan)}-{fingerprint(plan, _LETTERS)}.lease"
                    # A lake that can't be written to: only runs on this machine are kept away.
                    refused = contextlib.suppress(OSError, PermissionDeniedError)
                    with storage_errors(place), refused:
                        held.enter_context(Lease(Storage(place), path, what))
        except LeaseHeldError as error:
            raise AlreadyRunningError(error.message, hint=error.hint) from None
        yield


def _machine() -> Storage:
    """Where this machine's locks are: a service may have no home that it can write to."""
    chosen = state()
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        if os.access(chosen, os.W_OK):
            return Storage(chosen)
    except OSError:
        pass
    return Storage(Path(tempfile.gettempdir()) / f"mirrorlake-{os.getuid()}")
