"""Refused requests: one error with HTTP status and protocol code, written in three dialects."""

from __future__ import annotations

import json
from enum import Enum
from xml.sax.saxutils import escape

from starlette.responses import Response

from mirrorlake.errors import MirrorlakeError


class Dialect(Enum):
    """Which protocol a request speaks; each writes errors its own way."""

    DFS = "dfs"
    BLOB = "blob"
    REST = "rest"


class RequestError(MirrorlakeError):
    """A request that is refused.

    Args:
        status: the HTTP status.
        code: the protocol's error code, such as `PathNotFound`.
        message: what was found.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}

    def response(self, dialect: Dialect, *, head: bool = False) -> Response:
        """The answer, with the code in header and body; a HEAD has neither body nor its type."""
        headers = {"x-ms-error-code": self.code, **self.headers}
        if (
            head or self.status == 304
        ):  # a JSON type on an empty body makes pyarrow's client abort the process
            return Response(status_code=self.status, headers=headers)
        if dialect is Dialect.BLOB:
            body = (
                '<?xml version="1.0" encoding="utf-8"?><Error>'
                f"<Code>{self.code}</Code><Message>{xml_text(self.message)}</Message></Error>"
            )
            return Response(body, self.status, headers, "application/xml")
        document: dict[str, object] = {"error": {"code": self.code, "message": self.message}}
        if dialect is Dialect.REST:
            headers["x-ms-public-api-error-code"] = self.code
            document = {"errorCode": self.code, "message": self.message}
        return Response(json.dumps(document), self.status, headers, "application/json")


def xml_text(text: str) -> str:
    """Text as it may stand in XML 1.0; what may not becomes a question mark."""
    allowed = (c if c >= " " and not 0xD800 <= ord(c) <= 0xDFFF else "?" for c in text)
    return escape("".join(allowed).replace("\ufffe", "?").replace("\uffff", "?"))


def not_found(message: str = "There is no file or folder at this path.") -> RequestError:
    """404, as both dialects say it for a path."""
    return RequestError(404, "PathNotFound", message)


def bad_request(code: str, message: str) -> RequestError:
    """400 with a code."""
    return RequestError(400, code, message)


def forbidden(message: str) -> RequestError:
    """403 for what this server never lets anybody do."""
    return RequestError(403, "AuthorizationPermissionMismatch", message)
