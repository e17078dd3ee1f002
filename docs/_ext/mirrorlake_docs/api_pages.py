"""The pages of the API reference, which list the public names; Sphinx reads the docstrings."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import isclass

import mirrorlake
import mirrorlake_lab
import mirrorlake_runs
import mirrorlake_sources

# By page: its introduction, and the classes whose methods it lists.
_CLASSES = {
    "lake": (
        "Publish to a lake, mirror and query it, and run operations on all its tables.",
        [
            "mirrorlake.lake.Lake",
            "mirrorlake.mirror.operations.Operations",
            "mirrorlake.history.frames.Frames",
            "mirrorlake.views.api.Views",
            "mirrorlake.partitioning.process.LakePartitioning",
        ],
    ),
    "table": (
        "Work with one table: its versions, changes, files, rows and policies.",
        [
            "mirrorlake.table.Table",
            "mirrorlake.layout.api.Optimize",
            "mirrorlake.feed.changes.Changes",
            "mirrorlake.rows.row_history.RowTracking",
            "mirrorlake.partitioning.table_policy.TablePolicy",
        ],
    ),
}
_ON_A_PAGE = {"Lake", "Table"}
_PACKAGES = (mirrorlake, mirrorlake_lab, mirrorlake_runs, mirrorlake_sources)


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield the names of the pages with their reStructuredText."""
    found = [
        (name, getattr(package, name))
        for package in _PACKAGES
        for name in package.__all__
        if name not in {*_ON_A_PAGE, "__version__"}
    ]
    lines = _title("API reference")
    lines += ["All public classes and functions.", "", ".. toctree::", "   :maxdepth: 1", ""]
    lines += [f"   {name}" for name in (*_CLASSES, "functions")]
    yield "index", "\n".join([*lines, ""])
    for page, (sentence, classes) in _CLASSES.items():
        lines = [*_title(page.capitalize()), sentence, ""]
        for path in classes:
            lines += _class(path)
        yield page, "\n".join(lines)
    lines = [
        *_title("Functions and results"),
        "Import these names from ``mirrorlake``, or from the satellite package in their path.",
        "",
    ]
    for name, thing in found:
        if isclass(thing):
            lines += _class(f"{thing.__module__}.{name}")
        elif callable(thing):
            lines += [f".. autofunction:: {thing.__module__}.{name}", ""]
    yield "functions", "\n".join(lines)


def _title(text: str) -> list[str]:
    return [text, "=" * len(text), ""]


def _class(path: str) -> list[str]:
    module, _, name = path.rpartition(".")
    getattr(
        import_module(module), name
    )  # fail here if a name has moved, because Sphinx would only warn
    return [
        *(name, "-" * len(name), ""),
        *(f".. autoclass:: {path}", "   :members:", "   :inherited-members: Exception", ""),
    ]
