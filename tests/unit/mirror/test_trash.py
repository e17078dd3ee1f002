"""Dropped tables, on disks and in object stores; a minimal log and one file are the Delta table."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from helpers.commits import write_lines
from helpers.least_table import make_mirrored, make_table
from mirrorlake import MirrorOptions
from mirrorlake.delta import log_files
from mirrorlake.delta.snapshot import delta_tables, read_snapshot
from mirrorlake.errors import TableNotFoundError, UsageError
from mirrorlake.landing.metadata import Identity, read_identity, read_metadata, write_identity
from mirrorlake.mirror import ledger, trash
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.options import partitioning_policies, pause, read_settings
from mirrorlake.mirror.state import TableState, load_states, save_states
from mirrorlake.names import TableName
from mirrorlake.query.catalog import Catalog
from mirrorlake.storage.files import Storage

A, B, IN_SCHEMA = TableName(None, "a"), TableName(None, "b"), TableName("s", "a.b")
DROPPED = "Files/_mirrorlake/dropped"


def content(storage: Storage, table: TableName) -> str | None:
    path = f"{table.table_path}/part.parquet"
    if read_snapshot(storage, table.table_path) is None:
        return None
    return storage.read(path).decode() if storage.exists(path) else None


def keep(storage: Storage, table: TableName, *texts: str) -> None:
    """Write what the lake keeps under a table's name: policies, a position, a pause."""
    for text in texts:
        partitioning_policies(storage, table).append({"policy": text}, text)
    storage.write(f"{table.feeds_path}/archive-x/checkpoint-1/offsets/0", texts[-1].encode())
    storage.write(f"{table.feeds_path}/{texts[-1]}.json", b"{}")
    pause(storage, table)


def kept(storage: Storage, table: TableName) -> tuple[list[str], list[str], bool]:
    """Return the policies, the files of the positions, and whether the table is paused."""
    policies = [one["policy"] for one in partitioning_policies(storage, table).all()]
    files = [path[len(table.feeds_path) + 1 :] for path in storage.files_below(table.feeds_path)]
    return policies, files, read_settings(storage, table).paused is not None


NOTHING: tuple[list[str], list[str], bool] = ([], [], False)


def kept_as(*texts: str) -> tuple[list[str], list[str], bool]:
    return [*texts], ["archive-x/checkpoint-1/offsets/0", f"{texts[-1]}.json"], True


@pytest.mark.parametrize("table", [A, IN_SCHEMA], ids=str)
def test_a_dropped_table_is_restored_completely(any_storage: Storage, table: TableName):
    make_table(any_storage, table)
    before = any_storage.files_below(table.table_path)
    identity = Identity(table, "1")
    assert trash.drop_table(any_storage, table, identity)
    assert content(any_storage, table) is None
    assert delta_tables(any_storage) == []
    assert not trash.drop_table(any_storage, table, identity)
    (dropped,) = trash.dropped_tables(any_storage)
    assert (dropped.table, dropped.identity) == (table, Identity(table, "1", table))
    assert datetime.now(timezone.utc) - dropped.when < timedelta(minutes=1)
    assert trash.restore_dropped(any_storage, identity)
    assert any_storage.files_below(table.table_path) == before
    assert any_storage.files_below(DROPPED) == ()
    assert not trash.restore_dropped(any_storage, identity)


@pytest.mark.parametrize("table", [A, IN_SCHEMA], ids=str)
@pytest.mark.parametrize("then", ["undrop", "make room", "purge"])
def test_a_copy_of_a_store_on_a_disk_hides_its_dropped_tables(
    storage: Storage, table: TableName, then: str
):
    store = Storage("memory:///")
    make_table(store, table)
    trash.drop_table(store, table, Identity(table, "1"))
    for path in store.files_below(""):
        storage.write(path, store.read(path))
    assert content(storage, table) is None
    assert delta_tables(storage) == []
    assert Catalog(storage).find(table) is None
    assert not trash.drop_table(storage, table, Identity(table, "1"))
    assert [d.table for d in trash.dropped_tables(storage)] == [table]
    if then == "undrop":
        trash.undrop(storage, table)
        assert content(storage, table) == "rows"
    elif then == "make room":
        trash.make_room(storage, table)
        make_table(storage, table, "new")
        assert content(storage, table) == "new"
        (dropped,) = trash.dropped_tables(storage)
        assert storage.read(f"{dropped.path}/part.parquet") == b"rows"
    else:
        trash.purge_dropped(storage, keep=timedelta(0))
        assert storage.files_below("") == ()


