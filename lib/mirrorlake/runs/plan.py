"""Plans: several notebooks with their parameters, checked as a whole before anything starts.

A plan is a YAML file: `name` and `steps`, each with a `notebook` and the `parameters` that differ
from the notebook's own. `plan.schema.json` lists the rest. A plan that has neither `needs` nor
`parallel` is a chain; in any other one a step waits for what it `needs`.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.errors import UsageError
from mirrorlake.paths import NOTEBOOKS, PARAMETERS
from mirrorlake.runs.graph import ancestors, needed_by
from mirrorlake.runs.parameters import Parameter, read_parameters
from mirrorlake.runs.schema import check_form
from mirrorlake.runs.secrets import is_secret
from mirrorlake.runs.templates import has_template, steps_named
from mirrorlake.spark.session import PROFILES


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
    parameters: dict[str, Any] = field(default_factory=dict)
    profile: str = "notebook"
    name: str = ""
    needs: tuple[str, ...] = ()
    retries: int = 0
    timeout: float | None = None
    continue_on_error: bool = False
    path: Path = Path()
    known: dict[str, Parameter] = field(default_factory=dict)


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
    edges: tuple[tuple[int, ...], ...] = ()
    parallel: int = 1
    one_spark: bool = False
    history: bool = False
    hooks: dict[str, list[Any]] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)
    beside: Path = Path()
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
    document = _plain(document)
    check_form(document, origin)
    given = [_read_step(step, beside) for step in document["steps"]]
    chain = "parallel" not in document and not any("needs" in step for step in document["steps"])
    edges: list[tuple[int, ...]]
    if chain:
        edges = [(index - 1,) if index else () for index in range(len(given))]
    else:
        edges = needed_by(given)
    for index, step in enumerate(given):
        before = {given[one].name for one in ancestors(edges, index)}
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
    outcomes = [name for name in ("on_failure", "on_success") if name in document]
    hooks: dict[str, list[Any]] = {name: _as_list(document[name]) for name in outcomes}
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
    steps = tuple(
        replace(
            step,
            parameters=step.parameters
            | {
                k: _checked(step.known[k], v, as_text) for k, v in values.items() if k in step.known
            },
        )
        for step in plan.steps
    )
    for step in steps:
        if steps_named({k: step.parameters[k] for k in values if k in step.parameters}):
            raise UsageError("A parameter of a whole run can't use the results of its steps.")
    read = {name: _checked(known[name], value, as_text) for name, value in values.items()}
    return replace(plan, steps=steps), read


def check_values(step: PlanStep, values: Mapping[str, Any]) -> dict[str, Any]:
    """A step's values once their templates are filled in.

    Raises:
        UsageError: one is not of its parameter's type.
    """
    return {
        name: _checked(step.known[name], value, False) if name in step.known else value
        for name, value in values.items()
    }


def _checked(parameter: Parameter, value: Any, as_text: bool) -> Any:
    if has_template(value) or is_secret(value):
        return value  # checked when it is known
    return parameter.read(value) if as_text else parameter.check(value)


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


def _plain(value: Any) -> Any:
    """What YAML takes for a date is the text that was written."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


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
