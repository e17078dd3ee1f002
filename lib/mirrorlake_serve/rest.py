"""JSON endpoints: the control plane for mirrored databases, and Debezium's HTTP sink.

The control plane creates and deletes mirrored databases, changes their definitions, starts and
stops mirroring, and reports its status. `POST /debezium/NAME` appends events to a journal of the
lake; a thread per journal publishes them.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection
from threading import Event, Lock, Thread
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mirrorlake.source_status import SourceReport
from mirrorlake_serve.call import read_document
from mirrorlake_serve.lakes import Item, Mirrors, Workspace, format_definition, parse_definition
from mirrorlake_serve.protocol import RequestError, bad_request, decode
from mirrorlake_sources import Journal, journals_of, run_source

_ROOT = re.compile(r"(/v1)*/(workspaces|operations)(/|\Z)")
_KIND = "MirroredDatabase"
_TEXT = 256  # characters of a name or description
_DOCUMENT = 1 << 20  # bytes of a request


def is_rest(path: str) -> bool:
    """Return whether a path belongs to the control plane."""
    return path == "/v1" or path.startswith("/v1/") or bool(_ROOT.match(path))


async def answer_rest(request: Request, workspace: Workspace, mirrors: Mirrors) -> Response:
    """Respond to one request to the control plane.

    Raises:
        RequestError: the request is refused.
    """
    path = re.sub(r"\A(/v1)+", "", request.url.path).strip("/")
    parts = path.split("/")
    body: Any = None
    if request.method in ("POST", "PATCH", "PUT"):
        body = _json(await read_document(request, _DOCUMENT))
    return await run_in_threadpool(_Rest(request, workspace, mirrors, body).answer, parts)


class _Rest:
    """One request to the control plane."""

    def __init__(self, request: Request, workspace: Workspace, mirrors: Mirrors, body: Any) -> None:
        self.request = request
        self.workspace = workspace
        self.mirrors = mirrors
        self.body = body

    def answer(self, parts: list[str]) -> Response:
        """Return the response for the parts of a path."""
        method = self.request.method
        if parts[0] == "operations" and len(parts) in (2, 3):
            raise RequestError(
                404,
                "OperationNotFound",
                "The operation does not exist; all requests complete at once.",
            )
        if parts == ["workspaces"]:
            self._only("GET")
            return JSONResponse({"value": [self._workspace()]})
        if parts[0] != "workspaces":
            raise RequestError(404, "EndpointNotFound", "The endpoint does not exist.")
        if not self.workspace.is_called(parts[1]):
            raise RequestError(404, "WorkspaceNotFound", "The workspace does not exist.")
        if len(parts) == 2:
            self._only("GET")
            return JSONResponse(self._workspace())
        kind = parts[2].lower()
        if kind == "items" and len(parts) == 3 and method == "GET":
            wanted = self.request.query_params.get("type", _KIND)
            return self._list() if wanted == _KIND else JSONResponse({"value": []})
        if kind not in ("mirroreddatabases", "items"):
            raise RequestError(404, "EndpointNotFound", "The endpoint does not exist.")
        if len(parts) == 3:
            self._only("GET", "POST")
            return self._list() if method == "GET" else self._create()
        item = self.workspace.find(parts[3])
        if item is None:
            raise RequestError(404, "ItemNotFound", "The mirrored database does not exist.")
        if len(parts) == 4:
            self._only("GET", "PATCH", "DELETE")
            return {"GET": self._get, "PATCH": self._update, "DELETE": self._delete}[method](item)
        return self._act(item, "/".join(parts[4:]).lower())

    def _only(self, *methods: str) -> None:
        if self.request.method not in methods:
            raise RequestError(405, "UnsupportedHttpVerb", f"Use {' or '.join(methods)} here.")

    def _act(self, item: Item, action: str) -> Response:
        actions: dict[str, Callable[[Item], Response]] = {
            "getdefinition": lambda one: JSONResponse(format_definition(one.definition or {})),
            "updatedefinition": self._define,
            "startmirroring": self._start,
            "stopmirroring": self._stop,
            "getmirroringstatus": self._status,
            "gettablesmirroringstatus": self._tables,
        }
        if action not in actions:
            raise RequestError(404, "EndpointNotFound", "The endpoint does not exist.")
        self._only("POST", *(("GET",) if action.endswith("status") else ()))
        return actions[action](item)

    def _workspace(self) -> dict[str, Any]:
        found = {"id": self.workspace.id, "displayName": self.workspace.name}
        return found | {"description": "", "type": "Workspace"}

    def _item(self, item: Item) -> dict[str, Any]:
        base = f"{self.request.url.scheme}://{self.request.headers['host']}"
        target = (item.definition or {}).get("properties", {}).get("target", {})
        schema = (target.get("typeProperties") or {}).get("defaultSchema", "dbo")
        return {
            "id": item.id,
            "type": _KIND,
            "displayName": item.name,
            "description": item.description,
            "workspaceId": self.workspace.id,
            "properties": {
                "oneLakeTablesPath": f"{base}/{self.workspace.id}/{item.id}/Tables",
                "sqlEndpointProperties": None,
                "defaultSchema": schema,
            },
        }

    def _list(self) -> Response:
        return JSONResponse({"value": [self._item(item) for item in self.workspace.items]})

    def _get(self, item: Item) -> Response:
        return JSONResponse(self._item(item))

    def _create(self) -> Response:
        name = self._field("displayName", required=True)
        kind = self._field("type") or _KIND
        if kind != _KIND:
            raise bad_request("UnsupportedItemType", f"{kind!r} is not a mirrored database.")
        definition = None
        if self.body.get("definition") is not None:
            definition = self._definition(self.body)
        made = self.workspace.create(name, self._field("description"), definition)
        return JSONResponse(self._item(made), 201)

    def _update(self, item: Item) -> Response:
        changes = {}
        if self._field("displayName"):
            changes["name"] = self._field("displayName")
        if isinstance(self._object().get("description"), str):
            changes["description"] = self._field("description")
        return JSONResponse(self._item(self.workspace.change(item, **changes)))

    def _delete(self, item: Item) -> Response:
        hard = self.request.query_params.get("hardDelete", "").lower() == "true"
        self.mirrors.stop(item.storage)
        self.workspace.delete(item, hard=hard)
        return Response(status_code=200)

    def _define(self, item: Item) -> Response:
        self.workspace.change(item, definition=self._definition(self._object()))
        return Response(status_code=200)

    def _start(self, item: Item) -> Response:
        if item.definition is None:
            raise bad_request(
                "MirroringDefinitionMissing",
                f"{item.name!r} has no mirroring.json. Hint: call updateDefinition first.",
            )
        self.mirrors.start(item.storage)
        return Response(status_code=200)

    def _stop(self, item: Item) -> Response:
        self.mirrors.stop(item.storage)
        return Response(status_code=200)

    def _status(self, item: Item) -> Response:
        state, problem = self.mirrors.status(item.storage)
        found: dict[str, Any] = {"status": state}
        if problem:
            found["error"] = {"errorCode": "MirroringFailed", "message": problem}
        return JSONResponse(found)

    def _tables(self, item: Item) -> Response:
        return JSONResponse({"data": self.mirrors.tables(item.storage)})

    def _object(self) -> dict[str, Any]:
        if not isinstance(self.body, dict):
            raise bad_request("InvalidRequest", "The body is not a JSON object.")
        return self.body

    def _field(self, name: str, *, required: bool = False) -> str:
        value = self._object().get(name)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or len(value) > _TEXT or (required and not value.strip()):
            raise bad_request(
                "InvalidParameter", f"{name} is not a text of 1 to {_TEXT} characters."
            )
        return value

    def _definition(self, document: dict[str, Any]) -> dict[str, Any]:
        definition = document.get("definition")
        parts = definition.get("parts") if isinstance(definition, dict) else None
        if not isinstance(parts, list):
            raise bad_request("InvalidDefinitionParts", "definition.parts is not a list.")
        return parse_definition(parts)


def _json(data: bytes) -> Any:
    if not data.strip():
        return {}
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise bad_request("InvalidRequest", "The body is not valid JSON.") from None


_log = logging.getLogger("mirrorlake.serve.debezium")
_PREFIX = "/debezium/"
_LARGEST = 64 << 20  # bytes of one POST
_RETRY = 5.0  # seconds before a journal is published again after an error
_AGAIN = 30.0  # seconds before a stopped table is retried


def is_debezium(path: str) -> bool:
    """Return whether a path belongs to the endpoint for Debezium's events."""
    return path.startswith(_PREFIX)


