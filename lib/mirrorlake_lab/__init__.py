"""Look at a lake and learn: pages and widgets, JupyterLab, the course, sample lakes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorlake_lab.samples.sample_lake import make_sample

__all__ = ["make_sample"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("mirrorlake_lab.samples.sample_lake"), name)
