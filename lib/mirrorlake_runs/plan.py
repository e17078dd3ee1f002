"""Plans: read a plan, check it completely before a step starts, and prepare a run.

A plan is a YAML file: `name` and `steps`, each with a `notebook` and the `parameters` that differ
from the notebook's own. `plan.schema.json` lists the other keys; editors can use it. In a plan
without `needs` and `parallel` the steps run in order; otherwise a step waits for the steps that it
`needs`.

A prepared run has its id, its folder, its secrets and the values that are known before the start.

Only one run of a plan can run at a time: it holds a lease in each of its lakes and one on this
machine. The lease on the machine is sufficient if no lake can hold one: without a root, or if the
lake is read-only or does not exist yet. A run also holds a lease in the folder of its results, so
that another run does not replace its files.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import graphlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from obstore.exceptions import PermissionDeniedError

from mirrorlake.errors import AlreadyRunningError, SetupError, UsageError
from mirrorlake.names import STATE, fingerprint
from mirrorlake.spark.session import PROFILE_VARIABLE, PROFILES
from mirrorlake.storage.files import Storage, storage_errors
from mirrorlake.storage.lease import Lease, LeaseHeldError, is_held, name_holder
from mirrorlake.storage.paths import (
    NOTEBOOKS,
    PARAMETERS,
    PROGRAM,
    URI,
    docs_page,
    lake_path,
    may_be_lake,
    state,
)
from mirrorlake_runs.execution import Execution, lesson_folder
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
from mirrorlake_runs.records import FOLDER_LEASE, StepResult, runs_folder, slug

SCHEMA = Path(__file__).with_name("plan.schema.json")


@dataclass(frozen=True)
class PlanStep:
    """One notebook with its parameters and the rules for its execution.

    Attributes:
        notebook: the notebook as the plan names it.
        parameters: the values for the notebook, with templates and references to secrets.
        profile: the profile of its Spark session.
        name: its name in `needs` and templates.
        needs: the names of the steps that it waits for.
        retries: the number of additional attempts.
        timeout: seconds for one attempt; None for no limit.
        continue_on_error: whether steps that need it run even if it fails.
        path: the notebook's file.
        known: the parameters of the notebook.
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
        name: the plan's name.
        steps: its steps.
        edges: for each step the indexes of the steps that it waits for.
        parallel: the number of steps that run in parallel.
        one_spark: whether consecutive steps start their Spark in one JVM.
        history: whether each run becomes a row of `diagnostics.runs`.
        hooks: the hooks by outcome, `on_failure` or `on_success`; each has a `url`, or a `command`
            as a list of its arguments.
        document: the plan as it was read.
        beside: the folder to which its paths are relative.
        single: whether this is a single notebook without a plan.
        home: the folder to which the relative lakes of a recorded plan refer; empty if that is the
            present one.
    """

    name: str
    steps: tuple[PlanStep, ...]
    edges: tuple[tuple[int, ...], ...]
    parallel: int
    one_spark: bool
    history: bool
    hooks: dict[str, list[dict[str, Any]]]
    document: dict[str, Any]
    beside: Path
    single: bool = False
    home: str = ""


def notebook_names() -> list[str]:
    """Return the names of the project's notebooks, such as `mirror` and `learn/02_mirror`.

    Example:
        >>> notebook_names()  # doctest: +SKIP
        ['archive', 'change_feed', …]
    """
    found = (path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.rglob("*.ipynb"))
    return sorted(
        str(path.with_suffix("")) for path in found if ".ipynb_checkpoints" not in path.parts
    )


def load_plan(path: Path) -> Plan:
    """Read a plan and fill in the parameters of each step.

    Args:
        path: the YAML file.

    Raises:
        UsageError: the file does not exist or is not a plan, or a notebook lacks a parameter.

    Example:
        >>> load_plan(Path("nightly.yaml")).name  # doctest: +SKIP
        'nightly'
    """
    return parse_plan(_read_yaml(path), str(path), path.stem, path.absolute().parent)


def open_target(target: str) -> Plan:
    """Return the plan for the argument of `run`: a notebook's name or path, or a plan's.

    Raises:
        UsageError: there is no such notebook or plan.
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
        f"There is no notebook or plan {target!r}.",
        hint=f"{_near(target, [*notebook_names(), *plans])}the notebooks are "
        f"{', '.join(notebook_names())}; the plans are {', '.join(plans)}.",
    )


