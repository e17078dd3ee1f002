"""One mirror of a lake at a time, and one partitioning of a table: others wait politely.

Plans and commits are correct without it, too: two mirrors only do some work twice. See `lease`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from mirrorlake.errors import BusyError
from mirrorlake.lease import Lease, LeaseHeldError
from mirrorlake.names import STATE
from mirrorlake.storage import Storage

_log = logging.getLogger(__name__)
_PAUSE = 0.1
_LONGEST = 2.0  # seconds: to ask a store costs a few requests


@contextlib.contextmanager
def only_mirror(storage: Storage, patience: float | None) -> Iterator[None]:
    """Waits until no other mirror works on the lake, then keeps others waiting.

    Args:
        storage: the lake's files.
        patience: how many seconds to wait; None does without the lease.

    Raises:
        BusyError: another mirror went on for too long; says which one.
    """
    if patience is None:
        yield
        return
    with only_one(storage, f"{STATE}/mirror.lock", patience, "mirror of this lake"):
        yield


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
                raise BusyError(
                    f"Another {what} is at work: {held.holder}.",
                    hint="wait for it, or stop it; nothing is lost either way.",
                ) from None
            if not told:
                _log.warning(f"waiting for another {what}: {held.holder} …")
                told = True
            time.sleep(pause)
            pause = pause if storage.local is not None else min(2 * pause, _LONGEST)
    try:
        yield lease
    finally:
        lease.__exit__(None, None, None)
