"""A lease: one holder at a time of something in a lake, on disks and on object stores.

On this machine's disk it is a lock of the operating system, which ends with its holder. On an
object store it is a file that is created if absent, renewed by its holder, and taken over by a
conditional write once it was not renewed for too long. Age is by the store's own clock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from mirrorlake.errors import BusyError
from mirrorlake.storage import Storage

TTL = 30.0  # seconds without renewal, after which a lease on an object store is anybody's


class LeaseHeldError(BusyError):
    """Somebody else holds the lease."""


class Lease:
    """Holds a lease while a `with` block runs.

    Args:
        storage: where the lease lies.
        path: its file.
        what: what the holder does, in messages.
        ttl: seconds without renewal, after which it is anybody's; on object stores only.

    Example:
        >>> with Lease(storage, "Files/_mirrorlake/x.lease", "mirror"):  # doctest: +SKIP
        ...     work()
    """

    def __init__(self, storage: Storage, path: str, what: str, *, ttl: float = TTL) -> None:
        self.storage, self.path, self.what, self.ttl = storage, path, what, ttl
        self._holder = {
            "what": what,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "id": uuid.uuid4().hex,
        }
        self._stack = contextlib.ExitStack()
        self.lost = False

    def __enter__(self) -> Lease:
        """Takes the lease.

        Raises:
            LeaseHeldError: somebody else has it; says who.
        """
        local = self.storage.local
        self._stack.enter_context(self._remote() if local is None else self._locked(local))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives it back: no file of it is left."""
        self._stack.close()

    @contextlib.contextmanager
    def _locked(self, root: Path) -> Iterator[None]:
        target = root / self.path
        made = _make_folders(target.parent)
        while True:
            lock = target.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = target.read_text(encoding="utf-8") if target.exists() else ""
                lock.close()
                raise self._held(text) from None
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
                target.unlink(missing_ok=True)
                for folder in made:
                    with contextlib.suppress(OSError):  # somebody else uses it now
                        folder.rmdir()

    @contextlib.contextmanager
    def _remote(self) -> Iterator[None]:
        version = self._take()
        done = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(version, done), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()
            found = self.storage.read_json(self.path)
            if found is not None and found.get("id") == self._holder["id"]:
                self.storage.delete(self.path)

    def _take(self) -> dict[str, Any]:
        """Creates the file, or takes over one that nobody renews."""
        store, data = self.storage._store, self._data()
        try:
            return dict(obstore.put(store, self.path, data, mode="create"))
        except AlreadyExistsError:
            pass
        try:
            found = obstore.get(store, self.path)
        except FileNotFoundError:
            return self._take()
        meta, text = found.meta, bytes(found.bytes()).decode(errors="replace")
        age = (store_now(self.storage, self.path) - meta["last_modified"]).total_seconds()
        if age < self.ttl:
            raise self._held(text)
        with contextlib.suppress(PreconditionError):
            return dict(obstore.put(store, self.path, data, mode=_version(dict(meta))))
        raise self._held(text)  # another one was quicker

    def _keep(self, version: dict[str, Any], done: threading.Event) -> None:
        while not done.wait(self.ttl / 3):
            try:
                mode = _version(version)
                version = dict(obstore.put(self.storage._store, self.path, self._data(), mode=mode))
            except PreconditionError:
                self.lost = True
                return
            except Exception:  # noqa: S112 - a store out of reach: the next try may reach it
                continue

    def _data(self) -> bytes:
        return json.dumps(self._holder).encode()

    def _held(self, text: str) -> LeaseHeldError:
        try:
            known = json.loads(text)
            who = f"process {known['pid']} on {known['host']} since {known['since']}"
        except (ValueError, KeyError, TypeError):
            who = "another process, which has just begun"
        return LeaseHeldError(
            f"{self.what} runs already: {who}.", hint="wait for it, or stop that process."
        )


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


def _version(meta: dict[str, Any]) -> Any:
    """The condition that a file is still the one that was seen."""
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None}


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
