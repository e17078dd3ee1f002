"""What a notebook records, and what a run returns: how each step went, and `summary.json`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

MIME = "application/vnd.mirrorlake.record+json"  # of the outputs that records are
NOT_SUMMED = "not_summed"  # in their metadata


@dataclass(frozen=True)
class StepResult:
    """How one notebook went.

    Attributes:
        status: `done`, `failed`, `stopped` or `skipped`.
        seconds: wall time of all attempts, without the pauses between them.
        output: the executed notebook of the last attempt, a path or URI.
        error: the failing cell (counted from 1), the exception's name and text; or None.
        records: what the notebook recorded; numbers are summed over all attempts, see `record`.
        attempts: how often it was executed.
    """

    notebook: str
    status: str
    seconds: float = 0.0
    output: str | None = None
    error: dict[str, Any] | None = None
    records: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0


@dataclass(frozen=True)
class RunSummary:
    """How a plan went; also kept as `summary.json` beside the executed notebooks.

    Attributes:
        plan: its name.
        folder: where the executed notebooks lie.
        started, ended: ISO-8601 UTC.
        parameters: those that counted in every notebook that has them.
        steps: the notebooks in the plan's order.
        run: the run's id.
        signal: what stopped it, SIGTERM or SIGINT; 0 if nothing did.
        kept: False if the summary could not be written.
    """

    plan: str
    folder: str
    started: str
    steps: tuple[StepResult, ...]
    ended: str
    parameters: dict[str, Any]
    run: str
    signal: int
    kept: bool = True

    @property
    def status(self) -> str:
        """`done`, `failed` or `stopped`."""
        if self.signal:
            return "stopped"
        return "failed" if self.failed else "done"

    def as_dict(self) -> dict[str, Any]:
        """The document of `summary.json` and of `run --json`."""
        return {
            "run": self.run,
            "plan": self.plan,
            "status": self.status,
            "started": self.started,
            "ended": self.ended,
            "parameters": self.parameters,
            "steps": [asdict(step) for step in self.steps],
        }

    @property
    def failed(self) -> StepResult | None:
        """The first step that failed, if one did."""
        return next((step for step in self.steps if step.status == "failed"), None)


def record(*, not_summed: Collection[str] = (), **results: Any) -> None:
    """Record results, by name, in the output of the running cell.

    A step of a plan may have several attempts. Its numbers are summed over them, so that the work
    of an attempt that failed later counts. Of other values the last one is kept.

    Args:
        not_summed: names of numbers that describe a state, such as how many tables there are; the
            last one is kept.
        results: values that JSON can hold.
    """
    from IPython.display import display

    text = "\n".join(f"{name}: {value}" for name, value in results.items())
    facts = {MIME: {NOT_SUMMED: list(not_summed)}}
    display({MIME: results, "text/plain": text}, metadata=facts, raw=True)  # type: ignore[no-untyped-call]
