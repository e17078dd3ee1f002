"""The order, the excerpts and the keywords of the site's search.

Sphinx fetches the pages to show excerpts, which a browser refuses from `file://`. So the scorer,
which is part of the search's own script, contains the first paragraph of each page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from mirrorlake_runs.notebook_files import first_words, nbformat

# Words that readers search for, in the plural, by page or `page#Heading`. They are entries of
# Sphinx's index: an exact match precedes other hits, and opens the page at the heading.
KEYWORDS = {
    "docs/commands": ("exit codes", "exit status"),
    "docs/how-to/database": ("REPLICA IDENTITY", "CREATE PUBLICATION", "wal_level"),
    "docs/how-to/dimension": ("SCD", "SCD type 2", "slowly changing dimensions"),
    "docs/how-to/forget": ("GDPR", "erase", "erasure", "right to be forgotten"),
    "docs/how-to/move": ("move to another bucket", "backup", "move to S3"),
    "docs/how-to/old-versions": ("pinned versions",),
    "docs/how-to/stopped-table": ("table stopped", "stopped tables", "table has stopped"),
    "docs/types#Renamed columns": ("rename a column", "renamed columns", "RENAME COLUMN"),
    "docs/views": ("materialized views", "incremental views"),
    "notebooks/maintain": ("vacuum",),
    "notebooks/time_travel#Compare two versions": ("what changed", "compare two versions"),
    "reference/guardrails": ("Direct Lake limits", "F SKU row limits", "row limits", "F SKUs"),
}
_LONGEST = 160
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NO_TEXT = ("#", "|", "```", "- ", "!", "<", ":", "{", "1.")
# The numbers are Sphinx's own, except `objPrio`: pages on a task precede the reference, and pages
# with all searched words in their titles precede both.
_SCRIPT = """
const EXCERPTS = %s;
var Scorer = {
  score: (result) => {
    const page = result[0];
    result[3] = result[3] || EXCERPTS[page] || "";
    const more = {"docs/how-to/": 10, "docs/": 3, "reference/": -5};
    const folder = Object.keys(more).find((start) => page.startsWith(start));
    const query = new URLSearchParams(location.search).get("q") ?? "";
    const title = ["text", "title"].includes(result[6]) ? result[1].toLowerCase() : "";
    const isNamed = query.toLowerCase().split(/\\s+/).every((word) => title.includes(word));
    return result[4] + (more[folder] ?? 0) + (isNamed && !title.includes(" > ") ? 20 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 0, 1: 0, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
"""


def add_keywords(sources: Path) -> None:
    """Add an entry to Sphinx's index for each keyword, at its page or heading.

    Args:
        sources: the folder of the site's sources.
    """
    for place, words in KEYWORDS.items():
        page, _, heading = place.partition("#")
        entries = ", ".join(f"! {word}" for word in words)
        directive = f"```{{index}} {entries}\n```"
        path = sources / f"{page}.md"
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            path.write_text(_below(text, heading, directive), encoding="utf-8")
            continue
        path = path.with_suffix(".ipynb")
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        cell = next(
            cell
            for cell in notebook.cells
            if cell.cell_type == "markdown" and _below(cell.source, heading, "") != cell.source
        )
        cell.source = _below(cell.source, heading, directive)
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def _below(text: str, heading: str, directive: str) -> str:
    """Insert a directive below a heading, or below the title if the heading is empty."""
    pattern = rf"^##+ {re.escape(heading)}$" if heading else r"\A# .*$"
    return re.sub(pattern, lambda found: f"{found[0]}\n\n{directive}\n", text, count=1, flags=re.M)


def write_scorer(sources: Path, target: Path) -> None:
    """Write the script that orders the hits, how-to pages and docs first, and adds excerpts."""
    found = {}
    for path in sorted((*sources.rglob("*.md"), *sources.rglob("*.ipynb"))):
        page = path.relative_to(sources).with_suffix("").as_posix()
        found[page] = _excerpt(path)
    target.write_text(_SCRIPT % json.dumps(found), encoding="utf-8")


def _excerpt(path: Path) -> str:
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        text = first_words(notebook)[1]
    else:
        parts = path.read_text(encoding="utf-8").split("\n\n")
        text = next((part for part in parts if not part.lstrip().startswith(_NO_TEXT)), "")
    plain = " ".join(re.sub(r"[`*]", "", _LINK.sub(r"\1", text)).split())
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST].rpartition(' ')[0]} …"