def test_a_table_that_was_used_again_after_its_drop_is_not_deleted(storage: Storage):
    """Earlier versions ignored on a disk that a store had dropped a table in place."""
    make_table(storage, A)
    log_files.note_drop(storage, A, {"when": "20260101T000000.000000Z"})
    write_lines(
        storage,
        1,
        {"commitInfo": {"timestamp": 1_790_000_000_000}},
        log=f"{A.table_path}/_delta_log",
    )
    trash.purge_dropped(storage, keep=timedelta(days=7))
    assert content(storage, A) == "rows"


def test_dropping_nothing_leaves_nothing(any_storage: Storage):
    assert not trash.drop_table(any_storage, A, Identity(A, "1"))
    assert any_storage.files_below("") == ()
    assert trash.dropped_tables(any_storage) == []


def test_a_table_of_the_same_incarnation_is_restored_before_one_of_the_same_name(
    any_storage: Storage,
):
    make_table(any_storage, A, "mine")
    keep(any_storage, A, "mine")
    trash.drop_table(any_storage, A, Identity(A, "mine"))
    make_table(any_storage, B, "of the name")
    keep(any_storage, B, "first", "of the name")
    trash.drop_table(any_storage, B, Identity(B, "another"))
    renamed = Identity(B, "mine", A)
    assert trash.was_renamed(any_storage, renamed)
    assert not trash.was_renamed(any_storage, Identity(B, "mine"))
    assert not trash.was_renamed(any_storage, Identity(B, "a third", A))
    assert trash.restore_dropped(any_storage, renamed)
    assert content(any_storage, B) == "mine"
    assert (kept(any_storage, A), kept(any_storage, B)) == (NOTHING, kept_as("mine"))
    assert not trash.was_renamed(any_storage, renamed)
    assert [dropped.identity for dropped in trash.dropped_tables(any_storage)] == [
        Identity(B, "another", B)
    ]


def test_the_last_of_several_dropped_tables_is_restored(storage: Storage):
    for number in range(3):
        make_table(storage, A, f"rows {number}")
        trash.drop_table(storage, A, Identity(A, f"life {number}") if number else None)
    make_table(storage, B, "other")
    trash.drop_table(storage, B, None)
    assert [d.table.name for d in trash.dropped_tables(storage)] == ["b", "a", "a", "a"]
    assert trash.restore_dropped(storage, Identity(A, "a new life"))
    assert content(storage, A) == "rows 2"
    assert trash.restore_dropped(storage, Identity(TableName(None, "c"), "life 1", A))
    assert content(storage, TableName(None, "c")) == "rows 1"
    assert len(trash.dropped_tables(storage)) == 2


def test_an_existing_table_is_never_replaced_by_a_restore(storage: Storage):
    make_table(storage, A, "old")
    trash.drop_table(storage, A, Identity(A, "1"))
    make_table(storage, A, "new")
    assert not trash.restore_dropped(storage, Identity(A, "1"))
    with pytest.raises(UsageError, match="A table a exists again"):
        trash.undrop(storage, A)
    assert content(storage, A) == "new"
    assert len(trash.dropped_tables(storage)) == 1


def test_a_new_table_can_have_the_path_of_a_dropped_one(any_storage: Storage):
    make_table(any_storage, A, "old")
    trash.drop_table(any_storage, A, Identity(A, "1"))
    trash.make_room(any_storage, A)
    make_table(any_storage, A, "new")
    keep(any_storage, A, "new")
    assert content(any_storage, A) == "new"
    (dropped,) = trash.dropped_tables(any_storage)
    assert any_storage.read(f"{dropped.path}/part.parquet") == b"old"
    assert trash.restore_dropped(any_storage, Identity(B, "1", A))
    assert content(any_storage, B) == "old"
    assert (kept(any_storage, A), kept(any_storage, B)) == (kept_as("new"), NOTHING)


