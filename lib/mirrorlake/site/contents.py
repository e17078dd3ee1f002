"""The site's first page and its table of contents: which page stands where."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

_TOPICS = (
    *("explore", "schedule", "serve", "sources", "object-stores", "scale", "change-feed", "views"),
    *("row-tracking", "vorder", "partitioning"),
)
# Captions with their pages, as paths from the site's root; `*` stands for all of a folder.
_PARTS: dict[str, tuple[str, ...]] = {
    "Begin": ("docs/start", "docs/course", "docs/notebooks", "notebooks/tools"),
    "Lessons": ("notebooks/learn/*",),
    "How to": ("docs/how-to/*",),
    "How it works": ("docs/explain/*",),
    "Topics": tuple(f"docs/{name}" for name in _TOPICS),
    "Reference": (
        *("docs/commands", "reference/commands", "reference/parameters", "reference/errors"),
        *("docs/lint", "reference/api/index", "docs/landing-zone", "docs/types", "docs/formats"),
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
    lines = [text.rstrip(), ""]
    for caption, pages in _PARTS.items():
        lines += ["```{toctree}", ":hidden:", ":titlesonly:", ":glob:"]
        lines += [f":caption: {caption}", "", *pages]
        lines += ["```", ""]
    return "\n".join(lines)
