"""A Sphinx extension that writes the site's sources from the docs, the notebooks and the code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake_docs.search import add_keywords, write_scorer
from mirrorlake_docs.sources import write_sources

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_BEFORE_NAPOLEON = 400


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension to Sphinx."""
    app.connect("config-inited", _write)
    app.connect("autodoc-process-docstring", _keep_colons, priority=_BEFORE_NAPOLEON)
    return {"parallel_read_safe": True}


def _write(app: Sphinx, config: Any) -> None:
    """Write the sources beside the doctrees, and let Sphinx read them there.

    Links of the project's files work on the site, because the folder has the project's layout.
    """
    folder = Path(app.doctreedir) / "sources"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_sources(folder)
    scorer = folder.with_name("scorer.js")
    write_scorer(folder, scorer)  # first: excerpts have no keywords
    add_keywords(folder)
    config.html_search_scorer = str(scorer)
    app.srcdir = type(app.srcdir)(folder)


def _keep_colons(_app: object, what: str, _name: str, _of: object, _o: object, ls: Any) -> None:
    """Replace the first colon of a property: Napoleon takes the text before it for a type."""
    if what == "property" and ls:
        ls[0] = ls[0].replace(": ", "; ", 1)
