"""Request paths, error responses and dialects of the storage protocol.

A path is decoded once. Every part that could leave its folder is refused.
"""

from __future__ import annotations

import errno
import json
import re
import unicodedata
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote_to_bytes, urlsplit
from xml.sax.saxutils import escape

from obstore.exceptions import BaseError
from starlette.responses import Response

from mirrorlake.errors import InvalidNameError, MirrorlakeError, SetupError
from mirrorlake.names import (
    IDENTITY,
    METADATA,
    MONITORING,
    SCHEMA_SUFFIX,
    TABLES,
    ZONE,
    TableName,
    file_number,
)

_OS_ERRORS = {
    errno.ENOENT: (404, "PathNotFound", "The file or folder was removed meanwhile."),
    errno.ENOTDIR: (409, "PathConflict", "There is a file where a folder is needed."),
    errno.EISDIR: (409, "PathConflict", "There is a folder where a file is needed."),
    errno.EEXIST: (409, "PathAlreadyExists", "The path already exists."),
    errno.ENOTEMPTY: (409, "DirectoryNotEmpty", "The folder is not empty."),
    errno.ENAMETOOLONG: (400, "InvalidResourceName", "The path is too long for the file system."),
    errno.EINVAL: (400, "InvalidResourceName", "The file system does not allow the name."),
    errno.EILSEQ: (400, "InvalidResourceName", "The file system does not allow the name."),
}


class Dialect(Enum):
    """The protocol of a request; each has its own form of errors."""

    DFS = "dfs"
    BLOB = "blob"
    REST = "rest"


class RequestError(MirrorlakeError):
    """A refused request.

    Args:
        status: the HTTP status.
        code: the protocol's error code, such as `PathNotFound`.
        message: the problem.
        headers: additional headers of the response.
    """

    def __init__(
        self, status: int, code: str, message: str, *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}

    def response(self, dialect: Dialect, *, head: bool = False) -> Response:
        """Return the response with the code in header and body; a HEAD has no body and no type."""
        headers = {"x-ms-error-code": self.code, **self.headers}
        # pyarrow's client aborts its process if an empty body has a JSON type.
        if head or self.status == 304:
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
    """Return text escaped for XML 1.0; invalid characters become question marks."""
    allowed = (c if c >= " " and not 0xD800 <= ord(c) <= 0xDFFF else "?" for c in text)
    return escape("".join(allowed).replace("\ufffe", "?").replace("\uffff", "?"))


def not_found(message: str = "The path does not exist.") -> RequestError:
    """Return the error 404 for a path, as both dialects write it."""
    return RequestError(404, "PathNotFound", message)


def bad_request(code: str, message: str) -> RequestError:
    """Return the error 400 with a code."""
    return RequestError(400, code, message)


