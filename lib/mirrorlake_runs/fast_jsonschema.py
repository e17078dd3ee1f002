"""Import jsonschema without the part that makes its import slow."""

from __future__ import annotations

import sys
from typing import Any


def import_jsonschema() -> Any:
    """Import jsonschema without the IRI parser that it builds at import, in more than a second.

    Call this before importing `nbformat`, which imports jsonschema as well. Plans and notebooks
    contain no IRIs. A later import of the parser still works.
    """
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rfc3987_syntax", None)
    import jsonschema

    if modules["rfc3987_syntax"] is None:
        del modules["rfc3987_syntax"]
    return jsonschema
