"""The ASGI application: check host and token, choose dialect and lake, dispatch the request."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mirrorlake_serve.blob import answer_batch, answer_blob, list_blobs, list_containers
from mirrorlake_serve.call import Call, resolve
from mirrorlake_serve.dfs import answer_dfs
from mirrorlake_serve.lakes import Mirrors, Workspace
from mirrorlake_serve.protocol import (
    Dialect,
    RequestError,
    bad_request,
    decode,
    forbidden,
    refusal,
    split,
)
from mirrorlake_serve.rest import DebeziumSink, answer_rest, is_debezium, is_rest
from mirrorlake_serve.tokens import Tokens, answer_oauth, is_oauth, is_sas

_log = logging.getLogger("mirrorlake.serve.app")
_BLOB_CLIENTS = re.compile(
    r"azsdk-[a-z]+-(storage[-.]blobs?|azblob)|Azure\.Storage\.Blobs", re.IGNORECASE
)
_DFS_PARAMETERS = {"resource", "action", "recursive"}
_BLOB_HEADERS = ("x-ms-blob-type", "x-ms-copy-source")
_VERSION = re.compile(r"[0-9A-Za-z-]{1,32}\Z")
_REQUEST_ID = re.compile(r"[0-9A-Za-z._:-]{1,128}\Z")
_NEWEST = "2026-06-06"
_MOST_PARAMETERS = 100
_READS = ("GET", "HEAD", "OPTIONS")


class StorageApp:
    """The storage protocol over the lakes of a workspace, as an ASGI application.

    Args:
        workspace: the lakes.
        tokens: checks the credentials of requests.
        mirrors: the mirrors of the lakes.
        sink: the endpoint for Debezium's events.
        hosts: the host names that requests may use, without ports.
        blob_ports: ports at which every request uses the blob dialect.
    """

    def __init__(
        self,
        workspace: Workspace,
        tokens: Tokens,
        mirrors: Mirrors,
        sink: DebeziumSink,
        *,
        hosts: Collection[str],
        blob_ports: Collection[int] = (),
    ) -> None:
        self.workspace = workspace
        self.tokens = tokens
        self.mirrors = mirrors
        self.sink = sink
        self.hosts = {host.lower() for host in hosts}
        self.blob_ports = set(blob_ports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        began = time.perf_counter()
        dialect = Dialect.DFS
        try:
            query = _query(scope["query_string"])
            dialect = self._dialect(request, {name.lower(): value for name, value in query})
            response = await self._answer(request, dialect, query)
        except ClientDisconnect:
            return
        except Exception as error:
            refused = refusal(error)
            if refused.status >= 500:
                _log.exception("%s failed", request.method)
            response = refused.response(dialect, head=request.method == "HEAD")
        _finish(request, response)
        seconds = time.perf_counter() - began
        _log.info(
            "%s %s %s %.0f ms", request.method, _shown(scope), response.status_code, seconds * 1000
        )
        await response(scope, receive, send)

    def _dialect(self, request: Request, query: Mapping[str, str]) -> Dialect:
        host = request.headers.get("host", "").lower()
        path = request.url.path
        if is_rest(path) or is_debezium(path) or host.startswith("api.fabric."):
            return Dialect.REST
        if ".blob." in host or (request.scope.get("server") or ("", 0))[1] in self.blob_ports:
            return Dialect.BLOB
        if _DFS_PARAMETERS & query.keys() or "x-ms-rename-source" in request.headers:
            return Dialect.DFS
        has_blob_query = "comp" in query or "restype" in query
        if has_blob_query or any(name in request.headers for name in _BLOB_HEADERS):
            return Dialect.BLOB
        if ".dfs." in host:
            return Dialect.DFS
        agent = request.headers.get("user-agent", "")
        return Dialect.BLOB if _BLOB_CLIENTS.search(agent) else Dialect.DFS

    async def _answer(
        self, request: Request, dialect: Dialect, query: list[tuple[str, str]]
    ) -> Response:
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
        if name.lower().strip("[]") not in self.hosts:
            raise bad_request("InvalidHeaderValue", "The Host header is not a name of this server.")
        if is_oauth(request.url.path):
            return await answer_oauth(request, self.tokens)
        self._authenticate(request, query)
        if "x-ms-structured-body" in request.headers:
            raise bad_request(
                "UnsupportedHeader", "x-ms-structured-body is not supported; send a plain body."
            )
        lower = {name.lower(): value for name, value in query}
        if request.method not in _READS and self.workspace.read_only:
            path = request.url.path.lower()
            reading = is_rest(path) and path.endswith("status")
            if not reading:
                raise forbidden("The server is read-only.")
        if is_debezium(request.url.path):
            return await self.sink.answer(request)
        if dialect is Dialect.REST:
            return await answer_rest(request, self.workspace, self.mirrors)
        return await self._storage(request, dialect, lower)

    def _authenticate(self, request: Request, query: list[tuple[str, str]]) -> None:
        scheme, _, credential = request.headers.get("authorization", "").partition(" ")
        raw_path = request.scope["raw_path"].decode("ascii", "replace")
        headers = dict(request.headers)
        known = False
        if scheme.lower() == "bearer":
            known = self.tokens.is_valid(credential.strip())
        elif scheme.lower() == "sharedkey":
            known = self.tokens.is_signed(credential, request.method, raw_path, query, headers)
        elif not scheme:
            known = is_sas(self.tokens, query)
        if not known:
            issuer = f"{request.url.scheme}://{request.headers['host']}/adfs"
            challenge = f"Bearer authorization_uri={issuer}/oauth2/authorize"
            raise RequestError(
                401,
                "NoAuthenticationInformation" if not scheme else "InvalidAuthenticationInfo",
                "The request has no valid token of this server.",
                headers={"www-authenticate": f"{challenge} resource_id=https://storage.azure.com"},
            )

    async def _storage(
        self, request: Request, dialect: Dialect, query: Mapping[str, str]
    ) -> Response:
        parts = decode(request.scope["raw_path"].decode("ascii", "replace"))
        if query.get("comp") == "batch" and request.method == "POST":
            return await answer_batch(request, self.answer_part)
        if not parts or (len(parts) == 1 and not self.workspace.is_called(parts[0])):
            return self._account(request, query, known=not parts)
        item, text, inner = resolve(self.workspace, parts)
        if item is None:
            return await self._container(request, dialect, query)
        call = Call(request, dialect, self.workspace, item, text, inner, query)
        return await (answer_blob if dialect is Dialect.BLOB else answer_dfs)(call)

    async def answer_part(self, request: Request) -> Response:
        """Respond to one request of a batch; the batch's token is valid for all its parts."""
        try:
            if self.workspace.read_only:
                raise forbidden("The server is read-only.")
            lower = {name.lower(): value for name, value in _query(request.scope["query_string"])}
            return await self._storage(request, Dialect.BLOB, lower)
        except Exception as error:
            return refusal(error).response(Dialect.BLOB)

    def _account(self, request: Request, query: Mapping[str, str], *, known: bool) -> Response:
        headers = {"x-ms-is-hns-enabled": "true", "x-ms-sku-name": "Standard_LRS"}
        headers |= {"x-ms-account-kind": "StorageV2"}
        if known and request.method in ("GET", "HEAD"):
            if query.get("comp") == "list":
                return list_containers(self.workspace, query)
            if query.get("resource") == "account":
                entry = {"name": self.workspace.id, "etag": "0x0"}
                entry["lastModified"] = "Wed, 01 Jan 2020 00:00:00 GMT"
                return JSONResponse({"filesystems": [entry]})
            if request.method == "HEAD" or query.get("restype") == "account":
                return Response(status_code=200, headers=headers)
        if request.method == "PUT":
            raise forbidden("The storage protocol can't create a workspace.")
        raise RequestError(404, "ContainerNotFound", "The workspace does not exist.")

    async def _container(
        self, request: Request, dialect: Dialect, query: Mapping[str, str]
    ) -> Response:
        if request.method == "PUT":
            is_blob = dialect is Dialect.BLOB
            code = "ContainerAlreadyExists" if is_blob else "FilesystemAlreadyExists"
            raise RequestError(409, code, "The workspace already exists.")
        if request.method not in ("GET", "HEAD"):
            raise forbidden("The storage protocol can't change a workspace.")
        if request.method == "GET" and query.get("comp") == "list":
            return await run_in_threadpool(list_blobs, self.workspace, query)
        if request.method == "GET" and query.get("resource") == "filesystem":
            return await self._list(request, query)
        headers = {
            "content-length": "0",
            "etag": '"0x0"',
            "last-modified": "Wed, 01 Jan 2020 00:00:00 GMT",
            "x-ms-namespace-enabled": "true",
            "x-ms-owner": "$superuser",
            "x-ms-group": "$superuser",
            "x-ms-permissions": "---------",
            "x-ms-lease-status": "unlocked",
            "x-ms-lease-state": "available",
            # pyarrow's client aborts its process if one of these headers is missing.
            "x-ms-has-immutability-policy": "false",
            "x-ms-has-legal-hold": "false",
            "x-ms-default-encryption-scope": "none",
            "x-ms-deny-encryption-scope-override": "false",
            "x-ms-immutable-storage-with-versioning-enabled": "false",
        }
        return Response(status_code=200, headers=headers)

    async def _list(self, request: Request, query: Mapping[str, str]) -> Response:
        parts = split(query.get("directory", ""))
        if not parts:
            when = "Wed, 01 Jan 2020 00:00:00 GMT"
            entries = [
                {"name": item.id, "isDirectory": "true", "contentLength": "0", "etag": "0x0"}
                | {"lastModified": when, "owner": "$superuser", "group": "$superuser"}
                | {"permissions": "---------"}
                for item in self.workspace.items
            ]
            return JSONResponse({"paths": entries})
        item = self.workspace.find(parts[0])
        if item is None:
            raise RequestError(404, "PathNotFound", "The item does not exist in the workspace.")
        inner = dict(query) | {"directory": ""}
        call = Call(request, Dialect.DFS, self.workspace, item, parts[0], parts[1:], inner)
        return await answer_dfs(call)


def _query(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError:
        raise bad_request("InvalidQueryParameterValue", "The query string is invalid.") from None


def _finish(request: Request, response: Response) -> None:
    headers = MutableHeaders(raw=response.raw_headers)
    version = request.headers.get("x-ms-version", "")
    headers["x-ms-version"] = version if _VERSION.match(version) else _NEWEST
    headers["x-ms-request-id"] = str(uuid.uuid4())
    given = request.headers.get("x-ms-client-request-id", "")
    if _REQUEST_ID.match(given):
        headers["x-ms-client-request-id"] = given


def _shown(scope: Scope) -> str:
    """Return the path for the log.

    It has no query, which may contain a signature, and no control characters.
    """
    path = scope["raw_path"].decode("ascii", "replace")
    return "".join(char if char.isprintable() else "?" for char in path)[:300]
