"""The order and the excerpts of the site's search.

Sphinx fetches the pages to show excerpts, which a browser refuses from `file://`. So the scorer,
which is part of the search's own script, contains the first paragraph of each page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from mirrorlake_runs.notebook_files import first_words, nbformat

_LONGEST = 160
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NO_TEXT = ("#", "|", "```", "- ", "!", "<", ":", "{", "1.")
# The numbers are Sphinx's own, except `objPrio`: pages on a task precede the reference.
_SCRIPT = """
const EXCERPTS = %s;
var Scorer = {
  score: (result) => {
    const page = result[0];
    result[3] = result[3] || EXCERPTS[page] || "";
    const more = {"docs/how-to/": 10, "docs/": 3, "reference/": -5};
    const folder = Object.keys(more).find((start) => page.startsWith(start));
    return result[4] + (more[folder] ?? 0);
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