class DebeziumSink:
    """The endpoint for Debezium's events: appends them to journals and publishes the journals.

    Each journal is published by its own thread.

    Args:
        workspace: the lakes.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._open: dict[tuple[str, str], _JournalPublisher] = {}
        self._lock = Lock()
        workspace.on_delete = self.forget

    def resume(self) -> None:
        """Continue to publish the journals of earlier servers."""
        if self._workspace.read_only:
            return
        for item in self._workspace.items:
            if item.storage.local is not None:
                for name in journals_of(item.storage):
                    self._journal(item, name)

    async def answer(self, request: Request) -> Response:
        """Respond to one POST once its events are durable.

        Raises:
            RequestError: the request is refused; none of its events is stored.
        """
        parts = decode(request.scope["raw_path"].decode("ascii", "replace"))
        if len(parts) != 2:
            raise RequestError(404, "EndpointNotFound", "The endpoint is /debezium/NAME.")
        if request.method != "POST":
            raise RequestError(405, "UnsupportedHttpVerb", "Use POST here.")
        item = self._item(request.query_params.get("lake", ""))
        body = await read_document(request, _LARGEST)
        return JSONResponse({"events": await run_in_threadpool(self._take, item, parts[1], body)})

    def close(self) -> None:
        """Stop all publishers after complete batches."""
        with self._lock:
            found, self._open = list(self._open.values()), {}
        _close(found)

    def forget(self, item: Item) -> None:
        """Stop the publishers of one lake."""
        with self._lock:
            found = {key: one for key, one in self._open.items() if key[0] == item.id}
            self._open = {key: one for key, one in self._open.items() if key not in found}
        _close(found.values())

    def _take(self, item: Item, name: str, body: bytes) -> int:
        return self._journal(item, name).append(body)

    def _journal(self, item: Item, name: str) -> Journal:
        with self._lock:
            key = (item.id, name)
            if key not in self._open:
                self._open[key] = _JournalPublisher(Journal(item.storage, name), item)
            return self._open[key].journal

    def _item(self, text: str) -> Item:
        item = self._workspace.find(text) if text else self._workspace.main
        if item is None:
            problem = (
                f"The lake {text!r} does not exist." if text else "The server has several lakes."
            )
            raise bad_request("InvalidInput", f"{problem} Hint: name a lake: ?lake=NAME.")
        return item


class _JournalPublisher:
    """A journal and the thread that publishes it."""

    def __init__(self, journal: Journal, item: Item) -> None:
        self.journal = journal
        self.item = item
        self._ended = False
        self._failed = 0.0
        self._round = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Request the end of the thread; it publishes complete batches first."""
        self._ended = True
        self._round.set()

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            self._failed = 0.0
            try:
                run_source(
                    self.item.storage,
                    self.journal.source(),
                    once=False,
                    stop=self._round,
                    on_report=self._look,
                )
            except Exception:
                _log.exception(
                    "Publishing the journal %s failed; it is retried.", self.journal.name
                )
                self._round.wait(_RETRY)
            self._round.clear()

    def _look(self, report: SourceReport) -> None:
        """Restart the source after a while if a table is stopped: its cause may be fixed."""
        if not report.failed:
            return
        self._failed = self._failed or time.monotonic()
        if time.monotonic() - self._failed > _AGAIN:
            self._round.set()


def _close(found: Collection[_JournalPublisher]) -> None:
    for one in found:
        one.end()
    for one in found:
        one.wait()
