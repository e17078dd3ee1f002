"""The lakes of a server, each with a name and a stable GUID, and the mirrors of these lakes."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from typing import Any

from mirrorlake.errors import InvalidNameError, UsageError
from mirrorlake.lake import Lake
from mirrorlake.names import STATE, check_part, fingerprint
from mirrorlake.storage.files import Storage
from mirrorlake.storage.kept import read_kept
from mirrorlake.storage.paths import cache
from mirrorlake_serve.protocol import RequestError, bad_request
from mirrorlake_serve.zone import LandingZone

FORMAT = 1
DEFINITION = {
    "properties": {
        "source": {"type": "GenericMirror", "typeProperties": {}},
        "target": {
            "type": "MountedRelationalDatabase",
            "typeProperties": {"defaultSchema": "dbo", "format": "Delta", "retentionInDays": 7},
        },
    }
}
_KINDS = (".MountedRelationalDatabase", ".MirroredDatabase")
_NOTE = f"{STATE}/serve.json"
_log = logging.getLogger("mirrorlake.serve.mirrors")
_RETRY = 5.0  # seconds before the mirror runs again after an error


@dataclass(frozen=True)
class Item:
    """One lake as clients see it: a mirrored database.

    Attributes:
        id: its GUID.
        name: its display name.
        zone: its landing zone.
        description: its description.
        made: whether this server created its folder.
        definition: its `mirroring.json`; None until a client sets it.
    """

    id: str
    name: str
    zone: LandingZone = field(repr=False)
    description: str = ""
    made: bool = False
    definition: dict[str, Any] | None = None

    @property
    def storage(self) -> Storage:
        """The lake's storage."""
        return self.zone.storage

    def is_called(self, text: str) -> bool:
        """Return whether a part of a URL names this lake."""
        lower = text.lower()
        for kind in _KINDS:
            lower = lower.removesuffix(kind.lower())
        return lower in (self.id, self.name.lower())


