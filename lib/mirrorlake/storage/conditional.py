"""Creates and renames that know their outcome: on an object store, whatever the answer was.

An answer can be lost after the store did what it was asked for: the connection breaks, a gateway
says 503. Repeated, the request is refused on account of itself: 412, since the file is there, or
404, since the upload is. So every file that is created carries an id of its own in its metadata,
and after each refusal or error the file is asked for whose it is.

A store that ignores conditions is recognised, too: on it two writers would overwrite each other.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from mirrorlake.errors import SetupError, first_line

MARK = "mirrorlakewrite"  # Azure takes only letters and digits
_TRIES = 6
_PAUSE = 0.1  # seconds before the second try, doubled for each further one
_REFUSED = (AlreadyExistsError, PreconditionError)
# Trying again changes nothing about these.
_FINAL = (PermissionDeniedError, UnauthenticatedError, NotSupportedError)


def create_file(store: Any, path: str, data: bytes) -> bool:
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


def create_in_folder(target: Path, data: bytes) -> bool:
    """Creates a file on a disk, in a folder that is not made; False if either is not to be had."""
    staged = target.with_name(f"_{uuid.uuid4().hex}")
    try:
        staged.write_bytes(data)
        os.link(staged, target)  # unlike a rename it never replaces what is there
        return True
    except (FileExistsError, FileNotFoundError):
        return False
    finally:
        staged.unlink(missing_ok=True)


@dataclass(frozen=True)
class Seen:
    """What tells a file from what may be written in its place: its tag, its time by the store."""

    etag: str | None
    version: str | None
    modified: datetime | None = None


def look_at(store: Any, path: str) -> tuple[bytes, Seen] | None:
    """A file's content and what tells it from others; None if there is none."""
    try:
        found = obstore.get(store, path)
    except FileNotFoundError:
        return None
    meta = found.meta
    seen = Seen(meta.get("e_tag"), meta.get("version"), meta["last_modified"])
    return bytes(found.bytes()), seen


def replace_file(store: Any, path: str, data: bytes, seen: Seen | None) -> Seen | None:
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
        found = look_at(store, path)
        if found is not None and found[0] == data:
            return found[1]
        if isinstance(error, (*_REFUSED, FileNotFoundError)):
            return None
        raise


def rename_file(store: Any, unrepeated: Any, source: str, target: str) -> bool:
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
            if head(store, target) is None:
                # What is missing is the source itself, or only the upload.
                if not again or head(store, source) is None:
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


def head(store: Any, path: str) -> Any | None:
    """What a store knows of a file without its content; None if there is none."""
    try:
        return obstore.head(store, path)
    except FileNotFoundError:
        return None


def _is_copy(store: Any, source: str, target: str) -> bool:
    """Whether two files have the same bytes."""
    one, other = head(store, source), head(store, target)
    if one is None or other is None or one["size"] != other["size"]:
        return False
    return _digest(store, source) == _digest(store, target)


def _digest(store: Any, path: str) -> bytes:
    found = hashlib.sha256()
    for part in obstore.get(store, path).stream():
        found.update(part)
    return found.digest()


def check_conditions(store: Any, unrepeated: Any, folder: str, root: str) -> None:
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
