"""Opens an object store by its URI, with the settings of the standard variables.

`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID` and their like are read by obstore itself; here stands what
it would refuse, or do in a way that loses certainty, without being told. Arrow's client is opened
for one thing that obstore can't name: the empty objects, whose names end with `/`, that Hadoop's
S3A leaves of folders. Obstore lists them without their last `/`.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from mirrorlake.errors import SetupError, first_line

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem


_log = logging.getLogger(__name__)
CLOUDS = ("s3", "s3a", "az", "abfs", "abfss", "adl", "azure", "gs")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_NO_RETRY: Any = {"max_retries": 0}
# A store that is down is an error within this time, not after obstore's three minutes.
_RETRY: Any = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=40),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)},
}
# The standard variables of each kind of store begin with these.
_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_"}


def one_uri(uri: str) -> str:
    """The one way to name a place: Hadoop's `s3a://` is `s3://`, and no slash is at the end."""
    scheme, mark, place = uri.partition("://")
    return ("s3" if scheme.lower() == "s3a" else scheme) + mark + place.rstrip("/")


def store_variables(uri: str) -> dict[str, str]:
    """This process's variables that lead to a store, its keys among them: they go into no log.

    Args:
        uri: the store's; none lead to what is not in a cloud.
    """
    scheme = scheme_of(one_uri(uri))
    if scheme not in CLOUDS:
        return {}
    prefix = _PREFIXES.get(scheme, "AZURE_")
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def scheme_of(uri: str) -> str:
    """The scheme of a URI, in lower case."""
    return urlsplit(uri).scheme.lower()


def s3_endpoint() -> str | None:
    """The address of an S3 server other than Amazon's, by the standard variables."""
    return next((found for name in ENDPOINTS if (found := os.environ.get(name))), None)


def open_store(uri: str, *, retried: bool = True) -> Any:
    """The store behind a URI.

    Args:
        uri: such as `s3://bucket/lake`.
        retried: obstore repeats a request whose answer was an error or lost. A repeated request
            can be refused on account of the first, so some callers repeat on their own.
    """
    uri = one_uri(uri)
    scheme = scheme_of(uri)
    if scheme not in CLOUDS:
        return from_url(uri, client_options={"allow_http": scheme == "http"})
    options: dict[str, Any] = {"retry_config": _RETRY if retried else _NO_RETRY}
    if scheme == "s3":
        if "AWS_COPY_IF_NOT_EXISTS" not in os.environ:
            # Without it obstore refuses every rename that must not overwrite.
            options["copy_if_not_exists"] = "multipart"
        if endpoint := s3_endpoint():
            options["endpoint"] = endpoint
            if endpoint.lower().startswith("http://"):
                options["client_options"] = {"allow_http": True}
    return from_url(uri, **options)


def remove_markers(uri: str) -> None:
    """Removes what is left of a folder that has no files any more, its markers and those below.

    A marker that stays is harmless to this package; Spark takes one of a log for a table's.

    Args:
        uri: the folder, in full; nothing happens where it is not of S3.
    """
    if scheme_of(uri) not in ("s3", "s3a"):
        return
    place = urlsplit(uri)
    try:
        with suppress(FileNotFoundError):
            arrow_s3().delete_dir(f"{place.netloc}{place.path}")
    except OSError as error:
        _log.warning("the folder markers below %s stay: %s", uri, error)


def arrow_s3() -> S3FileSystem:
    """Arrow's client of the store that the standard variables name; a bucket is part of a path."""
    from pyarrow.fs import S3FileSystem

    endpoint = s3_endpoint()
    if endpoint is None:
        return S3FileSystem()
    parts = urlsplit(endpoint)
    return S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme)


MARK = "mirrorlakewrite"  # Azure takes only letters and digits
_TRIES = 6
_PAUSE = 0.1  # seconds before the second try, doubled for each further one
_REFUSED = (AlreadyExistsError, PreconditionError)
# Trying again changes nothing about these.
_FINAL = (PermissionDeniedError, UnauthenticatedError, NotSupportedError)


