"""Request paths, error responses and dialects of the storage protocol.

A path is decoded once. Every part that could leave its folder is refused.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote_to_bytes, urlsplit
from xml.sax.saxutils import escape

from starlette.responses import Response

from mirrorlake.errors import InvalidNameError, MirrorlakeError
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


_LONGEST_PATH = 1024  # characters, as in the protocol
_LONGEST_PART = 255  # bytes, as on disks
_STILL_ENCODED = re.compile(r"%(2f|5c|2e|00|0a|0d)", re.IGNORECASE)
_STAGED = re.compile(r"_\d{20}\.(parquet|csv)", re.ASCII | re.IGNORECASE)
FOLDER_MARK = "_folder"  # stands for an empty folder where the storage has no folders
_READABLE = (ZONE, MONITORING, TABLES)


def decode(raw: str) -> tuple[str, ...]:
    """The parts of a path as it was sent, decoded once.

    Raises:
        RequestError: it is not UTF-8, too long, or a part can't be a file's or folder's name.
    """
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise bad_request("InvalidUri", "The path is not UTF-8.") from None
    if len(text) > _LONGEST_PATH:
        raise bad_request("InvalidUri", f"The path is longer than {_LONGEST_PATH} characters.")
    return split(text)


def split(text: str) -> tuple[str, ...]:
    """The parts of a decoded path; empty ones at its ends are dropped. Raises as `decode`."""
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
        return "has an encoded or foreign separator in it"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in part):
        return "has a control character in it"
    if len(part.encode()) > _LONGEST_PART:
        return f"is longer than {_LONGEST_PART} bytes"
    return ""


def rename_source(header: str) -> tuple[str, ...]:
    """The parts of a rename's or copy's source: a path, or a URL with or without a query."""
    found = header.strip()
    if re.match(r"https?://", found, re.IGNORECASE):
        try:
            found = urlsplit(found).path
        except ValueError:
            raise bad_request("InvalidSourceUri", "The source is not a URL.") from None
    return decode(found.partition("?")[0])


@dataclass(frozen=True)
class Target:
    """A path within a lake, and what it means in the format.

    Attributes:
        path: relative to the lake's root.
        table: the table whose folder it lies directly in; None elsewhere.
        name: its last part.
    """

    path: str
    table: TableName | None = None
    name: str = ""

    @property
    def is_visible(self) -> bool:
        """Whether the mirror may read it as a data file."""
        return self.table is not None and not self.name.startswith(("_", "."))

    @property
    def number(self) -> int | None:
        """The number of a data file that is numbered."""
        return file_number(self.name) if self.is_visible else None

    @property
    def is_in_partition(self) -> bool:
        """True for a data file in a visible partition folder such as `Region=eu`."""
        folders = self.path.removeprefix(f"{ZONE}/").split("/")[:-1]
        is_hidden = any(folder.startswith(("_", ".")) for folder in folders)
        is_data = self.table is None and file_number(self.name) is not None
        return is_data and not is_hidden and any("=" in folder for folder in folders[-1:])

    @property
    def is_staged(self) -> bool:
        """Whether it is a data file before its rename, by its name."""
        return self.table is not None and bool(_STAGED.match(self.name))

    @property
    def is_metadata(self) -> bool:
        """Whether it declares a table."""
        return self.table is not None and self.name == METADATA


def readable(parts: tuple[str, ...]) -> str:
    """The path of what may be read: the zone, the monitoring files, the tables, and above them.

    Raises:
        RequestError: it is none of those.
    """
    path = "/".join(parts)
    inside = any(path == base or path.startswith(f"{base}/") for base in _READABLE)
    above = any(f"{base}/".startswith(f"{path}/") for base in _READABLE)
    if not (inside or above or not path):
        raise RequestError(404, "PathNotFound", f"Only {', '.join(_READABLE)} are served.")
    return path


def writable(parts: tuple[str, ...]) -> Target:
    """The target of a write.

    Raises:
        RequestError: it lies outside the landing zone, or is the mirror's own.
    """
    zone = tuple(ZONE.split("/"))
    if parts[: len(zone)] != zone:
        raise forbidden(f"Nothing but {ZONE} can be written to.")
    inner = parts[len(zone) :]
    if not inner:
        raise RequestError(409, "OperationNotAllowedOnThePath", f"{ZONE} itself stays as it is.")
    if inner[-1] in (IDENTITY, FOLDER_MARK):
        raise forbidden(f"{inner[-1]} is not a publisher's file.")
    return Target("/".join(parts), _table(inner), inner[-1])


def _table(inner: tuple[str, ...]) -> TableName | None:
    """The table in whose folder a path of the zone lies directly."""
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
