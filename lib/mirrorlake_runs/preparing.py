"""What is settled before a run starts: its id, folder, date and secrets, all values checked.

One run of a plan goes on at a time: it has a lease in each lake that it works on, and one on this
machine. The machine's own counts where no lake can hold one: without a root, on a lake that is
read-only, or where there is none yet.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obstore.exceptions import PermissionDeniedError

from mirrorlake.errors import AlreadyRunningError, UsageError
from mirrorlake.names import STATE, fingerprint
from mirrorlake.spark.session import PROFILE_VARIABLE
from mirrorlake.storage.files import Storage, storage_errors
from mirrorlake.storage.lease import Lease, LeaseHeldError
from mirrorlake.storage.paths import lake_path, may_be_lake, state
from mirrorlake_runs.engine import Execution
from mirrorlake_runs.parameters import (
    Scrubber,
    fill,
    is_secret,
    known_names,
    look_up,
    names_in,
    resolve,
    steps_named,
)
from mirrorlake_runs.plan import Plan, check_values
from mirrorlake_runs.results import StepResult
from mirrorlake_runs.store import runs_folder, slug

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