def create_object(store: Any, path: str, data: bytes) -> bool:
    """Puts a file there if there is none; False if there is one of somebody else.

    Args:
        store: an object store that keeps metadata of files.
        path: the file.
        data: its content.

    Raises:
        BaseError: the store can't be written to; nothing of this call is there as far as it tells.
    """
    own = uuid.uuid4().hex
    for again in _tries():
        try:
            obstore.put(
                store, path, data, mode="create", attributes={MARK: own}, use_multipart=False
            )
        except _FINAL:
            raise
        except (BaseError, OSError) as error:
            found = _mark(store, path)
            if found is not None:
                return found == own
            if isinstance(error, _REFUSED):
                return False  # somebody's file was there, and is gone again
            if not again:
                raise
        else:
            return True
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class Seen:
    """What tells a file from what may be written in its place: its tag, its time by the store."""

    etag: str | None
    version: str | None
    modified: datetime | None = None


def read_object(store: Any, path: str) -> tuple[bytes, Seen] | None:
    """A file's content and what tells it from others; None if there is none."""
    try:
        found = obstore.get(store, path)
    except FileNotFoundError:
        return None
    meta = found.meta
    seen = Seen(meta.get("e_tag"), meta.get("version"), meta["last_modified"])
    return bytes(found.bytes()), seen


def replace_object(store: Any, path: str, data: bytes, seen: Seen | None) -> Seen | None:
    """Puts a file there if the one that was seen still is, or if there is none; else None.

    Args:
        store: the object store.
        path: the file.
        data: its content, which no other writer writes: it tells whose file is there after a
            refusal.
        seen: what was there; None if there was nothing.

    Raises:
        BaseError: the store can't be written to.
    """
    mode: Any = "create"
    if seen is not None:
        known = {"e_tag": seen.etag, "version": seen.version}
        mode = {name: value for name, value in known.items() if value is not None}
    try:
        done = obstore.put(store, path, data, mode=mode, use_multipart=False)
        return Seen(done.get("e_tag"), done.get("version"))
    except _FINAL:
        raise
    except (BaseError, OSError) as error:
        found = read_object(store, path)
        if found is not None and found[0] == data:
            return found[1]
        if isinstance(error, (*_REFUSED, FileNotFoundError)):
            return None
        raise


def rename_object(store: Any, unrepeated: Any, source: str, target: str) -> bool:
    """Copies a file to where there is none and deletes it; False if the target was there.

    A copy carries no id. It is asked for once at a time, so that a refusal is about another's
    file; only after a lost answer a target with the source's content is taken for the own one.

    Args:
        store: the object store.
        unrepeated: the same store, whose requests are not repeated.
        source: the file.
        target: where it goes.

    Raises:
        FileNotFoundError: there is no such source.
        BaseError: the store can't be written to.
    """
    doubtful = False
    for again in _tries():
        try:
            obstore.copy(unrepeated, source, target, overwrite=False)
        except _FINAL:
            raise
        except _REFUSED:
            if not (doubtful and _is_copy(store, source, target)):
                return False
        except (BaseError, OSError):
            doubtful = True
            if head_object(store, target) is None:
                # What is missing is the source itself, or only the upload.
                if not again or head_object(store, source) is None:
                    raise
                continue
            if not _is_copy(store, source, target):
                return False
        obstore.delete(store, source)
        return True
    raise AssertionError("unreachable")


def _tries() -> Iterator[bool]:
    """Whether there is another try after this one, for each; with pauses between them."""
    for number in range(_TRIES):
        if number:
            time.sleep(_PAUSE * 2**number)
        yield number < _TRIES - 1


def _mark(store: Any, path: str) -> str | None:
    """The id that a file was created with; "" if it has none, None if there is no file."""
    try:
        found = obstore.get(store, path, options={"head": True}).attributes
    except FileNotFoundError:
        return None
    # Stores and proxies spell the names of metadata as they like.
    return next((str(v) for k, v in found.items() if k.lower() == MARK), "")


def head_object(store: Any, path: str) -> Any | None:
    """What a store knows of a file without its content; None if there is none."""
    try:
        return obstore.head(store, path)
    except FileNotFoundError:
        return None


