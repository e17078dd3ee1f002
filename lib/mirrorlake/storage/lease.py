"""Leases, which let at most one process at a time do a job, on local disks and object stores.

On a local disk, a lease is a lock of the operating system, which ends with its holder. On an object
store, a lease is a file. Its holder creates it if absent and renews it; another process takes it
over by compare-and-swap after it was not renewed for the time to live. Ages use the store's own
clock.

A holder on an object store may be suspended for longer than that, and continue. `confirm` checks
whether it still holds the lease. Work that must not happen twice needs a fence of its own as well.
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

from obstore.exceptions import PermissionDeniedError

from mirrorlake.errors import BusyError
from mirrorlake.storage.files import Storage
from mirrorlake.storage.object_stores import Seen

_log = logging.getLogger(__name__)
TTL = 30.0  # seconds without renewal after which a lease on an object store may be taken over
PAUSE = 0.1  # the seconds before the second attempt to take a lease
_LONGEST = 2.0  # the longest pause on a store, in seconds; each attempt costs a few requests


class LeaseHeldError(BusyError):
    """Another process holds the lease.

    Attributes:
        holder: the description of the holding process, for messages.
    """

    def __init__(self, what: str, holder: str) -> None:
        super().__init__(
            f"{what} is already running: {holder}.", hint="wait for it, or stop that process."
        )
        self.holder = holder


class Lease:
    """A lease that is held for the duration of a `with` block.

    Args:
        storage: the lake's files.
        path: the path of the lease's file.
        what: the name of the holder's job, for messages.
        ttl: the seconds without renewal after which another process may take the lease; it applies
            to object stores only. On a local disk, a lease ends with its process.
        keep_file: do not delete the file on a local disk at release, because processes that
            run an older version wait for this file.

    Example:
        >>> with Lease(storage, "Files/_mirrorlake/x.lease", "mirror"):  # doctest: +SKIP
        ...     work()
    """

    def __init__(
        self, storage: Storage, path: str, what: str, *, ttl: float = TTL, keep_file: bool = False
    ) -> None:
        self.storage, self.path, self.what, self.ttl = storage, path, what, ttl
        self._keep_file = keep_file
        self._holder: dict[str, str | int] = {
            "what": what,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "id": uuid.uuid4().hex,
            # An ETag can be a hash of the content. Without a change, a process that has seen an
            # earlier renewal could take over a lease that is renewed again.
            "renewals": 0,
        }
        self._stack = contextlib.ExitStack()
        self._renewing = threading.Lock()
        self._seen: Seen | None = None
        self._renewed = 0.0  # when the last successful renewal began, on the monotonic clock
        self._expired = False
        self.lost = False

    def __enter__(self) -> Lease:
        """Take the lease.

        Raises:
            LeaseHeldError: another process holds it; the error describes that process.
        """
        local = self.storage.local
        self._stack.enter_context(self._remote() if local is None else self._locked(local))
        return self

    def __exit__(self, *_error: object) -> None:
        """Release the lease and delete its file."""
        self._stack.close()

    def confirm(self) -> None:
        """Renew the lease, and check that this process still holds it.

        Raises:
            LeaseHeldError: the lease was not renewed in time, and another process has taken it.
        """
        if self.storage.local is None:
            self._renew()
            if self.lost:
                found = self.storage.look_at(self.path)
                holder = "another process" if found is None else name_holder(found[0].decode())
                raise LeaseHeldError(self.what, holder)

    def is_kept(self) -> bool:
        """Return whether all renewals were in time, so that no other process took the lease."""
        self._check_age()
        return not self.lost and not self._expired

    def _check_age(self) -> float:
        now = time.monotonic()
        self._expired |= self.storage.local is None and now - self._renewed > self.ttl
        return now

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
            except OSError:  # the disk has no locks
                lock.close()
                raise
            if _is_same(lock.fileno(), target):
                break
            lock.close()  # the previous holder has just deleted the file
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
                        with contextlib.suppress(OSError):  # another process uses it now
                            folder.rmdir()

    @contextlib.contextmanager
    def _remote(self) -> Iterator[None]:
        self._renewed = time.monotonic()
        self._seen = self._take()
        self._holder["renewals"] = 1
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
                if found is not None and str(self._holder["id"]).encode() in found[0]:
                    self.storage.delete(self.path)
            except Exception as error:  # the work under the lease is complete regardless
                _log.warning(
                    "The lease %s could not be released and expires in %d s: %s",
                    self.path,
                    self.ttl,
                    error,
                )

    def _take(self) -> Seen:
        """Create the lease's file, or take over one that was not renewed in time."""
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
        ):  # another process took it first
            raise LeaseHeldError(self.what, name_holder(text.decode(errors="replace")))
        return made

    def _keep(self, done: threading.Event) -> None:
        while not self.lost and not done.wait(self.ttl / 3):
            try:
                self._renew()
            except Exception:  # noqa: S112 - the store may be reachable again at the next attempt
                continue

    def _renew(self) -> None:
        with self._renewing:
            if not self.lost:
                began = self._check_age()
                seen = self.storage.replace(self.path, self._data(), self._seen)
                self._seen, self.lost = seen or self._seen, seen is None
                self._renewed = began
                # After an error the next attempt must write the same: the store may have it.
                self._holder["renewals"] = int(self._holder["renewals"]) + 1

    def _data(self) -> bytes:
        return json.dumps(self._holder).encode()


