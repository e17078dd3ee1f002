"""The keywords of the site's search: each page and heading exists and gets an index entry."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest

from helpers.project import PROJECT
from mirrorlake_docs.search import KEYWORDS, add_keywords


@pytest.mark.parametrize("place", KEYWORDS)
def test_a_keyword_is_an_entry_below_its_title_or_heading(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _, heading = place.partition("#")
    path = PROJECT / f"{page}.md"
    if not path.is_file() and not page.startswith("reference/"):
        path = path.with_suffix(".ipynb")
    target = tmp_path / f"{page}{path.suffix}"
    target.parent.mkdir(parents=True)
    if path.is_file():
        shutil.copyfile(path, target)
    else:
        target.write_text("# A page that the code writes\n\ntext\n", encoding="utf-8")
    monkeypatch.setattr("mirrorlake_docs.search.KEYWORDS", {place: KEYWORDS[place]})
    add_keywords(tmp_path)
    text = target.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        notebook = nbformat.read(target, as_version=4)
        text = "\n".join(cell.source for cell in notebook.cells)
    before, found, below = text.partition("```{index} ")
    assert found
    assert below.startswith(", ".join(f"! {word}" for word in KEYWORDS[place]) + "\n```\n")
    last = before.strip().splitlines()[-1]
    assert last == f"## {heading}" if heading else last.startswith("# ")
