"""A lease: one holder at a time of something in a lake, on disks and on object stores.

On this machine's disk it is a lock of the operating system, which ends with its holder. On an
object store it is a file that is created if absent, renewed by its holder, and taken over by a
conditional write once it was not renewed for too long. Age is by the store's own clock.

A holder on an object store may be stopped for longer than that, and go on. `confirm` asks whether
it still is the holder; what must not happen twice needs a fence of its own besides.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from mirrorlake.errors import BusyError
from mirrorlake.storage.files import Storage
from mirrorlake.storage.object_stores import Seen

_log = logging.getLogger(__name__)
TTL = 30.0  # seconds without renewal, after which a lease on an object store is anybody's
PAUSE = 0.1  # seconds between two tries to take a lease
_LONGEST = 2.0  # seconds: to ask a store costs a few requests


class LeaseHeldError(BusyError):
    """Somebody else holds the lease.

    Attributes:
        holder: which process, for messages.
    """

    def __init__(self, what: str, holder: str) -> None:
        super().__init__(
            f"{what} runs already: {holder}.", hint="wait for it, or stop that process."
        )
        self.holder = holder


class Lease:
    """Holds a lease while a `with` block runs.

    Args:
        storage: where the lease lies.
        path: its file.
        what: what the holder does, in messages.
        ttl: seconds without renewal, after which it is anybody's; on object stores only.
        keep_file: leaves the file on a local disk, where processes of earlier versions wait for it.

    Example:
        >>> with Lease(storage, "Files/_mirrorlake/x.lease", "mirror"):  # doctest: +SKIP
        ...     work()
    """

    def __init__(
        self, storage: Storage, path: str, what: str, *, ttl: float = TTL, keep_file: bool = False
    ) -> None:
        self.storage, self.path, self.what, self.ttl = storage, path, what, ttl
        self._keep_file = keep_file
        self._holder = {
            "what": what,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "id": uuid.uuid4().hex,
        }
        self._stack = contextlib.ExitStack()
        self._renewing = threading.Lock()
        self._seen: Seen | None = None
        self.lost = False

    def __enter__(self) -> Lease:
        """Takes the lease.

        Raises:
            LeaseHeldError: somebody else has it; says who.
        """
        local = self.storage.local
        self._stack.enter_context(self._remote() if local is None else self._locked(local))
        return self

    def __exit__(self, *_error: object) -> None:
        """Gives it back: no file of it is left."""
        self._stack.close()

    def confirm(self) -> None:
        """Asks whether this still is the holder, and renews the lease.

        Raises:
            LeaseHeldError: it was not renewed for too long, and somebody else has taken it.
        """
        if self.storage.local is None:
            self._renew()
            if self.lost:
                found = self.storage.look_at(self.path)
                holder = "another process" if found is None else name_holder(found[0].decode())
                raise LeaseHeldError(self.what, holder)

    @contextlib.contextmanager
    def _locked(self, root: Path) -> Iterator[None]:
        import fcntl  # Unix only

        target = root / self.path
        made = _make_folders(target.parent)
        while True:
            lock = target.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = target.read_text(encoding="utf-8") if target.exists() else ""
                lock.close()
                raise LeaseHeldError(self.what, name_holder(text)) from None
            if _is_same(lock.fileno(), target):
                break
            lock.close()  # its last holder has just taken the file away
        with lock:
            lock.truncate(0)
            lock.write(json.dumps(self._holder))
            lock.flush()
            try:
                yield
            finally:
                if not self._keep_file:
                    target.unlink(missing_ok=True)
                    for folder in made:
                        with contextlib.suppress(OSError):  # somebody else uses it now
                            folder.rmdir()

    @contextlib.contextmanager
    def _remote(self) -> Iterator[None]:
        self._seen = self._take()
        done = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(done,), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()
            try:
                found = self.storage.look_at(self.path)
                if found is not None and found[0] == self._data():
                    self.storage.delete(self.path)
            except Exception as error:  # what was done under the lease is done all the same
                _log.warning("the lease %s stays for %d s: %s", self.path, self.ttl, error)

    def _take(self) -> Seen:
        """Creates the file, or takes over one that nobody renews."""
        while True:
            if (made := self.storage.replace(self.path, self._data(), None)) is not None:
                return made
            found = self.storage.look_at(self.path)
            if found is not None:
                break
        text, seen = found
        if (
            not _is_over(self.storage, self.path, seen, self.ttl)
            or (made := self.storage.replace(self.path, self._data(), seen)) is None
        ):  # another one was quicker
            raise LeaseHeldError(self.what, name_holder(text.decode(errors="replace")))
        return made

    def _keep(self, done: threading.Event) -> None:
        while not self.lost and not done.wait(self.ttl / 3):
            try:
                self._renew()
            except Exception:  # noqa: S112 - a store out of reach: the next try may reach it
                continue

    def _renew(self) -> None:
        with self._renewing:
            if not self.lost:
                seen = self.storage.replace(self.path, self._data(), self._seen)
                self._seen, self.lost = seen or self._seen, seen is None

    def _data(self) -> bytes:
        return json.dumps(self._holder).encode()


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
    deadline, pause, told = time.monotonic() + patience, PAUSE, False
    with contextlib.ExitStack() as held:
        while True:
            try:
                lease = held.enter_context(Lease(storage, path, what, keep_file=True))
                break
            except LeaseHeldError as error:
                if time.monotonic() >= deadline:
                    raise busy(what, error.holder) from None
                if not told:
                    _log.warning(f"waiting for another {what}: {error.holder} …")
                    told = True
                time.sleep(pause)
                pause = pause if storage.local is not None else min(2 * pause, _LONGEST)
        yield lease


def busy(what: str, holder: str) -> BusyError:
    """What is said where another one went on for too long."""
    return BusyError(
        f"Another {what} is at work: {holder}.",
        hint="wait for it, or stop it; nothing is lost either way.",
    )


def is_held(storage: Storage, path: str) -> bool:
    """Return whether somebody holds a lease now, by its file."""
    import fcntl  # Unix only

    if storage.local is None:
        found = storage.look_at(path)
        return found is not None and not _is_over(storage, path, found[1], TTL)
    try:
        with (storage.local / path).open("r", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def name_holder(text: str) -> str:
    """Who holds a lease or a lock, by what its file says."""
    try:
        known = json.loads(text)
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process, which has just begun"


def store_now(storage: Storage, beside: str) -> datetime:
    """What time it is for a store, by a file that is written and taken away.

    Args:
        storage: the store.
        beside: a path; the file is made next to it.
    """
    probe = f"{beside}.clock-{uuid.uuid4().hex}"
    storage.write(probe, b"")
    try:
        found = storage.stat(probe)
        return found.modified if found else datetime.now(timezone.utc)
    finally:
        storage.delete(probe)


def _is_over(storage: Storage, path: str, seen: Seen, ttl: float) -> bool:
    """Whether a lease was not renewed for too long, by the store's clock."""
    if seen.modified is None:
        return False
    return (store_now(storage, path) - seen.modified).total_seconds() >= ttl


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _make_folders(folder: Path) -> list[Path]:
    """Makes a folder; those that had to be made, the innermost first."""
    made = []
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            one.mkdir()
            made.append(one)
    return made[::-1]
