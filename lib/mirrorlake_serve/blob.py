"""The blob dialect: whole blobs, blocks and block lists, copies, leases, deletes."""

from __future__ import annotations

import re
import uuid
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from mirrorlake_serve.call import (
    Call,
    body_length,
    check_conditions,
    read_document,
    receive,
)
from mirrorlake_serve.dfs import begin_upload, delete_path, made_headers, warning_headers
from mirrorlake_serve.errors import RequestError, bad_request, not_found, xml_text
from mirrorlake_serve.paths import Target, writable
from mirrorlake_serve.reading import answer_read

_BLOCK_ID = re.compile(r"[A-Za-z0-9+/=_-]{1,128}\Z")
_FOLDER = "x-ms-meta-hdi_isfolder"
_UNKNOWN = ("properties", "metadata", "tier", "snapshot", "appendblock", "page", "undelete", "tags")


async def answer_blob(call: Call) -> Response:
    """Answers one request to a path of a lake.

    Raises:
        RequestError: it is refused.
    """
    method, comp = call.request.method, call.query.get("comp", "").lower()
    if comp == "lease" and method == "PUT":
        return _lease(call)
    if comp == "blocklist" and method == "GET":
        return _uncommitted(call)
    if method in ("GET", "HEAD"):
        if comp:
            raise bad_request("UnsupportedQueryParameter", f"comp={comp} is not known here.")
        return await answer_read(call)
    if method == "DELETE":
        return await delete_path(call, 202)
    if method != "PUT":
        raise RequestError(405, "UnsupportedHttpVerb", "This verb is not known here.")
    if comp in _UNKNOWN:
        raise bad_request("UnsupportedQueryParameter", f"comp={comp} is not known here.")
    target = writable(call.parts)
    if comp == "block":
        return await _put_block(call, target)
    if comp == "blocklist":
        return await _put_block_list(call, target)
    if comp:
        raise bad_request("InvalidQueryParameterValue", f"comp={comp} is not known here.")
    if call.header("x-ms-copy-source"):
        return await _copy(call, target)
    return await _put_blob(call, target)


async def _put_blob(call: Call, target: Target) -> Response:
    zone = call.item.zone
    kind = call.header("x-ms-blob-type")
    if kind not in (None, "BlockBlob"):
        raise bad_request("InvalidHeaderValue", f"x-ms-blob-type {kind!r} is not known here.")
    info = await run_in_threadpool(zone.files.stat, target.path)
    is_mark = call.request.scope["raw_path"].endswith(b"/") or call.header(_FOLDER)
    if is_mark and body_length(call.request) == 0:  # how pyarrow makes a folder
        await run_in_threadpool(zone.files.make_folder, target.path)
        return Response(status_code=201, headers=made_headers(call, info, '"0x0"'))
    if info is not None and info.is_folder:
        raise RequestError(409, "PathConflict", "There is a folder at this path.")
    if call.header("if-match"):
        check_conditions(call.request.headers, info, reading=False)
    only_new = call.header("if-none-match") == "*"
    if only_new and info is not None:
        raise RequestError(409, "BlobAlreadyExists", "There is a blob at this path.")
    if body_length(call.request) == 0 and target.is_visible:
        # The beginning of a blob whose blocks come later; an empty data file is never published.
        upload = await begin_upload(call, target, info)
        made = zone.files.local_info(upload.data)
        return Response(status_code=201, headers=made_headers(call, made, upload.etag))
    zone.receipts.uploaded(target.path)
    scratch = zone.uploads.scratch()
    try:
        with zone.coming(target.path):
            await receive(call.request, scratch)
            return await _publish(call, scratch, target, only_new)
    finally:
        await run_in_threadpool(scratch.unlink, missing_ok=True)


async def _publish(call: Call, staged: Path, target: Target, only_new: bool) -> Response:
    info, warnings = await call.item.zone.publish(staged, target, only_new=only_new)
    await run_in_threadpool(call.item.zone.uploads.discard, target.path)
    return Response(status_code=201, headers=made_headers(call, info) | warning_headers(warnings))


async def _put_block(call: Call, target: Target) -> Response:
    block = call.query.get("blockid", "")
    if not _BLOCK_ID.match(block):
        raise bad_request("InvalidQueryParameterValue", "blockid is not Base64.")
    length = body_length(call.request)
    if length is None:
        raise RequestError(411, "MissingContentLengthHeader", "A block has a Content-Length.")
    zone = call.item.zone
    upload = zone.uploads.get(target.path)
    if upload is None:
        zone.receipts.uploaded(target.path)
        upload = await run_in_threadpool(zone.uploads.get_or_create, target.path)
    with upload.writing():
        at = upload.reserve(length)
        found = await receive(call.request, upload.data, at, length)
        await run_in_threadpool(upload.add, at, found, block)
    return Response(status_code=201, headers=made_headers(call, None))


