"""A plugin for nbval that runs each notebook in its own copy of the home with the sample.

So what a notebook shows does not depend on those before it. `NBVAL_ORIGINAL` is the folder that is
copied, `NBVAL_HOMES` where the copies go, each under its notebook's name; they stay.
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
