"""The blob dialect: blobs, blocks and block lists, copies, leases, deletes, listings, batches.

obstore sends its deletes and renames as a batch: several deletes in one `multipart/mixed` request.
"""

from __future__ import annotations

import re
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable, Iterator, Mapping
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mirrorlake_serve.call import (
    Call,
    answer_read,
    body_length,
    check_conditions,
    read_document,
    receive,
    whole_number,
)
from mirrorlake_serve.dfs import begin_upload, delete_path, made_headers, warning_headers
from mirrorlake_serve.files import Info, decode_token, encode_token, visible
from mirrorlake_serve.lakes import Item, Workspace
from mirrorlake_serve.protocol import (
    RequestError,
    Target,
    bad_request,
    not_found,
    split,
    writable,
    xml_text,
)

_BLOCK_ID = re.compile(r"[A-Za-z0-9+/=_-]{1,128}\Z")
_FOLDER = "x-ms-meta-hdi_isfolder"
_UNKNOWN = ("properties", "metadata", "tier", "snapshot", "appendblock", "page", "undelete", "tags")
_HEAD = '<?xml version="1.0" encoding="utf-8"?>'
_BOUNDARY = re.compile(r'boundary="?([^";]{1,70})"?', re.IGNORECASE)
_REQUEST = re.compile(r"(DELETE) (\S+) HTTP/1\.[01]\Z")
_MOST = 256
Answer = Callable[[Request], Awaitable[Response]]


async def answer_blob(call: Call) -> Response:
    """Respond to one request to a path of a lake.

    Raises:
        RequestError: the request is refused.
    """
    method, comp = call.request.method, call.query.get("comp", "").lower()
    if comp == "lease" and method == "PUT":
        return _lease(call)
    if comp == "blocklist" and method == "GET":
        return _uncommitted(call)
    if method in ("GET", "HEAD"):
        if comp:
            raise bad_request("UnsupportedQueryParameter", f"comp={comp} is not supported.")
        return await answer_read(call)
    if method == "DELETE":
        return await delete_path(call, 202)
    if method != "PUT":
        raise RequestError(405, "UnsupportedHttpVerb", "The HTTP method is not supported.")
    if comp in _UNKNOWN:
        raise bad_request("UnsupportedQueryParameter", f"comp={comp} is not supported.")
    target = writable(call.parts)
    if comp == "block":
        return await _put_block(call, target)
    if comp == "blocklist":
        return await _put_block_list(call, target)
    if comp:
        raise bad_request("InvalidQueryParameterValue", f"comp={comp} is not supported.")
    if call.header("x-ms-copy-source"):
        return await _copy(call, target)
    return await _put_blob(call, target)


async def _put_blob(call: Call, target: Target) -> Response:
    zone = call.item.zone
    kind = call.header("x-ms-blob-type")
    if kind not in (None, "BlockBlob"):
        raise bad_request("InvalidHeaderValue", f"x-ms-blob-type {kind!r} is not supported.")
    info = await run_in_threadpool(zone.files.stat, target.path)
    is_folder = call.request.scope["raw_path"].endswith(b"/") or call.header(_FOLDER)
    if is_folder and body_length(call.request) == 0:  # pyarrow creates a folder in this way
        await run_in_threadpool(zone.files.make_folder, target.path)
        return Response(status_code=201, headers=made_headers(call, info, '"0x0"'))
    if info is not None and info.is_folder:
        raise RequestError(409, "PathConflict", "There is a folder at this path.")
    if call.header("if-match"):
        check_conditions(call.request.headers, info, reading=False)
    only_new = call.header("if-none-match") == "*"
    if only_new and info is not None:
        raise RequestError(409, "BlobAlreadyExists", "The blob already exists.")
    if body_length(call.request) == 0 and target.is_visible:
        # The client sends the blocks later. An empty data file is never published.
        upload = await begin_upload(call, target, info)
        made = zone.files.local_info(upload.data)
        return Response(status_code=201, headers=made_headers(call, made, upload.etag))
    zone.receipts.uploaded(target.path)
    scratch = zone.uploads.scratch()
    try:
        with zone.uploading(target.path):
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
        raise RequestError(411, "MissingContentLengthHeader", "A block needs a Content-Length.")
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
            if before is not None and not only_new:  # a retry: the first response was lost
                return Response(status_code=201, headers=made_headers(call, before))
            raise bad_request("InvalidBlockList", f"Block {wanted[0]!r} was not uploaded.")
        upload = await begin_upload(call, target, info)
    staged = await run_in_threadpool(upload.finish_blocks, wanted)
    async with zone.ending(upload, target):
        return await _publish(call, staged, target, only_new)


