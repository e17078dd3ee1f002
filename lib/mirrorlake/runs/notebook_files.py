"""Executed notebooks as files: their format's library, and the results that they carry."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mirrorlake.runs.record import MIME

if "jsonschema" not in sys.modules:
    # At its import jsonschema makes a parser of IRIs, in more than a second; a notebook has none.
    # Who imports the parser later gets it.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    import jsonschema  # noqa: F401

    del sys.modules["rfc3987_syntax"]

import nbformat

__all__ = ["nbformat", "read_records"]


def read_records(notebook: str | Path) -> dict[str, Any]:
    """All results that an executed notebook recorded; later ones win."""
    found: dict[str, Any] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", []):
            found.update(output.get("data", {}).get(MIME, {}))
    return found
