"""Object stores: open them by URI, write with conditions whose outcome is certain, read by ranges.

obstore reads the standard variables, such as `AWS_ENDPOINT_URL` and `AWS_ACCESS_KEY_ID`. This
module sets what obstore would otherwise refuse, or do without a certain outcome.

A conditional request can succeed although its answer is lost: the connection breaks, or a gateway
answers 503. A retry of that request is then refused because of itself: with 412, since the object
exists now, or with 404, since its upload is complete. Therefore each object that is created carries
a unique id in its metadata, and after a refusal or an error the object's id decides.

Stores that ignore conditions are refused, because writers would overwrite each other's objects.

Arrow's S3 client is used only to delete folder markers: empty objects whose names end with `/`,
which Hadoop's S3A writes. obstore lists them without the `/` and can't address them.
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
# Fail within 40 seconds if the store is down, instead of obstore's three minutes.
_RETRY: Any = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=40),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)},
}
# Prefixes of the standard variables of each kind of store; the default is AZURE_.
_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_"}


def one_uri(uri: str) -> str:
    """Return a URI's canonical form: `s3://` instead of Hadoop's `s3a://`, no trailing slash."""
    scheme, mark, place = uri.partition("://")
    return ("s3" if scheme.lower() == "s3a" else scheme) + mark + place.rstrip("/")


def store_variables(uri: str) -> dict[str, str]:
    """Return the environment variables that configure the store of a URI.

    They include credentials, so never log them.

    Args:
        uri: the URI of a lake; for one outside of a cloud store the result is empty.
    """
    scheme = scheme_of(one_uri(uri))
    if scheme not in CLOUDS:
        return {}
    prefix = _PREFIXES.get(scheme, "AZURE_")
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI, in lower case."""
    return urlsplit(uri).scheme.lower()


def s3_endpoint() -> str | None:
    """Return the S3 server's address from the standard variables, or None for Amazon's."""
    return next((found for name in ENDPOINTS if (found := os.environ.get(name))), None)


def open_store(uri: str, *, retried: bool = True) -> Any:
    """Open the object store of a URI.

    Args:
        uri: a URI such as `s3://bucket/lake`.
        retried: whether obstore retries a request after an error or a lost answer. Callers that
            must know whether a refusal is due to their own first attempt retry by themselves.
    """
    uri = one_uri(uri)
    scheme = scheme_of(uri)
    if scheme not in CLOUDS:
        return from_url(uri, client_options={"allow_http": scheme == "http"})
    options: dict[str, Any] = {"retry_config": _RETRY if retried else _NO_RETRY}
    if scheme == "s3":
        if "AWS_COPY_IF_NOT_EXISTS" not in os.environ:
            # Without this option obstore refuses every rename that must not overwrite.
            options["copy_if_not_exists"] = "multipart"
        if endpoint := s3_endpoint():
            options["endpoint"] = endpoint
            if endpoint.lower().startswith("http://"):
                options["client_options"] = {"allow_http": True}
    return from_url(uri, **options)


def remove_markers(uri: str) -> None:
    """Delete the S3 folder markers of a folder without files, and those of its subfolders.

    A remaining marker does not affect this library, but Spark takes a `_delta_log` marker for a
    table.

    Args:
        uri: the full URI of the folder; nothing happens if it is not on S3.
    """
    if scheme_of(uri) not in ("s3", "s3a"):
        return
    place = urlsplit(uri)
    try:
        with suppress(FileNotFoundError):
            arrow_s3().delete_dir(f"{place.netloc}{place.path}")
    except OSError as error:
        _log.warning("The folder markers below %s could not be deleted: %s", uri, error)


def arrow_s3() -> S3FileSystem:
    """Return Arrow's client for the configured S3 store; its paths begin with the bucket."""
    from pyarrow.fs import S3FileSystem

    endpoint = s3_endpoint()
    if endpoint is None:
        return S3FileSystem()
    parts = urlsplit(endpoint)
    return S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme)


MARK = "mirrorlakewrite"  # Azure accepts only letters and digits
_ATTEMPTS = 6
_PAUSE = 0.1  # the base of the backoff, in seconds; it doubles with each attempt
_REFUSED = (AlreadyExistsError, PreconditionError)
# Errors that a retry can't resolve.
_FINAL = (PermissionDeniedError, UnauthenticatedError, NotSupportedError)


def create_object(store: Any, path: str, data: bytes) -> bool:
    """Create an object only if none exists; return False if another writer's object exists.

    Args:
        store: an object store that keeps metadata of objects.
        path: the path of the object.
        data: the content of the object.

    Raises:
        BaseError: the write fails; as far as the store answers, this call created no object.
    """
    own = uuid.uuid4().hex
    for again in _attempts():
        try:
            obstore.put(
                store, path, data, mode="create", attributes={MARK: own}, use_multipart=False
            )
        except _FINAL:
            raise
        except (BaseError, OSError) as error:
            found = _write_id(store, path)
            if found is not None:
                return found == own
            if isinstance(error, _REFUSED):
                return False  # another writer's object existed, and has been deleted since
            if not again:
                raise
        else:
            return True
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class Seen:
    """The identity of an object's content when it was read, for a later compare-and-swap.

    Attributes:
        etag: the store's tag of the content.
        version: the store's version of the object, if it keeps versions.
        modified: the time of the last write by the store's clock; None if it is not known.
    """

    etag: str | None
    version: str | None
    modified: datetime | None = None


def read_object(store: Any, path: str) -> tuple[bytes, Seen] | None:
    """Return an object's content and its identity, or None if the object does not exist."""
    try:
        found = obstore.get(store, path)
    except FileNotFoundError:
        return None
    meta = found.meta
    seen = Seen(meta.get("e_tag"), meta.get("version"), meta["last_modified"])
    return bytes(found.bytes()), seen