@pytest.mark.parametrize("table", [A, IN_SCHEMA], ids=str)
def test_undrop_brings_folder_keys_and_identity_back(any_storage: Storage, table: TableName):
    make_table(any_storage, table)
    trash.drop_table(any_storage, table, Identity(table, "1", B))
    trash.undrop(any_storage, table)
    assert content(any_storage, table) == "rows"
    assert read_identity(any_storage, table) == Identity(table, "1", B)
    assert read_metadata(any_storage, table).keys == ("id",)
    with pytest.raises(TableNotFoundError, match=f"There is no dropped table {table}"):
        trash.undrop(any_storage, table)


def test_a_cycle_after_undrop_does_not_report_the_files_of_earlier_cycles(any_storage: Storage):
    identity = Identity(A, "1", A)
    note = {"incarnation": "1", "first": 1, "last": 3, "total_rows": 7}
    make_mirrored(any_storage, identity, note)
    trash.drop_table(any_storage, A, identity)
    save_states(any_storage, {})
    trash.undrop(any_storage, A)
    (line,) = Engine(any_storage, lambda: pytest.fail("Spark was asked for")).run_cycle().tables
    assert (line.last_file, line.rows, line.error) == (3, 7, None)
    assert (line.applied_files, line.applied_rows) == (0, 0)


def test_undrop_without_an_identity(any_storage: Storage):
    make_table(any_storage, A)
    trash.drop_table(any_storage, A, None)
    trash.undrop(any_storage, A)
    assert (content(any_storage, A), read_identity(any_storage, A)) == ("rows", None)


def test_only_what_was_dropped_long_ago_is_purged(any_storage: Storage):
    now = datetime.now(timezone.utc)
    for days in (8, 6.9, 0):
        stamp = (now - timedelta(days=days)).strftime("%Y%m%dT%H%M%S.%fZ")
        any_storage.write(f"{DROPPED}/a/{stamp}/table/f", b"")
        any_storage.write_json(
            f"{DROPPED}/a/{stamp}/identity.json", {"incarnation": "1", "origin": "a"}
        )
    trash.purge_dropped(any_storage, keep=timedelta(days=7))
    ages = [
        (now - dropped.when).total_seconds() / 86_400
        for dropped in trash.dropped_tables(any_storage)
    ]
    assert ages == pytest.approx([0, 6.9], abs=0.01)
    assert len(any_storage.files_below(DROPPED)) == 4
    trash.purge_dropped(any_storage, keep=timedelta(0))
    assert any_storage.files_below("") == ()


def no_spark():
    raise AssertionError("Spark was asked for")


def engine(storage: Storage, **options: float) -> Engine:
    return Engine(storage, no_spark, MirrorOptions(**options))  # type: ignore[arg-type]


def test_a_cycle_purges_even_if_it_drops_nothing(any_storage: Storage):
    make_table(any_storage, A)
    trash.drop_table(any_storage, A, None)
    engine(any_storage).run_cycle()
    assert len(trash.dropped_tables(any_storage)) == 1
    engine(any_storage, keep_dropped_days=0).run_cycle()
    assert any_storage.files_below(DROPPED) == ()


def states_of(*lives: tuple[TableName, str]) -> dict[str, TableState]:
    return {t.folder: TableState(t.schema, t.name, incarnation=life) for t, life in lives}


def test_a_folder_that_is_gone_drops_its_table_and_no_other(any_storage: Storage):
    for table in (A, B):
        make_table(any_storage, table)
        keep(any_storage, table, "kept")
    any_storage.write("Tables/c/_delta_log/00000000000000000000.json", b'{"metaData":{"id":"x"}}')
    nobodys = TableName(None, "c")
    states = states_of((A, "1"), (B, "2"), (nobodys, "3"))
    assert trash.follow_folders(any_storage, states, [B]) == ([A], [])
    assert list(states) == [B.folder]
    assert (content(any_storage, A), content(any_storage, B)) == (None, "rows")
    assert kept(any_storage, A) == kept(any_storage, B) == kept_as("kept")  # if it is restored
    assert any_storage.files_below("Tables/c") != ()


def copy_identity(storage: Storage, source: Identity, *tables: TableName) -> None:
    for table in tables:
        write_identity(storage, Identity(table, source.incarnation, A), make_folder=True)


