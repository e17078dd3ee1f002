"""Planted bugs: copies of the library's decisions with one mistake each."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from helpers.places import TABLES
from mirrorlake.landing import zone
from mirrorlake.mirror import applied_files, engine, next_batch, state, trash
from mirrorlake.storage import files, lease
from mirrorlake_sources import engine as sources


def missing_plans(patch: pytest.MonkeyPatch) -> None:
    """Let a mirror ignore the plans of others."""
    patch.setattr(engine, "find_plan", lambda *_: None)

    def make(storage: Any, identity: Any, first: int, facts: Any, on_error: str) -> Any:
        made = next_batch._describe_files(storage, identity, facts)
        return next_batch.Plan(first, made, "2026-01-01T00:00:00+00:00", on_error)

    patch.setattr(engine, "make_plan", make)


def last_number_of_the_cache(patch: pytest.MonkeyPatch) -> None:
    """Let a mirror continue after the number in its state document, not after the log's."""
    load = next_batch.load_context

    def wrong(*args: Any) -> Any:
        at = load(*args)
        return replace(at, last=at.state.last_file) if at.state.last_file else at

    patch.setattr(engine, "load_context", wrong)


def names_that_overwrite(patch: pytest.MonkeyPatch) -> None:
    """Let a publisher overwrite a file with the same number."""

    def rename(storage: Any, source: str, target: str) -> bool:
        storage._store.rename(source, target)
        return True

    patch.setattr(files.Storage, "rename", rename)


def numbers_used_again(patch: pytest.MonkeyPatch) -> None:
    """Let a slow publisher keep a number whose file was applied and moved."""
    patch.setattr(zone, "_processed_batch", lambda *_: None)


def lost_tokens(patch: pytest.MonkeyPatch) -> None:
    """Let a publisher forget its tokens."""
    patch.setattr(zone.TokenIndex, "find", lambda *_: None)


def impatient_leases(patch: pytest.MonkeyPatch) -> None:
    """Let a process take over a lease at once."""
    patch.setattr(lease, "_is_over", lambda *_: True)


def leases_by_the_local_clock(patch: pytest.MonkeyPatch) -> None:
    """Let a process compare the time of a lease with its own clock."""
    patch.setattr(lease, "store_now", lambda *_: lease.datetime.now(lease.timezone.utc))


def greedy_moves(patch: pytest.MonkeyPatch) -> None:
    """Let a mirror also move the file after the applied ones."""
    move = applied_files.move_applied

    def wrong(storage: Any, identity: Any, folder: Any, plan: Any) -> None:
        after = folder.numbered.get(plan.last + 1)
        if after is not None:
            applied_files._move(storage, identity, plan.last + 1, after)
        move(storage, identity, folder, plan)

    patch.setattr(engine, "move_applied", wrong)


def early_sweep(patch: pytest.MonkeyPatch) -> None:
    """Let the sweep delete every numbered file of the folder."""

    def wrong(storage: Any, table: Any, **_: Any) -> None:
        for entry in storage.list(table.folder).files:
            if entry.name[:1].isdigit():
                storage.delete(f"{table.folder}/{entry.name}")

    patch.setattr(engine, "sweep", wrong)


def renamed_folders_begin_again(patch: pytest.MonkeyPatch) -> None:
    """Let each rename start a new incarnation."""
    patch.setattr(trash, "is_refilled", lambda *_: True)


def renames_that_move_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let a mirror follow a rename in its state document, but leave the table where it was."""
    move = files.Storage.move_folder

    def wrong(self: Any, source: str, *args: Any) -> bool:
        return source.startswith(TABLES) or move(self, source, *args)

    patch.setattr(files.Storage, "move_folder", wrong)


def forgotten_drops(patch: pytest.MonkeyPatch) -> None:
    """Let a mirror remove a dropped table from its state document, but keep the table."""
    patch.setattr(trash, "drop_table", lambda *_: True)


def stale_state_documents(patch: pytest.MonkeyPatch) -> None:
    """Let a mirror write no state document again."""
    write = state.StateDocuments._write

    def wrong(self: Any, states: Any) -> None:
        if not self._known:
            write(self, states)

    patch.setattr(state.StateDocuments, "_write", wrong)


def reseeds_beside_a_mirror(patch: pytest.MonkeyPatch) -> None:
    """Let a reseed begin during a cycle, which then moves the files of the new incarnation."""
    patch.setattr(applied_files, "mirror_lease", lambda *_: nullcontext())
    patch.setattr(applied_files, "read_identity", lambda *_: None)


def positions_without_tokens(patch: pytest.MonkeyPatch) -> None:
    """Let a source publish without tokens, so that a retry publishes a batch again."""

    def write(self: Any, rows: Any, *, token: str | None = None, **more: Any) -> Any:
        return self._publish(rows, None, None, more.get("footer"))

    patch.setattr(sources.Publisher, "write", write)


MUTANTS = (
    missing_plans,
    last_number_of_the_cache,
    names_that_overwrite,
    numbers_used_again,
    lost_tokens,
    impatient_leases,
    leases_by_the_local_clock,
    greedy_moves,
    early_sweep,
    renamed_folders_begin_again,
    renames_that_move_nothing,
    forgotten_drops,
    stale_state_documents,
    reseeds_beside_a_mirror,
    positions_without_tokens,
)
