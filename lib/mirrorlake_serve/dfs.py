"""The DFS dialect: folders, append and flush, rename, delete, and listings as JSON."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from email.utils import format_datetime

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from mirrorlake.names import ZONE
from mirrorlake_serve.call import (
    Call,
    answer_read,
    check_conditions,
    http_date,
    properties,
    receive,
)
from mirrorlake_serve.files import Info, Upload, page_of
from mirrorlake_serve.protocol import RequestError, Target, bad_request, not_found, split, writable

_IGNORED = ("x-ms-owner", "x-ms-group", "x-ms-permissions", "x-ms-acl")


async def answer_dfs(call: Call) -> Response:
    """Respond to one request to a path of a lake.

    Raises:
        RequestError: the request is refused.
    """
    method, action = call.request.method, call.query.get("action", "").lower()
    if method in ("GET", "HEAD"):
        return await _read(call, action)
    if method == "PUT":
        return await _put(call)
    if method == "DELETE":
        return await delete_path(call, 200)
    if method in ("PATCH", "POST"):
        if action == "append":
            return await _append(call)
        if action == "flush":
            return await _flush(call, writable(call.parts), call.number("position"), 200)
        raise bad_request("OperationNotSupported", f"The action {action!r} is not supported.")
    raise RequestError(405, "UnsupportedHttpVerb", "The HTTP method is not supported.")


async def _read(call: Call, action: str) -> Response:
    if call.query.get("resource", "").lower() == "filesystem":
        return await answer_list(call, call.parts)
    if action in ("getaccesscontrol", "getstatus"):
        info = await run_in_threadpool(call.item.zone.files.stat, call.path)
        if info is None:
            raise not_found()
        return Response(status_code=200, headers=properties(info) | {"content-length": "0"})
    return await answer_read(call)


async def answer_list(call: Call, base: tuple[str, ...]) -> Response:
    """Return a listing of a folder of the lake as one line of JSON."""
    parts = (*base, *split(call.query.get("directory", "")))
    most = min(call.number("maxresults", 5000) or 5000, 5000)
    token = call.query.get("continuation")
    files = call.item.zone.files
    recursive = call.query.get("recursive", "").lower() == "true"
    page = await run_in_threadpool(page_of, files, parts, recursive, most, token)
    entries = [_entry(call.item_text, info) for info in page.entries]
    headers = {"x-ms-continuation": page.after} if page.after else {}
    text = json.dumps({"paths": entries}, ensure_ascii=False)
    return Response(text, 200, headers, "application/json;charset=utf-8")


def _entry(item: str, info: Info) -> dict[str, str]:
    found = {"name": f"{item}/{info.path}" if info.path else item}
    if info.is_folder:
        found["isDirectory"] = "true"
    return found | {
        "contentLength": str(info.size),
        "lastModified": format_datetime(info.modified, usegmt=True),
        "etag": info.etag.strip('"'),
        "owner": "$superuser",
        "group": "$superuser",
        "permissions": "---------",
    }


def made_headers(call: Call, info: Info | None, etag: str = "") -> dict[str, str]:
    """Return the headers of the response to a write."""
    found = {"content-length": "0", "x-ms-request-server-encrypted": "false"}
    # pyarrow's client aborts its process if one of these headers is missing.
    now = format_datetime(datetime.now(timezone.utc), usegmt=True)
    found |= {"etag": '"0x0"', "last-modified": now}
    if info is not None:
        found |= {"etag": info.etag, "last-modified": http_date(info)}
    if etag:
        found["etag"] = etag
    ignored = [name for name in _IGNORED if call.header(name)]
    return found | ({"x-ms-rejected-headers": ",".join(ignored)} if ignored else {})


def warning_headers(warnings: tuple[str, ...]) -> dict[str, str]:
    """Return warnings as a header of a successful response."""
    if not warnings:
        return {}
    text = " ".join(warnings).encode("ascii", "replace").decode().replace('"', "'")
    printable = "".join(char if char.isprintable() else " " for char in text)
    return {"warning": f'299 mirrorlake "{printable[:1000]}"'}


async def _put(call: Call) -> Response:
    resource = call.query.get("resource", "").lower()
    if resource == "directory" and f"{ZONE}/".startswith("/".join([*call.parts, ""])):
        # Some clients create every parent folder first; these always exist.
        return Response(status_code=201, headers=made_headers(call, None, '"0x0"'))
    target = writable(call.parts)
    source = call.header("x-ms-rename-source")
    only_new = call.header("if-none-match") == "*"
    zone = call.item.zone
    if source is not None:
        writable(origin := call.source(source))
        renamed, warnings = await zone.rename("/".join(origin), target, only_new=only_new)
        return Response(
            status_code=201, headers=made_headers(call, renamed) | warning_headers(warnings)
        )
    info = await run_in_threadpool(zone.files.stat, target.path)
    if only_new and info is not None:
        raise RequestError(409, "PathAlreadyExists", "The path already exists.")
    if resource == "directory":
        if info is not None and not info.is_folder:
            raise RequestError(409, "PathAlreadyExists", "There is a file at this path.")
        await run_in_threadpool(zone.files.make_folder, target.path)
        info = await run_in_threadpool(zone.files.stat, target.path)
        return Response(status_code=201, headers=made_headers(call, info))
    if resource != "file":
        raise bad_request(
            "InvalidQueryParameterValue", f"The resource {resource!r} is not file or directory."
        )
    upload = await begin_upload(call, target, info)
    made = zone.files.local_info(upload.data)
    return Response(status_code=201, headers=made_headers(call, made, upload.etag))


async def begin_upload(call: Call, target: Target, info: Info | None) -> Upload:
    """Create a file that stays invisible until it is flushed.

    Raises:
        RequestError: the path is a folder, or a condition of the request is not met.
    """
    if info is not None and info.is_folder:
        raise RequestError(409, "PathConflict", "There is a folder at this path.")
    if call.header("if-match"):
        check_conditions(call.request.headers, info, reading=False)
    zone = call.item.zone
    zone.receipts.uploaded(target.path)
    return await run_in_threadpool(zone.uploads.create, target.path)


async def _append(call: Call) -> Response:
    target = writable(call.parts)
    position = call.number("position")
    upload = call.item.zone.uploads.get(target.path)
    if upload is None:
        upload = await run_in_threadpool(_reopen, call, target, position)
    with upload.writing():
        length = await receive(call.request, upload.data, position)
        await run_in_threadpool(upload.add, position, length)
    if call.flag("flush"):
        return await _flush(call, target, position + length, 202)
    headers = {"content-length": "0", "x-ms-request-server-encrypted": "false"}
    return Response(status_code=202, headers=headers)


def _reopen(call: Call, target: Target, position: int) -> Upload:
    """Return an upload that continues after the flushed bytes, or replaces the file from its start.

    Raises:
        RequestError: the file does not exist.
    """
    zone = call.item.zone
    try:
        info, read = zone.files.open(target.path)
    except (FileNotFoundError, IsADirectoryError):
        raise not_found("The file was not created before the append.") from None
    upload = zone.uploads.create(target.path)
    kept = info.size if position == info.size else 0
    with open(upload.data, "wb") as sink:
        for piece in read(0, kept):
            sink.write(piece)
    if kept:
        upload.add(0, kept)
    return upload


async def _flush(call: Call, target: Target, position: int, status: int) -> Response:
    zone = call.item.zone
    upload = zone.uploads.get(target.path)
    only_new = call.header("if-none-match") == "*"
    if upload is None:
        found = zone.recent(target.path) or await run_in_threadpool(zone.files.stat, target.path)
        if found is None or found.is_folder:
            raise not_found()
        if only_new:
            raise RequestError(409, "PathAlreadyExists", "There is a file at this path.")
        if found.size != position:
            raise bad_request(
                "InvalidFlushPosition",
                f"The flush position is {position}, but the file ends at {found.size}.",
            )
        return Response(status_code=status, headers=made_headers(call, found))
    match = call.header("if-match")
    if match and match not in ("*", upload.etag, upload.etag.strip('"')):
        now = await run_in_threadpool(zone.files.stat, target.path)
        check_conditions(call.request.headers, now, reading=False)
    staged = await run_in_threadpool(upload.finish, position)
    async with zone.ending(upload, target):
        info, warnings = await zone.publish(staged, target, only_new=only_new)
    return Response(
        status_code=status, headers=made_headers(call, info) | warning_headers(warnings)
    )


async def delete_path(call: Call, status: int) -> Response:
    """Delete a file or folder; each dialect has its own status for the response."""
    target = writable(call.parts)
    if len(call.parts) < 3:
        raise RequestError(409, "OperationNotAllowedOnThePath", "This folder can't be deleted.")
    if call.header("if-match") or call.header("if-none-match"):
        info = await run_in_threadpool(call.item.zone.files.stat, target.path)
        check_conditions(call.request.headers, info, reading=False)
    recursive = call.flag("recursive")
    await run_in_threadpool(call.item.zone.delete, target, recursive=recursive)
    headers = {"content-length": "0", "x-ms-delete-type-permanent": "true"}
    return Response(status_code=status, headers=headers)
