"""What follows the last step: summary, report, copies, metrics, hooks. None fails the run."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mirrorlake.errors import UsageError
from mirrorlake.paths import lake_path
from mirrorlake.runs.engine import IMPORTED
from mirrorlake.runs.lineage import send_lineage, wants_lineage
from mirrorlake.runs.preparing import Prepared
from mirrorlake.runs.results import RunSummary
from mirrorlake.runs.store import SUMMARY, runs_folder, write_record, write_whole
from mirrorlake.storage import Storage

_log = logging.getLogger(__name__)
_HISTORY = "diagnostics.runs"
_TEXTS = ("run", "plan", "status", "folder")
_DOCUMENTS = ("parameters", "versions", "steps")


def ready_report() -> None:
    """Makes the report ready beside the first notebook, once papermill is imported."""

    def ready() -> None:
        IMPORTED.wait()
        from mirrorlake.runs.report import ready

        ready()

    threading.Thread(target=ready, daemon=True).start()


def finish(
    prepared: Prepared, summary: RunSummary, document: dict[str, Any], metrics: Path | None
) -> RunSummary:
    """Keeps a run's results, and tells who wants to know.

    Args:
        prepared: the run.
        summary: how it went.
        document: its record.
        metrics: a file for Prometheus.

    Returns:
        The summary; its `kept` is False if it could not be written.
    """
    from mirrorlake.runs.report import write_report

    text = json.dumps(summary.as_dict(), indent=2, ensure_ascii=False) + "\n"
    kept = _try("the summary", lambda: write_whole(prepared.work / SUMMARY, text))
    _try("the report", lambda: write_report(document, prepared.work))
    if prepared.plan.history:
        _try("the history", lambda: add_to_history(document, prepared.roots()))
    if metrics is not None:
        from mirrorlake.runs.metrics import write_metrics

        _try("the metrics", lambda: write_metrics(metrics, summary, document, prepared.roots()))
    if wants_lineage():
        _try("the lineage", lambda: send_lineage(document))
    outcome = "on_success" if summary.status == "done" else "on_failure"
    document["hooks"] = []
    if hooks := prepared.plan.hooks.get(outcome):
        from mirrorlake.runs.hooks import call_hooks

        document["hooks"] = call_hooks(hooks, text, prepared)
    kept &= _try("the record", lambda: write_record(document, prepared.work))
    if (pointer := runs_folder() / prepared.run) != prepared.work:
        _try("the record", lambda: write_record(document, pointer))
    if prepared.out:
        kept &= _try(f"the copy in {prepared.out}", lambda: copy_out(prepared))
    return replace(summary, kept=kept)


def add_to_history(document: dict[str, Any], roots: set[str]) -> None:
    """Appends a run to a table in the lake of its first root, for plans that say `history: true`.

    It starts Spark, so it takes some seconds.

    Args:
        document: the run's record.
        roots: the lakes that it worked on.

    Raises:
        UsageError: no step has a root.
    """
    import pyarrow as pa

    from mirrorlake.lake import Lake

    if not roots:
        raise UsageError("The plan has history, but no step has a root.")
    row = {name: str(document[name]) for name in _TEXTS}
    row |= {name: json.dumps(document[name], ensure_ascii=False) for name in _DOCUMENTS}
    row |= {"host": str(document["process"]["host"])}
    times = {name: datetime.fromisoformat(document[name]) for name in ("started", "ended")}
    fields = [(name, pa.timestamp("us", tz="UTC")) for name in times]
    fields += [(name, pa.string()) for name in row]
    rows = pa.Table.from_pylist([times | row], pa.schema(fields))
    Lake(lake_path(min(roots))).write(_HISTORY, rows)


def copy_out(prepared: Prepared) -> None:
    """Copies a run's files to where its results are wanted."""
    target = Storage(prepared.out)
    for path in sorted(prepared.work.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            target.write(path.name, path.read_bytes())


def _try(what: str, call: Callable[[], object]) -> bool:
    """Whether something could be done; what went wrong is said, without secrets' values."""
    try:
        call()
    except Exception as error:
        _log.warning(f"{what} can't be written: {type(error).__name__}: {error}")
        return False
    return True
