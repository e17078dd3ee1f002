"""Cleans executed notebooks for committing: `python -m mirrorlake.runs.clean NOTEBOOK…`.

Outputs and tags stay, for they are what nbval compares with, and so do the words for pictures. What
papermill injected goes, and so do execution times, cell ids that change by the run, counters and
widget state.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from mirrorlake.runs.notebook_files import joined_streams, nbformat

_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_PAPERMILLS = {"injected-parameters", "papermill-error-cell-tag"}
_WIDGET = "application/vnd.jupyter.widget-view+json"


def clean_notebook(notebook: NotebookNode) -> NotebookNode:
    """A copy with nothing in it that differs from run to run."""
    cleaned = copy.deepcopy(notebook)
    cells = [cell for cell in cleaned.cells if not _PAPERMILLS & set(_tags(cell))]
    count = 0
    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index:02d}"
        cell["metadata"] = {"tags": _tags(cell)} if _tags(cell) else {}
        if cell.cell_type != "code":
            continue
        count += 1
        cell["execution_count"] = count
        cell["outputs"] = joined_streams(cell.outputs)
        for output in cell.outputs:
            if "metadata" in output:
                output["metadata"] = _of_pictures(output["metadata"])
            if "execution_count" in output:
                output["execution_count"] = count
            output.get("data", {}).pop(_WIDGET, None)
    cleaned["cells"] = cells
    # In full, as the kernel gives it: without it Lab calls the notebook modified when it opens it.
    language = cleaned.metadata.get("language_info", {"name": "python"})
    cleaned["metadata"] = {"kernelspec": dict(_KERNEL), "language_info": language}
    return cleaned


def clean_file(path: Path) -> bool:
    """Cleans a notebook in place; whether it had to be."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    cleaned = clean_notebook(notebook)
    if cleaned == notebook:
        return False
    nbformat.validate(cleaned)
    nbformat.write(cleaned, path)  # type: ignore[no-untyped-call]
    return True


def _of_pictures(metadata: dict[str, Any]) -> dict[str, Any]:
    """What pictures say in words, and how large they are shown."""
    return {kind: dict(facts) for kind, facts in metadata.items() if kind.startswith("image/")}


def _tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


if __name__ == "__main__":
    changed = [name for name in sys.argv[1:] if clean_file(Path(name))]
    sys.exit(1 if changed else 0)