def _near(name: str, known: Iterable[str]) -> str:
    """Return the beginning of a hint, with the known name that is nearest; empty if none is."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}? " if near else ""


def parse_plan(document: dict[str, Any], origin: str, default_name: str, beside: Path) -> Plan:
    """Check a plan that was read from a file or from a run's record.

    Args:
        document: the plan.
        origin: its origin, for messages.
        default_name: its name if the document has none.
        beside: the folder to which the paths of its notebooks are relative.

    Raises:
        UsageError: the document is not a plan; the message has the problem.
    """
    # YAML parses dates; parameters get the text.
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
                hint=f"it can use the steps that it needs: {', '.join(sorted(before)) or 'none'}.",
            )
    if document.get("one_spark") and document.get("parallel", 1) > 1:
        raise UsageError(
            f"{origin} has one_spark and parallel steps.",
            hint="omit one_spark or parallel; a JVM has one session at a time.",
        )
    hooks = {
        name: [_read_hook(hook) for hook in _as_list(document.get(name, []))]
        for name in ("on_failure", "on_success")
    }
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


def _read_hook(hook: Any) -> dict[str, Any]:
    """Return a hook as a dict with a `url`, or a `command` as a list of its arguments.

    Args:
        hook: the hook as the plan has it; a text is an address or a command line.

    Raises:
        UsageError: the command line can't be divided into arguments.
    """
    if isinstance(hook, str):
        hook = {"url" if hook.startswith(("http://", "https://")) else "command": hook}
    command = hook.get("command", [])
    if not isinstance(command, str):
        return dict(hook)
    try:
        return {**hook, "command": shlex.split(command)}
    except ValueError as error:
        raise UsageError(
            f"The hook {command!r} can't be read: {error}.",
            hint="write it as a list, such as `command: [logger, nightly failed]`.",
        ) from error


def with_overrides(
    plan: Plan, values: Mapping[str, Any], *, as_text: bool = False
) -> tuple[Plan, dict[str, Any]]:
    """Return a plan with other values for some parameters, and these values as read.

    Args:
        plan: the plan.
        values: by name; a value applies to every step that has the parameter.
        as_text: whether the values are texts from a command line.

    Raises:
        UsageError: no step has a parameter, or a value does not have its type.
    """
    known = {name: step.known[name] for step in reversed(plan.steps) for name in step.known}
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(
            f"{plan.name} has no parameter {', '.join(unknown)}.",
            hint=f"{_near(unknown[0], known)}it has {', '.join(sorted(known)) or 'none'}.",
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
    """Return a step's values after their templates were evaluated.

    Raises:
        UsageError: a value does not have its parameter's type.
    """
    return {name: _checked(step.known[name], value, False) for name, value in values.items()}


def _check_form(document: dict[str, Any], origin: str) -> None:
    """Check that a document has the form of a plan.

    Args:
        document: the plan as read.
        origin: its origin, for messages.

    Raises:
        UsageError: it has not; the message has the place and the problem.
    """
    steps = document.get("steps")
    if not isinstance(steps, list) or not steps:
        raise UsageError(f"{origin} has no list of steps.", hint="see parameters/plans/demo.yaml.")
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("notebook"), str):
            raise UsageError(f"A step of {origin} names no notebook: {step!r}.")
    if any(not isinstance(key, str) for key in _keys(document)):
        raise UsageError(f"{origin} has a key that is not a text.", hint="put it in quotes.")
    errors = sorted(_validator().iter_errors(document), key=lambda error: list(error.path))
    if errors:
        first = errors[0]
        where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first.path)
        place = f" at {where} (steps counted from 1)" if where else ""
        hint = f"see {docs_page('schedule.md')}."
        if first.path and str(first.path[0]).startswith("on_"):
            hint = "write a list of hooks, such as `- command: [logger, nightly failed]`."
        raise UsageError(f"{origin} is not a plan{place}: {first.message}.", hint=hint)


@cache
def _validator() -> Any:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return import_jsonschema().Draft202012Validator(schema)


def _keys(value: Any) -> list[Any]:
    """Return all keys in a document, at any depth."""
    if isinstance(value, dict):
        return [*value, *(key for part in value.values() for key in _keys(part))]
    if isinstance(value, list):
        return [key for part in value for key in _keys(part)]
    return []


def _read_needs(steps: Sequence[PlanStep]) -> list[tuple[int, ...]]:
    """Return the indexes of the steps that each step directly waits for.

    Raises:
        UsageError: a name matches no step or several, or the steps form a cycle.
    """
    names = [step.name for step in steps]
    found = []
    for step in steps:
        for need in step.needs:
            if (count := names.count(need)) != 1:
                what = "There is no step" if count == 0 else "There is more than one step"
                raise UsageError(
                    f"Step {step.name} needs {need}. {what} {need!r}.",
                    hint=f"the steps are {', '.join(names)}; `name` renames a step.",
                )
        found.append(tuple(names.index(need) for need in step.needs))
    try:
        graphlib.TopologicalSorter(dict(enumerate(found))).prepare()
    except graphlib.CycleError as error:
        circle = " → ".join(names[index] for index in reversed(error.args[1]))
        raise UsageError(
            f"The steps need each other in a circle: {circle}.", hint="remove one of the needs."
        ) from None
    return found


def _ancestors(needs: Sequence[tuple[int, ...]], index: int) -> set[int]:
    """Return all steps that a step waits for, also through others; the graph has no cycle."""
    found: set[int] = set()
    waiting = list(needs[index])
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += needs[one]
    return found


def _checked(parameter: Parameter, value: Any, as_text: bool) -> Any:
    if has_template(value) or is_secret(value):
        return value  # checked once the value is known
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
        raise UsageError(
            f"There is no profile {profile!r}.", hint=f"choose one of {', '.join(PROFILES)}."
        )
    retries = step.get("retries", 1 if step.get("retry") == "safe" else 0)
    if retries and step.get("retry") != "safe":
        raise UsageError(
            f"The step of {notebook} has retries without `retry: safe`.",
            hint="add `retry: safe` if the notebook can safely run twice.",
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
    """Return a notebook's file, and the values in its parameter file."""
    if notebook.endswith(".ipynb"):
        path = beside / Path(notebook).expanduser()
        if not path.is_file():
            raise UsageError(f"There is no notebook {path}.")
    elif notebook in (names := notebook_names()):
        path = NOTEBOOKS / f"{notebook}.ipynb"
    else:
        known = ", ".join(names)
        raise UsageError(f"There is no notebook {notebook!r}.", hint=f"the notebooks are {known}.")
    for folder in (parent for parent in path.parents if parent.name == "notebooks"):
        values = folder.with_name("parameters") / path.relative_to(folder).with_suffix(".yaml")
        if values.is_file():
            return path, _read_yaml(values)
    return path, {}


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


