"""One request to a path of a lake: its parts, conditions and body, and the response to a read.

Both dialects respond to HEAD and GET in the same way: properties, ranges, conditions.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mirrorlake_serve.files import Info
from mirrorlake_serve.lakes import Item, Workspace
from mirrorlake_serve.protocol import (
    Dialect,
    RequestError,
    bad_request,
    not_found,
    readable,
    rename_source,
)

_BUFFER = 1 << 20  # bytes of a body that are written at once
LARGEST_BODY = 5 << 30  # bytes of one request
LARGEST_DOCUMENT = 8 << 20  # bytes of a body that is held in memory
_IDLE = 120  # seconds without progress after which a body is given up
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")


@dataclass(frozen=True)
class Call:
    """A request to one lake.

    Attributes:
        request: the framework's request.
        dialect: the protocol of the request.
        workspace: all lakes.
        item: the lake.
        item_text: the lake's name as the client wrote it.
        parts: the path within the lake.
        query: the parameters by their lower-case names.
    """

    request: Request
    dialect: Dialect
    workspace: Workspace
    item: Item
    item_text: str
    parts: tuple[str, ...]
    query: Mapping[str, str]

    @property
    def path(self) -> str:
        """The path within the lake, if it may be read."""
        return readable(self.parts)

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if it is missing or empty."""
        return self.request.headers.get(name) or None

    def number(self, name: str, default: int | None = None) -> int:
        """Return a query parameter that is a whole number of at least 0.

        Raises:
            RequestError: the parameter is missing or is not such a number.
        """
        text = self.query.get(name)
        if text is None and default is not None:
            return default
        if text is None:
            raise bad_request(
                "MissingRequiredQueryParameter", f"The query parameter {name} is missing."
            )
        return whole_number(text, name)

    def flag(self, name: str) -> bool:
        """Return whether a query parameter is `true`."""
        return self.query.get(name, "").lower() == "true"

    def source(self, header: str) -> tuple[str, ...]:
        """Return the path within the lake that the source of a rename or copy names.

        Raises:
            RequestError: the source is not in the same lake.
        """
        parts = rename_source(header)
        item, _, inner = resolve(self.workspace, parts)
        if item is None or item.id != self.item.id:
            raise bad_request("InvalidSourceUri", "The source is not in the same lake.")
        return inner


def resolve(
    workspace: Workspace, parts: tuple[str, ...]
) -> tuple[Item | None, str, tuple[str, ...]]:
    """Return the lake, its name as written, and the path in it; an account's name may come first.

    Raises:
        RequestError: the workspace or the lake does not exist.
    """
    if len(parts) > 1 and not workspace.is_called(parts[0]) and workspace.is_called(parts[1]):
        parts = parts[1:]
    if not parts or not workspace.is_called(parts[0]):
        raise RequestError(404, "FilesystemNotFound", "The workspace does not exist.")
    if len(parts) == 1:
        return None, "", ()
    item = workspace.find(parts[1])
    if item is None:
        raise RequestError(404, "PathNotFound", "The item does not exist in the workspace.")
    return item, parts[1], parts[2:]


def whole_number(text: str, name: str) -> int:
    """Return a text as a whole number of at least 0; raises as `Call.number`."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise bad_request("InvalidQueryParameterValue", f"{name} is not a whole number: {text!r}.")
    return int(text)


def body_length(request: Request) -> int | None:
    """Return the announced length of the body.

    Raises:
        RequestError: the body is too large.
    """
    text = request.headers.get("content-length")
    if text is None:
        return None
    length = whole_number(text, "Content-Length")
    if length > LARGEST_BODY:
        raise RequestError(
            413, "RequestBodyTooLarge", f"A body has at most {LARGEST_BODY:,} bytes."
        )
    return length


async def receive(request: Request, file: Path, at: int = 0, most: int = LARGEST_BODY) -> int:
    """Write the body into a file; buffers at most one megabyte in memory.

    Args:
        request: the request.
        file: the file.
        at: the position of the first byte.
        most: the largest number of bytes.

    Returns:
        The number of bytes received.

    Raises:
        RequestError: the body is too large, or the client stopped sending.
        ClientDisconnect: the client closed the connection.
    """
    begin, buffer = at, bytearray()
    body_length(request)
    handle = await run_in_threadpool(os.open, file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        stream = request.stream().__aiter__()
        while True:
            try:
                chunk = await asyncio.wait_for(stream.__anext__(), _IDLE)
            except StopAsyncIteration:
                break
            except (asyncio.TimeoutError, TimeoutError):
                raise RequestError(
                    408, "OperationTimedOut", f"No data of the body arrived for {_IDLE} seconds."
                ) from None
            buffer += chunk
            if at + len(buffer) - begin > most:
                raise RequestError(
                    413, "RequestBodyTooLarge", f"A body has at most {most:,} bytes."
                )
            if len(buffer) >= _BUFFER:
                await run_in_threadpool(_write, handle, buffer, at)
                at += len(buffer)
                buffer = bytearray()
        if buffer:
            _write(handle, buffer, at) if len(buffer) < _BUFFER // 8 else (
                await run_in_threadpool(_write, handle, buffer, at)
            )
    finally:
        os.close(handle)
    return at + len(buffer) - begin


def _write(handle: int, data: bytearray, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        at += written
        view = view[written:]


async def read_document(request: Request, most: int = LARGEST_DOCUMENT) -> bytes:
    """Return a short body.

    Raises:
        RequestError: the body is too large.
    """
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            raise RequestError(413, "RequestBodyTooLarge", f"A body has at most {most:,} bytes.")
    return bytes(found)


def http_date(info: Info) -> str:
    """Return the time of a file's last change in the form of RFC 1123."""
    return format_datetime(info.modified, usegmt=True)


