"""A plugin for nbval that runs each notebook in its own copy of the home with the sample.

The outputs of a notebook then do not depend on earlier notebooks. `NBVAL_ORIGINAL` is the folder to
copy. The copies are kept in `NBVAL_HOMES`, each under the name of its notebook.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set the home before a notebook's kernel starts with this process's environment."""
    home = Path(os.environ["NBVAL_HOMES"]) / item.path.stem
    if not home.exists():
        shutil.copytree(os.environ["NBVAL_ORIGINAL"], home, symlinks=True)
    os.environ["MIRRORLAKE_HOME"] = str(home)
