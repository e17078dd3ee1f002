"""State documents: when they are divided and written, and what is left after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.places import STATE
from mirrorlake.errors import FormatError
from mirrorlake.mirror import state
from mirrorlake.mirror.engine import Engine
from mirrorlake.mirror.state import Shard, TableState, load_states, save_states
from mirrorlake.storage.files import Storage

States = dict[str, TableState]


def folder(number: int) -> str:
    return f"Files/LandingZone/t{number}"


def states_of(count: int, rows: int = 1) -> States:
    return {folder(n): TableState(None, f"t{n}", rows=rows, latency=0.25) for n in range(count)}


def documents(storage: Storage) -> list[str]:
    return [e.name for e in storage.list(STATE).files if e.name.startswith("state")]


class Killed(Exception):
    pass


class Dying(Storage):
    """A store that raises an error before one of its writes or deletions."""

    def __init__(self, root: str, after: int) -> None:
        super().__init__(root)
        self._left = after

    def _act(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def write(self, path: str, data: bytes) -> None:
        self._act()
        super().write(path, data)

    def delete(self, path: str) -> None:
        self._act()
        super().delete(path)


@pytest.mark.parametrize(
    ("tables", "count"),
    [
        (0, 1),
        (state.TABLES, 1),
        (state.TABLES + 1, 2),
        (5 * state.TABLES, 8),
        pytest.param(9_000, state.MOST, marks=pytest.mark.long),
    ],
)
def test_many_tables_are_in_several_documents(storage: Storage, tables: int, count: int) -> None:
    states = states_of(tables)
    save_states(storage, states)
    found = documents(storage)
    assert len(found) == count
    assert found == ["state.json"] or set(found) == {
        f"state-{n}-of-{count}.json" for n in range(1, count + 1)
    }
    assert load_states(storage) == states
    told = storage.read_json("Files/Monitoring/tables.json") or {}
    assert len(told["tables"]) == tables


def test_only_documents_with_changes_are_written(any_storage: Storage) -> None:
    states = states_of(200)
    mirror = state.StateDocuments(any_storage)
    assert mirror.load() is None
    mirror.save(states)
    assert mirror.load() == states
    names = documents(any_storage)
    assert len(names) == 4
    for name in names:
        any_storage.delete(f"{STATE}/{name}")  # written documents exist again
    states[folder(7)] = replace(states[folder(7)], rows=9)
    mirror.save(states)
    (written,) = documents(any_storage)
    kept = any_storage.read_json(f"{STATE}/{written}") or {}
    assert kept["format"] == state.FORMAT
    assert kept["tables"][folder(7)]["rows"] == 9


def test_from_one_document_to_several_and_back(any_storage: Storage) -> None:
    few, many = states_of(state.TABLES), states_of(3 * state.TABLES)
    save_states(any_storage, few)
    assert documents(any_storage) == ["state.json"]
    save_states(any_storage, many)
    assert len(documents(any_storage)) == 4
    assert load_states(any_storage) == many
    some = states_of(2 * state.TABLES)
    save_states(any_storage, some)
    assert len(documents(any_storage)) == 4  # the number changes only with large changes
    assert load_states(any_storage) == some
    save_states(any_storage, few)
    assert documents(any_storage) == ["state.json"]
    assert load_states(any_storage) == few


@pytest.mark.parametrize(
    "tables", [(state.TABLES, 3 * state.TABLES), (3 * state.TABLES, state.TABLES)]
)
def test_a_kill_at_any_moment_loses_no_state(tmp_path: Path, tables: tuple[int, int]) -> None:
    before, later = (states_of(count, rows) for count, rows in zip(tables, (1, 2), strict=True))
    for after in range(12):
        root = str(tmp_path / str(after))
        save_states(Storage(root), before)
        try:
            save_states(Dying(root, after), later)
        except Killed:
            found = state.StateDocuments(Storage(root)).load()
            assert found is not None
            assert set(found) >= before.keys() & later.keys()
            assert all(kept in (before.get(f), later.get(f)) for f, kept in found.items())
        save_states(Storage(root), later)
        assert load_states(Storage(root)) == later


def test_a_first_save_that_was_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    root = str(tmp_path)
    with pytest.raises(Killed):
        save_states(Dying(root, 2), states_of(200))
    storage = Storage(root)
    assert len(documents(storage)) == 2
    assert state.StateDocuments(storage).load() is None  # the logs are read
    Engine(storage, lambda: pytest.fail("no")).close()
    assert len(documents(storage)) == 2
    assert load_states(storage) is not None  # status reads the incomplete documents


def rows_of(states: States) -> list[tuple[str, int]]:
    """Return the rows by table; pytest compares two dicts of this size for a minute."""
    return sorted((folder, kept.rows) for folder, kept in states.items())


def rows_until(states: States, shard: int) -> list[tuple[str, int]]:
    """Return the rows after all shards before this one have saved their states."""
    shares = {f: next(n for n in (1, 2, 3) if Shard(n, 3).has(f)) for f in states}
    return sorted((f, n + 1 if n < shard else 1) for f, n in shares.items())


def test_shards_divide_several_documents(any_storage: Storage) -> None:
    states = states_of(300)
    save_states(any_storage, states)
    assert len(documents(any_storage)) == 8
    for n in (1, 2, 3):  # three shards do not align with eight documents
        found = state.StateDocuments(any_storage, Shard(n, 3)).load() or {}
        assert rows_of(found) == rows_until(states, n)
        later = {f: replace(s, rows=n + 1) for f, s in found.items()}
        state.StateDocuments(any_storage, Shard(n, 3)).save(later)
    found = load_states(any_storage) or {}
    assert rows_of(found) == rows_until(states, 4)
    save_states(any_storage, found)
    assert len(documents(any_storage)) == 8
    assert load_states(any_storage) == found


def test_a_shard_of_many_tables_has_several_documents(storage: Storage) -> None:
    states = states_of(400)
    for n in (1, 2):
        state.StateDocuments(storage, Shard(n, 2)).save(states)
    assert set(documents(storage)) == {f"state-{n}-of-8.json" for n in range(1, 9)}
    assert load_states(storage) == state.StateDocuments(storage, Shard(2, 2)).load() == states
    state.StateDocuments(storage, Shard(1, 2)).save(states_of(40))
    assert "state-1-of-2.json" in documents(storage)
    assert set(documents(storage)) & {f"state-{n}-of-8.json" for n in (1, 3, 5, 7)} == set()


def test_a_shard_that_has_read_nothing_reports_all_tables(any_storage: Storage) -> None:
    states = states_of(40)
    for n in (1, 2, 3):
        state.StateDocuments(any_storage, Shard(n, 3)).save(states)
    told = any_storage.read_json("Files/Monitoring/tables.json") or {}
    assert len(told["tables"]) == 40


def test_one_newer_document_of_several_is_refused(any_storage: Storage) -> None:
    save_states(any_storage, states_of(200))
    path = f"{STATE}/state-2-of-4.json"
    any_storage.write_json(path, {"format": state.FORMAT + 1, "tables": {}})
    with pytest.raises(FormatError, match=r"state-2-of-4.json has format 3.*reads at most 2"):
        Engine(any_storage, lambda: pytest.fail("no")).run_cycle()
    assert any_storage.read_json(path) == {"format": state.FORMAT + 1, "tables": {}}
    any_storage.write(path, b"{")
    assert state.StateDocuments(any_storage).load() is None


def test_other_files_are_no_documents(storage: Storage) -> None:
    save_states(storage, states_of(1))
    for name in ("state-1-of-1.json", "state-9-of-8.json", "state-x.json", "states.json"):
        storage.write(f"{STATE}/{name}", b'{"format": 9}')
    save_states(storage, states_of(200))
    assert load_states(storage) == states_of(200)
    assert "state-1-of-1.json" in documents(storage)
