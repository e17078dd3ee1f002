"""What people look at: plots and tables."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mirrorlake.results import optional_figure


def __getattr__(name: str) -> Any:
    """Return a function of `show.plots`, so that a notebook can import it without matplotlib."""
    if not name.startswith("plot_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find_plot(f"{__name__}.plots", name)


def find_plot(module: str, name: str) -> Any:
    """Return a function that draws; without matplotlib, one that warns once and returns None.

    Args:
        module: the module with the function.
        name: the name of the function.

    Raises:
        AttributeError: the module has no such function.
    """
    try:
        import_module("mirrorlake.show.chart")  # imports matplotlib; so all plots have one warning
    except ModuleNotFoundError as error:
        return _left_out(error)
    return getattr(import_module(module), name)


def _left_out(error: ModuleNotFoundError) -> Any:
    @optional_figure
    def plot(*_arguments: Any, **_options: Any) -> None:
        raise error

    return plot
