from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from helpers.serving import Lake, new_lake, serving, session_of
from mirrorlake_serve import Ready, Workspace

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder that replaces the user's cache for the server's token and authority."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORLAKE_CACHE", str(folder))
        patch.delenv("MIRRORLAKE_TOKEN", raising=False)
        yield folder


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Workspace:
    """Return an empty folder of lakes."""
    return Workspace(folder=str(tmp_path_factory.mktemp("workspace")))


@pytest.fixture(scope="module")
def ready(workspace: Workspace) -> Iterator[Ready]:
    """Yield a running server."""
    with serving(workspace, proxy=True) as found:
        yield found


@pytest.fixture(scope="module")
def session(ready: Ready) -> Iterator[requests.Session]:
    with session_of(ready) as found:
        yield found


@pytest.fixture
def served(workspace: Workspace, ready: Ready, session: requests.Session) -> Lake:
    """Return an empty lake of the running server."""
    return new_lake(workspace, ready, session, f"lake{next(NUMBERS)}")