def test_a_renamed_folder_takes_its_table_along(any_storage: Storage):
    make_table(any_storage, A)
    keep(any_storage, A, "one", "two")
    keep(any_storage, IN_SCHEMA, "of", "an", "earlier table")
    states = states_of((A, "1"))
    copy_identity(any_storage, Identity(A, "1"), IN_SCHEMA)
    assert trash.follow_folders(any_storage, states, [IN_SCHEMA]) == ([], [])
    assert (kept(any_storage, A), kept(any_storage, IN_SCHEMA)) == (NOTHING, kept_as("one", "two"))
    assert (content(any_storage, A), content(any_storage, IN_SCHEMA)) == (None, "rows")
    assert [state.table for state in states.values()] == [IN_SCHEMA]
    assert read_identity(any_storage, IN_SCHEMA) == Identity(IN_SCHEMA, "1", A)


def test_copies_live_on_their_own_even_of_a_folder_just_renamed(any_storage: Storage):
    copy = TableName(None, "copy")
    make_table(any_storage, A)
    copy_identity(any_storage, Identity(A, "1"), A, copy)
    states = states_of((A, "1"))
    trash.follow_folders(any_storage, states, [A, copy])
    assert read_identity(any_storage, A) == Identity(A, "1")
    own = read_identity(any_storage, copy)
    assert own is not None
    assert (own.origin, own.incarnation != "1") == (None, True)
    later = TableName(None, "later")
    any_storage.delete_folder(A.folder)
    copy_identity(any_storage, Identity(A, "1"), B, later)
    trash.follow_folders(any_storage, states, [B, copy, later])
    assert content(any_storage, B) == "rows"
    lives = [read_identity(any_storage, table) for table in (B, copy, later)]
    assert len({life.incarnation for life in lives if life}) == 3
    assert lives[0] == Identity(B, "1", A)


def test_a_copy_lives_on_its_own_if_the_state_of_its_original_was_not_saved(any_storage: Storage):
    copy_identity(any_storage, Identity(A, "1"), A, B)
    states = {A.folder: TableState(A.schema, A.name)}
    trash.follow_folders(any_storage, states, [A, B])
    own = read_identity(any_storage, B)
    assert own is not None
    assert (own.origin, own.incarnation != "1") == (None, True)


def test_copies_of_a_renamed_folder_without_a_table_are_copies_too(any_storage: Storage):
    states = states_of((A, "1"))
    copy_identity(any_storage, Identity(A, "1"), B, IN_SCHEMA)
    assert trash.follow_folders(any_storage, states, [B, IN_SCHEMA]) == ([], [])
    assert [state.table for state in states.values()] == [B]
    assert read_identity(any_storage, B) == Identity(B, "1", A)
    own = read_identity(any_storage, IN_SCHEMA)
    assert own is not None
    assert (own.origin, own.incarnation != "1") == (None, True)


def test_lost_states_are_rebuilt_from_the_logs_even_for_a_single_table(any_storage: Storage):
    make_table(any_storage, A, life="1")
    make_table(any_storage, IN_SCHEMA, life="2")
    any_storage.write("Tables/c/_delta_log/00000000000000000000.json", b'{"metaData":{"id":"x"}}')
    found = ledger.rebuild_states(any_storage, [A, IN_SCHEMA, TableName(None, "c")])
    lives = {folder: (state.incarnation, state.version) for folder, state in found.items()}
    assert lives == {A.folder: ("1", 0), IN_SCHEMA.folder: ("2", 0)}
    any_storage.write(f"{B.folder}/_metadata.json", b"{}")
    engine(any_storage).run_cycle(B)
    assert set(load_states(any_storage) or {}) == {A.folder, IN_SCHEMA.folder, B.folder}
    assert engine(any_storage).run_cycle().dropped == ("a", "s.`a.b`")


BROKEN = ["", "{", "[]", '{"format": 2}', '{"format": 2, "tables": [1]}']
BROKEN += ['{"format": 2, "tables": {"x": {"y": 1}}}', "\xff"]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_cache_of_states_is_as_good_as_none(any_storage: Storage, broken: str):
    any_storage.write("Files/_mirrorlake/state.json", broken.encode("latin-1"))
    assert load_states(any_storage) is None
    assert engine(any_storage).run_cycle().tables == ()
    assert load_states(any_storage) == {}