def _blocks(body: bytes) -> list[str]:
    if b"<!" in body:  # refuse entities and document types
        raise bad_request("InvalidXmlDocument", "The block list has a document type or an entity.")
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
        with zone.uploading(target.path):
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
        raise RequestError(404, "CannotVerifyCopySource", "The source does not exist.") from None
    with open(scratch, "wb") as sink:
        for piece in read(0, info.size):
            sink.write(piece)


def _lease(call: Call) -> Response:
    """Grant or release a lease; leases exclude no other client, because renames never overwrite."""
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
    if action == "break":  # pyarrow's client aborts its process if the time is missing
        return Response(status_code=202, headers=headers | {"x-ms-lease-time": "0"})
    raise bad_request("InvalidHeaderValue", "x-ms-lease-action is not supported.")


_LEASE = re.compile(r"[0-9A-Fa-f-]{1,64}\Z")


def list_blobs(workspace: Workspace, query: Mapping[str, str]) -> Response:
    """Return one page of the blobs of a workspace.

    Args:
        workspace: the lakes.
        query: the parameters; `prefix` selects blobs, `delimiter` lists the folders of one level.

    Raises:
        RequestError: a parameter is invalid.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most = min(whole_number(query.get("maxresults") or "5000", "maxresults") or 5000, 5000)
    token = query.get("marker", "")
    after = decode_token(token) if token else ""
    first = query.get("startfrom", "")
    names: dict[str, Info | None] = {}
    for name, info in _matching(workspace, prefix, flat=not delimiter):
        names[name] = info
    page: list[str] = []
    following = ""
    for name in sorted(names):
        if (after and name <= after) or name < first:
            continue
        if len(page) == most:
            following = encode_token(page[-1])
            break
        page.append(name)
    body = "".join(_blob(name, names[name]) for name in page)
    asked = f"<Prefix>{xml_text(prefix)}</Prefix><MaxResults>{most}</MaxResults>"
    if delimiter:
        asked += f"<Delimiter>{xml_text(delimiter)}</Delimiter>"
    text = (
        f'{_HEAD}<EnumerationResults ContainerName="{workspace.id}">{asked}'
        f"<Blobs>{body}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
    )
    return Response(text, 200, media_type="application/xml")


def _matching(
    workspace: Workspace, prefix: str, *, flat: bool
) -> Iterator[tuple[str, Info | None]]:
    """Yield names and properties that begin with a prefix; a folder's name ends with `/`."""
    parts = split(prefix)
    item = workspace.find(parts[0]) if parts else None
    if item is not None and (len(parts) > 1 or prefix.endswith("/")):
        yield from _of_item(item, parts[0], prefix, flat=flat)
        return
    for one in workspace.items:
        for name in (one.id, f"{one.name}.MountedRelationalDatabase"):
            if parts and name.startswith(prefix):
                if flat:
                    yield from _of_item(one, name, f"{name}/", flat=True)
                else:
                    yield f"{name}/", None
        if not parts:
            if flat:
                yield from _of_item(one, one.id, f"{one.id}/", flat=True)
            else:
                yield f"{one.id}/", None


def _of_item(
    item: Item, text: str, prefix: str, *, flat: bool
) -> Iterator[tuple[str, Info | None]]:
    folder = prefix.rpartition("/")[0][len(text) :].strip("/")
    base = "/".join(split(folder))
    for info in visible(item.zone.files, base, recursive=flat):
        name = f"{text}/{info.path}"
        if not name.startswith(prefix):
            continue
        if not info.is_folder:
            yield name, info
        elif not flat:
            yield f"{name}/", None