def check_conditions(headers: Mapping[str, str], info: Info | None, *, reading: bool) -> None:
    """Compare the conditional headers with a file.

    Args:
        headers: of the request.
        info: the file; None if it does not exist.
        reading: whether the request reads.

    Raises:
        RequestError: 304 if a read finds an unchanged file, 412 if another condition is not met.
    """
    etag = info.etag if info else None
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match and not _lists(match, etag):
        raise _unmet()
    if none_match and _lists(none_match, etag):
        raise _unmodified(info) if reading else _unmet()
    since, until = headers.get("if-modified-since"), headers.get("if-unmodified-since")
    if info and not none_match and since and not _is_after(info, since):
        raise _unmodified(info) if reading else _unmet()
    if info and not match and until and _is_after(info, until):
        raise _unmet()


def _lists(header: str, etag: str | None) -> bool:
    if etag is None:
        return False
    found = (part.strip().removeprefix("W/") for part in header.split(","))
    return any(one in ("*", etag, etag.strip('"')) for one in found)


def _is_after(info: Info, header: str) -> bool:
    try:
        when = parsedate_to_datetime(header)
    except (ValueError, TypeError, IndexError):
        raise bad_request(
            "InvalidHeaderValue", "A date does not have the form of RFC 1123."
        ) from None
    return int(info.modified.timestamp()) > int(when.timestamp())


def _unmet() -> RequestError:
    return RequestError(412, "ConditionNotMet", "A condition of the request is not met.")


def _unmodified(info: Info | None) -> RequestError:
    headers = {"etag": info.etag, "last-modified": http_date(info)} if info else {}
    return RequestError(304, "ConditionNotMet", "The file has not changed.", headers=headers)


async def answer_read(call: Call) -> Response:
    """Respond to HEAD or GET of a path.

    Raises:
        RequestError: the path does not exist, or a condition or range is not met.
    """
    path = call.path
    found = await run_in_threadpool(call.item.zone.files.stat, path)
    info = _being_uploaded(call, path) if found is None else found
    check_conditions(call.request.headers, info, reading=True)
    if info.is_folder or call.request.method == "HEAD" or info.size == 0:
        if not info.is_folder:
            _range(call, info.size) if call.request.method == "GET" else None
        return Response(status_code=200, headers=properties(info) | _length(info))
    start, end, is_part = _range(call, info.size)
    try:
        now, read = await run_in_threadpool(call.item.zone.files.open, path)
    except (FileNotFoundError, IsADirectoryError):
        raise not_found() from None
    if now.etag != info.etag:  # the file was replaced meanwhile
        info, end = now, min(end, now.size)
        start = min(start, end)
    headers = properties(info) | {"content-length": str(end - start)}
    if is_part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{info.size}"
    kind = "application/octet-stream"
    return StreamingResponse(read(start, end), 206 if is_part else 200, headers, kind)


def _being_uploaded(call: Call, path: str) -> Info:
    """Return the properties of a file that was created but not flushed: empty and unlisted."""
    upload = call.item.zone.uploads.get(path)
    if upload is None:
        raise not_found()
    return call.item.zone.files.local_info(upload.data).empty(path, upload.etag)


def _length(info: Info) -> dict[str, str]:
    return {"content-length": str(info.size), "content-type": "application/octet-stream"}


def properties(info: Info) -> dict[str, str]:
    """Return the properties of a file or folder as headers that both dialects read."""
    found = {
        "etag": info.etag,
        "last-modified": http_date(info),
        "x-ms-creation-time": http_date(info),
        "accept-ranges": "bytes",
        "x-ms-resource-type": "directory" if info.is_folder else "file",
        "x-ms-blob-type": "BlockBlob",
        "x-ms-lease-status": "unlocked",
        "x-ms-lease-state": "available",
        "x-ms-server-encrypted": "false",
        "x-ms-owner": "$superuser",
        "x-ms-group": "$superuser",
        "x-ms-permissions": "---------",
    }
    return found | ({"x-ms-meta-hdi_isfolder": "true"} if info.is_folder else {})


def _range(call: Call, size: int) -> tuple[int, int, bool]:
    """Return the start and end of the requested range, and whether it is only a part.

    Raises:
        RequestError: 416, the range is behind the end of the file.
    """
    text = call.header("x-ms-range") or call.header("range")
    found = _RANGE.match(text.strip().lower()) if text else None
    if found is None or not (found[1] or found[2]):
        return 0, size, False  # an invalid range is ignored (RFC 9110)
    if not found[1]:
        start, end = max(0, size - int(found[2])), size
    else:
        start, end = int(found[1]), min(size, int(found[2] or size) + 1)
    if start >= size or start >= end:
        raise RequestError(
            416,
            "InvalidRange",
            "The range is behind the end of the file.",
            headers={"content-range": f"bytes */{size}"},
        )
    return start, end, True
