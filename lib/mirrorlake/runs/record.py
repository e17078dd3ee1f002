"""Results that a notebook hands to whoever ran it: outputs with a MIME type of their own."""

from __future__ import annotations

from typing import Any

MIME = "application/vnd.mirrorlake.record+json"


def record(**results: Any) -> None:
    """Records results, by name, in the output of the running cell.

    Args:
        results: values that JSON can hold.
    """
    from IPython.display import display

    text = "\n".join(f"{name}: {value}" for name, value in results.items())
    display({MIME: results, "text/plain": text}, raw=True)  # type: ignore[no-untyped-call]