def _blob(name: str, info: Info | None) -> str:
    if info is None:
        return f"<BlobPrefix><Name>{xml_text(name)}</Name></BlobPrefix>"
    when = format_datetime(info.modified, usegmt=True)
    return (
        f"<Blob><Name>{xml_text(name)}</Name><Properties>"
        f"<Creation-Time>{when}</Creation-Time><Last-Modified>{when}</Last-Modified>"
        f"<Etag>{info.etag.strip(chr(34))}</Etag><ResourceType>file</ResourceType>"
        f"<Content-Length>{info.size}</Content-Length>"
        "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType>"
        "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
        "</Properties></Blob>"
    )


def list_containers(workspace: Workspace, query: Mapping[str, str]) -> Response:
    """Return the containers of the account: the one workspace."""
    text = "".join(
        f"<Container><Name>{xml_text(name)}</Name><Properties>"
        "<Last-Modified>Wed, 01 Jan 2020 00:00:00 GMT</Last-Modified><Etag>0x0</Etag>"
        "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
        "</Properties></Container>"
        for name in (workspace.id,)
        if name.startswith(query.get("prefix", ""))
    )
    body = (
        f"{_HEAD}<EnumerationResults><Containers>{text}</Containers><NextMarker/>"
        "</EnumerationResults>"
    )
    return Response(body, 200, media_type="application/xml")


async def answer_batch(request: Request, answer: Answer) -> Response:
    """Respond to each part of a batch; a failed part does not stop the others.

    Raises:
        RequestError: the body is not a batch.
    """
    found = _BOUNDARY.search(request.headers.get("content-type", ""))
    if not found:
        raise bad_request("InvalidHeaderValue", "The content type has no boundary.")
    body = (await read_document(request)).decode("utf-8", "replace")
    parts = body.split(f"--{found[1]}")[1:-1]
    if not 1 <= len(parts) <= _MOST:
        raise bad_request("InvalidInput", f"A batch has 1 to {_MOST} parts.")
    boundary = f"batchresponse_{uuid.uuid4()}"
    lines: list[str] = []
    for part in parts:
        number, inner = _part(part, request)
        made = await answer(inner)
        lines += [f"--{boundary}", "Content-Type: application/http", f"Content-ID: {number}", ""]
        lines.append(f"HTTP/1.1 {made.status_code} {_reason(made.status_code)}")
        lines += [f"{name.decode()}: {value.decode()}" for name, value in made.raw_headers]
        lines += ["", bytes(made.body).decode() if made.status_code >= 400 else ""]
    text = "\r\n".join([*lines, f"--{boundary}--", ""])
    return Response(text, 202, {"content-type": f"multipart/mixed; boundary={boundary}"})


def _part(text: str, outer: Request) -> tuple[str, Request]:
    outside, _, inside = text.strip("\r\n").replace("\r\n", "\n").partition("\n\n")
    number = re.search(r"content-id:\s*(\d{1,6})", outside, re.IGNORECASE)
    first, *rest = inside.split("\n")
    found = _REQUEST.match(first.strip())
    if not found or number is None:
        raise bad_request("InvalidInput", "A part of the batch is not a DELETE with a Content-ID.")
    try:
        url = urlsplit(found[2])
    except ValueError:
        raise bad_request("InvalidUri", "The address of a part of the batch is invalid.") from None
    headers = [
        (name.strip().lower().encode(), value.strip().encode())
        for name, _, value in (line.partition(":") for line in rest if line.strip())
        if name.strip().lower() != "authorization"
    ]
    scope = dict(outer.scope) | {
        "method": found[1],
        "path": url.path,
        "raw_path": url.path.encode("ascii", "replace"),
        "query_string": url.query.encode("ascii", "replace"),
        "headers": headers,
    }
    return number[1], Request(scope)


def _reason(status: int) -> str:
    return {202: "Accepted", 200: "OK", 404: "Not Found"}.get(status, "Refused")
