"""Plans: several notebooks, executed one after the other by papermill, with a summary kept.

A plan is a YAML file: `name` and `steps`, each with a `notebook`, the `parameters` that differ from
`parameters/<notebook>.yaml`, and perhaps a Spark `profile`. After a failure the rest is skipped;
what was executed is kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.errors import UsageError
from mirrorlake.paths import NOTEBOOKS, PARAMETERS, home
from mirrorlake.runs.record import read_records
from mirrorlake.spark.session import PROFILE_VARIABLE, PROFILES


@dataclass(frozen=True)
class PlanStep:
    """One notebook with its parameters, and the profile of its Spark."""

    notebook: str
    parameters: dict[str, Any] = field(default_factory=dict)
    profile: str = "notebook"


@dataclass(frozen=True)
class Plan:
    """Notebooks to run in order."""

    name: str
    steps: tuple[PlanStep, ...]


@dataclass(frozen=True)
class StepResult:
    """How one notebook went.

    Attributes:
        status: `done`, `failed` or `skipped`.
        seconds: wall time.
        output: the executed notebook, a path.
        error: the failing cell (counted from 1), the exception's name and text; or None.
        records: what the notebook recorded.
    """

    notebook: str
    status: str
    seconds: float = 0.0
    output: str | None = None
    error: dict[str, Any] | None = None
    records: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSummary:
    """How a plan went; also kept as `summary.json` beside the executed notebooks.

    Attributes:
        plan: its name.
        folder: where the executed notebooks lie; its name is the run's.
        started, ended: ISO-8601 UTC.
        parameters: those that counted in every notebook that has them.
        steps: the notebooks in order.
    """

    plan: str
    folder: str
    started: str
    steps: tuple[StepResult, ...]
    ended: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """`done` or `failed`."""
        return "failed" if self.failed else "done"

    def as_dict(self) -> dict[str, Any]:
        """The document of `summary.json` and of `run --json`."""
        return {
            "run": Path(self.folder).name,
            "plan": self.plan,
            "status": self.status,
            "started": self.started,
            "ended": self.ended,
            "parameters": self.parameters,
            "steps": [asdict(step) for step in self.steps],
        }

    @property
    def failed(self) -> StepResult | None:
        """The step that failed, if one did."""
        return next((step for step in self.steps if step.status == "failed"), None)


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
    document = _read_yaml(path)
    steps = document.get("steps")
    if not isinstance(steps, list) or not steps:
        raise UsageError(f"{path} has no list of steps.", hint="see parameters/plans/demo.yaml.")
    result = []
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("notebook"), str):
            raise UsageError(f"A step of {path} names no notebook: {step!r}.")
        name = step["notebook"]
        if not (NOTEBOOKS / f"{name}.ipynb").is_file():
            known = ", ".join(notebook_names())
            raise UsageError(f"There is no notebook {name!r}.", hint=f"there are {known}.")
        defaults = _read_yaml(PARAMETERS / f"{name}.yaml")
        chosen = step.get("parameters") or {}
        if not isinstance(chosen, dict) or set(step) - {"notebook", "parameters", "profile"}:
            raise UsageError(
                f"The step of {name} in {path} can't be read.",
                hint="it has notebook, parameters (names and values), and perhaps profile.",
            )
        if unknown := sorted(map(str, set(chosen) - set(defaults))):
            raise UsageError(
                f"Notebook {name} has no parameter {', '.join(unknown)}.",
                hint=f"it has {', '.join(defaults)}.",
            )
        profile = step.get("profile", "notebook")
        if profile not in PROFILES:
            raise UsageError(f"There is no profile {profile!r}.", hint=f"choose one of {PROFILES}.")
        result.append(PlanStep(name, defaults | chosen, profile))
    return Plan(str(document.get("name") or path.stem), tuple(result))


def run_plan(
    path: Path,
    out: Path | None = None,
    *,
    overrides: dict[str, Any] | None = None,
    on_step: Callable[[str, int, int], None] = lambda name, index, total: None,
) -> RunSummary:
    """Executes a plan.

    Args:
        path: the plan.
        out: where the executed notebooks go; by default a new folder under `runs/`.
        overrides: parameters that count in every notebook that has them.
        on_step: hears each notebook's name, its index from 1, and how many there are.
    """
    plan = load_plan(path)
    started = datetime.now(timezone.utc)
    folder = out or home() / "runs" / f"{plan.name}-{started:%Y%m%dT%H%M%S%f}"
    folder.mkdir(parents=True, exist_ok=True)
    results: list[StepResult] = []
    for index, step in enumerate(plan.steps, 1):
        if any(done.status == "failed" for done in results):
            results.append(StepResult(step.notebook, "skipped"))
            continue
        on_step(step.notebook, index, len(plan.steps))
        known = {k: v for k, v in (overrides or {}).items() if k in step.parameters}
        target = folder / f"{index:02d}-{Path(step.notebook).name}.ipynb"
        results.append(_execute(step, step.parameters | known, target))
    summary = RunSummary(
        plan.name,
        str(folder),
        started.isoformat(timespec="seconds"),
        tuple(results),
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        overrides or {},
    )
    text = json.dumps(summary.as_dict(), indent=2, ensure_ascii=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    return summary


class _AboveTheBar:
    """What cells print, on the terminal above papermill's progress bar."""

    def write(self, text: str) -> None:
        from tqdm import tqdm

        tqdm.write(text.rstrip("\n"), file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


def _execute(step: PlanStep, parameters: dict[str, Any], target: Path) -> StepResult:
    name = step.notebook
    with warnings.catch_warnings():
        # papermill and its kernels' libraries warn of their own future, not of ours.
        warnings.simplefilter("ignore")
        import papermill

        began = time.monotonic()
        chosen = os.environ.get(PROFILE_VARIABLE)
        os.environ[PROFILE_VARIABLE] = chosen or step.profile  # the kernel inherits it
        error: dict[str, Any] | None = None
        try:
            papermill.execute_notebook(
                str(NOTEBOOKS / f"{name}.ipynb"),
                str(target),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=sys.stderr.isatty(),
                stdout_file=_AboveTheBar() if sys.stderr.isatty() else None,
                # Kernels warn of their local TCP ports at every start.
                extra_arguments=["--log-level=ERROR"],
            )
        except papermill.PapermillExecutionError as failure:
            error = {
                # Counted as in the source: papermill's own cell with the parameters is left out.
                "cell": failure.cell_index + 1 - bool(parameters),
                "name": failure.ename,
                "message": failure.evalue,
            }
        except Exception as failure:  # a kernel that died, a disk that is full
            error = {"cell": None, "name": type(failure).__name__, "message": str(failure)}
        finally:
            os.environ.pop(PROFILE_VARIABLE)
            if chosen is not None:
                os.environ[PROFILE_VARIABLE] = chosen
    seconds = round(time.monotonic() - began, 1)
    status = "done" if error is None else "failed"
    records = read_records(target) if target.is_file() else {}
    return StepResult(name, status, seconds, str(target), error, records)


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
