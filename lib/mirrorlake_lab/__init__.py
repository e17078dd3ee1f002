"""Pages to look at a lake, JupyterLab's start page, the course with its tasks, and sample lakes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mirrorlake.names import TableName
from mirrorlake.show import find_plot

if TYPE_CHECKING:
    from mirrorlake.lake import Lake
    from mirrorlake_lab.course import check
    from mirrorlake_lab.course.lessons import find_solution, lessons, make_course
    from mirrorlake_lab.course.system import plot_system
    from mirrorlake_lab.pages.explorer import Explorer
    from mirrorlake_lab.pages.monitor import Monitor
    from mirrorlake_lab.pages.publish_form import PublishForm
    from mirrorlake_lab.samples import flights
    from mirrorlake_lab.samples.damaged import damage_lake
    from mirrorlake_lab.samples.lake import make_sample, open_sample, seal_sample
    from mirrorlake_lab.samples.shop import Shop
    from mirrorlake_lab.site import build_site

__all__ = [
    "Shop",
    "build_site",
    "check",
    "damage_lake",
    "explore",
    "find_solution",
    "flights",
    "lessons",
    "make_course",
    "make_sample",
    "monitor",
    "open_sample",
    "plot_system",
    "publish_form",
    "seal_sample",
]

_PUBLIC_MODULES = {"check": "course.check", "flights": "samples.flights"}
_MODULES = {
    "course.lessons": ["find_solution", "lessons", "make_course"],
    "samples.damaged": ["damage_lake"],
    "samples.lake": ["make_sample", "open_sample", "seal_sample"],
    "samples.shop": ["Shop"],
    "site": ["build_site"],
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _PUBLIC_MODULES:
        return import_module(f"{__name__}.{_PUBLIC_MODULES[name]}")
    if name == "plot_system":
        return find_plot(f"{__name__}.course.system", name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__


def explore(lake: Lake | str, table: str | TableName | None = None) -> Explorer:
    """Return tabs for looking at a lake in Lab.

    Spark starts only for rows, changes and advice.

    Args:
        lake: the lake, or its root.
        table: the table to select first; by default the first one.

    Returns:
        The tabs Zone, Tables, Versions, Rows, Feed, Files, Views and Runs. `to_html` writes
        everything that needs no Spark to a file.

    Raises:
        TableNotFoundError: the table does not exist.
        UsageError: the root is not a lake.

    Example:
        >>> explore(lake, "stock").open("Versions")  # doctest: +SKIP
    """
    from mirrorlake.lake import Lake
    from mirrorlake_lab.pages.explorer import Explorer

    return Explorer(Lake.open(lake) if isinstance(lake, str) else lake, table)


def monitor(lake: Lake, *, every: float = 10) -> Monitor:
    """Return a page in Lab with the status of the lake, which refreshes itself; needs no Spark.

    Args:
        lake: the lake.
        every: seconds between two refreshes; at least 1.

    Returns:
        The live page. `to_html` writes it to a file, `close` stops the refreshes.

    Raises:
        UsageError: `every` is less than 1.

    Example:
        >>> monitor(lake).to_html("monitor.html")  # doctest: +SKIP
    """
    from mirrorlake_lab.pages.monitor import Monitor

    return Monitor(lake, every=every)


def publish_form(lake: Lake, table: str = "") -> PublishForm:
    """Return a form in Lab that publishes a file: preview, keys, marker, check, publish.

    Args:
        lake: the lake.
        table: the table to select first; it need not exist.

    Returns:
        The form. It refuses an invalid file with row, column and fix, and publishes what the
        command `publish` would publish.

    Example:
        >>> publish_form(lake, "stock")  # doctest: +SKIP
    """
    from mirrorlake_lab.pages.publish_form import PublishForm

    return PublishForm(lake, table)
