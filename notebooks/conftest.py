"""Makes `pytest --nbval NOTEBOOK` ignore the differences that `sanitize.cfg` names."""

from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)  # nbval's own first
def pytest_configure(config: pytest.Config) -> None:
    """Use the file beside this one unless the command names another."""
    if getattr(config.option, "nbval_sanitize_with", "") is None:
        config.option.nbval_sanitize_with = str(Path(__file__).with_name("sanitize.cfg"))
