"""The names of new tables, views, archives and dimensions; creating them is replaced by a stub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from helpers.commits import commit
from helpers.least_table import make_table
from mirrorlake import Lake
from mirrorlake.cli import main as cli
from mirrorlake.delta.log_files import is_dropped
from mirrorlake.errors import (
    FeedError,
    InvalidNameError,
    QueryError,
    TableNotFoundError,
    UsageError,
)
from mirrorlake.feed import archive, cursor, dimension
from mirrorlake.history import write
from mirrorlake.layout import analysis, measures
from mirrorlake.mirror import trash
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage
from mirrorlake.views import api as views_api
from mirrorlake.views.shape import Method

DROPPED, SOURCE = TableName(None, "dropped"), TableName(None, "t")
FEED = {"delta.enableChangeDataFeed": "true"}


class CreatedError(Exception):
    """Raised in place of creating a table."""


def create(*_: Any, **__: Any) -> None:
    raise CreatedError


@pytest.fixture
def lake(any_storage: Storage, tmp_path: Path) -> Lake:
    """A lake with a table, and with one that was dropped."""
    schema = '{"type":"struct","fields":[]}'
    meta = {"metaData": {"id": "x", "schemaString": schema, "configuration": FEED}}
    commit(any_storage, 0, meta)
    make_table(any_storage, DROPPED)
    trash.drop_table(any_storage, DROPPED, None)
    conf = SimpleNamespace(get=lambda *_: None, set=lambda *_: None)
    lake = Lake(tmp_path, spark=cast(Any, SimpleNamespace(conf=conf)))
    lake.storage = any_storage
    return lake


def check_room(lake: Lake) -> None:
    """Check that the dropped table was moved out of the way, and can still be restored."""
    (dropped,) = trash.dropped_tables(lake.storage)
    assert (dropped.table, dropped.is_in_place) == (DROPPED, False)
    assert not is_dropped(lake.storage, DROPPED.table_path)


def test_a_table_can_have_the_name_of_a_dropped_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "create_table", create)
    with pytest.raises(CreatedError):
        lake.create_table("dropped", {"id": "int"})
    check_room(lake)


def test_an_archive_can_have_the_name_of_a_dropped_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "create_table", create)
    monkeypatch.setattr(archive, "column_types", lambda _: {})
    table = lake.table("t")
    monkeypatch.setattr(table, "rows", lambda: SimpleNamespace(schema=None), raising=False)
    with pytest.raises(CreatedError):
        archive.Archive(table, DROPPED).run()
    check_room(lake)


def test_a_view_can_have_the_name_of_a_dropped_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, stub in {
        "create_table": create,
        "new_session": lambda spark: spark,
        "make_plan": lambda *_: SimpleNamespace(names=()),
        "find_stages": lambda *_: ((), Method.FULL),
        "stored_columns": lambda *_: {},
    }.items():
        monkeypatch.setattr(views_api, name, stub)
    with pytest.raises(CreatedError):
        lake.views.create("dropped", "SELECT 1 AS one FROM t")
    check_room(lake)


def test_a_dimension_removes_a_dropped_one_only_before_it_writes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dimension, "key_columns", lambda *_: ("id",))
    monkeypatch.setattr(dimension, "apply_changes", create)
    table, before = lake.table("t"), trash.dropped_tables(lake.storage)
    monkeypatch.setattr(dimension.Cursor, "read", create)
    with pytest.raises(QueryError, match="CreatedError"):
        dimension.follow_feed(table, DROPPED)
    assert trash.dropped_tables(lake.storage) == before
    batch = SimpleNamespace(is_empty=False, rows=SimpleNamespace(where=lambda _: None))
    monkeypatch.setattr(dimension.Cursor, "read", lambda _: batch)
    with pytest.raises(QueryError, match="CreatedError"):
        dimension.follow_feed(table, DROPPED)
    check_room(lake)


def test_saved_figures_can_have_the_name_of_a_dropped_table(lake: Lake) -> None:
    class Frame:
        @property
        def columns(self) -> None:
            raise CreatedError

    dropped = TableName("diagnostics", "file_sizes")
    make_table(lake.storage, dropped)
    trash.drop_table(lake.storage, dropped, None)
    tables = measures.Planned({"File Sizes": Frame, "Columns": Frame})  # type: ignore[dict-item]
    nothing: Any = None
    found = analysis.Analysis(lake.table("t"), nothing, {}, tables, nothing, nothing)
    with pytest.raises(UsageError, match=r"no table 'Sizes'.*choose from File Sizes, Columns\."):
        found.save("Columns, Sizes")
    with pytest.raises(CreatedError):
        found.save("File Sizes")
    kept = trash.dropped_tables(lake.storage)
    assert dropped in [one.table for one in kept if not one.is_in_place]
    make_table(lake.storage, TableName(None, "diagnostics"))
    with pytest.raises(InvalidNameError, match="both a table and a schema"):
        found.save()


def test_a_mistyped_table_is_not_partitioned(lake: Lake) -> None:
    for run in (lake.partitioning.process, lake.partitioning.run):
        with pytest.raises(TableNotFoundError, match=r"no table tt in .* did you mean t\?"):
            run("tt")
    assert lake.partitioning.run("T").operations == 0


def test_upper_and_lower_case_of_existing_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that differs only in case is not created beside the existing one."""
    found: list[Any] = []
    monkeypatch.setattr(write, "create_table", lambda spark, path, *_, **__: found.append(path))
    assert lake.create_table("T", {"id": "int"}).name == SOURCE
    assert found == [lake.storage.path(SOURCE.table_path)]
    monkeypatch.setattr(views_api, "new_session", lambda spark: spark)
    with pytest.raises(UsageError, match="already a table t"):
        lake.views.create("T", "SELECT 1 AS one FROM t")
    table = lake.table("t")
    assert cursor.target_name(table, " T ", "{}_history") == SOURCE
    assert cursor.target_name(table, "new", "{}_history") == TableName(None, "new")
    with pytest.raises(FeedError, match="t is not an archive of"):
        lake.archive("t", "T", dry_run=True)
    monkeypatch.setattr(dimension, "follow_feed", lambda table, into, **_: found.append(into))
    lake.update_dimension("t", "T")
    assert found[1:] == [SOURCE]


def test_a_run_without_a_policy_names_the_fix(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if lake.storage.local is None:
        return
    monkeypatch.setattr(
        sys, "argv", ["mirrorlake", "partition", "run", str(lake.storage.local), "t"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert "t has no partitioning policy. Hint: set one with" in capsys.readouterr().err