def replace_object(store: Any, path: str, data: bytes, seen: Seen | None) -> Seen | None:
    """Write an object only if its content is still `seen` (compare-and-swap).

    Args:
        store: the object store.
        path: the path of the object.
        data: the new content. It must be unique to this writer, because after a refusal the content
            decides whose write succeeded.
        seen: the identity of the content to replace; None if the object must not exist yet.

    Returns:
        The identity of the new content; None if another writer's object was found.

    Raises:
        BaseError: the write fails.
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
    """Copy an object as `copy_object`, and delete the source; return False if a target exists."""
    copied = copy_object(store, unrepeated, source, target)
    if copied:
        obstore.delete(store, source)
    return copied


def copy_object(store: Any, unrepeated: Any, source: str, target: str) -> bool:
    """Copy an object to a path where none exists; return False if one exists.

    A copy carries no id. The copy is requested once at a time, so that a refusal is due to another
    writer's object. Only after a lost answer a target with the source's content counts as this
    copy.

    Args:
        store: the object store.
        unrepeated: the same store without retries of requests.
        source: the path of the object.
        target: the new path.

    Raises:
        FileNotFoundError: the source does not exist.
        BaseError: the copy fails.
    """
    doubtful = False
    for again in _attempts():
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
                # Either the source is missing, or S3's multipart upload of the copy is.
                if not again or head_object(store, source) is None:
                    raise
                continue
            if not _is_copy(store, source, target):
                return False
        return True
    raise AssertionError("unreachable")


def _attempts() -> Iterator[bool]:
    """Yield for each attempt whether another may follow; wait with exponential backoff."""
    for number in range(_ATTEMPTS):
        if number:
            time.sleep(_PAUSE * 2**number)
        yield number < _ATTEMPTS - 1


def _write_id(store: Any, path: str) -> str | None:
    """Return the id that an object was created with: "" if none, None without an object."""
    try:
        found = obstore.get(store, path, options={"head": True}).attributes
    except FileNotFoundError:
        return None
    # Stores and proxies differ in the case of metadata names.
    return next((str(v) for k, v in found.items() if k.lower() == MARK), "")


def head_object(store: Any, path: str) -> Any | None:
    """Return an object's metadata without its content, or None if the object does not exist."""
    try:
        return obstore.head(store, path)
    except FileNotFoundError:
        return None


def _is_copy(store: Any, source: str, target: str) -> bool:
    """Return whether two objects have the same content."""
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
    """Check that the store refuses to create or rename an object where one exists.

    Args:
        store: the object store.
        unrepeated: the same store without retries of requests.
        folder: a folder for two temporary objects.
        root: the lake's root, for messages.

    Raises:
        SetupError: the store ignores conditions, or can't be written to.
    """
    paths = [f"{folder}/{uuid.uuid4().hex}" for _ in range(2)]
    try:
        for path in paths:
            obstore.put(store, path, b"probe")
    except (BaseError, OSError) as error:
        raise SetupError(
            f"The store of {root} can't be written to: {first_line(error)}",
            hint="check that it is running, its address (AWS_ENDPOINT_URL), and the permissions"
            " of the keys.",
        ) from error
    try:
        for what in ("create", "rename"):
            try:
                if what == "create":
                    obstore.put(unrepeated, paths[1], b"other", mode="create")
                else:
                    obstore.copy(unrepeated, *paths, overwrite=False)
            except (BaseError, OSError):
                continue  # refused, as it must be; the first real write reports any other error
            raise SetupError(
                f"The store of {root} ignores conditions: it lets a {what} overwrite a file.",
                hint="use a store with conditional writes (If-None-Match), so that writers do not"
                " overwrite each other's files: Amazon S3, MinIO, versitygw, Azure, Google; or a"
                " local disk.",
            )
    finally:
        obstore.delete(store, paths)


TAIL = 2**20
"""How many of an object's last bytes the first request reads; a small object is read at once."""
_AHEAD = 2**20  # the least number of bytes of a further request
_SLACK = 2**16  # a buffered reader may ask for this much more in its next call


class TailReader(io.RawIOBase):
    """A seekable reader of an object: the last bytes are in memory, others fetched by range."""

    def __init__(self, store: Any, path: str, size: int, tail: bytes) -> None:
        self._store, self._path, self._size = store, path, size
        self._tail, self._tail_at = tail, size - len(tail)
        self._block, self._block_at = b"", 0
        self._at = 0

    def readable(self) -> bool:
        """Return True: readers are readable."""
        return True

    def seekable(self) -> bool:
        """Return True: the reader supports random access."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to an offset and return the new position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the current position."""
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer and return the number of bytes, at most the buffer's size."""
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
    """Return a reader of an object, opened with one request in most stores.

    Raises:
        FileNotFoundError: the object does not exist.
    """
    try:
        found = obstore.get(store, path, options={"range": {"suffix": TAIL}})
        size, tail = found.meta["size"], bytes(found.bytes())
    except FileNotFoundError:
        raise
    except (BaseError, OSError):  # Azure has no suffix ranges; S3 refuses them for empty objects
        size, tail = obstore.head(store, path)["size"], b""
    if len(tail) == size:
        return io.BytesIO(tail)
    return io.BufferedReader(TailReader(store, path, size, tail))


class Writer(io.RawIOBase):
    """A file-like writer over obstore's; it may be closed more than once, as Parquet writers do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def writable(self) -> bool:
        """Return True: writers are writable."""
        return True

    def write(self, data: Any, /) -> int:
        """Write bytes and return their number; the object exists only after `close`."""
        return int(self._inner.write(bytes(data)))

    def close(self) -> None:
        """Complete the object; further calls do nothing."""
        if not self.closed:
            super().close()
            self._inner.close()
