"""The number of requests of an idle cycle, counted at the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.lakes import lake_of
from helpers.s3_server import S3Server
from helpers.scale import counted, idle_cycle, make_tables, no_spark
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.state import Shard
from mirrorlake.names import file_name
from mirrorlake.storage.files import Storage

CONSTANT = 12  # the requests of a cycle without tables


@pytest.fixture
def log(_server: S3Server) -> Path:
    return _server.requests


@pytest.fixture
def root(_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in _server.variables().items():
        monkeypatch.setenv(name, value)
    return f"s3://lakes/{tmp_path.name}"


@pytest.mark.parametrize(("tables", "lists"), [(1, 1), (10, 10), (60, 1), (400, 2)])
def test_an_idle_cycle_lists_each_table_or_all_at_once(
    root: str, log: Path, tables: int, lists: int
) -> None:
    found = idle_cycle(Storage(root), log, tables)
    assert found.total - lists <= CONSTANT, found.paths
    below = [path for kind, path in found.paths if kind == "LIST" and "LandingZone%2F" in path]
    assert len(below) == len(set(below))
    # The zone's folders are listed once, too.
    assert len(below) == lists + 1, below
    assert found.kinds["GET"] + found.kinds["HEAD"] <= 5
    kept = [path for kind, path in found.paths if kind != "LIST" and "/state" in path]
    assert kept == []  # the state has not changed, so no document is written


@pytest.mark.parametrize("more", [0, 2500], ids=["whole", "broken off"])
def test_what_is_new_is_found_by_the_listing_of_all(root: str, more: int) -> None:
    """The result is the same if the recursive listing is stopped at a table with many files."""
    storage = Storage(root)
    tables = make_tables(storage, 40)
    engine = Engine(storage, no_spark)
    assert not engine.run_cycle().failed
    for number in range(more):
        storage.write(f"{tables[3].folder}/_ProcessedFiles/{file_name(number)}", b"of before")
    storage.write(f"{tables[2].folder}/{file_name(2)}", b"no Parquet")
    storage.write(f"{tables[30].folder}/{file_name(2)}", b"no Parquet")
    assert {line.name for line in engine.run_cycle().failed} == {"t00002", "t00030"}


def test_the_status_of_many_tables_lists_all_at_once(root: str, log: Path) -> None:
    storage = Storage(root)
    tables = make_tables(storage, 40)
    storage.write(f"{tables[2].folder}/{file_name(2)}", b"new")
    with counted(log) as found:
        report = lake_of(storage).status()
    behind = {line.name: line.backlog_files for line in report.tables}
    assert behind == {table.name: int(table == tables[2]) for table in tables}
    below = [path for kind, path in found.paths if kind == "LIST" and "LandingZone%2F" in path]
    assert len(below) == 2, below  # the zone's folders, and one recursive listing


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
