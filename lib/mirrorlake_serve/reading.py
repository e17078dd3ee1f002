"""HEAD and GET of files and folders, alike in both dialects: properties, ranges, conditions."""

from __future__ import annotations

import re

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from mirrorlake_serve.call import Call, check_conditions, http_date
from mirrorlake_serve.errors import RequestError, not_found
from mirrorlake_serve.files import Info

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")


async def answer_read(call: Call) -> Response:
    """Answers HEAD and GET of a path.

    Raises:
        RequestError: nothing is there, or a condition or range doesn't hold.
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
    if now.etag != info.etag:  # another file is there since
        info, end = now, min(end, now.size)
        start = min(start, end)
    headers = properties(info) | {"content-length": str(end - start)}
    if is_part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{info.size}"
    kind = "application/octet-stream"
    return StreamingResponse(read(start, end), 206 if is_part else 200, headers, kind)


def _being_uploaded(call: Call, path: str) -> Info:
    """A file that was made and not flushed: it is empty, and no listing shows it."""
    upload = call.item.zone.uploads.get(path)
    if upload is None:
        raise not_found()
    return call.item.zone.files.local_info(upload.data).empty(path, upload.etag)


def _length(info: Info) -> dict[str, str]:
    return {"content-length": str(info.size), "content-type": "application/octet-stream"}


def properties(info: Info) -> dict[str, str]:
    """A file's or folder's properties as headers that both dialects read."""
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
    """From where up to where is asked for, and whether that is a part.

    Raises:
        RequestError: 416, the range lies behind the end.
    """
    text = call.header("x-ms-range") or call.header("range")
    found = _RANGE.match(text.strip().lower()) if text else None
    if found is None or not (found[1] or found[2]):
        return 0, size, False  # a range that makes no sense is no range (RFC 9110)
    if not found[1]:
        start, end = max(0, size - int(found[2])), size
    else:
        start, end = int(found[1]), min(size, int(found[2] or size) + 1)
    if start >= size or start >= end:
        raise RequestError(
            416,
            "InvalidRange",
            "The range has nothing of the file.",
            headers={"content-range": f"bytes */{size}"},
        )
    return start, end, True
