"""A simulated object store with the functions of obstore that the library calls.

As in S3, conditional writes are exact, and the ETag is a hash of the content. Listings consist of
pages that are read one after the other. Times are whole seconds by the store's own clock.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from mirrorlake.names import file_number
from simulation.scheduler import (
    DELAY,
    FAIL,
    KILL,
    KILL_AFTER,
    LATER,
    LOST,
    SKEW,
    START,
    SUSPEND,
    TWICE,
    Scheduler,
    World,
)

_PAGE = 4  # entries
_READ = (FAIL, KILL, DELAY, SUSPEND, SKEW, LATER)
_WRITE = (*_READ, LOST, KILL_AFTER)
_CHANGES = ("PUT", "COPY", "DELETE", "RENAME")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Stored:
    """An object."""

    data: bytes
    modified: dt.datetime
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def etag(self) -> str:
        """The ETag: a hash of the content."""
        return hashlib.md5(self.data, usedforsecurity=False).hexdigest()

    def meta(self, path: str) -> dict[str, Any]:
        """Return the entry of a listing."""
        return {
            "path": path,
            "size": len(self.data),
            "last_modified": self.modified,
            "e_tag": self.etag,
            "version": None,
        }


Watch = Callable[[str, "Stored | None", "Stored | None"], None]


@dataclass
class Objects:
    """The content of a bucket; `watch` is called after each change with before and after."""

    files: dict[str, Stored] = field(default_factory=dict)
    watch: Watch = lambda _path, _before, _after: None

    def change(self, path: str, after: Stored | None) -> None:
        """Write or delete an object."""
        before = self.files.get(path)
        if after is None:
            self.files.pop(path, None)
        else:
            self.files[path] = after
        if before != after:
            self.watch(path, before, after)


@dataclass(frozen=True)
class Bucket:
    """The result of `open_store`: a folder of a bucket, for a client with or without retries."""

    objects: Objects
    retried: bool = True
    prefix: str = ""

    def get(self, path: str) -> Stored | None:
        """Return an object, or None."""
        return self.objects.files.get(self.prefix + path)

    def existing(self, path: str) -> Stored:
        """Return an object, or raise `FileNotFoundError`."""
        if (found := self.get(path)) is None:
            raise FileNotFoundError(path)
        return found

    def names(self, prefix: str) -> list[str]:
        """Return the sorted paths that begin with a prefix."""
        whole, cut = self.prefix + prefix, len(self.prefix)
        return sorted(name[cut:] for name in self.objects.files if name.startswith(whole))

    def change(self, path: str, after: Stored | None) -> None:
        """Write or delete an object."""
        self.objects.change(self.prefix + path, after)

    def rename(self, source: str, target: str) -> None:
        """Rename an object in one step and overwrite, as a store with folders does."""
        _call(self, lambda: self._move({source: target}), "RENAME", source, target)

    def move_below(self, source: str, target: str) -> None:
        """Rename a folder in one step, unless the target exists."""

        def effect() -> None:
            if not self.names(target):
                self._move({name: target + name[len(source) :] for name in self.names(source)})

        _call(self, effect, "RENAME", source, target)

    def _move(self, targets: dict[str, str]) -> None:
        moved = {target: self.existing(source) for source, target in targets.items()}
        for source in targets:
            self.change(source, None)
        for target, found in moved.items():
            self.change(target, found)

    def delete_below(self, folder: str) -> None:
        """Delete a folder in one step."""

        def effect() -> None:
            for name in self.names(folder):
                self.change(name, None)

        _call(self, effect, "DELETE", folder)


@dataclass(frozen=True)
class Got:
    """The answer to `get`."""

    meta: dict[str, Any]
    data: bytes
    attributes: dict[str, str]

    def bytes(self) -> bytes:
        """Return the content."""
        return self.data

    def stream(self) -> Iterator[bytes]:
        """Yield the content."""
        yield self.data


class _Writer:
    def __init__(self, store: Bucket, path: str) -> None:
        self._store, self._path, self._data = store, path, bytearray()
        self._process = World.scheduler.process

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def close(self) -> None:
        if not self._process.dead:  # also called by the garbage collection
            SimulatedObstore.put(self._store, self._path, bytes(self._data))


def _call(store: Bucket, effect: Callable[[], _Answer], request: str, *paths: str) -> _Answer:
    """Make a request; the scheduler decides whether it fails."""
    scheduler: Scheduler = World.scheduler
    if scheduler.current is None:  # a check of the simulation itself
        return effect()
    kinds = _READ
    if request in _CHANGES:
        repeats = store.retried and request != "RENAME"
        kinds = (*_WRITE, *([TWICE] if repeats else []))
    if request == "DELETE" and any(file_number(path.rpartition("/")[2]) for path in paths):
        # A deletion is not conditional, so a late one of a published file cannot be detected.
        kinds = tuple(kind for kind in kinds if kind not in (SUSPEND, LATER))
    fault = scheduler.point(kinds, request, *paths)
    if fault == FAIL:
        raise GenericError("the store answered 503")
    if fault == TWICE:  # the client repeats a request whose answer was lost
        try:
            effect()
        except Exception:
            return effect()
        scheduler.switch()
    answer = effect()
    if fault == LOST:
        raise GenericError("the connection was closed before the answer")
    if fault == KILL_AFTER:
        scheduler.kill(scheduler.process)
    if fault == DELAY:
        scheduler.switch()
    return answer


def _now() -> dt.datetime:
    return START + dt.timedelta(seconds=int(World.scheduler.now))


class SimulatedObstore:
    """The module `obstore`; stores that are not simulated are passed on to it."""

    open_reader = staticmethod(obstore.open_reader)

    @staticmethod
    def put(
        store: Any,
        path: str,
        data: Any,
        *,
        mode: Any = None,
        attributes: dict[str, str] | None = None,
        **more: Any,
    ) -> Any:
        """Write an object, on a condition."""
        if not isinstance(store, Bucket):
            more |= {"mode": mode} if mode else {}
            return obstore.put(store, path, data, attributes=attributes, **more)
        body = bytes(data)

        def effect() -> dict[str, Any]:
            found = store.get(path)
            if mode == "create" and found is not None:
                raise AlreadyExistsError(path)
            if isinstance(mode, dict):
                if found is None:
                    raise FileNotFoundError(path)
                if found.etag != mode["e_tag"]:
                    raise PreconditionError(path)
            made = Stored(body, _now(), attributes or {})
            store.change(path, made)
            return {"e_tag": made.etag, "version": None}

        return _call(store, effect, "PUT", path)

    @staticmethod
    def get(store: Any, path: str, *, options: Any = None) -> Any:
        """Read an object."""
        if not isinstance(store, Bucket):
            return obstore.get(store, path, options=options)

        def effect() -> Got:
            found = store.existing(path)
            return Got(found.meta(path), found.data, found.attributes)

        return _call(store, effect, "GET", path)

    @staticmethod
    def head(store: Any, path: str) -> Any:
        """Return the metadata of an object."""
        if not isinstance(store, Bucket):
            return obstore.head(store, path)
        return _call(store, lambda: store.existing(path).meta(path), "HEAD", path)

    @staticmethod
    def get_range(store: Any, path: str, *, start: int, end: int) -> Any:
        """Read a range of an object."""
        if not isinstance(store, Bucket):
            return obstore.get_range(store, path, start=start, end=end)
        return _call(store, lambda: store.existing(path).data[start:end], "GET", path)

    @staticmethod
    def list(store: Any, prefix: str | None = None, **more: Any) -> Any:
        """Yield the pages of a recursive listing."""
        if not isinstance(store, Bucket):
            return obstore.list(store, prefix, **more)
        return SimulatedObstore._pages(store, prefix or "", more.get("offset") or "")

    @staticmethod
    def _pages(store: Bucket, prefix: str, after: str) -> Iterator[list[dict[str, Any]]]:
        def effect() -> list[tuple[str, dict[str, Any]]]:
            names = store.names(prefix)
            found = names[bisect_right(names, after) :][:_PAGE]
            return [(name, store.existing(name).meta(name)) for name in found]

        while page := _call(store, effect, "LIST", prefix):
            yield [meta for _, meta in page]
            after = page[-1][0]
            if len(page) < _PAGE:
                break

    @staticmethod
    def list_with_delimiter(store: Any, prefix: str | None = None) -> Any:
        """Return the objects and the folders directly in a folder."""
        if not isinstance(store, Bucket):
            return obstore.list_with_delimiter(store, prefix)
        below = f"{prefix}/" if prefix else ""
        objects: dict[str, Any] = {}
        folders: dict[str, None] = {}
        after = ""

        def effect() -> list[tuple[str, dict[str, Any] | None]]:
            found: dict[str, dict[str, Any] | None] = {}
            for name in store.names(below):
                inner, is_folder, _ = name[len(below) :].partition("/")
                entry = f"{below}{inner}{is_folder}"
                if entry > after:
                    found[entry] = None if is_folder else store.existing(name).meta(name)
                if len(found) > _PAGE:
                    break
            return list(found.items())[:_PAGE]

        while page := _call(store, effect, "LIST", below):
            for name, meta in page:
                if meta is None:
                    folders[name] = None
                else:
                    objects[name] = meta
            after = page[-1][0]
            if len(page) < _PAGE:
                break
        return {"objects": [*objects.values()], "common_prefixes": [*folders]}

    @staticmethod
    def copy(store: Any, source: str, target: str, *, overwrite: bool = True) -> None:
        """Copy an object."""
        if not isinstance(store, Bucket):
            obstore.copy(store, source, target, overwrite=overwrite)
            return

        def effect() -> None:
            found = store.existing(source)
            if not overwrite and store.get(target) is not None:
                raise AlreadyExistsError(target)
            store.change(target, Stored(found.data, _now(), found.attributes))

        _call(store, effect, "COPY", source, target)

    @staticmethod
    def rename(store: Any, *args: Any, **more: Any) -> None:
        """Rename a file of a store that is not simulated."""
        assert not isinstance(store, Bucket)
        obstore.rename(store, *args, **more)

    @staticmethod
    def delete(store: Any, paths: Any) -> None:
        """Delete objects; those that do not exist are ignored."""
        if not isinstance(store, Bucket):
            obstore.delete(store, paths)
            return

        some = [paths] if isinstance(paths, str) else list(paths)

        def effect() -> None:
            for path in some:
                store.change(path, None)

        _call(store, effect, "DELETE", *some)

    @staticmethod
    def open_writer(store: Any, path: str) -> Any:
        """Return a writer of an object."""
        return (
            _Writer(store, path) if isinstance(store, Bucket) else obstore.open_writer(store, path)
        )
