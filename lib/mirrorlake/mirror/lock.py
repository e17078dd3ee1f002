"""One mirror at a time on this machine's disk. Plans and commits are correct without it, too.

Object stores have no such lock; two mirrors there only do some work twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timezone

from mirrorlake.errors import BusyError
from mirrorlake.names import STATE
from mirrorlake.storage import Storage

_log = logging.getLogger(__name__)
_PAUSE = 0.1


@contextlib.contextmanager
def only_mirror(storage: Storage, patience: float | None) -> Iterator[None]:
    """Waits until no other mirror works on the lake, then keeps others waiting.

    Args:
        storage: the lake's files.
        patience: how many seconds to wait; None does without the lock.

    Raises:
        BusyError: another mirror went on for too long; says which one.
    """
    with only_one(storage, f"{STATE}/mirror.lock", patience, "mirror of this lake"):
        yield


@contextlib.contextmanager
def only_one(storage: Storage, lock_path: str, patience: float | None, what: str) -> Iterator[None]:
    """Keeps a lock on this machine's disk while something is done that others wait for.

    Args:
        storage: the lake's files.
        lock_path: the lock's file.
        patience: how many seconds to wait; None does without the lock.
        what: who holds such a lock, in messages.

    Raises:
        BusyError: another one went on for too long; says which one.
    """
    if storage.local is None or patience is None:
        yield
        return
    path = storage.local / lock_path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        deadline, told = time.monotonic() + patience, False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _holder(path.read_text())
                if time.monotonic() >= deadline:
                    raise BusyError(
                        f"Another {what} is at work: {holder}.",
                        hint="wait for it, or stop it; nothing is lost either way.",
                    ) from None
                if not told:
                    _log.warning(f"waiting for another {what}: {holder} …")
                    told = True
                time.sleep(_PAUSE)
        lock.truncate(0)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        lock.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}))
        lock.flush()
        yield


def _holder(text: str) -> str:
    try:
        known = json.loads(text)
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except (ValueError, KeyError, TypeError):
        return "an unknown process"
