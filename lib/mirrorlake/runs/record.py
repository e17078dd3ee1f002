"""Results that a notebook hands to whoever ran it: outputs with a MIME type of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat

MIME = "application/vnd.mirrorlake.record+json"


def record(**results: Any) -> None:
    """Records results, by name, in the output of the running cell.

    Args:
        results: values that JSON can hold.
    """
    from IPython.display import display

    text = "\n".join(f"{name}: {value}" for name, value in results.items())
    display({MIME: results, "text/plain": text}, raw=True)  # type: ignore[no-untyped-call]


def read_records(notebook: str | Path) -> dict[str, Any]:
    """All results that an executed notebook recorded; later ones win."""
    found: dict[str, Any] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", []):
            found.update(output.get("data", {}).get(MIME, {}))
    return found
