"""What `pyproject.toml` says of the project."""

from __future__ import annotations

import sys

from mirrorlake.storage.paths import PROJECT

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it there
    import tomli as tomllib

SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
