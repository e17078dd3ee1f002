"""Several mirrors of one lake: the tables of each shard, and the state that each one stores."""

from __future__ import annotations

import json
from collections import Counter
from threading import Event, Thread

import pytest

from helpers.lakes import lake_of
from helpers.places import STATE
from mirrorlake import MirrorOptions
from mirrorlake.errors import BusyError, UsageError
from mirrorlake.landing.metadata import Identity, read_identity, write_identity
from mirrorlake.mirror import state
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.state import Shard, TableState, load_states, save_states
from mirrorlake.names import TableName
from mirrorlake.storage.files import Storage

NAMES = [f"t{number}" for number in range(24)]
SHARDS = [Shard(number, 3) for number in (1, 2, 3)]
ORDERS = 5


def folder(name: str) -> str:
    return TableName(None, name).folder


def name_in(shard: Shard, *but: str) -> str:
    return next(n for n in NAMES if shard.has(folder(n)) and n not in but)


def cycle(storage: Storage, shard: Shard | None = None) -> list[str]:
    """Run one cycle of a mirror and return its tables."""
    options = MirrorOptions(shard=None if shard is None else str(shard))
    report = Engine(storage, lambda: pytest.fail("Spark was asked for"), options).run_cycle()
    assert not report.failed
    return [table.name for table in report.tables]


def declare(storage: Storage, *names: str) -> None:
    for name in names:
        storage.write_json(f"{folder(name)}/_metadata.json", {"keyColumns": ["id"]})


def make_table(storage: Storage, name: str, life: str) -> None:
    """Create a mirrored table and its folder."""
    schema = {
        "type": "struct",
        "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
    }
    properties = {"mirrorlake.keys": '["id"]', "mirrorlake.incarnation": life}
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": life,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": properties,
            }
        },
    ]
    log = "".join(f"{json.dumps(action)}\n" for action in actions)
    storage.write(f"Tables/{name}/_delta_log/{0:020d}.json", log.encode())
    declare(storage, name)
    write_identity(storage, Identity(TableName(None, name), life))


