"""Read the records of executed notebooks, and clean notebooks for committing.

`python -m mirrorlake_runs.notebook_files NOTEBOOK…` cleans notebooks. It keeps outputs and tags,
which nbval compares, and the alternative texts of pictures. It removes the cells that papermill
injected, execution times, generated cell ids, counters and widgets.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirrorlake_runs.fast_jsonschema import import_jsonschema
from mirrorlake_runs.records import MIME, NOT_SUMMED

import_jsonschema()

import nbformat  # noqa: E402

__all__ = ["clean_notebook", "first_words", "joined_streams", "nbformat", "read_records"]

INJECTED = "injected-parameters"
ERROR_MARK = "papermill-error-cell-tag"
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_WIDGET = "application/vnd.jupyter.widget-view+json"


def read_records(notebook: str | Path, earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all results that an executed notebook recorded; later results replace earlier ones.

    Args:
        notebook: the file.
        earlier: the results of earlier attempts, to which numbers are added, see `record`.

    Example:
        >>> read_records("out.ipynb")  # doctest: +SKIP
        {'rows': 12}
    """
    found: dict[str, Any] = {}
    states: set[str] = set()
    for cell in nbformat.read(notebook, as_version=4).cells:  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", []):
            found.update(output.get("data", {}).get(MIME, {}))
            states.update(output.get("metadata", {}).get(MIME, {}).get(NOT_SUMMED, ()))
    earlier = earlier or {}
    for name in (earlier.keys() & found.keys()) - states:
        if _is_number(earlier[name]) and _is_number(found[name]):
            found[name] += earlier[name]
    return {**earlier, **found}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def first_words(notebook: nbformat.NotebookNode) -> tuple[str, str]:
    """Return a notebook's title and the quoted subtitle below it as one line; empty if missing."""
    title, *lines = notebook.cells[0].source.splitlines() or [""]
    subtitle = " ".join(line.lstrip("> ") for line in lines if line.startswith(">"))
    return title.lstrip("# "), subtitle


def joined_streams(outputs: list[Any]) -> list[Any]:
    """Return a cell's outputs with consecutive outputs of one stream joined.

    How a kernel divides printed text into outputs depends on the time.
    """
    found: list[Any] = []
    for output in outputs:
        stream = output.get("name") if output.output_type == "stream" else None
        if stream and found and found[-1].get("name") == stream:
            found[-1]["text"] += output.text
        else:
            found.append(output)
    return found


def clean_notebook(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy of a notebook without anything that differs from run to run.

    Args:
        notebook: the notebook, as nbformat reads it.

    Example:
        >>> clean_notebook(nbformat.read("out.ipynb", as_version=4))  # doctest: +SKIP
    """
    cleaned = copy.deepcopy(notebook)
    cells = [cell for cell in cleaned.cells if not {INJECTED, ERROR_MARK} & set(_tags(cell))]
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
                # Alternative texts and sizes of pictures.
                output["metadata"] = {
                    kind: dict(facts)
                    for kind, facts in output["metadata"].items()
                    if kind.startswith("image/")
                }
            if "execution_count" in output:
                output["execution_count"] = count
            output.get("data", {}).pop(_WIDGET, None)
    cleaned["cells"] = cells
    # Complete as the kernel reports it; otherwise Lab marks the notebook as modified when it opens.
    language = cleaned.metadata.get("language_info", {"name": "python"})
    cleaned["metadata"] = {"kernelspec": dict(_KERNEL), "language_info": language}
    return cleaned


def clean_file(path: Path) -> bool:
    """Clean a notebook in place; return whether it changed."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    cleaned = clean_notebook(notebook)
    if cleaned == notebook:
        return False
    nbformat.validate(cleaned)
    nbformat.write(cleaned, path)  # type: ignore[no-untyped-call]
    return True


def _tags(cell: nbformat.NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


if __name__ == "__main__":
    changed = [name for name in sys.argv[1:] if clean_file(Path(name))]
    sys.exit(1 if changed else 0)
