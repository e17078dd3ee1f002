"""Run plans of notebooks with papermill, keep a record of each run, and list, find or prune runs.

Names are imported when they are first used, so that `mirrorlake --help` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorlake_runs.notebook_files import clean_notebook, read_records
    from mirrorlake_runs.plan import load_plan, notebook_names, prepare
    from mirrorlake_runs.records import (
        RunNotFoundError,
        RunRecord,
        RunSummary,
        find_report,
        find_run,
        list_runs,
        prune_runs,
        record,
    )
    from mirrorlake_runs.run import resume_run, run_plan

__all__ = [
    "RunNotFoundError",
    "RunRecord",
    "RunSummary",
    "clean_notebook",
    "find_report",
    "find_run",
    "list_runs",
    "load_plan",
    "notebook_names",
    "prepare",
    "prune_runs",
    "read_records",
    "record",
    "resume_run",
    "run_plan",
]

_MODULES = {
    "notebook_files": ["clean_notebook", "read_records"],
    "plan": ["load_plan", "notebook_names", "prepare"],
    "records": [
        *("RunNotFoundError", "RunRecord", "RunSummary", "find_report", "find_run"),
        *("list_runs", "prune_runs", "record"),
    ],
    "run": ["resume_run", "run_plan"],
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