@pytest.mark.parametrize("text", ["2", "0/3", "4/3", "1/0", "1/3/5", "-1/3", " 1/3", "a/b", ""])
def test_an_invalid_shard_is_rejected(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Shard.parse(text)
    assert "2/8" in caught.value.hint or "8/8" in caught.value.hint


def test_a_table_is_in_one_shard_whatever_process_asks() -> None:
    names = [folder(f"table {number}") for number in range(8000)]
    shares = Counter(next(n for n in range(1, 9) if Shard(n, 8).has(name)) for name in names)
    assert sum(shares.values()) == len(names)
    assert all(900 < shares[n] < 1100 for n in range(1, 9))
    # Shards must never change: two versions would mirror one table twice, or not at all.
    assert [n for n in range(1, 9) if Shard(n, 8).has(folder("orders"))] == [ORDERS]
    assert Shard.of_label(Shard(2, 8).label) == Shard.parse("2/8") == Shard(2, 8)
    assert Shard.of_label("9-of-8") is Shard.of_label("x") is None


def test_each_mirror_has_its_share_and_status_has_all(any_storage: Storage) -> None:
    declare(any_storage, *NAMES)
    seen = [cycle(any_storage, shard) for shard in SHARDS]
    assert sorted(name for some in seen for name in some) == sorted(NAMES)
    assert all(seen)
    files = [entry.name for entry in any_storage.list("Files/_mirrorlake").files]
    assert sorted(n for n in files if n.startswith("state")) == [
        f"state-{n}-of-3.json" for n in (1, 2, 3)
    ]
    assert set(load_states(any_storage) or {}) == {folder(name) for name in NAMES}
    assert {line.name for line in lake_of(any_storage).status().tables} == set(NAMES)
    told = any_storage.read_json("Files/Monitoring/tables.json") or {}
    assert {entry["sourceTableName"] for entry in told["tables"]} == set(NAMES)
    planned = lake_of(any_storage).mirror(shard="1/3", dry_run=True).tables
    assert {one.name for one in planned} == set(seen[0])


def test_a_table_and_a_shard_exclude_each_other(any_storage: Storage) -> None:
    declare(any_storage, "t1")
    engine = Engine(any_storage, lambda: pytest.fail("no"), MirrorOptions(shard="1/3"))
    with pytest.raises(UsageError, match="A table and a shard exclude each other"):
        engine.run_cycle(TableName(None, "t1"))


def test_going_over_to_shards_and_back_loses_no_state(storage: Storage) -> None:
    rows = {folder(n): TableState(None, n, last_file=1, rows=1) for n in NAMES}
    save_states(storage, rows)
    for shard in SHARDS:
        assert state.StateDocuments(storage, shard).load() == (load_states(storage) or {})
        later = {f: TableState(None, s.name, last_file=2, rows=2) for f, s in rows.items()}
        state.StateDocuments(storage, shard).save(later)
    assert {kept.rows for kept in (load_states(storage) or {}).values()} == {2}
    gone = name_in(SHARDS[0])
    del later[folder(gone)]
    state.StateDocuments(storage, SHARDS[0]).save(later)
    assert folder(gone) not in (load_states(storage) or {})  # an older document has it
    four = Shard(1, 4)
    state.StateDocuments(storage, four).save(load_states(storage) or {})
    assert set(load_states(storage) or {}) == set(later)
    save_states(storage, rows)
    assert load_states(storage) == state.StateDocuments(storage, four).load() == rows


def test_a_shard_without_a_document_reads_the_logs(storage: Storage) -> None:
    one, two = name_in(SHARDS[0]), name_in(SHARDS[1])
    make_table(storage, one, "1")
    make_table(storage, two, "2")
    cycle(storage, SHARDS[0])
    assert state.StateDocuments(storage, SHARDS[1]).load() is None
    storage.delete_folder(folder(two))
    report = Engine(storage, lambda: pytest.fail("no"), MirrorOptions(shard="2/3")).run_cycle()
    assert report.dropped == (two,)


def test_a_shard_drops_its_own_tables_and_no_others(any_storage: Storage) -> None:
    one, two = name_in(SHARDS[0]), name_in(SHARDS[1])
    make_table(any_storage, one, "1")
    make_table(any_storage, two, "2")
    for shard in SHARDS:
        cycle(any_storage, shard)
    any_storage.delete_folder(folder(one))
    any_storage.delete_folder(folder(two))

    def dropped(shard: Shard) -> tuple[str, ...]:
        options = MirrorOptions(shard=str(shard))
        return Engine(any_storage, lambda: pytest.fail("no"), options).run_cycle().dropped

    assert [dropped(shard) for shard in SHARDS] == [(one,), (two,), ()]
    assert [dropped(shard) for shard in SHARDS] == [(), (), ()]


@pytest.mark.parametrize("old_first", [True, False])
def test_a_folder_that_is_renamed_into_another_shard_takes_its_table_along(
    any_storage: Storage, old_first: bool
) -> None:
    old, new = name_in(SHARDS[0]), name_in(SHARDS[1])
    make_table(any_storage, old, "1")
    for shard in SHARDS:
        cycle(any_storage, shard)
    for path in any_storage.files_below(folder(old)):
        any_storage.rename(path, path.replace(folder(old), folder(new)))
    any_storage.delete_folder(folder(old))
    order = SHARDS if old_first else [SHARDS[1], SHARDS[0], SHARDS[2]]
    for _ in range(2):
        for shard in order:
            cycle(any_storage, shard)
    assert any_storage.exists(f"Tables/{new}/_delta_log/{0:020d}.json")
    assert not any_storage.files_below(f"Tables/{old}")
    found = read_identity(any_storage, TableName(None, new))
    assert found is not None
    assert (found.incarnation, found.origin) == ("1", TableName(None, old))
    assert set(load_states(any_storage) or {}) == {folder(new)}


def test_the_only_shard_has_all_tables_and_their_files(any_storage: Storage) -> None:
    assert Shard.parse("1/1") == Shard.parse(None) == state.ALL
    with state.mirror_lease(any_storage, 0, Shard(1, 1)):
        assert [entry.name for entry in any_storage.list(STATE).files] == ["mirror.lock"]
        with pytest.raises(BusyError, match="Another mirror of this lake is running"):
            state.mirror_lease(any_storage, 0).__enter__()
    declare(any_storage, *NAMES)
    assert cycle(any_storage, state.ALL) == cycle(any_storage) == sorted(NAMES)
    assert any_storage.exists(f"{STATE}/state.json")


def test_shards_run_concurrently_and_wait_for_a_mirror_of_all_tables(storage: Storage) -> None:
    one, two = Shard(1, 2), Shard(2, 2)
    with state.mirror_lease(storage, 1, one), state.mirror_lease(storage, 1, two):
        with pytest.raises(BusyError, match="of shard 1/2"), state.mirror_lease(storage, 0.2):
            pass
        with pytest.raises(BusyError, match="shard 1/2"), state.mirror_lease(storage, 0.2, one):
            pass
    refused = pytest.raises(BusyError, match="has all tables")
    with state.mirror_lease(storage, 1), refused, state.mirror_lease(storage, 0.2, two):
        pass
    with state.mirror_lease(storage, 1, two):
        pass


def test_a_mirror_of_all_tables_waits_for_shards(storage: Storage) -> None:
    began, got = Event(), Event()

    def whole() -> None:
        began.set()
        with state.mirror_lease(storage, 30):
            got.set()

    waiting = Thread(target=whole)
    with state.mirror_lease(storage, 1, Shard(1, 2)):
        waiting.start()
        assert began.wait(10)
        assert not got.wait(0.3)
    assert got.wait(30)
    waiting.join()
    with state.mirror_lease(storage, 30, Shard(1, 2)):
        pass
