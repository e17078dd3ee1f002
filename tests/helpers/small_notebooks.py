"""Write small notebooks that need no Spark into a test's folder."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

RECORD = "from mirrorlake_runs import record\nrecord(rows=rows, word=word)"
HEAD = 'rows: int = 1  # rows\nword: str = "a"  # a word'
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def put_notebook(folder: Path, name: str, *sources: str, head: str = HEAD) -> Path:
    """Write a notebook with a parameters cell followed by the given cells."""
    cells = [new_markdown_cell("# Title")]
    cells += [new_code_cell(head, metadata={"tags": ["parameters"]})] if head else []
    cells += [new_code_cell(source) for source in sources]
    notebook = new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def put_plan(folder: Path, text: str, name: str = "p") -> Path:
    """Write a plan beside the notebooks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{name}.yaml"
