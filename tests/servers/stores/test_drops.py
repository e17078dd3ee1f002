"""Dropping, restoring and renaming tables on a real store, with Hadoop's folder markers."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from helpers import least_table
from helpers.fault_proxy import Fault, FaultProxy
from mirrorlake.delta.snapshot import delta_tables, read_snapshot
from mirrorlake.landing.metadata import Identity, write_identity
from mirrorlake.mirror import ledger, trash
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.state import save_states
from mirrorlake.names import TableName
from mirrorlake.query import catalog
from mirrorlake.storage import object_stores
from mirrorlake.storage.files import Storage

A, B, IN_SCHEMA = TableName(None, "a"), TableName(None, "b"), TableName("s", "a.b")


@pytest.fixture
def storage(root: str) -> Storage:
    return Storage(root)


def make_marker(storage: Storage, folder: str) -> None:
    """Create the marker that S3A leaves for a folder."""
    place = urlsplit(storage.path(folder))
    object_stores.arrow_s3().create_dir(f"{place.netloc}{place.path}")


def make_table(storage: Storage, table: TableName, life: str = "1") -> None:
    """Write a minimal table as Spark leaves it on S3."""
    for folder in ("", "/_delta_log", "/_delta_log/_staged_commits", "/_change_data"):
        make_marker(storage, f"{table.table_path}{folder}")
    least_table.make_table(storage, table, life=life)


def test_markers_are_no_files_and_no_tables(storage: Storage):
    make_table(storage, A)
    assert [entry.name for entry in storage.list(A.table_path).files] == ["part.parquet"]
    assert len(storage.files_below(A.table_path)) == 2
    for path in storage.files_below(A.table_path):
        storage.delete(path)
    assert "_delta_log" in storage.list(A.table_path).folders
    assert delta_tables(storage) == []
    assert catalog.Catalog(storage).find(A) is None
    assert read_snapshot(storage, A.table_path) is None


def test_a_deleted_folder_leaves_no_marker(storage: Storage):
    make_table(storage, A)
    make_table(storage, TableName(None, "ab"))
    storage.delete_folder(A.table_path)
    assert storage.list("Tables").folders == ("ab",)
    assert len(storage.files_below("Tables")) == 2


@pytest.mark.parametrize("table", [A, IN_SCHEMA], ids=str)
def test_a_drop_is_one_write_and_so_is_taking_it_back(
    storage: Storage, proxy: FaultProxy, table: TableName
):
    make_table(storage, table)
    before = storage.files_below(table.table_path)
    proxy.requests.clear()
    assert trash.drop_table(storage, table, Identity(table, "1"))
    assert [r.method for r in proxy.requests if r.method not in ("GET", "HEAD")] == ["PUT"]
    assert storage.files_below(table.table_path) == before
    assert read_snapshot(storage, table.table_path) is None
    assert delta_tables(storage) == []
    assert catalog.Catalog(storage).find(table) is None
    assert not trash.drop_table(storage, table, Identity(table, "1"))
    (dropped,) = trash.dropped_tables(storage)
    assert (dropped.table, dropped.identity) == (table, Identity(table, "1", table))
    trash.undrop(storage, table)
    assert read_snapshot(storage, table.table_path) is not None
    assert delta_tables(storage) == [table]
    assert trash.dropped_tables(storage) == []


def test_a_life_that_comes_back_under_another_name_moves_whom_it_finds_there(storage: Storage):
    make_table(storage, A, "mine")
    trash.drop_table(storage, A, Identity(A, "mine"))
    make_table(storage, B, "of the name")
    trash.drop_table(storage, B, Identity(B, "another"))
    renamed = Identity(B, "mine", A)
    assert trash.was_renamed(storage, renamed)
    assert trash.restore_dropped(storage, renamed)
    assert delta_tables(storage) == [B]
    (kept,) = trash.dropped_tables(storage)
    assert (kept.identity, kept.is_in_place) == (Identity(B, "another", B), False)
    assert storage.list("Tables").folders == ("b",)


def test_what_was_dropped_long_ago_goes_for_good(storage: Storage):
    make_table(storage, A)
    trash.drop_table(storage, A, None)
    trash.purge_dropped(storage, keep=timedelta(days=7))
    assert len(trash.dropped_tables(storage)) == 1
    trash.purge_dropped(storage, keep=timedelta(0))
    assert storage.files_below("") == ()
    assert storage.list("Tables").folders == ()


def test_a_renamed_folder_takes_its_table_along_after_a_move_was_cut_short(
    storage: Storage, proxy: FaultProxy
):
    make_table(storage, A)
    storage.write(f"{A.feeds_path}/me.json", b"1")
    states = ledger.rebuild_states(storage, [A])
    write_identity(storage, Identity(IN_SCHEMA, "1", A), make_folder=True)
    proxy.faults = lambda request: (
        Fault(403, times=0) if request.method == "PUT" and "_delta_log" in request.key else Fault()
    )
    dropped, stuck = trash.follow_folders(storage, states, [IN_SCHEMA])
    assert (dropped, [state.table for state in stuck]) == ([], [IN_SCHEMA])
    assert read_snapshot(storage, A.table_path) is not None
    storage.write(f"{A.feeds_path}/me.json", b"2")
    proxy.faults = lambda _request: Fault()
    assert trash.follow_folders(storage, states, [IN_SCHEMA]) == ([], [])
    assert [state.table for state in states.values()] == [IN_SCHEMA]
    assert delta_tables(storage) == [IN_SCHEMA]
    assert storage.list("Tables").folders == ("s",)
    assert storage.read(f"{IN_SCHEMA.feeds_path}/me.json") == b"2"
    assert storage.files_below(A.feeds_path) == ()


def no_spark():
    raise AssertionError("Spark was asked for")


def test_a_table_that_can_not_be_dropped_stops_no_other(storage: Storage, proxy: FaultProxy):
    for table in (A, B):
        make_table(storage, table)
    save_states(storage, ledger.rebuild_states(storage, [A, B]))
    storage.write("Files/LandingZone/c/_metadata.json", b"{}")
    proxy.faults = lambda request: (
        Fault(403, times=0) if "dropped_in_place/a" in request.key else Fault()
    )
    report = Engine(storage, no_spark).run_cycle()
    assert report.dropped == ("b",)
    assert {table.name: table.state for table in report.tables} == {
        "c": "Initialized",
        "a": "Failed",
    }
    proxy.faults = lambda _request: Fault()
    report = Engine(storage, no_spark).run_cycle()
    assert (report.dropped, [table.name for table in report.tables]) == (("a",), ["c"])