async def _put_block_list(call: Call, target: Target) -> Response:
    wanted = _blocks(await read_document(call.request))
    zone = call.item.zone
    upload = zone.uploads.get(target.path)
    info = await run_in_threadpool(zone.files.stat, target.path)
    only_new = call.header("if-none-match") == "*"
    match = call.header("if-match")
    if match and not (upload and match.strip('"') == upload.etag.strip('"')):
        check_conditions(call.request.headers, info, reading=False)
    if upload is None:
        if wanted:
            before = zone.recent(target.path)
            if before is not None and not only_new:  # the answer to the first try was lost
                return Response(status_code=201, headers=made_headers(call, before))
            raise bad_request("InvalidBlockList", f"Block {wanted[0]!r} was not uploaded.")
        upload = await begin_upload(call, target, info)
    staged = await run_in_threadpool(upload.finish_blocks, wanted)
    try:
        return await _publish(call, staged, target, only_new)
    finally:
        await run_in_threadpool(zone.uploads.discard, target.path, upload)


def _blocks(body: bytes) -> list[str]:
    if b"<!" in body:  # neither entities nor document types
        raise bad_request("InvalidXmlDocument", "The block list is not plain XML.")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - no entities, see above
    except (ElementTree.ParseError, ValueError, LookupError):
        raise bad_request("InvalidXmlDocument", "The block list is not XML.") from None
    if root.tag != "BlockList" or any(e.tag not in _KINDS for e in root):
        raise bad_request("InvalidXmlNodeValue", "The block list has an unknown element.")
    return [(element.text or "").strip() for element in root]


_KINDS = ("Latest", "Uncommitted", "Committed")


def _uncommitted(call: Call) -> Response:
    upload = call.item.zone.uploads.get(call.path)
    if upload is None and call.item.zone.files.stat(call.path) is None:
        raise not_found()
    found = upload.blocks if upload else {}
    lines = "".join(
        f"<Block><Name>{xml_text(block)}</Name><Size>{size}</Size></Block>"
        for block, size in found.items()
    )
    text = (
        '<?xml version="1.0" encoding="utf-8"?><BlockList><CommittedBlocks/>'
        f"<UncommittedBlocks>{lines}</UncommittedBlocks></BlockList>"
    )
    return Response(text, 200, media_type="application/xml")


async def _copy(call: Call, target: Target) -> Response:
    source = "/".join(call.source(call.header("x-ms-copy-source") or ""))
    writable(tuple(source.split("/")))
    zone = call.item.zone
    scratch = zone.uploads.scratch()
    try:
        with zone.coming(target.path):
            await run_in_threadpool(_copy_bytes, call, source, scratch)
            answer = await _publish(call, scratch, target, call.header("if-none-match") == "*")
    finally:
        await run_in_threadpool(scratch.unlink, missing_ok=True)
    answer.status_code = 202
    answer.headers["x-ms-copy-id"] = str(uuid.uuid4())
    answer.headers["x-ms-copy-status"] = "success"
    return answer


def _copy_bytes(call: Call, source: str, scratch: Path) -> None:
    try:
        info, read = call.item.zone.files.open(source)
    except (FileNotFoundError, IsADirectoryError):
        raise RequestError(404, "CannotVerifyCopySource", "The source is not there.") from None
    with open(scratch, "wb") as sink:
        for piece in read(0, info.size):
            sink.write(piece)


def _lease(call: Call) -> Response:
    """Leases are given and taken back; they keep nobody out, since renames never overwrite."""
    action = (call.header("x-ms-lease-action") or "").lower()
    headers = {"content-length": "0"}
    path = call.path
    info = call.item.zone.files.stat(path)
    if info is None:
        raise not_found()
    headers |= made_headers(call, info)
    lease = call.header("x-ms-lease-id") or call.header("x-ms-proposed-lease-id")
    lease = lease if lease and _LEASE.match(lease) else str(uuid.uuid4())
    if action == "acquire":
        return Response(status_code=201, headers=headers | {"x-ms-lease-id": lease})
    if action in ("renew", "change", "release"):
        return Response(status_code=200, headers=headers | {"x-ms-lease-id": lease})
    if action == "break":  # without the time, pyarrow's client aborts the process
        return Response(status_code=202, headers=headers | {"x-ms-lease-time": "0"})
    raise bad_request("InvalidHeaderValue", "x-ms-lease-action is not known.")


_LEASE = re.compile(r"[0-9A-Fa-f-]{1,64}\Z")