def _is_copy(store: Any, source: str, target: str) -> bool:
    """Whether two files have the same bytes."""
    one, other = head_object(store, source), head_object(store, target)
    if one is None or other is None or one["size"] != other["size"]:
        return False
    return _digest(store, source) == _digest(store, target)


def _digest(store: Any, path: str) -> bytes:
    found = hashlib.sha256()
    for part in obstore.get(store, path).stream():
        found.update(part)
    return found.digest()


def probe_conditions(store: Any, unrepeated: Any, folder: str, root: str) -> None:
    """Writes, and renames, where a file is: both must be refused.

    Args:
        store: the object store.
        unrepeated: the same store, whose requests are not repeated.
        folder: where the probe's two files may lie for a moment.
        root: what the message calls the store.

    Raises:
        SetupError: the store has done what it must not, or does nothing at all.
    """
    paths = [f"{folder}/{uuid.uuid4().hex}" for _ in range(2)]
    try:
        for path in paths:
            obstore.put(store, path, b"probe")
    except (BaseError, OSError) as error:
        raise SetupError(
            f"The store of {root} can't be written to: {first_line(error)}",
            hint="check that it is up, its address (AWS_ENDPOINT_URL), the keys and their rights.",
        ) from error
    try:
        for what in ("create", "rename"):
            try:
                if what == "create":
                    obstore.put(unrepeated, paths[1], b"other", mode="create")
                else:
                    obstore.copy(unrepeated, *paths, overwrite=False)
            except (BaseError, OSError):
                continue  # refused; what else went wrong is told by the first real write
            raise SetupError(
                f"The store of {root} ignores conditions: it lets a {what} overwrite a file.",
                hint="writers would lose each other's files. Use a store with conditional writes"
                " (If-None-Match): Amazon S3, MinIO, versitygw, Azure, Google; or a local disk.",
            )
    finally:
        obstore.delete(store, paths)


TAIL = 2**20
"""How many of a file's last bytes one request brings, with its size: a small file is all there."""
_AHEAD = 2**20
_SLACK = 2**16  # what a buffer in front asks for beyond what it was asked for


class TailReader(io.RawIOBase):
    """A file of a store, some end of which is there already; the rest is fetched by ranges."""

    def __init__(self, store: Any, path: str, size: int, tail: bytes) -> None:
        self._store, self._path, self._size = store, path, size
        self._tail, self._tail_at = tail, size - len(tail)
        self._block, self._block_at = b"", 0
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As of a file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """As of a file; may bring less than there is room for."""
        if self._at >= self._size:
            return 0
        if self._at >= self._tail_at:
            kept, start = self._tail, self._at - self._tail_at
        else:
            start = self._at - self._block_at
            if not 0 <= start < len(self._block):
                self._fetch(len(buffer))
                start = 0
            kept = self._block
        data = kept[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, wanted: int) -> None:
        end = min(self._tail_at, self._at + max(_AHEAD, wanted + _SLACK))
        found = obstore.get_range(self._store, self._path, start=self._at, end=end)
        self._block, self._block_at = bytes(found), self._at


def open_tail(store: Any, path: str) -> IO[bytes]:
    """A reader that one request has opened.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        found = obstore.get(store, path, options={"range": {"suffix": TAIL}})
        size, tail = found.meta["size"], bytes(found.bytes())
    except FileNotFoundError:
        raise
    except (BaseError, OSError):  # Azure knows no such ranges, S3 none of an empty file
        size, tail = obstore.head(store, path)["size"], b""
    if len(tail) == size:
        return io.BytesIO(tail)
    return io.BufferedReader(TailReader(store, path, size, tail))


class Writer(io.RawIOBase):
    """An obstore writer that may be closed more than once, as Parquet writers do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any, /) -> int:
        """As of a file; nothing is there before it is closed."""
        return int(self._inner.write(bytes(data)))

    def close(self) -> None:
        """Ends the file, at the first call."""
        if not self.closed:
            super().close()
            self._inner.close()