_OPENS = re.compile(r'"lake = Lake\.open\(root\)(\\n)?"')  # a line of a notebook's file
_LETTERS = 12  # characters of a fingerprint
_REFUSED = (OSError, PermissionDeniedError)


@dataclass
class Prepared:
    """A run that can start: its secrets are resolved and all known values are checked.

    Attributes:
        plan: the plan.
        run: the run's id.
        work: the local folder where notebooks are executed.
        out: a URI to which the results are copied; empty for none.
        day: the date for templates.
        overrides: parameters of the whole run.
        started: the time of its start.
        done: results of the steps that an earlier run completed, by index.
        before: the results of earlier attempts of the other steps, by index.
        secrets: the secrets by name.
        scrubber: removes the secrets from texts.

    Raises:
        UsageError: a template or a value is invalid, or a secret does not exist.
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
        """Resolve the secrets, and evaluate the templates that do not need a step's results."""
        steps = self.plan.steps
        names = names_in([step.parameters for step in steps])
        names |= names_in(self.plan.hooks)
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
        """The path or URI of the results."""
        return self.out or str(self.work)

    @property
    def places(self) -> list[Path]:
        """The local folders that have the record; the first is the working folder."""
        return list(dict.fromkeys([self.work, runs_folder() / self.run]))

    def values(
        self, index: int, chosen: dict[str, Any], results: Mapping[int, StepResult]
    ) -> dict[str, Any]:
        """Return some of a step's parameters with templates evaluated, without resolving secrets.

        In a resumed run, a relative `root` becomes the path of the same lake as at the start.

        Args:
            index: the step's index.
            chosen: the parameters.
            results: the results of the completed steps, by index.

        Raises:
            UsageError: a template fails, or a value does not have its type.
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
        step = self.plan.steps[index]
        found = check_values(step, fill(chosen, known))
        root = found.get("root")
        if (
            self.plan.home
            and isinstance(root, str)
            and root
            and not (is_secret(root) or URI.match(root) or lesson_folder(step.path))
        ):
            found["root"] = str(Path(self.plan.home) / Path(root).expanduser())
        return found

    def execution(self, index: int, results: Mapping[int, StepResult]) -> Execution:
        """Return the execution of a step.

        Raises:
            UsageError: a template fails, or a value does not have its type.
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

    def roots(self) -> dict[str, PlanStep]:
        """Return the lakes known before the start, each with the first step that uses it."""
        found: dict[str, PlanStep] = {}
        for index, step in enumerate(self.plan.steps):
            root = step.parameters.get("root")
            if isinstance(root, str) and root and not steps_named(root) and not is_secret(root):
                found.setdefault(str(self.values(index, {"root": root}, {})["root"]), step)
        return found

    def check_lakes(self) -> None:
        """Check that a lake exists if the first step that uses it opens an existing lake.

        Raises:
            UsageError: there is no lake; the message names the step.
            SetupError: the store of a lake can't be reached.
        """
        from mirrorlake.lake import Lake

        for root, step in self.roots().items():
            if _OPENS.search(step.path.read_text(encoding="utf-8")):
                try:
                    Lake.open(root)
                except UsageError as error:
                    place = shlex.quote(lake_path(root))
                    raise UsageError(
                        f"Step {step.name}: {error.message}",
                        hint="give another lake with `-p root=…`, or publish a file there:"
                        f" `{PROGRAM} publish {place} TABLE FILE`. `{PROGRAM} sample {place}`"
                        " makes a sample lake there.",
                    ) from None


