"""Plans of notebooks, executed by papermill."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorlake_runs.results import record

__all__ = ["record"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("mirrorlake_runs.results"), name)


def import_jsonschema() -> Any:
    """jsonschema, without the parser of IRIs that it makes when imported, in more than a second.

    It has to come before `nbformat`, which imports it, too. Neither a plan nor a notebook has an
    IRI. Whoever imports the parser later gets it.
    """
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rfc3987_syntax", None)
    import jsonschema

    if modules["rfc3987_syntax"] is None:
        del modules["rfc3987_syntax"]
    return jsonschema