class Workspace:
    """All lakes of a server: one lake by its root, the lakes in a folder, or both.

    Args:
        root: a lake's path or URI.
        folder: a folder whose subfolders are lakes; new lakes are created in it.
        read_only: whether all writes are refused, those of the server itself included.
        widen: whether files may have wider types than the columns of their tables.

    Attributes:
        on_delete: called with a lake before it is unregistered.
    """

    def __init__(
        self,
        root: str | None = None,
        folder: str | None = None,
        *,
        read_only: bool = False,
        widen: bool = False,
    ) -> None:
        self.read_only = read_only
        self._widen = widen
        self._folder = None if folder is None else Storage(folder)
        place = self._folder or Storage(root or ".")
        self.id = _guid("workspace", place.root)
        self.name = place.root.rpartition("/")[2] if self._folder else "mirrorlake"
        self._items: dict[str, Item] = {}
        self._lock = RLock()
        self._main = ""
        self.on_delete: Callable[[Item], None] = lambda item: None
        if root is not None:
            self._add(Storage(root), asked=True)
            self._main = next(iter(self._items))
        for name in self._folder.list("").folders if self._folder else ():
            if not name.startswith(("_", ".")):
                self._add(self._inside(name))

    def is_called(self, text: str) -> bool:
        """Return whether a part of a URL names this workspace."""
        return text.lower() in (self.id, self.name.lower())

    @property
    def items(self) -> list[Item]:
        """The lakes, ordered by name."""
        return sorted(self._items.values(), key=lambda item: item.name)

    @property
    def main(self) -> Item | None:
        """The lake that the server was started with, or the only lake; otherwise None."""
        found = self._items.get(self._main)
        return next(iter(self._items.values())) if not found and len(self._items) == 1 else found

    def find(self, text: str) -> Item | None:
        """Return the lake that a part of a URL names, or None."""
        return next((item for item in self._items.values() if item.is_called(text)), None)

    def _inside(self, name: str) -> Storage:
        if self._folder is None:
            raise RequestError(
                403,
                "OperationNotAllowed",
                "The server has a single lake; start it with --workspace.",
            )
        return Storage(self._folder.path(name))

    def _add(self, storage: Storage, *, asked: bool = False) -> None:
        note = read_kept(storage, _NOTE, FORMAT) or {}
        if note.get("unregistered") and not asked:
            return
        item = Item(
            note.get("id") or _guid("item", storage.root),
            note.get("name") or storage.root.rpartition("/")[2] or "lake",
            LandingZone(storage, _state_folder(storage), widen=self._widen),
            note.get("description", ""),
            note.get("made", False),
            note.get("definition", DEFINITION),
        )
        if not self.read_only:
            item.zone.uploads.load()
        self._items.setdefault(item.id, item)

    def create(self, name: str, description: str, definition: dict[str, Any] | None) -> Item:
        """Create a lake in the workspace's folder, or register a deleted one again.

        Raises:
            RequestError: the name exists or is invalid, or the workspace has no folder.
        """
        try:
            check_part(name)
        except InvalidNameError as error:
            raise bad_request("InvalidItemName", str(error)) from None
        with self._lock:
            storage = self._inside(name)
            if self.find(name) is not None:
                raise RequestError(
                    409,
                    "ItemDisplayNameAlreadyInUse",
                    f"The mirrored database {name!r} already exists.",
                )
            listed = storage.list("")
            made = not (listed.folders or listed.files)
            made = made or bool((read_kept(storage, _NOTE, FORMAT) or {}).get("made"))
            zone = LandingZone(storage, _state_folder(storage), widen=self._widen)
            item = Item(str(uuid.uuid4()), name, zone, description, made, definition)
            zone.files.make_folder("Files/LandingZone")
            return self.change(item)

    def change(self, item: Item, **changes: Any) -> Item:
        """Save a lake with some fields changed, and return it."""
        changed = replace(item, **changes)
        note = {
            "format": FORMAT,
            "id": changed.id,
            "name": changed.name,
            "description": changed.description,
            "made": changed.made,
            "definition": changed.definition,
        }
        with self._lock:
            other = self.find(changed.name)
            if other is not None and other.id != item.id:
                raise RequestError(
                    409,
                    "ItemDisplayNameAlreadyInUse",
                    f"The mirrored database {changed.name!r} already exists.",
                )
            changed.storage.write_json(_NOTE, note)
            self._items[item.id] = changed
        return changed

    def delete(self, item: Item, *, hard: bool) -> None:
        """Unregister a lake.

        Args:
            item: the lake.
            hard: whether its files are deleted as well, if this server created its folder.
        """
        self.on_delete(item)
        with self._lock:
            self._items.pop(item.id, None)
            if hard and item.made:
                item.storage.delete_folder("")
                return
            kept = {"format": FORMAT, "unregistered": True, "made": item.made}
            item.storage.write_json(_NOTE, kept)


def parse_definition(parts: Any) -> dict[str, Any]:
    """Return the `mirroring.json` of a definition.

    Raises:
        RequestError: the document is missing or invalid.
    """
    try:
        payload = next(p["payload"] for p in parts if p["path"] == "mirroring.json")
        document = json.loads(base64.b64decode(payload, validate=True))
        source = document["properties"]["source"]["type"]
        target = document["properties"]["target"].get("typeProperties") or {}
        days = target.get("retentionInDays", 7)
    except StopIteration:
        raise bad_request(
            "InvalidDefinitionParts", "The definition has no part mirroring.json."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise bad_request("InvalidDefinitionFormat", "mirroring.json is invalid.") from None
    if source != "GenericMirror":
        text = f"The source type {source!r} is not supported; use GenericMirror."
        raise bad_request("UnsupportedSourceType", text)
    if not isinstance(days, int) or isinstance(days, bool) or not 1 <= days <= 30:
        text = f"retentionInDays is {days!r}, not a number from 1 to 30."
        raise bad_request("InvalidDefinitionFormat", text)
    found: dict[str, Any] = document
    return found


def format_definition(document: dict[str, Any]) -> dict[str, Any]:
    """Return a definition that has `mirroring.json` as its only part."""
    payload = base64.b64encode(json.dumps(document).encode()).decode()
    part = {"path": "mirroring.json", "payload": payload, "payloadType": "InlineBase64"}
    return {"definition": {"parts": [part]}}


def state_home() -> Path:
    """Return the folder of the server's token and certificate authority."""
    return cache() / "serve"


def _state_folder(storage: Storage) -> Path:
    """Return the folder of uploads, on the lake's own disk so that publishing is one rename."""
    if storage.local is not None:
        return storage.local / STATE / "serve"
    return state_home() / fingerprint(storage.root)


def _guid(kind: str, root: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"mirrorlake:{kind}:{root}"))