def prepare(
    plan: Plan,
    overrides: dict[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    day: datetime.date | None = None,
) -> Prepared:
    """Prepare a new run, and check everything that can be checked before its start.

    Args:
        plan: the plan with the overrides.
        overrides: the run's own parameters, for its record.
        out: the folder or URI of the results; by default a new folder under `runs/`.
        day: the run's date; by default today in UTC.

    Raises:
        UsageError: a template or a value is invalid, or a secret does not exist.

    Example:
        >>> prepare(load_plan(Path("nightly.yaml")), {}).run  # doctest: +SKIP
        'nightly-20260101T020000000000'
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
    """Exclude other runs of a plan on the same lakes while the block runs.

    Args:
        plan: its name.
        roots: the lakes, as the parameters name them.

    Raises:
        AlreadyRunningError: such a run is in progress; the message names it.
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
                    with storage_errors(place):
                        storage = Storage(place)
                        try:
                            held.enter_context(Lease(storage, path, what))
                        except _REFUSED:
                            # If the lake is read-only, the lease on this machine is enough,
                            # unless another user holds that of the lake.
                            with contextlib.suppress(*_REFUSED):
                                if is_held(storage, path):
                                    holder = name_holder(storage.read(path).decode())
                                    raise LeaseHeldError(what, holder) from None
        except LeaseHeldError as error:
            raise AlreadyRunningError(error.message, hint=error.hint) from None
        yield


@contextlib.contextmanager
def only_run_in(folder: str) -> Iterator[None]:
    """Exclude other runs that store their results in a folder while the block runs.

    Args:
        folder: its path or URI.

    Raises:
        AlreadyRunningError: such a run is in progress; the message names its process.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(Lease(Storage(folder), FOLDER_LEASE, f"A run in {folder}"))
        except LeaseHeldError as error:
            raise AlreadyRunningError(
                f"A run with its results in {folder} is in progress: {error.holder}.",
                hint="wait for it, or start a new run with another folder in --out.",
            ) from None
        yield


def _machine() -> Storage:
    """Return the storage of this machine's leases; a service may have no writable home."""
    with contextlib.suppress(OSError, SetupError):
        chosen = state()
        chosen.mkdir(parents=True, exist_ok=True)
        if os.access(chosen, os.W_OK):
            return Storage(chosen)
    return Storage(Path(tempfile.gettempdir()) / f"mirrorlake-{os.getuid()}")