def refusal(error: Exception) -> RequestError:
    """Return the error for a client; its status is 503, which clients retry, if a store failed."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, OSError) and error.errno in _OS_ERRORS:
        return RequestError(*_OS_ERRORS[error.errno])
    if isinstance(error, FileNotFoundError):
        return RequestError(*_OS_ERRORS[errno.ENOENT])
    is_writer = isinstance(error, OSError) and error.errno is None  # of an object store
    if is_writer or isinstance(error, (SetupError, BaseError)):
        text = "The lake's store failed; the server's log has the reason."
        return RequestError(503, "ServerBusy", f"{text} Hint: send the request again.")
    if isinstance(error, MirrorlakeError):
        return bad_request("InvalidInput", str(error))
    return RequestError(500, "InternalError", "The server failed; its log has the reason.")


def forbidden(message: str) -> RequestError:
    """Return the error 403 for an operation that this server never permits."""
    return RequestError(403, "AuthorizationPermissionMismatch", message)


_LONGEST_PATH = 1024  # characters, as in the protocol
_LONGEST_PART = 255  # bytes, as on disks
_STILL_ENCODED = re.compile(r"%(2f|5c|2e|00|0a|0d)", re.IGNORECASE)
_STAGED = re.compile(r"_\d{20}\.(parquet|csv)", re.ASCII | re.IGNORECASE)
FOLDER_MARK = "_folder"  # represents an empty folder in an object store
_READABLE = (ZONE, MONITORING, TABLES)


def decode(raw: str) -> tuple[str, ...]:
    """Return the parts of a raw path, decoded once.

    Raises:
        RequestError: the path is not UTF-8 or too long, or a part can't be the name of a file or
            folder.
    """
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise bad_request("InvalidUri", "The path is not UTF-8.") from None
    if len(text) > _LONGEST_PATH:
        raise bad_request("InvalidUri", f"The path is longer than {_LONGEST_PATH} characters.")
    return split(text)


def split(text: str) -> tuple[str, ...]:
    """Return the parts of a decoded path without empty parts at its ends; raises as `decode`."""
    stripped = text.strip("/")
    parts = tuple(stripped.split("/")) if stripped else ()
    for part in parts:
        problem = _problem(part)
        if problem:
            raise bad_request("InvalidResourceName", f"The name {part!r} {problem}.")
    return parts


def _problem(part: str) -> str:
    if not part or part.isspace():
        return "is empty"
    if part in (".", ".."):
        return "would leave its folder"
    if "\\" in part or _STILL_ENCODED.search(part):
        return "contains an encoded or foreign separator"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in part):
        return "contains a control character"
    if len(part.encode()) > _LONGEST_PART:
        return f"is longer than {_LONGEST_PART} bytes"
    return ""


def rename_source(header: str) -> tuple[str, ...]:
    """Return the parts of the source of a rename or copy.

    Args:
        header: a path, or a URL with or without a query.
    """
    found = header.strip()
    if re.match(r"https?://", found, re.IGNORECASE):
        try:
            found = urlsplit(found).path
        except ValueError:
            raise bad_request("InvalidSourceUri", "The source is not a valid URL.") from None
    return decode(found.partition("?")[0])


@dataclass(frozen=True)
class Target:
    """A path within a lake, and its role in the published format.

    Attributes:
        path: relative to the lake's root.
        table: the table whose folder directly contains the path; None for other paths.
        name: the last part of the path.
    """

    path: str
    table: TableName | None = None
    name: str = ""

    @property
    def is_visible(self) -> bool:
        """Whether the mirror may read the file as a data file."""
        return self.table is not None and not self.name.startswith(("_", "."))

    @property
    def number(self) -> int | None:
        """The number of a numbered data file, or None."""
        return file_number(self.name) if self.is_visible else None

    @property
    def is_in_partition(self) -> bool:
        """Whether it is a data file in a visible partition folder such as `Region=eu`."""
        folders = self.path.removeprefix(f"{ZONE}/").split("/")[:-1]
        is_hidden = any(folder.startswith(("_", ".")) for folder in folders)
        is_data = self.table is None and file_number(self.name) is not None
        return is_data and not is_hidden and any("=" in folder for folder in folders[-1:])

    @property
    def is_staged(self) -> bool:
        """Whether the name is that of a data file before its rename."""
        return self.table is not None and bool(_STAGED.match(self.name))

    @property
    def is_metadata(self) -> bool:
        """Whether the file declares a table."""
        return self.table is not None and self.name == METADATA


def readable(parts: tuple[str, ...]) -> str:
    """Return the path if it may be read.

    These are the landing zone, the monitoring files, the tables, and the parents of these folders.

    Raises:
        RequestError: the path is not one of these.
    """
    path = "/".join(parts)
    inside = any(path == base or path.startswith(f"{base}/") for base in _READABLE)
    above = any(f"{base}/".startswith(f"{path}/") for base in _READABLE)
    if not (inside or above or not path):
        raise RequestError(404, "PathNotFound", f"The path is not in {', '.join(_READABLE)}.")
    return path


def writable(parts: tuple[str, ...]) -> Target:
    """Return the target of a write.

    Raises:
        RequestError: the path is not in the landing zone, or belongs to the mirror.
    """
    zone = tuple(ZONE.split("/"))
    if parts[: len(zone)] != zone:
        raise forbidden(f"Only {ZONE} is writable.")
    inner = parts[len(zone) :]
    if not inner:
        raise RequestError(409, "OperationNotAllowedOnThePath", f"{ZONE} itself can't be changed.")
    if inner[-1] in (IDENTITY, FOLDER_MARK):
        raise forbidden(f"Publishers can't write {inner[-1]}.")
    return Target("/".join(parts), _table(inner), inner[-1])


def _table(inner: tuple[str, ...]) -> TableName | None:
    """Return the table whose folder directly contains a path of the zone, or None."""
    folders = inner[:-1]
    schema: str | None = None
    if folders and folders[0].endswith(SCHEMA_SUFFIX):
        schema, folders = folders[0][: -len(SCHEMA_SUFFIX)], folders[1:]
    if len(folders) != 1 or folders[0].startswith("_"):
        return None
    try:
        return TableName(schema, folders[0])
    except InvalidNameError as error:
        raise bad_request("InvalidResourceName", str(error)) from None
