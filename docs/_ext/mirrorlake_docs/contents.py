"""The site's first page and its table of contents: which page stands where."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mirrorlake_lab.course.lessons import lesson_paths, title_of

_TOPICS = (
    *("explore", "schedule", "serve", "sources", "object-stores", "scale", "change-feed", "views"),
    *("row-tracking", "vorder", "partitioning"),
)
# What the first page names, and only the site has.
_GENERATED = {
    "the documentation site also lists every parameter, error, message and method": (
        "every [parameter](reference/parameters.md), [error](reference/errors.md),"
        " [message](reference/messages.md) and [method](reference/api/index.rst)"
    ),
    "the documentation site also lists every promise (guarantee) with the tests that check it": (
        "every [promise](reference/promises.md) (guarantee) with the tests that check it"
    ),
}
# Captions with their pages, as paths from the site's root; `*` stands for all of a folder.
_PARTS: dict[str, tuple[str, ...]] = {
    "Begin": ("docs/start", "docs/course", "docs/notebooks", "notebooks/tools"),
    "How to": ("docs/how-to/*",),
    "Lessons": (),  # by their numbers and titles
    "How it works": ("docs/explain/*",),
    "Topics": tuple(f"docs/{name}" for name in _TOPICS),
    "Reference": (
        *("docs/commands", "reference/commands", "reference/parameters", "reference/errors"),
        *("reference/messages", "docs/lint", "reference/guardrails", "reference/api/index"),
        *("docs/landing-zone", "docs/types", "docs/formats"),
        *("docs/readers", "reference/promises", "docs/limits", "CHANGELOG", "CONTRIBUTING"),
    ),
}
_LINK = re.compile(r"\]\((?![a-z]+:)([^)]+)\)")


def first_page(docs: Path) -> str:
    """`docs/index.md` as it stands at the site's root, with the table of contents.

    Args:
        docs: the folder of the docs.
    """
    text = (docs / "index.md").read_text(encoding="utf-8")
    text = _LINK.sub(lambda found: f"]({posixpath.normpath(f'docs/{found[1]}')})", text)
    for words, links in _GENERATED.items():
        text = text.replace(words, links)
    lines = [text.rstrip(), ""]
    for caption, pages in (_PARTS | {"Lessons": _lessons()}).items():
        lines += ["```{toctree}", ":hidden:", ":titlesonly:", ":glob:"]
        lines += [f":caption: {caption}", "", *pages]
        lines += ["```", ""]
    return "\n".join(lines)


def _lessons() -> tuple[str, ...]:
    return tuple(
        f"{number} {title_of(path)} <notebooks/learn/{path.stem}>"
        for number, path in lesson_paths().items()
    )
