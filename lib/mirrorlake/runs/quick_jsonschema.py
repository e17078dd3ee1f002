"""jsonschema, imported without the parser of IRIs that it makes then, in more than a second.

Neither a plan nor a notebook has an IRI. Whoever imports the parser later gets it.
"""

from __future__ import annotations

import sys
from typing import Any

_MODULES: dict[str, Any] = sys.modules
_MODULES.setdefault("rfc3987_syntax", None)

import jsonschema  # noqa: E402

if _MODULES["rfc3987_syntax"] is None:
    del _MODULES["rfc3987_syntax"]

__all__ = ["jsonschema"]
