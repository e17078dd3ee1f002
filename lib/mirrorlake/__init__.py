"""mirrorlake: an open lakehouse in notebooks.

Applications publish changes as files, Spark mirrors them into Delta tables; on these people query,
travel in time, diagnose and improve. Start with `Lake`.
"""

from __future__ import annotations

from mirrorlake.extras import name_missing_extras
from mirrorlake.lake import Lake

__version__ = "0.1.0"
name_missing_extras()

__all__ = ["Lake", "__version__"]
