"""Find what installed packages register under an entry point group of mirrorlake."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any


def registered(group: str) -> dict[str, Any]:
    """Return the objects of an entry point group by name.

    An entry of a package that is not installed is left out; the core works without satellites.

    Args:
        group: such as `mirrorlake.commands`.
    """
    found = {}
    for entry in entry_points(group=group):
        try:
            found[entry.name] = entry.load()
        except ModuleNotFoundError as error:
            if error.name != entry.module.partition(".")[0]:
                raise
    return found
