"""Executed notebooks as files: their format's library, and the results that they carry."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from mirrorlake.runs.record import MIME

import_module("mirrorlake.runs.quick_jsonschema")  # before nbformat imports it

import nbformat  # noqa: E402

__all__ = ["first_words", "joined_streams", "nbformat", "read_records"]


def read_records(notebook: str | Path) -> dict[str, Any]:
    """All results that an executed notebook recorded; later ones win."""
    found: dict[str, Any] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", []):
            found.update(output.get("data", {}).get(MIME, {}))
    return found


def first_words(notebook: nbformat.NotebookNode) -> tuple[str, str]:
    """A notebook's title, and what its first cell says below it, in one line; or empty texts."""
    title, *lines = notebook.cells[0].source.splitlines() or [""]
    said = " ".join(line.lstrip("> ") for line in lines if line.startswith(">"))
    return title.lstrip("# "), said


def joined_streams(outputs: list[Any]) -> list[Any]:
    """A cell's outputs, each run of them on one stream as one.

    How a kernel divides what was printed in one go depends on the clock.
    """
    found: list[Any] = []
    for output in outputs:
        stream = output.get("name") if output.output_type == "stream" else None
        if stream and found and found[-1].get("name") == stream:
            found[-1]["text"] += output.text
        else:
            found.append(output)
    return found
