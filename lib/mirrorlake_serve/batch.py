"""Several deletes in one request, as `multipart/mixed`: what obstore's delete and rename send."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from mirrorlake_serve.call import read_document
from mirrorlake_serve.errors import bad_request

_BOUNDARY = re.compile(r'boundary="?([^";]{1,70})"?', re.IGNORECASE)
_REQUEST = re.compile(r"(DELETE) (\S+) HTTP/1\.[01]\Z")
_MOST = 256
Answer = Callable[[Request], Awaitable[Response]]


async def answer_batch(request: Request, answer: Answer) -> Response:
    """Answers each part on its own; a part that fails stops no other.

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
        raise bad_request("InvalidInput", "A part of the batch is no DELETE with a Content-ID.")
    try:
        url = urlsplit(found[2])
    except ValueError:
        raise bad_request("InvalidUri", "A part of the batch has no path.") from None
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
