"""What is settled before a run starts: its id, folder, date and secrets, all values checked."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.runs.engine import Execution
from mirrorlake.runs.locks import slug
from mirrorlake.runs.plan import Plan, PlanStep, check_values
from mirrorlake.runs.results import StepResult
from mirrorlake.runs.secrets import Scrubber, is_secret, look_up, names_in, resolve
from mirrorlake.runs.store import runs_folder
from mirrorlake.runs.templates import fill, known_names, steps_named
from mirrorlake.spark.session import PROFILE_VARIABLE


@dataclass
class Prepared:
    """A run that can start.

    Attributes:
        run: its id.
        work: the local folder where notebooks are executed.
        out: a URI where the results go too; empty if they stay on this machine.
        day: its date in templates.
        overrides: parameters of the whole run.
        secrets: by name.
        done: results of steps from before, by index.
    """

    plan: Plan
    run: str
    work: Path
    out: str
    day: datetime.date
    overrides: dict[str, Any]
    secrets: dict[str, str]
    scrubber: Scrubber
    started: datetime.datetime
    done: dict[int, StepResult] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Where the results are found, a path or URI."""
        return self.out or str(self.work)

    def values(self, index: int, results: Mapping[int, StepResult]) -> dict[str, Any]:
        """A step's parameters with templates filled in, and references to secrets left.

        Raises:
            UsageError: a template fails, or a value is not of its type.
        """
        step = self.plan.steps[index]
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
        return check_values(step, fill(step.parameters, known))

    def execution(self, index: int, results: Mapping[int, StepResult]) -> Execution:
        """What executes a step.

        Raises:
            UsageError: a template fails, or a value is not of its type.
        """
        step = self.plan.steps[index]
        parameters = self.values(index, results)
        return Execution(
            step.notebook,
            step.path,
            self.work / f"{index + 1:02d}-{step.path.name}",
            parameters,
            self._secret_values(step, parameters),
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
                found.add(str(self.values_of(index, {"root": root})["root"]))
        return found

    def values_of(self, index: int, values: dict[str, Any]) -> dict[str, Any]:
        """Some of a step's parameters, those that use no step's results, filled in."""
        known = known_names(self.day, self.run, {})
        return check_values(self.plan.steps[index], fill(values, known))

    def _secret_values(self, step: PlanStep, parameters: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, value in parameters.items():
            if is_secret(value):
                plain = resolve(value, self.secrets)
                known = step.known.get(name)
                as_text = isinstance(plain, str) and known is not None
                found[name] = known.read(plain) if known and as_text else plain
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
    return settle(Prepared(plan, run, work, target, day, overrides, {}, Scrubber(), started))


def settle(prepared: Prepared) -> Prepared:
    """Looks up the secrets, and tries the templates that can be filled before the start.

    Raises:
        UsageError: a template or a value is wrong, or a secret is not known.
    """
    steps = prepared.plan.steps
    hooks = list(prepared.plan.hooks.values())
    names = names_in([step.parameters for step in steps]) | names_in(hooks)
    prepared.secrets = {name: look_up(name) for name in sorted(names)}
    prepared.scrubber = Scrubber(prepared.secrets.values())
    for index, step in enumerate(steps):
        early = {key: v for key, v in step.parameters.items() if not steps_named(v)}
        try:
            prepared.values_of(index, early)
        except UsageError as error:
            raise UsageError(f"Step {step.name}: {error.message}", hint=error.hint) from None
    return prepared
