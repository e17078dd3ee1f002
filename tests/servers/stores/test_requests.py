"""How many requests a cycle with nothing to do sends to a store, counted by the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.s3_server import S3Server
from helpers.scale import idle_cycle
from mirrorlake.mirror.shards import Shard
from mirrorlake.storage import Storage

CONSTANT = 12  # requests of a cycle that no table causes


@pytest.fixture
def log(_server: S3Server) -> Path:
    return _server.folder / "log"


@pytest.fixture
def root(_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in _server.variables().items():
        monkeypatch.setenv(name, value)
    return f"s3://lakes/{tmp_path.name}"


@pytest.mark.parametrize("tables", [1, 10, 60, 150])
def test_an_idle_cycle_is_one_listing_a_table_and_a_constant(
    root: str, log: Path, tables: int
) -> None:
    found = idle_cycle(Storage(root), log, tables)
    assert found.total - tables <= CONSTANT, found.paths
    below = [path for kind, path in found.paths if kind == "LIST" and "LandingZone%2Ft" in path]
    assert len(below) == len(set(below)) == tables
    assert found.kinds["GET"] + found.kinds["HEAD"] <= 5
    kept = [path for kind, path in found.paths if kind != "LIST" and "/state" in path]
    assert kept == []  # what is known has not changed, in however many documents it is


def test_a_shard_lists_its_own_tables_alone(root: str, log: Path) -> None:
    storage = Storage(root)
    found = idle_cycle(storage, log, 40, shard="2/4")
    own = [n for n in storage.list("Files/LandingZone").folders if _is_own(n)]
    assert 0 < len(own) < 40
    below = [path for kind, path in found.paths if kind == "LIST" and "LandingZone%2Ft" in path]
    assert len(below) == len(own)
    assert found.total - len(own) <= CONSTANT + 2, found.paths


def _is_own(name: str) -> bool:
    return Shard(2, 4).has(f"Files/LandingZone/{name}")