class _Running:
    """The thread of one mirror."""

    def __init__(self, storage: Storage, interval: float, *, widen: bool) -> None:
        self.stop = Event()
        self.began = False
        self.problem = ""
        self.thread = Thread(target=self._run, args=(storage, interval, widen), daemon=True)
        self.thread.start()

    def _run(self, storage: Storage, interval: float, widen: bool) -> None:
        while not self.stop.is_set():
            try:
                Lake(storage.root).watch(
                    self.stop, interval=interval, widen=widen, on_report=self._on_report
                )
            except Exception as error:
                self.problem = str(error)
                _log.exception("The mirror of %s failed; it is retried.", storage.root)
                self.stop.wait(_RETRY)

    def _on_report(self, _report: object) -> None:
        self.began, self.problem = True, ""


class Mirrors:
    """The mirrors of a server, one thread per lake, with a common Spark session.

    Each method may block: the server calls them in its thread pool.

    Args:
        interval: seconds between cycles.
        allowed: whether the server may run mirrors; if not, Spark never starts.
        widen: whether the mirrors widen columns, as `Lake.mirror(widen=True)` does.
    """

    def __init__(self, interval: float = 5, *, allowed: bool = True, widen: bool = False) -> None:
        self._interval = interval
        self._widen = widen
        self._allowed = allowed
        self._running: dict[str, _Running] = {}
        self._lock = Lock()

    def start(self, storage: Storage) -> None:
        """Start the mirror of a lake; do nothing if it runs already.

        Raises:
            UsageError: the server was started without mirrors.
        """
        if not self._allowed:
            raise UsageError(
                "This server runs no mirror.",
                hint="start it with --mirror, or run the command mirror.",
            )
        with self._lock:
            found = self._running.get(storage.root)
            if found is None or found.stop.is_set():
                self._running[storage.root] = _Running(storage, self._interval, widen=self._widen)

    def stop(self, storage: Storage) -> None:
        """Stop the mirror of a lake after its running commit, and wait until it has ended."""
        with self._lock:
            found = self._running.pop(storage.root, None)
        if found is not None:
            found.stop.set()
            found.thread.join()

    def close(self) -> None:
        """Stop all mirrors."""
        with self._lock:
            found, self._running = list(self._running.values()), {}
        for one in found:
            one.stop.set()
        for one in found:
            one.thread.join()

    def status(self, storage: Storage) -> tuple[str, str]:
        """Return the state of the lake's mirror in Fabric's words, and its problem or ""."""
        found = self._running.get(storage.root)
        if found is not None:
            if found.stop.is_set():
                return "Stopping", found.problem
            return ("Running" if found.began else "Starting"), found.problem
        if self._allowed:
            return "Stopped", ""
        # Another process may mirror the lake and write the monitoring files.
        try:
            kept = storage.read_json("Files/Monitoring/replicator.json") or {}
            return str(kept.get("status", "Initialized")), str(kept.get("errorMessage", ""))
        except (ValueError, AttributeError):
            return "Initialized", ""

    def tables(self, storage: Storage) -> list[dict[str, Any]]:
        """Return one entry per table, in the form of `getTablesMirroringStatus`."""
        found = []
        for table in Lake(storage.root).status().tables:
            entry: dict[str, Any] = {
                "sourceObjectType": "Table",
                "sourceSchemaName": table.schema or "",
                "sourceTableName": table.name,
                "status": table.state,
                "metrics": {
                    "processedBytes": table.applied_bytes,
                    "processedRows": table.rows,
                    "lastSyncDateTime": table.synced,
                    "lastSyncLatencyInSeconds": table.latency,
                },
            }
            if table.error:
                entry["error"] = {"errorCode": "TableFailed", **table.error}
            found.append(entry)
        return found
