"""jsonschema, imported without the parser of IRIs that it makes then, in more than a second.

Neither a plan nor a notebook has an IRI. Whoever imports the parser later gets it.
"""

from __future__ import annotations

import sys

if "jsonschema" not in sys.modules:
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    import jsonschema

    del sys.modules["rfc3987_syntax"]
else:
    import jsonschema

__all__ = ["jsonschema"]
