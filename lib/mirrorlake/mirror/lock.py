"""One mirror of a lake at a time, and one partitioning of a table: others wait politely.

Mirrors of different shards work side by side. Each has a lease of its own, and none begins while
somebody has the whole lake's; who wants that one waits until no shard's is held.

Plans and commits are correct without it, too: two mirrors only do some work twice. See `lease`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from mirrorlake.errors import BusyError
from mirrorlake.lease import Lease, LeaseHeldError, is_held
from mirrorlake.mirror.shards import ALL, Shard
from mirrorlake.names import STATE
from mirrorlake.storage import Storage

_log = logging.getLogger(__name__)
_WHOLE = f"{STATE}/mirror.lock"
_PART, _ENDING = "mirror-", ".lock"  # around a shard's label
_PAUSE = 0.1
_LONGEST = 2.0  # seconds: to ask a store costs a few requests


@contextlib.contextmanager
def only_mirror(storage: Storage, patience: float | None, shard: Shard = ALL) -> Iterator[None]:
    """Waits until no other mirror works on the lake, then keeps others waiting.

    Args:
        storage: the lake's files.
        patience: how many seconds to wait; None does without the lease.
        shard: the mirror's share of the tables; mirrors of others may work meanwhile.

    Raises:
        BusyError: another mirror went on for too long; says which one.
    """
    if patience is None:
        yield
        return
    deadline = time.monotonic() + patience
    what, path = "mirror of this lake", _WHOLE
    if shard != ALL:
        what, path = f"{what}'s shard {shard}", f"{STATE}/{_PART}{shard.label}{_ENDING}"
    while True:
        left = max(0.0, deadline - time.monotonic())
        with only_one(storage, path, left, what):
            if shard == ALL:
                _await_shards(storage, deadline)
            if shard == ALL or not is_held(storage, _WHOLE):
                yield
                return
        # Not both wait for each other: the shard's mirror steps back.
        if time.monotonic() >= deadline:
            raise _busy("mirror of this lake", "it has all tables")
        time.sleep(_PAUSE)


def _await_shards(storage: Storage, deadline: float) -> None:
    """Waits until no mirror of a shard is at work; none begins while the lake's lease is held."""
    names = (entry.name for entry in storage.list(STATE).files)
    for name in (n for n in names if n.startswith(_PART) and n.endswith(_ENDING)):
        while is_held(storage, f"{STATE}/{name}"):
            if time.monotonic() >= deadline:
                shard = name[len(_PART) : -len(_ENDING)].replace("-of-", "/")
                raise _busy("mirror of this lake", f"that of shard {shard}")
            time.sleep(_PAUSE)


def _busy(what: str, holder: str) -> BusyError:
    return BusyError(
        f"Another {what} is at work: {holder}.",
        hint="wait for it, or stop it; nothing is lost either way.",
    )


@contextlib.contextmanager
def only_one(storage: Storage, path: str, patience: float, what: str) -> Iterator[Lease]:
    """Keeps a lease while something is done that others wait for.

    Args:
        storage: the lake's files.
        path: the lease's file.
        patience: how many seconds to wait.
        what: who holds such a lease, in messages.

    Raises:
        BusyError: another one went on for too long; says which one.
    """
    deadline, pause, told = time.monotonic() + patience, _PAUSE, False
    while True:
        lease = Lease(storage, path, what, keep_file=True)
        try:
            lease.__enter__()
            break
        except LeaseHeldError as held:
            if time.monotonic() >= deadline:
                raise _busy(what, held.holder) from None
            if not told:
                _log.warning(f"waiting for another {what}: {held.holder} …")
                told = True
            time.sleep(pause)
            pause = pause if storage.local is not None else min(2 * pause, _LONGEST)
    try:
        yield lease
    finally:
        lease.__exit__(None, None, None)
