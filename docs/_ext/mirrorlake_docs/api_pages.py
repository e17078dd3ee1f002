"""The API's pages: which public name is on which page; Sphinx reads the docstrings itself."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import isclass

import mirrorlake
import mirrorlake_lab
import mirrorlake_runs
import mirrorlake_sources

# A page, its sentence, and the classes whose methods it has.
_CLASSES = {
    "lake": (
        "The lake: publish, mirror, query, and what works on all its tables.",
        [
            "mirrorlake.lake.Lake",
            "mirrorlake.mirror.operations.Operations",
            "mirrorlake.history.frames.Frames",
            "mirrorlake.views.api.Views",
            "mirrorlake.partitioning.process.LakePartitioning",
        ],
    ),
    "table": (
        "A table: its versions, changes, files, rows and their order.",
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
    """The pages' names and their reStructuredText."""
    found = [
        (name, getattr(package, name))
        for package in _PACKAGES
        for name in package.__all__
        if name not in {*_ON_A_PAGE, "__version__"}
    ]
    lines = _title("The API")
    lines += ["Everything public, from its docstrings.", "", ".. toctree::", "   :maxdepth: 1", ""]
    lines += [f"   {name}" for name in (*_CLASSES, "functions")]
    yield "index", "\n".join([*lines, ""])
    for page, (sentence, classes) in _CLASSES.items():
        lines = [*_title(page.capitalize()), sentence, ""]
        for path in classes:
            lines += _class(path)
        yield page, "\n".join(lines)
    lines = [
        *_title("Functions and results"),
        "Imported from ``mirrorlake``, and from its satellites where the path names one.",
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
    getattr(import_module(module), name)  # a name that moved is an error here, not a warning there
    return [
        *(name, "-" * len(name), ""),
        *(f".. autoclass:: {path}", "   :members:", "   :inherited-members: Exception", ""),
    ]