@contextlib.contextmanager
def only_one(
    storage: Storage, path: str, patience: float, what: str, stop: threading.Event | None = None
) -> Iterator[Lease]:
    """Hold a lease for work that other processes wait for.

    Args:
        storage: the lake's files.
        path: the path of the lease's file.
        patience: how many seconds to wait for the lease.
        what: the name of the holder's job, for messages, such as `mirror of this lake`.
        stop: once it is set, do not wait any longer.

    Raises:
        BusyError: another process holds the lease for longer than that, or `stop` is set; the error
            describes the process.
    """
    stop = stop or threading.Event()
    deadline, pause, told = time.monotonic() + patience, PAUSE, False
    with contextlib.ExitStack() as held:
        while True:
            try:
                lease = held.enter_context(Lease(storage, path, what, keep_file=True))
                break
            except LeaseHeldError as error:
                if stop.is_set() or time.monotonic() >= deadline:
                    raise busy(what, error.holder) from None
                if not told:
                    _log.warning(f"Waiting for another {what}: {error.holder} …")
                    told = True
                stop.wait(pause)
                pause = pause if storage.local is not None else min(2 * pause, _LONGEST)
        yield lease


def busy(what: str, holder: str) -> BusyError:
    """Return the error for a process that holds a lease for too long."""
    return BusyError(
        f"Another {what} is running: {holder}.",
        hint="wait for it, or stop it; no data is lost either way.",
    )


def is_held(storage: Storage, path: str) -> bool:
    """Return whether a process holds the lease now."""
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
    """Return a description of the process that holds a lease or lock, from its file's content."""
    try:
        known = json.loads(text)
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process, which has just started"


def store_now(storage: Storage, beside: str) -> datetime:
    """Return the current time by the store's clock, from a temporary file.

    Args:
        storage: the store.
        beside: a path; the temporary file is created next to it.
    """
    probe = f"{beside}.clock-{uuid.uuid4().hex}"
    storage.write(probe, b"")
    try:
        found = storage.stat(probe)
        return found.modified if found else datetime.now(timezone.utc)
    finally:
        storage.delete(probe)


def _is_over(storage: Storage, path: str, seen: Seen, ttl: float) -> bool:
    """Return whether a lease was not renewed in time, by the store's clock."""
    if seen.modified is None:
        return False
    try:
        now = store_now(storage, path)
    except PermissionDeniedError:  # the store's clock needs a write
        age = (datetime.now(timezone.utc) - seen.modified).total_seconds()
        return age >= ttl and not _is_renewed(storage, path, seen, ttl)
    return (now - seen.modified).total_seconds() >= ttl


def _is_renewed(storage: Storage, path: str, seen: Seen, ttl: float) -> bool:
    """Return whether a lease is renewed within its time to live, without a comparison of clocks."""
    deadline = time.monotonic() + ttl
    while True:
        found = storage.look_at(path)
        if found is None or found[1] != seen:
            return found is not None
        if time.monotonic() >= deadline:
            return False
        time.sleep(min(_LONGEST, ttl / 3))


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder and its missing parents; return the created ones, the innermost first."""
    made = []
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            one.mkdir()
            made.append(one)
    return made[::-1]
